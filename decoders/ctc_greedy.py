"""The likeliest label of each frame (Graves et al. 2006, section 3.2: best path decoding)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.ctc_search import greedy_search, require_blank, silent_words
from nartk.decoders.native import Found, Native
from nartk.hypothesis import Request, Result
from nartk.registry import register_decoder
from nartk.scorer import FrameScorer, Source


@register_decoder("ctc-greedy")
class CtcGreedy(Native):
    """Takes the likeliest label of each frame, merges runs and leaves out blanks.

    A score is the log-probability of these labels, all frames together; a token's, that of the frames that
    merged into it; that of eos, which no frame says, that of all blanks.
    """

    needs = FrameScorer
    promise = "approximate: the likeliest label of each frame"

    def decode(
        self, scorer: Any, requests: list[Request], batch_size: int, *, trace: bool
    ) -> Iterator[Result]:
        require_blank(self.name, scorer)
        yield from super().decode(scorer, requests, batch_size, trace=trace)

    def search(self, scorer: FrameScorer, source: Source, limits: Tensor) -> Found:
        blank = require_blank(self.name, scorer)
        found = greedy_search(scorer.emit(source), blank, silent_words(scorer.vocab, blank))
        count = found.collapsed.lengths
        end = count[:, None]
        tokens = F.pad(found.collapsed.tokens, (0, 1)).scatter(1, end, scorer.vocab.eos)
        scores = F.pad(found.scores, (0, 1)).scatter(1, end, found.blanks[:, None])
        return Found(tokens[:, None], end + 1, found.totals[:, None], scores[:, None])
