"""The loss that counts edits more: which tokens are edits, and what they weigh."""

from __future__ import annotations

import math

import torch

from nartk.models.losses import edited, label_smoothed_cross_entropy

PAD, EOS = 1, 2


def edits(source: list[int], target: list[int], *, left: int = 0, right: int = 0) -> list[bool]:
    src = torch.tensor([[PAD] * left + [*source, EOS] + [PAD] * right])
    tgt = torch.tensor([[*target, EOS]])
    found = edited(src, torch.tensor([[EOS, *target]]), tgt, pad=PAD)
    return found[0].tolist()


def test_a_copy_has_no_edit_whatever_the_padding() -> None:
    for left, right in ((0, 0), (2, 0), (0, 3)):
        assert edits([5, 6, 7], [5, 6, 7], left=left, right=right) == [False] * 4


def test_substitution_insertion_and_deletion_are_edits() -> None:
    assert edits([5, 6, 7], [5, 9, 7]) == [False, True, True, False]
    assert edits([5, 7], [5, 6, 7]) == [False, True, True, False]
    assert edits([5, 6, 7], [5, 7]) == [False, True, False]
    assert edits([5, 6], [6]) == [True, False]


def test_the_loss_is_the_weighted_sum_of_the_tokens_losses() -> None:
    logits = torch.randn(2, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([[4, 5, 6], [7, 8, PAD]])
    weights = torch.tensor([[1.0, 3.0, 1.0], [3.0, 1.0, 5.0]], dtype=torch.float64)
    loss, nll, count = label_smoothed_cross_entropy(logits, target, epsilon=0.1, pad=PAD, weights=weights)
    wanted = plain = 0.0
    for b, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        row = logits[b, t].tolist()
        log_z = math.log(sum(math.exp(x) for x in row))
        right = log_z - row[target[b, t]]
        others = sum(log_z - x for v, x in enumerate(row) if v != target[b, t])
        wanted += float(weights[b, t]) * (0.9 * right + 0.1 / 10 * others)
        plain += right
    assert int(count) == 5
    assert math.isclose(float(loss), wanted, rel_tol=1e-12)
    assert math.isclose(float(nll), plain, rel_tol=1e-12)
