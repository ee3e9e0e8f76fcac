"""The Paraformer: speech to all words at once (Gao et al. 2022, https://arxiv.org/abs/2206.08317).

A predictor weighs the encoder's positions; they are summed into one embedding a token
(`nartk.models.cif`), eos included, and a decoder that attends in both directions predicts all words of these.
Training shows the decoder embeddings of right words instead, the more the worse it is (a glancing language
model, section 3.3). It differs from FunASR's program in this: the second pass drops the features that the
first one dropped, the decoder's inputs have positions, the words that are shown are scaled as embeddings
are, nothing is shown while validating, and there is the minimum word error rate loss (`nartk.models.mwer`).

Symbols: B rows, T frames, F features of a frame, S positions of the encoder, U target tokens, N fires, D
features.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.parts import Group
from nartk.architectures.settings import Config
from nartk.models.cif import cif, count_fires, integrate, quantity_loss
from nartk.models.glancing import is_best, reveal, same_dropout
from nartk.models.losses import Losses, Training, label_smoothed_cross_entropy, with_encoder_ctc
from nartk.models.mwer import mwer_loss
from nartk.models.nar import ParallelDecoding
from nartk.models.parts import DepthwiseModule, PartModule
from nartk.models.training import Dropout
from nartk.models.transformer import Encoded


class Predictor(PartModule):
    """Weighs positions: memory [B,S,D] -> [B,S] in (0, 1), fp32 or wider, 0 where nothing counts.

    FunASR has two. In CifPredictorV2, which its large models have, a convolution over all features is all. In
    CifPredictor, which its AISHELL recipe has, a depthwise one is added to what it reads, with dropout; there
    the sum is what ReLU takes. Both see one position before and one after.
    """

    conv: nn.Module
    out: nn.Linear

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def forward(self, memory: Tensor, kept: Tensor) -> Tensor:
        x = memory.masked_fill(~kept[:, :, None], 0.0)
        if isinstance(self.conv, DepthwiseModule):
            y = self.dropout(self.conv(x) + x)
        else:
            y = self.conv(x.transpose(1, 2)).transpose(1, 2)
        logits: Tensor = self.out(F.relu(y)).squeeze(2)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return logits.to(wide).sigmoid().masked_fill(~kept, 0.0)


class Paraformer(ParallelDecoding):
    """Encodes a source, predicts the number of its tokens, and decodes them at once."""

    config: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.cif = Predictor(config.tree["cif"], config)

    def fires(self, memory: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fires the embeddings of a memory [B,S,D] of which `kept` [B,S] counts.

        Returns:
            Embeddings [B,N,D], how many each row has [B], at most as many as the decoder has positions, and
            the weights [B,S] of the memory's positions.
        """
        alpha = self.cif(memory, kept)
        lengths = count_fires(alpha, tail_threshold=self.config.tail_threshold)
        lengths = lengths.clamp(self.config.least_fires, self.config.target_positions)
        return integrate(memory, alpha, lengths), lengths, alpha

    def losses(
        self,
        source: Encoded,
        target: Tensor,
        *,
        training: Training,
        update: int,
        transcript: Tensor | None = None,
    ) -> Losses:
        """The training loss of targets [B,U] with eos, padded right, summed.

        (1 - w) cross-entropy + w CTC, w being `ctc_weight`, plus what the weights of a row are away from its
        number of tokens, times `quantity_weight`, plus the minimum word error rate loss, times `mwer_weight`.
        As in FunASR's program, cross-entropy is that of all tokens, shown ones too.
        """
        pad, eos_at = self.config.pad, target.ne(self.config.pad).sum(1, keepdim=True) - 1
        counts = eos_at.squeeze(1) + 1
        target = target[:, : int(counts.max())]
        kept = target.ne(pad)
        memory, mask = source.memory, source.mask
        alpha = self.cif(memory, source.kept)
        x, _ = cif(memory, alpha, counts)

        sampling = self.training and training.sampling_ratio > 0.0
        second = same_dropout(x.device, when=sampling)
        shown = torch.zeros_like(kept)
        if sampling:
            with torch.no_grad():
                logits = self.output(self.fill(self.embed_vectors(x), kept, memory, mask))
                wrong = ~is_best(logits, target)
            shown = reveal(wrong, kept, training.sampling_ratio, "number-random")
            words = self.decoder.embedding.vectors(target)
            x = torch.where(shown[:, :, None], words.to(x.dtype), x)
        with second:
            logits = self.output(self.fill(self.embed_vectors(x), kept, memory, mask))

        smoothed, nll, tokens = label_smoothed_cross_entropy(
            logits, target, epsilon=training.label_smoothing, pad=pad
        )
        parts = {"words": nll.detach() / tokens, "shown": shown.sum() / tokens}
        losses = Losses(smoothed, tokens, parts)
        losses = with_encoder_ctc(losses, self.encoder, source, target, training=training, pad=pad)
        quantity = quantity_loss(alpha, counts)
        total = losses.total + training.quantity_weight * quantity
        parts = {**losses.parts, "quantity": quantity.detach() / tokens}
        if training.mwer_weight > 0.0:
            errors = mwer_loss(
                logits,
                target,
                pad=pad,
                eos=int(target.gather(1, eos_at)[0]),
                samples=training.mwer_samples,
                share=training.mwer_share,
            )
            total = total + training.mwer_weight * errors
            parts["mwer"] = errors.detach() / tokens
        return Losses(total, tokens, parts)
