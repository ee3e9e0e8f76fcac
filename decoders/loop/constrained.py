"""The options of what outputs keep to: one declaration for greedy search, beam search and sampling."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.momentum import TOP, Momentum
from nartk.decoders.loop.shortlist import BEST, FIRST, ShortlistFile
from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError, named
from nartk.registry import HEAVIEST, WIDEST, option, options_of
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

_BETWEEN = " / "  # sequences of --suppress
_MARK = "▁"  # begins a piece of sentencepiece that begins a word
_RULES = frozenset(
    (
        *("min_len", "repetition_penalty", "no_repeat_ngram", "no_source_ngram", "suppress"),
        *("suppress_ids", "suppress_first_ids", "forced_bos", "forced_eos"),
        *("shortlist", "shortlist_first", "shortlist_best"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Constrained(Strategy):
    """Base of the strategies whose outputs keep to constraints, whatever is drafted and beside which rows.

    Log-probabilities and scores are the model's own, but for words that --forced-bos and --forced-eos force,
    of which they are 0, and where beam search says otherwise.
    """

    own: ClassVar[frozenset[str]] = Strategy.own | _RULES

    min_len: int = option(0, "shortest output, tokens without eos", low=0, most="max_len", does_nothing=True)
    repetition_penalty: float = option(
        1.0,
        "logits of words that the output holds are divided by it if above 0, else multiplied",
        low=1e-3,
        high=HEAVIEST,
        does_nothing=True,
    )
    no_repeat_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0, does_nothing=True)
    no_source_ngram: int = option(
        0, "no n tokens of a source recur in its output; 0: they may", low=0, does_nothing=True
    )
    suppress: str = option(
        "",
        "text that is never output: 'went / in fact' are a word, and two in a row, as written in a sentence. "
        "Longer words whose first pieces are the same go with them; '▁in crease' names the pieces themselves",
        does_nothing=True,
    )
    suppress_ids: str = option(
        "", "as --suppress, by the ids of words: '17 / 4 9' are a word, and two in a row", does_nothing=True
    )
    suppress_first_ids: str = option(
        "", "ids of words that no output begins with, such as '17 9', behind --forced-bos", does_nothing=True
    )
    forced_bos: int = option(
        -1, "id of the word that outputs begin with, such as a language's; -1: any", low=-1, does_nothing=True
    )
    forced_eos: bool = option(
        False, "an output that reaches its longest length ends with eos", does_nothing=True
    )

    shortlist: str = option(
        "",
        "file of a lexical shortlist of Marian's: only words that it lists for a source's words are output",
        file=True,
        does_nothing=True,
    )
    shortlist_first: int = option(
        FIRST, "words of the vocabulary that all lists begin with, of a table", low=0, does_nothing=True
    )
    shortlist_best: int = option(
        BEST, "most words that a table lists for a source word", low=0, does_nothing=True
    )

    def owned(self, vocab: Vocab) -> dict[str, Any]:
        return {"rules": self.constraints(vocab)}

    @property
    def beginning(self) -> tuple[int, ...]:
        return () if self.forced_bos < 0 else (self.forced_bos,)

    def in_pieces(self, output: OutputProcessor) -> Strategy:
        parts = self.suppress.split(_BETWEEN) if self.suppress else []
        return replace(self, suppress=_BETWEEN.join(_pieces(text, output) for text in parts))

    def constraints(self, vocab: Vocab) -> Constraints:
        """Rules that outputs keep to besides their prefix.

        Raises:
            UsageError: A suppressed word is not in the vocabulary, or without it no output ends.
        """
        sequences = [
            *_sequences("suppress", self.suppress, vocab, _ids),
            *_sequences("suppress_ids", self.suppress_ids, vocab, _numbers),
        ]
        if self.forced_bos >= 0:
            _numbers("forced_bos", str(self.forced_bos), vocab)
        return Constraints(
            min_len=self.min_len,
            repetition_penalty=self.repetition_penalty,
            suppressed=tuple(words[0] for words in sequences if len(words) == 1),
            forbidden=tuple(words for words in sequences if len(words) > 1),
            no_repeat_ngram=self.no_repeat_ngram,
            no_source_ngram=self.no_source_ngram,
            forced_bos=self.forced_bos,
            forced_eos=self.forced_eos,
            suppressed_first=_numbers("suppress_first_ids", self.suppress_first_ids, vocab),
            also_eos=vocab.also_eos,
            shortlist=self._shortlist(),
        )

    def _shortlist(self) -> ShortlistFile | None:
        """The file of shortlists, if one is named."""
        if self.shortlist:
            return ShortlistFile(self.shortlist, self.shortlist_first, self.shortlist_best)
        for name, default in (("shortlist_first", FIRST), ("shortlist_best", BEST)):
            if getattr(self, name) != default:
                raise UsageError(
                    f"{named(name)} is {getattr(self, name)}, but there is no shortlist",
                    fix=f"name one with {named('shortlist')}",
                )
        return None

    @property
    def admits_source(self) -> bool:
        return not (
            self.min_len
            or self.suppress
            or self.suppress_ids
            or self.suppress_first_ids
            or self.no_repeat_ngram
            or self.no_source_ngram
            or self.shortlist
        )

    def refuse_constraints(self, why: str) -> None:
        """Refuses all of them, for options with which drafts are accepted that do not keep to them."""
        for name, item in options_of(self.name).items():
            value = getattr(self, name)
            if item.metadata["does_nothing"] and value != item.default:
                raise UsageError(f"{named(name)} is {value!r}, but {why}", fix="leave one of them out")


@dataclass(frozen=True, kw_only=True)
class BestWords(Constrained):
    """Base of the strategies whose words are the best ones, neither drawn nor chosen for a whole output."""

    own: ClassVar[frozenset[str]] = Constrained.own | {"momentum", "momentum_top"}

    momentum: float = option(
        0.0,
        "momentum decoding: what a word costs that the output holds, probability, and up to six times that "
        "where it repeats an n-gram; the authors have 0.2",
        low=0.0,
        high=HEAVIEST,
        does_nothing=True,
    )
    momentum_top: int = option(
        TOP,
        "words that are compared with --momentum, the likeliest",
        low=1,
        high=WIDEST,
        does_nothing=True,
    )

    def constraints(self, vocab: Vocab) -> Constraints:
        if not self.momentum and self.momentum_top != TOP:
            raise UsageError(
                f"{named('momentum_top')} is {self.momentum_top}, but repetitions cost nothing",
                fix=f"give {named('momentum')}, such as 0.2",
            )
        return replace(super().constraints(vocab), momentum=Momentum(self.momentum, self.momentum_top))


def _pieces(text: str, output: OutputProcessor) -> str:
    """Text as pieces of the dictionary, if it has any; what begins with the mark of a piece is as it is."""
    vocab = output.vocab
    found = vocab.to_words(output.encode(text))
    if text.startswith(_MARK) or not any(word.startswith(_MARK) for word in found):
        return text
    if vocab.words[vocab.unk] in found:
        raise UsageError(
            f"{named('suppress')} names {text!r}, of which the model's dictionary has only "
            f"{' '.join(found)!r}",
            fix="leave out what the model cannot write",
        )
    return " ".join(found)


def _sequences(
    name: str, text: str, vocab: Vocab, ids_of: Callable[[str, str, Vocab], tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """The ids of the sequences that an option names."""
    for part in text.split(_BETWEEN) if text else ():
        found = ids_of(name, part, vocab)
        if not found:
            raise UsageError(
                f"{named(name)} has nothing between two /",
                fix="give words with spaces between, as in 'a b / c'",
            )
        if found == (vocab.eos,):
            raise UsageError(
                f"{named(name)} names eos, without which no output ends", fix=f"use {named('min_len')}"
            )
        yield found


def _ids(name: str, text: str, vocab: Vocab) -> tuple[int, ...]:
    """The ids of a sequence of words."""
    words = text.split()
    for word in words:
        if word not in vocab.words:
            near = difflib.get_close_matches(word, vocab.words, n=3)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise UsageError(
                f"{named(name)} names {word!r}, which is not in the model's dictionary",
                fix=f"{hint}a piece that begins a word is written with ▁ in a sentencepiece model",
            )
    return tuple(vocab.ids(words))


def _numbers(name: str, text: str, vocab: Vocab) -> tuple[int, ...]:
    """A sequence of ids."""
    for each in text.split():
        if not (each.isascii() and each.isdecimal()) or int(each) >= len(vocab):
            raise UsageError(
                f"{named(name)} names {each!r}, which is no word's id",
                fix=f"give numbers between 0 and {len(vocab) - 1}",
            )
    return tuple(map(int, text.split()))
