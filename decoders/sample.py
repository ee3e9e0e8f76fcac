"""Sampling: words are drawn from the model's distribution, or from its likeliest part.

Temperature as usual; top-k after Fan et al. 2018 (arXiv:1805.04833), top-p after Holtzman et al. 2020
(arXiv:1904.09751).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.loop.constraints import Constraints, RowConstraints
from nartk.decoders.loop.drafter import Drafter, of_verifier
from nartk.decoders.loop.draws import RowDraws
from nartk.decoders.loop.loop import DraftAndVerify
from nartk.errors import StrategyMismatchError, UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, PhaseSeconds, Request, Result, added
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import NOTHING, Batching, Ended, Run
from nartk.registry import (
    HEAVIEST,
    MOST_SAMPLES,
    named_protocols,
    option,
    register_decoder,
    speaks,
)
from nartk.vocab import MOST_WORDS, Vocab

_MAX_DRAFT = 10
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Sampling(Constrained, DraftAndVerify):
    """Base of the strategies that draw words at random.

    Filters work in the order temperature, top-k, top-p, each on what the one before left; of words that are
    equally likely the lowest ids remain. Scores are log-probabilities under the model itself, without
    temperature and filters.
    """

    promise = Promise(
        Guarantee.SAME_DISTRIBUTION, "drawn from the model's, filtered as asked; the same in any batch"
    )

    temperature: float = option(
        1.0, "divides the logits: below 1 sharper, above 1 flatter", low=1e-3, high=HEAVIEST, implies=True
    )
    top_k: int = option(
        0, "draw from the k likeliest words; 0: from all", low=0, high=MOST_WORDS, implies=True
    )
    top_p: float = option(
        1.0,
        "draw from the likeliest words that together have this probability; 0: the likeliest alone",
        low=0,
        high=1,
        implies=True,
    )
    seed: int = option(1, "another seed draws other words", low=0)
    nbest: int = option(
        1, "outputs drawn for a sentence, given back likeliest first", low=1, high=MOST_SAMPLES
    )

    def choice(self, vocab: Vocab) -> RowConstraints:
        return self.draws(self.constraints(vocab), vocab.eos)

    def draws(self, rules: Constraints, eos: int) -> RowDraws:
        """Makes the rules that draw words, where `choice` does not choose otherwise."""
        # A pass takes no sum of 0, which the likeliest word alone would reach.
        top_k, top_p = (self.top_k, self.top_p) if self.top_p > 0 else (1, 1.0)
        return RowDraws(rules, eos, self.temperature, top_k, top_p, self.seed, self.nbest)

    def begin(self, scorer: PassScorer, batching: Batching) -> Run:
        return SampleRun(super().begin(scorer, batching), self.nbest)


class SampleRun:
    """Implements `nartk.protocols.runs.Run`: each sample of a request is a request of a run inside.

    Args:
        count: Samples of a request.
    """

    def __init__(self, inner: Run, count: int) -> None:
        self.inner, self.count = inner, count
        self._owners: dict[Request, Request] = {}  # by sample
        self._drawn: dict[Request, dict[Request, Result | None]] = {}  # of each request its samples

    def __len__(self) -> int:
        return len(self._drawn)

    def admit(self, request: Request) -> None:
        count = request.nbest or self.count
        samples = [replace(request, index=request.index * count + number) for number in range(count)]
        for each in samples:
            self.inner.admit(each)
        self._drawn[request] = dict.fromkeys(samples)
        self._owners |= dict.fromkeys(samples, request)

    def step(self) -> list[Ended]:
        found: list[Ended] = []
        for sample, last in self.inner.step():
            request = self._owners.pop(sample)
            samples = self._drawn[request]
            samples[sample] = last
            drawn = [result for result in samples.values() if result is not None]
            if len(drawn) == len(samples):
                found.append((request, _together(request.index, drawn, last)))
                del self._drawn[request]
        return found

    def so_far(self, request: Request) -> Hypothesis:
        """The first sample's; where there are several, another one may be the best in the end."""
        if request not in self._drawn:
            return NOTHING
        sample, result = next(iter(self._drawn[request].items()))
        return self.inner.so_far(sample) if result is None else result.hypotheses[0]

    def drop(self, request: Request) -> None:
        for sample in self._drawn.pop(request, ()):
            self._owners.pop(sample, None)
            self.inner.drop(sample)

    def close(self) -> None:
        self._owners.clear()
        self._drawn.clear()
        self.inner.close()


@register_decoder("sample")
class Sample(Sampling):
    """Draws each word at random; a draw depends on the seed, the sentence, the sample and the position alone.

    With --draft a pass also verifies what may be drawn next, and accepts those words that are drawn there:
    the outputs are the same ones, to the bit, in fewer passes.
    """

    own: ClassVar[frozenset[str]] = Sampling.own | {"seed", "nbest"}

    draft: str = option(
        NONE,
        "what may be drawn next: source, the rest of it; ngram, what followed the same words earlier in the "
        "document; or another drafter that needs no model of its own; the outputs stay the same",
    )
    max_draft: int = option(_MAX_DRAFT, "longest draft, tokens", low=1)

    def __post_init__(self) -> None:
        if self.draft == NONE and self.max_draft != _MAX_DRAFT:
            raise UsageError(
                f"{named('max_draft')} is {self.max_draft}, but nothing is drafted",
                fix=f"choose what with {named('draft')}: source or ngram",
            )
        if self.draft != NONE and self.draft not in of_verifier():
            raise UsageError(
                f"{named('draft')} is {self.draft!r}", fix=f"choose from {', '.join([NONE, *of_verifier()])}"
            )

    def owned(self, vocab: Vocab) -> dict[str, Any]:
        return {**super().owned(vocab), "seed": self.seed, "nbest": self.nbest}

    def make_drafter(self, scorer: PassScorer) -> Drafter | None:
        if self.draft == NONE:
            return None
        declared = of_verifier()[self.draft]
        if not speaks(declared, scorer):
            raise StrategyMismatchError(
                f"{named('draft', self.draft)} needs a {named_protocols(declared)}, this model is none",
                fix="leave it out",
            )
        return declared.of_length(self.max_draft).make_drafter(scorer)


def _together(index: int, drawn: Sequence[Result], last: Result) -> Result:
    """The result of a sentence whose samples were decoded apart, of which one ended last."""
    hypotheses = [result.hypotheses[0] for result in drawn]
    counts, phases = added(drawn)
    return Result(
        index=index,
        hypotheses=tuple(sorted(hypotheses, key=attrgetter("score"), reverse=True)),
        seconds=max(result.seconds for result in drawn),
        left_mid_batch=last.left_mid_batch,
        prompt=last.prompt,
        no_speech=last.no_speech,
        phases=PhaseSeconds(**phases),
        **counts,
    )
