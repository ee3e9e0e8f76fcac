"""Beam search with drafts outputs what it outputs without, bit for bit, in fewer passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.beams import outputs, textbook
from support.real_passes import RealPasses, engine_of
from support.realtable import random_transformer
from support.scripted_passes import EOS, ScriptedPasses, Table, TablePasses, decode

import nartk.decoders.beam as beam_module
from nartk.decoders.drafters.token_recycling import AdjacencyMatrix
from nartk.decoders.loop.drafter import Draft
from nartk.decoders.loop.packing import Packed, pack
from nartk.decoders.loop.trees import merged
from nartk.decoders.search import beam_search
from nartk.decoders.search.beam_drafts import BeamDrafter
from nartk.decoders.search.beam_rows import Beam
from nartk.decoders.search.beam_search import Nodes
from nartk.errors import PassError, UsageError
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import IntArray
from nartk.registry import make_strategy
from nartk.vocab import Vocab

DRAFTS = ("source", "recycling", "both")


# Drafters of the tests.


@dataclass
class Garbage:
    """Proposes anything, in trees of any shape, whether they are any or not."""

    rng: random.Random

    def start(self, request: Request) -> None:
        pass

    def draft(self, beam: Beam) -> Draft:
        tokens = [self.rng.randrange(-3, 16) for _ in range(self.rng.randint(0, 9))]
        if self.rng.random() < 0.3:
            return Draft(tokens)
        return Draft(tokens, [min(self.rng.randrange(-2, 9), i + 1) for i in range(len(tokens))])

    def observe(self, beam: Beam, best: IntArray) -> None:
        pass


@dataclass
class Knowing:
    """Proposes the outputs that beam search will give back, where they go on as the hypothesis does."""

    answers: dict[int, list[tuple[int, ...]]]
    depth: int
    branching: bool

    def start(self, request: Request) -> None:
        pass

    def draft(self, beam: Beam) -> Draft:
        done = len(beam.tokens)
        known = [output for output in self.answers[beam.request.index] if [*output[:done]] == beam.tokens]
        rests = [output[done : done + self.depth] for output in known]
        if self.branching:
            return merged([Draft([*rest]) for rest in rests], most=1000)
        return Draft([*max(rests, key=len, default=())])

    def observe(self, beam: Beam, best: IntArray) -> None:
        pass


def random_case(rng: random.Random, words: int, count: int) -> tuple[list[Request], dict[str, Any]]:
    k = rng.randint(1, 5)
    options = {
        "beam_size": k,
        "nbest": k,
        "length_penalty": rng.choice([0.0, 0.6, 1.0, 2.0]),
        "no_repeat_ngram": rng.choice([0, 0, 0, 2, 3]),
    }
    requests = []
    for i in range(count):
        source = (*(rng.randrange(4, words) for _ in range(rng.randint(0, 12))), EOS)
        longest = rng.choice([1, 2, 5, 16, 16])
        prefix = [rng.randrange(3, words) for _ in range(rng.choice([0, 0, 0, 1, 4]))]
        requests.append(Request(i, source, longest, tuple(prefix[:longest])))
    return requests, options


def differences(
    cases: int,
    make: Callable[[random.Random, int], Any],
    *,
    start: int = 0,
    count: int = 6,
    kinds: tuple[str, ...] = (*DRAFTS, "garbage", "tree", "chain"),
) -> tuple[int, int, int]:
    """Sentences that get other hypotheses, order or bits than without drafts; passes with drafts, without."""
    wrong = passes = plain_passes = 0
    for seed in range(start, start + cases):
        rng = random.Random(seed)
        words = rng.randint(8, 14)
        scorer = make(rng, words)
        requests, options = random_case(rng, words, count)
        plain = decode(make_strategy("beam", options), scorer, requests, batch_size=rng.choice([1, 2, 8]))
        told = {result.index: outputs(result) for result in plain}
        kind, depth = rng.choice(kinds), rng.randint(1, 6)
        with pytest.MonkeyPatch.context() as patch:
            made: Any = None
            if kind == "garbage":
                made = Garbage(random.Random(seed))
            elif kind not in DRAFTS:
                made = Knowing(told, depth, kind == "tree")
            if made is not None:
                patch.setattr(beam_module, "make_beam_drafter", lambda *_, made=made: made)
                strategy = make_strategy("beam", options)
            else:
                strategy = make_strategy("beam", {**options, "draft": kind, "max_draft": depth})
            found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 2, 8]))
        for mine, theirs in zip(found, plain, strict=True):
            wrong += mine.hypotheses != theirs.hypotheses or mine.passes > theirs.passes
            assert 0 <= mine.accepted <= mine.drafted
            passes, plain_passes = passes + mine.passes, plain_passes + theirs.passes
    return wrong, passes, plain_passes


def make_table(rng: random.Random, words: int) -> TablePasses:
    if rng.random() < 0.3:  # scores that tie
        return TablePasses(Table(words, seed=rng.getrandbits(30), spread=rng.choice([2, 5])))
    return RealPasses(words, seed=rng.getrandbits(30), copying=rng.choice([0, 4, 8, 12]))


def test_drafts_change_no_hypothesis_and_take_no_more_passes() -> None:
    wrong, passes, plain_passes = differences(90, make_table)
    assert wrong == 0
    assert passes < 0.9 * plain_passes


@pytest.mark.slow
def test_drafts_change_no_hypothesis_in_many_cases() -> None:
    wrong, _, _ = differences(3000, make_table, start=1000)
    assert wrong == 0


def test_what_parts_in_a_tree_is_scored_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    again = 0

    def counted(beams: Sequence[Beam]) -> Packed:
        nonlocal again
        packed = pack(beams)
        again += len(packed.work.tokens) - len(packed.scored)
        return packed

    monkeypatch.setattr(beam_search, "pack", counted)
    assert differences(20, make_table, kinds=("source", "chain"))[0] == 0
    assert again == 0
    assert differences(20, make_table, kinds=("tree",))[0] == 0
    assert again > 0


# Known to be wrong.

FOLLOW, PATH = Nodes.follow, Nodes.path


def follows_the_best(self: Nodes, beams: Sequence[Beam]) -> bool:
    """Goes on if the best survivor was drafted."""
    return FOLLOW(self, beams[:1])


def follows_any_parent(self: Nodes, beams: Sequence[Beam]) -> bool:
    """Takes a word from elsewhere in the tree."""
    nodes = [
        next((node for (_, word), node in self._children.items() if word == beam.tokens[-1]), -1)
        for beam in beams
    ]
    for beam, node in zip(beams, nodes, strict=True):
        beam.node = node
    return -1 not in nodes


def keeps_its_own_node(self: Nodes, beams: Sequence[Beam]) -> bool:
    """Reads what follows from the token before."""
    before = [beam.node for beam in beams]
    found = FOLLOW(self, beams)
    for beam, node in zip(beams, before, strict=True):
        beam.node = node
    return found


def keeps_any_path(self: Nodes, node: int) -> list[int]:
    """Keeps a path of the right length that ends elsewhere."""
    path = PATH(self, node)
    same = [PATH(self, other) for other in range(len(self._scored))]
    return next(other for other in same if other[0] == path[0] and len(other) == len(path))


@pytest.mark.parametrize(
    ("method", "wrong_method", "kinds"),
    [
        ("follow", follows_the_best, ("source", "tree")),
        ("follow", follows_any_parent, ("tree",)),
        ("follow", keeps_its_own_node, ("source", "tree")),
        ("path", keeps_any_path, ("tree",)),
    ],
)
def test_a_wrong_choice_shows(
    method: str, wrong_method: Any, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nodes, method, wrong_method)

    def make(rng: random.Random, words: int) -> TablePasses:
        return RealPasses(words, seed=rng.getrandbits(30), copying=6)

    def shows(seed: int) -> bool:
        try:
            return differences(1, make, start=seed, kinds=kinds)[0] > 0
        except (AssertionError, PassError):  # of the scorer, which was given nonsense
            return True

    assert any(shows(seed) for seed in range(40))


def test_it_is_the_textbooks_beam_search() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        table = RealPasses(rng.randint(6, 12), seed=rng.getrandbits(40))
        k, draft = rng.randint(1, 5), rng.choice(DRAFTS)
        requests = [
            Request(i, (*(rng.randrange(4, len(table.vocab)) for _ in range(rng.randint(0, 9))), EOS), 9)
            for i in range(5)
        ]
        strategy = make_strategy("beam", {"beam_size": k, "nbest": k, "draft": draft, "max_draft": 2})
        for request, result in zip(requests, decode(strategy, table, requests), strict=True):
            wanted = textbook(table.log_probs, request, k, 1.0, 0)
            assert outputs(result) == [output for _, output in wanted]
            scores = [hypothesis.score for hypothesis in result.hypotheses]
            assert scores == pytest.approx([score for score, _ in wanted], abs=1e-4)


# By hand.


class TwoBeginnings(ScriptedPasses):
    """Copies the source, whose first word may also be word 5; then eos."""

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        logits = np.zeros((len(sources), len(self.vocab)))
        for row, source, path in zip(logits, sources, paths, strict=True):
            row[source[min(len(path), len(source)) - 1]] = 40
            row[5] += 39 * (len(path) == 1)
        return logits


@pytest.mark.parametrize(("k", "draft", "passes"), [(1, "source", 3), (2, "source", 4), (2, "both", 4)])
def test_passes_where_the_source_is_copied(k: int, draft: str, passes: int) -> None:
    words = tuple(range(10, 19))  # nine, and eos
    scorer = TwoBeginnings(20)
    strategy = make_strategy("beam", {"beam_size": k, "nbest": k, "draft": draft})
    (result,) = decode(strategy, scorer, [Request(0, (*words, EOS), 30)], trace=True)
    assert outputs(result) == [(*words, EOS), (5, *words[1:], EOS)][:k]
    assert result.passes == passes
    trace = result.hypotheses[0].trace
    assert trace is not None
    # One hypothesis: three drafted words and the verifier's own, four times over. Two: the first pass
    # chooses the first word alone, since word 5 is not drafted.
    wanted = "dddvdddvdv" if k == 1 else "vdddvdddvv"
    assert "".join(each.origin[0] for each in trace) == wanted
    at = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3] if k == 1 else [1, 2, 2, 2, 2, 3, 3, 3, 3, 4]
    assert [each.verifier_pass for each in trace] == at
    if draft == "source":
        assert (result.drafted, result.accepted) == ((7, 7) if k == 1 else (3 + 6 + 6, 12))


def test_without_drafts_every_token_takes_a_pass() -> None:
    (result,) = decode(
        make_strategy("beam", {"beam_size": 2}),
        TwoBeginnings(20),
        [Request(0, (9, 8, EOS), 9)],
    )
    assert (result.passes, result.drafted, result.accepted) == (3, 0, 0)


def test_successors_are_the_last_ones_seen() -> None:
    rng = random.Random(0)

    def beam(last: int) -> Beam:
        return Beam(Request(0, (EOS,), 9), (EOS,), [last], [0.0], memory=0, context=0)

    known, twin = AdjacencyMatrix(9, 2), dict[int, list[int]]()
    drafter = BeamDrafter(None, known, eos=9, max_draft=3)
    assert drafter.draft(beam(4)).tokens == []
    for _ in range(150):
        last, best = rng.randrange(9), rng.sample(range(9), 3)
        drafter.observe(beam(last), np.array(best, np.int32))
        twin[last] = best[:2]
        assert all(known.after(word) == twin.get(word, [-1, -1]) for word in range(9))
    for first in range(9):
        second, other = twin[first]
        chain = [second, twin[second][0], twin[twin[second][0]][0]]
        found = drafter.draft(beam(first))
        assert (found.tokens, found.parents) == ([*chain, other], [-1, 0, 1, -1])


def test_drafts_that_nobody_makes_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("beam", {"max_draft": 7})
    assert caught.value.message == "max_draft is 7, but nothing is drafted"
    assert caught.value.fix == "choose what with draft: source, recycling or both"


# With a network.


@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
def test_with_a_network_the_bits_are_the_same(type: str) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(40)])
    scorer = engine_of(random_transformer(3, len(vocab)), vocab, type)
    rng = random.Random(1)
    requests = [
        Request(i, (*(rng.randrange(4, 44) for _ in range(rng.randint(1, 9))), EOS), 14) for i in range(5)
    ]
    for k, draft, batch in ((1, "source", 2), (3, "both", 8), (5, "tree", 1), (4, "tree", 2)):
        options = {"beam_size": k, "nbest": k}
        plain = decode(make_strategy("beam", options), scorer, requests, batch_size=3)
        found = with_drafts(scorer, requests, options, draft, plain, batch)
        assert [result.hypotheses for result in found] == [result.hypotheses for result in plain]
        if draft == "tree":
            assert sum(r.passes for r in found) < sum(r.passes for r in plain)


def with_drafts(
    scorer: Any, requests: list[Request], options: dict[str, Any], draft: str, plain: list[Result], batch: int
) -> list[Result]:
    if draft != "tree":
        return decode(make_strategy("beam", {**options, "draft": draft}), scorer, requests, batch_size=batch)
    told = {result.index: outputs(result) for result in plain}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_module, "make_beam_drafter", lambda *_: Knowing(told, 4, True))
        return decode(make_strategy("beam", options), scorer, requests, batch_size=batch)
