"""Spoken English numbers, of which the recipes of speech translation make their data, and their words."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "asr"))

from corpora import Utterance, numbers
from number_words import WORDS
from sounds import trained_recordings, utterances_of, write_lines, write_signals
from varied import respoken, text_of

SPLITS = ("train", "valid", "test")
Spoken = Mapping[str, Sequence[tuple[str, Utterance]]]  # paths and utterances of each part


def write_words(output: Path, texts: Iterable[str], *more: str) -> int:
    """Writes fairseq's OUT/dict.txt of the words of some texts, and more; returns their number."""
    counts = Counter(word for text in texts for word in text.split())
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    write_lines(output / "dict.txt", (f"{word} {counts[word]}" for word in (*ordered, *more)))
    return len(ordered) + len(more)


def new_numbers(
    speakers: Sequence[str], count: int, taken: Collection[str], rng: np.random.Generator
) -> Iterator[Utterance]:
    """Numbers of two to four digits, each as likely, without a sound; none says what is `taken`."""
    made = 0
    while made < count:
        digits = int(rng.integers(2, 5))
        number = int(rng.integers(10 ** (digits - 1), 10**digits))
        text = text_of(str(number))
        if text not in taken:
            translations = {language: words(number) for language, words in WORDS.items()}
            speaker = speakers[int(rng.integers(len(speakers)))]
            yield Utterance(f"new-{made:05d}", speaker, np.zeros(0, np.float32), text, translations)
            made += 1


def write_sounds(output: Path, args: argparse.Namespace) -> Spoken:
    """Writes the sounds of all parts; returns their paths in the folder with the utterances."""
    rng = np.random.default_rng(1)
    found = {}
    for split in SPLITS:
        given = {"without": args.without, "quick": args.quick, "rng": rng}
        utterances = utterances_of("numbers", split, count=args.copies, **given)
        recordings = trained_recordings(args.without) if split == "train" else {}
        if recordings and args.anew:
            plain = utterances_of("numbers", split, count=1, **given)
            utterances = itertools.chain(utterances, respoken(plain, recordings, args.anew, rng))
        if recordings and args.new:
            speakers = sorted({name.split("_")[1] for name in recordings})
            taken = {each.text for part in SPLITS[1:] for each in numbers(part)}
            others = new_numbers(speakers, args.new, taken, rng)
            utterances = itertools.chain(utterances, respoken(others, recordings, 1, rng, plain=True))
        found[split] = write_signals(output, split, utterances)
    return found
