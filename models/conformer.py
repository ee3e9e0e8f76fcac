"""Speech recognition by attention and CTC together (Kim et al. 2017, https://arxiv.org/abs/1609.06773).

An encoder of speech, `nartk.models.speech_encoder`, which a Transformer decoder and a CTC head read. Symbols:
B rows, T frames, F features of a frame, S positions of the encoder, U target tokens.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nartk.architectures.conformer import ConformerConfig
from nartk.models.nar import Losses
from nartk.models.speech_encoder import Encoded, SpeechEncoder, name_weights
from nartk.models.speech_training import SpeechTraining, ctc_losses
from nartk.models.transformer import (
    Decoder,
    Embedding,
    EncoderDecoder,
    label_smoothed_cross_entropy,
    word_embedding,
)


class Conformer(EncoderDecoder):
    """Maps frames and the target so far to the next words' logits."""

    config: ConformerConfig
    encoder: SpeechEncoder

    def __init__(self, config: ConformerConfig) -> None:
        words = word_embedding(config.tgt_vocab, config)
        target = Embedding(config, words, config.decoder_positions, config.target_positions)
        super().__init__(config, SpeechEncoder(config), Decoder(config, target))
        name_weights(self)

    def forward(self, frames: Tensor, lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Teacher forcing: frames [B,T,F] of lengths [B], tokens [B,U] padded right -> logits [B,U,V]."""
        return self._words(self.encoder(frames, lengths), prev_output_tokens)

    def losses(
        self, frames: Tensor, lengths: Tensor, target: Tensor, *, training: SpeechTraining, update: int
    ) -> Losses:
        """(1 - w) cross-entropy + w CTC of targets [B,U] with eos, summed; w is `ctc_weight`.

        A target that needs more positions than the encoder has counts for nothing in CTC; ``dropped`` is how
        many. The decoder reads each target behind eos.

        Args:
            frames: [B,T,F], of which the first lengths [B] count.
        """
        pad = self.config.pad
        encoded = self.encoder(frames, lengths)
        previous = F.pad(target, (1, -1), value=0)
        ends = target.ne(pad).sum(1, keepdim=True) - 1
        previous[:, :1] = target.gather(1, ends)  # eos
        previous = previous.masked_fill(target.eq(pad), pad)
        smoothed, nll, tokens = label_smoothed_cross_entropy(
            self._words(encoded, previous), target, epsilon=training.label_smoothing, pad=pad
        )
        counts = target.ne(pad).sum(1) - 1  # without eos
        targets = [(target, counts)] * (1 + len(encoded.intermediate))
        losses, fits = ctc_losses(
            self.encoder.ctc(encoded.memory),
            encoded.intermediate,
            encoded.lengths,
            targets,
            weight=training.intermediate_weight,
        )
        ctc, share = losses.sum(), training.ctc_weight
        parts = {"words": nll.detach() / tokens, "ctc": ctc.detach() / tokens, "dropped": (~fits).sum()}
        return Losses((1.0 - share) * smoothed + share * ctc, tokens, parts)

    def _words(self, encoded: Encoded, previous: Tensor) -> Tensor:
        """Logits [B,U,V] of the words behind those that came before, [B,U]."""
        features = self.decoder(previous, encoded.memory, encoded.kept[:, None, None])
        logits: Tensor = self.output(features)
        return logits
