"""Decodes lines: each is one or several requests of a run, whose results are joined to the line's outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nartk.errors import (
    InputEncodingError,
    InputFileError,
    InputFormatError,
    InputTooLongError,
    LengthMismatchError,
    number_of,
    require_text,
)
from nartk.processors.text import AsGiven
from nartk.protocols.encoded import KeepsEncoded
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.outputs import Text
from nartk.protocols.paragraph import Paragraph, Tokenized
from nartk.protocols.passes import FeatureSource
from nartk.protocols.runs import NOTHING, Batching, Run
from nartk.protocols.sources import Drafts, Given, SourceLike, as_given, lists, several, strings
from nartk.registry import require_drafts_reader
from nartk.serving.lines import APART, Line
from nartk.serving.outcomes import Outcome
from nartk.serving.recordings import spoken

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding, Strategy
    from nartk.serving.model import Model

_OF_INPUT = (InputTooLongError, InputFileError, InputFormatError, InputEncodingError)


@dataclass(frozen=True, eq=False)
class LineRequest:
    """A line to decode. Two are never equal: a line names what became of it.

    Attributes:
        index: Its place in the input, on which what is drawn for it depends.
        source: The line, or a recording.
        prefix: Its output must begin with this.
        drafts: Guesses of its output, for the strategies that read drafts.
        targets: Outputs that are to be scored, for `nartk.decoders.scoring`; the line is then one sentence.
        truncate: True if a sentence that is too long is cut, instead of refused.
        trace: True if hypotheses carry a trace.
        strategy: Strategy whose own options it has (`Strategy.own`), in a run of the shared one; None: the
            run's.
    """

    index: int
    source: Given
    prefix: str = ""
    drafts: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    truncate: bool = False
    trace: bool = False
    strategy: Strategy | None = None


def given(model: Model, name: str, items: Iterable[SourceLike], first: int = 0) -> list[Given]:
    """Sources, `first` the index of the first of them; of text without the ends of lines."""
    if model.reads_text:
        return [*strings(name, items, first)]  # type: ignore[arg-type]
    found = [as_given(f"{name}[{i}]", each) for i, each in enumerate(several(name, items), start=first)]
    return [each.rstrip("\r\n") if isinstance(each, str) else each for each in found]


def line_requests(
    model: Model,
    lines: Iterable[SourceLike],
    strategy: Decoding,
    *,
    prefixes: Iterable[str] | None = None,
    drafts: Drafts | None = None,
    targets: Drafts | None = None,
    truncate: bool = False,
    trace: bool = False,
    first: int = 0,
) -> list[LineRequest]:
    """Makes requests of lines; arguments and errors as in `Model.stream`."""
    texts = given(model, "lines", lines, first)
    forced = [""] * len(texts) if prefixes is None else strings("prefixes", prefixes)
    none: list[list[str]] = [[] for _ in texts]
    if drafts is not None:
        require_drafts_reader(strategy)
    drafted = none if drafts is None else lists("drafts", drafts)
    scored = none if targets is None else lists("targets", targets)
    for name, found in (("drafts", drafted), ("prefixes", forced), ("targets", scored)):
        if len(found) != len(texts):
            raise LengthMismatchError(
                f"{name} for {number_of(len(found), 'line')}, but there are {len(texts)}",
                fix="give an empty one where a line has none",
            )
    if targets is not None and not all(scored):
        raise LengthMismatchError(
            f"targets[{scored.index([])}] holds no output", fix="give each line at least one, or leave it out"
        )
    return [
        LineRequest(index, text, prefix, tuple(own), tuple(outputs), truncate=truncate, trace=trace)
        for index, (text, prefix, own, outputs) in enumerate(
            zip(texts, forced, drafted, scored, strict=True), start=first
        )
    ]


@dataclass(eq=False)
class _LineState:
    """A line that is decoded.

    Attributes:
        strategy: Strategy with the options that it has.
        own: Fields of its requests, of options that are its own.
        sound: Seconds of sound that were read for it.
        waiting: Its requests that have not ended, with their numbers in the line.
        found: Results of its requests by their numbers.
    """

    asked: LineRequest
    line: Line
    strategy: Decoding
    own: dict[str, Any]
    sound: float = 0.0
    waiting: dict[Request, int] = field(default_factory=dict)
    found: dict[int, Result] = field(default_factory=dict)


class LineRun:
    """Implements `nartk.protocols.runs.Steps` for lines.

    Ordinary text is decoded sentence by sentence (`Line` joins them), a line with a prefix or drafts as one
    sentence. Where one sentence of a line fails, the line does.

    Args:
        strategy: Result of `Model.strategy`, or of `Model.scoring`.
    """

    def __init__(self, model: Model, strategy: Decoding, batching: Batching) -> None:
        self.model, self.strategy = model, strategy
        self._tokenization, self._guard = model.tokenization, model.guarding
        self._run = model.begin(strategy, batching)
        self._batching = batching
        self._weighing: Run | None = None  # scores what a guard weighs
        self._open: dict[LineRequest, _LineState] = {}
        self._owners: dict[Request, _LineState] = {}
        self._done: list[tuple[LineRequest, Outcome]] = []  # lines that take no request

    def __len__(self) -> int:
        return len(self._open) + len(self._done)

    @property
    def requests(self) -> int:
        """Number of requests of all lines that have not ended."""
        return len(self._owners)

    def admit(self, asked: LineRequest) -> None:
        """Takes a line. What is wrong with it is its outcome, but for what its strategy cannot do.

        Raises:
            UsageError: The strategy cannot do what it asks for.
        """
        text = asked.source if isinstance(asked.source, str) else ""
        strategy = self.strategy if asked.strategy is None else asked.strategy
        if isinstance(asked.source, str) and not text.strip() and not asked.targets:
            self._end(asked, Text())
            return
        try:
            paragraph, forced = self._read(asked)
            free = None if asked.prefix or asked.targets or not strategy.admits_source else self._guard
            whole = any(asked.drafts)
            line = Line(asked.index, paragraph, self.model.checkpoint.output, free, whole=whole)
            own = {} if asked.strategy is None else asked.strategy.owned(self.model.checkpoint.target_vocab)
            opened = _LineState(asked, line, strategy, own)
            before = self._sound_read()
            made = self._requests(opened, **forced)
            opened.sound = self._sound_read() - before
        except _OF_INPUT as error:
            self._done.append((asked, error))
            return
        is_one = len(made) == 1 and not (asked.prefix or asked.targets)
        if made and not (is_one and getattr(next(iter(made)).source, "copied", None) == ()):
            self._open[asked] = opened
            self._admit(opened, made)
        elif paragraph.sentences and not made:  # all too long
            self._done.append((asked, line.result()))
        else:  # of characters that nobody sees, no word is left
            self._end(asked, Text(text))

    def _sound_read(self) -> float:
        """Seconds of sound that the model has read; 0 of text."""
        return 0.0 if self.model.sound is None else self.model.sound.seconds

    def _end(self, asked: LineRequest, output: Text) -> None:
        """Ends a line of which nothing is decoded."""
        self._done.append((asked, Result(asked.index, (Hypothesis((), output=output),))))

    def _read(self, asked: LineRequest) -> tuple[Paragraph, dict[str, Any]]:
        """The sentences of a line, and what is asked for each: prefix, drafts and targets as tokens."""
        text = self._tokenization
        for each in (asked.source, asked.prefix, *asked.drafts, *asked.targets):
            if isinstance(each, str):
                require_text(each)
        if not isinstance(asked.source, str):
            paragraph = Paragraph((Tokenized(str(asked.source)),), ("", ""))
        elif asked.targets:
            paragraph = AsGiven().paragraph(text.tokens(asked.source))
        else:
            paragraph = text.paragraph(asked.source, prefix=asked.prefix, drafts=asked.drafts)
        forced: dict[str, Any] = {"prefix": text.beginning(asked.prefix)}
        for name in ("drafts", "targets"):
            forced[name] = [*map(text.tokens, getattr(asked, name))]
        return paragraph, forced

    def _admit(self, opened: _LineState, made: dict[Request, int]) -> None:
        if opened.line.guard is not None and opened.line.guard.thresholds.edit:
            self._keep_encoded(self._batching.size)  # what the guard weighs was encoded just before
        for request, number in made.items():
            self._run_of(request, opened).admit(request)
            opened.waiting[request] = number
            self._owners[request] = opened

    def _keep_encoded(self, most: int) -> None:
        if isinstance(self.model.passes, KeepsEncoded):
            self.model.passes.keep_encoded(most)

    @cached_property
    def _scoring(self) -> Decoding:
        return self.model.scoring()

    def _run_of(self, request: Request, opened: _LineState) -> Run:
        """The run that decodes a request, or scores it for the guard."""
        if not request.targets or opened.asked.targets:
            return self._run
        if self._weighing is None:
            self._weighing = self.model.begin(self._scoring, self._batching)
        return self._weighing

    def _requests(self, opened: _LineState, **forced: Any) -> dict[Request, int]:
        """Makes the next requests of a line. Where a guard allows it, what is too long is decoded in pieces.

        Raises:
            InputTooLongError: A sentence is too long.
        """
        made: dict[Request, int] = {}
        line, asked = opened.line, opened.asked
        cut = asked.truncate and line.guard is None
        waiting = line.waiting()
        while len(made) < len(waiting):
            number, text, scored = waiting[len(made)]
            given = {"targets": scored} if scored else forced
            source = text if isinstance(asked.source, str) else asked.source
            try:
                request = self.model.request(
                    asked.index + number * APART,
                    source,
                    self._scoring if scored else opened.strategy,
                    truncate=cut,
                    trace=asked.trace,
                    **given,
                )
            except _OF_INPUT as error:
                if isinstance(error, InputTooLongError) and line.refuse(number, error.message):
                    waiting = line.waiting()
                    continue
                if len(line.paragraph.sentences) > 1:
                    error.message = f"sentence {line.sentence_of(number)} of the line: {error.message}"
                raise
            made[request if scored else replace(request, **opened.own)] = number
        return made

    def step(self) -> list[tuple[LineRequest, Outcome]]:
        found, self._done = self._done, []
        runs = [self._run] if self._weighing is None else [self._run, self._weighing]
        for request, result in (each for run in runs if len(run) for each in run.step()):
            opened = self._owners.pop(request)
            number = opened.waiting.pop(request)
            found += self._taken(opened, number, request, result)
        return found

    def _taken(
        self, opened: _LineState, number: int, request: Request, result: Result
    ) -> Iterator[tuple[LineRequest, Outcome]]:
        """Takes a result of a line; its outcome, if this was the last one."""
        asked, source = opened.asked, request.source
        if isinstance(source, FeatureSource) and not request.targets:
            result = spoken(self.model, source, result, str(asked.source), self.strategy)
        if self._run_of(request, opened) is self._run:
            opened.found[number] = result
        if not opened.line.add(number, result):
            return
        try:
            made = self._requests(opened)  # once what was asked so far is done
        except _OF_INPUT as error:
            del self._open[asked]
            yield asked, error
            return
        if made:
            self._admit(opened, made)
        else:
            del self._open[asked]
            yield asked, replace(opened.line.result(), sound_seconds=opened.sound)

    def so_far(self, asked: LineRequest) -> Hypothesis:
        """The tokens of a line's sentences as far as they are known without a gap, as the model writes them.

        A guard may put others in their place.
        """
        opened = self._open.get(asked)
        if opened is None:
            return NOTHING
        tokens: list[int] = []
        by_number = {number: request for request, number in opened.waiting.items()}
        for number in sorted({*opened.found, *by_number}):
            if number not in opened.found:
                request = by_number[number]
                if self._run_of(request, opened) is self._run:
                    tokens += self._run.so_far(request).tokens
                break
            tokens += opened.found[number].hypotheses[0].tokens
        output = self.model.checkpoint.output
        found = Hypothesis(tuple(tokens), pieces=tuple(output.vocab.to_words(tokens)))
        return replace(found, output=output.write(found))

    def drop(self, asked: LineRequest) -> None:
        self._done = [(each, outcome) for each, outcome in self._done if each is not asked]
        opened = self._open.pop(asked, None)
        if opened is not None:
            for request in opened.waiting:
                del self._owners[request]
                self._run_of(request, opened).drop(request)

    def close(self) -> None:
        self._open.clear()
        self._owners.clear()
        self._done.clear()
        self._run.close()
        if self._weighing is not None:
            self._weighing.close()
            self._keep_encoded(0)
