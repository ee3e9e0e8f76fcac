"""Selection of a distilled corpus: the choice among outputs, and the filters of pairs.

Distillation replaces the references of a training corpus by what a teacher says (Kim & Rush 2016,
https://aclanthology.org/D16-1139).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from nartk.errors import UsageError, named

_LONGEST_NGRAM = 4  # tokens of a repeated piece of text that `longest_run` looks for


def _limit(default: float, help: str, *, high: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "high": high})


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Limits beyond which a pair is left out; 0 turns one off.

    Raises:
        UsageError: A limit is out of its bounds.
    """

    drop_longer: int = _limit(0, "drop pairs with a side of more than N tokens (of the teacher)")
    drop_ratio: float = _limit(
        0.0, "drop pairs with a side more than X times as long as the other, in tokens"
    )
    drop_copies: float = _limit(
        0.0,
        "drop outputs that share at least this part of their words with the source; 1: only those with the "
        "same words",
        high=1,
    )
    drop_repeats: int = _limit(
        0,
        f"drop outputs that say the same 1 to {_LONGEST_NGRAM} tokens more than N times in a row, and more "
        "often than the source does",
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value, high = getattr(self, item.name), item.metadata["high"]
            if not value >= 0 or (high is not None and value > high):
                bounds = "0 or more" if high is None else f"a value between 0 and {high}"
                raise UsageError(f"{named(item.name)} is {value}", fix=f"give {bounds}")

    def reason(
        self,
        source: str,
        output: str,
        encode: Callable[[str], Sequence[int]],
        write: Callable[[str], Sequence[int]],
    ) -> str | None:
        """Reason to drop a pair: the first of ``empty``, ``longer``, ``ratio``, ``copies``, ``repeats``.

        Args:
            encode, write: Give the tokens of a source and of an output.
        """
        if not source.strip() or not output.strip():
            return "empty"
        given, written = encode(source), write(output)
        short, long = sorted((len(given), len(written)))
        if self.drop_longer and long > self.drop_longer:
            return "longer"
        if self.drop_ratio and long > self.drop_ratio * short:
            return "ratio"
        if self.drop_copies and overlap(source.split(), output.split()) >= self.drop_copies:
            return "copies"
        if self.drop_repeats and longest_run(written) > max(self.drop_repeats, longest_run(given)):
            return "repeats"
        return None


REASONS = ("failed", "empty", "longer", "ratio", "copies", "repeats")


def overlap(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """The part of the words of the longer sequence that the other one has too, as often; 0 to 1."""
    longer = max(len(first), len(second))
    return (Counter(first) & Counter(second)).total() / longer if longer else 1.0


def longest_run(tokens: Sequence[object], longest: int = _LONGEST_NGRAM) -> int:
    """Longest run of one n-gram of 1 to `longest` tokens, in repetitions.

    1 where nothing is repeated, 0 for no tokens.
    """
    most = min(1, len(tokens))
    for size in range(1, longest + 1):
        # An n-gram stands k times in a row where (k - 1) * n tokens in a row equal those n places before.
        equal = 0
        for i in range(size, len(tokens)):
            equal = equal + 1 if tokens[i] == tokens[i - size] else 0
            most = max(most, equal // size + 1)
    return most


@dataclass(frozen=True)
class Choice:
    """Picks the text that stands for a source: among a teacher's outputs, or the reference.

    Attributes:
        closest: Take the output of the n-best list that is closest to the reference by sentence BLEU
            (sequence-level interpolation, Kim & Rush 2016, section 3.4), not the best one.
        least: Sentence BLEU, 0 to 100, below which the reference stands in the output's place.
        bleu: Gives the BLEU of an output against a reference; None where none is needed.
    """

    closest: bool = False
    least: float = 0.0
    bleu: Callable[[str, str], float] | None = None

    def __call__(self, outputs: Sequence[str], reference: str | None) -> tuple[str, str]:
        """The text, and where it came from: ``best``, ``other`` (of the list) or ``reference``."""
        if self.bleu is None or reference is None:
            return outputs[0], "best"
        scores = [self.bleu(output, reference) for output in (outputs if self.closest else outputs[:1])]
        best = max(range(len(scores)), key=scores.__getitem__)  # the first of equals
        if scores[best] < self.least:
            return reference, "reference"
        return outputs[best], "other" if best else "best"
