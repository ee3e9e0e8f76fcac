"""Decodes lines: each is one or several requests of a run, whose results are joined to the line's outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nartk.errors import (
    InputEncodingError,
    InputFileError,
    InputFormatError,
    InputTooLongError,
    NartkError,
    require_text,
)
from nartk.processors.text import AsGiven
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.outputs import Text
from nartk.protocols.paragraph import Paragraph, Tokenized
from nartk.protocols.passes import FeatureSource
from nartk.protocols.runs import NOTHING, Batching
from nartk.protocols.sources import Given
from nartk.serving.lines import APART, Line
from nartk.serving.recordings import spoken

if TYPE_CHECKING:
    from nartk.serving.model import Model

Outcome: TypeAlias = Result | NartkError
_OF_INPUT = (InputTooLongError, InputFileError, InputFormatError, InputEncodingError)


@dataclass(frozen=True, eq=False)
class LineRequest:
    """A line to decode. Two are never equal: a line names what became of it.

    Attributes:
        index: Its place in the input, on which what is drawn for it depends.
        source: The line, or a recording.
        prefix: Its output must begin with this.
        drafts: Guesses of its output, for the strategies that read drafts.
        targets: Outputs that are to be scored, for `nartk.decoders.scoring`; the line is then one sentence.
        truncate: True if a sentence that is too long is cut, instead of refused.
        trace: True if hypotheses carry a trace.
        strategy: Strategy whose own options it has (`Strategy.own`), in a run of the shared one; None: the
            run's.
    """

    index: int
    source: Given
    prefix: str = ""
    drafts: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    truncate: bool = False
    trace: bool = False
    strategy: Any = None


@dataclass(eq=False)
class _Open:
    """A line that is decoded.

    Attributes:
        waiting: Its requests that have not ended, with their numbers in the line.
        found: Results of its requests by their numbers.
    """

    asked: LineRequest
    line: Line
    waiting: dict[Request, int] = field(default_factory=dict)
    found: dict[int, Result] = field(default_factory=dict)


class LineRun:
    """Implements `nartk.protocols.runs.Steps` for lines.

    Ordinary text is decoded sentence by sentence (`Line` joins them), a line with a prefix or drafts as one
    sentence. Where one sentence of a line fails, the line does.

    Args:
        strategy: Result of `Model.strategy`, or of `Model.scoring`.
    """

    def __init__(self, model: Model, strategy: Any, batching: Batching) -> None:
        self.model, self.strategy = model, strategy
        self._tokenization, self._guard = model.tokenization, model.guarding
        self._run = model.begin(strategy, batching)
        self._open: dict[LineRequest, _Open] = {}
        self._owners: dict[Request, _Open] = {}
        self._done: list[tuple[LineRequest, Outcome]] = []  # lines that take no request

    def __len__(self) -> int:
        return len(self._open) + len(self._done)

    @property
    def requests(self) -> int:
        """Number of requests of all lines that have not ended."""
        return len(self._owners)

    def admit(self, asked: LineRequest) -> None:
        """Takes a line. What is wrong with it is its outcome, but for what its strategy cannot do.

        Raises:
            UsageError: The strategy cannot do what it asks for.
        """
        text = asked.source if isinstance(asked.source, str) else ""
        strategy = self.strategy if asked.strategy is None else asked.strategy
        if isinstance(asked.source, str) and not text.strip() and not asked.targets:
            self._end(asked, Text())
            return
        try:
            paragraph, forced = self._read(asked)
            free = None if asked.prefix or asked.targets or not strategy.admits_source else self._guard
            whole = any(asked.drafts)
            line = Line(asked.index, paragraph, self.model.checkpoint.output, free, whole=whole)
            opened = _Open(asked, line)
            made = self._requests(opened, **forced)
        except _OF_INPUT as error:
            self._done.append((asked, error))
            return
        is_one = len(made) == 1 and not (asked.prefix or asked.targets)
        if made and not (is_one and getattr(next(iter(made)).source, "copied", None) == ()):
            self._open[asked] = opened
            self._admit(opened, made)
        elif paragraph.sentences and not made:  # all too long
            self._done.append((asked, line.result()))
        else:  # of characters that nobody sees, no word is left
            self._end(asked, Text(text))

    def _end(self, asked: LineRequest, output: Text) -> None:
        """Ends a line of which nothing is decoded."""
        self._done.append((asked, Result(asked.index, (Hypothesis((), output=output),))))

    def _read(self, asked: LineRequest) -> tuple[Paragraph, dict[str, Any]]:
        """The sentences of a line, and what is asked for each: prefix, drafts and targets as tokens."""
        text = self._tokenization
        for given in (asked.source, asked.prefix, *asked.drafts, *asked.targets):
            if isinstance(given, str):
                require_text(given)
        if not isinstance(asked.source, str):
            paragraph = Paragraph((Tokenized(str(asked.source)),), ("", ""))
        elif asked.targets:
            paragraph = AsGiven().paragraph(text.tokens(asked.source))
        else:
            paragraph = text.paragraph(asked.source, prefix=asked.prefix, drafts=asked.drafts)
        forced: dict[str, Any] = {"prefix": text.beginning(asked.prefix)}
        for name in ("drafts", "targets"):
            forced[name] = [*map(text.tokens, getattr(asked, name))]
        return paragraph, forced

    def _admit(self, opened: _Open, made: dict[Request, int]) -> None:
        for request, number in made.items():
            self._run.admit(request)
            opened.waiting[request] = number
            self._owners[request] = opened

    def _requests(self, opened: _Open, **forced: Any) -> dict[Request, int]:
        """Makes the next requests of a line. Where a guard allows it, what is too long is decoded in pieces.

        Raises:
            InputTooLongError: A sentence is too long.
        """
        made: dict[Request, int] = {}
        line, asked = opened.line, opened.asked
        strategy = self.strategy if asked.strategy is None else asked.strategy
        waiting = line.waiting()
        while len(made) < len(waiting):
            number, text = waiting[len(made)]
            given = text if isinstance(asked.source, str) else asked.source
            try:
                at = asked.index + number * APART
                cut = asked.truncate and line.guard is None
                request = self.model.request(at, given, strategy, truncate=cut, trace=asked.trace, **forced)
                if asked.strategy is not None:
                    request = strategy.owned(request, self.model.checkpoint.target_vocab)
            except _OF_INPUT as error:
                if isinstance(error, InputTooLongError) and line.refuse(number, error.message):
                    waiting = line.waiting()
                    continue
                if len(line.paragraph.sentences) > 1:
                    error.message = f"sentence {line.sentence_of(number)} of the line: {error.message}"
                raise
            made[request] = number
        return made

    def step(self) -> list[tuple[LineRequest, Outcome]]:
        found, self._done = self._done, []
        for request, result in self._run.step():
            opened = self._owners.pop(request)
            number = opened.waiting.pop(request)
            found += self._taken(opened, number, request, result)
        return found

    def _taken(
        self, opened: _Open, number: int, request: Request, result: Result
    ) -> Iterator[tuple[LineRequest, Outcome]]:
        """Takes a result of a line; its outcome, if this was the last one."""
        asked, source = opened.asked, request.source
        if isinstance(source, FeatureSource) and not request.targets:
            result = spoken(self.model, source, result, str(asked.source), self.strategy)
        opened.found[number] = result
        if not opened.line.add(number, result):
            return
        try:
            made = self._requests(opened)  # once what was asked so far is done
        except _OF_INPUT as error:
            del self._open[asked]
            yield asked, error
            return
        if made:
            self._admit(opened, made)
        else:
            del self._open[asked]
            yield asked, opened.line.result()

    def so_far(self, asked: LineRequest) -> Hypothesis:
        """The tokens of a line's sentences as far as they are known without a gap, as the model writes them.

        A guard may put others in their place.
        """
        opened = self._open.get(asked)
        if opened is None:
            return NOTHING
        tokens: list[int] = []
        by_number = {number: request for request, number in opened.waiting.items()}
        for number in sorted({*opened.found, *by_number}):
            if number in by_number:
                tokens += self._run.so_far(by_number[number]).tokens
                break
            tokens += opened.found[number].hypotheses[0].tokens
        output = self.model.checkpoint.output
        found = Hypothesis(tuple(tokens), pieces=tuple(output.vocab.to_words(tokens)))
        return replace(found, output=output.write(found))

    def drop(self, asked: LineRequest) -> None:
        self._done = [(each, outcome) for each, outcome in self._done if each is not asked]
        opened = self._open.pop(asked, None)
        for request in () if opened is None else opened.waiting:
            del self._owners[request]
            self._run.drop(request)

    def close(self) -> None:
        self._open.clear()
        self._owners.clear()
        self._done.clear()
        self._run.close()
