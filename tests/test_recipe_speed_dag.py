"""recipes/speed/dag_loss.py: both ways give the same, and it runs."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch
from support.recipe_scripts import imported, script

dag_loss = imported("speed", "dag_loss.py")


def test_the_benchmark_compares_equal_values(device: torch.device) -> None:
    graph = dag_loss.random_graph((2, 5, 9), str(device), seed=1)
    values = [way(*graph) for way in dag_loss.IMPLEMENTATIONS.values()]
    torch.testing.assert_close(*values)
    assert values[0].isfinite().all()


@pytest.mark.slow
def test_the_benchmark_runs(device: torch.device) -> None:
    flags = ["--rounds", "1", "--json", "--device", str(device)]
    printed = script("speed", "dag_loss.py", "--shape", "2,3,8", "2,2,4", *flags)
    for line, shape in zip(printed.splitlines(), ([2, 3, 8], [2, 2, 4]), strict=True):
        found = json.loads(line)
        assert found["shape"] == shape
        assert found["difference"] < 1e-6
        assert min(found["speedup"], found["memory"]) > 0
    with pytest.raises(subprocess.CalledProcessError) as refused:
        script("speed", "dag_loss.py", "--shape", "2,3")
    assert "'2,3' is not B,T,L" in refused.value.stderr
