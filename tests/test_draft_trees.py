"""Drafts of graphs that branch: greedy search's output, and the best draft stays the first path.

The oracles are greedy search, enumerations in plain Python, the same drafter without a tree, which is asked
beside the other, and cases worked by hand.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.parallel_drafters import (
    ScriptedGraphs,
    parallel_drafter,
    small_drafter,
)
from support.pass_strategies import Proposes, paths_of
from support.scripted_passes import (
    EOS,
    decode,
    outputs_of,
    plain_greedy,
    random_table,
)

from nartk.decoders.drafters.lattice import Lattice, Option, likeliest_pairs
from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft, Drafter
from nartk.decoders.loop.rows import Row
from nartk.errors import StrategyMismatchError, UsageError
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Want
from nartk.registry import make_strategy

RUN = 8  # tokens of a branch, at most
Options = Sequence[dict[int, tuple[float, int]]]  # of each place: words, log-probabilities, where they lead
Paths = dict[tuple[int, ...], float]  # and their log-probabilities

# Growing trees.


def paths_beside(
    own: Sequence[int], options: Options, onward: Sequence[int], begin: int, longest: int
) -> tuple[list[int], Paths]:
    """The draft from a place on, and all paths of tokens that leave it once.

    Args:
        own: The draft's word at each place; -1: none.
        onward: The place that it leads to.
    """

    def sure(place: int) -> float:
        return min(max(options[place].get(own[place], (-9.0, 0))[0], -9.0), -1e-3)

    chain: list[int] = []
    paths: Paths = {}
    before, place = 0.0, begin
    while len(chain) < longest and own[place] >= 0:
        for token, (chance, lead) in options[place].items():
            if token == own[place] or chance == -math.inf:
                continue
            total, path, at = before + chance, (*chain, token), lead
            paths[path] = total
            for _ in range(RUN - 1):
                if own[at] < 0:
                    break
                total, path, at = total + sure(at), (*path, own[at]), onward[at]
                paths[path] = total
        before += sure(place)
        chain.append(own[place])
        place = onward[place]
    return chain, paths


def random_lattice(rng: random.Random) -> tuple[list[int], list[int], Options]:
    """Words, where they lead and what else may be at each place; the last place is the end."""
    size = rng.randint(0, 12)
    own = [rng.randrange(4, 9) for _ in range(size)]
    onward = [rng.randint(place + 1, min(size, place + 3)) for place in range(size)]
    options = []
    for place in range(size):
        tokens = rng.sample(range(4, 9), rng.randint(0, 4))
        chances = [rng.choice([math.log(rng.random()), 0.0, -math.inf, -20.0]) for _ in tokens]
        leads = [rng.randint(place + 1, size) for _ in tokens]
        options.append(dict(zip(tokens, zip(chances, leads, strict=True), strict=True)))
    return [*own, -1], onward, options


def grown_wrongly(cases: int) -> int:
    """How often a tree is other than the draft and the likeliest tokens of all branches."""
    wrong = many = 0
    for seed in range(cases):
        rng = random.Random(seed)
        own, onward, options = random_lattice(rng)
        begin, longest, nodes = rng.randrange(len(own)), rng.randint(0, 9), rng.randint(1, 12)
        levels = longest + rng.randint(0, 4)
        given = [
            [Option(word, *rest) for word, rest in each.items() if rest[0] > -math.inf] for each in options
        ]
        draft = Lattice.of(own[:-1], onward, given).tree(begin, longest=longest, levels=levels, nodes=nodes)
        chain, paths = paths_beside(own, [*options, {}], [*onward, 0], begin, longest)
        run = min(RUN, nodes)
        fitting = {
            path: chance
            for path, chance in paths.items()
            if len(path) <= levels
            and len(path) - next(i for i in range(len(path)) if path[: i + 1] != tuple(chain[: i + 1])) <= run
        }
        found = paths_of(draft)
        first = [tuple(chain[: i + 1]) for i in range(len(chain))]
        wrong += found[: len(chain)] != first
        beside = [fitting[path] for path in found[len(chain) :] if path in fitting]
        wrong += len(beside) != len(found) - len(chain)
        # Of equally likely ones, as many.
        wrong += sorted(beside, reverse=True) != pytest.approx(
            sorted(fitting.values(), reverse=True)[:nodes], abs=1e-9
        )
        wrong += len(set(found)) != len(found)
        many += len(beside) > 2
    assert many > cases / 10
    return wrong


def test_trees_grow_as_an_enumeration_says() -> None:
    assert grown_wrongly(400) == 0


def test_the_enumeration_notices_a_text_that_branches_into_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: the draft's own words are branches as well."""
    of = Lattice.of
    monkeypatch.setattr(
        Lattice,
        "of",
        lambda words, onward, options: dataclasses.replace(of(words, onward, options), others=[*options, []]),
    )
    assert grown_wrongly(40) > 0


def test_the_enumeration_notices_tokens_judged_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: log-probabilities that do not count what a token follows."""
    of = Lattice.of

    def alone(words: Any, onward: Any, options: Any) -> Lattice:
        made = of(words, onward, options)
        return dataclasses.replace(made, log_probs=[0.0] * len(made.log_probs))

    monkeypatch.setattr(Lattice, "of", alone)
    assert grown_wrongly(40) > 0


# What may follow in graphs.


def test_the_likeliest_pairs_by_enumeration() -> None:
    for seed in range(30):
        rng, size = np.random.default_rng(seed), 2 + seed % 7
        links = np.where(np.triu(np.ones((size, size)), 1) > 0, rng.normal(size=(size, size)), -np.inf)
        lprobs = -np.sort(-rng.normal(size=(size, 3)), axis=1)
        words = np.stack([rng.permutation(7)[:3] for _ in range(size)]).astype(np.int32)
        found = likeliest_pairs(links.astype(np.float32), words, lprobs.astype(np.float32), range(size))
        for vertex in range(size):
            best: dict[int, tuple[float, int]] = {}
            for to, i in product(range(vertex + 1, size), range(3)):
                pair = (float(links[vertex, to] + lprobs[to, i]), to)
                token = int(words[to, i])
                best[token] = max(best.get(token, pair), pair)
            wanted = sorted(best.items(), key=lambda item: -item[1][0])[:5]
            kept = found[vertex]
            assert [(token, to) for token, _, to in kept] == [(token, to) for token, (_, to) in wanted]
            assert [each.log_prob for each in kept] == pytest.approx(
                [each for _, (each, _) in wanted], abs=1e-5
            )


def drafted(drafter: Drafter, request: Request) -> Draft:
    """What is drafted first."""
    (state,) = drafter.start([request], [0])
    (draft,) = drafter.draft([Row(request, (EOS,), memory=0, context=0, started=0.0, state=state)], [20])
    drafter.stop([state])
    return draft


def test_a_graph_branches_as_a_loop_says() -> None:
    """The first draft of each graph, with what may follow each vertex taken from its pairs, one by one."""
    nodes, block, words = 12, 5, 9
    graphs = ScriptedGraphs(3, graphs=8, largest=9, words=words, spread=1.0)
    drafter = parallel_drafter(graphs, block, tree=nodes)
    for i in range(8):
        links, last = graphs.links[i], graphs.sizes[i] - 1
        chances: list[dict[int, float]] = [{}]
        for vertex in range(1, last + 1):
            lprobs = graphs.lprobs(i, vertex)
            allowed = [EOS] if vertex == last else [w for w in range(words) if w not in (0, 1, EOS)]
            chances.append({w: lprobs[w] for w in sorted(allowed, key=lambda w: -lprobs[w])[:4]})
        options: list[dict[int, tuple[float, int]]] = []
        own, onward = [-1] * (last + 1), [last] * (last + 1)
        for vertex in range(last + 1):
            best: dict[int, tuple[float, int]] = {}
            for to in range(vertex + 1, last + 1):
                for token, chance in chances[to].items():
                    pair = (links[vertex][to] + chance, to)
                    best[token] = max(best.get(token, pair), pair)
            options.append(dict(sorted(best.items(), key=lambda item: -item[1][0])[:5]))
            if vertex < last:
                own[vertex], (_, onward[vertex]) = next(iter(options[-1].items()))
        chain, paths = paths_beside(own, options, onward, 0, block)
        found = paths_of(drafted(drafter, Request(0, (i, EOS), 20)))
        assert found[: len(chain)] == [tuple(chain[: j + 1]) for j in range(len(chain))]
        assert {*found[len(chain) :]} == {*sorted(paths, key=lambda path: -paths[path])[:nodes]}


# The best draft stays the first path.


class Watches:
    """Proposes what one drafter does, asks another for the same rows, and keeps what that one drafts."""

    want = Want()

    def __init__(self, chain: Drafter, tree: Drafter) -> None:
        self.drafters = chain, tree
        self.drafts: dict[tuple[int, int], list[int]] = {}  # by request and length of the output
        self.behind = 0  # drafts that are not the first path

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[Any]:
        return list(zip(*(each.start(requests, memory) for each in self.drafters), strict=True))

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        states = [row.state for row in rows]
        both = []
        for i, drafter in enumerate(self.drafters):
            for row, each in zip(rows, states, strict=True):
                row.state = each[i]
            both.append(drafter.draft(rows, budgets))
        for row, each, chain, tree, budget in zip(rows, states, *both, budgets, strict=True):
            row.state = each
            tokens = chain.tokens[:budget]
            self.drafts[row.request.index, len(row.tokens)] = tokens
            self.behind += paths_of(tree)[: len(tokens)] != [
                tuple(tokens[: i + 1]) for i in range(len(tokens))
            ]
        return both[1]

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        """Nothing."""

    def stop(self, states: Sequence[Any]) -> None:
        for drafter, own in zip(self.drafters, zip(*states, strict=True), strict=True):
            drafter.stop(own)


def gains(seeds: int = 2) -> tuple[list[int], int]:
    """By how many tokens each pass of a tree is ahead of the best draft alone; paths that do not begin so."""
    found, behind = [], 0
    for seed in range(seeds):
        rng = random.Random(f"dag.{seed}")
        scorer = random_table(rng)
        words = len(scorer.vocab)
        small = ScriptedGraphs(seed, graphs=12, largest=12, words=words, spread=1.0)
        requests = [Request(i, (i, EOS), rng.choice([8, 25])) for i in range(min(12, words))]
        watch = Watches(*(parallel_drafter(small, 5, tree=nodes) for nodes in (0, 30)))
        strategy = Proposes(drafter=lambda scorer, watch=watch: watch)  # type: ignore[misc]
        results = decode(strategy, scorer, requests, batch_size=rng.choice([1, 4]), trace=True)
        assert outputs_of(results) == plain_greedy(scorer.table, requests)
        assert small.memories_in_use == 0
        behind += watch.behind
        for result, request in zip(results, requests, strict=True):
            tokens, trace = result.hypotheses[0].tokens, result.hypotheses[0].trace
            assert trace is not None
            begins = [
                i for i in range(len(trace)) if i == 0 or trace[i].verifier_pass > trace[i - 1].verifier_pass
            ]
            for begin, end in zip(begins, [*begins[1:], len(trace)], strict=True):
                draft = watch.drafts[request.index, begin]
                same = [a == b for a, b in zip(draft, tokens[begin:], strict=False)]
                accepted = same.index(False) if False in same else len(same)
                found.append(end - begin - min(accepted + 1, len(tokens) - begin))
    return found, behind


def test_no_pass_accepts_fewer_tokens_than_the_best_draft_alone() -> None:
    ahead, behind = gains()
    assert behind == 0
    assert min(ahead) >= 0
    assert sum(ahead) > 0


def test_a_tree_whose_first_path_is_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: the best draft of a tree begins a vertex later."""
    tree = Lattice.tree
    monkeypatch.setattr(Lattice, "tree", lambda self, node, **sizes: tree(self, self.onward[node], **sizes))
    assert gains(1)[1] > 0


def test_drafts_that_do_not_branch_are_refused_a_tree() -> None:
    strategy = dataclasses.replace(
        make_strategy("gad", {"drafter": "a name", "tree": 8}),
        auxiliary={"drafter": small_drafter("ctc", 9, 1)},
    )
    with pytest.raises(StrategyMismatchError) as caught:
        strategy.check_auxiliary()
    assert str(caught.value) == (
        "error[E103 StrategyMismatch] tree is 8, but drafter names a model whose drafts do not branch. "
        "Fix: leave it out, or name a DA-Transformer."
    )


def test_a_tree_and_beta_are_refused_together() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("gad", {"beta": 2, "tree": 8})
    assert str(caught.value) == (
        "error[E101 Usage] tree is 8, but with beta=2 only the best draft may be accepted. "
        "Fix: leave one of them out."
    )
