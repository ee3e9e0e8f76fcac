"""Sessions: lines with options of their own, submitted and cancelled at any time, are decoded as if alone."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import wave
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import memory, tiny, whisper_models
from support.engine_models import on_engine
from support.scorers import TransformerEngine
from support.speech_models import save_random_speech
from support.transformers_small import SMALL, random_model

import nartk
import nartk.serving
from nartk import engine
from nartk.architectures.transformer import TransformerConfig
from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.loop import Loop
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, Scores, Want
from nartk.protocols.runs import Batching, Ended
from nartk.registry import make_strategy
from nartk.serving import Session, Ticket
from nartk.serving.line_runs import LineRun
from nartk.vocab import Vocab

if not engine.available():
    pytest.skip("there is no engine here", allow_module_level=True)

Case = tuple[str, str, dict[str, Any]]  # line, strategy, options
COUNTS = [pytest.param(150, id="some"), pytest.param(10_000, id="many", marks=pytest.mark.slow)]


def write_sounds(folder: Path, rng: random.Random, seconds: list[float], rate: int) -> list[str]:
    draw = np.random.default_rng(rng.randrange(99))
    paths = []
    for i, length in enumerate(seconds):
        samples = (9000 * draw.standard_normal(int(length * rate))).astype("<i2")
        paths.append(str(folder / f"{i}.wav"))
        with wave.open(paths[-1], "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
    return paths


def text_cases(folder: Path, rng: random.Random) -> Callable[[], Case]:
    tiny.random_model(folder, words=[f"w{i}" for i in range(30)], max_len=40)
    own: dict[str, list[dict[str, Any]]] = {
        "greedy": [{}, {"max_len": 5}, {"min_len": 4, "suppress": "w3 / w4 w5"}, {"no_repeat_ngram": 2}],
        "iad": [{}, {"max_draft": 3}, {"repetition_penalty": 1.3}],
        "beam": [{}, {"beam_size": 2, "nbest": 2}, {"beam_size": 4, "beam_groups": 2}],
        "sample": [{"seed": 1, "temperature": 0.7}, {"seed": 2}, {"nbest": 3, "top_k": 4}],
        "ngram": [{}],
    }

    def case() -> Case:
        line = " ".join(f"w{rng.randrange(30)}" for _ in range(rng.randint(0, 20)))
        name = rng.choice([*own])
        return line, name, {**rng.choice(own[name]), "prefix": rng.choice(["", "", "w7 w1"])}

    return case


def ctc_cases(folder: Path, rng: random.Random) -> Callable[[], Case]:
    save_random_speech(folder, "conformer", 1)
    paths = write_sounds(folder, rng, [rng.uniform(0.3, 2.0) for _ in range(12)], 16_000)
    own = ["ctc-greedy", "ctc-beam", "ctc-draft", "greedy"]
    return lambda: (rng.choice(paths), rng.choice(own), {"max_len": rng.choice([4, 30])})


def window_cases(folder: Path, rng: random.Random) -> Callable[[], Case]:
    made = whisper_models.random_model(
        whisper_models.random_settings(random.Random(1), seconds=1.0), 1, ends=5.0, times=2.0
    )
    whisper_models.save(made, folder)
    paths = write_sounds(folder, rng, [rng.uniform(0.3, 3.0) for _ in range(8)], 16_000)
    options: list[dict[str, Any]] = [{}, {"beam_size": 3}, {"timestamps": True}, {"max_len": 9}]
    return lambda: (rng.choice(paths), "windows", {**rng.choice(options), "language": "fr"})


CASES = {"text": text_cases, "ctc": ctc_cases, "windows": window_cases}


@pytest.fixture(scope="module", params=[*CASES])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    rng = random.Random(request.param)
    case = CASES[request.param](folder, rng)
    model = nartk.load(folder)
    model = replace(model, vad=False)
    return model, case, rng


def alone(model: nartk.Model, case: Case) -> nartk.Hypothesis:
    line, name, options = case
    prefix = options.get("prefix", "")
    rest = {key: value for key, value in options.items() if key != "prefix"}
    return model.decode([line], name, prefixes=[prefix], **rest)[0]


def require_nothing_open(model: nartk.Model) -> None:
    scorer = model.passes
    own = scorer._engine if hasattr(scorer, "_engine") else scorer.scorer._engine
    assert (own.cells_in_use, own.memories_in_use) == (0, 0)


@pytest.mark.parametrize("batch_size", [1, 8, 32])
@pytest.mark.parametrize("count", COUNTS)
def test_each_line_is_decoded_as_if_alone(
    kind: tuple[nartk.Model, Callable[[], Case], random.Random], count: int, batch_size: int
) -> None:
    """Submitted in random order at random steps, about 5 % of them cancelled at some time."""
    model, case, rng = kind
    cases = [case() for _ in range(count)]
    tickets: list[Ticket] = []
    cancelled = 0
    with Session(model, batch_size=batch_size) as session:
        for line, name, options in cases:
            tickets.append(session.submit(line, name, **options))
            if rng.random() < 0.3:
                time.sleep(rng.random() / 1000)
            if rng.random() < 0.05:
                cancelled += rng.choice(tickets[-20:]).cancel()
            if rng.random() < 0.02:
                tickets[-1].partial()
    require_nothing_open(model)
    assert sum(isinstance(each.future.exception(), CancelledError) for each in tickets) == cancelled
    assert 0 < cancelled < count / 10
    known: dict[Any, nartk.Hypothesis] = {}
    for ticket, each in zip(tickets, cases, strict=True):
        if isinstance(ticket.future.exception(), CancelledError):
            continue
        key = (each[0], each[1], *sorted(each[2].items()))
        if key not in known:
            known[key] = alone(model, each)
        assert_same(ticket.result(), known[key])


def assert_same(found: nartk.Hypothesis, expected: nartk.Hypothesis) -> None:
    for name in ("tokens", "text", "score", "positional_scores", "spans"):
        assert getattr(found, name) == getattr(expected, name), name
    for one, other in zip(found.alternatives, expected.alternatives, strict=True):
        assert_same(one, other)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nartk.Model:
    return nartk.load(tiny.corrector(tmp_path_factory.mktemp("models") / "model"))


LINE = "she go to school every day and he sees the cat ."


def test_partial_outputs_are_beginnings_of_the_final_one(
    model: nartk.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[nartk.Hypothesis] = []
    with Session(model) as session:
        ticket = session.submit(LINE, "greedy")
        while not ticket.done():
            seen.append(ticket.partial())
        final = ticket.result()
        assert ticket.partial() == final
    lengths = [len(each.tokens) for each in seen]
    assert lengths == sorted(lengths)
    for each in seen:
        assert each.tokens == final.tokens[: len(each.tokens)]
        assert final.text.startswith(each.text)


def test_a_line_that_fails_fails_alone(model: nartk.Model) -> None:
    with Session(model) as session:
        long, good = session.submit("she " * 100), session.submit(LINE)
        with pytest.raises(nartk.InputTooLongError, match="100 tokens"):
            long.result()
        assert good.result() == model.decode(LINE)
        with pytest.raises(nartk.UsageError, match="beem"):
            session.submit(LINE, "greedy", beem_size=5)
        with pytest.raises(nartk.UsageError, match="not a string"):
            session.submit(b"she")  # type: ignore[arg-type]


def test_a_step_that_fails_fails_no_line_of_others(
    model: nartk.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a batch: the lines are decoded again, each by itself."""
    failing = Session(model)
    blocked = threading.Event()
    failing._call(blocked.wait)
    # Few words are left after a while, then none: nothing may follow.
    bad = failing.submit(LINE, "greedy", no_repeat_ngram=1, min_len=60)
    longer = [{"min_len": length - 2, "max_len": length} for length in (40, 50)]  # than the bad one
    good = [failing.submit(LINE, "greedy", **options) for options in longer]
    blocked.set()
    with pytest.raises(nartk.PassError, match="all words are forbidden"):
        bad.result()
    for options, ticket in zip(longer, good, strict=True):
        assert_same(ticket.result(), model.decode(LINE, "greedy", **options))
    step = Loop._step

    def fail(self: Loop, rows: Any) -> None:
        if self.drafter is not None:
            raise ValueError("a drafter that fails")
        step(self, rows)

    monkeypatch.setattr(Loop, "_step", fail)
    wrong, right = failing.submit(LINE, "ngram"), failing.submit(LINE, "greedy")
    with pytest.raises(ValueError, match="a drafter that fails"):
        wrong.result()
    assert right.result().text
    monkeypatch.undo()
    assert failing.submit(LINE, "ngram").result().text
    failing.close()
    require_nothing_open(model)


def test_a_closed_session_takes_nothing(model: nartk.Model) -> None:
    session = nartk.serving.Session(model)
    ticket = session.submit(LINE)
    session.close()
    assert ticket.done()
    session.close()
    with pytest.raises(nartk.UsageError, match="closed"):
        session.submit(LINE)
    assert not ticket.cancel()
    assert ticket.partial() == ticket.result()


def test_an_error_inside_the_block_cancels_what_is_left(model: nartk.Model) -> None:
    with pytest.raises(KeyError), Session(model, batch_size=1) as session:  # noqa: PT012
        tickets = [session.submit(LINE, "greedy") for _ in range(500)]
        raise KeyError
    assert isinstance(tickets[-1].future.exception(), CancelledError)
    require_nothing_open(model)


def test_lines_come_from_any_thread(model: nartk.Model) -> None:
    lines = [" ".join(random.Random(i).sample(tiny.WORDS.split(), 7)) for i in range(60)]
    with Session(model) as session, ThreadPoolExecutor(6) as pool:
        found = [*pool.map(lambda line: session.submit(line).result(), lines)]
    assert found == model.decode(lines)


def test_tickets_are_awaited(model: nartk.Model) -> None:
    async def texts(session: Session) -> list[str]:
        tickets = [session.submit(LINE, max_len=length) for length in (3, 6, 60)]
        return [(await ticket).text for ticket in tickets]

    async def given_up(session: Session) -> None:
        await asyncio.wait_for(session.submit(LINE), timeout=0.001)

    with Session(model, batch_size=2) as session:
        assert asyncio.run(texts(session)) == [model.decode(LINE, max_len=n).text for n in (3, 6, 60)]
        blocked = threading.Event()
        session._call(blocked.wait)
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(given_up(session))
        blocked.set()
    require_nothing_open(model)


def test_a_callback_may_close(model: nartk.Model) -> None:
    session = Session(model)
    closed = threading.Event()
    blocked = threading.Event()
    session._call(blocked.wait)
    ticket = session.submit(LINE)
    ticket.future.add_done_callback(lambda _: (session.close(), closed.set()))
    blocked.set()
    assert ticket.result().text
    assert closed.wait(10)
    session.close()


def test_nobody_waits_for_ever(model: nartk.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that fails is told so; what ends the thread ends all tickets."""

    def fail(*_: Any) -> Any:
        raise ValueError("a fault")

    with Session(model) as session:
        blocked = threading.Event()
        session._call(blocked.wait)
        ticket = session.submit(LINE)
        monkeypatch.setattr(LineRun, "so_far", fail)
        blocked.set()
        with pytest.raises(ValueError, match="a fault"):
            session.query(lambda: session._so_far(ticket), nartk.Hypothesis(()))
        assert ticket.result().text
        monkeypatch.setattr("nartk.serving.session._Lines.step", fail)
        with pytest.raises(ValueError, match="a fault"):
            session.submit(LINE).result()
        session._thread.join()
        with pytest.raises(nartk.UsageError, match="closed"):
            session.submit(LINE)


def test_a_callback_may_ask_and_cancel(model: nartk.Model) -> None:
    with Session(model, batch_size=1) as session:
        blocked = threading.Event()
        session._call(blocked.wait)
        first, second = session.submit(LINE), session.submit(LINE)
        first.future.add_done_callback(lambda _: second.cancel())
        blocked.set()
        first.result()
    assert isinstance(second.future.exception(), CancelledError)


def test_no_line_waits_for_longer_ones_that_came_later(model: nartk.Model) -> None:
    """Of two at a time a short line ends before all that came behind it."""
    ended: list[str] = []
    with Session(model, batch_size=2) as session:
        blocked = threading.Event()
        session._call(blocked.wait)
        lines = {f"before {i}": LINE for i in range(2)} | {"short": "she"}
        for name, line in (lines | {f"behind {i}": LINE for i in range(20)}).items():
            length = 2 if name == "short" else 40
            ticket = session.submit(line, "greedy", min_len=length - 1, max_len=length)
            ticket.future.add_done_callback(lambda _, name=name: ended.append(name))  # type: ignore[misc]
        blocked.set()
    assert len(ended) == 23
    assert {*ended[: ended.index("short")]} <= {*lines}


def test_lines_share_passes_whatever_their_own_options(
    model: nartk.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight lines of one batch take as many passes as the longest of them."""
    own: list[dict[str, Any]] = [
        {},
        {"max_len": 4},
        {"min_len": 20},
        {"suppress": "goes / the cat"},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram": 2},
        {"forced_bos": 9, "forced_eos": True, "max_len": 6},
        {"no_source_ngram": 2, "prefix": "he"},
    ]
    sizes: list[int] = []
    run = TransformerEngine.run

    def counted(self: TransformerEngine, work: Pass, want: Want) -> Scores:
        sizes.append(len(work.tokens))
        return run(self, work, want)

    for name in ("greedy", "beam", "sample"):
        with Session(model, batch_size=8) as session:
            blocked = threading.Event()
            session._call(blocked.wait)
            tickets = [session.submit(LINE, name, **options) for options in own]
            monkeypatch.setattr(TransformerEngine, "run", counted)
            blocked.set()
            found = [ticket.result() for ticket in tickets]
        assert len(session._lines) == 1
        shared, each_alone = len(sizes), []
        for each, options in zip(found, own, strict=True):
            sizes.clear()
            assert_same(each, alone(model, (LINE, name, options)))
            each_alone.append(len(sizes))
        monkeypatch.undo()
        assert shared == max(each_alone) < sum(each_alone) / 2, (name, shared, each_alone)
        sizes.clear()


def test_runs_without_lines_are_let_go(model: nartk.Model) -> None:
    """Of any number of options few runs stay, and no session holds more than its batches."""
    with Session(model) as session:
        for size in range(1, 30):
            session.submit(LINE, "beam", beam_size=size, max_len=size).result()
        assert len(session._lines) <= 17
        assert len(session._strategies) <= 16
    require_nothing_open(model)


STEPS, WARM = 1_000_000, 100_000
needs_linux = pytest.mark.skipif(not memory.STATUS.exists(), reason="Linux alone tells what a process holds")


@needs_linux
@pytest.mark.slow
def test_memory_of_sessions_does_not_grow(model: nartk.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a million steps of a session whose lines are submitted, finished and cancelled all the time."""
    rng, taken, before = random.Random(1), 0, 0
    step = Loop.step

    def counted(self: Loop) -> list[Ended]:
        nonlocal taken
        taken += 1
        return step(self)

    monkeypatch.setattr(Loop, "step", counted)
    with Session(model, batch_size=8) as session:
        while taken < STEPS:
            tickets = [session.submit(LINE, rng.choice(["greedy", "iad"])) for _ in range(200)]
            for ticket in rng.sample(tickets, 10):
                ticket.cancel()
            wait(each.future for each in tickets)
            if not before and taken > WARM:
                before = memory.resident()
    assert memory.resident() < before + 1024


@needs_linux
@pytest.mark.slow
def test_memory_of_runs_does_not_grow() -> None:
    """Over a million steps of runs whose requests have rules of their own, end and are dropped.

    But for `ngram`, which remembers half a million n-grams of the run.
    """
    scorer = on_engine(random_model(TransformerConfig(**SMALL, src_vocab=20, tgt_vocab=20), 1))
    strategies: dict[str, dict[str, Any]] = {
        "greedy": {"min_len": 9},
        "iad": {"min_len": 5, "no_repeat_ngram": 3},
        "recycling": {"tree": "2x2"},
        "sample": {"nbest": 2, "min_len": 5},
        "beam": {"beam_size": 2},
    }
    runs = [make_strategy(name, own).begin(scorer, Batching(2)) for name, own in strategies.items()]
    admitted: list[list[Request]] = [[] for _ in runs]
    rng, before = random.Random(1), 0
    for taken in range(STEPS):
        run, own = runs[taken % len(runs)], admitted[taken % len(runs)]
        while len(own) < 3:
            source = *rng.choices(range(4, 20), k=rng.randint(0, 9)), 2
            own.append(Request(taken, source, rng.randint(1, 20), prefix=(5,) * rng.randint(0, 1)))
            run.admit(own[-1])
        for request, _ in run.step():
            own.remove(request)
        if own and rng.random() < 0.01:
            run.drop(own.pop(rng.randrange(len(own))))
        if taken == WARM:
            before = memory.resident()
    assert memory.resident() < before + 1024
    for run in runs:
        run.close()
    assert (scorer.cells_in_use, scorer.memories_in_use) == (0, 0)


def test_rules_of_a_line_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sentences it has."""
    made, counts = Constrained.constraints, []

    def counted(self: Constrained, vocab: Vocab) -> Constraints:
        counts[-1] += 1
        return made(self, vocab)

    monkeypatch.setattr(Constrained, "constraints", counted)
    for line in ("She go home.", "She go home. He see it. They was here."):
        with Session(nartk.load("gec-en", threads=1)) as session:
            counts.append(0)
            assert session.submit(line, "greedy", suppress_ids="5 7").result().tokens
    assert counts == [2, 2]  # the run's, and the line's
