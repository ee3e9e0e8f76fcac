"""Loads models: a shipped one, a folder of nartk's, or one of transformers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace

from nartk.architectures import architecture
from nartk.checkpoints import costs
from nartk.checkpoints.checkpoint import Checkpoint, read_config
from nartk.checkpoints.loading import load_checkpoint, located
from nartk.checkpoints.names import SHIPPED
from nartk.errors import WITHOUT_TORCH, UsageError, named, require_count, requiring_torch
from nartk.files import Folder
from nartk.protocols.prompts import Prompted
from nartk.serving.model import Model
from nartk.serving.scorers import TYPES, WITHOUT_BOTH, reference_scorer, weights_in, words_of

MOST_THREADS = 1024


def load(
    name: str | os.PathLike[str] = SHIPPED[0],
    *,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    replicas: int = 1,
    check: bool = False,
    cuda_graphs: bool = True,
    pretokenized: bool = False,
    guard: bool = True,
    min_edit_confidence: float | None = None,
    vad: bool = True,
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
        check: True to compare all files with their hashes, the mapped ones of int8 folders too.
        cuda_graphs: True if passes on a GPU are captured in CUDA graphs, which take memory there.
        pretokenized: True if text is tokenised already, a sentence a line, and is to stay so.
        guard: True if the guard of a model that has one judges its outputs.
        min_edit_confidence: The least probability of a single edit, against the text without it, from 0 to
            1, below which that guard undoes it; None: as the model's folder says.
        vad: True if recordings in which nobody speaks give no words.
        source_lang, target_lang: Languages of lines and outputs if a folder of transformers leaves them open.
        source_prefix: Put before each line, with such a folder.
        tell: Receives a line on what of a folder is passed over, or taken where nothing is said, and where
            torch computes on a CPU in the engine's place.

    Raises:
        ModelNotFoundError: There is no such model.
        CheckpointError: It is corrupt or does not fit its configuration.
        UsageError: The device or the type is not to be had.
        MissingDependencyError: A package that it needs is not installed.
    """
    if dtype is not None and dtype not in TYPES:
        raise UsageError(f"{named('dtype')} is {dtype!r}", fix=f"choose from {', '.join(TYPES)}")
    require_count("replicas", replicas, MOST_THREADS)
    if threads is not None:
        require_count("threads", threads, MOST_THREADS)
    if replicas > 1 and threads not in (None, 1):
        raise UsageError(
            f"{named('threads', threads)} with {named('replicas', replicas)}, each of which has one thread",
            fix="leave one of them out",
        )
    checkpoint = load_checkpoint(
        name if isinstance(name, Folder) else located(name),
        check=check,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
    )
    for notice in checkpoint.notices:
        tell(notice)
    model = _served(
        checkpoint, _device(device), dtype, threads=threads, replicas=replicas, cuda_graphs=cuda_graphs
    )
    model = replace(
        model, pretokenized=pretokenized, guard=guard, min_edit_confidence=min_edit_confidence, vad=vad
    )
    if model.device == "cpu" and not model.is_exact:
        from nartk import engine

        arch = checkpoint.architecture
        why = engine.describe() if architecture(arch).engine_at is not None else f"the engine has no {arch!r}"
        tell(f"{why}; torch computes, slower, and outputs are identical up to ties")
    return model


def _served(
    checkpoint: Checkpoint,
    device: str,
    dtype: str | None,
    *,
    threads: int | None,
    replicas: int = 1,
    cuda_graphs: bool = True,
) -> Model:
    """The model of a checkpoint, on the engine if that has its architecture, the device and the type."""
    from nartk import engine

    found, config = architecture(checkpoint.architecture), read_config(checkpoint)
    has_engine = found.engine_at is not None and device == "cpu" and engine.available()
    if dtype is None:
        dtype = "fp32" if checkpoint.quantized is None or not has_engine else checkpoint.quantized
    by_torch = tuple(type for type in TYPES if type != "int8" and (type != "fp16" or device != "cpu"))
    if dtype == "fp16" and device == "cpu":
        types = engine.TYPES if has_engine else by_torch
        raise UsageError(
            f"{named('dtype', dtype)} needs a GPU", fix=f"on a CPU choose from {', '.join(types)}"
        )
    on_engine = found.engine_at is not None and device == "cpu" and dtype in engine.TYPES
    is_served = has_engine and dtype in engine.TYPES
    if is_served:
        scorer = found.engine(
            config,
            weights_in(checkpoint, config, dtype),
            checkpoint.target_vocab,
            **words_of(checkpoint),
            type=dtype,
            threads=1 if replicas > 1 else 0 if threads is None else threads,
        )
    elif replicas > 1:
        raise UsageError(
            f"{named('replicas', replicas)} needs the engine, which does not serve {dtype} on {device} here",
            fix=f"leave {named('replicas')} out",
        )
    elif dtype == "int8":
        raise UsageError(
            f"{named('dtype', dtype)} needs the engine, which does not serve a {checkpoint.architecture} on "
            f"{device}",
            fix=f"choose from {', '.join(by_torch)}",
        )
    else:
        what = f"a {found.name} model in {dtype}" + (" without the engine" if on_engine else "")
        if on_engine and engine.LACK:
            what += f" ({engine.LACK})"
        with requiring_torch(what, fix=WITHOUT_BOTH if on_engine else WITHOUT_TORCH):
            import torch

        if threads is not None:
            torch.set_num_threads(threads)
        scorer = reference_scorer(checkpoint, device, dtype)
        if hasattr(scorer, "cuda_graphs"):
            scorer.cuda_graphs &= cuda_graphs
    if isinstance(checkpoint.output, Prompted):
        scorer.prompts = checkpoint.output.prompts
    model = Model(
        checkpoint,
        config,
        device=device,
        dtype=dtype,
        passes=scorer,
        open_other=_open_other,
        is_exact=is_served,
        replicas=replicas,
    )
    if (tuned := costs.stored(checkpoint.folder, **model.cost_setting)) is not None:
        scorer.costs = tuned
    return model


def _open_other(model: Model, name: str) -> Model:
    """Another model on a model's device and, if its own weights allow it, in its type."""
    checkpoint = load_checkpoint(located(name), check=model.checkpoint.checked)
    dtype = model.dtype if checkpoint.quantized is None or model.device != "cpu" else None
    graphs = getattr(model.passes, "cuda_graphs", True)
    return _served(checkpoint, model.device, dtype, threads=model.threads, cuda_graphs=graphs)


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
