"""The options of strategies that favour words and phrases, each with a weight of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nartk.decoders.graphs.hotwords import Hotwords
from nartk.decoders.native import Native
from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError, named
from nartk.registry import HEAVIEST, option
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

_BETWEEN = re.compile(r"\s*/\s*")  # hotwords
_OWN_WEIGHT = re.compile(r"(.*\S)\s*:(\d+(?:\.\d+)?)")
_WEIGHT = 3.0


@dataclass(frozen=True, kw_only=True)
class WithHotwords(Native):
    """Base of the strategies that can favour hotwords."""

    hotwords: str = option(
        "",
        "words and phrases that are favoured, as written in a sentence, each with a weight of its own or "
        "without: 'nartk / New York:2.5' are two",
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
        vocab, made = output.vocab, []
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
            made.append(" ".join(words) + ("" if weight is None else f":{weight:g}"))
        changed: Any = {"hotwords": " / ".join(made)}
        return replace(self, **changed)

    def automaton(self, vocab: Vocab) -> Hotwords | None:
        """Finds the hotwords, which are written in words of the dictionary; None: there are none.

        Raises:
            UsageError: One is not made of such words.
        """
        phrases, weights = [], []
        for text, weight in self._texts():
            words = tuple(vocab.ids(text.split()))
            if not words or {vocab.bos, vocab.pad, vocab.eos, vocab.unk} & {*words}:
                raise UsageError(
                    f"{named('hotwords')} names {text!r}, which is not made of words of the dictionary",
                    fix="give words of the model's dictionary, as in 'a b / c'",
                )
            phrases.append(words)
            weights.append(self.hotword_weight if weight is None else weight)
        return Hotwords.of(phrases, weights) if phrases else None

    def _texts(self) -> list[tuple[str, float | None]]:
        """Each hotword and its own weight."""
        found: list[tuple[str, float | None]] = []
        for text in _BETWEEN.split(self.hotwords) if self.hotwords else []:
            weighed = _OWN_WEIGHT.fullmatch(text)
            found.append((text, None) if weighed is None else (weighed[1], float(weighed[2])))
        return found
