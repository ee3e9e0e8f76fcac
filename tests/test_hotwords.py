"""Hotwords: the best output and its bonus against all outputs, and what the strategy makes of the option."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.parallel_drafters import KnowingFrames
from support.scripted import decode
from support.transformers_small import vocabulary

from nartk.decoders.graphs.ctc_prefixes import Frames, PrefixSearch
from nartk.decoders.graphs.hotwords import Hotwords
from nartk.decoders.paraformer import ParaformerGreedy
from nartk.errors import UsageError
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy, signature
from nartk.vocab import Vocab

BOS, PAD, EOS = 0, 1, 2
Phrases = Sequence[Sequence[int]]


def bonus_of(path: Sequence[int], phrases: Phrases, weights: Sequence[float], *, eos: int = EOS) -> float:
    """Of each occurrence of each phrase before eos, by looking everywhere."""
    words = list(itertools.takewhile(lambda word: word != eos, path))
    found = 0.0
    for phrase, weight in {tuple(each): own for each, own in zip(phrases, weights, strict=True)}.items():
        count = sum(tuple(words[i : i + len(phrase)]) == phrase for i in range(len(words)))
        found += weight * len(phrase) * count
    return found


@pytest.mark.parametrize("part", range(4))
def test_the_best_of_all_outputs_is_found(part: int) -> None:
    rng, draw, with_bonus, overlapping = random.Random(part), np.random.default_rng(part), 0, 0
    for _ in range(150):
        size, length = rng.randint(5, 7), rng.randint(1, 4)
        phrases = [
            [rng.randrange(3, size) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 4))
        ]
        log_probs = np.log(draw.dirichlet(np.ones(size), length))
        weights = rng.choices([0.0, 0.3, 1.0, 3.0], k=len(phrases))
        path, bonus = Hotwords.of(phrases, weights).best(log_probs, eos=EOS, silent=[BOS, PAD])

        def score(
            path: Sequence[int],
            own: np.ndarray = log_probs,
            of: Phrases = phrases,
            by: Sequence[float] = weights,
        ) -> float:
            return sum(own[i, word] for i, word in enumerate(path)) + bonus_of(path, of, by)

        every = itertools.product([EOS, *range(3, size)], repeat=length)
        assert tuple(path) == max(every, key=score)
        assert bonus == pytest.approx(bonus_of(path, phrases, weights))
        with_bonus += bonus > 0
        overlapping += bonus > max(weights) * length
    assert with_bonus > 40
    assert overlapping > 5


@pytest.mark.parametrize("part", range(4))
def test_the_best_of_all_labellings_is_found(part: int) -> None:
    """Frames of CTC, in two parts: those of the first stay as they are, those of the second follow them."""
    rng, draw, with_bonus, over_border = random.Random(part), np.random.default_rng(part), 0, 0
    blank, size = 3, 6
    every = [*range(4, size), EOS]  # eos is a word as any other here
    for _ in range(60):
        length, begin = rng.randint(1, 5), rng.randint(0, 3)
        phrases = [[rng.choice(every) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 4))]
        weights = rng.choices([0.0, 0.3, 1.0, 3.0], k=len(phrases))
        hotwords = Hotwords.of(phrases, weights)
        before = [rng.choice([*every, blank]) for _ in range(begin)]
        log_probs = np.log(draw.dirichlet(np.ones(size), length))
        known, state = hotwords.bonus(before, blank=blank)
        last = before[-1] if before and before[-1] != blank else None
        labels, bonus = hotwords.best_labels(
            log_probs, blank=blank, silent=[BOS, PAD], state=state, last=last
        )

        def written(labels: Sequence[int]) -> list[int]:
            return [label for label, _ in itertools.groupby(labels) if label != blank]

        def score(
            labels: Sequence[int],
            own: np.ndarray = log_probs,
            before: Sequence[int] = before,
            of: Phrases = phrases,
            by: Sequence[float] = weights,
        ) -> float:
            words = written([*before, *labels])
            return sum(own[i, label] for i, label in enumerate(labels)) + bonus_of(words, of, by, eos=-1)

        best = max(score(each) for each in itertools.product([*every, blank], repeat=length))
        assert score(labels) == pytest.approx(best)
        assert known == pytest.approx(bonus_of(written(before), phrases, weights, eos=-1))
        assert known + bonus == pytest.approx(bonus_of(written([*before, *labels]), phrases, weights, eos=-1))
        with_bonus += bonus > 0
        over_border += state > 0 and bonus > 0
    assert with_bonus > 20
    assert over_border > 3


def test_phrases_that_fall_back_to_others_are_found() -> None:
    """3 4 3 5 begins as 3 4 3 6 does, whose end 3 begins 3 5: thrice 4, 3 5 and 3 4 3 6."""
    words = [3, 4, 3, 5, 3, 4, 3, 4, 3, 6]
    log_probs = -1000.0 * (1 - np.eye(7)[words])
    path, bonus = Hotwords.of([[3, 4, 3, 6], [3, 5], [4]], [0.5, 2, 0.5]).best(
        log_probs, eos=EOS, silent=[BOS, PAD]
    )
    assert path == words
    assert bonus == 0.5 * (3 * 1 + 4) + 2 * 2


def test_a_phrase_goes_on_after_the_words_before() -> None:
    hotwords = Hotwords.of([[3, 4, 5], [4, 6]], [1.0, 1.0])
    log_probs = np.log(np.array([[0.01, 0.01, 0.02, 0.06, 0.1, 0.35, 0.45]]))
    for before, wanted, bonus in (([], 6, 0.0), ([3, 4], 5, 3.0), ([6, 4], 6, 2.0), ([3, 4, 3], 6, 0.0)):
        _, state = hotwords.bonus(before, blank=None)
        assert hotwords.best(log_probs, eos=None, silent=[BOS, PAD], state=state) == ([wanted], bonus)


def test_nothing_counts_behind_eos() -> None:
    log_probs = np.log(np.array([[0.01, 0.01, 0.9, 0.08], [0.01, 0.01, 0.48, 0.5]]))
    path, bonus = Hotwords.of([[3]], [1.0]).best(log_probs, eos=EOS, silent=[BOS, PAD])
    assert (path, bonus) == ([EOS, 3], 0.0)
    path, bonus = Hotwords.of([[3]], [2.0]).best(log_probs, eos=EOS, silent=[BOS, PAD])
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
        ("w4:0.5 / w6:1.5", 9.0, (5, 7, 10, EOS), 1, 1.5 / 9),  # weights of their own
        ("w4 / w6:0.5", 1.5, (5, 8, 9, EOS), 1, 1),
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

    vocab = Vocab.from_words([*"abcdefgh:/0123"])

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(text.replace(" ", ""))


def automaton_of(hotwords: str, *, in_pieces: bool = True) -> dict[str, list[int | float]]:
    """What is favoured."""
    made: Any = ParaformerGreedy(hotwords=hotwords, hotword_weight=2.0)
    if in_pieces:
        made = made.in_pieces(Pieces())
    found = made.automaton(Pieces.vocab)
    return {name: getattr(found, name).tolist() for name in ("words", "parents", "completed")}


@pytest.mark.parametrize(
    ("hotwords", "wanted"),
    [
        ("10:30", [("10:30", 2.0)]),
        ("a 10:30", [("a10:30", 2.0)]),
        ("10:30 :1.5", [("10:30", 1.5)]),
        ("ab:1.5", [("ab", 1.5)]),
        ("10 a2:3", [("10a2", 3.0)]),
        ("a :3", [("a", 3.0)]),
        ("a:b", [("a:b", 2.0)]),
        ("ab/h", [("ab/h", 2.0)]),
        ("ab/h:1 / cab", [("ab/h", 1.0), ("cab", 2.0)]),
        ("a:0.00001 / b:1.23456789", [("a", 1e-5), ("b", 1.23456789)]),
    ],
)
def test_colons_and_slashes_may_be_of_a_word(hotwords: str, wanted: list[tuple[str, float]]) -> None:
    phrases, weights = zip(*wanted, strict=True)
    found = Hotwords.of([Pieces().encode(each) for each in phrases], weights)
    names = ("words", "parents", "completed")
    assert automaton_of(hotwords) == {name: getattr(found, name).tolist() for name in names}


def test_text_becomes_pieces() -> None:
    assert automaton_of("bad cab / fa") == automaton_of("b a d c a b / f a", in_pieces=False)
    with pytest.raises(UsageError, match=r"names 'xa', of which the model's dictionary has only '<unk> a'"):
        ParaformerGreedy(hotwords="fa / xa").in_pieces(Pieces())  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["w1 / ", "w1 what", "w1 </s>", " / ", "w1/w2", "w1 10:30"])
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


@pytest.mark.parametrize("seed", range(3))
def test_ctc_beam_finds_the_output_with_the_largest_score_and_bonus(seed: int) -> None:
    """All labellings of all outputs are summed up, and each output's hotwords are looked for everywhere."""
    rng, draw, changed = random.Random(seed), np.random.default_rng(seed), 0
    for _ in range(25):
        size, length = 4, rng.randint(2, 5)
        phrases = [[rng.randrange(1, size) for _ in range(rng.randint(1, 3))] for _ in range(3)]
        weights = rng.choices([0.3, 1.0, 2.0], k=3)
        log_probs = np.log(draw.dirichlet(np.ones(size), length)).astype(np.float32)
        sums: dict[tuple[int, ...], float] = {}
        for labels in itertools.product(range(size), repeat=length):
            key = tuple(word for word, _ in itertools.groupby(labels) if word)
            own = float(sum(log_probs[i, label] for i, label in enumerate(labels)))
            sums[key] = np.logaddexp(sums.get(key, -np.inf), own)
        scores = {key: own + bonus_of(key, phrases, weights, eos=-1) for key, own in sums.items()}
        words = np.tile(np.arange(1, size), (length, 1))
        frames = Frames(np.array([length]), log_probs, words, log_probs[:, 1:], 0)
        ((found, *_),) = PrefixSearch(300, 99, hotwords=Hotwords.of(phrases, weights)).run(frames)
        wanted = max(scores, key=scores.__getitem__)
        assert tuple(found[0]) == wanted
        assert found[1] == pytest.approx(scores[wanted], abs=1e-4)
        changed += wanted != max(sums, key=sums.__getitem__)
    assert changed > 5


def test_what_has_begun_is_kept_in_a_narrow_beam() -> None:
    """The last token of a phrase comes when plain search has dropped its beginning."""
    probs = np.full((3, 6), 0.01)
    probs[0, [1, 2, 3]] = 0.5, 0.3, 0.16
    probs[1, [0, 1]] = 0.9, 0.06
    probs[2, [4, 5]] = 0.55, 0.41
    log_probs = np.log(probs / probs.sum(1, keepdims=True)).astype(np.float32)
    frames = Frames(np.array([3]), log_probs, np.tile(np.arange(1, 6), (3, 1)), log_probs[:, 1:], 0)
    for size in (2, 50):
        search = PrefixSearch(size, 99, hotwords=Hotwords.of([[3, 5]], [1.5]))
        assert search.run(frames)[0][0][0] == [3, 5]
    assert PrefixSearch(2, 99).run(frames)[0][0][0] == [1, 4]


def test_ctc_takes_hotwords_with_weights() -> None:
    made = make_strategy("ctc-beam", {"hotwords": "w1 w2:2.5 / w3", "hotword_weight": 1.0})
    found = made.automaton(vocabulary(12))
    assert sorted(found.completed.tolist()) == [0.0, 0.0, 1.0, 5.0]
    with pytest.raises(UsageError, match="gives 'w1' the weight"):
        make_strategy("ctc-beam", {"hotwords": "w1:99999999"})
