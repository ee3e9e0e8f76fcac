"""Makes pairs of real English errors and their corrections of corpora whose licences allow that.

    python recipes/gec/real_pairs.py --data FOLDER --output FOLDER

Writes train and dev, each as .src and .trg, and both again for each source: eracond, ewt_typos, ewt_right,
mlqe. Of ErAConD part 5 trains; dev is part 2 with the sentences of part 4 that are not in part 3; parts 1 and
3 are its test half and go nowhere. Of MLQE-PE only what looks like a learner's errors is kept: see
`local_edits`. ewt_right has headings, fragments and lists of the treebank, which have to stay as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from build_corpora import is_prose, plain, read, treebank, ud_ewt

from nartk.data.gec.rates import align, classify
from nartk.data.m2 import M2Edit, M2Sentence, apply_edits, read_m2
from nartk.data.text import tokenize

Pair = tuple[str, str]
LANGUAGES = ("et", "ro", "ru")  # whose translations were post-edited; those from Nepali and Sinhala are worse
LONGEST = 60  # tokens
MOST_HTER = 0.3
MOST_EDITS = 4  # in a translation, of all kinds
# Types of edits that learners' English needs as often as translations do. A verb's form changes with the time
# that the source speaks of, and a pronoun with its persons, so that these two are not among them.
_LOCAL = """
    article preposition noun_number agreement confusion derivation order missing extra spelling spacing
"""
LOCAL = frozenset(_LOCAL.split())


def tokenised(text: str) -> str:
    return " ".join(tokenize(plain(text)))


def eracond(folder: Path, part: int) -> Iterator[Pair]:
    """A part's sentences with each annotator's correction, then the lines as they were typed."""
    for sentence in read_m2(read(folder / f"gec/eracond/part{part}.m2.xz"), outside=lambda _: None):
        for annotator in sentence.annotators:
            yield tokenised(" ".join(sentence.source)), tokenised(" ".join(apply_edits(sentence, annotator)))
    with tarfile.open(folder / "gec/eracond/data.tar.xz") as files:
        names = sorted(name for name in files.getnames() if name.startswith(f"data/{part}/orig/"))
        for name in names:
            typed, right = (
                files.extractfile(path).read().decode("utf-8-sig").splitlines()  # type: ignore[union-attr]
                for path in (name, name.replace("/orig/", "/corr/"))
            )
            if len(typed) == len(right):
                yield from zip(map(tokenised, typed), map(tokenised, right), strict=True)


def ewt_typos(folder: Path) -> Iterator[Pair]:
    """Sentences of the treebank's training part with marked typos, and the forms that belong there."""
    for each in treebank(folder):
        source, target = tokenised(each.text), tokenised(each.corrected)
        if source != target and is_prose(target.split(" ")):
            yield source, target


def ewt_right(folder: Path) -> Iterator[Pair]:
    """Pairs without an error of all that is no prose and has no marked typo in the treebank's training part.

    Sentences without a first capital are left out, which learners' text should have corrected.
    """
    for text in ud_ewt(folder):
        line = tokenised(text)
        tokens = line.split(" ")
        is_lower = len(tokens) > 3 and line[0].islower()
        if 0 < len(tokens) <= LONGEST and not is_lower and not is_prose(tokens):
            yield line, line


def local_edits(source: list[str], target: list[str]) -> list[str] | None:
    """The source with every edit made but the local ones: of a post-edited translation, the text whose
    correction is the target. None where no edit is local, too many are not, or such edits touch.
    """
    edits = [edit for edit in align(source, target) if not edit.is_noop]
    if not 0 < len(edits) <= MOST_EDITS:
        return None
    kept: list[M2Edit] = []
    made: list[M2Edit] = []
    for edit in edits:
        (made, kept)[_is_local(source, edit)].append(edit)
    touches = any(a.start - 1 <= b.end and b.start <= a.end + 1 for a in kept for b in made)
    return apply_edits(M2Sentence(source, made)) if kept and not touches else None


def _is_local(source: list[str], edit: M2Edit) -> bool:
    wrong, right = source[edit.start : edit.end], edit.alternatives[0]
    error_type = classify(wrong, right)
    words = [*wrong, *right]
    if error_type == "punctuation":
        return words == [","]
    if any(word[:1].isupper() for word in words) and error_type not in ("casing", "article"):
        return False
    return error_type in LOCAL and all(re.fullmatch(r"[a-zA-Z'-]+", word) for word in words)


def mlqe(folder: Path, part: str) -> Iterator[Pair]:
    """Post-edited translations of a part, without the edits that need their source."""
    for language in LANGUAGES:
        for line in read(folder / f"gec/mlqe_pe_en/{language}-en.{part}.tsv.xz"):
            translation, edited, hter = line.split("\t")
            source, target = (tokenised(text).split(" ") for text in (translation, edited))
            if float(hter) > MOST_HTER or not is_prose(target) or re.search(r"\d :|: \d|::", edited):
                continue
            found = source if source == target else local_edits(source, target)
            if found and found[-1] == target[-1] and len(found) <= LONGEST:
                yield " ".join(found), " ".join(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the unpacked public data sets")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    data = args.data
    held_out = {source for part in (1, 3) for source, _ in eracond(data, part)}
    made: dict[str, dict[str, list[Pair]]] = {
        "train": {
            "eracond": list(eracond(data, 5)),
            "ewt_typos": list(ewt_typos(data)),
            "ewt_right": list(ewt_right(data)),
            "mlqe": [pair for part in ("train", "test20") for pair in mlqe(data, part)],
        },
        "dev": {
            "eracond": [*eracond(data, 2), *eracond(data, 4)],
            "mlqe": list(mlqe(data, "dev")),
        },
    }
    seen = {source for pairs in made["dev"].values() for source, _ in pairs} | held_out
    for part, sources in made.items():
        barred = held_out if part == "dev" else seen
        kept = {
            name: [*dict.fromkeys(pair for pair in pairs if all(pair) and pair[0] not in barred)]
            for name, pairs in sources.items()
        }
        kept[""] = [pair for pairs in kept.values() for pair in pairs]
        for name, pairs in kept.items():
            for side, suffix in enumerate(("src", "trg")):
                path = args.output / ".".join(filter(None, (name, part, suffix)))
                path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
            changed = sum(source != target for source, target in pairs)
            print(f"{part} {name or 'all'}: {len(pairs)} pairs, {changed} changed", file=sys.stderr)


if __name__ == "__main__":
    main()
