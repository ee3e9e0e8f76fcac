"""Prefix beam search of CTC models (Graves 2012; Hannun et al. 2014), with an n-gram language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from nartk.decoders.ctc_greedy import best_path, require_blank
from nartk.decoders.graphs.ctc_alignment import aligned
from nartk.decoders.graphs.ctc_prefixes import Frames, PrefixSearch
from nartk.decoders.hotwords import WithHotwords
from nartk.decoders.language_model import WithLanguageModel
from nartk.decoders.native import Found, NativeOutput
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FrameScorer, TimedFrames, always_banned, silent_words
from nartk.protocols.passes import FloatArray, IntArray, Want
from nartk.registry import HEAVIEST, WIDEST, option, register_decoder


@register_decoder("ctc-beam")
class CtcBeam(WithLanguageModel, WithHotwords):
    """Sums up the labellings of each output, and keeps the best outputs from frame to frame.

    A score is the log-probability of the output, summed over its labellings that were kept; with a language
    model, plus `lm_weight` times that model's, eos included; plus `word_bonus` for each token but eos, and
    the bonus of the hotwords in it. Where frames have times, tokens have them too, and their log-probability,
    by the likeliest labelling of the output: as `ctc-greedy` has them; else they have none of their own.
    """

    needs = FrameScorer
    needs_blank: ClassVar[bool] = True
    promise = Promise(Guarantee.APPROXIMATE, "the best of k outputs, each summed over its labellings")

    beam_size: int = option(20, "outputs of a sentence that are kept", low=1, high=WIDEST)
    candidates: int = option(
        20, "words of each frame that outputs are extended by, the likeliest", low=1, high=WIDEST
    )
    word_bonus: float = option(
        0.0,
        "added to the score for each token, nats; more favours long outputs",
        low=-HEAVIEST,
        high=HEAVIEST,
    )
    nbest: int = option(1, "outputs given back, at most the beam size", low=1, most="beam_size")

    def search(self, scorer: FrameScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        blank, vocab = require_blank(self.name, scorer), scorer.vocab
        lm = self.language_model(vocab)
        search = PrefixSearch(
            self.beam_size, vocab.eos, lm, self.lm_weight, self.word_bonus, self.automaton(vocab)
        )
        counts = scorer.frames(memory)
        banned = always_banned([blank, *silent_words(vocab, blank)], counts.sum())
        scores = scorer.read_frames(memory, Want(banned=banned, top=min(self.candidates, len(vocab))))
        log_probs = scores.rows(np.arange(counts.sum()))
        log_probs -= log_probs.max(1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(1, keepdims=True))
        found = search.run(Frames(counts, log_probs, scores.top, scores.top_log_probs, blank))
        spans = scorer.spans(memory) if isinstance(scorer, TimedFrames) else [None] * len(counts)
        rows = zip(found, np.split(log_probs, np.cumsum(counts)[:-1]), spans, strict=True)
        return [
            Found(
                [
                    _output([*tokens, vocab.eos], score, own, blank, at)
                    for tokens, score in outputs[: self.nbest]
                ]
            )
            for outputs, own, at in rows
        ]


def _output(
    tokens: list[int], score: float, log_probs: FloatArray, blank: int, spans: FloatArray | None
) -> NativeOutput:
    """An output with eos, by log-probabilities [T,V] of frames and where each begins and ends, [T,2]."""
    runs = None if spans is None else aligned(log_probs, tokens[:-1], blank)
    if spans is None or runs is None:
        return NativeOutput(tokens, score)
    labels = [blank] * len(log_probs)
    for token, (begin, end) in zip(tokens, runs.tolist(), strict=False):
        labels[begin:end] = [token] * (end - begin)
    own = log_probs[np.arange(len(labels)), labels].tolist()
    return replace(best_path(labels, own, blank, tokens[-1], spans=spans), score=score)
