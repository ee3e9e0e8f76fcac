"""Drafts, and drafts that branch: many continuations verified in one pass (SpecInfer, Miao et al. 2023,
arXiv:2305.09781).

A tree's nodes are its tokens; each says which node it follows. Symbols: B rows, N drafts a row, K nodes,
D levels, C candidates a level, P paths or places, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.loop.trees import parse_shape
from nartk.errors import UsageError
from nartk.rows import steps
from nartk.scorer import Tree

_FAR = 2**20  # levels, more than a tree has; fp32 counts them exactly
_UNSAID = -9.0  # log-probability of what is said, at least: of that which its lattice does not hold
_SURE = -1e-3  # and at most, so that what follows a token is less probable than it


@dataclass(frozen=True)
class Draft:
    """Proposed tokens [B,K] int64; lengths [B] says how many of each row count.

    What is no word of the target, such as -1, ends a row's draft, or its branch.

    Attributes:
        lprobs: [B,K,V] fp32, the distribution that each token was taken from, for acceptances that compare
            it with the verifier's; None where there is none.
        parents: [B,K] int64, which of the K tokens each follows, one before it; -1: the output's last. None:
            each follows the one before it. The first that follows a token is judged by the acceptance, the
            others stand if they are what is output there; equal ones may be proposed but are not used.
    """

    tokens: Tensor
    lengths: Tensor
    lprobs: Tensor | None = None
    parents: Tensor | None = None


class DraftTree:
    """Builds drafts that branch. The first draft, or the best candidates, are a path of each: no fewer of
    their tokens stand than if they were proposed alone."""

    @staticmethod
    def merge(drafts: Tensor, lengths: Tensor, *, most: int | None = None) -> Draft:
        """One tree of several drafts, in which beginnings that they share occur once.

        Args:
            drafts: [B,N,K] int64, the best first.
            lengths: [B,N], how many tokens of each count.
            most: Nodes that are kept, the first draft's before the second's and so on; None: all.
        """
        _, count, width = drafts.shape
        places = steps(width, drafts.device)
        inside = places < lengths[:, :, None]  # [B,N,K]
        same = (drafts[:, :, None] == drafts[:, None]) & inside[:, :, None] & inside[:, None]
        shared = same.cumprod(3)  # [B,N,N,K]: both begin with the same tokens, up to here
        owner = shared.argmax(2)  # [B,N,K]: the first draft that has them
        kept = inside & (owner == torch.arange(count, device=drafts.device)[:, None])
        before = owner.roll(1, 2) * width + places - 1
        parents = torch.where(places == 0, -1, before).flatten(1)
        return _kept(drafts.flatten(1), parents, kept.flatten(1), most=most)

    @staticmethod
    def unite(drafts: Sequence[Draft], words: int, depth: int, *, most: int | None = None) -> Draft:
        """One tree of drafts, which may branch, as `merge` makes it of the ways to each of their tokens.

        Args:
            words: Of the vocabulary: what is none ends a branch.
            depth: Most levels, D.
        """
        tokens, lengths = zip(*(_lines(draft, words, depth) for draft in drafts), strict=True)
        return DraftTree.merge(torch.cat(tokens, 1), torch.cat(lengths, 1), most=most)

    @staticmethod
    def from_candidates(tokens: Tensor, shape: Sequence[int] | str) -> Draft:
        """A tree of the same shape in each row: after every token of a level, the next level's best ones.

        Args:
            tokens: [B,D,C] int64, the candidates of each level, the best first; -1 where there are fewer.
            shape: How many of each level, such as (4, 3, 2) or "4x3x2"; levels past D are left out.

        Raises:
            UsageError: The shape is none, or asks for more candidates than there are.
        """
        batch, depth, count = tokens.shape
        sizes = parse_shape(shape)[:depth]
        if sizes and max(sizes) > count:
            raise UsageError(f"tree {shape!r} asks for {max(sizes)} candidates a level, there are {count}")
        levels, choices, parents = (torch.tensor(x, device=tokens.device) for x in _static(sizes))
        lengths = torch.full((batch,), len(parents), device=tokens.device)
        return Draft(tokens[:, levels, choices], lengths, parents=parents.expand(batch, -1))

    @staticmethod
    def grow(draft: Draft, branches: Branches, nodes: int) -> Draft:
        """A chain, and the most probable tokens of the branches beside it, so many in all.

        Args:
            draft: The chain, of K tokens at most: it stays the first path.
            branches: What may stand in the place of each of its tokens, P being K. Their log-probabilities
                are from one and the same place on.
        """
        _, width, ways, run = branches.tokens.shape
        lprobs = branches.lprobs.flatten(1)  # [B,K,C,R] -> [B,K*C*R]
        # What is likelier than what follows it is chosen with it; in order of its place, it comes before it.
        chosen = lprobs.topk(min(nodes, lprobs.shape[1]), 1, sorted=False).indices.sort(1).values
        columns = steps(width + chosen.shape[1], chosen.device)
        # The first of a branch follows the chain's token before its place, any other the one before it.
        beside = torch.where(chosen % run == 0, chosen // (ways * run), columns[width:]) - 1
        parents = torch.cat([(columns[:width] - 1).expand_as(draft.tokens), beside], 1)
        chain = draft.tokens.masked_fill(columns[:width] >= draft.lengths[:, None], -1)
        tokens = torch.cat([chain, branches.tokens.flatten(1).gather(1, chosen)], 1)
        return Draft(tokens, torch.full_like(draft.lengths, tokens.shape[1]), parents=parents)


@dataclass(frozen=True)
class Branches:
    """Other ways on from each of P places, C ways of R tokens. Attributes are [B,P,C,R].

    Attributes:
        tokens: int64; -1 after a way's end.
        lprobs: fp32, of the way up to each token, falling along it; minus infinity after its end.
    """

    tokens: Tensor
    lprobs: Tensor


@dataclass(frozen=True)
class Lattice:
    """What may be said at each of P places. Attributes are [B,P,C].

    Attributes:
        tokens: int64, each at most once at a place; -1 where there are fewer than C.
        lprobs: fp32, their log-probabilities at the place.
        leads: int64, the place that each leads to, one of the walks' L.
    """

    tokens: Tensor
    lprobs: Tensor
    leads: Tensor

    def beside(self, own: Tensor) -> tuple[Lattice, Tensor]:
        """What else may be said where own [B,P] is said, and how likely own is [B,P]: a number below 0.

        Where own is -1, nothing may be said.
        """
        never = float("-inf")
        lprobs = self.lprobs.nan_to_num(never, posinf=0.0, neginf=never)
        same = self.tokens == own[:, :, None]
        useless = same | (self.tokens < 0) | (own < 0)[:, :, None]
        said = lprobs.masked_fill(~same, never).amax(2).clamp(_UNSAID, _SURE)
        return Lattice(self.tokens, lprobs.masked_fill(useless, never), self.leads), said

    def branches(self, walks: Tensor, lprobs: Tensor) -> Branches:
        """Each token, and what is said from the place on that it leads to.

        Args:
            walks: [B,L,R-1] int64, what is said from each of L places on; -1 after its end.
            lprobs: [B,L,R-1] fp32, of the walk up to each token, falling along it.
        """
        rows = steps(len(walks), walks.device)[:, None, None]
        tokens = torch.cat([self.tokens[..., None], walks[rows, self.leads]], 3)
        chances = self.lprobs[..., None] + F.pad(lprobs[rows, self.leads], (1, 0))
        ended = (tokens < 0) | (chances == float("-inf"))
        return Branches(tokens.masked_fill(ended, -1), chances.masked_fill(ended, float("-inf")))


@lru_cache(maxsize=32)
def _static(shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    """Level, candidate and parent of each node of a tree of this shape, level by level."""
    levels: list[int] = []
    choices: list[int] = []
    parents: list[int] = []
    above = [-1]
    for level, size in enumerate(shape):
        first = len(parents)
        for parent in above:
            parents += [parent] * size
            choices += range(size)
        levels += [level] * (len(parents) - first)
        above = list(range(first, len(parents)))
    return levels, choices, parents


def ancestors(parents: Tensor) -> Tensor:
    """Which nodes lie on the way to each, itself included: parents [B,K], -1 for none -> [B,K,K] bool.

    A parent that does not come before its node is none.
    """
    return _above(parents[:, :, None] == _columns(parents))


def _above(follows: Tensor) -> Tensor:
    """`ancestors` of which node follows which [B,K,K]."""
    # A node's ancestors are its parent's and itself: A = P A + I, in numbers that are 0 or 1.
    steps_up = follows * -1.0
    itself = _identity(follows.shape[1], steps_up.dtype, follows.device)
    return torch.linalg.solve_triangular(steps_up, itself, upper=False, unitriangular=True) != 0


@lru_cache(maxsize=256)
def _identity(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.eye(count, dtype=dtype, device=device)


def _lines(draft: Draft, words: int, depth: int) -> tuple[Tensor, Tensor]:
    """The ways through a draft [B,N,D], each a draft of its own, and their lengths [B,N]; of a chain one."""
    tokens, columns = draft.tokens, _columns(draft.tokens)
    sound = (tokens >= 0) & (tokens < words) & (columns < draft.lengths[:, None])
    if draft.parents is None:
        missing = max(depth - tokens.shape[1], 0)
        lengths = sound[:, :depth].cumprod(1).sum(1, keepdim=True)
        return F.pad(tokens[:, :depth], (0, missing), value=-1)[:, None], lengths
    above = ancestors(draft.parents)  # [B,K,K]
    levels, ways = above.sum(2), _ways(above, depth)  # [B,K], [B,K,D]
    whole = ~(above & ~sound[:, None]).any(2) & (levels <= depth)
    lines = tokens.gather(1, ways.clamp(min=0).flatten(1)).view(ways.shape)
    return lines.masked_fill(ways < 0, -1), levels * whole


def _ways(above: Tensor, depth: int) -> Tensor:
    """The nodes on the way to each [B,K,D], -1 after it, of `ancestors` [B,K,K]; none is deeper than D."""
    levels = above.sum(2) - 1
    # A column more takes what belongs nowhere.
    places = torch.where(above, levels[:, None].clamp(max=depth - 1), depth)
    ways = torch.full((*levels.shape, depth + 1), -1, device=above.device)
    return ways.scatter_(2, places, _columns(levels).expand_as(places))[:, :, :depth]


def chained(draft: Draft) -> Tensor:
    """The parents [B,K] of a draft, also where it is a chain."""
    if draft.parents is not None:
        return draft.parents
    return (_columns(draft.tokens) - 1).expand(draft.tokens.shape)


def nothing(rows: int, device: torch.device) -> Draft:
    """A draft of no tokens."""
    lengths = torch.zeros(rows, dtype=torch.int64, device=device)
    return Draft(lengths.new_zeros(rows, 0), lengths)


def feedable(draft: Draft, words: int, budget: Tensor, *, branching: bool) -> tuple[Draft, Tensor | None]:
    """What of a draft can be fed, up to so many levels [B]; of a tree its leaves and levels [B,2], else None.

    A drafter is not trusted: whatever it proposes, words are fed. Arguments as for `prune`.
    """
    if draft.parents is not None:
        return prune(draft, words, budget, branching=branching)
    sound = draft.tokens.clamp(0, words - 1) == draft.tokens
    lengths = sound.cumprod(1).sum(1).minimum(draft.lengths).minimum(budget).clamp(min=0)
    return replace(draft, lengths=lengths), None


def prune(draft: Draft, words: int, budget: Tensor, *, branching: bool) -> tuple[Draft, Tensor]:
    """What of a tree can be fed, its nodes moved to the front; how many leaves and levels it has [B,2].

    What lies deeper than the budget [B], is no word, or follows nothing before it goes, and what follows it.

    Args:
        words: Of the vocabulary.
        branching: Whether all paths may stay; otherwise the way through each token's first successor.
    """
    tokens, parents = draft.tokens, draft.parents
    assert parents is not None
    if not tokens.shape[1]:
        return replace(draft, lengths=torch.zeros_like(draft.lengths)), tokens.new_zeros(len(tokens), 2)
    columns = _columns(tokens)
    sound = (tokens.clamp(0, words - 1) == tokens) & (columns < draft.lengths[:, None])
    follows, levels, kept = _within(parents, sound, budget)
    if not branching:
        sooner = (parents[:, :, None] == parents[:, None]) & kept[:, None] & (columns < columns[:, None])
        follows, levels, kept = _within(parents, kept & ~sooner.any(2), budget)
    pruned = _kept(tokens, parents, kept, lprobs=draft.lprobs)
    leaves = pruned.lengths - (follows & kept[:, :, None]).any(1).sum(1)
    deepest = torch.where(kept, levels, 0).amax(1).long()
    return pruned, torch.stack([leaves, deepest], 1)


def _within(parents: Tensor, sound: Tensor, budget: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What of sound nodes [B,K] is led to by sound nodes and no deeper than the budget [B].

    Returns:
        Whether the first node follows the second [B,K,K], the level of each [B,K] fp32, and whether it stays.
    """
    parents = torch.where(sound, parents, -2)
    follows = parents[:, :, None] == _columns(parents)
    # A node's level is its parent's and 1: L = P L + 1. What the beginning does not lead to is far away.
    start = torch.where(parents == -1, 1.0 - _FAR, 1.0)[:, :, None]
    levels = torch.linalg.solve_triangular(follows * -1.0, start, upper=False, unitriangular=True).squeeze(2)
    levels = levels + _FAR
    return follows, levels, levels <= budget.clamp(max=_FAR)[:, None]


def _kept(
    tokens: Tensor, parents: Tensor, kept: Tensor, *, lprobs: Tensor | None = None, most: int | None = None
) -> Draft:
    """The nodes that are kept [B,K], at most so many, moved to the front in their order."""
    order = kept.sort(dim=1, descending=True, stable=True).indices[:, :most]
    place = kept.cumsum(1)  # counted from 1: 0 is what the first nodes follow
    parents = F.pad(place, (1, 0)).gather(1, torch.where(kept, parents, -1) + 1) - 1
    if lprobs is not None:
        lprobs = lprobs.gather(1, order[:, :, None].expand(-1, -1, lprobs.shape[2]))
    lengths = kept.sum(1) if most is None else kept.sum(1).clamp(max=most)
    return Draft(tokens.gather(1, order), lengths, lprobs, parents.gather(1, order))


@dataclass(frozen=True)
class Fork:
    """A tree of fed tokens, the output's last token first. K counts it.

    Attributes:
        tree: What the scorer is told.
        parents: [B,K], -1 for the first.
        follows: [B,K,K], whether the first is fed and follows the second.
    """

    tree: Tree
    parents: Tensor
    follows: Tensor

    @cached_property
    def first(self) -> Tensor:
        """The first that follows each [B,K]; itself where there is none."""
        some, first = self.follows.max(1)
        return torch.where(some, first, _columns(self.parents))

    @cached_property
    def ways(self) -> Tensor:
        """The tokens on the way to each [B,K,D+1], -1 after it."""
        return _ways(self.tree.ancestors, self.tree.depth)

    def follow(self, fed: Tensor, tokens: Tensor, stands: Tensor | None, eos: int) -> tuple[Tensor, Tensor]:
        """The way that is taken [B,D+1], -1 after its end; whether a drafted token stands after each [B,K].

        Args:
            fed: [B,K], the tokens of the tree.
            tokens: [B,K], what is output after each.
            stands: [B,K], whether the first that follows it is accepted; None: where it equals the token.
        """
        depth, columns, before = self.tree.depth, _columns(fed), self.parents.clamp(min=0)
        right = fed == tokens.gather(1, before)
        if stands is not None:
            judged = self.first.gather(1, before) == columns
            right = torch.where(judged, stands.gather(1, before), right)
        follows, taken = (self.follows & right[:, :, None]).max(1)  # of equal ones the first
        stops = (taken.gather(1, before) != columns) | (fed == eos)
        stops[:, 0] = False
        missed = (self.tree.ancestors & stops[:, None]).any(2)
        # A column more takes what is not on the way.
        places = torch.where(missed, depth, self.tree.depths)
        way = torch.full((len(fed), depth + 1), -1, device=fed.device)
        return way.scatter_(1, places, columns.expand_as(places))[:, :depth], follows


def fork(parents: Tensor, counts: Tensor | None, leaves: int, depth: int) -> Fork:
    """The tree of fed tokens.

    Args:
        parents: [B,K], -1 for the first token, which all others follow.
        counts: [B], how many of the K are fed; None: all.
        leaves: Of all rows.
        depth: Levels of the row that has most, the first token not counted.
    """
    real = None
    if counts is not None:
        real = _columns(parents) < counts[:, None]
        parents = torch.where(real, parents, -1)
    follows = parents[:, :, None] == _columns(parents)
    above = _above(follows)
    ends = ~follows.any(1)
    if real is not None:
        ends &= real
    ends = ends.flatten().sort(descending=True, stable=True).indices[:leaves]
    return Fork(Tree(above.sum(2) - 1, above, ends, depth + 1), parents, follows)


def _columns(x: Tensor) -> Tensor:
    return steps(x.shape[1], x.device)
