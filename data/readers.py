"""Reads sentences from text, TSV, JSONL and M2, line by line: none is lost, and none stops a run.

Lines end as `nartk.files.raw_lines` has it; other separators (form feed, U+0085, U+2028) are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NoReturn

from nartk.errors import (
    InputEncodingError,
    InputFormatError,
    InputTooLongError,
    NartkError,
    named,
    require_text,
)
from nartk.files import MOST_LINE, JsonObject, raw_lines
from nartk.unpacking import suffix_of

SOUND, FEATURES, MANIFEST = "sound", "features", "manifest"  # files that are a record, or list such files
SOUNDS = (
    *("wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au", "w64", "caf", "sph"),
    *("m4a", "mp4", "mov", "3gp", "aac", "webm", "mka", "mkv", "wma", "amr"),
)
SUFFIXES = {
    **{".txt": "txt", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".m2": "m2"},
    **{f".{suffix}": SOUND for suffix in SOUNDS},
    **{".npz": FEATURES, ".scp": MANIFEST},
}
FORMATS = ("txt", "tsv", "jsonl", "m2")  # of lines that are a sentence each
SCP = "scp"  # of lines that are a name and a path
SOURCE_KEYS = ("source", "text")  # keys of a JSON object that may hold the sentence, the first one wins


@dataclass(frozen=True)
class Record:
    """One sentence to decode, or what is wrong with it.

    Attributes:
        text: The sentence; empty where there is an error.
        line: Number of its line in the file, from 1.
        where: The place as errors name it, such as ``in.txt:17``.
        id: Its id in the input, any JSON value; None where it has none.
        prefix: Forced beginning of the output.
        drafts: Drafts of the output.
        error: Reason why there is no text.
    """

    text: str
    line: int
    where: str
    id: object = None
    prefix: str = ""
    drafts: tuple[str, ...] = ()
    error: NartkError | None = None


@dataclass(frozen=True)
class Fields:
    """Columns of a TSV line, and keys of a JSON line.

    Attributes:
        column: Column of a TSV line that holds the sentence, from 1.
        prefix_column: The one that holds the beginning of the output; None: none does.
        key: Key of a JSON object that holds the sentence; None: ``source``, else ``text``.
        draft_columns: The columns that hold a draft of the output each.
        draft_key: Key of a JSON object that holds a list of drafts, or one; None: none does.
        root: Folder of the files that a manifest lists; None: as it says.
    """

    column: int = 1
    prefix_column: int | None = None
    key: str | None = None
    draft_columns: tuple[int, ...] = ()
    draft_key: str | None = None
    root: str | None = None


def format_of(name: str, default: str = "txt") -> str:
    """The format that a file name's suffix stands for; the default where it stands for none."""
    return SUFFIXES.get(suffix_of(name.lower()), default)


def read_records(file: IO[bytes], name: str, form: str, fields: Fields) -> Iterator[Record]:
    """Yields a record for every sentence, each as soon as its line is there.

    In txt, TSV and JSONL every line is a sentence. In M2 every ``S`` line is one; a line that is neither
    ``S``, ``A`` nor blank gives a record with an error.

    Args:
        file: Opened in binary mode.
        name: File name for error messages.
        form: One of `FORMATS`, or `SCP`.
    """
    for number, (raw, whole) in enumerate(raw_lines(file, MOST_LINE), start=1):
        if form == "m2" and (not raw.strip() or raw.startswith(b"A ")):
            continue
        where = f"{name}:{number}"
        id: object = None
        try:
            if form == SCP and raw.strip():
                id = _decode(raw.split(maxsplit=1)[0])
                where = f"{where} ({id})"
            if not whole:
                raise InputTooLongError(f"a line of more than {MOST_LINE} bytes", fix="split the line")
            line, prefix = _decode(raw), ""
            drafts: tuple[str, ...] = ()
            if form == "jsonl":
                values = _parse_json(line, fields)
                id = _finite(values.get("id"))
                line, prefix, drafts = _pick(values, fields)
            elif form == "tsv":
                line, prefix, drafts = _parse_tsv(line, fields)
            elif form == "m2":
                line = _parse_m2(line)
            elif form == SCP and id is not None:
                line = _parse_scp(line)
            yield Record(line, number, where, id, prefix, drafts)
        except NartkError as error:
            error.where = where
            yield Record("", number, where, id, error=error)


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputEncodingError(
            f"byte {error.start + 1} of the line, {raw[error.start]:#x}, is not UTF-8",
            fix="convert the input to UTF-8",
        ) from None
    require_text(text)
    return text


def _parse_m2(line: str) -> str:
    if line != "S" and not line.startswith("S "):
        raise InputFormatError(
            f"a line starts with 'S ' or 'A ' or is empty, but this one is {line[:40]!r}",
            fix=f"give a file in M2 format, or name another {named('format')}",
        )
    return line[2:]


def _parse_scp(line: str) -> str:
    """The path in a line of Kaldi's wav.scp, which begins with a name."""
    _, *path = line.split(maxsplit=1)
    if not path:
        raise InputFormatError(f"{line[:80]!r} names no file", fix="write a name, a space and a path")
    if path[0].rstrip().endswith("|"):
        raise InputFormatError(
            "a shell command, which nartk does not run", fix="write its output to a file, and name that"
        )
    return path[0].strip()


def _parse_tsv(line: str, fields: Fields) -> tuple[str, str, tuple[str, ...]]:
    cells = line.split("\t")
    prefix = 0 if fields.prefix_column is None else fields.prefix_column
    wanted = max(fields.column, prefix, *fields.draft_columns)
    if len(cells) < wanted:
        raise InputFormatError(f"{len(cells)} columns, but column {wanted} is asked for", fix="fill it in")
    drafts = tuple(cells[column - 1] for column in fields.draft_columns)
    return cells[fields.column - 1], cells[prefix - 1] if prefix else "", drafts


def _example(fields: Fields) -> str:
    return f'write {{"{SOURCE_KEYS[0] if fields.key is None else fields.key}": "..."}}'


def _parse_json(line: str, fields: Fields) -> JsonObject:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        values = json.loads(line, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputFormatError(f"cannot be parsed: {error}", fix=_example(fields)) from None
    if not isinstance(values, dict):
        raise InputFormatError("not a JSON object", fix=_example(fields))
    return values


def _finite(id: object) -> object:
    """An id, which is written as it was read: JSON has no infinity."""
    try:
        json.dumps(id, allow_nan=False)
        return id
    except ValueError:
        raise InputFormatError("'id' holds a number beyond 1.8e308", fix="write it as a string") from None


def _pick(values: JsonObject, fields: Fields) -> tuple[str, str, tuple[str, ...]]:
    """The sentence, the prefix and the drafts in a JSON object."""
    keys = SOURCE_KEYS if fields.key is None else (fields.key,)
    key = next((key for key in keys if key in values), None)
    if key is None:
        raise InputFormatError(
            f"no key {' or '.join(map(repr, keys))}",
            fix=f"add it, or name the key that holds it with {named('key')}",
        )
    drafts = [] if fields.draft_key is None else values.get(fields.draft_key, [])
    if not isinstance(drafts, list):
        drafts = [drafts]
    texts = [(key, values[key]), ("prefix", values.get("prefix", ""))]
    for name, text in [*texts, *((fields.draft_key, draft) for draft in drafts)]:
        if not isinstance(text, str):
            raise InputFormatError(f"{name!r} is {str(text)[:40]!r}, not a string", fix=_example(fields))
        require_text(text, repr(name))
    return values[key], values.get("prefix", ""), tuple(drafts)
