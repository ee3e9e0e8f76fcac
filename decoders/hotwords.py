"""The options of strategies that favour words and phrases, each with a weight of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from nartk.decoders.graphs.hotwords import Hotwords
from nartk.decoders.native import Native
from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError, named
from nartk.registry import HEAVIEST, option
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

_BETWEEN = re.compile(r"\s+/\s+")  # hotwords
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WEIGHT = 3.0
_Phrase: TypeAlias = "tuple[tuple[str, ...], float | None]"  # words, and their own weight


@dataclass(frozen=True, kw_only=True)
class WithHotwords(Native):
    """Base of the strategies that can favour hotwords.

    Attributes:
        phrases: The words of the model's dictionary that each hotword is made of, and its own weight; None:
            `hotwords` is written in them.
    """

    hotwords: str = option(
        "",
        "words and phrases that are favoured, as written in a sentence, each with a weight of its own or "
        "without: 'nartk / New York:2.5' are two; after figures alone a weight takes a space, '10:30 :2.5'",
        does_nothing=True,
    )
    hotword_weight: float = option(
        _WEIGHT,
        "added to an output's score for each token of each hotword that it holds, nats, of those without a "
        "weight of their own",
        low=0.0,
        high=HEAVIEST,
        does_nothing=True,
    )
    phrases: tuple[_Phrase, ...] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.hotwords and self.hotword_weight != _WEIGHT:
            raise UsageError(
                f"{named('hotword_weight')} is {self.hotword_weight}, but there are no hotwords",
                fix=f"name some with {named('hotwords')}",
            )
        for text, weight in self._texts():
            if weight is not None and weight > HEAVIEST:
                raise UsageError(
                    f"{named('hotwords')} gives {text!r} the weight {weight:g}",
                    fix=f"give 0 to {HEAVIEST:g}",
                )

    def in_pieces(self, output: OutputProcessor) -> Strategy:
        vocab, made = output.vocab, list[_Phrase]()
        for text, weight in self._texts():
            words = vocab.to_words(output.encode(text))
            if not words:
                raise UsageError(f"{named('hotwords')} names {text!r}, no word", fix="leave it out")
            if vocab.words[vocab.unk] in words:
                raise UsageError(
                    f"{named('hotwords')} names {text!r}, of which the model's dictionary has only "
                    f"{' '.join(words)!r}",
                    fix="leave out what the model cannot write",
                )
            made.append((tuple(words), weight))
        return replace(self, phrases=tuple(made))

    def automaton(self, vocab: Vocab) -> Hotwords | None:
        """Finds the hotwords, which are written in words of the dictionary; None: there are none.

        Raises:
            UsageError: One is not made of such words.
        """
        phrases, weights, given = [], [], self.phrases
        if given is None:
            given = tuple((tuple(text.split()), weight) for text, weight in self._texts())
        for words, weight in given:
            ids = tuple(vocab.ids(words))
            if not ids or {vocab.bos, vocab.pad, vocab.eos, vocab.unk} & {*ids}:
                raise UsageError(
                    f"{named('hotwords')} names {' '.join(words)!r}, which is not made of words of the "
                    "dictionary",
                    fix="give words of the model's dictionary, as in 'a b / c'",
                )
            phrases.append(ids)
            weights.append(self.hotword_weight if weight is None else weight)
        return Hotwords.of(phrases, weights) if phrases else None

    def _texts(self) -> list[tuple[str, float | None]]:
        """Each hotword and its own weight, which stands behind a word with a letter, or white space."""
        found: list[tuple[str, float | None]] = []
        for text in _BETWEEN.split(self.hotwords) if self.hotwords else []:
            words, _, number = text.rpartition(":")
            last = "".join(words.split()[-1:])
            is_weighed = last and (words[-1].isspace() or any(map(str.isalpha, last)))
            if is_weighed and _NUMBER.fullmatch(number):
                found.append((words.strip(), float(number)))
            else:
                found.append((text, None))
        return found
