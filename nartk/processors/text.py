"""Text: words between spaces, or the pieces of a sentencepiece model, numbered by a dictionary.

Settings in ``config.json``: ``dictionary`` and, if there is one, ``sentencepiece`` name files; ``words`` is
how many the dictionary has, specials included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from nartk.errors import CheckpointError, InputTooLongError, VocabMismatchError, named
from nartk.passes import TextSource
from nartk.processors import InputProcessor, named_file, register_processor
from nartk.vocab import SpecialIds, Vocab

UNKNOWN = "⁇"  # what stands in the output for a word that the vocabulary cannot spell


class WhitespaceTokenizer:
    """Words are what stands between spaces. Implements `OutputProcessor`."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(text.split())

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(_spell(ids, self.vocab))


class SentencePieceTokenizer:
    """Subword pieces of a sentencepiece model, numbered by a dictionary. Implements `OutputProcessor`.

    Raises:
        CheckpointError: The file is not a sentencepiece model.
    """

    def __init__(self, model: Path, vocab: Vocab) -> None:
        import sentencepiece

        self.model, self.vocab = model, vocab
        try:
            self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise CheckpointError("not a sentencepiece model", where=str(model)) from error

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(self.pieces.encode(text, out_type=str))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(_spell(ids, self.vocab)).replace("▁", " ").strip(" ")


Tokenizer: TypeAlias = WhitespaceTokenizer | SentencePieceTokenizer


class TextInput:
    """Reads a line as the words of it and eos. Implements `InputProcessor`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab

    def read(self, line: str, *, longest: int, truncate: bool = False) -> TextSource:
        ids = self.tokenizer.encode(line)
        if len(ids) >= longest and not truncate:
            raise InputTooLongError(
                f"{len(ids)} tokens > {longest - 1}", fix=f"split the line, or use {named('truncate', True)}"
            )
        return TextSource((*ids[: longest - 1], self.vocab.eos))

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        if other.vocab is None:
            raise VocabMismatchError(
                f"{mine} reads text, {theirs} does not", fix="use models that read the same sources"
            )
        self.vocab.require_equal(other.vocab, mine, theirs)


@register_processor("input", "text")
def load_input(folder: Path, settings: Mapping[str, Any], specials: SpecialIds) -> TextInput:
    return TextInput(load_output(folder, settings, specials))


@register_processor("output", "text")
def load_output(folder: Path, settings: Mapping[str, Any], specials: SpecialIds) -> Tokenizer:
    vocab = Vocab.read(named_file(folder, settings, "dictionary"), specials)
    wanted = settings.get("words")
    if wanted != len(vocab):
        raise CheckpointError(f"the model has {wanted} words, its dictionary {len(vocab)}", where=str(folder))
    if "sentencepiece" in settings:
        return SentencePieceTokenizer(named_file(folder, settings, "sentencepiece"), vocab)
    return WhitespaceTokenizer(vocab)


def _spell(ids: Sequence[int], vocab: Vocab) -> list[str]:
    silent = {vocab.bos, vocab.eos, vocab.pad}
    return [UNKNOWN if i == vocab.unk else vocab.to_words([i])[0] for i in ids if i not in silent]
