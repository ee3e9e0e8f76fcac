"""Momentum decoding is that of the authors' program, and drafts verify it.

tests/oracles/momentum.json holds what the program gives. That every strategy that promises greedy search's
output keeps to it, and that forgetting it is noticed, tests/test_constraints.py and test_draft_loop.py show.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.engine_models import TYPES, alone, bits_of, on_engine
from support.real_passes import RealPasses
from support.realtable import random_transformer
from support.scorers import TransformerReference
from support.scripted_passes import EOS, decode, outputs_of
from support.small_passes import Near, drafting

from nartk.decoders.loop import momentum
from nartk.decoders.loop.momentum import recurring
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy
from nartk.vocab import Vocab

ORACLE = json.loads((Path(__file__).parent / "oracles" / "momentum.json").read_text(encoding="utf-8"))
WORDS = 30
VOCAB = Vocab.from_words([f"w{i}" for i in range(WORDS - 4)])


def test_repeated_ngrams_are_as_long_as_the_program_finds_them() -> None:
    """After all prefixes of three words up to length 7."""
    prefixes = [each for size in range(1, 8) for each in itertools.product(range(3), repeat=size)]
    found = "".join(str(recurring(prefix, word)) for prefix in prefixes for word in range(3))
    assert found == ORACLE["lengths"]
    assert {*found} == {*"012345"}


def differing_outputs() -> tuple[int, int]:
    """Outputs that are not the program's, and outputs that are not greedy search's."""
    wrong = moved = 0
    for each in ORACLE["outputs"]:
        scorer = RealPasses(12, seed=each["seed"], copying=each["copying"])
        request = Request(0, tuple(each["source"]), 24, prefix=tuple(each["prefix"]))
        for name, options in (("greedy", {}), ("iad", {"max_draft": 6})):
            found = outputs_of(
                decode(make_strategy(name, each["options"] | options), scorer, [request], batch_size=1)
            )
            wrong += found != [each["tokens"]]
        moved += outputs_of(decode(make_strategy("greedy", {}), scorer, [request], batch_size=1)) != found
    return wrong, moved


def test_outputs_are_the_programs() -> None:
    wrong, moved = differing_outputs()
    assert (wrong, moved > 20) == (0, True)


def test_another_resistance_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(momentum, "RESISTANCE", (0.0, 1.0, 2.0, 3.0, 4.0, 5.0))
    assert differing_outputs()[0] > 0


@pytest.mark.parametrize("type", TYPES)
def test_drafts_and_batches_change_no_bit_on_the_engine(type: str) -> None:
    moved = accepted = 0
    for seed in range(3):
        rng = random.Random(seed)
        scorer = on_engine(random_transformer(seed, WORDS), type=type)
        sources = [(*rng.choices(range(4, WORDS), k=rng.randint(1, 9)), EOS) for _ in range(6)]
        requests = [Request(i, source, 24) for i, source in enumerate(sources)]
        options = {"momentum": 0.2, "momentum_top": 4}
        greedy = make_strategy("greedy", options)
        wanted = bits_of(decode(greedy, scorer, requests, batch_size=1))
        moved += wanted != alone(scorer, requests)
        for name in ("greedy", "iad", "recycling", "ngram", "union"):
            extra = {} if name == "greedy" else {"adaptive": False}
            results = decode(make_strategy(name, options | extra), scorer, requests, batch_size=4)
            assert bits_of(results) == wanted
            accepted += sum(each.accepted for each in results)
    assert moved == 3
    assert accepted > 0


def test_the_engines_outputs_are_the_references() -> None:
    model = random_transformer(1, WORDS)
    requests = [Request(i, (*range(4 + i, 9 + i), EOS), 24) for i in range(8)]
    strategy = make_strategy("greedy", {"momentum": 0.1})
    found, wanted = (
        outputs_of(decode(strategy, scorer, requests, batch_size=3))
        for scorer in (on_engine(model), TransformerReference(model, VOCAB))
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_strategy("greedy", {"momentum_top": 3}).constraints(VOCAB),
            "momentum_top is 3, but repetitions cost nothing. Fix: give momentum, such as 0.2.",
        ),
        (
            lambda: drafting(
                "speculative", Near(RealPasses(8, seed=1), seed=1, noise=0), temperature=1.0, momentum=0.2
            ),
            "momentum is 0.2, but at temperature=1.0 drafts are accepted by chance. "
            "Fix: leave one of them out.",
        ),
        (
            lambda: make_strategy("beam", {"momentum": 0.2}),
            "strategy 'beam' has no option momentum. Fix: it is an option of ",
        ),
    ],
)
def test_it_is_refused_where_words_are_not_the_best_ones(make: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert str(refused.value).startswith(f"error[E101 Usage] {message}")
