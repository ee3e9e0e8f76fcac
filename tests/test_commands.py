"""Every command that is installed says how it is used, and means by a flag what the others do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from support.commands import ROOT, SCRIPTS, run

import nartk
from nartk.checkpoints.names import SHIPPED, model_folder
from nartk.cli._common import SHELLS

# nartk-train's parser fails beside other tests: it runs in test_fairseq_train.py and in processes of its own.
HERE = [name for name, _ in SCRIPTS if name != "nartk-train"]
FAIRSEQS = ("nartk-preprocess", "nartk-generate", "nartk-train")
MAINS = {name: import_module(module).main for name, module in SCRIPTS}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints that ends well."""

    def call(name: str, *arguments: str) -> str:
        assert MAINS[name]([*arguments]) == 0
        return capsys.readouterr().out

    return call


def test_the_commands_are_found() -> None:
    files = {path.stem for path in (ROOT / "nartk" / "cli").glob("[a-z]*.py")}
    assert {name.removeprefix("nartk-") for name, _ in SCRIPTS} == files
    assert {module for _, module in SCRIPTS} == {f"nartk.cli.{name}" for name in files}


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("name", HERE)
def test_help_begins_with_the_usage(name: str, printed: Callable[..., str]) -> None:
    assert printed(name, "--help").startswith(f"usage: {name} ")


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("name", [name for name, _ in SCRIPTS])
def test_every_command_has_a_version(name: str, printed: Callable[..., str]) -> None:
    assert printed(name, "--version").startswith(f"nartk {nartk.__version__} (")


def flags_in(page: str) -> Iterator[tuple[str, str]]:
    """Each flag of a help page, and what is said of it."""
    for found in re.finditer(
        r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)((?: .*)?\n(?: {3,}.*\n)*)", page, re.MULTILINE
    ):
        yield found[1], " ".join(found[2].split())


def test_a_flag_means_one_thing(printed: Callable[..., str]) -> None:
    meanings: dict[str, dict[str, str]] = {}
    for name in HERE:
        if name not in FAIRSEQS:
            page = printed(name, *(["bleu"] if name == "nartk-score" else []), "--help")
            for flag, meaning in flags_in(page):
                meanings.setdefault(flag, {})[name] = meaning
    for flag in ("--help", "--version", "--debug", "--quiet", "--print-completion"):
        assert len(meanings[flag]) == len(HERE) - len([*filter(HERE.__contains__, FAIRSEQS)]), flag
    for flag in ("--json", "--quiet", "--version", "--format", "--device", "--exact", "--check"):
        assert len(meanings[flag]) > 1, flag
        assert len({*meanings[flag].values()}) == 1, (flag, meanings[flag])
    assert {*meanings["--json"]} == {f"nartk-{name}" for name in ("bench", "calibrate", "doctor", "score")}
    # What is written there is the command's result, be it lines, a checkpoint or a folder.
    assert {*meanings["--output"]} == {
        f"nartk-{name}" for name in ("align", "average", "convert", "decode", "distill", "noise", "trace")
    }
    assert meanings["--output"]["nartk-decode"] == meanings["--output"]["nartk-noise"]
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(--[\w-]+)`(?:, `-\w`)? \| (`.*?`) \|", page, re.MULTILINE)
    assert {flag for flag, _ in rows} == {"--output", "--json", "--format", "--verbose"}
    for flag, of in rows:
        assert {*re.findall("`(.*?)`", of)} == {*meanings[flag]}, flag


def test_one_name_for_all(printed: Callable[..., str], tmp_path: Path) -> None:
    page = printed("nartk", "--help")
    assert printed("nartk") == page
    for name, _ in SCRIPTS[1:]:
        assert re.search(rf"^  {name.removeprefix('nartk-')} +\w", page, re.MULTILINE), name
    assert printed("nartk", "decode", "--help") == printed("nartk-decode", "--help")
    (tmp_path / "in.txt").write_text("the cat sat down .\n")
    found = printed("nartk", "score", "bleu", str(tmp_path / "in.txt"), "--ref", str(tmp_path / "in.txt"))
    assert found.startswith("bleu 100.00")
    assert run([sys.executable, "-m", "nartk", "models"], tmp_path, PYTHONPATH=str(ROOT)) == printed(
        "nartk", "models"
    )
    for strategy in nartk.strategies():
        assert f"\n  {strategy} " in printed("nartk", "strategies")


def test_flags_may_stand_before_the_command(
    printed: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "in.txt"
    text.write_text("the cat sat down .\n\n")
    for flag in ("--quiet", "--debug"):
        command = ["score", "bleu", str(text), "--ref", str(text)]
        assert MAINS["nartk"]([flag, *command]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("bleu 100.00")
        assert ("1 of 2 lines" in captured.err) is (flag != "--quiet")
    assert printed("nartk", "--help", "decode") == printed("nartk-decode", "--help")


def test_what_ships_is_listed(printed: Callable[..., str]) -> None:
    lines = printed("nartk", "models").splitlines()
    titles = [
        "gec-en-medium: English grammatical error correction",
        "gec-en: English grammatical error correction, smaller",
        "asr-digits: spoken English digits",
        "st-digits: spoken English numbers in German words",
        "s2s-digits: spoken English numbers in French speech",
    ]
    for name, wanted in zip(SHIPPED, titles, strict=True):
        (title, licence, *facts), lines = lines[:4], lines[4:]
        folder = model_folder(name)
        size = sum(path.stat().st_size for path in folder.iterdir())
        assert title == wanted
        assert licence.startswith("  licence: CC BY-SA 4.0")
        assert facts == [f"  size: {size / 1e6:.1f} MB", f"  folder: {folder}"]
    assert not lines


@pytest.mark.parametrize("name", [*SHIPPED, "folder"])
def test_one_model_is_shown_with_its_card(name: str, printed: Callable[..., str]) -> None:
    named = str(model_folder("gec-en")) if name == "folder" else name
    folder = model_folder(named)
    title, *card = (folder / "card.md").read_text(encoding="utf-8").splitlines()
    lines = printed("nartk", "models", named).splitlines()
    assert lines[0] == title.removeprefix("# ")
    assert lines[3] == f"  folder: {folder}"
    assert [line for line in lines[4:] if line] == [line for line in card if line]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "2", "decode"], "E101 Usage] argument COMMAND: invalid choice: '2' (choose from "),
        (["-", "decode"], "E101 Usage] argument COMMAND: invalid choice: '-' (choose from "),
        (["decod"], "E101 Usage] argument COMMAND: invalid choice: 'decod' (choose from "),
        (
            ["models", "nowhere"],
            "E401 ModelNotFound] no model 'nowhere' with a card. Fix: choose from gec-en-medium, ",
        ),
        (
            ["strategies", "beam"],
            "E101 Usage] strategies takes no argument, 'beam' is given. Fix: nartk decode ",
        ),
    ],
)
def test_what_is_no_command(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS["nartk"](arguments) == 2
    assert capsys.readouterr().err.startswith(f"nartk: error[{message}")


SHORT = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\x08\0\0\0" + bytes(8)


@pytest.mark.parametrize(
    ("command", "data", "message"),
    [
        ("noise --fit -", b"x\n", "stdin:1: a line starts with 'S '"),
        ("noise --fit-parallel two -", b"x\n", "stdin has 1 line, two has 2"),
        ("noise --fit-parallel - two", b"x\n", "two has 2 lines, stdin has 1"),
        ("decode two --strategy verify --drafts -", b"x\n", "stdin has 1 line, but there is more than 1 sen"),
        ("decode two --score -", b"x\n", "stdin has 1 line, but there is more than 1 sentence"),
        ("decode - --score -", b"x\n", "--score and the sentences are both stdin. Fix: give one of them as"),
        ("distill gec-en - --output new", b"x\n", "SOURCE is stdin, which is read more than once. Fix: "),
        ("distill gec-en two --target - --output new", b"x\n", "--target is stdin, which is read more than "),
        ("decode asr-digits - --format sound", SHORT, "stdin: 'stdin' has 0 frames"),
        ("decode asr-digits - --format sound --partials", SHORT, "stdin: 'stdin' has 0 frames"),
    ],
)
def test_errors_name_stdin_so(command: str, data: bytes, message: str, tmp_path: Path) -> None:
    if data is SHORT:
        pytest.importorskip("soundfile", reason="sound needs nartk[audio]")
    (tmp_path / "two").write_text("x\ny\n")
    done = subprocess.run(
        [sys.executable, "-m", "nartk", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=data,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (2, 3, 4)
    assert f"] {message}" in done.stderr.decode()


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("name", [name for name, _ in SCRIPTS])
def test_completion_without_its_package(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert MAINS[name](["--print-completion", "bash"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "nartk: error[E104 MissingDependency] --print-completion needs the package 'shtab', which is not "
        "installed. Fix: pip install 'nartk[completion]'."
    )


# A line up to the word that the shell is to complete, and words that it offers among others.
COMPLETED = [
    ("nartk de", {"decode"}),
    ("nartk decode --str", {"--strategy", "--stream"}),
    ("nartk decode --strategy dag-v", {"dag-viterbi"}),
    ("nartk decode gec-en in.", {"in.txt"}),
    ("nartk score bl", {"bleu"}),
    ("nartk score bleu --re", {"--ref"}),
    ("nartk-trace in.txt --out", {"--output"}),
    ("nartk-average --ou", {"--output"}),
    ("nartk-decode --str", {"--strategy", "--stream"}),
    ("nartk-decode --strategy dag-v", {"dag-viterbi"}),
    ("nartk-decode --temper", {"--temperature"}),  # of a strategy that is not the default
    ("nartk-decode in.", {"in.txt"}),
    ("nartk-decode gec-en in.", {"in.txt"}),
    ("nartk-bench gec-en in.txt --json in.", {"in.txt"}),
    ("nartk-score bl", {"bleu"}),
    ("nartk-score bleu in.", {"in.txt"}),
    ("nartk-score bleu --ref in.", {"in.txt"}),
    ("nartk-convert --dtype bf", {"bf16"}),
]


@pytest.mark.parametrize(("line", "wanted"), COMPLETED)
def test_bash_completes(line: str, wanted: set[str], tmp_path: Path, printed: Callable[..., str]) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'nartk[completion]'")
    name, *words = line.split()
    (tmp_path / "in.txt").touch()
    (tmp_path / "script").write_text(printed(name, "--print-completion", "bash"))
    quoted = " ".join(f"'{word}'" for word in [name, *words])
    code = f"source ./script; COMP_WORDS=({quoted}) COMP_CWORD={len(words)}\n"
    code += "$(complete -p " + name + " | sed 's/.* -F \\([^ ]*\\) .*/\\1/') "
    code += f"{name} '{words[-1]}' '{[name, *words][-2]}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wanted <= {*done.stdout.split()}, done


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "wanted"), COMPLETED)
def test_fish_completes(line: str, wanted: set[str], tmp_path: Path, printed: Callable[..., str]) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'nartk[completion]'")
    name = line.partition(" ")[0]
    (tmp_path / "in.txt").touch()
    script = tmp_path / "fish" / "completions" / f"{name}.fish"  # where fish looks for it
    script.parent.mkdir(parents=True)
    script.write_text(printed(name, "--print-completion", "fish"))
    done = subprocess.run(
        ["fish", "-c", "complete -C $argv", line],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    offered = {row.partition("\t")[0] for row in done.stdout.splitlines()}
    assert wanted <= offered, done
    assert not line.endswith("--str") or all(word.startswith("--str") for word in offered)
    assert done.stderr == ""


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", [name for name, _ in SCRIPTS])
def test_every_command_completes_in_every_shell(name: str, shell: str, printed: Callable[..., str]) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed: pip install 'nartk[completion]'")
    assert name in printed(name, "--print-completion", shell)
