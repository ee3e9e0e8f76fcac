"""`nartk-decode --config`: a file stands for flags, and those of the command line win."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import tiny

from nartk.cli import _strategy, decode
from nartk.cli._config import with_config
from nartk.cli.decode import main

# What a file says, and the flags that say the same.
SAME = [
    ("", []),
    ("batch-size = 8", ["--batch-size", "8"]),
    ("batch_size = 8\ndtype = 'bf16'\n", ["--batch-size", "8", "--dtype", "bf16"]),
    ("truncate = true\nno_guard = false", ["--truncate"]),
    (
        "strategy = 'beam'\nbeam_size = 3\nlength-penalty = 0.5",
        ["--strategy", "beam", "--beam-size", "3", "--length-penalty", "0.5"],
    ),
    ("beam_size = 3", ["--beam-size", "3"]),  # which implies its strategy
    (
        "strategy = 'beam'\nlenpen = 2\nno_source_ngram = 2",
        ["--strategy=beam", "--length-penalty=2", "--no-source-ngram=2"],
    ),
    ("adaptive = false", ["--no-adaptive"]),
    ("no_adaptive = true", ["--no-adaptive"]),
    ("draft_columns = [2, 3]", ["--draft-columns", "2,3"]),
    ("source_prefix = '--x = 1'", ["--source-prefix=--x = 1"]),
    ("min_edit_confidence = -1", ["--min-edit-confidence=-1"]),
    ("quiet = true", ["--quiet"]),
]


def parsed(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    parser = decode._parser()
    args, options = _strategy.parse(parser, with_config(parser, argv), by_model=True)
    values = vars(args)
    del values["config"]
    return values, options


def test_a_file_stands_for_its_flags(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    for text, flags in SAME:
        file.write_text(text)
        assert parsed(["in.txt", "--config", str(file)]) == parsed(["in.txt", *flags]), text
        assert parsed([f"--config={file}", "in.txt"]) == parsed([*flags, "in.txt"]), text


@pytest.mark.parametrize(
    ("text", "flags", "same"),
    [
        ("batch_size = 8", ["--batch-size", "3"], ["--batch-size", "3"]),
        ("strategy = 'beam'", ["--strategy", "greedy"], ["--strategy", "greedy"]),
        ("adaptive = false", ["--adaptive"], ["--adaptive"]),
        ("truncate = true", ["--no-truncate"], []),
        ("truncate = true", ["--no-truncate", "--truncate"], ["--truncate"]),
        ("truncate = false", ["--no-truncate"], []),
        ("quiet = true\nno_guard = true", ["--guard"], ["--quiet"]),
        ("no_truncate = true", ["--truncate"], ["--truncate"]),
        ("dtype = 'bf16'\nbatch_size = 2", ["--dtype=int8"], ["--dtype", "int8", "--batch-size", "2"]),
    ],
)
def test_the_command_line_wins(text: str, flags: list[str], same: list[str], tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text(text)
    for argv in (["in.txt", *flags, "--config", str(file)], ["--config", str(file), *flags, "in.txt"]):
        assert parsed(argv) == parsed(["in.txt", *same])


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("batchsize = 8", [], "no option 'batchsize'. Fix: did you mean --batch-size?"),
        ("beam_sise = 8", [], "no option 'beam_sise'. Fix: did you mean --beam-size?"),
        (
            "beam_size = 3",
            ["--strategy", "greedy"],
            "with strategy 'greedy' has no option 'beam_size'. Fix: it is an",
        ),
        ("config = 'x'", [], "no option 'config'"),
        ("help = true", [], "no option 'help'"),
        ("model = 'gec-en'", [], "no option 'model'"),
        ("batch_size = 8\nbatch-size = 9", [], "'batch-size' is there twice, with - and with _"),
        ("truncate = 1", [], "'truncate' is 1, neither true nor false"),
        ("batch_size = true", [], "'batch_size' is True, not a value. Fix: give a number or a text"),
        ("batch_size = {a = 1}", [], "'batch_size' is {'a': 1}, no number, text or list of them"),
        ("batch_size = []", [], "'batch_size' is [], no number, text or list of them"),
        ("batch_size = 'many'", [], "invalid int value: 'many'"),
        ("batch_size 8", [], "no TOML: "),
        ("[decode]\nbatch_size = 8", [], "no option 'decode'"),
        ("\ud800", [], "no TOML: "),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    text: str, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, source = tmp_path / "options.toml", tmp_path / "in.txt"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    source.write_text("She go .\n")
    assert main([str(source), "--config", str(file), *flags]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    if "invalid int" not in message:
        assert f"] {file}: " in err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in ((str(tmp_path / "none"), "none: no such file"), ("-", "--config is stdin")):
        assert main(["--config", name]) == 2
        assert message in capsys.readouterr().err


def test_a_run_is_resumed_with_the_same_options_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nartk.journal import Journal

    model, source, out = tiny.corrector(tmp_path / "model"), tmp_path / "in.txt", tmp_path / "out"
    source.write_text("she go .\n" * 3)
    args = [str(model), str(source), "--output", str(out), "--resume", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda journal: None)
        assert main([*args, "--max-len", "9"]) == 0
    (tmp_path / "options.toml").write_text("max_len = 9\nbatch_size = 2\n")
    assert main([*args, "--config", str(tmp_path / "options.toml")]) == 0
    assert not (tmp_path / "out.journal").exists()
    assert out.read_text() == "she goes .\n" * 3
