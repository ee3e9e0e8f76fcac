"""Drafters, which propose tokens. Symbols: K drafted tokens, V words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import lt
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import ROOT, FloatArray, Want
from nartk.registry import DRAFTERS

if TYPE_CHECKING:
    from nartk.decoders.loop.acceptance import Verdict, Verified
    from nartk.decoders.loop.rows import Row

State: TypeAlias = Any  # a drafter's own, one a row

# Microseconds of a row's start, and of a draft and each of its levels: measured with the engine's table.
_START, _LOOK_UP, _LEVEL = 10.0, 10.0, 1.0


@dataclass(slots=True, eq=False)
class Draft:
    """K proposed tokens. What is no word of the target, such as -1, ends the draft, or its branch.

    Attributes:
        parents: [K], which of the tokens each follows, one before it; `ROOT`: the output's last token. None:
            each follows the one before it, a chain. The first of those that follow a token is the draft
            proper; the others are accepted if they are what is output there.
        log_probs: [K], of each token under the drafter, where it has them.
        logits: [K,V], what each token was chosen from, for acceptances that compare distributions.
        passes: Passes of the drafter's model that this row took part in.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] | None = None
    log_probs: list[float] | None = None
    logits: FloatArray | None = None
    passes: int = 0


NO_DRAFT = Draft()


class Drafter(Protocol):
    """Proposes what may follow, never decides.

    Where drafts do not pay, passes go by without it: a row may have an output when it is started, and after
    `draft` or `observe` more may follow than they saw. `Row.tokens` always holds all of it. One that reads
    hidden states is started with the row and observes every pass, and is asked for drafts from a row's second
    pass on: it always has the states of the last pass.

    Attributes:
        want: Values read of the verifier's passes: `top`, `margin` and `hidden`.
    """

    want: Want

    @property
    def pays(self) -> float:
        """Times greedy search's predicted speed that drafts must promise."""

    @property
    def rates(self) -> tuple[float, float]:
        """Acceptance rates that are assumed before anything was seen.

        The first of a draft after a rejected one, and all others.
        """

    def tokens(self, levels: int) -> int:
        """Most tokens of a draft of so many levels."""

    def start_time(self, source: float) -> float:
        """Predicted microseconds of the start for a row whose source has so many tokens."""

    def draft_time(self, rows: int, levels: int) -> float:
        """Predicted microseconds of drafting so many levels for each of so many rows."""

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

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        """Sees what was verified, accepted and output of the rows that drafted, ended or not.

        If `want.hidden` is set, of all rows, whether they drafted or not.
        """

    def stop(self, states: Sequence[State]) -> None:
        """Gives back what rows hold that leave, whatever they leave for."""


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """Base of what declares a drafter (`register_drafter`): its options, and how it is made.

    A strategy that drafts with it alone derives from it as well, and so has its options and makes it.

    Attributes:
        needs: The protocols of the scorer that it is made of.
        of_model: True if that is the scorer of another model, which `--drafter` names; else the verifier's.
    """

    name: ClassVar[str]
    needs: ClassVar[type | tuple[type, ...]]
    of_model: ClassVar[bool] = False

    @classmethod
    def of_length(cls, longest: int) -> DrafterOptions:
        """With drafts of at most so many tokens, where it has an option for that."""
        has_length = any(item.name == "max_draft" for item in fields(cls))
        return cls(**({"max_draft": longest} if has_length else {}))

    @classmethod
    def beside_others(cls, longest: int) -> DrafterOptions:
        """Options for drafts that are verified with others' in one tree of so many levels."""
        return cls.of_length(longest)

    def make_drafter(self, scorer: Any) -> Drafter:
        """Makes the drafter of a run from a scorer that speaks `needs`."""
        raise NotImplementedError


def of_verifier() -> dict[str, type[DrafterOptions]]:
    """The declared drafters that need no other model, by name."""
    declared = DRAFTERS.all().items()
    return {key: each for key, each in declared if issubclass(each, DrafterOptions) and not each.of_model}


class PlainDrafter:
    """Base of drafters that hold nothing which must be given back, and learn from outputs alone.

    A subclass begins and drafts row by row, in `begin` and `propose`, or for all rows at once. Its times
    are those of looking up strings; a subclass that runs a model adds the model's.
    """

    want = Want()
    pays = 1.03
    rates = (0.6, 0.9)

    def tokens(self, levels: int) -> int:
        return levels

    def start_time(self, source: float) -> float:
        return _START

    def draft_time(self, rows: int, levels: int) -> float:
        return rows * (_LOOK_UP + _LEVEL * levels)

    def begin(self, request: Request) -> State:
        """The state of a new row."""

    def propose(self, row: Row, budget: int) -> Draft:
        """Proposes what may follow a row's output, of so many levels, 0 and more."""
        raise NotImplementedError

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[State]:
        return [self.begin(request) for request in requests]

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        return [self.propose(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        """Nothing: `Row.tokens` says it all."""

    def stop(self, states: Sequence[State]) -> None:
        """Nothing."""


def levels(parents: Sequence[int]) -> list[int]:
    """Number of drafted tokens on the way to each of a tree's, itself included."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return found


def combined(wants: Sequence[Want]) -> Want:
    """Values that several read of each pass: `top`, `margin` and `hidden`."""
    return Want(
        top=max(want.top for want in wants),
        margin=any(want.margin for want in wants),
        hidden=any(want.hidden for want in wants),
    )


def verifiable(draft: Draft, words: int, budget: int) -> Draft:
    """Part of a draft that can be verified: words, each after one before it, at most so many levels.

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
        return Draft(tokens, None, draft.log_probs, draft.logits, draft.passes)
    return draft


def _verifiable_tree(draft: Draft, words: int, budget: int) -> Draft:
    assert draft.parents is not None
    if _is_tree(draft.tokens, draft.parents, words) and max(levels(draft.parents)) <= budget:
        return draft
    index = [ROOT] * len(draft.tokens)  # of each token among those that are kept
    depths: list[int] = []
    kept: list[int] = []
    parents: list[int] = []
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=False)):
        is_first = parent == ROOT
        if not 0 <= token < words or not (is_first or (0 <= parent < i and index[parent] != ROOT)):
            continue
        depth = 1 if is_first else depths[index[parent]] + 1
        if depth > budget:
            continue
        index[i] = len(kept)
        kept.append(i)
        depths.append(depth)
        parents.append(ROOT if is_first else index[parent])
    log_probs, logits, count = draft.log_probs, draft.logits, len(draft.tokens)
    return Draft(
        [draft.tokens[i] for i in kept],
        parents,
        None if log_probs is None or len(log_probs) != count else [log_probs[i] for i in kept],
        None if logits is None or len(logits) != count else logits[kept],
        draft.passes,
    )


def _is_tree(tokens: Sequence[int], parents: Sequence[int], words: int) -> bool:
    """Tells whether there are tokens, all of them words, and each follows one before it."""
    count = len(tokens)
    return (
        0 < count == len(parents)
        and min(tokens) >= 0
        and max(tokens) < words
        and min(parents) >= ROOT
        and all(map(lt, parents, range(count)))
    )
