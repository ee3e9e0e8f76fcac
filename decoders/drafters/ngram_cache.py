"""Drafts from an n-gram cache: what followed the output's last words before is likely to follow them again.

The cache holds the sources, as target words, and the outputs of all sentences of a run, finished or running.
It needs no training (the idea of prompt lookup, Saxena 2023, and of REST, He et al. 2023, arXiv:2311.08252,
with the run itself as the store).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from nartk.decoders.loop.acceptance import Verdict, Verified
from nartk.decoders.loop.drafter import Draft, Drafter, DrafterOptions, PlainDrafter
from nartk.decoders.loop.rows import Row
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import CopiesSource, IntArray, copied_words
from nartk.registry import option, register_drafter

_GRAMS = 1 << 19  # n-grams that are remembered, of all sentences
_BEFORE = -2  # stands before the first word of a text

Gram: TypeAlias = tuple[int, ...]
Occurrence: TypeAlias = tuple[int, list[int], int]  # rank of a text among all, the text, a position in it


@dataclass(slots=True)
class CachedSentence:
    """A sentence's part of the cache.

    Attributes:
        rank: That of its output among all texts: later sentences rank higher.
        output: Its output so far, `_BEFORE` first.
        occurrences: Positions at which its own n-grams were followed by something.
    """

    rank: int
    output: list[int] = field(default_factory=lambda: [_BEFORE])
    occurrences: dict[Gram, Occurrence] = field(default_factory=dict)


@register_drafter("ngram")
class NgramDrafts(DrafterOptions):
    """Proposes what followed the same words before, in this sentence or in others of the run."""

    needs: ClassVar[type | tuple[type, ...]] = (CopiesSource,)

    max_ngram: int = option(4, "longest suffix of the output that is looked up, tokens", low=1)
    max_draft: int = option(10, "longest draft, tokens; 0: none", low=0)

    def make_drafter(self, scorer: Any) -> Drafter:
        return NgramCache(scorer.source_to_target, max_ngram=self.max_ngram, max_draft=self.max_draft)


class NgramCache(PlainDrafter):
    """Proposes what followed the most recent occurrence of the output's longest suffix that occurred before.

    Of two suffixes the longer one counts, of equal ones that in the row's own source or output. An occurrence
    is more recent if its sentence was begun later, or if it is further on in it.

    Args:
        source_to_target: Same as in `CopiesSource`.
        max_ngram: Longest suffix, tokens.
        max_draft: Longest draft, tokens.
        grams: Most n-grams that are remembered; those that were seen longest ago are forgotten.
    """

    def __init__(
        self, source_to_target: IntArray, *, max_ngram: int, max_draft: int, grams: int = _GRAMS
    ) -> None:
        self.targets = source_to_target.tolist()
        self.max_ngram, self.max_draft, self.half = max_ngram, max_draft, grams // 2
        self.texts = 0  # so far
        # Two generations: when the younger one is full, the older one is forgotten.
        self.young: dict[Gram, Occurrence] = {}
        self.old: dict[Gram, Occurrence] = {}

    def begin(self, request: Request) -> CachedSentence:
        texts = CachedSentence(self.texts + 1)
        self.texts += 2
        source = [_BEFORE, *(self.targets[word] for word in copied_words(request.source))]
        for position in range(1, len(source)):
            self._record(texts, texts.rank - 1, source, position)
        return texts

    def propose(self, row: Row, budget: int) -> Draft:
        texts, most = row.state, min(budget, self.max_draft)
        self._follow(row)
        if most <= 0:
            return Draft()
        suffix = tuple(texts.output[-self.max_ngram :])
        while suffix:
            occurrence = texts.occurrences.get(suffix) or self._find(suffix)
            if occurrence is not None:
                _, text, position = occurrence
                words = text[position : position + most]
                return Draft(words[: words.index(-1)] if -1 in words else words)
            suffix = suffix[1:]
        return Draft()

    def _find(self, gram: Gram) -> Occurrence | None:
        return self.young.get(gram) or self.old.get(gram)

    def observe(self, rows: Sequence[Row], verdicts: Sequence[Verdict], verified: Verified) -> None:
        for row in rows:
            self._follow(row)

    def _follow(self, row: Row) -> None:
        """Records what the row has output since it was seen last."""
        texts = row.state
        for token in row.tokens[len(texts.output) - 1 :]:
            texts.output.append(token)
            self._record(texts, texts.rank, texts.output, len(texts.output) - 1)

    def _record(self, texts: CachedSentence, rank: int, text: list[int], position: int) -> None:
        """Remembers which n-grams the word at a position follows."""
        if text[position] < 0:
            return
        occurrence = (rank, text, position)
        for size in range(1, min(self.max_ngram, position) + 1):
            if text[position - size] == -1:
                return
            gram = tuple(text[position - size : position])
            texts.occurrences[gram] = occurrence
            known = self._find(gram)
            if known is None or known[0] <= rank:
                self.young[gram] = occurrence
        if len(self.young) > self.half:
            self.old, self.young = self.young, {}
