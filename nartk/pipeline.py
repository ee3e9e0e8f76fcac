"""From lines of text to hypotheses: loading a model and decoding with it."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nartk import __version__, calibration, engine
from nartk.checkpoint import Checkpoint, load_checkpoint, require_shapes
from nartk.errors import (
    CheckpointError,
    InputTooLongError,
    LengthMismatchError,
    ModelNotFoundError,
    NartkError,
    OutOfMemoryError,
    StrategyMismatchError,
    SwappedModelsError,
    UsageError,
)
from nartk.hypothesis import DecodeStats, Hypothesis, Request, Result
from nartk.kinds import kind_of
from nartk.passes import PassScorer
from nartk.registry import (
    make_strategy,
    options_of,
    require_drafts_reader,
    require_protocol,
    signature,
    speaks,
)

if TYPE_CHECKING:
    from nartk.models.serving import Serving
    from nartk.models.transformer import Transformer, TransformerConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TYPES = (*DTYPES, "int8")  # int8: on the engine alone
SHIPPED = ("gec-en",)  # models inside the package, the default first
KEPT = 4  # other models that a model keeps loaded, those used last
Drafts: TypeAlias = Sequence[str | Sequence[str]]  # of each line one or several


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


class Model:
    """A loaded model: decodes text with any strategy that fits it.

    Attributes:
        checkpoint: Where it came from, with dictionaries and tokenizers.
        scorer: What decoders see of it.
        dtype: Of its computation: fp32, bf16, fp16 or int8.
    """

    def __init__(
        self, checkpoint: Checkpoint, scorer: Serving, dtype: str, *, passes: PassScorer | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.scorer = scorer
        self.dtype = dtype
        self._engine = passes  # None: passes are scored by the reference
        self._helpers: dict[tuple[str, str, str], Model] = {}  # the one used last is the last

    @cached_property
    def passes(self) -> PassScorer | None:
        """What strategies over passes see of it; None: it is no model that scores passes."""
        if self._engine is not None:
            return self._engine
        return reference_of(self.checkpoint, dtype=self.dtype, device=self.scorer.device)

    def scorer_for(self, strategy: Any) -> Any:
        """The scorer that a strategy, or a class of them, decodes with.

        Raises:
            StrategyMismatchError: The model speaks no protocol that it needs.
        """
        if speaks(strategy, self.scorer):
            return self.scorer
        return require_protocol(strategy, *(each for each in (self.scorer, self.passes) if each is not None))

    @property
    def max_source_len(self) -> int:
        """Longest source, tokens without eos."""
        return self.scorer.config.max_source_len - 1

    @property
    def parameters(self) -> int:
        """Numbers in its weights."""
        return sum(tensor.numel() for tensor in self.checkpoint.tensors.values())

    def strategy(
        self, name: str, options: Mapping[str, Any], *, tell: Callable[[str], None] = warnings.warn
    ) -> Any:
        """The strategy `name`, checked against this model, with the other models that it needs loaded.

        The `KEPT` other models used last stay loaded, and are not read again when another call names them.
        Thresholds that `nartk-calibrate` has stored for these models take the place of defaults.

        Args:
            tell: Is told in a line where there are such thresholds, but not for these models or options.

        Raises:
            CheckpointError: Another model, or what is stored, is corrupt.
            StrategyMismatchError: The model, or another one that an option names, is of the wrong kind or has
                less room than the model.
            VocabMismatchError: Another model reads or writes other words.
            SwappedModelsError: Another model, which should be smaller, is larger than the model.
        """
        made = make_strategy(name, options)
        self.scorer_for(made)
        helpers = {}
        for key, item in options_of(name).items():
            other = getattr(made, key)
            if not item.metadata["model"] or not other:
                continue
            helper = self._helper(other)
            for mine, theirs in (
                (self.checkpoint.source_vocab, helper.checkpoint.source_vocab),
                (self.checkpoint.target_vocab, helper.checkpoint.target_vocab),
            ):
                mine.require_equal(theirs, "the model", f"{key} {other!r}")
            for side in ("max_source_len", "max_target_len"):
                room, wanted = (getattr(each.scorer.config, side) for each in (helper, self))
                if room < wanted:
                    raise StrategyMismatchError(
                        f"{key} {other!r} has a `{side}` of {room} tokens, the model one of {wanted}",
                        fix="train it with the model's lengths",
                    )
            if item.metadata["smaller"] and helper.parameters > self.parameters:
                raise SwappedModelsError(
                    f"{key} {other!r} has {helper.parameters:,} parameters, the model {self.parameters:,}",
                    fix="swap them: the smaller model drafts for the larger one",
                )
            made = replace(made, **{key: helper.checkpoint.fingerprint})
            helpers[key] = helper.scorer
            added, unfit = calibration.apply(
                self.checkpoint.folder,
                made,
                options,
                model=self.checkpoint.fingerprint,
                drafter=helper.checkpoint.fingerprint,
            )
            if unfit:
                tell(unfit)
            made = replace(made, **added)
        if helpers:
            made = replace(made, helpers=helpers)
        made.check_helpers()
        return made

    def _helper(self, name: str) -> Model:
        """Another model, on this one's device and in its type: read only if it is not among those kept."""
        device = str(self.scorer.device)
        key = (os.path.realpath(model_folder(name)), device, self.dtype)
        helper = self._helpers.pop(key, None)
        if helper is None:
            checkpoint = load_checkpoint(model_folder(name))
            # What the engine does not serve has no int8, and only proposes.
            is_served = self.dtype != "int8" or kind_of(checkpoint.kind).autoregressive
            helper = _serve(checkpoint, _device(device), self.dtype if is_served else "fp32")
        self._helpers[key] = helper
        if len(self._helpers) > KEPT:
            del self._helpers[next(iter(self._helpers))]
        return helper

    def signature(self, strategy: Any) -> str:
        """What reproduces a result of this model with a strategy."""
        model = f"{self.checkpoint.fingerprint}|{self.scorer.numerics}|torch:{torch.__version__}"
        return signature(strategy, dtype=self.dtype, model=model, version=__version__)

    def encode(self, line: str, *, truncate: bool = False) -> tuple[int, ...]:
        """Source ids of a line, with eos; `truncate` cuts what is too long instead of refusing it.

        Raises:
            InputTooLongError: The line has more tokens than the model has positions.
        """
        ids = self.checkpoint.source_tokenizer.encode(line)
        if len(ids) > self.max_source_len:
            if not truncate:
                raise InputTooLongError(
                    f"{len(ids)} tokens > {self.max_source_len}", fix="split the line, or use --truncate"
                )
            ids = ids[: self.max_source_len]
        return (*ids, self.checkpoint.source_vocab.eos)

    def request(
        self,
        index: int,
        line: str,
        strategy: Any,
        *,
        prefix: str = "",
        drafts: Sequence[str] = (),
        truncate: bool = False,
    ) -> Request:
        """What a decoder is asked for a line; raises as `encode` does."""
        source = self.encode(line, truncate=truncate)
        longest = min(strategy.limit(len(source)), self.scorer.config.max_target_len)
        write = self.checkpoint.target_tokenizer.encode
        forced = write(prefix)[:longest] if prefix else ()
        # What lies beyond the output's longest end is hardly ever reached. The order is kept.
        drafted = dict.fromkeys(tuple(write(draft)[:longest]) for draft in drafts)
        return Request(index, source, longest, tuple(forced), tuple(filter(None, drafted)))

    def decode(
        self,
        lines: Sequence[str],
        strategy: str = "greedy",
        *,
        batch_size: int = 32,
        drafts: Drafts | None = None,
        trace: bool = False,
        **options: Any,
    ) -> list[Hypothesis]:
        """The best hypothesis of each line.

        Args:
            lines: Any text, one sentence each; an empty line gives an empty hypothesis.
            strategy: A name of `nartk.strategies()`.
            batch_size: Most sentences at a time.
            drafts: What each line's output may be, for the strategies that read drafts.
            trace: Whether hypotheses say where each token came from.
            options: Of the strategy, such as ``exact=False``.

        Raises:
            NartkError: An option is unknown or out of bounds, or a line cannot be decoded.
        """
        run = self.run(lines, strategy, options, batch_size=batch_size, drafts=drafts, trace=trace)
        for index in sorted(run.errors):
            error = run.errors[index]
            error.where = f"line {index + 1}"
            raise error
        return [hypotheses[0] for hypotheses in run.hypotheses]

    def run(
        self,
        lines: Sequence[str],
        strategy: str = "greedy",
        options: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Sequence[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
    ) -> Run:
        """As `decode`, with n-best lists, statistics and per-line errors instead of raising them."""
        made = self.strategy(strategy, {} if options is None else options)
        found: list[tuple[Hypothesis, ...]] = [()] * len(lines)
        errors: dict[int, NartkError] = {}
        finished: list[Result] = []
        start = time.perf_counter()
        for index, outcome in self.stream(
            lines,
            made,
            batch_size=batch_size,
            max_tokens=max_tokens,
            prefixes=prefixes,
            drafts=drafts,
            truncate=truncate,
            trace=trace,
        ):
            if isinstance(outcome, NartkError):
                errors[index] = outcome
            else:
                found[index] = outcome.hypotheses
                finished.append(outcome)
        stats = summarize(finished, time.perf_counter() - start)
        return Run(found, errors, stats, self.signature(made))

    def stream(
        self,
        lines: Sequence[str],
        strategy: Any,
        *,
        batch_size: int = 32,
        max_tokens: int | None = None,
        prefixes: Sequence[str] | None = None,
        drafts: Drafts | None = None,
        truncate: bool = False,
        trace: bool = False,
        first: int = 0,
    ) -> Iterator[tuple[int, Result | NartkError]]:
        """Yields (line index, result or error) as sentences finish, hypotheses with their text.

        Where memory runs out, the batch is halved and the unfinished sentences start again.

        Args:
            prefixes: What each line's output must begin with.
            drafts: What each line's output may be.
            first: How many lines came before these: sampling draws a line's numbers by its place among all.

        Raises:
            UsageError: Drafts are given to a strategy that reads none.
            LengthMismatchError: There are drafts for more or fewer lines.
            OutOfMemoryError: Memory runs out with a single sentence.
        """
        if batch_size < 1:
            raise UsageError(f"--batch-size is {batch_size}", fix="give at least 1")
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"--max-tokens is {max_tokens}", fix="give at least 1")
        if drafts is not None:
            require_drafts_reader(strategy)
            if len(drafts) != len(lines):
                raise LengthMismatchError(
                    f"drafts for {len(drafts)} lines, but there are {len(lines)}",
                    fix="give an empty draft where a line has none",
                )
        requests: dict[int, Request] = {}
        for index, line in enumerate(lines):
            if not line.strip():
                yield index, Result(index, (Hypothesis(tokens=(), score=None),))
                continue
            prefix = "" if prefixes is None else prefixes[index]
            given = () if drafts is None else drafts[index]
            given = (given,) if isinstance(given, str) else given
            try:
                requests[index] = self.request(
                    first + index, line, strategy, prefix=prefix, drafts=given, truncate=truncate
                )
            except InputTooLongError as error:
                yield index, error
        scorer = self.scorer_for(strategy)
        while requests:
            try:
                for result in strategy.run(
                    scorer,
                    list(requests.values()),
                    batch_size=batch_size,
                    max_tokens=max_tokens,
                    trace=trace,
                ):
                    index = result.index - first
                    del requests[index]
                    yield index, self._with_text(replace(result, index=index))
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if batch_size == 1:
                    raise OutOfMemoryError(
                        "memory ran out with one sentence in the batch", fix="lower --max-len"
                    ) from error
                batch_size = max(1, batch_size // 2)

    def _with_text(self, result: Result) -> Result:
        tokenizer = self.checkpoint.target_tokenizer
        texts = (replace(each, text=tokenizer.decode(each.tokens)) for each in result.hypotheses)
        return replace(result, hypotheses=tuple(texts))


def summarize(results: Sequence[Result], seconds: float) -> DecodeStats:
    """The statistics of a run that took `seconds`. Empty lines, which are not decoded, do not count."""
    decoded = [result for result in results if result.passes]
    return DecodeStats(
        seconds=seconds,
        sentences=len(decoded),
        tokens=sum(len(result.hypotheses[0].tokens) for result in decoded),
        passes=sum(result.passes for result in decoded),
        drafted=sum(result.drafted for result in decoded),
        accepted=sum(result.accepted for result in decoded),
        drafter_passes=sum(result.drafter_passes for result in decoded),
        branches=sum(result.branches for result in decoded),
        left_mid_batch=sum(result.left_mid_batch for result in decoded),
        encode_seconds=math.fsum(result.phases.encode for result in decoded),
        draft_seconds=math.fsum(result.phases.draft for result in decoded),
        verify_seconds=math.fsum(result.phases.verify for result in decoded),
        accept_seconds=math.fsum(result.phases.accept for result in decoded),
        latencies=tuple(result.seconds for result in decoded),
    )


def load(name: str | os.PathLike[str] = SHIPPED[0], *, device: str = "cpu", dtype: str = "fp32") -> Model:
    """Loads a model.

    Args:
        name: A shipped model's name, or a folder as `nartk-convert` writes it.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Type of weights and products: fp32, bf16, fp16, or int8 on the engine.

    Raises:
        ModelNotFoundError: There is no such model.
        CheckpointError: It is corrupt or does not fit its configuration.
        UsageError: The device or the type is not to be had.
    """
    if dtype not in TYPES:
        raise UsageError(f"--dtype is {dtype!r}", fix=f"choose from {', '.join(TYPES)}")
    return _serve(load_checkpoint(model_folder(name)), _device(device), dtype)


def _serve(checkpoint: Checkpoint, device: torch.device, dtype: str) -> Model:
    """The model of a checkpoint. An autoregressive one runs on the engine, if that has device and type."""
    kind = kind_of(checkpoint.kind)
    network = load_network(checkpoint)
    scorer: Any
    passes = None
    if kind.autoregressive and device.type == "cpu" and dtype in engine.TYPES and engine.available():
        from nartk.engine.scorer import EngineScorer
        from nartk.models.tensor_engine import TensorEngine

        passes = EngineScorer(
            network.config,
            {name: tensor.numpy() for name, tensor in network.state_dict().items()},
            checkpoint.target_vocab,
            source_vocab=checkpoint.source_vocab,
            type=dtype,
            threads=torch.get_num_threads(),
        )
        scorer = TensorEngine(passes, network.config)
    elif dtype not in DTYPES:
        raise UsageError(
            f"--dtype {dtype} needs the engine, which does not serve a {checkpoint.kind} on {device.type}",
            fix=f"choose from {', '.join(DTYPES)}",
        )
    else:
        scorer = kind.scorer(
            network,
            checkpoint.target_vocab,
            source_vocab=checkpoint.source_vocab,
            dtype=DTYPES[dtype],
            device=device,
        )
    return Model(checkpoint, scorer, dtype, passes=passes)


def reference_of(checkpoint: Checkpoint, *, dtype: str, device: torch.device) -> PassScorer | None:
    """What scores passes of a checkpoint's model without the engine; None where the model scores none."""
    if not kind_of(checkpoint.kind).autoregressive:
        return None
    from nartk.models.reference import ReferenceScorer

    return ReferenceScorer(
        load_network(checkpoint),
        checkpoint.target_vocab,
        source_vocab=checkpoint.source_vocab,
        dtype=DTYPES[dtype],
        device=device,
    )


def model_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a shipped model; any other name is a folder itself.

    Raises:
        ModelNotFoundError: The shipped model is not in this installation.
    """
    if str(name) not in SHIPPED:
        return Path(name)
    folder = Path(import_module("nartk.data").__path__[0]) / str(name)
    if not folder.is_dir():
        raise ModelNotFoundError(f"the shipped model {str(name)!r} is not in this installation")
    return folder


def load_network(checkpoint: Checkpoint) -> Transformer:
    """The network of a checkpoint, in fp32 on the CPU.

    Raises:
        UnsupportedCheckpointError: This version has no such kind of model.
        CheckpointError: The weights do not fit the configuration, or it the dictionaries.
    """
    where = str(checkpoint.folder)
    kind = kind_of(checkpoint.kind)
    try:
        config: TransformerConfig = kind.config.from_dict(checkpoint.settings)
    except UsageError as error:
        raise CheckpointError(error.message, where=where) from error
    for size, vocab in (
        (config.src_vocab, checkpoint.source_vocab),
        (config.tgt_vocab, checkpoint.target_vocab),
    ):
        if size != len(vocab):
            raise CheckpointError(f"the model has {size} words, its dictionary {len(vocab)}", where=where)
        if config.pad != vocab.pad:
            raise CheckpointError(
                f"the model pads with {config.pad}, its dictionary with {vocab.pad}", where=where
            )
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        stored = {name.split(".")[1] for name in checkpoint.tensors if name.startswith(f"{side}_layers.")}
        if len(stored) != layers:
            raise CheckpointError(
                f"the {side} has {len(stored)} layers, the configuration says {layers}", where=where
            )
    # Shapes are compared before memory is taken: a wrong size must not allocate.
    with torch.device("meta"):
        model: Transformer = kind.network(config)
    require_shapes(model.state_dict(keep_vars=True), checkpoint.tensors, where)
    model = kind.network(config)
    model.load_state_dict({name: tensor.float() for name, tensor in checkpoint.tensors.items()})
    return model


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device is {name!r}", fix="choose cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device is 'cuda', but torch sees no GPU here", fix="use --device cpu")
    return device


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
