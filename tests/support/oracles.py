"""The texts that the original metrics were run on, with what they printed in tests/oracles.

All texts ship with nartk. ``python -m support.oracles FOLDER``, in tests/, writes them as the programs read
them.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

from nartk.data.m2 import M2Sentence, apply_edits, read_m2, write_m2

ORACLES = Path(__file__).resolve().parents[1] / "oracles"
CORPORA = ORACLES.parents[1] / "data" / "corpora"
ITEMS = 100  # of each corpus of summaries


def expected(name: str) -> Any:
    """What the original program printed."""
    return json.loads((ORACLES / f"{name}.json").read_text(encoding="utf-8"))


def corrections() -> list[M2Sentence]:
    """Ukrainian sentences, each corrected by annotators 0 and 1."""
    with lzma.open(ORACLES / "ua_gec.m2.xz", "rt", encoding="utf-8", newline="\n") as lines:
        return list(read_m2(lines))


def corrected() -> dict[str, list[str]]:
    """The sources, hypotheses for them, and references of which no two are alike, by name."""
    sentences = corrections()
    source = [" ".join(sentence.source) for sentence in sentences]
    one, two = ([" ".join(apply_edits(sentence, i)) for sentence in sentences] for i in (0, 1))
    shorter = [line.rpartition(" ")[0] for line in two]
    columns = list(zip(source, one, two, shorter, strict=True))
    return {
        "source": source,
        "ann0": one,
        "ann1": two,
        "mix": [columns[i][i % 4] for i in range(len(columns))],
        "ref2": [columns[i][i % 2] for i in range(len(columns))],
        "ref3": [columns[i][(i // 2 + 1) % 4] for i in range(len(columns))],
    }


def references(names: str) -> list[list[str]]:
    """The columns of `corrected` that are references 0 to 3, by their digits."""
    texts = corrected()
    return [texts[("ann0", "ann1", "ref2", "ref3")[int(digit)]] for digit in names]


def rows(name: str) -> list[list[str]]:
    """The columns of a shipped corpus, line by line."""
    with lzma.open(CORPORA / name, "rt", encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\n").split("\t") for line in lines]


def summaries(name: str) -> list[tuple[str, list[str]]]:
    """Hypotheses with one reference of wikisplit, with one to three of scitldr."""
    if name == "wikisplit":
        return [(row[0], row[1:]) for row in rows("wikisplit.test.tsv.xz")[:ITEMS]]
    # The first sentence of an abstract stands for its summary.
    return [(row[0].partition(". ")[0] + ".", row[1:]) for row in rows("scitldr.dev.tsv.xz")[:ITEMS]]


def translations() -> dict[str, list[str]]:
    """References, systems that copy their source, and three that lose a word here and gain a line there."""
    source, target = zip(*rows("wikisplit.test.tsv.xz"), strict=True)
    texts = {"ref": list(target), "copied": list(source)}
    for every, gain, loss in ((30, 0, 10), (20, 0, 10), (20, 1, 2)):
        texts[f"mixed{every}.{gain}.{loss}"] = [
            target[i] if i % every == gain else line.rpartition(" ")[0] if i % every > loss else line
            for i, line in enumerate(source)
        ]
    return texts


def write(folder: Path) -> None:
    def text(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    for name, lines in corrected().items():
        text(name, lines)
    for name, lines in translations().items():
        text(f"{name}.txt", lines)
    sentences = corrections()
    text("both.m2", [line.rstrip("\n") for line in write_m2(sentences)])
    alone = [M2Sentence(sentence.source, sentence.edits_of(0)) for sentence in sentences]
    text("ann0.m2", [line.rstrip("\n") for line in write_m2(alone)])
    for name in ("wikisplit", "scitldr"):
        lists = []
        for i, (hypothesis, texts) in enumerate(summaries(name)):
            files = [f"{name}.{i}.{j}" for j in range(len(texts) + 1)]
            for file, content in zip(files, [hypothesis, *texts], strict=True):
                text(file, [content])
            lists.append(" ".join(files))
        text(f"{name}.spl", lists)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
