"""Decoding text needs neither torch nor anything else but numpy and sentencepiece."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from support import tiny
from support.parallel_models import random_parallel, random_sources
from support.scripted import decode
from support.speaking import random_network
from support.transformers_small import vocabulary

from nartk import engine
from nartk.architectures import architecture
from nartk.checkpoints.saving import save_checkpoint
from nartk.models.nar import ParallelDecoding
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy, strategies
from nartk.vocab import UNKNOWN

ROOT = Path(__file__).resolve().parents[1]
BLOCKED = ("torch", "safetensors", "transformers", "fairseq", "rich", "sacrebleu")
BLOCK = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
LINES = [
    "she go to school yesterday .",
    "",
    "the big cat sees it .",
    "he go home !",
    "they go to the house .",
]
OUTPUTS = [
    "she goes to school yesterday .",
    "",
    "the big cat sees it .",
    "he goes home !",
    "they goes to the house .",
]
OVER_PASSES = ("greedy", "iad", "ngram", "verify")
OVER_ARRAYS = [
    *(("ctc", name) for name in ("ctc-beam", "ctc-greedy")),
    *(
        ("dag", f"dag-{name}")
        for name in ("beam", "greedy", "joint-viterbi", "lookahead", "sample", "viterbi")
    ),
]

needs_engine = pytest.mark.skipif(not engine.available(), reason="the engine is left out")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Copies its source, with `goes` for `go`."""
    return str(tiny.corrector(tmp_path_factory.mktemp("corrector")))


def run(code: str, *args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code where what is `BLOCKED` cannot be imported."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCK + code, *args],
        input=stdin,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def command(name: str, *args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return run(
        f"from nartk.cli.{name} import main; sys.exit(main(sys.argv[1:]))", *args, stdin=stdin, **environment
    )


def test_the_block_blocks() -> None:
    for name in BLOCKED:
        assert run(f"import {name}").stderr.endswith(f"ModuleNotFoundError: No module named '{name}'\n")


def test_what_is_imported_by_default() -> None:
    """Here nothing is blocked: what is installed is not imported either."""
    code = f"""
import sys
import nartk.serving.loading, nartk.checkpoints.checkpoint, nartk.architectures, nartk.registry
import nartk.bench.verification
import nartk.bench.calibration, nartk.cli.decode, nartk.cli.verify, nartk.engine, nartk.protocols.passes
for name in nartk.registry.strategies():
    nartk.registry.make_strategy(name, {{}})
print([name for name in {BLOCKED} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@needs_engine
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("strategy", OVER_PASSES)
def test_strategies_over_passes_decode(strategy: str, dtype: str, model: str, tmp_path: Path) -> None:
    """The model was trained until it corrects these lines, so the outputs are known."""
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "drafts.txt").write_text("".join(f"{line}\n" for line in LINES[1:] + LINES[:1]))
    args = [model, str(tmp_path / "in.txt"), "--strategy", strategy, "--dtype", dtype, "--threads", "1"]
    if strategy == "verify":
        args += ["--drafts", str(tmp_path / "drafts.txt")]
    stats = str(tmp_path / "stats.json")
    done = command("decode", *args, "--stats", stats, "--trace", str(tmp_path / "trace"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == OUTPUTS
    assert '"threads": 1' in Path(stats).read_text()


@needs_engine
def test_the_shipped_model_decodes_as_torch_does() -> None:
    """Against the reference in torch, which shares nothing with the engine but the weights."""
    lines = (ROOT / "recipes" / "gec" / "sample.txt").read_text(encoding="utf-8").splitlines()[:6]
    done = command("decode", "--dtype", "fp32", stdin="".join(f"{line}\n" for line in lines))
    assert done.returncode == 0, done.stderr
    code = "import nartk, sys; print(*(h.text for h in nartk.load().decode(sys.argv[1:])), sep='\\n')"
    reference = subprocess.run(
        [sys.executable, "-c", code, *lines],
        cwd=ROOT,
        env={**os.environ, engine.LEFT_OUT: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == reference.stdout
    assert done.stdout.splitlines() != lines


@needs_engine
def test_verify_verifies(model: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    args = [model, str(tmp_path / "in.txt"), "--strategy", "iad", "--batch-size", "1,3", "--fuzz", "5"]
    done = command("verify", *args, "--adversarial", "--dtype", "fp32,int8")
    assert done.returncode == 0, done.stderr
    assert "identical to greedy" in done.stdout


@needs_engine
def test_bench_measures_strategies_of_its_own(model: str, tmp_path: Path) -> None:
    """Its workers are processes of their own, in which torch is kept away by a module that is found first."""
    for name in BLOCKED:
        (tmp_path / f"{name}.py").write_text(
            f"raise ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})\n"
        )
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    args = [
        model,
        str(tmp_path / "in.txt"),
        "--strategies",
        "greedy,iad",
        "--dtype",
        "fp32,int8",
        "--rounds",
        "1",
    ]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = command("bench", *args, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "| iad | identical to greedy | int8 |" in done.stdout
    refused = command("bench", *args, "--peers", "hf", PYTHONPATH=path)
    assert "not run: hf fp32, batch 1: ModuleNotFoundError: No module named 'torch'" in refused.stdout


@pytest.mark.parametrize("name", ["decode", "verify", "trace", "noise", "bench"])
def test_help_is_shown(name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
    if name == "decode":
        assert all(f"\n  {strategy} " in done.stdout for strategy in strategies())


def test_the_options_of_a_strategy_are_shown() -> None:
    done = command("decode", "--strategy", "iad", "--help")
    assert done.returncode == 0, done.stderr
    assert "options of the strategy iad (identical to greedy:" in done.stdout


def test_all_strategies_are_listed() -> None:
    done = run("import nartk; print(*nartk.strategies())")
    assert done.stdout.split() == list(strategies())


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ParallelDecoding]]:
    """A folder and a network of each architecture."""
    found = {}
    for kind in ("ctc", "dag"):
        network, folder = random_parallel(kind, 1), tmp_path_factory.mktemp(kind)
        vocab = vocabulary(network.config.tgt_vocab)
        save_checkpoint(
            folder,
            architecture=kind,
            settings=asdict(network.config),
            tensors=network.state_dict(),
            source_vocab=vocabulary(network.config.src_vocab),
            target_vocab=vocab,
            tokenizer=None,
            card="# A small model for tests\n",
        )
        found[kind] = str(folder), network
    return found


@needs_engine
@pytest.mark.parametrize(("kind", "strategy"), OVER_ARRAYS)
def test_strategies_over_arrays_decode(
    kind: str, strategy: str, networks: dict[str, tuple[str, ParallelDecoding]]
) -> None:
    """Against the reference in torch, which shares nothing with the engine but the weights."""
    folder, network = networks[kind]
    sources = [source for source in random_sources(network, random.Random(2), 6) if len(source) > 1]
    reference = architecture(kind).scorer(network, vocabulary(network.config.tgt_vocab))
    requests = [Request(i, tuple(source), 60) for i, source in enumerate(sources)]
    wanted = decode(make_strategy(strategy, {"max_ratio": 60.0}), reference, requests)
    words = vocabulary(network.config.src_vocab).words
    lines = [" ".join(words[word] for word in source[:-1]) for source in sources]
    args = [folder, "--strategy", strategy, "--max-len", "60", "--max-ratio", "60", "--threads", "1"]
    done = command("decode", *args, stdin="".join(f"{line}\n" for line in lines))
    assert done.returncode == 0, done.stderr
    outputs = [" ".join(reference.vocab.to_words(w.hypotheses[0].tokens)) for w in wanted]
    outputs = [output.removesuffix("</s>").rstrip().replace("<unk>", UNKNOWN) for output in outputs]
    assert done.stdout.splitlines() == outputs


@needs_engine
def test_phonemes_are_spoken(tmp_path: Path) -> None:
    network, folder, out = random_network(1).float(), tmp_path / "model", tmp_path / "out"
    vocab = vocabulary(network.config.src_vocab)
    mel = {"bins": network.config.mel_features, "window": 96, "hop": 24}
    save_checkpoint(
        folder,
        architecture="fastspeech2",
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        split={"input": {"only_known": True}, "output": {"name": "speech", "mel": mel}},
        generation={"strategy": "speak"},
        card="# A small model for tests\n",
    )
    done = command("decode", str(folder), "--speech", str(out), stdin="w0 w1\n\nw2\n")
    assert (done.returncode, done.stdout) == (0, "w0 w1\n\nw2\n"), done.stderr
    assert sorted(each.name for each in out.iterdir()) == ["1.wav", "3.wav"]


@pytest.mark.parametrize(
    ("args", "environment", "what", "fix"),
    [
        (["--device", "cuda"], {}, "--device cuda", ""),
        (
            [],
            {engine.LEFT_OUT: "1"},
            "a transformer model in fp32 without the engine",
            ", or install nartk with its engine, from a wheel or with a C++17 compiler",
        ),
    ],
)
def test_what_takes_torch_names_the_remedy(
    args: list[str], environment: dict[str, str], what: str, fix: str, model: str
) -> None:
    done = command("decode", model, *args, "--strategy", "iad", stdin="he go\n", **environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"nartk: error[E104 MissingDependency] {what} needs torch, which is not installed. "
        f"Fix: pip install 'nartk[torch]'{fix}.\n"
    )


@pytest.mark.parametrize("name", ["average", "convert"])
def test_other_commands_name_the_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    given = ["--inputs"] if name == "average" else []
    done = command(name, *given, str(tmp_path / "a.pt"), "--output", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr == (
        "nartk: error[E104 MissingDependency] this command needs torch, which is not installed. "
        "Fix: pip install 'nartk[torch]'.\n"
    )
