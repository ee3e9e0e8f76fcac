"""Input-guided aggressive decoding: what it drafts, and how many passes it takes.

The oracles are plain Python twins of the two rules, and cases worked by hand. Texts are lists of ids; the
scripted scorer gives the output whatever is drafted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.copies import EOS, Pair, aligned_rule, ids, passes_by_hand, repetitive_pair, spelled
from support.pass_strategies import Proposes
from support.scripted_passes import ScriptPasses, decode, outputs_of

from nartk.decoders.loop.drafter import Draft, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Request, Result
from nartk.registry import make_strategy
from nartk.vocab import Vocab


def run(strategy: Any, pairs: Sequence[Pair], words: Sequence[str], max_len: int = 64) -> list[Result]:
    script = {(*source, EOS): [*output, EOS] for source, output in pairs}
    scorer = ScriptPasses(len(words), script)
    scorer.vocab = Vocab(tuple(words))
    requests = [Request(i, (*source, EOS), max_len) for i, (source, _) in enumerate(pairs)]
    results = decode(strategy, scorer, requests, batch_size=256)
    wanted = [script[request.source][:max_len] for request in requests]
    assert outputs_of(results) == wanted
    return results


# The twins. A rule says from which place of the source to draft, or None.


def unique_rule(source: list[int], output: list[int], memory: dict[str, int]) -> int | None:
    """unilm's rule: the suffix of 1, then 2, then 3 tokens; absent ends the search, once decides."""
    for n in (1, 2, 3):
        if n > len(output):
            return None
        ends = [i + n for i in range(len(source) - n + 1) if source[i : i + n] == output[-n:]]
        if not ends:
            return None
        if len(ends) == 1:
            return ends[0]
    return None


@pytest.mark.parametrize("anchor", ["unique", "aligned"])
def test_passes_and_drafts_equal_the_twin(anchor: str) -> None:
    for seed in range(16):
        rng = random.Random(seed)
        words = spelled(rng, rng.randint(6, 40))
        pairs = [repetitive_pair(rng, len(words)) for _ in range(125)]
        cap, max_len = rng.choice([0, 0, 1, 3, 10]), rng.choice([64, 64, 12])
        rule = unique_rule if anchor == "unique" else aligned_rule(words)
        strategy = make_strategy("iad", {"adaptive": False, "anchor": anchor, "max_draft": cap})
        script = {tuple(source): (source, output) for source, output in pairs}
        pairs = list(script.values())
        for pair, result in zip(pairs, run(strategy, pairs, words, max_len), strict=True):
            wanted = passes_by_hand(pair, rule, max_draft=cap, max_len=max_len)
            assert (result.passes, result.drafted, result.accepted) == wanted, (words, pair)


def passes_of(strategies: Sequence[Any], cases: int) -> list[list[int]]:
    """The passes of each strategy on the same random texts."""
    passes: list[list[int]] = [[] for _ in strategies]
    for seed in range(-(-cases // 500)):
        rng = random.Random(f"dominance {seed}")
        words = spelled(rng, rng.randint(6, 60))
        pairs = {
            tuple(source): output for source, output in (repetitive_pair(rng, len(words)) for _ in range(520))
        }
        texts = [(list(source), output) for source, output in pairs.items()]
        for mine, strategy in zip(passes, strategies, strict=True):
            mine += [result.passes for result in run(strategy, texts, words)]
    return passes


@pytest.mark.parametrize("cap", [0, 4])
def test_aligned_never_takes_more_passes_than_unique(cap: int) -> None:
    aligned, unique = passes_of(
        [
            make_strategy("iad", {"adaptive": False, "anchor": anchor, "max_draft": cap})
            for anchor in ("aligned", "unique")
        ],
        20_000 if cap == 0 else 4_000,
    )
    assert [i for i, (a, u) in enumerate(zip(aligned, unique, strict=True)) if a > u] == []
    assert sum(aligned) < 0.9 * sum(unique)


@pytest.mark.slow
def test_aligned_never_takes_more_passes_at_full_size() -> None:
    aligned, unique = passes_of(
        [make_strategy("iad", {"adaptive": False, "anchor": anchor}) for anchor in ("aligned", "unique")],
        400_000,
    )
    assert [i for i, (a, u) in enumerate(zip(aligned, unique, strict=True)) if a > u] == []


class StraightOn(PlainDrafter):
    """Known to be wrong: takes every mismatch for a substitution and never looks for the position."""

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[Any]:
        return [list(request.source[:-1]) for request in requests]

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        return [Draft(row.state[len(row.tokens) :]) for row in rows]


def test_the_comparison_with_unique_fails_without_an_anchor() -> None:
    straight, unique = passes_of(
        [
            Proposes(drafter=lambda scorer: StraightOn()),
            make_strategy("iad", {"adaptive": False, "anchor": "unique"}),
        ],
        500,
    )
    assert any(a > u for a, u in zip(straight, unique, strict=True))


# By hand: each pass copies up to the next difference and adds the verifier's own token there. The last pass
# says eos. Passes by the aligned rule, and by the unique rule.
BY_HAND = [
    ("she goes home .", "she goes home .", 1, 1),
    ("a b c d e f", "a b X d e f", 2, 3),  # X replaces c; the unique rule learns nothing from X
    ("She go home now .", "She goes home now .", 2, 3),
    ("he went school .", "he went to school .", 2, 3),  # shorter, other letter: put in
    ("he went to home .", "he went home .", 2, 2),  # home occurs once: its place is sure
    ("the cat and the dog and the pig sat", "the cat and the dogs and the pig sat", 2, 5),  # the and the
    ("", "a b", 3, 3),
    ("a b", "", 1, 1),
]


@pytest.mark.parametrize(("source", "output", "aligned", "unique"), BY_HAND)
def test_passes_by_hand(source: str, output: str, aligned: int, unique: int) -> None:
    words: dict[str, int] = {}
    pair = ids(words, source), ids(words, output)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *words]
    found = {
        anchor: run(make_strategy("iad", {"adaptive": False, "anchor": anchor}), [pair], vocabulary)[0].passes
        for anchor in ("aligned", "unique")
    }
    assert found == {"aligned": aligned, "unique": unique}


def test_pieces_are_skipped_with_their_word() -> None:
    """A misspelling falls into four pieces, its correction is one: the draft goes on with the next word."""
    words: dict[str, int] = {}
    pair = ids(words, "▁this ▁is ▁im men s e ▁show"), ids(words, "▁this ▁is ▁immense ▁show")
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *words]
    (result,) = run(make_strategy("iad", {"adaptive": False}), [pair], vocabulary)
    assert (result.passes, result.accepted) == (2, 3)


def test_what_has_no_target_word_is_not_drafted() -> None:
    """Of source a b c d, b is unknown to the target: drafts end before it."""
    script = {(4, 5, 6, 7, EOS): [4, 8, 6, 7, EOS]}
    scorer = ScriptPasses(9, script)
    scorer.source_to_target = np.array([0, 1, 2, -1, 4, -1, 6, 7, -1], np.int32)
    (result,) = decode(make_strategy("iad", {"adaptive": False}), scorer, [Request(0, (4, 5, 6, 7, EOS), 20)])
    # Passes: [a] accepted, then the verifier's 8; then c d, then eos.
    assert (result.passes, result.drafted, result.accepted) == (2, 3, 3)


def test_the_cap_bounds_every_draft() -> None:
    pair = list(range(4, 24)), list(range(4, 24))
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(20))]
    (result,) = run(make_strategy("iad", {"adaptive": False, "max_draft": 6}), [pair], vocabulary)
    assert (result.passes, result.drafted) == (3, 18)  # 7 + 7 + 7 = 20 words and eos
