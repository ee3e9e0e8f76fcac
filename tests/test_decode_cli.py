"""`nartk-decode`: one line out for every line in, in order, and a named error for every one that fails."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support import tiny
from support.bad_lines import BAD, WRAP
from support.folders import sign

import nartk.serving.loading
import nartk.serving.model
from nartk import engine
from nartk.cli import _job
from nartk.cli._files import count_sentences
from nartk.cli.decode import main
from nartk.cli.noise import main as noise
from nartk.cli.verify import main as verify
from nartk.protocols.guarantee import IDENTICAL, Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, Result
from nartk.protocols.outputs import Text
from nartk.registry import strategies
from nartk.serving.line_runs import LineRun

COMMAND = [sys.executable, "-c", "import sys; from nartk.cli.decode import main; sys.exit(main())"]
LINES = ("she go to school yesterday .", "", "the big cat sees it .", "he go home !")
OUTPUTS = ("she goes to school yesterday .", "", "the big cat sees it .", "he goes home !")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Copies its source, with `goes` for `go`."""
    return str(tiny.corrector(tmp_path_factory.mktemp("corrector")))


@pytest.fixture(scope="module")
def pieces_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random, with a sentencepiece model."""
    return str(tiny.random_model(tmp_path_factory.mktemp("pieces")))


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return str(path)


def outputs_of(capture: pytest.CaptureFixture[bytes]) -> list[str]:
    out = capture.readouterr().out.decode()
    assert out.endswith("\n")
    return out.split("\n")[:-1]


def run_command(args: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*COMMAND, *args], input=stdin, capture_output=True, env=env, timeout=300, check=False
    )


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_model_in_use_copies_and_corrects(model: str) -> None:
    """The other tests compare outputs: they must have some."""
    found = nartk.serving.loading.load(model).decode([*LINES], strategy="greedy")
    assert tuple(hypothesis.text for hypothesis in found) == OUTPUTS


def test_filter_writes_data_alone_on_stdout(model: str) -> None:
    done = run_command([model], b"she go to school yesterday .\n")
    assert (done.returncode, done.stdout) == (0, b"she goes to school yesterday .\n")
    (summary,) = done.stderr.decode().splitlines()
    assert re.fullmatch(
        r"nartk: 1 sentence, 7 tokens in \d+\.\d\d s \(\d+ tokens/s\), \d+ passes, "
        r"\d+ of \d+ drafted tokens accepted",
        summary,
    )
    (shorter, signature) = run_command([model, "--verbose"], b"she go .\n").stderr.decode().splitlines()
    assert shorter.startswith("nartk: 1 sentence, ")
    assert signature.startswith("nartk: strategy:iad|")


def test_the_suffix_of_the_output_says_its_format(model: str, source: str, tmp_path: Path) -> None:
    written = {}
    for name, *flags in (
        *(("a.txt",), ("b.jsonl",), ("c.jsonl", "--output-format", "text")),
        *(("d.JSONL",), ("jsonl",), ("e.vtt.gz",), ("f",)),
    ):
        assert main([model, source, "-o", str(tmp_path / name), "--quiet", *flags]) == 0
        written[name] = (tmp_path / name).read_text()
    assert {written[name] for name in ("c.jsonl", "jsonl", "e.vtt.gz", "f")} == {written["a.txt"]}
    assert written["d.JSONL"] == written["b.jsonl"]
    rows = [json.loads(line) for line in written["b.jsonl"].splitlines()]
    assert [row["hypotheses"][0]["text"] for row in rows] == written["a.txt"].splitlines()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-o out.SRT", "--output out.SRT, but the model reads text"),
        ("-o out.vtt --score scored", "--output out.vtt with --score: it has no times"),
        ("--output-format vtt", "--output-format vtt, but the model reads text"),
        ("-o out.vtt --output-format srt", "--output-format srt, but the model reads text"),
    ],
)
def test_what_a_format_cannot_hold_blames_the_flag_that_is_given(
    flags: str,
    message: str,
    model: str,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([model, source, *flags.split()]) == 2
    assert f"E101 Usage] {message}" in capsys.readouterr().err


def test_help_comes_without_torch(model: str) -> None:
    code = "import sys; from nartk.cli.decode import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert all(re.search(rf"^  {name} +\w", text, re.MULTILINE) for name in strategies())


def test_help_of_a_strategy_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--strategy", "iad", "--help"]) == 0
    out = capsys.readouterr().out
    assert f"options of the strategy iad ({IDENTICAL}):" in out
    assert "--adaptive, --no-adaptive" in out
    assert "--anchor {aligned,unique}" in out
    assert "longest output, tokens (default: 256)" in out


def test_every_strategy_fits_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in strategies():
        assert main(["--strategy", name, "--help"]) == 0, name
    capsys.readouterr()


@pytest.mark.parametrize("strategy", ["iad", "greedy"])
@pytest.mark.parametrize("extra", [[], ["--stream"], ["--batch-size", "1"], ["--max-tokens", "9"]])
def test_lines_come_in_order(
    model: str, source: str, strategy: str, extra: list[str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main([model, source, "--strategy", strategy, *extra]) == 0
    assert outputs_of(capsysbinary) == [*OUTPUTS]


def test_windows_and_files_join_seamlessly(
    model: str, source: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_job, "WINDOW", 3)
    give_stdin(monkeypatch, "\n".join(LINES).encode())  # without a last line feed
    assert main([model, source, "-", source]) == 0
    assert outputs_of(capsysbinary) == [*OUTPUTS, *OUTPUTS, *OUTPUTS]


def test_samples_depend_on_a_lines_place_alone(
    pieces_model: str,
    tmp_path: Path,
    device: torch.device,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same line over and over: windows, streaming and unreadable lines change no draw."""
    path = tmp_path / "in.txt"
    path.write_text("The cat sat .\n" * 8)
    model, where = nartk.serving.loading.load(pieces_model, device=str(device)), ["--device", str(device)]
    wanted = [each.text for each in model.decode(["The cat sat ."] * 8, strategy="sample", max_len=12)]
    assert len(set(wanted)) > 4
    args = [pieces_model, str(path), "--strategy", "sample", "--max-len", "12", "--quiet", *where]
    for size, extra in ((4096, []), (3, []), (4096, ["--stream"])):
        monkeypatch.setattr(_job, "WINDOW", size)
        assert main([*args, *extra]) == 0
        assert outputs_of(capsysbinary) == wanted
    path.write_bytes(b"The cat sat .\n\xff\n" * 4)
    monkeypatch.setattr(_job, "WINDOW", 3)
    assert main(args) == 3
    found = outputs_of(capsysbinary)
    assert found[::2] == wanted[::2]
    assert found[1::2] == [""] * 4


def test_results_are_written_as_soon_as_their_turn_comes(
    model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, asked = [], []
    order = iter([3, 0, 2, 1])

    def step(self: object) -> object:
        seen.append(capsysbinary.readouterr().out)
        index = next(order)
        return [(asked[index], Result(index, (Hypothesis(tokens=(), output=Text(f"line {index}")),)))]

    monkeypatch.setattr(LineRun, "admit", lambda self, request: asked.append(request))
    monkeypatch.setattr(LineRun, "step", step)
    (tmp_path / "four").write_text("a\nb\nc\nd\n")
    assert main([model, str(tmp_path / "four"), "--quiet"]) == 0
    seen.append(capsysbinary.readouterr().out)
    assert seen == [b"", b"", b"line 0\n", b"", b"line 1\nline 2\nline 3\n"]


def test_model_is_the_shipped_one_by_default(
    model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(name: str, **options: object) -> nartk.serving.model.Model:
        asked.append((name, {key: value for key, value in options.items() if key != "tell"}))
        return original(model)

    original = nartk.serving.loading.load
    monkeypatch.setattr(nartk.serving.loading, "load", load)
    give_stdin(monkeypatch, b"he go\n")
    assert main(["--dtype", "bf16"]) == 0
    given = {"device": "cpu", "dtype": "bf16", "threads": None, "replicas": 1}
    given |= {"check": False, "cuda_graphs": True}
    given |= dict.fromkeys(("source_lang", "target_lang", "source_prefix"))
    assert asked == [("gec-en-medium", given)]
    assert outputs_of(capsysbinary) == ["he goes"]
    # As is where the first argument is a file, or stdin.
    (tmp_path / "in.txt").write_text("she go\n")
    give_stdin(monkeypatch, b"he go\n")
    assert main([str(tmp_path / "in.txt"), "-"]) == 0
    assert outputs_of(capsysbinary) == ["she goes", "he goes"]
    assert verify([str(tmp_path / "in.txt"), "--quiet"]) == 0
    assert outputs_of(capsysbinary)[0].startswith("identical to greedy: 1 sentence, 3 tokens, fp32, ")
    assert [name for name, _ in asked] == ["gec-en-medium"] * 3


def test_formats(model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "a.tsv").write_text("7\the go\n8\tthe cat\n")
    (tmp_path / "b.jsonl").write_text('{"text": "she go"}\n')
    (tmp_path / "c.m2").write_text("S they go home\nA 1 2|||R|||went|||REQUIRED|||-NONE-|||0\n\n")
    (tmp_path / "d.unknown").write_text("x\ta cat\n")
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    assert main([model, "--column", "2", *files[:3]]) == 0
    assert outputs_of(capsysbinary) == ["he goes", "the cat", "she goes", "they goes home"]
    assert main([model, "--format", "tsv", "--column", "2", files[3]]) == 0
    assert outputs_of(capsysbinary) == ["a cat"]
    assert verify([model, "--column", "2", files[3]]) == 2
    assert "--column 2, but no file is TSV" in capsysbinary.readouterr().err.decode()
    assert verify([model, "--column", "2", files[0], "--quiet"]) == 0


def test_edits_of_an_m2_source_do_not_matter(
    model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """JFLEG's M2 has edits that lie outside their sentence."""
    path = tmp_path / "in.m2"
    path.write_text("S he go\nA 1 9|||R|||went|||REQUIRED|||-NONE-|||0\nA broken\n\nS the cat\nA 5 5|||M\n")
    assert main([model, str(path)]) == 0
    assert outputs_of(capsysbinary) == ["he goes", "the cat"]


def test_prefixes_begin_the_output(
    model: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"she go home\tshe went\nshe go home\t\n")
    assert main([model, "--format", "tsv", "--prefix-column", "2"]) == 0
    assert outputs_of(capsysbinary) == ["she went home", "she goes home"]


def test_jsonl_output_holds_all_there_is(
    model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b'{"source": "he go", "id": "x"}\n{"source": ""}\n[]\n')
    trace = tmp_path / "trace.jsonl"
    args = [model, "--format", "jsonl", "--output-format", "jsonl", "--trace", str(trace)]
    args += ["--no-adaptive"]
    assert main(args) == 3
    first, blank, failed = map(json.loads, outputs_of(capsysbinary))
    assert (first["id"], first["source"]) == ("x", "he go")
    (found,) = first["hypotheses"]
    assert (found["text"], found["tokens"]) == ("he goes", ["he", "goes", "</s>"])
    assert found["score"] == pytest.approx(sum(found["positional_scores"]))
    assert all(score <= 0 for score in found["positional_scores"])
    assert found["origin"] == ["draft", "rollback", "verifier"]
    assert found["pass"] == [1, 1, 2]
    assert blank == {
        "id": 2,
        "source": "",
        "hypotheses": [{"text": "", "tokens": [], "score": None, "positional_scores": None}],
    }
    error = {"code": "E204", "name": "InputFormat", "where": "stdin:3", "message": "not a JSON object"}
    assert failed == {"id": 3, "error": {**error, "fix": 'write {"source": "..."}'}}

    traced = [json.loads(line) for line in trace.read_text().splitlines()]
    signature = traced[0]["signature"]
    assert f"|exact:{int(engine.available())}|" in signature
    assert traced[0] == {
        "nartk_trace": 1,
        "line": 1,
        "id": "x",
        "signature": signature,
        "source_text": "he go",
        "output_text": "he goes",
        "source": ["he", "go", "</s>"],
        "output": ["he", "goes", "</s>"],
        **{key: found[key] for key in ("origin", "pass", "margin", "score")},
        "lprob": found["positional_scores"],
        "nbest": [],
        "passes": 2,
        "drafted": 2,
        "accepted": 1,
        "seconds": traced[0]["seconds"],
    }
    assert (traced[1]["source"], traced[1]["output"], traced[1]["origin"]) == (["</s>"], [], [])
    assert traced[2] == {"nartk_trace": 1, "line": 3, "signature": signature, **failed}


def test_nbest_gives_columns(
    model: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"he go\n\n\xff\n")
    assert main([model, "--strategy", "beam", "--nbest", "2", "--quiet"]) == 3
    lines = [line.split("\t") for line in outputs_of(capsysbinary)]
    assert [line[0] for line in lines] == ["1", "1", "2", "3"]
    assert lines[0][2] == "he goes"
    assert float(lines[0][1]) > float(lines[1][1])
    assert lines[2:] == [["2", "", ""], ["3", "", ""]]


def test_stats(model: str, source: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "stats.json"
    assert main([model, source, "--stats", str(path), "--batch-size", "2"]) == 0
    stats = json.loads(path.read_text())
    assert (stats["lines"], stats["sentences"], stats["failed"]) == (4, 3, 0)
    assert stats["tokens"] == sum(len(line.split()) + 1 for line in OUTPUTS if line)  # warm-up excluded
    assert stats["passes"] < stats["tokens"]
    assert 0 < stats["accepted"] <= stats["drafted"]
    assert stats["accepted_per_pass"] == pytest.approx(stats["accepted"] / stats["passes"])
    assert stats["tokens_per_second"] == pytest.approx(stats["tokens"] / stats["seconds"])
    latency = stats["latency_ms"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= 1000 * stats["seconds"]
    assert (stats["strategy"], stats["batch_size"], stats["dtype"]) == ("iad", 2, "fp32")
    assert stats["cuda_graphs"] is None
    assert stats["signature"].startswith("strategy:iad|max_len:256|")
    assert capsysbinary.readouterr().err.count(b"\n") == 1


def test_output_file_is_whole_or_untouched(
    model: str,
    source: str,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("before")
    path.chmod(0o644)
    monkeypatch.setattr(LineRun, "step", interrupt)
    assert main([model, source, "--output", str(path)]) == 130
    assert path.read_text() == "before"
    monkeypatch.undo()
    assert main([model, source, "--output", str(path)]) == 0
    assert path.read_text().split("\n") == [*OUTPUTS, ""]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.txt", "out.txt"]
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    assert captured.err.startswith(b"nartk: interrupted\n")


def test_a_dash_is_stdin_and_stdout_whatever_files_there_are(
    model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    give_stdin(monkeypatch, b"he go\n")
    assert main([model, "-", "-o", "-", "--quiet"]) == 0
    assert outputs_of(capsysbinary) == ["he goes"]
    for flag in ("--stats", "--trace"):
        give_stdin(monkeypatch, b"he go\n")
        assert main([model, "--quiet", "-o", "out.txt", flag, "-"]) == 0
        assert isinstance(json.loads("\n".join(outputs_of(capsysbinary))), dict)
    give_stdin(monkeypatch, b"she go to school .\n")
    assert noise(["--seed", "1", "-o", "-", "--quiet"]) == 0
    assert len(outputs_of(capsysbinary)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_what_stdin_brings_is_not_counted_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-", "in.txt"):
        Path(name).write_text("he go\n")
    assert count_sentences(["in.txt"], None) == 1
    assert count_sentences(["-"], None) is None
    assert count_sentences(["in.txt", "-"], None) is None


def interrupt(*args: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_a_device_as_output_is_written_to_and_kept(model: str, source: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    assert main([model, source, "--output", str(link), "--quiet"]) == 0
    assert link.is_symlink()
    assert link.is_char_device()


# What goes wrong

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (
            ["MODEL", "--strategy", "greedy", "--max-draft", "3"],
            2,
            r"E101 Usage\] nartk-decode with strategy 'greedy' has no option --max-draft.* "
            r"it knows --max-len, --max-ratio, --min-len, ",
        ),
        (
            ["MODEL", "--max-lem=3"],
            2,
            r"E101 Usage\] .* has no option --max-lem\b.* did you mean --max-len\?",
        ),
        (["MODEL", "--strategy", "gredy"], 2, r"E102 UnknownStrategy\] no strategy 'gredy'.* 'greedy'\?"),
        (["MODEL", "--max-len", "0"], 2, r"E101 Usage\] --max-len of 'iad' is 0"),
        (
            ["MODEL", "--max-len", "x"],
            2,
            r"E101 Usage\] argument --max-len/--max-new-tokens: invalid int value: 'x'",
        ),
        (["MODEL", "--anchor", "x"], 2, r"E101 Usage\] argument --anchor: invalid choice: 'x'"),
        (["MODEL", "--batch-size", "0", "SOURCE"], 2, r"E101 Usage\] --batch-size is 0"),
        (["MODEL", "--max-tokens", "0", "SOURCE"], 2, r"E101 Usage\] --max-tokens is 0"),
        (["MODEL", "--threads", "0", "SOURCE"], 2, r"E101 Usage\] --threads is 0"),
        (["MODEL", "--dtype", "int4"], 2, r"E101 Usage\] --dtype is 'int4'"),
        (["MODEL", "--device", "tpu9"], 2, r"E101 Usage\] --device is 'tpu9'"),
        (["MODEL", "--column", "0"], 2, r"E101 Usage\] --column is 0"),
        (["MODEL", "--column", "2"], 2, r"--column 2, but no file is TSV\. Fix: give --format tsv"),
        (["MODEL", "SOURCE", "--column", "1"], 2, r"--column 1, but no file is TSV"),
        (["MODEL", "SOURCE", "--prefix-column", "2"], 2, r"--prefix-column 2, but no file is TSV"),
        (
            ["MODEL", "--format", "jsonl", "--strategy", "verify", "--draft-columns", "2,3"],
            2,
            r"--draft-columns 2,3, but no file is TSV",
        ),
        (["MODEL", "--format", "tsv", "--key", "text"], 2, r"--key text, but no file is JSONL"),
        (
            ["MODEL", "--strategy", "clashing"],
            2,
            r"--device is an option of strategy 'clashing' and of nartk-decode",
        ),
        (["MODEL", "--no-exact"], 2, r"E101 Usage\] .* has no option --no-exact\b"),
        (
            ["MODEL", "--dtype", "fp16"],
            2,
            r"E101 Usage\] --dtype fp16 needs a GPU.* on a CPU choose from fp32, bf16",
        ),
        (
            ["MODEL", "--assert-lossless", "--strategy", "sloppy"],
            2,
            r"the promise of 'sloppy' is 'approximate: it is sloppy'",
        ),
        *(
            (
                ["MODEL", "--assert-lossless", "--strategy", *flags],
                2,
                rf"the promise of '{flags[0]}' is .{says}: ",
            )
            for flags, says in (
                (["beam"], "approximate"),
                (["bild"], "approximate"),
                (["gad", "--beta", "3"], "approximate"),
                (["ctc-greedy"], "approximate"),
                (["sample"], "same distribution"),
                (["speculative", "--temperature", "0.5"], "same distribution"),
            )
        ),
        (["MODEL", "nowhere.txt"], 2, r"E201 InputFile\] nowhere.txt: no such file"),
        (["MODEL", "MODEL"], 2, r"E201 InputFile\] .*: a folder without a sound file"),
        (
            ["nowhere.txt"],
            2,
            r"E401 ModelNotFound\] 'nowhere.txt' is no shipped model "
            r"\(gec-en-medium, gec-en, asr-digits, st-digits, s2s-digits\), no model",
        ),
        (["EMPTY", "SOURCE"], 2, r"E401 ModelNotFound\] no model at '"),
        (
            ["MODEL", "SOURCE", "--output", "nowhere/out"],
            6,
            r"E501 Output\] nowhere/out: cannot write: No such file",
        ),
        (["MODEL", "SOURCE", "--stats", "EMPTY"], 6, r"E501 Output\] .*: cannot write: Is a directory"),
        pytest.param(
            ["MODEL", "SOURCE", "--output", str(FULL)],
            6,
            r"E501 Output\] /dev/full: cannot write: No space left on device",
            marks=pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system"),
        ),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    model: str,
    source: str,
    tmp_path: Path,
    args: list[str],
    code: int,
    message: str,
    odd_strategies: None,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"MODEL": model, "SOURCE": source, "EMPTY": str(tmp_path / "empty")}
    give_stdin(monkeypatch, b"")
    assert main([places.get(arg, arg) for arg in args]) == code
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    (line,) = captured.err.decode().splitlines()
    assert line.startswith("nartk: error[")
    assert re.search(message, line), line


@pytest.fixture
def odd_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that promises little, and one whose option is a flag of the command."""
    from nartk import registry
    from nartk.decoders.greedy import Greedy

    strategies()
    monkeypatch.setattr(registry.DECODERS, "classes", dict(registry.DECODERS.classes))
    registry.register_decoder("sloppy")(
        type("Sloppy", (Greedy,), {"promise": Promise(Guarantee.APPROXIMATE, "it is sloppy")})
    )

    @registry.register_decoder("clashing")
    class Clashing(Greedy):
        device: int = registry.option(1, "taken")


def test_debug_shows_the_traceback(model: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([model, "--max-len", "0", "--debug"]) == 2
    err = capsysbinary.readouterr().err.decode()
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("nartk: error[E101 Usage]")


@pytest.mark.parametrize("strategy", ["greedy", "iad"])
@pytest.mark.parametrize("form", WRAP)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_costs_itself_alone(
    kind: str,
    form: str,
    strategy: str,
    model: str,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """I1: N lines in, N lines out, exit 0 or 3, the other lines as in a clean run."""
    bad, code = BAD[kind]
    if form == "jsonl" and kind == "carriage return":
        code = "E204"  # JSON allows no control character in a string
    lines = [b"he go home !", bad, b"the big cat sees it ."]
    if kind == "last":
        lines.reverse()
    path = tmp_path / f"in.{form}"
    path.write_bytes(b"\n".join(WRAP[form] % line for line in lines))
    assert main([model, str(path), "--strategy", strategy, "--quiet"]) == (3 if code else 0)
    captured = capsysbinary.readouterr()
    found = captured.out.split(b"\n")
    assert len(found) == 4
    clean = [b"he goes home !", b"the big cat sees it ."]
    assert [found[0], found[2]] == (clean if kind != "last" else [clean[1], clean[0]])
    errors = captured.err.decode().splitlines()
    assert [re.match(r"nartk: error\[(\w+) \w+\] .*:2: ", error)[1] for error in errors] == [code] * bool(
        code
    )
    if code:
        assert found[1] == b""


def test_ten_megabytes_in_a_line(
    pieces_model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"the cat\n" + b"She go " * 1_500_000 + b"\nthe cat")
    assert main([pieces_model, str(path), "--quiet"]) == 3
    captured = capsysbinary.readouterr()
    first, long, last = captured.out.decode().split("\n")[:-1]
    assert (first, long) == (last, "")
    assert re.match(rf"nartk: error\[E203 InputTooLong\] {path}:2: \d+ tokens > 63", captured.err.decode())


def test_truncate_cuts_what_is_too_long(
    model: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"she " * 100 + b"\n" + b"she " * 63)
    assert main([model, "--truncate"]) == 0
    cut, whole = outputs_of(capsysbinary)
    assert cut == whole != ""


def damaged(model: str, folder: Path, name: str, data: bytes | dict[str, object]) -> str:
    """A copy of a model with another file, or with values in its config.json."""
    shutil.copytree(model, folder)
    if isinstance(data, bytes):
        (folder / name).write_bytes(data)
    sign(folder, **(data if isinstance(data, dict) else {}))
    return str(folder)


def refused(folder: str, source: str, capture: pytest.CaptureFixture[bytes]) -> bool:
    """Whether the model is refused in the documented way; else it must decode as the sound one does."""
    code = main([folder, source, "--quiet"])
    captured = capture.readouterr()
    if code == 0:
        assert captured.out.decode().split("\n") == [*OUTPUTS, ""]
        return False
    assert code == 5
    assert captured.out == b""
    assert re.fullmatch(r"nartk: error\[E40[23] \w+\] [^\n]*\n", captured.err.decode())
    return True


def test_truncated_checkpoints_are_refused(
    model: str, source: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    weights = (Path(model) / "model.safetensors").read_bytes()
    header = int.from_bytes(weights[:8], "little")
    for size in (0, 4, 8, 9, header // 2, 8 + header - 1, 8 + header, len(weights) // 2, len(weights) - 1):
        folder = damaged(model, tmp_path / str(size), "model.safetensors", weights[:size])
        assert refused(folder, source, capsysbinary), size


def test_bit_flips_in_the_header_are_refused_or_harmless(
    model: str, source: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    weights = (Path(model) / "model.safetensors").read_bytes()
    header = int.from_bytes(weights[:8], "little")
    draw = random.Random(0)
    count = 0
    for place in [*range(8), *(draw.randrange(8, 8 + header) for _ in range(52))]:
        flipped = bytearray(weights)
        flipped[place] ^= 1 << draw.randrange(8)
        folder = damaged(model, tmp_path / f"{place}.{count}", "model.safetensors", bytes(flipped))
        count += refused(folder, source, capsysbinary)
    assert count >= 50


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("config.json", b""),
        ("config.json", b"[]"),
        ("config.json", b'{"format": 9}'),
        ("config.json", b'{"format": 1, "kind": "transformer", "model": {}, "aliases": {}}'),
        ("config.json", b'{"format": 3, "model": {"d_model": NaN}}'),
        ("config.json", {"architecture": "other"}),
        ("config.json", {"model": {"d_model": 1e9}}),
        ("dict.txt", b"she 1\n"),
        ("dict.txt", b"she\n"),
        ("dict.txt", b"\xff 1\n"),
    ],
)
def test_damaged_files_are_refused(
    model: str,
    source: str,
    tmp_path: Path,
    name: str,
    data: bytes | dict[str, object],
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert refused(damaged(model, tmp_path / "model", name, data), source, capsysbinary)


# What only a process of its own can show


def hear_sigint() -> None:
    """A suite that runs in a shell's background hands down SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_stream_answers_before_the_next_line_and_sigint_ends_it(model: str) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*COMMAND, model, "--stream"],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=env,
        bufsize=0,
        preexec_fn=hear_sigint,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for line, output in ((b"he go\n", b"he goes\n"), (b"\n", b"\n"), (b"the cat\n", b"the cat\n")):
            process.stdin.write(line)
            assert process.stdout.readline() == output
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
        assert process.stderr.read() == b"nartk: interrupted\n"


def test_sigterm_leaves_no_half_file(model: str, tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = tmp_path / "out"
    args = [*COMMAND, model, "--output", str(output)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        deadline = time.monotonic() + 300
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.iterdir()) != [output]  # the temporary file
        process.terminate()
        assert process.wait(timeout=300) == 143
    assert list(tmp_path.iterdir()) == []


# A command that gets a signal where Python drops an exception, or makes another of it, and then reads stdin.
LOST_SIGNAL = """
import os, signal, sys, weakref
from nartk.cli._common import command

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would ignore

class Thing:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), int(sys.argv[1]))

@command
def main(argv):
    try:
        if argv[1] == "class":
            type("Other", (), {"thing": Thing()})
        thing = Thing()
        kept = weakref.ref(thing, lambda ref: os.kill(os.getpid(), int(argv[0])))
        del thing
        sys.stdin.read()
    finally:
        print("unwinds", flush=True)

sys.exit(main())
"""


@pytest.mark.parametrize("place", ["callback", "class"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_whatever_it_interrupts(
    number: signal.Signals, code: int, place: str
) -> None:
    args = [sys.executable, "-c", LOST_SIGNAL, str(int(number)), place]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        try:
            assert run.wait(timeout=60) == code
        finally:
            run.kill()
        assert run.stdout is not None
        assert run.stdout.read() == b"unwinds\n"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
def test_full_disk_behind_stdout(model: str, source: str) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run([*COMMAND, model, source], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 6
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("nartk: error[E501 Output] stdout: cannot write: No space left on device")


def test_progress_is_drawn_on_a_terminal_alone(model: str, source: str) -> None:
    pty = pytest.importorskip("pty", reason="terminals need a Unix")
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*COMMAND, model, source], stdout=subprocess.PIPE, stderr=theirs, env=env)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux tells the end of a terminal so
            break
        if not piece:
            break
        drawn += piece
    out, _ = process.communicate(timeout=300)
    os.close(ours)
    assert process.returncode == 0
    assert out.decode().split("\n") == [*OUTPUTS, ""]
    assert b"decoding" in drawn
    assert b"\x1b[" in drawn
    assert b"decoding" not in run_command([model, source]).stderr
