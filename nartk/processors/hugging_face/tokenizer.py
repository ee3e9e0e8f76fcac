"""The tokenizer classes of transformers: what they have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias

from nartk.errors import UnsupportedCheckpointError
from nartk.files import Folder, JsonObject
from nartk.vocab import SpecialIds, Vocab

MOST = 500_000_000  # bytes of a tokenizer's file
SPACE = "▁"
SETTINGS = {
    "settings": "tokenizer_config.json",
    "special_tokens": "special_tokens_map.json",
    "added_tokens": "added_tokens.json",
}
# The named special tokens, in the order in which they are added to a vocabulary.
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
FAIRSEQ = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
}
# What is tidied of an output where ``clean_up_tokenization_spaces`` is set, one after the other.
_CLEANED = [(f" {mark}", mark) for mark in (".", "?", "!", ",")] + [(" ' ", "'")]
_CLEANED += [(f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")]

Token: TypeAlias = JsonObject  # ``content`` of an added token, and its flags
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Tokenizer:
    """A folder's tokenizer, read as a class of transformers reads it.

    Attributes:
        config: Contents of tokenizer_config.json, and the special tokens of special_tokens_map.json.
        listed: The added tokens that these files and added_tokens.json list, by id.
        named: The named special tokens.
    """

    files: ClassVar[
        Sequence[Mapping[str, str]]
    ]  # sets of files, each enough; the first that is whole is read
    defaults: ClassVar[Mapping[str, str | Token]] = FAIRSEQ
    language: ClassVar[str | None] = None  # matches a language's token, group 1 its name
    source_language: ClassVar[str | None] = None  # where no other is chosen
    language_first = True  # whether it stands before a source, or behind the eos
    writes_language: ClassVar[bool] = False  # whether an output begins with its language
    # settings that would change ids or text
    refused: ClassVar[Sequence[str]] = ("auto_map", "sp_model_kwargs", "do_lower_case")

    def __init__(self, folder: Folder, paths: Mapping[str, Path]) -> None:
        self.folder, self.paths = folder, paths
        self.vocabs: dict[tuple[object, ...], Vocab] = {}  # those of both sides, which may be one
        self.config = self._json("settings")
        for key in self.refused:
            if self.config.get(key):
                raise UnsupportedCheckpointError(
                    f"{key!r} is {self.config[key]!r} in {SETTINGS['settings']}", where=str(folder)
                )
        beside = self._json("special_tokens")
        # What tokenizer_config.json lists goes before special_tokens_map.json, and both before the class.
        extras = [
            values[key]
            for values in (self.config, beside)
            for key in ("extra_special_tokens", "additional_special_tokens")
            if key in values
        ]
        if "added_tokens_decoder" in self.config:
            self.listed = {int(id): dict(token) for id, token in self.config["added_tokens_decoder"].items()}
        else:
            for name in NAMED:
                if name in beside:
                    self.config[name] = beside[name]
            special = {content_of(token) for name in NAMED if (token := self.config.get(name))}
            special |= set(map(content_of, extras[0] or ())) if extras else set()
            self.listed = {
                id: {"content": word, "special": word in special, "normalized": word not in special}
                for word, id in self._json("added_tokens").items()
            }
        known = {token["content"]: token for token in self.listed.values()}
        self.named: dict[str, Token] = {}
        for name in NAMED:
            default = self.defaults.get(name)
            token = self.config.get(name, default)
            if token is not None:
                flags = default if isinstance(token, str) and isinstance(default, dict) else token_of(token)
                own = {**flags, "content": content_of(token), "special": True}
                self.named[name] = known.get(own["content"], own)
        self.extras = self.extra_tokens(extras[0] or () if extras else None)
        self.read()

    def _json(self, key: str) -> JsonObject:
        return dict(self.folder.json(self.paths[key].name, most=MOST)) if key in self.paths else {}

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        """The special tokens without a name, of those that the files list; None: they list none."""
        return [token_of(token) for token in found or ()]

    def read(self) -> None:
        """Reads the vocabulary."""
        raise NotImplementedError

    def encode(self, text: str, *, target: bool) -> list[int]:
        """The ids of a source or a target, without special tokens around."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without the special ones."""
        raise NotImplementedError

    def id_of(self, token: str) -> int | None:
        raise NotImplementedError

    def words(self, count: int, *, target: bool) -> list[str]:
        """The first so many words; names for ids without any."""
        raise NotImplementedError

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        """The special tokens before and after a source in a language; None: sources have none."""
        eos = self.special("eos")
        if source is None:
            return [], [eos]
        return ([source], [eos]) if self.language_first else ([], [eos, source])

    def special(self, name: str) -> int:
        """The id of a named special token; raises UnsupportedCheckpointError if there is none."""
        token = self.named.get(f"{name}_token")
        id = None if token is None else self.id_of(token["content"])
        if id is None:
            raise UnsupportedCheckpointError(f"a tokenizer without a {name}_token", where=str(self.folder))
        return id

    def special_ids(self, config: JsonObject, words: int) -> SpecialIds:
        """The special ids of a model of so many words, which config.json names, or else the tokenizer."""
        ids = {name: self.own_id(config, name) for name in ("pad", "eos", "unk")}
        bos = config.get("bos_token_id")
        if type(bos) is not int or not 0 <= bos < words:
            bos = ids["pad"]  # nothing begins with it
        return SpecialIds(bos=bos, **ids)

    def own_id(self, config: JsonObject, name: str) -> int:
        """The id of a model's pad, eos or unk."""
        id = None if name == "unk" else config.get(f"{name}_token_id")
        return id if type(id) is int else self.special(name)

    def languages(self) -> dict[str, int]:
        """The ids of the languages' tokens, by the names of the languages."""
        if self.language is None:
            return {}
        matches = ((re.fullmatch(self.language, token), id) for token, id in self.language_tokens())
        return {match[1]: id for match, id in matches if match}

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        """Tokens among which the languages' are, with their ids."""
        raise NotImplementedError

    def cleaned(self, text: str) -> str:
        """An output, tidied if tokenizer_config.json wants it."""
        if self.config.get("clean_up_tokenization_spaces"):
            for written, meant in _CLEANED:
                text = text.replace(written, meant)
        return text


def content_of(token: str | Token) -> str:
    return token if isinstance(token, str) else str(token["content"])


def token_of(token: str | Token) -> Token:
    return {"content": token, "special": True} if isinstance(token, str) else dict(token)
