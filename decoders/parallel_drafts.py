"""Drafters that are non-autoregressive models. They read the source once, and see what was accepted so far.

Symbols: B rows, K drafted tokens, T output positions or canvas places, L graph vertices, C words of a vertex,
N places in all, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.canvas import likeliest_lengths
from nartk.decoders.ctc_search import greedy_search, silent_words
from nartk.decoders.dag_paths import say_everywhere
from nartk.decoders.graph import likeliest, walk
from nartk.decoders.iad import CopyState, SourceCopy, copy_state, spelling
from nartk.decoders.loop import Draft, Drafter, join_rows, select_rows
from nartk.hypothesis import Request
from nartk.rows import cat_rows
from nartk.scorer import BlockScorer, CanvasScorer, FrameScorer, GraphScorer, Seq2SeqScorer, Source
from nartk.sums import tree_sum

_WORDS = 16  # of each vertex of a graph, the likeliest; all others count as equally likely
_REST = 1e-6  # probability that is left for them, at least


def can_draft(scorer: Any) -> bool:
    """Whether a model is of a kind that `parallel_drafter` takes."""
    return any(isinstance(scorer, protocol) for protocol in _DRAFTERS)


def parallel_drafter(scorer: Any, verifier: Seq2SeqScorer, block_size: int) -> Drafter:
    """What drafts with a model for a verifier, at most `block_size` tokens at a time."""
    make = next(make for protocol, make in _DRAFTERS.items() if isinstance(scorer, protocol))
    return make(scorer, verifier, block_size)


@dataclass(frozen=True)
class _Canvas:
    """B rows that are drafted for on a canvas.

    Attributes:
        source: The scorer's state that has read the sources.
        sizes: [B] int64, places of the canvas, eos included, as predicted; the longest there may be, where
            nothing is predicted.
        limits: [B] int64, the longest output.
    """

    source: Any
    sizes: Tensor
    limits: Tensor


@dataclass(frozen=True)
class _Filling(Drafter):
    """Fills the masked places behind what was accepted, all at once."""

    scorer: Any
    block: int

    def select(self, state: _Canvas, rows: Tensor) -> _Canvas:
        source = self.scorer.select(state.source, rows)
        return _Canvas(source, state.sizes[rows], state.limits[rows])

    def join(self, first: _Canvas, second: _Canvas) -> _Canvas:
        return _Canvas(
            self.scorer.join(first.source, second.source),
            torch.cat([first.sizes, second.sizes]),
            torch.cat([first.limits, second.limits]),
        )

    def fill(
        self, state: _Canvas, canvas: Tensor, sizes: Tensor, lengths: Tensor, never: list[int]
    ) -> Tensor:
        """The best words but `never` ones at the first masked places behind lengths [B] -> [B,K].

        -1 where no place is masked.

        Args:
            canvas: [B,T], of which sizes [B] places count.
        """
        places = torch.arange(canvas.shape[1], device=canvas.device)
        wanted = (canvas == self.scorer.mask) & (places >= lengths[:, None]) & (places < sizes[:, None])
        wanted &= places < lengths[:, None] + self.block
        logits = self.scorer.fill(canvas, sizes, state.source, wanted).float()  # [N,V]
        silent = torch.tensor([self.scorer.mask, self.scorer.vocab.pad, *never], device=canvas.device)
        rows, at = wanted.nonzero().unbind(1)
        tokens = canvas.new_full((len(canvas), self.block), -1)
        tokens[rows, at - lengths[rows]] = likeliest(logits.index_fill(1, silent, float("-inf")))
        return tokens


class BlockDrafter(_Filling):
    """Drafts with a blockwise model: fills so many places behind the accepted words; its eos ends a draft."""

    def start(self, source: Source, requests: Sequence[Request]) -> _Canvas:
        limits = _limits(requests, source)
        return _Canvas(self.scorer.read(source), limits, limits)

    def draft(
        self, state: _Canvas, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _Canvas]:
        sizes = (lengths + budget.clamp(max=self.block)).clamp(min=1)
        canvas = _behind(outputs, lengths, sizes, self.scorer.mask)
        tokens = self.fill(state, canvas, sizes, lengths, [])
        return _up_to_eos(tokens, self.scorer.vocab.eos), state


class CanvasDrafter(_Filling):
    """Drafts with a model that predicts lengths: the canvas of the likeliest one, with eos at its end.

    Where more has been accepted, eos follows at once.
    """

    def start(self, source: Source, requests: Sequence[Request]) -> _Canvas:
        limits = _limits(requests, source)
        state = self.scorer.read(source)
        sizes, _ = likeliest_lengths(self.scorer.predict_lengths(state), limits, 1)  # [B,1]
        return _Canvas(state, sizes.squeeze(1), limits)

    def draft(
        self, state: _Canvas, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _Canvas]:
        eos = self.scorer.vocab.eos
        # A row that has ended at its limit has no place for a further eos.
        sizes = state.sizes.maximum(lengths + 1).minimum(state.limits)
        last = sizes[:, None] - 1
        canvas = _behind(outputs, lengths, sizes, self.scorer.mask).scatter(1, last, eos)
        tokens = self.fill(state, canvas, sizes, lengths, [eos])
        steps = torch.arange(self.block, device=outputs.device)
        return _up_to_eos(torch.where(lengths[:, None] + steps == last, eos, tokens), eos), state


@dataclass(frozen=True)
class FrameDrafter(Drafter):
    """Drafts with a model of frames: what they say is copied as input-guided decoding copies the source."""

    scorer: FrameScorer
    copy: SourceCopy

    def start(self, source: Source, requests: Sequence[Request]) -> Any:
        frames, blank, vocab = self.scorer.emit(source), self.scorer.blank, self.scorer.vocab
        if blank is not None:
            said = greedy_search(frames, blank, silent_words(vocab, blank)).collapsed
            return _copying(self.copy, said.tokens, said.lengths, vocab.eos)
        labels = likeliest(frames.log_probs)
        inside = torch.arange(labels.shape[1], device=labels.device) < frames.lengths[:, None]
        words = inside & (labels != vocab.eos)
        return _copying(self.copy, labels, words.cumprod(1).sum(1), vocab.eos)

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        return self.copy.draft(state, outputs, lengths, budget)


@dataclass(frozen=True)
class _GraphState:
    """B rows that are drafted for from a graph.

    Attributes:
        links: [B,L,L] fp32, the log-probability of each edge.
        words: [B,L,C] int64, the likeliest of each vertex, best first; the last vertex says eos.
        lprobs: [B,L,C] fp32, their log-probabilities.
        others: [B,L] fp32, the log-probability of each other word.
        following: [B,L] int64, the vertex that comes next for the likeliest pair of edge and word.
        sizes: [B] int64, vertices.
        forward: [B,L] fp32, log-probability of the accepted tokens and of being at the vertex after them.
    """

    links: Tensor
    words: Tensor
    lprobs: Tensor
    others: Tensor
    following: Tensor
    sizes: Tensor
    forward: Tensor


@dataclass(frozen=True)
class _Graphs:
    """The graphs; the plain output of each, as it is copied; and how many tokens `forward` has seen [B]."""

    graph: _GraphState
    plain: CopyState
    seen: Tensor


@dataclass(frozen=True)
class GraphDrafter(Drafter):
    """Drafts with a DA-Transformer: its lookahead path from the vertex at which the accepted tokens end.

    That is the vertex v with the largest probability of saying the tokens on any path to v,
    f(t, v) = P(y_t|v) * sum over u of f(t-1, u) P(v|u), which is the forward pass of Huang et al. 2022
    (arXiv:2205.07459, section 3.4). Where no path is long enough for the tokens, the plain lookahead output
    is copied as input-guided decoding copies the source.
    """

    scorer: GraphScorer
    copy: SourceCopy
    block: int

    def start(self, source: Source, requests: Sequence[Request]) -> _Graphs:
        graph, eos = self.scorer.emit(source), self.scorer.vocab.eos
        words, lprobs = say_everywhere(self.scorer, graph, _WORDS)
        places = torch.arange(words.shape[1], device=words.device)
        silent = (places == 0) | (places >= graph.lengths[:, None] - 1)
        rest = (1 - tree_sum(lprobs.exp().flatten(0, 1)).view_as(silent)).clamp(min=_REST)
        others = (rest / len(self.scorer.vocab)).log().masked_fill(silent, float("-inf"))
        following = likeliest(graph.links + lprobs[:, None, :, 0])
        forward = torch.where(places == 0, 0.0, float("-inf")).expand(silent.shape)
        state = _GraphState(graph.links, words, lprobs, others, following, graph.lengths, forward)
        tokens = self._path(state, torch.zeros_like(graph.lengths))
        plain = _copying(self.copy, tokens, ((tokens >= 0) & (tokens != eos)).sum(1), eos)
        return _Graphs(state, plain, torch.zeros_like(graph.lengths))

    def draft(
        self, state: _Graphs, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _Graphs]:
        copied, plain = self.copy.draft(state.plain, outputs, lengths, budget)
        graph = state.graph
        for t in range(int((lengths - state.seen).max())):
            at = state.seen + t
            word = outputs.gather(1, at.clamp(max=outputs.shape[1] - 1)[:, None])
            graph = replace(
                graph, forward=torch.where((at < lengths)[:, None], _said(graph, word), graph.forward)
            )
        most, vertex = graph.forward.max(1)
        tokens = self._path(graph, vertex)[:, : self.block]
        width = max(tokens.shape[1], copied.tokens.shape[1])
        tokens, instead = (F.pad(x, (0, width - x.shape[1]), value=-1) for x in (tokens, copied.tokens))
        tokens = torch.where((most > float("-inf"))[:, None], tokens, instead)
        return _up_to_eos(tokens, self.scorer.vocab.eos), _Graphs(graph, plain, lengths)

    def _path(self, graph: _GraphState, start: Tensor) -> Tensor:
        """What the lookahead paths say behind the vertices [B]: [B,K], eos at the end and -1 after it."""
        paths = walk(graph.following, graph.sizes, start)
        tokens = graph.words[:, :, 0].gather(1, paths.vertices[:, 1:])
        steps = torch.arange(1, paths.vertices.shape[1], device=tokens.device)
        return tokens.masked_fill(steps >= paths.counts[:, None], -1)

    def select(self, state: _Graphs, rows: Tensor) -> _Graphs:
        return _Graphs(select_rows(state.graph, rows), self.copy.select(state.plain, rows), state.seen[rows])

    def join(self, first: _Graphs, second: _Graphs) -> _Graphs:
        graph = join_rows(first.graph, second.graph, fill=0)
        logarithms = {
            name: cat_rows(getattr(first.graph, name), getattr(second.graph, name), float("-inf"))
            for name in ("links", "others", "forward")
        }
        return _Graphs(
            replace(graph, **logarithms),
            self.copy.join(first.plain, second.plain),
            torch.cat([first.seen, second.seen]),
        )


def _said(graph: _GraphState, word: Tensor) -> Tensor:
    """`forward` after a further word [B,1]: one edge more, and the word at its end."""
    same = graph.words == word[:, :, None]
    known = graph.lprobs.masked_fill(~same, float("-inf")).amax(2)
    said = torch.where(same.any(2), known, graph.others).masked_fill(
        graph.others == float("-inf"), float("-inf")
    )
    sums = graph.forward[:, :, None] + graph.links  # [B,L,L]
    most = sums.amax(1)
    most = torch.where(most > float("-inf"), most, 0.0)
    # Sums that do not depend on the batch: what stands may depend on the draft, if --beta is above 1.
    return tree_sum((sums - most[:, None]).exp()).log() + most + said


def _limits(requests: Sequence[Request], source: Source) -> Tensor:
    """The longest outputs [B]."""
    return torch.tensor([request.max_len for request in requests], device=source.lengths.device)


def _behind(outputs: Tensor, lengths: Tensor, sizes: Tensor, mask: int) -> Tensor:
    """A canvas [B,T], T the largest of sizes [B]: outputs, of which lengths [B] count, and masks behind."""
    known = outputs[:, : int(sizes.max())]
    places = torch.arange(known.shape[1], device=outputs.device)
    return torch.where(places < lengths[:, None], known, mask)


def _up_to_eos(tokens: Tensor, eos: int) -> Draft:
    """A draft of tokens [B,K] up to the first eos or -1."""
    ends = tokens == eos
    lengths = tokens.new_full(tokens.shape[:1], tokens.shape[1])
    return Draft(tokens.masked_fill(ends.cumsum(1) - ends.long() > 0, -1), lengths)


def _copies(verifier: Seq2SeqScorer, longest: int) -> SourceCopy:
    """What finds its place as input-guided decoding does, in whatever text it is given to copy."""
    return SourceCopy(verifier.source_to_target, spelling(verifier.vocab).to(verifier.device), longest)


def _copying(copy: SourceCopy, words: Tensor, lengths: Tensor, eos: int) -> CopyState:
    """The state of rows that copy words [B,T], of which lengths [B] count, and eos behind them."""
    width = int(lengths.max()) + 1
    inside = torch.arange(width, device=words.device) < lengths[:, None]
    state = copy_state(torch.where(inside, words[:, :width], -1), lengths, copy.spelling)
    return replace(state, text=state.text.scatter(1, lengths[:, None], eos))


_DRAFTERS: dict[type, Callable[[Any, Seq2SeqScorer, int], Drafter]] = {
    BlockScorer: lambda scorer, _, size: BlockDrafter(scorer, min(size, scorer.block)),
    CanvasScorer: lambda scorer, _, size: CanvasDrafter(scorer, size),
    FrameScorer: lambda scorer, verifier, size: FrameDrafter(scorer, _copies(verifier, size)),
    GraphScorer: lambda scorer, verifier, size: GraphDrafter(scorer, _copies(verifier, size), size),
}
