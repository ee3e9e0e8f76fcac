"""Makes the lists, translations and words of the recipe of speech translation.

python recipes/st/prepare.py --target de|fr --output OUT [--copies N] [--anew N] [--new N]
                             [--without SPEAKER] [--tasks] [--quick]
    OUT/data/{train,valid,test}.tsv, lists of spoken numbers; OUT/data/{train,valid,test}.txt, their
    translations, and .transcript.txt, what is said; OUT/data/input.json, how they are read, with the
    OUT/data/cmvn.json that features are normalised by; OUT/data/dict.txt, the words
    OUT/data.owsm with --tasks: the same sounds, each to be written down and translated into both languages;
    OUT/data.owsm/test.TASK.lst and .txt for each task, and test.hidden.lst, where the language is not told
"""

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
from sounds import (
    DIGITS,
    STATISTICS,
    trained_recordings,
    utterances_of,
    write_input,
    write_lines,
    write_signals,
    write_split,
    write_statistics,
)
from varied import respoken, text_of

from nartk.vocab import SPECIALS

SPLITS = ("train", "valid", "test")
LANGUAGES = {"de": "deu", "fr": "fra"}  # as OWSM's tasks name them
HIDDEN = "<nolang>"
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
            utterances = itertools.chain(utterances, respoken(others, recordings, 1, rng))
        found[split] = write_signals(output, split, utterances)
    return found


def write_one(output: Path, spoken: Spoken, target: str) -> None:
    """Writes the data of models of one task."""
    for split, rows in spoken.items():
        texts = [(path, each.translations[target]) for path, each in rows]
        write_split(output, split, texts, output)
        write_lines(output / f"{split}.transcript.txt", (each.text for _, each in rows))
    write_words(output, (each.translations[target] for _, each in spoken["train"]))
    write_input(output, DIGITS)
    write_statistics(output, DIGITS)


def write_tasks(output: Path, sounds: Path, spoken: Spoken, target: str) -> None:
    """Writes the data of a model of three tasks, whose words stand in front of the sound and of the text."""
    output.mkdir(exist_ok=True)
    (output / STATISTICS).write_bytes((sounds / STATISTICS).read_bytes())

    def rows(split: str, task: str, language: str = "<eng>") -> list[tuple[str, str, str]]:
        """Lines, texts and transcripts of a part for a task."""
        texts = {"<asr>": lambda each: each.text} | {
            f"<st_{code}>": lambda each, name=name: each.translations[name]
            for name, code in LANGUAGES.items()
        }
        return [
            (f"{sounds / path}\t{language} {task}", f"<eng> {task} {texts[task](each)}", each.text)
            for path, each in spoken[split]
        ]

    tasks = ["<asr>", *(f"<st_{code}>" for code in LANGUAGES.values())]
    own = f"<st_{LANGUAGES[target]}>"
    written = {split: [row for task in tasks for row in rows(split, task)] for split in ("train", "valid")}
    written |= {f"test.{task.strip('<>')}": rows("test", task) for task in tasks}
    written["test.hidden"] = rows("test", own, HIDDEN)
    for name, found in written.items():
        for number, ending in enumerate(("lst", "txt", "transcript.txt")):
            write_lines(output / f"{name}.{ending}", (row[number] for row in found))
    words = write_words(output, (text for _, *both in written["train"] for text in both), HIDDEN)
    beside = {"front": f"<eng> {own}", "dictionary": "dict.txt", "words": len(SPECIALS) + words}
    write_input(output, {**DIGITS, "name": "prompted_audio", **beside})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=(*LANGUAGES,), required=True, help="language of the output")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--copies", type=int, default=1, help="of each sound that trains, all but one changed (default: 1)"
    )
    parser.add_argument(
        "--anew", type=int, default=0, help="times that each number is said anew, by `varied` (default: 0)"
    )
    parser.add_argument(
        "--new", type=int, default=0, help="numbers that the corpus has not, said as those (default: 0)"
    )
    parser.add_argument("--without", default="", help="a speaker who does not train, and alone is tested")
    parser.add_argument("--tasks", action="store_true", help="write the data of a model of three tasks too")
    parser.add_argument("--quick", action="store_true", help="some utterances alone")
    args = parser.parse_args()
    output = args.output.resolve()
    data = output / "data"
    data.mkdir(parents=True, exist_ok=True)
    spoken = write_sounds(data, args)
    write_one(data, spoken, args.target)
    if args.tasks:
        write_tasks(output / "data.owsm", data, spoken, args.target)


if __name__ == "__main__":
    main()
