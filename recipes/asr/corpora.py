"""The corpora of the recipe: reads what ships, and builds it from the public data sets.

A maintainer builds once; users need only the result. Each set keeps its licence: see
data/corpora/LICENSES.md.

    python recipes/asr/corpora.py --data FOLDER --output data/corpora
"""

from __future__ import annotations

import argparse
import io
import lzma
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from nartk.data.audio.sounds import read_sound
from nartk.data.text import corpora, read_shipped
from nartk.protocols.passes import FloatArray

RATE = 8000  # Hz, of fsdd and yesno
# Where a maintainer has what ships, and what it is called here; its bytes are as they were.
COPIED = {
    "asr/fsdd/fsdd_visible.tar.xz": "fsdd.tar.xz",
    "asr/yesno/waves_yesno.tar.xz": "yesno.tar.xz",
    **{
        f"st/fsdd_numbers/{split}.tsv.xz": f"fsdd_numbers.{split}.tsv.xz"
        for split in ("train", "dev", "test")
    },
}
AN4 = "an4.npz.xz"
HELD_OUT = {
    "test": 10,
    "valid": 4,
}  # of AN4's 74 speakers, in this order from the end of those sorted by name
YESNO_VALID = 3  # of the end of yesno's training part


@dataclass(frozen=True)
class Utterance:
    """A recording and its transcript.

    Attributes:
        id: Its name.
        speaker: Who; "" where a corpus has one speaker or does not tell.
        signal: Samples [N] of `RATE`, or features [T,F] that a corpus has in place of sound.
        text: The words, with spaces between.
        translations: The same in other languages, by their codes.
    """

    id: str
    speaker: str
    signal: FloatArray
    text: str
    translations: Mapping[str, str] = field(default_factory=dict)


@cache
def recordings(name: str) -> dict[str, FloatArray]:
    """The samples of each sound file of a shipped archive, by its name without a suffix."""
    with lzma.open(corpora() / name) as file, tarfile.open(fileobj=file) as archive:
        members = [each for each in archive if each.isfile() and each.name.endswith(".wav")]
        found = {Path(each.name).stem: archive.extractfile(each) for each in members}
        return {
            stem: read_sound(sound.read(), rate=RATE) for stem, sound in found.items() if sound is not None
        }


def connected(parts: list[FloatArray], gaps: list[int]) -> FloatArray:
    """Samples of recordings in a row, with silence before, between and behind them, ms."""
    if len(gaps) != len(parts) + 1:
        raise ValueError(f"{len(gaps)} silences around {len(parts)} recordings")
    silences = [np.zeros(gap * RATE // 1000, np.float32) for gap in gaps]
    pieces = [silences[0]]
    for part, silence in zip(parts, silences[1:], strict=True):
        pieces += [part, silence]
    return np.concatenate(pieces)


def numbers(split: str) -> Iterator[Utterance]:
    """Connected spoken numbers: recordings of digits by one speaker, in a row."""
    parts = recordings("fsdd.tar.xz")
    lines = read_shipped(f"fsdd_numbers.{'dev' if split == 'valid' else split}.tsv.xz")
    header = next(lines).split("\t")
    for line in lines:
        row = dict(zip(header, line.split("\t"), strict=True))
        gaps = [int(gap) for gap in row["gaps_ms"].split(",")]
        sound = connected([parts[name] for name in row["recordings"].split(",")], gaps)
        translations = {"de": row["de_tok"], "fr": row["fr"]}
        yield Utterance(row["utt_id"], row["speaker"], sound, row["en_digits"], translations)


def an4(split: str) -> Iterator[Utterance]:
    """AN4's spelled words, numbers and dates, as 13 MFCC a frame: 60 speakers, 4 to validate, 10 to test."""
    with lzma.open(corpora() / AN4) as packed, np.load(io.BytesIO(packed.read())) as file:
        arrays = {name: file[name] for name in file}
    speakers = sorted(set(arrays["speakers"].tolist()))
    parts = {}
    for part, count in HELD_OUT.items():
        parts[part], speakers = set(speakers[-count:]), speakers[:-count]
    parts["train"] = set(speakers)
    ends = arrays["offsets"].tolist()
    for i, (id, speaker, text) in enumerate(
        zip(*(arrays[name].tolist() for name in ("ids", "speakers", "text")), strict=True)
    ):
        if speaker in parts[split]:
            frames = arrays["mfcc"][ends[i] : ends[i + 1]].astype(np.float32)
            yield Utterance(id, speaker, frames, text)


def yesno(split: str) -> Iterator[Utterance]:
    """Eight times yes or no in Hebrew; files that begin with no train and those that begin with yes test."""
    found = sorted(recordings("yesno.tar.xz").items())
    train = [(name, sound) for name, sound in found if name.startswith("0")]
    parts = {
        "train": train[:-YESNO_VALID],
        "valid": train[-YESNO_VALID:],
        "test": [(name, sound) for name, sound in found if name.startswith("1")],
    }
    for name, sound in parts[split]:
        yield Utterance(name, "", sound, " ".join(("no", "yes")[int(word)] for word in name.split("_")))


def aishell(data: Path, split: str) -> Iterator[tuple[Path, str]]:
    """The sounds of AISHELL-1's folder ``data_aishell``, and what is said in them, without spaces."""
    texts = {}
    for line in (data / "transcript/aishell_transcript_v0.8.txt").read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition(" ")
        texts[name] = "".join(text.split())
    for path in sorted((data / "wav" / ("dev" if split == "valid" else split)).glob("*/*.wav")):
        if path.stem in texts:  # some were left out of the transcripts
            yield path, texts[path.stem]


def librispeech(data: Path, split: str) -> Iterator[tuple[Path, str]]:
    """The sounds of the folder ``LibriSpeech``: all that trains, dev-clean and dev-other, test-clean."""
    parts = {"train": ["train-*"], "valid": ["dev-clean", "dev-other"], "test": ["test-clean"]}[split]
    for part in parts:
        for listing in sorted(data.glob(f"{part}/*/*/*.trans.txt")):
            for line in listing.read_text(encoding="utf-8").splitlines():
                name, _, text = line.partition(" ")
                yield listing.parent / f"{name}.flac", text.lower()


FULL_SIZE: dict[str, Callable[[Path, str], Iterator[tuple[Path, str]]]] = {
    "aishell": aishell,
    "librispeech": librispeech,
}
READERS: dict[str, Callable[[str], Iterator[Utterance]]] = {"numbers": numbers, "an4": an4, "yesno": yesno}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the unpacked public data sets")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    for source, name in COPIED.items():
        shutil.copyfile(args.data / source, args.output / name)
    plain = io.BytesIO()
    with np.load(args.data / "asr/an4_mfcc/an4_train.npz") as file:
        np.savez(plain, **{name: file[name] for name in file})
    # Two bytes a number.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1}]
    (args.output / AN4).write_bytes(lzma.compress(plain.getvalue(), filters=filters))


if __name__ == "__main__":
    main()
