"""A loaded model, which decodes lines."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.loading import located
from nartk.errors import NartkError, StrategyMismatchError, UsageError, named, require_count
from nartk.processors.text import AsGiven
from nartk.protocols.hypothesis import WINDOW, Hypothesis, Result
from nartk.protocols.passes import Source
from nartk.protocols.prompts import Prompted
from nartk.protocols.runs import Batching, Run, run_in_order, run_through
from nartk.protocols.sources import Drafts, SourceLike, is_one, several
from nartk.registry import require_protocol, signature
from nartk.serving.activity import Levels
from nartk.serving.line_runs import LineRun, line_requests
from nartk.serving.outcomes import Decoded, Outcome, in_order, summarize, warned
from nartk.serving.requests import made_request
from nartk.serving.restarting import RestartingRun
from nartk.serving.strategies import made_strategy
from nartk.version import __version__

if TYPE_CHECKING:
    from nartk.architectures.settings import Config
    from nartk.decoders.strategy import Decoding
    from nartk.processors.audio import AudioInput
    from nartk.processors.guard import Guard
    from nartk.serving.buffers import Buffers

KEPT = 4  # other models that a model keeps loaded, those used last


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A loaded model: decodes text with any strategy that fits it.

    It does not change. `dataclasses.replace` gives one that reads lines or judges outputs otherwise and
    shares what has been loaded.

    Attributes:
        checkpoint: Checkpoint that it was loaded from, with dictionaries and tokenizers.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Type of its computation: fp32, bf16, fp16 or int8.
        passes: Scorer for strategies, of `nartk.protocols.passes` or `nartk.protocols.parallel`.
        open_other: Loads another model for this one, by name.
        is_exact: True if a sentence's bits depend on it alone, not on its batch: on the engine, always. In
            torch the order of a sum depends on shapes, so that near ties may fall either way.
        replicas: Engines that decode at the same time.
        pretokenized: True if lines are sentences as the model reads them, tokenised where it was trained on
            tokens, and outputs are left as it writes them.
        guard: True if the guard of a model that has one judges its outputs (`processors.guard`).
        min_edit_confidence: Least probability of an edit that the guard keeps; None: what the folder says.
        buffers: Buffers that recordings are cut into (`buffers_for`); None: a source is read as a whole.
        vad: True if words are left out where nobody speaks (`nartk.serving.activity`).
        others: Other models that it keeps loaded, the one used last at the end.

    Raises:
        UsageError: `min_edit_confidence` is no probability, or there is no guard that heeds it.
    """

    checkpoint: Checkpoint
    config: Config
    device: str
    dtype: str
    passes: Any
    open_other: Callable[[Model, str], Model]
    is_exact: bool = False
    replicas: int = 1
    pretokenized: bool = False
    guard: bool = True
    min_edit_confidence: float | None = None
    buffers: Buffers | None = None
    vad: bool = True
    others: dict[tuple[str, str, str], Model] = field(default_factory=dict)

    strategy, request = made_strategy, made_request  # methods, each in a file of its own

    def __post_init__(self) -> None:
        _ = self.guarding  # refused now, not when it is needed

    def __repr__(self) -> str:
        return (
            f"Model({str(self.checkpoint.folder)!r}, architecture={self.checkpoint.architecture!r}, "
            f"device={self.device!r}, dtype={self.dtype!r}, parameters={self.parameters:,})"
        )

    @property
    def cost_setting(self) -> dict[str, Any]:
        """Settings that the times of its passes depend on, as `nartk.checkpoints.costs` keeps them."""
        return {
            "model": self.checkpoint.fingerprint,
            "numerics": self.passes.numerics,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
        }

    def scorer_for(self, strategy: Decoding | type[Decoding]) -> Any:
        """The scorer that a strategy, or a class of them, decodes with.

        Raises:
            StrategyMismatchError: The model speaks no protocol that it needs, or not in buffers.
        """
        found = require_protocol(strategy, self.passes)
        if self.buffers is None:
            return found
        from nartk.serving.long_form import in_buffers

        return in_buffers(strategy, found, self.buffers, levels=self.levels)

    @property
    def threads(self) -> int:
        """Most threads that it computes with."""
        if self.is_exact:
            threads: int = self.passes.threads
            return threads
        import torch

        return torch.get_num_threads()

    @property
    def tokenization(self) -> AsGiven:
        """Converts lines to sentences as the model reads them, and its outputs to lines."""
        return AsGiven() if self.pretokenized else self.checkpoint.tokenization

    @cached_property
    def guarding(self) -> Guard | None:
        """Guard that judges outputs; None: there is none."""
        found, least = self.checkpoint.guard if self.guard else None, self.min_edit_confidence
        if least is not None and not 0 <= least <= 1:
            raise UsageError(f"{named('min_edit_confidence')} is {least}", fix="give a value between 0 and 1")
        if found is not None and least is not None:
            found = replace(found, thresholds=replace(found.thresholds, edit=least))
        if found is None:
            why = "the guard is off" if self.checkpoint.guard is not None else "the model has no guard"
        else:
            least, name = found.thresholds.edit or None, self.checkpoint.architecture  # 0: none is weighed
            why = "" if architecture(name).autoregressive else f"a {name!r} gives a text no probability"
            found = replace(found, can_score=False) if why else found
        if least is not None and why:
            raise UsageError(f"{named('min_edit_confidence', least)}, but {why}", fix="leave it out")
        return found

    @property
    def max_source_len(self) -> int:
        """Longest source, tokens without eos."""
        return self.config.max_source_len - 1

    @cached_property
    def max_target_len(self) -> int:
        """Longest target, tokens with eos."""
        output = self.checkpoint.output
        taken = output.prompts.length if isinstance(output, Prompted) else 0
        return max(1, self.config.max_target_len - taken)

    @property
    def parameters(self) -> int:
        """Numbers in its weights; those of several names count once."""
        shared = self.config.shared_weights()
        return sum(
            math.prod(shape) for name, shape in self.config.weight_shapes().items() if name not in shared
        )

    def other(self, name: str) -> Model:
        """Another model, on this one's device and in its type: read only if it is not among those kept.

        Args:
            name: The name of a model, as `nartk.load` takes it: one of the hub may be downloaded.
        """
        folder = located(name)
        key = (os.path.realpath(folder), self.device, self.dtype)
        found = self.others.pop(key, None)
        if found is None:
            found = self.open_other(self, str(folder))
        self.others[key] = found
        if len(self.others) > KEPT:
            del self.others[next(iter(self.others))]
        return found

    def signature(self, strategy: Decoding) -> str:
        """Signature that reproduces a result of this model with a strategy."""
        model = f"{self.checkpoint.fingerprint}|{self.scorer_for(strategy).numerics}"
        if self.checkpoint.guard is not None:
            least = 0.0 if (guard := self.guarding) is None else guard.thresholds.edit
            model += f"|guard:{int(self.guard)}" + (f"|min_edit_confidence:{least:g}" if least else "")
        if self.tokenization.name:
            model += f"|text:{self.tokenization.name}"
        return signature(strategy, exact=self.is_exact, dtype=self.dtype, model=model, version=__version__)

    def encode(self, line: str, *, truncate: bool = False) -> Source:
        """The source of a sentence as the model reads it; `truncate` cuts one that is too long.

        Raises:
            InputTooLongError: The sentence has more tokens than the model has positions.
        """
        return self.checkpoint.input.read(line, longest=self.config.max_source_len, truncate=truncate)

    @cached_property
    def inside_words(self) -> tuple[int, ...]:
        """The pieces of sentencepiece that begin no word; none where the dictionary has no such pieces."""
        vocab = self.checkpoint.target_vocab
        begins = [word.startswith("▁") for word in vocab.words]
        if not any(begins):
            return ()
        return tuple(id for id, begin in enumerate(begins) if not begin and id not in vocab.ends)

    @overload
    def decode(
        self,
        lines: SourceLike,
        strategy: str | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
        **options: Any,
    ) -> Hypothesis: ...

    @overload
    def decode(
        self,
        lines: Iterable[SourceLike],
        strategy: str | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
        **options: Any,
    ) -> list[Hypothesis]: ...

    def decode(
        self,
        lines: SourceLike | Iterable[SourceLike],
        strategy: str | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
        **options: Any,
    ) -> Hypothesis | list[Hypothesis]:
        """The best hypothesis of each line, with the further ones, if any, as its `alternatives`.

        A line that cannot be decoded gives an empty hypothesis with its `error`, and a warning.

        Args:
            lines: Ordinary text for models that know how to tokenise it; else, and with `pretokenized`, one
                sentence each. An empty line gives an empty hypothesis. Of one string, which is one line, it
                is that line's hypothesis, not a list. For models of speech a path, an open file or its
                bytes, samples and rate as (samples, 16000), what `datasets` gives, or features.
            strategy: A name of `nartk.strategies()`; None: greedy search, or what the model's configuration
                names, or what an option implies: ``beam_size`` and ``nbest`` beam search, ``temperature``,
                ``top_k`` and ``top_p`` samples.
            batch_size: Most sentences at a time.
            max_tokens: Most source tokens at a time, padding included.
            prefixes: Text that each line's output must begin with.
            drafts: Guesses of each line's output, for the strategies that read drafts.
            truncate: True if sentences too long for the model are cut, instead of refused; with a guard they
                are decoded in pieces instead, or kept.
            trace: True if hypotheses say where each token came from.
            options: Options of the strategy, such as ``max_len=100``, or for 5 hypotheses a line of beam
                search ``beam_size=5, nbest=5``.

        Raises:
            UsageError: An option is unknown or out of bounds, or `lines` are no strings.
            NartkError: Same as in `strategy` and `stream`.
        """
        run = self.run(
            [lines] if is_one(lines) else lines,  # type: ignore[list-item, arg-type]
            strategy,
            options,
            batch_size=batch_size,
            max_tokens=max_tokens,
            prefixes=prefixes,
            drafts=drafts,
            truncate=truncate,
            trace=trace,
        )
        for index in sorted(run.errors):
            warnings.warn(str(run.errors[index]), stacklevel=2)
        return run.best[0] if is_one(lines) else run.best

    def iterate(
        self,
        lines: Iterable[SourceLike],
        strategy: str | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        truncate: bool = False,
        trace: bool = False,
        window: int = WINDOW,
        **options: Any,
    ) -> Iterator[Hypothesis]:
        """Yields what `decode` gives, in the order of the lines, as they are decoded.

        Args:
            lines: Any number of them: a list, an open file, a generator. Memory does not grow with it.
            window: Lines read ahead and sorted by length; 1: each is decoded before the next is read.

        Raises:
            NartkError: Same as in `decode`.
        """
        require_count("window", window)
        made = self.strategy(strategy, options)
        requests = (
            request
            for index, line in enumerate(several("lines", lines))
            for request in line_requests(self, [line], made, truncate=truncate, trace=trace, first=index)
        )
        run = LineRun(self, made, Batching(batch_size, max_tokens))

        def decoded() -> Iterator[Hypothesis]:
            outcomes = (outcome for _, outcome in run_in_order(run, requests, ahead=window))
            yield from warned(outcomes)  # a warning names the line that asks for more

        return decoded()

    def score(
        self,
        lines: Iterable[str],
        targets: Drafts,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        truncate: bool = False,
    ) -> list[Hypothesis]:
        """The given output of each line, with the log-probability that the model gives it as its `score`.

        Of several outputs of a line the first, with the others as its `alternatives`, in their order. Eos
        counts; on the engine greedy search's outputs have greedy search's scores, bit for bit, where text
        is read as the tokens that it was written from. An output that is cut has no score: `truncate` is for
        sources alone. A line that fails gives an empty hypothesis with its `error`, and a warning.

        Args:
            lines: Same as in `decode`; each is one sentence, an empty one too.
            targets: Outputs of each line, one or several, as the model writes lines of this kind.
            batch_size, max_tokens, truncate: Same as in `decode`.

        Raises:
            StrategyMismatchError: The model is not autoregressive.
            LengthMismatchError: There are outputs for more or fewer lines, or none for one.
        """
        outcomes = self.stream(
            lines,
            self.scoring(),
            batch_size=batch_size,
            max_tokens=max_tokens,
            targets=targets,
            truncate=truncate,
        )
        return list(warned(in_order(outcomes)))

    def scoring(self) -> Decoding:
        """Makes the scoring of given outputs, for `stream` in a strategy's place.

        Raises:
            StrategyMismatchError: The model is not autoregressive, or torch would serve its replicas.
        """
        from nartk.decoders.scoring import Scoring

        forced = self.checkpoint.generation.get("forced_bos")
        made = Scoring(begins=() if forced is None else (forced,))
        if not architecture(self.checkpoint.architecture).autoregressive:
            raise StrategyMismatchError(
                f"{named('score')} with a {self.checkpoint.architecture!r}, which is not autoregressive",
                fix="name an autoregressive model, which gives an output a probability in one pass",
            )
        if self.replicas > 1:
            from nartk.serving.replicas import require_replicable

            require_replicable(made, self.scorer_for(made))
        return made

    def run(
        self,
        lines: Iterable[SourceLike],
        strategy: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
    ) -> Decoded:
        """Decodes as `decode` does, with statistics and the signature, and without warnings."""
        made = self.strategy(strategy, {} if options is None else options)
        start = time.perf_counter()
        outcomes = [
            *in_order(
                self.stream(
                    lines,
                    made,
                    batch_size=batch_size,
                    max_tokens=max_tokens,
                    prefixes=prefixes,
                    drafts=drafts,
                    truncate=truncate,
                    trace=trace,
                )
            )
        ]
        seconds = time.perf_counter() - start
        errors = {i: each for i, each in enumerate(outcomes) if isinstance(each, NartkError)}
        for index, error in errors.items():
            error.where = f"line {index + 1}"
        return Decoded(
            [() if isinstance(each, NartkError) else each.hypotheses for each in outcomes],
            errors,
            summarize([each for each in outcomes if isinstance(each, Result)], seconds),
            self.signature(made),
        )

    def stream(
        self,
        lines: Iterable[SourceLike],
        strategy: Decoding,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        targets: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
        first: int = 0,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yields (line index, result or error) as lines finish, hypotheses with their text.

        Ordinary text is decoded sentence by sentence (`Line` joins them), a line with a prefix or
        drafts as one sentence. Where one sentence of a line fails, the line does.

        `in_order` puts them in the order of the lines. Where memory runs out, the batch is halved and the
        unfinished sentences start again.

        Args:
            strategy: Result of the method `strategy`, or of `scoring`.
            prefixes: Text that each line's output must begin with.
            drafts: Guesses of each line's output.
            targets: With `scoring`, what is to be scored for each line, which is then one sentence.
            first: Number of lines before these: sampling draws a line's numbers by its place among all.

        Raises:
            UsageError: Drafts are given to a strategy that reads none, or what should be strings is not.
            LengthMismatchError: There are drafts, prefixes or targets for more or fewer lines.
            OutOfMemoryError: Memory runs out with a single sentence.
        """
        requests = line_requests(
            self,
            lines,
            strategy,
            prefixes=prefixes,
            drafts=drafts,
            targets=targets,
            truncate=truncate,
            trace=trace,
            first=first,
        )
        run = LineRun(self, strategy, Batching(batch_size, max_tokens))
        return (
            (each.index - first, outcome) for each, outcome in run_through(run, requests, ahead=len(requests))
        )

    @property
    def reads_text(self) -> bool:
        """True if its sources are text, False if they are features."""
        return self.checkpoint.input.vocab is not None

    @property
    def sound(self) -> AudioInput | None:
        """Processor that reads its recordings; None: it reads text, or features alone."""
        if self.reads_text:
            return None
        from nartk.processors.audio import AudioInput  # which models of text do not load

        reader = self.checkpoint.input
        return reader if isinstance(reader, AudioInput) else None

    def begin(self, strategy: Decoding, batching: Batching) -> Run:
        """Begins a run of requests; where memory runs out, it starts again in smaller batches."""
        scorer = self.scorer_for(strategy)
        if self.replicas == 1:
            return RestartingRun(partial(strategy.begin, scorer), batching)
        from nartk.serving.replicas import ReplicaRun  # threads and buffers, which few runs need

        return RestartingRun(partial(ReplicaRun, strategy, scorer, self.replicas), batching)

    @property
    def levels(self) -> Levels | None:
        """Tells the levels of sound by its features; None: they do not tell, or `vad` is off."""
        return None if self.sound is None or not self.vad else self.sound.levels
