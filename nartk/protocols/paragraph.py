"""A line of text as the sentences that a model reads, and how their outputs become a line again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tokenized:
    """A sentence of tokens with spaces between, which a model reads and writes as it is."""

    text: str

    @property
    def written(self) -> str:
        """The sentence as the model would write it."""
        return self.text

    def restore(self, output: str) -> str:
        """Returns the line's text for a model's output of the sentence."""
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


def edits(source: Sequence[str], output: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of an alignment: tokens of the source from i to stop are those of the output from j to last.

    Blocks of as many tokens on both sides are given token by token.
    """
    from difflib import SequenceMatcher  # whose import every start would pay for

    for _, i, stop, j, last in SequenceMatcher(None, source, output, autojunk=False).get_opcodes():
        if stop - i != last - j:
            yield i, stop, j, last
        else:
            yield from ((i + step, i + step + 1, j + step, j + step + 1) for step in range(stop - i))


def bare(tokens: Sequence[str]) -> list[str]:
    """The words among tokens, in small letters and without apostrophes and the like."""
    return [word for token in tokens if (word := "".join(filter(str.isalnum, token.lower())))]
