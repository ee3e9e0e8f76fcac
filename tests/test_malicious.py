"""S1: no checkpoint runs code, whichever command is given it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import malicious
from support.commands import ROOT, run
from support.tiny import SENTENCES, random_model

from nartk.checkpoint import WEIGHTS

# Runs a command on each of the files, in one process.
EACH = """
import importlib, sys
from pathlib import Path
command = importlib.import_module(f"nartk.cli.{sys.argv[1]}").main
folder, canary = Path(sys.argv[2]), Path(sys.argv[3])
for path in sorted(folder.iterdir()):
    try:
        code = command([each.replace("PATH", str(path)) for each in sys.argv[4:]])
    except SystemExit as left:
        code = left.code
    print("\\nEACH", path.name, code, canary.exists(), flush=True)
"""
COMMANDS = {
    "convert": "PATH --output OUT",
    "decode": "PATH --output OUT",
    "train": "DATA --restore-file PATH --save-dir OUT --arch nartk_transformer_tiny --d-model 32 --cpu"
    " --criterion nartk_cross_entropy --optimizer nartk_adamw --lr 0.01 --max-tokens 200 --max-update 1",
    "generate": "DATA --path PATH --gen-subset valid --cpu --batch-size 8",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("fairseq", reason="fairseq is not installed: pip install 'nartk[train]'")
    folder = tmp_path_factory.mktemp("data")
    for side in ("src", "trg"):
        (folder / f"text.{side}").write_text("\n".join(SENTENCES) + "\n")
    flags = f"--source-lang src --target-lang trg --trainpref {folder}/text --validpref {folder}/text"
    code = "import sys; from nartk.cli.preprocess import main; sys.exit(main())"
    run([sys.executable, "-c", code, *flags.split(), "--joined-dictionary", "--destdir", str(folder / "bin")])
    return folder / "bin"


def written(folder: Path, canary: Path) -> list[str]:
    """The names of the files, which are written into the folder."""
    folder.mkdir()
    for name, content in malicious.files(canary).items():
        (folder / name).write_bytes(content)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_checkpoint_holds(
    command: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Forty files, and each is refused with exit code 5."""
    canary, files = tmp_path / "canary", tmp_path / "files"
    names = written(files, canary)
    assert len(names) == 40
    if command == "decode":  # which takes a folder
        sound = random_model(tmp_path / "sound", words=["a", "b"])
        for path in list(files.iterdir()):
            content = path.read_bytes()
            path.unlink()
            shutil.copytree(sound, path)
            (path / WEIGHTS).write_bytes(content)
    flags = COMMANDS[command].replace("OUT", str(tmp_path / "out"))
    if "DATA" in flags:
        flags = flags.replace("DATA", str(request.getfixturevalue("data")))
    done = subprocess.run(
        [sys.executable, "-c", EACH, command, str(files), str(canary), *flags.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line[5:] for line in done.stdout.splitlines() if line.startswith("EACH ")]
    assert found == [f"{name} 5 False" for name in names], done.stderr[-3000:]
    assert "Traceback" not in done.stderr


# From Python 3.12 to 3.13, of torch's reading of its oldest format.
@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter:DeprecationWarning")
def test_the_files_do_run_code_where_loading_is_unsafe(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "a.pt"
    for name, content in malicious.files(canary).items():
        path.write_bytes(content)
        with contextlib.suppress(RuntimeError):  # of what follows a bare pickle
            torch.load(path, weights_only=False)
        assert canary.exists(), name
        shutil.rmtree(canary) if canary.is_dir() else canary.unlink()
