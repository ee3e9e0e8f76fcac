"""nartk's autoregressive models under fairseq: `--arch nartk_transformer` and its presets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fairseq.models import FairseqDecoder, FairseqEncoder
from torch import Tensor

from nartk.architectures import architecture
from nartk.models.distil_losses import tokens_a_pass
from nartk.models.losses import Training
from nartk.tasks.core_model import CoreModel, Drafted, register_models


class _Encoder(FairseqEncoder):
    """The encoder that fairseq's beam search calls. The weights belong to the model."""

    def __init__(self, model: FairseqTransformer, dictionary: Any) -> None:
        super().__init__(dictionary)
        self._model = (model,)  # in a tuple, or torch would register a cycle

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None) -> dict[str, Tensor | None]:
        (model,) = self._model
        with model.autocast(src_tokens.device):
            source = model.core.encode(src_tokens)
        return {"memory": source.memory, "mask": source.mask}

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        return {
            name: None if value is None else value.index_select(0, new_order)
            for name, value in encoder_out.items()
        }


class _Decoder(FairseqDecoder):
    """The decoder that fairseq's beam search calls: it recomputes the whole prefix at every step."""

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


class NextWords(CoreModel):
    """Base of the models that predict the next word, which learn to draft so."""

    def draft_training(
        self, call: Callable[..., Any], inputs: dict[str, Tensor], target: Tensor, training: Training
    ) -> Drafted:
        real = target.ne(self.core.config.pad)
        return Drafted(call(**inputs)[0][real], real, {})  # [B,T,V] -> [N,V]

    def drafted_passes(
        self, inputs: dict[str, Tensor], target: Tensor, logits: Tensor, best: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        lengths = best.ge(0).sum(1)
        words = torch.full_like(best, -2)
        words[best >= 0] = logits.max(-1).indices
        return lengths.sum(), tokens_a_pass(words == best, lengths, block).sum()


class FairseqTransformer(NextWords):
    """Holds a core Transformer, or another network of its `encode` and `decode`; its options are the fields
    of the architecture's configuration."""

    architecture = architecture("transformer")

    def __init__(self, config: Any, source: Any, target: Any, autocast: str = "none") -> None:
        super().__init__(config, source, target, autocast)
        self.encoder = _Encoder(self, source)
        self.decoder = _Decoder(self, target)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **unused: Any
    ) -> tuple[Tensor, None]:
        """src_tokens [B,S] padded on either side, prev_output_tokens [B,T] on the right -> logits [B,T,V]."""
        with self.autocast(src_tokens.device):
            return self.core(src_tokens, prev_output_tokens), None


register_models(FairseqTransformer, "nartk_cross_entropy")
