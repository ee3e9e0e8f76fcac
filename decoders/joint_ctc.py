"""Joint CTC/attention decoding in one pass (Watanabe et al. 2017; Hori et al. 2017, arXiv:1706.02737).

An autoregressive decoder and a CTC head read the same encoded source. Each hypothesis of a beam search is
scored by both: CTC keeps the decoder from repeating or leaving out parts of a recording.
Symbols: B sentences, k hypotheses of each, K of one sentence in a pass, C candidates after each, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from nartk.decoders.ctc_greedy import require_blank
from nartk.decoders.graphs.ctc_prefix_scores import PrefixScores
from nartk.decoders.graphs.ngram_lm import NGram, load_ngram
from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.search.beam_constraints import BeamConstraints
from nartk.decoders.search.beam_rows import Beam, BeamRow, Ended, Ranking
from nartk.decoders.search.beam_search import BeamSearch
from nartk.errors import UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.parallel import FrameScorer, silent_words
from nartk.protocols.passes import FloatArray, IntArray, PassScorer, Scores, Want
from nartk.protocols.runs import ENCODE, Batching, Run
from nartk.registry import HEAVIEST, WIDEST, option, register_decoder


@register_decoder("joint-ctc")
class JointCtc(Constrained):
    """Keeps the best hypotheses by the decoder's and CTC's scores together, word by word.

    A word adds (1 - w) times its log-probability by the decoder, w times what it takes from CTC's
    log-probability of all outputs that begin so, and with a language model `lm_weight` times that model's
    log-probability, and `word_bonus`; eos, that the frames say nothing more. So a score is (1 - w) times the
    decoder's log-probability of the output, plus w times CTC's, plus the language model's share and a bonus
    for each word; `positional_scores` are its parts. What no labelling of the frames gives costs 1e10 nats.

    The candidates of a hypothesis, which CTC scores, are the decoder's likeliest words, and all words if
    `ctc_weight` is 1. With `pre_beam_ratio` they are chosen as ESPnet's pre-beam does, by decoder and
    language model together; if `ctc_weight` is 0 they are all words. The search ends when no hypothesis that
    goes on is better than those to be given back, or can become so by the bonus of as many words as are
    allowed: without a length penalty, nothing else makes it better.

    ESPnet's command decodes with w 0.5, a beam of 20, a pre-beam of 1.5 times that, no bonus, and weight 1
    for a language model. Its search differs in this: it goes on with one hypothesis less for each that has
    ended; it stops when those that ended with each of the last three lengths are ten nats worse than the
    best; and at the greatest length it adds an eos.
    """

    needs = (PassScorer, FrameScorer)
    promise = Promise(
        Guarantee.APPROXIMATE, "the best of k hypotheses by decoder and CTC; the same in any batch"
    )
    fuses_scores: ClassVar[bool] = True  # no token's score tells how sure the model is of it

    beam_size: int = option(10, "hypotheses of a sentence that are kept", low=1, high=WIDEST)
    ctc_weight: float = option(
        0.3, "w, weight of CTC's log-probabilities; the decoder's is 1 - w; ESPnet's is 0.5", low=0, high=1
    )
    candidates: int = option(
        30, "words that extend each hypothesis, the decoder's likeliest", low=1, high=WIDEST
    )
    pre_beam_ratio: float = option(
        0.0,
        "candidates in their place: the beam size times this, the best by decoder and language model; "
        "ESPnet's is 1.5; 0: off",
        low=0,
        high=WIDEST,
        does_nothing=True,
    )
    word_bonus: float = option(
        0.0,
        "added to a score for each word, nats, eos too; more favours long outputs (ESPnet's penalty)",
        low=-HEAVIEST,
        high=HEAVIEST,
        does_nothing=True,
    )
    length_penalty: float = option(
        0.0, "scores are divided by length ** this; more favours long outputs", low=-50, high=50
    )
    lm: str = option("", "n-gram language model of target tokens, a file in ARPA format")
    lm_weight: float = option(
        0.3, "weight of the language model's log-probabilities; ESPnet's is 1", low=-HEAVIEST, high=HEAVIEST
    )
    nbest: int = option(1, "hypotheses given back, at most the beam size", low=1, most="beam_size")

    def __post_init__(self) -> None:
        if self.pre_beam_ratio and self.ctc_weight == 1:
            raise UsageError(
                f"{named('pre_beam_ratio', self.pre_beam_ratio)} with {named('ctc_weight', 1)}, where all "
                "words are candidates",
                fix="leave one of them out",
            )

    def begin(self, scorer: Any, batching: Batching) -> Run:
        """Begins a run. Its `batching` counts sentences, each of which has `beam_size` hypotheses."""
        vocab, blank = scorer.vocab, require_blank(self.name, scorer)
        lm = load_ngram(self.lm, vocab) if self.lm else None
        candidates, read = self._widths(len(vocab), lm is not None)
        constraints = JointScores(
            self.constraints(vocab),
            vocab.eos,
            False,
            False,
            self.ctc_weight,
            lm,
            self.lm_weight,
            self.word_bonus,
            candidates,
        ).of_run(scorer)
        ranking = BestRanking(
            self.beam_size, vocab.ends, self.length_penalty, "false", self.nbest, max(0.0, self.word_bonus)
        )
        return JointSearch(scorer, constraints, ranking, blank, read, self.nbest, batching)

    def _widths(self, words: int, has_lm: bool) -> tuple[int, int]:
        """Candidates of a hypothesis, and how many of the decoder's likeliest words they are chosen from."""
        if self.ctc_weight == 1:
            return words, words
        if not self.pre_beam_ratio:
            count = min(max(self.candidates, self.beam_size + 1), words)
            return count, count
        if self.ctc_weight == 0:  # nothing is spared: every word is a candidate
            return words, words
        count = min(max(int(self.pre_beam_ratio * self.beam_size), self.beam_size), words)
        return count, words if has_lm else count


@dataclass(frozen=True)
class BestRanking(Ranking):
    """Ends a search when no hypothesis that goes on is better than the `nbest` that have ended.

    Attributes:
        bonus: Most that each further word may add to a sum, at least 0.
    """

    nbest: int
    bonus: float

    def is_done(self, finished: Sequence[Ended], best: float, length: int, longest: int) -> bool:
        if len(finished) < self.nbest:
            return False
        lengths: Sequence[int] = (length,)
        if self.bonus:
            lengths = range(length if self.length_penalty else longest, longest + 1)
        most = max(self.score(best + self.bonus * (each - length), each) for each in lengths)
        return most <= finished[self.nbest - 1].score


class _Row:
    """States of CTC and of the language model for the hypotheses of a sentence.

    Args:
        ctc: Prefix scores by the sentence's frames; None: CTC has no weight.
        lm: The state of the empty hypothesis.

    Attributes:
        read: Tokens of hypotheses that were read.
    """

    def __init__(self, ctc: PrefixScores | None, lm: int) -> None:
        self.ctc, self.read = ctc, 0
        self.prefixes = None if ctc is None else ctc.empty()
        self.states = np.array([lm])

    def grow(self, index: Sequence[int], words: Sequence[int], lm: NGram | None) -> None:
        """Goes on with some of the hypotheses [K], each with a word [K] more."""
        if self.ctc is not None and self.prefixes is not None:
            self.prefixes = self.ctc.grown(self.prefixes, index, words)
        if lm is not None:
            self.states = lm.advance(self.states[list(index)], np.array(words))[1]
        self.read += 1


class _Known(NamedTuple):
    """The state of a hypothesis: its sentence's, and which of its hypotheses it was, or comes from."""

    row: _Row
    number: int


@dataclass(frozen=True)
class JointScores(BeamConstraints):
    """The rules of hypotheses, and what the decoder, CTC and the language model give their words together.

    Attributes:
        weight: CTC's.
        bonus: Bonus of each word.
        kept: Candidates of a hypothesis that CTC scores.
    """

    weight: float
    lm: NGram | None
    lm_weight: float
    bonus: float
    kept: int

    def candidates(self, scores: Scores, rows: Sequence[Any]) -> tuple[IntArray, FloatArray]:
        top, log_probs = super().candidates(scores, rows)
        is_none = log_probs == -np.inf
        sums = (1 - self.weight) * np.where(is_none, 0, log_probs).astype(np.float64) + self.bonus
        parts = self._grown(rows)
        for row, nodes in parts:
            sums[nodes] += self._added_by_lm(row, top[nodes])
        sums[is_none] = -np.inf
        if self.kept < top.shape[1]:
            best = np.argsort(-sums, axis=1, kind="stable")[:, : self.kept]  # of equal ones the first
            top, sums = np.take_along_axis(top, best, 1), np.take_along_axis(sums, best, 1)
        for row, nodes in parts:
            sums[nodes] += self._added_by_ctc(row, top[nodes])
        return top, sums.astype(np.float32)

    def known(self, row: Any, scores: Scores) -> list[float]:
        """Score that each token adds which an output is forced to begin with."""
        found, state = [], row.state.row
        for word, log_prob in zip(row.tokens, super().known(row, scores), strict=True):
            words = np.array([[word]], np.int32)
            total = np.float64((1 - self.weight) * log_prob + self.bonus)
            total += self._added_by_lm(state, words)
            total += self._added_by_ctc(state, words)
            found.append(float(np.float32(total.item())))
            state.grow([0], [word], self.lm)
        return found

    def _added_by_lm(self, row: _Row, words: IntArray) -> Any:
        """Scores that the language model adds for words [K,C] after the hypotheses of a sentence."""
        if self.lm is None:
            return 0.0
        added, _ = self.lm.advance(row.states[:, None], words.astype(np.int64))
        return self.lm_weight * added

    def _added_by_ctc(self, row: _Row, words: IntArray) -> Any:
        """Scores that CTC adds for words [K,C]."""
        if row.ctc is None or row.prefixes is None:
            return 0.0
        return self.weight * row.ctc.scores(row.prefixes, words)

    def _grown(self, rows: Sequence[Any]) -> list[tuple[_Row, list[int]]]:
        """Reads the last words of hypotheses; of each sentence, what is known and its scored tokens."""
        parts: list[tuple[_Row, list[int]]] = []
        for row, group in groupby(cast("Sequence[Beam]", rows), key=lambda beam: beam.state.row):
            beams = [*group]
            if row.read < len(beams[0].tokens):
                row.grow([beam.state.number for beam in beams], [beam.tokens[-1] for beam in beams], self.lm)
            for i, beam in enumerate(beams):
                beam.state = _Known(row, i)
            parts.append((row, [beam.node for beam in beams]))
        return parts


class JointSearch(BeamSearch):
    """Reads the frames of sentences as they enter the batch.

    Args:
        blank: CTC's.
        candidates: Words that extend each hypothesis.
    """

    constraints: JointScores

    def __init__(
        self,
        scorer: Any,
        constraints: JointScores,
        ranking: Ranking,
        blank: int,
        candidates: int,
        nbest: int,
        batching: Batching,
    ) -> None:
        super().__init__(scorer, constraints, None, ranking, nbest, batching)
        self.wanted, self.blank, self.frames = Want(top=candidates), blank, scorer

    def _step(self, rows: list[BeamRow]) -> None:
        if new := [row for row in rows if row.live[0].state is None]:
            for row, scores in zip(new, self._ctc([row.memory for row in new]), strict=True):
                lm = self.constraints.lm
                row.live[0].state = _Known(_Row(scores, 0 if lm is None else lm.start), 0)
            self.clock.lap(ENCODE)
        super()._step(rows)

    def _ctc(self, memory: Sequence[int]) -> Sequence[PrefixScores | None]:
        """Prefix scores of each encoded source; None: CTC has no weight."""
        if self.constraints.weight == 0:
            return [None] * len(memory)
        vocab = self.scorer.vocab
        handles = np.array(memory, np.int32)
        counts = self.frames.frames(handles)
        logits = self.frames.read_frames(handles, Want()).rows(np.arange(counts.sum()))
        most = logits.max(1, keepdims=True)
        log_probs = logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))
        silent = silent_words(vocab, self.blank)
        return [
            PrefixScores(each, self.blank, vocab.eos, silent)
            for each in np.split(log_probs, np.cumsum(counts)[:-1])
        ]
