"""The summarization recipe's own scripts: its text, what its stages ask for, and how its table is counted.

The stages themselves are real trainings: `recipes/summarization/run.sh --quick` runs them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.recipe_scripts import RECIPES, assert_refused, script

from nartk.protocols.guarantee import IDENTICAL

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_no_sentence_that_is_held_out_is_trained_on(tmp_path: Path) -> None:
    script("summarization", "prepare.py", "simplify", "--output", str(tmp_path))
    pairs = {
        name: list(zip(lines(tmp_path / f"{name}.src"), lines(tmp_path / f"{name}.{side}"), strict=True))
        for name, side in (("train", "trg"), ("valid", "trg"), ("onestop", "ref0"), ("wikisplit", "ref0"))
    }
    assert (len(pairs["valid"]), len(pairs["onestop"]), len(pairs["wikisplit"])) == (300, 200, 300)
    assert all(source and target for name in pairs for source, target in pairs[name])
    trained = {sentence for pair in pairs["train"] for sentence in pair}
    assert not any(trained.intersection(pair) for pair in pairs["onestop"])
    # With the rule left out, train would hold all pairs but those that are held out themselves.
    assert len(pairs["train"]) < 5087 - 350 + 1500 - 150


def test_abstracts_have_lines_for_all_their_references(tmp_path: Path) -> None:
    script("summarization", "prepare.py", "scitldr", "--output", str(tmp_path), "--quick")
    references = [lines(tmp_path / f"scitldr.ref{number}") for number in range(3)]
    assert {len(part) for part in references} == {30}
    assert all(references[0])
    assert "" in references[2]
    assert len(lines(tmp_path / "train.src")) == len(lines(tmp_path / "train.trg")) == 600


def test_every_model_has_its_architecture_and_strategies() -> None:
    rows = [line.split("\t") for line in script("summarization", "ways.py", "--updates", "123").splitlines()]
    assert [row for row in rows if row[0] == "missing"] == []
    models = {row[1]: (row[2], row[3]) for row in rows if row[0] == "model"}
    assert {name: kind for name, (kind, _) in models.items()} == {
        "ar": "transformer",
        "drafter": "blockwise",
        "small": "transformer",
        "light": "light_drafter",
    }
    assert "--glancing 0.5:0.3@123" in models["drafter"][1]
    assert {row[1] for row in rows if row[0] == "decode"} == {"ar"}


def test_the_table_by_hand(tmp_path: Path) -> None:
    ways = [
        "model\tar\ttransformer\t-",
        "decode\tar\tgreedy\t-",
        "decode\tar\tgad:drafter=DRAFTER:beta=3\t-",
        "decode\tar\tiad\t-",
        "missing\tar\tfly\tno strategy fly",
    ]
    (tmp_path / "ways.tsv").write_text("\n".join(ways) + "\n", encoding="utf-8")
    for folder in ("out", "scores", "failed"):
        (tmp_path / folder).mkdir()
    said = {"greedy": "a\nb\nc\nd\n", "gad_drafter-DRAFTER_beta-3": "a\nb\nx\nd\n"}
    interval = {"low": 0.25, "high": 0.5}
    for name, text in said.items():
        key = f"ar.news.{name}"
        (tmp_path / "out" / key).write_text(text, encoding="utf-8")
        (tmp_path / "out" / f"{key}.json").write_text('{"tokens": 30, "passes": 12}', encoding="utf-8")
        report = {"metric": "rouge1", "score": 0.375, "confidence": interval, "signature": "s"}
        report["others"] = [{**report, "metric": "rougeL", "score": 0.3}]
        (tmp_path / "scores" / f"{key}.rouge.json").write_text(json.dumps(report), encoding="utf-8")
    (tmp_path / "failed" / "ar.news.iad").touch()
    seconds = {
        "ar.news.greedy": {"1": [4.0, 5.0, 6.0], "32": [2.0, 2.0, 2.0]},
        "ar.news.gad_drafter-DRAFTER_beta-3": {"1": [2.0, 1.0, 2.0], "32": [1.0, 0.5, 4.0]},
    }
    machine = {"machine": "a machine", "device": "cpu", "threads": 2, "torch": "2"}
    speed = {"seconds": seconds, "sentences": {"1": 10, "32": 100}, **machine}
    (tmp_path / "speed.news.json").write_text(json.dumps(speed), encoding="utf-8")
    script("summarization", "report.py", "--work", str(tmp_path), "--test", "news")
    table = lines(tmp_path / "table.news.md")
    assert table[0] == (
        "| strategy | promise | ROUGE-1 | ROUGE-L | same | tokens/pass | ms | x greedy | texts/s | x greedy |"
    )
    score = "0.3750 (0.2500 to 0.5000) | 0.3000 (0.2500 to 0.5000)"
    # Medians of the rounds' ratios, not ratios of medians: 4/2, 5/1, 6/2; 2/1, 2/0.5, 2/4.
    assert table[3] == (
        "| gad:drafter=DRAFTER:beta=3 | approximate: drafted words are accepted that are nearly the best | "
        f"{score} | 3 of 4 | 2.50 | 200.0 | 3.00x | 100.0 | 2.00x |"
    )
    assert table[4] == f"| iad | {IDENTICAL} | failed" + " | -" * 7 + " |"
    assert table[5].startswith("| fly | - | not available: no strategy fly |")
    assert "signature s" in table


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stage", "fly"], "no stage 'fly'"),
        (["--task", "news"], "no task 'news'"),
        (["--task", "scitldr", "--test", "asset"], "no test set 'asset' of scitldr: choose from scitldr"),
        (["--updates"], "--updates needs a value"),
        (["--turbo"], "unknown option --turbo"),
    ],
)
def test_wrong_options_are_refused_before_any_work(args: list[str], said: str, tmp_path: Path) -> None:
    assert_refused("summarization", args, said, tmp_path)


def test_the_readme_and_the_help_tell_of_every_stage() -> None:
    folder = RECIPES / "summarization"
    run = (folder / "run.sh").read_text(encoding="utf-8")
    stages = re.findall(r"^stages=\((.*)\)$", run, re.MULTILINE)[0].split()
    rows = re.findall(r"^\| ([a-z]+) \|", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows[rows.index(stages[0]) :][: len(stages)] == stages
    told = " ".join(run.split("# Stages: ")[1].split(".")[0].replace("#", " ").split())
    assert told == " ".join(stages)
    assert all(re.search(rf"^{stage}\(\) {{$", run, re.MULTILINE) for stage in stages)
