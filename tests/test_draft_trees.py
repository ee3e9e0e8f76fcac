"""Drafters whose drafts branch: the output stays greedy search's, and the best draft stays the first path.

The oracles are greedy search, enumerations in plain Python, the same drafter without a tree, which is asked
beside the other, and cases worked by hand.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scripted import ScriptScorer, TableScorer, decode, differing, outputs_of, plain_greedy
from test_dag_decoders import ScriptedGraphs
from test_devices import Apart, scorer_of
from test_gad import (
    DTYPES,
    NETWORKS,
    SCRIPTED,
    KnowingFrames,
    different,
    network,
    spoilt,
    with_drafter,
)
from test_promises_algorithm import random_request, random_table
from test_promises_exact import TIES, random_scorer, tied_scorer
from test_tree import ways_of
from torch import Tensor
from transformers_small import random_requests

from nartk.decoders import parallel_drafts
from nartk.decoders.ctc_search import greedy_labels
from nartk.decoders.dag_paths import say_everywhere
from nartk.decoders.parallel_drafts import parallel_drafter
from nartk.decoders.tensor_loop import Draft, DraftAndVerify, Drafter
from nartk.decoders.tree import Branches, DraftTree, Lattice
from nartk.errors import UsageError
from nartk.hypothesis import Request
from nartk.registry import make_strategy
from nartk.scorer import Frames, Seq2SeqScorer, Source

EOS = 2

# Growing trees.


Ways = dict[tuple[int, ...], float]  # their log-probabilities


def said_ways(draft: Draft, row: int) -> list[tuple[int, ...]]:
    """The ways through a draft that none of what is no word lies on."""
    return [way for way in ways_of(draft, row) if min(way) >= 0]


def random_branches(rng: random.Random, chain: Sequence[int], places: int) -> tuple[Branches, Ways]:
    """Branches beside a chain, all of whose tokens differ, and the ways to each of their tokens."""
    count, run = rng.randint(1, 3), rng.randint(1, 4)
    tokens = torch.full((1, places, count, run), -1)
    lprobs = torch.full(tokens.shape, float("-inf"))
    ways: Ways = {}
    for place, i in product(range(min(len(chain) + 1, places)), range(count)):
        way, chance = tuple(chain[:place]), -rng.random()
        for j in range(rng.randint(0, run)):
            way, chance = (*way, 100 + len(ways)), chance - rng.random() - 0.01
            tokens[0, place, i, j], lprobs[0, place, i, j] = way[-1], chance
            ways[way] = chance
    return Branches(tokens, lprobs), ways


def grown_wrongly(cases: int, device: torch.device) -> int:
    """How often a tree is other than the chain and the most probable nodes of all."""
    wrong = 0
    for seed in range(cases):
        rng = random.Random(seed)
        places, nodes = rng.randint(0, 5), rng.randint(1, 9)
        chain = [rng.randrange(4, 12) for _ in range(rng.randint(0, places))]
        branches, ways = random_branches(rng, chain, places)
        rest = [rng.randrange(4, 12) for _ in range(places - len(chain))]  # which do not count
        tokens = torch.tensor([[*chain, *rest]], dtype=torch.int64, device=device)
        tree = DraftTree.grow(
            Draft(tokens, torch.tensor([len(chain)], device=device)),
            Branches(branches.tokens.to(device), branches.lprobs.to(device)),
            nodes,
        )
        first = [tuple(chain[: i + 1]) for i in range(len(chain))]
        found = said_ways(tree, 0)
        wrong += found[: len(first)] != first
        wrong += {*found[len(first) :]} != {*sorted(ways, key=lambda way: -ways[way])[:nodes]}
    return wrong


def grow_from(change: Callable[[Draft], Draft], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets trees grow around another chain than the one that is given."""
    grow = DraftTree.grow
    monkeypatch.setattr(DraftTree, "grow", lambda draft, *rest: grow(change(draft), *rest))


def test_trees_grow_as_an_enumeration_says(device: torch.device) -> None:
    assert grown_wrongly(200, device) == 0


def test_the_enumeration_notices_a_chain_that_is_left_out(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_from(lambda draft: dataclasses.replace(draft, lengths=0 * draft.lengths), monkeypatch)
    assert grown_wrongly(20, device) > 0


def test_the_enumeration_notices_tokens_judged_by_themselves(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known to be wrong: log-probabilities that do not count what a token follows."""
    grow = DraftTree.grow

    def alone(draft: Draft, branches: Branches, nodes: int) -> Draft:
        first = branches.lprobs[..., :1]
        return grow(draft, Branches(branches.tokens, branches.lprobs.diff(dim=3, prepend=0 * first)), nodes)

    monkeypatch.setattr(DraftTree, "grow", alone)
    assert grown_wrongly(20, device) > 0


def ways_beside(
    own: Sequence[int],
    options: Sequence[dict[int, tuple[float, int]]],
    walk: Callable[[int], Sequence[int]],
    place: int,
    run: int,
) -> Ways:
    """The ways of tokens that leave, at a place, what is said there, and their log-probabilities.

    Args:
        own: What is said at each place; -1: nothing.
        options: What may be said there, its log-probability, and the place that it leads to.
        walk: The places of what is said from a place on.
    """
    ways: Ways = {}
    for token, (chance, lead) in options[place].items():
        if token in (-1, own[place]) or own[place] < 0 or chance == -math.inf:
            continue
        way = (token,)
        ways[way] = chance
        for at in walk(lead)[: run - 1]:
            chance += min(max(options[at].get(own[at], (-9.0, 0))[0], -9.0), -1e-3)
            way = (*way, own[at])
            ways[way] = chance
    return ways


def strayed(cases: int, device: torch.device) -> int:
    """How often texts branch otherwise than a plain loop says."""
    wrong = 0
    for seed in range(cases):
        rng = random.Random(seed)
        size, count, nodes = rng.randint(1, 6), rng.randint(1, 4), rng.randint(1, 10)
        length = rng.randint(0, size)
        text = [rng.randrange(4, 9) if p < length else -1 for p in range(size)]
        options = []
        for p in range(size):
            tokens = rng.sample(range(4, 9), rng.randint(0, count))
            chances = [rng.choice([math.log(rng.random()), 0.0, -math.inf, -20.0]) for _ in tokens]
            leads = [rng.randint(p + 1, size) for _ in tokens]
            options.append(dict(zip(tokens, zip(chances, leads, strict=True), strict=True)))
        rows = [[*((w, *x) for w, x in each.items()), *[(-1, 0.0, 0)] * count][:count] for each in options]
        lattice = Lattice(
            *(torch.tensor([[[x[i] for x in row] for row in rows]]).to(device) for i in range(3))
        )
        found = parallel_drafts._branches(torch.tensor([text], device=device), lattice, nodes)
        run = min(parallel_drafts._RUN, nodes)
        before = 0.0
        for p, token in enumerate(text):
            wanted = ways_beside(text, options, lambda lead: range(lead, length), p, run)  # noqa: B023
            mine: Ways = {}
            for tokens, lprobs in zip(found.tokens[0, p].tolist(), found.lprobs[0, p].tolist(), strict=True):
                mine |= {tuple(tokens[: j + 1]): lprobs[j] for j in range(run) if tokens[j] >= 0}
            wrong += mine != pytest.approx({way: before + chance for way, chance in wanted.items()}, abs=1e-4)
            before += min(max(options[p].get(token, (-9.0, 0))[0], -9.0), -1e-3)
    return wrong


def test_texts_branch_as_a_loop_says(device: torch.device) -> None:
    assert strayed(60, device) == 0


def test_the_loop_notices_a_text_that_branches_into_itself(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known to be wrong: the text's own words are branches as well."""
    beside = Lattice.beside

    def with_own(self: Lattice, own: Tensor) -> tuple[Lattice, Tensor]:
        return self, beside(self, own)[1]

    monkeypatch.setattr(Lattice, "beside", with_own)
    assert strayed(10, device) > 0


def test_drafts_of_all_kinds_are_united(device: torch.device) -> None:
    """Oracle: the ways in their order, each once, cut at what is no word and at the depth."""
    for seed in range(40):
        rng = random.Random(seed)
        depth, most, words = rng.randint(1, 5), rng.choice([None, rng.randint(1, 9)]), 7
        drafts, wanted = [], []
        for _ in range(rng.randint(1, 3)):
            count = rng.randint(0, 6)
            tokens = [rng.choice([-1, 4, 5, 5, 6, 6, 7]) for _ in range(count)]
            parents = [rng.randrange(-1, i) for i in range(count)]
            size = rng.randint(0, count)
            chain = rng.random() < 0.4
            ways: list[tuple[int, ...]] = []
            for i, token in enumerate(tokens):
                parent = i - 1 if chain else parents[i]
                ways.append((*(ways[parent] if parent >= 0 else ()), token))
            wanted += [
                way for way in ways[:size] if len(way) <= depth and all(0 <= token < words for token in way)
            ]
            shape = (1, count)
            drafts.append(
                Draft(
                    torch.tensor(tokens, dtype=torch.int64, device=device).view(shape),
                    torch.tensor([size], device=device),
                    parents=None
                    if chain
                    else torch.tensor(parents, dtype=torch.int64, device=device).view(shape),
                )
            )
        tree = DraftTree.unite(drafts, words, depth, most=most)
        assert ways_of(tree, 0) == [*dict.fromkeys(wanted)][:most]


# What may follow in frames and graphs.


def test_the_likeliest_pairs_by_enumeration(device: torch.device) -> None:
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        size = 2 + seed % 7
        links = torch.randn(1, size, size, generator=generator).log_softmax(2)
        links = links.masked_fill(torch.ones(size, size, dtype=torch.bool).tril(), float("-inf"))
        lprobs = torch.randn(1, size, 3, generator=generator).log_softmax(2).sort(2, descending=True).values
        words = torch.stack([torch.randperm(7, generator=generator)[:3] for _ in range(size)])[None]
        found = parallel_drafts._continuations(*(x.to(device) for x in (links, words, lprobs)))
        for vertex in range(size):
            best: dict[int, tuple[float, int]] = {}
            for to, i in product(range(vertex + 1, size), range(3)):
                pair = (float(links[0, vertex, to] + lprobs[0, to, i]), to)
                token = int(words[0, to, i])
                best[token] = max(best.get(token, pair), pair)
            wanted = sorted(best.items(), key=lambda item: -item[1][0])[:5]
            rows = zip(
                *(x[0, vertex].tolist() for x in (found.tokens, found.lprobs, found.leads)), strict=True
            )
            kept = [row for row in rows if row[0] >= 0]
            assert [(token, to) for token, _, to in kept] == [(token, to) for token, (_, to) in wanted]
            assert [lprob for _, lprob, _ in kept] == pytest.approx(
                [each for _, (each, _) in wanted], abs=1e-5
            )


def test_what_frames_may_say_by_enumeration(device: torch.device) -> None:
    """Label 0 is the blank, 1 is silent. So few frames have no more pairs than are looked at."""
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        count = 1 + seed % 5
        length = max(1, count - seed % 2)
        log_probs = (3 * torch.randn(1, count, 5, generator=generator)).log_softmax(2)
        frames = Frames(log_probs.to(device), torch.tensor([length], device=device))
        said = greedy_labels(frames, 0, [1])
        size = int(said.lengths) + 2
        text = F.pad(said.tokens[:, : size - 2], (0, 2), value=-1)
        text[0, size - 2] = EOS
        words, lprobs = parallel_drafts._frame_words(frames, [0, 1])
        found = parallel_drafts._frame_lattice(frames, said.places, text, words, lprobs, 0, 9)
        places, rows = said.places[0].tolist(), log_probs[0].tolist()
        goes_on = [t > 0 and 0 <= places[t] == places[t - 1] for t in range(count)]
        labels = [max((0, 2, 3, 4), key=row.__getitem__) for row in rows]
        quiet = [
            math.log(math.exp(row[0]) + goes_on[t] * math.exp(row[labels[t]])) for t, row in enumerate(rows)
        ]
        for place in range(size - 1):
            begin = max((t + 1 for t in range(count) if 0 <= places[t] < place), default=0)
            ending = [(sum(quiet[begin:length]), size)]
            best: dict[int, tuple[float, int]] = {9: ending[0]}
            for t, token in product(range(begin, length), (2, 3, 4)):
                if not (goes_on[t] and token == labels[t]):
                    pair = (sum(quiet[begin:t]) + rows[t][token], max(places[: t + 1]) + 1)
                    best[token] = max(best.get(token, pair), pair)
            wanted = {
                token: (pytest.approx(chance, abs=1e-4), lead) for token, (chance, lead) in best.items()
            }
            columns = (x[0, place].tolist() for x in (found.tokens, found.lprobs, found.leads))
            assert {t: (lprob, lead) for t, lprob, lead in zip(*columns, strict=True) if t >= 0} == wanted


def test_a_graph_branches_as_a_loop_says(device: torch.device) -> None:
    """The first draft of each graph, with what may follow each vertex taken from its pairs, one by one."""
    nodes, block, words = 12, 5, 9
    graphs: Any = ScriptedGraphs(3, graphs=8, largest=9, words=words, spread=1.0, device=device)
    drafter = parallel_drafter(graphs, TableScorer(words, device=device), block, tree=nodes)
    for i in range(8):
        source = Source(torch.tensor([[i, EOS]], device=device), torch.tensor([2], device=device))
        graph = graphs.emit(source)
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        outputs = torch.zeros(1, 20, dtype=torch.int64, device=device)
        tree, _ = drafter.draft(drafter.start(source, [Request(0, (i, EOS), 20)]), outputs, zeros, zeros + 20)
        said, chances = (x[0].tolist() for x in say_everywhere(graphs, graph, 4))
        links, last = graph.links[0].tolist(), int(graph.lengths[0]) - 1
        options: list[dict[int, tuple[float, int]]] = []
        own, onward = [-1] * (last + 1), [last] * (last + 1)
        for vertex in range(last + 1):
            best: dict[int, tuple[float, int]] = {}
            for to, c in product(range(vertex + 1, last + 1), range(4)):
                pair = (links[vertex][to] + chances[to][c], to)
                best[said[to][c]] = max(best.get(said[to][c], pair), pair)
            options.append(dict(sorted(best.items(), key=lambda item: -item[1][0])[:5]))
            if vertex < last:
                own[vertex], (_, onward[vertex]) = next(iter(options[-1].items()))

        def walk(vertex: int, last: int = last, onward: list[int] = onward) -> list[int]:
            return [vertex, *walk(onward[vertex])] if vertex < last else []

        ways: Ways = {}
        chain: tuple[int, ...] = ()
        before = 0.0
        for vertex in walk(0)[:block]:
            for way, chance in ways_beside(own, options, walk, vertex, 8).items():
                ways.setdefault((*chain, *way), before + chance)
            chain, before = (*chain, own[vertex]), before + options[vertex][own[vertex]][0]
        found = said_ways(tree, 0)
        assert found[: len(chain)] == [chain[: j + 1] for j in range(len(chain))]
        beside = sorted(ways, key=lambda way: -ways[way])[:nodes]
        assert {*found[len(chain) :]} == set(beside)


class Unsure(KnowingFrames):
    """Frames of given probabilities, the same for all sources.

    Args:
        chances: For each frame those of some labels; the others share the rest.
    """

    def __init__(
        self, words: int, chances: Sequence[dict[int, float]], device: Any, *, blank: Any = 0
    ) -> None:
        super().__init__(words, {}, device, blank=blank)
        self.chances = chances

    def emit(self, source: Source) -> Frames:
        rows = torch.zeros(len(self.chances), len(self.vocab))
        for row, chances in zip(rows, self.chances, strict=True):
            row[:] = (1 - sum(chances.values())) / (len(row) - len(chances))
            for label, chance in chances.items():
                row[label] = chance
        batch = len(source.lengths)
        lengths = torch.full((batch,), len(self.chances), device=self.device)
        return Frames(rows.log().to(self.device).expand(batch, -1, -1), lengths)


# They say 5 6 7: 5 in a run, 6 or 8 or nothing, and 7.
FRAMES = [{5: 0.99}, {5: 0.99}, {6: 0.5, 8: 0.3, 0: 0.19}, {0: 0.98}, {7: 0.99}]


@pytest.mark.parametrize(("said", "chain", "tree"), [((5, 8, 7), 2, 1), ((5, 7), 2, 1), ((5, 6, 7), 1, 1)])
def test_other_labels_of_frames_by_hand(
    said: tuple[int, ...], chain: int, tree: int, device: torch.device
) -> None:
    """Passes to a word replaced and to one left out. A chain's first pass says 5 and another."""
    script = {(4, EOS): [*said, EOS]}
    scorer = ScriptScorer(40, script, device=device)
    for nodes, passes in ((0, chain), (8, tree)):
        strategy = with_drafter(Unsure(40, FRAMES, device), tree=nodes)
        (result,) = decode(strategy, scorer, [Request(0, (4, EOS), 20)])
        assert outputs_of([result]) == [[*said, EOS]]
        assert result.passes == passes


def test_a_run_is_not_drafted_twice(device: torch.device) -> None:
    """5 goes on in the second frame: without blank it is a second word, with blank it is none."""
    for blank, wanted in ((0, False), (None, True)):  # without blank, 0 is a word as well
        drafter = parallel_drafter(Unsure(40, FRAMES, device, blank=blank), TableScorer(40), 25, tree=20)
        source = Source(torch.tensor([[4, EOS]], device=device), torch.tensor([2], device=device))
        state = drafter.start(source, [Request(0, (4, EOS), 20)])
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        draft, _ = drafter.draft(
            state, torch.zeros(1, 20, dtype=torch.int64, device=device), zeros, zeros + 20
        )
        assert any(way[:2] == (5, 5) for way in ways_of(draft, 0)) == wanted


# The best draft stays the first path.


@dataclasses.dataclass(frozen=True)
class Beside:
    """The states of the two drafters of `Watches`."""

    chain: Any
    tree: Any
    requests: Tensor


class Watches(Drafter):
    """Proposes what one drafter does, asks another for the same places, and keeps what that one says."""

    def __init__(self, chain: Drafter, tree: Drafter) -> None:
        self.chain, self.tree = chain, tree
        self.drafts: dict[tuple[int, int], list[int]] = {}  # by request and length of the output
        self.behind = 0  # drafts that are not the first path

    def start(self, source: Source, requests: Sequence[Request]) -> Beside:
        indices = torch.tensor([request.index for request in requests])
        return Beside(self.chain.start(source, requests), self.tree.start(source, requests), indices)

    def draft(self, state: Beside, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Beside]:
        best, chain = self.chain.draft(state.chain, outputs, lengths, budget)
        draft, tree = self.tree.draft(state.tree, outputs, lengths, budget)
        for row, (request, length) in enumerate(zip(state.requests.tolist(), lengths.tolist(), strict=True)):
            tokens = best.tokens[row, : int(best.lengths[row])].tolist()
            tokens = tokens[: tokens.index(-1)] if -1 in tokens else tokens
            self.drafts[request, length] = tokens[: int(budget[row])]
            first: list[int] = []
            at = -1
            while any(draft.parents[row, : int(draft.lengths[row])] == at):  # type: ignore[index]
                at = int((draft.parents[row] == at).int().argmax())  # type: ignore[union-attr,operator]
                first.append(int(draft.tokens[row, at]))
            self.behind += first[: len(tokens)] != tokens
        return draft, Beside(chain, tree, state.requests)

    def select(self, state: Beside, rows: Tensor) -> Beside:
        chain, tree = self.chain.select(state.chain, rows), self.tree.select(state.tree, rows)
        return Beside(chain, tree, state.requests[rows.cpu()])

    def join(self, first: Beside, second: Beside) -> Beside:
        return Beside(
            self.chain.join(first.chain, second.chain),
            self.tree.join(first.tree, second.tree),
            torch.cat([first.requests, second.requests]),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(DraftAndVerify):
    promise = "identical to greedy"
    name = "watched"

    watch: Watches

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        return self.watch


def gains(kind: str, device: torch.device, seeds: int = 2) -> tuple[list[int], int]:
    """By how many tokens each pass of a tree is ahead of the best draft alone; paths that do not begin so."""
    found, behind = [], 0
    for seed in range(seeds):
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_table(rng, device)
        words = len(scorer.vocab)
        if kind == "dag":
            small: Any = ScriptedGraphs(seed, graphs=12, largest=12, words=words, spread=1.0, device=device)
            requests = [Request(i, (i, EOS), rng.choice([8, 25])) for i in range(min(12, words))]
        else:
            small = network(kind, words, seed, device=device)
            requests = [dataclasses.replace(random_request(rng, i, words, 12), prefix=()) for i in range(12)]
        watch = Watches(*(parallel_drafter(small, scorer, 5, tree=tree) for tree in (0, 30)))
        results = decode(Watched(watch=watch), scorer, requests, batch_size=rng.choice([1, 4]), trace=True)
        assert outputs_of(results) == plain_greedy(scorer.scores, requests)
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
                stands = same.index(False) if False in same else len(same)
                found.append(end - begin - min(stands + 1, len(tokens) - begin))
    return found, behind


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_pass_accepts_fewer_tokens_than_the_best_draft_alone(kind: str, device: torch.device) -> None:
    ahead, behind = gains(kind, device)
    assert behind == 0
    assert min(ahead) >= 0
    assert sum(ahead) > 0


def test_a_tree_whose_first_path_is_another_is_noticed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known to be wrong: each word of the best draft taken for its neighbour."""
    grow_from(lambda draft: dataclasses.replace(draft, tokens=draft.tokens ^ 1), monkeypatch)
    for kind in ("blockwise", "ctc"):
        assert gains(kind, device, 1)[1] > 0, kind


# P1, P2, P3 and P8.


@pytest.mark.parametrize("kind", SCRIPTED)
def test_p1_branches_change_no_output(kind: str, device: torch.device) -> None:
    for seed in range(4):
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_table(rng, device)
        requests = [random_request(rng, i, len(scorer.vocab), 16) for i in range(12)]
        requests = [dataclasses.replace(request, max_len=min(request.max_len, 20)) for request in requests]
        answers = {r.source: spoilt(rng, r.source, len(scorer.vocab)) for r in requests}
        drafter = SCRIPTED[kind](len(scorer.vocab), answers, device)
        strategy = with_drafter(drafter, block_size=rng.choice([1, 3, 25]), tree=rng.choice([1, 9, 30]))
        found = decode(strategy, scorer, requests, batch_size=rng.choice([3, 12]))
        assert not differing(outputs_of(found), plain_greedy(scorer.scores, requests))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", NETWORKS)
def test_p2_branches_change_no_bit(kind: str, dtype: str, device: torch.device) -> None:
    rng = random.Random(f"{kind}.{dtype}")
    scorer = random_scorer(rng, DTYPES[dtype], device)
    requests = random_requests(rng, 8, len(scorer.vocab), longest=20, limits=[1, 2, 6, 12])
    drafter = network(kind, len(scorer.vocab), 0, dtype=DTYPES[dtype], device=device)
    assert different(drafter, scorer, requests, sizes=(1, 5), tree=rng.choice([3, 20])) == 0


@pytest.mark.parametrize("ties", TIES)
def test_p3_branches_change_nothing_where_words_tie(ties: str, device: torch.device) -> None:
    kinds = NETWORKS[:2] if len(ties) % 2 else NETWORKS[2:]  # each with two of the ties
    for kind, dtype in zip(kinds, DTYPES.values(), strict=True):
        rng = random.Random(f"{kind}.{ties}")
        scorer = tied_scorer(ties, 3, dtype, device)
        requests = random_requests(rng, 4, len(scorer.vocab), longest=12, limits=[3, 5, 8])
        drafter = network(kind, len(scorer.vocab), 1, dtype=dtype, device=device)
        assert different(drafter, scorer, requests, sizes=(3,), tree=12) == 0


@pytest.mark.parametrize("weights", [math.nan, 1e30])
def test_p8_the_branches_of_a_broken_network_change_nothing(weights: float, device: torch.device) -> None:
    for kind in NETWORKS:
        rng = random.Random(f"{kind}.{weights}")
        scorer = random_scorer(rng, torch.float32, device)
        drafter = network(kind, len(scorer.vocab), 1, device=device, weights=weights)
        requests = random_requests(rng, 6, len(scorer.vocab), longest=12, limits=[1, 3, 8])
        assert different(drafter, scorer, requests, sizes=(4,), tree=10) == 0


@pytest.mark.parametrize("kind", NETWORKS)
def test_trees_are_grown_on_the_scorers_device(kind: str) -> None:
    requests = random_requests(random.Random(1), 5, 30, longest=12, limits=[2, 5, 9])
    strategy = with_drafter(scorer_of(kind, 4), tree=9)
    wanted = decode(strategy, scorer_of("transformer"), requests, batch_size=3)
    with Apart():
        found = decode(strategy, scorer_of("transformer"), requests, batch_size=3)
    assert [each.hypotheses for each in found] == [each.hypotheses for each in wanted]


def test_a_tree_and_beta_are_refused_together() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("gad", {"beta": 2, "tree": 8})
    assert str(caught.value) == (
        "error[E101 Usage] --tree is 8, but with --beta 2 only the best draft may be accepted. "
        "Fix: leave one of them out."
    )
