"""preprocess → train → resume → generate → convert, by fairseq's own commands and by nartk's.

fairseq's own commands run on an installed nartk: a build of it, whose `.pth` file Python reads at start.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import fairseq_host
from support.commands import ROOT, own, run
from support.tiny import SENTENCES

import nartk
from nartk.cli.convert import main as convert

SMALL = (
    "--arch nartk_transformer_tiny --d-model 32 --encoder-heads 2 --decoder-heads 2 --encoder-layers 1"
    " --decoder-layers 1 --criterion nartk_cross_entropy --optimizer nartk_adamw"
)
TRAINING = "--lr 0.01 --max-tokens 200 --cpu --seed 7 --no-epoch-checkpoints --log-format simple"
GENERATION = "--gen-subset valid --cpu --beam 1 --batch-size 8 --max-len-a 0 --max-len-b 20"


class Installed:
    """fairseq's own commands beside an installed nartk."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        setup = [sys.executable, "-W", "ignore", "setup.py", "-q", "build", "-b", str(folder / "build")]
        # Training needs no engine, whose compilation takes long.
        without = {"NARTK_NO_ENGINE": "1", "NARTK_REQUIRE_ENGINE": "0"}
        run([*setup, "build_py", "-d", str(self.site)], **without)
        (folder / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(self.site)!r})\n")
        self.folder = folder

    def __call__(self, name: str, *arguments: str) -> str:
        # Not from the checkout, whose folder `nartk` would be found first.
        return run(
            [sys.executable, "-m", f"fairseq_cli.{name}", *arguments],
            self.folder,
            PYTHONPATH=str(self.folder),
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    pytest.importorskip("omegaconf", reason="fairseq is not installed: pip install 'nartk[train]'")
    if not any((Path(entry) / "fairseq" / "__init__.py").is_file() for entry in sys.path):
        pytest.skip("fairseq is not installed: pip install 'nartk[train]'")
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real sentences with a word left out in every other source."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    for name, copies in (("train", 8), ("dev", 1)):
        targets = list(SENTENCES) * copies
        sources = []
        for i, words in enumerate(line.split() for line in targets):
            if i % 2:
                words.pop(draw.randrange(len(words)))
            sources.append(" ".join(words))
        (folder / f"{name}.src").write_text("\n".join(sources) + "\n")
        (folder / f"{name}.trg").write_text("\n".join(targets) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(corpus: Path, installed: Installed) -> Path:
    """The corpus made binary, which fairseq's command and nartk's do alike."""
    flags = f"--source-lang src --target-lang trg --trainpref {corpus}/train --validpref {corpus}/dev"
    flags += " --joined-dictionary --destdir"
    own("preprocess", *flags.split(), str(corpus / "ours"))
    installed("preprocess", *flags.split(), str(corpus / "theirs"))
    for file in ("dict.src.txt", "train.src-trg.src.bin", "valid.src-trg.trg.idx"):
        assert (corpus / "ours" / file).read_bytes() == (corpus / "theirs" / file).read_bytes()
    return corpus / "ours"


def updates(checkpoint: Path) -> int:
    return torch.load(checkpoint, weights_only=False)["optimizer_history"][-1]["num_updates"]


def hypotheses(printed: str) -> dict[int, str]:
    return {int(i): words for i, words in re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE)}


def test_train_resume_generate_convert(
    corpus: Path, data: Path, installed: Installed, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    # Sixty updates in one go, and thirty that are resumed: the same weights, bit for bit, by either command.
    flags = [str(data), *SMALL.split(), *TRAINING.split()]
    user_dir = ["--user-dir", str(installed.site / "nartk")]
    installed("train", *flags, *user_dir, "--save-dir", str(theirs), "--max-update", "60")
    own("train", *flags, "--save-dir", str(ours), "--max-update", "30")
    assert updates(ours / "checkpoint_last.pt") == 30
    own("train", *flags, "--save-dir", str(ours), "--max-update", "60")
    assert updates(ours / "checkpoint_last.pt") == updates(theirs / "checkpoint_last.pt") == 60
    first, second = (
        torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"] for folder in (theirs, ours)
    )
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name

    # Rows of 7 to 12 words in one padded batch.
    generate = [str(data), "--path", str(ours / "checkpoint_last.pt"), *GENERATION.split()]
    printed = own("generate", *generate)
    assert all(line[:2] in ("S-", "T-", "H-", "D-", "P-") for line in printed.splitlines()[:-1])
    said = hypotheses(printed)
    assert said == hypotheses(installed("generate", *generate, *user_dir))
    assert sorted(said) == list(range(len(SENTENCES)))

    # The converted model says the same, and not always the same.
    assert len(set(said.values())) > 4
    assert convert([str(ours / "checkpoint_last.pt"), "--output", str(tmp_path / "model")]) == 0
    sources = (corpus / "dev.src").read_text().splitlines()
    decoded = nartk.load(tmp_path / "model").decode(sources, strategy="greedy", max_len=20)
    assert [h.text for h in decoded] == [said[i] for i in range(len(sources))]


# Trains as the command does, and keeps what each process has at the end.
KEEPING = """
import os, sys, torch
from nartk.cli.train import main
from fairseq.trainer import Trainer
made, init = [], Trainer.__init__
Trainer.__init__ = lambda self, *args, **options: (made.append(self), init(self, *args, **options))[1]
code = main()
torch.save(made[0].model.state_dict(), sys.argv[-1] + "." + os.environ["RANK"])
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("machines", "optimizer", "tolerance"),
    [
        (1, "nartk_adamw", 1e-5),
        (1, "nartk_muon", 0.02),  # its steps are rounded to bf16
        pytest.param(2, "nartk_adamw", 1e-5, marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_as_one_with_twice_the_batch(
    machines: int, optimizer: str, tolerance: float, data: Path, tmp_path: Path
) -> None:
    """Under torchrun, with gloo; two machines are two of it. They go on from a checkpoint too, and both
    processes hold the same parameters."""
    flags = [str(data), *SMALL.split(), *TRAINING.split(), "--dropout", "0", "--max-update", "12"]
    flags += ["--optimizer", optimizer]
    own("train", *flags, "--save-dir", str(tmp_path / "one"), "--update-freq", "2")
    (tmp_path / "keeping.py").write_text(KEEPING)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for limit in ("7", "12"):  # in one go, and resumed
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(machines)]
        launch += [
            "--nproc-per-node",
            str(2 // machines),
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
        ]
        rest = [
            str(tmp_path / "keeping.py"),
            *flags,
            "--max-update",
            limit,
            "--save-dir",
            str(tmp_path / "two"),
        ]
        started = [
            subprocess.Popen(
                [*launch, "--node-rank", str(rank), *rest], env=env, stderr=subprocess.PIPE, text=True
            )
            for rank in range(machines)
        ]
        for process in started:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    first, second = (torch.load(tmp_path / f"two.{rank}") for rank in range(2))
    saved, alone = (
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=False)["model"]
        for name in ("two", "one")
    )
    assert updates(tmp_path / "two" / "checkpoint_last.pt") == 12
    assert first.keys() == second.keys() == saved.keys() == alone.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
        assert torch.equal(first[name], saved[name]), name
        torch.testing.assert_close(saved[name], alone[name], rtol=10 * tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    ("command", "flags"),
    [("train", f"--restore-file PATH {SMALL} {TRAINING}"), ("generate", f"--path PATH {GENERATION}")],
)
def test_a_malicious_checkpoint_is_refused_by_name(
    command: str, flags: str, data: Path, tmp_path: Path
) -> None:
    canary, path = tmp_path / "canary", tmp_path / "a.pt"
    torch.save({"model": {}, "cfg": fairseq_host.Payload(canary)}, path)
    code = f"import sys; from nartk.cli.{command} import main; sys.exit(main())"
    args = [str(data), *flags.replace("PATH", str(path)).split()]
    args += ["--save-dir", str(tmp_path / "saved")] if command == "train" else []
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert f"nartk: error[E402 Checkpoint] {path}: asks for " in done.stderr
    assert "Traceback" not in done.stderr
    assert not canary.exists()


def test_fairseqs_own_transformer_generates_on_padded_batches(
    corpus: Path, data: Path, installed: Installed, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    flags = f"--arch transformer_tiny --share-all-embeddings --optimizer adam --max-update 30 {TRAINING}"
    installed("train", str(data), "--save-dir", str(saved), *flags.split())
    # A post-norm encoder: fairseq takes torch's fast path, which needs the cure once rows are padded.
    checkpoint = saved / "checkpoint_last.pt"
    said = hypotheses(installed("generate", str(data), "--path", str(checkpoint), *GENERATION.split()))

    assert convert([str(checkpoint), "--output", str(tmp_path / "model")]) == 0
    sources = (corpus / "dev.src").read_text().splitlines()
    decoded = nartk.load(tmp_path / "model").decode(sources, strategy="greedy", max_len=20)
    assert [h.text for h in decoded] == [said[i] for i in range(len(sources))]
