"""`nartk-distill`: every line accounted for, the same bytes however often it is killed, honest filters."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import tiny

import nartk
import nartk.serving.model
from nartk.cli import distill
from nartk.cli.distill import main
from nartk.errors import OutputError, ResumeMismatchError, UsageError
from nartk.journal import Journal
from nartk.serving.distillation import Choice, Filters, longest_run, overlap

WORDS = tiny.WORDS.split()
WINDOW = 4  # lines a record in these tests
COMMAND = [
    sys.executable,
    "-c",
    f"import sys; from nartk.cli import distill; distill.WINDOW = {WINDOW}; sys.exit(distill.main())",
]
BEAM = ["--strategy", "beam", "--beam-size", "3", "--nbest", "3", "--max-len", "16"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Copies its source, with `goes` for `go`."""
    return str(tiny.corrector(tmp_path_factory.mktemp("corrector")))


@pytest.fixture(scope="module")
def rambler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model, whose outputs vary with the input."""
    return str(tiny.random_model(tmp_path_factory.mktemp("random")))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill, "WINDOW", WINDOW)


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def read(folder: Path, *names: str) -> list[list[str]]:
    return [(folder / name).read_text().splitlines() for name in names]


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["kept"] + sum(report["dropped"].values()) == report["lines"]
    assert report["kept"] == sum(report["kept_from"].values())
    assert len({len(lines) for lines in read(folder, *report["filtering"]["files"])} | {report["kept"]}) == 1
    return report


# The corpus


def test_the_corpus_is_what_nartk_decode_says(
    rambler: str, tmp_path: Path, small_windows: None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "raw.en", *tiny.SENTENCES)
    flags = ["--strategy", "beam", "--beam-size", "2", "--max-len", "16"]
    assert main([rambler, source, "--target-lang", "de", "--output", str(tmp_path / "out"), *flags]) == 0
    said = nartk.load(rambler).decode(tiny.SENTENCES, strategy="beam", beam_size=2, max_len=16)
    pairs = [(s, h.text) for s, h in zip(tiny.SENTENCES, said, strict=True) if h.text]
    assert len({text for _, text in pairs}) > 4
    assert [*zip(*read(tmp_path / "out", "train.en", "train.de"), strict=True)] == pairs
    report = report_of(tmp_path / "out")
    assert report["kept_from"]["best"] == len(pairs)
    assert report["decoding"]["signature"].startswith("strategy:beam|max_len:16|")
    err = capsys.readouterr().err
    assert f"nartk: 8 lines, {len(pairs)} kept" in err


def test_samples_do_not_recur_with_the_windows(model: str, tmp_path: Path, small_windows: None) -> None:
    lines = ["the big old cat sees the house", *["he go"] * 3] * 4
    source = write(tmp_path / "a.en", *lines)
    flags = ["--strategy", "sample", "--temperature", "9", "--max-len", "8", "--quiet"]
    assert main([model, source, "--target-lang", "de", "--output", str(tmp_path / "out"), *flags]) == 0
    run = nartk.load(model).run(lines, "sample", {"temperature": 9.0, "max_len": 8})
    wanted = [found[0].text for found in run.hypotheses if found[0].text]
    assert len(set(wanted)) == len(wanted)
    assert read(tmp_path / "out", "train.de") == [wanted]


def test_beam_search_is_the_default(model: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", "he go home !")
    assert main([model, source, "--target-lang", "de", "--output", str(tmp_path / "out"), "--quiet"]) == 0
    assert report_of(tmp_path / "out")["decoding"]["signature"].startswith("strategy:beam|")


def test_bad_lines_are_counted_and_the_others_kept(
    model: str, tmp_path: Path, small_windows: None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.en"
    source.write_bytes(b"she go\n\n   \ncaf\xe9\nhe go home !\n" + b"she " * 100 + b"\nthe\rcat")
    assert main([model, str(source), "--target-lang", "de", "--output", str(tmp_path / "out")]) == 3
    assert (tmp_path / "out/train.en").read_bytes().split(b"\n") == [
        b"she go",
        b"he go home !",
        b"the cat",
        b"",
    ]
    assert read(tmp_path / "out", "train.de") == [["she goes", "he goes home !", "the cat"]]
    report = report_of(tmp_path / "out")
    assert (report["lines"], report["kept"]) == (7, 3)
    assert {name: n for name, n in report["dropped"].items() if n} == {"failed": 2, "empty": 2}
    errors = [line for line in capsys.readouterr().err.splitlines() if "error[" in line]
    assert [re.search(r"error\[(\w+) \w+\] \S+:(\d):", line).groups() for line in errors] == [  # type: ignore[union-attr]
        ("E202", "4"),
        ("E203", "6"),
    ]


# Filters, against cases counted by hand


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("", 0),
        ("a", 1),
        ("a b c", 1),
        ("a a", 2),
        ("b a a a c a", 3),
        ("a b a b a b", 3),
        ("x a b a b a", 2),  # two and a half
        ("a b c a b c", 2),
        ("a b c d a b c d a b c d", 3),
        ("a b c d e a b c d e", 1),  # five tokens are no n-gram here
    ],
)
def test_longest_run(text: str, run: int) -> None:
    assert longest_run(text.split()) == run


def test_longest_run_against_slices() -> None:
    draw = random.Random(1)
    for _ in range(500):
        tokens = [draw.randrange(3) for _ in range(draw.randrange(1, 14))]
        best = 1
        for n in range(1, 5):
            for at in range(len(tokens)):
                times = 1
                while tokens[at : at + n] == tokens[at + times * n : at + (times + 1) * n] and at + n <= len(
                    tokens
                ):
                    times += 1
                best = max(best, times)
        assert longest_run(tokens) == best, tokens


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b c d", "d x b y", 0.5),
        ("a", "a a a a", 0.25),
        ("a b", "c", 0.0),
        ("", "", 1.0),
    ],
)
def test_overlap(first: str, second: str, share: float) -> None:
    assert overlap(first.split(), second.split()) == share


@pytest.mark.parametrize(
    ("limits", "source", "output", "reason"),
    [
        ({}, "a b", "a b", None),
        ({}, "a", " ", "empty"),
        ({}, "", "a", "empty"),
        ({"drop_longer": 3}, "a b c", "d e f", None),
        ({"drop_longer": 3}, "a b c", "d e f g", "longer"),
        ({"drop_longer": 3}, "a b c d", "e", "longer"),
        ({"drop_ratio": 2.0}, "a b", "c d e f", None),
        ({"drop_ratio": 2.0}, "a b", "c d e f g", "ratio"),
        ({"drop_ratio": 2.0}, "a b c d e", "x y", "ratio"),
        ({"drop_copies": 1.0}, "a b c", "a b c", "copies"),
        ({"drop_copies": 1.0}, "a b c", "a b d", None),
        ({"drop_copies": 0.5}, "a b c d", "a b x y", "copies"),
        ({"drop_copies": 0.5}, "a b c d", "a x y z", None),
        ({"drop_repeats": 2}, "s", "a b a b", None),
        ({"drop_repeats": 2}, "s", "a b a b a b", "repeats"),
        ({"drop_repeats": 2}, "no no no", "nein nein nein", None),  # as the source does
        ({"drop_repeats": 2}, "no no no", "nein nein nein nein", "repeats"),
        ({"drop_ratio": 2.0, "drop_longer": 2}, "a", "b c d", "longer"),  # the first that applies
    ],
)
def test_filters(limits: dict[str, Any], source: str, output: str, reason: str | None) -> None:
    assert Filters(**limits).reason(source, output, str.split, str.split) == reason


@pytest.mark.parametrize(
    ("name", "value"), [("drop_longer", -1), ("drop_copies", 1.5), ("drop_ratio", float("nan"))]
)
def test_limits_out_of_bounds(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        Filters(**{name: value})


def test_choice() -> None:
    scores = {"good": 60.0, "fair": 30.0, "bad": 2.0}
    choice = Choice(bleu=lambda output, reference: scores[output])
    assert choice(["bad", "good"], "ref") == ("bad", "best")
    closest = Choice(closest=True, bleu=choice.bleu)
    assert closest(["bad", "good", "fair"], "ref") == ("good", "other")
    assert closest(["good", "good"], "ref") == ("good", "best")
    kept = Choice(closest=True, least=40.0, bleu=choice.bleu)
    assert kept(["bad", "fair"], "ref") == ("ref", "reference")
    assert kept(["bad", "good"], "ref") == ("good", "other")
    assert Choice()(["bad", "good"], "ref") == ("bad", "best")


def test_filters_and_choice_by_command(model: str, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    source = write(
        tmp_path / "a.en", "the cat", "he go home !", "she go to the old house", "the the the the", "a dog"
    )
    target = write(tmp_path / "a.de", "the cat", "nothing alike here", "she goes to the old house", "x", "y")
    out = tmp_path / "out"
    flags = [model, source, "--target", target, "--output", str(out), "--quiet", "--drop-longer", "6"]
    assert main([*flags, "--drop-repeats", "3", "--drop-copies", "1"]) == 0
    first = report_of(out)
    # The unknown word of the last line cannot be copied; repeats that are the source's own are no fault.
    assert first["dropped"] == {"failed": 0, "empty": 0, "longer": 0, "ratio": 0, "copies": 2, "repeats": 0}
    assert read(out, "train.de")[0][:2] == ["he goes home !", "she goes to the old house"]
    # What was decoded is chosen from anew: outputs unlike their reference give way to it.
    decoded = (out / "journal").read_bytes()
    assert main([*flags, "--min-bleu", "20", "--refilter"]) == 0
    assert (out / "journal").read_bytes() == decoded
    second = report_of(out)
    assert second["kept_from"] == {"best": 2, "other": 0, "reference": 3}
    assert read(out, "train.de") == [["the cat", "nothing alike here", "she goes to the old house", "x", "y"]]


def test_a_corpus_of_nothing_is_an_error(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.en", "the cat", "he go home !")
    out = tmp_path / "out"
    assert main([model, source, "--target-lang", "de", "--output", str(out), "--drop-longer", "1"]) == 2
    assert "error[E101 Usage] no pair was kept" in capsys.readouterr().err
    assert report_of(out)["dropped"]["longer"] == 2


def test_the_closest_of_the_nbest(model: str, tmp_path: Path, small_windows: None) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    lines = [*tiny.SENTENCES[:2], "he go home !", "the big cat sees it .", "she go"]
    source = write(tmp_path / "a.en", *lines)
    run = nartk.load(model).run(lines, "beam", {"beam_size": 4, "nbest": 4})
    # Each reference is like the second or third output, but for its last word.
    references = [found[1 + i % 2].text + " too" for i, found in enumerate(run.hypotheses)]
    target = write(tmp_path / "a.de", *references)
    out = tmp_path / "out"
    flags = ["--beam-size", "4", "--nbest", "4", "--choose", "closest", "--quiet"]
    assert main([model, source, "--target", target, "--output", str(out), *flags]) == 0
    wanted = [
        max((h.text for h in found), key=lambda text: sacrebleu.sentence_bleu(text, [reference]).score)
        for found, reference in zip(run.hypotheses, references, strict=True)
    ]
    assert wanted != [found[0].text for found in run.hypotheses]
    assert read(out, "train.de") == [wanted]
    assert report_of(out)["kept_from"]["other"] > 0


# Killed and resumed


@pytest.fixture(scope="module")
def whole(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    """The arguments of a run, and what it writes when nothing stops it."""
    folder, draw = tmp_path_factory.mktemp("whole"), random.Random(2)
    source = write(folder / "a.en", *(" ".join(draw.choices(WORDS, k=1 + i % 11)) for i in range(30)))
    args = [model, source, "--target-lang", "de", *BEAM, "--drop-copies", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill, "WINDOW", WINDOW)
        assert main([*args, "--output", str(folder / "out"), "--quiet"]) == 0
    assert 0 < report_of(folder / "out")["kept"] < 30
    return args, contents(folder / "out")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_and_started_again(
    number: int, whole: tuple[list[str], dict[str, bytes]], tmp_path: Path, small_windows: None
) -> None:
    args, wanted = whole
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*COMMAND, *args, "--output", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    started = len(wanted["journal"]) // 4
    while process.poll() is None and not (
        (out / "journal").exists() and (out / "journal").stat().st_size > started
    ):
        time.sleep(0.001)
    process.send_signal(number)
    assert process.wait(timeout=300) in (-number, 128 + number, 0)  # 0: it was faster
    left = (out / "journal").read_bytes()
    assert len(left) > started
    assert wanted["journal"].startswith(left)
    assert main([*args, "--output", str(out), "--quiet"]) == 0
    assert contents(out) == wanted


def cuts(journal: bytes) -> Iterator[int]:
    """Every byte of the first record and of the last two, and some between."""
    ends = [0]
    while ends[-1] < len(journal):
        ends.append(ends[-1] + 8 + struct.unpack_from("<I", journal, ends[-1])[0])
    yield from range(0, 20)
    yield from range(ends[1] - 3, ends[1] + 12)
    yield from range(ends[-3] - 2, ends[-3] + 12)
    yield from range(ends[-2] - 2, ends[-1] + 1, 7)


def test_cut_anywhere_and_resumed(
    whole: tuple[list[str], dict[str, bytes]],
    tmp_path: Path,
    small_windows: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, wanted = whole
    out = tmp_path / "out"
    out.mkdir()
    loaded = nartk.load(args[0])
    monkeypatch.setattr(distill, "load_model", lambda *rest: loaded)
    places = [*cuts(wanted["journal"])]
    for place in random.Random(3).sample(places, 12):
        (out / "journal").write_bytes(wanted["journal"][:place])
        assert main([*args, "--output", str(out), "--quiet"]) == 0
        assert contents(out) == wanted, place


def test_what_was_decoded_is_not_decoded_again(
    whole: tuple[list[str], dict[str, bytes]],
    tmp_path: Path,
    small_windows: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, wanted = whole
    out = tmp_path / "out"
    out.mkdir()
    (out / "journal").write_bytes(wanted["journal"])

    def refuse(*args: object, **options: object) -> object:
        raise AssertionError("decodes again")

    monkeypatch.setattr(nartk.serving.model.Model, "stream", refuse)
    assert main([*args, "--output", str(out), "--quiet"]) == 0
    assert contents(out) == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--beam-size", "4"], r"was begun with beam_size '3', now it is '4'"),
        (["--batch-size", "8"], r"batch_size 32, now it is 8"),
        (["--truncate"], r"truncate False, now it is True"),
        (["--dtype", "bf16"], r"dtype 'fp32', now it is 'bf16'"),
        (["--strategy", "greedy"], r"was begun with strategy 'beam', now it is 'greedy'"),
        (["--drop-copies", "0.5"], r"drop_copies 1.0, now it is 0.5.* or --refilter"),
        (["--target-lang", "fr"], r"files \['train.en', 'train.de'\], now"),
        ("model", r"model '\w{12}', now it is '\w{12}'"),
        ("source", r"source '\w{12}', now it is '\w{12}'"),
    ],
)
def test_another_setting_is_refused_and_nothing_written(
    change: list[str] | str,
    message: str,
    rambler: str,
    whole: tuple[list[str], dict[str, bytes]],
    tmp_path: Path,
    small_windows: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    args, wanted = list(whole[0]), whole[1]
    out = tmp_path / "out"
    out.mkdir()
    (out / "journal").write_bytes(wanted["journal"][:-5])  # a cut record must stay as it is, too
    if change == "model":
        args[0] = rambler
    elif change == "source":
        changed = tmp_path / "a.en"
        changed.write_text(Path(args[1]).read_text().upper())
        args[1] = str(changed)
    elif change == ["--strategy", "greedy"]:
        args = [*args[:4], "--max-len", "16", *change]
    else:
        args += change
    assert main([*args, "--output", str(out)]) == 4
    err = capsys.readouterr().err
    assert "error[E303 ResumeMismatch]" in err
    assert re.search(message, err), err
    assert contents(out) == {"journal": wanted["journal"][:-5]}


def test_a_journal_of_something_else_is_refused(
    whole: tuple[list[str], dict[str, bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args, _ = whole
    payload = b'{"other": 1}'
    record = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    (tmp_path / "journal").write_bytes(record)
    assert main([*args, "--output", str(tmp_path)]) == 4
    assert "not a journal of nartk-distill" in capsys.readouterr().err
    assert contents(tmp_path) == {"journal": record}


# The journal itself


def fill(path: Path, records: list[bytes]) -> None:
    with Journal.open(path, b"header") as journal:
        for record in records[journal.count :]:
            journal.append(record)
        assert [*journal.records()] == records


def test_journal_survives_any_cut_and_any_flipped_bit(tmp_path: Path) -> None:
    path, records = tmp_path / "journal", [b"one", b"two" * 9, b"\0\xff"]
    fill(path, records)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        fill(path, records)
        assert path.read_bytes() == whole
    first = 8 + len(b"header")
    for place in range(first, len(whole)):  # a damaged header is another run's, or none
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        fill(path, records)
        assert path.read_bytes() == whole
    path.write_bytes(whole + bytes(64))  # as a file system may leave it after a loss of power
    fill(path, records)
    assert path.read_bytes() == whole


def test_journal_without_checksums_would_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The known-bad variant: where checksums are not looked at, a flipped bit gets through."""
    monkeypatch.setattr(zlib, "crc32", lambda data: 0)
    path = tmp_path / "journal"
    fill(path, [b"one"])
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with Journal.open(path, b"header") as journal:
        assert [*journal.records()] == [b"ond"]


def test_journal_refuses_another_header_and_another_process(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    fill(path, [b"one"])
    before = path.read_bytes()
    with pytest.raises(ResumeMismatchError), Journal.open(path, b"other"):
        pass
    with Journal.open(path, b"header"), pytest.raises(OutputError, match="another run writes to it"):
        fill(path, [b"one"])
    assert path.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_ends_with_6(
    whole: tuple[list[str], dict[str, bytes]],
    tmp_path: Path,
    small_windows: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    args, wanted = whole
    out = tmp_path / "out"
    append: Callable[[Journal, bytes], None] = Journal.append

    def fail(journal: Journal, payload: bytes) -> None:
        if journal.count == 3:
            with open("/dev/full", "r+b", buffering=0) as full:
                kept, journal._file = journal._file, full
                try:
                    append(journal, payload)
                finally:
                    journal._file = kept
        append(journal, payload)

    monkeypatch.setattr(Journal, "append", fail)
    assert main([*args, "--output", str(out)]) == 6
    assert "error[E501 Output]" in capsys.readouterr().err
    assert [*contents(out)] == ["journal"]
    monkeypatch.undo()
    monkeypatch.setattr(distill, "WINDOW", WINDOW)
    assert main([*args, "--output", str(out), "--quiet"]) == 0
    assert contents(out) == wanted


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["MODEL", "SOURCE"], 2, r"--output is missing"),
        (["MODEL", "--output", "OUT"], 2, r"TEACHER and SOURCE, but 1 arguments"),
        (["MODEL", "-", "--output", "OUT"], 2, r"SOURCE is stdin, which is read more than once"),
        (["-", "SOURCE", "--output", "OUT"], 2, r"E401 ModelNotFound\] '-' is no shipped model"),
        (["MODEL", "SOURCE", "--output", "OUT"], 2, r"the target's language is ''.*--target-lang"),
        (["MODEL", "SOURCE", "--target-lang", "en", "--output", "OUT"], 2, r"both be train.en"),
        (["MODEL", "PACKED", "--target-lang", "en", "--output", "OUT"], 2, r"both be train.en"),
        (["MODEL", "PACKED", "--target", "TARGET", "--output", "OUT"], 4, r"b.de has 2 lines, but \S+ has 1"),
        (
            ["MODEL", "SOURCE", "--target", "SHORT", "--output", "OUT"],
            4,
            r"E301 LengthMismatch\].* has 1 line, ",
        ),
        (["MODEL", "EMPTY", "--target-lang", "de", "--output", "OUT"], 2, r"no sentence to decode"),
        (["MODEL", "NONE", "--target-lang", "de", "--output", "OUT"], 2, r"E201 InputFile\].*no such file"),
        (
            ["MODEL", "SOURCE", "--target", "TARGET", "--choose", "closest", "--output", "OUT"],
            2,
            r"closest with one output",
        ),
        (
            ["MODEL", "SOURCE", "--target-lang", "de", "--min-bleu", "5", "--output", "OUT"],
            2,
            r"--min-bleu compares with a reference",
        ),
        (["MODEL", "SOURCE", "--target", "TARGET", "--min-bleu", "101", "--output", "OUT"], 2, r"is 101"),
        (["MODEL", "SOURCE", "--target", "TARGET", "--drop-copies", "2", "--output", "OUT"], 2, r"is 2.0"),
        (
            ["MODEL", "SOURCE", "--target", "TARGET", "--beam-sise", "2", "--output", "OUT"],
            2,
            r"mean --beam-size",
        ),
        (["MODEL", "SOURCE", "--target", "TARGET", "--output", "SHORT"], 6, r"E501 Output\] .*a.de"),
    ],
)
def test_errors_come_before_any_work(
    args: list[str], code: int, message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "packed.en.GZ").write_bytes(gzip.compress(b"she go\n"))
    places = {
        "PACKED": str(tmp_path / "packed.en.GZ"),
        "MODEL": model,
        "SOURCE": write(tmp_path / "a.en", "she go", "he go"),
        "TARGET": write(tmp_path / "b.de", "x", "y"),
        "SHORT": write(tmp_path / "short/a.de", "x"),
        "EMPTY": write(tmp_path / "empty.en"),
        "NONE": str(tmp_path / "none.en"),
        "OUT": str(tmp_path / "out"),
    }
    assert main([places.get(arg, arg) for arg in args]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
    assert not (tmp_path / "out").exists()
