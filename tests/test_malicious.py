"""S1: no checkpoint runs code or takes the memory that it asks for, whichever command is given it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import bombs, malicious
from support.commands import ROOT, own
from support.tiny import SENTENCES, random_model

from nartk.checkpoints.names import WEIGHTS

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
# The same with little memory; the first call imports what the command needs.
EACH_BOMB = """
import importlib, sys
from pathlib import Path
sys.path.append("tests")
from support.memory import rising_at_most
command = importlib.import_module(f"nartk.cli.{sys.argv[1]}").main
for i, path in enumerate(sorted(Path(sys.argv[2]).iterdir())):
    with rising_at_most(100_000 if i else 10_000_000):
        code = command([each.replace("PATH", str(path)) for each in sys.argv[3:]])
    print("\\nEACH", path.name, code, flush=True)
"""
COMMANDS = {
    "average": "--inputs PATH --output OUT",
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
    own("preprocess", *flags.split(), "--joined-dictionary", "--destdir", str(folder / "bin"))
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


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one update."""
    folder = tmp_path_factory.mktemp("trained")
    own("train", *COMMANDS["train"].replace("DATA", str(data)).replace("OUT", str(folder)).split())
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("command", ["average", "convert", "train", "generate"])
def test_no_command_takes_the_memory_that_a_small_checkpoint_asks_for(
    command: str, data: Path, trained: Path, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "0").write_bytes(b"")
    wrong = bombs.write(trained, files)
    if command in ("average", "convert"):  # which read the weights alone
        del wrong["a moment of one number"]
        (files / "a moment of one number").unlink()
    assert max(path.stat().st_size for path in files.iterdir()) < 2_000_000
    flags = COMMANDS[command].replace("OUT", str(tmp_path / "out")).replace("DATA", str(data))
    done = subprocess.run(
        [sys.executable, "-c", EACH_BOMB, command, str(files), *flags.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line[5:] for line in done.stdout.splitlines() if line.startswith("EACH ")]
    assert found == [f"{name} 5" for name in sorted({"0", *wrong})], done.stderr[-3000:]
    for name, text in wrong.items():
        assert f"nartk: error[E402 Checkpoint] {files / name}: {text}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "key", "message"),
    [
        ("train", "exp_avg", "'exp_avg' of the optimizer has shape [1], its weight ["),
        ("train", "model", "the checkpoint is of another architecture, or of other dictionaries. Fix: "),
        ("generate", "model", "the checkpoint is of another architecture, or of other dictionaries. Fix: "),
    ],
)
def test_a_checkpoint_whose_shapes_do_not_fit_is_refused(
    command: str, key: str, message: str, data: Path, trained: Path, tmp_path: Path
) -> None:
    """Moments of one number, which torch would read beyond; a weight of one number."""
    state = torch.load(trained, weights_only=False)
    if key == "model":
        state["model"][next(iter(state["model"]))] = torch.zeros(1)
    else:
        state["last_optimizer_state"]["state"][0][key] = torch.zeros(1)
    torch.save(state, tmp_path / "changed.pt")
    flags = COMMANDS[command].replace("OUT", str(tmp_path / "out")).replace("DATA", str(data))
    code = f"import sys; from nartk.cli.{command} import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *flags.replace("PATH", str(tmp_path / "changed.pt")).split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr[-3000:]
    assert f"nartk: error[E402 Checkpoint] {message}" in done.stderr
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
