"""Continuous integrate-and-fire: against FunASR's numbers and a plain loop; it never loses a token.

tests/oracles/cif.npz holds what FunASR's `cif` and `cif_v1` give. The loop is the paper's text, in
tests/support/fires.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fires import by_hand
from torch import Tensor

from nartk.models.cif import cif, count_fires, fire_shares, quantity_loss

ORACLE = Path(__file__).parent / "oracles" / "cif.npz"
CASES = ("train_scaled", "infer_unscaled", "exact_quarters", "near_one")


def random_case(rng: np.random.Generator, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden [B,T,3], weights [B,T] of sigmoids of any size, padded, and target lengths [B]."""
    longest = int(rng.integers(1, 80))
    lengths = rng.integers(1, longest + 1, rows)
    logits = rng.normal(rng.choice([-6, -2, 0, 3]), rng.choice([0.1, 1, 4]), (rows, longest))
    alpha = (1 / (1 + np.exp(-logits))) * (np.arange(longest) < lengths[:, None])
    hidden = rng.normal(size=(rows, longest, 3))
    target = rng.integers(0, longest + 1, rows)
    return torch.tensor(hidden, dtype=dtype), torch.tensor(alpha, dtype=dtype), torch.tensor(target)


def in_one_type(alpha: Tensor, target: Tensor) -> Tensor:
    """How many tokens fire where scaling and sums are in the weights' own type: [B]."""
    scaled = alpha * (target.to(alpha.dtype) / alpha.sum(1))[:, None]
    held, fires = torch.zeros_like(scaled[:, 0]), torch.zeros_like(target)
    for weight in scaled.unbind(1):
        held = held + weight
        fires += held >= 1.0
        held = torch.where(held >= 1.0, held - 1.0, held)
    return fires


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_funasr_gives(name: str, device: torch.device) -> None:
    with np.load(ORACLE) as stored:
        hidden, alpha, wanted, also = (
            torch.from_numpy(stored[f"{name}.{part}"])
            for part in ("hidden", "alphas", "cif_embeds", "cif_v1_embeds")
        )
    found, lengths = cif(hidden.to(device), alpha.to(device))
    # FunASR's rows are as long as the heaviest rounds to; behind the last whole token there are zeros.
    assert 0 <= wanted.shape[1] - found.shape[1] <= 1
    for row, length in enumerate(lengths.tolist()):
        for theirs in (wanted, also):
            torch.testing.assert_close(found[row, :length].cpu(), theirs[row, :length], atol=1e-5, rtol=0)
            assert not theirs[row, length:].any()
        assert not found[row, length:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_fires_is_the_targets(dtype: torch.dtype, device: torch.device) -> None:
    """2,000 random rows; in the weights' own type many have another number."""
    rng, wrong, cases = np.random.default_rng(1), 0, 0
    rounded = 1e-5 if dtype == torch.float32 else 5e-3
    for _ in range(40):
        hidden, alpha, target = random_case(rng, 50, dtype)
        own, lengths = cif(torch.ones_like(hidden).to(device), alpha.to(device), target.to(device))
        assert own.dtype == dtype
        assert torch.equal(lengths.cpu(), target)
        fired = torch.arange(own.shape[1]) < target[:, None]
        assert own.shape[1] == target.max()
        # Every token has the whole threshold, none behind them anything.
        assert ((own.float().cpu() - 1.0 * fired[:, :, None]).abs() < rounded).all()
        wrong += int((in_one_type(alpha, target) != target).sum())
        cases += len(target)
    assert cases == 2000
    assert wrong > 200


@pytest.mark.parametrize("threshold", [1.0, 0.75, 1.5])
@pytest.mark.parametrize("scaling", [False, True])
def test_embeddings_are_those_of_a_plain_loop(scaling: bool, threshold: float, device: torch.device) -> None:
    rng = np.random.default_rng(int(10 * threshold) + scaling)
    for _ in range(12):
        hidden, alpha, target = random_case(rng, 4, torch.float64)
        given = target.to(device) if scaling else None
        found, lengths = cif(hidden.to(device), alpha.to(device), given, threshold)
        if scaling:
            alpha = alpha * (target * threshold / alpha.sum(1))[:, None]
        for row, length in enumerate(lengths.tolist()):
            fires = by_hand(hidden[row].numpy(), alpha[row].numpy(), threshold)
            if not scaling:
                assert length == len(fires) - 1
            wanted = np.array(fires)[:length]  # the last token of a target may miss 1e-16
            np.testing.assert_allclose(found[row, :length].cpu(), wanted, atol=1e-9)
            assert not found[row, length:].any()


def test_a_position_may_hold_several_tokens() -> None:
    hidden, alpha = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[0.5, 3.0, 0.25]])
    found, lengths = cif(hidden, alpha)
    assert lengths.tolist() == [3]
    assert found[0, :, 0].tolist() == [1.5, 2.0, 2.0]  # .5 of 1 and .5 of 2; all of 2; all of 2
    found, lengths = cif(hidden, alpha, torch.tensor([15]))
    assert lengths.tolist() == [15]
    assert found[0, :, 0].tolist() == [1.0, 1.0, *[2.0] * 12, 3.0]


@pytest.mark.parametrize(
    ("alpha", "tail", "count"),
    [
        ([0.25] * 8, 0.0, 2),  # lands on 2
        ([0.25] * 8, 0.45, 2),
        ([0.25] * 7, 0.0, 1),
        ([0.25] * 7, 0.25, 2),  # lands on 2 with the tail
        ([0.25] * 7, 0.2, 1),
        ([0.25] * 3, 0.0, 0),
        ([0.0] * 3, 0.45, 0),
        ([0.35] * 20, 0.0, 7),  # as fp32 numbers they sum to 6.9999999
        ([0.55, 0.5, 0.5], 0.45, 2),  # 1.55 and 0.45, which fp32 has as less
        ([0.9, 0.099], 0.0, 0),  # what is missing is no rounding
    ],
)
def test_the_tail_and_whole_numbers(alpha: list[float], tail: float, count: int) -> None:
    weights = torch.tensor([alpha])
    hidden = torch.arange(1.0, len(alpha) + 1)[None, :, None]
    found, lengths = cif(hidden, weights, None, 1.0, tail)
    assert lengths.tolist() == [count]
    assert found.shape == (1, count, 1)
    if tail and count:  # the tail adds nothing to what is left
        fires = by_hand(hidden[0].numpy(), np.array(alpha, np.float32))
        np.testing.assert_allclose(found[0], np.array(fires)[:count], atol=1e-6)


def test_a_sum_of_fp32_below_a_whole_number_is_what_rounding_left() -> None:
    """The case above is one: without an allowance a token would be missing."""
    assert np.full(20, 0.35, np.float32).astype(np.float64).sum() < 7.0


def test_a_row_is_what_it_is_alone(device: torch.device) -> None:
    rng = np.random.default_rng(3)
    for scaling in (False, True):
        hidden, alpha, target = (each.to(device) for each in random_case(rng, 9, torch.float32))
        found, lengths = cif(hidden, alpha, target if scaling else None, tail_threshold=0.45)
        for row, length in enumerate(lengths.tolist()):
            size = max(1, int((alpha[row] > 0).sum()))
            own, count = cif(
                hidden[row : row + 1, :size],
                alpha[row : row + 1, :size],
                target[row : row + 1] if scaling else None,
                tail_threshold=0.45,
            )
            assert count.tolist() == [length]
            torch.testing.assert_close(found[row, :length], own[0], atol=1e-6, rtol=0)


def test_without_weights_there_is_nothing() -> None:
    hidden, alpha = torch.ones(2, 3, 4, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    found, lengths = cif(hidden, alpha, torch.tensor([2, 0]))
    found.sum().backward()
    assert lengths.tolist() == [2, 0]
    assert not found.any()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()


def check_gradients(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, size = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    hidden = torch.tensor(rng.normal(size=(rows, size, 2)), requires_grad=True)
    alpha = torch.tensor(rng.uniform(0.05, 1.6, (rows, size)), requires_grad=True)
    target = torch.tensor(rng.integers(0, size + 2, rows))
    threshold = float(rng.choice([1.0, 0.7]))

    def free(hidden: Tensor, alpha: Tensor) -> Tensor:
        return cif(hidden, alpha, None, threshold)[0]

    def scaled(hidden: Tensor, alpha: Tensor) -> Tensor:
        return cif(hidden, alpha, target, threshold)[0]

    for function in (free, scaled):
        if function(hidden, alpha).numel():
            assert torch.autograd.gradcheck(function, (hidden, alpha))


@pytest.mark.parametrize("seed", range(6))
def test_gradients_are_difference_quotients(seed: int) -> None:
    check_gradients(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_gradients_are_difference_quotients_200_times(seed: int) -> None:
    check_gradients(1000 + seed)


def test_shares_of_a_position_sum_to_its_weight() -> None:
    rng = random.Random(4)
    alpha = torch.tensor([[rng.random() for _ in range(30)]], dtype=torch.float64)
    count = count_fires(alpha, 1.0)
    shares = fire_shares(alpha, count + 1)
    torch.testing.assert_close(shares.sum(1), alpha, atol=1e-12, rtol=0)
    assert (shares >= 0).all()


def test_the_quantity_loss_is_the_absolute_difference() -> None:
    alpha = torch.tensor([[0.5, 0.75, 0.0], [1.0, 1.0, 1.5]], requires_grad=True)
    loss = quantity_loss(alpha, torch.tensor([3, 2]))
    assert loss.item() == pytest.approx(1.75 + 1.5)
    loss.backward()
    assert alpha.grad is not None
    assert alpha.grad.tolist() == [[-1.0] * 3, [1.0] * 3]
    assert quantity_loss(alpha, torch.tensor([3, 2]), 0.5).item() == pytest.approx(0.5 + 5.0)
