"""Text: words between spaces, or the pieces of a sentencepiece model, numbered by a dictionary.

Settings in ``config.json``: ``dictionary`` and, if there is one, ``sentencepiece`` name files; ``words`` is
how many the dictionary has, specials included. With ``only_known`` a source with a word that it has not is
refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from nartk.errors import (
    CheckpointError,
    InputFormatError,
    InputTooLongError,
    UnsupportedCheckpointError,
    VocabMismatchError,
    named,
)
from nartk.files import Folder, JsonObject
from nartk.processors import InputProcessor, OutputProcessor, named_file, register_processor
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import Output, Text
from nartk.protocols.paragraph import Paragraph, Tokenized
from nartk.protocols.passes import TextSource
from nartk.vocab import UNKNOWN, SpecialIds, Vocab


class TextOutput(ABC):
    """Base of the output processors that write text, which implements all but `vocab` and `encode`."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str: ...

    def write(self, hypothesis: Hypothesis) -> Text:
        return Text(self.decode(hypothesis.tokens))

    def join(self, outputs: Sequence[Output], paragraph: Paragraph) -> Text:
        return Text(paragraph.join([*map(str, outputs)]))


class WhitespaceTokenizer(TextOutput):
    """Words are what stands between spaces. Implements `OutputProcessor`."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(text.split())

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(spell(ids, self.vocab))


class SentencePieceTokenizer(TextOutput):
    """Subword pieces of a sentencepiece model, numbered by a dictionary. Implements `OutputProcessor`.

    Args:
        hides_symbols: True to leave words in angle brackets, as a language's, out of decoded text.

    Raises:
        CheckpointError: The file is not a sentencepiece model.
    """

    def __init__(self, model: Path, vocab: Vocab, *, hides_symbols: bool = False) -> None:
        import sentencepiece

        self.model, self.vocab, self.hides_symbols = model, vocab, hides_symbols
        try:
            self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise CheckpointError("not a sentencepiece model", where=str(model)) from error

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(self.pieces.encode(text, out_type=str))

    def decode(self, ids: Sequence[int]) -> str:
        # sentencepiece joins bytes to characters, denormalises, and knows which spaces it has added at the
        # ends. Words of the dictionary that are none of its pieces it leaves as they are, with their mark.
        if self.hides_symbols:
            words = self.vocab.to_words(ids)
            ids = [id for id, word in zip(ids, words, strict=True) if not is_symbol(word)]
        text: str = self.pieces.decode(spell(ids, self.vocab))
        return text.removeprefix("▁").replace("▁", " ")


Tokenizer: TypeAlias = WhitespaceTokenizer | SentencePieceTokenizer


class TextInput:
    """Reads a line as the words of it between special ones. Implements `InputProcessor`.

    Args:
        before, after: Ids of the special words; after, None: eos.
        only_known: True if a line with a word that the dictionary has not is an InputFormatError.
    """

    def __init__(
        self,
        tokenizer: OutputProcessor,
        before: Sequence[int] = (),
        after: Sequence[int] | None = None,
        *,
        only_known: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab
        self.before, self.after = before, [self.vocab.eos] if after is None else after
        self.only_known = only_known

    def read(self, line: str, *, longest: int, truncate: bool = False) -> TextSource:
        ids = self.tokenizer.encode(line)
        if self.only_known and self.vocab.unk in ids:
            raise InputFormatError(
                f"the model does not know {unknown_words(self.tokenizer, line)[0]!r}",
                fix="write words of its dictionary",
            )
        most = longest - len(self.before) - len(self.after)
        if len(ids) > most and not truncate:
            raise InputTooLongError(
                f"{len(ids)} tokens > {most}", fix=f"split the line, or use {named('truncate', True)}"
            )
        words = (*ids[:most],)
        # An output copies the words alone, which are all but eos where nothing else stands around them.
        plain = ids and not self.before and len(self.after) == 1
        return TextSource((*self.before, *words, *self.after), None if plain else words)

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        if other.vocab is None:
            raise VocabMismatchError(
                f"{mine} reads text, {theirs} does not", fix="use models that read the same sources"
            )
        self.vocab.require_equal(other.vocab, mine, theirs, padded=True)


class AsGiven:
    """Lines that are one sentence each, as the model reads and writes it."""

    name = ""

    def tokens(self, text: str) -> str:
        """A draft as the model writes it."""
        return text

    def beginning(self, text: str) -> str:
        """A prefix as the model writes it; a space at its end, where its last word has ended, stays."""
        found = self.tokens(text)
        return f"{found} " if found and text.endswith(" ") and not found.endswith(" ") else found

    def paragraph(self, line: str, *, prefix: str = "", drafts: Sequence[str] = ()) -> Paragraph:
        """The sentences of a line.

        Args:
            prefix: Text that its output must begin with.
            drafts: Drafts of its output. A line that has any, or a prefix, is one sentence.
        """
        return Paragraph((Tokenized(line),), ("", ""))


class PennTokenization(AsGiven):
    """Lines of ordinary English text, for a model of sentences whose tokens are the Penn Treebank's.

    Args:
        output: Spells what the model writes.
    """

    name = "penn"

    def __init__(self, output: OutputProcessor) -> None:
        self.output = output

    def tokens(self, text: str) -> str:
        from nartk.data.paragraphs import plain_tokens

        return plain_tokens(text)

    def paragraph(self, line: str, *, prefix: str = "", drafts: Sequence[str] = ()) -> Paragraph:
        from nartk.data.paragraphs import read_paragraph

        whole = any(text.strip() for text in (prefix, *drafts))
        return read_paragraph(line, self._spell, whole=whole, prefix=len(self.tokens(prefix).split()))

    def _spell(self, text: str) -> str:
        return self.output.decode(self.output.encode(text))


TOKENIZATIONS: dict[str, Callable[[OutputProcessor], AsGiven]] = {PennTokenization.name: PennTokenization}


def load_tokenization(name: object, output: OutputProcessor, where: str) -> AsGiven:
    """Loads the tokenization of lines that config.json names; None: they are sentences.

    Raises:
        UnsupportedCheckpointError: This version has none of that name.
    """
    if name is None:
        return AsGiven()
    if not isinstance(name, str) or name not in TOKENIZATIONS:
        raise UnsupportedCheckpointError(
            f"a tokenization {name!r}", fix=f"this version knows {', '.join(TOKENIZATIONS)}", where=where
        )
    return TOKENIZATIONS[name](output)


@register_processor("input", "text")
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    return TextInput(
        load_output(folder, settings, specials), only_known=settings.get("only_known", False) is True
    )


@register_processor("output", "text")
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> Tokenizer:
    vocab = load_vocab(folder, settings, specials)
    if "sentencepiece" in settings:
        return SentencePieceTokenizer(named_file(folder, settings, "sentencepiece"), vocab)
    return WhitespaceTokenizer(vocab)


def load_vocab(folder: Folder, settings: JsonObject, specials: SpecialIds) -> Vocab:
    """The words of the dictionary that settings name; raises CheckpointError if there are not as many."""
    vocab = Vocab.read(named_file(folder, settings, "dictionary"), specials)
    wanted = settings.get("words")
    if wanted != len(vocab):
        raise CheckpointError(f"the model has {wanted} words, its dictionary {len(vocab)}", where=str(folder))
    return vocab


def is_symbol(word: str) -> bool:
    """Tells whether a word is in angle brackets, as symbols of languages and tasks are."""
    return word.startswith("<") and word.endswith(">")


def unknown_words(tokenizer: OutputProcessor, text: str) -> list[str]:
    """The words between spaces that a dictionary has not, of a text in which something is unknown."""
    return [word for word in text.split() if tokenizer.vocab.unk in tokenizer.encode(word)] or [text]


def spell(ids: Sequence[int], vocab: Vocab) -> list[str]:
    """The words of ids without bos, eos and pad."""
    silent = {vocab.bos, vocab.eos, vocab.pad}
    return [UNKNOWN if i == vocab.unk else vocab.to_words([i])[0] for i in ids if i not in silent]
