"""Makes the lists, translations and pieces of MuST-C as it is unpacked, and cuts its talks into segments.

python recipes/st/mustc.py --data en-de --output OUT [--pieces N]
    OUT/{train,valid,test}.tsv, lists of sounds; .txt, their translations, and .transcript.txt, what is said;
    OUT/input.json, how they are read; OUT/spm.model and OUT/dict.txt, the pieces of the translations
"""

from __future__ import annotations

import argparse
import re
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "asr"))  # whose prepare.py it imports

from prepare import Recipe, train_pieces
from sounds import write_input, write_lines, write_split

SPLITS = {"train": "train", "valid": "dev", "test": "tst-COMMON"}
INPUT = {"name": "audio", "cmvn": "utterance"}
_FIELD = re.compile(r"(\w+): ([^,}]+)")


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def segments(data: Path, split: str) -> Iterator[tuple[Path, float, float, str, str]]:
    """Segments of a split: the talk's sound, begin and duration, seconds, what is said and its translation.

    Raises:
        SystemExit: The lists of a split have not as many lines.
    """
    folder = data / "data" / split
    endings = ("yaml", "en", data.name.rpartition("-")[2])
    lines, transcripts, translations = (
        read_lines(folder / "txt" / f"{split}.{ending}") for ending in endings
    )
    if not len(lines) == len(transcripts) == len(translations):
        counts = f"{len(lines)}, {len(transcripts)} and {len(translations)}"
        raise SystemExit(f"mustc.py: {folder}/txt: lists of {counts} segments")
    for line, *texts in zip(lines, transcripts, translations, strict=True):
        given = dict(_FIELD.findall(line))
        yield folder / "wav" / given["wav"], float(given["offset"]), float(given["duration"]), *texts


def cut(talk: Path, begin: float, duration: float, output: Path) -> None:
    """Writes a part of a sound file."""
    with wave.open(str(talk), "rb") as sound, wave.open(str(output), "wb") as part:
        rate = sound.getframerate()
        part.setparams(sound.getparams())
        sound.setpos(min(round(begin * rate), sound.getnframes()))
        part.writeframes(sound.readframes(round(duration * rate)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder en-de of MuST-C")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pieces", type=int, default=8000, help="most pieces (default: %(default)s)")
    args = parser.parse_args()
    data, output = args.data.resolve(), args.output.resolve()
    for split, name in SPLITS.items():
        (output / split).mkdir(parents=True, exist_ok=True)
        found, transcripts = [], []
        for number, (talk, begin, duration, transcript, translation) in enumerate(segments(data, name)):
            path = f"{split}/{talk.stem}_{number:06d}.wav"
            cut(talk, begin, duration, output / path)
            found.append((path, translation))
            transcripts.append(transcript)
        write_split(output, split, found, output)
        write_lines(output / f"{split}.transcript.txt", transcripts)
    train_pieces(read_lines(output / "train.txt"), Recipe(INPUT, "unigram", args.pieces), output)
    write_input(output, INPUT)


if __name__ == "__main__":
    main()
