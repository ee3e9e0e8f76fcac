"""Sampling: exact distributions by enumeration, and draws that depend on nothing but their names."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.distributions import CHANCE, chi_square_p, every_output, fit
from support.real_passes import RealPasses, engine_of, network_of
from support.realtable import random_transformer
from support.scripted_passes import (
    EOS,
    Table,
    TablePasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)

from nartk.cli.decode import main
from nartk.decoders.loop import draws as module
from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.drafter import Draft, Drafter, PlainDrafter
from nartk.decoders.loop.draws import RowDraws, uniform
from nartk.decoders.loop.rows import Row
from nartk.decoders.sample import Sample
from nartk.errors import StrategyMismatchError, UsageError
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import ROOT, Draw
from nartk.registry import make_strategy
from nartk.vocab import Vocab


def sampler(**options: Any) -> Any:
    return make_strategy("sample", options)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.7},
    {"top_p": 0.0},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_samples_of_a_sentence_are_distributed_as_the_model_says(settings: dict[str, Any]) -> None:
    table, request = RealPasses(6, seed=1), Request(0, (4, 5, EOS), 3)
    strategy = sampler(nbest=10_000, **settings)
    (result,) = decode(strategy, table, [request], batch_size=5_000)
    drawn = [hypothesis.tokens for hypothesis in result.hypotheses]
    assert len(drawn) == 10_000
    assert fit(drawn, every_output(table.log_probs, request, strategy)) > CHANCE


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "top_k": 4, "top_p": 0.8}], ids=str)
def test_seeds_and_sentences_are_distributed_as_the_model_says(settings: dict[str, Any]) -> None:
    table, requests = RealPasses(6, seed=2), [Request(i, (4, 5, EOS), 3) for i in range(40)]
    drawn = []
    for seed in range(200):
        strategy = sampler(seed=seed, **settings)
        drawn += [result.hypotheses[0].tokens for result in decode(strategy, table, requests, batch_size=40)]
    assert fit(drawn, every_output(table.log_probs, requests[0], strategy)) > CHANCE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda seed, sentence, sample, position: uniform(seed, sentence, sample),
        lambda seed, sentence, sample, position: uniform(seed, sentence, sample, position // 2),
        lambda seed, sentence, sample, position: uniform(seed, sentence, sample, position) ** 1.1,
        lambda seed, sentence, sample, position: uniform(seed, sentence, sample, position) * 0.97,
    ],
    ids=[
        "one number for all positions",
        "the number of the position before",
        "skewed",
        "never the last words",
    ],
)
def test_a_wrong_random_number_shows(wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    table, request = RealPasses(6, seed=1), Request(0, (4, 5, EOS), 3)
    monkeypatch.setattr(module, "uniform", wrong)
    strategy = sampler(nbest=10_000)
    (result,) = decode(strategy, table, [request], batch_size=5_000)
    assert (
        fit([each.tokens for each in result.hypotheses], every_output(table.log_probs, request, strategy))
        < CHANCE
    )


def test_scores_are_the_models_whatever_the_temperature() -> None:
    table, request = RealPasses(6, seed=1), Request(0, (4, 5, EOS), 5)
    (result,) = decode(sampler(nbest=20, temperature=2.0, top_k=3), table, [request])
    for hypothesis in result.hypotheses:
        told = hypothesis.tokens
        wanted = [table.log_probs(request.source, told[:i])[word] for i, word in enumerate(told)]
        assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)
        assert hypothesis.score == pytest.approx(sum(wanted), abs=1e-5)
    scores = [hypothesis.score for hypothesis in result.hypotheses]
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-3}], ids=str)
@pytest.mark.parametrize("name", ["engine", "reference"])
def test_the_sharpest_settings_are_greedy_search(
    name: str, settings: dict[str, Any], device: torch.device
) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(30)])
    scorer = network_of(name, random_transformer(0, len(vocab)), vocab, device)
    requests = random_requests(random.Random(0), 10, len(vocab))
    drawn = decode(sampler(**settings), scorer, requests)
    greedy = decode(make_strategy("greedy", {}), scorer, requests)
    assert [result.hypotheses for result in drawn] == [result.hypotheses for result in greedy]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 0.0}], ids=str)
def test_the_likeliest_word_alone_is_greedy_searchs_where_scores_tie(settings: dict[str, Any]) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        scorer = random_table(rng)
        requests = [random_request(rng, i, scorer.table.words, longest=20) for i in range(20)]
        drawn = decode(sampler(**settings), scorer, requests)
        assert differing(outputs_of(drawn), plain_greedy(scorer.table, requests)) == []


# What a draw depends on.


def random_requests(rng: random.Random, count: int, words: int) -> list[Request]:
    return [
        Request(i, (*(rng.randrange(4, words) for _ in range(rng.randint(0, 9))), EOS), rng.randint(1, 20))
        for i in range(count)
    ]


@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}], ids=str)
def test_outputs_in_a_batch_are_bitwise_those_of_sentences_alone(settings: dict[str, Any], type: str) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(90)])
    scorer = engine_of(random_transformer(0, len(vocab)), vocab, type)
    requests = random_requests(random.Random(0), 12, len(vocab))
    strategy = sampler(nbest=3, **settings)
    alone = [next(iter(strategy.run(scorer, [request], batch_size=1))).hypotheses for request in requests]
    for size in (2, 7, 36):
        together = decode(strategy, scorer, requests, batch_size=size)
        assert [result.hypotheses for result in together] == alone


@pytest.mark.parametrize("size", [63, 64, 70])
def test_a_seed_may_have_any_size(size: int) -> None:
    """It counts modulo 2 ** 64, as a hash of 64 bits has it."""
    table, requests = RealPasses(9, seed=1), random_requests(random.Random(1), 20, 9)
    seed = 2**size + 5
    found = outputs_of(decode(sampler(seed=seed), table, requests))
    assert found == outputs_of(decode(sampler(seed=seed % 2**64), table, requests))
    assert found != outputs_of(decode(sampler(seed=seed - 1), table, requests))


def test_the_seed_decides() -> None:
    table, requests = RealPasses(9, seed=1), random_requests(random.Random(1), 20, 9)
    first, again, other = (outputs_of(decode(sampler(seed=seed), table, requests)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_more_samples_keep_those_there_were() -> None:
    table, requests = RealPasses(9, seed=1), random_requests(random.Random(1), 20, 9)
    few, many = (decode(sampler(nbest=n), table, requests, batch_size=8) for n in (2, 5))
    for two, five in zip(few, many, strict=True):
        told = [Counter(each.tokens for each in result.hypotheses) for result in (two, five)]
        assert (told[0].total(), told[1].total()) == (2, 5)
        assert told[0] <= told[1]


# Drafts.


@dataclasses.dataclass
class Proposing(PlainDrafter):
    """Drafts whatever a function of a row gives."""

    what: Callable[[Row], Draft]

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[Any]:
        return [None for _ in requests]

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        return [self.what(row) for row in rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposed(Sample):
    name = "proposed"

    what: Callable[[Row], Draft]
    rule: Acceptance = dataclasses.field(default_factory=ArgmaxAcceptance)

    def make_drafter(self, scorer: Any) -> Drafter:
        return Proposing(self.what)

    def acceptance(self) -> Acceptance:
        return self.rule


def rest_of_source(row: Row) -> Draft:
    return Draft([*row.request.source[len(row.tokens) :]])


def garbage(rng: random.Random, words: int) -> Callable[[Row], Draft]:
    """Chains and trees of source words, any words, eos, and what is no word."""
    kind, width = rng.choice(["chain", "tree", "no words", "wrong parents", "eos"]), rng.choice([1, 2, 6, 12])
    bushy = rng.choice([1, 2, 40])  # how far back a parent may lie

    def token(row: Row) -> int:
        source = row.request.source
        copied = source[min(len(row.tokens) + rng.randrange(3), len(source) - 1)]
        low, high = (-2, words + 3) if kind == "no words" else (0, words)
        return EOS if kind == "eos" else copied if rng.random() < 0.7 else rng.randrange(low, high)

    def draft(row: Row) -> Draft:
        tokens = [token(row) for _ in range(rng.randint(0, width))]
        if kind == "chain":
            return Draft(tokens)
        if kind == "wrong parents":
            return Draft(tokens, [rng.randrange(-9, width + 9) for _ in tokens])
        return Draft(tokens, [max(ROOT, i - 1 - rng.randrange(bushy)) for i in range(len(tokens))])

    return draft


def test_words_that_are_drawn_are_accepted() -> None:
    accepted = 0
    for seed in range(20):
        scorer = TablePasses(Table(12, seed=seed, spread=4, bonus=5))
        requests = random_requests(random.Random(seed), 20, 12)
        plain, drafted = (
            decode(strategy, scorer, requests)
            for strategy in (Sample(nbest=2), Proposed(nbest=2, what=rest_of_source))
        )
        assert [result.hypotheses for result in plain] == [result.hypotheses for result in drafted]
        accepted += sum(result.accepted for result in drafted)
        assert sum(result.passes for result in drafted) < sum(result.passes for result in plain)
    assert accepted > 100


@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("draft", ["source", "ngram", "recycling"])
def test_drafts_change_no_bit_and_save_passes(draft: str, type: str) -> None:
    """A model that copies, and one that does not, alone and in batches."""
    saved = {"source": 0.7, "ngram": 0.7, "recycling": 1.01}  # a batch of all has nothing to recycle
    copies, words = copy.deepcopy(tiny.trained_corrector()).eval(), len(tiny.WORDS.split()) + 4
    for model, saves in ((copies, True), (random_transformer(0, words), False)):
        scorer = engine_of(model, Vocab.from_words(tiny.WORDS.split()), type)
        requests = random_requests(random.Random(0), 10, words)
        for settings in ({"nbest": 2}, {"temperature": 0.5, "top_k": 9, "top_p": 0.9}):
            plain = decode(sampler(**settings), scorer, requests, batch_size=1)
            for size, most in ((1, 10), (7, 3), (20, 10)):
                drafting = sampler(draft=draft, max_draft=most, **settings)
                drafted = decode(drafting, scorer, requests, batch_size=size)
                assert [result.hypotheses for result in drafted] == [result.hypotheses for result in plain]
                passes = [sum(result.passes for result in results) for results in (plain, drafted)]
                assert passes[1] < (saved[draft] if saves else 1.01) * passes[0]


def changed_draws(rule: Acceptance) -> int:
    """How many sentences get other samples with garbage for drafts."""
    wrong = 0
    for seed in range(30):
        rng = random.Random(f"garbage {seed}")
        scorer = TablePasses(Table(12, seed=seed, spread=4, bonus=5))
        requests = random_requests(rng, 12, 12)
        plain = decode(Sample(nbest=2), scorer, requests)
        proposed = Proposed(nbest=2, what=garbage(rng, 12), rule=rule)
        drafted = decode(proposed, scorer, requests, batch_size=rng.choice([1, 5, 24]))
        wrong += len(differing(*([result.hypotheses for result in found] for found in (plain, drafted))))
    return wrong


def test_garbage_changes_no_draw() -> None:
    assert changed_draws(ArgmaxAcceptance()) == 0


class Believes(ArgmaxAcceptance):
    """Known to be wrong: accepts whatever is drafted in a chain."""

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        begin, tokens = row.node, row.draft.tokens
        if row.draft.parents is not None or EOS in tokens:
            return super().verdict(row, verified)
        end = begin + len(tokens)
        log_probs = verified.log_probs[begin : end + 1]
        return Verdict(range(len(tokens)), [*tokens, verified.words[end]], log_probs)


def test_a_wrong_acceptance_changes_draws() -> None:
    assert changed_draws(Believes()) > 0


def test_draws_that_depend_on_the_draft_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right in distribution, and known to be wrong: another draw for another draft."""
    drawing = RowDraws._draw

    def by_the_draft(self: RowDraws, rows: Sequence[Row]) -> Draw:
        draw, seed = drawing(self, rows), sum(len(row.draft.tokens) for row in rows)
        return dataclasses.replace(draw, uniforms=(draw.uniforms + seed / 7) % 1)

    monkeypatch.setattr(RowDraws, "_draw", by_the_draft)
    assert changed_draws(ArgmaxAcceptance()) > 0


def test_drafts_from_a_source_in_other_words_are_refused() -> None:
    scorer = RealPasses(9, seed=1)
    del scorer.source_to_target
    decode(sampler(), scorer, [Request(0, (4, EOS), 3)])
    with pytest.raises(StrategyMismatchError) as caught:
        decode(sampler(draft="ngram"), scorer, [Request(0, (4, EOS), 3)])
    assert str(caught.value) == (
        "error[E103 StrategyMismatch] draft='ngram' needs a CopiesSource, this model is none. "
        "Fix: leave it out."
    )


# Constraints.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constrained(Sample):
    name = "constrained"

    rules: Constraints

    def constraints(self, vocab: Vocab) -> Constraints:
        return self.rules


def constrained_log_probs(
    scorer: RealPasses, rules: Constraints
) -> Callable[[Sequence[int], Sequence[int]], list[float]]:
    """Of each word after an output that keeps to the rules, in plain Python."""

    def log_probs(source: Sequence[int], output: Sequence[int]) -> list[float]:
        scores = scorer.log_probs(source, output)
        highest = max(scores)
        for word in {EOS, *output} if rules.repetition_penalty != 1 else ():
            logit = scorer.logits(source, output)[word]
            scores[word] += logit / rules.repetition_penalty - logit  # none is negative
        banned = [*rules.suppressed, *([EOS] if len(output) < rules.min_len else [])]
        banned += [
            gram[-1] for gram in rules.forbidden if (*output,)[len(output) + 1 - len(gram) :] == gram[:-1]
        ]
        probs = [0.0 if word in banned else math.exp(score - highest) for word, score in enumerate(scores)]
        return [math.log(p / sum(probs)) if p else -math.inf for p in probs]

    return log_probs


@pytest.mark.parametrize(
    "rules",
    [
        Constraints(min_len=3),
        Constraints(suppressed=(4, 5)),
        Constraints(forbidden=((5,), (3, 4), (4, 4))),
        Constraints(repetition_penalty=1.8),
        Constraints(min_len=2, repetition_penalty=0.6, suppressed=(1,)),
    ],
    ids=str,
)
def test_constrained_samples_are_distributed_as_the_rules_leave(rules: Constraints) -> None:
    scorer, request = RealPasses(6, seed=1), Request(0, (4, 5, EOS), 3)
    strategy = Constrained(nbest=10_000, rules=rules, temperature=1.3, top_k=5)
    (result,) = decode(strategy, scorer, [request], batch_size=5_000)
    drawn = [hypothesis.tokens for hypothesis in result.hypotheses]
    assert fit(drawn, every_output(constrained_log_probs(scorer, rules), request, strategy)) > CHANCE
    for hypothesis in result.hypotheses[:20]:
        told = hypothesis.tokens
        wanted = [scorer.log_probs(request.source, told[:i])[word] for i, word in enumerate(told)]
        assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)


def test_the_command_writes_the_same_file_in_fewer_passes(
    tmp_path: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    model, lines, stats = str(tiny.corrector(tmp_path / "model")), tmp_path / "in.txt", tmp_path / "stats"
    rng = random.Random(0)
    words = tiny.WORDS.split()
    lines.write_text("".join(f"{' '.join(rng.choices(words, k=9))}\n" for _ in range(8)))
    said, passes, errors = [], [], []
    for draft in ("none", "source", "ngram"):
        command = [model, str(lines), "--strategy", "sample", "--temperature", "1.5", "--draft", draft]
        where = ["--device", str(device), "--stats", str(stats), "--verbose"]
        assert main([*command, *where]) == 0
        captured = capsys.readouterr()
        said.append(captured.out)
        errors.append(captured.err)
        passes.append(json.loads(stats.read_text())["passes"])
    assert len(set(said)) == 1
    assert set(said[0].splitlines()) != set(lines.read_text().splitlines())
    assert max(passes[1:]) < passes[0]
    assert "|nbest:1|draft:source|max_draft:10|" in errors[1]
    assert (
        main(
            [
                model,
                str(lines),
                "--strategy",
                "sample",
                "--draft",
                "source",
                "--assert-lossless",
            ]
        )
        == 2
    )


def test_help_tells_of_the_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--strategy", "sample", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--draft TEXT" in out
    assert "longest draft, tokens (default: 10)" in out
    assert main(["--strategy", "speculative", "--help"]) == 0
    assert "--draft " not in capsys.readouterr().out


def test_a_length_without_drafts_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        sampler(max_draft=3)
    assert str(caught.value) == (
        "error[E101 Usage] max_draft is 3, but nothing is drafted. "
        "Fix: choose what with draft: source or ngram."
    )


def test_a_prefix_is_kept() -> None:
    request = Request(0, (4, 5, EOS), 6, prefix=(7, 7, 4))
    (result,) = decode(sampler(nbest=5), RealPasses(9, seed=1), [request])
    assert {hypothesis.tokens[:3] for hypothesis in result.hypotheses} == {(7, 7, 4)}


# Parts.


# Parts.


def test_random_numbers_are_splitmix64s() -> None:
    """The first outputs of the reference implementation (Vigna 2015, splitmix64.c) from the state 1234567."""
    wanted = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    found = uniform(1234567, np.arange(4))
    assert found.tolist() == [(each % 2**48) / 2**48 for each in wanted]


def test_random_numbers_are_uniform_and_independent() -> None:
    n = 40_000
    index, zeros = np.arange(n), np.zeros(n, np.int64)
    streams = {
        "position": uniform(1, zeros, zeros, index),
        "sample": uniform(1, zeros, index, zeros),
        "sentence": uniform(1, index, zeros, zeros),
        "seed": np.concatenate([uniform(seed, zeros[:1], zeros[:1], zeros[:1]) for seed in range(n // 10)]),
    }
    for numbers in streams.values():
        assert 0 <= numbers.min() <= numbers.max() < 1
        size = len(numbers)
        counts = np.bincount((numbers * 100).astype(int), minlength=100)
        assert chi_square_p(counts.tolist(), [size / 100] * 100) > CHANCE
        pairs = np.bincount(
            (numbers[1:] * 10).astype(int) * 10 + (numbers[:-1] * 10).astype(int), minlength=100
        )
        assert chi_square_p(pairs.tolist(), [(size - 1) / 100] * 100) > CHANCE
    crossed = (streams["position"] * 10).astype(int) * 10 + (streams["sample"] * 10).astype(int)
    assert chi_square_p(np.bincount(crossed, minlength=100).tolist(), [n / 100] * 100) > CHANCE


def test_no_temperature_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        sampler(temperature=0.0)
    assert caught.value.message == "temperature of 'sample' is 0.0"


def test_a_drafter_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        sampler(draft="graph")  # which needs a model of its own
    assert str(caught.value) == (
        "error[E101 Usage] draft is 'graph'. Fix: choose from none, ngram, recycling, source."
    )
