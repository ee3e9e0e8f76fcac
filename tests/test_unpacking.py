"""Packed texts are read as their plain ones, and a file that is no text is one error, for every command."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import main_of

from nartk.cli._files import count_sentences
from nartk.data.readers import format_of
from nartk.errors import InputFileError
from nartk.files import read_lines, reading
from nartk.unpacking import suffix_of

TEXT = "\ufeffShe go to school .\r\nHe\rsaid hi .\n".encode()
LINES = ["She go to school .", "He\rsaid hi ."]


def zstd(data: bytes) -> bytes:
    """Two frames, as a file that was appended to has."""
    zstandard = pytest.importorskip("zstandard")
    pack = zstandard.ZstdCompressor().compress
    return bytes(pack(data[:9]) + pack(data[9:]))


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.fixture(params=PACKED)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"in.txt{request.param}"
    path.write_bytes(PACKED[request.param](TEXT))
    return path


def test_a_packed_text_is_read_as_its_plain_one(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_lines(str(packed)) == LINES
    assert count_sentences([str(packed)], None) == 2
    for stdin in (io.BytesIO(packed.read_bytes()), io.BufferedReader(io.BytesIO(packed.read_bytes()))):  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stdin}))
        assert read_lines("-") == LINES


def test_a_suffix_stands_before_that_of_packing() -> None:
    assert [
        suffix_of(name) for name in ("a/b.en", "b.EN.GZ", "b.tar.zst.xz", "b.gz", ".gz", "a.gz/b", "")
    ] == [*(".en", ".EN", ".zst", "", "", "", "")]
    assert [format_of(f"in.{name}") for name in ("tsv.gz", "JSONL.XZ", "m2.zst", "gz", "txt.bz2")] == [
        *("tsv", "jsonl", "m2", "txt", "txt")
    ]


def test_a_packed_text_that_is_cut_off_is_refused(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-5])
    with pytest.raises(InputFileError, match="cannot read: damaged: ") as caught:
        read_lines(str(packed))
    assert caught.value.where == str(packed)


def test_a_packed_text_that_is_changed_is_refused(packed: Path) -> None:
    data = bytearray(packed.read_bytes())
    data[10:20] = bytes(10)
    packed.write_bytes(data)
    with pytest.raises(InputFileError, match="cannot read: damaged: "):
        read_lines(str(packed))


def packed_often(text: str) -> bytes:
    """By more layers than Python calls functions within each other."""
    data = text.encode()
    for _ in range(1500):
        data = gzip.compress(data, 0)
    return data


def commands(name: str) -> Iterator[str]:
    yield f"decode {name} --quiet"
    yield f"noise {name}"
    yield f"score wer {name} --ref {name}"
    yield f"verify gec-en {name}"
    yield f"distill gec-en {name} --source-lang a --target-lang b --output new"


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda text: text.encode("utf-16"), "is UTF-16, not UTF-8. Fix: convert it to UTF-8, as with iconv"),
        (lambda text: text.encode("utf-16-be"), "is UTF-16, not UTF-8. Fix: convert it to UTF-8, as with ic"),
        (lambda text: text.encode("utf-32"), "is UTF-32, not UTF-8. Fix: convert it to UTF-8, as with iconv"),
        (lambda text: gzip.compress(text.encode("utf-16")), "is UTF-16, not UTF-8. Fix: convert it to UTF-8"),
        (
            lambda text: gzip.compress(lzma.compress(text.encode())),
            "is packed twice or more. Fix: unpack it until it is packed once.",
        ),
        (packed_often, "is packed twice or more. Fix: unpack it until it is packed once."),
        (
            lambda text: b"PK\x03\x04" + text.encode(),
            "is a ZIP archive, not UTF-8. Fix: convert it to UTF-8.",
        ),
        (
            lambda text: b"%PDF-1.7\n" + text.encode(),
            "is a PDF document, not UTF-8. Fix: convert it to UTF-8",
        ),
    ],
)
@pytest.mark.parametrize("command", [*commands("in.txt")], ids=lambda command: command.split()[0])
def test_a_file_that_is_no_text_is_one_error(
    command: str,
    pack: Callable[[str], bytes],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_bytes(pack("She go to school .\nHe said hi .\n" * 9))
    code, output, errors = main_of(command, capfd)
    assert (code, output) == (2, "")
    assert errors.startswith(f"nartk: error[E201 InputFile] in.txt: {message}")
    assert errors.count("\n") == 1


def test_zstd_that_nothing_unpacks_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    for module in ("compression", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Exception, match=r"pip install 'nartk\[zstd\]'"), reading(str(tmp_path / "in.zst")):
        pass


def test_other_characters_than_latin_are_text(tmp_path: Path) -> None:
    for text in ("她去学校。\n", "Она\0идёт\n", "a\0b\n", "\0" * 50, ""):
        (tmp_path / "in.txt").write_text(text, encoding="utf-8")
        assert "".join(f"{line}\n" for line in read_lines(str(tmp_path / "in.txt"))).rstrip(
            "\n"
        ) == text.rstrip("\n")
