"""Beam search against enumeration, a textbook loop, fairseq, and greedy search."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support import fairseq_host
from support.beams import outputs, textbook
from support.real_passes import RealPasses, engine_of, network_of
from support.realtable import random_transformer
from support.scripted_passes import (
    EOS,
    ScriptedPasses,
    Table,
    TablePasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)

from nartk.decoders.beam import BeamStrategy
from nartk.decoders.loop.constraints import Constraints, repeating
from nartk.decoders.rerank import teacher_forced
from nartk.decoders.search.beam_rows import BeamRow
from nartk.decoders.search.beam_search import BeamSearch, Nodes
from nartk.errors import PassError, UsageError
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import FloatArray, IntArray, Pass, Scores, Want
from nartk.protocols.reading import PassScores
from nartk.registry import make_strategy
from nartk.vocab import Vocab

BOS = 0


def beam(**options: Any) -> Any:
    return make_strategy("beam", options)


def random_requests(rng: random.Random, count: int, words: int, longest: int = 12) -> list[Request]:
    return [
        Request(
            i, (*(rng.randrange(4, words) for _ in range(rng.randint(0, 9))), EOS), rng.randint(1, longest)
        )
        for i in range(count)
    ]


# The oracles.


def every_output(table: RealPasses, request: Request, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All outputs with their normalised scores, best first."""
    found = []

    def grow(prefix: tuple[int, ...], total: float) -> None:
        if prefix and (prefix[-1] == EOS or len(prefix) == request.max_len):
            found.append((total / len(prefix) ** penalty, prefix))
            return
        for word, lprob in enumerate(table.log_probs(request.source, prefix)):
            grow((*prefix, word), total + lprob)

    grow((), 0.0)
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.7])
def test_an_exhaustive_beam_finds_every_output_in_order(penalty: float) -> None:
    for seed in range(5):
        table = RealPasses(6, seed=seed)
        request = Request(0, (4, 5, EOS), 3)
        wanted = every_output(table, request, penalty)
        strategy = beam(beam_size=len(wanted), nbest=len(wanted), length_penalty=penalty)
        (found,) = decode(strategy, table, [request])
        assert outputs(found) == [output for _, output in wanted]
        scores = [hypothesis.score for hypothesis in found.hypotheses]
        assert scores == pytest.approx([score for score, _ in wanted], abs=1e-5)


def textbook_mismatches(cases: int, make: Callable[[int, int], RealPasses]) -> int:
    wrong = 0
    for seed in range(cases):
        rng = random.Random(seed)
        table = make(rng.randint(6, 12), rng.getrandbits(40))
        k, n = rng.randint(1, 6), rng.choice([0, 0, 2, 3])
        penalty = rng.choice([0.0, 0.6, 1.0, 2.0])
        requests = []
        for request in random_requests(rng, 8, len(table.vocab)):
            prefix = tuple(rng.randrange(3, len(table.vocab)) for _ in range(rng.choice([0, 0, 1, 4])))
            requests.append(
                Request(request.index, request.source, request.max_len, prefix[: request.max_len])
            )
        stopping = rng.choice(["first", "false"])
        strategy = beam(
            beam_size=k, nbest=k, length_penalty=penalty, no_repeat_ngram=n, early_stopping=stopping
        )
        for request, result in zip(
            requests, decode(strategy, table, requests, batch_size=rng.randint(1, 5)), strict=True
        ):
            wanted = textbook(table.log_probs, request, k, penalty, n, stopping)
            scores = [hypothesis.score for hypothesis in result.hypotheses]
            wrong += outputs(result) != [output for _, output in wanted]
            wrong += scores != pytest.approx([score for score, _ in wanted], abs=1e-4)
            # A pass a word, but that a forced prefix takes none of its own.
            least = max(1, max(map(len, outputs(result))) - len(request.prefix))
            assert result.passes == least or (stopping == "false" and result.passes > least)
    return wrong


def test_it_is_the_textbooks_beam_search() -> None:
    assert textbook_mismatches(60, lambda words, seed: RealPasses(words, seed=seed)) == 0


class ForksOthers(RealPasses):
    """Known to be wrong: the forks come in the wrong order."""

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return super().fork(contexts[::-1])


class ForksNothing(RealPasses):
    """Known to be wrong: a fork has the cells of a context that was opened for another sentence."""

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        return super().fork([min(contexts) for _ in contexts])


@pytest.mark.parametrize("wrong", [ForksOthers, ForksNothing])
def test_a_wrong_context_shows(wrong: type[RealPasses]) -> None:
    try:
        mismatches = textbook_mismatches(20, lambda words, seed: wrong(words, seed=seed))
    except (AssertionError, PassError):  # of the scorer
        return
    assert mismatches > 0


def test_swapped_hypotheses_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: two hypotheses have each other's cells."""
    commit = BeamSearch._commit

    def swapped(self: BeamSearch, rows: list[BeamRow], nodes: Nodes, scores: Scores) -> None:
        commit(self, rows, nodes, scores)
        for row in rows:
            for first, second in zip(row.live[:1], row.live[1:2], strict=False):
                first.context, second.context = second.context, first.context

    monkeypatch.setattr(BeamSearch, "_commit", swapped)
    assert textbook_mismatches(20, lambda words, seed: RealPasses(words, seed=seed)) > 0


def test_one_hypothesis_is_greedy_search_even_where_scores_tie() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        scorer = random_table(rng)
        requests = [random_request(rng, i, scorer.table.words, longest=20) for i in range(20)]
        found = decode(beam(beam_size=1), scorer, requests, batch_size=rng.randint(1, 8))
        assert differing(outputs_of(found), plain_greedy(scorer.table, requests)) == []
        greedy = decode(make_strategy("greedy", {}), scorer, requests)
        scores = [[each.hypotheses[0].positional_scores for each in results] for results in (found, greedy)]
        assert scores[0] == scores[1]


def test_several_hypotheses_are_the_same_in_any_batch_even_where_scores_tie() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        scorer = random_table(rng)
        requests = [random_request(rng, i, scorer.table.words, longest=12) for i in range(20)]
        strategy = beam(beam_size=rng.randint(2, 6), no_repeat_ngram=rng.choice([0, 3]))
        alone = decode(strategy, scorer, requests, batch_size=1)
        for size, most in ((2, None), (7, 40), (20, None)):
            together = decode(strategy, scorer, requests, batch_size=size, max_tokens=most)
            assert [result.hypotheses for result in together] == [result.hypotheses for result in alone]


@dataclass(frozen=True, kw_only=True)
class Constrained(BeamStrategy):
    name = "constrained"

    rules: Constraints

    def constraints(self, vocab: Vocab) -> Constraints:
        return self.rules


@pytest.mark.parametrize(
    "rules",
    [
        Constraints(min_len=4),
        Constraints(suppressed=(4, 5)),
        Constraints(forbidden=((5,), (3, 4), (4, 4))),
        Constraints(repetition_penalty=1.8),
        Constraints(min_len=3, repetition_penalty=0.6, suppressed=(1,), forbidden=((6, 7),)),
    ],
    ids=str,
)
def test_constrained_beams_are_the_textbooks(rules: Constraints) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        table, k = RealPasses(9, seed=seed), rng.randint(2, 5)

        def log_probs(source: Sequence[int], output: Sequence[int], table: RealPasses = table) -> list[float]:
            scores = table.log_probs(source, output)
            if len(output) < 2 and source[0] == 4:  # inside the prefix below
                return scores
            for word in {EOS, *output}:  # the start token is one of them; log-probabilities are below 0
                scores[word] *= rules.repetition_penalty
            banned = {*rules.suppressed, *([EOS] if len(output) < rules.min_len else [])}
            for gram in rules.forbidden:
                if tuple(output[len(output) + 1 - len(gram) :]) == gram[:-1]:
                    banned.add(gram[-1])
            return [-math.inf if word in banned else score for word, score in enumerate(scores)]

        requests = [Request(0, (4, 5, EOS), 8, prefix=(5, 4)), Request(1, (5, 8, EOS), 8)]
        draft = rng.choice(["none", "both"])
        strategy = Constrained(beam_size=k, nbest=k, rules=rules, draft=draft)
        for request, result in zip(requests, decode(strategy, table, requests), strict=True):
            wanted = textbook(log_probs, request, k, 1.0, 0)
            assert outputs(result) == [output for _, output in wanted]
            scores = [hypothesis.score for hypothesis in result.hypotheses]
            assert scores == pytest.approx([score for score, _ in wanted], abs=1e-4)


def test_a_forced_output_is_the_only_one() -> None:
    table = RealPasses(8, seed=3)
    request = Request(0, (4, 5, EOS), 9, prefix=(5, 5, 7, EOS))
    (result,) = decode(beam(nbest=5, no_repeat_ngram=1), table, [request], trace=True)
    assert outputs(result) == [(5, 5, 7, EOS)]
    (hypothesis,) = result.hypotheses
    wanted = [table.log_probs(request.source, request.prefix[:i])[w] for i, w in enumerate(request.prefix)]
    assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)
    assert hypothesis.score == pytest.approx(sum(wanted) / 4, abs=1e-5)
    assert [trace.origin for trace in hypothesis.trace or ()] == ["prefix"] * 4


def test_a_trace_tells_forced_words_from_free_ones() -> None:
    (result,) = decode(beam(), RealPasses(8, seed=3), [Request(0, (4, EOS), 4, prefix=(5,))], trace=True)
    trace = result.hypotheses[0].trace
    assert trace is not None
    assert [(each.origin, each.verifier_pass) for each in trace][:2] == [("prefix", 0), ("verifier", 1)]


# When a search ends.


def test_ending_early_gives_back_nothing_less_likely_than_greedy_search() -> None:
    """At each step eos is the second best word: k outputs that break off end before the whole one does."""
    worse = dict.fromkeys(("first", "default"), 0)
    for seed in range(40):
        rng = random.Random(seed)
        length, words = rng.randint(3, 5), 7
        script = [rng.randrange(4, words) for _ in range(length)]
        logits = [[rng.uniform(0, 1) for _ in range(words)] for _ in range(length + 1)]
        for at, row in enumerate(logits):
            row[(*script, EOS)[at]] = 6.0
            row[EOS] = max(row[EOS], rng.uniform(2, 3))
        scorer = ByPosition(np.array(logits))
        lines = [[*map(float, row)] for row in scorer.log_probs]
        greedy = sum(lines[at][word] for at, word in enumerate((*script, EOS))) / (length + 1)
        # By enumeration: the best of all outputs by its mean log-probability is the whole one.
        best = max(
            sum(lines[at][word] for at, word in enumerate((*output, EOS))) / (size + 1)
            for size in range(length + 1)
            for output in itertools.product([w for w in range(words) if w != EOS], repeat=size)
        )
        assert best == pytest.approx(greedy)
        request = Request(0, (4, EOS), length + 1)
        for k in range(2, 6):
            for name, options in (("first", {"early_stopping": "first"}), ("default", {})):
                (found,) = decode(beam(beam_size=k, **options), scorer, [request])
                worse[name] += found.hypotheses[0].score < greedy - 1e-4
    assert worse["default"] == 0
    assert worse["first"] > 100


class ByPosition(ScriptedPasses):
    """Scores that depend on the position alone: logits [positions, words]."""

    def __init__(self, logits: FloatArray) -> None:
        super().__init__(logits.shape[1])
        self.logits = logits
        self.log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        return self.logits[[len(path) - 1 for path in paths]]


# Parts.


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_words_that_would_repeat_are_found(n: int) -> None:
    rng = random.Random(n)
    for _ in range(50):
        output = [rng.randrange(3) for _ in range(rng.randint(0, 9))]
        grams = {tuple(output[i : i + n]) for i in range(len(output) - n + 1)}
        wanted = [
            word
            for word in range(3)
            if len(output) >= n - 1 and (*output[len(output) - n + 1 :], word) in grams
        ]
        assert sorted({*repeating(output, n)}) == wanted


def test_no_ngram_recurs() -> None:
    table = TablePasses(Table(9, seed=1, spread=2, bonus=0, patience=4))
    requests = [Request(i, (*(4 + i for _ in range(30)), EOS), 30) for i in range(4)]
    plain = decode(beam(nbest=5), table, requests)
    apart = decode(beam(nbest=5, no_repeat_ngram=2), table, requests)

    def recurring(result: Result) -> int:
        return sum(len(set(itertools.pairwise(t))) < len(t) - 1 for t in outputs(result))

    assert sum(map(recurring, plain)) > 0
    assert sum(map(recurring, apart)) == 0


def test_more_best_than_hypotheses_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        beam(nbest=6)
    assert caught.value.message == "nbest is 6, above beam_size=5"
    assert caught.value.fix == "raise beam_size"


# With a network.


@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
def test_outputs_in_a_batch_are_bitwise_those_of_sentences_alone(type: str) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(90)])
    scorer = engine_of(random_transformer(0, len(vocab)), vocab, type)
    requests = random_requests(random.Random(0), 12, len(vocab), longest=20)
    strategy = beam(nbest=3, beam_size=3, no_repeat_ngram=3)
    alone = [decode(strategy, scorer, [Request(0, r.source, r.max_len)])[0].hypotheses for r in requests]
    for size in (2, 5, 12):
        together = decode(strategy, scorer, requests, batch_size=size)
        assert [result.hypotheses for result in together] == alone


@pytest.mark.parametrize("type", ["fp32", "int8"])
def test_scores_are_bitwise_those_of_the_outputs_given(type: str) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(90)])
    scorer = engine_of(random_transformer(0, len(vocab)), vocab, type)
    requests = random_requests(random.Random(1), 12, len(vocab), longest=20)
    for request, result in zip(requests, decode(beam(nbest=5), scorer, requests), strict=True):
        given = teacher_forced(scorer, [request.source], [0] * 5, outputs(result))
        for hypothesis, log_probs in zip(result.hypotheses, given, strict=True):
            assert hypothesis.positional_scores == tuple(log_probs.tolist())


def naive_beam(model: Transformer, source: Sequence[int], k: int, longest: int) -> list[tuple[int, ...]]:
    """Beam search that computes every prefix from the start: no cache, no batch."""
    live, ended = [(0.0, ())], []
    for step in range(1, longest + 1):
        candidates: list[tuple[float, tuple[int, ...]]] = []
        for total, prefix in live:
            logits = model(torch.tensor([source]), torch.tensor([[EOS, *prefix]]))[0, -1]
            lprobs = logits.double().log_softmax(0).tolist()
            candidates += [(total + lprob, (*prefix, word)) for word, lprob in enumerate(lprobs)]
        candidates.sort(reverse=True)
        for total, output in candidates[:k]:
            if (output[-1] == EOS or step == longest) and len(ended) < k:
                ended.append((total / step, output))
        live = [each for each in candidates if each[1][-1] != EOS][:k]
        if len(ended) == k:
            break
    return [output for _, output in sorted(ended, reverse=True)]


@pytest.mark.parametrize("name", ["engine", "reference"])
def test_cells_change_nothing(name: str, device: torch.device) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(20)])
    model = random_transformer(1, len(vocab))
    requests = random_requests(random.Random(1), 6, len(vocab))
    strategy = beam(nbest=4, beam_size=4, early_stopping="first")
    results = decode(strategy, network_of(name, model, vocab, device), requests)
    with torch.inference_mode():
        for request, result in zip(requests, results, strict=True):
            assert outputs(result) == naive_beam(model, request.source, 4, request.max_len)


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize(("penalty", "n"), [(1.0, 0), (0.0, 0), (0.6, 0), (2.0, 0), (1.0, 2), (1.0, 3)])
def test_it_outputs_what_fairseq_does(penalty: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fairseq_host.require_fairseq()
    longest, k = 30, 4
    vocab = Vocab.from_words([f"w{i}" for i in range(30)])
    core = random_transformer(2, len(vocab))
    generator = fairseq_host.sequence_generator(
        core, beam_size=k, max_len_b=longest - 1, len_penalty=penalty, no_repeat_ngram_size=n
    )
    if n:
        # On a CPU, fairseq 0.12.2 takes the padding after the words for the words before, and bans nothing.
        ban = generator.repeat_ngram_blocker._no_repeat_ngram
        monkeypatch.setattr(
            generator.repeat_ngram_blocker,
            "forward",
            lambda told, lprobs, bsz, k, step: ban(told[:, : step + 1], lprobs, bsz, k, step),
        )
    rng = random.Random(2)
    sources = [(*(rng.randrange(4, 34) for _ in range(rng.randint(1, 12))), EOS) for _ in range(20)]
    requests = [Request(i, source, longest) for i, source in enumerate(sources)]
    strategy = beam(beam_size=k, nbest=k, length_penalty=penalty, no_repeat_ngram=n, early_stopping="first")
    found = decode(strategy, engine_of(core, vocab), requests)
    compared = 0
    for result, wanted in zip(found, fairseq_host.generated(generator, sources), strict=True):
        if max(map(len, outputs(result))) == longest:
            continue  # cut off: fairseq puts eos there
        compared += 1
        assert outputs(result) == [tuple(each["tokens"].tolist()) for each in wanted]
        for mine, his in zip(result.hypotheses, wanted, strict=True):
            assert mine.score == pytest.approx(float(his["score"]), abs=1e-5)
            assert mine.positional_scores == pytest.approx(his["positional_scores"].tolist(), abs=1e-4)
    assert compared > 10


def test_sources_are_encoded_once_and_a_pass_takes_all_hypotheses() -> None:
    table = RealPasses(8, seed=1)
    results = decode(beam(), table, [Request(i, (4, EOS), 5) for i in range(9)], batch_size=3)
    assert sum(table.encoded) == 9
    assert {len(np.unique(work.memory)) for work in table.passes} <= {1, 2, 3}
    assert len(table.passes) < sum(result.passes for result in results) / 2
    assert max(len(work.tokens) for work in table.passes) == 3 * 5


def test_nothing_stays_open_after_any_end() -> None:
    requests = [Request(i, (4, EOS), 2 + i) for i in range(9)]
    table = RealPasses(8, seed=1)
    running = iter(beam(draft="both").run(table, requests, batch_size=3))
    next(running)
    assert table.cells_in_use > 0
    running.close()
    assert table.in_use == (0, 0)

    class Fails(RealPasses):
        def run(self, work: Pass, want: Want) -> PassScores:
            if len(self.passes) == 4:
                raise MemoryError
            return super().run(work, want)

    table = Fails(8, seed=1)
    with pytest.raises(MemoryError):
        list(beam().run(table, requests, batch_size=3))
    assert table.in_use == (0, 0)
