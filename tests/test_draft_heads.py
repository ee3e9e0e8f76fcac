"""Words are read of given hidden states on both sides, and a drafter outside the package drafts with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import draft_heads
from support.draft_heads import DraftHeads, Heads
from support.engine_models import alone, bits_of, decode, on_engine, random_network
from support.scorers import TransformerReference
from support.transformers_small import random_requests, vocabulary

from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft
from nartk.decoders.loop.length import DraftLength
from nartk.decoders.loop.rows import Row
from nartk.engine import available
from nartk.errors import PassError
from nartk.protocols.aligned import AlignedWords
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import ROOT, Pass, Want

pytestmark = pytest.mark.skipif(not available(), reason="there is no engine here")


def sides(seed: int) -> tuple[Any, Any, Any]:
    network = random_network(random.Random(seed))
    return network, on_engine(network), TransformerReference(network, vocabulary(network.config.tgt_vocab))


@pytest.mark.parametrize("seed", range(4))
def test_words_of_a_passes_own_features_are_the_passes(seed: int) -> None:
    network, engine, reference = sides(seed)
    aligned = AlignedWords(engine, vocabulary(network.config.tgt_vocab + 3))
    for scorer in (engine, reference, aligned):
        memory, context = scorer.encode([[4, 5, 2]]), scorer.open(1)
        line = np.arange(4, dtype=np.int32)
        work = Pass(line + 1, line, line * 0 + memory[0], line * 0 + context[0], line + ROOT)
        scores = scorer.run(work, Want(hidden=True, top=3))
        logits = scores.rows(range(4))
        found = scorer.words(scores.hidden, Want(top=3, only=np.array([1, 3], np.int32)))
        rounded = 2e-6 if scorer is reference else 0.0  # in torch, sums depend on what shares a pass
        for name in ("best", "log_probs", "top", "top_log_probs"):
            wanted = getattr(scores, name)[[1, 3]]
            np.testing.assert_allclose(getattr(found, name), wanted, rtol=0, atol=rounded)
        np.testing.assert_allclose(found.rows([0, 1]), logits[[1, 3]], rtol=0, atol=10 * rounded)
        scorer.commit(scores, [])


class Watched(Heads):
    """Compares each state that is drafted from with what a pass over the whole output computes."""

    asked = late = rested = 0

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        for row in rows:
            known = [*row.prompt, *row.tokens[:-1]]
            line, (context,) = np.arange(len(known), dtype=np.int32), self.scorer.open(1)
            work = Pass(
                np.array(known, np.int32), line, line * 0 + row.memory, line * 0 + context, line + ROOT
            )
            scores = self.scorer.run(work, Want(hidden=True))
            np.testing.assert_array_equal(row.state, scores.hidden[-1])
            self.scorer.commit(scores, [])
            self.scorer.close([context])
            Watched.asked += 1
            Watched.late += row.budget == 0 and row.passes > 1 and not row.drafted  # its first draft
        return super().draft(rows, budgets)

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        Watched.rested += sum(row.budget == 0 and row.passes > 1 for row in rows)
        super().observe(rows, verdicts, verified)


class RandomLength(DraftLength):
    """Lets rows rest at random, one by one and all together."""

    random = random.Random(1)

    def levels(self, rows: Sequence[Row]) -> list[int]:
        everyone = self.random.random() < 0.3
        return [0 if everyone or self.random.random() < 0.4 else self.random.randint(1, 4) for _ in rows]


@pytest.fixture
def near_identity(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def set_matrices(seed: int, size: int) -> None:
        noise = (np.random.default_rng(seed).standard_normal((3, size, size)) * 0.2).astype(np.float32)
        monkeypatch.setattr(DraftHeads, "matrices", [np.eye(size, dtype=np.float32) + each for each in noise])

    return set_matrices


def test_drafts_of_heads_leave_greedy_search_as_it_is(near_identity: Callable[[int, int], None]) -> None:
    """With heads near the identity on random networks: tokens and bits, alone and in batches."""
    accepted = rejected = 0
    for seed in range(12):
        network, engine, reference = sides(seed)
        near_identity(seed, network.config.d_model)
        requests = some_requests(network, seed)
        wanted = alone(engine, requests)
        for size in (1, 2, 32):
            found = decode(DraftHeads(adaptive=False), engine, requests, batch_size=size)
            assert bits_of(found) == wanted
            accepted += sum(each.accepted for each in found)
            rejected += sum(each.drafted - each.accepted for each in found)
        on_torch = decode(DraftHeads(adaptive=False), reference, requests, batch_size=3)
        same = [a[0] == b.hypotheses[0].tokens for a, b in zip(wanted, on_torch, strict=True)]
        assert sum(same) >= len(same) - 1  # near ties may fall either way
    assert min(accepted, rejected) > 50


@pytest.mark.adaptive
def test_heads_are_asked_where_the_last_pass_is_known(
    monkeypatch: pytest.MonkeyPatch, near_identity: Callable[[int, int], None]
) -> None:
    """Whatever rested, alone and in batches: a row drafts from the states of its last pass, bit for bit."""
    monkeypatch.setattr(DraftHeads, "make_drafter", lambda self, scorer: Watched(scorer, self.matrices))
    monkeypatch.setattr("nartk.decoders.loop.loop.DraftLength", RandomLength)
    for seed in range(12):
        network, engine, _ = sides(seed)
        near_identity(seed, network.config.d_model)
        requests = some_requests(network, seed)
        wanted = alone(engine, requests)
        for size in (1, 2, 32):
            assert bits_of(decode(DraftHeads(), engine, requests, batch_size=size)) == wanted
    assert min(Watched.asked, Watched.rested, Watched.late) > 30


def some_requests(network: Any, seed: int) -> list[Request]:
    longest = min(network.config.max_source_len - 1, 9)
    return random_requests(
        random.Random(seed), 5, network.config.src_vocab, longest=longest, limits=[2, 7, 12]
    )


def test_it_is_written_in_forty_lines() -> None:
    code = Path(draft_heads.__file__).read_text().partition("@dataclass")[2].splitlines()
    assert len([line for line in code if line.strip()]) <= 40


def test_features_of_another_size_are_refused() -> None:
    network, engine, _ = sides(1)
    with pytest.raises(PassError, match="features of another size"):
        engine.words(np.zeros((2, network.config.d_model + 1), np.float32), Want())
