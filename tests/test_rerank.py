"""Scores of given outputs against plain Python, one pass for many outputs."""

from __future__ import annotations

import math
import random

import pytest
from support.scripted_passes import EOS, Table, TablePasses

from nartk.decoders import rerank
from nartk.decoders.rerank import require_reranker, teacher_forced
from nartk.errors import PassError, StrategyMismatchError


def by_hand(table: Table, source: list[int], output: list[int]) -> list[float]:
    found = []
    for i, word in enumerate(output):
        scores = table.scores_by_hand(source, [EOS, *output[:i]])
        found.append(scores[word] - math.log(sum(math.exp(score) for score in scores)))
    return found


@pytest.mark.parametrize("most", [1, 7, 1024])
def test_given_outputs_get_the_models_log_probabilities(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "_MOST", most)
    rng = random.Random(most)
    scorer = TablePasses(Table(12, seed=3))
    sources = [[*(rng.randrange(4, 12) for _ in range(rng.randint(0, 6))), EOS] for _ in range(5)]
    owners = [rng.randrange(5) for _ in range(20)]
    outputs = [[rng.randrange(12) for _ in range(rng.randint(1, 8))] for _ in owners]
    found = teacher_forced(scorer, sources, owners, outputs)
    for owner, output, scores in zip(owners, outputs, found, strict=True):
        assert scores.tolist() == pytest.approx(by_hand(scorer.table, sources[owner], output), abs=1e-5)
    assert max(len(work.tokens) for work in scorer.passes) <= max(most, *map(len, outputs))
    assert (len(scorer.passes) == 1) == (most == 1024)
    assert scorer.encoded == [5]
    assert scorer.in_use == (0, 0)


def test_nothing_stays_open_when_an_output_is_refused() -> None:
    scorer = TablePasses(Table(12))
    for refused in ([99, EOS], []):
        with pytest.raises(PassError):
            teacher_forced(scorer, [[4, EOS]], [0, 0], [[5, EOS], refused])
    assert scorer.in_use == (0, 0)


def test_no_outputs_take_no_pass() -> None:
    scorer = TablePasses(Table(12))
    assert teacher_forced(scorer, [[4, EOS]], [], []) == []
    assert (scorer.passes, scorer.in_use) == ([], (0, 0))


def test_a_model_that_scores_no_output_is_refused() -> None:
    with pytest.raises(StrategyMismatchError) as caught:
        require_reranker(object(), "rerank")
    assert caught.value.message == "rerank needs a PassScorer, the model it names is none"
    require_reranker(TablePasses(Table(12)), "rerank")
