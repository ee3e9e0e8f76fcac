"""Ordinary English text for models of tokenised sentences: the sentences of a line, and the line again.

`read_paragraph` finds the sentences of a line and gives their tokens (`nartk.data.text`); `Paragraph.join`
makes a line of what a model made of them. What the model left alone is as it was typed: quotation marks,
dashes, and the white space around it and between sentences. What it wrote anew is spaced by the rules of
`nartk.data.text.detokenize`, or as the punctuation beside it was. Models read single quotation marks, and the
apostrophe before a shortened word, as double quotation marks.

An edit is undone that changes or drops an address (URLs of any scheme, e-mail, @names, #tags, paths, hosts,
files), code in backticks, a name written like iPhone or HTTPS, but for a plural's s, or a character that the
model cannot write; that leaves other numbers, quotation marks or brackets; or that takes the s before a
plural's apostrophe.
Sentences that are not decoded come through as they are: those without a word that the model can read, and
those in another language that uses Latin letters, which common words of it show.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nartk.data.text import ABBREVIATIONS, glued, tokenize
from nartk.protocols.paragraph import Paragraph, Tokenized, edits
from nartk.vocab import UNKNOWN

# Typographic characters, and what models that were trained on plain ones read instead.
_PLAIN = {
    **dict.fromkeys("“”„‟«»″", '"'),
    **dict.fromkeys("‘’‚‛′´", "'"),
    **dict.fromkeys("‐‑−", "-"),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
    "…": "...",
}
_DOUBLED = re.compile("''|``")
# Marks that models take for apostrophes: a single quotation mark, with the one that closes it or without; one
# behind punctuation, or behind a number (of feet). The apostrophe of a clitic that was typed apart is none.
_SINGLE_QUOTED = re.compile(
    r"(?<![\w'’])['‘’](?=[^\s'’])(?!(?i:s|m|d|re|ve|ll)(?![\w'’]))"
    r"(?:(?:[^'‘’]|(?<=\w)['’](?=\w))*?(?<=\S)['’](?!\w))?"
    r"|(?<=[.,!?\d])['’](?!\w)"
)
# URLs, e-mail addresses, @names and #tags, paths, and names of hosts and files.
_HOSTS = "com|edu|gov|io|net|org"
_FILES = "csv|docx?|exe|gif|gz|html?|jpe?g|js|json|md|mp[34]|pdf|png|py|txt|xlsx?|xml|zip"
_ADDRESS = re.compile(
    r"(?i:[a-z][a-z\d+.-]*://|www\.)\S|\S*@\w|#[^\W\d]|[~.]*/\w|[A-Za-z]:\\|(?:[\w.-]+/){2}|\w*_\w"
    rf"|(?i:[\w-]+(?:\.[\w-]+)*\.(?:{_HOSTS}|{_FILES})\b)"
)
_NAME = re.compile(r"[^\Wa-z]*[a-z]\w*[A-Z]|[A-Z]{2}[^a-z]*s?$")  # iPhone, LaTeX, HTTPS, CDs
_CODE = re.compile(r"(?<![\w`])`(?![\s`])[^`]*(?<!\s)`(?![\w`])")
_COUNTED = re.compile(r"\d(?:\S*\d)?|[()\[\]{}]")
_LETTER = re.compile(r"[^\W\d_]")
_IS_SYMBOLS = re.compile(r"[\W_]+").fullmatch

# What an item of a list begins with, which is no part of its sentence.
_BULLET = re.compile(r"(?:(?:[-–—*•·>#]+|\(?\d{1,3}[.)]|\(?[a-z][.)]|[A-Z]\))\s+)+(?=\S)")
_CHUNK = re.compile(r"\S+")
_WORD = re.compile(r"\w*")
_OPENING, _CLOSING = "\"'([{", "\"')]}"
_IS_NUMBER = re.compile(r"\(?(?:\d{1,3}|[A-Za-z]|[ivx]+)[.)]+").fullmatch  # of an item in a list
_IS_SHORTENED = re.compile(r"(?:[a-z]\.)+").fullmatch


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations that may end a sentence, those that never do, and those that do not before a number.
_ENDING = _words(
    """
    inc. ltd. co. corp. etc. al. jr. sr. jan. feb. mar. apr. jun. jul. aug. sep. sept. oct. nov. dec.
    ph.d. ave. blvd. dept. bros. univ. rd. ed. eds. min. max.
    """
)
_TITLES = (
    ABBREVIATIONS | _words("e.g. i.e. cf. viz. messrs. hon. maj. cmdr. pres. resp. ca. p.s. n.b.")
) - _ENDING
_BEFORE_NUMBERS = _words("no. nos. fig. figs. eq. eqs. vol. ch. chap. sec. art. p. pp. ver. nr. tel.")
# Words that begin sentences, and hardly ever follow an abbreviation within one.
_SUBJECTS = _words("the he she it i we they you this these those there my our your his her their")
_STARTERS = _SUBJECTS | _words(
    """
    and but so that if when while after before because however then also although what why how who where
    please thanks
    """
)
_ENGLISH = _words(
    """
    the and of to are were that this with for it you i she they had has my your his their be been by from
    at but which what who when there can will would n't
    """
)
# Common words of French, German, Spanish, Italian, Portuguese and Dutch that are none of English.
_FOREIGN = _words(
    """
    le les des du et est une dans que qui ne pas sur avec je il elle nous vous mais où ce sont der das und
    ist nicht ein eine einen ich wir sie mit auf für von dem den im zu habe wie el los las del y por para
    con como pero muy está yo su gli di che non per è sono della ho com não uma os ao het een niet van
    voor zijn de la en se
    """
)


@dataclass(frozen=True)
class Sentence(Tokenized):
    """A sentence of ordinary text.

    Attributes:
        text: Its tokens as the model reads them, with spaces between.
        typed: The tokens as they were typed.
        gaps: White space typed before each, or nothing.
        spelled: The tokens as the model would write them.
        prefix: Number of forced tokens of the output; no edit of these is undone.
    """

    typed: tuple[str, ...]
    gaps: tuple[str, ...]
    spelled: tuple[str, ...]
    prefix: int = 0

    @property
    def written(self) -> str:
        return " ".join(self.spelled)

    def restore(self, output: str) -> str:
        written = output.split()
        if written == [*self.spelled]:
            return "".join(gap + token for gap, token in zip(self.gaps, self.typed, strict=True))
        found: list[tuple[str, int | None]] = []  # tokens of the line, with their index if they were typed
        for i, end, j, stop in edits(self.spelled, written):
            is_same = [*self.spelled[i:end]] == written[j:stop]
            if is_same or (j >= self.prefix and self._is_undone(i, end, written, j, stop)):
                found += ((self.typed[index], index) for index in range(i, end))
            else:
                found += ((token, None) for token in written[j:stop])
        text = "".join(token for token, _ in found[:1])
        follows = glued([token for token, _ in found])
        for (before, after), is_glued in zip(pairwise(found), follows[1:], strict=True):
            gap = self._gap(before, after)
            text += ("" if is_glued else " ") if gap is None else gap
            text += after[0]
        return text

    def _is_undone(self, start: int, end: int, output: Sequence[str], j: int, stop: int) -> bool:
        """True if the tokens from `start` to `end` stay in the place of the output's from `j` to `stop`."""
        typed, written = self.typed[start:end], output[j:stop]
        if start == len(self.typed) and _stop("".join(self.typed[-4:])) and {*written} == {"."}:
            return True  # a second full stop, behind a bracket that closes after the first
        names = [] if self.text.isupper() else filter(_NAME.match, typed)
        is_genitive = self.spelled[end : end + 1] == ("'",) and output[stop : stop + 1] == ["'"]
        return (
            any(UNKNOWN in token or '"' in token for token in (*written, *self.spelled[start:end]))
            or any(map(_ADDRESS.match, typed))
            or any(not {name, f"{name}s"} & {*written} for name in names)
            or (is_genitive and not "".join(written).lower().endswith("s"))
            or _counted(self.spelled[start:end]) != _counted(written)
            or self._is_code(start, end)
        )

    def _is_code(self, start: int, end: int) -> bool:
        """True if one of the tokens from `start` to `end`, or a token put in there, is in backticks."""
        pieces = [gap + token for gap, token in zip(self.gaps, self.typed, strict=True)]
        first, last = (len("".join(pieces[:i])) for i in (start, end))
        return any(code.start() < last and first < code.end() for code in _CODE.finditer("".join(pieces)))

    def _gap(self, before: tuple[str, int | None], after: tuple[str, int | None]) -> str | None:
        """White space typed between two tokens, or on this side of one that is punctuation; else None."""
        (left, i), (right, j) = before, after
        if j is not None and j > 0 and (i == j - 1 or _IS_SYMBOLS(right)):
            return self.gaps[j]
        if i is not None and i + 1 < len(self.gaps) and _IS_SYMBOLS(left):
            return self.gaps[i + 1]
        return None


def plain_tokens(text: str) -> str:
    """The tokens of ordinary text as models read them, with spaces between."""
    return " ".join(tokenize(_plain(text)[0]))


def read_paragraph(
    line: str, spell: Callable[[str], str], *, whole: bool = False, prefix: int = 0
) -> Paragraph:
    """The sentences of a line of ordinary text.

    Args:
        spell: Gives text as the model would write it, with `UNKNOWN` for what it cannot.
        whole: Take the line as one sentence.
        prefix: Number of forced tokens of its output; if any, the line is always decoded.
    """
    sentences, between, last = [], [], 0
    plain, origins = _plain(line)
    for start, stop in [(0, len(line))] if whole else sentence_spans(line):
        bullet = None if whole else _BULLET.match(line, start, stop)
        start = start if bullet is None else bullet.end()
        tokens = _tokens(plain, origins, bisect_left(origins, start), bisect_left(origins, stop))
        read = tuple(token for token, _, _ in tokens)
        spelled = read if spell(" ".join(read)) == " ".join(read) else tuple(map(spell, read))
        if not (tokens and prefix) and not _is_decoded(read, spelled):
            continue
        gaps = tuple(line[end:begin] for (_, _, end), (_, begin, _) in pairwise(tokens))
        typed = tuple(line[begin:end] for _, begin, end in tokens)
        sentences.append(Sentence(" ".join(read), typed, ("", *gaps), spelled, prefix))
        between.append(line[last : tokens[0][1]])
        last = tokens[-1][2]
    return Paragraph(tuple(sentences), (*between, line[last:]))


def sentence_spans(line: str) -> list[tuple[int, int]]:
    """Spans of the sentences of a line, without the white space around them."""
    plain, origins = _plain(line)
    found = [*_CHUNK.finditer(plain)]
    chunks = [chunk.group() for chunk in found]
    first = last = 0  # the chunk that begins the sentence, and the latest that may end it
    is_quoted = False
    spans = []
    for i in range(1, len(chunks) + 1):
        before = chunks[i - 1]
        # Closing quotation marks that stand alone, and smileys, belong to the sentence before.
        if _stop(before) or not _IS_SYMBOLS(before):
            last = i - 1
        is_quoted ^= before.count('"') % 2 == 1
        if i == len(chunks) or _begins(chunks, i, first, last, is_quoted=is_quoted):
            spans.append((origins[found[first].start()], origins[found[i - 1].end()]))
            first, is_quoted = i, False
    return spans


def _begins(chunks: Sequence[str], i: int, first: int, last: int, *, is_quoted: bool) -> bool:
    """True if chunk i begins a sentence after one from `first` to `last`."""
    stop = _stop(chunks[last])
    if last < first or not stop or (last == first and _IS_NUMBER(chunks[first])):
        return False
    word = chunks[last].lstrip(_OPENING).rstrip(_CLOSING)
    following = chunks[i]
    if _IS_SYMBOLS(following):
        if i + 1 == len(chunks) or following not in ("(", "[", *('"' * (not is_quoted))):
            return False
        following = chunks[i + 1]
    following = following.lstrip(_OPENING)
    starter = _WORD.match(following)[0].lower()  # type: ignore[index]
    if stop == ".":
        if word.lower() in _TITLES or (word.lower() in _BEFORE_NUMBERS and following[:1].isdigit()):
            return False
        if word.lower() in _ENDING or _IS_SHORTENED(word.lower()):
            return following[:1].isupper() and starter in _STARTERS and (len(word) > 2 or len(starter) > 1)
    if len(stop) > 1 and not stop.strip(".") and starter == "i":
        return False
    if following[:1].islower():
        # So begin the sentences of those who write none in capitals; after a quotation, its speaker.
        is_word = len(word) > 2 and word[:-1].isalnum()
        return starter in _SUBJECTS and is_word and chunks[last].endswith(stop)
    return following[:1].isupper() or following[:1].isdigit()


def _stop(chunk: str) -> str:
    """The punctuation at the end of a chunk that may end a sentence; empty: there is none."""
    chunk = chunk.rstrip(_CLOSING)
    return chunk[len(chunk.rstrip(".!?")) :]


def _is_decoded(tokens: Sequence[str], spelled: Sequence[str]) -> bool:
    """True if the model can read at least half of the words, and they look like English."""
    words = [pair for pair in zip(tokens, spelled, strict=True) if _LETTER.search(pair[0])]
    readable = [word for word, written in words if UNKNOWN not in written and not _ADDRESS.match(word)]
    english = sum(word.lower() in _ENGLISH for word in readable)
    foreign = {word for word, _ in words if word in _FOREIGN}
    return bool(readable) and 2 * len(readable) >= len(words) and len(foreign) <= max(1, english)


def _tokens(plain: str, origins: Sequence[int], start: int, stop: int) -> list[tuple[str, int, int]]:
    """The tokens of a part of a plain text, and where in the text that it comes from each begins and ends."""
    found, end = [], start
    for token in tokenize(plain[start:stop]):
        begin = plain.index(token, end)
        end = begin + len(token)
        found.append((token, origins[begin], origins[end]))
    return found


def _plain(text: str) -> tuple[str, list[int]]:
    """A text in plain characters, and where in it each comes from; also where it ends."""
    marks: dict[int, str] = {}
    for found in _SINGLE_QUOTED.finditer(text):
        marks |= {found.start(): '"', found.end() - 1: '"'}
    for found in _DOUBLED.finditer(text):
        marks |= {found.start(): '"', found.end() - 1: ""}
    pairs = [(plain, i) for i, char in enumerate(text) for plain in marks.get(i, _PLAIN.get(char, char))]
    return "".join(plain for plain, _ in pairs), [*(i for _, i in pairs), len(text)]


def _counted(tokens: Sequence[str]) -> list[str]:
    return _COUNTED.findall(" ".join(tokens))
