"""The site of the documents builds without a warning, and has what the code has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import nartk
from nartk.architectures import architectures
from nartk.errors import StrategyMismatchError

ROOT = Path(__file__).parents[1]
UNDRAWN = {"ctc-draft", "joint-ctc", "speak"}  # strategies whose pages say why they have no picture

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the documents are not beside the tests")


def decoders_on(page: Path) -> str:
    """Strategies that an architecture's page says decode it."""
    text = unescape(re.sub("<[^>]+>", "", page.read_text(encoding="utf-8")))
    found = re.search(r"^Decoded by\. (.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_site_builds_with_a_page_for_each_strategy_and_architecture(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(ROOT / "scripts" / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    pages = tmp_path / "docs" / "generated" / "strategies"
    assert {page.stem for page in pages.iterdir()} == {*nartk.strategies()}
    decoders = {page.stem: decoders_on(page) for page in (pages.parent / "architectures").iterdir()}
    assert decoders.keys() == {*architectures()}
    for model, strategy in (("gec-en", "ctc-greedy"), ("asr-digits", "greedy"), ("st-digits", "greedy")):
        loaded = nartk.load(model)
        with pytest.raises(StrategyMismatchError) as caught:
            loaded.decode(["x"], strategy)
        assert decoders[loaded.checkpoint.architecture] == caught.value.fix.removeprefix("choose from ")
    assert "windows" in decoders["whisper"]
    for name in nartk.strategies():
        text = unescape(re.sub("<[^>]+>", "", (pages / f"{name}.html").read_text(encoding="utf-8")))
        assert nartk.strategy_class(name).promise.guarantee.value in text  # type: ignore[attr-defined]
        assert ("There is no picture: " in text) is (name in UNDRAWN)
    drawn = {picture.stem for picture in (tmp_path / "_images").glob("*.svg")}
    assert drawn == {*nartk.strategies()} - UNDRAWN
    interface = (tmp_path / "docs" / "api.html").read_text(encoding="utf-8")
    missing = [name for name in nartk.__all__ if f'id="nartk.{name}"' not in interface]
    assert missing == ["Drafts", "__version__"]  # an alias and a text
