"""Serving linear layers, and the probe that finds the shapes exact mode keeps to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.models import linear
from nartk.models.linear import Floors, ServingLinear, ServingNorm, measure_floors, serve

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def plain(features: int, size: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(features + size)
    return nn.Linear(features, size, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("features", "size"), [(16, 48), (33, 7), (64, 1000)])
def test_it_computes_what_the_plain_layer_does(
    features: int, size: int, bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    layer = plain(features, size, bias=bias).to(device)
    served = ServingLinear(layer, dtype)
    x = torch.randn(3, 5, features, device=device).to(dtype)
    y = served(x)
    assert y.dtype == dtype
    assert y.shape == (3, 5, size)
    torch.testing.assert_close(
        y.double(), layer.double()(x.double()), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def test_the_layer_that_is_served_stays_as_it_is() -> None:
    layer = plain(16, 8)
    before = layer.weight.clone()
    ServingLinear(layer, torch.bfloat16)
    assert torch.equal(layer.weight, before)
    assert layer.weight.dtype == torch.float32


def test_serve_replaces_every_layer_inside(device: torch.device) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(16)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    network = nn.Sequential(nn.Linear(8, 16), nn.Sequential(norm, nn.ReLU(), nn.Linear(16, 4)))
    network = network.requires_grad_(False).to(device)
    x = torch.randn(6, 8, device=device)
    wanted = network(x)
    served = serve(network, torch.float32)
    leaves = [type(module) for module in served.modules() if not list(module.children())]
    assert leaves == [ServingLinear, ServingNorm, nn.ReLU, ServingLinear]
    torch.testing.assert_close(served(x), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chunked_layer_ignores_how_many_rows_there_are(dtype: torch.dtype, device: torch.device) -> None:
    layer = plain(24, 40).to(device)
    served = ServingLinear(layer, dtype)
    served.chunk = 64
    x = torch.randn(200, 24, device=device).to(dtype)
    whole = served(x)
    torch.testing.assert_close(
        whole.double(), layer.double()(x.double()), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    for count in (1, 3, 64, 65, 199):
        assert torch.equal(served(x[:count]), whole[:count])


def a_served_model() -> list[ServingLinear]:
    return [ServingLinear(plain(32, 96), torch.float32), ServingLinear(plain(96, 32), torch.float32)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_floors_that_were_found_hold_for_other_data(dtype: torch.dtype, device: torch.device) -> None:
    layers = [ServingLinear(plain(32, 96).to(device), dtype), ServingLinear(plain(96, 32).to(device), dtype)]
    floors = measure_floors(layers, [(2, 16)])
    assert floors.rows in (4, 8, 16, 32, 64)
    assert floors.queries in (4, 8, 16, 32)
    if floors.chunk == 0:
        generator = torch.Generator().manual_seed(7)
        for layer in layers:
            x = torch.randn(700, layer.in_features, generator=generator).to(device, dtype)
            whole = layer(x)
            for count in range(floors.rows, 300, 3 * floors.rows):
                start = 700 - count - 1
                assert torch.equal(layer(x[:count].clone()), whole[:count])
                assert torch.equal(layer(x[start : start + count].clone()), whole[start : start + count])


class OtherForFew(ServingLinear):
    """Has other bits below `few` rows, as libraries do that choose their code by shape."""

    few = 0

    def _product(self, x: Tensor) -> Tensor:
        y = super()._product(x)
        return y * (1 + 2.0**-20) if x.shape[0] < self.few else y


class OtherByPlace(ServingLinear):
    """Every third row has other bits."""

    def _product(self, x: Tensor) -> Tensor:
        y = super()._product(x)
        y[::3] *= 1 + 2.0**-20
        return y


class OtherForMany(ServingLinear):
    """Has other bits from 300 rows on."""

    def _product(self, x: Tensor) -> Tensor:
        y = super()._product(x)
        return y * (1 + 2.0**-20) if x.shape[0] >= 300 else y


@pytest.mark.parametrize(
    ("few", "rows", "chunk"), [(0, 4, 0), (5, 8, 0), (9, 16, 0), (32, 32, 0), (33, 64, 64), (500, 64, 64)]
)
def test_the_probe_finds_how_many_rows_are_needed(few: int, rows: int, chunk: int) -> None:
    """A library of the test's own: the floor is the first of 4, 8, 16, 32 that is not below `few`."""
    layer = OtherForFew(plain(32, 96), torch.float32)
    if measure_floors([layer], [(2, 16)]).rows != 4:
        pytest.skip("this device has a floor of its own")
    layer.few = few
    found = measure_floors([layer, ServingLinear(plain(16, 16), torch.float32)], [(2, 16)])
    assert (found.rows, found.chunk) == (rows, chunk)


@pytest.mark.parametrize("kind", [OtherByPlace, OtherForMany])
def test_the_probe_notices_places_and_many_rows(kind: type[ServingLinear]) -> None:
    found = measure_floors([kind(plain(32, 96), torch.float32)], [(2, 16)])
    assert (found.rows, found.chunk) == (64, 64)


def test_the_probe_finds_how_many_queries_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = F.scaled_dot_product_attention

    def other_for_few(q: Tensor, *rest: Any, **options: Any) -> Tensor:
        y = attention(q, *rest, **options)
        return y * (1 + 2.0**-20) if q.shape[2] < 10 else y

    monkeypatch.setattr(linear.F, "scaled_dot_product_attention", other_for_few)
    assert measure_floors(a_served_model(), [(2, 16)]).queries == 16


def test_the_probe_says_where_attention_has_no_floor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attention = F.scaled_dot_product_attention

    def other_by_place(q: Tensor, *rest: Any, **options: Any) -> Tensor:
        y = attention(q, *rest, **options).clone()
        y[:, :, ::2] *= 1 + 2.0**-20
        return y

    monkeypatch.setattr(linear.F, "scaled_dot_product_attention", other_by_place)
    with caplog.at_level(logging.WARNING, "nartk"):
        assert measure_floors(a_served_model(), [(2, 16)]).queries == 32
    assert caplog.messages == ["no number of queries gives attention the same bits in torch.float32 on cpu"]


def test_the_probe_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every load of a model waits for it: multiplications at most, where no floor but the last holds."""
    work = {"products": 0, "attentions": 0}
    product, attention = ServingLinear._product, F.scaled_dot_product_attention

    def counted_product(self: ServingLinear, x: Tensor) -> Tensor:
        work["products"] += x.numel() * self.out_features
        return product(self, x)

    def counted_attention(q: Tensor, k: Tensor, *rest: Any, **options: Any) -> Tensor:
        work["attentions"] += 2 * q.numel() * k.shape[2]
        return attention(q, k, *rest, **options)

    def last_of_all(stands: Callable[[int], bool]) -> int:
        return [n for n in (4, 8, 16, 32) if stands(n)][-1]

    monkeypatch.setattr(torch, "equal", lambda a, b: True)
    monkeypatch.setattr(linear, "_smallest", last_of_all)
    monkeypatch.setattr(ServingLinear, "_product", counted_product)
    monkeypatch.setattr(linear.F, "scaled_dot_product_attention", counted_attention)
    measure_floors(
        [ServingLinear(plain(256, 1024), torch.float32), ServingLinear(plain(256, 5000), torch.float32)],
        [(4, 64)],
    )
    assert work["products"] < 5e9  # 2.4e9 when it was written
    assert work["attentions"] < 2.5e9  # 1.2e9 when it was written


def test_floors_in_the_signature() -> None:
    assert str(Floors(4, 16)) == "4.16"
    assert str(Floors(64, 32, 64)) == "64.32.64"
