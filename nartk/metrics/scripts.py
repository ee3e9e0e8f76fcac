"""Writing systems whose words no spaces part, which metrics of words mistake for one long word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# Letters and the marks within words, by the blocks of Unicode.
_SCRIPTS = {
    "Japanese": "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f",  # kana; Chinese characters beside them are its own
    "Chinese": "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "Thai": "\u0e01-\u0e4e",
    "Lao": "\u0e81-\u0ecd",
    "Burmese": "\u1000-\u103f\u1050-\u109f",
    "Khmer": "\u1780-\u17d3",
    "Tibetan": "\u0f40-\u0fbc",
}
_LETTERS = {name: re.compile(f"[{letters}]") for name, letters in _SCRIPTS.items()}
_ANY = re.compile(f"[{''.join(_SCRIPTS.values())}]")
# Letters: the mean of segmented text is below 3 in Chinese and Japanese, and near 5 in Thai.
LONGEST_WORD = dict.fromkeys(_SCRIPTS, 8) | {"Chinese": 4, "Japanese": 4}
KANA = 0.1  # in Japanese text at least so many for each Chinese character


def unspaced(lines: Iterable[str]) -> str | None:
    """The language, by its script, of lines whose words no spaces part; None where spaces do.

    It is that of most of the letters. Text that has been segmented is not meant: its runs of letters between
    spaces are as long as words, and a line has more than one.
    """
    counts, letters, tokens, spaced = dict.fromkeys(_SCRIPTS, 0), 0, 0, 0
    for line in lines:
        letters += sum(map(str.isalpha, line))
        mine = [token for token in line.split() if _ANY.search(token)]
        tokens += len(mine)
        spaced += len(mine) > 1
        for name, pattern in _LETTERS.items():
            counts[name] += len(pattern.findall(line))
    total = sum(counts.values())
    if 2 * total <= letters or total == tokens:
        return None
    if counts["Japanese"] >= KANA * counts["Chinese"] > 0:
        counts["Japanese"] += counts.pop("Chinese")
    language = max(counts, key=lambda name: counts[name])
    return None if spaced and total <= LONGEST_WORD[language] * tokens else language


def tell_unspaced(
    lines: Iterable[str], tell: Callable[[str], None], counts: str, fix: str, **fixes: str
) -> None:
    """Tells the user where words between spaces are counted in lines whose words no spaces part.

    Args:
        lines: Lines as the metric splits them: its units are separated by white space.
        counts: Who counts, such as ``bleu with --tokenize 13a``.
        fix: The remedy, in the imperative; `fixes` are those of single languages.
    """
    language = unspaced(lines)
    if language is not None:
        tell(
            f"{counts} counts words between spaces, which do not part those of {language}: "
            f"{fixes.get(language, fix)}"
        )
