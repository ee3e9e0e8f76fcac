"""Fits the guard of an English correction model, and writes it into the model's folder.

    python recipes/gec/fit_guard.py MODEL [--m2 FILE ...] [--sentences 600] [--seed 1] [--edit 0]

The words are those of the shipped text and of codespell's corrections, as they are usually written, without
known misspellings. The thresholds are fitted on OneStopEnglish and Tatoeba, noised as the training data are,
and on the M2 files, if there are any: sentences as they are, two and three of them joined by "and", and two
by nothing. An output is damaged that lacks more than a third of the source's words, or is further from the
reference than the source is, by more than a fifth of the words and more than two; it costs as many edits. Any
other one is worth the edits that it is nearer, and one more. Each threshold is set, one after the other until
none moves, to where what lies beyond is worth least; one that is worth nothing, to where no sound output lies
beyond. A single edit's least probability is given (`evaluate.py --confidence` compares some).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import nartk
from nartk.data.gec.lexicon import misspellings
from nartk.data.gec.noise import Noiser, annotate
from nartk.data.gec.rates import DEFAULT_RATES, load_rates
from nartk.data.m2 import apply_edits, read_m2
from nartk.data.text import read_corpus, read_shipped, tokenize
from nartk.processors.guard import BOUNDS, KEY, LIST, Guard, Thresholds

WORDS = "words.txt"
SHORT, OFTEN = 3, 20  # letters of a word that must be in the text so often: there are many initials
OPEN = Thresholds(-99, -99, 0, 99, 1e9, 0, 0, 1, 0)  # all outputs are sound
KEPT = 2 / 3  # share of the source's words below which an output is damaged
DAMAGED, MILD = 0.2, 2  # share of the words, and edits, that an output may be further off
ROUNDS = 10  # at most
Pair = tuple[list[str], list[str]]  # source and reference


def word_list() -> list[str]:
    """The words of the language, in the order of the alphabet, each as it is usually written."""
    written: dict[str, Counter[str]] = defaultdict(Counter)
    word = re.compile(r"[^\W\d_]+")
    for tokens in read_corpus():
        for i, token in enumerate(tokens):
            if word.fullmatch(token):
                written[token.lower()][token] += 10 if i else 1  # the first one has a capital anyway
    wrong = {each for wrongs in misspellings().values() for each in wrongs}
    found = {
        lower: max(counts, key=lambda each: counts[each])
        for lower, counts in written.items()
        if lower not in wrong and (len(lower) > SHORT or counts.total() >= 10 * OFTEN)
    }
    for right in misspellings():
        for part in word.findall(right):
            found.setdefault(part.lower(), part)
    return [found[lower] for lower in sorted(found)]


def sentences(m2: Sequence[Path], most: int, seed: int) -> Iterator[list[Pair]]:
    """The pairs of each source of text, in a random order."""
    rng = random.Random(seed)
    clean = {
        text: None
        for line in read_shipped("onestopenglish.tsv.xz")
        for text in line.split("\t")
        if 4 < len(text.split()) < 60 and text[:1].isupper()
    }
    # Tatoeba's sentences are short: one edit is a large share of their words.
    short = (line.split() for line in read_shipped("tatoeba.txt.xz"))
    noiser = Noiser(load_rates(DEFAULT_RATES), seed)
    for texts in (map(tokenize, clean), short):
        chosen = list(texts)
        rng.shuffle(chosen)
        yield [(noiser.noise_line(annotate(text), i, 0), text) for i, text in enumerate(chosen[:most])]
    for path in m2:
        with path.open(encoding="utf-8") as file:
            pairs = [
                (each.source, apply_edits(each))
                for each in read_m2(file, name=str(path), outside=print)
                if each.source
            ]
        rng.shuffle(pairs)
        yield pairs[:most]


def joined(pairs: Sequence[Pair], count: int, by: Sequence[str]) -> list[Pair]:
    """Pairs of so many sentences each, without what ended all but the last."""

    def join(sides: Sequence[list[str]]) -> list[str]:
        found: list[str] = []
        for i, tokens in enumerate(sides):
            inner = tokens[:-1] if tokens[-1:] in (["."], ["!"], ["?"]) and i + 1 < len(sides) else tokens
            if found:
                found += by
                inner = [inner[0][:1].lower() + inner[0][1:], *inner[1:]] if by and inner else inner
            found += inner
        return found

    groups = [pairs[i : i + count] for i in range(0, len(pairs) - count + 1, count)]
    return [
        (join([source for source, _ in group]), join([target for _, target in group])) for group in groups
    ]


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Insertions, deletions and substitutions of tokens between two sentences."""
    ids: dict[str, int] = {}
    left, right = (np.array([ids.setdefault(token, len(ids)) for token in side], int) for side in (a, b))
    row = np.arange(len(right) + 1)
    ramp = np.arange(len(right) + 1)
    for i, token in enumerate(left, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (right != token))
        row = np.minimum.accumulate(np.concatenate([[i], best]) - ramp) + ramp
    return int(row[-1])


@dataclass(frozen=True)
class Case:
    """A sentence whose output the guard is to judge."""

    source: list[str]
    target: list[str]
    written: list[str]
    scores: tuple[float, ...]


def cases(model: nartk.Model, pairs: Sequence[Pair]) -> list[Case]:
    """Outputs of a model for the sources, one by one, without a guard."""
    model = replace(model, pretokenized=True, guard=False)
    found = []
    hypotheses = model.decode([" ".join(source) for source, _ in pairs], "greedy")
    for (source, target), hypothesis in zip(pairs, hypotheses, strict=True):
        if hypothesis.error is None and hypothesis.positional_scores:
            output = model.checkpoint.output
            written = output.decode(hypothesis.tokens).split()
            found.append(Case(source, target, written, hypothesis.positional_scores))
    return found


def evidence(guard: Guard, found: Sequence[Case]) -> tuple[np.ndarray, np.ndarray]:
    """Values [N, 8] in the order of `BOUNDS`, and what outputs are worth [N]."""
    rows, worth = [], []
    for case in found:
        tokens, _ = guard.mend(case.source, case.written)
        if tokens == case.source:
            continue
        values = guard.evidence(case.source, tokens, case.scores)
        rows.append([values[name] for name in BOUNDS])
        gain = distance(case.source, case.target) - distance(tokens, case.target)
        is_damaged = -gain > max(MILD, DAMAGED * len(case.source)) or values["words"] < KEPT
        worth.append(min(gain, -1) if is_damaged else 1 + max(0, gain))
    return np.array(rows, float), np.array(worth, float)


def sound(values: np.ndarray, limits: Mapping[str, float], but: str = "") -> np.ndarray:
    """Mask [N] of the outputs within all thresholds, or all but one."""
    found = np.ones(len(values), bool)
    for i, (name, (_, is_most)) in enumerate(BOUNDS.items()):
        if name != but:
            found &= values[:, i] <= limits[name] if is_most else values[:, i] >= limits[name]
    return found


def fit(values: np.ndarray, worth: np.ndarray) -> Thresholds:
    """The thresholds at which what is sound is worth most."""
    limits = asdict(OPEN)
    for _ in range(ROUNDS):
        before = dict(limits)
        for i, (name, (_, is_most)) in enumerate(BOUNDS.items()):
            rest = sound(values, limits, but=name)
            limits[name] = _threshold(values[rest, i], worth[rest], is_most)
        if limits == before:
            break
    return Thresholds(**limits)


def _threshold(values: np.ndarray, worth: np.ndarray, is_most: bool) -> float:
    """The bound beyond which all values together are worth least; where that is nothing, no sound one."""
    order = np.argsort(-values if is_most else values, kind="stable")
    ordered, total = values[order], np.cumsum(worth[order])
    ends = np.flatnonzero(ordered[1:] != ordered[:-1])  # the last of equal values, but for the mildest
    if len(ends) and total[ends].min() < 0:
        best = ends[np.argmin(total[ends])]
        return float(np.round((ordered[best] + ordered[best + 1]) / 2, 3))
    extreme = ordered[np.argmax(worth[order] > 0)]
    return float((np.ceil if is_most else np.floor)(100 * extreme) / 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model")
    parser.add_argument("--m2", type=Path, nargs="*", default=[], metavar="FILE", help="corrected sentences")
    parser.add_argument("--sentences", type=int, default=600, metavar="N", help="most of each source of text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--edit", type=float, default=0.0, metavar="P", help="least probability of an edit")
    args = parser.parse_args()
    path = args.model / WORDS
    path.write_text("\n".join(word_list()) + "\n", encoding="utf-8")
    write(args.model, OPEN)
    model = nartk.load(args.model)
    found: list[Case] = []
    for pairs in sentences(args.m2, args.sentences, args.seed):
        several = [*joined(pairs, 2, ["and"]), *joined(pairs, 3, ["and"]), *joined(pairs, 2, [])]
        found += cases(model, [*pairs, *several])
    values, worth = evidence(Guard(OPEN, path), found)
    if not len(worth):
        print("the model changes no sentence: there is nothing to fit, and all outputs are sound")
        return
    limits = replace(fit(values, worth), edit=args.edit)
    refused = ~sound(values, asdict(limits))
    print(
        f"{len(worth)} outputs with edits, {np.sum(worth < 0)} damaged; refused: {np.sum(refused)}, "
        f"{np.sum(worth[refused] < 0)} of them damaged"
    )
    print(json.dumps(asdict(limits)))
    write(args.model, limits)


def write(folder: Path, limits: Thresholds) -> None:
    """Puts thresholds, and the list of words that lies there, into a model folder's configuration."""
    change(folder, {**asdict(limits), LIST: WORDS}, WORDS)


def declare(folder: Path, key: str, name: str) -> None:
    """Names a file that lies in a model folder in the configuration of its guard."""
    change(folder, {key: name}, name)


def change(folder: Path, settings: Mapping[str, object], name: str) -> None:
    """Changes settings of a model folder's guard, and puts down the hash of the file that they name."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = config.pop("files")
    files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    config[KEY] = {**config.get(KEY, {}), **settings}
    config["files"] = dict(sorted(files.items()))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
