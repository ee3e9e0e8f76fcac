"""Drafters that are non-autoregressive models. They read the source once, and see what was accepted so far.

Where drafts may branch, the best draft stays the first path: no fewer tokens of it stand.
Symbols: B rows, K drafted tokens, T output positions, canvas places or frames, L vertices of a graph or
lattice, C words of a vertex, N places in all, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.beam import best_of
from nartk.decoders.canvas import likeliest_lengths
from nartk.decoders.ctc_search import greedy_search, silent_words
from nartk.decoders.dag_paths import say_everywhere
from nartk.decoders.graph import likeliest, walk
from nartk.decoders.iad import CopyState, SourceCopy, copy_state, spelling
from nartk.decoders.loop import Draft, Drafter, join_rows, select_rows
from nartk.decoders.tree import DraftTree, Lattice
from nartk.hypothesis import Request
from nartk.rows import cat_rows
from nartk.scorer import (
    BlockScorer,
    CanvasScorer,
    Frames,
    FrameScorer,
    GraphScorer,
    Seq2SeqScorer,
    Source,
)
from nartk.sums import tree_sum

_WORDS = 16  # of each vertex of a graph, the likeliest; all others count as equally likely
_REST = 1e-6  # probability that is left for them, at least
_BRANCHES = 4  # words that may follow a vertex of a lattice, at most
_PAIRS = 4 * _BRANCHES  # likeliest pairs of edge and word that these are taken from, as some say the same
_QUIET = -50.0  # log-probability that a frame says nothing, at least: sums of it stay numbers


def can_draft(scorer: Any) -> bool:
    """Whether a model is of a kind that `parallel_drafter` takes."""
    return any(isinstance(scorer, protocol) for protocol in _DRAFTERS)


def parallel_drafter(scorer: Any, verifier: Seq2SeqScorer, block_size: int, *, tree: int = 0) -> Drafter:
    """What drafts with a model for a verifier, at most `block_size` tokens at a time.

    Args:
        tree: Most tokens beside the best draft's, on paths that leave it.
    """
    make = next(make for protocol, make in _DRAFTERS.items() if isinstance(scorer, protocol))
    return make(scorer, verifier, block_size, tree)


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
    tree: int = 0

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
    ) -> tuple[Tensor, Tensor]:
        """The best words but `never` ones at the first masked places behind lengths [B] -> [B,K,C], and their
        log-probabilities; C is 1 where drafts are single paths.

        -1 and 0 where no place is masked.

        Args:
            canvas: [B,T], of which sizes [B] places count.
        """
        places = torch.arange(canvas.shape[1], device=canvas.device)
        wanted = (canvas == self.scorer.mask) & (places >= lengths[:, None]) & (places < sizes[:, None])
        wanted &= places < lengths[:, None] + self.block
        logits = self.scorer.fill(canvas, sizes, state.source, wanted).float()  # [N,V]
        silent = torch.tensor([self.scorer.mask, self.scorer.vocab.pad, *never], device=canvas.device)
        logits = logits.index_fill(1, silent, float("-inf"))
        rows, at = wanted.nonzero().unbind(1)
        count = min(_BRANCHES, logits.shape[1]) if self.tree else 1
        tokens = canvas.new_full((len(canvas), self.block, count), -1)
        lprobs = logits.new_zeros(tokens.shape)
        best = best_of(logits, count) if self.tree and len(logits) else likeliest(logits)[:, None]
        tokens[rows, at - lengths[rows]] = best
        if self.tree:
            lprobs[rows, at - lengths[rows]] = logits.log_softmax(1).gather(1, best)
        return tokens, lprobs

    def branch(self, tokens: Tensor, lprobs: Tensor) -> Draft:
        """The draft of the first of tokens [B,K,C], and a tree with others of log-probabilities [B,K,C]."""
        eos = self.scorer.vocab.eos
        draft = _up_to_eos(tokens[:, :, 0], eos)
        if not self.tree:
            return draft
        ahead = torch.arange(1, self.block + 1, device=tokens.device)
        lattice = Lattice(tokens, lprobs, torch.where(tokens == eos, -1, ahead[:, None]))
        return DraftTree.grow(draft, lattice, F.pad(ahead, (1, 0)).expand(len(tokens), -1), self.tree)


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
        return self.branch(*self.fill(state, canvas, sizes, lengths, [])), state


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
        tokens, lprobs = self.fill(state, canvas, sizes, lengths, [eos])
        steps = torch.arange(self.block, device=outputs.device)
        tokens[:, :, 0] = torch.where(lengths[:, None] + steps == last, eos, tokens[:, :, 0])
        return self.branch(tokens, lprobs), state


@dataclass(frozen=True)
class _Places(Lattice):
    """A lattice [B,L,C], and where a text that is copied lies in it.

    Attributes:
        at: [B,P] int64, the vertex before each place of the text, and in the end that after its eos.
    """

    at: Tensor

    def before(self, place: Tensor, count: int) -> Tensor:
        """The vertices before so many tokens from each place [B] on, and that after them: [B,K+1]."""
        steps = torch.arange(count + 1, device=place.device)
        return self.at.gather(1, (place[:, None] + steps).clamp(max=self.at.shape[1] - 1))


@dataclass(frozen=True)
class _Frames:
    """The text that frames say, as it is copied, and where it may be left; None: nowhere."""

    said: CopyState
    places: _Places | None


@dataclass(frozen=True)
class FrameDrafter(Drafter):
    """Drafts with a model of frames: what they say is copied as input-guided decoding copies the source.

    A tree's other paths are other labels of the frames: each vertex is a frame, and an edge the probability
    that the frames between say nothing, or go on with the word of the likeliest labels' run.
    """

    scorer: FrameScorer
    copy: SourceCopy
    tree: int = 0

    def start(self, source: Source, requests: Sequence[Request]) -> _Frames:
        frames, blank, vocab = self.scorer.emit(source), self.scorer.blank, self.scorer.vocab
        places = None
        if blank is not None:
            silent = silent_words(vocab, blank)
            said = greedy_search(frames, blank, silent).collapsed
            if self.tree:
                places = _frame_places(frames, said.places, said.lengths, [blank, *silent], blank, vocab.eos)
            return _Frames(_copying(self.copy, said.tokens, said.lengths, vocab.eos), places)
        labels = likeliest(frames.log_probs)
        steps = torch.arange(labels.shape[1], device=labels.device)
        lengths = ((steps < frames.lengths[:, None]) & (labels != vocab.eos)).cumprod(1).sum(1)
        if self.tree:
            each = torch.where(steps < lengths[:, None], steps, -1)
            places = _frame_places(frames, each, lengths, [vocab.bos, vocab.pad], None, vocab.eos)
        return _Frames(_copying(self.copy, labels, lengths, vocab.eos), places)

    def draft(
        self, state: _Frames, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _Frames]:
        draft, said = self.copy.draft(state.said, outputs, lengths, budget)
        if state.places is not None:
            vertices = state.places.before(said.cursor, draft.tokens.shape[1])
            draft = DraftTree.grow(draft, state.places, vertices, self.tree)
        return draft, replace(state, said=said)

    def select(self, state: _Frames, rows: Tensor) -> _Frames:
        return _Frames(self.copy.select(state.said, rows), _select(state.places, rows))

    def join(self, first: _Frames, second: _Frames) -> _Frames:
        return _Frames(self.copy.join(first.said, second.said), _join(first.places, second.places))


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
    """The graphs; the plain output of each, as it is copied; how many tokens `forward` has seen [B]; and what
    else may follow each vertex, where drafts may branch.
    """

    graph: _GraphState
    plain: CopyState
    seen: Tensor
    places: _Places | None


@dataclass(frozen=True)
class GraphDrafter(Drafter):
    """Drafts with a DA-Transformer: its lookahead path from the vertex at which the accepted tokens end.

    That is the vertex v with the largest probability of saying the tokens on any path to v,
    f(t, v) = P(y_t|v) * sum over u of f(t-1, u) P(v|u), which is the forward pass of Huang et al. 2022
    (arXiv:2205.07459, section 3.4). Where no path is long enough for the tokens, the plain lookahead output
    is copied as input-guided decoding copies the source. A tree's other paths are the likeliest pairs of an
    edge and a word at its end.
    """

    scorer: GraphScorer
    copy: SourceCopy
    block: int
    tree: int = 0

    def start(self, source: Source, requests: Sequence[Request]) -> _Graphs:
        graph, eos = self.scorer.emit(source), self.scorer.vocab.eos
        words, lprobs = say_everywhere(self.scorer, graph, _WORDS)
        columns = torch.arange(words.shape[1], device=words.device)
        silent = (columns == 0) | (columns >= graph.lengths[:, None] - 1)
        rest = (1 - tree_sum(lprobs.exp().flatten(0, 1)).view_as(silent)).clamp(min=_REST)
        others = (rest / len(self.scorer.vocab)).log().masked_fill(silent, float("-inf"))
        following = likeliest(graph.links + lprobs[:, None, :, 0])
        forward = torch.where(columns == 0, 0.0, float("-inf")).expand(silent.shape)
        state = _GraphState(graph.links, words, lprobs, others, following, graph.lengths, forward)
        tokens, vertices = self._path(state, torch.zeros_like(graph.lengths))
        plain = _copying(self.copy, tokens, ((tokens >= 0) & (tokens != eos)).sum(1), eos)
        places: _Places | None = None
        if self.tree:
            ways = _continuations(graph.links, words[:, :, :_BRANCHES], lprobs[:, :, :_BRANCHES])
            places = _Places(ways.tokens, ways.lprobs, ways.vertices, vertices)
        return _Graphs(state, plain, torch.zeros_like(graph.lengths), places)

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
        tokens, vertices = self._path(graph, vertex)
        tokens, vertices = tokens[:, : self.block], vertices[:, : self.block + 1]
        width = max(tokens.shape[1], copied.tokens.shape[1])
        tokens, instead = (F.pad(x, (0, width - x.shape[1]), value=-1) for x in (tokens, copied.tokens))
        found = (most > float("-inf"))[:, None]
        draft = _up_to_eos(torch.where(found, tokens, instead), self.scorer.vocab.eos)
        if state.places is not None:
            vertices = F.pad(vertices, (0, width + 1 - vertices.shape[1]), value=-1)
            vertices = torch.where(found, vertices, state.places.before(plain.cursor, width))
            draft = DraftTree.grow(draft, state.places, vertices, self.tree)
        return draft, _Graphs(graph, plain, lengths, state.places)

    def _path(self, graph: _GraphState, start: Tensor) -> tuple[Tensor, Tensor]:
        """What the lookahead paths say behind the vertices [B]: [B,K], eos at the end and -1 after it.

        And the vertices that they go through [B,K+1].
        """
        paths = walk(graph.following, graph.sizes, start)
        tokens = graph.words[:, :, 0].gather(1, paths.vertices[:, 1:])
        steps = torch.arange(1, paths.vertices.shape[1], device=tokens.device)
        return tokens.masked_fill(steps >= paths.counts[:, None], -1), paths.vertices

    def select(self, state: _Graphs, rows: Tensor) -> _Graphs:
        return _Graphs(
            select_rows(state.graph, rows),
            self.copy.select(state.plain, rows),
            state.seen[rows],
            _select(state.places, rows),
        )

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
            _join(first.places, second.places),
        )


def _frame_places(
    frames: Frames, places: Tensor, lengths: Tensor, silent: Sequence[int], blank: int | None, eos: int
) -> _Places:
    """The lattice of frames. Vertex 0 comes before all, vertex t + 1 says a word at frame t, the last eos.

    Args:
        places: [B,T], the word of the text that each frame is a part of, or -1.
        lengths: [B], words of the text.
        silent: The labels that say no word.
        blank: That of a frame that says nothing; None: each frame says a word.
    """
    log_probs, (batch, count) = frames.log_probs, places.shape
    device, minus_inf = places.device, float("-inf")
    inside = torch.arange(count, device=device) < frames.lengths[:, None]
    spoken = log_probs.index_fill(2, torch.tensor(silent, device=device), minus_inf)
    best, labels = spoken.max(2)
    # Within a run the word of its labels is no further word, and says as little as the blank.
    goes_on = F.pad((places[:, 1:] == places[:, :-1]) & (places[:, 1:] >= 0), (1, 0))
    spoken = spoken.scatter(2, labels[:, :, None], best.masked_fill(goes_on, minus_inf)[:, :, None])
    quiet = torch.full_like(best, _QUIET)
    if blank is not None:
        quiet = log_probs[:, :, blank].logaddexp(best.masked_fill(~goes_on, _QUIET)).clamp(_QUIET, 0.0)
    sums = F.pad((quiet * inside).cumsum(1), (1, 0))  # [B,T+1], over the frames before each
    links = F.pad(sums, (1, 0))[:, None] - F.pad(sums, (0, 1))[:, :, None]  # [B,T+2,T+2]
    links = links.masked_fill(torch.ones_like(links[0], dtype=torch.bool).tril(), minus_inf)
    words = best_of(spoken.flatten(0, 1), min(_BRANCHES, spoken.shape[2])).view(batch, count, -1)
    lprobs = spoken.gather(2, words).masked_fill(~inside[:, :, None], minus_inf)
    words, lprobs = F.pad(words, (0, 0, 1, 1), value=eos), F.pad(lprobs, (0, 0, 1, 1), value=minus_inf)
    lprobs[:, -1, 0] = 0.0
    ways = _continuations(links, words, lprobs)
    # Where each word's last frame is; what belongs to none goes to a further column.
    steps = torch.arange(count + 3, device=device)
    at = torch.zeros_like(places[:, :1]).repeat(1, count + 3)
    into = torch.where(places >= 0, places + 1, count + 2)
    at = at.scatter_reduce(1, into, steps[1 : count + 1].expand_as(into), "amax")
    at = torch.where(steps > lengths[:, None], count + 1, at)
    return _Places(ways.tokens, ways.lprobs, ways.vertices.masked_fill(ways.tokens == eos, -1), at)


def _continuations(links: Tensor, words: Tensor, lprobs: Tensor) -> Lattice:
    """The likeliest pairs of an edge [B,L,L] and a word [B,L,C] at its end, of equal words the best.

    Args:
        lprobs: [B,L,C], of the words, the best first.
    """
    batch, size, count = words.shape
    # So many pairs lie at the ends of no more edges, those with the best words.
    to = (links + lprobs[:, None, :, 0]).topk(min(_PAIRS, size), 2).indices  # [B,L,H]
    rows = torch.arange(batch, device=to.device)[:, None, None]
    pairs = (links.gather(2, to)[..., None] + lprobs[rows, to]).flatten(2)  # [B,L,H,C] -> [B,L,H*C]
    scores, chosen = pairs.topk(min(_PAIRS, pairs.shape[2]), 2)
    tokens, vertices = words[rows, to].flatten(2).gather(2, chosen), to.gather(2, chosen // count)
    again = (tokens[..., None] == tokens[:, :, None]).tril(-1).any(3)
    useless = again | (scores == float("-inf"))
    order = useless.int().sort(dim=2, stable=True).indices[:, :, :_BRANCHES]
    tokens, scores, vertices = (
        x.gather(2, order) for x in (tokens.masked_fill(useless, -1), scores, vertices)
    )
    return Lattice(tokens, scores, vertices)


def _select(places: _Places | None, rows: Tensor) -> _Places | None:
    return None if places is None else select_rows(places, rows)


def _join(first: _Places | None, second: _Places | None) -> _Places | None:
    return None if first is None or second is None else join_rows(first, second)


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
    words = F.pad(words, (0, 1))[:, :width]  # every frame may say one
    state = copy_state(torch.where(inside, words, -1), lengths, copy.spelling)
    return replace(state, text=state.text.scatter(1, lengths[:, None], eos))


_DRAFTERS: dict[type, Callable[[Any, Seq2SeqScorer, int, int], Drafter]] = {
    BlockScorer: lambda scorer, _, size, tree: BlockDrafter(scorer, min(size, scorer.block), tree),
    CanvasScorer: lambda scorer, _, size, tree: CanvasDrafter(scorer, size, tree),
    FrameScorer: lambda scorer, verifier, size, tree: FrameDrafter(scorer, _copies(verifier, size), tree),
    GraphScorer: lambda scorer, verifier, size, tree: GraphDrafter(
        scorer, _copies(verifier, size), size, tree
    ),
}
