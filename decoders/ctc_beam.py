"""Prefix beam search of CTC models (Graves 2012; Hannun et al. 2014), with an n-gram language model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.ctc_search import prefix_beam_search, require_blank, silent_words
from nartk.decoders.ngram_lm import NGram, load_ngram
from nartk.decoders.tensor_native import Found, TensorNative
from nartk.errors import UsageError
from nartk.guarantee import Guarantee, Promise
from nartk.hypothesis import Request, Result
from nartk.registry import option, register_decoder
from nartk.scorer import FrameScorer, Source


@register_decoder("ctc-beam")
class CtcBeam(TensorNative):
    """Sums up the labellings of each output, and keeps the best outputs from frame to frame.

    A score is the log-probability of the output, summed over its labellings that were kept; with a language
    model, plus `lm_weight` times that model's, eos included; plus `word_bonus` for each token but eos. Tokens
    have none of their own.
    """

    needs = FrameScorer
    promise = Promise(Guarantee.APPROXIMATE, "the best of k outputs, each summed over its labellings")

    beam_size: int = option(20, "outputs of a sentence that are kept", low=1)
    candidates: int = option(20, "words of each frame that outputs are extended by, the likeliest", low=1)
    lm: str = option("", "n-gram language model of target tokens, a file in ARPA format")
    lm_weight: float = option(0.3, "weight of the language model's log-probabilities")
    word_bonus: float = option(0.0, "added to the score for each token, nats; more favours long outputs")
    nbest: int = option(1, "outputs given back, at most the beam size", low=1)

    def __post_init__(self) -> None:
        if self.nbest > self.beam_size:
            raise UsageError(
                f"--nbest is {self.nbest}, above --beam-size {self.beam_size}", fix="raise --beam-size"
            )

    def decode(
        self, scorer: Any, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        require_blank(self.name, scorer)
        self._model(scorer)
        yield from super().decode(scorer, requests, batch_size, trace=trace)

    def search(self, scorer: FrameScorer, source: Source, limits: Tensor) -> Found:
        blank, eos = require_blank(self.name, scorer), scorer.vocab.eos
        found = prefix_beam_search(
            scorer.emit(source),
            blank=blank,
            silent=silent_words(scorer.vocab, blank),
            eos=eos,
            beam_size=self.beam_size,
            candidates=self.candidates,
            lm=self._model(scorer),
            lm_weight=self.lm_weight,
            word_bonus=self.word_bonus,
        )
        tokens, lengths = found.tokens[:, : self.nbest], found.lengths[:, : self.nbest, None]
        tokens = F.pad(tokens, (0, 1)).scatter(2, lengths.clamp(min=0), eos)
        lengths = torch.where(lengths < 0, -1, lengths + 1).squeeze(2)
        return Found(tokens, lengths, found.scores[:, : self.nbest].float(), None)

    def _model(self, scorer: FrameScorer) -> NGram | None:
        return load_ngram(self.lm, scorer.vocab, scorer.device) if self.lm else None
