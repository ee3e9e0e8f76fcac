"""The translation recipe's own scripts: what its stages ask for, and how its table is counted.

The stages themselves are real trainings: `recipes/mt/run.sh --quick` runs them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_scripts import RECIPES, assert_refused, script

from nartk.registry import make_strategy

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")


def test_every_system_has_its_architecture_and_strategies() -> None:
    rows = [line.split("\t") for line in script("mt", "systems.py", "--updates", "123").splitlines()]
    assert [row for row in rows if row[0] == "missing"] == []
    models = {row[1]: row[3] for row in rows if row[0] == "model"}
    assert set(models) == {"teacher", "nat", "cmlm", "glat", "ctc", "ctc-glat", "dag"}
    assert "--glancing 0.3:0.1@123" in models["dag"]
    assert {row[1] for row in rows if row[0] == "drafter"} == {"blockwise", "small"}
    for _, name, spec, _ in (row for row in rows if row[0] == "decode"):
        strategy, *options = spec.split(":")
        given = dict(option.split("=") for option in options)
        wanted = {key: int(value) if value.isdigit() else value for key, value in given.items()}
        assert make_strategy(strategy, wanted).name == strategy, name


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_table_by_hand(tmp_path: Path) -> None:
    lines = [
        "model\tteacher\ttransformer\t-",
        "decode\tteacher\tgreedy\t-",
        "decode\tteacher\tbeam:beam_size=5\t-",
        "decode\tglat\tglat:length_beam=5\t-",
        "missing\tdag\tdag-new\tno strategy dag-new",
    ]
    (tmp_path / "systems.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    seconds = {
        "teacher.raw.greedy": {"1": [4.0, 5.0, 6.0], "32": [2.0, 2.0, 2.0]},
        "teacher.raw.beam_beam_size-5": {"1": [8.0, 8.0, 8.0], "32": [6.0, 6.0, 6.0]},
        "glat.raw.glat_length_beam-5": {"1": [2.0, 1.0, 2.0], "32": [1.0, 0.5, 4.0]},
    }
    for number, key in enumerate(seconds):
        for metric in ("bleu", "chrf"):
            score = {"score": 30.0 + number, "signature": metric, "confidence": {"low": 29.0, "high": 33.0}}
            write(tmp_path / "scores" / f"{key}.{metric}.json", score)
    machine = {"machine": "a machine", "device": "cpu", "threads": 2, "torch": "2"}
    write(tmp_path / "speed.json", {"seconds": seconds, "sentences": {"1": 10, "32": 100}, **machine})
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "glat.distilled").touch()
    script("mt", "table.py", "--work", str(tmp_path))
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    glat = next(row for row in rows if row["name"] == "glat" and row["data"] == "raw")
    # Medians of the rounds' ratios, not ratios of medians: 4/2, 5/1, 6/2 and 8/2, 8/1, 8/2; 2/1, 2/0.5, 2/4.
    assert [glat[key] for key in ("over_greedy_1", "over_beam_1", "over_greedy_32")] == [3.0, 4.0, 2.0]
    assert (glat["ms"], glat["sentences_per_second"]) == (200.0, 100.0)
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert (
        "| GLAT | raw | glat:length_beam=5 | 32.00 (29.0 to 33.0) | 32.00 (29.0 to 33.0) | 200.0 |"
        in table[4]
    )
    assert "| GLAT | distilled | glat:length_beam=5 | failed |" in table[5]
    assert "| DA-Transformer | - | dag-new | not available: no strategy dag-new |" in table[6]
    assert (tmp_path / "plot.png").stat().st_size > 1000

    # What another run has measured fills what this one has not run, but not what failed or is there.
    earlier = [
        {**row, "bleu": {**glat["bleu"], "score": 9.0}} for row in (glat, {**glat, "data": "distilled"})
    ]
    write(tmp_path / "earlier" / "table.json", earlier)
    (tmp_path / "failed" / "glat.distilled").unlink()
    script("mt", "table.py", "--work", str(tmp_path), "--earlier", str(tmp_path / "earlier" / "table.json"))
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert "| GLAT | raw | glat:length_beam=5 | 32.00" in table[4]
    assert "| GLAT | distilled | glat:length_beam=5 * | 9.00" in table[5]
    assert any(line.startswith("*: from an earlier run") for line in table)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stage", "fly"], "no stage 'fly'"),
        (["--pair", "en-xx"], "no pair 'en-xx'"),
        (["--on", "paper"], "choose raw or distilled"),
        (["--updates"], "--updates needs a value"),
        (["--turbo"], "unknown option --turbo"),
    ],
)
def test_wrong_options_are_refused_before_any_work(args: list[str], said: str, tmp_path: Path) -> None:
    assert_refused("mt", args, said, tmp_path)
