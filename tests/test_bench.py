"""nartk-bench: what it refuses, what it measures, and what its figures say."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import random
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.metrics import chrf_score
from support.parallel_drafters import write_network
from support.scripted_passes import Table, TablePasses, decode
from support.tiny import SENTENCES, random_model
from support.wrong_strategies import own_strategies as own_strategies
from support.wrong_strategies import swapping, wrong_strategy

from nartk.bench import report, runner
from nartk.bench import worker as bench_worker
from nartk.bench.choose import Given
from nartk.bench.engines import NartkEngine, parse_spec, program
from nartk.bench.forced import ForcedPasses
from nartk.bench.peers import HuggingFacePeer, Program
from nartk.bench.quality import Quality
from nartk.bench.runner import Cell, EngineRuns, Measurement
from nartk.bench.specs import Setup, Spec
from nartk.bench.turns import EngineError, worker
from nartk.bench.work import Workload, random_job
from nartk.bench.worker import _Server
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.bench import main
from nartk.cli.score import scorer_of
from nartk.engine import LEFT_OUT, available
from nartk.errors import LengthMismatchError, NartkError, UnknownStrategyError, UsageError
from nartk.metrics.bootstrap import compare
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy, strategies
from nartk.serving import loading
from nartk.serving.loading import load
from nartk.serving.model import Model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"))


# Figures.


def sample(seconds: float, tokens: list[list[int]], **values: Any) -> Measurement:
    filled: dict[str, Any] = {
        "texts": [" ".join(map(str, row)) for row in tokens],
        "latencies": [],
        "passes": None,
        "drafted": None,
        "accepted": None,
        "peak_mb": 100.0,
    }
    return Measurement(seconds=seconds, tokens=tokens, **(filled | values))


def cell_of(*series: EngineRuns, forced: bool = False) -> Cell:
    job = Workload(("a", "b"), (9, 9), ("a", "b") if forced else None)
    return Cell(job, 1, None, list(series))


GREEDY = EngineRuns(
    Spec("greedy", "greedy", {}, "fp32"),
    "signature",
    [
        sample(4.0, [[5, 6, 2], [7, 2]], latencies=[3.0, 1.0], passes=5, drafted=0, accepted=0),
        sample(6.0, [[5, 6, 2], [7, 2]], latencies=[5.0, 1.0], passes=5, drafted=0, accepted=0),
        sample(5.0, [[5, 6, 2], [7, 2]], latencies=[4.0, 1.0], passes=5, drafted=0, accepted=0),
    ],
)


def series(label: str, seconds: list[float], tokens: list[list[int]], **values: Any) -> EngineRuns:
    spec = parse_spec(label, "fp32")
    return EngineRuns(spec, "", [sample(each, tokens, **values) for each in seconds])


def test_ratios_are_paired_by_round() -> None:
    iad = series("iad", [1.0, 2.0, 1.0], [[5, 6, 2], [7, 2]], passes=2, drafted=6, accepted=3)
    hf = series("hf", [8.0, 6.0, 10.0], [[5, 6, 2], [7, 3]])
    peer = series("ctranslate2", [3.0, 3.0, 2.0], [[5, 6, 2], [7, 2]])
    summary = report.summarize(cell_of(GREEDY, iad, hf, peer))
    greedy, fast, other, _ = summary["engines"]
    assert greedy["tokens_per_second"] == 1.0
    assert greedy["over_hf"] == {"median": 2.0, "low": 1.0, "high": 2.0}
    assert greedy["latency_ms"] == {"p50": 1000.0, "p90": 5000.0, "p99": 5000.0}
    assert fast["over_greedy"] == {"median": 4.0, "low": 3.0, "high": 5.0}
    assert fast["over_hf"] == {"median": 8.0, "low": 3.0, "high": 10.0}
    assert fast["over_ctranslate2"] == {"median": 2.0, "low": 1.5, "high": 3.0}
    assert (fast["passes_per_sentence"], fast["accepted_per_pass"]) == (1.0, 1.5)
    assert (fast["differ"], fast["lossless"]) == (0, True)
    assert (other["differ"], other["lossless"], other["over_hf"]) == (1, False, None)
    assert report.broken([summary]) == []


def test_a_lossless_strategy_that_differs_breaks_its_promise() -> None:
    wrong = [[5, 6, 2], [8, 2]]
    summary = report.summarize(cell_of(GREEDY, series("iad", [1.0] * 3, wrong)))
    assert report.broken([summary]) == ["iad fp32, batch 1: 1 of 2 sentences are not greedy search's"]
    beam = report.summarize(cell_of(GREEDY, series("beam", [1.0] * 3, wrong)))
    assert (beam["engines"][1]["differ"], report.broken([beam])) == (1, [])


def test_once_is_enough_to_break_a_promise() -> None:
    iad = series("iad", [1.0] * 3, [[5, 6, 2], [7, 2]])
    iad.samples[2] = dataclasses.replace(iad.samples[2], tokens=[[5, 2], [7, 2]])
    assert len(report.broken([report.summarize(cell_of(GREEDY, iad))])) == 1


def test_forced_outputs_of_a_peer_are_not_compared() -> None:
    summary = report.summarize(cell_of(GREEDY, series("hf", [1.0] * 3, [[9], [9]]), forced=True))
    assert summary["engines"][1]["differ"] is None


def test_the_table_lists_what_did_not_run() -> None:
    absent = EngineRuns(parse_spec("fairseq", "fp32"), not_run="it is not installed")
    summary = report.summarize(cell_of(GREEDY, absent))
    assert report.table([summary]) == (
        "| engine | promise | type | batch | tokens/s | passes | p50 ms | p90 ms | p99 ms | MB | differ |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| greedy | identical to greedy | fp32 | 1 | 1 | 2.50 | 1000.0 | 5000.0 | 5000.0 | 100 | 0 |\n"
        "\n"
        "not run: fairseq fp32, batch 1: it is not installed"
    )


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    absent = EngineRuns(parse_spec("fairseq", "fp32"), not_run="it is not installed")
    iad = series("iad", [1.0, 2.0, 1.0], [[5, 6, 2], [7, 2]])
    summaries = [report.summarize(cell_of(GREEDY, iad, absent)), report.summarize(cell_of(GREEDY))]
    report.plot(summaries, tmp_path / f"ratios{suffix}")
    head = (tmp_path / f"ratios{suffix}").read_bytes()[:5]
    assert head in (b"\x89PNG\r", b"<?xml")


# Engines by name.


def test_an_engine_is_a_name_with_options() -> None:
    assert parse_spec("iad:anchor=unique:adaptive=0", "bf16") == Spec(
        "iad:anchor=unique:adaptive=0", "iad", {"anchor": "unique", "adaptive": False}, "bf16"
    )
    assert parse_spec("beam:length_penalty=0.6:beam_size=3", "fp32").options == {
        "length_penalty": 0.6,
        "beam_size": 3,
    }
    assert parse_spec("ctranslate2:int8=1:replicas=2", "fp32").options == {"int8": True, "replicas": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iad:anchors=unique", "'iad:anchors=unique' sets 'anchors=unique'"),
        ("hf:int8", "'hf:int8' sets 'int8'"),
        ("hf:int8=yes", "'hf:int8=yes' has the value 'yes'"),
        ("beam:beam_size=many", "'beam:beam_size=many' has the value 'many'"),
    ],
)
def test_a_wrong_option_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec(text, "fp32")
    assert caught.value.message == message


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UnknownStrategyError):
        parse_spec("gredy", "fp32")


# Work.


def test_forced_outputs_differ_from_their_sources_in_so_many_words() -> None:
    for edits in (0, 1, 3):
        job = random_job("tiny", sentences=5, source_len=30, edits=edits, seed=1, limit=99)
        assert job.forced is not None
        assert job.limits == (31,) * 5
        for line, output in zip(job.lines, job.forced, strict=True):
            *words, eos = output.split()
            assert eos == "</s>"
            assert sum(a != b for a, b in zip(line.split(), words, strict=True)) == edits
    free = random_job("tiny", sentences=5, source_len=30, edits=None, seed=1, limit=99)
    assert (free.forced, free.limits) == (None, (99,) * 5)
    assert Workload.from_dict(json.loads(json.dumps(dataclasses.asdict(job)))) == job


def test_drafts_and_prefixes_go_with_their_sentences() -> None:
    drafts, prefixes = (("x", "y"), (), ("z",)), ("", "p", "q")
    job = Workload(("a", "b", "c"), (1, 2, 3), drafts=drafts, prefixes=prefixes, truncate=True)
    assert job.part(1, 3) == Workload(
        ("b", "c"), (2, 3), drafts=((), ("z",)), prefixes=("p", "q"), truncate=True
    )
    assert Workload.from_dict(json.loads(json.dumps(dataclasses.asdict(job)))) == job


# Engines that models allow.

WORDS = [f"{letter}{end}" for letter in "abcdefgh" for end in ("", "x", "y")]
LINES = ("a b c d", "e e e a", "d c b a f g a b c d", "e e e a")
UNION = "union:drafters=ngram,recycling"
SKIP = "speculative:drafter=self:skip=decoder.0.self,decoder.0.ffn"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model, a smaller one, one of other words, and non-autoregressive ones; a file of sentences."""
    folder = tmp_path_factory.mktemp("models")

    for seed, kind in enumerate(("transformer", "blockwise", "nat", "ctc", "dag"), start=5):
        write_network(folder / kind, kind, WORDS, seed)
    random_model(folder / "large", words=WORDS, layers=3, seed=7)  # one that says something
    write_network(folder / "foreign", "transformer", WORDS[::-1], 5)
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    names = ("transformer", "large", "foreign", "blockwise", "nat", "ctc", "dag", "in.txt")
    return {name: str(folder / name) for name in names}


def decodes(model: Model, name: str, options: dict[str, Any]) -> bool:
    try:
        model.decode(LINES[:1], name, max_len=3, **options)
    except NartkError:
        return False
    return True


@pytest.mark.parametrize("given_models", [("large", "transformer", "ctc"), ("nat", "transformer")])
def test_all_are_those_that_decode(given_models: tuple[str, ...], folders: dict[str, str]) -> None:
    names = [folders[name] for name in given_models]
    given = Given(names[0], names[1:], drafts=False)
    found = {(spec.name, spec.model, spec.options.get("drafter", "")) for spec in given.every("fp32")}
    wanted = set()
    models = {name: load(name) for name in names}
    for name in strategies():
        if name == "verify":
            continue
        for place in names:
            pairs = {
                drafter for drafter in ("", *names[1:])
                if decodes(models[place], name, {"drafter": drafter} if drafter else {})
            }  # fmt: skip
            wanted |= {(name, "" if place == names[0] else place, drafter) for drafter in pairs}
            if pairs and place == names[0]:
                break
    assert found == wanted
    assert len(found) > 7
    given.require_used()


def test_drafts_let_verify_in(folders: dict[str, str]) -> None:
    for drafts in (False, True):
        given = Given(folders["large"], [], drafts=drafts)
        assert ("verify" in [spec.label for spec in given.every("fp32")]) == drafts
        assert ("left out: verify: reads drafts, and none are given" in given.reasons()) != drafts


def test_a_drafter_that_none_takes_is_refused(folders: dict[str, str]) -> None:
    given = Given(folders["large"], [folders["foreign"]], drafts=False)
    assert all(not spec.model and not spec.options for spec in given.every("fp32"))
    with pytest.raises(UsageError, match="is taken by no engine: the model and drafter"):
        given.require_used()
    with pytest.raises(UsageError, match="'gad' takes no drafter that is given: the model and"):
        given.named(parse_spec("gad", "fp32"))


def test_a_named_strategy_is_put_to_its_drafters(folders: dict[str, str]) -> None:
    small, ctc = folders["transformer"], folders["ctc"]
    given = Given(folders["large"], [small, ctc], drafts=False)
    (pair,) = given.named(parse_spec("speculative:block_size=3", "bf16"))
    assert pair == Spec(
        f"speculative:block_size=3:drafter={small}",
        "speculative",
        {"block_size": 3, "drafter": small},
        "bf16",
    )
    assert given.reasons() == [
        f"left out: speculative:block_size=3:drafter={ctc}: drafter needs a PassScorer, the model it names "
        "is none"
    ]
    own = parse_spec("gad:drafter=x", "fp32")
    assert given.named(own) == [own]
    assert given.named(parse_spec("greedy", "fp32")) == [parse_spec("greedy", "fp32")]
    assert f"hf:assistant={small}" in given.peers()
    assert f"hf:assistant={ctc}" not in given.peers()


def test_a_drafter_is_loaded_once(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_spec(f"speculative:drafter={folders['transformer']}", "fp32")
    engine = NartkEngine(spec, Setup(folders["large"], "cpu", 1))
    monkeypatch.setattr(loading, "load", None)
    outcome = engine.decode(Workload(LINES, (9,) * 4), 1)
    assert (len(outcome.tokens), len(outcome.latencies)) == (4, 4)
    assert all(outcome.texts)
    assert outcome.drafted


def test_a_strategy_learns_within_a_job_alone_as_in_a_batch(folders: dict[str, str]) -> None:
    setup, job = Setup(folders["large"], "cpu", torch.get_num_threads()), Workload(LINES, (40,) * 4)
    engine = _Server()
    engine.load(dataclasses.asdict(parse_spec("ngram:adaptive=0", "fp32")), dataclasses.asdict(setup))
    reply = engine.run(0, dataclasses.asdict(job), 1)
    apart = [engine.run(0, dataclasses.asdict(job.part(i, i + 1)), 1) for i in range(4)]
    assert reply["tokens"] == [row for each in apart for row in each["tokens"]]
    assert reply["passes"] < sum(each["passes"] for each in apart)  # the second and the fourth are the same
    assert len(reply["latencies"]) == 4


@pytest.mark.parametrize(
    ("together", "device", "seconds"),
    [(False, "cpu", 10.0), (True, "cpu", 1.0), (False, "cuda", 10.0), (True, "cuda:0", 10.0)],
)
def test_time_is_the_cpus_alone_where_a_process_is_shared(
    *, together: bool, device: str, seconds: float, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(folders["large"], "cpu", torch.get_num_threads(), together)
    engine = _Server()
    specs = [parse_spec(each, "fp32") for each in ("greedy", "iad")]
    replies = [engine.load(dataclasses.asdict(spec), dataclasses.asdict(setup)) for spec in specs]
    assert [reply["engine"] for reply in replies] == [0, 1]
    first, second = engine.engines
    assert first.model.passes is second.model.passes
    assert [each.strategy.name for each in engine.engines] == ["greedy", "iad"]
    engine.setup = dataclasses.replace(setup, device=device)
    wall, cpu = Ticks(step=10.0), Ticks(step=1.0)
    clocks = SimpleNamespace(perf_counter=wall.perf_counter, process_time=cpu.perf_counter)
    monkeypatch.setattr(bench_worker, "time", clocks)
    reply = engine.run(1, dataclasses.asdict(Workload(LINES[:2], (9, 9))), 2)
    assert reply["seconds"] == seconds
    assert (reply["peak_mb"] is None) is together


# Quality.


def said(rng: random.Random, count: int) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=8)) for _ in range(count)]


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, list[str], list[str], list[str]]:
    """References in a file, and two systems that say some of them."""
    rng = random.Random(1)
    references = said(rng, 30)
    first, second = (
        [text if rng.random() < p else said(rng, 1)[0] for text in references] for p in (0.6, 0.5)
    )
    path = tmp_path / "ref"
    path.write_text("".join(f"{text}\n" for text in references))
    return path, references, first, second


def test_only_what_is_decoded_is_scored(texts: tuple[Path, list[str], list[str], list[str]]) -> None:
    path, references, first, second = texts
    scorer = scorer_of("chrf", references=[str(path)], source="")
    for rows in (range(30), [0, 3, 4, 17, 28, 29]):
        quality = Quality("chrf", scorer, rows, 30, path.with_name("out"))
        mine, theirs = ([each[row] for row in rows] for each in (first, second))
        wanted = [chrf_score([[references[row] for row in rows]], each) for each in (mine, theirs)]
        assert quality.of(mine).score == pytest.approx(wanted[0].score)
        assert quality.of(mine).sentences == len(rows)
        found, by_hand = quality.difference(mine, theirs), compare(*wanted)
        assert found.difference == pytest.approx(by_hand.difference)
        assert found.interval.low == pytest.approx(by_hand.interval.low)
        assert found.interval.high == pytest.approx(by_hand.interval.high)
        assert found.p_value == by_hand.p_value
        assert by_hand.interval.low < by_hand.difference < by_hand.interval.high
    # Known bad: what is not decoded has a weight.
    assert scorer(str(path.with_name("out")))[0].score < wanted[1].score - 5


def test_references_that_do_not_fit_are_refused(texts: tuple[Path, list[str], list[str], list[str]]) -> None:
    path, _, first, _ = texts
    scorer = scorer_of("chrf", references=[str(path)], source="")
    with pytest.raises(LengthMismatchError):
        Quality("chrf", scorer, range(30), 31, path.with_name("out")).of(first)


def scored(path: Path, *series: EngineRuns) -> dict[str, Any]:
    references = path / "ref"
    references.write_text("5 6 2\n7 2\n")
    scorer = scorer_of("chrf", references=[str(references)], source="")
    quality = Quality("chrf", scorer, range(2), 2, path / "out")
    return report.summarize(cell_of(*series), [quality])


class Ticks:
    """A clock that goes on by so many seconds whenever it is read."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def perf_counter(self) -> float:
        self.now += self.step
        return self.now


@pytest.mark.parametrize("spec", ["iad", "gad:drafter=ctc"])
def test_the_loop_over_passes_tells_where_its_time_goes(spec: str, folders: dict[str, str]) -> None:
    spec = spec.replace("ctc", folders["ctc"])
    engine = NartkEngine(parse_spec(spec, "fp32"), Setup(folders["large"], "cpu", 1))
    start = time.perf_counter()
    found = engine.costs(Workload(tuple(LINES[:2]), (30, 30)), 1)
    whole = time.perf_counter() - start
    assert found is not None
    assert tuple(found) == report.PARTS
    assert all(seconds > 0 for seconds in found.values())
    assert sum(found.values()) < whole


def test_a_strategy_that_keeps_no_times_tells_no_costs(folders: dict[str, str]) -> None:
    engine = NartkEngine(parse_spec("ctc-greedy", "fp32"), Setup(folders["ctc"], "cpu", 1))
    assert engine.costs(Workload(tuple(LINES[:2]), (30, 30)), 1) is None


def test_costs_are_medians_a_sentence() -> None:
    greedy = dataclasses.replace(GREEDY, samples=list(GREEDY.samples))
    took = [(1, 0, 6, 1), (1, 0, 8, 1), (1, 0, 80, 1)]  # seconds of two sentences
    greedy.samples = [
        dataclasses.replace(each, costs=dict(zip(report.PARTS, seconds, strict=True)))
        for each, seconds in zip(greedy.samples, took, strict=True)
    ]
    gad = series("gad", [1.0], [[5, 6, 2], [7, 2]], passes=2, drafted=6, accepted=3)
    gad.samples[0] = dataclasses.replace(
        gad.samples[0], costs=dict(zip(report.PARTS, (1, 3, 3, 1), strict=True))
    )
    summary = report.summarize(cell_of(dataclasses.replace(greedy, samples=greedy.samples[:1]), gad))
    *_, first, second = report.cost_table([summary]).splitlines()
    assert first.split(" | ")[3:] == [
        "500.00",
        "0.00",
        "3000.00",
        "500.00",
        "12%",
        "1200.00",
        "1.00",
        "1.00",
        "1.00 |",
    ]
    # 8 seconds as greedy search's; 5 without draft. Passes and tokens: 2 and 5.
    assert second.split(" | ")[3:] == [
        "500.00",
        "1500.00",
        "1500.00",
        "500.00",
        "50%",
        "1500.00",
        "2.50",
        "1.00",
        "1.60 |",
    ]
    assert report.summarize(cell_of(greedy))["engines"][0]["costs"]["verify"] == 4000.0
    assert report.cost_table([report.summarize(cell_of(GREEDY))]) == ""


def test_figures_say_how_good_outputs_are(tmp_path: Path) -> None:
    same, worse = (series("iad", [1.0] * 3, row) for row in ([[5, 6, 2], [7, 2]], [[5, 6, 2], [8, 3]]))
    absent = EngineRuns(parse_spec("fairseq", "fp32"), not_run="it is not installed")
    summary = scored(tmp_path, GREEDY, same, worse, absent)
    greedy, iad, wrong, _ = (entry.get("quality", {}).get("chrf") for entry in summary["engines"])
    assert (greedy["score"], greedy["comparison"]) == (100.0, None)
    assert iad["score"] == 100.0
    comparison = iad["comparison"]
    interval = comparison["interval"]
    assert (comparison["baseline"], comparison["difference"]) == (100.0, 0.0)
    assert (interval["low"], interval["high"], interval["level"]) == (0.0, 0.0, 0.95)
    assert wrong["score"] < 100.0
    assert wrong["comparison"]["difference"] == pytest.approx(wrong["score"] - 100.0)
    assert wrong["comparison"]["interval"]["high"] <= 0.0
    header, _, *rows, _, last = report.table([summary]).split("\n")
    assert header.endswith(" | differ | chrf | less greedy |")
    assert rows[0].endswith(" | 0 | 100 | - |")
    assert rows[1].endswith(" | 0 | 100 | +0 (+0 to +0) |")
    assert last.startswith("not run: fairseq")


def test_another_model_is_compared_by_text_and_promises_nothing() -> None:
    other = series("iad:model=small", [1.0] * 3, [[15, 16], [17]], texts=["5 6 2", "8"])
    summary = report.summarize(cell_of(GREEDY, other))
    assert (summary["engines"][1]["differ"], report.broken([summary])) == (1, [])


def test_a_page_holds_what_makes_it_reproducible(tmp_path: Path) -> None:
    summary = scored(tmp_path, GREEDY, series("iad", [1.0] * 3, [[5, 6, 2], [7, 2]]))
    environment = {
        "gpu": None, "cpu": "A CPU", "cores": 2, "load_average": 0.5,
        "versions": {"nartk": "1", "fairseq": None},
    }  # fmt: skip
    found = {
        "command": ["nartk-bench", "a b"], "model": "m", "rounds": 3, "threads": [1, 2],
        "clock": "process_time",
        "environment": environment, "cells": [summary],
    }  # fmt: skip
    page = report.page(found)
    assert page.startswith(
        "# nartk-bench\n- command: `nartk-bench 'a b'`\n- model: `m`\n- sentences: 2\n- rounds: 3\n"
        "- time: of the CPU, all engines in one process\n- hardware: A CPU, 2 cores, 1 and 2 threads\n"
        "- load average: 0.50 at the start\n- versions: nartk 1\n\n|"
    )
    assert report.table([summary]) in page
    assert "\nSignatures:\n- `signature`\n- `nrefs:1|" in page


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
def test_quality_is_drawn_beside_speed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn: dict[str, int] = {}
    for name, summary in (
        ("without", report.summarize(cell_of(GREEDY))),
        ("with", scored(tmp_path, GREEDY, series("iad", [1.0] * 3, [[5, 6, 2], [8, 2]]))),
    ):
        report.plot([summary], tmp_path / f"{name}.svg")
        drawn[name] = (tmp_path / f"{name}.svg").read_text().count('<g id="axes_')
    assert drawn == {"without": 1, "with": 2}


# The command.


def failing(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rounds", "0"], "--rounds is 0"),
        (["--batch-size", "1,x"], "--batch-size is '1,x'"),
        (["--batch-size", "0"], "--batch-size is '0'"),
        (["--dtype", "fp64"], "--dtype is 'fp64'"),
        (["--peers", "marian"], "no peer 'marian'"),
        (["--strategies", "iad:max_draft=-1"], "--max-draft of 'iad' is -1"),
        (["--forced-edits", "31"], "--forced-edits is 31, above --source-len 30"),
        (["--max-len", "10"], "--max-len is 10, too short for an output of --source-len 30 words"),
        (["model", "file"], "--random with a MODEL or a FILE"),
        (["--plot", "ratios.bmp"], "--plot is 'ratios.bmp'"),
        (["--ref", "ref.txt"], "--random with --ref"),
        (["--drafts", "drafts.txt"], "--random with --drafts"),
        (["--prefix-column", "2"], "--random with --prefix-column"),
        (["--truncate"], "--random with --truncate"),
        (["--source-lang", "deu_Latn"], "--random with --source-lang"),
        (["--together", "--peers", "hf"], "--together with other libraries"),
        (["--threads", "1,0"], "--threads is '1,0'"),
        (["--peer", "mine=cat"], "--random with --peer"),
        (["--strategies", "ctc-greedy:model=xyz"], "no architecture 'xyz'"),
        (["--peers", "hf:assistants=x"], "'hf:assistants=x' sets 'assistants=x'"),
        (["--strategies", "verify"], "strategy 'verify' reads drafts, and none are given"),
    ],
)
def test_what_cannot_be_done_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failing(capsys, "--random", "tiny", *argv)


def test_edits_need_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--forced-edits without --random" in failing(capsys, "--forced-edits", "1")


def test_a_file_without_sentences_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n   \n" + "x " * 500 + "\n")
    assert "no sentence to decode" in failing(capsys, str(model), str(tmp_path / "in.txt"))


def test_engines_are_measured_and_agree(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(["", *SENTENCES]) + "\n")
    argv = [str(model), str(tmp_path / "in.txt"), "--limit", "3", "--rounds", "2", "--batch-size", "1,2"]
    argv += [
        "--strategies",
        "iad",
        "--max-len",
        "20",
        "--threads",
        "1",
        "--json",
        str(tmp_path / "out.json"),
    ]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 2 + 4
    assert "1 line left out" in captured.err
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["command"] == ["nartk-bench", *argv]
    assert found["threads"] == [1]
    assert [cell["batch_size"] for cell in found["cells"]] == [1, 2]
    for cell in found["cells"]:
        assert cell["sentences"] == 3
        greedy, iad = cell["engines"]
        assert (greedy["engine"], iad["engine"]) == ("greedy", "iad")
        assert (greedy["differ"], iad["differ"], iad["lossless"]) == (0, 0, True)
        assert len(iad["seconds"]) == 2
        assert iad["over_greedy"]["low"] <= iad["over_greedy"]["median"] <= iad["over_greedy"]["high"]
        assert iad["passes_per_sentence"] <= greedy["passes_per_sentence"]
        assert 10 < greedy["peak_mb"] < 10_000
        assert "strategy:iad" in iad["signature"]
        for entry in (greedy, iad):
            assert 0 < entry["latency_ms"]["p50"] <= entry["latency_ms"]["p99"] < 1000 * max(entry["seconds"])
            assert entry["quality"] == {}


def test_prefixes_and_long_sentences_are_decoded_as_nartk_decode_does(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = load(folders["large"])
    words = large.max_source_len
    rows = [(LINES[0], "hy ax"), (" ".join([LINES[1]] * words), ""), (LINES[2], "b")]
    source = tmp_path / "in.tsv"
    source.write_text("".join("\t".join(row) + "\n" for row in rows))
    # Engines answer in other processes: what they say is scored against what they should say.
    cut = [" ".join(line.split()[:words]) for line, _ in rows]
    run = large.run(cut, options={"max_len": 12}, prefixes=[prefix for _, prefix in rows])
    wanted = [hypotheses[0].text for hypotheses in run.hypotheses]
    assert (wanted[0][:5], wanted[2][:1]) == ("hy ax", "b")
    plain = [each.text for each in large.decode(cut, max_len=12)]
    assert all((a == b) is (i == 1) for i, (a, b) in enumerate(zip(wanted, plain, strict=True)))
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in wanted))
    # Known to be wrong: the prefixes left out.
    assert chrf_score([wanted], plain).score < 100
    argv = [folders["large"], str(source), "--prefix-column", "2", "--truncate", "--rounds", "1", "--threads"]
    argv += ["1", "--batch-size", "2", "--max-len", "12", "--ref", str(tmp_path / "ref"), "--metric", "chrf"]
    message = failing(capsys, *argv, "--peers", "hf")
    assert "the sentences have prefixes, which --peers cannot be given" in message
    assert main([*argv, "--json", str(tmp_path / "out.json")]) == 0
    assert "left out" not in capsys.readouterr().err
    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert cell["sentences"] == 3
    for engine in cell["engines"]:
        assert (engine["differ"], engine["quality"]["chrf"]["score"]) == (0, 100.0)


def test_a_peer_reads_what_a_strategy_reads(folders: dict[str, str]) -> None:
    large = load(folders["large"])
    line = " ".join(["a b c d"] * large.max_source_len)
    peer = HuggingFacePeer()
    peer.checkpoint = large.checkpoint
    assert peer._encode(line, truncate=True) == [*large.encode(line, truncate=True)]
    assert len(peer._encode(line, truncate=False)) > large.max_source_len + 1
    assert peer._encode("a b", truncate=True) == [*large.encode("a b")]


def test_quality_is_measured_with_speed(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts, references = tmp_path / "drafts", tmp_path / "ref"
    drafts.write_text("a\nb\tc\n\nd\n")
    wanted = ["ax ax b", "hy hy", "gy dx", "c"]
    references.write_text("".join(f"{line}\n" for line in wanted))
    argv = [folders["large"], folders["in.txt"], "--strategies", "verify:adaptive=0", "--rounds", "1"]
    argv += ["--batch-size", "4", "--max-len", "12", "--threads", "1", "--drafts", str(drafts), "--quiet"]
    argv += ["--ref", str(references), "--metric", "chrf", "--metric", "bleu --tokenize none"]
    argv += ["--json", str(tmp_path / "out.json"), "--markdown", str(tmp_path / "out.md")]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert (out.count("less greedy"), err) == (2, "")
    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    greedy, verify = cell["engines"]
    outputs = [each.text for each in load(folders["large"]).decode(LINES, max_len=12)]
    score = chrf_score([wanted], outputs).score
    assert greedy["quality"]["chrf"]["score"] == verify["quality"]["chrf"]["score"] == pytest.approx(score)
    assert score > 1
    assert "|tok:none|" in greedy["quality"]["bleu --tokenize none"]["signature"]
    assert greedy["quality"]["chrf"]["comparison"] is None
    assert verify["quality"]["chrf"]["comparison"]["difference"] == 0.0
    assert (greedy["accepted_per_pass"], verify["accepted_per_pass"] is not None) == (None, True)
    assert out.strip() in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            "--metric blue --ref {ref}",
            2,
            "no metric 'blue'. Fix: did you mean 'bleu'? choose from asr-bleu, bleu, cer, chrf, ",
        ),
        ("--ref {nowhere}", 2, "cannot read: No such file or directory. Fix: give a readable file"),
        ("--ref {short}", 4, "short has 3 sentences, but the output has 4. Fix"),
        ("--metric 'chrf --per-line x' --ref {ref}", 2, "and --per-line is for nartk-score alone"),
        ("--metric 'gleu --ref {short}'", 4, "short has 3 sentences, but the input has 4. Fix"),
        ("--metric chrf", 2, "the following arguments are required: --ref"),
        ("--strategies verify", 2, "strategy 'verify' reads drafts, and none are given. Fix: give them with"),
        ("--drafts {ref}", 2, "drafts are given, but none of greedy, iad reads them"),
        ("--strategy ngram --drafts {ref}", 2, "drafts are given, but none of ngram reads them"),
        ("--strategy greedy,iad", 2, "no strategy 'greedy,iad'"),
        ("--strategies union:drafters=ngram,rows", 2, "no strategy 'rows'"),
        ("--strategies verify --drafts {short}", 4, "has 3 lines, but there are 4 sentences"),
        ("--drafter {small}", 2, "is taken by no engine. Fix: add a strategy that drafts with it"),
        ("--strategies all --drafter {nowhere}", 2, "error[E401 ModelNotFound]"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_timed(
    flags: str,
    code: int,
    message: str,
    folders: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ref").write_text("a\nb\nc\nd\n")
    (tmp_path / "short").write_text("a\nb\nc\n")
    places = {name: str(tmp_path / name) for name in ("ref", "short", "nowhere")}
    flags = flags.format(small=folders["transformer"], **places)
    assert main([folders["large"], folders["in.txt"], *shlex.split(flags)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "loaded" not in err


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ([], ["greedy", "iad"]),
        (["--strategies", "ngram"], ["greedy", "ngram"]),
        (["--strategy", UNION], ["greedy", UNION]),
        (
            ["--strategy", UNION, "--strategies", "ngram", "--strategy", SKIP],
            ["greedy", "ngram", UNION, SKIP],
        ),
    ],
)
def test_options_of_a_strategy_may_hold_commas(
    flags: list[str], wanted: list[str], folders: dict[str, str], tmp_path: Path
) -> None:
    argv = [folders["large"], folders["in.txt"], *flags, "--together", "--rounds", "1", "--batch-size", "1"]
    argv += ["--max-len", "12", "--threads", "1", "--quiet", "--json", str(tmp_path / "out.json")]
    assert main(argv) == 0
    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert [each["engine"] for each in cell["engines"]] == wanted
    signatures = {each["engine"]: each["signature"] for each in cell["engines"]}
    if UNION in signatures:
        assert "|drafters:ngram,recycling|" in signatures[UNION]
    if SKIP in signatures:
        assert "|drafter:self:skip=decoder.0.self,decoder.0.ffn|" in signatures[SKIP]


def test_strategies_may_share_a_process(
    folders: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []

    def counted(threads: int) -> Any:
        begun.append(threads)
        return worker(threads)

    monkeypatch.setattr(runner, "worker", counted)
    argv = [folders["large"], folders["in.txt"], "--strategies", f"iad,bild:drafter={folders['transformer']}"]
    argv += ["--together", "--rounds", "2", "--batch-size", "1", "--max-len", "12", "--threads", "1"]
    page, output = tmp_path / "out.md", tmp_path / "out.json"
    argv += ["--markdown", str(page), "--json", str(output)]
    measured = {}
    for clock, name in (("process_time", "of the CPU, all engines in one process"), ("perf_counter", "wall")):
        assert main(argv) == 0
        out, err = capsys.readouterr()
        assert err.count(": loaded\n") == 3
        assert len(begun) == (1 if clock == "process_time" else 1 + 3)
        assert (" MB " in out) is (clock == "perf_counter")
        assert f"- time: {name}\n" in page.read_text()
        found = json.loads(output.read_text())
        assert found["clock"] == clock
        measured[clock] = found["cells"][0]["engines"]
        argv = [each for each in argv if each != "--together"]
    # A strategy says in company what it says alone.
    for together, alone in zip(*measured.values(), strict=True):
        for key in ("engine", "signature", "tokens", "passes_per_sentence", "accepted_per_pass", "differ"):
            assert together[key] == alone[key]


@pytest.mark.parametrize("name", ["greedy", "iad", "beam", "sample"])
def test_outputs_that_are_dictated(name: str) -> None:
    """Whatever the model finds best, in passes of its own."""
    scorer = TablePasses(Table(12, seed=3, spread=4))
    sources = [(4, 5, 6, 2), (7, 8, 2)]
    outputs = {sources[0]: [4, 9, 6, 2], sources[1]: [7, 8, 8, 9, 2]}
    requests = [Request(i, source, 9) for i, source in enumerate(sources)]
    found = decode(make_strategy(name, {}), ForcedPasses(scorer, outputs), requests, batch_size=2)
    assert [list(each.hypotheses[0].tokens) for each in found] == [*outputs.values()]
    assert (max(each.passes for each in found) == 5) == (name != "iad")
    assert scorer.in_use == (0, 0)


def test_forced_outputs_cost_known_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--random", "tiny", "--forced-edits", "0,3", "--limit", "2", "--batch-size", "2", "--rounds", "1"]
    argv += ["--strategies", "greedy,iad:adaptive=0"]
    assert main([*argv, "--threads", "1", "--json", str(tmp_path / "out.json"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    copied, edited = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert [entry["passes_per_sentence"] for entry in copied["engines"]] == [31, 1]
    assert copied["engines"][1]["accepted_per_pass"] == 30
    assert edited["engines"][0]["passes_per_sentence"] == 31
    assert 1 < edited["engines"][1]["passes_per_sentence"] <= 7
    assert [entry["tokens"] for entry in edited["engines"]] == [62, 62]


@pytest.mark.parametrize("peer", ["hf", "ctranslate2:int8=1", "fairseq"])
def test_a_peer_answers_from_its_own_process(peer: str, model: Path) -> None:
    package = {"hf": "transformers"}.get(peer, peer.partition(":")[0])
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    setup = dataclasses.asdict(Setup(str(model), "cpu", 1))
    job = dataclasses.asdict(Workload(SENTENCES[:3], (5, 6, 7)))
    with worker(1) as engine:
        loaded = engine.request("load", spec=dataclasses.asdict(parse_spec(peer, "fp32")), setup=setup)
        assert loaded["signature"].endswith("|dtype:fp32")
        reply = engine.request("run", engine=loaded["engine"], job=job, batch_size=2)
    for tokens, limit in zip(reply["tokens"], (5, 6, 7), strict=True):
        assert len(tokens) == limit or tokens[-1] == 2
    assert reply["passes"] is None


PROGRAM = """
import json, sys
kind, model, dtype, threads = sys.argv[1:]
for line in sys.stdin:
    asked = json.loads(line)
    count, tokens = len(asked["lines"]), [[len(text), 2] for text in asked["lines"]]
    if kind == "short":
        count -= 1
    if kind == "unable":
        print(json.dumps({"error": f"no {dtype}"}), flush=True)
        continue
    if kind == "gone":
        sys.exit(7)
    texts = [f"{dtype} {threads} {asked['batch_size']} {limit}" for limit in asked["limits"]]
    print(json.dumps({"seconds": 0.25, "tokens": tokens, "texts": texts[:count]}), flush=True)
"""


def command(folder: Path, kind: str) -> str:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return f"{sys.executable} {script} {kind} {{model}} {{dtype}} {{threads}}"


def test_a_program_tells_its_own_time(model: Path, tmp_path: Path) -> None:
    engine = _Server()
    spec = dataclasses.asdict(program(f"mine={command(tmp_path, 'able')}", "int8"))
    loaded = engine.load(spec, dataclasses.asdict(Setup(str(model), "cpu", 3)))
    reply = engine.run(loaded["engine"], dataclasses.asdict(Workload(SENTENCES[:2], (5, 6))), 1)
    assert loaded["signature"] == "mine|dtype:int8"
    assert (reply["seconds"], reply["latencies"]) == (0.25, [])
    assert reply["tokens"] == [[len(text), 2] for text in SENTENCES[:2]]
    assert reply["texts"] == ["int8 3 1 5", "int8 3 1 6"]
    assert (reply["peak_mb"], reply["passes"], reply["costs"]) == (None, None, None)
    engine.engines[0].close()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("short", "gave 1 texts for 2 lines"),
        ("unable", ": no fp32"),
        ("gone", " ended with status 7"),
    ],
)
def test_a_program_that_fails_says_why(kind: str, message: str, model: Path, tmp_path: Path) -> None:
    peer = Program(program(f"mine={command(tmp_path, kind)}", "fp32"), Setup(str(model), "cpu", 1))
    with pytest.raises(UsageError, match=message):
        peer.decode(Workload(SENTENCES[:2], (5, 6)), 1)
    peer.close()


@pytest.mark.parametrize("text", ["mine", "=cat", "mine= "])
def test_a_program_has_a_name_and_a_command(text: str) -> None:
    with pytest.raises(UsageError, match="peer is"):
        program(text, "fp32")


@pytest.mark.parametrize(
    ("swapped", "by", "broken"),
    [("tock", "torch", False), ("tock", "engine", True), ("a", "torch", True), ("a", "engine", True)],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_tie_breaks_no_promise_in_torch(
    swapped: str,
    by: str,
    broken: bool,
    dtype: str,
    tmp_path: Path,
    own_strategies: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if by == "torch":
        monkeypatch.setenv(LEFT_OUT, "1")
    elif not available():
        pytest.skip("there is no engine here")
    words = ["tick", "tock", "a", "b", "c", "d"]
    folder = random_model(tmp_path / "twins", words=words, seed=3, twins=("tick", "tock"))
    (tmp_path / "in.txt").write_text("a b\nc d a\ntick a\nb tock d\nd d\n")
    # `tick` and `tock` always have the same logit, of which greedy search takes the first word.
    tick, other = load(folder).checkpoint.target_vocab.ids(["tick", swapped])
    wrong_strategy("swapper", swapping(tick, other))

    class Here:
        """A worker in the test's process, which knows its strategy."""

        def __init__(self, threads: int) -> None:
            self.worker = _Server()

        def request(self, name: str, **arguments: Any) -> dict[str, Any]:
            sent = json.loads(json.dumps(arguments))
            return json.loads(json.dumps(getattr(self.worker, name)(**sent)))

    monkeypatch.setattr(runner, "worker", lambda threads: contextlib.nullcontext(Here(threads)))
    argv = [str(folder), str(tmp_path / "in.txt"), "--strategies", "greedy,swapper", "--batch-size", "2"]
    argv += ["--rounds", "2", "--threads", "1", "--dtype", dtype, "--quiet"]
    assert main([*argv, "--json", str(tmp_path / "out.json")]) == int(broken)
    printed = capsys.readouterr()
    greedy, swapper = json.loads((tmp_path / "out.json").read_text())["cells"][0]["engines"]
    assert greedy["differ"] == 0
    assert swapper["differ"] > 0
    assert swapper["broken"] == (swapper["differ"] if broken else 0)
    assert (" (ties) |" in printed.out) is not broken
    wanted = f"nartk: swapper {dtype}, batch 2: {swapper['broken']} of 5 sentences are not greedy search's\n"
    assert printed.err == (wanted if broken else "")


def test_threads_are_compared_side_by_side(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in SENTENCES[:2]))
    argv = [str(model), str(tmp_path / "in.txt"), "--rounds", "1", "--batch-size", "1", "--max-len", "9"]
    argv += ["--strategies", "greedy:replicas=2", "--threads", "1,2", "--quiet"]
    argv += ["--peer", f"mine={command(tmp_path, 'able')}", "--json", str(tmp_path / "out.json")]
    assert main(argv) == 0
    *rows, _, absent = capsys.readouterr().out.splitlines()
    assert [[cells[0], *cells[2:5]] for cells in (row.split(" | ") for row in rows)] == [
        ["| engine", "type", "threads", "batch"],
        ["| ---", "---", "---", "---"],
        ["| greedy", "fp32", "1", "1"],
        ["| mine", "fp32", "1", "1"],
        ["| greedy", "fp32", "2", "1"],
        ["| greedy:replicas=2", "fp32", "2", "1"],
        ["| mine", "fp32", "2", "1"],
    ]
    assert absent.startswith("not run: greedy:replicas=2 fp32, batch 1: UsageError: ")
    assert "2 replicas have 2 threads, more than --threads 1" in absent
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["threads"], [cell["threads"] for cell in found["cells"]]) == ([1, 2], [1, 2])


@pytest.mark.parametrize(
    ("kind", "strategy"), [("ctc", "ctc-greedy"), ("nat", "glat"), ("dag", "dag-greedy")]
)
def test_random_models_of_other_architectures_run_beside_forced_outputs(
    kind: str, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--random", "tiny", "--forced-edits", "0", "--limit", "2", "--batch-size", "2", "--rounds", "1"]
    argv += ["--strategies", f"greedy,{strategy}:model={kind}", "--threads", "1", "--source-len", "7"]
    assert main([*argv, "--json", str(tmp_path / "out.json"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    ((greedy, native),) = [
        cell["engines"] for cell in json.loads((tmp_path / "out.json").read_text())["cells"]
    ]
    assert (greedy["passes_per_sentence"], native["passes_per_sentence"]) == (8, 1)
    assert native["engine"] == f"{strategy}:model={kind}"
    assert native["over_greedy"] is not None
    if kind == "nat":  # as many places as the source has tokens
        assert native["tokens"] == 2 * 8


@pytest.fixture
def assisted(folders: dict[str, str]) -> Callable[..., Any]:
    pytest.importorskip("transformers", reason="transformers is not installed")

    def start(assistant: str) -> HuggingFacePeer:
        peer = HuggingFacePeer(assistant=folders[assistant] if assistant else "")
        peer.start(parse_spec("hf", "fp32"), Setup(folders["large"], "cpu", 1))
        return peer

    return start


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_an_assistant_changes_no_word(assisted: Callable[..., Any]) -> None:
    alone, helped = assisted(""), assisted("transformer")
    for line in LINES[:3]:
        job = Workload((line,), (12,))
        assert helped.decode(job, 1).tokens == alone.decode(job, 1).tokens
    # What transformers says of a batch.
    with pytest.raises(ValueError, match="assisted generate is only supported for batch_size = 1"):
        helped.decode(Workload(LINES[:2], (12, 12)), 2)


@pytest.mark.parametrize(
    ("assistant", "message"),
    [("ctc", "is a 'ctc', which is not autoregressive"), ("foreign", "differ")],
)
def test_an_assistant_of_another_kind_is_refused(
    assistant: str, message: str, assisted: Callable[..., Any]
) -> None:
    with pytest.raises(NartkError, match=message):
        assisted(assistant)


def test_an_engine_that_fails_says_why(model: Path) -> None:
    with worker(1) as engine:
        with pytest.raises(EngineError, match=r"^ModelNotFoundError: error\[E401 ModelNotFound\] no model"):
            engine.request(
                "load",
                spec=dataclasses.asdict(parse_spec("greedy", "fp32")),
                setup=dataclasses.asdict(Setup("nowhere", "cpu", 1)),
            )
        engine.process.kill()
        with pytest.raises(EngineError, match=r"^the process ended with status -9: .*ModelNotFound"):
            engine.request("run", engine=0, job={}, batch_size=1)


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_of_their_own_folder_the_peer_loads_the_model(folders: dict[str, str], tmp_path: Path) -> None:
    """Nothing of it goes through nartk, its generation_config.json neither."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from nartk.adapters.hf import own_or_converted, write_folder

    native = load_checkpoint(Path(folders["large"]))
    deque(write_folder(native, tmp_path, "fp32"), maxlen=0)
    made = own_or_converted(dataclasses.replace(native, folder=tmp_path))
    wanted = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert made.generation_config.to_dict() == wanted.generation_config.to_dict()
    assert made.generation_config.max_length > 1
    assert own_or_converted(native).generation_config.max_length is None
    tokens = torch.tensor([[5, 6, 7, 2]])
    assert made.generate(tokens).tolist() == wanted.generate(tokens).tolist()
