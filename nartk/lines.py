"""Lines and their sentences, which are decoded on their own, and whose results are joined to the line's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nartk.hypothesis import Hypothesis, PhaseSeconds, Result, TokenTrace, added

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

# A line's first sentence is the request of the line's own index. Each further one is so much above it, beyond
# all lines, so that what is drawn for it does not depend on how many sentences other lines have.
APART = 1 << 32


@dataclass(frozen=True)
class Tokenized:
    """A sentence of tokens with spaces between, which a model reads and writes as it is."""

    text: str

    def restore(self, output: str) -> str:
        """What stands in the line for what a model made of the sentence."""
        return output


@dataclass(frozen=True)
class Paragraph:
    """A line: its sentences, and what is before, between and behind them.

    Attributes:
        between: One text more than there are sentences; what is in them is not decoded.
    """

    sentences: tuple[Tokenized, ...]
    between: tuple[str, ...]

    def join(self, outputs: Sequence[str]) -> str:
        """The line, of what a model made of each sentence."""
        parts = zip(self.sentences, outputs, self.between[1:], strict=True)
        return self.between[0] + "".join(each.restore(output) + rest for each, output, rest in parts)


@dataclass
class Line:
    """A line and the results of its sentences so far.

    Args:
        index: Of the line.
        output: Writes tokens as text.
    """

    index: int
    paragraph: Paragraph
    output: OutputProcessor
    _results: dict[int, Result] = field(default_factory=dict)
    _begun: float = float("inf")  # when the first sentence entered a batch, by the clock

    def add(self, part: int, result: Result) -> Result | None:
        """Takes the result of a sentence; gives the line's once it has them all.

        Its i-th hypothesis is made of each sentence's i-th, or last where there are fewer. Tokens with their
        log-probabilities follow each other, eos included; scores and counts are sums, and passes are counted
        on; `seconds` are from the entry of the first sentence into a batch to the end of the last.
        """
        now = time.perf_counter()
        self._results[part] = result
        self._begun = min(self._begun, now - result.seconds)
        if len(self._results) < len(self.paragraph.sentences):
            return None
        results = [self._results[part] for part in range(len(self._results))]
        most = max(len(each.hypotheses) for each in results)
        hypotheses = tuple(self._joined(results, rank) for rank in range(most))
        if len(results) == 1:
            return replace(result, index=self.index, hypotheses=hypotheses)
        counts, phases = added(results)
        return Result(
            index=self.index,
            hypotheses=hypotheses,
            seconds=now - self._begun,
            left_mid_batch=any(each.left_mid_batch for each in results),
            phases=PhaseSeconds(**phases),
            sentences=len(results),
            **counts,
        )

    def _joined(self, results: Sequence[Result], rank: int) -> Hypothesis:
        parts = [each.hypotheses[min(rank, len(each.hypotheses) - 1)] for each in results]
        text = self.paragraph.join([self.output.decode(part.tokens) for part in parts])
        tokens = tuple(token for part in parts for token in part.tokens)
        pieces = tuple(self.output.vocab.to_words(tokens))
        if len(parts) == 1:
            return replace(parts[0], text=text, pieces=pieces)
        scores = [part.score for part in parts if part.score is not None]
        positional = [part.positional_scores for part in parts if part.positional_scores is not None]
        traces = [part.trace for part in parts if part.trace is not None]
        return Hypothesis(
            tokens=tokens,
            score=sum(scores) if len(scores) == len(parts) else None,
            positional_scores=(
                tuple(score for each in positional for score in each)
                if len(positional) == len(parts)
                else None
            ),
            trace=_counted_on(traces, results) if len(traces) == len(parts) else None,
            text=text,
            pieces=pieces,
        )


def _counted_on(traces: Sequence[Sequence[TokenTrace]], results: Sequence[Result]) -> tuple[TokenTrace, ...]:
    """The traces of sentences as those of one output: a sentence's passes come after those before it."""
    found, passes = [], 0
    for trace, result in zip(traces, results, strict=True):
        for token in trace:
            own = token.verifier_pass
            found.append(replace(token, verifier_pass=own + passes if own else 0))
        passes += result.passes
    return tuple(found)
