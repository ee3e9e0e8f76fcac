"""The likeliest label of each frame (Graves et al. 2006, section 3.2: best path decoding).

Symbols: B sentences, T frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

import numpy as np

from nartk.decoders.native import Found, Native, Output
from nartk.errors import StrategyMismatchError
from nartk.guarantee import Guarantee, Promise
from nartk.hypothesis import Request
from nartk.parallel import FrameScorer, always_banned
from nartk.passes import IntArray, Want
from nartk.registry import register_decoder
from nartk.vocab import Vocab


@register_decoder("ctc-greedy")
class CtcGreedy(Native):
    """Takes the likeliest label of each frame, merges runs and leaves out blanks.

    A score is the log-probability of these labels, all frames together; a token's, that of the frames that
    merged into it; that of eos, which no frame outputs, that of all blanks.
    """

    needs = FrameScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest label of each frame")
    is_streamed: ClassVar[bool] = True

    def search(self, scorer: FrameScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        blank, vocab, counts = require_blank(self.name, scorer), scorer.vocab, scorer.frames(memory)
        banned = always_banned(silent_words(vocab, blank), counts.sum())
        scores = scorer.read_frames(memory, Want(banned=banned))
        ends = np.cumsum(counts)[:-1]
        rows = zip(np.split(scores.best, ends), np.split(scores.log_probs, ends), strict=True)
        return [
            Found([best_path(labels.tolist(), log_probs.tolist(), blank, vocab.eos)])
            for labels, log_probs in rows
        ]


def require_blank(strategy: str, scorer: FrameScorer) -> int:
    """The model's blank; raises StrategyMismatchError where all its frames have a word."""
    if scorer.blank is None:
        raise StrategyMismatchError(
            f"strategy {strategy!r} needs a model whose frames may be blank, this model has no blank"
        )
    return scorer.blank


def silent_words(vocab: Vocab, blank: int) -> list[int]:
    """The words that are in no output, but for the blank: bos, pad and eos."""
    return [word for word in (vocab.bos, vocab.pad, vocab.eos) if word != blank]


def best_path(labels: Sequence[int], log_probs: Sequence[float], blank: int, eos: int) -> Output:
    """What labels [T] and their log-probabilities become when runs are merged and blanks are left out."""
    tokens, scores, blanks = [], [], [0.0]
    for label, run in groupby(zip(labels, log_probs, strict=True), key=lambda pair: pair[0]):
        total = math.fsum(log_prob for _, log_prob in run)
        if label == blank:
            blanks.append(total)
        else:
            tokens.append(label)
            scores.append(total)
    return Output([*tokens, eos], math.fsum(log_probs), [*scores, math.fsum(blanks)])
