"""Base of every fairseq model of nartk: a core network whose configuration gives the options."""

from __future__ import annotations

import argparse
import contextlib
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from torch import Tensor, nn

from nartk.adapters.fairseq.checkpoint import FairseqCheckpoint, read_checkpoint
from nartk.adapters.fairseq.converting import find_dictionary
from nartk.adapters.fairseq.network import shapes, to_network
from nartk.architectures import Architecture, architectures
from nartk.architectures.settings import JOINT, Config
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import model_folder
from nartk.checkpoints.tensors import require_shapes
from nartk.errors import CheckpointError, VocabMismatchError
from nartk.models.losses import Training
from nartk.models.transformer import Transformer
from nartk.serving.scorers import load_network
from nartk.tasks.muon import mark_tables
from nartk.vocab import Vocab

# Known from the dictionaries, so they are no options.
FROM_TASK = ("src_vocab", "tgt_vocab", "pad")
# fairseq's own names of options.
FAIRSEQ_FLAGS = {"d_model": ["encoder_embed_dim"], "decoder_features": ["decoder_embed_dim"]}
_PROMPT = "encoder_prompt."  # weights of what encodes words beside frames
_HEADS = ("ctc.", "condition.")  # those of an encoder's CTC head, and of what its layers read of that
Sample: TypeAlias = dict[str, Any]  # what a dataset of fairseq gives, an item or a batch
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Drafted(NamedTuple):
    """Predictions of a drafter in training.

    Attributes:
        logits: [N,V], of the N words that it predicts.
        predicted: [B,T] bool, which of the target these are.
        parts: Other values to log, by name.
    """

    logits: Tensor
    predicted: Tensor
    parts: dict[str, Tensor]


class CoreModel(BaseFairseqModel):
    """Holds a core network of the architecture that a subclass names.

    Its options are the fields of the architecture's configuration.
    """

    architecture: ClassVar[Architecture]

    def __init__(self, config: Config, source: Any, target: Any, autocast: str = "none") -> None:
        super().__init__()
        self.core = self.architecture.network(config)
        mark_tables(self.core, config.tgt_vocab)
        self.autocast_dtype = AUTOCAST.get(autocast)

    def draft_training(
        self, call: Callable[..., Any], inputs: dict[str, Tensor], target: Tensor, training: Training
    ) -> Drafted:
        """Returns predictions at the positions where a drafter learns from its verifier.

        Args:
            call: Its `forward`, or what wraps it for several processes.
        """
        raise NotImplementedError

    def drafted_passes(
        self, inputs: dict[str, Tensor], target: Tensor, logits: Tensor, best: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        """Counts the passes of the verifier that are looked at, and the tokens they give.

        Args:
            logits: [N,V] of `draft_training`.
            best: [B,T] the verifier's words, -1 behind the end.
            block: Longest draft of an autoregressive drafter, tokens.
        """
        raise NotImplementedError

    @classmethod
    def options(cls) -> tuple[Field[Any], ...]:
        """The fields of the configuration that are options of training."""
        return tuple(item for item in fields(cls.architecture.config) if item.name not in FROM_TASK)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """One option a field of the configuration. Without defaults: those are the architecture's."""
        for item in cls.options():
            flags = ["--" + name.replace("_", "-") for name in (item.name, *FAIRSEQ_FLAGS.get(item.name, ()))]
            settings: dict[str, Any] = {"help": item.metadata["help"], "default": argparse.SUPPRESS}
            if isinstance(item.default, bool):
                settings["action"] = argparse.BooleanOptionalAction
            else:
                settings.update(type=type(item.default), choices=item.metadata["choices"])
            parser.add_argument(*flags, dest=item.name, **settings)
        parser.add_argument(
            "--autocast",
            choices=("none", *AUTOCAST),
            default="none",
            help="multiply matrices in this type while weights and loss stay fp32; on a CPU with bf16 "
            "instructions about twice as fast (fairseq's own --bf16 and --fp16 are for GPUs)",
        )
        parser.add_argument(
            "--init-encoder",
            metavar="MODEL",
            help="begin with the encoder of this CHECKPOINT.pt, model folder or shipped model, such as the "
            "verifier's of a drafter, and with its CTC head where both have one over the same dictionary",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> CoreModel:
        """Builds the model for the task's dictionaries.

        Raises:
            VocabMismatchError: Embeddings are shared, and the dictionaries differ; or the model whose encoder
                it is to begin with has another one.
            CheckpointError: That encoder has another shape.
        """
        source, target = task.source_dictionary, task.target_dictionary
        if getattr(args, "share_embeddings", "none") in JOINT and source != target:
            raise VocabMismatchError(
                "source and target share embeddings, but their dictionaries differ",
                fix="preprocess with --joined-dictionary, or train with --share-embeddings decoder",
            )
        config = cls.architecture.config(
            src_vocab=0 if source is None else len(source),
            tgt_vocab=len(target),
            pad=target.pad(),
            **{item.name: getattr(args, item.name) for item in cls.options()},
        )
        model = cls(config, source, target, getattr(args, "autocast", "none"))
        if getattr(args, "init_encoder", None) is not None:
            _copy_encoder(args.init_encoder, model.core, source, target)
        return model

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """The context of every forward pass; leaves fairseq's own --amp alone where it is not asked for."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, self.autocast_dtype)

    def max_positions(self) -> tuple[int, int]:
        """Longest source and target, tokens."""
        return self.core.config.max_source_len, self.core.config.max_target_len

    def max_decoder_positions(self) -> int:
        """Longest target, tokens."""
        longest: int = self.core.config.max_target_len
        return longest


def _copy_encoder(name: str, model: nn.Module, source: Dictionary | None, target: Dictionary) -> None:
    """Copies the encoder of a checkpoint or model, its words included, into a network.

    Its CTC head goes along where both have one over the same dictionary, as does what layers read of its
    predictions. What encodes words beside frames is left as it is where the other reads none.

    Args:
        source: The network's source dictionary, which a model must share; a checkpoint has none. None: it
            reads no words.
        target: The network's target dictionary.
    """

    def part(network: nn.Module, beginning: str) -> dict[str, Tensor]:
        weights = network.state_dict(keep_vars=True)
        return {name: weight for name, weight in weights.items() if name.startswith(beginning)}

    other, stored = read_model(name)
    if isinstance(stored, Checkpoint) and source is not None:
        vocab = Vocab(tuple(source.symbols))
        stored.source_vocab.require_equal(vocab, f"the source dictionary of {name}", "that of the data")
    wanted, found = (part(network, "encoder_") for network in (model, other))
    if not any(name.startswith(_PROMPT) for name in found):
        wanted = {name: weight for name, weight in wanted.items() if not name.startswith(_PROMPT)}
    is_same = _target_words(stored) == Vocab(tuple(target.symbols))
    for head in _HEADS if is_same else ():
        ours, theirs = (part(network, head) for network in (model, other))
        if ours and theirs:
            wanted, found = wanted | ours, found | theirs
    require_shapes(shapes(wanted), shapes(found), name)
    with torch.no_grad():
        for name, weight in wanted.items():
            weight.copy_(found[name])


def _target_words(stored: Checkpoint | FairseqCheckpoint) -> Vocab | None:
    """The target dictionary of a model; None of a checkpoint whose training data are not there."""
    if isinstance(stored, Checkpoint):
        return stored.target_vocab
    try:
        return Vocab.read(find_dictionary(stored, None, "target"))
    except CheckpointError:
        return None


def read_model(name: str) -> tuple[Transformer, Checkpoint | FairseqCheckpoint]:
    """The network of a checkpoint of fairseq, a model folder or a shipped model, and what it was read from.

    Raises:
        NartkError: It is not found, corrupt, or of an architecture that this version has not.
    """
    folder = model_folder(name)
    if folder.is_dir():
        stored = load_checkpoint(folder)
        return load_network(stored), stored
    checkpoint = read_checkpoint(Path(name))
    return to_network(checkpoint), checkpoint


def register_models(base: type[CoreModel], *criterions: str) -> None:
    """Registers with fairseq a model of each architecture that a criterion trains, with its presets."""
    for name, each in architectures().items():
        if not {*criterions} & {*each.criterions}:
            continue
        own = {"architecture": each, "__module__": base.__module__}
        register_model_of(type(f"{base.__name__}_{name}", (base,), own), each)


def register_model_of(model: type[CoreModel], found: Architecture) -> None:
    """Registers with fairseq the model of an architecture, with its presets."""
    register_model(f"nartk_{found.name}")(model)
    for preset, settings in found.presets.items():
        register_model_architecture(f"nartk_{found.name}", preset)(_preset(model, settings))


def _preset(model: type[CoreModel], settings: Mapping[str, Any]) -> Callable[[Namespace], None]:
    def fill(args: Namespace) -> None:
        for item in model.options():
            if not hasattr(args, item.name):
                setattr(args, item.name, settings.get(item.name, item.default))

    return fill
