"""nartk's non-autoregressive models under fairseq, and the one criterion that trains them all.

Each architecture of `nartk.architectures` that this criterion trains is `--arch nartk_NAME`, with its presets
such as `nartk_NAME_tiny`; the core network computes its own loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from typing import Any, ClassVar

import torch
from fairseq import metrics
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from torch import Tensor

from nartk.architectures import architectures
from nartk.models.nar import NarTraining
from nartk.tasks.core_model import CoreModel, Drafted, register_presets

NAR_CRITERION = "nartk_nar"


def criterion_config(training: type) -> type:
    """fairseq's configuration of a criterion that has the fields of a class of training as options."""
    options = [
        (item.name, type(item.default), field(default=item.default, metadata={"help": item.metadata["help"]}))
        for item in fields(training)
        if item.init
    ]
    return make_dataclass(f"{training.__name__}Config", options, bases=(FairseqDataclass,))


class NarModel(CoreModel):
    """Holds a core NonAutoregressive network."""

    updates = 0

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq tells how many training steps there were; schedules go by it."""
        super().set_num_updates(num_updates)
        self.updates = num_updates

    def forward(
        self, src_tokens: Tensor, target: Tensor, training: NarTraining, *, drafting: bool = False
    ) -> Any:
        """src_tokens [B,S] padded on either side, target [B,T] -> summed loss, its tokens, and its parts.

        Or what the core's `training_forward` gives, which architectures have that `nartk_drafter` trains.
        """
        with self.autocast(src_tokens.device):
            if drafting:
                return self.core.training_forward(src_tokens, target, training=training, update=self.updates)
            losses = self.core.losses(src_tokens, target, training=training, update=self.updates)
        return losses.total, losses.tokens, dict(losses.parts)

    def draft_training(
        self, call: Callable[..., Any], inputs: dict[str, Tensor], target: Tensor, training: NarTraining
    ) -> Drafted:
        source, pad = inputs["src_tokens"], self.core.config.pad
        logits, wanted, shown = call(source, target, training, drafting=True)
        predicted = torch.zeros_like(target, dtype=torch.bool)
        width = min(target.shape[1], wanted.shape[1])
        predicted[:, :width] = wanted[:, :width].ne(pad)
        return Drafted(logits, predicted, {"shown": shown})

    def drafted_passes(
        self, inputs: dict[str, Tensor], target: Tensor, logits: Tensor, best: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        with self.autocast(target.device):
            passes, tokens = self.core.drafted_passes(inputs["src_tokens"], target, best)
        return passes, tokens


for _name, _each in architectures().items():
    if NAR_CRITERION in _each.criterions:
        _model = type(f"Nar_{_name}", (NarModel,), {"architecture": _each})
        register_presets(register_model(f"nartk_{_name}")(_model))


NarCriterionConfig = criterion_config(NarTraining)


@register_criterion(NAR_CRITERION, dataclass=NarCriterionConfig)
class NarCriterion(FairseqCriterion):
    """Asks the core network for its loss, summed over the target's tokens."""

    training_class: ClassVar[type] = NarTraining

    def __init__(self, task: Any, training: Any) -> None:
        super().__init__(task)
        self.training_options = training

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> NarCriterion:
        options = (item.name for item in fields(cls.training_class) if item.init)
        return cls(task, cls.training_class(**{name: getattr(cfg, name) for name in options}))

    def losses(self, model: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The summed loss of a batch, its tokens, and its parts."""
        found: tuple[Tensor, Tensor, dict[str, Tensor]] = model(
            sample["net_input"]["src_tokens"], sample["target"], training=self.training_options
        )
        return found

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor | int, dict[str, Any]]:
        """Loss (nats, summed), how many tokens, and what to log."""
        total, tokens, parts = self.losses(model, sample)
        count = int(tokens)
        logged = {
            "loss": total.detach(),
            "ntokens": count,
            "nsentences": sample["target"].shape[0],
            "sample_size": count,
            **{f"part_{name}": value.detach() * count for name, value in parts.items()},
        }
        return total, count, logged

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Means over all workers' tokens; losses in nats."""
        tokens = sum(log["sample_size"] for log in logging_outputs)
        if tokens == 0:
            return
        names = sorted(name for name in logging_outputs[0] if name == "loss" or name.startswith("part_"))
        for name in names:
            total = sum(float(torch.as_tensor(log[name])) for log in logging_outputs)
            metrics.log_scalar(name.removeprefix("part_"), total / tokens, tokens, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """So that fairseq adds up the workers' logs in one call."""
        return True
