"""What proposes tokens. Symbols: K drafted tokens, V words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nartk.hypothesis import Request
from nartk.passes import ROOT, FloatArray

if TYPE_CHECKING:
    from nartk.decoders.loop.acceptance import Verdict
    from nartk.decoders.loop.rows import Row

State: TypeAlias = Any  # a drafter's own, one a row


@dataclass(slots=True, eq=False)
class Draft:
    """K proposed tokens. What is no word of the target, such as -1, ends the draft, or its branch.

    Attributes:
        parents: [K], which of the tokens each follows, one before it; `ROOT`: the output's last token. None:
            each follows the one before it, a chain. The first of those that follow a token is the draft
            proper; the others are accepted if they are what is output there.
        log_probs: [K], of each token under the drafter, where it has them.
        distributions: [K,V], what each token was drawn from, for acceptances that compare distributions.
        passes: Of the drafter's model, that this row took part in.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] | None = None
    log_probs: list[float] | None = None
    distributions: FloatArray | None = None
    passes: int = 0


class Drafter(Protocol):
    """Proposes what may follow, never decides.

    Where drafts do not pay, passes go by without it: a row may have an output when it is started, and after
    `draft` or `observe` more may follow than they saw. `Row.tokens` always holds all of it.
    """

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[State]:
        """The states of new rows, one a row.

        Args:
            requests: With their sources.
            memory: Handles of the sources as the verifier has encoded them.
        """

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        """Proposes for all rows at once, or for some of them.

        Args:
            rows: Their states are `Row.state`, their outputs `Row.tokens`.
            budgets: Most levels of each draft that will be verified, 0 and more.
        """

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> None:
        """Sees what was accepted and output of the rows that drafted, ended or not."""

    def stop(self, states: Sequence[State]) -> None:
        """Gives back what rows hold that leave, whatever they leave for."""


class PlainDrafter:
    """Base of drafters that hold nothing which must be given back, and learn from outputs alone."""

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> None:
        """Nothing: `Row.tokens` says it all."""

    def stop(self, states: Sequence[State]) -> None:
        """Nothing."""


def verifiable(draft: Draft, words: int, budget: int) -> Draft:
    """What of a draft can be verified: words, each after one before it, at most so many levels.

    A drafter is not trusted: whatever it proposes, the verifier is given words.

    Args:
        words: V.
        budget: Levels, 0 and more.
    """
    if draft.parents is not None:
        return _verifiable_tree(draft, words, budget)
    tokens = draft.tokens
    if len(tokens) > budget:
        tokens = tokens[:budget]
    if tokens and not (min(tokens) >= 0 and max(tokens) < words):
        tokens = tokens[: next(i for i, token in enumerate(tokens) if not 0 <= token < words)]
    if len(tokens) < len(draft.tokens):
        return Draft(tokens, None, draft.log_probs, draft.distributions, draft.passes)
    return draft


def _verifiable_tree(draft: Draft, words: int, budget: int) -> Draft:
    assert draft.parents is not None
    index = [ROOT] * len(draft.tokens)  # of each token among those that are kept
    levels: list[int] = []
    kept: list[int] = []
    parents: list[int] = []
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=False)):
        is_first = parent == ROOT
        if not 0 <= token < words or not (is_first or (0 <= parent < i and index[parent] != ROOT)):
            continue
        level = 1 if is_first else levels[index[parent]] + 1
        if level > budget:
            continue
        index[i] = len(kept)
        kept.append(i)
        levels.append(level)
        parents.append(ROOT if is_first else index[parent])
    if len(kept) == len(draft.tokens) == len(draft.parents):
        return draft
    return Draft(
        [draft.tokens[i] for i in kept],
        parents,
        None if draft.log_probs is None else [draft.log_probs[i] for i in kept],
        None if draft.distributions is None else draft.distributions[kept],
        draft.passes,
    )
