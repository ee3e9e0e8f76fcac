"""Writes what `make.sh` trains on and decodes."""

from __future__ import annotations

import lzma
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from nartk.data.audio.sounds import write_wav

sys.path.append(str(Path(__file__).parents[2] / "recipes" / "asr"))
from corpora import RATE, numbers

CORPORA = Path(__file__).parents[2] / "data" / "corpora"
COLUMNS = {"en": "en_digits", "de": "de_tok"}  # digits as they are spoken, German words apart
SPOKEN = 8  # numbers of the recording that is longer than Whisper's window
PAUSE = np.zeros(2 * RATE, np.float32)


def main() -> None:
    work = Path(sys.argv[1])
    for name in ("train", "dev"):
        with lzma.open(CORPORA / f"fsdd_numbers.{name}.tsv.xz", "rt", encoding="utf-8") as file:
            head, *rows = file.read().splitlines()
        for side, column in COLUMNS.items():
            at = head.split("\t").index(column)
            lines = [row.split("\t")[at] for row in rows]
            (work / "text" / f"{name}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (work / "in.txt").write_text("nine two seven five\n", encoding="utf-8")
    signals = [each.signal for each in islice(numbers("test"), SPOKEN)]
    write_wav(work / "number.wav", signals[0], RATE)
    apart = [part for each in signals for part in (each, PAUSE)]
    write_wav(work / "numbers.wav", np.concatenate(apart), RATE)


if __name__ == "__main__":
    main()
