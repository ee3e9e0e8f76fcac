"""The searches over DA-Transformer graphs against enumeration of all paths and all words."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.dag_networks import network, sentences
from support.parallel_models import engine_of
from support.scripted import decode
from support.scripted_graphs import Lattice, Lattices

from nartk import engine
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.registry import make_strategy
from nartk.vocab import SPECIALS

INF = math.inf
BOS, PAD, EOS = 0, 1, 2
SILENT = (BOS, PAD, EOS)
CLEAR = 1e-4  # nats between the best and the second best, beyond which fp32 does not confuse them


def log_softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        shifted = x - np.where(np.isinf(x.max(-1, keepdims=True)), 0, x.max(-1, keepdims=True))
        with np.errstate(divide="ignore"):
            return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def random_lattice(
    rng: np.random.Generator, size: int, *, words: int = 2, spread: float = 2.0, pruned: float = 0.0
) -> Lattice:
    """A random graph of that many vertices and words beside the specials; a share of its links is pruned."""
    links = spread * rng.standard_normal((size, size))
    links[np.tril_indices(size)] = -INF
    links[rng.random((size, size)) < pruned] = -INF
    links = log_softmax(links)
    links[np.isnan(links)] = -INF
    said = log_softmax(spread * rng.standard_normal((size, len(SPECIALS) + words)))
    return Lattice(said.astype(np.float32).astype(np.float64), links.astype(np.float32).astype(np.float64))


@functools.lru_cache(8)
def lattices(seed: int, count: int, **settings: Any) -> list[Lattice]:
    """Graphs of 2 to 8 vertices; every third has links pruned."""
    rng = np.random.default_rng(seed)
    return [
        random_lattice(rng, 2 + i % 7, pruned=(0.0, 0.0, 0.4)[i % 3] if i % 7 else 0.0, **settings)
        for i in range(count)
    ]


def run(
    name: str, graphs: Sequence[Lattice], *, limit: int = 30, batch: int = 16, **options: Any
) -> list[Result]:
    scorer = Lattices(graphs)
    return decode(make_strategy(name, options), scorer, scorer.requests(limit), batch_size=batch)


def said(results: Sequence[Result]) -> list[tuple[Hypothesis, ...]]:
    return [result.hypotheses for result in results]


# The oracle.

Output = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """A path and what is said on it, eos included: log P(A|X) and log P(Y|A,X)."""

    path: tuple[int, ...]
    output: Output
    edges: float
    said: float


def every_path(graph: Lattice) -> dict[tuple[int, ...], float]:
    """All paths that have a probability, each with its logarithm."""
    last = len(graph) - 1
    found = {}
    for count in range(last):
        for inner in itertools.combinations(range(1, last), count):
            path = (0, *inner, last)
            score = sum(graph.links[a, b] for a, b in itertools.pairwise(path))
            if score > -INF:
                found[path] = float(score)
    return found


@functools.lru_cache(1024)
def every_pair(graph: Lattice) -> list[Pair]:
    """All paths, each with all outputs."""
    speaking = [word for word in range(graph.words.shape[1]) if word not in SILENT]
    table, last = graph.words.tolist(), len(graph) - 1
    found = []
    for path, edges in every_path(graph).items():
        said: dict[Output, float] = {(): table[last][EOS]}
        for vertex in path[1:-1]:
            said = {(*y, word): lprob + table[vertex][word] for y, lprob in said.items() for word in speaking}
        found += [Pair(path, (*y, EOS), edges, lprob) for y, lprob in said.items()]
    return found


@functools.lru_cache(1024)
def pairs_by_path(graph: Lattice) -> dict[tuple[int, ...], list[Pair]]:
    found: dict[tuple[int, ...], list[Pair]] = {}
    for pair in every_pair(graph):
        found.setdefault(pair.path, []).append(pair)
    return found


@dataclass(frozen=True)
class Wanted:
    """The best, its score, and by how many nats it is the best."""

    output: Output
    score: float
    gap: float


def two_best(found: Mapping[Any, float]) -> tuple[Any, float, float]:
    """The best, its score, and how far the second is."""
    best, *others = heapq.nlargest(2, found, key=found.__getitem__)
    return best, found[best], found[best] - found[others[0]] if others else INF


def wanted_viterbi(graph: Lattice, beta: float, limit: int) -> Wanted | None:
    """The likeliest path for its length, and then the likeliest output on it; None: there is no path."""
    paths = {a: s / (len(a) - 1) ** beta for a, s in every_path(graph).items() if len(a) - 1 <= limit}
    if not paths:
        return None
    path, score, gap = two_best(paths)
    output, said, near = two_best({pair.output: pair.said for pair in pairs_by_path(graph)[path]})
    return Wanted(output, score + said / len(output) ** beta, min(gap, near))


def wanted_joint(graph: Lattice, beta: float, limit: int) -> Wanted | None:
    """The likeliest pair of path and output for its length: of all pairs."""
    pairs = {
        (pair.output, pair.path): (pair.edges + pair.said) / len(pair.output) ** beta
        for pair in every_pair(graph)
        if len(pair.output) <= limit
    }
    if not pairs:
        return None
    (output, _), score, gap = two_best(pairs)
    return Wanted(output, score, gap)


@functools.lru_cache(1024)
def marginals(graph: Lattice) -> dict[Output, float]:
    """log P(Y|X) of all outputs: the sum over all paths."""
    found: dict[Output, list[float]] = {}
    for pair in every_pair(graph):
        found.setdefault(pair.output, []).append(pair.edges + pair.said)
    return {output: float(np.logaddexp.reduce(scores)) for output, scores in found.items()}


def wanted_marginal(graph: Lattice, alpha: float, limit: int) -> Wanted | None:
    """The output with the largest sum over paths for its length."""
    scores = {y: s / len(y) ** alpha for y, s in marginals(graph).items() if len(y) <= limit}
    return Wanted(*two_best(scores)) if scores else None


Oracle = Callable[[Lattice, float, int], "Wanted | None"]
ORACLES: dict[str, Oracle] = {"dag-viterbi": wanted_viterbi, "dag-joint-viterbi": wanted_joint}


def mismatches(
    results: Sequence[Result], graphs: Sequence[Lattice], oracle: Oracle, penalty: float, limit: int = 30
) -> int:
    """How many graphs are decoded otherwise than by enumeration, in output or score.

    Left out are graphs without a path, and those whose best two are too close for fp32; both are few.
    """
    wrong, unclear, pathless = 0, 0, 0
    for found, graph in zip(results, graphs, strict=True):
        wanted = oracle(graph, penalty, limit)
        if wanted is None:
            pathless += 1
        elif wanted.gap < CLEAR:
            unclear += 1
        else:
            best = found.hypotheses[0]
            same = best.score is not None and abs(best.score - wanted.score) < 1e-4
            wrong += best.tokens != wanted.output or not same
    assert unclear <= 0.01 * len(graphs)
    assert pathless <= 0.25 * len(graphs)
    return wrong


# The two Viterbis.


@pytest.mark.parametrize("name", ["dag-viterbi", "dag-joint-viterbi"])
def test_viterbi_equals_enumeration_on_1000_graphs(name: str) -> None:
    for beta, count in ((1.0, 1000), (0.0, 300), (0.7, 300), (1.6, 300)):
        graphs = lattices(1, 1000)[:count]
        results = run(name, graphs, beta=beta)
        assert mismatches(results, graphs, ORACLES[name], beta) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dag-viterbi", "dag-joint-viterbi"])
def test_viterbi_equals_enumeration_on_many_graphs(name: str) -> None:
    for seed in range(100, 106):
        for beta in (0.0, 0.7, 1.0, 1.6):
            results = run(name, lattices(seed, 1000), beta=beta)
            assert mismatches(results, lattices(seed, 1000), ORACLES[name], beta) == 0


@pytest.mark.parametrize("name", ["dag-viterbi", "dag-joint-viterbi"])
def test_without_length_normalisation_other_outputs_are_found(name: str) -> None:
    graphs = lattices(1, 1000)[:300]
    plain = run(name, graphs, beta=0.0)
    assert mismatches(plain, graphs, ORACLES[name], 0.0) == 0
    assert mismatches(plain, graphs, ORACLES[name], 1.0) > 30


def test_the_two_viterbis_differ_and_the_joint_one_scores_higher() -> None:
    graphs = [graph for graph in lattices(1, 1000)[:300] if every_path(graph)]
    first, joint = (run(name, graphs) for name in ORACLES)
    assert mismatches(first, graphs, wanted_joint, 1.0) > 30
    scores = [(a.hypotheses[0].score, b.hypotheses[0].score) for a, b in zip(first, joint, strict=True)]
    assert all(a <= b + 1e-5 for a, b in scores if a is not None and b is not None)


def test_dag_viterbi_asks_for_words_on_its_path_alone() -> None:
    graph = lattices(1, 1000)[6]
    strategy, scorer = make_strategy("dag-viterbi", {}), Lattices([graph])
    ((output,),) = (found.outputs for found in strategy.search(scorer, np.array([0]), scorer.requests(30)))
    assert len(scorer.asked) == len(set(scorer.asked)) == len(output.tokens)


@pytest.mark.parametrize("name", ["dag-viterbi", "dag-joint-viterbi"])
def test_a_viterbi_score_is_the_sum_of_its_tokens_for_their_number(name: str) -> None:
    for merge_repeats in (False, True):
        for beta in (0.0, 1.0, 1.6):
            plain, found = (
                run(name, lattices(1, 1000)[:100], beta=beta, merge_repeats=merged)
                for merged in (False, merge_repeats)
            )
            for before, result in zip(plain, found, strict=True):
                (best,) = result.hypotheses
                assert best.tokens == tuple(
                    word
                    for i, word in enumerate(before.hypotheses[0].tokens)
                    if not merge_repeats or i == 0 or word != before.hypotheses[0].tokens[i - 1]
                )
                assert best.positional_scores is not None
                assert best.score == before.hypotheses[0].score
                count = len(before.hypotheses[0].tokens)
                if best.score != -INF:
                    assert sum(best.positional_scores) / count**beta == pytest.approx(best.score, abs=1e-4)


# The beam.

ALL = 1000  # more words than there are
ALL_PREFIXES = 3**6  # of three words at six vertices


def test_an_exhaustive_beam_finds_the_likeliest_sum_over_paths() -> None:
    for alpha, count in ((1.1, 1000), (0.0, 100), (-0.5, 100)):
        graphs = lattices(1, 1000)[:count]
        results = run("dag-beam", graphs, beam_size=ALL_PREFIXES, candidates=ALL, alpha=alpha)
        assert mismatches(results, graphs, wanted_marginal, alpha) == 0


@pytest.mark.slow
def test_an_exhaustive_beam_finds_the_likeliest_sum_over_paths_of_many_graphs() -> None:
    for seed in range(100, 104):
        for alpha in (1.1, 0.0, -0.5, 2.0):
            results = run(
                "dag-beam", lattices(seed, 1000), beam_size=ALL_PREFIXES, candidates=ALL, alpha=alpha
            )
            assert mismatches(results, lattices(seed, 1000), wanted_marginal, alpha) == 0


def test_the_best_path_is_not_the_likeliest_output() -> None:
    graphs = lattices(1, 1000)[:300]
    assert mismatches(run("dag-joint-viterbi", graphs), graphs, wanted_marginal, 1.0) > 10


def all_same(found: Sequence[Hypothesis], scores: Mapping[Output, float]) -> None:
    """Asserts that hypotheses are the best of `scores`, in order."""
    order = sorted(scores, key=scores.__getitem__, reverse=True)
    assert len(found) <= len(order)
    for hypothesis, wanted in zip(found, order, strict=False):
        assert hypothesis.score == pytest.approx(scores[wanted], abs=1e-4)
        assert scores[hypothesis.tokens] == pytest.approx(scores[wanted], abs=CLEAR)


def test_an_exhaustive_beam_gives_all_outputs_in_order() -> None:
    for graph in filter(every_path, lattices(3, 21)):
        scores = {y: score / len(y) ** 1.1 for y, score in marginals(graph).items()}
        (found,) = run("dag-beam", [graph], beam_size=ALL_PREFIXES, candidates=ALL, nbest=10 * ALL)
        assert len(found.hypotheses) == len(scores)
        all_same(found.hypotheses, scores)
        (few,) = run("dag-beam", [graph], beam_size=ALL_PREFIXES, candidates=ALL, nbest=3)
        assert few.hypotheses == found.hypotheses[:3]


def test_a_token_scores_its_log_probability_after_those_before() -> None:
    graphs = list(filter(every_path, lattices(4, 42)))
    results = run("dag-beam", graphs, beam_size=ALL_PREFIXES, candidates=ALL, nbest=5)
    for graph, result in zip(graphs, results, strict=True):
        sums = marginals(graph)
        for hypothesis in result.hypotheses:
            assert hypothesis.positional_scores is not None
            assert sum(hypothesis.positional_scores) == pytest.approx(sums[hypothesis.tokens], abs=1e-4)
            # All paths that are on their way after the first word, whatever follows.
            first = np.logaddexp.reduce(
                [
                    graph.links[0, v] + graph.words[v, hypothesis.tokens[0]]
                    for v in (range(1, len(graph) - 1) if len(hypothesis.tokens) > 1 else [len(graph) - 1])
                ]
            )
            assert hypothesis.positional_scores[0] == pytest.approx(first, abs=1e-4)


def test_candidates_limit_the_words_of_a_vertex() -> None:
    graphs = lattices(1, 1000)[:100]
    for count in (1, 2):
        narrowed = []
        for graph in graphs:
            words = graph.words.copy()
            words[:, SILENT] = -INF
            least = np.sort(words, 1)[:, -count, None]
            words[words < least] = -INF
            words[-1] = graph.words[-1]
            narrowed.append(Lattice(words, graph.links))

        def oracle(graph: Lattice, alpha: float, limit: int) -> Wanted | None:
            possible = {y: s / len(y) ** alpha for y, s in marginals(graph).items() if s > -INF}
            return Wanted(*two_best(possible)) if possible else None

        results = run("dag-beam", graphs, beam_size=ALL_PREFIXES, candidates=count, alpha=1.0)
        assert mismatches(results, narrowed, oracle, 1.0) == 0


def test_a_wider_beam_finds_better_outputs() -> None:
    graphs = [graph for graph in lattices(6, 100, spread=1.0) if len(graph) > 5 and every_path(graph)]
    best = [max(score / len(y) for y, score in marginals(graph).items()) for graph in graphs]
    means = []
    for size in (1, 2, 4, 16, ALL_PREFIXES):
        results = run("dag-beam", graphs, beam_size=size, candidates=ALL, alpha=1.0)
        scores = [result.hypotheses[0].score for result in results]
        assert all(score is not None and score < top + 1e-5 for score, top in zip(scores, best, strict=True))
        means.append(float(np.mean(scores)))
    assert means == sorted(means)
    assert means[0] < means[-1] - 0.01
    assert means[-1] == pytest.approx(float(np.mean(best)), abs=1e-5)


def has_repeat(output: Output, n: int) -> bool:
    grams = [output[i : i + n] for i in range(len(output) - n + 1)]
    return len(set(grams)) < len(grams)


def test_decode_beta_weighs_words_in_the_beam() -> None:
    graphs = lattices(8, 100)
    for beta in (0.5, 2.0):

        def oracle(graph: Lattice, alpha: float, limit: int, beta: float = beta) -> Wanted | None:
            found: dict[Output, float] = {}
            for pair in every_pair(graph):
                score = pair.edges + beta * pair.said
                found[pair.output] = float(np.logaddexp(found.get(pair.output, -INF), score))
            scores = {y: s / len(y) ** alpha for y, s in found.items()}
            return Wanted(*two_best(scores)) if scores else None

        options = {"beam_size": ALL_PREFIXES, "candidates": ALL, "alpha": 1.0}
        weighed = run("dag-beam", graphs, decode_beta=beta, **options)
        assert mismatches(weighed, graphs, oracle, 1.0) == 0
        assert mismatches(run("dag-beam", graphs, **options), graphs, oracle, 1.0) > 0


def test_no_n_tokens_recur() -> None:
    graphs = [graph for graph in lattices(7, 100) if len(graph) > 4 and every_path(graph)]
    for n in (1, 2):

        def oracle(graph: Lattice, alpha: float, limit: int, n: int = n) -> Wanted | None:
            scores = {y: s / len(y) ** alpha for y, s in marginals(graph).items() if not has_repeat(y, n)}
            return Wanted(*two_best(scores)) if scores else None

        options = {"beam_size": ALL_PREFIXES, "candidates": ALL, "alpha": 2.0}
        results = run("dag-beam", graphs, no_repeat_ngram=n, **options)
        assert mismatches(results, graphs, oracle, 2.0) == 0
        assert mismatches(run("dag-beam", graphs, **options), graphs, oracle, 2.0) > 0


# The language model.

ARPA = """\\data\\
ngram 1=5
ngram 2=4

\\1-grams:
-99\t<s>\t-0.3
-0.9\t</s>
-1.5\t<unk>\t-0.1
-0.5\tw0\t-0.2
-0.4\tw1\t-0.4

\\2-grams:
-0.2\t<s> w1
-1.1\tw0 w1
-0.1\tw1 </s>
-0.7\tw0 w0

\\end\\
"""
UNIGRAMS = {EOS: (-0.9, 0.0), 3: (-1.5, -0.1), 4: (-0.5, -0.2), 5: (-0.4, -0.4), BOS: (-99, -0.3)}
BIGRAMS = {(BOS, 5): -0.2, (4, 5): -1.1, (5, EOS): -0.1, (4, 4): -0.7}


def lm_score(output: Output) -> float:
    """Natural logarithm, as ARPA's format says: the bigram, or the context's weight and the unigram."""
    total = 0.0
    for before, word in itertools.pairwise((BOS, *output)):
        seen = BIGRAMS.get((before, word))
        total += UNIGRAMS[before][1] + UNIGRAMS[word][0] if seen is None else seen
    return total * math.log(10)


@pytest.fixture
def arpa(tmp_path: Path) -> str:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA)
    return str(path)


def test_a_language_model_is_weighed_in(arpa: str) -> None:
    graphs = lattices(1, 1000)[:200]
    for alpha, gamma in ((1.1, 0.1), (0.0, 0.5), (1.0, 3.0)):

        def oracle(graph: Lattice, alpha: float, limit: int, gamma: float = gamma) -> Wanted | None:
            scores = {y: (s + gamma * lm_score(y)) / len(y) ** alpha for y, s in marginals(graph).items()}
            return Wanted(*two_best(scores)) if scores else None

        options = {"beam_size": ALL_PREFIXES, "candidates": ALL, "alpha": alpha}
        fused = run("dag-beam", graphs, lm=arpa, gamma=gamma, **options)
        assert mismatches(fused, graphs, oracle, alpha) == 0
        alone = run("dag-beam", graphs, **options)
        assert mismatches(alone, graphs, oracle, alpha) > 0
    weightless = run("dag-beam", graphs, lm=arpa, gamma=0.0, **options)
    assert said(weightless) == said(alone)


def test_a_score_by_hand(arpa: str) -> None:
    # Two paths say w1: over vertex 1 and over vertex 2. Nothing else is said, but for the empty output.
    half, quarter = math.log(0.5), math.log(0.25)
    links = np.array(
        [[-INF, half, quarter, quarter], [-INF, -INF, -INF, 0], [-INF, -INF, -INF, 0], [-INF] * 4]
    )
    words = np.full((4, 6), -INF)
    words[:, 5], words[-1] = 0.0, -INF
    words[-1, EOS] = 0.0
    graph = Lattice(words, links)
    (found,) = run("dag-beam", [graph], alpha=2.0, nbest=ALL, lm=arpa, gamma=0.5)
    # log10 P_LM(w1 </s>) = -0.2 - 0.1; log10 P_LM(</s>) = -0.3 - 0.9.
    said = (math.log(0.75) + 0.5 * -0.3 * math.log(10)) / 4
    empty = math.log(0.25) + 0.5 * -1.2 * math.log(10)
    assert [hypothesis.tokens for hypothesis in found.hypotheses] == [(5, EOS), (EOS,)]
    assert [hypothesis.score for hypothesis in found.hypotheses] == pytest.approx([said, empty], abs=1e-6)
    (joint,) = run("dag-joint-viterbi", [graph], beta=2.0)
    assert joint.hypotheses[0].score == pytest.approx(math.log(0.5) / 4, abs=1e-6)  # its best path alone


# All three.

NAMES = ["dag-viterbi", "dag-joint-viterbi", "dag-beam"]
WIDE = {"dag-beam": {"beam_size": ALL_PREFIXES, "candidates": ALL}}


@pytest.mark.parametrize("name", NAMES)
def test_the_limit_holds_and_the_best_within_it_is_found(name: str) -> None:
    oracles = {**ORACLES, "dag-beam": wanted_marginal}
    penalty = "alpha" if name == "dag-beam" else "beta"
    for limit in (1, 2, 4):
        # So few tokens lead to the end, as no link is pruned.
        graphs = [graph for graph in lattices(1, 1000)[:300] if np.isfinite(graph.links[:-1, -1]).all()]
        results = run(name, graphs, limit=limit, **{**WIDE.get(name, {}), penalty: 2.0})
        assert all(result.hypotheses[0].tokens[-1] == EOS for result in results)
        assert max(len(result.hypotheses[0].tokens) for result in results) == limit
        assert mismatches(results, graphs, oracles[name], 2.0, limit) == 0


@pytest.mark.parametrize("name", NAMES)
def test_where_no_path_is_short_enough_the_output_is_cut(name: str) -> None:
    chain = np.full((6, 6), -INF)
    chain[np.arange(5), np.arange(1, 6)] = 0.0
    words = lattices(1, 1000)[4].words
    graph = Lattice(words, chain)
    whole = [3 + int(words[v, 3:].argmax()) for v in range(1, 5)]
    for limit in (1, 3, 4):
        (found,) = run(name, [graph], limit=limit)
        assert found.hypotheses[0].tokens == tuple(whole[:limit])
    (found,) = run(name, [graph], limit=5)
    assert found.hypotheses[0].tokens == (*whole, EOS)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_two_vertices_says_nothing(name: str) -> None:
    two = [graph for graph in lattices(1, 1000)[:50] if len(graph) == 2]
    assert len(two) > 5
    for graph, result in zip(two, run(name, two), strict=True):
        (best,) = result.hypotheses
        assert best.tokens == (EOS,)
        assert best.score == pytest.approx(graph.words[-1, EOS], abs=1e-5)


def impossible_lattices() -> list[Lattice]:
    """Graphs in which much is impossible: words, ends, all links of a vertex, all paths; or all but so."""
    rng = np.random.default_rng(10)
    found = []
    for i in range(120):
        graph = random_lattice(rng, 2 + i % 7, pruned=0.6, spread=(2.0, 60.0)[i % 2])
        words, links = graph.words.copy(), graph.links.copy()
        words[rng.random(words.shape) < 0.5] = -INF
        words[:, 3] = np.where(np.isinf(words[:, 3:]).all(1), 0.0, words[:, 3])  # every vertex has a word
        if i % 5 == 0:
            words[-1, EOS] = -INF
            words[-1, 3] = 0.0
        if i % 6 == 0:
            links[:, -1] = -INF
        if i % 9 == 0:
            links[:] = -INF
        found.append(Lattice(words, links))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_impossible_leads_to_no_nan(name: str, arpa: str) -> None:
    graphs = impossible_lattices()
    more: dict[str, Any] = {"lm": arpa, "nbest": 3, "no_repeat_ngram": 2} if name == "dag-beam" else {}
    for limit in (3, 30):
        results = run(name, graphs, limit=limit, **more)
        for result in results:
            assert result.hypotheses
            for hypothesis in result.hypotheses:
                assert hypothesis.score is not None
                assert not math.isnan(hypothesis.score)
                assert hypothesis.positional_scores is not None
                assert not any(math.isnan(score) for score in hypothesis.positional_scores)
                assert len(hypothesis.tokens) <= limit
                assert not {BOS, PAD} & set(hypothesis.tokens)
                assert EOS not in hypothesis.tokens[:-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_equals_its_rows_bitwise(name: str, arpa: str) -> None:
    graphs = [*lattices(11, 40), *impossible_lattices()[:20]]
    rng = np.random.default_rng(12)
    graphs += [random_lattice(rng, size, words=2) for size in (40, 17, 64)]
    more: dict[str, Any] = {"lm": arpa, "nbest": 3, "beam_size": 7} if name == "dag-beam" else {}
    together, alone = (run(name, graphs, batch=batch, **more) for batch in (64, 1))
    assert said(together) == said(alone)


@pytest.mark.skipif(not engine.available(), reason="there is no engine here")
@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_a_network_equals_its_rows_bitwise(name: str, type: str) -> None:
    scorer = engine_of(network(40, seed=1, spread=1.5, max_target_len=256).eval(), type=type)
    requests = [Request(i, tuple(s), 20) for i, s in enumerate(sentences(random.Random(0), 12, 14, 40))]
    strategy = make_strategy(name, {"nbest": 3} if name == "dag-beam" else {})
    together, some, alone = (said(decode(strategy, scorer, requests, batch_size=size)) for size in (12, 5, 1))
    assert together == some == alone
    assert len({hypotheses[0].tokens for hypotheses in alone}) > 6
    assert scorer.memories_in_use == 0
