"""What nartk-preprocess, nartk-train and nartk-generate refuse: one line with its name, and an exit code."""

from __future__ import annotations

import gzip
import lzma
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support import fairseq_host
from support.commands import main_of
from support.memory import rising_at_most
from support.tiny import SENTENCES

from nartk.cli._files import read_files
from nartk.data.readers import Fields
from nartk.vocab import Vocab

LONG = "x" * 300  # more than a name of a file may have
PREPROCESS = "preprocess -s src -t trg --joined-dictionary --trainpref"
INTO_NEW = f"{PREPROCESS} text --destdir new"
GENERATE = "generate bin --cpu --path"
# A command, its exit code, and how its line of error begins.
EDGES = [
    (
        f"{PREPROCESS} text --destdir bin",
        6,
        "error[E501 Output] bin/dict.src.txt: exists already. Fix: name another --destdir, or remove it",
    ),
    (f"{PREPROCESS} text --destdir in.txt", 6, "error[E501 Output] in.txt: cannot write: File exists"),
    (f"{PREPROCESS} text --destdir in.txt/x", 6, "error[E501 Output] in.txt/x: cannot write: Not a dir"),
    (f"{PREPROCESS} text --destdir /dev/null", 6, "error[E501 Output] /dev/null: cannot write: "),
    (f"{PREPROCESS} text --destdir {LONG}", 6, f"error[E501 Output] {LONG}: cannot write: File name too"),
    (f"{PREPROCESS} text --destdir loop/x", 6, "error[E501 Output] loop/x: cannot write: "),
    (f"{PREPROCESS} text --destdir /proc/x", 6, "error[E501 Output] /proc/x: cannot write: "),
    (
        f"{PREPROCESS} latin --destdir new",
        2,
        "error[E201 InputFile] latin.src:2: byte 0xe9 is not UTF-8. Fix: convert the file to UTF-8.",
    ),
    (f"{INTO_NEW} --validpref text,latin", 2, "error[E201 InputFile] latin.src:2: byte 0xe9 is not UTF-8"),
    (f"{INTO_NEW} --testpref latin", 2, "error[E201 InputFile] latin.src:2: byte 0xe9 is not UTF-8"),
    (
        "preprocess --only-source --trainpref latin.src --destdir new",
        2,
        "error[E201 InputFile] latin.src:2: byte 0xe9 is not UTF-8",
    ),
    (f"{INTO_NEW} --validpref none", 2, "error[E201 InputFile] none.src: cannot read: No such file"),
    (f"{PREPROCESS} zeros --destdir new", 2, "error[E201 InputFile] zeros.src: no regular file. Fix: "),
    (f"{INTO_NEW} --workers 0", 2, "error[E101 Usage] --workers is 0, below 1. Fix: give at least 1."),
    (f"{INTO_NEW} --workers -3", 2, "error[E101 Usage] --workers is -3, below 1. Fix: give at least 1."),
    (f"{INTO_NEW} --srcdict none.txt", 2, "error[E201 InputFile] none.txt: cannot read: No such file"),
    (
        f"{INTO_NEW} --srcdict bad.txt",
        2,
        "error[E201 InputFile] bad.txt:2: expected 'WORD COUNT', found 'foo'. Fix: ",
    ),
    (f"{INTO_NEW} --tgtdict bad.txt", 2, "error[E201 InputFile] bad.txt:2: expected 'WORD COUNT', found"),
    (f"{INTO_NEW} --srcdict twice.txt", 2, "error[E201 InputFile] twice.txt:3: 'a 2' has the word of"),
    (f"{INTO_NEW} --srcdict latin.src", 2, "error[E201 InputFile] latin.src:1: expected 'WORD COUNT', found"),
    (f"{INTO_NEW} --srcdict latin.txt", 2, "error[E201 InputFile] latin.txt:2: byte 0xe9 is not UTF-8"),
    (f"{INTO_NEW} --srcdict zeros.txt", 2, "error[E201 InputFile] zeros.txt: larger than 100000000 bytes"),
    (f"{INTO_NEW} --tgtdict zeros.txt", 2, "error[E201 InputFile] zeros.txt: larger than 100000000 bytes"),
    (
        "generate zeros -s src -t trg --cpu --path none.pt",
        2,
        "error[E201 InputFile] zeros/dict.src.txt: larger than 100000000 bytes",
    ),
    (
        "train zeros -s src -t trg --arch nartk_transformer_tiny --max-tokens 9 --cpu --save-dir saved",
        2,
        "error[E201 InputFile] zeros/dict.src.txt: larger than 100000000 bytes",
    ),
    (f"{GENERATE} none.pt", 2, "error[E201 InputFile] Model file not found: none.pt. Fix: "),
    (f"{GENERATE} .", 2, "error[E201 InputFile] .: no such file. Fix: check the name."),
    (
        f"{PREPROCESS} text --destdir other --user-dir none",
        2,
        "error[E201 InputFile] PLACE/none: no such file or folder. Fix: ",
    ),
    ("preprocess --nosuch", 2, "error[E101 Usage] unrecognized arguments: --nosuch. Fix: see nartk-prepro"),
    ("preprocess --workers x", 2, "error[E101 Usage] argument --workers: invalid int value: 'x'. Fix: see"),
    ("generate", 2, "error[E101 Usage] the following arguments are required: data. Fix: see nartk-generate"),
    (
        "train bin --arch nope",
        2,
        "error[E101 Usage] argument --arch/-a: invalid choice: 'nope'. Fix: see nartk-train --help.",
    ),
    (
        "train bin --ddp-backend x",
        2,
        "error[E101 Usage] argument --ddp-backend: invalid choice: 'x' (choose from",
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sentences, dictionaries and data, sound ones and others."""
    fairseq_host.require_fairseq()
    folder = tmp_path_factory.mktemp("place")
    for side in ("src", "trg"):
        (folder / f"text.{side}").write_text("\n".join(SENTENCES) + "\n")
        (folder / f"zeros.{side}").symlink_to("/dev/zero")
    (folder / "latin.src").write_bytes(b"a b\na caf\xe9\n")
    (folder / "latin.trg").write_text("a b\nc d\n")
    (folder / "latin.txt").write_bytes(b"a 1\ncaf\xe9 1\n")
    (folder / "bad.txt").write_text("a 1\nfoo\n")
    (folder / "twice.txt").write_text("a 1\nb 1\na 2\n")
    (folder / "in.txt").write_text("a b\n")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "zeros.txt").symlink_to("/dev/zero")
    (folder / "zeros").mkdir()
    (folder / "zeros" / "dict.src.txt").symlink_to("/dev/zero")
    flags = f"-s src -t trg --joined-dictionary --trainpref {folder}/text --testpref {folder}/text"
    assert import_module("nartk.cli.preprocess").main([*flags.split(), "--destdir", str(folder / "bin")]) == 0
    return folder


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "--trainpref is missing, from which dictionaries are built"),
        ("-s src -t trg", "--trainpref is missing"),
        ("-s src -t trg --srcdict twice.txt", "--trainpref is missing"),
        (
            "-s src -t trg --joined-dictionary --srcdict d --tgtdict d",
            "--joined-dictionary takes one of --srcdict",
        ),
    ],
)
def test_no_folder_is_made_where_flags_are_wrong(
    flags: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    fairseq_host.require_fairseq()
    monkeypatch.chdir(tmp_path)
    found, _, errors = main_of(f"preprocess {flags}", capfd)
    assert (found, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"nartk: error[E101 Usage] {message}")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize(("command", "code", "message"), EDGES, ids=[each[0][-60:] for each in EDGES])
def test_an_edge_is_an_error_in_a_line(
    command: str, code: int, message: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(place)
    with rising_at_most(300_000):
        found, _, errors = main_of(command, capfd)
    assert found == code
    assert errors.startswith(f"nartk: {message.replace('PLACE', str(place))}")
    assert errors.count("\n") == 1
    made = place / "new"
    assert not made.exists() or [file.name for file in made.iterdir()] == ["preprocess.log"]


@pytest.mark.filterwarnings("ignore")  # fairseq's own
def test_a_parser_that_fairseq_makes_by_itself(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """It reads the command line before the command's parser is made."""
    fairseq_host.require_fairseq()
    monkeypatch.setattr(sys, "argv", ["nartk-preprocess", "--user-dir"])
    assert import_module("nartk.cli.preprocess").main(sys.argv[1:]) == 2
    assert capfd.readouterr().err == (
        "nartk: error[E101 Usage] argument --user-dir: expected one argument. "
        "Fix: see nartk-preprocess --help.\n"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " #fairseq:overwrite\n"])
def test_a_sound_dictionary_is_read_as_fairseq_does(end: str, place: Path, tmp_path: Path) -> None:
    from fairseq.data import Dictionary

    rows = (place / "bin" / "dict.src.txt").read_text().splitlines()
    rows += rows[:1] if "overwrite" in end else []
    (tmp_path / "dict.txt").write_bytes(end.join([*rows, ""]).encode())
    ours, theirs = Dictionary(), Dictionary()
    ours.add_from_file(str(tmp_path / "dict.txt"))
    Dictionary.add_from_file.__wrapped__(theirs, str(tmp_path / "dict.txt"))
    assert vars(ours) == vars(theirs)
    assert len(ours) > len(rows)


def binarized(folder: Path, side: str) -> list[str]:
    """The lines of training data, as fairseq reads them back."""
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(folder / f"dict.{side}.txt"))
    found = data_utils.load_indexed_dataset(str(folder / f"train.src-trg.{side}"), words)
    return [words.string(ids) for ids in found]


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("packed", [lambda data: data, gzip.compress, lzma.compress])
def test_lines_are_those_that_other_commands_read(
    packed: Callable[[bytes], bytes], workers: str, tmp_path: Path, capfd: Any
) -> None:
    """A lone carriage return ends no line, and a byte order mark is no part of a word."""
    fairseq_host.require_fairseq()
    source = b"\xef\xbb\xbfone two\nthree\rfour\r\nfive\n\nsix\x0bseven\xc2\x85eight\xe2\x80\xa8nine\nten"
    (tmp_path / "text.src").write_bytes(packed(source))
    (tmp_path / "text.trg").write_bytes("".join(f"{n}\n" for n in range(1, 7)).encode())
    flags = f"-s src -t trg --trainpref {tmp_path}/text --destdir {tmp_path}/bin --workers {workers}"
    code, _, errors = main_of(f"preprocess {flags}", capfd)
    assert code == 0, errors
    by_hand = ["one two", "three four", "five", "", "six seven eight nine", "ten"]
    assert binarized(tmp_path / "bin", "src") == by_hand
    assert binarized(tmp_path / "bin", "trg") == ["1", "2", "3", "4", "5", "6"]
    words = [
        " ".join(record.text.split()) for record in read_files([f"{tmp_path}/text.src"], "txt", Fields())
    ]
    assert words == by_hand
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {
        *(f"train.src-trg.{side}.{end}" for side in ("src", "trg") for end in ("bin", "idx")),
        *("dict.src.txt", "dict.trg.txt", "preprocess.log"),
    }


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("packed", [lambda data: data, lambda data: b"\xef\xbb\xbf" + data, gzip.compress])
@pytest.mark.parametrize("flag", ["--alignfile {0}/text.aligned", "--align-suffix aligned"])
def test_alignments_are_read_so_too(
    flag: str, packed: Callable[[bytes], bytes], tmp_path: Path, capfd: Any
) -> None:
    fairseq_host.require_fairseq()
    (tmp_path / "text.src").write_text("one two\n")
    (tmp_path / "text.trg").write_text("a b\n")
    (tmp_path / "text.aligned").write_bytes(packed(b"0-1 1-0\n"))
    flags = f"-s src -t trg --trainpref {tmp_path}/text --destdir {tmp_path}/bin {flag.format(tmp_path)}"
    code, _, errors = main_of(f"preprocess {flags}", capfd)
    assert code == 0, errors
    if "alignfile" in flag:
        assert sorted((tmp_path / "bin/alignment.src-trg.txt").read_text().splitlines()) == ["one b", "two a"]
    else:
        from fairseq.data import data_utils

        [found] = data_utils.load_indexed_dataset(f"{tmp_path}/bin/train.align.src-trg", None)
        assert found.tolist() == [0, 1, 1, 0]


@pytest.mark.filterwarnings("ignore")  # fairseq's own
def test_a_dictionary_has_no_byte_order_mark(tmp_path: Path, capfd: Any) -> None:
    fairseq_host.require_fairseq()
    (tmp_path / "dict.txt").write_bytes(b"\xef\xbb\xbfone 2\ntwo 1\n")
    for side in ("src", "trg"):
        (tmp_path / f"text.{side}").write_text("two one\n")
    flags = f"--trainpref {tmp_path}/text --destdir {tmp_path}/bin --joined-dictionary"
    assert main_of(f"preprocess -s src -t trg {flags} --srcdict {tmp_path}/dict.txt", capfd)[0] == 0
    assert binarized(tmp_path / "bin", "src") == ["two one"]
    assert Vocab.read(tmp_path / "dict.txt").words[4:] == ("one", "two")


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("flag", ["--trainpref {0}", "--trainpref {1} --validpref {1},{0}"])
def test_texts_of_unequal_length(flag: str, place: Path, tmp_path: Path, capfd: Any) -> None:
    for name, lines in (("odd.src", "a\nb\n"), ("odd.trg", "a\n"), ("even.src", "a\n"), ("even.trg", "a\n")):
        (tmp_path / name).write_text(lines)
    flags = flag.format(tmp_path / "odd", tmp_path / "even")
    code, _, errors = main_of(f"preprocess -s src -t trg {flags} --destdir {tmp_path}/bin", capfd)
    assert code == 4
    assert errors == (
        f"nartk: error[E301 LengthMismatch] {tmp_path}/odd.trg has 1 line, but {tmp_path}/odd.src has 2. "
        "Fix: give files with the same sentences in the same order.\n"
    )
    assert not (tmp_path / "bin").exists()
