"""Favours given words and phrases in the output of a model whose positions do not depend on each other.

The phrases are an Aho-Corasick automaton, which finds all of them in one reading (Aho and Corasick 1975,
https://doi.org/10.1145/360825.360855), as in Kaldi's, k2's and WeNet's context biasing. There a beam search
gives each token of a phrase that has begun its bonus, and takes it back where the phrase is not completed.
Here the best output is found exactly, so a phrase has its bonus where it ends. The search may also take the
words so far for the beginning of a shorter phrase than they are: that can only lose a bonus, so the best is
found all the same, and a position takes as long as there are states.

Symbols: N positions, V words, Q states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int64]
_Wide = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Hotwords:
    """Aho-Corasick automaton: a state is a beginning of a phrase, state 0 the empty one, short ones first.

    Attributes:
        words: [Q] int64, the last word of each; that of state 0 is not read.
        parents: [Q] int64, each without its last word.
        shorter: [Q] int64, failure links: the longest beginning that each ends with, itself aside.
        completed: [Q] fp64, the bonus of the phrases that each ends with, all together.
        begun: [Q] fp64, the largest bonus of its tokens that a longer phrase gives that begins so.
        levels: The states of each length, from 1.
    """

    words: _Ints
    parents: _Ints
    shorter: _Ints
    completed: _Wide
    begun: _Wide
    levels: tuple[_Ints, ...]

    @classmethod
    def of(cls, phrases: Sequence[Sequence[int]], weights: Sequence[float]) -> Hotwords:
        """Builds the Aho-Corasick automaton of phrases, each of at least a word.

        Args:
            phrases: Token ids; of a phrase that is given twice the last weight counts.
            weights: Weight of each token of each phrase, at least 0.
        """
        whole = {tuple(phrase): weight for phrase, weight in zip(phrases, weights, strict=True)}
        beginnings = sorted({each[:i] for each in whole for i in range(len(each) + 1)}, key=len)
        numbers = {beginning: i for i, beginning in enumerate(beginnings)}
        parents, shorter, completed = [0], [0], [0.0]
        begun = [0.0] * len(beginnings)
        for phrase, weight in whole.items():
            for size in range(1, len(phrase)):
                state = numbers[phrase[:size]]
                begun[state] = max(begun[state], size * weight)
        for beginning in beginnings[1:]:
            ends = (numbers.get(beginning[i:], -1) for i in range(1, len(beginning) + 1))
            parents.append(numbers[beginning[:-1]])
            shorter.append(next(state for state in ends if state >= 0))
            completed.append(completed[shorter[-1]] + len(beginning) * whole.get(beginning, 0.0))
        lengths = np.array([len(each) for each in beginnings])
        return cls(
            np.array([0, *(each[-1] for each in beginnings[1:])]),
            np.array(parents),
            np.array(shorter),
            np.array(completed),
            np.array(begun),
            tuple(np.flatnonzero(lengths == length) for length in range(1, lengths.max() + 1)),
        )

    def next(self, states: _Ints, words: _Ints) -> _Ints:
        """The states, of any shape, after a word each, of a shape that fits theirs."""
        states, words = np.broadcast_arrays(states, words)
        found, reached = np.zeros(states.shape, np.int64), {}
        known = np.isin(words, self.words[1:])  # any other leads to the empty beginning
        for state, word in np.unique(np.stack([states[known], words[known]], 1), axis=0).tolist():
            reached[state, word] = self._next(state, word)
        pairs = zip(states[known].tolist(), words[known].tolist(), strict=True)
        found[known] = [reached[pair] for pair in pairs]
        return found

    def _next(self, state: int, word: int) -> int:
        while True:
            longer = np.flatnonzero((self.parents[1:] == state) & (self.words[1:] == word))
            if len(longer):
                return int(longer[0]) + 1
            if state == 0:
                return 0
            state = int(self.shorter[state])

    def best(
        self, log_probs: _Wide, *, eos: int | None, silent: Sequence[int], state: int = 0
    ) -> tuple[list[int], float]:
        """The words [N] with the largest sum of log-probabilities and bonus, and the bonus.

        The bonus is a phrase's weight for each token of each that occurs before the first eos, phrases within
        phrases and those that overlap included.

        Args:
            log_probs: [N,V] fp64.
            eos: None: no word ends the output.
            silent: Words that are in no output, eos not among them.
            state: After the words before.
        """
        scores = log_probs.copy()
        scores[:, list(silent)] = -np.inf
        behind = scores.max(1)  # behind eos any word does
        words = scores.copy()
        ends = np.full(len(scores), -np.inf)
        if eos is not None:
            ends, words[:, eos] = scores[:, eos], -np.inf
        emitted = words[:, self.words]  # [N,Q]
        emitted[:, 0] = words.max(1)  # any word, of which nothing is known

        states = np.full((len(scores) + 1, len(self.words)), -np.inf)
        ended = np.full(len(scores) + 1, -np.inf)
        states[0, state] = 0.0
        for t, own in enumerate(emitted):
            reached = states[t].copy()
            for level in reversed(self.levels):
                np.maximum.at(reached, self.shorter[level], reached[level])
            states[t + 1] = reached[self.parents] + own + self.completed
            ended[t + 1] = max(ended[t] + behind[t], reached[0] + ends[t])

        # Backwards: where eos was, if anywhere, and then from where each state was reached.
        path, at = [0] * len(scores), len(scores)
        state = int(states[at].argmax())
        if eos is not None and ended[at] > states[at, state]:
            while ended[at] == ended[at - 1] + behind[at - 1] and ended[at - 1] > -np.inf:
                at -= 1
                path[at] = int(scores[at].argmax())
            at -= 1
            path[at], state = eos, int(states[at].argmax())
        bonus = 0.0
        for t in range(at - 1, -1, -1):
            path[t] = int(self.words[state]) if state else int(words[t].argmax())
            bonus += float(self.completed[state])
            from_here = np.zeros(len(self.words), bool)  # what ends with the state's parent
            from_here[self.parents[state]] = True
            for level in self.levels:
                from_here[level] |= from_here[self.shorter[level]]
            state = int(np.where(from_here, states[t], -np.inf).argmax())
        return path, bonus

    def best_labels(
        self, log_probs: _Wide, *, blank: int, silent: Sequence[int], state: int = 0, last: int | None = None
    ) -> tuple[list[int], float]:
        """The labels [T] of frames of CTC with the largest sum of log-probabilities and bonus, and the bonus.

        A run of a label is one word, and blanks are none. The words have their bonus as in `best`.

        Args:
            log_probs: [T,V] fp64.
            silent: Words that are in no output, the blank not among them.
            state: After the words before.
            last: The label before; None: the blank, or nothing.
        """
        count, size = len(log_probs), len(self.words)
        known, at = np.unique(self.words[1:], return_inverse=True)  # words of phrases
        rest = log_probs.copy()
        rest[:, [blank, *silent, *known.tolist()]] = -np.inf
        others, emitted, blanks = rest.max(1), log_probs[:, known], log_probs[:, blank]
        # What the last label is: a word of no phrase; one of a phrase that is taken for no part of it; the
        # last word of each beginning of a phrase, of which there is none of state 0; a blank behind each.
        free, own, none = 1, 1 + len(known), 1 + len(known) + size
        values = np.full(none + size, -np.inf)
        values[self._begun_with(state, None if last == blank else last, known, (free, own, none))] = 0.0
        pointers = np.empty((count, len(values)), np.int64)
        parents, repeats = self.parents[1:], self.words[self.parents[1:]] == self.words[1:]
        for t in range(count):
            reached, origins = self._shortened(values, at, (free, own, none))
            words, behind = reached[own : own + size], reached[none:]
            one, two = _two_best(reached[free:own])
            zero = 0 if reached[0] >= behind[0] else none
            best = one if reached[one] >= reached[zero] else zero
            # Of each word of a phrase, the best label before that is another one and leaves state 0.
            apart = np.where(np.arange(free, own) == one, two, one)
            is_apart = (apart != np.arange(free, own)) & (reached[apart] >= reached[zero])
            apart = np.where(is_apart, apart, zero)
            before = np.where(repeats | (words[parents] < behind[parents]), none, own) + parents
            before = np.where(parents == 0, apart[at], before)
            again = words[1:] >= reached[before] + self.completed[1:]
            parts = (
                [best],
                np.where(reached[free:own] >= reached[apart], np.arange(free, own), apart),
                [own],
                np.where(again, np.arange(own + 1, none), before),
                [best],
                np.where(words[1:] > behind[1:], own, none) + np.arange(1, size),
            )
            sources = np.concatenate(parts)
            gained = np.zeros(len(values))
            gained[own + 1 : none] = np.where(again, 0.0, self.completed[1:])
            emits = [others[t : t + 1], emitted[t], [-np.inf], emitted[t, at], np.full(size, blanks[t])]
            values = reached[sources] + gained + np.concatenate(emits)
            pointers[t] = origins[sources]
        labels, index = [blank] * count, int(values.argmax())
        for t in range(count - 1, -1, -1):
            if index == 0:
                labels[t] = int(rest[t].argmax())
            elif index < own:
                labels[t] = int(known[index - free])
            elif index < none:
                labels[t] = int(self.words[index - own])
            index = int(pointers[t, index])
        return labels, self.bonus(labels, blank=blank, state=state, last=last)[0]

    def bonus(
        self, labels: Sequence[int], *, blank: int | None, state: int = 0, last: int | None = None
    ) -> tuple[float, int]:
        """The bonus of labels, and the state after them.

        Args:
            blank: Blank of frames of CTC, whose runs are one word; None: each label is a word.
            state, last: Same as in `best_labels`.
        """
        found = 0.0
        for label in labels:
            if blank is None or label not in (last, blank):
                state = self._next(state, label)
                found += float(self.completed[state])
            last = label
        return found, state

    def _begun_with(self, state: int, last: int | None, known: _Ints, begins: tuple[int, int, int]) -> int:
        """The place of the labels before in `best_labels`."""
        free, own, none = begins
        if last is None:
            return none + state
        if state:
            return own + state
        found = np.flatnonzero(known == last)
        return free + int(found[0]) if len(found) else 0

    def _shortened(self, values: _Wide, at: _Ints, begins: tuple[int, int, int]) -> tuple[_Wide, _Ints]:
        """The values of `best_labels` where what has begun may be taken for less, and where each is from."""
        free, own, none = begins
        reached, origins = values.copy(), np.arange(len(values))
        for level in reversed(self.levels):
            shorter = self.shorter[level]
            words = np.where(shorter == 0, free + at[level - 1], own + shorter)
            for source, target in ((own + level, words), (none + level, none + shorter)):
                np.maximum.at(reached, target, reached[source])
                same = reached[source] == reached[target]
                origins[target[same]] = origins[source[same]]
        return reached, origins


def _two_best(values: _Wide, begin: int = 1) -> tuple[int, int]:
    """The places of the best and the second best value, counted from `begin`; of one value, twice its."""
    if len(values) == 1:
        return begin, begin
    second, first = np.argpartition(values, -2)[-2:].tolist()
    return begin + int(first), begin + int(second)
