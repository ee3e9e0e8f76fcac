"""The likeliest label of each frame (Graves et al. 2006, section 3.2: best path decoding), with hotwords.

Symbols: B sentences, T frames, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import ClassVar

import numpy as np

from nartk.decoders.hotwords import WithHotwords
from nartk.decoders.native import Found, NativeOutput
from nartk.errors import StrategyMismatchError
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FrameScorer, TimedFrames, always_banned, silent_words
from nartk.protocols.passes import FloatArray, IntArray, Want
from nartk.protocols.reading import log_softmax
from nartk.registry import register_decoder


@register_decoder("ctc-greedy")
class CtcGreedy(WithHotwords):
    """Takes the likeliest label of each frame, merges runs and leaves out blanks.

    A score is the log-probability of these labels, all frames together; a token's, that of the frames that
    merged into it; that of eos, which no frame outputs, that of all blanks. With hotwords the labels of all
    frames together are those with the largest sum of log-probabilities and bonus, and the output's bonus is a
    part of its score.
    """

    needs = FrameScorer
    needs_blank: ClassVar[bool] = True
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest label of each frame")
    is_streamed: ClassVar[bool] = True
    is_greedy: ClassVar[bool] = True

    def search(self, scorer: FrameScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        blank, vocab, counts = require_blank(self.name, scorer), scorer.vocab, scorer.frames(memory)
        silent, hotwords = silent_words(vocab, blank), self.automaton(vocab)
        scores = scorer.read_frames(memory, Want(banned=always_banned(silent, counts.sum())))
        ends = np.cumsum(counts)[:-1]
        spans = scorer.spans(memory) if isinstance(scorer, TimedFrames) else [None] * len(counts)
        if hotwords is not None:
            found = []
            rows_of = np.split(scores.rows(np.arange(counts.sum(), dtype=np.int32)), ends)
            for logits, own in zip(rows_of, spans, strict=True):
                log_probs = log_softmax(logits)
                labels, bonus = hotwords.best_labels(log_probs, blank=blank, silent=silent)
                chosen = log_probs[np.arange(len(labels)), labels].tolist()
                path = best_path(labels, chosen, blank, vocab.eos, spans=own)
                found.append(Found([replace(path, score=path.score + bonus)]))
            return found
        rows = zip(np.split(scores.best, ends), np.split(scores.log_probs, ends), spans, strict=True)
        return [
            Found([best_path(labels.tolist(), log_probs.tolist(), blank, vocab.eos, spans=own)])
            for labels, log_probs, own in rows
        ]


def require_blank(strategy: str, scorer: FrameScorer) -> int:
    """The model's blank; raises StrategyMismatchError where all its frames have a word."""
    if scorer.blank is None:
        raise StrategyMismatchError(
            f"strategy {strategy!r} needs a model whose frames may be blank, this model has no blank"
        )
    return scorer.blank


def best_path(
    labels: Sequence[int],
    log_probs: Sequence[float],
    blank: int,
    eos: int,
    *,
    spans: FloatArray | None = None,
) -> NativeOutput:
    """Output of labels [T] and their log-probabilities, with runs merged and blanks left out.

    Args:
        spans: [T,2], where each label begins and ends.
    """
    tokens, scores, blanks, times = [], [], [0.0], []
    for label, run in groupby(enumerate(labels), key=lambda pair: pair[1]):
        index = [i for i, _ in run]
        total = math.fsum(log_probs[i] for i in index)
        if label == blank:
            blanks.append(total)
            continue
        tokens.append(label)
        scores.append(total)
        if spans is not None:
            times.append((float(spans[index[0], 0]), float(spans[index[-1], 1])))
    all_scores = [*scores, math.fsum(blanks)]
    known = None if spans is None else times
    return NativeOutput([*tokens, eos], math.fsum(log_probs), all_scores, spans=known)
