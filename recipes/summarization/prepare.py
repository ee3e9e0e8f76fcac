"""Makes the text of the summarization recipe.

python recipes/summarization/prepare.py simplify|scitldr --output OUT [--data DIR] [--quick]
    OUT/{train,valid}.{src,trg}, and for each test set NAME OUT/NAME.src and OUT/NAME.ref0, .ref1 and so on

Without DIR from the parts that ship, with it from the whole sets. A sentence with fewer references than
others of its test set has empty lines in their place.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import corpora
from corpora import Text

from nartk.data.text import read_shipped

QUICK = {"train": 1500, "valid": 100, "test": 30}  # texts
HELD_OUT = {"valid": 150, "test": 200}  # pairs of OneStopEnglish: the last of those of ADV-ELE
VALID_OF_WIKISPLIT = 1000  # of validation, the last lines; of the part that ships a tenth of train
ASSET = 10  # references

Corpus = dict[str, Sequence[Text]]  # train, valid and the test sets by name


def shipped(name: str) -> Iterable[Text]:
    return (tuple(line.split("\t")) for line in read_shipped(f"{name}.tsv.xz"))


def onestopenglish(texts: Iterable[Text]) -> Corpus:
    """Trains on all pairs of levels but those with a sentence that is held out."""
    every = [(level, (harder, easier)) for level, harder, easier in texts]
    widest = [pair for level, pair in every if level == "ADV-ELE"]
    test, valid = widest[-HELD_OUT["test"] :], widest[-sum(HELD_OUT.values()) : -HELD_OUT["test"]]
    held = {sentence for pair in (*test, *valid) for sentence in pair}
    train = [pair for _, pair in every if not held.intersection(pair)]
    return {"train": train, "valid": valid, "onestop": test}


def asset(folder: Path) -> list[Text]:
    """The validation part of ASSET. It is for measuring alone: its licence is non-commercial."""

    def lines(name: str) -> list[str]:
        text = lzma.decompress((folder / f"asset.valid.{name}.xz").read_bytes()).decode()
        return [corpora.one_line(line) for line in text.removesuffix("\n").split("\n")]

    return list(zip(lines("orig"), *(lines(f"simp.{number}") for number in range(ASSET)), strict=True))


def simplify(data: Path | None) -> Corpus:
    """OneStopEnglish and WikiSplit together: from a sentence to easier ones."""
    if data is None:
        corpus = onestopenglish(shipped("onestopenglish"))
        pairs = list(shipped("wikisplit.train"))
        wikisplit = {"valid": pairs[-len(pairs) // 10 :], "train": pairs[: -len(pairs) // 10]}
        corpus["wikisplit"] = list(shipped("wikisplit.test"))
    else:
        corpus = onestopenglish(corpora.onestopenglish(data))
        pairs = list(corpora.wikisplit(data, "train"))
        wikisplit = {"valid": pairs[-VALID_OF_WIKISPLIT:], "train": pairs[:-VALID_OF_WIKISPLIT]}
        corpus["wikisplit"] = list(corpora.wikisplit(data, "test"))
        if (data / "asset").is_dir():
            corpus["asset"] = asset(data / "asset")
    for part, pairs in wikisplit.items():
        # By turns, so that the first lines, which are all that --quick takes, are of both.
        both = zip_longest(corpus[part], pairs)
        corpus[part] = [pair for turn in both for pair in turn if pair is not None]
    return corpus


def scitldr(data: Path | None) -> Corpus:
    """Abstracts and their summaries. The test set is not public with its texts: two thirds of dev serve."""
    if data is None:
        train, dev = (list(shipped(f"scitldr.{part}")) for part in ("train", "dev"))
    else:
        train, dev = (list(corpora.scitldr(data, part)) for part in ("train", "dev"))
    split = 2 * len(dev) // 3
    return {"train": train, "valid": dev[split:], "scitldr": dev[:split]}


TASKS = {"simplify": simplify, "scitldr": scitldr}


def write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for name, texts in TASKS[args.task](args.data).items():
        kept = texts[: QUICK[name if name in QUICK else "test"]] if args.quick else texts
        sources, *targets = zip_longest(*kept, fillvalue="")
        write(args.output / f"{name}.src", sources)
        if name in QUICK:
            write(args.output / f"{name}.trg", targets[0])
        else:
            for number, lines in enumerate(targets):
                write(args.output / f"{name}.ref{number}", lines)
        print(f"{name}: {len(kept)} texts, {len(targets)} targets", file=sys.stderr)


if __name__ == "__main__":
    main()
