"""The corpora of the recipe: reads them from the public data sets, and builds the parts that ship.

A maintainer builds once; users need only the result. Each set keeps its licence: see
data/corpora/LICENSES.md.

    python recipes/summarization/corpora.py --data FOLDER --output data/corpora
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gec"))

from build_corpora import read, write

Text = tuple[str, ...]  # a source and its targets, the best known first

SHIPPED = {"wikisplit": {"train": 1500, "test": 300}, "scitldr": {"train": 600, "dev": 150}}  # first lines


def one_line(text: str) -> str:
    return " ".join(text.split())


def onestopenglish(data: Path) -> Iterator[Text]:
    """Triples of the two levels, such as ADV-ELE, and a sentence in the harder and in the easier one."""
    for name, turned in (("ADV-ELE", False), ("ADV-INT", False), ("ELE-INT", True)):
        for line in read(data / f"onestopenglish/{name}.tsv.xz"):
            first, second = map(one_line, line.split("\t"))
            yield ("INT-ELE", second, first) if turned else (name, first, second)


def wikisplit(data: Path, part: str) -> Iterator[Text]:
    """Pairs of a sentence and the two that it was split into."""
    files = {"train": ("tune", "validation"), "test": ("test_first2500",)}[part]
    for name in files:
        for line in read(data / f"wikisplit/{name}.tsv.xz"):
            whole, parts = line.split("\t")
            yield one_line(whole), one_line(parts.replace("<::::>", " "))


def scitldr(data: Path, part: str) -> Iterator[Text]:
    """An abstract and its summaries of one sentence, the authors' first."""
    for line in read(data / f"scitldr_a/{part}.jsonl.xz"):
        found = json.loads(line)
        yield one_line(" ".join(found["source"])), *map(one_line, found["target"])


READERS = {"wikisplit": wikisplit, "scitldr": scitldr}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the unpacked public data sets")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    write(args.output / "onestopenglish.tsv.xz", map("\t".join, onestopenglish(args.data)))
    for name, parts in SHIPPED.items():
        for part, many in parts.items():
            texts = islice(READERS[name](args.data, part), many)
            write(args.output / f"{name}.{part}.tsv.xz", map("\t".join, texts))


if __name__ == "__main__":
    main()
