"""Fixtures of the suite: the device under test and the developers' data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support import quick

from nartk import engine
from nartk.decoders.loop.loop import AdaptiveDrafts

# The same examples everywhere: a failure in one place is a failure in all.
settings.register_profile("nartk", derandomize=True, deadline=None)
settings.load_profile("nartk")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device the tests run on: cpu (default) or cuda")
    parser.addoption("--quick", action="store_true", help="the tests of tests/quick.txt alone, in a minute")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--quick counts what runs in one process. Fix: leave -n out.")
    if engine.LACK and os.environ.get(engine.LEFT_OUT) != "1":
        raise pytest.UsageError(
            f"no engine to test: {engine.LACK}. Fix: `scripts/test` builds it, as does `pip install -e .`; "
            f"{engine.LEFT_OUT}=1 runs files of tests that need none."
        )
    if "PYTEST_XDIST_WORKER" in os.environ:  # by -n there is a process a core
        torch.set_num_threads(1)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the commands that tests start


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in argument for argument in config.args):
        quick.check(items)
    if config.getoption("--quick"):
        items[:] = quick.chosen(items)
    if config.getoption("--device") != "cpu":  # the others have run on the CPU, and would tell nothing new
        items[:] = [item for item in items if "device" in item.fixturenames or "cuda" in item.keywords]
    wanted = config.getoption("-m") or ""
    for item in items:
        if "cuda" in item.keywords and config.getoption("--device") != "cuda":
            item.add_marker(pytest.mark.skip(reason="needs a GPU: run with --device cuda"))
        if "slow" in item.keywords and "slow" not in wanted:
            item.add_marker(pytest.mark.skip(reason="long sweep: run with -m slow"))
        if "published" in item.keywords and "published" not in wanted:
            item.add_marker(pytest.mark.skip(reason="published weights: run scripts/test --published"))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Runs the tests; those of --quick must execute a function of every module."""
    if not session.config.getoption("--quick"):
        return (yield)
    with quick.Executed() as executed:
        done = yield
    missing = executed.missing()
    if missing:
        raise pytest.UsageError(quick.complaint(missing))
    return done


@pytest.fixture(autouse=True)
def whole_drafts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as long as drafters make them, so that all of them is tested, but in `adaptive` tests."""
    if "adaptive" not in request.keywords:
        monkeypatch.setattr(AdaptiveDrafts, "decides_lengths", False)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The developers' data folder: real corpora and oracles that may not ship."""
    named = os.environ.get("NARTK_SHARED_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the developers' data folder is not here (NARTK_SHARED_DATA names it)")
    return folder


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line beside the test's name."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="")

    return say
