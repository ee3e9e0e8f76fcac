"""What docs/training.md runs, with smaller sizes: the walk to a faster decoder, and a light drafter."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import fairseq_host
from support.documents import blocks, commands

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "training.md"
TITLE = "## Make your own model faster\n"
# What the page says, and what is run in its place.
SMALLER = {
    "head -n 20400": "head -n 1200",
    "1,200p": "1,12p",
    "201,400p": "201,212p",
    "--nwordssrc 4000": "--nwordssrc 300",  # so that a model that knows little does not end at once
    "--warmup-updates 100": "--warmup-updates 10",
    "--max-update 1000": "--max-update 20",
    "--max-update 600": "--max-update 8",
    "--limit 50": "--limit 3 --rounds 1",
    "--max-drop 1\n": "--max-drop 100 --rounds 1 --grid fallback=0.6 --grid rollback=3\n",
}
LIGHT = "--save-dir light"
BREAKS = "nartk-noise --no-such-flag && exit 99\n"  # it must be noticed that a command breaks

pytestmark = [
    pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not beside the tests"),
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc"),
    pytest.mark.skipif(not all(map(shutil.which, ("bash", "xz"))), reason="bash or xz is not installed"),
]


def walk() -> str:
    """The commands of the walk, with smaller sizes."""
    text = PAGE.read_text(encoding="utf-8")
    block = text.split(TITLE)[1].split("\n## ")[0].split("```bash\n")[1].split("```")[0]
    for said, run in SMALLER.items():
        assert said in block, said
        block = block.replace(said, run)
    return block


def light() -> str:
    """The commands of the light drafter, run where the walk has ended; it learns nothing."""
    (block,) = [each for each in blocks(PAGE) if LIGHT in each.text]
    text = "".join(each.text for each in commands(block)).replace(LIGHT, f"{LIGHT} --max-update 4 --cpu")
    return f"cp test.src in.txt\n{text}"


def test_the_walk_goes_to_its_end(tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    (tmp_path / "data").symlink_to(ROOT / "data")
    script = tmp_path / "walk.sh"
    script.write_text(f"set -eu\n{BREAKS}{walk()}{light()}", encoding="utf-8")
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).parent / "support" / "warm_commands.py"),
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [
        line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("identical to greedy")
    ] == ["identical to greedy"] * 2
    assert "| gad:drafter=drafter | identical to greedy | fp32 | 1 |" in done.stdout
    assert (tmp_path / "walk/model/drafter/config.json").is_file()
    distilled = json.loads((tmp_path / "walk/distilled/report.json").read_text())
    assert (distilled["lines"], distilled["kept_from"]["best"]) == (800, distilled["kept"])
    assert distilled["kept"] > 400
    outputs = [(tmp_path / "walk" / f"test.{name}").read_text().splitlines() for name in ("out", "bild")]
    assert [len(lines) for lines in outputs] == [12, 12]
    stats = json.loads((tmp_path / "walk/test.json").read_text())
    assert stats["lines"] == 12
    assert stats["failed"] == 0
