"""Drafts of parallel models that branch: greedy search's output, and the best draft stays the first path.

The oracles are greedy search, enumerations in plain Python, the same drafter without a tree, which is asked
beside the other, and cases worked by hand.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
from support.parallel_drafters import (
    KINDS,
    KnowingFrames,
    LogitScores,
    ScriptedGraphs,
    parallel_drafter,
    small_drafter,
    with_drafter,
)
from support.pass_strategies import Proposes, paths_of
from support.scripted_passes import (
    EOS,
    ScriptPasses,
    decode,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)

from nartk.decoders.drafters.lattice import Lattice, Option, likeliest_pairs
from nartk.decoders.drafters.parallel_text import frame_options
from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft, Drafter
from nartk.decoders.loop.rows import Row
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Scores, Want
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


# What may follow in frames and graphs.


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


def test_what_frames_may_have_by_enumeration() -> None:
    """Label 0 is the blank, 1 is never said. So few frames have no more pairs than are looked at."""
    for seed in range(40):
        rng, count = np.random.default_rng(seed), 1 + seed % 5
        logits = 3 * rng.normal(size=(count, 5))
        rows = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).tolist()
        labels = [max((0, 2, 3, 4), key=row.__getitem__) for row in rows]
        order = [sorted((0, 2, 3, 4), key=lambda word, row=row: -row[word]) for row in rows]  # type: ignore[misc]
        top = np.array(order, np.int32)
        log_probs = np.array([[row[w] for w in each] for row, each in zip(rows, order, strict=True)])
        blanks = np.array([row[0] for row in rows], np.float32)
        found = frame_options(labels, top, log_probs.astype(np.float32), blanks, blank=0, eos=9)
        places, size = [], 0
        for label, run in groupby(labels):
            places += [size if label else -1 for _ in run]
            size += label != 0
        assert len(found) == size + 1
        goes_on = [t > 0 and 0 <= places[t] == places[t - 1] for t in range(count)]
        quiet = [
            math.log(math.exp(row[0]) + goes_on[t] * math.exp(row[labels[t]])) for t, row in enumerate(rows)
        ]
        for place in range(size + 1):
            begin = max((t + 1 for t in range(count) if 0 <= places[t] < place), default=0)
            best: dict[int, tuple[float, int]] = {9: (sum(quiet[begin:]), size + 1)}
            for t, token in product(range(begin, count), (2, 3, 4)):
                if not (goes_on[t] and token == labels[t]):
                    pair = (sum(quiet[begin:t]) + rows[t][token], max(places[: t + 1]) + 1)
                    best[token] = max(best.get(token, pair), pair)
            wanted = {
                token: (pytest.approx(chance, abs=1e-4), lead) for token, (chance, lead) in best.items()
            }
            assert {token: (lprob, lead) for token, lprob, lead in found[place]} == wanted


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
    drafter = parallel_drafter(graphs, block, nodes=nodes)
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


class Unsure(KnowingFrames):
    """Frames of given probabilities, the same for all sources.

    Args:
        chances: For each frame those of some labels; the others share the rest.
    """

    def __init__(self, words: int, chances: Sequence[dict[int, float]], *, blank: int | None = 0) -> None:
        super().__init__(words, {}, blank=blank)
        self.chances = chances

    def frames(self, memory: Any) -> Any:
        return np.full(len(memory), len(self.chances), np.int32)

    def read_frames(self, memory: Any, want: Want) -> Scores:
        rows = np.zeros((len(self.chances), len(self.vocab)), np.float32)
        for row, chances in zip(rows, self.chances, strict=True):
            row[:] = (1 - sum(chances.values())) / (len(row) - len(chances))
            for label, chance in chances.items():
                row[label] = chance
        return LogitScores(np.tile(np.log(rows), (len(memory), 1)), want)


# They say 5 6 7: 5 in a run, 6 or 8 or nothing, and 7.
FRAMES = [{5: 0.99}, {5: 0.99}, {6: 0.5, 8: 0.3, 0: 0.19}, {0: 0.98}, {7: 0.99}]


@pytest.mark.parametrize(("output", "chain", "tree"), [((5, 8, 7), 2, 1), ((5, 7), 2, 1), ((5, 6, 7), 1, 1)])
def test_other_labels_of_frames_by_hand(output: tuple[int, ...], chain: int, tree: int) -> None:
    """Passes to a word replaced and to one left out. A chain's first pass outputs 5 and another."""
    scorer = ScriptPasses(40, {(4, EOS): [*output, EOS]})
    for nodes, passes in ((0, chain), (8, tree)):
        strategy = with_drafter(Unsure(40, FRAMES), tree=nodes)
        (result,) = decode(strategy, scorer, [Request(0, (4, EOS), 20)])
        assert outputs_of([result]) == [[*output, EOS]]
        assert result.passes == passes
        assert result.branches == (nodes > 0 and chain > 1)


def test_a_run_is_not_drafted_twice() -> None:
    """5 goes on in the second frame: without blank it is a second word, with blank it is none."""
    for blank, wanted in ((0, False), (None, True)):  # without blank, 0 is a word as well
        drafter = parallel_drafter(Unsure(40, FRAMES, blank=blank), 25, nodes=20)
        draft = drafted(drafter, Request(0, (4, EOS), 20))
        assert any(path[:2] == (5, 5) for path in paths_of(draft)) == wanted


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


def gains(kind: str, seeds: int = 2) -> tuple[list[int], int]:
    """By how many tokens each pass of a tree is ahead of the best draft alone; paths that do not begin so."""
    found, behind = [], 0
    for seed in range(seeds):
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_table(rng)
        words = len(scorer.vocab)
        if kind == "dag":
            small: Any = ScriptedGraphs(seed, graphs=12, largest=12, words=words, spread=1.0)
            requests = [Request(i, (i, EOS), rng.choice([8, 25])) for i in range(min(12, words))]
        else:
            small = small_drafter(kind, words, seed)
            requests = [dataclasses.replace(random_request(rng, i, words, 12), prefix=()) for i in range(12)]
        watch = Watches(*(parallel_drafter(small, 5, nodes=nodes) for nodes in (0, 30)))
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


@pytest.mark.parametrize("kind", KINDS)
def test_no_pass_accepts_fewer_tokens_than_the_best_draft_alone(kind: str) -> None:
    ahead, behind = gains(kind)
    assert behind == 0
    assert min(ahead) >= 0
    assert sum(ahead) > 0


def test_a_tree_whose_first_path_is_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: each word of the best draft taken for its neighbour."""
    of = Lattice.of
    monkeypatch.setattr(
        Lattice, "of", lambda words, onward, options: of([word ^ 1 for word in words], onward, options)
    )
    for kind in ("blockwise", "ctc"):
        assert gains(kind, 1)[1] > 0, kind


def test_a_tree_and_beta_are_refused_together() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("gad", {"beta": 2, "tree": 8})
    assert str(caught.value) == (
        "error[E101 Usage] tree is 8, but with beta=2 only the best draft may be accepted. "
        "Fix: leave one of them out."
    )
