"""The models of nartk that compute their own loss under fairseq, and the criterion that trains them all.

Each architecture of `nartk.architectures` that this criterion trains is `--arch nartk_NAME`, with its presets
such as `nartk_NAME_tiny`. The criterion has two names, whose options are the same: `nartk_nar`, and
`nartk_speech` of models that read sound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from typing import Any, ClassVar

import torch
from fairseq import metrics
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from nartk.models.losses import Training, TtsTraining
from nartk.models.parts import train_batch_norm
from nartk.models.transformer import Encoded
from nartk.tasks.core_model import CoreModel, Drafted, Sample, register_models

NAR_CRITERION = "nartk_nar"


def criterion_config(name: str, settings: type[Training | TtsTraining] = Training) -> type:
    """fairseq's configuration of the criterion of that name, whose options are the settings."""
    options = [
        (item.name, type(item.default), field(default=item.default, metadata={"help": item.metadata["help"]}))
        for item in fields(settings)
        if item.init
    ]
    return make_dataclass(f"{name}_config", options, bases=(FairseqDataclass,))


class LossModel(CoreModel):
    """Holds a core network that computes its own loss, whatever its encoder reads."""

    updates = 0

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq tells how many training steps there were; schedules go by it."""
        super().set_num_updates(num_updates)
        self.updates = num_updates

    def forward(
        self,
        target: Tensor,
        training: Training,
        *,
        drafting: bool = False,
        transcript: Tensor | None = None,
        **inputs: Tensor,
    ) -> Any:
        """The encoder's inputs and target [B,T] -> summed loss, its tokens, and its parts.

        Or what the core's `training_forward` gives, which architectures have that `nartk_drafter` trains.
        """
        self.begin_step(training)
        with self.autocast(target.device):
            source = self.encode(inputs)
            if drafting:
                return self.core.training_forward(source, target, training=training, update=self.updates)
            losses = self.core.losses(
                source, target, training=training, update=self.updates, transcript=transcript
            )
        return losses.total, losses.tokens, dict(losses.parts)

    def begin_step(self, training: Training | TtsTraining) -> None:
        """Tells batch norm, before a step of training, how many there were."""
        if self.training:
            train_batch_norm(self.core, self.updates, training.fix_batch_norm)

    def encode(self, inputs: Mapping[str, Tensor]) -> Encoded:
        """Encodes what the encoder reads of a batch."""
        found: Encoded = self.core.encode(
            **{name: inputs[name] for name in self.core.encoder.inputs if name in inputs}
        )
        return found

    def draft_training(
        self, call: Callable[..., Any], inputs: dict[str, Tensor], target: Tensor, training: Training
    ) -> Drafted:
        pad = self.core.config.pad
        logits, wanted, shown = call(target, training, drafting=True, **inputs)
        predicted = torch.zeros_like(target, dtype=torch.bool)
        width = min(target.shape[1], wanted.shape[1])
        predicted[:, :width] = wanted[:, :width].ne(pad)
        return Drafted(logits, predicted, {"shown": shown})

    def drafted_passes(
        self, inputs: dict[str, Tensor], target: Tensor, logits: Tensor, best: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        with self.autocast(target.device):
            passes, tokens = self.core.drafted_passes(self.encode(inputs), target, best)
        return passes, tokens


CRITERIONS = ("nartk_nar", "nartk_speech")

register_models(LossModel, *CRITERIONS)


class LossCriterion(FairseqCriterion):
    """Asks the core network for its loss, summed over the target's tokens."""

    settings: ClassVar[type[Training | TtsTraining]] = Training

    def __init__(self, task: Any, training: Any) -> None:
        super().__init__(task)
        self.training_options = training

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> LossCriterion:
        options = (item.name for item in fields(cls.settings) if item.init)
        return cls(task, cls.settings(**{name: getattr(cfg, name) for name in options}))

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, Tensor | int, Sample]:
        """Loss (nats, summed), how many tokens, and what to log."""
        total, tokens, parts = model(
            target=sample["target"], training=self.training_options, **sample["net_input"]
        )
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
    def reduce_metrics(logging_outputs: list[Sample]) -> None:
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
        """Lets fairseq add up the workers' logs in one call."""
        return True


for _name in CRITERIONS:
    register_criterion(_name, dataclass=criterion_config(_name))(type(_name, (LossCriterion,), {}))
