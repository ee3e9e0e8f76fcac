"""Tokenizers that are pipelines of the library `tokenizers`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from nartk.errors import UnsupportedCheckpointError, requiring
from nartk.files import JsonObject
from nartk.processors.hugging_face.languages import MBART, MBART50, NLLB
from nartk.processors.hugging_face.pieces import Pieces
from nartk.processors.hugging_face.tokenizer import (
    FAIRSEQ,
    FLAGS,
    MOST,
    SPACE,
    Token,
    Tokenizer,
    content_of,
    token_of,
)
from nartk.vocab import padding_word

if TYPE_CHECKING:
    from tokenizers.models import Model


class Fast(Tokenizer):
    """A pipeline of `tokenizers`."""

    files: ClassVar[Sequence[Mapping[str, str]]] = ({"tokenizer": "tokenizer.json"},)

    def read(self) -> None:
        with requiring("this model's tokenizer needs the module {name}, which is not installed", "hf"):
            import tokenizers

        self.library = tokenizers
        if "tokenizer" in self.paths:
            described = self.folder.read(self.paths["tokenizer"].name, most=MOST)
            self.backend = tokenizers.Tokenizer.from_str(described.decode("utf-8"))
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
                    token["content"], **{flag: token[flag] for flag in FLAGS if flag in token}
                )
                for token in added
            ]
        )
        # Special tokens are then text like any other.
        self.backend.encode_special_tokens = bool(self.config.get("split_special_tokens"))

    def model(self) -> Model:
        """The model of files other than tokenizer.json."""
        raise NotImplementedError

    def arrange(self) -> None:
        """Sets what the tokenizer class sets, whatever tokenizer.json has."""

    def encode(self, text: str, *, target: bool) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.backend.decode(ids, skip_special_tokens=True)
        return self.cleaned(text) if self._is_cleaned else text

    @cached_property
    def _is_cleaned(self) -> bool:
        # Of BPE transformers cleans nothing, unless it is told with this name.
        forced = self.config.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
        return bool(forced) or not isinstance(self.backend.model, self.library.models.BPE)

    def id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def words(self, count: int, *, target: bool) -> list[str]:
        word = self.backend.id_to_token
        return [padding_word(id) if (found := word(id)) is None else found for id in range(count)]

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        return ((token.content, id) for id, token in self.backend.get_added_tokens_decoder().items())

    def metaspace(self, charsmap: str | None, *, split: bool = False, replaced: Sequence[str] = ()) -> None:
        """Sets sentencepiece's handling of spaces.

        Args:
            charsmap: Base64 of sentencepiece's precompiled normalisation; None: it has none.
            split: True if lines are cut at all white space first.
            replaced: Patterns that become one space, after the normalisation.
        """
        library = self.library
        normalizers = (
            [] if charsmap is None else [library.normalizers.Precompiled(base64.b64decode(charsmap))]
        )
        normalizers += [library.normalizers.Replace(library.Regex(each), " ") for each in replaced]
        self.backend.normalizer = library.normalizers.Sequence(normalizers) if normalizers else None
        cut = library.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
        if split:
            cut = library.pre_tokenizers.Sequence([library.pre_tokenizers.WhitespaceSplit(), cut])
        self.backend.pre_tokenizer = cut
        self.backend.decoder = library.decoders.Metaspace(
            replacement=SPACE, prepend_scheme="always", split=True
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
            charsmap: str | None = step.get("precompiled_charsmap")
            if charsmap:
                return charsmap
        return None

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.paths["sentencepiece"])


class Described(Fast):
    """A tokenizer that tokenizer.json describes alone."""

    defaults: ClassVar[Mapping[str, str | Token]] = MappingProxyType({})

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        line = self.backend.encode("a")
        inner = [at for at, special in enumerate(line.special_tokens_mask) if not special]
        return line.ids[: inner[0]], line.ids[inner[-1] + 1 :]


class Unigram(Fast):
    """A sentencepiece model of type unigram."""

    def model(self) -> Model:
        words = self.vocabulary()
        unknown = [word for word, _ in words].index(content_of(self.named["unk_token"]))
        model: Model = self.library.models.Unigram(words, unk_id=unknown, byte_fallback=False)
        return model

    def vocabulary(self) -> list[tuple[str, float]]:
        """The words of the sentencepiece model with their scores, and those that the class adds."""
        raise NotImplementedError

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        if found is None and "sentencepiece" in self.paths:
            found = self.pieces.symbols()
        return super().extra_tokens(found)


class T5(Unigram):
    files: ClassVar[Sequence[Mapping[str, str]]] = (*Fast.files, {"sentencepiece": "spiece.model"})
    defaults: ClassVar[Mapping[str, str | Token]] = {
        name: FAIRSEQ[name] for name in ("eos_token", "unk_token", "pad_token")
    }

    @property
    def sentinels(self) -> list[str]:
        return [f"<extra_id_{i}>" for i in range(self.config.get("extra_ids", 100))]

    def vocabulary(self) -> list[tuple[str, float]]:
        return [*self.pieces.scored(), *((word, 0.0) for word in reversed(self.sentinels))]

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        return super().extra_tokens(found) + (list(map(token_of, self.sentinels)) if found is None else [])

    def arrange(self) -> None:
        self.metaspace(self.charsmap, split=True)


class Pegasus(Unigram):
    files: ClassVar[Sequence[Mapping[str, str]]] = T5.files
    defaults: ClassVar[Mapping[str, str | Token]] = {**T5.defaults, "mask_token": "<mask_2>"}

    @property
    def pretraining(self) -> list[str]:
        return [f"<unk_{i}>" for i in range(2, self.config.get("offset", 103))]

    def vocabulary(self) -> list[tuple[str, float]]:
        first: list[str | Token] = [
            self.named["pad_token"],
            self.named["eos_token"],
            self.sentence_mask,
            self.named["mask_token"],
        ]
        words = [(content_of(token), 0.0) for token in first]
        words += [(word, -100.0) for word in self.pretraining]
        return words + self.pieces.scored()[2:]

    @property
    def sentence_mask(self) -> str:
        mask: str = self.config.get("mask_token_sent", "<mask_1>")
        return mask

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        return super().extra_tokens([self.sentence_mask, *self.pretraining] if found is None else found)

    def arrange(self) -> None:
        charsmap = self.charsmap
        self.metaspace(charsmap, replaced=(" {2,}",) if charsmap is not None else (r"\n", " {2,}"))


class MBart(Unigram):
    files: ClassVar[Sequence[Mapping[str, str]]] = (*Fast.files, {"sentencepiece": "sentencepiece.bpe.model"})
    defaults: ClassVar[Mapping[str, str | Token]] = {
        **FAIRSEQ,
        "mask_token": {"content": "<mask>", "lstrip": True, "normalized": True},
    }
    language = r"([a-z]{2}_[A-Z]{2})"
    source_language = "en_XX"
    language_first = False
    codes = MBART

    def vocabulary(self) -> list[tuple[str, float]]:
        first = (self.named[f"{name}_token"] for name in ("bos", "pad", "eos", "unk"))
        last: list[str | Token] = [*self.codes, self.named["mask_token"]]
        words = [*((content_of(token), 0.0) for token in first), *self.pieces.scored()[3:]]
        return words + [(content_of(token), 0.0) for token in last]

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        return super().extra_tokens(found) + list(map(token_of, self.codes))

    def arrange(self) -> None:
        # The class drops the model's own normalisation, which tokenizer.json may have.
        self.metaspace(None, split=True)


class MBart50(MBart):
    codes = MBART50
    language_first = writes_language = True

    def arrange(self) -> None:
        self.metaspace(self.charsmap, replaced=(" {2,}",))


class Nllb(Fast):
    files: ClassVar[Sequence[Mapping[str, str]]] = MBart.files
    defaults: ClassVar[Mapping[str, str | Token]] = {
        **FAIRSEQ,
        "mask_token": {"content": "<mask>", "lstrip": True, "normalized": True, "special": True},
    }
    language = r"([a-z]{3}_[A-Z][a-z]{3})"
    source_language = "eng_Latn"
    writes_language = True

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        return super().extra_tokens(NLLB if found is None and "tokenizer" not in self.paths else found)

    def model(self) -> Model:
        ids = {
            content_of(self.named[f"{name}_token"]): id
            for id, name in enumerate(("bos", "pad", "eos", "unk"))
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
        unknown = content_of(self.named["unk_token"])
        model: Model = self.library.models.BPE(ids, merges, unk_token=unknown, fuse_unk=True)
        return model

    def arrange(self) -> None:
        charsmap = self.charsmap
        self.metaspace(charsmap, replaced=(" {2,}",) if charsmap is not None else ())

    @property
    def language_first(self) -> bool:  # type: ignore[override]
        return not self.config.get("legacy_behaviour")


class Roberta(Fast):
    """Byte-level BPE as BART has it."""

    files: ClassVar[Sequence[Mapping[str, str]]] = (
        *Fast.files,
        {"vocabulary": "vocab.json", "merges": "merges.txt"},
    )
    defaults: ClassVar[Mapping[str, str | Token]] = {**FAIRSEQ, "mask_token": "<mask>"}

    def model(self) -> Model:
        model: Model = self.library.models.BPE.from_file(
            str(self.paths["vocabulary"]), str(self.paths["merges"])
        )
        return model

    def arrange(self) -> None:
        spaced = self.config.get("add_prefix_space", False)
        self.backend.pre_tokenizer = self.library.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
        self.backend.normalizer = None
        self.backend.decoder = self.library.decoders.ByteLevel()

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        return [self.special("cls")], [self.special("sep")]


class Whisper(Roberta):
    """Byte-level BPE as Whisper has it, whose bos, eos and unknown token are one."""

    defaults: ClassVar[Mapping[str, str | Token]] = {
        f"{name}_token": {"content": "<|endoftext|>", "normalized": False} for name in ("bos", "eos", "unk")
    }

    def around(self, source: int | None) -> tuple[list[int], list[int]]:
        return [], []

    def own_id(self, config: JsonObject, name: str) -> int:
        # Nothing is padded, and no text is unknown: two words that no output holds take these roles.
        if name == "eos":
            return super().own_id(config, name)
        word = {"pad": "<|startofprev|>", "unk": "<|startoflm|>"}[name]
        id = self.id_of(word)
        if id is None:
            raise UnsupportedCheckpointError(f"a tokenizer without {word}", where=str(self.folder))
        return id
