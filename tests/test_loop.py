"""The loop of all decoders: batches, order, limits, prefixes, traces and statistics."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.scripted import (
    ScriptedScorer,
    ScriptedState,
    ScriptScorer,
    TableScorer,
    decode,
    outputs_of,
    over_tensors,
    plain_greedy,
)
from torch.utils._python_dispatch import TorchDispatchMode

from nartk.decoders import tensor_loop as loop
from nartk.decoders.tensor_loop import (
    Fed,
    Judged,
    argmax_acceptance,
    join_rows,
    log_probs,
    pad_rows,
    select_rows,
)
from nartk.hypothesis import DecodeStats, Request, Result, TokenTrace
from nartk.pipeline import summarize
from nartk.rows import Packing
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

    alone = what(decode(over_tensors(name, {}), scorer, requests, batch_size=1, trace=True))
    for size in (2, 7, 60, 1000):
        assert what(decode(over_tensors(name, {}), scorer, requests, batch_size=size, trace=True)) == alone


def test_requests_may_come_in_any_order(device: torch.device) -> None:
    rng = random.Random(1)
    scorer = TableScorer(20, seed=5, device=device)
    requests = requests_of(rng, 40, 20)
    wanted = plain_greedy(scorer.scores, requests)
    rng.shuffle(requests)
    results = list(over_tensors("iad", {}).run(scorer, requests, batch_size=8))
    assert {result.index: list(result.hypotheses[0].tokens) for result in results} == dict(enumerate(wanted))


def test_waiting_sentences_take_the_place_of_finished_ones() -> None:
    """30 sentences, 29 of 1 word and one of 12, four at a time: the long one does not hold the others up."""
    script = {(i + 4, EOS): [i + 4, EOS] for i in range(29)}
    script[(*range(4, 16), EOS)] = [*range(4, 16), EOS]
    scorer = WatchedScript(40, script)
    requests = [Request(i, source, 20) for i, source in enumerate(script)]
    found = decode(over_tensors("greedy", {}), scorer, requests, batch_size=4)
    assert outputs_of(found) == list(script.values())
    # The long one takes 13 passes, in which three others run beside it; 16 short ones of 2 passes fit there.
    # The 13 that are left take 2 passes in fours, so 13 + 8; one batch after the other takes 13 + 7 * 2.
    assert len(scorer.rows) <= 21
    assert max(scorer.rows) == 4


@pytest.mark.parametrize("size", [1, 3, 8])
def test_no_more_rows_than_the_batch_size(size: int) -> None:
    scorer = Watched(20)
    decode(over_tensors("iad", {}), scorer, requests_of(random.Random(2), 30, 20), batch_size=size)
    assert max(scorer.rows) == size


def test_max_tokens_bounds_the_source_of_a_batch() -> None:
    rng = random.Random(3)
    scorer = Watched(20)
    requests = requests_of(rng, 40, 20, longest=19)
    wanted = plain_greedy(scorer.scores, requests)
    assert (
        outputs_of(decode(over_tensors("iad", {}), scorer, requests, batch_size=32, max_tokens=60)) == wanted
    )
    assert max(scorer.sources) <= 60
    scorer = Watched(20)
    assert (
        outputs_of(decode(over_tensors("iad", {}), scorer, requests, batch_size=32, max_tokens=1)) == wanted
    )
    assert max(scorer.rows) == 1  # one row is always allowed


def test_no_requests_no_results(device: torch.device) -> None:
    assert decode(over_tensors("greedy", {}), TableScorer(10, device=device), []) == []


@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_a_prefix_is_forced_and_scored(name: str, device: torch.device) -> None:
    scorer = TableScorer(12, seed=3, device=device)
    source, prefix = (5, 6, 7, 8, EOS), (9, 10, 6)
    request = Request(0, source, 15, prefix)
    (result,) = decode(over_tensors(name, {}), scorer, [request], trace=True)
    (hypothesis,) = result.hypotheses
    assert list(hypothesis.tokens) == plain_greedy(scorer.scores, [request])[0]
    assert hypothesis.tokens[:3] == prefix
    assert hypothesis.trace is not None
    assert [each.origin for each in hypothesis.trace[:4]][:3] == ["prefix"] * 3
    assert hypothesis.trace[3].origin != "prefix"


def test_a_prefix_with_eos_ends_the_output(device: torch.device) -> None:
    (result,) = decode(
        over_tensors("iad", {}), TableScorer(12, device=device), [Request(0, (5, 6, EOS), 9, (7, EOS))]
    )
    assert result.hypotheses[0].tokens == (7, EOS)


@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_scores_are_the_log_probabilities_of_the_table(name: str, device: torch.device) -> None:
    """By Python's own exp and log, from the scores by hand."""
    rng = random.Random(4)
    scorer = TableScorer(15, seed=9, spread=6, device=device)
    for result, request in zip(
        decode(over_tensors(name, {}), scorer, requests := requests_of(rng, 10, 15)), requests, strict=True
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
        over_tensors("iad", {}), scorer, [Request(0, (she, go, home, stop, EOS), 20)], trace=True
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
    (result,) = decode(over_tensors("iad", {}), TableScorer(10, device=device), [Request(0, (5, EOS), 5)])
    assert result.hypotheses[0].trace is None


def test_the_margin_is_the_lead_of_the_best_word(device: torch.device) -> None:
    scorer = TableScorer(15, seed=2, spread=9, device=device)
    request = Request(0, (5, 6, 7, EOS), 12)
    (result,) = decode(over_tensors("iad", {}), scorer, [request], trace=True)
    (hypothesis,) = result.hypotheses
    assert hypothesis.trace is not None
    for i, each in enumerate(hypothesis.trace):
        scores = sorted(scorer.scores_by_hand(request.source, [EOS, *hypothesis.tokens[:i]]))
        assert each.margin == scores[-1] - scores[-2]


def test_statistics_count_what_happened() -> None:
    rng = random.Random(6)
    scorer = Watched(20, seed=1)
    results = decode(over_tensors("iad", {}), scorer, requests_of(rng, 25, 20), batch_size=1)
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
    greedy = over_tensors("greedy", {"max_len": 30, "max_ratio": 1.5})
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


# What is packed, and what a pass is told.


def packed_wrongly(make: Callable[[Sequence[int], torch.device], Packing], device: torch.device) -> int:
    wrong = 0
    for counts in ([1], [3], [2, 2], [1, 1, 1], [2, 0, 3], [0, 1], [0, 0, 4, 1]):
        packing, width = make(counts, device), max(counts)
        values = torch.arange(len(counts) * width, device=device).view(len(counts), width) + 1
        places = [(row, column) for row, count in enumerate(counts) for column in range(count)]
        packed = packing.pack(values)
        wrong += packed.tolist() != [values[place].item() for place in places]
        wrong += packing.unpack(packed).tolist() != [
            [int(x) if column < count else 0 for column, x in enumerate(row)]
            for row, count in zip(values, counts, strict=True)
        ]
        pairs = torch.stack([packed, -packed], 1)
        wrong += not torch.equal(packing.unpack(pairs)[..., 1], -packing.unpack(packed))
        wrong += [*zip(packing.rows.tolist(), packing.columns.tolist(), strict=True)] != places
        wrong += packing.sizes.tolist() != counts
        wrong += packing.begins.tolist() != [sum(counts[:row]) for row in range(len(counts))]
        wrong += packing.last.tolist() != [i for i, at in enumerate(places) if at[1] == counts[at[0]] - 1]
    return wrong


def test_rows_are_packed(device: torch.device) -> None:
    assert packed_wrongly(Packing, device) == 0


def test_the_packing_notices_rows_that_are_shorter(device: torch.device) -> None:
    def unpacked(counts: Sequence[int], device: torch.device) -> Packing:
        return Packing([max(counts)] * len(counts), device)

    assert packed_wrongly(unpacked, device) > 0


class Telling(TableScorer):
    """Notes what each pass feeds."""

    def mode(self, *, exact: bool) -> Telling:
        self.fed: list[dict[str, list[int]]] = []
        return self

    def verify(
        self, tokens: torch.Tensor, state: ScriptedState, counts: Sequence[int] | None = None
    ) -> tuple[torch.Tensor, ScriptedState]:
        assert counts is not None
        places = [(row, column) for row, count in enumerate(counts) for column in range(count)]
        words, before = tokens.tolist(), state.lengths.tolist()
        self.fed.append(
            {
                "rows": [row for row, _ in places],
                "positions": [before[row] + column for row, column in places],
                "drafted": [
                    words[row][column + 1] if column + 1 < counts[row] else -1 for row, column in places
                ],
                "requests": [int(state.sources[row, 0]) - 4 for row, _ in places],
                "tokens": [words[row][column] for row, column in places],
            }
        )
        return super().verify(tokens, state, counts)


def told_otherwise(device: torch.device) -> int:
    """In how many passes an acceptance is told otherwise of what is fed than the scorer."""
    rng, told = random.Random(0), []

    def accept(logits: torch.Tensor, fed: Fed) -> Judged:
        told.append({name: getattr(fed, name).tolist() for name in scorer.fed[-1]})
        return argmax_acceptance(logits, fed)

    cls = type(over_tensors("iad", {}))
    strategy = type("Told", (cls,), {"acceptance": lambda self: accept})()
    scorer = Telling(24, seed=3, device=device)
    requests = [
        Request(i, (4 + i, *rng.choices(range(4, 24), k=rng.randint(0, 9)), EOS), rng.randint(1, 20))
        for i in range(20)
    ]
    found = list(strategy.run(scorer, requests, batch_size=6))
    assert sum(result.accepted for result in found) > 0
    return sum(one != other for one, other in zip(told, scorer.fed, strict=True))


def test_an_acceptance_is_told_what_is_fed(device: torch.device) -> None:
    assert told_otherwise(device) == 0


def test_rows_that_are_taken_for_requests_are_noticed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop._PassFed, "requests", property(lambda self: self.rows))
    assert told_otherwise(device) > 0


def prefixed(rng: random.Random, count: int) -> list[Request]:
    """Some of them with a prefix, in part what the source says."""
    made = []
    for request in requests_of(rng, count, 20):
        prefix = [rng.choice([*request.source, 5, 6]) for _ in range(rng.choice([0, 0, 1, 5]))]
        prefix = [word for word in prefix if word != EOS][: request.max_len]
        made.append(dataclasses.replace(request, prefix=tuple(prefix)))
    return made


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_each_row_has_its_own_prefix(
    name: str, size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = TableScorer(20, seed=8, device=device)
    requests = prefixed(random.Random(7), 30)
    wanted = plain_greedy(scorer.scores, requests)
    found = decode(over_tensors(name, {}), scorer, requests, batch_size=size)
    assert outputs_of(found) == wanted
    # Known to be wrong: the prefix ends a token too soon.
    monkeypatch.setattr(
        loop._Sentence, "is_forced", property(lambda self: self.length + 1 < len(self.request.prefix))
    )
    assert outputs_of(decode(over_tensors(name, {}), scorer, requests, batch_size=size)) != wanted


# A pass in which each row feeds one token takes a short way, unless it is traced.


def untraced(name: str, size: int, device: torch.device, *, trace: bool) -> list[Result]:
    scorer = TableScorer(20, seed=5, spread=9, device=device)
    strategy = over_tensors(name, {})
    found = decode(strategy, scorer, prefixed(random.Random(9), 40), batch_size=size, trace=trace)
    return [
        dataclasses.replace(
            result, seconds=0.0, hypotheses=(dataclasses.replace(result.hypotheses[0], trace=None),)
        )
        for result in found
    ]


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("name", ["greedy", "iad"])
def test_the_short_way_is_the_long_one_bit_for_bit(name: str, size: int, device: torch.device) -> None:
    assert untraced(name, size, device, trace=False) == untraced(name, size, device, trace=True)


def test_a_short_way_that_differs_is_noticed(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: scores that are taken for those of the row before."""
    append = loop._Batch._append

    def wrong(self: Any, logits: torch.Tensor, fed: Any, judged: Judged) -> Any:
        if fed.packing.width == 1 and fed.packing.even and not self.trace:
            judged = dataclasses.replace(judged, scores=judged.scores.roll(1))
        return append(self, logits, fed, judged)

    monkeypatch.setattr(loop._Batch, "_append", wrong)
    assert untraced("greedy", 8, device, trace=False) != untraced("greedy", 8, device, trace=True)


class Counting(TorchDispatchMode):
    """Counts the operations that are dispatched while it is on."""

    count, is_on = 0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += self.is_on
        return func(*args, **({} if kwargs is None else kwargs))


def operations(length: int, device: torch.device, *, trace: bool) -> int:
    """Those of greedy search for an output of so many tokens, without the scorer's."""
    source = (4, EOS)
    scorer, counting = ScriptScorer(12, {source: [*[5] * (length - 1), EOS]}, device=device), Counting()

    def verify(*args: Any) -> Any:
        counting.is_on = False
        logits, state = ScriptScorer.verify(scorer, *args)
        counting.is_on = True
        return logits, state

    scorer.mode = lambda *, exact: scorer  # type: ignore[method-assign]
    scorer.verify = verify  # type: ignore[method-assign]
    with counting:
        decode(over_tensors("greedy", {}), scorer, [Request(0, source, 100)], trace=trace)
    return counting.count


def test_a_pass_without_drafts_takes_few_operations(device: torch.device) -> None:
    """7 for the best word and its score, 6 to put them out, and what the device adds for reading a token."""
    short, long = (
        (operations(60, device, trace=trace) - operations(10, device, trace=trace)) / 50
        for trace in (False, True)
    )
    assert short <= 18
    assert long > 30  # of a pass that takes the long way
