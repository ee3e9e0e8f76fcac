"""What reads and writes text with a tokenizer of Hugging Face, as config.json's settings say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import takewhile

from nartk.errors import CheckpointError, InputFormatError
from nartk.files import Folder, JsonObject
from nartk.processors import register_processor
from nartk.processors.hugging_face.classes import open_tokenizer
from nartk.processors.hugging_face.tokenizer import Tokenizer
from nartk.processors.text import TextInput
from nartk.protocols.passes import TextSource
from nartk.vocab import MOST_WORDS, SpecialIds, Vocab

NAME = "hugging_face"


@dataclass(frozen=True)
class HuggingFaceTokenizer:
    """Text of one side as a tokenizer has it. Implements `OutputProcessor`.

    Attributes:
        target: Whether it is the target's.
        prefix: Text before each line.
        first_words: Ids before each line, one at most.
    """

    tokenizer: Tokenizer
    vocab: Vocab
    target: bool
    prefix: str = ""
    first_words: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        ids = [*self.first_words, *self.tokenizer.encode(self.prefix + text, target=self.target)]
        if max(ids, default=0) >= len(self.vocab):
            raise InputFormatError(
                f"holds the token {max(ids)} of a model with {len(self.vocab)} words",
                fix="take the tokenizer's special tokens out of the line",
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)


class HuggingFaceInput(TextInput):
    """Reads a line between special words. An output that copies it has neither these nor the prefix.

    Args:
        first_words: Ids that an output begins with, one at most.
    """

    def __init__(
        self,
        tokenizer: HuggingFaceTokenizer,
        before: Sequence[int],
        after: Sequence[int],
        first_words: tuple[int, ...],
    ) -> None:
        super().__init__(tokenizer, before, after)
        self.first_words = first_words
        self.prefix = tokenizer.encode("") if tokenizer.prefix else []

    def read(self, line: str, *, longest: int, truncate: bool = False) -> TextSource:
        tokens = super().read(line, longest=longest, truncate=truncate).tokens
        inner = tokens[len(self.before) : len(tokens) - len(self.after)]
        # The prefix may be cut otherwise before a line than alone.
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.prefix, inner, strict=False))
        words = inner[len(list(same)) :]
        return TextSource(tokens, (*self.first_words, *words) if words else ())


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    before, after, prefix = (settings.get(key) for key in ("before", "after", "prefix"))
    first = _first_words(folder, settings)
    if not isinstance(prefix, str):
        raise CheckpointError(f"'prefix' is {prefix!r}, not a text", where=str(folder))
    tokenizer, vocab = _load(folder, settings, specials, target=False)
    for key, ids in (("before", before), ("after", after)):
        if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < len(vocab) for id in ids):
            raise CheckpointError(f"{key!r} is {ids!r}, not ids of words", where=str(folder))
    text = HuggingFaceTokenizer(tokenizer, vocab, target=False, prefix=prefix)
    return HuggingFaceInput(text, before or (), after or (), first)


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> HuggingFaceTokenizer:
    tokenizer, vocab = _load(folder, settings, specials, target=True)
    return HuggingFaceTokenizer(tokenizer, vocab, target=True, first_words=_first_words(folder, settings))


def _first_words(folder: Folder, settings: JsonObject) -> tuple[int, ...]:
    first, count = settings.get("first_word"), settings.get("words")
    if first is None:
        return ()
    if type(first) is not int or type(count) is not int or not 0 <= first < count:
        raise CheckpointError(f"'first_word' is {first!r}, not the id of a word", where=str(folder))
    return (first,)


def _load(
    folder: Folder, settings: JsonObject, specials: SpecialIds, *, target: bool
) -> tuple[Tokenizer, Vocab]:
    count = settings.get("words")
    if type(count) is not int or not max(astuple(specials)) < count <= MOST_WORDS:
        raise CheckpointError(f"'words' is {count!r}, with special ids {specials}", where=str(folder))
    tokenizer = open_tokenizer(folder, settings)
    ends = settings.get("also_eos", [])
    if not isinstance(ends, list) or not all(type(id) is int and 0 <= id < count for id in ends):
        raise CheckpointError(f"'also_eos' is {ends!r}, not ids of words", where=str(folder))
    key = (count, specials, (*ends,), target and "target_vocabulary" in tokenizer.paths)
    if key not in tokenizer.vocabs:
        words = tuple(tokenizer.words(count, target=target))
        tokenizer.vocabs[key] = replace(Vocab(words, *astuple(specials)), also_eos=(*ends,))
    return tokenizer, tokenizer.vocabs[key]
