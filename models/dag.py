"""The dynamic programs of the DA-Transformer (Huang et al. 2022, https://arxiv.org/abs/2205.07459).

A graph of L vertices, each with a word distribution, emits a target by every path that visits T of them from
left to right, from vertex 0 to the last. `dag_log_likelihood` sums over these paths, `dag_posterior` gives
which vertex emits which token, and `dag_best_path` finds the likeliest path, by `nartk.models.match_scores`.

Symbols: B rows, T target tokens, L vertices.

Sums run in float64 whatever the input, as scaled probabilities: the links are raised to the power of e once,
and a token costs a product of a vector with a matrix. float64 costs no more than float32 here, since rows are
taken so many at a time that their matrices stay in the cache, and it spans 700 nats instead of 87. A row that
spans more is noticed, by a bound on what can have been lost, and computed again with logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nartk.errors import UsageError
from nartk.models.kernels import agree

NO_VERTEX = -1  # what `dag_best_path` gives past a target's length, and of impossible targets

_EPSILON = 1e-300  # added to each scaled probability: more than float64 can lose in a step (3 L 2^-1022)
_LOSS = 1e-13  # of the likelihood, that the epsilons may add up to
# Elements of [rows,L,L] at a time. Of 2^16 to 2^20, 2^18 and 2^19 were the quickest on a CPU with 2 MB of L2
# cache, at L = 256; what a GPU likes best is not measured.
_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 27}

Recursions = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


def dag_log_likelihood(match: Tensor, links: Tensor, target_lengths: Tensor, graph_lengths: Tensor) -> Tensor:
    """Log-probability of each target, summed over all paths -> [B] nats, float32, or float64 if the input is.

    The gradient by `match` is the posterior of `dag_posterior`, that by `links` the expected number of times
    that a link is used; both are exact, and computed along with the likelihood where they are asked for. An
    impossible target (more tokens than vertices, or no path left) has minus infinity, and gradient 0.
    Gradients cannot be differentiated again.

    Args:
        match: [B,T,L], log-score of target token t at vertex j. Any floating type; minus infinity is allowed.
        links: [B,L,L], log-score of the step from vertex i to vertex j; minus infinity where there is none.
            The diagonal and below it are not read.
        target_lengths: [B], tokens that count, 1 to T. The first is emitted by vertex 0, the last by the last
            vertex; so a target of one token needs a graph of one vertex.
        graph_lengths: [B], vertices that count, 1 to L. Beyond either length nothing is read.

    Raises:
        UsageError: Shapes do not fit each other, or a length is out of its bounds.

    Source: the training loss of Huang et al. 2022; scaling as in Rabiner 1989, "A tutorial on hidden Markov
    models", section V.
    """
    lengths = _check(match, links, target_lengths, graph_lengths)
    found: Tensor = _LogLikelihood.apply(match, links, *lengths)  # type: ignore[no-untyped-call]
    return found


def dag_posterior(match: Tensor, links: Tensor, target_lengths: Tensor, graph_lengths: Tensor) -> Tensor:
    """Probability that vertex j emits token t, given the target -> [B,T,L], in `match`'s type; no gradient.

    It sums to 1 over the vertices for each token, and is 0 past the lengths and for impossible targets.
    Arguments and errors as for `dag_log_likelihood`.

    Source: Fang et al. 2023, "DASpeech" (https://arxiv.org/abs/2310.07403), who weight vertices by it.
    """
    lengths = _check(match, links, target_lengths, graph_lengths)
    with torch.no_grad():
        return _solve(match, links, *lengths, counts=False).posterior


@torch.no_grad()
def dag_best_path(match: Tensor, links: Tensor, target_lengths: Tensor, graph_lengths: Tensor) -> Tensor:
    """The likeliest path of each target -> [B,T] int64: vertices, `NO_VERTEX` past its length.

    Of equally likely paths it is the one with the lowest vertex at the last token where they differ. An
    impossible target has `NO_VERTEX` everywhere. Scores add up in float32, or in float64 if the input is.
    Arguments and errors as for `dag_log_likelihood`.

    Source: the alignment that glancing training goes by in Huang et al. 2022.
    """
    tokens, vertices = _check(match, links, target_lengths, graph_lengths)
    paths = torch.full(match.shape[:2], NO_VERTEX, dtype=torch.int64, device=match.device)
    for rows in _chunks(links):
        graph = _clean(match[rows], links[rows], tokens[rows], vertices[rows])
        paths[rows] = _viterbi(graph.to(_result_type(match, links)))
    return paths


@dataclass(frozen=True)
class _Solution:
    """Sums over the paths: likelihood [B] nats, posterior [B,T,L], link counts [B,L,L] or None."""

    log_likelihood: Tensor
    posterior: Tensor
    counts: Tensor | None


@dataclass(frozen=True)
class _Graph:
    """Rows whose scores, in the types given, are minus infinity wherever no path can go.

    Attributes:
        match: [B,T,L]; links: [B,L,L].
        last_token, last_vertex: [B] int64.
        possible: [B] bool, whether the lengths allow a path.
    """

    match: Tensor
    links: Tensor
    last_token: Tensor
    last_vertex: Tensor
    possible: Tensor

    def where(self, rows: Tensor) -> _Graph:
        """Rows [B] bool of it."""
        return _Graph(
            self.match[rows],
            self.links[rows],
            self.last_token[rows],
            self.last_vertex[rows],
            self.possible[rows],
        )

    def to(self, dtype: torch.dtype) -> _Graph:
        """It with scores of that type."""
        return replace(self, match=self.match.to(dtype), links=self.links.to(dtype))

    def at_end(self, values: Tensor) -> Tensor:
        """values [B,T,L] at the last token and vertex -> [B]."""
        rows = torch.arange(values.shape[0], device=values.device)
        return values[rows, self.last_token, self.last_vertex]


class _LogLikelihood(torch.autograd.Function):
    """The likelihood with its analytic gradient, whose size is that of the input."""

    @staticmethod
    def forward(ctx: Any, match: Tensor, links: Tensor, tokens: Tensor, vertices: Tensor) -> Tensor:
        solution = _solve(match, links, tokens, vertices, counts=ctx.needs_input_grad[1])
        impossible = solution.log_likelihood == -math.inf
        ctx.save_for_backward(solution.posterior, solution.counts, impossible)
        return solution.log_likelihood.to(_result_type(match, links))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        posterior, counts, impossible = ctx.saved_tensors
        # What comes down to an impossible row may be infinite or NaN: its gradient is 0 all the same.
        each = gradient.masked_fill(impossible, 0.0)[:, None, None]
        by_match = (posterior * each).to(posterior.dtype) if ctx.needs_input_grad[0] else None
        by_links = (counts * each).to(counts.dtype) if ctx.needs_input_grad[1] else None
        return by_match, by_links, None, None


def _solve(match: Tensor, links: Tensor, tokens: Tensor, vertices: Tensor, *, counts: bool) -> _Solution:
    """Likelihood, posterior in `match`'s type and, if asked for, link counts in `links`'s."""
    likelihood = match.new_empty(match.shape[0], dtype=torch.float64)
    posterior = torch.empty_like(match, memory_format=torch.contiguous_format)
    used = torch.empty_like(links, memory_format=torch.contiguous_format) if counts else None
    recursions = _recursions(match.device)
    with torch.autocast(match.device.type, enabled=False):
        for rows in _chunks(links):
            graph = _clean(match[rows], links[rows], tokens[rows], vertices[rows])
            part, sure = _scaled(graph, counts=counts, recursions=recursions)
            likelihood[rows], posterior[rows] = part.log_likelihood, part.posterior
            if used is not None and part.counts is not None:
                used[rows] = part.counts
            if bool(sure.all()):
                continue
            again = _logarithmic(graph.where(~sure), counts=counts)
            unsure = (~sure).nonzero()[:, 0] + rows.start
            likelihood[unsure], posterior[unsure] = again.log_likelihood, again.posterior.to(posterior.dtype)
            if used is not None and again.counts is not None:
                used[unsure] = again.counts.to(used.dtype)
    return _Solution(likelihood, posterior, used)


def _scaled(graph: _Graph, *, counts: bool, recursions: Recursions) -> tuple[_Solution, Tensor]:
    """The sums over paths with scaled probabilities, and [B] bool: whether a row's are right.

    A forward probability is ``forward[t] * exp(forward_log[t])``, with maximum 1 in `forward[t]`; a backward
    one likewise. Both have epsilon added at each token, so both are upper bounds whatever was lost below
    it; and the paths of the epsilons together carry a share of the likelihood of at most
    ``2 T L epsilon max_t exp(forward_log[t-1] + top[t] + backward_log[t]) / likelihood``. A row is right if
    that is small.
    """
    # The largest score of each vertex's links moves to its words: on a path a vertex has one link.
    best = graph.links.amax(-1, keepdim=True).double()  # [B,L,1]
    best = torch.where(best > -math.inf, best, 0.0)
    weights = (graph.links - best).exp_()
    match = graph.match + best.mT  # [B,T,L]
    top = match.amax(-1, keepdim=True)  # [B,T,1]
    top = torch.where(top > -math.inf, top, 0.0)
    words = (match - top).exp_()

    length, width = match.shape[1:]
    positions = torch.arange(length, device=match.device)
    ended = positions >= graph.last_token[:, None]  # [B,T]
    ends = torch.zeros_like(match[:, 0]).scatter_(1, graph.last_vertex[:, None], 1.0)  # [B,L]
    start = torch.where(ended[..., None], ends[:, None], _EPSILON)  # [B,T,L], what backward begins with
    forward, forward_scale, backward, backward_scale = recursions(weights, words, start)

    top = top[..., 0]  # [B,T]
    forward_log = (forward_scale.log() + top).cumsum(1)
    after = torch.cat((top[:, 1:], torch.zeros_like(top[:, :1])), 1)
    backward_log = (backward_scale.log() + after).flip(1).cumsum(1).flip(1)
    ends_at = graph.last_token[:, None]
    total = forward_log.gather(1, ends_at)[:, 0] + graph.at_end(forward).log()  # [B]

    # Nor a sum, nor logarithms, where the lengths alone rule out any path.
    impossible = ~graph.possible
    total = total.masked_fill(impossible, -math.inf)
    past = (positions > ends_at) | impossible[:, None]  # [B,T]
    share = (forward_log + backward_log - total[:, None]).masked_fill(past, -math.inf).exp()
    posterior = (forward * backward).mul_(share[..., None]).masked_fill_(words == 0, 0.0)
    step = forward_log[:, :-1] + top[:, 1:] + backward_log[:, 1:] - total[:, None]  # [B,T-1]
    step = step.masked_fill(past[:, 1:], -math.inf)
    used = None
    if counts:
        arriving = backward[:, 1:] * words[:, 1:] * step.exp()[..., None]
        used = torch.bmm(forward[:, :-1].mT, arriving).mul_(weights)

    limit = math.log(_LOSS / (2.0 * length * width)) - math.log(_EPSILON)
    sure = (step < limit).all(1) & total.isfinite()
    return _Solution(total, posterior, used), sure | impossible


def _torch_recursions(weights: Tensor, words: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The scaled forward and backward probabilities, each step divided by its maximum.

    ``forward[t] = (forward[t-1] weights) words[t] + epsilon``, ``forward[0] = words[0]``;
    ``backward[t] = weights (words[t+1] backward[t+1]) + start[t]``, ``backward[T-1] = start[T-1]``.

    Args:
        weights: [B,L,L]; words: [B,T,L]; start: [B,T,L].

    Returns:
        forward [B,T,L], what it was divided by [B,T], and the same for backward.
    """
    forward, forward_scale = _empty_recursion(words)
    backward, backward_scale = _empty_recursion(words)
    emitted, begin = words.transpose(0, 1)[:, :, None], start.transpose(0, 1)[:, :, None]  # [T,B,1,L]
    length = words.shape[1]
    reached, epsilon = torch.empty_like(emitted[0]), words.new_tensor(_EPSILON)  # [B,1,L]
    # Taken apart once: a slice costs as much as a step's arithmetic.
    word, at, scale = emitted.unbind(), forward.unbind(), forward_scale.unbind()
    at[0].copy_(word[0])
    for t in range(1, length):
        torch.bmm(at[t - 1], weights, out=reached)
        torch.addcmul(epsilon, reached, word[t], out=reached)
        torch.amax(reached, -1, keepdim=True, out=scale[t])
        torch.div(reached, scale[t], out=at[t])
    turned = weights.mT
    at, scale, first = backward.unbind(), backward_scale.unbind(), begin.unbind()
    at[-1].copy_(first[-1])
    for t in range(length - 2, -1, -1):
        torch.mul(at[t + 1], word[t + 1], out=reached)
        torch.baddbmm(first[t], reached, turned, out=at[t])
        torch.amax(at[t], -1, keepdim=True, out=scale[t])
        at[t].div_(scale[t])
    forward, forward_scale, backward, backward_scale = (
        x[:, :, 0].transpose(0, 1) for x in (forward, forward_scale, backward, backward_scale)
    )
    return forward, forward_scale[..., 0], backward, backward_scale[..., 0]


def _empty_recursion(words: Tensor) -> tuple[Tensor, Tensor]:
    """Room for a recursion over `words` [B,T,L]: [T,B,1,L], and for its scales, ones: [T,B,1,1]."""
    batch, length, width = words.shape
    return words.new_empty(length, batch, 1, width), words.new_ones(length, batch, 1, 1)


def _logarithmic(graph: _Graph, *, counts: bool) -> _Solution:
    """The sums over paths with logarithms throughout: any span, a [B,L,L] of exponentials a token."""
    graph = graph.to(torch.float64)
    match, links = graph.match, graph.links
    length = match.shape[1]
    forward = _forward(graph, torch.logsumexp)
    total = graph.at_end(forward)
    ends = torch.full_like(match[:, 0], -math.inf).scatter_(1, graph.last_vertex[:, None], 0.0)
    backward = torch.full_like(match, -math.inf)
    backward[:, -1] = torch.where(graph.last_token[:, None] == length - 1, ends, -math.inf)
    for t in range(length - 2, -1, -1):
        emitted = match[:, t + 1] + backward[:, t + 1]
        reached = (links + emitted[:, None]).logsumexp(2)
        backward[:, t] = torch.where(graph.last_token[:, None] == t, ends, reached)
    norm = torch.where(total == -math.inf, 0.0, total)[:, None]  # exp(-inf) = 0 for impossible rows
    past = torch.arange(length, device=match.device) > graph.last_token[:, None]
    posterior = (forward + backward - norm[..., None]).exp().masked_fill(past[..., None], 0.0)
    used = None
    if counts:
        used = torch.zeros_like(links)
        for t in range(1, length):
            arriving = match[:, t] + backward[:, t] - norm
            used += (forward[:, t - 1, :, None] + links + arriving[:, None]).exp_()
    return _Solution(total, posterior, used)


def _forward(graph: _Graph, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """The recursion over tokens in logarithms [B,T,L]; `reduce` joins the paths that meet in a vertex."""
    match, links = graph.match, graph.links
    forward = match.clone()
    for t in range(1, match.shape[1]):
        forward[:, t] += reduce(forward[:, t - 1, :, None] + links, 1)
    return forward


def _viterbi(graph: _Graph) -> Tensor:
    """The best path of each row [B,T]. What led to a vertex is found again on the way back, not stored."""
    forward = _forward(graph, torch.amax)
    length, width = graph.match.shape[1:]
    possible = graph.at_end(forward) > -math.inf  # [B]
    vertex = graph.last_vertex
    path = torch.full_like(forward[..., 0], NO_VERTEX, dtype=torch.int64)
    for t in range(length - 1, -1, -1):
        path[:, t] = torch.where(possible & (t <= graph.last_token), vertex, NO_VERTEX)
        if t > 0:
            column = vertex[:, None, None].expand(-1, width, 1)
            led = (forward[:, t - 1] + graph.links.gather(2, column)[..., 0]).argmax(1)
            vertex = torch.where(t <= graph.last_token, led, vertex)
    return path


def _clean(match: Tensor, links: Tensor, tokens: Tensor, vertices: Tensor) -> _Graph:
    """Scores that are minus infinity where lengths and order leave no path, whatever stood there."""
    length, width = match.shape[1:]
    vertex = torch.arange(width, device=match.device)
    token = torch.arange(length, device=match.device)
    last_token, last_vertex = tokens[:, None] - 1, vertices[:, None] - 1  # [B,1]
    # Before token t a path has been at t vertices, and for each token after it needs one more.
    first = torch.where(token == last_token, last_vertex, token)[..., None]  # [B,T,1]
    final = torch.where(token == 0, 0, last_vertex - (last_token - token))[..., None]
    possible = (tokens <= vertices) & ((tokens > 1) | (vertices == 1))
    absent = (token > last_token) | ~possible[:, None]  # [B,T]
    missed = (vertex < first) | (vertex > final) | absent[..., None]  # [B,T,L]
    beyond = (vertex > last_vertex) | ~possible[:, None]  # [B,L]
    unlinked = (vertex[:, None] >= vertex) | beyond[:, None]  # [B,L,L]
    return _Graph(
        match.detach().masked_fill(missed, -math.inf),
        links.detach().masked_fill(unlinked, -math.inf),
        last_token[:, 0],
        last_vertex[:, 0],
        possible,
    )


def _chunks(links: Tensor) -> Iterator[slice]:
    """Slices of rows whose links fit the cache of a CPU, or a moderate part of a GPU's memory."""
    batch, width = links.shape[:2]
    rows = max(1, _CHUNK.get(links.device.type, _CHUNK["cpu"]) // max(1, width * width))
    return (slice(start, min(start + rows, batch)) for start in range(0, batch, rows))


def _result_type(match: Tensor, links: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (match.dtype, links.dtype) else torch.float32


def _check(
    match: Tensor, links: Tensor, target_lengths: Tensor, graph_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Refuses arguments that do not fit; gives the lengths as int64 where `match` is."""
    if match.dim() != 3 or not all(match.shape[1:]):
        raise UsageError(f"`match` is {list(match.shape)}, not [B,T,L] with T and L at least 1")
    batch, length, width = match.shape
    if links.shape != (batch, width, width):
        raise UsageError(
            f"`links` is {list(links.shape)}, but for `match` {list(match.shape)} {[batch, width, width]}"
        )
    found = []
    for name, lengths, bound in (
        ("target_lengths", target_lengths, length),
        ("graph_lengths", graph_lengths, width),
    ):
        if lengths.shape != (batch,):
            raise UsageError(f"`{name}` is {list(lengths.shape)}, but for {batch} rows [{batch}]")
        whole = lengths.to(match.device, torch.int64)
        if bool(((whole < 1) | (whole > bound)).any()):
            raise UsageError(f"`{name}` is {whole.tolist()}, not all in 1 to {bound}")
        found.append(whole)
    return found[0], found[1]


def _recursions(device: torch.device) -> Recursions:
    """The recursions' form for tensors on `device`."""
    return _torch_recursions if device.type == "cpu" else _proved_kernels(device)


@cache
def _proved_kernels(device: torch.device) -> Recursions:
    """The Triton kernels if they compile and agree with torch on a small graph; else torch and a warning."""
    from nartk.models import dag_triton  # here, for Triton takes long to import

    if not dag_triton.HAS_TRITON or device.type != "cuda":
        return _torch_recursions

    def kernels(weights: Tensor, words: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return dag_triton.triton_recursions(weights, words, start, _EPSILON)

    # More than a tile wide. Sines: nobody's random numbers are used up.
    weights = torch.arange(2 * 130 * 130, device=device, dtype=torch.float64).sin().abs().view(2, 130, 130)
    words = torch.arange(2 * 5 * 130, device=device, dtype=torch.float64).cos().abs().view(2, 5, 130)
    given = weights.triu(1), words, words
    proved = agree(
        "the Triton kernels of the DAG loss", lambda: kernels(*given), lambda: _torch_recursions(*given)
    )
    return kernels if proved else _torch_recursions
