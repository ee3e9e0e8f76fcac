"""Which drafted tokens are accepted, and which token follows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nartk.passes import ROOT, Pass, Scores, Want

if TYPE_CHECKING:
    from nartk.decoders.loop.rows import Row


@dataclass(frozen=True, slots=True)
class Verified:
    """What a pass gave for its N tokens, on the host.

    Attributes:
        words: [N], the word that greedy search outputs after each token: the best one that is not forbidden,
            or the one that a prefix forces.
        log_probs: [N], of these words, natural.
        ends: The words that end an output.
        work: The pass.
        scores: All that was wanted of it.
    """

    words: list[int]
    log_probs: list[float]
    ends: frozenset[int]
    work: Pass
    scores: Scores


class Verdict(NamedTuple):
    """What a pass decided for a row.

    Attributes:
        accepted: Indices of the accepted tokens in the row's draft, in their order: a path from the root.
        tokens: The tokens that are output: those accepted and, unless the last of them is eos, one more.
        log_probs: Of each, natural.
    """

    accepted: Sequence[int]
    tokens: list[int]
    log_probs: list[float]


class Acceptance(Protocol):
    """Decides how many drafted tokens are accepted, and which token follows.

    Attributes:
        want: What it reads of each pass besides the best words and their log-probabilities: `top`, `margin`
            and `hidden`.
    """

    want: Want

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        """Judges the draft of each row, which lies in the pass behind its last token, at `Row.begin`.

        Inside a forced prefix (`Row.request`), what is output must be the prefix's word.
        """


class ArgmaxAcceptance:
    """Accepts a drafted token if it is the verifier's best word: the output is greedy search's."""

    want = Want()

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        return [self.verdict(row, verified) for row in rows]

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        """Of one row."""
        begin, draft, words = row.begin, row.draft, verified.words
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
        nodes, at, word = [row.begin], ROOT, verified.words[row.begin]
        accepted: list[int] = []
        for i, (token, parent) in enumerate(zip(row.draft.tokens, parents, strict=True)):
            if parent != at or token != word:
                continue
            accepted.append(i)
            if token in verified.ends:
                break
            at = i
            nodes.append(row.begin + 1 + i)
            word = verified.words[nodes[-1]]
        return Verdict(
            accepted, [verified.words[node] for node in nodes], [verified.log_probs[node] for node in nodes]
        )


class DraftOutcome(NamedTuple):
    """What is output in the place of a drafted token.

    Attributes:
        is_accepted: Whether the token is accepted; then it is output, else the word.
        word: What is output.
        log_prob: Of it, natural.
    """

    is_accepted: bool
    word: int
    log_prob: float


class StepwiseAcceptance:
    """Base of acceptances that compare what drafter and verifier scored, token by token along a chain."""

    want = Want()

    def judge(self, row: Row, first: int, verified: Verified) -> Iterable[DraftOutcome]:
        """Judges the drafted tokens from this one on; asked for up to the first that is rejected, or eos."""
        raise NotImplementedError

    def judge_all(
        self, rows: Sequence[Row], firsts: Sequence[int], verified: Verified
    ) -> Iterable[Iterable[DraftOutcome]]:
        """The same of each row, for those that judge all rows at once."""
        return (self.judge(row, first, verified) for row, first in zip(rows, firsts, strict=True))

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        forced = [
            min(max(0, len(row.request.prefix) - len(row.tokens)), len(row.draft.tokens)) for row in rows
        ]
        outcomes = self.judge_all(rows, forced, verified)
        return [
            self._verdict(row, first, each, verified)
            for row, first, each in zip(rows, forced, outcomes, strict=True)
        ]

    @staticmethod
    def _verdict(row: Row, forced: int, outcomes: Iterable[DraftOutcome], verified: Verified) -> Verdict:
        """Of a row whose first drafted tokens are words of its prefix, or not; outcomes are of the others."""
        drafted, begin = row.draft.tokens, row.begin
        assert row.draft.parents is None, "a chain"
        words, log_probs = verified.words[begin : begin + forced], verified.log_probs[begin : begin + forced]
        of_prefix = (
            DraftOutcome(word == token, word, log_prob)
            for token, word, log_prob in zip(drafted, words, log_probs, strict=False)
        )
        tokens: list[int] = []
        scores: list[float] = []
        for i, outcome in enumerate(chain(of_prefix, outcomes)):
            tokens.append(outcome.word)
            scores.append(outcome.log_prob)
            if not outcome.is_accepted or outcome.word in verified.ends:
                return Verdict(range(i + outcome.is_accepted), tokens, scores)
        end = begin + len(drafted)
        return Verdict(
            range(len(drafted)), [*tokens, verified.words[end]], [*scores, verified.log_probs[end]]
        )
