"""Settings of training, and the losses that models share.

Symbols: B rows, S positions of the encoder, U target words, V words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.architectures.settings import setting
from nartk.errors import UsageError
from nartk.models.ctc_alignment import fewest_frames
from nartk.models.glancing import STRATEGIES, Schedule
from nartk.vocab import MASK as BLANK

if TYPE_CHECKING:
    from nartk.models.transformer import Encoded, SourceEncoder

ACOUSTIC_INPUTS = ("expected", "path")


@dataclass(frozen=True)
class Training:
    """Settings of training. The options of `--criterion nartk_nar` and `nartk_speech` derive from it.

    Raises:
        UsageError: A value is out of its bounds.
    """

    label_smoothing: float = setting(
        0.1, "probability mass spread over all words, in [0, 1); CTC and DA-Transformer do not use it"
    )
    length_factor: float = setting(0.1, "weight of the length predictor's loss beside the words'")
    glancing: str = setting(
        "0",
        "share of the wrong words that training shows (Qian et al. 2021): a number, or START:END@UPDATES, "
        "such as 0.5:0.3@300k; 0: none",
    )
    glancing_strategy: str = setting(
        "number-random",
        "number-random: so many as the first pass had wrong, times the share; fixed: that share of all "
        "words; cmlm: a number drawn evenly, whatever the share",
        choices=STRATEGIES,
    )
    no_force_emit: bool = setting(
        False, "DA-Transformer: what is shown may be emitted anywhere, not at its vertex alone"
    )
    ngram_order: int = setting(
        0,
        "DA-Transformer: train for n-grams of this length that outputs and target have in common, in place "
        "of the likelihood, with which a model begins (Ma et al. 2023, and --finetune-from-model); 0: the "
        "likelihood",
    )
    ctc_weight: float = setting(
        0.3,
        "share of the CTC head of an encoder of speech in the loss of a model that has a decoder too, in "
        "[0, 1] (Kim et al. 2017)",
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
    fix_batch_norm: int = setting(
        -1,
        "updates after which batch norm's means and variances stay as they are, and training uses them as "
        "decoding does; -1: never",
    )
    schedule: Schedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("length_factor", 0.0), ("ngram_order", 0), ("mwer_samples", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"`{name}` is {getattr(self, name)}, below {least:g}")
        if self.glancing_strategy not in STRATEGIES:
            raise UsageError(
                f"`glancing_strategy` is {self.glancing_strategy!r}",
                fix=f"choose from {', '.join(STRATEGIES)}",
            )
        if not 0.0 <= self.sampling_ratio <= 1.0:
            raise UsageError(f"`sampling_ratio` is {self.sampling_ratio}, not in [0, 1]")
        if not 0.0 < self.mwer_share <= 1.0:
            raise UsageError(f"`mwer_share` is {self.mwer_share}, not in (0, 1]")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(f"`label_smoothing` is {self.label_smoothing}, not in [0, 1)")
        for item in fields(self):
            if item.name.endswith("_weight") and not 0.0 <= getattr(self, item.name) <= 1.0:
                raise UsageError(f"`{item.name}` is {getattr(self, item.name)}, not in [0, 1]")
        object.__setattr__(self, "schedule", Schedule.parse(self.glancing))


@dataclass(frozen=True)
class S2sTraining(Training):
    """Settings of `--criterion nartk_s2s`, with the published defaults.

    Raises:
        UsageError: Same as Training; and the acoustic part's input is unknown.
    """

    glancing: str = setting("0.1", Training.__dataclass_fields__["glancing"].metadata["help"])
    ctc_weight: float = setting(0.0, "share of the encoder's CTC head in the loss of its graph, in [0, 1]")
    tts_factor: float = setting(5.0, "weight of the acoustic part's loss beside the graph's")
    acoustic_input: str = setting(
        "expected",
        "the acoustic part reads in training: the expected features of each phoneme's vertex, over all paths "
        "(expected), or the features of the vertices on the best path (path)",
        choices=ACOUSTIC_INPUTS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.tts_factor < math.inf:
            raise UsageError(f"`tts_factor` is {self.tts_factor}, not 0 or more")
        if self.acoustic_input not in ACOUSTIC_INPUTS:
            raise UsageError(
                f"`acoustic_input` is {self.acoustic_input!r}",
                fix=f"choose from {', '.join(ACOUSTIC_INPUTS)}",
            )


@dataclass(frozen=True)
class TtsTraining:
    """Settings of `--criterion nartk_tts`, each of whose losses has weight 1.

    Raises:
        UsageError: A value is out of its bounds.
    """

    fix_batch_norm: ClassVar[int] = -1  # there is none
    stop_weight: float = setting(
        5.0, "Transformer TTS: weight of an utterance's last step, at which it stops, beside each other step"
    )

    def __post_init__(self) -> None:
        if not 0.0 < self.stop_weight < math.inf:
            raise UsageError(f"`stop_weight` is {self.stop_weight}, not above 0")


@dataclass(frozen=True)
class Losses:
    """The loss of a batch.

    Attributes:
        total: The training objective, nats, summed over the target's tokens.
        tokens: Number of these tokens.
        parts: Means worth logging, such as ``words`` (nats a token), ``length`` (nats a sentence), and the
            share of the target that was shown (``shown``).
    """

    total: Tensor
    tokens: Tensor
    parts: Mapping[str, Tensor]


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
        targets: Targets of each intermediate layer, then of the last: words [B,U] and their lengths [B].
        weight: Weight of the intermediate layers' mean.

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


def with_encoder_ctc(
    losses: Losses, encoder: SourceEncoder, source: Encoded, target: Tensor, *, training: Training, pad: int
) -> Losses:
    """(1 - w) times the losses plus w times CTC of the encoder's head; w is `ctc_weight`.

    The losses as they are where the encoder has no such head, or w is 0: the head's logits may be the largest
    tensor of a step. A target that needs more positions than the
    encoder has counts for nothing in CTC; ``dropped`` is how many, unless the losses say how many they drop.

    Args:
        target: [B,U] with eos, which CTC leaves out; all heads learn it.
    """
    share = training.ctc_weight
    if encoder.ctc is None:
        return losses
    if share == 0.0:  # which the head is a part of all the same: several processes wait for its gradient
        unused = torch.stack([weight.sum() for weight in encoder.ctc.parameters()]).sum()
        return replace(losses, total=losses.total + 0.0 * unused)
    counts = target.ne(pad).sum(1) - 1
    found, fits = ctc_losses(
        encoder.ctc(source.memory),
        source.intermediate,
        source.lengths,
        [(target, counts)] * (1 + len(source.intermediate)),
        weight=training.intermediate_weight,
    )
    ctc = found.sum()
    parts = {"dropped": (~fits).sum(), **losses.parts, "ctc": ctc.detach() / losses.tokens}
    return replace(losses, total=(1.0 - share) * losses.total + share * ctc, parts=parts)


def label_smoothed_cross_entropy(
    logits: Tensor, target: Tensor, *, epsilon: float, pad: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums the training loss over the target's tokens (Szegedy et al. 2016, in fairseq's form).

    A share `epsilon` of the probability mass is spread evenly over all words but the right one, which keeps
    1 - epsilon + epsilon / V of it in fairseq's count; this is the same arithmetic.

    Args:
        logits: [B,T,V], any float type; the loss is computed in fp32 or wider.
        target: [B,T] int64.
        epsilon: Mass that is spread, in [0, 1).
        pad: Target id that does not count.
        weights: [B,T], what each token's loss counts; None: 1.

    Returns:
        The smoothed and weighted loss, the plain negative log-likelihood (both summed, nats) and the number
        of tokens.
    """
    # Padding is masked, not taken out: the gradient of a choice of rows costs more than their softmax.
    kept = target.ne(pad).flatten()
    wide = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    lprobs = F.log_softmax(logits.flatten(0, 1), -1, dtype=wide)  # [B,T,V] -> [BT,V]
    losses = F.nll_loss(lprobs, target.flatten(), ignore_index=pad, reduction="none")
    nll = losses.sum()
    if epsilon > 0.0:
        spread = epsilon / (logits.shape[-1] - 1)
        losses = (1.0 - epsilon - spread) * losses - spread * lprobs.sum(-1).where(kept, 0.0)
    if weights is not None:
        losses = losses * weights.flatten()
    return losses.sum(), nll, kept.sum()


def edited(src_tokens: Tensor, prev_output_tokens: Tensor, target: Tensor, *, pad: int) -> Tensor:
    """Marks target tokens [B,T] that do not copy the source: their pair with the token before is not in it.

    Args:
        src_tokens: [B,S], padded on either side.
        prev_output_tokens: [B,T], the target behind one eos, which stands for the source's beginning too.
    """
    first = prev_output_tokens[:, :1]
    before = torch.cat([first, src_tokens[:, :-1]], 1)
    before = torch.where(before == pad, first, before)
    pairs = (target[:, :, None] == src_tokens[:, None]) & (prev_output_tokens[:, :, None] == before[:, None])
    return ~pairs.any(2)  # [B,T,S] -> [B,T]
