"""Text as fairseq's models have it that were trained on tokens of Moses, on subwords of BPE, or on both.

Settings in ``config.json`` beside those of `nartk.processors.text`: ``bpe`` is ``subword-nmt``, ``fastbpe``,
``gpt2`` or null, and ``codes`` names its file, ``encoder`` that of GPT-2's words. ``moses`` has the ``lang``
of the side, whether ``dash_splits`` cut words at hyphens, whether ``escape`` writes some characters as
entities, and whether ``punctuation`` is normalised first; null: words stand between spaces.

Lines are split as fairseq splits them: by `sacremoses`, then by `subword-nmt`, or for GPT-2 `tokenizers`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Protocol

from nartk.errors import CheckpointError, NartkError, UnsupportedCheckpointError, requiring
from nartk.files import Folder, JsonObject, read_file
from nartk.processors import named_file, register_processor
from nartk.processors.text import TextInput, TextOutput, load_vocab, spell
from nartk.vocab import SpecialIds, Vocab

NAME = "bpe"
SEPARATOR = "@@"  # at the end of a subword that another follows
_MOST = 100_000_000  # bytes of a file of codes
_requiring = partial(requiring, "this model's text needs the module {name}, which is not installed", "bpe")


class Splitter(Protocol):
    def split(self, text: str) -> str:
        """The parts of a text, with spaces between."""

    def join(self, text: str) -> str:
        """The text of such parts."""


class Moses:
    """Tokens of the Moses tokeniser, of text whose punctuation its normaliser may have unified."""

    def __init__(self, lang: str, dash_splits: bool, escape: bool, punctuation: bool = False) -> None:
        with _requiring():
            import sacremoses

        self._split = partial(
            sacremoses.MosesTokenizer(lang).tokenize,
            aggressive_dash_splits=dash_splits,
            return_str=True,
            escape=escape,
        )
        self._normalized = sacremoses.MosesPunctNormalizer(lang).normalize if punctuation else str
        self._join = sacremoses.MosesDetokenizer(lang).detokenize

    def split(self, text: str) -> str:
        parts: str = self._split(self._normalized(text))
        return parts

    def join(self, text: str) -> str:
        joined: str = self._join(text.split())
        return joined


class SubwordNmt:
    """Subwords of a file of codes, of which fastBPE's have counts."""

    def __init__(self, codes: Path, *, counted: bool) -> None:
        with _requiring():
            from subword_nmt.apply_bpe import BPE

        text = _read_text(codes)
        if counted:
            # A symbol may be a separator of lines, such as U+2028, or white space other than the space.
            pairs = (line.split(" ")[:2] for line in text.removesuffix("\n").split("\n"))
            text = "#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in pairs)
        lines = [
            line.split(" ") for line in text.rstrip("\n").split("\n") if not line.startswith("#version:")
        ]
        if any(len(pair) != 2 for pair in lines):  # the library ends the process
            raise CheckpointError("a line is not two symbols with a space between", where=str(codes))
        self._bpe = BPE(io.StringIO(text), separator=SEPARATOR)

    def split(self, text: str) -> str:
        parts: str = self._bpe.process_line(text)
        return parts

    def join(self, text: str) -> str:
        return f"{text} ".replace(f"{SEPARATOR} ", "").rstrip()


class Gpt2:
    """Numbers of GPT-2's byte-level subwords."""

    def __init__(self, codes: Path, encoder: Path) -> None:
        with _requiring():
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        words = json.loads(_read_text(encoder))
        pairs = [line.split() for line in _read_text(codes).split("\n")[1:] if line]  # the first is a comment
        self._tokenizer = Tokenizer(models.BPE(words, [(first, second) for first, second in pairs]))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()

    def split(self, text: str) -> str:
        return " ".join(map(str, self._tokenizer.encode(text).ids))

    def join(self, text: str) -> str:
        runs = groupby(text.split(), key=str.isdecimal)
        return "".join(
            self._tokenizer.decode(list(map(int, run))) if numbers else "".join(run) for numbers, run in runs
        )


# What each name of a BPE makes of its files, in the order of `FILES`.
BPE: dict[str, Callable[..., Splitter]] = {
    "subword-nmt": partial(SubwordNmt, counted=False),
    "fastbpe": partial(SubwordNmt, counted=True),
    "gpt2": Gpt2,
}
FILES = {"codes": "bpe.codes", "encoder": "encoder.json"}  # by setting, as a model's folder has them


class SplitTokenizer(TextOutput):
    """Words of a dictionary that text is split into in several stages. Implements `OutputProcessor`.

    Args:
        splitters: In the order in which text is split.
    """

    def __init__(self, vocab: Vocab, splitters: Sequence[Splitter]) -> None:
        self.vocab, self.splitters = vocab, splitters

    def encode(self, text: str) -> list[int]:
        for splitter in self.splitters:
            text = splitter.split(text)
        return self.vocab.ids(text.split())

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(spell(ids, self.vocab))
        for splitter in reversed(self.splitters):
            text = splitter.join(text)
        return text


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    return TextInput(load_output(folder, settings, specials))


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> SplitTokenizer:
    paths = {key: named_file(folder, settings, key) for key in FILES if key in settings}
    return SplitTokenizer(load_vocab(folder, settings, specials), splitters(settings, paths, str(folder)))


def splitters(settings: JsonObject, paths: Mapping[str, Path], where: str) -> list[Splitter]:
    """Makes the splitters of text from settings and from the files that they name.

    Raises:
        UnsupportedCheckpointError: This version has no such BPE.
        CheckpointError: The settings or a file are damaged.
        MissingDependencyError: A required module is not installed.
    """
    found: list[Splitter] = []
    moses, bpe = settings.get("moses"), settings.get("bpe")
    if bpe is not None and bpe not in BPE:
        raise UnsupportedCheckpointError(
            f"a bpe {bpe!r}", fix=f"this version knows {', '.join(BPE)}", where=where
        )
    try:
        if moses is not None:
            found.append(Moses(**moses))
        if bpe is not None:
            found.append(BPE[bpe](*(paths[key] for key in FILES if key in paths)))
    except (NartkError, MemoryError):
        raise
    except Exception as error:  # of files that are none
        raise CheckpointError(f"damaged settings or files of text: {error}", where=where) from error
    return found


def _read_text(path: Path) -> str:
    return read_file(path, most=_MOST).decode("utf-8")
