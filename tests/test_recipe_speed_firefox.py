"""recipes/speed/firefox_engines.py: engines on a random model, with a stand-in for Bergamot; its page."""

from __future__ import annotations

import json
import random
import sys
from itertools import product
from pathlib import Path

import pytest
from support.marian_models import model
from support.recipe_scripts import imported
from support.tiny import SENTENCES

import nartk
from nartk.bench.turns import EngineError

firefox = imported("speed", "firefox_engines.py")
# What Bergamot's compiled module has, as far as the server calls it: it translates by reversing each line.
STAND_IN = """
import json, os, pathlib
class ServiceConfig:
    def __init__(self, numWorkers, cacheSize, logLevel): pass
class ResponseOptions:
    def __init__(self, qualityScores, alignment, HTML, sentenceMappings): pass
class Answer: pass
class Service:
    def __init__(self, config): pass
    def modelFromConfig(self, text): return text
    def translate(self, model, texts, options):
        with open(os.environ["ASKED"], "a") as file:
            print(json.dumps([model, texts]), file=file)
        found = Answer()
        found.target = Answer()
        found.target.text = chr(10).join(line[::-1] for line in texts[0].split(chr(10)))
        return [found]
VectorString = list
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a shortlist."""
    made, _ = model(tmp_path_factory.mktemp("firefox") / "xxyy", 2, form="int8")
    words = [each for each in nartk.load(made).checkpoint.text.vocab.words if each[:1] not in "<"]
    rng = random.Random(0)
    table = [f"{rng.choice(words)} {word} 0.5\n" for word in words for _ in range(2)]
    (made / "lex.50.50.xxyy.s2t.bin").write_text("".join(table))
    return made


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Calls of a stand-in for Bergamot, a line each; its package itself must not be imported."""
    package = tmp_path / "bergamot"
    package.mkdir()
    (package / "__init__.py").write_text("raise ConnectionError('it asks a server for its models')")
    (package / "_bergamot.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return tmp_path / "asked"


def test_engines_run_in_turns(folder: Path, asked: Path, tmp_path: Path) -> None:
    lines = [f"{one} {other}" for one, other in product(SENTENCES, SENTENCES)][:33]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines) + "never read\n")
    limit = ["--input", str(tmp_path / "in"), "--limit", str(len(lines)), "--rounds", "1"]
    output = ["--json", str(tmp_path / "json"), "--markdown", str(tmp_path / "md")]
    firefox.main([str(folder), str(folder), *limit, "--bergamot", sys.executable, *output])
    forth, back = json.loads((tmp_path / "json").read_text())["cells"]
    wanted = {}
    for dtype in ("fp32", "bf16", "int8"):
        loaded = nartk.load(folder, dtype=dtype)
        for is_listed in (False, True):
            listed = {"shortlist": str(folder / "lex.50.50.xxyy.s2t.bin")} if is_listed else {}
            wanted[dtype, is_listed] = [each.text for each in loaded.decode(lines, "greedy", **listed)]
    assert len({tuple(each) for each in wanted.values()}) > 1
    for each in forth["engines"]:
        if each["engine"] == "nartk":
            texts = wanted[each["dtype"], each["shortlist"]]
            assert each["texts"] == [texts, texts]  # one at a time, and 32
        elif each["engine"] == "Bergamot":
            assert each["texts"] == [[line[::-1] for line in lines]] * 2
            assert each["over"][0]["median"] > 0
            assert each["same"][0] == [len(lines), len(lines)]
            assert each["bleu"][0] == pytest.approx([100.0, 100.0])
    # The model back translates what nartk says in fp32, and is scored against the lines.
    calls = [json.loads(line) for line in asked.read_text().splitlines()]
    said = [line for _, (text,) in calls for line in text.split("\n")]
    assert {*said} == {*lines, *wanted["fp32", False]}
    assert {len(text.split("\n")) for _, (text,) in calls} == {1, 32}
    assert all("ssplit-mode: sentence" in config and f"{folder}/vocab" in config for config, _ in calls)
    assert {"shortlist: [" in config for config, _ in calls} == {False, True}
    assert all(each["bleu"][1] for each in back["engines"] if "seconds" in each)
    assert not any(each["bleu"][1] for each in forth["engines"] if "seconds" in each)


def test_answers_of_another_length_are_no_translations(folder: Path, asked: Path) -> None:
    files = [*firefox.Files.of(folder)]
    made = firefox.bergamot_contender(sys.executable, files, "int8", ["one\nand another"])
    with made as run, pytest.raises(EngineError, match="answers 1 lines with 2"):
        run()
    made = firefox.bergamot_contender(sys.executable, files[:2], "int8", ["a line"])
    with made as run, pytest.raises(EngineError, match="ended with status 1"):
        run()


def test_a_folder_has_one_file_of_each_kind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"0 files are called model\*.bin, 1 is needed"):
        firefox.Files.of(tmp_path)


def test_the_page_by_hand() -> None:
    twice = {"median": 2.0, "low": 1.5, "high": 2.25}
    engine = {
        "engine": "nartk",
        "dtype": "int8",
        "shortlist": True,
        "texts": [["a"], ["b"]],
        "seconds": [[2.0, 4.0, 3.0], [1.0, 1.0, 1.0]],
        "memory": 150e6,
        "tokens": [300, 310],
        "over": [twice, twice],
        "same": [[3, 2], None],
        "bleu": [[90.25, 80.0], None],
    }
    lost = {"engine": "Bergamot", "dtype": "int8", "shortlist": False}
    found = {
        "command": ["python", "recipes/speed/firefox_engines.py"],
        "environment": {"cpu": "A CPU", "load_average": 0.5, "versions": {"nartk": "1"}},
        "rounds": 3,
        "lines": 4,
        "cells": [{"model": "enpt", "engines": [engine, lost]}],
    }
    assert [line for line in firefox.page(found).splitlines() if line[:1] == "|"] == [
        "| model | engine | type | shortlist | batch | tokens/s | x Bergamot | as Bergamot's "
        "| BLEU against Bergamot | memory, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| enpt | nartk | int8 | yes | 1 | 100 | 2.00 (1.50-2.25) | 3 of 4 | 90.2 | 150 |",
        "| enpt | nartk | int8 | yes | 32 | 310 | 2.00 (1.50-2.25) | 2 of 4 | 80.0 | 150 |",
        "| enpt | Bergamot | int8 | no | - | not installed | - | - | - | - |",
    ]
