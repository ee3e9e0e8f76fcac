"""Sampling: exact distributions by enumeration, and draws that depend on nothing but their names."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from realtable import EOS, RealTable, log_probs, random_transformer
from scripted import TableScorer, decode, differing, outputs_of, over_tensors, same_words
from test_tree import Proposing, garbage
from torch import Tensor

from nartk.cli.decode import main
from nartk.decoders import sample as module
from nartk.decoders.sample import Sample, Sampling, draw, keep_likeliest, uniform
from nartk.decoders.tensor_loop import Acceptance, Draft, Drafter, Fed, Judged
from nartk.errors import UsageError
from nartk.hypothesis import Request
from nartk.models.transformer_scorer import TransformerScorer
from nartk.registry import make_strategy
from nartk.scorer import Seq2SeqScorer, Source
from nartk.vocab import Vocab

CHANCE = 1e-4  # of a right sampler to fail one of these tests; seeds are fixed, so it fails always or never


def sampler(**options: Any) -> Any:
    return make_strategy("sample", options)


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """The chance of counts at least so far from those expected; rare outcomes are pooled."""
    pairs = sorted(zip(expected, counts, strict=True))
    pooled, rest = [], [0.0, 0.0]
    for wanted, found in pairs:
        if rest[0] < 10:
            rest = [rest[0] + wanted, rest[1] + found]
            if rest[0] >= 10:
                pooled.append(rest)
        else:
            pooled.append([wanted, found])
    if len(pooled) < 2:
        return 1.0
    statistic = sum((found - wanted) ** 2 / wanted for wanted, found in pooled)
    half = torch.tensor([(len(pooled) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def filtered(lprobs: Sequence[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Probabilities after temperature, top-k and top-p, word by word in plain Python."""
    probs = [math.exp(lprob / temperature) for lprob in lprobs]
    order = sorted(range(len(probs)), key=lambda word: -probs[word])
    if top_k:
        order = order[:top_k]
    total, mass, kept = sum(probs[word] for word in order), 0.0, []
    for word in order:
        if kept and mass >= top_p:
            break
        kept.append(word)
        mass += probs[word] / total
    total = sum(probs[word] for word in kept)
    return [probs[word] / total if word in kept else 0.0 for word in range(len(probs))]


def every_output(table: RealTable, request: Request, options: Any) -> dict[tuple[int, ...], float]:
    """All outputs that can be drawn, with their probabilities."""
    found = {}

    def grow(prefix: tuple[int, ...], chance: float) -> None:
        if prefix and (prefix[-1] == EOS or len(prefix) == request.max_len):
            found[prefix] = chance
            return
        lprobs = log_probs(table, request.source, prefix)
        for word, p in enumerate(filtered(lprobs, options.temperature, options.top_k, options.top_p)):
            if p > 0:
                grow((*prefix, word), chance * p)

    grow((), 1.0)
    return found


def fit(drawn: Iterable[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    counts = Counter(drawn)
    assert counts.keys() <= wanted.keys(), "a word that the filters leave out"
    total = sum(counts.values())
    return chi_square_p([counts[output] for output in wanted], [total * p for p in wanted.values()])


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
def test_samples_of_a_sentence_are_distributed_as_the_model_says(
    settings: dict[str, Any], device: torch.device
) -> None:
    table, request = RealTable(6, seed=1, device=device), Request(0, (4, 5, EOS), 3)
    strategy = sampler(nbest=10_000, **settings)
    (result,) = decode(strategy, table, [request], batch_size=5_000)
    drawn = [hypothesis.tokens for hypothesis in result.hypotheses]
    assert len(drawn) == 10_000
    assert fit(drawn, every_output(table, request, strategy)) > CHANCE


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "top_k": 4, "top_p": 0.8}], ids=str)
def test_seeds_and_sentences_are_distributed_as_the_model_says(
    settings: dict[str, Any], device: torch.device
) -> None:
    table, requests = RealTable(6, seed=2, device=device), [Request(i, (4, 5, EOS), 3) for i in range(40)]
    drawn = []
    for seed in range(200):
        strategy = sampler(seed=seed, **settings)
        drawn += [result.hypotheses[0].tokens for result in decode(strategy, table, requests, batch_size=40)]
    assert fit(drawn, every_output(table, requests[0], strategy)) > CHANCE


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
def test_a_wrong_random_number_shows(
    wrong: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    table, request = RealTable(6, seed=1, device=device), Request(0, (4, 5, EOS), 3)
    monkeypatch.setattr(module, "uniform", wrong)
    strategy = sampler(nbest=10_000)
    (result,) = decode(strategy, table, [request], batch_size=5_000)
    assert fit([each.tokens for each in result.hypotheses], every_output(table, request, strategy)) < CHANCE


def test_scores_are_the_models_whatever_the_temperature(device: torch.device) -> None:
    table, request = RealTable(6, seed=1, device=device), Request(0, (4, 5, EOS), 5)
    (result,) = decode(sampler(nbest=20, temperature=2.0, top_k=3), table, [request])
    for hypothesis in result.hypotheses:
        told = hypothesis.tokens
        wanted = [log_probs(table, request.source, told[:i])[word] for i, word in enumerate(told)]
        assert hypothesis.positional_scores == pytest.approx(wanted, abs=1e-5)
        assert hypothesis.score == pytest.approx(sum(wanted), abs=1e-5)
    scores = [hypothesis.score for hypothesis in result.hypotheses]
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-3}], ids=str)
def test_the_sharpest_settings_are_greedy_search(settings: dict[str, Any], device: torch.device) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(30)])
    scorer = TransformerScorer(random_transformer(0, len(vocab)), vocab, device=device)
    requests = random_requests(random.Random(0), 10, len(vocab))
    drawn = decode(sampler(**settings), scorer, requests)
    greedy = decode(over_tensors("greedy", {}), scorer, requests)
    assert [result.hypotheses for result in drawn] == [result.hypotheses for result in greedy]


# What a draw depends on.


def random_requests(rng: random.Random, count: int, words: int) -> list[Request]:
    return [
        Request(i, (*(rng.randrange(4, words) for _ in range(rng.randint(0, 9))), EOS), rng.randint(1, 20))
        for i in range(count)
    ]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}], ids=str)
def test_a_batch_says_bitwise_what_its_sentences_say_alone(
    settings: dict[str, Any], device: torch.device
) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(90)])
    scorer = TransformerScorer(random_transformer(0, len(vocab)), vocab, device=device)
    requests = random_requests(random.Random(0), 12, len(vocab))
    strategy = sampler(nbest=3, **settings)
    alone = [next(iter(strategy.run(scorer, [request], batch_size=1))).hypotheses for request in requests]
    for size in (2, 7, 36):
        together = decode(strategy, scorer, requests, batch_size=size)
        assert [result.hypotheses for result in together] == alone


def test_the_seed_decides(device: torch.device) -> None:
    table, requests = RealTable(9, seed=1, device=device), random_requests(random.Random(1), 20, 9)
    first, again, other = (outputs_of(decode(sampler(seed=seed), table, requests)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_more_samples_keep_those_there_were(device: torch.device) -> None:
    table, requests = RealTable(9, seed=1, device=device), random_requests(random.Random(1), 20, 9)
    few, many = (decode(sampler(nbest=n), table, requests, batch_size=8) for n in (2, 5))
    for two, five in zip(few, many, strict=True):
        told = [Counter(each.tokens for each in result.hypotheses) for result in (two, five)]
        assert (told[0].total(), told[1].total()) == (2, 5)
        assert told[0] <= told[1]


@dataclasses.dataclass(frozen=True)
class RestOfSource(Drafter):
    """Drafts the source's words at the places that follow."""

    def start(self, source: Source, requests: Sequence[Request]) -> _Sources:
        return _Sources(*same_words(source))

    def draft(
        self, state: _Sources, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _Sources]:
        at = lengths[:, None] + torch.arange(state.source.shape[1], device=lengths.device)
        tokens = state.source.gather(1, at.clamp(max=state.source.shape[1] - 1))
        return Draft(tokens, (state.lengths - lengths).clamp(min=0)), state


@dataclasses.dataclass(frozen=True)
class _Sources:
    source: Tensor
    lengths: Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drafted(Sample):
    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter | None:
        return RestOfSource()


def test_words_that_are_drawn_stand(device: torch.device) -> None:
    accepted = 0
    for seed in range(20):
        table = TableScorer(12, seed=seed, spread=4, bonus=5, device=device)
        requests = random_requests(random.Random(seed), 20, 12)
        plain, drafted = (
            decode(strategy, table, requests) for strategy in (Sample(nbest=2), Drafted(nbest=2))
        )
        assert [result.hypotheses for result in plain] == [result.hypotheses for result in drafted]
        accepted += sum(result.accepted for result in drafted)
    assert accepted > 100


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draft", ["source", "ngram"])
def test_drafts_change_no_bit_and_save_passes(draft: str, dtype: str, device: torch.device) -> None:
    """A model that copies, and one that does not, alone and in batches."""
    copies, words = copy.deepcopy(tiny.trained_corrector()).eval(), len(tiny.WORDS.split()) + 4
    for model, saves in ((copies, True), (random_transformer(0, words), False)):
        vocab = Vocab.from_words(tiny.WORDS.split())
        scorer = TransformerScorer(model, vocab, dtype=DTYPES[dtype], device=device)
        requests = random_requests(random.Random(0), 10, words)
        for settings in ({"nbest": 2}, {"temperature": 0.5, "top_k": 9, "top_p": 0.9}):
            plain = decode(sampler(**settings), scorer, requests, batch_size=1)
            for size, most in ((1, 10), (7, 3), (20, 10)):
                drafting = sampler(draft=draft, max_draft=most, **settings)
                drafted = decode(drafting, scorer, requests, batch_size=size)
                assert [result.hypotheses for result in drafted] == [result.hypotheses for result in plain]
                passes = [sum(result.passes for result in results) for results in (plain, drafted)]
                assert passes[1] < (0.7 if saves else 1.01) * passes[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposed(Sample):
    what: Callable[[Tensor, Tensor, Tensor], Draft]
    rule: Callable[[Sampling], Acceptance] | None = None

    def for_run(self, scorer: Seq2SeqScorer) -> Any:
        return dataclasses.replace(self, drafter=Proposing(self.what))

    def acceptance(self) -> Acceptance:
        return super().acceptance() if self.rule is None else self.rule(self)


def changed_draws(device: torch.device, rule: Callable[[Sampling], Acceptance] | None = None) -> int:
    """How many sentences get other samples with garbage for drafts: trees and chains, no words, eos."""
    wrong = 0
    for seed in range(12):
        rng = random.Random(f"garbage {seed}")
        table = TableScorer(12, seed=seed, spread=4, bonus=5, device=device)
        requests = random_requests(rng, 12, 12)
        plain = decode(Sample(nbest=2), table, requests)
        proposed = Proposed(nbest=2, what=garbage(rng, 12), rule=rule)
        drafted = decode(proposed, table, requests, batch_size=rng.choice([1, 5, 24]))
        wrong += len(differing(*([result.hypotheses for result in found] for found in (plain, drafted))))
    return wrong


def test_garbage_changes_no_draw(device: torch.device) -> None:
    assert changed_draws(device) == 0


@dataclasses.dataclass(frozen=True)
class Believes:
    """Known to be wrong: whatever is drafted stands."""

    options: Sampling

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        tokens = draw(self.options.chances(logits), self.options.numbers(fed.requests, fed.positions))
        return Judged(tokens, module.log_probs(logits, tokens), fed.drafted >= 0)


@dataclasses.dataclass(frozen=True)
class DrawsByTheDraft:
    """Known to be wrong, though right in distribution: another draw for another draft."""

    options: Sampling

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        requests = fed.requests * 100 + fed.drafted + 1
        tokens = draw(self.options.chances(logits), self.options.numbers(requests, fed.positions))
        return Judged(tokens, module.log_probs(logits, tokens))


@pytest.mark.parametrize("rule", [Believes, DrawsByTheDraft])
def test_a_wrong_acceptance_changes_draws(
    rule: Callable[[Sampling], Acceptance], device: torch.device
) -> None:
    assert changed_draws(device, rule) > 0


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
        where = ["--device", str(device), "--stats", str(stats), "--assert-lossless"]
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
                "--no-exact",
                "--assert-lossless",
            ]
        )
        == 2
    )


def test_help_tells_of_the_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--strategy", "sample", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--draft {none,source,ngram}" in out
    assert "longest draft, tokens (default: 10)" in out
    assert main(["--strategy", "speculative", "--help"]) == 0
    assert "--draft " not in capsys.readouterr().out


def test_a_length_without_drafts_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        sampler(max_draft=3)
    assert str(caught.value) == (
        "error[E101 Usage] --max-draft is 3, but nothing is drafted. "
        "Fix: choose what with --draft: source or ngram."
    )


def test_a_prefix_is_kept(device: torch.device) -> None:
    request = Request(0, (4, 5, EOS), 6, prefix=(7, 7, 4))
    (result,) = decode(sampler(nbest=5), RealTable(9, seed=1, device=device), [request])
    assert {hypothesis.tokens[:3] for hypothesis in result.hypotheses} == {(7, 7, 4)}


# Parts.


def test_the_filters_keep_what_a_plain_count_keeps(device: torch.device) -> None:
    rng = random.Random(0)
    for _ in range(300):
        words = rng.randint(2, 40)
        scores = rng.sample(range(-3000, 3000), words)  # no ties
        lprobs = torch.tensor([scores], dtype=torch.float64, device=device).div(1000).log_softmax(1)
        top_k, top_p = rng.choice([0, 1, 2, 5, 39, 40]), rng.choice([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
        wanted = [p > 0 for p in filtered(lprobs[0].tolist(), 1.0, min(top_k, words), top_p)]
        kept = keep_likeliest(lprobs.float(), top_k=top_k, top_p=top_p)
        assert (kept[0] > float("-inf")).tolist() == wanted


def test_equals_of_the_last_kept_word_stay(device: torch.device) -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]], device=device)
    kept = keep_likeliest(logits, top_k=3, top_p=1.0)
    assert kept.isfinite().tolist() == [[True] * 5]
    kept = keep_likeliest(logits, top_k=2, top_p=1.0)
    assert kept.isfinite().tolist() == [[False, True, False, True, False]]


def test_random_numbers_are_uniform_and_independent(device: torch.device) -> None:
    n = 40_000
    index = torch.arange(n, device=device)
    zeros = torch.zeros_like(index)
    streams = {
        "position": uniform(1, zeros, zeros, index),
        "sample": uniform(1, zeros, index, zeros),
        "sentence": uniform(1, index, zeros, zeros),
        "seed": torch.cat([uniform(seed, zeros[:1], zeros[:1], zeros[:1]) for seed in range(n // 10)]),
    }
    for numbers in streams.values():
        assert 0 <= float(numbers.min()) <= float(numbers.max()) < 1
        size = len(numbers)
        counts = (numbers * 100).long().bincount(minlength=100)
        assert chi_square_p(counts.tolist(), [size / 100] * 100) > CHANCE
        pairs = ((numbers[1:] * 10).long() * 10 + (numbers[:-1] * 10).long()).bincount(minlength=100)
        assert chi_square_p(pairs.tolist(), [(size - 1) / 100] * 100) > CHANCE
    crossed = (streams["position"] * 10).long() * 10 + (streams["sample"] * 10).long()
    assert chi_square_p(crossed.bincount(minlength=100).tolist(), [n / 100] * 100) > CHANCE


def test_no_temperature_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        sampler(temperature=0.0)
    assert caught.value.message == "--temperature of 'sample' is 0.0"
