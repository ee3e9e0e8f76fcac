"""The likeliest word of each fire (Gao et al. 2022, https://arxiv.org/abs/2206.08317), with hotwords.

Symbols: B sentences, N fires, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from nartk.decoders.hotwords import WithHotwords
from nartk.decoders.native import Found, NativeOutput
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FireScorer, TimedFrames, always_banned, silent_words
from nartk.protocols.passes import FloatArray, IntArray, Want
from nartk.protocols.reading import log_softmax
from nartk.registry import register_decoder


@register_decoder("paraformer")
class ParaformerGreedy(WithHotwords):
    """Takes the likeliest word of each fire; the first eos, or the last fire, ends the output.

    A token's log-probability is the model's; eos behind the last fire, which no fire emits, has 0: there the
    output ends. A score is their sum. With hotwords the words of all fires together are those with the
    largest sum of log-probabilities and bonus, and the output's bonus is a part of its score.
    """

    needs = FireScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest word of each fire")
    is_streamed: ClassVar[bool] = True

    def search(self, scorer: FireScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        vocab, counts = scorer.vocab, scorer.frames(memory)
        hotwords = self.automaton(vocab)
        silent = silent_words(vocab, None)
        scores = scorer.read_frames(memory, Want(banned=always_banned(silent, counts.sum()), margin=True))
        ends = np.cumsum(counts)[:-1]
        spans = scorer.spans(memory) if isinstance(scorer, TimedFrames) else [None] * len(counts)
        if hotwords is None:
            parts = (scores.best, scores.log_probs, scores.margins)
            rows = zip(*(np.split(each, ends) for each in parts), spans, strict=True)
            return [
                Found([_output(*(each.tolist() for each in row), eos=vocab.eos, spans=own)])
                for *row, own in rows
            ]
        found = []
        rows_of = np.split(scores.rows(np.arange(counts.sum(), dtype=np.int32)), ends)
        for logits, times in zip(rows_of, spans, strict=True):
            log_probs = log_softmax(logits)
            words, bonus = hotwords.best(log_probs, eos=vocab.eos, silent=silent)
            own = log_probs[np.arange(len(words)), words].tolist()
            found.append(Found([_output(words, own, None, eos=vocab.eos, bonus=bonus, spans=times)]))
        return found


def _output(
    words: list[int],
    log_probs: list[float],
    margins: list[float] | None,
    *,
    eos: int,
    bonus: float = 0.0,
    spans: FloatArray | None = None,
) -> NativeOutput:
    """Output of fires [N], up to the first eos; behind the last fire eos is certain."""
    size = words.index(eos) + 1 if eos in words else len(words) + 1
    tokens, scores = [*words, eos][:size], [*log_probs, 0.0][:size]
    known = None if margins is None else [*margins, math.inf][:size]
    times = None if spans is None else [(float(a), float(b)) for a, b in spans[: size - 1].tolist()]
    return NativeOutput(tokens, math.fsum(scores) + bonus, scores, margins=known, spans=times)
