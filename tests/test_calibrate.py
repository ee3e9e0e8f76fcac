"""`nartk-calibrate`: the sweep and the choice against plain Python, and where stored thresholds are used.

Each safeguard comes with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.metrics import bleu_score
from support.small_drafters import shaken

import nartk
from nartk.architectures.blockwise import BlockwiseConfig
from nartk.bench import calibration
from nartk.bench.calibration import Drop, Point, Scored, Setting, TimedOutput
from nartk.checkpoints import thresholds
from nartk.checkpoints.saving import save_checkpoint
from nartk.checkpoints.thresholds import Calibration
from nartk.cli import calibrate as command
from nartk.cli import decode, score
from nartk.cli.calibrate import main
from nartk.errors import CheckpointError
from nartk.journal import Journal
from nartk.metrics.bootstrap import resampled
from nartk.metrics.result import MetricResult
from nartk.models.blockwise import Blockwise
from nartk.vocab import Vocab

WORDS = tiny.WORDS.split()


# The front and the choice


def point(speed: float, drop: float, bound: float = 0.0, name: int = 0) -> Point:
    return Point(
        {"name": name}, (speed,), 50.0 - drop, Drop(drop, drop - 1, drop + 1, bound), 1.0, 0.0, 0.0, 9.0
    )


def random_points(rng: random.Random) -> list[Point]:
    """Few values, so that many are equal."""
    found = []
    for name in range(rng.randint(1, 9)):
        drop = rng.randint(-1, 4) / 4
        found.append(point(rng.randint(2, 8) / 4, drop, drop + rng.randint(0, 3) / 4, name))
    return found


def names(points: Sequence[Point]) -> set[int]:
    return {each.setting["name"] for each in points}


def front_by_hand(points: Sequence[Point]) -> set[int]:
    """Those that no other one beats in one thing without losing in the other."""
    best = set()
    for mine in points:
        beaten = False
        for other in points:
            as_good = other.speeds[0] >= mine.speeds[0] and other.drop.drop <= mine.drop.drop
            better = other.speeds[0] > mine.speeds[0] or other.drop.drop < mine.drop.drop
            beaten = beaten or (as_good and better)
        if not beaten:
            best.add(mine.setting["name"])
    return best


def without_equals(points: Sequence[Point]) -> list[Point]:
    """Known to be wrong: of equal points only one stays."""
    best: list[Point] = []
    for each in sorted(points, key=lambda each: (-each.speed, each.drop.drop)):
        if not best or each.drop.drop < best[-1].drop.drop:
            best.append(each)
    return best


def slowest_first(points: Sequence[Point]) -> list[Point]:
    """Known to be wrong: a point of the same speed and a larger drop stays."""
    return [
        mine
        for mine in points
        if not any(other.speed > mine.speed and other.drop.drop <= mine.drop.drop for other in points)
    ]


@pytest.mark.parametrize(
    ("front", "right"), [(calibration.front, True), (without_equals, False), (slowest_first, False)]
)
def test_the_front_is_what_nothing_dominates(
    front: Callable[[Sequence[Point]], list[Point]], right: bool
) -> None:
    rng = random.Random(1)
    trials = [random_points(rng) for _ in range(300)]
    assert all(names(front(points)) == front_by_hand(points) for points in trials) == right


def choice_by_hand(points: Sequence[Point], most: float, trust: str) -> tuple[tuple[float, float], bool]:
    """Speed and trusted drop of the point to choose: equal ones are as good."""
    found = [(each.speeds[0], each.drop.bound if trust == "bound" else each.drop.drop) for each in points]
    fitting = [each for each in found if each[1] <= most]
    if fitting:
        fastest = max(speed for speed, _ in fitting)
        return (fastest, min(drop for speed, drop in fitting if speed == fastest)), True
    least = min(drop for _, drop in found)
    return (max(speed for speed, drop in found if drop == least), least), False


def trusts_the_estimate(points: Sequence[Point], most: float, *, trust: str) -> tuple[Point, bool]:
    """Known to be wrong: the bound is not looked at."""
    return calibration.choose(points, most, trust="point")


def takes_the_first(points: Sequence[Point], most: float, *, trust: str) -> tuple[Point, bool]:
    """Known to be wrong: of equally fast points any one is taken."""
    found, fits = calibration.choose(points, most, trust=trust)
    return next(each for each in points if not fits or each.speed == found.speed), fits


@pytest.mark.parametrize(
    ("choose", "right"),
    [(calibration.choose, True), (trusts_the_estimate, False), (takes_the_first, False)],
)
def test_the_choice_is_the_fastest_that_fits(choose: Any, right: bool) -> None:
    rng = random.Random(2)
    same, fitted = True, set()
    for _ in range(300):
        points, most = random_points(rng), rng.randint(-1, 6) / 4
        for trust in calibration.TRUSTS:
            found, fits = choose(points, most, trust=trust)
            drop = found.drop.bound if trust == "bound" else found.drop.drop
            same &= ((found.speeds[0], drop), fits) == choice_by_hand(points, most, trust)
            fitted.add(fits)
    assert same == right
    assert fitted == {True, False}


# The bootstrap


def mean_metric(values: Sequence[float]) -> MetricResult:
    """The mean of a value a sentence."""
    numbers = np.array(values)
    return MetricResult(
        "bleu", float(numbers.mean()), {}, "", len(numbers), lambda w: (w @ numbers) / w.sum(axis=1)
    )


@pytest.mark.parametrize("first", [None, 11])
def test_the_bound_is_the_percentile_of_the_paired_drops(first: int | None) -> None:
    rng = np.random.default_rng(3)
    base, other = rng.normal(10, 5, 30), rng.normal(0, 1, 30)
    other += base
    count = 30 if first is None else first
    scored = [
        Scored(
            values[:count].mean(), resampled(mean_metric(values).of_lines(range(count)), samples=400, seed=7)
        )
        for values in (base, other)
    ]
    found = Drop.between(*scored)
    picks = np.random.default_rng(7).integers(count, size=(400, count))
    drops = sorted((base[picks].mean(1) - other[picks].mean(1)).tolist())

    def percentile(share: float) -> float:
        place = share * (len(drops) - 1)
        low = math.floor(place)
        return drops[low] + (place - low) * (drops[min(low + 1, len(drops) - 1)] - drops[low])

    assert found.drop == pytest.approx(base[:count].mean() - other[:count].mean(), abs=1e-12)
    assert [found.low, found.high, found.bound] == pytest.approx(
        [*map(percentile, (0.025, 0.975, 0.95))], abs=1e-9
    )
    # Known to be wrong: resamples of other sentences for the two.
    apart = resampled(mean_metric(other).of_lines(range(count)), samples=400, seed=8)
    assert Drop.between(scored[0], Scored(0.0, apart)).bound > found.bound + 0.5


# The sweep


class Twin:
    """Settings whose speed and quality are made up; time is `seconds` of a setting times the sentences.

    Args:
        seconds: Of a sentence by setting, and of greedy search under None: one for each round, over and over.
        quality: The value of each sentence by setting.
    """

    def __init__(self, seconds: dict[Any, Sequence[float]], quality: dict[Any, Sequence[float]]) -> None:
        self.seconds, self.quality = seconds, quality
        self.calls: list[Any] = []

    def measure(self, setting: Setting | None) -> TimedOutput:
        key = None if setting is None else setting["name"]
        turn, sentences = self.calls.count(key), len(self.quality[key])
        self.calls.append(key)
        seconds = self.seconds[key][turn % len(self.seconds[key])] * sentences
        texts = [str(value) for value in self.quality[key]]
        counts = {"tokens": 10, "passes": 4, "drafter_passes": 15, "drafted": 13}
        return TimedOutput(seconds, texts, **{name: count * sentences for name, count in counts.items()})

    def score(self, texts: Sequence[str]) -> Scored:
        values = np.array([*map(float, texts)])
        return Scored(values.mean(), resampled(mean_metric(values), samples=200))


def test_speeds_are_paired_by_round() -> None:
    seconds = {None: (2.0, 4.0, 3.0), "a": (1.0, 8.0, 1.0), "b": (4.0, 2.0, 1.0)}
    twin = Twin(seconds, {None: [5.0] * 9, "a": [4.0] * 9, "b": [5.0] * 9})
    settings = [{"name": "a"}, {"name": "b"}]
    greedy, *points = calibration.sweep(settings, twin.measure, twin.score, rounds=3)
    assert [each.speeds for each in points] == [(2.0, 0.5, 3.0), (0.5, 2.0, 3.0)]
    assert [each.speed for each in points] == [2.0, 2.0]
    assert [each.drop for each in points] == [Drop(1.0, 1.0, 1.0, 1.0), Drop(0.0, 0.0, 0.0, 0.0)]
    assert [each.score for each in points] == [4.0, 5.0]
    assert [each.tokens_per_second for each in points] == [10.0, 5.0]
    assert (greedy.setting, greedy.speeds, greedy.drop.drop) == ({}, (1.0, 1.0, 1.0), 0.0)
    assert {(each.passes, each.drafter_passes, each.drafted) for each in points} == {(0.4, 1.5, 1.3)}
    # Each round begins with greedy search, and then with another setting.
    assert twin.calls == [None, "a", "b", None, "b", "a", None, "a", "b"]
    # Known to be wrong: the ratio of the medians.
    assert statistics.median(seconds[None]) / statistics.median(seconds["a"]) == 3.0


# Going on


class Later(Exception):
    """Ends a run."""


def stopped_and_resumed(path: Path, stop: int) -> tuple[list[Point], list[Any], list[Any]]:
    """The sweep of a run that goes on after one that was stopped, and what each decoded."""
    noise = [random.Random(4).gauss(0, 1) for _ in range(30)]
    quality = {
        name: [base + each for each in noise] for name, base in ((None, 9), ("a", 8), ("b", 7), ("c", 2))
    }
    speed = {None: 1.0, "a": 0.5, "b": 0.4, "c": 0.8}
    settings: list[Setting] = [{"name": name} for name in ("a", "b", "c")]
    before: list[Any] = []
    for slowness, end in ((1.0, stop), (3.0, None)):
        twin = Twin({name: [seconds * slowness] for name, seconds in speed.items()}, quality)

        def measure(setting: Setting | None, end: Any = end, twin: Twin = twin) -> TimedOutput:
            if end is not None and len(twin.calls) == end:
                raise Later
            return twin.measure(setting)

        with Journal.open(path, b"header") as journal:
            assert journal.count == len(before)
            if end is not None:
                with pytest.raises(Later) if stop < 12 else contextlib.nullcontext():
                    calibration.sweep(settings, measure, twin.score, rounds=3, journal=journal)
                before = twin.calls
            else:
                found = calibration.sweep(settings, measure, twin.score, rounds=3, journal=journal)
    return found, before, twin.calls


def test_a_run_goes_on_where_another_was_stopped(tmp_path: Path) -> None:
    """On a machine that is slower now; all that was measured is taken, and figures are those of one run."""
    whole, before, calls = stopped_and_resumed(tmp_path / "whole", 0)
    assert before == []
    assert len(calls) == 3 * 4
    for stop in range(1, len(calls) + 1):
        found, before, rest = stopped_and_resumed(tmp_path / str(stop), stop)
        assert before == calls[:stop]
        # Within a round greedy search is measured once more.
        assert rest == [*([None] if stop % 4 else []), *calls[stop:]]
        for mine, theirs in zip(found, whole, strict=True):
            assert mine.speeds == pytest.approx(theirs.speeds, rel=1e-12)
            wanted = replace(theirs, speeds=(), tokens_per_second=0.0)
            assert replace(mine, speeds=(), tokens_per_second=0.0) == wanted


# The folder


def calibrated(**changes: Any) -> Calibration:
    usual = Calibration(
        "bild",
        "m" * 12,
        "d" * 12,
        {"fallback": 0.3, "rollback": 4.0},
        {"max_draft": 10, "keep_best": True},
        {},
    )
    return replace(usual, **changes)


def test_a_folder_keeps_one_choice_for_each_strategy_and_drafter(tmp_path: Path) -> None:
    assert thresholds.Calibration.read(tmp_path) == []
    entries = [
        calibrated(),
        calibrated(drafter="e"),
        calibrated(strategy="gad", thresholds={"beta": 3, "tau": 1.0}, options={"block_size": 25}),
        calibrated(strategy="of another package", thresholds={"x": 1}),
    ]
    for entry in entries:
        entry.store(tmp_path)
    assert thresholds.Calibration.read(tmp_path) == entries
    newer = calibrated(model="n", thresholds={"fallback": 0.5, "rollback": 1.0}, evidence={"speed": 2.0})
    newer.store(tmp_path)
    assert thresholds.Calibration.read(tmp_path) == [*entries[1:], newer]


def bild(**options: Any) -> Any:
    return nartk.registry.make_strategy("bild", options)


def apply_to(folder: Path, given: dict[str, Any], **changes: str) -> tuple[dict[str, Any], str]:
    models = {"model": "m" * 12, "drafter": "d" * 12} | changes
    return thresholds.apply(folder, bild(**given), given, **models)


def test_what_is_stored_sets_what_is_not_given(tmp_path: Path) -> None:
    entry = calibrated(thresholds={"fallback": 0.3, "rollback": math.inf}, options={"max_draft": 7})
    entry.store(tmp_path)
    stored = {"fallback": 0.3, "rollback": math.inf, "max_draft": 7}
    assert apply_to(tmp_path, {}) == (stored, "")
    found = apply_to(tmp_path, {"fallback": 0.9, "max_len": 5, "max_draft": 7})
    assert found == ({"rollback": math.inf}, "")
    assert apply_to(tmp_path, {"fallback": 0.9, "rollback": 1.0, "max_draft": 2}, model="x") == ({}, "")
    assert apply_to(tmp_path / "none", {}) == ({}, "")


@pytest.mark.parametrize(
    ("given", "changes", "why"),
    [
        ({}, {"drafter": "x"}, "they are for drafter dddddddddddd, this one is x"),
        ({}, {"model": "x"}, "they are for model mmmmmmmmmmmm, this one is x"),
        ({"keep_best": False}, {}, "they are for keep_best True, which is now False"),
        ({"rollback": 1.0, "max_draft": 3}, {}, "they are for max_draft 10, which is now 3"),
    ],
)
def test_what_does_not_fit_is_not_used(
    given: dict[str, Any], changes: dict[str, str], why: str, tmp_path: Path
) -> None:
    calibrated().store(tmp_path)
    added, line = apply_to(tmp_path, given, **changes)
    assert added == {}
    assert line == f"the thresholds in {tmp_path / 'calibration.json'} are not used: {why}"


def entries(**changes: Any) -> str:
    entry = asdict(calibrated()) | changes
    return json.dumps({"format": 1, "calibrations": [entry]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "\xff",
        "[" * 100_000,
        '{"format": 2, "calibrations": []}',
        '{"format": 1, "calibrations": [{}]}',
        entries(more=1),
        entries(thresholds=[]),
        entries(model=3),
        entries(thresholds={"fallback": 7.0}),
        entries(thresholds={"fallback": "x"}),
        entries(thresholds={"fallback": None}),
        entries(thresholds={"drafter": "somewhere"}),
        entries(options={"tau": 1.0}),
        entries(options={"max_draft": "far"}),
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError) as caught:
        apply_to(tmp_path, {})
    assert caught.value.where == str(tmp_path / "calibration.json")
    assert caught.value.exit_code == 5


# The command


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verifier, small models near it, a non-autoregressive one, and sentences with their references."""
    root = tmp_path_factory.mktemp("calibrate")
    vocab = Vocab.from_words(WORDS)
    tiny.corrector(root / "model")
    for seed, name in enumerate(("small", "other")):
        tiny._save(root / name, shaken(tiny.trained_corrector(), seed, 0.3), vocab, None)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn": 16, "decoder_ffn": 16}
    heads = {"encoder_heads": 2, "decoder_heads": 2, "max_source_len": 64, "max_target_len": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = Blockwise(
            BlockwiseConfig(src_vocab=len(vocab), tgt_vocab=len(vocab), block=3, **sizes, **heads)
        )
    save_checkpoint(
        root / "blockwise",
        architecture="blockwise",
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        card="# A small model for tests\n",
    )
    rng = random.Random(5)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 10))) for _ in range(14)]
    lines[3] = ""
    (root / "dev.src").write_text("".join(f"{line}\n" for line in lines))
    gold = [" ".join("goes" if word == "go" else word for word in line.split()) for line in lines]
    (root / "dev.ref").write_text("".join(f"{line}\n" for line in gold))
    return root


@pytest.fixture
def model(folders: Path, tmp_path: Path) -> Path:
    """The verifier, without a calibration."""
    return Path(shutil.copytree(folders / "model", tmp_path / "model"))


def calibrate(folders: Path, model: Path, *flags: str, drafter: str = "small") -> int:
    usual = ["--ref", str(folders / "dev.ref"), "--rounds", "1", "--bootstrap", "50"]
    if "--metric" not in flags:
        usual += ["--metric", "chrf"]
    files = [str(model), str(folders / "dev.src"), "--drafter", str(folders / drafter)]
    return main([*files, *usual, *flags])


GRID = ("--grid", "fallback=0.2", "--grid", "rollback=0.5,inf", "--grid", "max_draft=10")


def signature_of(model: Path, *flags: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[str]]:
    """The signature that nartk-decode prints, and the other lines but the summary."""
    source = model.parent / "in.txt"
    source.write_text("she go home !\n")
    assert decode.main([str(model), str(source), *flags, "--verbose"]) == 0
    *lines, _, signature = capsys.readouterr().err.splitlines()
    return signature, lines


def test_what_is_chosen_is_the_default_of_nartk_decode(
    folders: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = nartk.load(model).checkpoint.fingerprint
    use = ("--strategy", "bild", "--drafter", str(folders / "small"))
    signature, _ = signature_of(model, *use, capsys=capsys)
    assert "|fallback:0.6|rollback:2.0|max_draft:10|" in signature

    report = tmp_path / "report.json"
    assert calibrate(folders, model, "--max-drop", "0.1", *GRID, "--json", str(report)) == 0
    captured = capsys.readouterr()
    table = [
        [cell.strip(" *") for cell in line.split("|")[1:-1]]
        for line in captured.out.splitlines()
        if line.startswith("|")
    ]
    assert table[0] == [
        *(
            "fallback",
            "rollback",
            "max_draft",
            "x greedy",
            "score",
            "drop",
            "at most",
            "passes",
            "steps",
            "drafted",
            "front",
        )
    ]
    assert {row[0] for row in table[2:]} == {"greedy", "0.2"}
    assert {row[1] for row in table[2:]} == {"", "0.5", "inf"}
    assert "**0.2** | **0.5**" in captured.out
    assert f"nartk: stored in {model / 'calibration.json'}" in captured.err
    data = json.loads(report.read_text())
    assert data["chosen"] == {"fallback": 0.2, "rollback": 0.5, "max_draft": 10}
    by_rollback = {each["setting"]["rollback"]: each for each in data["points"]}
    assert by_rollback["inf"]["drop"] > by_rollback[0.5]["drop"]

    (stored,) = thresholds.Calibration.read(model)
    assert stored.thresholds == {"fallback": 0.2, "rollback": 0.5, "max_draft": 10}
    assert stored.options == {"keep_best": True, "drafter_words": 0}
    assert stored.model == before == nartk.load(model).checkpoint.fingerprint
    assert stored.evidence["speed"] == by_rollback[0.5]["speed"]

    assert "|fallback:0.2|rollback:0.5|max_draft:10|" in signature_of(model, *use, capsys=capsys)[0]
    signature, lines = signature_of(model, *use, "--fallback", "0.9", capsys=capsys)
    assert "|fallback:0.9|rollback:0.5|" in signature
    assert lines == []
    found = nartk.load(model).strategy("bild", {"drafter": str(folders / "small"), "rollback": 3})
    assert (found.fallback, found.rollback) == (0.2, 3)


def test_figures_are_those_of_the_library(
    folders: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drop, its bound and the counts, by other ways."""
    flags = ["--metric", "bleu", "--dry-run", "--max-drop", "99", *GRID, "--json"]
    assert calibrate(folders, model, *flags, "--quiet") == 0
    report = capsys.readouterr().out
    lines, gold = ((folders / name).read_text().splitlines() for name in ("dev.src", "dev.ref"))
    there = [row for row, text in enumerate(gold) if text]  # an empty reference is none
    loaded = nartk.load(model)

    def bleu(texts: list[str]) -> MetricResult:
        return bleu_score([[gold[row] for row in there]], [texts[row] for row in there])

    greedy = bleu([each.text for each in loaded.decode(lines, "greedy")])
    for found in json.loads(report)["points"]:
        options = {
            key: int(each) if key == "max_draft" else float(each) for key, each in found["setting"].items()
        }
        run = loaded.run(lines, "bild", {"drafter": str(folders / "small"), **options})
        result = bleu([hypotheses[0].text for hypotheses in run.hypotheses])
        assert found["score"] == result.score
        assert found["drop"] == greedy.score - result.score
        weights = np.zeros((50, len(there)))
        picks = np.random.default_rng(12345).integers(len(there), size=weights.shape)
        for row, column in zip(np.arange(50).repeat(len(there)), picks.ravel(), strict=True):
            weights[row, column] += 1
        drops = greedy.resample(weights) - result.resample(weights)
        assert found["bound"] == pytest.approx(np.quantile(drops, 0.95), abs=1e-9)
        assert found["passes_per_token"] == run.stats.passes / run.stats.tokens
        assert found["drafted_per_token"] == run.stats.drafted / run.stats.tokens


def test_steps_of_the_drafter_are_counted(folders: Path, model: Path, tmp_path: Path) -> None:
    """A small model that is always sure drafts a token a step; one that never is steps once before a pass."""
    report = tmp_path / "report.json"
    flags = ["--dry-run", "--max-drop", "99", "--quiet", "--json", str(report)]
    flags += ["--grid", "fallback=0,0.7,1", "--rollback", "1", "--max-draft", "10"]
    assert calibrate(folders, model, *flags) == 0
    data = json.loads(report.read_text())
    always, mostly, never = (
        [each[f"{name}_per_token"] for name in ("passes", "drafter_steps", "drafted")]
        for each in data["points"]
    )
    assert always[1] == always[2] > 0
    assert mostly[2] < mostly[1] <= mostly[2] + mostly[0]
    assert never[2] < 0.1
    # But before the last token that there may be, none is drafted.
    assert never[0] - 0.1 <= never[1] <= never[0] + never[2] + 1e-9
    assert data["greedy"]["drafter_steps_per_token"] == 0


def test_other_models_are_told_apart(
    folders: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(folders, model, "--max-drop", "0.1", *GRID, "--quiet") == 0
    (stored,) = thresholds.Calibration.read(model)
    capsys.readouterr()
    use = ("--strategy", "bild", "--drafter", str(folders / "other"))
    other = nartk.load(folders / "other").checkpoint.fingerprint
    signature, lines = signature_of(model, *use, capsys=capsys)
    assert "|fallback:0.6|rollback:2.0|" in signature
    assert lines == [
        f"nartk: the thresholds in {model / 'calibration.json'} are not used: "
        f"they are for drafter {stored.drafter}, this one is {other}"
    ]
    assert decode.main([str(model), str(tmp_path / "in.txt"), *use, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    # In the library it is a warning, and only there: --stats decodes twice.
    with pytest.warns(UserWarning, match="are not used: they are for drafter"):
        nartk.load(model).strategy("bild", {"drafter": str(folders / "other")})
    _, lines = signature_of(model, *use, "--stats", str(tmp_path / "stats.json"), capsys=capsys)
    assert len(lines) == 1

    config = model / "config.json"
    config.write_text(config.read_text() + "\n")  # another fingerprint
    signature, lines = signature_of(
        model, "--strategy", "bild", "--drafter", str(folders / "small"), capsys=capsys
    )
    assert "|fallback:0.6|rollback:2.0|" in signature
    (line,) = lines
    assert f"they are for model {stored.model}, this one is " in line


def test_gad_stays_exact_unless_it_is_asked_not_to(
    folders: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--strategy", "gad", "--grid", "beta=3", "--grid", "tau=0.25,0.5", "--max-drop", "9")
    assert calibrate(folders, model, *flags, "--metric", "chrf", drafter="blockwise") == 0
    (stored,) = thresholds.Calibration.read(model)
    said = capsys.readouterr().err
    assert f"identical to greedy search without flags; use --beta 3 --tau {stored.thresholds['tau']}" in said
    use = ("--strategy", "gad", "--drafter", str(folders / "blockwise"))
    signature, lines = signature_of(model, *use, "--assert-lossless", capsys=capsys)
    assert "|beta:1|tau:3.0|" in signature
    assert lines == []
    signature, _ = signature_of(model, *use, "--beta", "3", capsys=capsys)
    assert f"|beta:3|tau:{stored.thresholds['tau']}|" in signature


def test_where_nothing_fits_nothing_is_stored(
    folders: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    flags = ("--fallback", "0.2", "--grid", "rollback=inf", "--max-draft", "10")
    flags += ("--max-drop", "0.1", "--json", str(report))
    assert calibrate(folders, model, *flags) == 1
    captured = capsys.readouterr()
    assert re.search(
        r"^nartk: no setting keeps within --max-drop 0.1; the nearest is "
        r"fallback 0.2, rollback inf, max_draft 10: "
        r"[\d.]+ times as fast, drop [\d.]+, at most [\d.]+$",
        captured.err,
        re.MULTILINE,
    )
    assert "**" not in captured.out
    assert json.loads(report.read_text())["chosen"] is None
    assert not (model / "calibration.json").exists()
    # By the estimate of the drop a setting fits that does not by its bound.
    drop = json.loads(report.read_text())["points"][0]["drop"]
    most = ("--max-drop", str(drop + 1e-6))
    assert calibrate(folders, model, *flags, *most) == 1
    assert calibrate(folders, model, *flags, *most, "--trust", "point", "--dry-run") == 0
    assert not (model / "calibration.json").exists()
    assert calibrate(folders, model, *flags, *most, "--trust", "point") == 0
    assert (model / "calibration.json").exists()


def test_an_earlier_calibration_is_not_used(folders: Path, model: Path, tmp_path: Path) -> None:
    drafter = nartk.load(folders / "small").checkpoint.fingerprint
    fingerprint = nartk.load(model).checkpoint.fingerprint
    chosen = {"fallback": 0.1, "rollback": 9.0, "max_draft": 2}
    calibrated(model=fingerprint, drafter=drafter, thresholds=chosen, options={}).store(model)
    assert calibrate(folders, model, "--max-drop", "0.1", *GRID, "--quiet") == 0
    (stored,) = thresholds.Calibration.read(model)
    assert stored.options == {"keep_best": True, "drafter_words": 0}


def test_the_command_goes_on_with_what_was_decoded(
    folders: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "report.json"
    samples = tmp_path / "report.json.samples"
    flags = ("--max-drop", "99", "--dry-run", "--json", str(report), "--rounds", "2")
    decoded: list[Setting | None] = []
    stop = 0
    measure = command._Measure.__call__

    def counting(self: Any, setting: Setting | None) -> TimedOutput:
        if stop and len(decoded) == stop:
            raise KeyboardInterrupt
        decoded.append(setting)
        return measure(self, setting)

    def told(*more: str, code: int = 0) -> str:
        decoded.clear()
        assert calibrate(folders, model, *flags, *more) == code
        return capsys.readouterr().err

    monkeypatch.setattr(command._Measure, "__call__", counting)
    stop = 4
    told(*GRID, code=130)
    assert not report.exists()
    stop = 0
    err = told(*GRID)
    # Of two settings and greedy search in two rounds two were left, and greedy search for their times.
    half, whole = ({"fallback": 0.2, "rollback": each, "max_draft": 10} for each in (0.5, math.inf))
    assert decoded == [None, whole, half]
    assert f"nartk: goes on after 4 decodings in {samples}; without it all are timed anew\n" in err
    lines = re.findall(r"nartk: round (\d) of 2: (.*): \d+ tokens/s", err)
    assert lines == [("2", f"fallback 0.2, rollback {each}, max_draft 10") for each in ("inf", "0.5")]
    first = json.loads(report.read_text())
    assert first["taken_over"] == 4

    # What scores and chooses may change, and so may the number of rounds.
    told(*GRID, "--metric", "bleu", "--max-drop", "98", "--quiet")
    assert decoded == []
    second = json.loads(report.read_text())
    assert (second["metric"], second["taken_over"]) == ("bleu", 6)
    assert [each["speeds"] for each in second["points"]] == [each["speeds"] for each in first["points"]]
    told(*GRID, "--rounds", "3", "--quiet")
    assert decoded == [None, half, whole]
    told(*GRID, "--rounds", "1", "--quiet")
    assert decoded == []

    # What is decoded may not.
    one = ["--grid", "fallback=0.3", "--grid", "rollback=2", "--max-draft", "10"]
    kept = samples.read_bytes()
    for changed, message in (
        (one, "grid {'fallback': [0.2], 'rollback': [0.5, inf], 'max_draft': [10]}, now it is {'fallback': "),
        ([*GRID, "--batch-size", "3"], "batch_size 32, now it is 3"),
        ([*GRID, "--dtype", "bf16"], "dtype 'fp32', now it is 'bf16'"),
    ):
        err = told(*changed, code=4)
        assert f"{samples}: was begun with {message}" in err
        assert "Fix: give the settings of that run, or another --json" in err
        assert decoded == []
    assert samples.read_bytes() == kept
    with Journal.open(tmp_path / "other.json.samples", b"somebody's"):
        pass
    err = told(*GRID, "--json", str(tmp_path / "other.json"), code=4)
    assert f"{tmp_path}/other.json.samples: not a journal of nartk-calibrate. Fix: choose another" in err


def test_a_picture_is_drawn(folders: Path, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "front.png"
    flags = ("--max-drop", "0.1", *GRID, "--dry-run", "--quiet", "--plot", str(picture))
    assert calibrate(folders, model, *flags) == 0
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_metrics_are_those_of_nartk_score(
    folders: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GLEU needs the source too, and options of a metric are its own."""
    report = tmp_path / "report.json"
    out = tmp_path / "out.txt"
    for metric, options in (("gleu", []), ("chrf", ["--word-order", "2"])):
        flags = ["--metric", " ".join([metric, *options]), "--max-drop", "99", "--dry-run", "--quiet"]
        flags += ["--fallback", "0.5", "--rollback", "9", "--json", str(report)]
        assert (
            calibrate(folders, model, *flags, "--fallback", "0.5", "--rollback", "9", "--json", str(report))
            == 0
        )
        found = json.loads(report.read_text())
        source, gold = str(folders / "dev.src"), str(folders / "dev.ref")
        command = [str(model), source, "--strategy", "greedy", "--output", str(out), "--quiet"]
        assert decode.main(command) == 0
        capsys.readouterr()
        given = ["--source", source] if metric == "gleu" else []
        assert score.main([metric, str(out), *given, *options, "--ref", gold, "--json"]) == 0
        wanted = json.loads(capsys.readouterr().out)
        assert found["greedy"]["score"] == wanted["score"]
        assert found["metric_signature"] == wanted["signature"]


BAD: list[tuple[list[str], int, str]] = [
    (["MODEL", "DEV", "--metric", "chrf", "--ref", "REF", "DRAFTER"], 2, r"--max-drop is missing"),
    (["MODEL", "DEV", "--max-drop", "nan", "DRAFTER", "--metric", "chrf"], 2, r"--max-drop is nan"),
    (["MODEL", "DEV", "--max-drop", "1", "DRAFTER", "--ref", "REF"], 2, r"--metric is missing.*bleu"),
    (["USUAL", "--metric", "blue"], 2, r"E102 UnknownStrategy\] no metric 'blue'"),
    (["USUAL", "--metric", "wer"], 2, r"--metric wer is an error rate, which rises where quality drops"),
    (["USUAL", "--metric", "bleu '"], 2, r"E101 Usage\] --metric is .*close the quotes"),
    (["USUAL", "--plot", "SHORT/x.png"], 6, r"E501 Output"),
    (["USUAL", "--metric", "bleu --tokenise x"], 2, r"unrecognized arguments: --tokenise"),
    (["MODEL", "DEV", "--max-drop", "1", "--metric", "chrf", "DRAFTER"], 2, r"required: --ref"),
    (["MODEL", "DEV", "--max-drop", "1", "--metric", "chrf", "--ref", "REF"], 2, r"--drafter names none"),
    (["USUAL", "--drafter", "NONE"], 2, r"E401 ModelNotFound"),
    (["USUAL", "--drafter", "BLOCKWISE"], 2, r"E103 StrategyMismatch\].*gad"),
    (["USUAL", "--strategy", "gad"], 2, r"E103 StrategyMismatch\].*autoregressive"),
    (["USUAL", "--ref", "SHORT"], 4, r"\] \S+/short has 1 sentence, but the output has \d+\. "),
    (["USUAL", "--ref", "NONE"], 2, r"E201 InputFile\].*cannot read"),
    (["MODEL", "--metric", "chrf", "--max-drop", "1"], 2, r"MODEL and DEV, but"),
    (["MODEL", "-", "--metric", "chrf", "--max-drop", "1"], 2, r"MODEL and DEV, but"),
    (["MODEL", "EMPTY", "--metric", "chrf", "--max-drop", "1", "DRAFTER"], 2, r"no sentence to decode"),
    (["USUAL", "--strategy", "speculative"], 2, r"'speculative' has no thresholds.*bild, gad"),
    (["USUAL", "--strategy", "speculative", "--grid", "block_size=3"], 2, r"there is no quality to trade"),
    (["USUAL", "--strategy", "gad", "--grid", "beta=1"], 2, r"--tau is 0.5, but with --beta 1"),
    (["USUAL", "--grid", "fallback"], 2, r"--grid is 'fallback'.*NAME=VALUE"),
    (["USUAL", "--grid", "fallback=a"], 2, r"--grid is 'fallback=a'"),
    (["USUAL", "--grid", "fallback=0.5,2"], 2, r"--fallback of 'bild' is 2.0.*between 0.0 and 1.0"),
    (["USUAL", "--grid", "exact=1"], 2, r"has no threshold 'exact'"),
    (["USUAL", "--grid", "drafter=x"], 2, r"has no threshold 'drafter'"),
    (["USUAL", "--grid", "fallback=0.5", "--fallback", "0.6"], 2, r"are both given"),
    (["USUAL", "--rounds", "0"], 2, r"--rounds is 0"),
    (["USUAL", "--plot", "front.jpg"], 2, r"--plot is 'front.jpg'"),
    (["USUAL", "--json", "SHORT/x"], 6, r"E501 Output"),
    (["gec-en", "DEV", "--max-drop", "1", "--metric", "chrf", "--ref", "REF", "DRAFTER"], 6, r"--dry-run"),
]


@pytest.mark.parametrize(("args", "code", "message"), BAD)
def test_errors_come_before_any_work(
    args: list[str],
    code: int,
    message: str,
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "short").write_text("x\n")
    (tmp_path / "empty").write_text("\n \n")
    places = {
        "MODEL": folders / "model",
        "DEV": folders / "dev.src",
        "REF": folders / "dev.ref",
        "BLOCKWISE": folders / "blockwise",
        "SHORT": tmp_path / "short",
        "SHORT/x": tmp_path / "short/x",
        "SHORT/x.png": tmp_path / "short/x.png",
        "EMPTY": tmp_path / "empty",
        "NONE": tmp_path / "none",
    }
    drafter = ["--drafter", str(folders / "small")]
    usual = [
        str(places["MODEL"]),
        str(places["DEV"]),
        *drafter,
        "--max-drop",
        "1",
        "--ref",
        str(places["REF"]),
    ]
    more = {"DRAFTER": drafter, "USUAL": [*usual, "--metric", "chrf"]}
    flags = [each for arg in args for each in more.get(arg, [str(places.get(arg, arg))])]
    assert main([*flags, "--quiet"]) == code
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert re.search(message, line), line
    assert captured.out == ""
    assert not (folders / "model" / "calibration.json").exists()


def test_a_folder_that_cannot_be_written_is_found_out_first(
    folders: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**where: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert calibrate(folders, model, "--max-drop", "0.1", *GRID) == 6
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"E501 Output\].*calibration.json: cannot write: Permission denied.*--dry-run", line)


def test_a_sentence_that_cannot_be_decoded_ends_it(
    folders: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, gold = tmp_path / "long.src", tmp_path / "long.ref"
    source.write_text("she go\n" + "she " * 100 + "\n")
    gold.write_text("she goes\nshe\n")
    command = [str(model), str(source), "--drafter", str(folders / "small"), "--metric", "chrf"]
    command += ["--max-drop", "99", "--ref", str(gold), "--quiet", "--fallback", "0.5", "--rollback", "0"]
    command += ["--max-draft", "10"]
    assert main(command) == 3
    assert f"E203 InputTooLong] {source}:2: 100 tokens" in capsys.readouterr().err
    assert main([*command, "--truncate", "--rounds", "1"]) == 0


def test_help_has_examples_and_comes_without_torch() -> None:
    code = (
        "import sys; from nartk.cli.calibrate import main; main(['--help']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0
    assert "examples:\n  nartk-calibrate MODEL dev.en --drafter SMALL" in done.stdout
    assert "--max-drop X" in done.stdout
