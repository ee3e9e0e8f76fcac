"""The options of strategies that weigh in an n-gram language model."""

from __future__ import annotations

from dataclasses import dataclass

from nartk.decoders.graphs.ngram_lm import NGram, load_ngram
from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError, named
from nartk.registry import HEAVIEST, option
from nartk.vocab import Vocab

_WEIGHT = 0.3


@dataclass(frozen=True, kw_only=True)
class WithLanguageModel(Strategy):
    """Base of the strategies that add a language model's scores to the model's."""

    lm: str = option(
        "", "n-gram language model of target tokens, a file in ARPA format", file=True, does_nothing=True
    )
    lm_weight: float = option(
        _WEIGHT,
        "weight of the language model's log-probabilities; ESPnet's is 1",
        low=-HEAVIEST,
        high=HEAVIEST,
        does_nothing=True,
    )

    def language_model(self, vocab: Vocab) -> NGram | None:
        """The language model for a vocabulary, if one is named; raises as `read_arpa` does.

        Raises:
            UsageError: It has a weight, but is not named.
        """
        if not self.lm and self.lm_weight != _WEIGHT:
            raise UsageError(
                f"{named('lm_weight')} is {self.lm_weight}, but there is no language model",
                fix=f"name one with {named('lm')}",
            )
        return load_ngram(self.lm, vocab) if self.lm else None
