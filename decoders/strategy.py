"""What every strategy is: options, limits, and a run over sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from nartk.protocols.guarantee import Promise
from nartk.protocols.hypothesis import Request, Result
from nartk.registry import option

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor


@dataclass(frozen=True)
class Batching:
    """How requests are decoded, as `Strategy.run` is told."""

    size: int
    max_tokens: int | None
    trace: bool


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Base of all strategies. `run` yields results as sentences finish; the order is not the input's.

    A strategy implements `results`.

    Attributes:
        needs: The protocol that its model speaks, or several.
        auxiliary: Scorers of the other models that options name (`option(..., model=True)`), by option.
    """

    needs: ClassVar[type | tuple[type, ...]]
    promise: ClassVar[Promise]
    name: ClassVar[str]

    max_len: int = option(256, "longest output, tokens", low=1)
    max_ratio: float = option(2.0, "longest output per source token; ten tokens are added to it", low=0.0)
    auxiliary: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def promised(self) -> Promise:
        """What it promises with its options; `promise` is what it promises without any."""
        return self.promise

    @property
    def beginning(self) -> tuple[int, ...]:
        """What outputs begin with, before a prefix or a draft of the user's."""
        return ()

    @property
    def admits_source(self) -> bool:
        """Whether a guard may put a source in the place of its output: no option forbids what it holds."""
        return True

    def check_auxiliary(self) -> None:
        """Refuses auxiliary models that are missing or do not fit, before anything is decoded."""

    def in_pieces(self, output: OutputProcessor) -> Strategy:
        """The strategy with the text in its options as words of the model's dictionary."""
        return self

    def limit(self, source_len: int) -> int:
        """Longest output of a source of that many tokens (eos included in both)."""
        return min(self.max_len, int(min(self.max_ratio * source_len, self.max_len)) + 10)

    def run(
        self,
        scorer: Any,
        requests: Iterable[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        """Decodes all requests, long sentences first.

        Args:
            scorer: Speaks the protocols of `needs`.
            requests: Any number of them; they are sorted by length, so that all are read first.
            batch_size: Most rows at a time.
            max_tokens: Most source tokens at a time; one row is always allowed.
            trace: Whether hypotheses carry one.
        """
        self.check_auxiliary()
        return self.results(scorer, [*requests], Batching(batch_size, max_tokens, trace))

    def results(self, scorer: Any, requests: Sequence[Request], batching: Batching) -> Iterator[Result]:
        """What `run` yields."""
        raise NotImplementedError
