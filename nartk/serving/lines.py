"""Lines and their sentences, which are decoded on their own, and whose results are joined to the line's.

Where a guard judges outputs (`processors.guard`), a sentence may be decoded in pieces, or stay as it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from nartk.protocols.hypothesis import Guarded, Hypothesis, PhaseSeconds, Result, TokenTrace, added
from nartk.protocols.outputs import Output, Text
from nartk.protocols.paragraph import Paragraph

if TYPE_CHECKING:
    from nartk.data.clauses import Clause
    from nartk.processors import OutputProcessor
    from nartk.processors.guard import Guard

# A line's first sentence is the request of the line's own index. Each further one is so much above it, beyond
# all lines, so that what is drawn for it does not depend on how many sentences other lines have.
APART = 1 << 32


@dataclass(eq=False)
class _Part:
    """A sentence, or a piece of one, that is decoded on its own.

    Attributes:
        number: Number of its request in the line.
        text: Text that the model reads.
        clause: Clause that the guard made of it; None: its outputs are taken as they are.
        taken: Hypotheses that are sound, each with its output and the edits in it that were undone.
        kept: The text that stays where none is.
        spellings: A text to read, and those that are scored behind it before the part is decoded, to choose
            how misspelt words are spelled; empty: there is nothing to choose.
        variants: Texts that the guard weighs each hypothesis against, and behind them its own, if its
            log-probability is not known; empty: there is nothing to weigh.
        scores: The log-probabilities of all of them, in their order.
    """

    number: int
    text: str
    clause: Clause | None = None
    result: Result | None = None
    taken: list[tuple[Hypothesis, Output, tuple[Guarded, ...]]] = field(default_factory=list)
    kept: Text | None = None
    spellings: tuple[str, ...] = ()
    variants: list[tuple[str, ...]] = field(default_factory=list)
    scores: Iterator[float] | None = None

    def output(self, rank: int) -> tuple[Hypothesis | None, Output, tuple[Guarded, ...]]:
        """The hypothesis of that rank, or the last one, its output, and what was undone."""
        if self.kept is None:
            return self.taken[min(rank, len(self.taken) - 1)]
        return (None if self.result is None else self.result.hypotheses[0]), self.kept, ()


class Line:
    """A line, and the results of its sentences, and of their pieces, so far.

    Each sentence is a request, numbered from 0. Further pieces have the numbers behind. They are made when
    all that was asked has its result, so that no number depends on which result came first.

    Args:
        index: Index of the line.
        output: Makes outputs of hypotheses.
        guard: Judges outputs; None: all are taken.
        whole: True if sentences are first decoded as wholes, whatever they hold.
    """

    def __init__(
        self,
        index: int,
        paragraph: Paragraph,
        output: OutputProcessor,
        guard: Guard | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.index, self.paragraph, self.output, self.guard = index, paragraph, output, guard
        self._begun = float("inf")  # when the first request entered a batch, by the clock
        self._spent: list[Result] = []
        self._guarded: list[Guarded] = []
        self._count = len(paragraph.sentences)
        self._sentences: list[list[_Part]] = []
        for number, sentence in enumerate(paragraph.sentences):
            if guard is None or not sentence.text.strip():
                parts = [_Part(number, sentence.text)]
            else:
                found = guard.clauses(sentence.text, sentence.written, whole=whole)
                parts = [self._part(number, found[0]), *self._more(found[1:])]
            self._sentences.append(parts)
        self._open = {part.number: part for parts in self._sentences for part in parts}

    def _more(self, clauses: Sequence[Clause]) -> Iterator[_Part]:
        """Parts with the next numbers."""
        for clause in clauses:
            self._count += 1
            yield self._part(self._count - 1, clause)

    def _part(self, number: int, clause: Clause) -> _Part:
        assert self.guard is not None
        return _Part(number, clause.text, clause, spellings=self.guard.spellings(clause))

    def waiting(self) -> list[tuple[int, str, tuple[str, ...]]]:
        """Parts to decode next: numbers, texts as the model reads them, and what to score instead, if any."""
        return [
            (each.number, each.spellings[0], each.spellings[1:])
            if each.spellings
            else (each.number, each.text, tuple(chain(*each.variants)))
            for each in self._open.values()
        ]

    def sentence_of(self, number: int) -> int:
        """Number of the line's sentence, from 1, that a request is of."""
        owners = enumerate(self._sentences, start=1)
        return next(at for at, parts in owners if any(part.number == number for part in parts))

    def refuse(self, number: int, reason: str) -> bool:
        """Puts smaller pieces, or the source, in the place of a part; False: no guard allows that."""
        part = self._open[number]
        if part.clause is None:
            return False
        (parts,) = (parts for parts in self._sentences if part in parts)
        at = parts.index(part)
        parts[at : at + 1] = made = self._smaller(part, (reason,))
        kept = [each for each in self._open.values() if each is not part]
        index = [*self._open].index(number)
        kept[index:index] = (each for each in made if each.kept is None)
        self._open = {each.number: each for each in kept}
        return True

    def add(self, number: int, result: Result) -> bool:
        """Takes a result; whether it was the last one, so that `waiting` names what follows, if anything."""
        part = self._open.pop(number)
        self._begun = min(self._begun, time.perf_counter() - result.seconds)
        self._spent.append(result)
        scores = (0.0 if each.score is None else each.score for each in result.hypotheses)
        if part.spellings:
            self._spell(part, scores)
        elif part.result is None:
            part.result = result
        else:
            part.scores = scores
        if self._open:
            return False
        for parts in self._sentences:
            parts[:] = [each for part in parts for each in self._checked(part)]
            self._open |= {each.number: each for each in parts if not each.taken and each.kept is None}
        return True

    def _checked(self, part: _Part) -> list[_Part]:
        """A part with the outputs that are sound; if there are none, smaller ones, or it as it is.

        If they are to be weighed first, the part waits once more.
        """
        if part.result is None or part.taken or part.kept is not None:
            return [part]
        if self.guard is None or part.clause is None:
            part.taken = [(each, self.output.write(each), ()) for each in part.result.hypotheses]
            return [part]
        if part.scores is None:
            part.variants = [self._variants(self.guard, part.clause, each) for each in part.result.hypotheses]
            if any(part.variants):
                return [part]
            part.scores = iter(())
        refused: list[tuple[str, ...]] = []
        for hypothesis, variants in zip(part.result.hypotheses, part.variants, strict=True):
            others = [*islice(part.scores, len(variants))]
            own = math.fsum(hypothesis.positional_scores or [others.pop()] if variants else [])
            gains = [own - other for other in others]
            text, undone, reasons = self.guard.judge(part.clause, hypothesis, self.output, gains)
            if reasons:
                refused.append(reasons)
            else:
                part.taken.append((hypothesis, Text(text), undone))
        return [part] if part.taken else self._smaller(part, refused[0])

    def _spell(self, part: _Part, scores: Iterable[float]) -> None:
        """Chooses how the words of a part are spelled, which is decoded next."""
        assert self.guard is not None
        assert part.clause is not None
        part.clause, part.spellings = self.guard.spell(part.clause, scores), ()
        part.text = part.clause.text

    def _variants(self, guard: Guard, clause: Clause, hypothesis: Hypothesis) -> tuple[str, ...]:
        text = self.output.decode(hypothesis.tokens)
        found = guard.variants(clause, text)
        return (*found, text) if found and not hypothesis.positional_scores else found

    def _smaller(self, part: _Part, reasons: tuple[str, ...]) -> list[_Part]:
        """The halves of a part that was refused; if it has none, the part, which is kept."""
        assert part.clause is not None
        halves = part.clause.halves()
        source = " ".join(part.clause.spelled)
        self._guarded.append(Guarded("split" if halves else "kept", source, reasons))
        if halves:
            return [*self._more(halves)]
        part.kept = Text(source)
        return [part]

    def result(self) -> Result:
        """The line's result, once nothing is waiting.

        Its i-th hypothesis is made of each part's i-th, or last where there are fewer. Tokens with their
        log-probabilities follow each other, eos included; scores and counts are sums, and passes are counted
        on; `seconds` are from the entry of the first request into a batch to the end of the last. Of what is
        kept they are the refused output's. Counts hold what was refused and then decoded in pieces, too.
        """
        parts = [part for parts in self._sentences for part in parts]
        most = max(len(part.taken) for part in parts)
        hypotheses = tuple(self._joined(parts, rank) for rank in range(max(1, most)))
        if len(self._spent) == 1:
            return replace(
                self._spent[0], index=self.index, hypotheses=hypotheses, sentences=len(self._sentences)
            )
        counts, phases = added(self._spent)
        return Result(
            index=self.index,
            hypotheses=hypotheses,
            seconds=time.perf_counter() - self._begun if self._spent else 0.0,
            left_mid_batch=any(each.left_mid_batch for each in self._spent),
            phases=PhaseSeconds(**phases),
            sentences=len(self._sentences),
            **counts,
        )

    def _joined(self, parts: Sequence[_Part], rank: int) -> Hypothesis:
        written: list[Output] = []
        for sentence, mine in zip(self.paragraph.sentences, self._sentences, strict=True):
            made = [part.output(rank)[1] for part in mine]
            if all(part.kept is not None for part in mine):
                made = [Text(sentence.written)]
            written.append(made[0] if len(made) == 1 else Text(" ".join(map(str, made))))
        outputs = [part.output(rank) for part in parts]
        guarded = (*self._guarded, *(each for _, _, undone in outputs for each in undone))
        results = [part.result for part in parts if part.result is not None]
        chosen = [hypothesis for hypothesis, _, _ in outputs if hypothesis is not None]
        tokens = tuple(token for each in chosen for token in each.tokens)
        found: dict[str, Any] = {
            "output": self.output.join(written, self.paragraph),
            "pieces": tuple(self.output.vocab.to_words(tokens)),
            "guarded": guarded,
        }
        if len(chosen) == 1:
            return replace(chosen[0], **found)
        scores = [each.score for each in chosen if each.score is not None]
        positional = [each.positional_scores for each in chosen if each.positional_scores is not None]
        traces = [each.trace for each in chosen if each.trace is not None]
        return Hypothesis(
            tokens=tokens,
            score=sum(scores) if chosen and len(scores) == len(chosen) else None,
            positional_scores=(
                tuple(score for each in positional for score in each)
                if len(positional) == len(chosen)
                else None
            ),
            trace=_counted_on(traces, results) if chosen and len(traces) == len(chosen) else None,
            **found,
        )


def _counted_on(traces: Sequence[Sequence[TokenTrace]], results: Sequence[Result]) -> tuple[TokenTrace, ...]:
    """The traces of sentences as those of one output: a sentence's passes come after those before it."""
    found, passes = [], 0
    for trace, result in zip(traces, results, strict=True):
        found += [token.after(passes) for token in trace]
        passes += result.passes
    return tuple(found)
