"""The translation recipe's own scripts: what its stages ask for, and how its table is counted.

The stages themselves are real trainings: `recipes/mt/run.sh --quick` runs them.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.light_drafters import write_drafter
from support.recipe_scripts import RECIPES, assert_refused, script
from support.tiny import random_model

import nartk
from nartk.decoders.graphs.ngram_lm import NGram, read_arpa
from nartk.registry import make_strategy
from nartk.vocab import Vocab

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")


def test_every_system_has_its_architecture_and_strategies() -> None:
    rows = [line.split("\t") for line in script("mt", "systems.py", "--updates", "123").splitlines()]
    assert [row for row in rows if row[0] == "missing"] == []
    models = {row[1]: row[3] for row in rows if row[0] == "model"}
    assert set(models) == {"teacher", "nat", "cmlm", "glat", "ctc", "ctc-glat", "dag", "dag-fuzzy"}
    assert "--glancing 0.3:0.1@123" in models["dag"]
    goes_on = models["dag-fuzzy"].removeprefix(models["dag"])
    assert "--max-update 15 --finetune-from-model WORK/dag.DATA/checkpoints/checkpoint_last.pt" in goes_on
    drafters = {row[1] for row in rows if row[0] == "drafter"}
    assert drafters == {"blockwise", "small", "light", "light-seed-2", "light-two"}
    for _, name, spec, _ in (row for row in rows if row[0] == "decode"):
        strategy, *options = spec.split(":")
        given = dict(option.split("=") for option in options)
        wanted = {key: read_value(value) for key, value in given.items()}
        assert make_strategy(strategy, wanted).name == strategy, name


@pytest.mark.parametrize(
    "times", [1, 4, 8]
)  # heads of 16 features grow to 64 by copies within, then in number
@pytest.mark.parametrize("words", [None, ["to", "be", "or", "not", "?"]])
def test_a_larger_verifier_has_the_models_distribution(
    times: int, words: list[str] | None, tmp_path: Path
) -> None:
    small = random_model(tmp_path / "small", words=words, max_len=24)
    lines = ["to be or not", "not to be ?", "be not ?"]
    size = ["--d-model", str(32 * times), "--layers", "3"]
    script("mt", "larger.py", str(small), "--output", str(tmp_path / "large"), *size)
    large = nartk.load(tmp_path / "large")
    shape = large.config
    assert (shape.d_model, shape.decoder_layers, shape.encoder_ffn) == (32 * times, 3, 32 * times)
    assert shape.decoder_heads == {1: 2, 4: 2, 8: 4}[times]
    wanted = nartk.load(small).decode(lines, "greedy")
    assert len({each.tokens for each in wanted}) > 1
    for theirs, mine in zip(wanted, large.decode(lines, "greedy"), strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.positional_scores == pytest.approx(theirs.positional_scores, abs=1e-4)
    if words is None:
        assert (tmp_path / "large" / "spm.model").read_bytes() == (small / "spm.model").read_bytes()


@pytest.mark.parametrize("count", [8, 100])  # words of the larger verifier, special ones included
def test_a_light_drafter_drafts_for_a_larger_verifier_what_it_drafted(count: int, tmp_path: Path) -> None:
    words = ["to", "be", "or", "not"]
    small = random_model(tmp_path / "small", words=words, max_len=24)
    light = write_drafter(tmp_path / "light", small, seed=6)
    large, drafter = tmp_path / "large", tmp_path / "drafter"
    size = ["--d-model", "128", "--layers", "3", "--words", str(count)]
    script("mt", "larger.py", str(small), "--output", str(large), *size)
    script("mt", "larger.py", str(light), "--verifier", str(large), "--output", str(drafter))
    assert (nartk.load(large).config.tgt_vocab, nartk.load(drafter).config.tgt_vocab) == (count, count)
    lines = ["to be or not", "not to be or", "be not or"]
    for dtype in ("fp32", "int8"):
        before, after = (
            nartk.load(model, dtype=dtype).run(
                lines, "speculative", {"adaptive": False, "drafter": str(path)}
            )
            for model, path in ((small, light), (large, drafter))
        )
        assert 0 < before.stats.accepted < before.stats.drafted
        assert [each.tokens for each in after.best] == [each.tokens for each in before.best]
        assert (after.stats.drafted, after.stats.accepted) == (before.stats.drafted, before.stats.accepted)


def read_value(text: str) -> int | float | str:
    return int(text) if text.isdigit() else float(text) if text.replace(".", "").isdigit() else text


def language_model(folder: Path, text: str, *options: str) -> NGram:
    """What nartk reads of the model of a text of one-letter words."""
    (folder / "text").write_text(text, encoding="utf-8")
    script("mt", "language_model.py", str(folder / "text"), "--output", str(folder / "lm.arpa"), *options)
    return read_arpa(folder / "lm.arpa", Vocab((*"abcd", "</s>", "<s>", "<unk>", "<pad>"), 5, 7, 4, 6))


def test_the_language_model_by_hand(tmp_path: Path) -> None:
    """Kneser-Ney over two sentences: of 5 kinds of bigrams 2 end with </s>, and 4 occur once, 1 twice."""
    model = language_model(tmp_path, "a b\na c\n", "--order", "2")
    a, b, c, d, end, start = range(6)
    left = 3 / (3 + 2 * 1) * 4 / 5 / 5  # of the unigrams' discount for each of a, b, c, </s> and <unk>
    alone = {a: 0.4 / 5 + left, b: 0.4 / 5 + left, c: 0.4 / 5 + left, end: 1.4 / 5 + left, d: left}
    discount = 4 / (4 + 2 * 1)
    for word, probability in alone.items():
        assert math.isclose(math.exp(model.score([d], word)), probability, rel_tol=1e-5)
        seen = {b: 1, c: 1}.get(word, 0)
        after_a = max(seen - discount, 0) / 2 + discount * 2 / 2 * probability
        assert math.isclose(math.exp(model.score([a], word)), after_a, rel_tol=1e-5)
    assert math.isclose(
        math.exp(model.score([start], a)), (2 - discount) / 2 + discount / 2 * alone[a], rel_tol=1e-5
    )


def test_the_language_model_loses_no_probability(tmp_path: Path) -> None:
    rng = random.Random(1)
    text = "\n".join(" ".join(rng.choices("abcd", (8, 4, 2, 1), k=rng.randint(0, 6))) for _ in range(60))
    model = language_model(tmp_path, text + "\n", "--order", "3")
    for context in ([], [0], [5], [5, 0], [5, 3], [0, 1], [3, 3], [2, 0, 1]):
        total = math.fsum(math.exp(model.score(context, word)) for word in (0, 1, 2, 3, 4, 6))
        assert math.isclose(total, 1.0, rel_tol=1e-4)


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_what_fails_leaves_a_mark_and_the_end_of_its_log(tmp_path: Path) -> None:
    code = """
set -euo pipefail
work=$1
source "$2"
mkdir -p "$work/failed"
touch "$work/failed/good"
steps() { echo first; "$1"; echo last; }
logged bad "bad on raw data" "$work/bad/log" steps false
logged good good "$work/good/log" steps true
"""
    stages = str(RECIPES / "stages.sh")
    done = subprocess.run(
        ["bash", "-c", code, "run.sh", str(tmp_path), stages], capture_output=True, text=True, check=True
    )
    log = tmp_path / "bad" / "log"
    *failed, good = done.stderr.splitlines()
    assert failed == [f"run.sh: bad on raw data failed: {log} ends with", "first"]
    assert re.fullmatch(r"   good: \d+ s", good)
    assert [each.name for each in (tmp_path / "failed").iterdir()] == ["bad"]
    assert log.read_text() == "first\n"  # its first error ends it
    assert (tmp_path / "good" / "log").read_text() == "first\nlast\n"


RESUMED = """
set -euo pipefail
work=$1
source "$2"
resumed "$work/out" "${@:3}"
"""
KILLED = """
import os, sys
from nartk.cli import _job
from nartk.cli.decode import main
write = _job.Job._write
def some(job, *args):
    write(job, *args)
    if job.lines == 12:
        os.kill(os.getpid(), 9)
_job.Job._write = some
main()
"""


@pytest.mark.parametrize("change", ["nothing", "model", "option"])
def test_a_decode_that_was_broken_off_goes_on(change: str, tmp_path: Path) -> None:
    """Of the same model and options; else it begins anew."""
    words = [f"word{i}" for i in range(20)]
    model = random_model(tmp_path / "model", words=words)
    other = random_model(tmp_path / "other", words=words, seed=2)
    source, out, stats = (tmp_path / name for name in ("in.txt", "out", "stats"))
    source.write_text("".join(f"word{i % 20} word{i % 7}\n" for i in range(30)))
    flags = [source, "--batch-size", 1, "--stats", stats, "--quiet", "--max-len"]
    begun = [other if change == "model" else model, *flags, 8 if change == "option" else 9]
    decode = [sys.executable, "-m", "nartk", "decode", model, *flags, 9]

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def figures() -> list[Any]:
        report = json.loads(stats.read_text())
        return [report[name] for name in ("lines", "sentences", "tokens", "passes", "signature")]

    run(*decode, "--output", out)
    wanted, counted = out.read_bytes(), figures()
    out.unlink()
    killed = [sys.executable, "-c", KILLED, *begun, "--output", out, "--resume"]
    assert subprocess.run([*map(str, killed)], timeout=60).returncode == -9
    assert (tmp_path / "out.journal").exists()
    told = run("bash", "-c", RESUMED, "run.sh", tmp_path, RECIPES / "stages.sh", *decode)
    assert out.read_bytes() == wanted
    assert figures() == counted
    assert json.loads(stats.read_text())["from_journal"] == (12 if change == "nothing" else 0)
    assert told.endswith("" if change == "nothing" else "run.sh: decoding out anew\n")
    assert not (tmp_path / "out.journal").exists()


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
