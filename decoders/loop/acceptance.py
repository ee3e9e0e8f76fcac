"""Acceptance of drafted tokens, and the token that follows the accepted ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nartk.protocols.passes import ROOT, IntArray, Scores, Want

if TYPE_CHECKING:
    from nartk.decoders.loop.rows import Row


@dataclass(frozen=True, slots=True)
class Verified:
    """Results of a pass for its n scored tokens, on the host.

    Attributes:
        words: [n], the word that greedy search outputs after each token: the best one that is not forbidden,
            or the one that is forced.
        log_probs: [n], of these words, natural.
        ends: The words that end an output.
        tokens: [n], the scored tokens.
        scores: All that was wanted of the pass.
    """

    words: list[int]
    log_probs: list[float]
    ends: frozenset[int]
    tokens: IntArray
    scores: Scores


class Verdict(NamedTuple):
    """Decision of a pass for a row.

    Attributes:
        accepted: Indices of the accepted tokens in the row's draft, in their order: a path from the root.
        tokens: The tokens that are output: those accepted and, unless the last of them is eos, one more.
        log_probs: Log-probability of each, natural.
    """

    accepted: Sequence[int]
    tokens: list[int]
    log_probs: list[float]


class Acceptance(Protocol):
    """Decides how many drafted tokens are accepted, and which token follows.

    Attributes:
        want: Values read of each pass besides the best words and their log-probabilities: `top`, `margin`
            and `hidden`.
    """

    want: Want

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        """Judges the draft of each row, whose scored tokens lie behind `Row.node`."""


class ArgmaxAcceptance:
    """Accepts a drafted token if it is the verifier's best word: the output is greedy search's."""

    want = Want()

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        return [self.verdict(row, verified) for row in rows]

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        """Verdict of one row."""
        begin, draft, words = row.node, row.draft, verified.words
        if not draft.tokens:
            return Verdict((), [words[begin]], [verified.log_probs[begin]])
        if draft.parents is not None:
            return self._follow(row, draft.parents, verified)
        accepted, last = 0, -1
        for token, word in zip(draft.tokens, islice(words, begin, None), strict=False):
            if token != word or last in verified.ends:
                break
            accepted, last = accepted + 1, word
        end = begin + accepted + (last not in verified.ends)
        return Verdict(range(accepted), words[begin:end], verified.log_probs[begin:end])

    @staticmethod
    def _follow(row: Row, parents: Sequence[int], verified: Verified) -> Verdict:
        """The path through a tree; of equal tokens that follow the same one, the first."""
        nodes, at, word = [row.node], ROOT, verified.words[row.node]
        accepted: list[int] = []
        for i, (token, parent) in enumerate(zip(row.draft.tokens, parents, strict=True)):
            if parent != at or token != word:
                continue
            accepted.append(i)
            if token in verified.ends:
                break
            at = i
            nodes.append(row.node + 1 + i)
            word = verified.words[nodes[-1]]
        return Verdict(
            accepted, [verified.words[node] for node in nodes], [verified.log_probs[node] for node in nodes]
        )


class DraftOutcome(NamedTuple):
    """Word that is output at the position of a drafted token.

    Attributes:
        is_accepted: True if the token is accepted; then it is output, else the word.
        word: Word that is output.
        log_prob: Log-probability of this word, natural.
    """

    is_accepted: bool
    word: int
    log_prob: float


class StepwiseAcceptance:
    """Base of acceptances that compare what drafter and verifier scored, token by token along a chain."""

    want = Want()

    def judge(self, row: Row, verified: Verified) -> Iterable[DraftOutcome]:
        """Judges the drafted tokens; asked for up to the first that is rejected, or eos."""
        raise NotImplementedError

    def judge_all(self, rows: Sequence[Row], verified: Verified) -> Iterable[Iterable[DraftOutcome]]:
        """The same of each row, for those that judge all rows at once."""
        return (self.judge(row, verified) for row in rows)

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        outcomes = self.judge_all(rows, verified)
        return [self._verdict(row, each, verified) for row, each in zip(rows, outcomes, strict=True)]

    @staticmethod
    def _verdict(row: Row, outcomes: Iterable[DraftOutcome], verified: Verified) -> Verdict:
        """Verdict of a row, from the outcomes of its drafted tokens."""
        assert row.draft.parents is None, "a chain"
        tokens: list[int] = []
        scores: list[float] = []
        for i, outcome in enumerate(outcomes):
            tokens.append(outcome.word)
            scores.append(outcome.log_prob)
            if not outcome.is_accepted or outcome.word in verified.ends:
                return Verdict(range(i + outcome.is_accepted), tokens, scores)
        count = len(row.draft.tokens)
        end = row.node + count
        return Verdict(range(count), [*tokens, verified.words[end]], [*scores, verified.log_probs[end]])
