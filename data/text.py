"""English text: a reversible tokeniser in the manner of the Penn Treebank, and the corpora of the repository.

The grammar-correction data sets (JFLEG, CWEB) separate punctuation and clitics by spaces: ``do n't``,
``it 's``, ``can not``. `tokenize` gives that form from plain text and `detokenize` takes it back.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nartk.errors import InputFileError, MissingDependencyError

CORPORA = Path(__file__).resolve().parent / "corpora"

_CLITICS = ("'s", "'m", "'d", "'re", "'ve", "'ll")
_ABBREVIATIONS = """
    mr. mrs. ms. dr. prof. st. jr. sr. inc. ltd. co. corp. vs. etc. al. gen. rep. sen. gov. rev. capt.
    col. lt. sgt. mt. ft. jan. feb. mar. apr. jun. jul. aug. sep. sept. oct. nov. dec. fig. eq. ph.d.
    ave. blvd. dept. est. approx.
"""
# Abbreviations at the end of a text hold its full stop only where they cannot be read as a plain word.
_DOTTED = re.compile(r"(?:[A-Za-z]\.){2,}$")
_INITIAL = re.compile(r"[A-Z]\.$")
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
_WHOLE = re.compile(r"(?i:[a-z][a-z\d+.-]*://|www\.)\S*[\w/=&#~+*-]$|[\w.+-]+@[\w-]+(?:\.[\w-]+)+$")
_LEADING = re.compile(r"\.{2,}|--+|``|[(\[{<\"“‘«¿¡$£€'`—–]|#(?![^\W\d])")
_TRAILING = re.compile(r"(?:\.{2,}|--+|''|[)\]}>\"”’»,;:!?%'—–])$")
_INNER = re.compile(
    r"(\.{3,}|--+|[—–]|(?<=[^\W\d])[,;](?=[^\W\d])|(?<=\w)[\"“”()\[\]](?=\w)|(?<=\w[.!?])[\"”])"
)
_NOT = re.compile(r"(?<=\w)(n['’]t)$", re.IGNORECASE)
_CLITIC = re.compile(r"(?<=[\w.])(['’](?:s|m|d|re|ve|ll))$", re.IGNORECASE)
_LONGEST = 1000  # characters of a stretch without white space beyond which it is one token
_KEPT_APOSTROPHE = re.compile(r"'(?:\d\ds?|em|til|tis|twas|cause|s|m|d|re|ve|ll)$", re.IGNORECASE)


def _split_core(core: str) -> list[str]:
    """Splits clitics off a word without punctuation around it."""
    if core.lower() == "cannot":
        return [core[:3], core[3:]]
    for pattern in (_NOT, _CLITIC):
        found = pattern.search(core)
        if found:
            return [*_split_core(core[: found.start()]), found.group()]
    return [core]


def _split_chunk(chunk: str, *, is_last: bool) -> list[str]:
    """Splits one stretch of text without white space."""
    if len(chunk) > _LONGEST or _WHOLE.match(chunk):
        return [chunk]
    before: list[str] = []
    after: list[str] = []
    while len(chunk) > 1 and not _KEPT_APOSTROPHE.match(chunk):
        found = _LEADING.match(chunk)
        if found is None or found.end() == len(chunk):
            break
        before.append(found.group())
        chunk = chunk[found.end() :]
    while len(chunk) > 1:
        found = _TRAILING.search(chunk)
        if found is not None and found.start() == 0:
            break
        if found is not None:
            after.append(found.group())
            chunk = chunk[: found.start()]
            continue
        is_abbreviation = (
            chunk.lower() in ABBREVIATIONS
            or _DOTTED.search(chunk) is not None
            or (_INITIAL.match(chunk) is not None and not is_last)
        )
        if chunk.endswith(".") and not is_abbreviation:
            after.append(".")
            chunk = chunk[:-1]
            continue
        break
    if _WHOLE.match(chunk):
        core = [chunk]
    else:
        core = [word for part in _INNER.split(chunk) if part for word in _split_core(part)]
    return before + core + after[::-1]


def tokenize(text: str) -> list[str]:
    """Splits plain English text into tokens; text that is tokenised already stays as it is, nearly always."""
    chunks = text.split()
    return [
        token
        for number, chunk in enumerate(chunks, start=1)
        for token in _split_chunk(chunk, is_last=number == len(chunks))
    ]


_TO_THE_LEFT = frozenset([".", ",", ";", ":", "!", "?", ")", "]", "}", "%", "”", "’", "»", "''"])
_TO_THE_RIGHT = frozenset(["(", "[", "{", "$", "£", "€", "#", "“", "‘", "«", "¿", "¡", "``"])


def detokenize(tokens: Sequence[str]) -> str:
    """Joins tokens to plain text: the inverse of `tokenize` on ordinary sentences.

    A straight quotation mark opens and closes by turns, so a sentence with an odd number of them may differ.
    """
    return "".join(
        token if follows else f" {token}" for token, follows in zip(tokens, glued(tokens), strict=True)
    )


def glued(tokens: Sequence[str]) -> list[bool]:
    """For each token True if plain text has no space before it; True for the first one."""
    found: list[bool] = []
    glue = True  # whether the next token follows without a space
    is_open = {'"': False, "'": False}
    previous = ""
    for token in tokens:
        lower = token.lower()
        attach = (
            token in _TO_THE_LEFT
            or lower in _CLITICS
            or lower in ("n't", "n’t")
            or re.fullmatch(r"’(s|m|d|re|ve|ll)|\.{2,}", lower) is not None
            or (lower == "not" and previous.lower() == "can")
        )
        next_glue = token in _TO_THE_RIGHT
        if token == "'" and not is_open["'"] and previous[-1:].lower() == "s":
            attach = True  # a plural's genitive
        elif token in is_open:
            attach, next_glue = is_open[token], not is_open[token]
            is_open[token] = not is_open[token]
        found.append(glue or attach)
        glue, previous = next_glue, token
    return found


def corpora() -> Path:
    """The folder of the corpora.

    Raises:
        MissingDependencyError: nartk is installed from a wheel, which leaves them out.
    """
    if not CORPORA.is_dir():
        raise MissingDependencyError(
            "the corpora of nartk's repository are needed, and no wheel holds them",
            fix="pip install -e FOLDER, with FOLDER a clone of the repository",
        )
    return CORPORA


def corpus_names() -> list[str]:
    """Names of the English corpora, in the order of the alphabet."""
    return sorted(path.name.removesuffix(".txt.xz") for path in corpora().glob("*.txt.xz"))


def read_shipped(file: str) -> Iterator[str]:
    """Yields the lines of a compressed file of the corpora, without line ends.

    Raises:
        InputFileError: No such file is among them.
        MissingDependencyError: They are not installed.
    """
    path = corpora() / file
    if not path.is_file():
        raise InputFileError(
            f"no shipped text is called {file!r}", fix=f"take one of {', '.join(corpus_names())}"
        )
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def read_corpus(name: str | None = None) -> Iterator[list[str]]:
    """Yields the tokenised sentences of one shipped corpus, or of all of them."""
    for one in corpus_names() if name is None else [name]:
        for line in read_shipped(f"{one}.txt.xz"):
            yield line.split(" ")
