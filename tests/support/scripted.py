"""Scorers without a network: their scores are exact integers, so equality is equality.

They keep the tokens they were fed in a cache that is written in place, as a key-value cache is, and compute
every score from that cache alone. A decoder that forgets to truncate, or that mixes up rows, gets other
scores and so other outputs.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.paced import Adaptive
from nartk.decoders.tensor_copy import SourceCopy, spelling
from nartk.decoders.tensor_loop import DraftAndVerify, Drafter, target_words
from nartk.decoders.tensor_ngram import NgramCache
from nartk.guarantee import IDENTICAL
from nartk.hypothesis import Request, Result
from nartk.registry import make_strategy
from nartk.scorer import Source, Tree
from nartk.vocab import SPECIALS, Vocab

_MASK = 2**64 - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on int64: every bit of the result depends on every bit of x."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _signed(_FIRST)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _signed(_SECOND)
    return x ^ ((x >> 31) & (2**33 - 1))


def mix_int(x: int) -> int:
    """The same on a Python integer, unsigned."""
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class ScriptedState:
    """What B rows were fed.

    Attributes:
        sources: [B,S] int64.
        source_lengths: [B].
        script: [B,M] what a scorer knows of each source beforehand.
        cache: [B,T] int64, written in place; what lies past `lengths` [B] is left over.
        branches: [B,K] the tokens of a tree that was fed and of which nothing was kept yet, or None.
    """

    sources: Tensor
    source_lengths: Tensor
    script: Tensor
    cache: Tensor
    lengths: Tensor
    branches: Tensor | None = None


class ScriptedScorer:
    """Implements nartk.scorer.Seq2SeqScorer; subclasses say what the scores are.

    Args:
        words: Size of the vocabulary, the four specials included.
        width: Source lengths of one bucket.
    """

    def __init__(self, words: int, *, width: int = 64, device: torch.device | str = "cpu") -> None:
        self.vocab = Vocab((*SPECIALS, *(f"w{i}" for i in range(words - len(SPECIALS)))))
        self.device = torch.device(device)
        self.source_to_target = torch.arange(words, device=device)
        self.width = width
        self.calls = 0  # verifier passes

    def read(self, source: Source) -> Tensor:
        """What is known of a source beforehand, [B,M]."""
        return source.tokens.new_empty(len(source.lengths), 0)

    def state_scores(self, state: ScriptedState, rows: Tensor, lengths: Tensor) -> Tensor:
        """Integer scores [N,V] after the first lengths [N] tokens in the cache of each row [N]."""
        raise NotImplementedError

    def mode(self, *, exact: bool) -> ScriptedScorer:
        return copy.copy(self)

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        return source_len // self.width

    def encode(self, source: Source, max_len: int) -> ScriptedState:
        batch = source.tokens.shape[0]
        assert source.lengths.shape == (batch,)
        return ScriptedState(
            sources=source.tokens,
            source_lengths=source.lengths,
            script=self.read(source),
            cache=torch.full((batch, max_len), -1, device=self.device),
            lengths=torch.zeros(batch, dtype=torch.int64, device=self.device),
        )

    def verify(
        self, tokens: Tensor, state: ScriptedState, counts: Sequence[int] | None = None
    ) -> tuple[Tensor, ScriptedState]:
        self.calls += 1
        batch, width = tokens.shape
        assert batch == state.lengths.shape[0], "tokens and state have other numbers of rows"
        fed = torch.tensor([width] * batch if counts is None else counts, device=self.device)
        rows, columns = (torch.arange(width, device=self.device) < fed[:, None]).nonzero().unbind(1)
        positions = state.lengths[rows] + columns
        assert bool((positions < state.cache.shape[1]).all()), "more tokens than `encode` made room for"
        given = tokens[rows, columns]
        assert bool(((given >= 0) & (given < len(self.vocab))).all()), "a token that is no word was fed"
        state.cache[rows, positions] = given
        scores = self.state_scores(state, rows, positions + 1).float()
        if counts is None:
            scores = scores.view(batch, width, -1)
        return scores, replace(state, lengths=state.lengths + fed)

    def step(self, tokens: Tensor, state: ScriptedState) -> tuple[Tensor, ScriptedState]:
        scores, state = self.verify(tokens[:, None], state)
        return scores[:, 0], state

    def truncate(self, state: ScriptedState, lengths: Tensor) -> ScriptedState:
        assert state.branches is None, "the tree was not taken in"
        assert bool((lengths <= state.lengths).all()), "truncate to more than there is"
        return replace(state, lengths=lengths)

    def verify_tree(
        self, tokens: Tensor, state: ScriptedState, counts: Sequence[int], tree: Tree
    ) -> tuple[Tensor, ScriptedState]:
        self.calls += 1
        width = tokens.shape[1]
        columns = torch.arange(width, device=self.device)
        fed = columns < torch.tensor(counts, device=self.device)[:, None]
        rows, nodes = fed.nonzero().unbind(1)
        levels, lines = tree.ancestors[rows, nodes].nonzero().unbind(1)
        ways = Counter((rows[levels] * width + lines).tolist())  # how many nodes each lies on the way to
        ends = [place for place in (rows * width + nodes).tolist() if ways[place] == 1]
        assert tree.leaves.tolist() == ends, "a node on no path"
        assert tree.depth == int(levels.bincount().max())
        given = tokens[rows, nodes]
        assert bool(((given >= 0) & (given < len(self.vocab))).all()), "a token that is no word was fed"
        # Each node gets a row of its own, whose cache holds the node's way.
        scored = self.select(state, rows)
        for i, (row, node) in enumerate(zip(rows.tolist(), nodes.tolist(), strict=True)):
            way = tree.ancestors[row, node].nonzero().squeeze(1)
            assert len(way) == tree.depths[row, node] + 1
            assert bool(fed[row, way].all()), "a node after one that was not fed"
            start = int(state.lengths[row])
            assert start + len(way) <= scored.cache.shape[1], "more tokens than `encode` made room for"
            scored.cache[i, start : start + len(way)] = tokens[row, way]
        positions = state.lengths[rows] + tree.depths[rows, nodes]
        alone = torch.arange(len(rows), device=self.device)
        scores = self.state_scores(scored, alone, positions + 1).float()
        return scores, replace(state, branches=tokens)

    def keep(self, state: ScriptedState, way: Tensor, lengths: Tensor) -> ScriptedState:
        assert state.branches is not None
        for row, (start, end) in enumerate(zip(state.lengths.tolist(), lengths.tolist(), strict=True)):
            kept = way[row, : end - start]
            assert len(kept) == end - start, "longer than the way"
            assert bool((kept >= 0).all()), "longer than the way"
            state.cache[row, start:end] = state.branches[row, kept]
        return replace(state, lengths=lengths, branches=None)

    def select(self, state: ScriptedState, rows: Tensor) -> ScriptedState:
        return ScriptedState(
            sources=state.sources[rows],
            source_lengths=state.source_lengths[rows],
            script=state.script[rows],
            cache=state.cache[rows],
            lengths=state.lengths[rows],
            branches=None if state.branches is None else state.branches[rows],
        )

    def join(self, first: ScriptedState, second: ScriptedState) -> ScriptedState:
        def cat(a: Tensor, b: Tensor) -> Tensor:
            width = max(a.shape[1], b.shape[1])
            return torch.cat([F.pad(x, (0, width - x.shape[1]), value=-1) for x in (a, b)])

        return ScriptedState(
            sources=cat(first.sources, second.sources),
            source_lengths=torch.cat([first.source_lengths, second.source_lengths]),
            script=cat(first.script, second.script),
            cache=cat(first.cache, second.cache),
            lengths=torch.cat([first.lengths, second.lengths]),
        )


class TableScorer(ScriptedScorer):
    """A table from (source, prefix) to scores, too large to store: a hash gives its entries.

    Scores lie in 0 .. spread-1, so that ties are common; the source's word at the output's position, moved
    by up to one place to either side in each stretch of `stretch` tokens, gains `bonus`, so that drafts from
    the source are accepted now and then. Past the source's end eos gains it; before it, eos loses `patience`.
    """

    def __init__(
        self,
        words: int,
        *,
        seed: int = 0,
        spread: int = 8,
        bonus: int = 6,
        stretch: int = 5,
        patience: int = 4,
        width: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(words, width=width, device=device)
        self.seed, self.spread, self.bonus = seed, spread, bonus
        self.stretch, self.patience = stretch, patience

    def state_scores(self, state: ScriptedState, rows: Tensor, lengths: Tensor) -> Tensor:
        return self.scores(state.sources[rows], state.source_lengths[rows], state.cache[rows], lengths)

    def scores(self, sources: Tensor, source_lengths: Tensor, cache: Tensor, lengths: Tensor) -> Tensor:
        """Integer scores [N,V] after the first lengths [N] tokens of each row of cache [N,T]."""
        source_key = self.seed + _sequence_key(sources, source_lengths, 1)  # [N]
        key = source_key + _sequence_key(cache, lengths, 2)
        words = torch.arange(len(self.vocab), device=sources.device)
        scores = ((mix(key[:, None] + words * _signed(_GAMMA)) >> 40) & 0xFFFF) % self.spread  # [N,V]
        position = lengths - 1
        moved = mix(source_key + position // self.stretch)
        at = position + ((moved >> 40) & 0xFFFF) % 3 - 1
        inside = (at >= 0) & (at < source_lengths)
        word = sources.gather(1, at.clamp(0, sources.shape[1] - 1)[:, None]).squeeze(1)
        favourite = torch.where(inside, word, self.vocab.eos) % len(self.vocab)
        early = position < source_lengths - 1
        scores[:, self.vocab.eos] -= self.patience * early
        return scores + self.bonus * (words == favourite[:, None])

    def scores_by_hand(self, source: Sequence[int], prefix: Sequence[int]) -> list[int]:
        """The scores after `prefix` (eos first) in plain Python: the oracle of `scores`."""

        def key_of(tokens: Sequence[int], salt: int) -> int:
            total = 0
            for i, token in enumerate(tokens):
                total += mix_int((salt + (i + 1) * _FIRST + (token + 1) * _SECOND) & _MASK)
            return total

        source_key = self.seed + key_of(source, 1)
        key = source_key + key_of(prefix, 2)
        size = len(self.vocab)
        scores = [((mix_int((key + v * _GAMMA) & _MASK) >> 40) & 0xFFFF) % self.spread for v in range(size)]
        position = len(prefix) - 1
        moved = mix_int((source_key + position // self.stretch) & _MASK)
        at = position + ((moved >> 40) & 0xFFFF) % 3 - 1
        favourite = source[at] if 0 <= at < len(source) else self.vocab.eos
        scores[favourite % size] += self.bonus
        if position < len(source) - 1:
            scores[self.vocab.eos] -= self.patience
        return scores


def _sequence_key(tokens: Tensor, lengths: Tensor, salt: int) -> Tensor:
    """A key [N] of the first lengths [N] of tokens [N,T], each with its place."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    marks = mix(salt + (places + 1) * _signed(_FIRST) + (tokens + 1) * _signed(_SECOND))
    return (marks * (places < lengths[:, None])).sum(1)


def same_words(source: Source) -> tuple[Tensor, Tensor]:
    """A source, as drafters copy it, whose words are the target's: [B,S], -1 for padding; how many [B]."""
    return target_words(source, torch.arange(100_000, device=source.tokens.device))


class ScriptScorer(ScriptedScorer):
    """Says what the script says: for each source its output, which ends with eos.

    After any other prefix than the script's own it says pad.
    """

    def __init__(
        self,
        words: int,
        script: Mapping[tuple[int, ...], Sequence[int]],
        *,
        width: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(words, width=width, device=device)
        self.script = dict(script)

    def read(self, source: Source) -> Tensor:
        rows = zip(source.tokens.tolist(), source.lengths.tolist(), strict=True)
        outputs = [self.script[tuple(tokens[:size])] for tokens, size in rows]
        width = 1 + max(map(len, outputs))
        return torch.tensor(
            [[*output, *[self.vocab.pad] * (width - len(output))] for output in outputs], device=self.device
        )

    def state_scores(self, state: ScriptedState, rows: Tensor, lengths: Tensor) -> Tensor:
        script = state.script[rows]  # [N,M]
        width = min(script.shape[1] - 1, state.cache.shape[1] - 1)
        told = script[:, :width] == state.cache[rows, 1 : width + 1]
        told |= torch.arange(1, width + 1, device=self.device) >= lengths[:, None]
        at = (lengths - 1).clamp(max=script.shape[1] - 1)
        said = script.gather(1, at[:, None]).squeeze(1)
        return F.one_hot(torch.where(told.all(1), said, self.vocab.pad), len(self.vocab))


def decode(
    strategy: Any,
    scorer: Any,
    requests: Sequence[Request],
    *,
    batch_size: int = 8,
    max_tokens: int | None = None,
    trace: bool = False,
) -> list[Result]:
    """The results of requests numbered from 0, in their order, each exactly once."""
    found = list(strategy.run(scorer, requests, batch_size=batch_size, max_tokens=max_tokens, trace=trace))
    assert sorted(result.index for result in found) == [request.index for request in requests]
    return sorted(found, key=lambda result: result.index)


def outputs_of(results: Sequence[Result]) -> list[list[int]]:
    """The tokens of each result's best hypothesis."""
    return [list(result.hypotheses[0].tokens) for result in results]


def differing(found: Sequence[object], wanted: Sequence[object]) -> list[int]:
    """The places in which two lists of equal length differ."""
    return [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]


Table = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain_greedy(table: Table, requests: Sequence[Request], *, eos: int = 2) -> list[list[int]]:
    """Greedy search as the textbook has it, without cache, draft or batch that changes: the reference.

    It shares no code with nartk. Of equal scores the first word wins.
    """
    if not requests:
        return []
    width, longest = max(len(r.source) for r in requests), max(r.max_len for r in requests)
    sources = torch.tensor([[*r.source, *[-1] * (width - len(r.source))] for r in requests])
    source_lengths = torch.tensor([len(r.source) for r in requests])
    outputs: list[list[int]] = [[] for _ in requests]
    live = list(range(len(requests)))
    prefixes = torch.full((len(requests), longest), -1)
    prefixes[:, 0] = eos
    for t in range(longest):
        index = torch.tensor(live)
        lengths = torch.full((len(live),), t + 1)
        scores = table(sources[index], source_lengths[index], prefixes[index], lengths).numpy()
        best = np.argmax(scores, 1).tolist()  # NumPy documents that the first of equals wins
        going = []
        for i, word in zip(live, best, strict=True):
            forced = requests[i].prefix
            token = forced[t] if t < len(forced) else word
            outputs[i].append(token)
            if t + 1 < longest:
                prefixes[i, t + 1] = token
            if token != eos and t + 1 < requests[i].max_len:
                going.append(i)
        live = going
        if not live:
            break
    return outputs


# Strategies of the loop over passes as they were over tensors: what the others are compared with.


@dataclass(frozen=True, kw_only=True)
class TensorGreedy(DraftAndVerify):
    """Takes the best word, one a pass."""

    promise = IDENTICAL
    name = "greedy"


@dataclass(frozen=True, kw_only=True)
class TensorCopy(Adaptive):
    """Drafts with the source."""

    promise = IDENTICAL
    name = "iad"

    anchor: str = "aligned"
    max_draft: int = 0

    def make_drafter(self, scorer: Any) -> Drafter:
        spelt = spelling(scorer.vocab).to(scorer.device) if self.anchor == "aligned" else None
        return SourceCopy(scorer.source_to_target, spelt, self.max_draft)


@dataclass(frozen=True, kw_only=True)
class TensorNgram(Adaptive):
    """Drafts with what followed the same words before."""

    promise = IDENTICAL
    name = "ngram"

    max_ngram: int = 4
    max_draft: int = 10
    drafter: Drafter | None = None  # of the run

    def for_run(self, scorer: Any) -> TensorNgram:
        made = NgramCache(scorer.source_to_target, len(scorer.vocab), self.max_ngram, self.max_draft)
        return replace(self, drafter=made)

    def make_drafter(self, scorer: Any) -> Drafter | None:
        return self.drafter


OVER_TENSORS: dict[str, Any] = {"greedy": TensorGreedy, "iad": TensorCopy, "ngram": TensorNgram}


def over_tensors(name: str, options: Mapping[str, Any]) -> Any:
    """A strategy for scorers over tensors: a registered one, or what stands in for one over passes."""
    return OVER_TENSORS[name](**options) if name in OVER_TENSORS else make_strategy(name, options)
