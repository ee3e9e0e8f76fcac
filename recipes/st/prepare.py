"""Makes the lists, translations and words of the recipe of speech translation.

python recipes/st/prepare.py --target de|fr|en --output OUT [--copies N] [--anew N] [--new N]
                             [--without SPEAKER] [--tasks] [--quick]
    OUT/data/{train,valid,test}.tsv, lists of spoken numbers; OUT/data/{train,valid,test}.txt, their
    translations, and .transcript.txt, what is said; OUT/data/input.json, how they are read, with the
    OUT/data/cmvn.json that features are normalised by; OUT/data/dict.txt, the words
    OUT/data.owsm with --tasks: the same sounds, each to be written down and translated into both languages;
    OUT/data.owsm/test.TASK.lst and .txt for each task, and test.hidden.lst, where the language is not told
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "asr"))

from corpora import Utterance
from english import Spoken, write_sounds, write_words
from sounds import DIGITS, STATISTICS, write_input, write_lines, write_split, write_statistics

from nartk.vocab import SPECIALS

# Target languages, with the task that OWSM calls each: of English it is recognition.
TASKS = {"en": "<asr>", "de": "<st_deu>", "fr": "<st_fra>"}
HIDDEN = "<nolang>"


def text_in(language: str, utterance: Utterance) -> str:
    """The words of an utterance in a target language."""
    return utterance.translations.get(language, utterance.text)


def write_one(output: Path, spoken: Spoken, target: str) -> None:
    """Writes the data of models of one task."""
    for split, rows in spoken.items():
        texts = [(path, text_in(target, each)) for path, each in rows]
        write_split(output, split, texts, output)
        write_lines(output / f"{split}.transcript.txt", (each.text for _, each in rows))
    write_words(output, (text_in(target, each) for _, each in spoken["train"]))
    write_input(output, DIGITS)
    write_statistics(output, DIGITS)


def write_tasks(output: Path, sounds: Path, spoken: Spoken, target: str) -> None:
    """Writes the data of a model of three tasks, whose words stand in front of the sound and of the text."""
    output.mkdir(exist_ok=True)
    (output / STATISTICS).write_bytes((sounds / STATISTICS).read_bytes())

    def rows(split: str, target: str, language: str = "<eng>") -> list[tuple[str, str, str]]:
        """Lines, texts and transcripts of a part for a task."""
        task = TASKS[target]
        return [
            (f"{sounds / path}\t{language} {task}", f"<eng> {task} {text_in(target, each)}", each.text)
            for path, each in spoken[split]
        ]

    written = {split: [row for each in TASKS for row in rows(split, each)] for split in ("train", "valid")}
    written |= {f"test.{task.strip('<>')}": rows("test", each) for each, task in TASKS.items()}
    written["test.hidden"] = rows("test", target, HIDDEN)
    for name, found in written.items():
        for number, ending in enumerate(("lst", "txt", "transcript.txt")):
            write_lines(output / f"{name}.{ending}", (row[number] for row in found))
    words = write_words(output, (text for _, *both in written["train"] for text in both), HIDDEN)
    beside = {"front": f"<eng> {TASKS[target]}", "dictionary": "dict.txt", "words": len(SPECIALS) + words}
    write_input(output, {**DIGITS, "name": "prompted_audio", **beside})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=(*TASKS,), required=True, help="language of the output")
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
