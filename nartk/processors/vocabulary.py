"""Text by a vocabulary that lists its words: characters, matches of patterns, or words between spaces.

Settings in ``config.json``: ``vocabulary`` names a JSON file that lists all words by id, special ones
included. ``split`` is ``spaces``, or a list of patterns (regular expressions): a token is the first match
of one of them, by their order, or else a character. With ``sentencepiece``, which names a file, tokens are
its pieces instead; with ``hides_symbols`` text has no words in angle brackets. Of the input also ``before``
and ``after``, ids around a source, and ``fill``: sources of fewer tokens are filled up with the padding
symbol, which the model reads as it reads any word.

Patterns come from strangers: one has at most one part that repeats, so that matching takes linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import astuple

from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject
from nartk.processors import named_file, register_processor
from nartk.processors.text import (
    SentencePieceTokenizer,
    TextInput,
    TextOutput,
    Tokenizer,
    WhitespaceTokenizer,
    spell,
)
from nartk.protocols.passes import TextSource
from nartk.vocab import SpecialIds, Vocab

NAME = "vocabulary"
FILE = "vocabulary.json"
SPACES = "spaces"

_MOST = 50_000_000  # bytes of a vocabulary
_MOST_FILL = 100_000  # tokens
_MOST_PATTERN = 200  # characters
_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape, or a class of characters
_REFUSED = re.compile(r"\)[*+?{]|\(\?(?!:)")  # groups that repeat, look around, or are referred to
_REPEATS = re.compile(r"(?<!\()[*+?]|\{\d*,\d*\}")


class PatternTokenizer(TextOutput):
    """Cuts text into matches of patterns, and characters where none matches. Implements `OutputProcessor`.

    Raises:
        CheckpointError: A pattern is no regular expression, matches nothing at all, or may be slow.
    """

    def __init__(self, vocab: Vocab, patterns: Sequence[str], where: str = "") -> None:
        self.vocab = vocab
        for pattern in patterns:
            _require_pattern(pattern, where)
        self._token = re.compile("|".join([*(f"(?:{each})" for each in patterns), "."]), re.DOTALL)

    def encode(self, text: str) -> list[int]:
        return self.vocab.ids(match.group() for match in self._token.finditer(text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(spell(ids, self.vocab))


class FilledInput(TextInput):
    """Reads a line as `TextInput` does, filled up with padding. Implements `InputProcessor`.

    Args:
        fill: Tokens that a source has at least.
    """

    def __init__(
        self, tokenizer: PatternTokenizer | Tokenizer, before: Sequence[int], after: Sequence[int], fill: int
    ) -> None:
        super().__init__(tokenizer, before, after)
        self.fill = fill

    def read(self, line: str, *, longest: int, truncate: bool = False) -> TextSource:
        found = super().read(line, longest=longest, truncate=truncate)
        missing = max(0, min(self.fill, longest) - len(found))
        copied = found.tokens[:-1] if found.copied is None else found.copied
        return TextSource(found.tokens + (self.vocab.pad,) * missing, copied)


def _require_pattern(pattern: object, where: str) -> None:
    """Raises CheckpointError unless a pattern matches in linear time, and at least a character."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= _MOST_PATTERN:
        raise CheckpointError(f"'split' has {str(pattern)[:40]!r}, which is no pattern", where=where)
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(
            f"the pattern {pattern!r} is no regular expression: {error}", where=where
        ) from error
    plain = _LITERAL.sub(lambda match: "x" if not match.group()[1:].isdigit() else "(?P", pattern)
    if _REFUSED.search(plain) or len(_REPEATS.findall(plain)) > 1:
        raise CheckpointError(
            f"the pattern {pattern!r} may take long to match",
            fix="give several patterns with one `*`, `+`, `?` or `{m,n}` each, not behind a group",
            where=where,
        )
    if compiled.match(""):
        raise CheckpointError(f"the pattern {pattern!r} matches an empty text", where=where)


def read_words(raw: bytes, where: str) -> list[str]:
    """The words by id of a JSON file that lists them, or has each word's id; raises CheckpointError."""
    try:
        found = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}", where=where) from error
    if isinstance(found, dict):
        ids = {id: word for word, id in found.items() if type(id) is int}
        if sorted(ids) != [*range(len(found))]:
            raise CheckpointError("its words have not the ids 0, 1, ... in some order", where=where)
        return [ids[id] for id in range(len(ids))]
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise CheckpointError("neither a list of words nor the ids of words", where=where)
    return found


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    tokenizer = load_output(folder, settings, specials)
    for key in ("before", "after"):
        _require_ids(settings.get(key), key, len(tokenizer.vocab), str(folder))
    fill = settings.get("fill", 0)
    if type(fill) is not int or not 0 <= fill <= _MOST_FILL:
        raise CheckpointError(f"'fill' is {fill!r}, not 0 to {_MOST_FILL} tokens", where=str(folder))
    return FilledInput(tokenizer, settings["before"], settings["after"], fill)


def load_vocabulary(folder: Folder, settings: JsonObject, specials: SpecialIds) -> Vocab:
    """The words of the file that settings name; raises CheckpointError where it has too few or no words."""
    path = named_file(folder, settings, "vocabulary")
    words = read_words(folder.read(path.name, most=_MOST), str(path))
    if max(astuple(specials)) >= len(words):
        raise CheckpointError(f"{len(words)} words, with special ids {specials}", where=str(folder))
    return Vocab((*words,), *astuple(specials))


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> PatternTokenizer | Tokenizer:
    vocab = load_vocabulary(folder, settings, specials)
    if "sentencepiece" in settings:
        hides = settings.get("hides_symbols", False)
        if type(hides) is not bool:
            raise CheckpointError(f"'hides_symbols' is {hides!r}, not true or false", where=str(folder))
        path = named_file(folder, settings, "sentencepiece")
        return SentencePieceTokenizer(path, vocab, hides_symbols=hides)
    split = settings.get("split")
    if split == SPACES:
        return WhitespaceTokenizer(vocab)
    if not isinstance(split, list):
        raise CheckpointError(f"'split' is {split!r}, neither {SPACES!r} nor patterns", where=str(folder))
    return PatternTokenizer(vocab, split, str(folder))


def _require_ids(ids: object, key: str, words: int, where: str) -> None:
    if not isinstance(ids, Collection) or not all(type(id) is int and 0 <= id < words for id in ids):
        raise CheckpointError(f"{key!r} is {ids!r}, not ids of words", where=where)
