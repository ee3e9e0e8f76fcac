"""Tokenizers that are pieces of sentencepiece numbered by a vocabulary: Marian's and M2M-100's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from nartk.errors import CheckpointError
from nartk.processors.hugging_face.fast import T5
from nartk.processors.hugging_face.languages import M2M100 as M2M100_CODES
from nartk.processors.hugging_face.languages import WMT21
from nartk.processors.hugging_face.pieces import Models
from nartk.processors.hugging_face.tokenizer import FAIRSEQ, SPACE, Token, Tokenizer
from nartk.vocab import padding_word


class Slow(Tokenizer):
    """Pieces of sentencepiece numbered by a vocabulary, between added tokens that are taken out first.

    With ``split_special_tokens`` added tokens are text like any other.
    """

    def read(self) -> None:
        self.ids = self._json("vocabulary")
        self.target_ids = self._json("target_vocabulary") if "target_vocabulary" in self.paths else self.ids
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
        numbered: dict[str, int] = self.target_ids if target else self.ids
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
        return Models(self.paths)

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
        """The text of an id that the vocabulary does not have."""
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


class M2M100(Slow):
    files: ClassVar[Sequence[Mapping[str, str]]] = (
        {"sentencepiece": "sentencepiece.bpe.model", "vocabulary": "vocab.json"},
    )
    defaults: ClassVar[Mapping[str, str | Token]] = {
        name: token for name, token in FAIRSEQ.items() if name != "cls_token"
    }
    language = r"__([a-z_]+)__"
    source_language = "en"
    writes_language = True

    def extra_tokens(self, found: Sequence[str | Token] | None) -> list[Token]:
        if not found:
            codes = WMT21 if self.config.get("language_codes") == "wmt21" else M2M100_CODES
            found = [f"__{code}__" for code in codes]
        return super().extra_tokens(found)

    def model(self, target: bool) -> Any:
        return super().model(False)

    def unnumbered(self, id: int) -> str | None:
        unknown: str = self.named["unk_token"]["content"]
        return unknown

    def spell(self, words: Sequence[str]) -> str:
        text, unknown = "", self.named["unk_token"]["content"]
        for is_unknown, part in groupby(words, key=unknown.__eq__):
            some = list(part)
            text += "".join(some) if is_unknown else self.model(False).decode(some)
        return text.strip()

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        return self.added.items()


class Marian(Slow):
    files: ClassVar[Sequence[Mapping[str, str]]] = (
        {
            "sentencepiece": "source.spm",
            "target_sentencepiece": "target.spm",
            "vocabulary": "vocab.json",
            "target_vocabulary": "target_vocab.json",
        },
        {"sentencepiece": "source.spm", "target_sentencepiece": "target.spm", "vocabulary": "vocab.json"},
    )
    defaults: ClassVar[Mapping[str, str | Token]] = T5.defaults
    language = r">>(.+)<<"

    def pieces(self, text: str, *, target: bool) -> list[str]:
        end = text.find("<<") + 2 if text.startswith(">>") else 0
        code = [text[:end]] if end > 1 else []
        return code + super().pieces(text[len(code[0]) :] if code else text, target=target)

    def unnumbered(self, id: int) -> str | None:
        model = self._spelling_model
        return model.id_to_piece(id) if id < len(model) else None

    def spell(self, words: Sequence[str]) -> str:
        text: str = self._spelling_model.decode(list(words))
        return text.replace(SPACE, " ").strip()

    @property
    def _spelling_model(self) -> Any:
        # transformers spells outputs with the source's model where both sides have one vocabulary.
        return self.model("target_vocabulary" in self.paths)

    def language_tokens(self) -> Iterable[tuple[str, int]]:
        return self.ids.items()
