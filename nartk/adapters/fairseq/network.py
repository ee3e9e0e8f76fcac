"""The network of a checkpoint: of nartk's own, and of fairseq's Transformer with its names and settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from nartk.adapters.fairseq.checkpoint import FairseqCheckpoint
from nartk.architectures import architecture
from nartk.architectures.settings import SOURCE_WORDS, TARGET_WORDS, C
from nartk.checkpoints.hugging_face.families import FAIRSEQ_NAMES
from nartk.checkpoints.hugging_face.tensors import names_of
from nartk.checkpoints.tensors import require_shapes
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError
from nartk.files import JsonObject
from nartk.models.transformer import Transformer
from nartk.vocab import SPECIALS

PAD = SPECIALS.index("<pad>")

# Of fairseq's position tables: the first position stands after the padding id.
_FIRST_POSITION = PAD + 1
# The matrix of output words, where it is not that of the decoder's input; the first is of older checkpoints.
_OUTPUTS = ("decoder.embed_out", "decoder.output_projection.weight")
# The decoder of older checkpoints had no norm after its last layer, whatever its settings say.
_FINAL_NORM_SINCE = {"encoder": 2.0, "decoder": 3.0}
# Version marks, position tables that can be computed, and the second copy of each encoder layer's weights
# that fairseq 0.12 keeps for torch's fast path and overwrites when it loads.
_IGNORED = re.compile(
    r"(en|de)coder\.(version|embed_positions\.(_float_tensor|weights))"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
)
_FUSED = re.compile(r"(.+)\.in_proj_(weight|bias)")  # before fairseq 0.8
_NUMBERED_NORM = re.compile(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(weight|bias)")
_LEGACY_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# fairseq's settings that change the computation to one nartk's Transformer does not have.
_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("adaptive_input", "char_inputs", "cross_self_attention", "no_cross_attention"), bool),
    **dict.fromkeys(("quant_noise_pq", "quant_noise_scalar", "base_layers"), lambda value: value > 0),
    "adaptive_softmax_cutoff": lambda value: value is not None,
    **{
        f"{side}_{name}": lambda value: value is not None
        for side in ("encoder", "decoder")
        for name in ("layers_to_keep", "xformers_att_config")
    },
}
_ACTIVATIONS = ("relu", "gelu")


def to_network(checkpoint: FairseqCheckpoint) -> Transformer:
    """The network of a checkpoint of nartk's, or of fairseq's own `transformer`, in fp32.

    Raises:
        UnsupportedCheckpointError: A setting has no counterpart in nartk; it is named.
        CheckpointError: Tensors are missing, of a wrong shape, or not finite.
    """
    where = str(checkpoint.path)
    declared = architecture(checkpoint.architecture)
    read = _from_core if checkpoint.name.startswith("nartk_") else _from_fairseq
    try:
        config, tensors = read(checkpoint, declared.config)
    except (UsageError, CheckpointError) as error:
        raise CheckpointError(error.message, where=where) from error
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # of no shape or type
        raise CheckpointError(f"damaged settings or tensors: {error}", where=where) from error
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"tensor {key!r} has type {tensor.dtype}", where=where)
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"tensor {key!r} holds NaN or infinity", where=where)
    # Shapes are compared before memory is taken: a wrong size must not allocate.
    require_shapes(config.weight_shapes(), shapes(tensors), where)
    model: Transformer = declared.network(config)
    model.load_state_dict({key: tensor.float() for key, tensor in tensors.items()})
    return model.eval()


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, for `require_shapes`."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _from_core(checkpoint: FairseqCheckpoint, config: type[C]) -> tuple[C, dict[str, Tensor]]:
    """Configuration and weights of a model that nartk trained: the fairseq model holds the core as `core`."""
    tensors = {key.removeprefix("core."): tensor for key, tensor in checkpoint.tensors.items()}
    known = {item.name for item in fields(config)}
    settings = {key: value for key, value in checkpoint.settings.items() if key in known}
    names = config().weight_shapes()
    settings["src_vocab"] = _require(tensors, SOURCE_WORDS).shape[0] if SOURCE_WORDS in names else 0
    # Without an output of words there are the source's alone.
    words = next(name for name in (TARGET_WORDS[1], "ctc.weight", SOURCE_WORDS) if name in names)
    settings["tgt_vocab"] = _require(tensors, words).shape[0]
    settings["pad"] = PAD
    return config.from_dict(settings), tensors


def _from_fairseq(checkpoint: FairseqCheckpoint, settings: type[C]) -> tuple[C, dict[str, Tensor]]:
    """Configuration and weights of fairseq's own Transformer."""
    options = _Settings(checkpoint)
    options.refuse_unsupported()
    tensors = dict(_renewed(checkpoint.tensors))
    target = names_of(TARGET_WORDS[0], FAIRSEQ_NAMES, gated=False)
    output = [name for name in _OUTPUTS if name in tensors] or target
    config = settings.from_dict(options.config(tensors, output[0]))
    made: dict[str, Tensor] = {}
    left = tensors.keys() - output
    for name in config.weight_shapes():
        theirs = output[:1] if name == TARGET_WORDS[1] else names_of(name, FAIRSEQ_NAMES, gated=False)
        found = [_require(tensors, each) for each in theirs]
        made[name] = found[0] if len(found) == 1 else torch.cat(found)
        if name.endswith("positions.weight"):
            made[name] = made[name][_FIRST_POSITION:]
        left -= {*theirs}
    for name, other in config.shared_weights().items():
        if not torch.equal(made[name], made[other]):
            raise CheckpointError(f"{name} and {other} are tied, but differ")
    if left:
        raise UnsupportedCheckpointError(f"a model with the tensor {min(left)!r}", where=options.where)
    return config, made


def _renewed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors under the names of fairseq 0.12, whichever version wrote them; those that none reads go."""
    for name, tensor in tensors.items():
        if _IGNORED.fullmatch(name):
            continue
        if fused := _FUSED.fullmatch(name):
            for letter, each in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{fused[1]}.{letter}_proj.{fused[2]}", each
        elif norm := _NUMBERED_NORM.fullmatch(name):
            yield f"{norm[1]}.{_LEGACY_NORMS[norm[2]][int(norm[3])]}.{norm[4]}", tensor
        else:
            yield name, tensor


def _require(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"tensor {name!r} is missing")
    return tensors[name]


class _Settings:
    """fairseq's model options in nartk's terms; the defaults are those of fairseq's `transformer`."""

    def __init__(self, checkpoint: FairseqCheckpoint) -> None:
        self.values = checkpoint.settings
        self.tensors = checkpoint.tensors
        self.where = str(checkpoint.path)

    def get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if default is not None and type(value) is not type(default) and type(value) is not int:
            raise CheckpointError(f"setting {name!r} is {value!r}", where=self.where)
        return value

    def features(self, side: str) -> int:
        return int(self.get(f"{side}_embed_dim", self.get("encoder_embed_dim", 512)))

    def layers(self, side: str) -> int:
        return int(self.get(f"{side}_layers", 6))

    def norm_first(self, side: str) -> bool:
        return bool(self.get(f"{side}_normalize_before", False))

    def positions(self, side: str) -> str:
        if self.get("no_token_positional_embeddings", False):
            return "none"
        return "learned" if self.get(f"{side}_learned_pos", False) else "sinusoidal"

    @property
    def share_embeddings(self) -> str:
        if self.get("share_all_embeddings", False):
            return "all"
        return "decoder" if self.get("share_decoder_input_output_embed", False) else "none"

    def refuse_unsupported(self) -> None:
        for name, is_set in _UNSUPPORTED.items():
            value = self.values.get(name)
            if value is not None and is_set(value):
                self._refuse(name, value)
        features = self.features("decoder")
        for name in ("decoder_input_dim", "decoder_output_dim"):
            if self.values.get(name, features) != features:
                self._refuse(name, self.values[name], f"other than decoder_embed_dim {features}")
        activation = self.values.get("activation_fn", _ACTIVATIONS[0])
        if activation not in _ACTIVATIONS:
            self._refuse("activation_fn", activation)
        if self.norm_first("decoder") and self.get("no_decoder_final_norm", False):
            self._refuse("no_decoder_final_norm", True, "in a pre-norm decoder")
        for side, since in _FINAL_NORM_SINCE.items():
            version = self.tensors.get(f"{side}.version", torch.ones(1))
            if self.norm_first(side) and float(version[0]) < since:
                self._refuse(f"{side}.version", float(version[0]), f"without the final norm of {since:g}")

    def _refuse(self, name: str, value: Any, why: str = "") -> None:
        raise UnsupportedCheckpointError(f"setting {name!r} is {value!r} {why}".rstrip(), where=self.where)

    def config(self, tensors: Mapping[str, Tensor], output: str) -> JsonObject:
        """Values of the configuration for weights under fairseq's names, the output's being `output`."""
        values: JsonObject = {
            "src_vocab": _require(tensors, "encoder.embed_tokens.weight").shape[0],
            "tgt_vocab": _require(tensors, output).shape[0],
            "pad": PAD,
            "d_model": self.features("encoder"),
            "activation": self.get("activation_fn", "relu"),
            "share_embeddings": self.share_embeddings,
            "scale_embedding": not self.get("no_scale_embedding", False),
            "norm_embedding": self.get("layernorm_embedding", False),
        }
        if (features := self.features("decoder")) != self.features("encoder"):
            values["decoder_features"] = features
        for name, default in (("dropout", 0.1), ("attention_dropout", 0.0), ("activation_dropout", 0.0)):
            values[name] = float(self.get(name, default))
        for side, longest in (("encoder", "source"), ("decoder", "target")):
            ffn = self.get("encoder_ffn_embed_dim", 2048)
            values[f"{side}_layers"] = self.layers(side)
            values[f"{side}_ffn"] = self.get(f"{side}_ffn_embed_dim", ffn)
            values[f"{side}_heads"] = self.get(f"{side}_attention_heads", 8)
            values[f"{side}_norm_first"] = self.norm_first(side)
            values[f"{side}_positions"] = self.positions(side)
            table, limit = tensors.get(f"{side}.embed_positions.weight"), f"max_{longest}_positions"
            values[f"max_{longest}_len"] = (
                self.get(limit, 1024) if table is None else table.shape[0] - _FIRST_POSITION
            )
        return values
