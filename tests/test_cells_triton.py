"""The kernel that attends to lists of cells, in Triton's interpreter, which needs no GPU.

Where Triton is missing, a plain form of it in torch takes its place in what surrounds it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.operations import LONGEST, WORDS, Play, small_model
from support.scorers import TransformerDevice, TransformerReference
from support.transformers_small import vocabulary
from torch import Tensor

from nartk.models import cells_triton
from nartk.models.cells_triton import ListedCells, attend_cells, proved
from nartk.protocols.passes import ROOT, Pass

Attend = Callable[..., Tensor]
CELLS = 300
SHAPES = [  # tokens, heads, features of each, cells of the longest list
    (1, 1, 16, 1),
    (2, 3, 24, 17),
    (65, 1, 16, 33),
    (5, 2, 128, 40),
    (7, 2, 50, 129),
]
WRONG = {
    "mask off by one": ("seen = which < count", "seen = which < count + 1"),
    "one cell too few": ("range(0, count, CELLS)", "range(0, count - 1, CELLS)"),
    "own cell left out": ("which == listed,", "which == listed + 1,"),
    "sums not scaled again": ("total = total * kept", "total = total"),
    "blocks that depend on N": ("CELLS=cells", "CELLS=16 if count < 4 else 64"),
    "a list too far": ("lists + begin + which", "lists + begin + 1 + which"),
}


def plain(
    queries: Tensor,
    kv: Tensor,
    lists: Tensor,
    begins: Tensor,
    counts: Tensor,
    own: Tensor | None = None,
    *,
    heads: int,
    scale: float,
) -> Tensor:
    """What `attend_cells` promises, token by token, in float64."""
    found = []
    for i, query in enumerate(queries.double()):
        cells = lists[begins[i] : begins[i] + counts[i]].tolist() + ([] if own is None else [int(own[i])])
        keys, values = kv[cells].double().chunk(2, 1)
        q, k, v = (each.unflatten(-1, (heads, -1)) for each in (query, keys, values))
        weights = (torch.einsum("hd,thd->ht", q, k) * scale).softmax(1)
        found.append(torch.einsum("ht,thd->hd", weights, v).flatten())
    return torch.stack(found).to(queries.dtype)


def work(seed: int, tokens: int, heads: int, features: int, longest: int, own: bool) -> dict[str, Any]:
    """Arguments of a call; all cells that no token sees hold NaN."""
    draw = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (tokens,), generator=draw).int()

    counts, begins = numbers(0 if own else 1, longest - own), numbers(0, 40)
    counts[0] = longest - own
    lists = torch.randperm(CELLS, generator=draw)[: longest + 40].int()
    owned = torch.randperm(CELLS, generator=draw)[:tokens].int()
    seen = [lists[b : b + c] for b, c in zip(begins, counts, strict=True)] + [owned] * own
    kv = torch.full((CELLS, 2 * heads * features), float("nan"))
    used = torch.cat(seen).long()
    kv[used] = torch.randn(len(used), kv.shape[1], generator=draw)
    return {
        "queries": torch.randn(tokens, heads * features, generator=draw),
        "kv": kv,
        "lists": lists,
        "begins": begins,
        "counts": counts,
        "own": owned if own else None,
        "heads": heads,
        "scale": features**-0.5,
    }


def elsewhere(given: dict[str, Any]) -> dict[str, Any]:
    """The same, its cells at other places and the lists behind others."""
    order = torch.randperm(CELLS, generator=torch.Generator().manual_seed(7))
    place = torch.empty_like(order)
    place[order] = torch.arange(CELLS)
    moved = {"lists": torch.cat([torch.full((9,), 3), place[given["lists"].long()]]).int()}
    own = given["own"]
    return {
        **given,
        **moved,
        "kv": given["kv"][order],
        "begins": given["begins"] + 9,
        "own": None if own is None else place[own.long()].int(),
    }


def check(attend: Attend) -> None:
    """The kernel equals the plain form; a token's bits are its own."""
    for seed, shape in enumerate(SHAPES):
        for own in (False, True):
            given = work(seed, *shape, own)
            found = attend(**given)
            torch.testing.assert_close(found, plain(**given), rtol=0, atol=1e-6)
            assert torch.equal(found, attend(**elsewhere(given)))
            for i in range(min(len(found), 4)):
                columns = {
                    name: None if given[name] is None else given[name][i : i + 1]
                    for name in ("queries", "begins", "counts", "own")
                }
                assert torch.equal(found[i : i + 1], attend(**{**given, **columns}))


class Trees(Play):
    """Passes over trees of depth 8: chains of nine tokens, and what branches off."""

    def a_pass(self) -> Pass | None:
        some = super().a_pass()
        if some is None:
            return None
        rng, first = self.rng, int(some.contexts[0])
        columns = [
            (rng.randrange(WORDS), min(self.lengths[first] + i, LONGEST - 1), int(some.memory[0]), first)
            for i in range(12)
        ]
        parents = [ROOT, *range(8), *(rng.randrange(8) for _ in range(3))]
        rest = [columns[i] + (parents[i],) for i in range(12)]
        return Pass(*torch.tensor(rest, dtype=torch.int32).T.contiguous().numpy())


def play(seeds: int) -> None:
    """Passes whose attention goes through lists give what the reference gives."""
    for seed in range(seeds):
        model = small_model(seed, decoder_norm_first=bool(seed % 2))
        scorers = [kind(model, vocabulary(WORDS)) for kind in (TransformerReference, TransformerDevice)]
        scorers[1]._kernel = ListedCells
        game = Trees(scorers, seed, 1e-5)
        for _ in range(25):
            game.step()


def in_interpreter(code: str) -> None:
    """Runs code of this module where Triton is imported for its interpreter."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = [sys.executable, "-c", f"from test_cells_triton import *; {code}"]
    subprocess.run(run, cwd=Path(__file__).parent, env=environment, check=True)


def test_the_kernel_equals_its_plain_form_in_tritons_interpreter() -> None:
    in_interpreter("check(attend_cells)")


def test_passes_equal_the_references_in_tritons_interpreter() -> None:
    in_interpreter("play(3)")


def wrong_kernels(folder: str) -> None:
    """Each kernel that is wrong in one thing must fail."""
    text = Path(cells_triton.__file__).read_text(encoding="utf-8")
    for i, (name, (old, new)) in enumerate(WRONG.items()):
        assert text.count(old) == 1, name
        path = Path(folder) / f"wrong{i}.py"
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(AssertionError):
            check(module(path).attend_cells)


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found


def test_wrong_kernels_fail(tmp_path: Path) -> None:
    in_interpreter(f"wrong_kernels({str(tmp_path)!r})")


def integer_products() -> None:
    """Sums of small integers are exact, in whatever order: so is the product of one tile shape."""
    tiled = module(Path(__file__).parents[1] / "recipes" / "speed" / "batch_invariance.py").tiled_linear
    for rows, width, words in ((1, 16, 5), (17, 70, 65), (40, 130, 64)):
        draw = torch.Generator().manual_seed(rows)
        a, b = (torch.randint(-8, 9, (n, width), generator=draw).float() for n in (rows, words))
        assert torch.equal(tiled(a, b), a @ b.T)


def test_products_of_integers_are_exact_in_tritons_interpreter() -> None:
    in_interpreter("integer_products()")


def test_passes_through_lists_equal_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_triton, "attend_cells", plain)
    play(20)


@pytest.mark.parametrize("failure", [None, "raises", "differs"])
def test_a_kernel_is_proved(failure: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(*given: Any, **named: Any) -> Tensor:
        if failure == "raises":
            raise RuntimeError("no ptxas\nand more")
        return plain(*given, **named) + (0.01 if failure else 0)

    monkeypatch.setattr(cells_triton, "attend_cells", attend)
    attention = small_model(0).decoder.layers[0].self_attention
    given = attention, torch.float32, torch.device("cpu")
    with torch.inference_mode():
        if failure is None:
            assert proved(*given)
            return
        with pytest.warns(UserWarning, match="the Triton kernels of attention do not run here, torch does: "):
            assert not proved(*given)


@pytest.mark.cuda
def test_the_kernel_is_used_where_there_is_cuda(device: torch.device) -> None:
    pytest.importorskip("triton")
    check(lambda **given: attend_cells(**on(device, given)).cpu())
    assert TransformerDevice(small_model(0), vocabulary(WORDS), device=device)._kernel is ListedCells


def on(device: torch.device, given: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = f"""
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nartk.models import cells_triton

kernel = cells_triton._cells_kernel
pointers = dict.fromkeys(("lists", "begins", "counts", "own"), "*i32")
for element in ("fp32", "bf16", "fp16"):
    for own, features in ((True, 64), (False, 128)):
        fixed = {{"OWN": own, "CELLS": 64, "FEATURES": features}}
        kinds = {{**pointers, "width": "i32", "size": "i32", "scale": "fp32"}}
        kinds |= dict.fromkeys(fixed, "constexpr")
        names = kernel.arg_names
        source = ASTSource(
            fn=kernel,
            signature={{name: kinds.get(name, f"*{{element}}") for name in names}},
            constexprs={{(names.index(name),): value for name, value in fixed.items()}},
        )
        made = triton.compile(source, target=GPUTarget("cuda", {capability}, 32), options={{"num_warps": 4}})
        assert made.asm["cubin"]
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
