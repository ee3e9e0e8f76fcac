"""`--task nartk_s2s DATA`, `--criterion nartk_s2s`: training of models that translate speech into speech.

DATA is as `nartk.tasks.speech` has it, whose targets are phonemes, and has of each split their speech too,
such as ``train.speech.npz`` (`nartk.data.audio.targets`).

`--init-translation` names a trained `speech_dag`, whose encoder, graph and heads a model begins with, and
`--init-acoustic` a trained `fastspeech2`, whose acoustic part and statistics it begins with. The loss is the
graph's plus `--tts-factor` times the acoustic part's (`nartk.models.daspeech`).
"""

import argparse
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.tasks import register_task
from torch import nn

from nartk.adapters.fairseq.network import shapes
from nartk.architectures.decoders import AcousticDecoder, MelOutput
from nartk.architectures.settings import Config
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.tensors import require_shapes
from nartk.data.audio.targets import SpeechCorpus
from nartk.errors import CheckpointError
from nartk.files import read_lines
from nartk.models.losses import S2sTraining
from nartk.tasks.core_model import Sample, read_model, register_models
from nartk.tasks.nar import LossCriterion, LossModel, criterion_config
from nartk.tasks.speech import Speech, SpeechTask, SpeechTaskConfig
from nartk.tasks.tts import SpeakingModel, batched, read_speech
from nartk.vocab import Vocab

CRITERION = "nartk_s2s"
# Beginnings and endings of settings that may differ from a trained part's: sizes that shapes tell, and what
# training alone or the length of an output depends on.
_FREE = ("max_", "upsample", "upsampling", "acoustic_features"), ("dropout", "_vocab")


class SpokenTargets(Speech):
    """Sources, their targets, and the speech of these."""

    def __init__(self, data: Speech, corpus: SpeechCorpus) -> None:
        super().__init__(data.items, data.processor, data.vocab, data.options, trains=data.trains)
        self.corpus = corpus

    def __getitem__(self, index: int) -> Sample:
        return {**super().__getitem__(index), "speech": self.corpus[self.items[index].number]}

    def collater(self, samples: list[Sample]) -> Sample:
        """A batch as of sources and targets, with speech."""
        batch = super().collater(samples)
        if batch:
            batch["net_input"] |= batched([sample["speech"] for sample in samples])
        return batch


@register_task(CRITERION, dataclass=SpeechTaskConfig)
class S2sTask(SpeechTask):
    """Trains on speech, its translation as phonemes, and their speech."""

    def __init__(self, cfg: SpeechTaskConfig) -> None:
        super().__init__(cfg)
        self._speech: dict[str, SpeechCorpus] = {}

    @property
    def trained_speech(self) -> SpeechCorpus:
        """The speech of train, whose statistics a model has."""
        return self._read("train")

    def load_dataset(self, split: str, **unused: Any) -> None:
        """Reads a split; raises as `SpeechTask`, and as `nartk.tasks.tts.read_speech`."""
        super().load_dataset(split)
        self.datasets[split] = SpokenTargets(self.datasets[split], self._read(split))

    def _read(self, split: str) -> SpeechCorpus:
        if split not in self._speech:
            lines = read_lines(str(self.folder / f"{split}.txt"))
            phonemes = [len(self.output.encode(line)) for line in lines]
            self._speech[split] = read_speech(self.folder, split, phonemes)
        return self._speech[split]


class S2sModel(SpeakingModel):
    """Holds a core network that translates speech into speech."""

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        super().add_args(parser)
        for part, trained in (
            ("translation", "graph, with its encoder and heads, of this speech_dag"),
            ("acoustic", "acoustic part of this fastspeech2"),
        ):
            parser.add_argument(
                f"--init-{part}",
                metavar="MODEL",
                help=f"begin with the {trained}: a CHECKPOINT.pt or a model folder",
            )

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LossModel:
        """Builds the model, with the parts that it is to begin with.

        Raises:
            UsageError: Same as `SpeakingModel`.
            CheckpointError: A trained part has other weights or settings.
            VocabMismatchError: A trained graph has another dictionary.
        """
        model = super().build_model(args, task)
        if getattr(args, "init_translation", None) is not None:
            _begin(model.core, args.init_translation, lambda name: not name.startswith(_ADDED), None, task)
        if getattr(args, "init_acoustic", None) is not None:
            own = {*AcousticDecoder.__annotations__, *MelOutput.__annotations__}
            _begin(model.core, args.init_acoustic, lambda name: name.startswith("acoustic."), own, None)
        return model


_ADDED = ("acoustic.", "adaptor.")  # beginnings of the weights that a graph of text has not


def _begin(
    core: nn.Module, name: str, of_part: Callable[[str], bool], own: set[str] | None, task: Any
) -> None:
    """Copies the weights of a part of a trained model into a network.

    Args:
        of_part: Tells by the name of a weight whether it is the part's.
        own: Settings on which the part depends; None: all.
        task: Task with the dictionary that the model is to have; None: the part has no words.
    """
    other, stored = read_model(name)
    config: Config = core.config  # type: ignore[assignment]
    for item in fields(other.config):
        beginnings, endings = _FREE
        if item.name.startswith(beginnings) or item.name.endswith(endings):
            continue
        if not hasattr(config, item.name) or (own is not None and item.name not in own):
            continue
        ours, theirs = getattr(config, item.name), getattr(other.config, item.name)
        if ours != theirs:
            flag = f"--{item.name.replace('_', '-')}"
            raise CheckpointError(
                f"{flag} is {ours}, the model has {theirs}", fix="give the same", where=name
            )
    if task is not None and isinstance(stored, Checkpoint):
        vocab = Vocab(tuple(task.target_dictionary.symbols))
        stored.target_vocab.require_equal(vocab, f"the target dictionary of {name}", "that of the data")
    wanted, found = (
        {key: weight for key, weight in network.state_dict(keep_vars=True).items() if of_part(key)}
        for network in (core, other)
    )
    require_shapes(shapes(wanted), shapes(found), name)
    with torch.no_grad():
        for key, weight in wanted.items():
            weight.copy_(found[key])


register_models(S2sModel, CRITERION)


@register_criterion(CRITERION, dataclass=criterion_config(CRITERION, S2sTraining))
class S2sCriterion(LossCriterion):
    """Compares graphs with targets, and spectrograms and prosody with the true ones."""

    settings = S2sTraining
