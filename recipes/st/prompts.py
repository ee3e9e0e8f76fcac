"""Spoken numbers in French, Spanish and Italian, put together of a professional voice's number words.

Recordings ship, and keep their licence: data/corpora/LICENSES.md. Their words and phonemes are those of
number_words.tsv; the phonemes are espeak-ng's, of its voices fr, es-419 and it. A maintainer builds once:

    python recipes/st/prompts.py --data FOLDER --output data/corpora
"""

from __future__ import annotations

import argparse
import io
import lzma
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nartk.data.audio.sounds import read_sound
from nartk.data.text import corpora
from nartk.protocols.passes import FloatArray

RATE = 16000  # Hz
TABLE = Path(__file__).resolve().parent / "number_words.tsv"
MOST = 9999
LONGEST_GAP = 0.06  # s of silence between two words
_CELL = 160  # samples, of which loudness is measured
_QUIET_DB = 35.0  # below the loudest cell, at which a recording's ends are cut
_KEPT = 160  # samples of silence left at either end
_BEFORE = 0.02, 0.15  # s of silence before and behind a number


@dataclass(frozen=True)
class Word:
    """A recording of a number word.

    Attributes:
        words: Its text.
        phonemes: Its phonemes.
    """

    words: str
    phonemes: tuple[str, ...]


@dataclass(frozen=True)
class Spoken:
    """Number words in a row.

    Attributes:
        samples: [N] of `RATE`.
        words: Text, with spaces between the words.
        phonemes: Phonemes of all words.
        begins: The time at which each word's recording begins, s.
    """

    samples: FloatArray
    words: str
    phonemes: tuple[str, ...]
    begins: tuple[float, ...]


def french(number: int) -> list[str]:
    """Names of the recordings that say a number of 0 to 9999."""
    if number >= 1000:
        return [*_counted(number // 1000, "thousand", french), *_rest(number % 1000, french)]
    if number >= 100:
        return [*_counted(number // 100, "hundred", french), *_rest(number % 100, french)]
    if number <= 20 or number in (30, 40, 50, 60, 70, 80, 90):
        return [str(number)]
    # 71 is sixty and eleven, 81 and 91 are without `and`.
    tens = number // 10 * 10 if number < 70 else 60 if number < 80 else 80
    joined = ["et"] if number % 10 == 1 and tens < 80 else []
    return [str(tens), *joined, str(number - tens)]


def spanish(number: int) -> list[str]:
    """The same; one hundred alone has a word of its own."""
    if number >= 1000:
        return [*_counted(number // 1000, "thousand", spanish), *_rest(number % 1000, spanish)]
    if number >= 200:
        return [str(number // 100 * 100), *_rest(number % 100, spanish)]
    if number >= 100:
        return ["hundred"] if number == 100 else ["100-and", *spanish(number - 100)]
    if number < 30 or number % 10 == 0:
        return [str(number)]
    return [str(number // 10 * 10), "and", str(number % 10)]


def italian(number: int) -> list[str]:
    """The same; tens lose their vowel before one and eight, and thousands are no `mille`."""
    if number >= 1000:
        counted = ["thousand"] if number < 2000 else [str(number // 1000), "thousands"]
        return [*counted, *_rest(number % 1000, italian)]
    if number >= 100:
        return [*_counted(number // 100, "hundred", italian), *_rest(number % 100, italian)]
    if number <= 20 or number % 10 in (0, 1, 8):
        return [str(number)]
    return [str(number // 10 * 10), str(number % 10)]


LANGUAGES: dict[str, Callable[[int], list[str]]] = {"fr": french, "es": spanish, "it": italian}


def names_of(number: int, language: str) -> list[str]:
    """Names of the recordings that say a number; raises ValueError where there are none."""
    if language not in LANGUAGES or not 0 <= number <= MOST:
        raise ValueError(f"no recordings say {number} in {language!r}: 0 to {MOST} in {', '.join(LANGUAGES)}")
    return LANGUAGES[language](number)


@cache
def words(language: str) -> dict[str, Word]:
    """The words of a language's recordings, by their names."""
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]]
    return {
        name: Word(text, tuple(phonemes.split())) for code, name, text, phonemes in rows if code == language
    }


@cache
def recordings(language: str) -> dict[str, FloatArray]:
    """The samples [N] of a language's recordings, without silence at their ends, by their names."""
    with lzma.open(corpora() / archive(language)) as file, tarfile.open(fileobj=file) as packed:
        files = {Path(each.name).stem: packed.extractfile(each) for each in packed}
        return {
            name: trimmed(read_sound(file.read(), rate=RATE))
            for name, file in files.items()
            if file is not None
        }


def archive(language: str) -> str:
    """The file of a language's recordings."""
    return f"prompt_digits.{language}.tar.xz"


def spoken(number: int, language: str, rng: np.random.Generator) -> Spoken:
    """A number as the recordings say it; raises ValueError where none do."""
    return joined(names_of(number, language), language, rng)


def joined(names: Sequence[str], language: str, rng: np.random.Generator) -> Spoken:
    """Recordings in a row, with random silence between."""
    sounds, texts = recordings(language), words(language)
    samples, begins = with_gaps([sounds[name] for name in names], rng)
    phones = tuple(phoneme for name in names for phoneme in texts[name].phonemes)
    return Spoken(samples, " ".join(texts[name].words for name in names), phones, begins)


def with_gaps(parts: Sequence[FloatArray], rng: np.random.Generator) -> tuple[FloatArray, tuple[float, ...]]:
    """Sounds in a row, with random silence between, and the time at which each begins, s."""
    before, behind = (np.zeros(int(each * RATE), np.float32) for each in _BEFORE)
    pieces, begins, at = [before], [], len(before)
    for i, part in enumerate(parts):
        gap = np.zeros(int(rng.uniform(0, LONGEST_GAP) * RATE) if i else 0, np.float32)
        begins.append((at + len(gap)) / RATE)
        pieces += [gap, part]
        at += len(gap) + len(part)
    return np.concatenate([*pieces, behind]), tuple(begins)


def _counted(count: int, name: str, spell: Callable[[int], list[str]]) -> list[str]:
    """Several of a unit, of which one is not counted."""
    return [name] if count == 1 else [*spell(count), name]


def _rest(number: int, spell: Callable[[int], list[str]]) -> list[str]:
    return spell(number) if number else []


def trimmed(samples: FloatArray) -> FloatArray:
    """Samples without silence at their ends."""
    cells = samples[: len(samples) // _CELL * _CELL].reshape(-1, _CELL)
    levels = np.sqrt(np.square(cells).mean(1))
    loud = np.flatnonzero(levels > levels.max() * 10 ** (-_QUIET_DB / 20))
    return samples[max(0, loud[0] * _CELL - _KEPT) : (loud[-1] + 1) * _CELL + _KEPT]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the unpacked public data sets")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    for language in LANGUAGES:
        plain = io.BytesIO()
        with (
            lzma.open(args.data / "st/prompt_digits" / f"{language}.tar.xz") as file,
            tarfile.open(fileobj=file) as packed,
            tarfile.open(fileobj=plain, mode="w") as chosen,
        ):
            for each in sorted(packed, key=lambda member: member.name):
                sound = packed.extractfile(each)
                if Path(each.name).stem in words(language) and sound is not None:
                    member = tarfile.TarInfo(f"{language}/{Path(each.name).name}")
                    member.size = each.size
                    chosen.addfile(member, sound)
        (args.output / archive(language)).write_bytes(lzma.compress(plain.getvalue(), preset=9))


if __name__ == "__main__":
    main()
