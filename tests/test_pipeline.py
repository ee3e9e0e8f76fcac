"""`Model`: other models that strategies draft with are loaded once, and only so many are kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support import tiny

import nartk
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.protocols.hypothesis import DecodeStats, Hypothesis, Result
from nartk.registry import make_strategy
from nartk.serving import loading
from nartk.serving.lines import Line
from nartk.serving.model import KEPT, Model
from nartk.serving.outcomes import summarize

WORDS = tiny.WORDS.split()
LINES = ["she go to school", "", "the big old cat sees it ."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and drafters 0, 1 and so on, one more than are kept."""
    folder = tmp_path_factory.mktemp("pipeline")
    tiny.random_model(folder / "model", words=WORDS, layers=2)
    for seed in range(KEPT + 1):
        tiny.random_model(folder / str(seed), words=WORDS, seed=seed + 2)
    (folder / "link").symlink_to(folder / "0")
    return folder


def loads(model: Model, drafters: Sequence[Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the drafters that are loaded when a strategy is made with each of these in turn."""
    loaded: list[str] = []
    read = loading.load_checkpoint

    def counting(folder: Path, **options: bool) -> Checkpoint:
        loaded.append(folder.name)
        return read(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_checkpoint", counting)
        for drafter in drafters:
            made = model.strategy("speculative", {"drafter": str(drafter)})
            # Whatever is kept, a strategy drafts with the model that it names.
            assert made.drafter == read(drafter).fingerprint
    return loaded


def loads_by_hand(drafters: Sequence[int], kept: int) -> list[str]:
    """The same, where the `kept` drafters used last are at hand."""
    recent: list[int] = []
    loaded = []
    for drafter in drafters:
        if drafter not in recent[-kept:]:
            loaded.append(str(drafter))
        recent = [*(each for each in recent if each != drafter), drafter]
    return loaded


def test_a_second_call_loads_nothing(
    folder: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nartk.load(folder / "model", device=str(device))
    first = model.decode(LINES, "speculative", drafter=str(folder / "0"))
    assert [each.tokens for each in first] == [each.tokens for each in model.decode(LINES)]
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_checkpoint", None)
        assert model.decode(LINES, "speculative", drafter=str(folder / "link")) == first
        run = model.run(LINES, "bild", {"drafter": f"{folder}/./0"})
        assert run.stats.drafted > 0
    assert loads(model, [folder / "0", folder / "1"], monkeypatch) == ["1"]


def test_those_used_last_are_kept(
    folder: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nartk.load(folder / "model", device=str(device))
    drafters = random.Random(1).choices(range(KEPT + 1), k=24)
    found = loads(model, [folder / str(each) for each in drafters], monkeypatch)
    assert found == loads_by_hand(drafters, KEPT)
    # What keeps more or fewer is told apart.
    assert found != loads_by_hand(drafters, KEPT + 1)
    assert found != loads_by_hand(drafters, KEPT - 1)


def test_what_took_no_pass_is_no_sentence_of_the_statistics() -> None:
    outputs = (Hypothesis((5, 2), -1.0),), (Hypothesis((5, 6, 2), -1.0),)
    first = Result(0, outputs[0], 0.5, passes=2, drafted=3, accepted=1)
    stats = summarize([first, Result(1, outputs[1], 0.5, passes=3), Result(2, outputs[0])], seconds=2.0)
    assert (stats.sentences, stats.tokens, stats.passes, stats.drafted, stats.accepted) == (2, 5, 5, 3, 1)
    assert stats.tokens_per_second == 2.5


def test_latency_percentiles_by_hand() -> None:
    stats = DecodeStats(latencies=[i / 1000 for i in range(1, 101)])
    assert stats.latency_ms == pytest.approx({"p50": 50.0, "p90": 90.0, "p99": 99.0})
    assert DecodeStats(latencies=[0.25]).latency_ms == {"p50": 250.0, "p90": 250.0, "p99": 250.0}
    assert DecodeStats().latency_ms == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
    assert DecodeStats().tokens_per_second == 0.0


def test_the_limit_by_hand() -> None:
    greedy = make_strategy("greedy", {"max_len": 30, "max_ratio": 1.5})
    assert [greedy.limit(n) for n in (1, 3, 13, 14, 1000)] == [11, 14, 29, 30, 30]


def test_memory_that_runs_out_in_the_host_loses_no_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails behind the decoder cannot be decoded again: the error is raised, no line is left out."""
    model, add, calls = nartk.load(folder / "model"), Line.add, []

    def failing(line: Line, number: int, result: Result) -> bool:
        calls.append(number)
        if len(calls) == 2:
            raise MemoryError
        return add(line, number, result)

    monkeypatch.setattr(Line, "add", failing)
    with pytest.raises(MemoryError):
        model.decode(LINES * 2, "greedy")
