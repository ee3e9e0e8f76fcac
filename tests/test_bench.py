"""nartk-bench: what it refuses, what it measures, and what its figures say."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tiny import SENTENCES, random_model

from nartk.bench import report
from nartk.bench.engines import Setup, Spec, parse_spec
from nartk.bench.runner import Cell, EngineError, Sample, Series, worker
from nartk.bench.work import Job, random_job
from nartk.cli.bench import main
from nartk.errors import UnknownStrategyError, UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"))


# Figures.


def sample(seconds: float, tokens: list[list[int]], **values: Any) -> Sample:
    filled: dict[str, Any] = {
        "latencies": [],
        "passes": None,
        "drafted": None,
        "accepted": None,
        "peak_mb": 100.0,
    }
    return Sample(seconds=seconds, tokens=tokens, **(filled | values))


def cell_of(*series: Series, forced: bool = False) -> Cell:
    job = Job(("a", "b"), (9, 9), ("a", "b") if forced else None)
    return Cell(job, 1, None, list(series))


GREEDY = Series(
    Spec("greedy", "greedy", {}, "fp32"),
    "signature",
    [
        sample(4.0, [[5, 6, 2], [7, 2]], latencies=[3.0, 1.0], passes=5, drafted=0, accepted=0),
        sample(6.0, [[5, 6, 2], [7, 2]], latencies=[5.0, 1.0], passes=5, drafted=0, accepted=0),
        sample(5.0, [[5, 6, 2], [7, 2]], latencies=[4.0, 1.0], passes=5, drafted=0, accepted=0),
    ],
)


def series(label: str, seconds: list[float], tokens: list[list[int]], **values: Any) -> Series:
    spec = parse_spec(label, "fp32")
    return Series(spec, "", [sample(each, tokens, **values) for each in seconds])


def test_ratios_are_paired_by_round() -> None:
    iad = series("iad", [1.0, 2.0, 1.0], [[5, 6, 2], [7, 2]], passes=2, drafted=6, accepted=3)
    hf = series("hf", [8.0, 6.0, 10.0], [[5, 6, 2], [7, 3]])
    summary = report.summarize(cell_of(GREEDY, iad, hf))
    greedy, fast, other = summary["engines"]
    assert greedy["tokens_per_second"] == 1.0
    assert greedy["over_hf"] == {"median": 2.0, "low": 1.0, "high": 2.0}
    assert greedy["latency_ms"] == {"p50": 1000.0, "p90": 5000.0, "p99": 5000.0}
    assert fast["over_greedy"] == {"median": 4.0, "low": 3.0, "high": 5.0}
    assert fast["over_hf"] == {"median": 8.0, "low": 3.0, "high": 10.0}
    assert (fast["passes_per_sentence"], fast["accepted_per_pass"]) == (1.0, 1.5)
    assert (fast["differ"], fast["lossless"]) == (0, True)
    assert (other["differ"], other["lossless"], other["over_hf"]) == (1, False, None)
    assert report.broken([summary]) == []


def test_a_lossless_strategy_that_differs_breaks_its_promise() -> None:
    wrong = [[5, 6, 2], [8, 2]]
    summary = report.summarize(cell_of(GREEDY, series("iad", [1.0] * 3, wrong)))
    assert report.broken([summary]) == ["iad fp32, batch 1: 1 of 2 sentences are not greedy search's"]
    ties = report.summarize(cell_of(GREEDY, series("iad:exact=0", [1.0] * 3, wrong)))
    assert (ties["engines"][1]["differ"], report.broken([ties])) == (1, [])
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
    absent = Series(parse_spec("fairseq", "fp32"), not_run="it is not installed")
    summary = report.summarize(cell_of(GREEDY, absent))
    assert report.table([summary]) == (
        "| engine | type | batch | tokens/s | passes | p50 ms | p90 ms | p99 ms | MB | differ |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| greedy | fp32 | 1 | 1 | 2.50 | 1000.0 | 5000.0 | 5000.0 | 100 | 0 |\n"
        "\n"
        "not run: fairseq fp32, batch 1: it is not installed"
    )


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    absent = Series(parse_spec("fairseq", "fp32"), not_run="it is not installed")
    iad = series("iad", [1.0, 2.0, 1.0], [[5, 6, 2], [7, 2]])
    summaries = [report.summarize(cell_of(GREEDY, iad, absent)), report.summarize(cell_of(GREEDY))]
    report.plot(summaries, tmp_path / f"ratios{suffix}")
    head = (tmp_path / f"ratios{suffix}").read_bytes()[:5]
    assert head in (b"\x89PNG\r", b"<?xml")


# Engines by name.


def test_an_engine_is_a_name_with_options() -> None:
    assert parse_spec("iad:anchor=unique:exact=0", "bf16") == Spec(
        "iad:anchor=unique:exact=0", "iad", {"anchor": "unique", "exact": False}, "bf16"
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
    assert Job.from_dict(json.loads(json.dumps(dataclasses.asdict(job)))) == job


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
        "--output",
        str(tmp_path / "out.json"),
    ]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 2 + 4
    assert "1 lines left out" in captured.err
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["command"] == ["nartk-bench", *argv]
    assert found["environment"]["threads"] == 1
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
        assert (iad["latency_ms"] is None) == (cell["batch_size"] > 1)


def test_forced_outputs_cost_known_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--random", "tiny", "--forced-edits", "0,3", "--limit", "2", "--batch-size", "2", "--rounds", "1"]
    assert main([*argv, "--threads", "1", "--output", str(tmp_path / "out.json"), "--quiet"]) == 0
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
    job = dataclasses.asdict(Job(SENTENCES[:3], (5, 6, 7)))
    with worker(1) as engine:
        loaded = engine.ask("load", spec=dataclasses.asdict(parse_spec(peer, "fp32")), setup=setup)
        assert loaded["signature"].endswith("|dtype:fp32")
        reply = engine.ask("run", job=job, batch_size=2)
    for tokens, limit in zip(reply["tokens"], (5, 6, 7), strict=True):
        assert len(tokens) == limit or tokens[-1] == 2
    assert reply["passes"] is None


def test_an_engine_that_fails_says_why(model: Path) -> None:
    with worker(1) as engine:
        with pytest.raises(EngineError, match=r"^ModelNotFoundError: error\[E401 ModelNotFound\] no model"):
            engine.ask(
                "load",
                spec=dataclasses.asdict(parse_spec("greedy", "fp32")),
                setup=dataclasses.asdict(Setup("nowhere", "cpu", 1)),
            )
        engine.process.kill()
        with pytest.raises(EngineError, match=r"^the process ended with status -9: .*ModelNotFound"):
            engine.ask("run", job={}, batch_size=1)
