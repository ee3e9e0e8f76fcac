"""From a line of text to ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nartk.errors import CheckpointError
from nartk.vocab import Vocab

UNKNOWN = "⁇"  # what stands in the output for a word that the vocabulary cannot spell


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]:
        """Ids of a line, without bos or eos."""

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids; bos, eos and pad are left out."""


class WhitespaceTokenizer:
    """Words are what stands between spaces."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(text.split())

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(_spell(ids, self.vocab))


class SentencePieceTokenizer:
    """Subword pieces of a sentencepiece model, numbered by the model's dictionary.

    Raises:
        CheckpointError: The file is not a sentencepiece model.
    """

    def __init__(self, model: Path, vocab: Vocab) -> None:
        import sentencepiece

        self.vocab = vocab
        try:
            self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise CheckpointError("not a sentencepiece model", where=str(model)) from error

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(self.pieces.encode(text, out_type=str))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(_spell(ids, self.vocab)).replace("▁", " ").strip(" ")


def _spell(ids: Sequence[int], vocab: Vocab) -> list[str]:
    silent = {vocab.bos, vocab.eos, vocab.pad}
    return [UNKNOWN if i == vocab.unk else vocab.to_words([i])[0] for i in ids if i not in silent]
