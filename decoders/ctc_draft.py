"""Drafts with the CTC head of the very model that verifies: no second model, and no second encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nartk.decoders.drafters.parallel import ParallelDrafts
from nartk.decoders.drafters.parallel_text import FrameDrafter
from nartk.decoders.loop.drafter import Drafter, State
from nartk.decoders.loop.loop import AdaptiveDrafts
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import PassScorer
from nartk.registry import register_decoder

_HEAD = 1.0  # microseconds that the head takes a frame


@register_decoder("ctc-draft")
class CtcDraft(ParallelDrafts, AdaptiveDrafts):
    """Drafts with the model's own CTC head, verifies with its decoder; equal to greedy search.

    All frames of a source are read once, as `ctc-greedy` reads them; the decoder verifies this text as it
    does another system's. Only the head is computed anew: both read what the encoder gave.
    """

    needs = (PassScorer, FrameScorer)

    def make_drafter(self, scorer: Any) -> Drafter:
        return OwnFrames(scorer, longest=self.block_size)


class OwnFrames(FrameDrafter):
    """Reads the frames of sources as the verifier has encoded them."""

    def start_time(self, source: float) -> float:
        return _HEAD * source  # the encoder's time is the verifier's

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[State]:
        return self.read(np.array(memory, np.int32))
