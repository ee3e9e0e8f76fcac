"""nartk's Transformer as a fairseq model: `--arch nartk_transformer` and its presets."""

from __future__ import annotations

import argparse
import contextlib
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from fairseq.models import (
    BaseFairseqModel,
    FairseqDecoder,
    FairseqEncoder,
    register_model,
    register_model_architecture,
)
from torch import Tensor

from nartk.errors import VocabMismatchError
from nartk.models.transformer import Transformer, TransformerConfig

# Known from the dictionaries, so they are no options.
FROM_TASK = ("src_vocab", "tgt_vocab", "pad")
OPTIONS = tuple(item for item in fields(TransformerConfig) if item.name not in FROM_TASK)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

_BIG = {
    "d_model": 1024,
    "encoder_ffn": 4096,
    "decoder_ffn": 4096,
    "encoder_heads": 16,
    "decoder_heads": 16,
    "dropout": 0.3,
}
_TINY = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn": 256,
    "decoder_ffn": 256,
    "encoder_heads": 4,
    "decoder_heads": 4,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "nartk_transformer": {},
    "nartk_transformer_base": {},
    "nartk_transformer_tiny": _TINY,
    "nartk_transformer_big": _BIG,
    "nartk_transformer_9_3": {"encoder_layers": 9, "decoder_layers": 3},
    "nartk_transformer_12_2": {"encoder_layers": 12, "decoder_layers": 2},
}


class _Encoder(FairseqEncoder):
    """What fairseq's beam search asks of an encoder. The weights belong to the model."""

    def __init__(self, model: FairseqTransformer, dictionary: Any) -> None:
        super().__init__(dictionary)
        self._model = (model,)  # in a tuple, or torch would register a cycle

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None) -> dict[str, Tensor | None]:
        (model,) = self._model
        with model.autocast(src_tokens.device):
            memory, mask = model.core.encode(src_tokens)
        return {"memory": memory, "mask": mask}

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        return {
            name: None if value is None else value.index_select(0, new_order)
            for name, value in encoder_out.items()
        }


class _Decoder(FairseqDecoder):
    """What fairseq's beam search asks of a decoder: it recomputes the whole prefix at every step."""

    def __init__(self, model: FairseqTransformer, dictionary: Any) -> None:
        super().__init__(dictionary)
        self._model = (model,)

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, Any], **unused: Any
    ) -> tuple[Tensor, None]:
        (model,) = self._model
        with model.autocast(prev_output_tokens.device):
            features = model.core.decode(prev_output_tokens, encoder_out["memory"], encoder_out["mask"])
            return model.core.output(features), None


@register_model("nartk_transformer")
class FairseqTransformer(BaseFairseqModel):
    """Holds a core Transformer; its options are the fields of TransformerConfig."""

    def __init__(self, config: TransformerConfig, source: Any, target: Any, autocast: str = "none") -> None:
        super().__init__()
        self.core = Transformer(config)
        self.autocast_dtype = AUTOCAST.get(autocast)
        self.encoder = _Encoder(self, source)
        self.decoder = _Decoder(self, target)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """One option a field of TransformerConfig. Without defaults: those are the architecture's."""
        for item in OPTIONS:
            flag = "--" + item.name.replace("_", "-")
            settings: dict[str, Any] = {"help": item.metadata["help"], "default": argparse.SUPPRESS}
            if isinstance(item.default, bool):
                settings["action"] = argparse.BooleanOptionalAction
            else:
                settings.update(type=type(item.default), choices=item.metadata["choices"])
            parser.add_argument(flag, **settings)
        parser.add_argument(
            "--autocast",
            choices=("none", *AUTOCAST),
            default="none",
            help="multiply matrices in this type while weights and loss stay fp32; on a CPU with bf16 "
            "instructions about twice as fast (fairseq's own --bf16 and --fp16 are for GPUs)",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> FairseqTransformer:
        """Builds the model for the task's dictionaries.

        Raises:
            VocabMismatchError: Embeddings are shared, and the dictionaries differ.
        """
        source, target = task.source_dictionary, task.target_dictionary
        if args.share_embeddings == "all" and source != target:
            raise VocabMismatchError(
                "source and target share embeddings, but their dictionaries differ",
                fix="preprocess with --joined-dictionary, or train with --share-embeddings decoder",
            )
        config = TransformerConfig(
            src_vocab=len(source),
            tgt_vocab=len(target),
            pad=target.pad(),
            **{item.name: getattr(args, item.name) for item in OPTIONS},
        )
        return cls(config, source, target, getattr(args, "autocast", "none"))

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """The context of every forward pass; leaves fairseq's own --amp alone where it is not asked for."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, self.autocast_dtype)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **unused: Any
    ) -> tuple[Tensor, None]:
        """src_tokens [B,S] padded on either side, prev_output_tokens [B,T] on the right -> logits [B,T,V]."""
        with self.autocast(src_tokens.device):
            return self.core(src_tokens, prev_output_tokens), None

    def max_positions(self) -> tuple[int, int]:
        """Longest source and target, tokens."""
        return self.core.config.max_source_len, self.core.config.max_target_len

    def max_decoder_positions(self) -> int:
        """Longest target, tokens."""
        return self.core.config.max_target_len


def _preset(settings: dict[str, Any]) -> Callable[[Namespace], None]:
    def fill(args: Namespace) -> None:
        for item in OPTIONS:
            if not hasattr(args, item.name):
                setattr(args, item.name, settings.get(item.name, item.default))

    return fill


for _name, _settings in ARCHITECTURES.items():
    register_model_architecture("nartk_transformer", _name)(_preset(_settings))
