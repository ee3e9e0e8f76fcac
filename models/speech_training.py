"""How models of speech are trained, and the CTC loss that they share.

Symbols: B rows, S positions of the encoder, U target words, V words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.architectures.transformer import setting
from nartk.errors import UsageError
from nartk.models.ctc_alignment import fewest_frames
from nartk.vocab import MASK as BLANK


@dataclass(frozen=True)
class SpeechTraining:
    """How a model of speech is trained. The options of `--criterion nartk_speech` derive from it.

    Raises:
        UsageError: A value is out of its bounds.
    """

    label_smoothing: float = setting(
        0.1, "probability mass spread over all words, in [0, 1); CTC does not use it"
    )
    ctc_weight: float = setting(
        0.3, "share of CTC in the loss of a model that has a decoder too, in [0, 1] (Kim et al. 2017)"
    )
    intermediate_weight: float = setting(
        0.5,
        "share of the intermediate layers' mean in the CTC loss, in [0, 1]; 0.5 as Nozaki and Komatsu 2021, "
        "with N such layers N / (N + 1) for the mean of all as Peng et al. 2024",
    )

    sampling_ratio: float = setting(
        0.75,
        "Paraformer: share of the first pass's wrong words that as many right ones are shown of, in [0, 1]",
    )
    quantity_weight: float = setting(
        1.0, "Paraformer: weight of the error in the number of tokens, in [0, 1]"
    )
    mwer_weight: float = setting(
        0.0, "Paraformer: weight of minimum word error rate training, in [0, 1]; 0: none"
    )
    mwer_samples: int = setting(4, "outputs of a source of which word errors are expected, at least 2")
    mwer_share: float = setting(
        0.25, "probability that a sample has the second best word at a position, in (0, 1]"
    )

    def __post_init__(self) -> None:
        if self.mwer_samples < 2:
            raise UsageError(f"`mwer_samples` is {self.mwer_samples}, below 2")
        if not 0.0 <= self.sampling_ratio <= 1.0:
            raise UsageError(f"`sampling_ratio` is {self.sampling_ratio}, not in [0, 1]")
        if not 0.0 < self.mwer_share <= 1.0:
            raise UsageError(f"`mwer_share` is {self.mwer_share}, not in (0, 1]")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(f"`label_smoothing` is {self.label_smoothing}, not in [0, 1)")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_weight") and not 0.0 <= value <= 1.0:
                raise UsageError(f"`{item.name}` is {value}, not in [0, 1]")


def ctc_loss(logits: Tensor, lengths: Tensor, target: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of each row, over all labellings that become its target.

    A target that needs more positions than there are counts for nothing.

    Args:
        logits: [B,S,V], any float type; the loss is computed in fp32 or wider.
        lengths: [B], positions that count.
        target: [B,U] int64, words; none is the blank.
        counts: [B], words of each target, without eos; what lies behind is not read. Below 0: it is not
            known, and counts for nothing.

    Returns:
        Losses [B], nats, and which targets fit, [B] bool.
    """
    known, counts = counts >= 0, counts.clamp(min=0)
    fits = known & (fewest_frames(target, counts) <= lengths)
    wide = torch.promote_types(logits.dtype, torch.float32)
    lprobs = F.log_softmax(logits, -1, dtype=wide).transpose(0, 1)  # [B,S,V] -> [S,B,V]
    losses = F.ctc_loss(lprobs, target, lengths, counts, blank=BLANK, reduction="none", zero_infinity=True)
    return losses.masked_fill(~fits, 0.0), fits


def ctc_losses(
    logits: Tensor,
    intermediate: list[Tensor],
    lengths: Tensor,
    targets: list[tuple[Tensor, Tensor]],
    *,
    weight: float,
) -> tuple[Tensor, Tensor]:
    """The CTC loss of the last layer and the mean of the intermediate ones', weighted: [B] nats.

    Args:
        logits: [B,S,V] of the last layer; `intermediate` those of layers before it, in their order.
        lengths: [B], positions that count.
        targets: What each intermediate layer, then the last, is to emit: words [B,U] and how many, [B].
        weight: Of the intermediate layers' mean.

    Returns:
        Losses [B], and whether the last layer's target fits, [B] bool.
    """
    last, fits = ctc_loss(logits, lengths, *targets[-1])
    if not intermediate:
        return last, fits
    others = [
        ctc_loss(each, lengths, *target)[0] for each, target in zip(intermediate, targets, strict=False)
    ]
    return (1.0 - weight) * last + weight * torch.stack(others).mean(0), fits
