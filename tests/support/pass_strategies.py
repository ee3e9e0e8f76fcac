"""The strategies over passes that tests compare, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nartk.decoders.drafters.aligned_text import spelling
from nartk.decoders.drafters.given_drafts import GivenDrafts
from nartk.decoders.drafters.ngram_cache import NgramCache
from nartk.decoders.drafters.source_copy import SourceCopy
from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.drafter import Draft, Drafter, PlainDrafter
from nartk.decoders.loop.loop import DraftAndVerify
from nartk.decoders.loop.rows import Row
from nartk.decoders.loop.trees import merged
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import ROOT
from nartk.protocols.reading import Reading
from nartk.vocab import Vocab

MakeDrafter = Callable[[Any], Drafter | None]


@dataclass(frozen=True, kw_only=True)
class Proposes(DraftAndVerify):
    """Drafts, accepts and constrains as it is told."""

    drafter: MakeDrafter = field(default=lambda scorer: None)
    rule: Acceptance = field(default_factory=ArgmaxAcceptance)
    rules: Constraints = field(default_factory=Constraints)

    def make_drafter(self, scorer: Any) -> Drafter | None:
        return self.drafter(scorer)

    def acceptance(self) -> Acceptance:
        return self.rule

    def constraints(self, vocab: Vocab) -> Constraints:
        return self.rules


@dataclass
class Drafting(PlainDrafter):
    """Drafts whatever a function of a row's source and output gives; notes which states are there."""

    what: Callable[[Row], Draft]
    started: Counter[int] = field(default_factory=Counter)
    stopped: Counter[int] = field(default_factory=Counter)

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[Any]:
        assert len(requests) == len(memory)
        self.started.update(request.index for request in requests)
        return [("state", request.index) for request in requests]

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        assert [row.state for row in rows] == [("state", row.request.index) for row in rows]
        most = [row.request.max_len - len(row.tokens) - 1 for row in rows]
        assert budgets == [0 if row.closing >= 0 else each for row, each in zip(rows, most, strict=True)]
        return [self.what(row) for row in rows]

    def stop(self, states: Sequence[Any]) -> None:
        self.stopped.update(index for _, index in states)


def proposing(what: Callable[[Row], Draft], **options: Any) -> Proposes:
    return Proposes(drafter=lambda scorer: Drafting(what), **options)


def only(drafts: Sequence[list[int]]) -> Proposes:
    """Drafts these after nothing, as one tree, and nothing later."""
    return proposing(lambda row: Draft() if row.tokens else merged([*map(Draft, drafts)], most=99))


def source_copy(anchor: str = "aligned", max_draft: int = 0) -> MakeDrafter:
    def make(scorer: Any) -> Drafter:
        spelt = spelling(scorer.vocab) if anchor == "aligned" else None
        return SourceCopy(scorer.source_to_target, spelt, max_draft=max_draft)

    return make


def ngram_cache(max_ngram: int = 4, max_draft: int = 10, **sizes: int) -> MakeDrafter:
    return lambda scorer: NgramCache(
        scorer.source_to_target, max_ngram=max_ngram, max_draft=max_draft, **sizes
    )


def given_drafts(max_draft: int = 0, nodes: int = 256) -> MakeDrafter:
    return lambda scorer: GivenDrafts(spelling(scorer.vocab), max_draft=max_draft, nodes=nodes)


def verified(tokens: Sequence[int] = (), top: Sequence[Sequence[int]] = ()) -> Verified:
    """A pass over tokens and the words that it ranked best after each, as drafters observe it."""
    width = len(top[0]) if top else 0
    ranked = np.array(top, np.int32).reshape(len(tokens), width)
    best = np.zeros(len(tokens), np.int32)
    scores: Any = Reading(best, best.astype(np.float32), top=ranked)
    return Verified([], [], frozenset(), np.array(tokens, np.int32), scores)


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """The path to each token of a draft."""
    paths: list[tuple[int, ...]] = []
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
    for token, parent in zip(draft.tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


class OneTooMany(ArgmaxAcceptance):
    """Known to be wrong: the cell of one rejected token is kept."""

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        verdict = super().verdict(row, verified)
        if row.draft.parents is None and len(verdict.accepted) < len(row.draft.tokens):
            return verdict._replace(accepted=range(len(verdict.accepted) + 1))
        return verdict


class RunnerUp(ArgmaxAcceptance):
    """Known to be wrong: the word after the best one by id follows."""

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        verdict = super().verdict(row, verified)
        return verdict._replace(tokens=[*verdict.tokens[:-1], max(4, verdict.tokens[-1])])
