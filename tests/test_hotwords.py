"""Hotwords: the best output and its bonus against all outputs, and what the strategy makes of the option."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from support.parallel_drafters import KnowingFrames
from support.scripted import decode
from support.transformers_small import vocabulary

from nartk.decoders.graphs.hotwords import Hotwords
from nartk.decoders.paraformer import ParaformerGreedy
from nartk.errors import UsageError
from nartk.hypothesis import Request
from nartk.registry import make_strategy, signature
from nartk.vocab import Vocab

BOS, PAD, EOS = 0, 1, 2
Phrases = Sequence[Sequence[int]]


def bonus_of(path: Sequence[int], phrases: Phrases, weight: float) -> float:
    """Of each occurrence of each phrase before eos, by looking everywhere."""
    words = list(itertools.takewhile(lambda word: word != EOS, path))
    found = 0
    for phrase in {tuple(each) for each in phrases}:
        found += len(phrase) * sum(tuple(words[i : i + len(phrase)]) == phrase for i in range(len(words)))
    return weight * found


@pytest.mark.parametrize("part", range(4))
def test_the_best_of_all_outputs_is_found(part: int) -> None:
    rng, draw, with_bonus, overlapping = random.Random(part), np.random.default_rng(part), 0, 0
    for _ in range(150):
        size, length = rng.randint(5, 7), rng.randint(1, 4)
        phrases = [
            [rng.randrange(3, size) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 4))
        ]
        log_probs, weight = np.log(draw.dirichlet(np.ones(size), length)), rng.choice([0.0, 0.3, 1.0, 3.0])
        path, bonus = Hotwords.of(phrases).best(log_probs, weight, eos=EOS, silent=[BOS, PAD])

        def score(
            path: Sequence[int], own: np.ndarray = log_probs, of: Phrases = phrases, by: float = weight
        ) -> float:
            return sum(own[i, word] for i, word in enumerate(path)) + bonus_of(path, of, by)

        every = itertools.product([EOS, *range(3, size)], repeat=length)
        assert tuple(path) == max(every, key=score)
        assert bonus == pytest.approx(bonus_of(path, phrases, weight))
        with_bonus += bonus > 0
        overlapping += bonus > weight * length
    assert with_bonus > 40
    assert overlapping > 5


def test_phrases_that_fall_back_to_others_are_found() -> None:
    """3 4 3 5 begins as 3 4 3 6 does, whose end 3 begins 3 5: thrice 4, 3 5 and 3 4 3 6."""
    words = [3, 4, 3, 5, 3, 4, 3, 4, 3, 6]
    log_probs = -1000.0 * (1 - np.eye(7)[words])
    path, bonus = Hotwords.of([[3, 4, 3, 6], [3, 5], [4]]).best(log_probs, 0.5, eos=EOS, silent=[BOS, PAD])
    assert path == words
    assert bonus == 0.5 * (3 * 1 + 2 + 4)


def test_nothing_counts_behind_eos() -> None:
    log_probs = np.log(np.array([[0.01, 0.01, 0.9, 0.08], [0.01, 0.01, 0.48, 0.5]]))
    path, bonus = Hotwords.of([[3]]).best(log_probs, 1.0, eos=EOS, silent=[BOS, PAD])
    assert (path, bonus) == ([EOS, 3], 0.0)
    path, bonus = Hotwords.of([[3]]).best(log_probs, 2.0, eos=EOS, silent=[BOS, PAD])
    assert (path, bonus) == ([3, 3], 4.0)


class Unsure(KnowingFrames):
    """Frames without blank, of which every word has a twin, the next id, that is 1 nat less likely."""

    def logits(self, words: np.ndarray) -> np.ndarray:
        found = super().logits(words)
        found += 19 * np.eye(found.shape[1], dtype=np.float32)[(words + 1) % found.shape[1]]
        return found


def outputs(words: Sequence[int], **options: object) -> tuple[tuple[int, ...], float | None]:
    scorer = Unsure(12, {(9, EOS): [*words, EOS]}, blank=None)
    (result,) = decode(ParaformerGreedy(**options), scorer, [Request(0, (9, EOS), 20)])
    (hypothesis,) = result.hypotheses
    return hypothesis.tokens, hypothesis.score


def test_the_strategy_prefers_hotwords() -> None:
    plain, score = outputs([5, 7, 9])
    assert plain == (5, 7, 9, EOS)
    assert score is not None
    for hotwords, weight, wanted, lost, tokens in (
        ("w4", 1.5, (5, 8, 9, EOS), 1, 1),  # of the word 8
        ("w4", 0.5, (5, 7, 9, EOS), 0, 0),
        ("w4 w6", 1.5, (5, 8, 10, EOS), 2, 2),
        ("w4 w6", 0.9, (5, 7, 9, EOS), 0, 0),
        ("w2 w3 / w6 w7", 1.5, (6, 7, 9, EOS), 1, 2),
        ("w1 w3 w5", 2.0, (5, 7, 9, EOS), 0, 3),
    ):
        tokens_found, with_bonus = outputs([5, 7, 9], hotwords=hotwords, hotword_weight=weight)
        assert tokens_found == wanted, hotwords
        assert with_bonus == pytest.approx(score - lost + weight * tokens, abs=1e-4)


def test_a_batch_changes_nothing() -> None:
    answers = {(word, EOS): [*[word, word - 1, 7][: word % 4], EOS] for word in range(5, 11)}
    scorer = Unsure(12, answers, blank=None)
    requests = [Request(i, source, 20) for i, source in enumerate(answers)]
    strategy = ParaformerGreedy(hotwords="w4 / w2 w3", hotword_weight=1.5)
    alone = decode(strategy, scorer, requests, batch_size=1)
    together = decode(strategy, scorer, requests, batch_size=6)
    assert [each.hypotheses for each in alone] == [each.hypotheses for each in together]
    assert len({each.hypotheses[0].tokens for each in alone}) > 3


class Pieces:
    """An output processor that writes a word as its letters."""

    vocab = Vocab.from_words([*"abcdefgh"])

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(text.replace(" ", ""))


def test_text_becomes_pieces() -> None:
    made = ParaformerGreedy(hotwords="bad cab / fa").in_pieces(Pieces())  # type: ignore[arg-type]
    assert made == ParaformerGreedy(hotwords="b a d c a b / f a")
    with pytest.raises(UsageError, match=r"names 'xa', of which the model's dictionary has only '<unk> a'"):
        ParaformerGreedy(hotwords="fa / xa").in_pieces(Pieces())  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["w1 / ", "w1 what", "w1 </s>", " / "])
def test_what_is_no_word_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"hotwords names .*Fix: give words of the model's dictionary"):
        outputs([5], hotwords=text)


def test_a_weight_without_hotwords_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hotword_weight is 2\.0, but there are no hotwords"):
        make_strategy("paraformer", {"hotword_weight": 2.0})
    with pytest.raises(UsageError, match="between 0"):
        make_strategy("paraformer", {"hotword_weight": -2.0})


def test_signatures_hold_hotwords_that_are_given() -> None:
    settings = {"exact": True, "dtype": "fp32", "model": "m", "version": "0"}
    assert "hotword" not in signature(ParaformerGreedy(), **settings)
    assert "|hotwords:w1|" in signature(ParaformerGreedy(hotwords="w1"), **settings)
    assert vocabulary(12).words[5] == "w1"
