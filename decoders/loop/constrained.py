"""The options of what outputs keep to: one declaration for greedy search, beam search and sampling."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError
from nartk.registry import option, options_of
from nartk.vocab import Vocab

_BETWEEN = " / "  # sequences of --suppress


@dataclass(frozen=True, kw_only=True)
class Constrained(Strategy):
    """Base of the strategies whose outputs keep to constraints, whatever is drafted and beside which rows.

    Log-probabilities and scores are the model's own, but those of beam search under a repetition penalty.
    """

    min_len: int = option(0, "shortest output, tokens without eos", low=0, does_nothing=True)
    repetition_penalty: float = option(
        1.0,
        "logits of words that the output holds are divided by it if above 0, else multiplied",
        low=1e-3,
        does_nothing=True,
    )
    no_repeat_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0, does_nothing=True)
    suppress: str = option(
        "",
        "words of the model's dictionary that are never output, with spaces between; 'a b' is the sequence, "
        "'a / b' are two words",
        does_nothing=True,
    )

    def constraints(self, vocab: Vocab) -> Constraints:
        """What outputs keep to besides their prefix.

        Raises:
            UsageError: A suppressed word is not in the vocabulary, or without it no output ends.
        """
        if self.min_len > self.max_len:
            raise UsageError(
                f"--min-len is {self.min_len}, above --max-len {self.max_len}", fix="raise --max-len"
            )
        sequences = [_ids(words, vocab) for words in self.suppress.split(_BETWEEN)] if self.suppress else []
        return Constraints(
            min_len=self.min_len,
            repetition_penalty=self.repetition_penalty,
            suppressed=tuple(words[0] for words in sequences if len(words) == 1),
            forbidden=tuple(words for words in sequences if len(words) > 1),
            no_repeat_ngram=self.no_repeat_ngram,
        )

    def refuse_constraints(self, why: str) -> None:
        """Refuses all of them, for options with which drafts are accepted that do not keep to them."""
        for name, item in options_of(self.name).items():
            value = getattr(self, name)
            if item.metadata["does_nothing"] and value != item.default:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {value!r}, but {why}", fix="leave one of them out"
                )


def _ids(text: str, vocab: Vocab) -> tuple[int, ...]:
    """The ids of a sequence of words."""
    words = text.split()
    for word in words:
        if word not in vocab.words:
            near = difflib.get_close_matches(word, vocab.words, n=3)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise UsageError(
                f"--suppress names {word!r}, which is not in the model's dictionary",
                fix=f"{hint}a piece that begins a word is written with ▁ in a sentencepiece model",
            )
    found = tuple(vocab.ids(words))
    if not found:
        raise UsageError(
            "--suppress has nothing between two /", fix="give words with spaces between, as in 'a b / c'"
        )
    if found == (vocab.eos,):
        raise UsageError("--suppress names eos, without which no output ends", fix="use --min-len")
    return found
