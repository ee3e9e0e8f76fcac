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
from nartk.decoders.ctc_search import greedy_labels, silent_words
from nartk.decoders.dag_paths import say_everywhere
from nartk.decoders.graph import likeliest, walk_everywhere
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

_WORDS = 8  # of each vertex of a graph, the likeliest; all others count as equally likely
_REST = 1e-6  # probability that is left for them, at least
_BRANCHES = 4  # words that may follow a vertex of a lattice, at most
_PAIRS = 4 * _BRANCHES  # likeliest pairs of edge and word that these are taken from, as some say the same
_JUMP = -6.0  # log-probability with which a path goes where no edge leads, or says a word at vertex 0
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
class BlockDrafter(Drafter):
    """Drafts with a blockwise model: fills so many places behind the accepted words; its eos ends a draft.

    Args:
        block: Places, K.
        silent: The words that it never says, int64.
    """

    scorer: BlockScorer
    block: int
    silent: Tensor
    tree: int = 0

    def start(self, source: Source, requests: Sequence[Request]) -> Any:
        return self.scorer.read(source)

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        vocab = self.scorer.vocab
        sizes = (lengths + budget.clamp(max=self.block)).clamp(min=1)
        canvas, behind = _behind(outputs, lengths, sizes, self.scorer.mask)
        wanted = behind & (torch.arange(canvas.shape[1], device=canvas.device) < sizes[:, None])
        logits = self.scorer.fill(canvas, sizes, state, wanted).float()  # [N,V]
        spoken = logits.index_fill(1, self.silent, float("-inf"))
        steps = torch.arange(self.block, device=canvas.device)
        masked = steps < (sizes - lengths)[:, None]  # [B,K]
        tokens = canvas.new_full(masked.shape, -1).masked_scatter(masked, likeliest(spoken))
        draft = _up_to_eos(tokens, vocab.eos)
        if self.tree:
            draft = self._grow(draft, masked, logits, spoken)
        return draft, state

    def _grow(self, draft: Draft, masked: Tensor, logits: Tensor, spoken: Tensor) -> Draft:
        """The tree of a draft and other words at its places, masked [B,K], by their logits [N,V].

        Args:
            spoken: [N,V], with minus infinity for what is never said.
        """
        best = (
            best_of(spoken, min(_BRANCHES, spoken.shape[1])) if len(spoken) else spoken[:, :_BRANCHES].long()
        )
        shape = (*masked.shape, best.shape[1])
        tokens = best.new_full(shape, -1).masked_scatter(masked[:, :, None], best)
        lprobs = logits.new_zeros(shape)
        lprobs = lprobs.masked_scatter(masked[:, :, None], logits.log_softmax(1).gather(1, best))
        ahead = torch.arange(1, self.block + 1, device=tokens.device)
        leads = torch.where(tokens == self.scorer.vocab.eos, -1, ahead[:, None])
        vertices = F.pad(ahead, (1, 0)).expand(len(tokens), -1)
        return DraftTree.grow(draft, Lattice(tokens, lprobs, leads), vertices, self.tree)

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.scorer.select(state, rows)

    def join(self, first: Any, second: Any) -> Any:
        return self.scorer.join(first, second)


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
    """The text that a model has said, as it is copied, and where it may be left; None: nowhere."""

    said: CopyState
    places: _Places | None


@dataclass(frozen=True)
class _Copying(Drafter):
    """Copies what a model has said of the source, as input-guided decoding copies the source.

    A tree's other paths are other words of the places at which the model said them.
    """

    scorer: Any
    copy: SourceCopy
    tree: int = 0

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


class FrameDrafter(_Copying):
    """Drafts with a model of frames, which says all of them once.

    In a tree each vertex is a frame, and an edge the probability that the frames between say nothing, or go
    on with the word of the likeliest labels' run.
    """

    def start(self, source: Source, requests: Sequence[Request]) -> _Frames:
        frames, blank, vocab = self.scorer.emit(source), self.scorer.blank, self.scorer.vocab
        places = None
        if blank is not None:
            silent = silent_words(vocab, blank)
            said = greedy_labels(frames, blank, silent)
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


class CanvasDrafter(_Copying):
    """Drafts with a model that predicts lengths: it fills the canvas of the likeliest one once.

    To fill it again behind each accepted prefix costs as much as to verify a draft. It spares no passes
    either, but with a model that has learnt to fill any part of a canvas, where it spares one in twelve.
    """

    def start(self, source: Source, requests: Sequence[Request]) -> _Frames:
        scorer, vocab = self.scorer, self.scorer.vocab
        state = scorer.read(source)
        sizes = likeliest(scorer.predict_lengths(state)).clamp(min=1)  # with eos
        words = sizes - 1
        steps = torch.arange(int(sizes.max()), device=sizes.device)
        masked = steps < words[:, None]
        canvas = torch.where(masked, scorer.mask, vocab.eos)
        logits = scorer.fill(canvas, sizes, state, masked).float()  # [N,V]
        never = [scorer.mask, vocab.pad, vocab.eos]
        spoken = logits.index_fill(1, torch.tensor(never, device=sizes.device), float("-inf"))
        places = None
        if self.tree:
            log_probs = logits.new_zeros(*masked.shape, logits.shape[1])
            log_probs = log_probs.masked_scatter(masked[:, :, None], logits.log_softmax(1))
            each = torch.where(masked, steps, -1)
            places = _frame_places(Frames(log_probs, words), each, words, never, None, vocab.eos)
        said = canvas.masked_scatter(masked, likeliest(spoken))
        return _Frames(_copying(self.copy, said, words, vocab.eos), places)


@dataclass(frozen=True)
class _GraphState:
    """B rows that are drafted for from a graph.

    Attributes:
        links: [B,L,L] fp32, the log-probability of each edge; `_JUMP` where it is lower, or where none is.
        words: [B,L,C] int64, the likeliest of each vertex, best first; the last vertex says eos.
        lprobs: [B,L,C] fp32, their log-probabilities.
        others: [B,L,1] fp32, the log-probability of each other word; `_JUMP` at vertex 0.
        drafts: [B,L,K] int64, what the lookahead path says behind each vertex, eos at its end, then -1.
        forward: [B,L] fp32, log-probability of the likeliest path that says the accepted tokens and ends at
            the vertex.
        seen: [B] int64, how many tokens these are.
    """

    links: Tensor
    words: Tensor
    lprobs: Tensor
    others: Tensor
    drafts: Tensor
    forward: Tensor
    seen: Tensor


@dataclass(frozen=True)
class _Ways(Lattice):
    """A lattice [B,L,C], and the way of the draft from each vertex.

    Attributes:
        through: [B,L,K+1] int64, the vertex itself, and that of each token.
    """

    through: Tensor


@dataclass(frozen=True)
class _Graphs:
    """The graphs, and what else may follow each vertex, where drafts may branch."""

    graph: _GraphState
    ways: _Ways | None


@dataclass(frozen=True)
class GraphDrafter(Drafter):
    """Drafts with a DA-Transformer: its lookahead path from the vertex at which the accepted tokens end.

    That is where the likeliest path ends that says them: the vertex v with the largest
    f(t, v) = P(y_t|v) * max over u of f(t-1, u) P(v|u), which is the forward pass of Huang et al. 2022
    (arXiv:2205.07459, section 3.4) with a maximum in the place of the sum. So that some path says whatever is
    accepted, a path may go from any vertex to any, and vertex 0 may say any word, at the cost of `_JUMP`. The
    lookahead path from every vertex is known from the start. A tree's other paths are the likeliest pairs of
    an edge and a word at its end.
    """

    scorer: GraphScorer
    block: int
    tree: int = 0

    def start(self, source: Source, requests: Sequence[Request]) -> _Graphs:
        graph = self.scorer.emit(source)
        words, lprobs = say_everywhere(self.scorer, graph, _WORDS)
        columns = torch.arange(words.shape[1], device=words.device)
        last = graph.lengths[:, None] - 1
        rest = (1 - tree_sum(lprobs.exp().flatten(0, 1)).view(words.shape[:2])).clamp(min=_REST)
        others = (rest / len(self.scorer.vocab)).log().masked_fill(columns >= last, float("-inf"))
        others[:, 0] = _JUMP
        through = walk_everywhere(
            likeliest(graph.links + lprobs[:, None, :, 0]), graph.lengths, min(self.block, len(columns) - 1)
        )
        drafts = words[:, :, 0].gather(1, through[:, :, 1:].flatten(1)).view_as(through[:, :, 1:])
        drafts = drafts.masked_fill(through[:, :, :-1] >= last[:, :, None], -1)
        forward = torch.where(columns == 0, 0.0, float("-inf")).expand(words.shape[:2])
        ways = None
        if self.tree:
            lattice = _continuations(graph.links, words[:, :, :_BRANCHES], lprobs[:, :, :_BRANCHES])
            ways = _Ways(lattice.tokens, lattice.lprobs, lattice.vertices, through)
        return _Graphs(
            _GraphState(
                graph.links.clamp(min=_JUMP),
                words,
                lprobs,
                others[:, :, None],
                drafts,
                forward,
                torch.zeros_like(graph.lengths),
            ),
            ways,
        )

    def draft(
        self, state: _Graphs, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, _Graphs]:
        graph = _follow(state.graph, outputs, lengths)
        vertex = graph.forward.max(1).indices
        rows = torch.arange(len(vertex), device=vertex.device)
        tokens = graph.drafts[rows, vertex]
        draft = Draft(tokens, torch.full_like(vertex, tokens.shape[1]))
        if state.ways is not None:
            draft = DraftTree.grow(draft, state.ways, state.ways.through[rows, vertex], self.tree)
        return draft, _Graphs(graph, state.ways)

    def select(self, state: _Graphs, rows: Tensor) -> _Graphs:
        return _Graphs(select_rows(state.graph, rows), _select(state.ways, rows))

    def join(self, first: _Graphs, second: _Graphs) -> _Graphs:
        graph = join_rows(first.graph, second.graph)
        never = {
            name: cat_rows(getattr(first.graph, name), getattr(second.graph, name), float("-inf"))
            for name in ("lprobs", "others", "forward")
        }
        return _Graphs(replace(graph, **never), _join(first.ways, second.ways))


def _follow(graph: _GraphState, outputs: Tensor, lengths: Tensor) -> _GraphState:
    """The state after further tokens of outputs [B,T], of which lengths [B] count."""
    count = int((lengths - graph.seen).max())
    if not count:
        return graph
    at = graph.seen[:, None] + torch.arange(count, device=lengths.device)  # [B,N]
    words = outputs.gather(1, at.clamp(max=outputs.shape[1] - 1))[:, :, None, None]
    # A word that is listed is no less likely than one that is not.
    said = torch.where(graph.words[:, None] == words, graph.lprobs[:, None], graph.others[:, None]).amax(3)
    forward = graph.forward
    for each, fresh in zip(said.unbind(1), (at < lengths[:, None])[:, :, None].unbind(1), strict=True):
        forward = torch.where(fresh, (forward[:, :, None] + graph.links).amax(1) + each, forward)
    return replace(graph, forward=forward, seen=lengths)


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


def _select(lattice: Any, rows: Tensor) -> Any:
    return None if lattice is None else select_rows(lattice, rows)


def _join(first: Any, second: Any) -> Any:
    return None if first is None or second is None else join_rows(first, second)


def _behind(outputs: Tensor, lengths: Tensor, sizes: Tensor, mask: int) -> tuple[Tensor, Tensor]:
    """A canvas [B,T], T the largest of sizes [B]: outputs, of which lengths [B] count, and masks behind.

    And which places are behind, [B,T].
    """
    known = outputs[:, : int(sizes.max())]
    behind = torch.arange(known.shape[1], device=outputs.device) >= lengths[:, None]
    return known.masked_fill(behind, mask), behind


def _up_to_eos(tokens: Tensor, eos: int) -> Draft:
    """A draft of tokens [B,K] up to the first eos."""
    before = (tokens != eos).cumprod(1).sum(1)
    return Draft(tokens, (before + 1).clamp(max=tokens.shape[1]))


def _words(scorer: Any, *words: int) -> Tensor:
    """Words, on the device of a scorer."""
    return torch.tensor(words, device=scorer.device)


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
    BlockScorer: lambda scorer, _, size, tree: BlockDrafter(
        scorer, min(size, scorer.block), _words(scorer, scorer.mask, scorer.vocab.pad), tree
    ),
    CanvasScorer: lambda scorer, verifier, size, tree: CanvasDrafter(scorer, _copies(verifier, size), tree),
    FrameScorer: lambda scorer, verifier, size, tree: FrameDrafter(scorer, _copies(verifier, size), tree),
    GraphScorer: lambda scorer, _, size, tree: GraphDrafter(scorer, size, tree),
}
