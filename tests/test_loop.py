"""The loop of all decoders: batches, order, limits, prefixes, traces and statistics."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import pytest
import torch
from scripted import (
    ScriptedScorer,
    ScriptedState,
    ScriptScorer,
    TableScorer,
    decode,
    outputs_of,
    plain_greedy,
)

from nartk.decoders.loop import join_rows, log_probs, pad_rows, select_rows
from nartk.hypothesis import DecodeStats, Request, Result, TokenTrace
from nartk.pipeline import summarize
from nartk.registry import make_strategy
from nartk.scorer import Source

EOS = 2


def requests_of(rng: random.Random, count: int, words: int, longest: int = 20) -> list[Request]:
    return [
        Request(
            i, (*(rng.randrange(4, words) for _ in range(rng.randint(0, longest))), EOS), rng.randint(1, 30)
        )
        for i in range(count)
    ]


class Watching(ScriptedScorer):
    """Notes how many rows it was asked for at a time, and how many source tokens."""

    def mode(self, *, exact: bool) -> Watching:
        self.rows: list[int] = []
        self.sources: list[int] = []
        return self

    def encode(self, source: Source, max_len: int) -> ScriptedState:
        self.sources.append(source.tokens.numel())
        return super().encode(source, max_len)

    def verify(
        self, tokens: torch.Tensor, state: ScriptedState, counts: Sequence[int] | None = None
    ) -> tuple[torch.Tensor, ScriptedState]:
        self.rows.append(len(tokens))
        return super().verify(tokens, state, counts)


class Watched(Watching, TableScorer):
    pass


class WatchedScript(Watching, ScriptScorer):
    pass


@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_a_batch_of_b_equals_b_batches_of_one(name: str, device: torch.device) -> None:
    rng = random.Random(0)
    scorer = TableScorer(20, seed=5, width=8, device=device)
    requests = requests_of(rng, 60, 20)

    def what(results: list[Result]) -> list[Result]:
        return [dataclasses.replace(result, seconds=0.0) for result in results]

    alone = what(decode(make_strategy(name, {}), scorer, requests, batch_size=1, trace=True))
    for size in (2, 7, 60, 1000):
        assert what(decode(make_strategy(name, {}), scorer, requests, batch_size=size, trace=True)) == alone


def test_requests_may_come_in_any_order(device: torch.device) -> None:
    rng = random.Random(1)
    scorer = TableScorer(20, seed=5, device=device)
    requests = requests_of(rng, 40, 20)
    wanted = plain_greedy(scorer.scores, requests)
    rng.shuffle(requests)
    results = list(make_strategy("iad", {}).run(scorer, requests, batch_size=8))
    assert {result.index: list(result.hypotheses[0].tokens) for result in results} == dict(enumerate(wanted))


def test_waiting_sentences_take_the_place_of_finished_ones() -> None:
    """30 sentences, 29 of 1 word and one of 12, four at a time: the long one does not hold the others up."""
    script = {(i + 4, EOS): [i + 4, EOS] for i in range(29)}
    script[(*range(4, 16), EOS)] = [*range(4, 16), EOS]
    scorer = WatchedScript(40, script)
    requests = [Request(i, source, 20) for i, source in enumerate(script)]
    found = decode(make_strategy("greedy", {}), scorer, requests, batch_size=4)
    assert outputs_of(found) == list(script.values())
    # The long one takes 13 passes, in which three others run beside it; 16 short ones of 2 passes fit there.
    # The 13 that are left take 2 passes in fours, so 13 + 8; one batch after the other takes 13 + 7 * 2.
    assert len(scorer.rows) <= 21
    assert max(scorer.rows) == 4


@pytest.mark.parametrize("size", [1, 3, 8])
def test_no_more_rows_than_the_batch_size(size: int) -> None:
    scorer = Watched(20)
    decode(make_strategy("iad", {}), scorer, requests_of(random.Random(2), 30, 20), batch_size=size)
    assert max(scorer.rows) == size


def test_max_tokens_bounds_the_source_of_a_batch() -> None:
    rng = random.Random(3)
    scorer = Watched(20)
    requests = requests_of(rng, 40, 20, longest=19)
    wanted = plain_greedy(scorer.scores, requests)
    assert (
        outputs_of(decode(make_strategy("iad", {}), scorer, requests, batch_size=32, max_tokens=60)) == wanted
    )
    assert max(scorer.sources) <= 60
    scorer = Watched(20)
    assert (
        outputs_of(decode(make_strategy("iad", {}), scorer, requests, batch_size=32, max_tokens=1)) == wanted
    )
    assert max(scorer.rows) == 1  # one row is always allowed


def test_no_requests_no_results(device: torch.device) -> None:
    assert decode(make_strategy("greedy", {}), TableScorer(10, device=device), []) == []


@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_a_prefix_is_forced_and_scored(name: str, device: torch.device) -> None:
    scorer = TableScorer(12, seed=3, device=device)
    source, prefix = (5, 6, 7, 8, EOS), (9, 10, 6)
    request = Request(0, source, 15, prefix)
    (result,) = decode(make_strategy(name, {}), scorer, [request], trace=True)
    (hypothesis,) = result.hypotheses
    assert list(hypothesis.tokens) == plain_greedy(scorer.scores, [request])[0]
    assert hypothesis.tokens[:3] == prefix
    assert hypothesis.trace is not None
    assert [each.origin for each in hypothesis.trace[:4]][:3] == ["prefix"] * 3
    assert hypothesis.trace[3].origin != "prefix"


def test_a_prefix_with_eos_ends_the_output(device: torch.device) -> None:
    (result,) = decode(
        make_strategy("iad", {}), TableScorer(12, device=device), [Request(0, (5, 6, EOS), 9, (7, EOS))]
    )
    assert result.hypotheses[0].tokens == (7, EOS)


@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_scores_are_the_log_probabilities_of_the_table(name: str, device: torch.device) -> None:
    """By Python's own exp and log, from the scores by hand."""
    rng = random.Random(4)
    scorer = TableScorer(15, seed=9, spread=6, device=device)
    for result, request in zip(
        decode(make_strategy(name, {}), scorer, requests := requests_of(rng, 10, 15)), requests, strict=True
    ):
        (hypothesis,) = result.hypotheses
        assert hypothesis.positional_scores is not None
        prefix = [EOS]
        for token, score in zip(hypothesis.tokens, hypothesis.positional_scores, strict=True):
            scores = scorer.scores_by_hand(request.source, prefix)
            assert score == pytest.approx(scores[token] - math.log(sum(map(math.exp, scores))), abs=1e-5)
            prefix.append(token)
        assert hypothesis.score == pytest.approx(math.fsum(hypothesis.positional_scores))


def test_the_trace_of_a_correction(device: torch.device) -> None:
    """she go home . -> she goes home . in two passes: goes is the verifier's, the rest is copied."""
    she, go, home, stop, goes = range(4, 9)
    scorer = ScriptScorer(9, {(she, go, home, stop, EOS): [she, goes, home, stop, EOS]}, device=device)
    (result,) = decode(
        make_strategy("iad", {}), scorer, [Request(0, (she, go, home, stop, EOS), 20)], trace=True
    )
    assert result.hypotheses[0].trace == (
        TokenTrace("draft", 1, 1.0),
        TokenTrace("rollback", 1, 1.0),
        TokenTrace("draft", 2, 1.0),
        TokenTrace("draft", 2, 1.0),
        TokenTrace("verifier", 2, 1.0),
    )
    # Pass 1 drafts all four words, of which one stands; pass 2 drafts home and the full stop.
    assert (result.passes, result.drafted, result.accepted) == (2, 6, 3)
    assert result.seconds > 0


def test_without_a_trace_there_is_none(device: torch.device) -> None:
    (result,) = decode(make_strategy("iad", {}), TableScorer(10, device=device), [Request(0, (5, EOS), 5)])
    assert result.hypotheses[0].trace is None


def test_the_margin_is_the_lead_of_the_best_word(device: torch.device) -> None:
    scorer = TableScorer(15, seed=2, spread=9, device=device)
    request = Request(0, (5, 6, 7, EOS), 12)
    (result,) = decode(make_strategy("iad", {}), scorer, [request], trace=True)
    (hypothesis,) = result.hypotheses
    assert hypothesis.trace is not None
    for i, each in enumerate(hypothesis.trace):
        scores = sorted(scorer.scores_by_hand(request.source, [EOS, *hypothesis.tokens[:i]]))
        assert each.margin == scores[-1] - scores[-2]


def test_statistics_count_what_happened() -> None:
    rng = random.Random(6)
    scorer = Watched(20, seed=1)
    results = decode(make_strategy("iad", {}), scorer, requests_of(rng, 25, 20), batch_size=1)
    stats = summarize([*results, Result(25, (results[0].hypotheses[0],))], seconds=2.0)
    assert stats.passes == len(scorer.rows)  # one row a pass
    assert stats.sentences == 25  # what took no pass does not count
    assert stats.tokens == sum(len(result.hypotheses[0].tokens) for result in results)
    assert stats.tokens_per_second == stats.tokens / 2
    # Each pass gives one token of the verifier's own, but for those that a draft's eos ends.
    assert stats.tokens - stats.accepted <= stats.passes
    assert stats.accepted <= stats.drafted


def test_latency_percentiles_by_hand() -> None:
    stats = DecodeStats(latencies=[i / 1000 for i in range(1, 101)])
    assert stats.latency_ms == pytest.approx({"p50": 50.0, "p90": 90.0, "p99": 99.0})
    assert DecodeStats(latencies=[0.25]).latency_ms == {"p50": 250.0, "p90": 250.0, "p99": 250.0}
    assert DecodeStats().latency_ms == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
    assert DecodeStats().tokens_per_second == 0.0


def test_the_limit_by_hand() -> None:
    greedy = make_strategy("greedy", {"max_len": 30, "max_ratio": 1.5})
    assert [greedy.limit(n) for n in (1, 3, 13, 14, 1000)] == [11, 14, 29, 30, 30]


@dataclasses.dataclass(frozen=True)
class Things:
    wide: torch.Tensor
    flat: torch.Tensor


def test_rows_are_selected_and_joined() -> None:
    one = Things(torch.tensor([[1, 2], [3, 4]]), torch.tensor([10, 20]))
    two = Things(torch.tensor([[5, 6, 7]]), torch.tensor([30]))
    both = join_rows(one, two)
    assert both.wide.tolist() == [[1, 2, -1], [3, 4, -1], [5, 6, 7]]
    assert both.flat.tolist() == [10, 20, 30]
    again = select_rows(both, torch.tensor([2, 0, 0]))
    assert again.wide.tolist() == [[5, 6, 7], [1, 2, -1], [1, 2, -1]]
    assert again.flat.tolist() == [30, 10, 10]


def test_rows_are_padded_on_the_right() -> None:
    assert pad_rows([(1, 2, 3), (), (4,)], 9).tolist() == [[1, 2, 3], [9, 9, 9], [4, 9, 9]]
    assert pad_rows([(), ()], 9).shape == (2, 0)


def test_log_probs_of_one_row_have_the_bits_of_many() -> None:
    generator = torch.Generator().manual_seed(0)
    for words in (5, 100, 5003, 40_001):
        logits = torch.randn(33, words, generator=generator) * 5
        tokens = torch.randint(words, (33,), generator=generator)
        together = log_probs(logits, tokens)
        for i in range(33):
            assert torch.equal(log_probs(logits[i : i + 1], tokens[i : i + 1])[0], together[i])
        exact = logits.double().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
        torch.testing.assert_close(together, exact.float(), rtol=1e-6, atol=1e-5)
