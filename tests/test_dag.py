"""The DA-Transformer's dynamic programs against all paths, logarithms and the authors' program."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.oracles import ORACLES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nartk.errors import UsageError
from nartk.models import dag, dag_triton
from nartk.models.dag import (
    NO_VERTEX,
    dag_best_path,
    dag_log_likelihood,
    dag_posterior,
)
from nartk.models.match_scores import match_scores

INF = math.inf
arange = torch.arange
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def plain_log_likelihood(
    match: Tensor, links: Tensor, target_lengths: Tensor, graph_lengths: Tensor
) -> Tensor:
    """The recursion as the paper writes it, in logarithms, with the gradient by autograd."""
    forward = match[:, 0].masked_fill(arange(match.shape[2], device=match.device) > 0, -INF)
    forwards = [forward]
    for t in range(1, match.shape[1]):
        forward = torch.logsumexp(forward[:, :, None] + links, 1) + match[:, t]
        forwards.append(forward)
    rows = arange(match.shape[0], device=match.device)
    return torch.stack(forwards, 1)[rows, target_lengths - 1, graph_lengths - 1]


def random_batch(
    seed: int,
    rows: int,
    length: int,
    width: int,
    *,
    spread: float = 3.0,
    pruned: float = 0.0,
    whole: bool = False,
    feasible: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """Scores with NaN wherever nobody may look, and random lengths.

    Args:
        spread: Standard deviation of the scores.
        pruned: Share of words and links that are minus infinity.
        whole: Scores are small whole numbers, so that paths tie.
        feasible: No target is longer than its graph.
    """
    draw = torch.Generator().manual_seed(seed)
    match = torch.randn(rows, length, width, generator=draw, dtype=torch.float64) * spread
    links = torch.randn(rows, width, width, generator=draw, dtype=torch.float64) * spread
    if whole:
        match, links = match.round(), links.round()
    match[torch.rand(match.shape, generator=draw) < pruned] = -INF
    links[torch.rand(links.shape, generator=draw) < pruned] = -INF
    graph_lengths = torch.randint(1, width + 1, (rows,), generator=draw)
    target_lengths = torch.randint(1, length + 1, (rows,), generator=draw)
    if feasible:
        graph_lengths = torch.randint(2, width + 1, (rows,), generator=draw)
        target_lengths = (torch.rand(rows, generator=draw) * (graph_lengths.clamp(max=length) - 1)).long() + 2
    place = torch.arange(width)
    match[torch.arange(length) >= target_lengths[:, None]] = math.nan
    match.mT[place >= graph_lengths[:, None]] = math.nan
    links[place >= graph_lengths[:, None]] = math.nan
    links.mT[place >= graph_lengths[:, None]] = math.nan
    links[:, place[:, None] >= place] = math.nan
    return match.to(dtype), links.to(dtype), target_lengths, graph_lengths


def on(device: torch.device, batch: Batch) -> Batch:
    match, links, tokens, vertices = (x.to(device) for x in batch)
    return match, links, tokens, vertices


def enumerate_paths(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Likelihood, posterior, link counts and best path by all paths of each row, in NumPy."""
    match, links, tokens, vertices = (x.cpu().numpy() for x in batch)
    rows, length = match.shape[:2]
    total = np.full(rows, -np.inf)
    posterior, counts = np.zeros_like(match), np.zeros_like(links)
    best = np.full((rows, length), -1)
    for n, size in set(zip(tokens.tolist(), vertices.tolist(), strict=True)):
        ends = {0, size - 1}
        inner = itertools.combinations(range(1, size - 1), n - len(ends)) if n >= len(ends) else ()
        paths = [sorted({*ends, *steps}) for steps in inner]
        if not paths or len(ends) != min(n, 2):
            continue
        # Of ties the first stands: the lowest vertex at the last token where they differ.
        path = np.array(sorted(paths, key=lambda steps: steps[::-1]))  # [P,N]
        for row in np.flatnonzero((tokens == n) & (vertices == size)):
            score = match[row, np.arange(n), path].sum(1) + links[row][path[:, :-1], path[:, 1:]].sum(1)
            if score.max() == -np.inf:
                continue
            total[row] = np.logaddexp.reduce(score)
            share = np.exp(score - total[row])
            np.add.at(posterior[row], (np.arange(n), path), share[:, None])
            np.add.at(counts[row], (path[:, :-1], path[:, 1:]), share[:, None])
            best[row, :n] = path[score.argmax()]
    return total, posterior, counts, best


def solve(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Likelihood, its gradients by match and links, posterior and best path."""
    match, links = (x.clone().requires_grad_() for x in batch[:2])
    total = dag_log_likelihood(match, links, *batch[2:])
    total.sum().backward()
    assert match.grad is not None
    assert links.grad is not None
    return total.detach(), match.grad, links.grad, dag_posterior(*batch), dag_best_path(*batch)


def check_enumeration(seeds: range, device: torch.device) -> None:
    impossible = 0
    for seed in seeds:
        length, width = 1 + seed % 8, 1 + seed // 8 % 8
        batch = random_batch(seed, 25, length, width, pruned=(0.0, 0.0, 0.3)[seed % 3])
        total, by_match, by_links, posterior, best = solve(on(device, batch))
        wanted = enumerate_paths(batch)
        for found, expected in zip((total, posterior, by_links), wanted, strict=False):
            np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=0, atol=1e-10)
        assert torch.equal(by_match, posterior)
        assert np.array_equal(best.cpu().numpy(), wanted[3])
        # What no path uses has nothing, but for floors far below what float32 tells from 0.
        assert posterior.cpu().numpy()[wanted[1] == 0].max(initial=0.0) < 1e-100
        assert by_links.cpu().numpy()[wanted[2] == 0].max(initial=0.0) < 1e-100
        impossible += int(np.isinf(wanted[0]).sum())
    assert impossible > 0


def test_all_four_equal_enumeration_on_1600_graphs(device: torch.device) -> None:
    check_enumeration(range(64), device)


@pytest.mark.slow
def test_all_four_equal_enumeration_on_many_graphs(device: torch.device) -> None:
    check_enumeration(range(64, 2064), device)


def test_logarithms_equal_enumeration(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag, "_LOSS", 1e-320)  # no row is good enough for scaled probabilities
    rows = []
    spied = dag._logarithmic

    def spy(graph: dag._Graph, *, counts: bool) -> dag._Solution:
        rows.append(graph.match.shape[0])
        return spied(graph, counts=counts)

    monkeypatch.setattr(dag, "_logarithmic", spy)
    check_enumeration(range(64), device)
    assert sum(rows) > 800  # those whose lengths allow a path


def test_ties_go_to_the_lowest_last_vertex(device: torch.device) -> None:
    ties = 0
    for seed in range(40):
        batch = random_batch(seed, 25, 2 + seed % 5, 7, spread=0.7, whole=True, feasible=True)
        wanted = enumerate_paths(batch)[3]
        assert np.array_equal(dag_best_path(*on(device, batch)).cpu().numpy(), wanted)
        # The rule that takes the highest vertex instead differs somewhere: the graphs do tie.
        match, links, tokens, vertices = batch
        shaken = match + 1e-9 * torch.arange(7) * torch.arange(1.0, match.shape[1] + 1)[:, None]
        ties += int((enumerate_paths((shaken, links, tokens, vertices))[3] != wanted).any(1).sum())
    assert ties > 50


SPANS = {"narrow": 3.0, "300 nats": 50.0, "3000 nats": 500.0}


@pytest.mark.parametrize("spread", SPANS.values(), ids=SPANS.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_larger_graphs_equal_logarithms(spread: float, dtype: torch.dtype, device: torch.device) -> None:
    batch = on(device, random_batch(7, 6, 12, 40, spread=spread, feasible=True, pruned=0.1, dtype=dtype))
    total, by_match, by_links, posterior, _ = solve(batch)
    assert total.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert (by_match.dtype, by_links.dtype, posterior.dtype) == (dtype, dtype, dtype)
    # float64 logarithms and autograd of the same numbers, padding replaced since they would read it.
    match, links = (x.double().nan_to_num(nan=-1e9, neginf=-1e9).requires_grad_() for x in batch[:2])
    wanted = plain_log_likelihood(match, links, *batch[2:])
    possible = wanted > -1e8
    assert possible.any()
    assert torch.equal(total > -INF, possible)
    torch.testing.assert_close(
        total.double()[possible],
        wanted.detach()[possible],
        **close(torch.promote_types(dtype, torch.float32)),
    )
    wanted[possible].sum().backward()
    for found, expected in ((by_match, match.grad), (by_links, links.grad), (posterior, match.grad)):
        torch.testing.assert_close(found.double(), expected, **close(dtype))


def close(dtype: torch.dtype) -> dict[str, float]:
    return {
        torch.float64: {"rtol": 1e-11, "atol": 1e-11},
        torch.float32: {"rtol": 2e-6, "atol": 2e-6},
        torch.bfloat16: {"rtol": 2**-8, "atol": 2**-8},
    }[dtype]


def test_the_fall_back_is_needed_and_taken_by_the_row(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = random_batch(1, 8, 10, 30, feasible=True)
    wide = random_batch(1, 8, 10, 30, spread=500.0, feasible=True)
    mixed = on(device, tuple(torch.cat((x, y)) for x, y in zip(narrow, wide, strict=True)))
    lengths = [x.to(device) for x in mixed[2:]]
    wanted = dag._logarithmic(dag._clean(*mixed[:2], *lengths), counts=True)
    # Without it, wide rows come out wrong, and none of them is taken for right.
    part, sure = dag._scaled(dag._clean(*mixed[:2], *lengths), counts=True, recursions=dag._torch_recursions)
    wrong = ~part.log_likelihood.isclose(wanted.log_likelihood, rtol=1e-9, atol=0.0)
    assert wrong.any()
    assert not (wrong & sure).any()
    assert sure[:8].all()
    # With it all are right, and only those that need it take it.
    taken = []
    spied = dag._logarithmic

    def spy(graph: dag._Graph, *, counts: bool) -> dag._Solution:
        taken.append(graph.match.shape[0])
        return spied(graph, counts=counts)

    monkeypatch.setattr(dag, "_logarithmic", spy)
    torch.testing.assert_close(dag_log_likelihood(*mixed), wanted.log_likelihood, rtol=1e-12, atol=0.0)
    assert sum(taken) == int((~sure).sum())


@pytest.mark.parametrize("spread", SPANS.values(), ids=SPANS.keys())
def test_whatever_counts_as_right_is_right(spread: float, device: torch.device) -> None:
    """The bound on what scaling loses, on graphs whose likely beginnings lead to unlikely ends."""
    sure_rows = unsure_rows = 0
    for seed in range(12):
        match, links, *lengths = random_batch(seed, 20, 14, 18, spread=spread / 2, feasible=True, pruned=0.3)
        # A second, hidden scale: early tokens like late vertices, which late tokens do not.
        tilt = torch.arange(18.0) * torch.linspace(1, -1, 14)[:, None] * spread / 4
        batch = on(device, (match + tilt, links, *lengths))
        graph = dag._clean(*batch)
        found, sure = dag._scaled(graph, counts=True, recursions=dag._torch_recursions)
        wanted = dag._logarithmic(graph, counts=True)
        assert wanted.counts is not None
        for ours, theirs in (
            (found.log_likelihood, wanted.log_likelihood),
            (found.posterior, wanted.posterior),
            (found.counts, wanted.counts),
        ):
            torch.testing.assert_close(ours[sure], theirs[sure], rtol=1e-10, atol=1e-11)
        sure_rows += int(sure.sum())
        unsure_rows += int((~sure & (wanted.log_likelihood > -INF)).sum())
    assert sure_rows > 0
    # 300 nats are well within what the scaled form spans.
    assert (unsure_rows > 0) == (spread > 50.0)


def test_gradcheck(device: torch.device) -> None:
    checked = 0
    for seed in range(200):
        match, links, *lengths = on(device, random_batch(seed, 1, 1 + seed % 4, 1 + seed // 4 % 5))
        match, links = (x.nan_to_num(nan=0.5).requires_grad_() for x in (match, links))
        likelihood = dag_log_likelihood(match, links, *lengths)
        # Minus infinity has no difference quotient.
        possible = likelihood.detach() > -INF
        if possible.any():
            assert torch.autograd.gradcheck(
                lambda *scores, lengths=lengths, possible=possible: dag_log_likelihood(*scores, *lengths)[
                    possible
                ],
                (match, links),
            )
            checked += 1
    assert checked > 50


def test_the_authors_program(device: torch.device) -> None:
    stored = np.load(ORACLES / "dag.npz")
    for case in ("full", "window4", "tight"):
        names = ("match_all", "links", "target_length", "output_length")
        batch = on(device, tuple(torch.from_numpy(stored[f"{case}.{name}"]) for name in names))
        total, by_match, by_links, _, best = solve(batch)
        np.testing.assert_allclose(total.cpu(), stored[f"{case}.bruteforce_logprob"], rtol=1e-6)
        possible = total.cpu().numpy() > -np.inf
        np.testing.assert_allclose(by_match.cpu(), stored[f"{case}.grad_match_all"], atol=1e-6)
        # Theirs is NaN for the links of an impossible row.
        np.testing.assert_allclose(
            by_links.cpu().numpy()[possible], stored[f"{case}.grad_links"][possible], atol=1e-6
        )
        # Theirs says the token of each vertex.
        token_of = np.full(stored[f"{case}.best_alignment"].shape, -1)
        for row, path in enumerate(best.tolist()):
            for token, vertex in enumerate(path):
                if vertex != NO_VERTEX:
                    token_of[row, vertex] = token
        assert np.array_equal(token_of[possible], stored[f"{case}.best_alignment"][possible])


def test_edges_of_length(device: torch.device) -> None:
    match = torch.tensor([[[-1.0, -2.0, -3.0]] * 4] * 5, device=device)
    links = torch.full((5, 3, 3), -0.5, device=device)
    #              one of one, one of two, two of two, three of three, four of three
    tokens, vertices = torch.tensor([1, 1, 2, 3, 4]), torch.tensor([1, 2, 2, 3, 3])
    total, by_match, by_links, posterior, best = solve((match, links, tokens, vertices))
    assert total.tolist() == [-1.0, -INF, -3.5, -7.0, -INF]
    assert best.tolist() == [[0, -1, -1, -1], [-1] * 4, [0, 1, -1, -1], [0, 1, 2, -1], [-1] * 4]
    for row in (1, 4):
        assert not by_match[row].any()
        assert not by_links[row].any()
        assert not posterior[row].any()
    assert by_match[0].tolist() == [[1.0, 0.0, 0.0]] + [[0.0] * 3] * 3
    assert not by_links[0].any()
    assert by_links[3].tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0] * 3]


@pytest.mark.parametrize("arriving", [INF, -INF, math.nan])
def test_no_gradient_makes_an_impossible_row_nan(arriving: float, device: torch.device) -> None:
    match = torch.zeros(2, 3, 3, device=device, requires_grad=True)
    links = torch.zeros(2, 3, 3, device=device, requires_grad=True)
    total = dag_log_likelihood(match, links, torch.tensor([3, 3]), torch.tensor([2, 3]))
    assert total.tolist() == [-INF, 0.0]
    total.backward(torch.tensor([arriving, 1.0], device=device))
    assert match.grad is not None
    assert links.grad is not None
    assert not match.grad[0].any()
    assert not links.grad[0].any()
    assert match.grad[1].sum() == 3.0
    assert links.grad[1].sum() == 2.0


def test_nan_that_counts_is_not_hidden(device: torch.device) -> None:
    match, links = torch.zeros(2, 3, 4, device=device), torch.zeros(2, 4, 4, device=device)
    links[0, 0, 1] = math.nan
    total = dag_log_likelihood(match, links, torch.tensor([3, 3]), torch.tensor([4, 4]))
    assert total.isnan().tolist() == [True, False]
    # Where there is no path, no score counts.
    total, by_match, by_links, posterior, _ = solve(
        (match * math.nan, links, torch.tensor([3, 2]), torch.tensor([2, 1]))
    )
    assert total.tolist() == [-INF, -INF]
    for each in (by_match, by_links, posterior):
        assert not each.any()


def test_a_batch_is_its_rows(device: torch.device) -> None:
    batch = on(device, random_batch(3, 9, 7, 12, pruned=0.1))
    together = solve(batch)
    for row in range(9):
        alone = solve(tuple(x[row : row + 1] for x in batch))
        for whole, single in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[row : row + 1], single, rtol=1e-13, atol=1e-13)


def test_a_chunk_of_one_row_is_no_different(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = on(device, random_batch(4, 9, 7, 12, spread=30.0, pruned=0.1))
    together = solve(batch)
    monkeypatch.setattr(dag, "_CHUNK", {"cpu": 1, "cuda": 1})
    for whole, single in zip(together, solve(batch), strict=True):
        torch.testing.assert_close(whole, single, rtol=1e-13, atol=1e-13)


def test_twice_the_padding_changes_nothing(device: torch.device) -> None:
    match, links, tokens, vertices = random_batch(5, 9, 7, 12)
    wide = F.pad(match, (0, 12, 0, 7), value=math.nan), F.pad(links, (0, 12, 0, 12), value=math.nan)
    narrow = solve(on(device, (match, links, tokens, vertices)))
    padded = solve(on(device, (*wide, tokens, vertices)))
    for found, wanted, fill in zip(padded, narrow, (0, 0, 0, 0, NO_VERTEX), strict=True):
        inside = tuple(slice(size) for size in wanted.shape)
        torch.testing.assert_close(found[inside], wanted, rtol=1e-13, atol=1e-13)
        outside = found.clone()
        outside[inside] = fill
        assert (outside == fill).all() or found.dim() == 1


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_lengths_of_any_type(dtype: torch.dtype, device: torch.device) -> None:
    match, links, tokens, vertices = on(device, random_batch(6, 5, 4, 6))
    for solver in (dag_log_likelihood, dag_posterior, dag_best_path):
        wanted = solver(match, links, tokens, vertices)
        assert torch.equal(solver(match, links, tokens.to(dtype), vertices.to(dtype)), wanted)


def test_autocast_changes_nothing(device: torch.device) -> None:
    batch = on(device, random_batch(8, 5, 6, 9, spread=100.0, dtype=torch.float32))
    wanted = solve(batch)
    with torch.autocast(device.type, torch.bfloat16):
        found = solve(batch)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_arguments_are_left_alone(device: torch.device) -> None:
    batch = on(device, random_batch(9, 5, 6, 9, spread=100.0))
    copies = [x.clone() for x in batch]
    solve(batch)
    for ours, theirs in zip(batch, copies, strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_one_gradient_alone(device: torch.device) -> None:
    match, links, *lengths = on(device, random_batch(10, 5, 6, 9))
    _, by_match, by_links, *_ = solve((match, links, *lengths))
    for scores, wanted in ((match, by_match), (links, by_links)):
        leaf = scores.clone().requires_grad_()
        pair = (leaf, links) if scores is match else (match, leaf)
        dag_log_likelihood(*pair, *lengths).sum().backward()
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, wanted)


def test_what_does_not_fit_is_refused() -> None:
    match, links, two = torch.zeros(2, 3, 4), torch.zeros(2, 4, 4), torch.tensor([2, 2])
    cases: list[tuple[tuple[Tensor, ...], str]] = [
        ((match[0], links, two, two), "`match` is [3, 4], not [B,T,L] with T and L at least 1"),
        ((match[:, :0], links, two, two), "`match` is [2, 0, 4], not [B,T,L] with T and L at least 1"),
        ((match, links[:, :3], two, two), "`links` is [2, 3, 4], but for `match` [2, 3, 4] [2, 4, 4]"),
        ((match, links, two[:1], two), "`target_lengths` is [1], but for 2 rows [2]"),
        ((match, links, two * 2, two), "`target_lengths` is [4, 4], not all in 1 to 3"),
        ((match, links, two, two - 2), "`graph_lengths` is [0, 0], not all in 1 to 4"),
    ]
    for solver in (dag_log_likelihood, dag_posterior, dag_best_path):
        for arguments, message in cases:
            with pytest.raises(UsageError) as caught:
                solver(*arguments)
            assert caught.value.message == message


def test_an_empty_batch() -> None:
    empty = torch.zeros(0, 3, 4), torch.zeros(0, 4, 4), torch.zeros(0), torch.zeros(0)
    assert [x.shape[0] for x in solve(empty)] == [0] * 5


def compare_kernels(device: torch.device | str) -> None:
    for batch, length, width in ((2, 1, 1), (2, 5, 9), (2, 3, 64), (1, 4, 65), (2, 3, 130)):
        draw = torch.Generator().manual_seed(width)
        weights, words, start = (
            torch.rand(batch, size, width, generator=draw, dtype=torch.float64).to(device)
            for size in (width, length, length)
        )
        start = torch.where(start < 0.9, dag._EPSILON, start)
        found = dag_triton.triton_recursions(weights.triu(1), words, start, dag._EPSILON)
        wanted = dag._torch_recursions(weights.triu(1), words, start)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0.0)


@pytest.mark.cuda
def test_the_kernels_are_used_and_equal_torch(device: torch.device) -> None:
    pytest.importorskip("triton")
    compare_kernels(device)
    assert dag._recursions(device) is not dag._torch_recursions


def test_the_kernels_equal_torch_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    code = "import test_dag; test_dag.compare_kernels('cpu')"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # read when Triton is imported
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, check=True)


def test_the_comparison_tells_kernels_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Triton is missing, and so nothing else runs it."""
    monkeypatch.setattr(dag_triton, "triton_recursions", lambda *given: dag._torch_recursions(*given[:3]))
    compare_kernels("cpu")
    monkeypatch.setattr(
        dag_triton,
        "triton_recursions",
        lambda weights, *given: dag._torch_recursions(weights * (1 + 1e-9), *given[:2]),
    )
    with pytest.raises(AssertionError, match="not close"):
        compare_kernels("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = f"""
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nartk.models import dag_triton

for kernel in (dag_triton._forward_kernel, dag_triton._backward_kernel):
    fixed = {{"EPSILON": 1e-300, "FROM": dag_triton._TILE[0], "TO": dag_triton._TILE[1]}}
    kinds = {{"length": "i32", "width": "i32", **dict.fromkeys(fixed, "constexpr")}}
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={{name: kinds.get(name, "*fp64") for name in names}},
        constexprs={{(names.index(name),): value for name, value in fixed.items() if name in names}},
    )
    options = {{"num_warps": dag_triton._WARPS, "num_stages": 1}}
    assert triton.compile(source, target=GPUTarget("cuda", {capability}, 32), options=options).asm["cubin"]
"""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize("failure", ["raises", "differs"])
def test_kernels_that_fail_give_way_to_torch(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*tensors: Tensor) -> tuple[Tensor, ...]:
        if failure == "raises":
            raise RuntimeError("no ptxas\nand more")
        return tuple(x + 1 for x in dag._torch_recursions(*tensors[:3]))

    class Cuda:  # a device that tensors take for the CPU's
        type = "cuda"

    monkeypatch.setattr(dag_triton, "HAS_TRITON", True)
    monkeypatch.setattr(dag_triton, "triton_recursions", broken)
    monkeypatch.setattr(dag.torch, "arange", lambda *sizes, device, dtype: arange(*sizes, dtype=dtype))
    message = {"raises": "RuntimeError: no ptxas", "differs": "they compute something else than torch"}[
        failure
    ]
    with pytest.warns(UserWarning, match="Triton") as caught:
        assert dag._recursions(Cuda()) is dag._torch_recursions  # type: ignore[arg-type]
    assert [str(each.message) for each in caught] == [
        f"the Triton kernels of the DAG loss do not run here, torch does: {message}"
    ]
    monkeypatch.setattr(dag_triton, "triton_recursions", lambda *tensors: dag._torch_recursions(*tensors[:3]))
    assert dag._recursions(Cuda()) is not dag._torch_recursions  # type: ignore[arg-type]


def gathered(output: torch.nn.Linear, hidden: Tensor, target: Tensor) -> Tensor:
    """What `match_scores` computes, with the log-probabilities of all words at all vertices."""
    lprobs = output(hidden).double().log_softmax(-1)  # [B,L,V]
    return lprobs.gather(2, target[:, None].expand(-1, hidden.shape[1], -1)).mT


@pytest.mark.parametrize("chunk", [1, 5, 512])
@pytest.mark.parametrize("ragged", [False, True])
def test_match_scores_is_log_softmax_and_gather(chunk: int, ragged: bool, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 17, device=device, dtype=torch.float64)
    target = torch.randint(17, (3, 4), device=device)
    hidden = torch.randn(3, 7, 6, device=device, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([7, 1, 4], device=device) if ragged else None
    counted = torch.arange(7, device=device) < (7 if lengths is None else lengths[:, None])
    weight = torch.randn(3, 4, 7, device=device, dtype=torch.float64)
    gradients = []
    for scores in (
        match_scores(layer, hidden, target, graph_lengths=lengths, chunk=chunk),
        gathered(layer, hidden, target).masked_fill(~counted.expand(3, 7)[:, None], -INF),
    ):
        loss = (scores * weight).masked_fill(scores == -INF, 0.0).sum()
        gradients.append((scores, *torch.autograd.grad(loss, (hidden, layer.weight, layer.bias))))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """Notes the most elements that an operation gives."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return found


def test_match_scores_never_holds_more_than_a_chunk_of_logits(device: torch.device) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 50, device=device)
    hidden = torch.randn(3, 40, 6, device=device, requires_grad=True)
    target = torch.randint(50, (3, 4), device=device)
    for scores, wanted in (
        (lambda: match_scores(layer, hidden, target, chunk=8), 3 * 40 * 6),  # `hidden` itself is the largest
        (lambda: gathered(layer, hidden, target), 3 * 40 * 50),  # what the test is to notice
    ):
        with Largest() as largest:
            scores().sum().backward()
        assert largest.elements == wanted


@pytest.mark.parametrize("autocast", [False, True])
def test_match_scores_of_bf16_logits_are_fp32(autocast: bool, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 17, device=device)
    hidden = torch.randn(2, 5, 6, device=device, requires_grad=True)
    if not autocast:
        layer, hidden = layer.bfloat16(), hidden.detach().bfloat16().requires_grad_()
    target = torch.randint(17, (2, 4), device=device)
    leaves = (hidden, layer.weight, layer.bias)
    results = []
    for scores in (match_scores, gathered):
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            found = scores(layer, hidden, target)
        results.append((found, *torch.autograd.grad(found.sum(), leaves)))
    assert results[0][0].dtype == torch.float32
    torch.testing.assert_close(results[0][0].double(), results[1][0], rtol=1e-6, atol=1e-6)
    for ours, theirs, leaf in zip(results[0][1:], results[1][1:], leaves, strict=True):
        assert ours.dtype == leaf.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("learns", ["hidden", "weight", "bias"])
def test_match_scores_of_a_layer_half_frozen(learns: str, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 17, bias=learns == "bias", device=device, dtype=torch.float64)
    hidden = torch.randn(2, 5, 6, device=device, dtype=torch.float64, requires_grad=learns == "hidden")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == learns)
    leaf = hidden if learns == "hidden" else getattr(layer, learns)
    target = torch.randint(17, (2, 4), device=device)
    ours, theirs = (
        torch.autograd.grad(scores(layer, hidden, target).square().sum(), leaf)[0]
        for scores in (match_scores, gathered)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_loss_trains_through_match_scores(device: torch.device) -> None:
    """Gradients of the whole loss against plain logarithms and autograd."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 17, device=device, dtype=torch.float64)
    hidden = torch.randn(3, 9, 6, device=device, dtype=torch.float64)
    target = torch.randint(17, (3, 4), device=device)
    links = torch.randn(3, 9, 9, device=device, dtype=torch.float64)
    lengths = torch.tensor([4, 3, 4], device=device), torch.tensor([9, 8, 4], device=device)
    later = torch.ones(9, 9, dtype=torch.bool, device=device).triu(1)
    ours = dag_log_likelihood(
        match_scores(layer, hidden, target, graph_lengths=lengths[1], chunk=5), links, *lengths
    )
    plain = plain_log_likelihood(gathered(layer, hidden, target), links.masked_fill(~later, -1e9), *lengths)
    for found, wanted in zip(
        torch.autograd.grad(ours.sum(), tuple(layer.parameters())),
        torch.autograd.grad(plain.sum(), tuple(layer.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_match_scores_refuses_what_does_not_fit() -> None:
    hidden, target = torch.zeros(2, 3, 4), torch.zeros(3, 4, dtype=torch.long)
    with pytest.raises(UsageError) as caught:
        match_scores(torch.nn.Linear(4, 5), hidden, target)
    assert caught.value.message == "`hidden` has 2 rows, `target` 3"
    with pytest.raises(UsageError) as caught:
        match_scores(torch.nn.Linear(4, 5), hidden, target[:2], chunk=0)
    assert caught.value.message == "`chunk` is 0, below 1"
