"""Drafters that are non-autoregressive models. They read the source once, and see what was accepted so far.

Where drafts may branch, the best draft stays the first path: no fewer tokens of it stand.
Symbols: B rows, K drafted tokens, T output positions, canvas places or frames, L vertices of a graph, P
places of a text, C words of a place or vertex, R tokens of a branch, N places in all, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.ctc_search import greedy_labels, silent_words
from nartk.decoders.dag_paths import say_everywhere
from nartk.decoders.graph import likeliest, walk_everywhere
from nartk.decoders.tensor_best import best_of
from nartk.decoders.tensor_copy import CopyState, SourceCopy, copy_state, spelling
from nartk.decoders.tensor_loop import Draft, Drafter, join_rows, select_rows
from nartk.decoders.tree import Branches, DraftTree, Lattice
from nartk.hypothesis import Request
from nartk.rows import cat_rows, steps, these
from nartk.scorer import (
    BlockScorer,
    CanvasScorer,
    Frames,
    FrameScorer,
    GraphScorer,
    Seq2SeqScorer,
    Source,
)

_WORDS = 8  # of each vertex of a graph, the likeliest; all others count as equally likely
_REST = 1e-6  # probability that is left for them, at least
_BRANCHES = 4  # words that may stand in the place of a drafted one, at most
_RUN = 8  # tokens of a branch, at most
_PAIRS = 4 * _BRANCHES  # likeliest pairs of edge and word that branches begin with, as some say the same
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
        masked = steps(self.block, canvas.device) < (sizes - lengths)[:, None]  # [B,K]
        tokens = canvas.new_full(masked.shape, -1).masked_scatter(masked, likeliest(spoken))
        draft = _up_to_eos(tokens, vocab.eos)
        if self.tree:
            said = tokens.masked_fill(steps(self.block, tokens.device) >= draft.lengths[:, None], -1)
            others = _other_words(masked, logits, spoken)
            branches = _branches(said, _places(*others, self.block, vocab.eos), self.tree)
            draft = DraftTree.grow(draft, branches, self.tree)
        return draft, state

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.scorer.select(state, rows)

    def join(self, first: Any, second: Any) -> Any:
        return self.scorer.join(first, second)


@dataclass(frozen=True)
class _Frames:
    """The text that a model has said, as it is copied, and where it may be left; None: nowhere."""

    said: CopyState
    branches: Branches | None


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
        if state.branches is not None:
            places = said.cursor[:, None] + steps(draft.tokens.shape[1], lengths.device)
            places = places.clamp(max=state.branches.tokens.shape[1] - 1)
            draft = DraftTree.grow(draft, _at(state.branches, places), self.tree)
        return draft, replace(state, said=said)

    def select(self, state: _Frames, rows: Tensor) -> _Frames:
        return _Frames(self.copy.select(state.said, rows), _select(state.branches, rows))

    def join(self, first: _Frames, second: _Frames) -> _Frames:
        return _Frames(self.copy.join(first.said, second.said), _join(first.branches, second.branches))


class FrameDrafter(_Copying):
    """Drafts with a model of frames, which says all of them once.

    A tree's other paths say another word in a later frame, with the probability that the frames between say
    nothing, or go on with the word of the likeliest labels' run; then what the text says after that frame.
    """

    def start(self, source: Source, requests: Sequence[Request]) -> _Frames:
        frames, blank, vocab = self.scorer.emit(source), self.scorer.blank, self.scorer.vocab
        branches = None
        if blank is not None:
            silent = silent_words(vocab, blank)
            said = greedy_labels(frames, blank, silent)
            state = _copying(self.copy, said.tokens, said.lengths, vocab.eos)
            if self.tree:
                words, lprobs = _frame_words(frames, [blank, *silent])
                lattice = _frame_lattice(frames, said.places, state.text, words, lprobs, blank, vocab.eos)
                branches = _branches(state.text, lattice, self.tree)
            return _Frames(state, branches)
        labels = likeliest(frames.log_probs)
        inside = steps(labels.shape[1], labels.device) < frames.lengths[:, None]
        lengths = (inside & (labels != vocab.eos)).cumprod(1).sum(1)
        state = _copying(self.copy, labels, lengths, vocab.eos)
        if self.tree:
            words, lprobs = _frame_words(frames, [vocab.bos, vocab.pad])
            lattice = _places(words, lprobs, state.text.shape[1], vocab.eos)
            branches = _branches(state.text, lattice, self.tree)
        return _Frames(state, branches)


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
        masked = steps(int(sizes.max()), sizes.device) < words[:, None]
        canvas = torch.where(masked, scorer.mask, vocab.eos)
        logits = scorer.fill(canvas, sizes, state, masked).float()  # [N,V]
        never = these((scorer.mask, vocab.pad, vocab.eos), sizes.device)
        spoken = logits.index_fill(1, never, float("-inf"))
        said = canvas.masked_scatter(masked, likeliest(spoken))
        copied, branches = _copying(self.copy, said, words, vocab.eos), None
        if self.tree:
            lattice = _places(*_other_words(masked, logits, spoken), copied.text.shape[1], vocab.eos)
            branches = _branches(copied.text, lattice, self.tree)
        return _Frames(copied, branches)


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
class _Ways(Branches):
    """What else may follow each vertex, P being L, and the way of the draft from there.

    Attributes:
        through: [B,L,K] int64, the vertex before each token.
        before: [B,L,K] fp32, the log-probability of the way to it.
    """

    through: Tensor
    before: Tensor


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
        columns = steps(words.shape[1], words.device)
        last = graph.lengths[:, None] - 1
        rest = (1 - lprobs.exp().sum(2)).clamp(min=_REST)
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
            beside, said = lattice.beside(drafts[:, :, 0])
            through = through[:, :, :-1]
            chances = said.gather(1, through.flatten(1)).view_as(through).cumsum(2)
            run = min(_RUN, self.tree) - 1
            found = beside.branches(drafts[:, :, :run], chances[:, :, :run])
            ways = _Ways(found.tokens, found.lprobs, through, F.pad(chances[:, :, :-1], (1, 0)))
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
        rows = steps(len(vertex), vertex.device)
        tokens = graph.drafts[rows, vertex]
        draft = Draft(tokens, torch.full_like(vertex, tokens.shape[1]))
        if state.ways is not None:
            branches = _at(state.ways, state.ways.through[rows, vertex])
            before = state.ways.before[rows, vertex][:, :, None, None]
            branches = replace(branches, lprobs=branches.lprobs + before)
            draft = DraftTree.grow(draft, branches, self.tree)
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


def _frame_words(frames: Frames, silent: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The likeliest words of each frame and their log-probabilities, minus infinity if silent: [B,T,C]."""
    log_probs = frames.log_probs
    batch, count, size = log_probs.shape
    words = best_of(log_probs.flatten(0, 1), min(_BRANCHES + 2, size)).view(batch, count, -1)
    inside = steps(count, words.device) < frames.lengths[:, None]
    never = torch.isin(words, these(tuple(silent), words.device)) | ~inside[:, :, None]
    return words, log_probs.gather(2, words).masked_fill(never, float("-inf"))


def _frame_lattice(
    frames: Frames, places: Tensor, text: Tensor, words: Tensor, lprobs: Tensor, blank: int, eos: int
) -> Lattice:
    """What may be said at each place of a text [B,P] that frames say; after its end, nothing.

    Args:
        places: [B,T], the word of the text that each frame is a part of, or -1.
        words, lprobs: [B,T,C], as `_frame_words` gives them.
    """
    (batch, count), size, never = places.shape, text.shape[1], float("-inf")
    ahead = steps(count + 1, text.device)
    # Within a run the word of its labels is no further word, and says as little as the blank.
    goes_on = F.pad((places[:, 1:] == places[:, :-1]) & (places[:, 1:] >= 0), (1, 0))
    quiet, best = frames.log_probs[:, :, blank], lprobs.amax(2)
    quiet = torch.where(goes_on, quiet.logaddexp(best), quiet).clamp(_QUIET, 0.0)
    quiet = quiet.masked_fill(ahead[:-1] >= frames.lengths[:, None], 0.0)
    again = goes_on[:, :, None] & (lprobs == best[:, :, None])
    # A frame more says eos.
    words = F.pad(words, (0, 0, 0, 1), value=eos)
    lprobs = F.pad(lprobs.masked_fill(again, never), (0, 0, 0, 1), value=never)
    lprobs[:, -1, 0] = 0.0
    # The first frame after that of the word before each place; what is no word goes to a further column.
    into = torch.where(places >= 0, places + 1, size)
    at = text.new_zeros(batch, size + 1).scatter_reduce(1, into, ahead[1:].expand_as(into), "amax")[:, :size]
    sums = F.pad(quiet.cumsum(1), (1, 0))  # [B,T+1], over the frames before each
    links = (sums[:, None] - sums.gather(1, at)[:, :, None]).masked_fill(ahead < at[:, :, None], never)
    found = _continuations(links, words, lprobs)
    after = F.pad(places.cummax(1).values + 1, (0, 1), value=size)
    return replace(found, leads=after.gather(1, found.leads.flatten(1)).view_as(found.leads))


def _other_words(masked: Tensor, logits: Tensor, spoken: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest words of masked places [B,T] and their log-probabilities, by logits [N,V]: [B,T,C].

    Args:
        spoken: [N,V], the logits with minus infinity for what is never said.
    """
    count = min(_BRANCHES + 1, spoken.shape[1])
    best = best_of(spoken, count) if len(spoken) else spoken[:, :count].long()
    lprobs = spoken.gather(1, best) - logits.logsumexp(1, keepdim=True)
    shape = (*masked.shape, count)
    return (
        best.new_full(shape, -1).masked_scatter(masked[:, :, None], best),
        lprobs.new_zeros(shape).masked_scatter(masked[:, :, None], lprobs),
    )


def _places(words: Tensor, lprobs: Tensor, size: int, eos: int) -> Lattice:
    """The lattice of a text of so many places, at which such words [B,T,C] may stand; after eos, nothing."""
    missing = (0, 0, 0, size - words.shape[1])
    words, lprobs = F.pad(words, missing, value=-1), F.pad(lprobs, missing)
    leads = torch.where(words == eos, size, steps(size + 1, words.device)[1:, None])
    return Lattice(words, lprobs, leads)


def _branches(text: Tensor, lattice: Lattice, nodes: int) -> Branches:
    """Where texts [B,P] may be left, and how each goes on after that. Place P is beyond their end.

    Args:
        text: -1 after its end.
        nodes: Most that will be chosen.
    """
    others, said = lattice.beside(text)
    run = min(_RUN, nodes) - 1
    sums = F.pad(said.cumsum(1), (1, run))
    before = sums[:, : text.shape[1] + 1, None]
    walks = F.pad(text, (0, run), value=-1).unfold(1, run, 1)  # [B,P+1,R-1]
    chances = sums[:, 1:].unfold(1, run, 1) - before
    return replace(others, lprobs=others.lprobs + before[:, :-1]).branches(walks, chances)


def _continuations(links: Tensor, words: Tensor, lprobs: Tensor) -> Lattice:
    """The likeliest pairs of an edge [B,P,L] and a word [B,L,C] at its end, which it leads to.

    Of pairs with the same word the best.

    Args:
        lprobs: [B,L,C], of the words.
    """
    batch, size, count = words.shape
    # So many pairs lie at the ends of no more edges, those with the best words.
    to = (links + lprobs.amax(2)[:, None]).topk(min(_PAIRS, size), 2).indices  # [B,P,H]
    rows = steps(batch, to.device)[:, None, None]
    pairs = (links.gather(2, to)[..., None] + lprobs[rows, to]).flatten(2)  # [B,P,H,C] -> [B,P,H*C]
    scores, chosen = pairs.topk(min(_PAIRS, pairs.shape[2]), 2)
    tokens, vertices = words[rows, to].flatten(2).gather(2, chosen), to.gather(2, chosen // count)
    again = (tokens[..., None] == tokens[:, :, None]).tril(-1).any(3)
    useless = again | (scores == float("-inf"))
    order = useless.int().sort(dim=2, stable=True).indices[:, :, : _BRANCHES + 1]
    tokens, scores, vertices = (
        x.gather(2, order) for x in (tokens.masked_fill(useless, -1), scores, vertices)
    )
    return Lattice(tokens, scores, vertices)


def _at(branches: Branches, places: Tensor) -> Branches:
    """Those of places [B,K]."""
    rows = steps(len(places), places.device)[:, None]
    return Branches(branches.tokens[rows, places], branches.lprobs[rows, places])


def _select(branches: Any, rows: Tensor) -> Any:
    return None if branches is None else select_rows(branches, rows)


def _join(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return None
    lprobs = cat_rows(first.lprobs, second.lprobs, float("-inf"))
    return replace(join_rows(first, second), lprobs=lprobs)


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
    inside = steps(width, words.device) < lengths[:, None]
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
