"""Score fusion: what a beam search adds to its model's scores of words.

Each part is `AddedScores`: an n-gram language model (shallow fusion, Gulcehre et al. 2015,
https://arxiv.org/abs/1503.03535), CTC's prefix scores (Hori et al. 2017, https://arxiv.org/abs/1706.02737),
the diversity of groups (Vijayakumar et al. 2018, https://arxiv.org/abs/1610.02424), or one of a user's own.
Symbols: K hypotheses of a group, C candidates after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from nartk.decoders.graphs.ctc_prefix_scores import Prefixes, PrefixScores
from nartk.decoders.graphs.ngram_lm import NGram
from nartk.decoders.search.beam_constraints import BeamConstraints
from nartk.decoders.search.beam_rows import BeamGroup, BeamRow
from nartk.protocols.parallel import FrameScorer, silent_words
from nartk.protocols.passes import FloatArray, IntArray, Want

S = TypeVar("S")
_Wide = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class AddedScores(Protocol[S]):
    """Scores of the words after hypotheses, beside the model's. A state `S` is that of all K of a group.

    Attributes:
        is_partial: True if of a joint score only the candidates that are best by all other parts are
            scored, since a score takes time.
    """

    is_partial: ClassVar[bool]

    def begin(self, rows: Sequence[BeamRow]) -> Sequence[S]:
        """The state of each sentence that enters the batch, whose output is empty."""

    def scores(self, group: BeamGroup, state: S, words: IntArray) -> _Wide:
        """Scores [K,C], nats, of words [K,C] after `group.live`; -1 is no word, and gets any score."""

    def grown(self, state: S, index: Sequence[int], words: Sequence[int]) -> S:
        """The state of some of the hypotheses [n], each with a word [n] more; `state` stays as it is."""


@dataclass(frozen=True)
class Fusion:
    """Adds scores to a model's.

    Attributes:
        added: Scores that are added.
        is_joint: True if a word's log-probability is the sum of all scores; else it is the model's own, and
            what is added changes scores and ranks alone.
        weight: Weight of the model's log-probabilities in a joint score.
        bonus: Added to a joint score for each word, nats.
        kept: Candidates of a hypothesis that partial parts of a joint score see; 0: all.
    """

    added: Sequence[AddedScores[Any]]
    is_joint: bool = False
    weight: float = 1.0
    bonus: float = 0.0
    kept: int = 0

    def begin(self, rows: Sequence[BeamRow]) -> None:
        """Makes the states of sentences that enter the batch."""
        for row, *states in zip(rows, *(each.begin(rows) for each in self.added), strict=True):
            for group in row.groups:
                group.states = states

    def read_known(self, row: BeamRow) -> None:
        """Reads what an output is forced to begin with, whose log-probabilities are the model's."""
        first, states = row.live[0], row.groups[0].states
        log_probs: list[float] = []
        for i, (word, log_prob) in enumerate(zip(first.tokens, first.log_probs, strict=True)):
            group = BeamGroup(row.request, (), [replace(first, tokens=first.tokens[:i])], states=states)
            words, own = np.array([[[word]]], np.int32), np.array([[[log_prob]]])
            _, found, added = self.added_to([group], words, own)
            log_probs.append(float(found[0, 0, 0]))
            first.added += 0.0 if added is None else float(added[0, 0, 0])
            group.parents, group.live = [0], [replace(first, tokens=first.tokens[: i + 1])]
            states = self._states(group)
        first.log_probs = log_probs
        for group in row.groups:
            group.states = states

    def added_to(
        self, groups: Sequence[BeamGroup], words: IntArray, log_probs: npt.NDArray[np.floating]
    ) -> tuple[IntArray, npt.NDArray[np.floating], FloatArray | None]:
        """Adds scores to those of words [B,K,C] after the hypotheses of B groups.

        Returns:
            Words [B,K,C'], at most `kept`; their log-probabilities; and what these leave out, nats, or None.
        """
        width = words.shape[2]
        if self.is_joint and self.kept:
            width = min(self.kept, width)
        shape = *words.shape[:2], width
        chosen, found = np.zeros(shape, words.dtype), np.zeros(shape, np.float32)
        for i, group in enumerate(groups):
            count, states = len(group.live), self._states(group)
            each, model = words[i, :count], log_probs[i, :count]
            is_none = model == -np.inf
            model = np.where(is_none, 0, model)
            sums = np.zeros(each.shape)
            if self.is_joint:
                sums += self.weight * model.astype(np.float64) + self.bonus
            for part, state in zip(self.added, states, strict=True):
                if not part.is_partial:
                    sums += part.scores(group, state, each)
            sums[is_none] = -np.inf
            if width < each.shape[1]:
                best = np.argsort(-sums, axis=1, kind="stable")[:, :width]  # of equal ones the first
                each, sums = np.take_along_axis(each, best, 1), np.take_along_axis(sums, best, 1)
            for part, state in zip(self.added, states, strict=True):
                if part.is_partial:
                    sums += part.scores(group, state, each)
            chosen[i, :count], found[i, :count] = each, sums
        return (chosen, found, None) if self.is_joint else (chosen, log_probs, found)

    def _states(self, group: BeamGroup) -> list[object]:
        """The states of a group's hypotheses, of which the last words are read if they are not."""
        assert group.states is not None
        if group.parents is not None:
            last = [beam.tokens[-1] for beam in group.live]
            parts = zip(self.added, group.states, strict=True)
            group.states = [part.grown(state, group.parents, last) for part, state in parts]
            group.parents = None
        return group.states


class Stateless:
    """Base of scores that see the hypotheses themselves, and keep nothing of them."""

    is_partial: ClassVar[bool] = False

    def begin(self, rows: Sequence[BeamRow]) -> list[None]:
        return [None] * len(rows)

    def grown(self, state: None, index: Sequence[int], words: Sequence[int]) -> None:
        return None


@dataclass(frozen=True)
class NGramScores:
    """Scores of an n-gram language model, times a weight; a state is the model's after each hypothesis."""

    lm: NGram
    weight: float
    is_partial: ClassVar[bool] = False

    def begin(self, rows: Sequence[BeamRow]) -> list[_Ints]:
        return [np.array([self.lm.start])] * len(rows)

    def scores(self, group: BeamGroup, state: _Ints, words: IntArray) -> _Wide:
        return self.weight * self.lm.advance(state[:, None], words.astype(np.int64))[0]

    def grown(self, state: _Ints, index: Sequence[int], words: Sequence[int]) -> _Ints:
        return self.lm.advance(state[[*index]], np.array(words))[1]


@dataclass(frozen=True)
class CtcScores:
    """Scores by the CTC head of the same model, times a weight: of all outputs that begin with a hypothesis.

    A state is the frames of a sentence and the prefixes in it.
    """

    scorer: FrameScorer
    blank: int
    weight: float
    is_partial: ClassVar[bool] = True

    def begin(self, rows: Sequence[BeamRow]) -> list[tuple[PrefixScores, Prefixes]]:
        vocab, memory = self.scorer.vocab, np.array([row.memory for row in rows], np.int32)
        counts = self.scorer.frames(memory)
        logits = self.scorer.read_frames(memory, Want()).rows(np.arange(counts.sum()))
        most = logits.max(1, keepdims=True)
        log_probs = logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))
        silent = silent_words(vocab, self.blank)
        frames = np.split(log_probs, np.cumsum(counts)[:-1])
        made = [PrefixScores(each, self.blank, vocab.eos, silent) for each in frames]
        return [(each, each.empty()) for each in made]

    def scores(self, group: BeamGroup, state: tuple[PrefixScores, Prefixes], words: IntArray) -> _Wide:
        ctc, prefixes = state
        return self.weight * ctc.scores(prefixes, words)

    def grown(
        self, state: tuple[PrefixScores, Prefixes], index: Sequence[int], words: Sequence[int]
    ) -> tuple[PrefixScores, Prefixes]:
        ctc, prefixes = state
        return ctc, ctc.grown(prefixes, index, words)


@dataclass(frozen=True)
class Diversity(Stateless):
    """Lets a word pay for each hypothesis of the groups before that has just taken it (Hamming diversity).

    Attributes:
        penalty: Nats.
        size: Hypotheses of a group.
        pad: Taken by all hypotheses of a group that has ended.
    """

    constraints: BeamConstraints
    penalty: float
    size: int
    pad: int

    def scores(self, group: BeamGroup, state: None, words: IntArray) -> _Wide:
        found = np.zeros(words.shape)
        taken: Counter[int] = Counter()
        for before in group.before:
            taken.update([beam.tokens[-1] for beam in before.live] or [self.pad] * self.size)
        rules, eos = self.constraints.rules_of(group.request), self.constraints.eos
        for costs, beam, row in zip(found, group.live if taken else (), words.tolist(), strict=False):
            is_forced = rules.forced(len(beam.tokens), group.request.max_len, eos) >= 0
            for at, word in enumerate(() if is_forced or beam.closing >= 0 else row):
                if word in taken:
                    repeats = word in beam.tokens or word == self.constraints.start
                    factor = rules.repetition_penalty if repeats else 1.0  # which comes behind the diversity
                    costs[at] = -self.penalty * taken[word] * factor
        return found
