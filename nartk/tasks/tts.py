"""`--task nartk_tts DATA`, `--criterion nartk_tts`: training of models that speak phonemes.

DATA has ``dict.txt`` and of each split, such as ``train``, ``train.txt``, a line of phonemes (or letters) an
utterance, and ``train.speech.npz``, their speech (`nartk.data.audio.targets`). The statistics of train's
speech become part of the model: mean and deviation of mel frames, bins of pitch and of energy.

The loss of FastSpeech 2 is the L1 distance of normalised mel frames plus the squared errors of log-durations,
pitch and energy (`nartk.models.fastspeech2`), that of Transformer TTS the L1 distance and the squared error
of frames plus the cross-entropy of where it stops (`nartk.models.transformer_tts`). Each is a mean over all
that counts in a batch, and of weight 1.

Batches are of alike lengths on both sides (`nartk.data.audio.buckets`), of at most ``--max-tokens`` frames of
speech, padding included.
"""

# No `from __future__ import annotations` here: fairseq reads the options' types from the class.
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nartk.architectures.settings import setting
from nartk.checkpoints.names import DICTIONARY
from nartk.data.audio.targets import SUFFIX, SpeechCorpus, Utterance
from nartk.errors import InputFileError, LengthMismatchError, UsageError, number_of
from nartk.files import read_lines
from nartk.models.fastspeech2 import SpeechTargets
from nartk.models.losses import TtsTraining
from nartk.tasks.core_model import Sample, register_models
from nartk.tasks.nar import LossCriterion, LossModel, criterion_config
from nartk.tasks.speech import AlikeBatches

CRITERION = "nartk_tts"


@dataclass
class TtsTaskConfig(FairseqDataclass):
    """Options of the task."""

    data: str = setting("", "folder of the training data")
    most_padding: float = setting(0.1, "share of padding in batches, of frames and of phonemes")


def read_speech(folder: Path, split: str, phonemes: Sequence[int]) -> SpeechCorpus:
    """The speech of a split, whose lines have so many phonemes.

    Raises:
        InputFileError: It is missing, or is not as `nartk.data.audio.targets` says.
        LengthMismatchError: There are more or fewer utterances than lines, or phonemes of one.
    """
    path = folder / f"{split}{SUFFIX}"
    if not os.path.isfile(path):
        raise InputFileError(
            f"no {path.name}", fix="write it as nartk.data.audio.targets says", where=str(folder)
        )
    corpus = SpeechCorpus.read(path)
    if len(corpus) != len(phonemes):
        raise LengthMismatchError(
            f"{path.name} has {number_of(len(corpus), 'utterance')}, {split}.txt {len(phonemes)} lines"
        )
    for i, (found, wanted) in enumerate(zip(corpus.phonemes.tolist(), phonemes, strict=True)):
        if found != wanted:
            raise LengthMismatchError(
                f"{path.name} has {number_of(found, 'phoneme')} of utterance {i}, "
                f"line {i + 1} of {split}.txt {wanted}"
            )
    return corpus


def batched(speech: Sequence[Utterance]) -> dict[str, Tensor]:
    """Speech as inputs of a model, by the names of `SpeechTargets`, with an eos behind each utterance."""

    def padded(name: str, beyond: int) -> Tensor:
        rows = [torch.from_numpy(getattr(each, name)) for each in speech]
        end = rows[0].new_zeros((beyond, *rows[0].shape[1:]))
        return pad_sequence([torch.cat([row, end]) for row in rows], batch_first=True)

    targets = {name: padded(name, 1) for name in ("durations", "pitch", "energy")}
    return {"mel": padded("mel", 0), **targets, "durations": targets["durations"].long()}


class Texts(AlikeBatches):
    """Phonemes and their speech.

    Args:
        targets: Ids of each utterance, with eos.
    """

    def __init__(self, targets: list[Tensor], corpus: SpeechCorpus, pad: int, most_padding: float) -> None:
        self.targets, self.corpus, self.pad, self.most_padding = targets, corpus, pad, most_padding

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Sample:
        return {"id": index, "target": self.targets[index], "speech": self.corpus[index]}

    def collater(self, samples: list[Sample]) -> Sample:
        """A batch: tokens [B,N] with eos, which are source and target, and speech."""
        if not samples:
            return {}
        target = pad_sequence(
            [sample["target"] for sample in samples], batch_first=True, padding_value=self.pad
        )
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {"src_tokens": target, **batched([sample["speech"] for sample in samples])},
            "target": target,
            "ntokens": int(target.ne(self.pad).sum()),
            "nsentences": len(samples),
        }

    def size(self, index: int) -> tuple[int, int]:
        """Tokens of the source, and of the target."""
        return (len(self.targets[index]),) * 2

    def num_tokens(self, index: int) -> int:
        return int(self.corpus.frames[index])


@register_task(CRITERION, dataclass=TtsTaskConfig)
class TtsTask(FairseqTask):
    """Trains on phonemes and their speech."""

    cfg: TtsTaskConfig

    def __init__(self, cfg: TtsTaskConfig) -> None:
        super().__init__(cfg)
        self.folder = Path(cfg.data)
        if not os.path.isfile(self.folder / DICTIONARY):
            raise InputFileError(f"no {DICTIONARY}", fix="see nartk.tasks.tts", where=cfg.data)
        self.dictionary = Dictionary.load(str(self.folder / DICTIONARY))
        self._splits: dict[str, Texts] = {}

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def trained_speech(self) -> SpeechCorpus:
        """The speech of train, whose statistics a model has."""
        return self._read("train").corpus

    def load_dataset(self, split: str, **unused: Any) -> None:
        """Reads a split.

        Raises:
            InputFileError: A file is missing or corrupt, or a line has a word that the dictionary has not.
            LengthMismatchError: Text and speech do not fit each other.
        """
        self.datasets[split] = self._read(split)

    def _read(self, split: str) -> Texts:
        if split in self._splits:
            return self._splits[split]
        lines = read_lines(str(self.folder / f"{split}.txt"))
        targets = []
        for i, line in enumerate(lines, start=1):
            words = line.split()
            for word in words:
                if word not in self.dictionary:
                    raise InputFileError(
                        f"{word!r} is not in {DICTIONARY}", fix="add it", where=f"{split}.txt:{i}"
                    )
            ids = [*map(self.dictionary.index, words), self.dictionary.eos()]
            targets.append(torch.tensor(ids, dtype=torch.int64))
        corpus = read_speech(self.folder, split, [len(each) - 1 for each in targets])
        self._splits[split] = Texts(targets, corpus, self.dictionary.pad(), self.cfg.most_padding)
        return self._splits[split]


class SpeakingModel(LossModel):
    """Holds a core network that computes mel spectrograms, and the loss of these."""

    def forward(  # type: ignore[override]  # its batches have speech
        self,
        target: Tensor,
        training: TtsTraining,
        *,
        mel: Tensor,
        durations: Tensor,
        pitch: Tensor,
        energy: Tensor,
        **inputs: Tensor,
    ) -> Any:
        """The encoder's inputs, target [B,N] and its speech -> summed loss, its tokens, and its parts."""
        speech = SpeechTargets(mel, durations, pitch, energy)
        self.begin_step(training)
        with self.autocast(target.device):
            source = self.encode(inputs)
            losses = self.core.losses(source, target, training=training, update=self.updates, speech=speech)
        return losses.total, losses.tokens, dict(losses.parts)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> LossModel:
        """Builds the model, with the statistics of the task's speech.

        Raises:
            UsageError: The task has no speech, or this has other frames than the model, or more.
            InputFileError: The speech of train cannot be read.
        """
        corpus = getattr(task, "trained_speech", None)
        if corpus is None:
            raise UsageError(
                f"--arch nartk_{cls.architecture.name} trains on speech, which the task does not read",
                fix=f"give --task {cls.architecture.criterions[0]}",
            )
        model: LossModel = super().build_model(args, task)
        config, statistics = model.core.config, corpus.statistics
        if len(statistics.mean) != config.mel_features:
            raise UsageError(
                f"--mel-features is {config.mel_features}, frames of train{SUFFIX} have "
                f"{len(statistics.mean)}"
            )
        if corpus.frames.max() > config.max_mel_len:
            raise UsageError(
                f"--max-mel-len is {config.max_mel_len}, an utterance of train{SUFFIX} has "
                f"{corpus.frames.max()} frames"
            )
        model.core.acoustic.keep_statistics(
            *(torch.from_numpy(each) for each in (statistics.mean, statistics.deviation)),
            statistics.pitch,
            statistics.energy,
        )
        return model


register_models(SpeakingModel, CRITERION)


@register_criterion(CRITERION, dataclass=criterion_config(CRITERION, TtsTraining))
class TtsCriterion(LossCriterion):
    """Compares spectrograms, and prosody or ends, with the true ones."""

    settings = TtsTraining
