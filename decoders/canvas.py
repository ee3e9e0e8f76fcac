"""Shared parts of the strategies that fill canvases: lengths, positions, and the choice among candidates.

A candidate is a sentence's canvas of one of its k likeliest lengths. Symbols: B sentences, T positions of a
canvas, the last of which is eos, L lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nartk.decoders.native import Found, Native, NativeOutput
from nartk.decoders.rerank import require_reranker, teacher_forced
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import Canvas, CanvasScorer, always_banned
from nartk.protocols.passes import FloatArray, IntArray, Want
from nartk.registry import WIDEST, option


@dataclass
class Candidate:
    """Canvas of a length, filled so far: words, then eos.

    Attributes:
        memory: Handle of its source.
        tokens: [T] int32.
        log_probs: [T] fp32, of each word when it was filled in, and of the length at eos.
        margins: [T] fp32, nats between the best and the second best word; infinite at eos.
        passes_at: [T] int32, the pass that filled each position in, from 1; 0 at eos.
        score: Mean log-probability, by which candidates are compared.
    """

    memory: int
    tokens: IntArray
    log_probs: FloatArray
    margins: FloatArray
    passes_at: IntArray
    score: float = 0.0

    @classmethod
    def blank(cls, memory: int, length: int, log_prob: float, *, mask: int, eos: int) -> Candidate:
        """A canvas of a length of that log-probability, without a word."""
        tokens, log_probs = np.full(length, mask, np.int32), np.zeros(length, np.float32)
        tokens[-1], log_probs[-1] = eos, log_prob
        margins, passes_at = np.full(length, np.inf, np.float32), np.zeros(length, np.int32)
        return cls(memory, tokens, log_probs, margins, passes_at)

    @property
    def words(self) -> int:
        """Number of places but for eos."""
        return len(self.tokens) - 1

    def merge_repeats(self) -> None:
        """Keeps the first of equal words in a row alone."""
        kept = np.append(True, self.tokens[1:] != self.tokens[:-1])
        self.tokens, self.log_probs = self.tokens[kept], self.log_probs[kept]
        self.margins, self.passes_at = self.margins[kept], self.passes_at[kept]

    def output(self) -> NativeOutput:
        details = (self.passes_at.tolist(), self.margins.tolist())
        return NativeOutput(self.tokens.tolist(), self.score, self.log_probs.tolist(), *details)


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

    def write(self, scorer: CanvasScorer, candidates: Sequence[Candidate]) -> None:
        """Writes the words of every candidate's canvas, in as many passes as the strategy takes."""
        raise NotImplementedError

    def search(self, scorer: CanvasScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        """The best `nbest` candidates of each sentence."""
        mask, eos = scorer.mask, scorer.vocab.eos
        sentences = [
            [
                Candidate.blank(handle, length, log_prob, mask=mask, eos=eos)
                for length, log_prob in likeliest_lengths(lengths, request.max_len, self.length_beam)
            ]
            for handle, lengths, request in zip(
                memory.tolist(), scorer.predict_lengths(memory), requests, strict=True
            )
        ]
        every = [each for own in sentences for each in own]
        self.write(scorer, every)
        passes = [max(1, *(int(each.passes_at.max()) for each in own)) for own in sentences]
        log_probs = [each.log_probs for each in every]
        if self.merge_repeats:
            for each in every:
                each.merge_repeats()
        if "rerank" in self.auxiliary:
            owners = [i for i, own in enumerate(sentences) for _ in own]
            outputs = [each.tokens.tolist() for each in every]
            sources = [request.source for request in requests]
            log_probs = teacher_forced(self.auxiliary["rerank"], sources, owners, outputs)
        for each, scores in zip(every, log_probs, strict=True):
            each.score = math.fsum(scores) / len(scores)
        return [Found(self._best(own), count) for own, count in zip(sentences, passes, strict=True)]

    def _best(self, candidates: Sequence[Candidate]) -> list[NativeOutput]:
        """The `nbest` best candidates, best first, of those with equal words the first."""
        best: dict[bytes, NativeOutput] = {}
        for each in sorted(candidates, key=lambda each: -each.score):  # stable
            best.setdefault(each.tokens.tobytes(), each.output())
        return list(best.values())[: self.nbest]


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


def refill(scorer: CanvasScorer, work: Sequence[tuple[Candidate, Sequence[int]]], number: int) -> None:
    """Fills some positions of candidates with their best words, all in one pass.

    Their words there are forgotten before. Neither the mask, nor padding, nor eos is a word here: the length
    says where eos is.

    Args:
        work: Candidates, each with its positions, ascending.
        number: Number of this pass, from 1.
    """
    work = [(candidate, positions) for candidate, positions in work if positions]
    if not work:
        return
    for candidate, positions in work:
        candidate.tokens[positions] = scorer.mask
    lengths = np.array([len(candidate.tokens) for candidate, _ in work], np.int32)
    canvas = Canvas(
        np.array([candidate.memory for candidate, _ in work], np.int32),
        lengths,
        np.concatenate([candidate.tokens for candidate, _ in work]),
    )
    begins = (np.cumsum(lengths) - lengths).tolist()
    only = [begin + i for begin, (_, positions) in zip(begins, work, strict=True) for i in positions]
    banned = always_banned((scorer.mask, scorer.vocab.pad, scorer.vocab.eos), len(only))
    scores = scorer.fill(canvas, Want(only=np.array(only, np.int32), banned=banned, margin=True))
    at = 0
    for candidate, positions in work:
        part = slice(at, at + len(positions))
        candidate.tokens[positions] = scores.best[part]
        candidate.log_probs[positions] = scores.log_probs[part]
        candidate.margins[positions] = scores.margins[part]
        candidate.passes_at[positions] = number
        at += len(positions)
