"""The quick forms of attention and dropout compute what torch's own compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nartk.models.training import Dropout, attention


@pytest.mark.parametrize(
    ("causal", "masked", "scale"),
    [(False, "", 0.25), (False, "keys", 1.0), (True, "", 1.0), (False, "biases", 0.25)],
)
def test_bf16_attention_is_torchs(causal: bool, masked: str, scale: float, device: torch.device) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 7, 16, device=device).bfloat16() for _ in range(3))
    mask = None
    if masked == "biases":
        mask = torch.randn(3, 2, 7, 7, device=device).bfloat16()
    if masked == "keys":
        mask = torch.arange(7, device=device) < torch.tensor([7, 4, 1], device=device)[:, None]
        mask = mask[:, None, None]  # [B,S] -> [B,1,1,S]
    gradient = torch.randn(3, 2, 7, 16, device=device)
    results = []
    for inputs, attend in (
        ([x.clone().requires_grad_() for x in (q, k, v)], attention),
        ([x.double().requires_grad_() for x in (q, k, v)], None),
    ):
        if attend is not None:
            y = attend(*inputs, mask, dropout=0.0, causal=causal, scale=scale)
            assert y.dtype == torch.bfloat16
        else:
            added = mask.double() if masked == "biases" else mask
            y = F.scaled_dot_product_attention(*inputs, attn_mask=added, is_causal=causal, scale=scale)
        y.backward(gradient.to(y.dtype))
        results.append([y, *(x.grad for x in inputs)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.002, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    share = min(max(round(p * 256), 1), 255) / 256
    x = torch.ones(333, 1001, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    y.sum().backward()
    dropped = (y == 0).double()
    # Binomial: within five standard deviations, over all and along each axis.
    spread = (share * (1 - share)) ** 0.5
    assert abs(dropped.mean().item() - share) < 5 * spread / x.numel() ** 0.5
    assert (dropped.mean(0) - share).abs().max() < 6 * spread / 333**0.5
    assert (dropped.mean(1) - share).abs().max() < 6 * spread / 1001**0.5
    kept = y.detach()[y.detach() != 0].double().unique()
    assert kept.tolist() == pytest.approx([1 / (1 - share)], rel=2**-8)
    assert torch.equal(x.grad, y.detach())


def test_dropout_is_nothing_in_evaluation_or_at_zero() -> None:
    x = torch.randn(5, 3)
    assert Dropout(0.3).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_dropout_draws_anew_from_the_seed() -> None:
    x, layer = torch.ones(50, 50), Dropout(0.5)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
