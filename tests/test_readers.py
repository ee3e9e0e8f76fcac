"""Readers give a record for every sentence, whatever the bytes, and say where and why one has none."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nartk.data import readers
from nartk.data.readers import FORMATS, Fields, Record, format_of, read_records


def read(data: bytes, form: str = "txt", fields: Fields = Fields()) -> list[Record]:  # noqa: B008 (frozen)
    return list(read_records(io.BytesIO(data), "in", form, fields))


def problem(record: Record) -> str:
    assert record.error is not None
    return f"{record.error.code} {record.error.where} {record.error.message}"


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\n", [""]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"]),
        (" שלום 👩‍👩‍👧 \n".encode(), [" שלום 👩‍👩‍👧 "]),
    ],
)
def test_only_line_feeds_end_lines(data: bytes, texts: list[str]) -> None:
    records = read(data)
    assert [record.text for record in records] == texts
    assert [record.where for record in records] == [f"in:{n + 1}" for n in range(len(texts))]
    assert not any(record.error for record in records)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"caf\xe9 .", "byte {at} of the line, 0xe9, is not UTF-8"),
        (b"\xed\xa0\x80\xe9", "byte {surrogate} of the line, 0xed, is not UTF-8"),
        (b"a\0b", "the line holds a NUL character"),
    ],
)
def test_bytes_that_are_no_text_cost_their_line_alone(form: str, bad: bytes, message: str) -> None:
    wrap = {"txt": b"%b", "tsv": b"%b\tx", "jsonl": b'{"text": "%b"}', "m2": b"S %b"}[form]
    offset = wrap.index(b"%b")
    first, middle, last = read(b"\n".join(wrap % line for line in (b"one", bad, b"two")), form)
    assert (first.text, middle.text, last.text) == ("one", "", "two")
    assert problem(middle) == "E202 in:2 " + message.format(at=offset + 4, surrogate=offset + 1)


def test_tsv_columns() -> None:
    fields = Fields(column=2, prefix_column=3)
    good, short = read(b"7\tShe go .\tShe\n\tonly two\n", "tsv", fields)
    assert (good.text, good.prefix, good.error) == ("She go .", "She", None)
    assert problem(short) == "E204 in:2 2 columns, but column 3 is asked for"
    assert [record.text for record in read(b"a\tb\n\n", "tsv")] == ["a", ""]


def test_jsonl_takes_source_or_text_or_the_named_key_and_keeps_ids() -> None:
    records = read(
        b'{"text": "t", "source": "s", "id": "x1"}\n{"text": "t", "id": [1], "prefix": "p"}\n{"id": 3}\n',
        "jsonl",
    )
    assert [(each.text, each.id, each.prefix) for each in records] == [
        ("s", "x1", ""),
        ("t", [1], "p"),
        ("", 3, ""),
    ]
    assert problem(records[2]) == "E204 in:3 no key 'source' or 'text'"
    (named,) = read(b'{"text": "t", "mine": "m"}\n', "jsonl", Fields(key="mine"))
    assert named.text == "m"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "E204 in:1 cannot be parsed: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "E204 in:1 not a JSON object"),
        ('{"text": 3}', "E204 in:1 'text' is '3', not a string"),
        ('{"text": "a", "prefix": null}', "E204 in:1 'prefix' is 'None', not a string"),
        ('{"text": "a", "id": NaN}', "E204 in:1 cannot be parsed: NaN is not JSON"),
        ('{"text": "a\\u0000b"}', "E202 in:1 'text' holds a NUL character"),
        ('{"text": "a\\ud800b"}', "E202 in:1 'text' holds half of a surrogate pair"),
    ],
)
def test_jsonl_errors(line: str, expected: str) -> None:
    (record,) = read(line.encode() + b"\n", "jsonl")
    assert problem(record) == expected


def test_json_text_may_hold_what_lines_may_not() -> None:
    text = "two\nlines, \x85 and \U0001f600"
    for ascii_only in (True, False):
        (record,) = read(json.dumps({"text": text}, ensure_ascii=ascii_only).encode(), "jsonl")
        assert record.text == text


def test_deep_json_is_an_error_of_its_line() -> None:
    deep, fine = read(b'{"text": ' + b"[" * 100_000 + b'\n{"text": "a"}\n', "jsonl")
    assert deep.error is not None
    assert fine.text == "a"


def test_m2_gives_its_sources() -> None:
    data = (
        b"S He  go home\nA 1 2|||R:VERB:SVA|||goes|||REQUIRED|||-NONE-|||0\n\n"
        b"S\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n\nX\nS last"
    )
    records = read(data, "m2")
    assert [(record.text, record.line) for record in records] == [
        ("He  go home", 1),
        ("", 4),
        ("", 7),
        ("last", 8),
    ]
    assert problem(records[2]) == "E204 in:7 a line starts with 'S ' or 'A ' or is empty, but this one is 'X'"


def test_an_endless_line_is_skipped_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MOST_LINE", 10)
    records = read(b"0123456789\nx" + b"y" * 95 + b"\nnext\n" + b"z" * 11)
    assert [record.text for record in records] == ["0123456789", "", "next", ""]
    assert problem(records[1]) == "E203 in:2 a line of more than 10 bytes"
    assert problem(records[3]) == "E203 in:4 a line of more than 10 bytes"


def test_formats_by_suffix() -> None:
    names = ("a.txt", "b.TSV", "c.jsonl", "d.ndjson", "e.m2", "f", "dir.m2/g.en")
    assert [format_of(name) for name in names] == ["txt", "tsv", "jsonl", "jsonl", "m2", "txt", "txt"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))), st.sampled_from(FORMATS[:3])
)
def test_any_bytes_give_a_record_a_line(lines: list[bytes], form: str) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert [record.line for record in read(data, form)] == [*range(1, len(lines) + 1)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"S a", b"A 1 2|||x", b"", b"\xff", b"S \xff", b"\0", b"S", b"text"])))
def test_any_m2_lines_give_a_record_a_sentence(lines: list[bytes]) -> None:
    wanted = [n for n, line in enumerate(lines, 1) if line.strip() and not line.startswith(b"A ")]
    assert [record.line for record in read(b"\n".join(lines), "m2")] == wanted


def test_records_come_before_the_next_line_is_read() -> None:
    class Source(io.RawIOBase):
        """Hands out a line at a time and knows how many it has given."""

        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            self.given += 1
            line = b"line %d\n" % self.given
            buffer[: len(line)] = line
            return len(line)

    source = Source()
    records = read_records(io.BufferedReader(source), "in", "txt", Fields())
    assert [next(records).text for _ in range(3)] == ["line 1", "line 2", "line 3"]
    assert source.given == 3
