"""Text as the tokenizers of Hugging Face's sequence-to-sequence models have it, read from their own files.

What a tokenizer class of transformers 5 makes of a folder is made with `tokenizers`, or for Marian and
M2M-100 with sentencepiece. Settings in ``config.json``: ``class`` is the tokenizer's, ``words`` how many rows
the model has, of which the last may be no word of the tokenizer's, and files are named by what they hold. The
input has ``prefix``, a text before each line, and ``before`` and ``after``, ids around it. ``first_word`` is
what outputs begin with, and the output's ``start_word`` takes the place of the model's start token; they are
null where the model has none.
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from nartk.errors import (
    CheckpointError,
    InputFormatError,
    NartkError,
    UnsupportedCheckpointError,
    UsageError,
    named,
    requiring,
)
from nartk.files import read_file
from nartk.processors import named_file, register_processor
from nartk.processors.languages import M2M100, MBART, MBART50, NLLB, WMT21
from nartk.processors.text import TextInput
from nartk.protocols.passes import TextSource
from nartk.vocab import MOST_WORDS, SpecialIds, Vocab, padding_word

NAME = "hugging_face"
_MOST = 500_000_000  # bytes of a tokenizer's file
_SPACE = "▁"
_SETTINGS = {
    "settings": "tokenizer_config.json",
    "special_tokens": "special_tokens_map.json",
    "added_tokens": "added_tokens.json",
}
# The named special tokens, in the order in which they are added to a vocabulary.
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FAIRSEQ = {
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

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of a sentencepiece model's pieces

_Token = dict[str, Any]  # ``content`` of an added token, and its flags
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class HuggingFaceText(NamedTuple):
    """What the processors of a folder are loaded with.

    Attributes:
        input, output: Settings that `load_processor` reads, of the folder itself or of one with `files`.
        files: What a native folder takes over, by name.
        specials: bos, pad and eos are the model's, unk is the tokenizer's.
        words: How many the source has, and the target.
        notices: What was taken where nothing was said, in lines.
        tokenizer: What was read, which the loaders share as long as somebody holds it.
    """

    input: dict[str, Any]
    output: dict[str, Any]
    files: dict[str, Path]
    specials: SpecialIds
    words: tuple[int, int]
    notices: tuple[str, ...]
    tokenizer: object


class _Tokenizer:
    """What a tokenizer class of transformers makes of a folder's files.

    Attributes:
        config: What tokenizer_config.json has, and the special tokens of special_tokens_map.json.
        listed: The added tokens that these files and added_tokens.json list, by id.
        named: The named special tokens.
    """

    files: ClassVar[
        Sequence[Mapping[str, str]]
    ]  # sets of files, each enough; the first that is whole is read
    defaults: ClassVar[Mapping[str, Any]] = _FAIRSEQ
    language: ClassVar[str | None] = None  # matches a language's token, group 1 its name
    source_language: ClassVar[str | None] = None  # where no other is chosen
    writes_language: ClassVar[bool] = False  # whether an output begins with its language
    # settings that would change ids or text
    refused: ClassVar[Sequence[str]] = (
        "auto_map",
        "sp_model_kwargs",
        "do_lower_case",
    )

    def __init__(self, folder: Path, paths: Mapping[str, Path]) -> None:
        self.folder, self.paths = folder, paths
        self.vocabs: dict[tuple[Any, ...], Vocab] = {}  # those of both sides, which may be one
        self.config = self._json("settings")
        for key in self.refused:
            if self.config.get(key):
                raise UnsupportedCheckpointError(
                    f"{key!r} is {self.config[key]!r} in {_SETTINGS['settings']}", where=str(folder)
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
            for name in _NAMED:
                if name in beside:
                    self.config[name] = beside[name]
            special = {_content(token) for name in _NAMED if (token := self.config.get(name))}
            special |= set(map(_content, extras[0] or ())) if extras else set()
            self.listed = {
                id: {"content": word, "special": word in special, "normalized": word not in special}
                for word, id in self._json("added_tokens").items()
            }
        known = {token["content"]: token for token in self.listed.values()}
        self.named: dict[str, _Token] = {}
        for name in _NAMED:
            default = self.defaults.get(name)
            token = self.config.get(name, default)
            if token is not None:
                flags = default if isinstance(token, str) and isinstance(default, dict) else _token(token)
                own = {**flags, "content": _content(token), "special": True}
                self.named[name] = known.get(own["content"], own)
        self.extras = self.extra_tokens(extras[0] or () if extras else None)
        self.read()

    def _json(self, key: str) -> dict[str, Any]:
        return _read_json(self.paths[key]) if key in self.paths else {}

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        """The special tokens without a name, of those that the files list; None: they list none."""
        return [_token(token) for token in found or ()]

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
        """The ids before and after a line of a language."""
        return [], [self.special("eos")]

    def special(self, name: str) -> int:
        """The id of a named special token; raises UnsupportedCheckpointError if there is none."""
        token = self.named.get(f"{name}_token")
        id = None if token is None else self.id_of(token["content"])
        if id is None:
            raise UnsupportedCheckpointError(f"a tokenizer without a {name}_token", where=str(self.folder))
        return id

    def special_ids(self, config: Mapping[str, Any], words: int) -> SpecialIds:
        """The special ids of a model of so many words, which config.json names, or else the tokenizer."""
        ids = {name: self.own_id(config, name) for name in ("pad", "eos", "unk")}
        bos = config.get("bos_token_id")
        if type(bos) is not int or not 0 <= bos < words:
            bos = ids["pad"]  # nothing begins with it
        return SpecialIds(bos=bos, **ids)

    def own_id(self, config: Mapping[str, Any], name: str) -> int:
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


class _Fast(_Tokenizer):
    """A pipeline of `tokenizers`."""

    files: ClassVar[Sequence[Mapping[str, str]]] = ({"tokenizer": "tokenizer.json"},)

    def read(self) -> None:
        with requiring("this model's tokenizer needs the module {name}, which is not installed", "hf"):
            import tokenizers

        self.library = tokenizers
        if "tokenizer" in self.paths:
            self.backend = tokenizers.Tokenizer.from_str(_read_text(self.paths["tokenizer"]))
        else:
            self.backend = tokenizers.Tokenizer(self.model())
        self.arrange()
        self.backend.no_truncation()
        self.backend.no_padding()
        known = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        added = [
            token
            for _, token in sorted(self.listed.items())
            if "added_tokens_decoder" in self.config or token["content"] not in known
        ]
        known |= {token["content"] for token in added}
        for token in (*self.named.values(), *self.extras):
            if token["content"] not in known:
                known.add(token["content"])
                added.append(token)
        self.backend.add_tokens(
            [
                tokenizers.AddedToken(
                    token["content"], **{flag: token[flag] for flag in _FLAGS if flag in token}
                )
                for token in added
            ]
        )
        # Special tokens are then text like any other.
        self.backend.encode_special_tokens = bool(self.config.get("split_special_tokens"))

    def model(self) -> Any:
        """The model of files other than tokenizer.json."""
        raise NotImplementedError

    def arrange(self) -> None:
        """Sets what the tokenizer class sets, whatever tokenizer.json has."""

    def encode(self, text: str, *, target: bool) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.backend.decode(ids, skip_special_tokens=True)
        return self.cleaned(text) if self._is_cleaned else text

    @cached_property
    def _is_cleaned(self) -> bool:
        # Of BPE transformers cleans nothing, unless it is told with this name.
        forced = self.config.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
        return bool(forced) or not isinstance(self.backend.model, self.library.models.BPE)

    def id_of(self, token: str) -> int | None:
        id: int | None = self.backend.token_to_id(token)
        return id

    def words(self, count: int, *, target: bool) -> list[str]:
        word = self.backend.id_to_token
        return [padding_word(id) if (found := word(id)) is None else found for id in range(count)]

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        return ((token.content, id) for id, token in self.backend.get_added_tokens_decoder().items())

    def metaspace(self, charsmap: str | None, *, split: bool = False, replaced: Sequence[str] = ()) -> None:
        """Sets sentencepiece's handling of spaces.

        Args:
            charsmap: Base64 of sentencepiece's precompiled normalisation; None: it has none.
            split: Whether lines are cut at all white space first.
            replaced: Patterns that become one space, after the normalisation.
        """
        library = self.library
        normalizers = (
            [] if charsmap is None else [library.normalizers.Precompiled(base64.b64decode(charsmap))]
        )
        normalizers += [library.normalizers.Replace(library.Regex(each), " ") for each in replaced]
        self.backend.normalizer = library.normalizers.Sequence(normalizers) if normalizers else None
        cut = library.pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always", split=True)
        if split:
            cut = library.pre_tokenizers.Sequence([library.pre_tokenizers.WhitespaceSplit(), cut])
        self.backend.pre_tokenizer = cut
        self.backend.decoder = library.decoders.Metaspace(
            replacement=_SPACE, prepend_scheme="always", split=True
        )

    @cached_property
    def charsmap(self) -> str | None:
        """Base64 of sentencepiece's precompiled normalisation, of whichever file was read."""
        if "tokenizer" not in self.paths:
            return self.pieces.charsmap
        if self.backend.normalizer is None:
            return None
        state = json.loads(self.backend.normalizer.__getstate__())
        for step in state.get("normalizers", [state]):
            if step.get("precompiled_charsmap"):
                found: str = step["precompiled_charsmap"]
                return found
        return None

    @cached_property
    def pieces(self) -> _Pieces:
        return _Pieces(self.paths["sentencepiece"])


class _Described(_Fast):
    """What tokenizer.json describes alone."""

    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        line = self.backend.encode("a")
        inner = [at for at, special in enumerate(line.special_tokens_mask) if not special]
        return line.ids[: inner[0]], line.ids[inner[-1] + 1 :]


class _Unigram(_Fast):
    """A sentencepiece model of type unigram."""

    def model(self) -> Any:
        words = self.vocabulary()
        unknown = [word for word, _ in words].index(_content(self.named["unk_token"]))
        return self.library.models.Unigram(words, unk_id=unknown, byte_fallback=False)

    def vocabulary(self) -> list[tuple[str, float]]:
        """The words of the sentencepiece model with their scores, and those that the class adds."""
        raise NotImplementedError

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        if found is None and "sentencepiece" in self.paths:
            found = self.pieces.symbols()
        return super().extra_tokens(found)


class _T5(_Unigram):
    files: ClassVar[Sequence[Mapping[str, str]]] = (*_Fast.files, {"sentencepiece": "spiece.model"})
    defaults: ClassVar[Mapping[str, Any]] = {
        name: _FAIRSEQ[name] for name in ("eos_token", "unk_token", "pad_token")
    }

    @property
    def sentinels(self) -> list[str]:
        return [f"<extra_id_{i}>" for i in range(self.config.get("extra_ids", 100))]

    def vocabulary(self) -> list[tuple[str, float]]:
        return [*self.pieces.scored(), *((word, 0.0) for word in reversed(self.sentinels))]

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        return super().extra_tokens(found) + (list(map(_token, self.sentinels)) if found is None else [])

    def arrange(self) -> None:
        self.metaspace(self.charsmap, split=True)


class _Pegasus(_Unigram):
    files: ClassVar[Sequence[Mapping[str, str]]] = _T5.files
    defaults: ClassVar[Mapping[str, Any]] = {**_T5.defaults, "mask_token": "<mask_2>"}

    @property
    def pretraining(self) -> list[str]:
        return [f"<unk_{i}>" for i in range(2, self.config.get("offset", 103))]

    def vocabulary(self) -> list[tuple[str, float]]:
        first = [
            self.named["pad_token"],
            self.named["eos_token"],
            self.sentence_mask,
            self.named["mask_token"],
        ]
        words = [(_content(token), 0.0) for token in first]
        words += [(word, -100.0) for word in self.pretraining]
        return words + self.pieces.scored()[2:]

    @property
    def sentence_mask(self) -> str:
        found: str = self.config.get("mask_token_sent", "<mask_1>")
        return found

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        return super().extra_tokens([self.sentence_mask, *self.pretraining] if found is None else found)

    def arrange(self) -> None:
        charsmap = self.charsmap
        self.metaspace(charsmap, replaced=(" {2,}",) if charsmap is not None else (r"\n", " {2,}"))


class _MBart(_Unigram):
    files: ClassVar[Sequence[Mapping[str, str]]] = (
        *_Fast.files,
        {"sentencepiece": "sentencepiece.bpe.model"},
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **_FAIRSEQ,
        "mask_token": {"content": "<mask>", "lstrip": True, "normalized": True},
    }
    language = r"([a-z]{2}_[A-Z]{2})"
    source_language = "en_XX"
    codes = MBART

    def vocabulary(self) -> list[tuple[str, float]]:
        first = (self.named[f"{name}_token"] for name in ("bos", "pad", "eos", "unk"))
        last = (*self.codes, self.named["mask_token"])
        words = [*((_content(token), 0.0) for token in first), *self.pieces.scored()[3:]]
        return words + [(_content(token), 0.0) for token in last]

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        return super().extra_tokens(found) + list(map(_token, self.codes))

    def arrange(self) -> None:
        # The class drops the model's own normalisation, which tokenizer.json may have.
        self.metaspace(None, split=True)

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        assert source is not None  # it has a default
        return [], [self.special("eos"), source]


class _MBart50(_MBart):
    codes = MBART50
    writes_language = True

    def arrange(self) -> None:
        self.metaspace(self.charsmap, replaced=(" {2,}",))

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        assert source is not None  # it has a default
        return [source], [self.special("eos")]


class _Nllb(_Fast):
    files: ClassVar[Sequence[Mapping[str, str]]] = _MBart.files
    defaults: ClassVar[Mapping[str, Any]] = {
        **_FAIRSEQ,
        "mask_token": {"content": "<mask>", "lstrip": True, "normalized": True, "special": True},
    }
    language = r"([a-z]{3}_[A-Z][a-z]{3})"
    source_language = "eng_Latn"
    writes_language = True

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        return super().extra_tokens(NLLB if found is None and "tokenizer" not in self.paths else found)

    def model(self) -> Any:
        ids = {
            _content(self.named[f"{name}_token"]): id for id, name in enumerate(("bos", "pad", "eos", "unk"))
        }
        pieces = [word for word, _ in self.pieces.scored()]
        known = set(pieces)
        for word in pieces:
            ids.setdefault(word, len(ids))
        merges = [
            (word[:i], word[i:])
            for word in pieces
            for i in range(1, len(word))
            if word[:i] in known and word[i:] in known
        ]
        unknown = _content(self.named["unk_token"])
        return self.library.models.BPE(ids, merges, unk_token=unknown, fuse_unk=True)

    def arrange(self) -> None:
        charsmap = self.charsmap
        self.metaspace(charsmap, replaced=(" {2,}",) if charsmap is not None else ())

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        assert source is not None  # it has a default
        if self.config.get("legacy_behaviour"):
            return [], [self.special("eos"), source]
        return [source], [self.special("eos")]


class _Roberta(_Fast):
    """Byte-level BPE as BART has it."""

    files: ClassVar[Sequence[Mapping[str, str]]] = (
        *_Fast.files,
        {"vocabulary": "vocab.json", "merges": "merges.txt"},
    )
    defaults: ClassVar[Mapping[str, Any]] = {**_FAIRSEQ, "mask_token": "<mask>"}

    def model(self) -> Any:
        return self.library.models.BPE.from_file(str(self.paths["vocabulary"]), str(self.paths["merges"]))

    def arrange(self) -> None:
        spaced = self.config.get("add_prefix_space", False)
        self.backend.pre_tokenizer = self.library.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
        self.backend.normalizer = None
        self.backend.decoder = self.library.decoders.ByteLevel()

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        return [self.special("cls")], [self.special("sep")]


class _Whisper(_Roberta):
    """Byte-level BPE as Whisper has it, whose bos, eos and unknown token are one."""

    defaults: ClassVar[Mapping[str, Any]] = {
        f"{name}_token": {"content": "<|endoftext|>", "normalized": False} for name in ("bos", "eos", "unk")
    }

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        return [], []

    def own_id(self, config: Mapping[str, Any], name: str) -> int:
        # Nothing is padded, and no text is unknown: two words that no output holds take these roles.
        if name == "eos":
            return super().own_id(config, name)
        word = {"pad": "<|startofprev|>", "unk": "<|startoflm|>"}[name]
        id = self.id_of(word)
        if id is None:
            raise UnsupportedCheckpointError(f"a tokenizer without {word}", where=str(self.folder))
        return id


class _Slow(_Tokenizer):
    """Pieces of sentencepiece numbered by a vocabulary, between added tokens that are taken out first.

    With ``split_special_tokens`` added tokens are text like any other.
    """

    def read(self) -> None:
        self.ids = _read_json(self.paths["vocabulary"])
        self.target_ids = self.ids
        if "target_vocabulary" in self.paths:
            self.target_ids = _read_json(self.paths["target_vocabulary"])
        self.added = {token["content"]: id for id, token in self.listed.items()}
        unknown = self.named["unk_token"]["content"]
        for ids in (self.ids, self.target_ids, self.added):
            for word, id in ids.items():
                if type(id) is not int or id < 0:
                    raise CheckpointError(f"the id of {word[:40]!r} is {id!r}", where=str(self.folder))
            if ids is not self.added and unknown not in ids:
                raise CheckpointError(f"a vocabulary without {unknown!r}", where=str(self.folder))
        self.stripped = {token["content"]: token for token in self.listed.values()}
        size = len(self.ids.keys() | self.added.keys())
        special = [token["content"] for token in (*self.named.values(), *self.extras)]
        for word in special:
            if word not in self.added:
                self.added[word] = self.ids.get(word, size)
                size += word not in self.ids
        self.silent = {self.added[word] for word in special}
        # Of tokens that begin alike the longest is found.
        longest = sorted(self.added, key=len, reverse=True)
        self.split = re.compile(f"({'|'.join(map(re.escape, longest))})").split

    def encode(self, text: str, *, target: bool) -> list[int]:
        parts = [text] if self.config.get("split_special_tokens") else self.split(text)
        for i in range(1, len(parts), 2):  # the added tokens
            flags = self.stripped.get(parts[i], {})
            if flags.get("rstrip"):
                parts[i + 1] = parts[i + 1].lstrip()
            if flags.get("lstrip"):
                parts[i - 1] = parts[i - 1].rstrip()
        numbered = self.target_ids if target else self.ids
        unknown = numbered[self.named["unk_token"]["content"]]
        found: list[int] = []
        for i, part in enumerate(parts):
            if i % 2:
                found.append(self.added[part])
            elif part:
                found += (numbered.get(piece, unknown) for piece in self.pieces(part, target=target))
        return found

    def pieces(self, text: str, *, target: bool) -> list[str]:
        found: list[str] = self.model(target).encode(text, out_type=str)
        return found

    def model(self, target: bool) -> Any:
        """The sentencepiece model of a side."""
        return self._models["target_sentencepiece" if target else "sentencepiece"]

    @cached_property
    def _models(self) -> Mapping[str, Any]:
        return _Models(self.paths)

    def decode(self, ids: Sequence[int]) -> str:
        words = self._spelling
        kept = [words[id] if id in words else self.unnumbered(id) for id in ids if id not in self.silent]
        return self.cleaned(self.spell([word for word in kept if word is not None]))

    @cached_property
    def _spelling(self) -> dict[int, str]:
        """The target's words by id."""
        words = {id: word for word, id in self.target_ids.items()}
        return words | {id: word for word, id in self.added.items()}

    def unnumbered(self, id: int) -> str | None:
        """What an id is written as that the vocabulary does not have."""
        raise NotImplementedError

    def spell(self, words: Sequence[str]) -> str:
        """The text of words."""
        raise NotImplementedError

    def id_of(self, token: str) -> int | None:
        return self.added.get(token, self.ids.get(token))

    def words(self, count: int, *, target: bool) -> list[str]:
        numbered = self.target_ids if target else self.ids
        words = {id: word for word, id in (*numbered.items(), *self.added.items())}
        return [words[id] if id in words else padding_word(id) for id in range(count)]


class _M2M100(_Slow):
    files: ClassVar[Sequence[Mapping[str, str]]] = (
        {"sentencepiece": "sentencepiece.bpe.model", "vocabulary": "vocab.json"},
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        name: token for name, token in _FAIRSEQ.items() if name != "cls_token"
    }
    language = r"__([a-z_]+)__"
    source_language = "en"
    writes_language = True

    def extra_tokens(self, found: Sequence[Any] | None) -> list[_Token]:
        if not found:
            codes = WMT21 if self.config.get("language_codes") == "wmt21" else M2M100
            found = [f"__{code}__" for code in codes]
        return super().extra_tokens(found)

    def model(self, target: bool) -> Any:
        return super().model(False)

    def unnumbered(self, id: int) -> str | None:
        return self.named["unk_token"]["content"]

    def spell(self, words: Sequence[str]) -> str:
        text, unknown = "", self.named["unk_token"]["content"]
        for is_unknown, part in groupby(words, key=unknown.__eq__):
            some = list(part)
            text += "".join(some) if is_unknown else self.model(False).decode(some)
        return text.strip()

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        assert source is not None  # it has a default
        return [source], [self.special("eos")]

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        return self.added.items()


class _Marian(_Slow):
    files: ClassVar[Sequence[Mapping[str, str]]] = (
        {
            "sentencepiece": "source.spm",
            "target_sentencepiece": "target.spm",
            "vocabulary": "vocab.json",
            "target_vocabulary": "target_vocab.json",
        },
        {"sentencepiece": "source.spm", "target_sentencepiece": "target.spm", "vocabulary": "vocab.json"},
    )
    defaults: ClassVar[Mapping[str, Any]] = _T5.defaults
    language = r">>(.+)<<"

    def pieces(self, text: str, *, target: bool) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") else 0
        code = [text[:end]] if end > 1 else []
        return code + super().pieces(text[len(code[0]) :] if code else text, target=target)

    def unnumbered(self, id: int) -> str | None:
        model = self._spelling_model
        return model.id_to_piece(id) if id < len(model) else None

    def spell(self, words: Sequence[str]) -> str:
        return self._spelling_model.decode(list(words)).replace(_SPACE, " ").strip()

    @property
    def _spelling_model(self) -> Any:
        # transformers spells outputs with the source's model where both sides have one vocabulary.
        return self.model("target_vocabulary" in self.paths)

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        return self.ids.items()


_CLASSES: dict[str, type[_Tokenizer]] = {
    "M2M100Tokenizer": _M2M100,
    "MBart50Tokenizer": _MBart50,
    "MBartTokenizer": _MBart,
    "MarianTokenizer": _Marian,
    "NllbTokenizer": _Nllb,
    "PegasusTokenizer": _Pegasus,
    "RobertaTokenizer": _Roberta,
    "T5Tokenizer": _T5,
    "TokenizersBackend": _Described,
    "WhisperTokenizer": _Whisper,
}
# Other names of the same, with ``Fast`` at the end or without.
_ALIASES = {
    "BartTokenizer": "RobertaTokenizer",
    "MT5Tokenizer": "T5Tokenizer",
    "PreTrainedTokenizer": "TokenizersBackend",
}
# The class of a type of model whose folder names none.
_DEFAULT_CLASS = {
    "bart": "RobertaTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "mt5": "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
    "whisper": "WhisperTokenizer",
}


@dataclass(frozen=True)
class HuggingFaceTokenizer:
    """Text of one side as a tokenizer has it. Implements `OutputProcessor`.

    Attributes:
        target: Whether it is the target's.
        prefix: Text before each line.
        first_words: Ids before each line, one at most.
    """

    tokenizer: _Tokenizer
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


def hugging_face_processors(
    folder: Path,
    model_type: str,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
    ends: Sequence[int] = (),
    start: Callable[[], int] | None = None,
) -> HuggingFaceText:
    """The processors of a folder as transformers writes it.

    Args:
        model_type: As in config.json.
        ends: The words that end an output, the model's eos first; none: config.json or the tokenizer says.
        start: Finds what outputs begin after where no language is given; it may be one.
        source_lang: Of the lines; None: the tokenizer's own choice.
        target_lang: Of the outputs; None: what the model's configuration has.
        source_prefix: Put before each line.

    Raises:
        UnsupportedCheckpointError: nartk does not have its tokenizer, or the tokenizer lacks a special token.
        CheckpointError: A file is missing or damaged, or two special tokens are one.
        UsageError: The tokenizer does not know a language.
        MissingDependencyError: `tokenizers` is not installed.
    """
    config = _read_json(folder / "config.json")
    beside = {key: name for key, name in _SETTINGS.items() if os.path.isfile(folder / name)}
    own = _read_json(folder / beside["settings"]) if "settings" in beside else {}
    name = own.get("tokenizer_class") or config.get("tokenizer_class") or _DEFAULT_CLASS.get(model_type)
    name = str(name).removesuffix("Fast")
    name = _ALIASES.get(name, name)
    if name not in _CLASSES:
        raise UnsupportedCheckpointError(
            f"the tokenizer class {name!r}", fix=f"nartk has {', '.join(_CLASSES)}", where=str(folder)
        )
    found = _CLASSES[name]
    names = next((each for each in found.files if _are_files(folder, each)), None)
    if names is None:
        wanted = ", or ".join(" and ".join(each.values()) for each in found.files)
        raise CheckpointError(f"the files of a {name} are missing: {wanted}", where=str(folder))
    settings = {"name": NAME, "class": name, **names, **beside}
    tokenizer = _open(folder, settings)
    with _naming_damage(folder, name):  # now, for some files are read when they are first needed
        tokenizer.encode("a", target=False)
        tokenizer.decode(tokenizer.encode("a", target=True))
    languages = tokenizer.languages()
    prefix = "" if source_prefix is None else source_prefix

    def language(name: str, option: str) -> int:
        if name not in languages:
            known = ", ".join(sorted(languages))
            raise UsageError(
                f"{named(option)} is {name!r}, which this model's tokenizer does not know",
                fix=f"choose from {known}" if known else "leave it out",
            )
        return languages[name]

    source = start_word = None
    if source_lang is None:
        source_lang = tokenizer.config.get("src_lang") or tokenizer.source_language
    elif tokenizer.source_language is None:
        raise UsageError(
            f"{named('source_lang', source_lang)} for a {name}, whose sources have no language",
            fix="leave it out",
        )
    if source_lang is not None and tokenizer.source_language is not None:
        source = language(source_lang, "source_lang")
    generation = folder / "generation_config.json"
    first = (_read_json(generation) if os.path.isfile(generation) else config).get("forced_bos_token_id")
    if target_lang is not None:
        target = language(target_lang, "target_lang")
        if tokenizer.writes_language:
            first = target
        elif tokenizer.source_language is not None:
            start_word = target
        else:
            prefix = f">>{target_lang}<< {prefix}"
    notices = []
    if target_lang is None and tokenizer.source_language is not None:
        taken = start() if start is not None and not tokenizer.writes_language else first
        what = next(
            (repr(name) for name, id in languages.items() if id == taken), "a language of the model's choice"
        )
        notices.append(
            f"{named('target_lang')} is not given: outputs are in {what}, as its files have it; lines are in "
            f"{source_lang!r}"
        )
    before, after = tokenizer.around(source)
    sizes = config.get("vocab_size"), config.get("decoder_vocab_size", config.get("vocab_size"))
    words = tuple(size if type(size) is int and size > 0 else -1 for size in sizes)
    if -1 in words:
        raise CheckpointError(
            f"'vocab_size' is {sizes[words.index(-1)]!r}", where=str(folder / "config.json")
        )
    if ends:
        config = {**config, "eos_token_id": ends[0]}
    specials = tokenizer.special_ids(config, min(words))
    return HuggingFaceText(
        input={
            **settings,
            "words": words[0],
            "prefix": prefix,
            "before": before,
            "after": after,
            "first_word": first,
        },
        output={
            **{**settings, "words": words[1], "first_word": first, "start_word": start_word},
            **({"also_eos": [*ends[1:]]} if ends[1:] else {}),
        },
        files={each: folder / each for each in (*names.values(), *beside.values())},
        specials=specials,
        words=(words[0], words[1]),
        notices=(*notices,),
        tokenizer=tokenizer,
    )


@register_processor("input", NAME)
def load_input(folder: Path, settings: Mapping[str, Any], specials: SpecialIds) -> TextInput:
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
def load_output(folder: Path, settings: Mapping[str, Any], specials: SpecialIds) -> HuggingFaceTokenizer:
    tokenizer, vocab = _load(folder, settings, specials, target=True)
    return HuggingFaceTokenizer(tokenizer, vocab, target=True, first_words=_first_words(folder, settings))


def _first_words(folder: Path, settings: Mapping[str, Any]) -> tuple[int, ...]:
    first, count = settings.get("first_word"), settings.get("words")
    if first is None:
        return ()
    if type(first) is not int or type(count) is not int or not 0 <= first < count:
        raise CheckpointError(f"'first_word' is {first!r}, not the id of a word", where=str(folder))
    return (first,)


def _load(
    folder: Path, settings: Mapping[str, Any], specials: SpecialIds, *, target: bool
) -> tuple[_Tokenizer, Vocab]:
    count = settings.get("words")
    if type(count) is not int or not max(astuple(specials)) < count <= MOST_WORDS:
        raise CheckpointError(f"'words' is {count!r}, with special ids {specials}", where=str(folder))
    tokenizer = _open(folder, settings)
    ends = settings.get("also_eos", [])
    if not isinstance(ends, list) or not all(type(id) is int and 0 <= id < count for id in ends):
        raise CheckpointError(f"'also_eos' is {ends!r}, not ids of words", where=str(folder))
    key = (count, specials, (*ends,), target and "target_vocabulary" in tokenizer.paths)
    if key not in tokenizer.vocabs:
        words = tuple(tokenizer.words(count, target=target))
        tokenizer.vocabs[key] = replace(Vocab(words, *astuple(specials)), also_eos=(*ends,))
    return tokenizer, tokenizer.vocabs[key]


# Both sides of a model are one tokenizer.
_OPEN: weakref.WeakValueDictionary[tuple[Any, ...], _Tokenizer] = weakref.WeakValueDictionary()


def _open(folder: Path, settings: Mapping[str, Any]) -> _Tokenizer:
    name = settings.get("class")
    found = _CLASSES.get(str(name))
    if found is None:
        raise UnsupportedCheckpointError(
            f"the tokenizer class {name!r}", fix=f"nartk has {', '.join(_CLASSES)}", where=str(folder)
        )
    keys = {*_SETTINGS, *(key for each in found.files for key in each)}
    paths = {key: named_file(folder, settings, key) for key in sorted(keys & settings.keys())}
    stats = [(path, os.stat(path)) for path in paths.values()]
    key = (name, *((path, stat.st_ino, stat.st_mtime_ns) for path, stat in stats))
    tokenizer = _OPEN.get(key)
    if tokenizer is None:
        with _naming_damage(folder, str(name)):
            tokenizer = found(folder, paths)
        _OPEN[key] = tokenizer
    return tokenizer


@contextmanager
def _naming_damage(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (NartkError, MemoryError, OSError):
        raise
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise CheckpointError(f"damaged files of a {name}: {error}", where=str(folder)) from error


class _Models(dict[str, Any]):
    """The sentencepiece models of files, each read when it is asked for."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.paths = paths

    def __missing__(self, key: str) -> Any:
        import sentencepiece

        try:
            found = sentencepiece.SentencePieceProcessor(model_file=str(self.paths[key]))
        except (RuntimeError, OSError) as error:
            raise CheckpointError("not a sentencepiece model", where=str(self.paths[key])) from error
        self[key] = found
        return found


class _Pieces:
    """What `tokenizers` takes of a sentencepiece model's file.

    The file is a message of protocol buffers: field 1 is a piece (1: text, 2: score, 3: type), and field 2 of
    field 3 the precompiled normalisation.
    """

    def __init__(self, path: Path) -> None:
        data = read_file(path, most=_MOST)
        self._pieces: list[tuple[str, float, int]] = []
        self.charsmap: str | None = None
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(value))
                text, score = piece[1].decode("utf-8"), struct.unpack("<f", piece.get(2, bytes(4)))[0]
                self._pieces.append((text, score, piece.get(3, _NORMAL)))
            elif number == 3:
                charsmap = dict(_fields(value)).get(2)
                self.charsmap = base64.b64encode(charsmap).decode() if charsmap else None

    def scored(self) -> list[tuple[str, float]]:
        """The pieces and their scores."""
        return [(text, score) for text, score, _ in self._pieces]

    def symbols(self) -> list[_Token]:
        """The pieces that no text is cut into: control symbols, and a user's own."""
        return [
            {"content": text, "special": type == _CONTROL, "normalized": False}
            for text, _, type in self._pieces
            if type in (_CONTROL, _USER_DEFINED)
        ]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message; raises IndexError where it is cut off."""
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < end:
        tag = varint()
        type = tag & 7
        if type == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if type == 2 else {1: 8, 5: 4}[type]
        if at + size > end:
            raise IndexError("a field is cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _are_files(folder: Path, names: Mapping[str, str]) -> bool:
    return all(os.path.isfile(folder / name) for name in names.values())


def _content(token: Any) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _token(token: Any) -> _Token:
    return {"content": token, "special": True} if isinstance(token, str) else dict(token)


def _read_text(path: Path) -> str:
    return read_file(path, most=_MOST).decode("utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(found, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return found
