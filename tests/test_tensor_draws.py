"""Filters and random numbers over tensors, against plain counts."""

from __future__ import annotations

import random

import torch
from support.distributions import CHANCE, chi_square_p, filtered

from nartk.decoders.tensor_draws import keep_likeliest, uniform


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
