"""Drafts with what a parallel model reads of the source once: by frames (CTC), or by a canvas (glancing).

What it predicts is copied, as input-guided decoding copies the source. To fill a canvas again behind each
accepted prefix costs as much as to verify a draft; it spares no passes either, but with a model that has
learnt to fill any part of a canvas, where it spares one in twelve.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, groupby, islice

import numpy as np

from nartk.decoders.drafters.aligned_text import AlignedText, aligned_position, spelling
from nartk.decoders.drafters.parallel import ParallelDrafts, ReadOnce
from nartk.decoders.loop.drafter import Draft, Drafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.parallel import (
    Canvas,
    CanvasScorer,
    FrameScorer,
    ParallelScorer,
    always_banned,
    silent_words,
)
from nartk.protocols.passes import IntArray, Want
from nartk.registry import register_drafter


@dataclass(slots=True)
class PredictedText:
    """Prediction of a model for a row.

    Attributes:
        aligned: The words without eos, and how far the output has come in them.
        passes: Passes of the model that no draft has reported yet.
    """

    aligned: AlignedText
    passes: int = 1


class TextDrafter(ReadOnce):
    """Base of drafters that copy what a model predicted, from where the aligned rule finds the output."""

    def __init__(self, scorer: ParallelScorer, *, longest: int) -> None:
        super().__init__(scorer, longest=longest)
        self.vocab, self.spelt = scorer.vocab, spelling(scorer.vocab)

    def propose(self, row: Row, budget: int) -> Draft:
        text, output = row.state, row.tokens
        aligned, position = text.aligned, 0
        if output:
            aligned.match(output)
            position, _ = aligned_position(aligned, self.spelt, output)
        aligned.move(position, output)
        most = max(0, min(self.longest, budget))
        draft = Draft([*aligned.words[position:], self.vocab.eos][:most], passes=text.passes)
        text.passes = 0
        return draft


@register_drafter("canvas")
class CanvasDrafts(ParallelDrafts):
    """A canvas of the likeliest length, filled once."""

    needs = (CanvasScorer,)

    def make_drafter(self, scorer: CanvasScorer) -> Drafter:
        return CanvasDrafter(scorer, longest=self.block_size)


class CanvasDrafter(TextDrafter):
    """Fills the canvas of the likeliest length once."""

    scorer: CanvasScorer

    def read(self, memory: IntArray) -> list[PredictedText]:
        scorer, vocab = self.scorer, self.vocab
        sizes = scorer.predict_lengths(memory).argmax(1).clip(1).tolist()  # with eos
        canvas = [[*[scorer.mask] * (size - 1), vocab.eos] for size in sizes]
        ends = np.cumsum(sizes).tolist()
        only = [range(end - size, end - 1) for end, size in zip(ends, sizes, strict=True)]
        flat = np.array(list(chain.from_iterable(only)), np.int32)
        banned = always_banned((scorer.mask, vocab.pad, vocab.eos), len(flat))
        words = np.array(list(chain.from_iterable(canvas)), np.int32)
        filled = Canvas(memory, np.array(sizes, np.int32), words)
        best = iter(scorer.fill(filled, Want(only=flat, banned=banned)).best.tolist())
        return [PredictedText(AlignedText([*islice(best, size - 1)])) for size in sizes]


@register_drafter("frames")
class FrameDrafts(ParallelDrafts):
    """The likeliest labels of all frames, read once."""

    needs = (FrameScorer,)

    def make_drafter(self, scorer: FrameScorer) -> Drafter:
        return FrameDrafter(scorer, longest=self.block_size)


class FrameDrafter(TextDrafter):
    """Reads all frames once: their likeliest labels."""

    scorer: FrameScorer

    def read(self, memory: IntArray) -> list[PredictedText]:
        silent = silent_words(self.vocab, self.scorer.blank)  # without blank eos ends a text
        counts = self.scorer.frames(memory)
        want = Want(banned=always_banned(silent, int(counts.sum())))
        labels = iter(self.scorer.read_frames(memory, want).best.tolist())
        words = (self._words([*islice(labels, count)]) for count in counts.tolist())
        return [PredictedText(AlignedText(each)) for each in words]

    def _words(self, labels: list[int]) -> list[int]:
        blank, eos = self.scorer.blank, self.vocab.eos
        if blank is None:
            return labels[: labels.index(eos)] if eos in labels else labels
        return [label for label, _ in groupby(labels) if label != blank]
