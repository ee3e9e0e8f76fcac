"""Minimum word error rate training: against enumeration of all samples, textbook distances, differences."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from nartk.errors import UsageError
from nartk.models.losses import Training
from nartk.models.mwer import edit_distances, expected_errors, mwer_loss

PAD, EOS = 1, 2
ENOUGH = 400  # samples of outputs of up to three tokens: each of eight is drawn, but with probability 1e-22


def textbook(one: Sequence[int], other: Sequence[int]) -> int:
    """The Levenshtein distance, as it is defined."""
    if not one or not other:
        return len(one) + len(other)
    return min(
        textbook(one[1:], other) + 1,
        textbook(one, other[1:]) + 1,
        textbook(one[1:], other[1:]) + (one[0] != other[0]),
    )


def words_of(path: Sequence[int]) -> list[int]:
    return list(itertools.takewhile(lambda word: word != EOS, path))


def enumerated(logits: np.ndarray, target: Sequence[int]) -> float:
    """The loss of a row [N,V] over all outputs of best and second best words, in plain Python."""
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    two = np.argsort(-log_probs, axis=1)[:, :2].tolist()
    scores, errors = [], []
    for path in itertools.product(*two):
        scores.append(math.exp(sum(log_probs[i, word] for i, word in enumerate(path))))
        errors.append(textbook(words_of(path), target[:-1]))
    mean = sum(errors) / len(errors)
    return sum(score / sum(scores) * (each - mean) for score, each in zip(scores, errors, strict=True))


def random_rows(seed: int, sizes: Sequence[int], words: int = 6) -> tuple[Tensor, Tensor]:
    """Logits [B,N,V] fp64 of rows of these sizes, and targets [B,N] with eos."""
    rng = np.random.default_rng(seed)
    longest = max(sizes)
    target = np.full((len(sizes), longest), PAD)
    for row, size in zip(target, sizes, strict=True):
        row[:size] = [*rng.integers(3, words, size - 1), EOS]
    return torch.tensor(rng.normal(0, 1.5, (len(sizes), longest, words))), torch.tensor(target)


def loss_of(logits: Tensor, target: Tensor, *, share: float = 0.5, samples: int = ENOUGH) -> Tensor:
    torch.manual_seed(0)
    return mwer_loss(logits, target, pad=PAD, eos=EOS, samples=samples, share=share)


@pytest.mark.parametrize("seed", range(10))
def test_distances_are_the_textbooks(seed: int, device: torch.device) -> None:
    rng = random.Random(seed)
    outputs, targets = ([[rng.randint(3, 6) for _ in range(6)] for _ in range(12)] for _ in range(2))
    lengths, counts = ([rng.randint(0, 6) for _ in range(12)] for _ in range(2))
    arguments = (torch.tensor(each, device=device) for each in (outputs, lengths, targets, counts))
    wanted = [
        textbook(one[:size], other[:count])
        for one, size, other, count in zip(outputs, lengths, targets, counts, strict=True)
    ]
    assert edit_distances(*arguments).tolist() == wanted
    assert len(set(wanted)) > 3


@pytest.mark.parametrize("seed", range(8))
def test_with_all_samples_it_is_the_sum_over_all_outputs(seed: int, device: torch.device) -> None:
    sizes = [3, 1, 2, 3]
    logits, target = random_rows(seed, sizes)
    found = loss_of(logits.to(device), target.to(device)).item()
    wanted = sum(
        enumerated(row[:size].numpy(), own[:size].tolist())
        for row, own, size in zip(logits, target, sizes, strict=True)
    )
    assert found == pytest.approx(wanted, rel=1e-9)


def test_samples_that_are_drawn_twice_count_once() -> None:
    """All positions are masked in all samples: the greedy output and one other."""
    logits, target = random_rows(3, [4])
    log_probs = logits[0].log_softmax(1)
    top = log_probs.topk(2)
    scores, words = top.values.sum(0).tolist(), top.indices.T.tolist()
    errors = [textbook(words_of(path), target[0, :-1].tolist()) for path in words]
    greedy = 1 / (1 + math.exp(scores[1] - scores[0]))
    wanted = greedy * errors[0] + (1 - greedy) * errors[1] - sum(errors) / 2
    assert errors[0] != errors[1]
    for samples in (2, 3, 50):
        assert loss_of(logits, target, share=1.0, samples=samples).item() == pytest.approx(wanted)


def test_how_many_are_masked_is_a_share() -> None:
    """With few, samples are the greedy output: there is nothing to tell apart."""
    logits, target = random_rows(5, [3])
    assert loss_of(logits, target, share=1e-9).item() == 0.0
    assert abs(loss_of(logits, target).item()) > 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_difference_quotients(seed: int) -> None:
    logits, target = random_rows(seed, [3, 2])
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_of(x, target, samples=6), (logits,))
    loss_of(logits, target).backward()
    assert logits.grad is not None
    assert not logits.grad[1, 2].any()  # padding
    step = logits.detach() - 0.1 * logits.grad
    assert loss_of(step, target) < loss_of(logits, target)


def test_what_is_left_out_counts_for_nothing() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, 5.0]], dtype=torch.float64)
    errors, left_out = torch.tensor([[1, 4, 100]]), torch.tensor([[False, False, True]])
    share = 1 / (1 + math.exp(-1))
    wanted = share * (1 - 2.5) + (1 - share) * (4 - 2.5)
    assert expected_errors(log_probs, errors, left_out).item() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mwer_samples", 1, "`mwer_samples` is 1, below 2"),
        ("mwer_share", 0.0, "`mwer_share` is 0.0, not in (0, 1]"),
        ("mwer_weight", -0.5, "`mwer_weight` is -0.5, not in [0, 1]"),
        ("sampling_ratio", 1.5, "`sampling_ratio` is 1.5, not in [0, 1]"),
        ("quantity_weight", 2.0, "`quantity_weight` is 2.0, not in [0, 1]"),
    ],
)
def test_options_out_of_bounds_are_refused(name: str, value: float, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Training(**{name: value})
    assert message in str(caught.value)
