"""What is read of logits, against brute force word by word, and against the tensor code of the same."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from nartk.errors import PassError
from nartk.models.reference import read_tensors
from nartk.protocols.contexts import Contexts, Handles
from nartk.protocols.passes import Draw, FloatArray, Limits, Pass, Ragged, Want
from nartk.protocols.reading import PassScores, Reading, check_want, read

NEG_INF = -math.inf
FIELDS = (
    "best",
    "log_probs",
    "top",
    "top_log_probs",
    "margins",
    "given_log_probs",
    "drawn",
    "drawn_log_probs",
    "hidden",
)
BELOW_1 = math.nextafter(1.0, 0.0)


def ranked(logits: Sequence[float], banned: Sequence[int]) -> list[int]:
    """The words that are left, likeliest first, of equal ones the lowest first."""
    return sorted(set(range(len(logits))) - set(banned), key=lambda word: (-logits[word], word))


def log_prob(logits: Sequence[float], word: int) -> float:
    highest = max(logits)
    if logits[word] == NEG_INF:
        return NEG_INF
    return logits[word] - highest - math.log(math.fsum(math.exp(x - highest) for x in logits))


def probs(logits: Sequence[float], banned: Sequence[int], draw: Draw) -> list[float]:
    """The probabilities with which words are drawn."""
    kept = ranked(logits, banned)
    weights = {word: math.exp((logits[word] - logits[kept[0]]) / draw.temperature) for word in kept}
    if draw.top_k:
        kept = kept[: draw.top_k]
    if draw.top_p < 1:
        total = math.fsum(weights[word] for word in kept)
        for size in range(1, len(kept) + 1):
            if math.fsum(weights[word] for word in kept[:size]) / total >= draw.top_p:
                kept = kept[:size]
                break
    total = math.fsum(weights[word] for word in kept)
    return [weights[word] / total if word in kept else 0.0 for word in range(len(logits))]


def random_case(rng: random.Random) -> tuple[FloatArray, Want, list[list[int]]]:
    """Logits with ties, impossible and forbidden words, and all that can be wanted."""
    count, words = rng.randint(1, 5), rng.randint(1, 12)
    values = rng.choice([[0.0, 1.0, 2.0], [-0.0, 0.0, NEG_INF], None])
    logits = np.array(
        [
            [rng.gauss(0, 3) if values is None else rng.choice(values) for _ in range(words)]
            for _ in range(count)
        ],
        np.float32,
    )
    bans = [rng.choices(range(words), k=rng.randint(0, words)) for _ in range(count)]
    for row, ban in zip(logits, bans, strict=True):
        while len(set(ban)) == words:
            ban.remove(ban[0])
        left = sorted(set(range(words)) - set(ban))
        if (row[left] == NEG_INF).all():
            row[rng.choice(left)] = 1.0
    want = Want(
        banned=Ragged.of(bans),
        top=rng.randint(1, words + 2),
        margin=True,
        hidden=True,
        given=np.array([rng.randrange(-1, words) for _ in range(count)], np.int32),
        draw=Draw(
            np.array([rng.random() for _ in range(count)]),
            temperature=rng.choice([0.3, 1.0, 2.0]),
            top_k=rng.choice([0, 0, 1, 3, 20]),
            top_p=rng.choice([1.0, 1.0, 0.9, 0.45, 0.01]),
        ),
    )
    return logits, want, bans


def hidden_of(logits: FloatArray) -> FloatArray:
    return np.arange(len(logits) * 3, dtype=np.float32).reshape(-1, 3)


@pytest.mark.parametrize("seed", range(200))
def test_a_reading_is_brute_force(seed: int) -> None:
    logits, want, bans = random_case(random.Random(seed))
    assert want.draw is not None
    assert want.given is not None
    assert check_want(want, len(logits), logits.shape[1]) == len(logits)
    found = read(logits, want, hidden_of(logits))
    assert found.top is not None
    assert found.top_log_probs is not None
    assert found.margins is not None
    assert found.given_log_probs is not None
    assert found.drawn is not None
    assert found.drawn_log_probs is not None
    assert found.hidden is not None
    for i, (row, ban) in enumerate(zip(logits.tolist(), bans, strict=True)):
        order = ranked(row, ban)
        assert found.best[i] == order[0]
        assert found.log_probs[i] == pytest.approx(log_prob(row, order[0]), abs=1e-5)
        wanted = (order + [-1] * want.top)[: want.top]
        assert found.top[i].tolist() == wanted
        assert found.top_log_probs[i].tolist() == pytest.approx(
            [NEG_INF if word < 0 else log_prob(row, word) for word in wanted], abs=1e-5
        )
        margin = math.inf if len(order) < 2 else row[order[0]] - row[order[1]]
        assert found.margins[i] == pytest.approx(margin, abs=1e-5)
        given = int(want.given[i])
        assert found.given_log_probs[i] == pytest.approx(0 if given < 0 else log_prob(row, given), abs=1e-5)
        chances = probs(row, ban, want.draw)
        drawn = int(found.drawn[i])
        # Where the number falls: the word's share begins at or before it and ends behind it.
        assert chances[drawn] > 0
        assert sum(chances[:drawn]) - 1e-12 <= want.draw.uniforms[i] <= sum(chances[: drawn + 1]) + 1e-12
        assert found.drawn_log_probs[i] == pytest.approx(log_prob(row, drawn), abs=1e-5)
    assert (found.hidden == hidden_of(logits)).all()


def agree(found: Reading, wanted: Reading) -> None:
    for name in FIELDS:
        one, other = getattr(found, name), getattr(wanted, name)
        if other is None:
            assert one is None, name
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        if other.dtype == np.int32:
            assert one.tolist() == other.tolist(), name
        else:
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(200))
def test_tensors_read_the_same(seed: int, device: torch.device) -> None:
    rng = random.Random(1000 + seed)
    logits, want, _ = random_case(rng)
    hidden = hidden_of(logits)
    on_device = torch.tensor(logits, device=device), torch.tensor(hidden, device=device)
    agree(read_tensors(on_device[0], want, on_device[1]), read(logits, want, hidden))
    plain = Want()
    agree(read_tensors(on_device[0], plain, on_device[1]), read(logits, plain))


def test_no_token_reads_as_nothing(device: torch.device) -> None:
    logits, nothing = np.zeros((0, 5), np.float32), np.zeros(0, np.int32)
    draw = Draw(np.zeros(0), top_k=2, top_p=0.5)
    want = Want(only=nothing, banned=Ragged.of([]), top=2, margin=True, given=nothing, draw=draw, hidden=True)
    assert check_want(want, 3, 5) == 0
    hidden = np.zeros((0, 3), np.float32)
    found = read(logits, want, hidden)
    assert {name: getattr(found, name).shape for name in ("best", "top", "hidden")} == {
        "best": (0,),
        "top": (0, 2),
        "hidden": (0, 3),
    }
    on_device = torch.tensor(logits, device=device), torch.tensor(hidden, device=device)
    agree(read_tensors(on_device[0], want, on_device[1]), found)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.25},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.7},
    {"top_p": 0.01},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("tensors", [False, True])
def test_a_word_is_drawn_with_its_probability(
    settings: dict[str, Any], tensors: bool, device: torch.device
) -> None:
    """Of equally spaced numbers each word gets its share, and words come in the order of ids."""
    rng = random.Random(3)
    size, ban = 10_000, [2, 5]
    row = [rng.gauss(0, 2) for _ in range(9)] + [NEG_INF, 1.0, 1.0]
    logits = np.tile(np.array(row, np.float32), (size, 1))
    draw = Draw((np.arange(size) + 0.5) / size, **settings)
    want = Want(banned=Ragged.of([ban] * size), draw=draw)
    if tensors:
        on_device = torch.tensor(logits, device=device)
        drawn = read_tensors(on_device, want, on_device).drawn
    else:
        drawn = read(logits, want).drawn
    assert drawn is not None
    assert (np.diff(drawn) >= 0).all()
    counts = np.bincount(drawn, minlength=len(row))
    wanted = probs(logits[0].tolist(), ban, draw)
    assert [word for word, p in enumerate(wanted) if p == 0 and counts[word]] == []
    assert np.abs(counts - np.array(wanted) * size).max() <= 1


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        ([0, 0, 0, 0], {"top_p": 0.5}, [0, 1]),  # 1/4 each: two reach 1/2
        ([0, 0, 0, 0], {"top_p": 0.51}, [0, 1, 2]),
        ([0, 1, 0, 1, 0], {"top_k": 3}, [0, 1, 3]),
        ([0, 1, 0, 1, 0], {"top_k": 4, "top_p": 0.01}, [1]),
        ([0, 0, 0, 0, 0, 0], {"top_k": 4, "top_p": 0.5}, [0, 1]),  # renormalised after top-k
        ([NEG_INF, 0, NEG_INF, 0, NEG_INF], {}, [1, 3]),
        ([-1e30, 1, 2, -1e30], {"temperature": 1e-3}, [2]),  # exp(-1000) is 0 in fp64
        ([5, 5, 0], {"temperature": 1e-300}, [0, 1]),
    ],
)
def test_what_filters_leave(
    row: list[float], settings: dict[str, Any], words: list[int], tensors: bool, device: torch.device
) -> None:
    """Computed by hand: the first and the last word that can be drawn."""
    draw = Draw(np.array([0.0, BELOW_1]), **settings)
    logits = np.array([row, row], np.float32)
    if tensors:
        on_device = torch.tensor(logits, device=device)
        drawn = read_tensors(on_device, Want(draw=draw), on_device).drawn
    else:
        drawn = read(logits, Want(draw=draw)).drawn
    assert drawn is not None
    assert drawn.tolist() == [words[0], words[-1]]


@pytest.mark.parametrize("tensors", [False, True])
def test_impossible_words(tensors: bool, device: torch.device) -> None:
    """A row of minus infinity alone has no probabilities, and none of its words is preferred."""
    row = [NEG_INF] * 3
    logits = np.array([row, row], np.float32)
    want = Want(banned=Ragged.of([[], [0]]), top=3, margin=True, given=np.array([1, -1], np.int32))
    on_device = torch.tensor(logits, device=device)
    found = read_tensors(on_device, want, on_device) if tensors else read(logits, want)
    assert found.best.tolist() == [0, 1]
    assert found.log_probs.tolist() == [NEG_INF, NEG_INF]
    assert found.top is not None
    assert found.top.tolist() == [[0, 1, 2], [1, 2, -1]]
    assert found.margins is not None
    assert found.margins.tolist() == [0, 0]
    assert found.given_log_probs is not None
    assert found.given_log_probs.tolist() == [NEG_INF, 0]


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("row", "banned", "message"),
    [
        ([1, math.nan, 0], [], "the logits of scored token 1 hold NaN or infinity"),
        ([1, math.inf, 0], [1], "the logits of scored token 1 hold NaN or infinity"),
        ([1, NEG_INF, 0], [0, 2], "no word can be drawn after scored token 1: all have probability 0"),
    ],
)
def test_logits_that_cannot_be_read_are_refused(
    row: list[float], banned: list[int], message: str, tensors: bool, device: torch.device
) -> None:
    logits = np.array([[1, 2, 3], row], np.float32)
    want = Want(banned=Ragged.of([[], banned]), draw=Draw(np.zeros(2)))
    on_device = torch.tensor(logits, device=device)
    with pytest.raises(PassError) as caught:
        read_tensors(on_device, want, on_device) if tensors else read(logits, want)
    assert caught.value.message == message


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("want", "message"),
    [
        (Want(only=ints(0, 3)), "`only` holds 3, not between 0 and 2"),
        (Want(only=ints(1, 1)), "`only` is not ascending"),
        (Want(only=np.array([0, 1])), "`only` is int64 [2], not int32 [2]"),
        (Want(banned=Ragged.of([[1], []])), "`banned.offsets` is int32 [3], not int32 [4]"),
        (Want(banned=Ragged.of([[1], [], [5]])), "`banned.values` holds 5, not between 0 and 4"),
        (Want(banned=Ragged(ints(0, 2, 1, 1), ints(1))), "`banned.offsets` are not ascending from 0"),
        (Want(banned=Ragged(ints(0, 1, 1, 1), ints(1, 2))), "`banned.values` is int32 [2], not int32 [1]"),
        (
            Want(banned=Ragged.of([[], [0, 1, 2, 3, 3], [0, 4, 3, 1, 2, 2]])),
            "all 5 words are forbidden after scored token 2",
        ),
        (Want(top=-1), "`top` is -1, below 0"),
        (Want(given=ints(1, 2)), "`given` is int32 [2], not int32 [3]"),
        (Want(given=ints(1, 2, -2)), "`given` holds -2, not between -1 and 4"),
        (Want(only=ints(2), given=ints(5)), "`given` holds 5, not between -1 and 4"),
        (Want(draw=Draw(np.zeros(2))), "`uniforms` is float64 [2], not float64 [3]"),
        (Want(draw=Draw(np.zeros(3, np.float32))), "`uniforms` is float32 [3], not float64 [3]"),  # type: ignore[arg-type]
        (Want(draw=Draw(np.ones(3))), "`uniforms` holds 1.0, not in [0, 1)"),
        (Want(draw=Draw(np.full(3, math.nan))), "`uniforms` holds nan, not in [0, 1)"),
        (Want(draw=Draw(np.zeros(3), temperature=0.0)), "`temperature` is 0.0, not a number above 0"),
        (Want(draw=Draw(np.zeros(3), temperature=math.nan)), "`temperature` is nan, not a number above 0"),
        (Want(draw=Draw(np.zeros(3), top_k=-1)), "`top_k` is -1, below 0"),
        (Want(draw=Draw(np.zeros(3), top_p=0.0)), "`top_p` is 0.0, not in (0, 1]"),
        (Want(draw=Draw(np.zeros(3), top_p=1.1)), "`top_p` is 1.1, not in (0, 1]"),
    ],
)
def test_a_want_that_breaks_a_rule_is_refused(want: Want, message: str) -> None:
    with pytest.raises(PassError) as caught:
        check_want(want, 3, 5)
    assert caught.value.message == message


def test_rows_are_read_until_the_pass_ends() -> None:
    contexts, memories = Contexts(Limits(source=1, target=1, words=2)), Handles[None]("memory")
    memories.add([None])
    handles = contexts.open(2)
    zeros = np.zeros(2, np.int32)
    waiting = contexts.begin(Pass(zeros, zeros, zeros, handles, zeros - 1), memories)
    logits = np.array([[1, 2], [4, 3]], np.float32)
    scores = PassScores(read(logits, Want()), contexts, waiting, lambda index: logits[index])
    assert scores.rows([1]).tolist() == [[4, 3]]
    assert scores.best.tolist() == [1, 0]
    for wrong in (2, -1):
        with pytest.raises(PassError) as caught:
            scores.rows([0, wrong])
        assert caught.value.message == f"row {wrong} is read, not between 0 and 1"
    contexts.commit(waiting, [])
    with pytest.raises(PassError) as caught:
        scores.rows([0])
    assert caught.value.message == "the pass has ended"
