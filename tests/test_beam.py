"""Beam search against enumeration, a textbook loop, fairseq, and greedy search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from realtable import RealTable, log_probs, random_transformer
from scripted import TableScorer, decode, differing, outputs_of, over_tensors, plain_greedy

from nartk.decoders.beam import best_of, repeats
from nartk.errors import UsageError
from nartk.hypothesis import Request, Result
from nartk.models.transformer import Transformer
from nartk.models.transformer_scorer import TransformerScorer
from nartk.registry import make_strategy
from nartk.scorer import Source
from nartk.vocab import Vocab

BOS, PAD, EOS = 0, 1, 2


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


def every_output(table: RealTable, request: Request, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All outputs with their normalised scores, best first."""
    found = []

    def grow(prefix: tuple[int, ...], total: float) -> None:
        if prefix and (prefix[-1] == EOS or len(prefix) == request.max_len):
            found.append((total / len(prefix) ** penalty, prefix))
            return
        for word, lprob in enumerate(log_probs(table, request.source, prefix)):
            grow((*prefix, word), total + lprob)

    grow((), 0.0)
    return sorted(found, reverse=True)


def textbook(
    table: RealTable, request: Request, k: int, penalty: float, n: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search in plain Python, in double precision, a sentence at a time."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for step in range(1, request.max_len + 1):
        candidates = []
        for total, prefix in live:
            grams = [prefix[i : i + n] for i in range(len(prefix) - n + 1)] if n else []
            for word, lprob in enumerate(log_probs(table, request.source, prefix)):
                if step <= len(request.prefix):
                    if word != request.prefix[step - 1]:
                        continue
                elif n and (*prefix, word)[-n:] in grams and len(prefix) >= n - 1:
                    continue
                candidates.append((total + lprob, (*prefix, word)))
        candidates.sort(key=lambda each: -each[0])
        for total, output in candidates[:k]:
            if (output[-1] == EOS or step == request.max_len) and len(ended) < k:
                ended.append((total / step**penalty, output))
        live = [each for each in candidates if each[1][-1] != EOS][:k]
        if len(ended) == k or not live:
            break
    return sorted(ended, reverse=True)


def said(result: Result) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in result.hypotheses]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.7])
def test_an_exhaustive_beam_finds_every_output_in_order(penalty: float, device: torch.device) -> None:
    for seed in range(5):
        table = RealTable(6, seed=seed, device=device)
        request = Request(0, (4, 5, EOS), 3)
        wanted = every_output(table, request, penalty)
        strategy = beam(beam_size=len(wanted), nbest=len(wanted), length_penalty=penalty)
        (found,) = decode(strategy, table, [request])
        assert said(found) == [output for _, output in wanted]
        scores = [hypothesis.score for hypothesis in found.hypotheses]
        assert scores == pytest.approx([score for score, _ in wanted], abs=1e-5)


def textbook_mismatches(cases: int, make: Callable[[int, int], RealTable]) -> int:
    wrong = 0
    for seed in range(cases):
        rng = random.Random(seed)
        table = make(rng.randint(6, 12), rng.getrandbits(40))
        k, n = rng.randint(1, 6), rng.choice([0, 0, 1, 2, 3])
        penalty = rng.choice([0.0, 0.6, 1.0, 2.0])
        requests = []
        for request in random_requests(rng, 8, len(table.vocab)):
            prefix = tuple(rng.randrange(3, len(table.vocab)) for _ in range(rng.choice([0, 0, 1, 4])))
            requests.append(
                Request(request.index, request.source, request.max_len, prefix[: request.max_len])
            )
        strategy = beam(beam_size=k, nbest=k, length_penalty=penalty, no_repeat_ngram=n)
        for request, result in zip(
            requests, decode(strategy, table, requests, batch_size=rng.randint(1, 5)), strict=True
        ):
            wanted = textbook(table, request, k, penalty, n)
            scores = [hypothesis.score for hypothesis in result.hypotheses]
            wrong += said(result) != [output for _, output in wanted]
            wrong += scores != pytest.approx([score for score, _ in wanted], abs=1e-4)
            assert result.passes == max(map(len, said(result)))
    return wrong


def test_it_is_the_textbooks_beam_search(device: torch.device) -> None:
    assert textbook_mismatches(60, lambda words, seed: RealTable(words, seed=seed, device=device)) == 0


@pytest.mark.parametrize(
    "forgotten",
    [
        {"select": lambda table, state, rows: TableScorer.select(table, state, rows.sort().values)},
        {
            "select": lambda table, state, rows: TableScorer.select(
                table, state, torch.arange(len(rows), device=rows.device) % len(state.lengths)
            )
        },
        {"join": lambda table, first, second: TableScorer.join(table, second, first)},
    ],
    ids=["keeps the order of rows", "selects the first rows", "joins in the wrong order"],
)
def test_a_wrong_cache_shows(forgotten: dict[str, Any]) -> None:
    def encode(table: TableScorer, source: Source, max_len: int) -> Any:
        return TableScorer.encode(table, source, 99 * max_len)  # room for what a wrong cache appends

    wrong_table = type("WrongTable", (RealTable,), {"encode": encode, **forgotten})
    assert textbook_mismatches(5, lambda words, seed: wrong_table(words, seed=seed)) > 0


def test_one_hypothesis_is_greedy_search_even_where_scores_tie(device: torch.device) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        table = TableScorer(rng.randint(6, 300), seed=seed, spread=rng.choice([1, 3, 50]), device=device)
        requests = random_requests(rng, 20, len(table.vocab), longest=30)
        found = decode(beam(beam_size=1), table, requests, batch_size=rng.randint(1, 8))
        assert differing(outputs_of(found), plain_greedy(table.scores, requests)) == []
        greedy = decode(over_tensors("greedy", {}), table, requests)
        scores = [[each.hypotheses[0].positional_scores for each in results] for results in (found, greedy)]
        assert scores[0] == scores[1]


def test_a_forced_output_is_the_only_one(device: torch.device) -> None:
    table = RealTable(8, seed=3, device=device)
    request = Request(0, (4, 5, EOS), 9, prefix=(5, 5, 7, EOS))
    (result,) = decode(beam(nbest=5, no_repeat_ngram=1), table, [request], trace=True)
    assert said(result) == [(5, 5, 7, EOS)]
    (hypothesis,) = result.hypotheses
    wanted = [log_probs(table, request.source, request.prefix[:i])[w] for i, w in enumerate(request.prefix)]
    assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)
    assert hypothesis.score == pytest.approx(sum(wanted) / 4, abs=1e-5)
    assert [trace.origin for trace in hypothesis.trace or ()] == ["prefix"] * 4


def test_a_trace_tells_forced_words_from_free_ones(device: torch.device) -> None:
    (result,) = decode(
        beam(), RealTable(8, seed=3, device=device), [Request(0, (4, EOS), 4, prefix=(5,))], trace=True
    )
    trace = result.hypotheses[0].trace
    assert trace is not None
    assert [(each.origin, each.verifier_pass) for each in trace][:2] == [("prefix", 0), ("verifier", 2)]


# Parts.


@pytest.mark.parametrize("size", [6, 63, 64, 65, 1000, 4097])
def test_the_best_are_the_first_of_equals(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for spread in (1, 3, 10, 100_000):
        x = torch.randint(-spread, spread + 1, (7, size), generator=generator).float()
        x[x == 3] = float("-inf")
        x[:, ::3] *= -1.0  # makes some zeros negative
        for k in (1, 2, 6):
            wanted = np.argsort(-x.numpy(), axis=1, kind="stable")[:, :k]
            assert best_of(x, k).tolist() == wanted.tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_would_repeat_is_found(n: int) -> None:
    rng = random.Random(n)
    outputs = [[rng.randrange(3) for _ in range(9)] for _ in range(50)]
    lengths = [rng.randint(0, 9) for _ in outputs]
    found = repeats(torch.tensor(outputs), torch.tensor(lengths), n, 3)
    for output, length, row in zip(outputs, lengths, found.tolist(), strict=True):
        told = output[:length]
        grams = {tuple(told[i : i + n]) for i in range(length - n + 1)}
        assert row == [length >= n - 1 and (*told[length - n + 1 :], word) in grams for word in range(3)]


def test_no_ngram_recurs(device: torch.device) -> None:
    table = TableScorer(9, seed=1, spread=2, bonus=0, patience=4, device=device)
    requests = [Request(i, (*(4 + i for _ in range(30)), EOS), 30) for i in range(4)]
    plain = decode(beam(nbest=5), table, requests)
    apart = decode(beam(nbest=5, no_repeat_ngram=2), table, requests)

    def recurring(result: Result) -> int:
        return sum(len(set(itertools.pairwise(t))) < len(t) - 1 for t in said(result))

    assert sum(map(recurring, plain)) > 0
    assert sum(map(recurring, apart)) == 0


def test_more_best_than_hypotheses_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        beam(nbest=6)
    assert caught.value.message == "--nbest is 6, above --beam-size 5"
    assert caught.value.fix == "raise --beam-size"


# With a network.


def test_a_batch_says_bitwise_what_its_sentences_say_alone(device: torch.device) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(90)])
    scorer = TransformerScorer(random_transformer(0, len(vocab)), vocab, device=device)
    requests = random_requests(random.Random(0), 12, len(vocab), longest=20)
    strategy = beam(nbest=3, beam_size=3, no_repeat_ngram=3)
    alone = [decode(strategy, scorer, [Request(0, r.source, r.max_len)])[0].hypotheses for r in requests]
    for size in (2, 5, 12):
        together = decode(strategy, scorer, requests, batch_size=size)
        assert [result.hypotheses for result in together] == alone


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


@pytest.mark.parametrize("exact", [True, False])
def test_the_cache_changes_nothing(exact: bool, device: torch.device) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(20)])
    model = random_transformer(1, len(vocab))
    requests = random_requests(random.Random(1), 6, len(vocab))
    results = decode(
        beam(nbest=4, beam_size=4, exact=exact), TransformerScorer(model, vocab, device=device), requests
    )
    with torch.inference_mode():
        for request, result in zip(requests, results, strict=True):
            assert said(result) == naive_beam(model, request.source, 4, request.max_len)


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize(("penalty", "n"), [(1.0, 0), (0.0, 0), (0.6, 0), (2.0, 0), (1.0, 2), (1.0, 3)])
def test_it_says_what_fairseq_says(penalty: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from nartk import _fairseq_compat

    _fairseq_compat.install()
    pytest.importorskip("fairseq", reason="fairseq is not installed")
    from fairseq.data import Dictionary
    from fairseq.sequence_generator import SequenceGenerator

    from nartk.tasks.transformer import FairseqTransformer

    longest, k = 30, 4
    words = [f"w{i}" for i in range(30)]
    vocab = Vocab.from_words(words)
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    assert (dictionary.bos(), dictionary.pad(), dictionary.eos()) == (BOS, PAD, EOS)
    core = random_transformer(2, len(vocab))
    theirs = FairseqTransformer(core.config, dictionary, dictionary).eval()
    theirs.core.load_state_dict(core.state_dict())
    generator = SequenceGenerator(
        [theirs],
        dictionary,
        beam_size=k,
        max_len_a=0,
        max_len_b=longest - 1,
        min_len=0,
        len_penalty=penalty,
        no_repeat_ngram_size=n,
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
    strategy = beam(beam_size=k, nbest=k, length_penalty=penalty, no_repeat_ngram=n)
    found = decode(strategy, TransformerScorer(core, vocab), requests)
    width = max(map(len, sources))
    tokens = torch.tensor([[PAD] * (width - len(source)) + list(source) for source in sources])
    net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([len(source) for source in sources])}
    compared = 0
    for result, wanted in zip(found, generator.generate([theirs], {"net_input": net_input}), strict=True):
        if max(map(len, said(result))) == longest:
            continue  # cut off: fairseq puts eos there
        compared += 1
        assert said(result) == [tuple(each["tokens"].tolist()) for each in wanted]
        for mine, his in zip(result.hypotheses, wanted, strict=True):
            assert mine.score == pytest.approx(float(his["score"]), abs=1e-5)
            assert mine.positional_scores == pytest.approx(his["positional_scores"].tolist(), abs=1e-4)
    assert compared > 10


def test_source_is_read_once(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    table = RealTable(8, seed=1, device=device)
    read: list[int] = []
    encode = type(table).encode

    def counted(self: RealTable, source: Source, max_len: int) -> Any:
        read.append(len(source.lengths))
        return encode(self, source, max_len)

    monkeypatch.setattr(RealTable, "encode", counted)
    decode(beam(), table, [Request(i, (4, EOS), 5) for i in range(9)], batch_size=4)
    assert sum(read) == 9
