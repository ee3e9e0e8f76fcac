"""`--task nartk_speech DATA`: training of models that read sound.

DATA has, beside ``dict.txt`` and, if words are to be cut into pieces, ``spm.model``:

- ``input.json``: the settings of the input processor, as ``config.json`` of a model folder has them, with the
  files that they name, such as the means and variances of normalisation. `nartk-convert` copies them.
- of each split, such as ``train``, a list of sources that the processor reads: ``train.tsv`` (fairseq's: a
  line with a folder, then paths; what follows a tab is not read), ``train.scp`` (Kaldi's), or ``train.lst``
  (a line is as the processor reads it); and ``train.txt``, what is said in each, a line of words, empty
  where nobody speaks.
- ``train.transcript.txt``, where ``train.txt`` holds translations: what is said, in an empty line nothing
  that is known (`nartk.models.owsm_ctc`).

Sources that are longer than the model reads, or shorter than the processor does, are left out, as are those
whose target is longer. Batches are of alike lengths on both sides (`nartk.data.audio.buckets`), of at most
``--max-tokens`` frames, padding included.
"""

# No `from __future__ import annotations` here: fairseq reads the options' types from the class.
import logging
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nartk.architectures.settings import setting
from nartk.checkpoints.names import DICTIONARY, INPUT, TOKENIZER
from nartk.data.audio.augmentation import SpecAugment, change_speed, change_tempo
from nartk.data.audio.buckets import make_batches, padding
from nartk.data.audio.features import FeatureSettings
from nartk.data.audio.manifests import read_manifest
from nartk.data.audio.sounds import open_sound, read_sound
from nartk.data.audio.stored import read_features
from nartk.errors import InputFileError, LengthMismatchError, UsageError, number_of
from nartk.files import Folder, read_lines, reading
from nartk.processors import load_processor
from nartk.processors.text import load_output
from nartk.protocols.passes import FeatureSource
from nartk.tasks.core_model import Sample
from nartk.vocab import FAIRSEQ, Vocab

LISTS = (".tsv", ".scp", ".lst")
UNKNOWN_LANGUAGE = "<nolang>"
_EVERYTHING = 10**9  # frames

logger = logging.getLogger(__name__)


@dataclass
class SpeechTaskConfig(FairseqDataclass):
    """Options of the task. What is masked or changed is so in training alone."""

    data: str = setting("", "folder of the training data")
    time_masks: int = setting(SpecAugment.time_masks, "SpecAugment: spans of frames that are masked")
    time_width: int = setting(SpecAugment.time_width, "widest of them, frames")
    time_share: float = setting(SpecAugment.time_share, "widest of them as a share of the source")
    bin_masks: int = setting(SpecAugment.bin_masks, "SpecAugment: spans of features that are masked")
    bin_width: int = setting(SpecAugment.bin_width, "widest of them, features")
    speeds: str = setting("1", "how fast each source is played, drawn anew each time, such as 0.9,1.0,1.1")
    hide_language: float = setting(
        0.0, f"how often the first word in front of the frames becomes {UNKNOWN_LANGUAGE}, 0 to 1"
    )
    most_padding: float = setting(0.1, "share of padding in batches, of frames and of tokens")
    uncached: bool = setting(
        False, "read sounds anew in each epoch, for a corpus whose features memory does not hold"
    )
    seed: int = II("common.seed")


@dataclass
class Item:
    """A source and what is said in it.

    Attributes:
        number: Its number in the list of sources, from 0.
    """

    number: int
    line: str
    frames: int
    target: Tensor
    transcript: Tensor


class AlikeBatches(FairseqDataset):
    """Batches of items that are alike in frames and in tokens.

    Subclasses know `num_tokens`, the frames of an item, and `size`, of which the second is its tokens.
    """

    most_padding: float  # share of frames, and of tokens

    def batch_by_size(
        self,
        indices: Any,
        max_tokens: Optional[int] = None,  # noqa: UP045
        max_sentences: Optional[int] = None,  # noqa: UP045
        required_batch_size_multiple: int = 1,
    ) -> list[list[int]]:
        """Batches of at most `max_tokens` frames, and `max_sentences` items."""
        chosen = [int(index) for index in indices]
        frames = [self.num_tokens(index) for index in chosen]
        tokens = [self.size(index)[1] for index in chosen]
        batches = make_batches(
            frames,
            tokens,
            max_frames=_EVERYTHING if max_tokens is None else max_tokens,
            max_sentences=max_sentences,
            most_padding=self.most_padding,
        )
        logger.info("%d batches, %s", len(batches), padding(batches, frames, tokens))
        return [[chosen[at] for at in batch] for batch in batches]


class Speech(AlikeBatches):
    """Sources and their targets.

    Args:
        options: Options of the task; those that change sources are not used in validation, `trains` False.
    """

    def __init__(
        self, items: list[Item], processor: Any, vocab: Vocab, options: Any, *, trains: bool
    ) -> None:
        self.items, self.processor, self.vocab, self.options = items, processor, vocab, options
        self.trains, self.epoch, self.most_padding = trains, 1, options.most_padding
        names = [item.name for item in fields(SpecAugment)]
        self.augment = SpecAugment(**{name: getattr(options, name) for name in names})
        self.speeds = _speeds(options.speeds) if trains else (1.0,)
        self._cached: dict[str, FeatureSource] = {}  # by the path of the sound

    def __len__(self) -> int:
        return len(self.items)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Sample:
        item, options = self.items[index], self.options
        rng = np.random.default_rng((options.seed, self.epoch, index))
        source = self._read(index, rng.choice(self.speeds))
        if self.trains:
            words = source.words
            if words and rng.random() < options.hide_language:
                words = (*self.vocab.ids([UNKNOWN_LANGUAGE]), *words[1:])
            source = replace(source, frames=self.augment(source.frames, rng), words=words)
        return {"id": index, "source": source, "target": item.target, "transcript": item.transcript}

    def _read(self, index: int, speed: float) -> FeatureSource:
        line, processor = self.items[index].line, self.processor
        if speed != 1.0 and not processor.settings.is_stored:
            samples = read_sound(line, rate=processor.settings.sample_rate)
            changed: FeatureSource = processor.of_samples(change_speed(samples, speed), name=line)
            return changed
        sound = line.split("\t", 1)[0]  # several lines may ask several things of it
        source = self._cached.get(sound)
        if source is None:
            source = processor.read(line, longest=_EVERYTHING)
            if not self.options.uncached:
                self._cached[sound] = source
        else:
            words, prompt = processor.beside(line)
            source = replace(source, words=words, prompt=prompt)
        return source if speed == 1.0 else replace(source, frames=change_tempo(source.frames, speed))

    def collater(self, samples: list[Sample]) -> Sample:
        """A batch: frames [B,T,F] of lengths [B], target [B,U] with eos, and what else there is."""
        if not samples:
            return {}
        sources = [sample["source"] for sample in samples]

        def padded(rows: list[Tensor]) -> Tensor:
            return pad_sequence(rows, batch_first=True, padding_value=self.vocab.pad)

        inputs = {
            "frames": pad_sequence([torch.from_numpy(each.frames) for each in sources], batch_first=True),
            "lengths": torch.tensor([len(each.frames) for each in sources]),
        }
        beside = {
            "transcript": padded([sample["transcript"] for sample in samples]),
            "words": padded([torch.tensor(each.words, dtype=torch.int64) for each in sources]),
            "prompt": padded([torch.tensor(each.prompt, dtype=torch.int64) for each in sources]),
        }
        target = padded([sample["target"] for sample in samples])
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {**inputs, **{name: each for name, each in beside.items() if each.shape[1]}},
            "target": target,
            "ntokens": int(target.ne(self.vocab.pad).sum()),
            "nsentences": len(samples),
        }

    def size(self, index: int) -> tuple[int, int]:
        """Frames of the source, and tokens of the target."""
        return self.items[index].frames, len(self.items[index].target)

    def num_tokens(self, index: int) -> int:
        return self.items[index].frames


def frames_of(line: str, settings: FeatureSettings) -> int:
    """Number of frames of a line's source, by the header of its file where it is a sound.

    Raises:
        InputFileError: The file cannot be read.
    """
    path = line.split("\t", 1)[0]
    if settings.is_stored:
        return len(read_features(path))
    with open_sound(path) as sound:
        if sound.samples is None:
            samples = sum(map(len, sound.blocks(settings.sample_rate)))
        else:
            samples = sound.samples * settings.sample_rate // sound.rate
    return settings.frames(samples)


def _speeds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--speeds is {text!r}", fix="give numbers, such as 0.9,1.0,1.1") from None


@register_task("nartk_speech", dataclass=SpeechTaskConfig)
class SpeechTask(FairseqTask):
    """Trains on sound and what is said in it. There is no source dictionary: its models read no words."""

    cfg: SpeechTaskConfig

    def __init__(self, cfg: SpeechTaskConfig) -> None:
        super().__init__(cfg)
        self.folder = Path(cfg.data)
        for name in (DICTIONARY, INPUT):
            if not os.path.isfile(self.folder / name):
                raise InputFileError(f"no {name}", fix="see nartk.tasks.speech", where=cfg.data)
        self.dictionary = Dictionary.load(str(self.folder / DICTIONARY))
        settings = {"dictionary": DICTIONARY, "words": len(self.dictionary)}
        if os.path.isfile(self.folder / TOKENIZER):
            settings["sentencepiece"] = TOKENIZER
        self.output = load_output(Folder(self.folder), settings, FAIRSEQ)
        self.processor = load_processor("input", self.folder, Folder(self.folder).json(INPUT), FAIRSEQ)

    @property
    def source_dictionary(self) -> None:
        return None

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary

    def load_dataset(self, split: str, **unused: Any) -> None:
        """Reads a split's lists, and the length of each source.

        Raises:
            InputFileError: A list is missing, or a source cannot be read.
            LengthMismatchError: There are not as many targets as sources.
        """
        lists = [self.folder / f"{split}{suffix}" for suffix in LISTS]
        path = next((each for each in lists if os.path.isfile(each)), None)
        if path is None:
            names = ", ".join(each.name for each in lists)
            raise InputFileError(f"none of {names}", fix="give the data's folder", where=str(self.folder))
        with reading(str(path)) as file:
            records = [*read_manifest(file, path.name)]
        for record in records:
            if record.error is not None:
                raise record.error
        targets = self._targets(f"{split}.txt", len(records), empty=[self.output.vocab.eos])
        transcripts = [torch.empty(0, dtype=torch.int64)] * len(records)
        if os.path.isfile(self.folder / f"{split}.transcript.txt"):
            transcripts = self._targets(f"{split}.transcript.txt", len(records), empty=[])
        trains = split == "train"
        settings, padding = self.processor.settings, 2 * self.processor.padding
        items = [
            Item(number, record.text, frames_of(record.text, settings) + padding, target, transcript)
            for number, (record, target, transcript) in enumerate(
                zip(records, targets, transcripts, strict=True)
            )
        ]
        kept = [item for item in items if item.frames >= self.processor.shortest]
        if len(kept) < len(items):
            logger.warning("%s: %d sources are too short", split, len(items) - len(kept))
        self.datasets[split] = Speech(kept, self.processor, self.output.vocab, self.cfg, trains=trains)

    def _targets(self, name: str, count: int, *, empty: list[int]) -> list[Tensor]:
        """Target ids of each line, with eos; a blank line gives `empty`."""
        lines = read_lines(str(self.folder / name))
        if len(lines) != count:
            found = number_of(len(lines), "line")
            raise LengthMismatchError(f"{name} has {found}, the list of sources {count}")
        end = self.output.vocab.eos
        return [
            torch.tensor([*self.output.encode(line), end] if line.strip() else empty, dtype=torch.int64)
            for line in lines
        ]
