"""scripts/gpu, on a CPU: each part runs or is named, and the trial of bits can fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from support.commands import ROOT
from support.recipe_scripts import imported

SCRIPT = ROOT / "scripts" / "gpu"
batch_invariance = imported("speed", "batch_invariance.py")

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the scripts are not beside the tests")


def run(output: Path, parts: str) -> subprocess.CompletedProcess[str]:
    command = [SCRIPT, "--device", "cpu", "--quick", "--output", output, "--part", parts]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_parts_run_and_leave_a_log(tmp_path: Path) -> None:
    done = run(tmp_path, "environment,bits")
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [
        "environment: passed",
        "bits: passed",
    ]
    assert f"torch {torch.__version__}" in (tmp_path / "environment.log").read_text(encoding="utf-8")
    assert "| bf16 | a pass of the scorer |" in (tmp_path / "bits.log").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "suite,verify,captured,engines,parallel,dag")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": passed, ") == 6


def test_a_part_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "speed")
    assert (done.returncode, "no part 'speed': choose from environment" in done.stderr) == (2, True)


def test_bits_that_depend_on_the_batch_or_the_row_are_seen() -> None:
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    assert batch_invariance.same_bits(lambda x: x * 2, rows) == (True, True)
    assert batch_invariance.same_bits(lambda x: x * len(x), rows) == (False, True)
    assert batch_invariance.same_bits(lambda x: x + torch.arange(len(x))[:, None], rows) == (False, False)
