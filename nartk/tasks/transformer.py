"""nartk's Transformer as a fairseq model: `--arch nartk_transformer` and its presets."""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqDecoder, FairseqEncoder, register_model
from torch import Tensor

from nartk.models.transformer import TransformerConfig
from nartk.tasks.core_model import CoreModel, register_presets

_BIG = {
    "d_model": 1024,
    "encoder_ffn": 4096,
    "decoder_ffn": 4096,
    "encoder_heads": 16,
    "decoder_heads": 16,
    "dropout": 0.3,
}
TINY = {
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
    "nartk_transformer_tiny": TINY,
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
            features = model.core.decoder(prev_output_tokens, encoder_out["memory"], encoder_out["mask"])
            return model.core.output(features), None


@register_model("nartk_transformer")
class FairseqTransformer(CoreModel):
    """Holds a core Transformer; its options are the fields of TransformerConfig."""

    kind = "transformer"

    def __init__(self, config: TransformerConfig, source: Any, target: Any, autocast: str = "none") -> None:
        super().__init__(config, source, target, autocast)
        self.encoder = _Encoder(self, source)
        self.decoder = _Decoder(self, target)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **unused: Any
    ) -> tuple[Tensor, None]:
        """src_tokens [B,S] padded on either side, prev_output_tokens [B,T] on the right -> logits [B,T,V]."""
        with self.autocast(src_tokens.device):
            return self.core(src_tokens, prev_output_tokens), None


register_presets(FairseqTransformer, ARCHITECTURES)
