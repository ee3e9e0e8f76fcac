"""dag-greedy, dag-lookahead and dag-sample: walks by hand, exact distributions, and one batch as another."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.bad_lines import BAD, WRAP
from support.dag_networks import network, sentences
from support.distributions import CHANCE, filtered, fit
from support.parallel_models import engine_of
from support.scorers import DagReference
from support.scripted_graphs import Lattice, ScriptedGraphs
from support.transformers_small import vocabulary

import nartk
from nartk import engine
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.decode import main
from nartk.decoders import dag_sample
from nartk.decoders.graphs.graph import walk
from nartk.decoders.loop.draws import uniform
from nartk.errors import StrategyMismatchError, UsageError
from nartk.models.da_transformer import DaTransformer
from nartk.protocols.hypothesis import Request, Result
from nartk.registry import make_strategy, require_protocol
from nartk.vocab import Vocab

BOS, PAD, EOS, UNK = 0, 1, 2, 3
SILENT = (BOS, PAD, EOS)
STRATEGIES = ("dag-greedy", "dag-lookahead", "dag-sample")


def best_word(lprobs: Sequence[float]) -> int:
    return max((word for word in range(len(lprobs)) if word not in SILENT), key=lprobs.__getitem__)


def merged(tokens: Sequence[int], scores: Sequence[float]) -> tuple[tuple[int, ...], list[float]]:
    runs = [list(run) for _, run in itertools.groupby(zip(tokens, scores, strict=True), key=lambda x: x[0])]
    return tuple(run[0][0] for run in runs), [sum(score for _, score in run) for run in runs]


def walk_by_hand(graphs: ScriptedGraphs, i: int, *, lookahead: bool) -> tuple[tuple[int, ...], list[float]]:
    """Output and its scores: vertex after vertex, the best edge alone or with the best word behind it."""
    last = graphs.sizes[i] - 1
    vertex, tokens, scores = 0, [], []
    while vertex != last:

        def say(to: int) -> tuple[int, float]:
            lprobs = graphs.lprobs(i, to)
            word = EOS if to == last else best_word(lprobs)
            return word, lprobs[word]

        def score(to: int, vertex: int = vertex, say: Callable[..., Any] = say) -> float:
            return graphs.links[i][vertex][to] + (say(to)[1] if lookahead else 0.0)

        to = max(range(vertex + 1, last + 1), key=score)
        word, lprob = say(to)
        tokens.append(word)
        scores.append(graphs.links[i][vertex][to] + lprob)
        vertex = to
    return tuple(tokens), scores


def decode(
    name: str, scorer: Any, requests: list[Request], *, batch: int = 32, **options: Any
) -> list[Result]:
    if name == "dag-sample":
        options = {"decode_top_cand_n": 0, **options}
    results = make_strategy(name, options).run(scorer, requests, batch_size=batch)
    return sorted(results, key=lambda result: result.index)


# Greedy and lookahead.


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("name", ["dag-greedy", "dag-lookahead"])
def test_outputs_and_scores_equal_a_walk_by_hand(name: str, merge: bool) -> None:
    merges, lengths = 0, set()
    for seed in range(8):
        graphs = ScriptedGraphs(seed, graphs=60, largest=24, words=6, spread=1.0 + seed % 3)
        for result in decode(name, graphs, graphs.requests(), batch=7, merge_repeats=merge):
            tokens, scores = walk_by_hand(graphs, result.index, lookahead=name == "dag-lookahead")
            short = merged(tokens, scores)
            merges += len(short[0]) < len(tokens)
            if merge:
                tokens, scores = short
            (found,) = result.hypotheses
            assert found.tokens == tokens
            assert found.positional_scores == pytest.approx(scores, abs=1e-5)
            assert found.score == pytest.approx(sum(scores), abs=1e-4)
            assert_at(graphs, result.index, found, exact=not merge)
            lengths.add(len(tokens))
    assert merges > 20
    assert min(lengths) == 1 < 7 < max(lengths)


def assert_at(graphs: ScriptedGraphs, i: int, found: nartk.Hypothesis, *, exact: bool) -> None:
    """Each token is the word of the vertex that it is said to be at, and its score says so."""
    assert found.vertices is not None
    assert found.positional_scores is not None
    path = (0, *found.vertices)
    assert sorted({*path}) == [*path]
    for before, vertex, token, score in zip(
        path, path[1:], found.tokens, found.positional_scores, strict=False
    ):
        last = vertex == graphs.sizes[i] - 1
        assert token == (EOS if last else best_word(graphs.lprobs(i, vertex)))
        if exact:
            own = graphs.links[i][before][vertex] + graphs.lprobs(i, vertex)[token]
            assert score == pytest.approx(own, abs=1e-5)


def test_greedy_asks_for_words_on_its_path_alone() -> None:
    graphs = ScriptedGraphs(1, graphs=20, largest=30, words=9)
    results = decode("dag-greedy", graphs, graphs.requests())
    tokens = sum(len(result.hypotheses[0].tokens) for result in results)
    assert len(graphs.asked) == len(set(graphs.asked)) == tokens < sum(graphs.sizes) / 2


def test_a_limit_cuts_the_output() -> None:
    graphs = ScriptedGraphs(2, graphs=30, largest=30, words=9)
    whole = decode("dag-greedy", graphs, graphs.requests())
    cut = decode("dag-greedy", graphs, [Request(i, (i, EOS), 2) for i in range(30)])
    for long, short in zip(whole, cut, strict=True):
        assert short.hypotheses[0].tokens == long.hypotheses[0].tokens[:2]
        assert short.hypotheses[0].score == long.hypotheses[0].score


def test_walks_follow_the_chosen_edges() -> None:
    rng = random.Random(0)
    for _ in range(400):
        size = rng.randint(1, 40)
        following = [rng.randrange(-1, size) for _ in range(size)]
        wanted = [0]
        while wanted[-1] < size - 1:
            wanted.append(min(max(following[wanted[-1]], wanted[-1] + 1), size - 1))
        assert walk(following) == wanted


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("garbage", [math.nan, -math.inf])
def test_a_graph_without_edges_is_walked_to_its_end(name: str, garbage: float) -> None:
    graphs = ScriptedGraphs(3, graphs=1, largest=9, words=9)
    graphs.graphs_of = [Lattice(np.zeros((9, 9)), np.full((9, 9), garbage))]
    (result,) = decode(name, graphs, graphs.requests())
    assert result.hypotheses[0].tokens[-1] == EOS
    score = result.hypotheses[0].score
    assert score == -math.inf or math.isnan(score)  # type: ignore[arg-type]


# Pairs of an edge and a word, as in the authors' program.


def pairs_of(
    graphs: ScriptedGraphs, i: int, vertex: int, *, count: int, beta: float = 1.0, temperature: float = 1.0
) -> list[tuple[float, int, int]]:
    """Score, next vertex and word of the likeliest pairs from a vertex, each vertex with as many words."""
    last, found = graphs.sizes[i] - 1, []
    links = [link / temperature for link in graphs.links[i][vertex]]
    mass = math.log(sum(map(math.exp, links)))
    for to in range(vertex + 1, last + 1):
        lprobs = graphs.lprobs(i, to)
        words = [EOS] if to == last else [word for word in range(len(lprobs)) if word not in SILENT]
        words = sorted(words, key=lambda word: -lprobs[word])[:count]
        found += [(links[to] - mass + beta * lprobs[word], to, word) for word in words]
    return sorted(found, reverse=True)[:count]


def is_repetition(tokens: Sequence[int], word: int, consecutive: int, n: int) -> bool:
    """Whether the output with a word more ends in what it should not, by the definitions."""
    after = [*tokens, word]
    for k in range(1, max(1, consecutive) + 1):  # one word never follows itself
        if len(after) >= 2 * k and after[-k:] == after[-2 * k : -k]:
            return True
    return n > 0 and any(after[j : j + n] == after[-n:] for j in range(len(after) - n))


@pytest.mark.parametrize("beta", [0.4, 1.0, 2.5])
def test_decode_beta_weighs_words_in_lookahead(beta: float) -> None:
    changed = 0
    for seed in range(4):
        graphs = ScriptedGraphs(seed, graphs=40, largest=24, words=8)
        plain = decode("dag-lookahead", graphs, graphs.requests())
        weighed = decode("dag-lookahead", graphs, graphs.requests(), decode_beta=beta)
        for result, other in zip(weighed, plain, strict=True):
            vertex, tokens = 0, []
            while vertex < graphs.sizes[result.index] - 1:
                _, vertex, word = pairs_of(graphs, result.index, vertex, count=1, beta=beta)[0]
                tokens.append(word)
            assert list(result.hypotheses[0].tokens) == tokens
            changed += result.hypotheses[0].tokens != other.hypotheses[0].tokens
    assert (changed > 0) == (beta != 1.0)


@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("top_p", [0.9, 0.3])
@pytest.mark.parametrize(("consecutive", "n"), [(1, 0), (3, 0), (0, 1), (0, 2), (2, 3)])
def test_lookahead_repeats_no_ngram(consecutive: int, n: int, top_p: float, beta: float) -> None:
    plainly = repeated = 0
    options = {
        "decode_no_consecutive_repeated_ngram": consecutive,
        "decode_no_repeated_ngram": n,
        "decode_top_p": top_p,
        "decode_beta": beta,
    }
    for seed in range(3):
        graphs = ScriptedGraphs(seed, graphs=40, largest=40, words=7, spread=1.0)
        plain = decode("dag-lookahead", graphs, graphs.requests())
        for result, other in zip(
            decode("dag-lookahead", graphs, graphs.requests(), **options), plain, strict=True
        ):
            vertex, tokens = 0, []
            while vertex < graphs.sizes[result.index] - 1:
                pairs = pairs_of(graphs, result.index, vertex, count=5, beta=beta)
                chosen, mass = pairs[0], 0.0
                for pair in pairs:
                    if not is_repetition(tokens, pair[2], consecutive, n):
                        chosen = pair
                        break
                    mass += math.exp(pair[0])
                    if mass > top_p:
                        break
                _, vertex, word = chosen
                repeated += is_repetition(tokens, word, consecutive, n)
                tokens.append(word)
            assert list(result.hypotheses[0].tokens) == tokens
            words = other.hypotheses[0].tokens
            plainly += sum(is_repetition(words[:j], word, consecutive, n) for j, word in enumerate(words))
    assert repeated < plainly


PAIRS: list[dict[str, Any]] = [
    {},
    {"decode_top_cand_n": 8, "decode_top_p": 1.0},
    {"decode_top_cand_n": 3, "decode_top_p": 0.5, "link_temperature": 2.0},
    {"decode_beta": 0.5, "decode_no_repeated_ngram": 1},
    {"decode_no_consecutive_repeated_ngram": 2, "decode_top_cand_n": 4},
]


def pair_distribution(graphs: ScriptedGraphs, i: int, options: Any) -> dict[tuple[int, ...], float]:
    """All outputs that can be drawn of pairs, with their probabilities."""
    found: dict[tuple[int, ...], float] = {}

    def go_on(vertex: int, tokens: tuple[int, ...], prob: float) -> None:
        if vertex == graphs.sizes[i] - 1:
            found[tokens] = found.get(tokens, 0.0) + prob
            return
        weights, mass = [], 0.0
        pairs = pairs_of(
            graphs,
            i,
            vertex,
            count=options.decode_top_cand_n,
            beta=options.decode_beta,
            temperature=options.link_temperature,
        )
        for score, _, word in pairs:
            bounds = options.decode_no_consecutive_repeated_ngram, options.decode_no_repeated_ngram
            weights.append(1e-5 if is_repetition(tokens, word, *bounds) else math.exp(score))
            mass += math.exp(score)
            if mass > options.decode_top_p:
                break
        for (_, to, word), weight in zip(pairs, weights, strict=False):
            go_on(to, (*tokens, word), prob * weight / sum(weights))

    go_on(0, (), 1.0)
    return found


@pytest.mark.parametrize("settings", PAIRS, ids=str)
def test_samples_of_pairs_are_distributed_as_published(settings: dict[str, Any]) -> None:
    graphs = ScriptedGraphs(4, graphs=3, largest=5, words=7, spread=1.0)
    strategy = make_strategy("dag-sample", {"nbest": 2000, **settings})
    for result in strategy.run(graphs, graphs.requests(), batch_size=2):
        drawn = [hypothesis.tokens for hypothesis in result.hypotheses]
        assert fit(drawn, pair_distribution(graphs, result.index, strategy)) > CHANCE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 2}, "top_k.*Fix: use decode_top_cand_n=0"),
        ({"decode_top_cand_n": 0, "decode_beta": 2.0}, "decode_beta.*Fix: use decode_top_cand_n=5"),
        ({"decode_top_cand_n": 0, "decode_no_repeated_ngram": 2}, "n-grams.*Fix: use decode_top_cand_n=5"),
    ],
)
def test_options_of_pairs_and_of_words_exclude_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_strategy("dag-sample", options)


# Sampling.

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "link_temperature": 2.0},
    {"link_temperature": 0.4},
    {"top_k": 2},
    {"top_p": 0.6, "temperature": 1.5},
    {"merge_repeats": True},
]


def distribution(graphs: ScriptedGraphs, i: int, options: Any) -> dict[tuple[int, ...], float]:
    """All outputs that can be drawn from a graph, with their probabilities, path after path."""
    found: dict[tuple[int, ...], float] = {}
    for path in graphs.paths(i):
        chance = 1.0
        for a, b in itertools.pairwise(path):
            row = [math.exp(score / options.link_temperature) for score in graphs.links[i][a]]
            chance *= row[b] / sum(row)
        said = []
        for vertex in path[1:-1]:
            lprobs = [-math.inf if w in SILENT else x for w, x in enumerate(graphs.lprobs(i, vertex))]
            said.append(filtered(lprobs, options.temperature, options.top_k, options.top_p))
        for words in itertools.product(*([w for w, p in enumerate(one) if p > 0] for one in said)):
            p = chance * math.prod(one[word] for one, word in zip(said, words, strict=True))
            tokens = (*words, EOS)
            if options.merge_repeats:
                tokens = merged(tokens, [0.0] * len(tokens))[0]
            found[tokens] = found.get(tokens, 0.0) + p
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_samples_of_a_sentence_are_distributed_as_the_model_says(
    settings: dict[str, Any],
) -> None:
    graphs = ScriptedGraphs(4, graphs=3, largest=5, words=7, spread=1.0)
    strategy = make_strategy("dag-sample", {"nbest": 8000, "decode_top_cand_n": 0, **settings})
    for result in strategy.run(graphs, graphs.requests(), batch_size=2):
        drawn = [hypothesis.tokens for hypothesis in result.hypotheses]
        assert len(drawn) == 8000
        assert fit(drawn, distribution(graphs, result.index, strategy)) > CHANCE


def test_seeds_and_sentences_are_distributed_as_the_model_says() -> None:
    graphs = ScriptedGraphs(4, graphs=1, largest=5, words=7, spread=1.0)
    requests = [Request(i, (0, EOS), 100) for i in range(100)]
    drawn = []
    for seed in range(80):
        results = decode("dag-sample", graphs, requests, batch=100, seed=seed)
        drawn += [result.hypotheses[0].tokens for result in results]
    strategy = make_strategy("dag-sample", {"decode_top_cand_n": 0})
    assert fit(drawn, distribution(graphs, 0, strategy)) > CHANCE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda seed, sentence, sample, vertex, purpose: uniform(seed, sentence, sample, vertex),
        lambda seed, sentence, sample, vertex, purpose: uniform(seed, sentence, sample, purpose),
        lambda seed, sentence, sample, vertex, purpose: uniform(seed, sentence, vertex, purpose),
        lambda seed, *parts: uniform(seed, *parts) ** 1.2,
    ],
    ids=["edge and word share a number", "one number for all vertices", "for all samples", "skewed"],
)
def test_a_wrong_random_number_shows(wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = ScriptedGraphs(4, graphs=3, largest=5, words=7, spread=1.0)
    monkeypatch.setattr(dag_sample, "uniform", wrong)
    strategy = make_strategy("dag-sample", {"nbest": 8000, "decode_top_cand_n": 0})
    chances = [
        fit([each.tokens for each in result.hypotheses], distribution(graphs, result.index, strategy))
        for result in strategy.run(graphs, graphs.requests(), batch_size=2)
    ]
    assert min(chances) < CHANCE


def test_scores_are_the_models_whatever_the_temperature() -> None:
    graphs = ScriptedGraphs(6, graphs=10, largest=8, words=9)
    for result in decode("dag-sample", graphs, graphs.requests(), nbest=20, temperature=3.0, top_k=4):
        i = result.index
        for hypothesis in result.hypotheses:
            assert hypothesis.score == pytest.approx(sum(hypothesis.positional_scores or ()), abs=1e-4)
            possible = [
                sum(graphs.links[i][a][b] for a, b in itertools.pairwise(path))
                + sum(graphs.lprobs(i, v)[w] for v, w in zip(path[1:], hypothesis.tokens, strict=True))
                for path in graphs.paths(i)
                if len(path) == len(hypothesis.tokens) + 1
            ]
            assert min(abs(hypothesis.score - score) for score in possible) < 1e-4  # type: ignore[operator]
        scores = [hypothesis.score for hypothesis in result.hypotheses]
        assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-3}], ids=str)
def test_the_sharpest_settings_are_greedy(settings: dict[str, Any]) -> None:
    graphs = ScriptedGraphs(7, graphs=40, largest=20, words=9)
    drawn = decode("dag-sample", graphs, graphs.requests(), link_temperature=1e-3, **settings)
    greedy = decode("dag-greedy", graphs, graphs.requests())
    assert [result.hypotheses for result in drawn] == [result.hypotheses for result in greedy]


def test_the_seed_decides_and_more_samples_keep_those_there_were() -> None:
    graphs = ScriptedGraphs(8, graphs=20, largest=20, words=9)
    few, again, other = (
        [result.hypotheses for result in decode("dag-sample", graphs, graphs.requests(), nbest=2, seed=seed)]
        for seed in (1, 1, 2)
    )
    many = decode("dag-sample", graphs, graphs.requests(), nbest=5, seed=1, batch=3)
    assert few == again != other
    for two, result in zip(few, many, strict=True):
        assert Counter(each.tokens for each in two) <= Counter(each.tokens for each in result.hypotheses)


# The network's scorer.

WORDS = 40


def scorer_of(model: DaTransformer) -> DagReference:
    return DagReference(model, vocabulary(WORDS))


@pytest.mark.skipif(not engine.available(), reason="there is no engine here")
@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("upsampling", ["source", "predict"])
def test_a_batch_says_bitwise_what_its_sentences_say_alone(upsampling: str, type: str, count: int) -> None:
    settings = {"upsampling": upsampling, "upsample_scale": "3", "length_difference": 8}
    scorer = engine_of(network(WORDS, seed=1, spread=3.0, **settings), type=type)
    rows = sentences(random.Random(0), count, 45, WORDS)
    requests = [Request(i, tuple(ids), 60) for i, ids in enumerate(rows)]
    for name in STRATEGIES:
        options = {"nbest": 3} if name == "dag-sample" else {}
        alone = [decode(name, scorer, [request], **options)[0].hypotheses for request in requests]
        assert len({len(hypotheses[0].tokens) for hypotheses in alone}) > 3
        for size in (5, 24):
            together = decode(name, scorer, requests, batch=size, **options)
            assert [result.hypotheses for result in together] == alone
    assert scorer.memories_in_use == 0


def sizes_of(scorer: DagReference, *lengths: int) -> list[int]:
    """The vertices of the graphs of sources of so many tokens, eos included."""
    memory = scorer.encode([[*[5] * (length - 1), EOS] for length in lengths])
    return scorer.graphs(memory).sizes.tolist()


def test_a_graph_has_no_more_vertices_than_the_model_has_positions() -> None:
    scorer = scorer_of(network(WORDS, seed=4, max_target_len=50))
    assert sizes_of(scorer, 41, 3) == [50, 24]
    requests = [Request(0, (*[5] * 40, EOS), 60), Request(1, (5, 6, EOS), 60)]
    assert all(result.hypotheses[0].tokens for result in decode("dag-lookahead", scorer, requests))


def test_sizes_follow_the_predicted_length() -> None:
    model = network(WORDS, seed=5, upsampling="predict", upsample_scale="2~4")
    lengths = (1, 2, 8, 26)
    for difference in (-128, -3, 0, 5):
        with torch.no_grad():
            model.lengths.bias.zero_()
            model.lengths.bias[128 + difference] = 1000.0
        wanted = [min(4 * max(1, length + difference), 128) for length in lengths]
        assert sizes_of(scorer_of(model), *lengths) == wanted


def test_a_fixed_size_is_that_of_every_graph() -> None:
    scorer = scorer_of(network(WORDS, seed=6, upsampling="fixed", upsample_scale="37"))
    assert sizes_of(scorer, 1, 4, 9, 20) == [37] * 4


def test_other_strategies_are_refused() -> None:
    with pytest.raises(StrategyMismatchError, match="needs a PassScorer"):
        require_protocol(make_strategy("greedy", {}), scorer_of(network(WORDS)))


# The command.


CLI_WORDS = "she he they go goes went to school home the big cat sees it and . !"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = CLI_WORDS.split()
    vocab = Vocab.from_words(words)
    model = network(len(vocab), seed=8, spread=3.0)
    folder = tmp_path_factory.mktemp("dag")
    save_checkpoint(
        folder,
        architecture="dag",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        tokenizer=None,
        card="# A small model for tests\n",
    )
    return folder


def test_a_saved_model_says_what_it_said(folder: Path) -> None:
    model = nartk.load(folder)
    ids = model.checkpoint.source_vocab.ids(["she", "go", "to", "the", "big", "cat", "."])
    (found,) = model.decode(["she go to the big cat ."], strategy="dag-lookahead")
    target = model.checkpoint.target_vocab
    scorer = DagReference(network(len(target), seed=8, spread=3.0), target)
    (result,) = decode("dag-lookahead", scorer, [Request(0, (*ids, EOS), 26)])
    assert found.tokens == result.hypotheses[0].tokens
    assert found.score == pytest.approx(result.hypotheses[0].score, abs=1e-4)  # the engine's, and torch's


@pytest.mark.parametrize("form", WRAP)
@pytest.mark.parametrize("name", STRATEGIES)
def test_bad_lines_cost_themselves_alone(
    name: str, form: str, folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """I1: N lines in, N lines out, the other lines as in a clean run."""
    good = [b"he go home !", b"the big cat sees it .", b"she go to school and they went home"]
    lines = [line for i, (bad, _) in enumerate(BAD.values()) for line in (good[i % 3], bad)]
    clean = [line if i % 2 == 0 else b"she" for i, line in enumerate(lines)]
    outputs = []
    for code, some in ((3, lines), (0, clean)):
        path = tmp_path / f"{code}.{form}"
        path.write_bytes(b"\n".join(WRAP[form] % line for line in some) + b"\n")
        assert main([str(folder), str(path), "--strategy", name, "--quiet"]) == code
        captured = capsysbinary.readouterr()
        outputs.append(captured.out.split(b"\n"))
        if code:
            failed = [int(line.split(b":")[2]) for line in captured.err.splitlines()]
            wanted = [2 * i + 2 for i, (_, error) in enumerate(BAD.values()) if error]
            assert set(wanted) <= set(failed) <= set(range(2, len(lines) + 1, 2))
            assert all(outputs[0][number - 1] == b"" for number in failed)
    found, wanted_lines = outputs
    assert len(found) == len(wanted_lines) == len(lines) + 1
    assert found[::2] == wanted_lines[::2]
    assert len(set(found[:-1:2])) > 1


def test_samples_come_as_columns(
    folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("she go\n\nhe go home !\n")
    assert main([str(folder), str(path), "--strategy", "dag-sample", "--nbest", "3", "--quiet"]) == 0
    lines = [line.split(b"\t") for line in capsysbinary.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [b"1"] * 3 + [b"2"] + [b"3"] * 3
    scores = [float(line[1]) for line in lines[:3]]
    assert scores == sorted(scores, reverse=True)
