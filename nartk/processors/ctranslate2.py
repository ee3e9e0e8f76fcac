"""Text of CTranslate2's models: words of its vocabularies, and the files that cut text into these.

Settings in ``config.json``: ``vocabulary`` names a file without its ending; ``added`` are words behind the
vocabulary's, ``before`` and ``after`` ids around a source, and ``languages`` ids that name one, which no text
has. One of three says how text is cut: ``sentencepiece`` names a file; ``tokenizer`` has the settings of
`nartk.processors.hugging_face`; ``bpe``, ``codes`` and ``moses`` are those of `nartk.processors.bpe`. Without
any, words are what stands between spaces.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import astuple
from pathlib import Path

from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject
from nartk.processors import OutputProcessor, named_file, register_processor
from nartk.processors.bpe import SplitTokenizer, splitters
from nartk.processors.hugging_face.loading import open_tokenizer
from nartk.processors.hugging_face.tokenizer import Tokenizer
from nartk.processors.text import SentencePieceTokenizer, TextInput, TextOutput, WhitespaceTokenizer
from nartk.vocab import SpecialIds, Vocab

NAME = "ctranslate2"

_MOST = 50_000_000  # bytes


def read_vocabulary(folder: Folder, name: str) -> list[str]:
    """The words of ``NAME.json`` or ``NAME.txt`` of a folder.

    Raises:
        CheckpointError: There is neither, or it is damaged.
    """
    if folder.has(f"{name}.json"):
        path, raw = f"{name}.json", folder.read(f"{name}.json", most=_MOST)
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise CheckpointError("not JSON", where=str(folder / path)) from error
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise CheckpointError("not a list of words", where=str(folder / path))
        return found
    path = f"{name}.txt"
    if not folder.has(path):
        raise CheckpointError(f"has neither {name}.json nor {path}", where=str(folder))
    try:
        text = folder.read(path, most=_MOST).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError("not UTF-8", where=str(folder / path)) from error
    return text.removesuffix("\n").split("\n")


class LanguagePieces(SentencePieceTokenizer):
    """Pieces of text behind a word that names its language.

    Args:
        languages: Ids of such words.
    """

    def __init__(self, model: Path, vocab: Vocab, languages: Collection[int]) -> None:
        super().__init__(model, vocab)
        self.languages = frozenset(languages)

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([id for id in ids if id not in self.languages])


class TokenizerWords(TextOutput):
    """Tokens of a tokenizer of Hugging Face's, numbered by a vocabulary. Implements `OutputProcessor`.

    Args:
        languages: Ids of words that name a language, which no text has.
        target: True if it is the target's.

    Raises:
        CheckpointError: The tokenizer has less than half of the vocabulary's words.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab: Vocab, languages: Collection[int], *, target: bool
    ) -> None:
        self.vocab, self._tokenizer, self._target = vocab, tokenizer, target
        found = {id: tokenizer.id_of(word) for id, word in enumerate(vocab.words)}
        self._theirs = {id: theirs for id, theirs in found.items() if theirs is not None}
        self._ours = {theirs: id for id, theirs in self._theirs.items()}
        if 2 * len(self._theirs) < len(vocab):
            raise CheckpointError(
                f"its tokenizer has {len(self._theirs)} of the vocabulary's {len(vocab)} words",
                fix="take the tokenizer of this model",
                where=str(tokenizer.folder),
            )
        for each in (vocab.bos, vocab.eos, vocab.pad, *languages):
            self._theirs.pop(each, None)

    def encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, target=self._target)
        return [self._ours.get(id, self.vocab.unk) for id in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([self._theirs[id] for id in ids if id in self._theirs])


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    tokenizer = _load(folder, settings, specials, target=False)
    for key in ("before", "after"):
        ids = settings.get(key)
        if not isinstance(ids, list) or not all(
            type(id) is int and 0 <= id < len(tokenizer.vocab) for id in ids
        ):
            raise CheckpointError(f"{key!r} is {ids!r}, not ids of words", where=str(folder))
    return TextInput(tokenizer, settings["before"], settings["after"])


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> OutputProcessor:
    return _load(folder, settings, specials, target=True)


def _load(folder: Folder, settings: JsonObject, specials: SpecialIds, *, target: bool) -> OutputProcessor:
    name = settings.get("vocabulary")
    if not isinstance(name, str) or not name.isidentifier():
        raise CheckpointError(f"'vocabulary' is {name!r}, not the name of a file", where=str(folder))
    added = settings.get("added", [])
    if not isinstance(added, list) or not all(isinstance(word, str) for word in added):
        raise CheckpointError(f"'added' is {added!r}, not words", where=str(folder))
    words = [*read_vocabulary(folder, name), *added]
    if max(astuple(specials)) >= len(words):
        raise CheckpointError(f"{len(words)} words, with special ids {specials}", where=str(folder))
    vocab = Vocab((*words,), *astuple(specials))
    languages = settings.get("languages", [])
    if not isinstance(languages, list) or not all(type(id) is int for id in languages):
        raise CheckpointError(f"'languages' is {languages!r}, not ids of words", where=str(folder))
    if "sentencepiece" in settings:
        return LanguagePieces(named_file(folder, settings, "sentencepiece"), vocab, languages)
    if "tokenizer" in settings:
        inner = settings["tokenizer"]
        if not isinstance(inner, dict):
            raise CheckpointError(f"'tokenizer' is {inner!r}, not settings", where=str(folder))
        return TokenizerWords(open_tokenizer(folder, inner), vocab, languages, target=target)
    if "bpe" in settings:
        codes = {"codes": named_file(folder, settings, "codes")}
        return SplitTokenizer(vocab, splitters(settings, codes, str(folder)))
    return WhitespaceTokenizer(vocab)
