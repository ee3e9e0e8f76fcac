"""A model's folder is read once: no file of JSON is opened twice when a command decodes with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import hf_folders

from nartk.checkpoints.names import model_folder
from nartk.cli.convert import main as convert

COUNTING = """
import json, os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from nartk.cli.decode import main
code = main([*sys.argv[1:], "--quiet"])
folder = os.path.realpath(sys.argv[1])
inside = [os.path.basename(each) for each in opened if os.path.dirname(os.path.realpath(each)) == folder]
print(json.dumps([code, inside]))
"""


def opens(folder: Path, *flags: str) -> Counter[str]:
    """How often each file of a folder is opened by ``nartk-decode FOLDER`` with one line."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, str(folder), *flags],
        input="a b", capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    code, names = json.loads(done.stdout.splitlines()[-1])
    assert code in (0, 3)
    return Counter(names)


def test_a_native_folder() -> None:
    found = opens(model_folder("gec-en"))
    assert found["config.json"] == found["model.safetensors"] == 1


@pytest.mark.parametrize("flags", [(), ("--strategy", "iad")])
def test_a_folder_of_hugging_face_and_what_is_converted_of_it(flags: tuple[str, ...], tmp_path: Path) -> None:
    hf_folders.text_folder(tmp_path / "model")
    assert convert([str(tmp_path / "model"), "--output", str(tmp_path / "native")]) == 0
    for name, least in (("model", 3), ("native", 2)):
        found = opens(tmp_path / name, *flags)
        files = {file: count for file, count in found.items() if file.endswith(".json")}
        assert "config.json" in files
        assert len(files) >= least
        assert set(files.values()) == {1}, files
