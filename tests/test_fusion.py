"""Scores that beam search adds to its model's, against enumeration of all outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.joint import LM
from support.real_passes import RealPasses
from support.scripted_passes import EOS, decode

from nartk.decoders.graphs.ngram_lm import NGram, read_arpa
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy

WORDS, BOS = 6, 0
# With 3-grams a word's score depends on the word before the last, too: on which hypothesis it goes on from.
TRIGRAMS = LM.replace("ngram 2=3\n", "ngram 2=5\nngram 3=4\n").replace(
    "-0.6 w1 </s>\n",
    """-0.6 w1 </s>
-0.7 w1 w0
-0.9 w0 w0 -0.4

\\3-grams:
-0.1 <s> w0 w1
-2.5 w1 w0 w1
-1.9 w0 w1 w0
-0.2 w0 w0 w1
""",
)
Added = Callable[[Request, Sequence[int]], float]  # the score of an output's last word


@pytest.fixture
def lm(tmp_path: Path) -> str:
    path = tmp_path / "lm.arpa"
    path.write_text(TRIGRAMS, encoding="utf-8")
    return str(path)


def shallow(lm: NGram, weight: float) -> Added:
    return lambda request, output: weight * lm.score([BOS, *output[:-1]], output[-1])


def every_output(
    scorer: RealPasses, request: Request, power: float, added: Added
) -> list[tuple[float, tuple[int, ...], list[float]]]:
    """All outputs with their scores, best first, and the model's log-probabilities of their words."""
    found = []

    def grow(output: tuple[int, ...], log_probs: list[float], total: float) -> None:
        if output[-1:] == (EOS,) or len(output) == request.max_len:
            found.append(((sum(log_probs) + total) / len(output) ** power, output, log_probs))
            return
        for word, log_prob in enumerate(scorer.log_probs(request.source, output)):
            longer = (*output, word)
            if longer[: len(request.prefix)] == request.prefix[: len(longer)]:
                grow(longer, [*log_probs, log_prob], total + added(request, longer))

    grow((), [], 0.0)
    return sorted(found, reverse=True)


def requests_of(rng: random.Random, count: int, words: int, longest: int, prefix: int = 0) -> list[Request]:
    found = []
    for i in range(count):
        source = (*(rng.randrange(4, words) for _ in range(rng.randint(1, 5))), EOS)
        forced = tuple(rng.randrange(4, words) for _ in range(prefix))
        found.append(Request(i, source, longest, forced))
    return found


@pytest.mark.parametrize(("weight", "power"), [(0.4, 1.0), (2.0, 0.5), (-0.7, 1.3)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_beam_search_with_a_language_model_finds_every_output_in_order(
    lm: str, weight: float, power: float, prefix: int
) -> None:
    changed = 0
    for seed in range(4):
        scorer = RealPasses(WORDS, seed=seed)
        (request,) = requests_of(random.Random(seed), 1, WORDS, 3 + prefix, prefix=prefix)
        added = shallow(read_arpa(Path(lm), scorer.vocab), weight)
        wanted = every_output(scorer, request, power, added)
        options = {"beam_size": 300, "nbest": len(wanted), "length_penalty": power, "early_stopping": "never"}
        strategy = make_strategy("beam", {**options, "lm": lm, "lm_weight": weight, "candidates": WORDS})
        (found,) = decode(strategy, scorer, [request])
        assert [each.tokens for each in found.hypotheses] == [output for _, output, _ in wanted]
        for each, (score, _, log_probs) in zip(found.hypotheses, wanted, strict=True):
            assert each.score == pytest.approx(score, abs=1e-4)
            assert each.positional_scores == pytest.approx(log_probs, abs=1e-4)  # the model's own
        (without,) = decode(make_strategy("beam", options), scorer, [request])
        changed += without.hypotheses[0].tokens != found.hypotheses[0].tokens
    assert changed


def test_one_hypothesis_takes_the_best_sum_at_each_word(lm: str) -> None:
    """With a beam of 1 and a language model this is no greedy search of the model alone."""
    differing = 0
    for seed in range(6):
        scorer = RealPasses(12, seed=seed)
        (request,) = requests_of(random.Random(seed), 1, 12, 8)
        added = shallow(read_arpa(Path(lm), scorer.vocab), 1.5)
        output: list[int] = []
        while len(output) < request.max_len and output[-1:] != [EOS]:
            log_probs = scorer.log_probs(request.source, output)
            sums = [value + added(request, [*output, word]) for word, value in enumerate(log_probs)]
            output.append(sums.index(max(sums)))
        strategy = make_strategy("beam", {"beam_size": 1, "lm": lm, "lm_weight": 1.5})
        (found,) = decode(strategy, scorer, [request])
        assert list(found.hypotheses[0].tokens) == output
        (greedy,) = decode(make_strategy("greedy", {}), scorer, [request])
        differing += greedy.hypotheses[0].tokens != found.hypotheses[0].tokens
    assert differing


def test_neither_drafts_nor_the_batch_change_what_is_found(lm: str) -> None:
    drafted = 0
    for seed in range(12):
        rng = random.Random(seed)
        scorer = RealPasses(20, seed=seed, copying=4)
        requests = requests_of(rng, 9, 20, 8)
        options = {"beam_size": rng.choice([2, 3, 6]), "lm": lm, "lm_weight": rng.choice([0.3, 1.0])}
        options["beam_groups"] = options["beam_size"] if seed % 3 == 0 else 1
        plain = decode(make_strategy("beam", options), scorer, requests, batch_size=1)
        for draft in ("source", "recycling", "both"):
            strategy = make_strategy("beam", {**options, "draft": draft})
            found = decode(strategy, scorer, requests, batch_size=rng.choice([2, 4, 9]))
            assert [each.hypotheses for each in found] == [each.hypotheses for each in plain]
            drafted += sum(each.accepted for each in found)
    assert drafted > 100


def test_a_weight_without_a_language_model_is_refused() -> None:
    for name in ("beam", "joint-ctc", "ctc-beam"):
        scorer: Any = RealPasses(6, seed=0)
        scorer.blank = 0
        strategy = make_strategy(name, {"lm_weight": 0.5})
        with pytest.raises(UsageError, match=r"lm_weight is 0\.5, but there is no language model"):
            decode(strategy, scorer, [Request(0, (4, EOS), 3)])
