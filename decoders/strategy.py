"""Base of every strategy: options, limits, and a run over sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from nartk.protocols.guarantee import Promise
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.runs import Batching, Run, run_through
from nartk.registry import option, options_of
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Base of strategies, and of what scores given outputs in their place. It implements `begin`.

    Attributes:
        needs: The protocol that its model speaks, or several.
        needs_blank: True if the model's frames must have a blank.
        is_greedy: True for greedy search, with which other strategies of the same models are compared.
        auxiliary: Scorers of the other models that options name (`option(..., model=True)`), by option.
    """

    needs: ClassVar[type | tuple[type, ...]]
    needs_blank: ClassVar[bool] = False
    is_greedy: ClassVar[bool] = False
    promise: ClassVar[Promise]
    name: ClassVar[str]

    auxiliary: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def promised(self) -> Promise:
        """Promise that it gives with its options; `promise` is the one without any."""
        return self.promise

    @property
    def beginning(self) -> tuple[int, ...]:
        """Tokens that outputs begin with, before a prefix or a draft of the user's."""
        return ()

    @property
    def admits_source(self) -> bool:
        """Tells whether a guard may put a source in the place of its output: no option forbids its words."""
        return True

    def check_auxiliary(self) -> None:
        """Refuses auxiliary models that are missing or do not fit, before anything is decoded."""

    def limit(self, source_len: int) -> int:
        """Longest output of a source of that many tokens (eos included in both)."""
        raise NotImplementedError

    def begin(self, scorer: Any, batching: Batching) -> Run:
        """Begins a run, which admits requests.

        Args:
            scorer: Speaks the protocols of `needs`.

        Raises:
            UsageError: An option does not fit the model.
        """
        raise NotImplementedError

    def run(
        self,
        scorer: Any,
        requests: Iterable[Request],
        *,
        batch_size: int,
        max_tokens: int | None = None,
        trace: bool = False,
    ) -> Iterator[Result]:
        """Yields the results of all requests as they end; the order is not theirs.

        Args:
            scorer: Speaks the protocols of `needs`.
            requests: Any number of them: they are read as others end.
            batch_size: Most rows at a time.
            max_tokens: Most source tokens at a time; one row is always allowed.
            trace: True if all hypotheses carry one, not only those whose requests ask for it.
        """
        self.check_auxiliary()
        if trace:
            requests = (replace(request, trace=True) for request in requests)
        run = self.begin(scorer, Batching(batch_size, max_tokens))
        return (result for _, result in run_through(run, requests))


@dataclass(frozen=True, kw_only=True)
class Strategy(Decoding):
    """Base of all strategies, with the options that all have whose output is not given.

    Attributes:
        own: Options that belong to a request, so that requests of one run may differ in them.
    """

    own: ClassVar[frozenset[str]] = frozenset(("max_len", "max_ratio"))

    max_len: int = option(256, "longest output, tokens", low=1)
    max_ratio: float = option(2.0, "longest output per source token; ten tokens are added to it", low=0.0)

    def in_pieces(self, output: OutputProcessor) -> Strategy:
        """The strategy with the text in its options as words of the model's dictionary."""
        return self

    def shared(self) -> Strategy:
        """The strategy of a run that decodes requests with this one's own options."""
        options = options_of(self.name)
        defaults: dict[str, Any] = {name: options[name].default for name in options.keys() & self.own}
        return replace(self, **defaults)

    def owned(self, vocab: Vocab) -> dict[str, Any]:
        """Fields of requests that carry its own options, for a run of the `shared` strategy."""
        return {}

    def limit(self, source_len: int) -> int:
        return min(self.max_len, int(min(self.max_ratio * source_len, self.max_len)) + 10)
