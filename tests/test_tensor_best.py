"""The best of many over tensors, and n-grams that recur, against plain counts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from nartk.decoders.tensor_best import best_of, repeats


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
