"""From lines of text to hypotheses: loading a model and decoding with it."""

from __future__ import annotations

import math
import os
import reprlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numpy as np

from nartk import __version__
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import Checkpoint, load_checkpoint, read_config
from nartk.checkpoints.generation import unheeded, with_generation
from nartk.errors import (
    WITHOUT_TORCH,
    InputEncodingError,
    InputFileError,
    InputFormatError,
    InputTooLongError,
    LengthMismatchError,
    ModelNotFoundError,
    NartkError,
    OutOfMemoryError,
    StrategyMismatchError,
    UsageError,
    named,
    number_of,
    require_text,
    requiring_torch,
)
from nartk.processors import Prompting
from nartk.processors.text import AsGiven
from nartk.protocols.aligned import AlignedWords
from nartk.protocols.hypothesis import (
    GUARDED,
    WINDOW,
    DecodeStats,
    Hypothesis,
    Request,
    Result,
    added,
    without_words,
)
from nartk.protocols.passes import FeatureSource, FloatArray, PassScorer, Source
from nartk.registry import (
    declared,
    implied,
    make_strategy,
    options_of,
    reads_any_length,
    require_drafts_reader,
    require_protocol,
    signature,
)
from nartk.serving.activity import Levels, is_speech, levels_of
from nartk.serving.lines import APART, Line, Paragraph
from nartk.serving.replicas import require_replicable, run_replicas

if TYPE_CHECKING:
    from nartk.architectures.transformer import TransformerConfig
    from nartk.models.transformer import Transformer
    from nartk.serving.guard import Guard
    from nartk.serving.long_form import Buffers

TYPES = ("fp32", "bf16", "fp16", "int8")  # fp16: on a GPU alone; int8: on the engine alone
SHIPPED = ("gec-en", "asr-digits")  # models inside the package, the default first
WITHOUT_BOTH = f"{WITHOUT_TORCH}, or install nartk with its engine, from a wheel or with a C++17 compiler"
MOST_THREADS = 1024
KEPT = 4  # other models that a model keeps loaded, those used last
_UNQUANTIZED = "name the model that it was made of"
Drafts: TypeAlias = Iterable[str | Iterable[str]]  # of each line one or several
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """What decoding some lines gave, in the order of the lines.

    Attributes:
        hypotheses: Per line, best first; empty where the line failed.
        errors: What was wrong with the lines that failed, by line index from 0.
        stats: What it took.
        signature: What reproduces it.
    """

    hypotheses: list[tuple[Hypothesis, ...]]
    errors: dict[int, NartkError]
    stats: DecodeStats
    signature: str

    @property
    def best(self) -> list[Hypothesis]:
        """Per line what `Model.decode` gives: the best hypothesis, with its `alternatives` or its `error`."""
        return [_best(self.errors.get(index, found)) for index, found in enumerate(self.hypotheses)]


class Model:
    """A loaded model: decodes text with any strategy that fits it.

    Args:
        engine: Its passes on the engine; None: torch serves it.

    Attributes:
        checkpoint: Where it came from, with dictionaries and tokenizers.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Of its computation: fp32, bf16, fp16 or int8.
        replicas: Engines that decode at the same time.
        pretokenized: Whether lines are sentences as the model reads them, tokenised where it was trained on
            tokens, and outputs are left as it writes them; may be set.
        guard: Whether the guard of a model that has one judges its outputs (`serving.guard`); may be set.
        min_edit_confidence: The least probability of a single edit, below which the guard undoes it; None: as
            the model's folder says; may be set.
        buffers: How recordings of any length are cut (`buffers_for`); None: a source is read
            as a whole; may be set.
        vad: Whether words are left out where nobody speaks (`nartk.serving.activity`); may be set.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: TransformerConfig,
        *,
        device: str,
        dtype: str,
        engine: Any = None,
        replicas: int = 1,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.device = device
        self.dtype = dtype
        self.replicas = replicas
        self.pretokenized = False
        self.guard = True
        self.min_edit_confidence: float | None = None
        self.buffers: Buffers | None = None
        self.vad = True
        self._engine = engine
        self._others: dict[tuple[str, str, str], Model] = {}  # the one used last is the last
        self._guards: dict[float, Guard] = {}  # by their `min_edit_confidence`; each has read its words

    def __repr__(self) -> str:
        checkpoint = self.checkpoint
        return (
            f"Model({str(checkpoint.folder)!r}, architecture={checkpoint.architecture!r}, "
            f"device={self.device!r}, dtype={self.dtype!r}, parameters={self.parameters:,})"
        )

    @cached_property
    def passes(self) -> Any:
        """What strategies see of it: a protocol of `nartk.protocols.passes` or `nartk.protocols.parallel`."""
        found = self._engine
        if found is None:
            with requiring_torch("decoding without the engine", fix=WITHOUT_BOTH):
                found = architecture(self.checkpoint.architecture).scorer(**self._network())
        from nartk.checkpoints import costs

        if (tuned := costs.stored(self.checkpoint.folder, **self.cost_setting(found))) is not None:
            found.costs = tuned
        output = self.checkpoint.output
        return output.prompted(found) if isinstance(output, Prompting) else found

    def cost_setting(self, scorer: Any) -> dict[str, Any]:
        """What the times of its passes depend on, as `nartk.checkpoints.costs` keeps them."""
        return {
            "model": self.checkpoint.fingerprint,
            "numerics": scorer.numerics,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
        }

    def _network(self) -> dict[str, Any]:
        """What the scorers in torch are made of."""
        from nartk.models.reference import DTYPES

        checkpoint = self.checkpoint
        return {
            "model": load_network(checkpoint),
            "vocab": checkpoint.target_vocab,
            "dtype": DTYPES[self.dtype],
            "device": self.device,
            **_words_of(checkpoint),
        }

    def scorer_for(self, strategy: Any) -> Any:
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
    def is_exact(self) -> bool:
        """Whether a sentence's bits depend on it alone, whatever shares its batch: on the engine, always.

        In torch the order of a sum depends on shapes, so that near ties may fall either way.
        """
        return self._engine is not None

    @property
    def threads(self) -> int:
        """Most threads that it computes with."""
        if self._engine is not None:
            return self._engine.threads
        import torch

        return torch.get_num_threads()

    @property
    def tokenization(self) -> AsGiven:
        """What makes sentences as the model reads them of lines, and of its outputs lines."""
        return AsGiven() if self.pretokenized else self.checkpoint.tokenization

    @property
    def guarding(self) -> Guard | None:
        """What judges outputs; None: nothing does.

        Raises:
            UsageError: `min_edit_confidence` is no probability, or there is no guard that heeds it.
        """
        found, least = self.checkpoint.guard if self.guard else None, self.min_edit_confidence
        if least is None:
            return found
        if not 0 <= least <= 1:
            raise UsageError(f"{named('min_edit_confidence')} is {least}", fix="give a value between 0 and 1")
        if found is None:
            why = "the guard is off" if self.checkpoint.guard is not None else "the model has no guard"
            raise UsageError(f"{named('min_edit_confidence', least)}, but {why}", fix="leave it out")
        if least not in self._guards:
            self._guards[least] = replace(found, thresholds=replace(found.thresholds, edit=least))
        return self._guards[least]

    @property
    def max_source_len(self) -> int:
        """Longest source, tokens without eos."""
        return self.config.max_source_len - 1

    @cached_property
    def max_target_len(self) -> int:
        """Longest target, tokens with eos."""
        output = self.checkpoint.output
        taken = output.prompt_length if isinstance(output, Prompting) else 0
        return max(1, self.config.max_target_len - taken)

    @property
    def parameters(self) -> int:
        """Numbers in its weights; those of several names count once."""
        shared = self.config.shared_weights()
        return sum(
            math.prod(shape) for name, shape in self.config.weight_shapes().items() if name not in shared
        )

    def strategy(
        self, name: str | None, options: Mapping[str, Any], *, tell: Callable[[str], None] = warnings.warn
    ) -> Any:
        """The strategy `name`, checked against this model, with the other models that it needs loaded.

        The `KEPT` other models used last stay loaded, and are not read again when another call names them.
        The model's own values of options (`checkpoints.generation`), and thresholds that
        `nartk-calibrate` has stored for these models, take the place of defaults.

        Args:
            name: None: the one that the model's configuration names, or greedy search; or the one that an
                option implies which that has not (`nartk.registry.implied`).
            tell: Is told in a line where there are such thresholds, but not for these models or options, and
                which constraints of the model's the strategy does not keep to, or another model that should
                be smaller is larger than the model.

        Raises:
            CheckpointError: Another model, or what is stored, is corrupt.
            StrategyMismatchError: The model, or another one that an option names, is of the wrong
                architecture or has fewer positions than the model.
            VocabMismatchError: Another model reads or writes other words.
        """
        generation = self.checkpoint.generation
        if name is None:
            name = implied(options, generation.get("strategy", "greedy"))
        options = declared(options, options_of(name))
        made = make_strategy(name, with_generation(generation, name, options))
        self.scorer_for(made)
        if ignored := unheeded(generation, name):
            tell(ignored)
        auxiliary = {}
        for key, item in options_of(name).items():
            other = getattr(made, key)
            if not item.metadata["model"] or not other:
                continue
            found = self._other(other)
            mine, theirs = self.checkpoint, found.checkpoint
            mine.input.require_equal(theirs.input, "the model", f"{key} {other!r}")
            is_pair = isinstance(found.passes, PassScorer) and isinstance(self.passes, PassScorer)
            mine.target_vocab.require_equal(
                theirs.target_vocab, "the model", f"{key} {other!r}", padded=is_pair
            )
            for side in ("max_source_len", "max_target_len"):
                capacity, wanted = (getattr(each.config, side) for each in (found, self))
                if capacity < wanted:
                    raise StrategyMismatchError(
                        f"{key} {other!r} has a `{side}` of {capacity} tokens, the model one of {wanted}",
                        fix="train it with the model's lengths",
                    )
            if item.metadata["smaller"] and found.parameters > self.parameters:
                tell(
                    f"{key} {other!r} has {found.parameters:,} parameters, the model {self.parameters:,}; "
                    "drafts pay where the smaller model makes them: are the two swapped?"
                )
            made = replace(made, **{key: found.checkpoint.fingerprint})
            auxiliary[key] = found.passes
            if len(theirs.target_vocab) != len(mine.target_vocab):
                auxiliary[key] = AlignedWords(found.passes, mine.target_vocab)
            from nartk.bench import calibration

            added, unfit = calibration.apply(
                self.checkpoint.folder,
                made,
                options,
                model=self.checkpoint.fingerprint,
                drafter=found.checkpoint.fingerprint,
            )
            if unfit:
                tell(unfit)
            made = replace(made, **added)
        if auxiliary:
            made = replace(made, auxiliary=auxiliary)
        made = made.in_pieces(self.checkpoint.output)
        made.check_auxiliary()
        if self.replicas > 1:
            require_replicable(made, self.scorer_for(made))
        return made

    def _other(self, name: str) -> Model:
        """Another model, on this one's device and in its type: read only if it is not among those kept."""
        key = (os.path.realpath(model_folder(name)), self.device, self.dtype)
        found = self._others.pop(key, None)
        if found is None:
            checkpoint = load_checkpoint(model_folder(name), check=self.checkpoint.checked)
            dtype = self.dtype if checkpoint.quantized is None else None
            found = _serve(checkpoint, self.device, dtype, threads=self.threads)
        self._others[key] = found
        if len(self._others) > KEPT:
            del self._others[next(iter(self._others))]
        return found

    def signature(self, strategy: Any) -> str:
        """What reproduces a result of this model with a strategy."""
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

    def request(
        self,
        index: int,
        line: str,
        strategy: Any,
        *,
        prefix: str = "",
        drafts: Sequence[str] = (),
        targets: Sequence[str] = (),
        truncate: bool = False,
    ) -> Request:
        """What a decoder is asked for a sentence as the model reads it.

        Raises:
            InputTooLongError: The sentence, or a target, has more tokens than the model has positions.
            InputFormatError: The model cannot write the prefix.
        """
        most = sys.maxsize if reads_any_length(strategy) else self.config.max_source_len
        if self.buffers is None:
            source = self.checkpoint.input.read(line, longest=most, truncate=truncate)
            longest = min(strategy.limit(len(source)), self.max_target_len)
        else:
            from nartk.serving.long_form import read_long

            source = read_long(self.checkpoint.input, line)
            longest = len(source) + 1  # its output has any length
        write = self.checkpoint.output.encode
        begin = strategy.beginning

        def begun(text: str) -> tuple[int, ...]:
            return *begin, *write(text)

        forced = begun(prefix)[:longest] if prefix else ()
        unk = self.checkpoint.target_vocab.unk
        if unk in forced:
            unwritten = [word for word in prefix.split() if unk in write(word)] or [prefix]
            raise InputFormatError(
                f"the prefix holds {', '.join(map(repr, unwritten))}, which the model cannot write",
                fix="take it out of the prefix",
            )
        # What lies beyond the output's longest end is hardly ever reached. The order is kept.
        drafted = dict.fromkeys(begun(draft)[:longest] for draft in drafts if draft)
        scored = tuple((*begun(target), self.checkpoint.target_vocab.eos) for target in targets)
        for number, target in enumerate(scored, start=1):
            if len(target) > longest:
                which = f"output {number} has " if len(scored) > 1 else "the output has "
                raise InputTooLongError(
                    f"{which}{len(target) - 1} tokens > {longest - 1}",
                    fix="split the line and its output, or leave both out",
                )
        after: tuple[int, ...] = ()
        if prefix.endswith(" ") and forced and not self.checkpoint.output.decode(forced).endswith(" "):
            after = self._inside_words
        drafted_words = tuple(filter(None, drafted))
        return Request(index, source, longest, forced, drafted_words, scored, self.vad, after)

    @cached_property
    def _inside_words(self) -> tuple[int, ...]:
        """The pieces of sentencepiece that begin no word; none where the dictionary has no such pieces."""
        vocab = self.checkpoint.target_vocab
        begins = [word.startswith("▁") for word in vocab.words]
        if not any(begins):
            return ()
        return tuple(id for id, begin in enumerate(begins) if not begin and id not in vocab.ends)

    @overload
    def decode(
        self,
        lines: str,
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
        lines: Iterable[str],
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
        lines: str | Iterable[str],
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
                is that line's hypothesis, not a list.
            strategy: A name of `nartk.strategies()`; None: greedy search, or what the model's configuration
                names, or what an option implies: ``beam_size`` and ``nbest`` beam search, ``temperature``,
                ``top_k`` and ``top_p`` samples.
            batch_size: Most sentences at a time.
            max_tokens: Most source tokens at a time, padding included.
            prefixes: What each line's output must begin with.
            drafts: What each line's output may be, for the strategies that read drafts.
            truncate: Whether sentences too long for the model are cut, instead of refused; with a guard they
                are decoded in pieces instead, or kept.
            trace: Whether hypotheses say where each token came from.
            options: Of the strategy, such as ``max_len=100``, or for 5 hypotheses a line of beam search
                ``beam_size=5, nbest=5``.

        Raises:
            UsageError: An option is unknown or out of bounds, or `lines` are no strings.
            NartkError: As `strategy` and `stream` raise.
        """
        run = self.run(
            [lines] if isinstance(lines, str) else lines,
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
        return run.best[0] if isinstance(lines, str) else run.best

    def iterate(
        self,
        lines: Iterable[str],
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
            NartkError: As `decode`.
        """
        _require_count("window", window)
        made = self.strategy(strategy, options)
        rest = _several("lines", lines)

        def decoded() -> Iterator[Hypothesis]:
            index = 0
            while ahead := [*islice(rest, window)]:
                outcomes = self.stream(
                    ahead,
                    made,
                    batch_size=batch_size,
                    max_tokens=max_tokens,
                    truncate=truncate,
                    trace=trace,
                    first=index,
                )
                yield from _warned(outcomes, index)
                index += len(ahead)

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
            lines: As `decode` takes them; each is one sentence, an empty one too.
            targets: Of each line an output, as the model writes lines of this kind, or several.
            batch_size, max_tokens, truncate: As in `decode`.

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
        return list(_warned(outcomes, 0))

    def scoring(self) -> Any:
        """What `stream` scores given outputs with, in a strategy's place.

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
            require_replicable(made, self.scorer_for(made))
        return made

    def run(
        self,
        lines: Iterable[str],
        strategy: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
    ) -> Run:
        """As `decode`, with statistics and the signature, and without warnings."""
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
        return Run(
            [() if isinstance(each, NartkError) else each.hypotheses for each in outcomes],
            errors,
            summarize([each for each in outcomes if isinstance(each, Result)], seconds),
            self.signature(made),
        )

    def stream(
        self,
        lines: Iterable[str],
        strategy: Any,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Iterable[str] | None = None,
        drafts: Drafts | None = None,
        targets: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
        first: int = 0,
    ) -> Iterator[tuple[int, Result | NartkError]]:
        """Yields (line index, result or error) as lines finish, hypotheses with their text.

        Ordinary text is decoded sentence by sentence (`Line` joins them), a line with a prefix or
        drafts as one sentence. Where one sentence of a line fails, the line does.

        `in_order` puts them in the order of the lines. Where memory runs out, the batch is halved and the
        unfinished sentences start again.

        Args:
            strategy: As the method `strategy` makes it, or `scoring`.
            prefixes: What each line's output must begin with.
            drafts: What each line's output may be.
            targets: With `scoring`, what is to be scored for each line, which is then one sentence.
            first: How many lines came before these: sampling draws a line's numbers by its place among all.

        Raises:
            UsageError: Drafts are given to a strategy that reads none, or what should be strings is not.
            LengthMismatchError: There are drafts, prefixes or targets for more or fewer lines.
            OutOfMemoryError: Memory runs out with a single sentence.
        """
        _require_count("batch_size", batch_size)
        if max_tokens is not None:
            _require_count("max_tokens", max_tokens)
        texts = _strings("lines", lines, first)
        forced = [""] * len(texts) if prefixes is None else _strings("prefixes", prefixes)
        none: list[list[str]] = [[] for _ in texts]
        if drafts is not None:
            require_drafts_reader(strategy)
        given = none if drafts is None else _lists("drafts", drafts)
        scored = none if targets is None else _lists("targets", targets)
        for name, found in (("drafts", given), ("prefixes", forced), ("targets", scored)):
            if len(found) != len(texts):
                raise LengthMismatchError(
                    f"{name} for {number_of(len(found), 'line')}, but there are {len(texts)}",
                    fix="give an empty one where a line has none",
                )
        if targets is not None and not all(scored):
            raise LengthMismatchError(
                f"targets[{scored.index([])}] holds no output",
                fix="give each line at least one, or leave it out",
            )
        return self._stream(
            [*zip(texts, forced, given, scored, strict=True)],
            strategy,
            truncate=truncate,
            first=first,
            batch_size=batch_size,
            max_tokens=max_tokens,
            trace=trace,
        )

    def _stream(
        self,
        lines: Sequence[tuple[str, str, Sequence[str], Sequence[str]]],
        strategy: Any,
        *,
        truncate: bool,
        first: int,
        batch_size: int,
        **settings: Any,
    ) -> Iterator[tuple[int, Result | NartkError]]:
        """What `stream` yields of lines, each with its prefix, drafts and targets."""
        text, guard = self.tokenization, self.guarding
        waiting: dict[int, Line] = {}
        requests: dict[int, Request] = {}
        requests_of = partial(self._requests, strategy=strategy, first=first, truncate=truncate)
        for index, (line, prefix, drafts, targets) in enumerate(lines):
            if not line.strip() and not targets:
                yield index, Result(index, (Hypothesis(tokens=(), score=None),))
                continue
            try:
                for given in (line, prefix, *drafts, *targets):
                    require_text(given)
                if targets:
                    paragraph = AsGiven().paragraph(text.tokens(line))
                else:
                    paragraph = text.paragraph(line, prefix=prefix, drafts=drafts)
                asked: dict[str, Any] = {"prefix": text.beginning(prefix)}
                for name, each in (("drafts", drafts), ("targets", targets)):
                    asked[name] = [*map(text.tokens, each)]
                free = None if prefix or targets or not strategy.admits_source else guard
                found = Line(index, paragraph, self.checkpoint.output, free, whole=any(drafts))
                made = requests_of(found, **asked)
            except (InputTooLongError, InputFileError, InputFormatError, InputEncodingError) as error:
                yield index, error
                continue
            if len(made) == 1 and not (prefix or targets) and getattr(made[0].source, "copied", None) == ():
                # Of characters that nobody sees, no word is left.
                made, paragraph = [], Paragraph((), (line, ""))
            if made:
                waiting[index] = found
                requests |= {request.index: request for request in made}
            elif paragraph.sentences:  # all too long
                yield index, found.result()
            else:
                yield index, Result(index, (Hypothesis(tokens=(), score=None, text=line),))
        for result in self._decoded(strategy, requests, batch_size=batch_size, **settings):
            request = requests.pop(result.index)
            number, index = divmod(result.index, APART)
            found = waiting[index - first]
            if isinstance(request.source, FeatureSource) and not request.targets:
                result = self._spoken(request.source, result, lines[index - first][0], strategy)
            if not found.add(number, result):
                continue
            made = requests_of(found)
            if made:  # once what was asked so far is done
                requests |= {request.index: request for request in made}
            else:
                yield found.index, found.result()
                del waiting[found.index]

    def _decoded(
        self, strategy: Any, requests: Mapping[int, Request], *, batch_size: int, **settings: Any
    ) -> Iterator[Result]:
        """Yields results until no request is left; who reads them takes theirs out, and may add others.

        Where memory runs out in decoding, what is left starts again in smaller batches.
        """
        while requests:
            try:
                yield from self._results(strategy, [*requests.values()], batch_size=batch_size, **settings)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if batch_size == 1:
                    raise OutOfMemoryError(
                        "memory ran out with one sentence in the batch", fix=f"lower {named('max_len')}"
                    ) from error
                batch_size = max(1, batch_size // 2)

    @property
    def levels(self) -> Levels | None:
        """Tells the levels of sound by its features; None: they do not tell, or `vad` is off."""
        return getattr(self.checkpoint.input, "levels", None) if self.vad else None

    def _spoken(self, source: FeatureSource, result: Result, name: str, strategy: Any) -> Result:
        """The result with times; without words, which is told, where nobody speaks in that recording."""
        reader: Any = self.checkpoint.input
        best, vocab = result.hypotheses[0], self.checkpoint.target_vocab
        is_timed = any(each.spans is not None for each in result.hypotheses)
        is_whole = self.levels is not None and self.buffers is None  # else buffer by buffer
        levels = None
        if is_timed or is_whole:
            tell: Levels | None = getattr(reader, "levels", None)
            levels = None if tell is None else levels_of(source.frames, tell)
        words = [i for i, token in enumerate(best.tokens) if token not in vocab.ends]
        # CTC's score of the end is that of all pauses.
        scores = None if getattr(strategy, "fuses_scores", False) else best.positional_scores
        log_probs = None if scores is None else [scores[i] for i in words]
        is_silent = is_whole and not is_speech(levels, log_probs)
        is_known = self.levels is not None and (levels is not None or self.buffers is not None)
        if is_known and (is_silent or not words):
            reader.tell(f"{name!r} holds no speech")
        if is_silent:
            return replace(result, hypotheses=(without_words(best, vocab.eos),))
        return self._timed(source, result, levels) if is_timed else result

    def _requests(
        self, line: Line, *, strategy: Any, first: int, truncate: bool, **asked: Any
    ) -> list[Request]:
        """What is asked next for a line. Where a guard allows it, what is too long is asked for in pieces.

        Raises:
            InputTooLongError: A sentence is too long.
        """
        made: list[Request] = []
        waiting = line.waiting()
        while len(made) < len(waiting):
            number, text = waiting[len(made)]
            try:
                at = first + line.index + number * APART
                cut = truncate and line.guard is None
                made.append(self.request(at, text, strategy, truncate=cut, **asked))
            except (InputTooLongError, InputFileError, InputFormatError, InputEncodingError) as error:
                if isinstance(error, InputTooLongError) and line.refuse(number, error.message):
                    waiting = line.waiting()
                    continue
                if len(line.paragraph.sentences) > 1:
                    error.message = f"sentence {line.sentence_of(number)} of the line: {error.message}"
                raise
        return made

    def _timed(self, source: FeatureSource, result: Result, levels: FloatArray | None) -> Result:
        """The result, with the times of its tokens where a strategy found out where they are.

        Args:
            levels: [T] of the source's frames, dB; None: they are not known.
        """
        from nartk.protocols.timestamps import position_seconds, word_times

        seconds = position_seconds(source, self.config.subsampling)  # type: ignore[attr-defined]
        # Times are those of the sound, which begins behind the padding.
        padding = getattr(self.checkpoint.input, "padding", 0) * source.shift / 1000
        longest = len(source.frames) * source.shift / 1000 - 2 * padding

        def timed(hypothesis: Hypothesis) -> Hypothesis:
            if hypothesis.spans is None:
                return hypothesis
            times = np.array(hypothesis.spans, np.float64).reshape(-1, 2) * seconds
            if levels is not None:
                times = word_times(times, levels, source.shift / 1000)
            if padding:
                shift = source.shift / 1000
                times = np.clip(times - padding, [0.0, shift], [max(0.0, longest - shift), longest])
            return replace(hypothesis, times=tuple((float(a), float(b)) for a, b in times))

        return replace(result, hypotheses=tuple(map(timed, result.hypotheses)))

    def _results(self, strategy: Any, requests: list[Request], **settings: Any) -> Iterator[Result]:
        """What a strategy yields of requests, with one scorer or with replicas."""
        scorer = self.scorer_for(strategy)
        if self.replicas == 1:
            return strategy.run(scorer, requests, **settings)
        return run_replicas(strategy, scorer, requests, count=self.replicas, **settings)


def in_order(outcomes: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yields what comes with indices from 0 on in their order, each as soon as those before it are there."""
    early: dict[int, T] = {}
    index = 0
    for found, outcome in outcomes:
        early[found] = outcome
        while index in early:
            yield early.pop(index)
            index += 1


def _warned(outcomes: Iterable[tuple[int, Result | NartkError]], first: int) -> Iterator[Hypothesis]:
    """The best hypothesis of each line in their order; those that fail warn the caller's caller.

    Args:
        first: How many lines came before these.
    """
    for number, outcome in enumerate(in_order(outcomes), start=first + 1):
        if isinstance(outcome, NartkError):
            outcome.where = f"line {number}"
            warnings.warn(str(outcome), stacklevel=3)
        yield _best(outcome if isinstance(outcome, NartkError) else outcome.hypotheses)


def _best(outcome: Sequence[Hypothesis] | NartkError) -> Hypothesis:
    """The best hypothesis with the others as its alternatives; of an error, an empty one that has it."""
    if isinstance(outcome, NartkError):
        return Hypothesis(tokens=(), error=outcome)
    best, *others = outcome
    return replace(best, alternatives=tuple(others)) if others else best


def _several(name: str, items: Iterable[T]) -> Iterator[T]:
    """What iterates over items; one string, whose letters these would be, is a UsageError."""
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise UsageError(f"{name} is {reprlib.repr(items)}, not a list of strings", fix="pass a list")
    return iter(items)


def _lists(name: str, items: Drafts) -> list[list[str]]:
    """The strings of each line, of which one may stand by itself."""
    return [
        _strings(f"{name}[{index}]", [each] if isinstance(each, str) else each)
        for index, each in enumerate(_several(name, items))
    ]


def _strings(name: str, items: Iterable[str], first: int = 0) -> list[str]:
    """The items, `first` the index of the first of them, without the ends of lines that files have.

    Raises:
        UsageError: They are one string, or one of them is none.
    """
    found = []
    for index, item in enumerate(_several(name, items), start=first):
        if not isinstance(item, str):
            raise UsageError(
                f"{name}[{index}] is {reprlib.repr(item)}, not a string", fix="pass strings alone"
            )
        found.append(item.rstrip("\r\n"))
    return found


def summarize(results: Sequence[Result], seconds: float) -> DecodeStats:
    """The statistics of a run that took `seconds`. Lines that are not decoded do not count.

    What a guard keeps undecoded, because it is too long, is a sentence.
    """
    decoded = [result for result in results if result.passes]
    counts, phases = added(decoded)
    guarded = [each for result in results for each in result.hypotheses[0].guarded]
    return DecodeStats(
        seconds=seconds,
        sentences=sum(each.sentences for each in results if each.passes or each.hypotheses[0].guarded),
        tokens=sum(len(result.hypotheses[0].tokens) for result in decoded),
        left_mid_batch=sum(result.left_mid_batch for result in decoded),
        **{done: sum(each.done == done for each in guarded) for done in GUARDED},
        latencies=tuple(result.seconds for result in decoded),
        **counts,
        **{f"{name}_seconds": spent for name, spent in phases.items()},
    )


def load(
    name: str | os.PathLike[str] = SHIPPED[0],
    *,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    replicas: int = 1,
    check: bool = False,
    pretokenized: bool = False,
    guard: bool = True,
    min_edit_confidence: float | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> Model:
    """Loads a model.

    Args:
        name: A shipped model's name, or a folder as `nartk-convert` writes it, or as transformers does.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Type of weights and products: fp32, bf16, fp16 on a GPU, or int8 on the engine; None: what the
            folder holds if that is int8, else fp32.
        threads: Most threads of a computation; None: on the engine as many as there are cores for this
            process, in torch what it is set to.
        replicas: Engines of one thread each that share the weights and decode at the same time, for
            throughput; each has batches of its own.
        check: Whether all files are compared with their hashes, the mapped ones of int8 folders too.
        pretokenized: Whether text is tokenised already, a sentence a line, and is to stay so.
        guard: Whether the guard of a model that has one judges its outputs.
        min_edit_confidence: The least probability of a single edit, from 0 to 1, below which that guard
            undoes it; None: as the model's folder says.
        source_lang, target_lang: Of the lines and the outputs, where a folder of transformers leaves it open.
        source_prefix: Put before each line, with such a folder.
        tell: Is told in a line what of a folder is passed over, or taken where nothing is said, and where
            torch computes on a CPU in the engine's place.

    Raises:
        ModelNotFoundError: There is no such model.
        CheckpointError: It is corrupt or does not fit its configuration.
        UsageError: The device or the type is not to be had.
        MissingDependencyError: What it takes is not installed.
    """
    if dtype is not None and dtype not in TYPES:
        raise UsageError(f"{named('dtype')} is {dtype!r}", fix=f"choose from {', '.join(TYPES)}")
    _require_count("replicas", replicas, MOST_THREADS)
    if threads is not None:
        _require_count("threads", threads, MOST_THREADS)
    if replicas > 1 and threads not in (None, 1):
        raise UsageError(
            f"{named('threads', threads)} with {named('replicas', replicas)}, each of which has one thread",
            fix="leave one of them out",
        )
    checkpoint = load_checkpoint(
        model_folder(name),
        check=check,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
    )
    for notice in checkpoint.notices:
        tell(notice)
    model = _serve(checkpoint, _device(device), dtype, threads=threads, replicas=replicas)
    model.pretokenized, model.guard = pretokenized, guard
    model.min_edit_confidence = min_edit_confidence
    _ = model.guarding  # refused now, not when it is needed
    if notice := _on_reference(model):
        tell(notice)
    return model


def _on_reference(model: Model) -> str:
    """In a line, why torch computes on a CPU in the engine's place; empty: it does not."""
    from nartk import engine

    name = model.checkpoint.architecture
    if model.device != "cpu" or model.is_exact:
        return ""
    why = engine.describe() if architecture(name).engine_at is not None else f"the engine has no {name!r}"
    return f"{why}; torch computes, slower, and outputs are identical up to ties"


def _serve(
    checkpoint: Checkpoint, device: str, dtype: str | None, *, threads: int | None, replicas: int = 1
) -> Model:
    """The model of a checkpoint, on the engine if that has its architecture, the device and the type."""
    from nartk import engine

    stored = checkpoint.quantized
    if dtype is None:
        dtype = "fp32" if stored is None else stored
    if stored not in (None, dtype):
        raise UsageError(
            f"{named('dtype')} is {dtype!r}, but {str(checkpoint.folder)!r} holds {stored} weights",
            fix=f"use {named('dtype', stored)}, or {_UNQUANTIZED}",
        )
    found, config = architecture(checkpoint.architecture), read_config(checkpoint)
    by_torch = tuple(type for type in TYPES if type != "int8" and (type != "fp16" or device != "cpu"))
    if dtype == "fp16" and device == "cpu":
        types = engine.TYPES if found.engine_at is not None and engine.available() else by_torch
        raise UsageError(
            f"{named('dtype', dtype)} needs a GPU", fix=f"on a CPU choose from {', '.join(types)}"
        )
    on_engine = found.engine_at is not None and device == "cpu" and dtype in engine.TYPES
    if on_engine and engine.available():
        scorer = found.engine(
            config,
            checkpoint.tensors,
            checkpoint.target_vocab,
            **_words_of(checkpoint),
            type=dtype,
            threads=1 if replicas > 1 else 0 if threads is None else threads,
        )
        return Model(checkpoint, config, device=device, dtype=dtype, engine=scorer, replicas=replicas)
    if replicas > 1:
        raise UsageError(
            f"{named('replicas', replicas)} needs the engine, which does not serve {dtype} on {device} here",
            fix=f"leave {named('replicas')} out",
        )
    if dtype == "int8":
        if stored is None:
            fix = f"choose from {', '.join(by_torch)}"
        else:
            fix = f"use nartk's engine with {named('device', 'cpu')}, or {_UNQUANTIZED}"
        raise UsageError(
            f"{named('dtype', dtype)} needs the engine, which does not serve a {checkpoint.architecture} on "
            f"{device}",
            fix=fix,
        )
    what = f"a {found.name} model in {dtype}" + (" without the engine" if on_engine else "")
    if on_engine and engine.LACK:
        what += f" ({engine.LACK})"
    with requiring_torch(what, fix=WITHOUT_BOTH if on_engine else WITHOUT_TORCH):
        import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return Model(checkpoint, config, device=device, dtype=dtype)


def _words_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a scorer is told of words: the sources', if they have any, and what outputs begin after."""
    found: dict[str, Any] = {}
    if checkpoint.input.vocab is not None:
        found["source_vocab"] = checkpoint.input.vocab
    if architecture(checkpoint.architecture).autoregressive:
        found["start_token"] = checkpoint.start_token
    return found


def _require_count(name: str, value: object, most: int | None = None) -> None:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        raise UsageError(
            f"{named(name)} is {value!r}", fix="give at least 1" if most is None else f"give 1 to {most}"
        )


def model_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a shipped model; any other name is a folder itself.

    Raises:
        ModelNotFoundError: The shipped model is not in this installation.
    """
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"the model is {name!r}, not a name or a path", fix="give a string or a path")
    if str(name) not in SHIPPED:
        return Path(name)
    folder = Path(__file__).parents[1] / "data" / "models" / str(name)
    if not os.path.isdir(folder):
        raise ModelNotFoundError(f"the shipped model {str(name)!r} is not in this installation")
    return folder


def load_network(checkpoint: Checkpoint) -> Transformer:
    """The network of a checkpoint, in fp32 on the CPU.

    Raises:
        UnsupportedCheckpointError: This version has no such architecture.
        CheckpointError: The weights do not fit the configuration, or it the dictionaries.
        UsageError: They are int8.
    """
    import torch

    if checkpoint.quantized is not None:
        raise UsageError(
            f"{str(checkpoint.folder)!r} holds {checkpoint.quantized} weights, which torch does not read",
            fix=_UNQUANTIZED,
        )
    config = read_config(checkpoint)
    model: Transformer = architecture(checkpoint.architecture).network(config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in checkpoint.tensors.items()})
    return model


def _device(name: str) -> str:
    if name == "cpu":
        return name
    with requiring_torch(named("device", name)):
        import torch
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")  # as one that torch has and nartk does not serve
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"{named('device')} is {name!r}", fix="choose cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"{named('device')} is {name!r}, but torch sees no GPU here", fix=f"use {named('device', 'cpu')}"
        )
    return device.type if device.type == "cpu" else str(device)


def _out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
