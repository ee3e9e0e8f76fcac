"""Protocol of autoregressive models that draft several words in one call.

Symbols: B rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nartk.protocols.passes import IntArray


@dataclass(frozen=True, slots=True)
class Chains:
    """B rows that draft. All lists are [B].

    Attributes:
        memory: Handles of the encoded sources.
        contexts: Handles of the contexts, each named once.
        unread: Tokens that each row reads first, at least one; they follow the cells of its context.
        most: Longest draft of each, tokens, at least 1.
    """

    memory: Sequence[int]
    contexts: Sequence[int]
    unread: Sequence[Sequence[int]]
    most: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChainRule:
    """Rule of which words are drafted, and of what ends a draft besides its length.

    Attributes:
        ends: Words that end a draft; they are part of it.
        least: Log-probability of a draft below which it ends; the word that takes it there is part of it.
        least_likely: Log-probability (fp32) of a word below which it ends without that word.
        words: Ascending ids of the words that there are, as in `Want.words`; empty: all. An array is read
            in a fraction of the time of a list.
    """

    ends: Sequence[int]
    least: float = -math.inf
    least_likely: float = -math.inf
    words: Sequence[int] | IntArray = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """A draft of a row.

    Attributes:
        tokens: The likeliest words one after the other, of equal ones the lowest id.
        log_probs: Log-probability of each under the model.
        passes: Passes that the row took part in: in each it read one token, in the first all that was unread.
    """

    tokens: list[int]
    log_probs: list[float]
    passes: int


@runtime_checkable
class DraftsChains(Protocol):
    """A `PassScorer` that drafts in one call what passes one after the other would, to the last bit."""

    def draft_chains(self, chains: Chains, rule: ChainRule) -> list[Chain]:
        """Drafts of all rows together; their contexts then hold what each has read.

        Raises:
            PassError: Same as of `PassScorer.run` and `PassScorer.truncate`. All contexts are as they were,
                and are too if the call is interrupted.
        """
