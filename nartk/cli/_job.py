"""Runs `nartk-decode` on records: decodes them, writes the outputs, and counts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, count, islice
from typing import TYPE_CHECKING

from nartk.errors import NartkError, OutputError, number_of
from nartk.protocols.hypothesis import GUARDED, WINDOW, DecodeStats, Hypothesis, Result
from nartk.protocols.runs import Batching, run_in_order
from nartk.registry import reads_drafts
from nartk.tracing import describe, describe_error, finite, head, provenance

if TYPE_CHECKING:
    from nartk.cli._edits import EditWriter
    from nartk.cli._journal import LineJournal
    from nartk.cli._speech import SpeechWriter
    from nartk.cli._transcripts import Transcripts
    from nartk.data.readers import Record
    from nartk.decoders.strategy import Decoding
    from nartk.files import JsonObject
    from nartk.serving.cluster import ClusterRun
    from nartk.serving.line_runs import LineRequest
    from nartk.serving.model import Model

_IN_COLUMNS = str.maketrans("\n\t", "  ")
WARM_UP = ("Warm up .", "The first sentences take longer .")
WINDOW_OF_FEATURES = 256  # sources in memory at a time: a minute of sound takes 2 MB, a sentence nothing


class Job:
    """Decodes records, or scores their outputs, and writes what comes out in their order.

    Attributes:
        lines: Sentences written, blank and failed ones included.
        failed: Sentences that had an error.
        windows: Statistics of the others, in parts.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        model: Model,
        strategy: Decoding,
        write: Callable[[str], None],
        write_trace: Callable[[str], None] | None,
    ) -> None:
        self.args, self.model, self.strategy = args, model, strategy
        self.write, self.write_trace = write, write_trace
        self.nbest: int = getattr(strategy, "nbest", 1)  # strategies that can find several have this option
        self.scores = args.score is not None
        self.reads_text = model.reads_text
        self.reads_drafts = reads_drafts(strategy)
        self.lines = self.failed = 0
        self._read: deque[Record] = deque()  # whose outcome is not written yet
        self._waited = 0.0  # seconds, for records
        self._begun = self._kept = 0.0  # by the clock; seconds since then that the journal has
        self.signature = model.signature(strategy)
        self.windows: list[DecodeStats] = []
        self.speech: SpeechWriter | None = None  # takes the best output of each line
        self.transcripts: Transcripts | None = None  # makes files of them, where they have other formats
        self.edits: EditWriter | None = None  # makes blocks of M2 of them
        self.journal: LineJournal | None = None  # keeps what is written of each line
        self.cluster: ClusterRun | None = None  # decodes lines; None: this process does

    def warm_up(self, records: Iterator[Record]) -> Iterator[Record]:
        """Decodes a little that does not count; gives the records back."""
        lines: Sequence[str] = WARM_UP
        if not self.reads_text:
            first = [*islice(records, 1)]
            records = chain(first, records)
            lines = [record.text for record in first]
        targets = WARM_UP[: len(lines)] if self.scores else None
        with self._untold():
            deque(self.model.stream(lines, self.strategy, targets=targets, truncate=True), maxlen=0)
        return records

    @contextmanager
    def _untold(self) -> Iterator[None]:
        """Keeps to itself what there is to say of the first recording: it is said when that counts."""
        sound = self.model.sound
        if sound is None:
            yield
            return
        sound.tell, tell = lambda line: None, sound.tell
        try:
            yield
        finally:
            sound.tell = tell

    def decode(self, records: Iterator[Record], done: Callable[[int], None]) -> None:
        """Decodes all records; tells `done` how many of them are written that no journal held."""
        size = 1 if self.args.stream else WINDOW if self.reads_text else WINDOW_OF_FEATURES
        if self.transcripts is not None:
            records = self.transcripts.checked(records)
        if self.journal is not None:
            from nartk.cli._journal import AHEAD

            size, self.lines = min(size, AHEAD), self.journal.count
            self.failed, before = self.journal.skip(records, self.transcripts)
            self.windows.append(before)
        first = self.lines
        from nartk.serving.line_runs import LineRun
        from nartk.serving.outcomes import summarize

        run: LineRun | ClusterRun
        if self.cluster is not None:
            run, size = self.cluster, self.cluster.ahead
        else:
            run = LineRun(self.model, self.strategy, Batching(self.args.batch_size, self.args.max_tokens))
        finished: list[Result] = []
        self._begun = time.perf_counter()
        for _, found in run_in_order(run, self._requests(records, first), ahead=size):
            record = self._read.popleft()
            outcome = found if record.error is None else record.error
            if isinstance(outcome, Result):
                finished.append(outcome)
            self._write(record, outcome)
            done(self.lines - first)
            if len(finished) == WINDOW:
                self.windows.append(summarize(finished, 0.0))
                finished.clear()
        self.windows.append(summarize(finished, self._spent()))

    def _spent(self) -> float:
        """Seconds since decoding began, without those in which records were waited for."""
        return time.perf_counter() - self._begun - self._waited

    def _requests(self, records: Iterator[Record], first: int) -> Iterator[LineRequest]:
        """Requests of records, which are read as places become free; time to read one is not counted.

        Args:
            first: Lines before them.
        """
        from nartk.serving.line_runs import line_requests

        for index in count(first):
            asked = time.perf_counter()
            record = next(records, None)
            self._waited += time.perf_counter() - asked
            if record is None:
                return
            self._read.append(record)
            # A record with an error has no text and takes a place: what a line gives, sampled or not, does
            # not depend on whether those before it can be read.
            yield from line_requests(
                self.model,
                [record.text],
                self.strategy,
                prefixes=None if self.scores else [record.prefix],
                drafts=[record.drafts] if self.reads_drafts else None,
                targets=[record.drafts] if self.scores else None,
                truncate=self.args.truncate,
                trace=self.write_trace is not None,
                first=index,
            )

    def _write(self, record: Record, outcome: Result | NartkError) -> None:
        self.lines += 1
        results = [outcome] if isinstance(outcome, Result) else []
        name = {"id": self.lines if record.id is None else record.id}
        hypotheses: Sequence[Hypothesis] = ()
        block = ""
        if self.edits is not None:
            block, outcome = self.edits.block(record, outcome)
        if isinstance(outcome, NartkError):
            self.failed += 1
            outcome.where = record.where
            print(f"nartk: {outcome}", file=sys.stderr)
            failure = {"error": describe_error(outcome)}
        else:
            hypotheses = outcome.hypotheses if self.scores else outcome.hypotheses[: self.nbest]
        if self.transcripts is not None:
            self._transcribe(self.transcripts, record, outcome, hypotheses, name)
        elif self.edits is not None:
            self.write(block)
        elif self.args.output_format == "jsonl":
            self.write(self._as_json(record, outcome, hypotheses, name))
        elif self.scores:
            self.write("\t".join(f"{each.score:.6f}" for each in hypotheses))
        elif self.nbest == 1:
            # The text of a JSONL record may have line breaks.
            self.write(hypotheses[0].text.replace("\n", " ") if hypotheses else "")
        else:
            scores = ["" if each.score is None else f"{each.score:.6f}" for each in hypotheses]
            pairs = zip(scores, hypotheses, strict=True)
            columns = [f"{self.lines}\t{score}\t{each.text.translate(_IN_COLUMNS)}" for score, each in pairs]
            self.write("\n".join(columns) if columns else f"{self.lines}\t\t")
        if self.speech is not None and hypotheses:
            self._speak(self.speech, record, hypotheses[0])
        if self.write_trace is not None:
            traced = failure if isinstance(outcome, NartkError) else self._describe_trace(record, outcome)
            self.write_trace(_to_json(head(self.lines, name["id"], self.signature) | traced))
        if self.journal is not None:
            from nartk.serving.outcomes import summarize

            begun, self._kept = self._kept, self._spent()
            error = str(outcome) if isinstance(outcome, NartkError) else None
            self.journal.add(record, error, summarize(results, self._kept - begun))

    def _speak(self, speech: SpeechWriter, record: Record, best: Hypothesis) -> None:
        """Has the sound of an output written; that time is the vocoder's and is not counted here."""
        begun = time.perf_counter()
        try:
            speech.write(record, best)
        except OutputError:
            raise
        except NartkError as error:
            self.failed += 1
            error.where = record.where
            print(f"nartk: {error}", file=sys.stderr)
        self._waited += time.perf_counter() - begun

    def _as_json(
        self, record: Record, outcome: Result | NartkError, hypotheses: Sequence[Hypothesis], name: JsonObject
    ) -> str:
        """A line of JSONL."""
        if isinstance(outcome, NartkError):
            return _to_json(name | {"error": describe_error(outcome)})
        described = {"source": record.text, "hypotheses": [self._describe(each) for each in hypotheses]}
        return _to_json(name | described)

    def _transcribe(
        self,
        to: Transcripts,
        record: Record,
        outcome: Result | NartkError,
        hypotheses: Sequence[Hypothesis],
        name: JsonObject,
    ) -> None:
        """Writes the transcript of a recording; one that could not be decoded has no file."""
        if to.form == "jsonl":
            text = self._as_json(record, outcome, hypotheses, name)
        else:
            text = to.text(record, hypotheses[0]) if hypotheses else ""
        if to.folder is None:
            if text or to.form != "ctm":  # of which silence has no line
                self.write(text)
        elif hypotheses:
            to.write(record, text)
            if self.journal is not None:
                self.journal.write(text)

    def _describe(self, hypothesis: Hypothesis) -> JsonObject:
        scores = hypothesis.positional_scores
        described: JsonObject = {
            **hypothesis.output.fields(),
            "tokens": hypothesis.pieces,
            "score": finite(hypothesis.score),
            "positional_scores": None if scores is None else [*map(finite, scores)],
        }
        guarded = [asdict(each) for each in hypothesis.guarded]
        if hypothesis.times is not None:
            described["times"] = [[round(each, 3) for each in pair] for pair in hypothesis.times]
        return described | provenance(hypothesis) | ({"guard": guarded} if guarded else {})

    def _describe_trace(self, record: Record, result: Result) -> JsonObject:
        from nartk.protocols.passes import texts_of

        checkpoint = self.model.checkpoint
        source: list[str] = []  # of what is no text
        if checkpoint.input.vocab is not None:
            paragraph = self.model.tokenization.paragraph(
                record.text, prefix=record.prefix, drafts=record.drafts
            )
            for sentence in paragraph.sentences:
                read = checkpoint.input.read(sentence.text, longest=sys.maxsize)
                words = checkpoint.input.vocab.to_words(texts_of([read])[0])
                source += words
        return describe(
            result, nbest=self.nbest, text=record.text, source=source, words=checkpoint.target_vocab.to_words
        )

    def stats(self) -> DecodeStats:
        """Statistics of all sentences."""
        return DecodeStats.total(self.windows)

    def report(self) -> JsonObject:
        """The report of `--stats`, without loading and warm-up; blank and failed lines are no sentences."""
        stats, args = self.stats(), self.args
        sound = stats.sound_seconds
        timed = {"sound_seconds": sound, "real_time_factor": stats.seconds / sound} if sound else {}
        return {
            "seconds": stats.seconds,
            **timed,
            "lines": self.lines,
            "failed": self.failed,
            **({} if self.journal is None else {"from_journal": self.journal.count}),
            "sentences": stats.sentences,
            "tokens": stats.tokens,
            "passes": stats.passes,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "accepted_per_pass": stats.accepted / stats.passes if stats.passes else 0.0,
            "tokens_per_second": stats.tokens_per_second,
            "latency_ms": stats.latency_ms,
            "speech": None if self.speech is None else self.speech.report(),
            "guard": None if self.model.guarding is None else self._guarded(),
            "strategy": self.strategy.name,
            "guarantee": self.strategy.promised.guarantee.value,
            "batch_size": args.batch_size,
            "max_tokens": args.max_tokens,
            "drafts": args.drafts,
            "device": args.device,
            "cuda_graphs": getattr(self.model.passes, "captured", None),
            "dtype": self.model.dtype,
            "threads": self.model.threads,
            "replicas": self.model.replicas,
            "workers": None if self.cluster is None else self.cluster.count,
            "signature": self.signature,
        }

    def _guarded(self) -> dict[str, int]:
        """Counts each action of the guard."""
        stats = self.stats()
        return {done: getattr(stats, done) for done in GUARDED}

    def summary(self) -> str:
        """The run in a line."""
        stats = self.stats()
        drafted = f", {stats.accepted} of {stats.drafted} drafted tokens accepted" if stats.drafted else ""
        failed = f", {number_of(self.failed, 'line')} failed" if self.failed else ""
        guarded = [f"{count} {what}" for what, count in self._guarded().items() if count]
        guard = f", guard: {', '.join(guarded)}" if guarded else ""
        sound = stats.sound_seconds
        factor = f", real-time factor {stats.seconds / sound:.4f}" if sound else ""
        if self.speech is not None:
            factor += f", {number_of(self.speech.files, 'sound file')} of {self.speech.sound_seconds:.1f} s"
        return (
            f"{number_of(stats.sentences, 'sentence')}, {number_of(stats.tokens, 'token')} "
            f"in {stats.seconds:.2f} s ({stats.tokens_per_second:.0f} tokens/s), "
            f"{number_of(stats.passes, 'pass')}{drafted}{guard}{factor}{failed}"
        )


def _to_json(values: JsonObject) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)
