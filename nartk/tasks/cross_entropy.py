"""`--criterion nartk_cross_entropy`: the core's label-smoothed cross-entropy, of fairseq's definition."""

# No `from __future__ import annotations` here: fairseq reads the options' types from the class.
import math
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor

from nartk.architectures.settings import setting
from nartk.errors import UsageError, VocabMismatchError
from nartk.models.exits import exit_weights, read_exits, watched
from nartk.models.losses import edited, label_smoothed_cross_entropy


@dataclass
class WordLossConfig(FairseqDataclass):
    """Options of all criterions that learn a target's words."""

    label_smoothing: float = setting(0.1, "probability mass spread over all words, in [0, 1)")
    edit_weight: float = setting(
        1.0,
        "weight of the target's tokens that do not copy the source, for tasks that mostly copy "
        "(Junczys-Dowmunt et al. 2018, section 4.4); needs one dictionary",
    )
    report_accuracy: bool = setting(False, "log the share of words predicted right")
    sentence_avg: bool = II("optimization.sentence_avg")


@dataclass
class CrossEntropyConfig(WordLossConfig):
    """Options of the criterion."""

    exits: str = setting(
        "",
        "decoder layers, such as 1,2, behind which words are learnt as behind the last one, so that "
        "self:layers=1 or self:layers=2 can draft (LayerSkip, Elhoushi et al. 2024)",
    )
    exit_scale: float = setting(
        1.0, "what an exit's loss counts, above 0; 1: as its layer would, were it last"
    )


@register_criterion("nartk_cross_entropy", dataclass=CrossEntropyConfig)
class CrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Sums over the target's tokens in fp32, whatever type the logits have."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        edit_weight: float = 1.0,
        report_accuracy: bool = False,
        exits: str = "",
        exit_scale: float = 1.0,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, report_accuracy=report_accuracy)
        if edit_weight != 1.0 and task.source_dictionary != task.target_dictionary:
            raise VocabMismatchError(
                f"--edit-weight {edit_weight} compares source and target, but their dictionaries differ",
                fix="preprocess with --joined-dictionary",
            )
        self.edit_weight = edit_weight
        self.exits, self.exit_scale = read_exits(exits), exit_scale
        if not 0.0 < exit_scale < math.inf:
            raise UsageError(f"`exit_scale` is {exit_scale}", fix="give a number above 0")

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Any, ...]:
        """The loss, of the exits too while the model trains; its size; and what is logged."""
        if not (self.exits and model.training):
            found: tuple[Any, ...] = super().forward(model, sample, reduce)
            return found
        if not hasattr(model, "core"):
            raise UsageError(
                f"the exits are {self.exits}, but a {type(model).__name__} has none",
                fix="train a nartk_transformer, or leave them out",
            )
        decoder = model.core.decoder
        shares = exit_weights(self.exits, len(decoder.layers), self.exit_scale)
        with watched(decoder.layers, self.exits) as outputs:
            loss, size, log = super().forward(model, sample, reduce)
        total = shares[-1] * loss
        for share, output in zip(shares, outputs, strict=False):
            with model.autocast(output.device):
                logits = model.core.output(decoder.finish(output))
            total = total + share * self.compute_loss(model, (logits, None), sample, reduce)[0]
        return total, size, {**log, "loss": total.data}

    def weights(self, inputs: dict[str, Tensor], target: Tensor) -> Tensor | None:
        """Weights of the words' losses [B,T]; None: 1."""
        if self.edit_weight == 1.0:
            return None
        changed = edited(inputs["src_tokens"], inputs["prev_output_tokens"], target, pad=self.padding_idx)
        return 1.0 + (self.edit_weight - 1.0) * changed

    def compute_loss(
        self, model: Any, net_output: tuple[Tensor, None], sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Smoothed loss and plain negative log-likelihood, both summed, nats."""
        target = model.get_targets(sample, net_output)
        weights = self.weights(sample["net_input"], target)
        loss, nll, _ = label_smoothed_cross_entropy(
            net_output[0], target, epsilon=self.eps, pad=self.padding_idx, weights=weights
        )
        return loss, nll
