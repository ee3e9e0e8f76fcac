"""Text of FunASR's models: characters of Chinese, and subwords of other languages, as its program joins them.

Settings in ``config.json``: ``vocabulary`` names a JSON file that lists all words by id, special ones
included. A subword that another follows ends in ``@@``. Words of Chinese characters and digits stand without
spaces; behind any other word of letters is one, unless Chinese follows; single letters of English in a row
are an abbreviation, in capitals. Special symbols, unknown words among them, are left out.

It differs from FunASR's ``sentence_postprocess`` in this: a subword that no word follows is written;
punctuation between a word of letters and Chinese is not left out; and text with times is spelled as text
without, where FunASR has spaces between Chinese characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from nartk.files import Folder, JsonObject
from nartk.processors import register_processor
from nartk.processors.bpe import SEPARATOR
from nartk.processors.text import TextOutput
from nartk.processors.vocabulary import load_vocabulary
from nartk.vocab import SpecialIds, Vocab

NAME = "funasr"
_SILENT = frozenset(("<blank>", "<s>", "</s>", "<unk>", "<OOV>"))
_CHINESE = re.compile("[\u4e00-\u9fff0-9@]+")
_LETTER = re.compile("[A-Za-z]")
_PIECE = re.compile("[\u4e00-\u9fff]|[^\\s\u4e00-\u9fff]+")  # of text


class FunasrText(TextOutput):
    """Joins words as FunASR does. Implements `OutputProcessor` and `WordOutput`."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        specials = {vocab.bos, vocab.pad, vocab.eos, vocab.unk}
        self._silent = {i for i, word in enumerate(vocab.words) if word in _SILENT} | specials

    def encode(self, text: str) -> list[int]:
        """Ids of Chinese characters, and of words between them or their characters."""
        ids = []
        for piece in _PIECE.findall(text):
            known = self.vocab.ids([piece])
            ids += known if known != [self.vocab.unk] else self.vocab.ids(piece)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(text for _, text in self.words(ids)).strip()

    def words(self, ids: Sequence[int]) -> list[tuple[slice, str]]:
        """The tokens of each word, and its text with the space that stands before it."""
        found: list[tuple[slice, str]] = []
        gap = ""  # behind the word before
        for is_single, group in groupby(self._joined(ids), lambda each: bool(_LETTER.fullmatch(each[1]))):
            parts = [*group]
            if is_single and len(parts) > 1:
                letters = "".join(text for _, text in parts).upper()
                parts = [(slice(parts[0][0].start, parts[-1][0].stop), letters)]
            for at, text in parts:
                is_chinese = _CHINESE.fullmatch(text) is not None
                found.append((at, text if is_chinese else gap + text))
                gap = " " if _is_letters(text) and not is_chinese else ""
        return found

    def _joined(self, ids: Sequence[int]) -> list[tuple[slice, str]]:
        """Words whose subwords are joined, with their tokens."""
        found: list[tuple[slice, str]] = []
        begin, before = 0, ""  # of a word that has not ended
        for i, word in enumerate(self.vocab.to_words(ids)):
            if ids[i] in self._silent:
                continue
            if before and _CHINESE.fullmatch(word):
                found.append((slice(begin, i), before))
                before = ""
            if not before:
                begin = i
            before += word.replace(SEPARATOR, "")
            if SEPARATOR not in word:
                found.append((slice(begin, i + 1), before))
                before = ""
        return [*found, (slice(begin, len(ids)), before)] if before else found


def _is_letters(text: str) -> bool:
    return all(each.isalpha() or each == "'" for each in text)


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> FunasrText:
    return FunasrText(load_vocabulary(folder, settings, specials))
