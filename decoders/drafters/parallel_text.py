"""Drafts with what a parallel model reads of the source once: by frames (CTC), or by a canvas (glancing).

What it predicts is copied, as input-guided decoding copies the source. To fill a canvas again behind each
accepted prefix costs as much as to verify a draft; it spares no passes either, but with a model that has
learnt to fill any part of a canvas, where it spares one in twelve. Symbols: T frames, P words and eos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np

from nartk.decoders.drafters.aligned_text import AlignedText, aligned_position, spelling
from nartk.decoders.drafters.lattice import BRANCHES, Lattice, Option, likeliest_pairs, options_of
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
from nartk.protocols.passes import FloatArray, IntArray, Want
from nartk.registry import register_drafter

_QUIET = -50.0  # log-probability that a frame says nothing, at least: sums of it stay numbers


@dataclass(slots=True)
class PredictedText:
    """Prediction of a model for a row.

    Attributes:
        words: [P], eos last.
        aligned: The words without eos, and how far the output has come in them.
        lattice: Alternatives at each position; None where drafts do not branch.
        passes: Passes of the model that no draft has reported yet.
    """

    words: list[int]
    aligned: AlignedText
    lattice: Lattice | None
    passes: int = 1


class TextDrafter(ReadOnce):
    """Base of drafters that copy what a model predicted, from where the aligned rule finds the output.

    Attributes:
        others: Words that may be listed beside those that are options.
    """

    others = 1

    def __init__(self, scorer: ParallelScorer, *, longest: int, nodes: int) -> None:
        super().__init__(scorer, longest=longest, nodes=nodes)
        self.vocab, self.spelt = scorer.vocab, spelling(scorer.vocab)
        self.top = min(BRANCHES + self.others, len(scorer.vocab)) if nodes else 0

    def predicted(self, words: list[int], options: Sequence[Sequence[Option]] | None) -> PredictedText:
        """Words, and what may be at each position [P] where drafts branch."""
        whole = [*words, self.vocab.eos]
        lattice = None if options is None else Lattice.of(whole, range(1, len(whole) + 1), options)
        return PredictedText(whole, AlignedText(words), lattice)

    def propose(self, row: Row, budget: int) -> Draft:
        text, output = row.state, row.tokens
        aligned, position = text.aligned, 0
        if output:
            aligned.match(output)
            position, _ = aligned_position(aligned, self.spelt, output)
        aligned.move(position, output)
        if text.lattice is None:
            draft = Draft(text.words[position : position + max(0, min(self.longest, budget))])
        else:
            draft = self.along(text.lattice, position, budget)
        draft.passes, text.passes = text.passes, 0
        return draft


@register_drafter("canvas")
class CanvasDrafts(ParallelDrafts):
    """A canvas of the likeliest length, filled once."""

    needs = (CanvasScorer,)

    def make_drafter(self, scorer: CanvasScorer) -> Drafter:
        return CanvasDrafter(scorer, longest=self.block_size, nodes=self.tree)


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
        want = Want(
            only=flat, banned=always_banned((scorer.mask, vocab.pad, vocab.eos), len(flat)), top=self.top
        )
        words = np.array(list(chain.from_iterable(canvas)), np.int32)
        scores = scorer.fill(Canvas(memory, np.array(sizes, np.int32), words), want)
        best = scores.best.tolist()
        begins = np.cumsum([0, *(len(positions) for positions in only)]).tolist()
        texts = []
        for begin, positions in zip(begins, only, strict=False):
            part, options = slice(begin, begin + len(positions)), None
            if self.nodes:
                options = _options(scores.top[part], scores.top_log_probs[part], vocab.eos)
            texts.append(self.predicted(best[part], options))
        return texts


@register_drafter("frames")
class FrameDrafts(ParallelDrafts):
    """The likeliest labels of all frames, read once."""

    needs = (FrameScorer,)

    def make_drafter(self, scorer: FrameScorer) -> Drafter:
        return FrameDrafter(scorer, longest=self.block_size, nodes=self.tree)


class FrameDrafter(TextDrafter):
    """Reads all frames once: their likeliest labels.

    A tree's other paths have another word in a later frame, with the probability that the frames between say
    nothing, or go on with the word of the likeliest labels' run; then what the text has after that frame.
    """

    scorer: FrameScorer
    others = 2  # the blank may be among them

    def read(self, memory: IntArray) -> list[PredictedText]:
        vocab, blank = self.vocab, self.scorer.blank
        silent = silent_words(vocab, blank)  # without blank, eos ends a text; else its frames end it
        counts = self.scorer.frames(memory)
        count = int(counts.sum())
        given = None if blank is None or not self.nodes else np.full(count, blank, np.int32)
        scores = self.scorer.read_frames(
            memory, Want(banned=always_banned(silent, count), top=self.top, given=given)
        )
        texts = []
        ends = np.cumsum(counts).tolist()
        for end, size in zip(ends, counts.tolist(), strict=True):
            part = slice(end - size, end)
            labels = scores.best[part].tolist()
            words = self._words(labels)
            options = None
            if self.nodes:
                top, log_probs = scores.top[part], scores.top_log_probs[part]
                if blank is None:
                    options = _options(top[: len(words)], log_probs[: len(words)], vocab.eos)
                else:
                    quiet = scores.given_log_probs[part]
                    options = frame_options(labels, top, log_probs, quiet, blank=blank, eos=vocab.eos)
            texts.append(self.predicted(words, options))
        return texts

    def _words(self, labels: list[int]) -> list[int]:
        blank, eos = self.scorer.blank, self.vocab.eos
        if blank is None:
            return labels[: labels.index(eos)] if eos in labels else labels
        return [label for label, _ in groupby(labels) if label != blank]


def frame_options(
    labels: Sequence[int],
    words: IntArray,
    log_probs: FloatArray,
    blanks: FloatArray,
    *,
    blank: int,
    eos: int,
) -> list[list[Option]]:
    """Options at each position [P] of the text that labels [T] give, eos last.

    Args:
        words, log_probs: [T,C], the likeliest of each frame, -1 and minus infinity where there are fewer.
        blanks: [T], the log-probability of the blank.
    """
    count = len(labels)
    at: list[int] = []  # the word of the text that each frame is a part of, -1: of none
    after: list[int] = []  # the first that is no part of the frames up to each
    size = 0
    for before, label in zip([blank, *labels], labels, strict=False):
        size += label not in (blank, before)
        at.append(-1 if label == blank else size - 1)
        after.append(size)
    own = np.array(labels, np.int32)
    goes_on = np.zeros(count, bool)
    goes_on[1:] = (own[1:] == own[:-1]) & (own[1:] != blank)
    # Within a run the word of its labels is no further word, and says as little as the blank.
    words = np.concatenate([words, np.full((1, words.shape[1]), eos, np.int32)])
    extended = np.full(words.shape, -np.inf, np.float32)
    extended[:-1] = np.where(words[:-1] == blank, -np.inf, log_probs)
    quiet = blanks.astype(np.float64)
    quiet[goes_on] = np.logaddexp(quiet[goes_on], extended[:-1].max(1)[goes_on])
    extended[:-1][goes_on[:, None] & (words[:-1] == own[:, None])] = -np.inf
    extended[-1, 0] = 0.0  # a frame more says eos
    sums = np.concatenate([[0.0], np.cumsum(quiet.clip(_QUIET, 0.0))])  # over the frames before each
    # The first frame after the word before each position.
    begins = [0] * (size + 1)
    for frame, position in enumerate(at):
        if position >= 0:
            begins[position + 1] = frame + 1
    links = sums[None, :] - sums[begins][:, None]  # [P,T+1]
    links[np.arange(count + 1) < np.array(begins)[:, None]] = -np.inf
    return likeliest_pairs(links.astype(np.float32), words, extended, [*after, size + 1])


def _options(top: IntArray, log_probs: FloatArray, eos: int) -> list[list[Option]]:
    """Options at each position of words, [P-1,C] being the likeliest; no other at that of eos."""
    end = len(top) + 1
    rows = zip(top.tolist(), log_probs.tolist(), range(1, end), strict=True)
    return [*(options_of(*row, end, eos) for row in rows), []]
