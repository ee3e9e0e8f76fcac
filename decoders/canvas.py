"""Shared parts of the strategies that fill canvases: lengths, positions, and the choice among candidates.

A candidate is a sentence's canvas of one of its k likeliest lengths. Symbols: B sentences, T positions of a
canvas, the last of which is eos, L lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nartk.decoders.native import Found, Native, Output
from nartk.decoders.rerank import require_reranker, teacher_forced
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import Canvas, CanvasScorer, always_banned
from nartk.protocols.passes import FloatArray, IntArray, Want
from nartk.registry import WIDEST, option


@dataclass
class Draft:
    """A candidate, filled so far: words, then eos.

    Attributes:
        memory: Handle of its source.
        tokens: [T] int32.
        log_probs: [T] fp32, of each word when it was filled in, and of the length at eos.
        margins: [T] fp32, nats between the best and the second best word; infinite at eos.
        passes_at: [T] int32, the pass that filled each position in, from 1; 0 at eos.
    """

    memory: int
    tokens: IntArray
    log_probs: FloatArray
    margins: FloatArray
    passes_at: IntArray

    @classmethod
    def blank(cls, memory: int, length: int, log_prob: float, *, mask: int, eos: int) -> Draft:
        """A canvas of a length of that log-probability, without a word."""
        tokens, log_probs = np.full(length, mask, np.int32), np.zeros(length, np.float32)
        tokens[-1], log_probs[-1] = eos, log_prob
        margins, passes_at = np.full(length, np.inf, np.float32), np.zeros(length, np.int32)
        return cls(memory, tokens, log_probs, margins, passes_at)

    @property
    def words(self) -> int:
        """Places but for eos."""
        return len(self.tokens) - 1

    def without_repeats(self) -> Draft:
        """The same with the first of equal words in a row alone."""
        kept = np.append(True, self.tokens[1:] != self.tokens[:-1])
        return Draft(
            self.memory, self.tokens[kept], self.log_probs[kept], self.margins[kept], self.passes_at[kept]
        )


@dataclass(frozen=True, kw_only=True)
class CanvasStrategy(Native):
    """Base of the strategies that fill canvases of the likeliest lengths and choose the best of them.

    A word's log-probability is the model's when it was filled in, eos's that of the length. A candidate's
    score is their mean; with `rerank` it is the mean log-probability of its tokens under the autoregressive
    model. Words that `merge_repeats` takes out still count in the former, not in the latter.
    """

    needs = CanvasScorer

    length_beam: int = option(1, "lengths that are tried, the likeliest", low=1, high=WIDEST)
    rerank: str = option(
        "",
        "name or folder of an autoregressive model that chooses among the lengths",
        model=True,
    )
    merge_repeats: bool = option(False, "output a word once where it stands several times in a row")
    nbest: int = option(1, "outputs given back, at most as many as lengths", low=1, most="length_beam")

    def check_auxiliary(self) -> None:
        if "rerank" in self.auxiliary:
            require_reranker(self.auxiliary["rerank"], "rerank")

    def write(self, scorer: CanvasScorer, drafts: Sequence[Draft]) -> None:
        """Fills the canvases."""
        raise NotImplementedError

    def search(self, scorer: CanvasScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        """The best `nbest` candidates of each sentence."""
        mask, eos = scorer.mask, scorer.vocab.eos
        candidates = [
            [
                Draft.blank(handle, length, log_prob, mask=mask, eos=eos)
                for length, log_prob in likeliest_lengths(lengths, request.max_len, self.length_beam)
            ]
            for handle, lengths, request in zip(
                memory.tolist(), scorer.predict_lengths(memory), requests, strict=True
            )
        ]
        self.write(scorer, [draft for drafts in candidates for draft in drafts])
        ranks = [[_mean(draft.log_probs) for draft in drafts] for drafts in candidates]
        passes = [max(int(draft.passes_at.max()) for draft in drafts) for drafts in candidates]
        if self.merge_repeats:
            candidates = [[draft.without_repeats() for draft in drafts] for drafts in candidates]
        if "rerank" in self.auxiliary:
            owners = [i for i, drafts in enumerate(candidates) for _ in drafts]
            outputs = [draft.tokens.tolist() for drafts in candidates for draft in drafts]
            sources = [request.source for request in requests]
            scored = iter(teacher_forced(self.auxiliary["rerank"], sources, owners, outputs))
            ranks = [[_mean(next(scored)) for _ in drafts] for drafts in candidates]
        return [
            Found(self._best(drafts, scores), max(1, count))
            for drafts, scores, count in zip(candidates, ranks, passes, strict=True)
        ]

    def _best(self, drafts: Sequence[Draft], scores: Sequence[float]) -> list[Output]:
        """The `nbest` best candidates, best first, of those with equal words the first."""
        outputs: dict[bytes, Output] = {}
        for i in sorted(range(len(drafts)), key=lambda i: -scores[i]):  # stable
            draft = drafts[i]
            details = (draft.tokens, draft.log_probs, draft.passes_at, draft.margins)
            tokens, log_probs, passes_at, margins = (each.tolist() for each in details)
            output = Output(tokens, scores[i], log_probs, passes_at, margins)
            outputs.setdefault(draft.tokens.tobytes(), output)
        return list(outputs.values())[: self.nbest]


def likeliest_lengths(log_probs: FloatArray, limit: int, k: int) -> list[tuple[int, float]]:
    """The k likeliest lengths, best first, of equal ones the shorter, and their log-probabilities.

    Args:
        log_probs: [L], of each length.
        limit: The longest that is wanted, to which what is likelier to be longer is counted.
    """
    last = min(limit, len(log_probs) - 1)
    possible = log_probs[: last + 1].copy()
    with np.errstate(divide="ignore"):
        possible[last] = np.log(np.exp(log_probs[last:].astype(np.float64)).sum())
    order = np.argsort(-possible, kind="stable")[:k]
    return [(length, float(possible[length])) for length in order.tolist() if possible[length] > -np.inf]


def refill(scorer: CanvasScorer, work: Sequence[tuple[Draft, Sequence[int]]], number: int) -> None:
    """Forgets the words of drafts at some positions, and fills in the best ones instead, all in one pass.

    Neither the mask, nor padding, nor eos is a word here: the length says where eos is.

    Args:
        work: Drafts, each with its positions, ascending.
        number: Number of this pass, from 1.
    """
    work = [(draft, positions) for draft, positions in work if positions]
    if not work:
        return
    for draft, positions in work:
        draft.tokens[positions] = scorer.mask
    lengths = np.array([len(draft.tokens) for draft, _ in work], np.int32)
    canvas = Canvas(
        np.array([draft.memory for draft, _ in work], np.int32),
        lengths,
        np.concatenate([draft.tokens for draft, _ in work]),
    )
    begins = np.cumsum(lengths) - lengths
    only: npt.NDArray[np.int32] = np.concatenate(
        [begin + np.array(positions, np.int32) for begin, (_, positions) in zip(begins, work, strict=True)]
    ).astype(np.int32)
    banned = always_banned((scorer.mask, scorer.vocab.pad, scorer.vocab.eos), len(only))
    scores = scorer.fill(canvas, Want(only=only, banned=banned, margin=True))
    at = 0
    for draft, positions in work:
        part = slice(at, at + len(positions))
        draft.tokens[positions] = scores.best[part]
        draft.log_probs[positions] = scores.log_probs[part]
        draft.margins[positions] = scores.margins[part]
        draft.passes_at[positions] = number
        at += len(positions)


def _mean(values: Sequence[float] | FloatArray) -> float:
    return math.fsum(values) / len(values)
