"""MaxMatch equals the official scorer's output, and a search through every cut of small sentences."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles

from nartk.data.m2 import M2Edit, M2Sentence, read_m2
from nartk.errors import InputFileError, InputTooLongError, LengthMismatchError
from nartk.metrics.m2 import EditCounts, build_lattice, count_edits, m2_score


def _edit(start: int, end: int, correction: str, annotator: int = 0) -> M2Edit:
    return M2Edit(start, end, "X", correction, annotator=annotator)


def _count(source: str, hypothesis: str, *gold: M2Edit, **options: int) -> EditCounts:
    left, right = source.split(), hypothesis.split()
    return count_edits(build_lattice(left, right), left, right, gold, **options)


OWN_EXAMPLE = """S He go in school every days .
A 1 2|||SVA|||goes|||REQUIRED|||-NONE-|||0
A 2 3|||Prep|||to|||REQUIRED|||-NONE-|||0
A 3 3|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0
A 5 6|||Nn|||day|||REQUIRED|||-NONE-|||0

S She sings .
A 1 2|||Vt|||sang|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||-NONE-|||-NONE-|||1

S They discussed about the both plans .
A 2 3|||Prep|||-NONE-|||REQUIRED|||-NONE-|||0
A 3 4|||ArtOrDet|||-NONE-|||REQUIRED|||-NONE-|||0
A 4 4|||Prep|||of|||REQUIRED|||-NONE-|||1
"""


@pytest.mark.parametrize(
    ("system", "printed"),
    [
        ("He goes to a school every day .|She sings .|They discussed both plans .", "1.0000 1.0000 1.0000"),
        (
            "He goes on a school in every days .|She sang .|They discussed about both plans .",
            "0.6667 0.5714 0.6452",
        ),
    ],
)
def test_alternatives_deletions_and_noops_as_the_official_scorer(system: str, printed: str) -> None:
    """What nusnlp/m2scorer at cb874a7 prints."""
    result = m2_score(list(read_m2(OWN_EXAMPLE.splitlines())), system.split("|"))
    numbers = (result.parts["precision"], result.parts["recall"], result.score)
    assert " ".join(f"{number:.4f}" for number in numbers) == printed


@pytest.mark.parametrize("gold", ["both", "ann0"])
@pytest.mark.parametrize("system", ["source", "ann0", "ann1", "mix"])
def test_official_totals_and_annotators(system: str, gold: str) -> None:
    expected = oracles.expected("m2scorer")[f"{system} {gold}"]
    references = oracles.corrections()
    if gold == "ann0":
        references = [M2Sentence(each.source, each.edits_of(0)) for each in references]
    result = m2_score(references, oracles.corrected()[system])
    parts = result.parts
    assert [parts["correct"], parts["proposed"], parts["gold"]] == expected["totals"]
    assert parts["annotators"] == expected["annotators"]
    assert [f"{number:.4f}" for number in (parts["precision"], parts["recall"], result.score)] == expected[
        "printed"
    ]


@pytest.mark.shared
def test_official_totals_and_annotators_on_cweb(shared_data: Path) -> None:
    folder = shared_data / "oracles" / "m2scorer_cweb"
    for name, expected in json.loads((folder / "expected.json").read_text()).items():
        system, _, gold = name.partition("__")
        gold_file = "gold_both.m2.xz" if gold == "both_annotators" else "gold_ann0.m2.xz"
        with lzma.open(folder / gold_file, "rt", encoding="utf-8") as lines:
            references = list(read_m2(lines))
        hypothesis_file = folder / f"hyp_{system.replace('_i%4', '_imod4')}.txt.xz"
        with lzma.open(hypothesis_file, "rt", encoding="utf-8", newline="\n") as lines:
            result = m2_score(references, [line.rstrip("\n") for line in lines])
        parts = result.parts
        assert [parts["correct"], parts["proposed"], parts["gold"]] == list(expected["totals"].values())
        assert parts["annotators"] == expected["chosen_annotator"]


def _cuts(source: str, hypothesis: str, most_unchanged: int) -> Iterator[list[tuple[int, int, str, int]]]:
    """Cuts of every cheapest alignment into edits (start, end, correction, steps); steps 0: unchanged."""

    def distance(i: int, j: int, substitution: int) -> int:
        if i == len(source) or j == len(hypothesis):
            return len(source) - i + len(hypothesis) - j
        diagonal = 0 if source[i] == hypothesis[j] else substitution
        return min(
            distance(i + 1, j, substitution) + 1,
            distance(i, j + 1, substitution) + 1,
            distance(i + 1, j + 1, substitution) + diagonal,
        )

    def steps(i: int, j: int) -> set[tuple[int, int]]:
        """Nodes after (i, j) on a cheapest alignment, which the caller's node is on."""
        found = set()
        for substitution in (1, 2):
            total = distance(0, 0, substitution)
            so_far = _prefix(source[:i], hypothesis[:j], substitution)
            for di, dj in ((1, 0), (0, 1), (1, 1)):
                if i + di > len(source) or j + dj > len(hypothesis):
                    continue
                cost = 1
                if di and dj:
                    cost = 0 if source[i] == hypothesis[j] else substitution
                if so_far + cost + distance(i + di, j + dj, substitution) == total:
                    found.add((i + di, j + dj))
        return found

    def paths(i: int, j: int) -> Iterator[list[tuple[int, int]]]:
        if (i, j) == (len(source), len(hypothesis)):
            yield [(i, j)]
        for following in steps(i, j):
            for rest in paths(*following):
                yield [(i, j), *rest]

    for path in paths(0, 0):
        for borders in product((True, False), repeat=len(path) - 2 if len(path) > 1 else 0):
            ends = [n + 1 for n, border in enumerate(borders) if border]
            cut, legal = [], True
            for a, b in zip([0, *ends], [*ends, len(path) - 1], strict=True):
                pieces = list(zip(path[a:b], path[a + 1 : b + 1], strict=True))
                same = sum(
                    p[0] < q[0] and p[1] < q[1] and source[p[0]] == hypothesis[p[1]] for p, q in pieces
                )
                if same == len(pieces):
                    legal &= same <= 1
                    cut.append((path[a][0], path[b][0], "", 0))
                    continue
                legal &= same <= most_unchanged
                correction = " ".join(hypothesis[path[a][1] : path[b][1]])
                cut.append((path[a][0], path[b][0], correction, len(pieces)))
            if legal:
                yield cut


def _prefix(source: str, hypothesis: str, substitution: int) -> int:
    if not source or not hypothesis:
        return len(source) + len(hypothesis)
    diagonal = 0 if source[-1] == hypothesis[-1] else substitution
    return min(
        _prefix(source[:-1], hypothesis, substitution) + 1,
        _prefix(source, hypothesis[:-1], substitution) + 1,
        _prefix(source[:-1], hypothesis[:-1], substitution) + diagonal,
    )


def _best_cut(source: str, hypothesis: str, gold: list[M2Edit], most_unchanged: int) -> EditCounts:
    """The counts of the best cut: most gold edits, then fewest other steps, then fewest other edits."""
    ranks = []
    for cut in _cuts(source, hypothesis, most_unchanged):
        edits = [edit for edit in cut if edit[3] > 0]
        wanted = [(edit.start, edit.end, edit.correction) for edit in gold]
        other = []
        for start, end, correction, length in edits:
            if (start, end, correction) in wanted:
                wanted.remove((start, end, correction))
            else:
                other.append(length)
        # An unchanged word outside every edit is one step too.
        unchanged = len(cut) - len(edits)
        ranks.append((len(wanted) - len(gold), sum(other) + unchanged, len(other)))
    correct, _, others = min(ranks)
    return EditCounts(-correct, others - correct, len(gold))


@st.composite
def _corrections(draw: st.DrawFn) -> tuple[str, str, list[M2Edit]]:
    source = draw(st.text("abc", max_size=4))
    hypothesis = draw(st.text("abc", max_size=4))
    edits = []
    at = 0
    while at <= len(source) and len(edits) < 3:
        start = draw(st.integers(at, len(source)))
        end = draw(st.integers(start, min(len(source), start + 2)))
        correction = draw(st.text("abc", max_size=2))
        if correction != source[start:end]:
            edits.append(_edit(start, end, " ".join(correction)))
        at = max(end, start + 1)
    return source, hypothesis, edits


@settings(max_examples=150, deadline=None)
@given(_corrections(), st.integers(0, 2))
def test_equals_a_search_through_every_cut(case: tuple[str, str, list[M2Edit]], most_unchanged: int) -> None:
    source, hypothesis, gold = case
    found = _count(" ".join(source), " ".join(hypothesis), *gold, max_unchanged_words=most_unchanged)
    assert found == _best_cut(source, hypothesis, gold, most_unchanged)


def test_an_edit_runs_over_unchanged_words() -> None:
    assert _count("a b c", "x b y") == EditCounts(0, 1, 0)
    assert _count("a b c", "x b y", max_unchanged_words=0) == EditCounts(0, 2, 0)
    assert _count("a b c", "x b y", _edit(0, 1, "x")) == EditCounts(1, 2, 1)
    assert _count("a b c", "x b y", _edit(0, 3, "x b y")) == EditCounts(1, 1, 1)


def test_a_gold_insertion_counts_once() -> None:
    assert _count("a b", "a the the b", _edit(1, 1, "the")) == EditCounts(1, 2, 1)
    both = (_edit(1, 1, "the"), _edit(1, 1, "old"))
    assert _count("a b", "a the old b", *both) == EditCounts(2, 2, 2)


def test_alternatives_and_deletions() -> None:
    assert _count("a b", "a c", _edit(1, 2, "d||c")) == EditCounts(1, 1, 1)
    assert _count("a b", "a", _edit(1, 2, "d||-NONE-")) == EditCounts(1, 1, 1)


def test_case_and_spacing() -> None:
    gold = _edit(0, 2, "In Fact")
    assert _count("on fact yes", "infact yes", gold).correct == 0
    assert _count("on fact yes", "infact yes", gold, ignore_whitespace_casing=True) == EditCounts(1, 1, 1)


def test_degenerate_output_is_scored_in_no_time() -> None:
    repeated = " ".join(["a", "b", "c"] * 800)
    assert _count("a b c d e", repeated, _edit(0, 1, "x")) == EditCounts(0, 1, 1)


def test_too_long_sentences_are_refused_by_number() -> None:
    words = " ".join(map(str, range(1200)))
    gold = [M2Sentence(["a"]), M2Sentence([f"w{n}" for n in range(1000)])]
    with pytest.raises(
        InputTooLongError, match=r"sentence 2: 1000 source tokens against 1200 align in \d+ steps"
    ):
        m2_score(gold, ["a", words])


def test_refuses_files_of_different_lengths() -> None:
    with pytest.raises(LengthMismatchError, match="hypothesis has 1 sentence, but gold has 2"):
        m2_score([M2Sentence(["a"]), M2Sentence(["b"])], ["a"])
    with pytest.raises(InputFileError, match="gold has no sentences"):
        m2_score([], [])
