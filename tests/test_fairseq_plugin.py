"""nartk's models, criterion and optimizer compute the same inside fairseq as outside."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host
from support.fairseq_host import sample
from torch import Tensor

import nartk
from nartk.architectures.transformer import TransformerConfig
from nartk.errors import VocabMismatchError
from nartk.models.losses import label_smoothed_cross_entropy
from nartk.models.transformer import Transformer

WORDS = 21


@pytest.fixture(autouse=True)
def _fairseq() -> None:
    fairseq_host.require_fairseq()


def build(*flags: str, arch: str = "nartk_transformer_tiny", task: Any = None) -> Any:
    """A model built as `fairseq-train` does it: the command line, then the architecture."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    parser = argparse.ArgumentParser()
    group = parser.add_argument_group(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(group)
    args = parser.parse_args(flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, fairseq_host.task(WORDS) if task is None else task)


def criterion(name: str, epsilon: float) -> Any:
    from fairseq.criterions import CRITERION_REGISTRY

    return CRITERION_REGISTRY[name](fairseq_host.task(WORDS), sentence_avg=False, label_smoothing=epsilon)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--no-encoder-norm-first", "--no-decoder-norm-first", "--activation", "gelu"),
        ("--encoder-positions", "learned", "--decoder-positions", "learned", "--norm-embedding"),
        ("--share-embeddings", "none", "--no-scale-embedding"),
    ],
    ids=["default", "post-norm", "learned positions", "untied"],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_loss_and_gradients_are_the_cores(flags: tuple[str, ...], epsilon: float) -> None:
    plugin = build(*flags, "--dropout", "0").double()
    core = Transformer(plugin.core.config).double()
    core.load_state_dict(plugin.core.state_dict())
    left, prev_output = fairseq_host.padded_batch(WORDS, left=True)
    right, _ = fairseq_host.padded_batch(WORDS, left=False)
    batch = sample(left, prev_output)

    found, size, log = criterion("nartk_cross_entropy", epsilon)(plugin, batch)
    found.backward()
    wanted, nll, count = label_smoothed_cross_entropy(
        core(right, prev_output), batch["target"], epsilon=epsilon, pad=fairseq_host.PAD
    )
    wanted.backward()

    assert size == log["ntokens"] == int(count) == 6 + 7 + 2
    assert abs(found - wanted) <= 1e-10 * abs(wanted)
    assert abs(log["nll_loss"] - nll) <= 1e-10 * abs(nll)
    plugin_gradients, core_gradients = gradients(plugin.core), gradients(core)
    assert plugin_gradients.keys() == core_gradients.keys() != set()
    for name, gradient in core_gradients.items():
        torch.testing.assert_close(plugin_gradients[name], gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_criterion_equals_fairseqs(epsilon: float) -> None:
    model = build("--dropout", "0").double()
    batch = sample(*fairseq_host.padded_batch(WORDS, left=True))
    results = []
    for name in ("nartk_cross_entropy", "label_smoothed_cross_entropy"):
        model.zero_grad()
        loss, size, log = criterion(name, epsilon)(model, batch)
        loss.backward()
        # fairseq takes log-softmax in fp32, so its own loss is exact to 1e-6 only.
        results.append((loss.item(), log["nll_loss"].item(), size, gradients(model)))
    ours, theirs = results
    assert ours[:2] == pytest.approx(theirs[:2], rel=1e-6)
    assert ours[2] == theirs[2]
    for name, gradient in theirs[3].items():
        torch.testing.assert_close(ours[3][name], gradient, rtol=1e-4, atol=1e-6)


def test_optimizer_steps_as_fairseqs_adam() -> None:
    from fairseq.optim import OPTIMIZER_REGISTRY

    cfg = Namespace(
        lr=[1e-2], adam_betas="(0.9, 0.98)", adam_eps=1e-8, weight_decay=0.1, fp16_adam_stats=False
    )
    results = []
    for name in ("nartk_adamw", "adam"):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
        optimizer = OPTIMIZER_REGISTRY[name](cfg, weights)
        for _ in range(4):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer.step()
        assert optimizer.supports_flat_params  # which --fp16 asks for
        results.append(weights)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_options_are_the_fields_of_the_config() -> None:
    parser = argparse.ArgumentParser()
    from nartk.tasks.core_model import FROM_TASK
    from nartk.tasks.transformer import FairseqTransformer

    FairseqTransformer.add_args(parser)
    flags = {action.dest: action for action in parser._actions}
    names = {item.name for item in fields(TransformerConfig)}
    assert names - set(FROM_TASK) == set(flags) - {"help", "autocast", "init_encoder"}
    assert flags["d_model"].help == "features of a token"
    assert build("--d-model", "32", "--encoder-heads", "2", "--no-scale-embedding").core.config == (
        TransformerConfig(
            src_vocab=WORDS,
            tgt_vocab=WORDS,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn=256,
            decoder_ffn=256,
            encoder_heads=2,
            decoder_heads=4,
            scale_embedding=False,
        )
    )


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("nartk_transformer", (6, 6, 512)),
        ("nartk_transformer_base", (6, 6, 512)),
        ("nartk_transformer_tiny", (2, 2, 64)),
        ("nartk_transformer_big", (6, 6, 1024)),
        ("nartk_transformer_9_3", (9, 3, 512)),
        ("nartk_transformer_12_2", (12, 2, 512)),
    ],
)
def test_architectures(arch: str, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        config = build(arch=arch).core.config
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == shape


def test_differing_dictionaries_are_refused_unless_nothing_is_shared() -> None:
    task = fairseq_host.task(WORDS, WORDS + 1)
    with pytest.raises(VocabMismatchError, match="their dictionaries differ"):
        build(task=task)
    assert build("--share-embeddings", "decoder", task=task).core.config.tgt_vocab == WORDS + 1


def test_autocast_keeps_weights_and_loss_in_fp32() -> None:
    model = build("--autocast", "bf16", "--dropout", "0")
    exact = build("--dropout", "0")
    exact.load_state_dict(model.state_dict())
    batch = sample(*fairseq_host.padded_batch(WORDS, left=True))
    loss, _, _ = criterion("nartk_cross_entropy", 0.1)(model, batch)
    wanted, _, _ = criterion("nartk_cross_entropy", 0.1)(exact, batch)
    loss.backward()
    assert model(**batch["net_input"])[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert loss.item() != wanted.item()
    assert loss.item() == pytest.approx(wanted.item(), rel=0.02)


def test_beam_search_on_padded_batches_says_what_single_rows_say() -> None:
    from fairseq.sequence_generator import SequenceGenerator

    task = fairseq_host.task(WORDS)
    torch.manual_seed(0)
    model = build(task=task)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3.0)  # outputs then vary with the input
    model.eval()
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=12)
    source, _ = fairseq_host.padded_batch(WORDS, left=True)

    def search(rows: Tensor) -> list[list[int]]:
        net_input = {"src_tokens": rows, "src_lengths": rows.ne(fairseq_host.PAD).sum(1)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hypotheses = generator.generate([model], {"net_input": net_input})
        return [best[0]["tokens"].tolist() for best in hypotheses]

    alone = [search(row[row.ne(fairseq_host.PAD)][None])[0] for row in source]
    assert search(source) == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


def test_without_the_cure_fairseq_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fairseq_host.random_model(fairseq_host.settings(), fairseq_host.task(WORDS))
    batch = fairseq_host.padded_batch(WORDS, left=True)
    fairseq_host.logits(model, *batch)
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", torch._transformer_encoder_layer_fwd.__wrapped__
    )
    with pytest.raises(RuntimeError, match="Mask Type should be defined"):
        fairseq_host.logits(model, *batch)


def installed_hook(folder: Path) -> None:
    """What an installed nartk has at the top level of site-packages beside its `.pth` file."""
    for name, copy in (("_fairseq_hook", "_nartk_fairseq"), ("_fairseq_compat", "_nartk_fairseq_cure")):
        shutil.copy(Path(nartk.__file__).with_name(f"{name}.py"), folder / f"{copy}.py")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 accepts fairseq's dataclasses")
@pytest.mark.parametrize("hook", ["nartk._fairseq_hook", "_nartk_fairseq", None])
def test_fairseq_imports_only_with_the_hook(hook: str | None, tmp_path: Path) -> None:
    installed_hook(tmp_path)
    # An installed nartk brings a hook by itself: it is taken out first.
    kept = "[finder for finder in sys.meta_path if type(finder).__name__ != '_Hook']"
    code = f"import sys; sys.meta_path[:] = {kept}; sys.path[:0] = {[str(tmp_path)]!r}; "
    if hook is not None:
        code += f"from {hook} import install; install(); install(); "
    code += "import fairseq; print('nartk' in sys.modules)"
    root = Path(nartk.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    if hook is None:
        assert "ValueError: mutable default" in done.stderr
    else:
        assert done.stdout == f"{hook.startswith('nartk')}\n", done.stderr


@pytest.mark.parametrize("checkout", [False, True], ids=["nothing", "a checkout"])
def test_user_dir_is_found_from_any_folder(checkout: bool, tmp_path: Path) -> None:
    root = Path(nartk.__file__).parents[1]
    site, folder = tmp_path / "site", tmp_path / "folder"
    for each in (site, folder):
        each.mkdir()
    installed_hook(site)
    if checkout:  # under its own name: a folder that is no package
        (folder / "nartk").mkdir()
        (folder / "nartk" / "nartk").symlink_to(root / "nartk")
    # Found by a path, as an editable install is, with the hook in place of one that is installed.
    code = (
        f"import sys; sys.path.insert(1, {str(site)!r}); sys.modules.pop('_nartk_fairseq', None)\n"
        "sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != '_Hook']\n"
        "import _nartk_fairseq; _nartk_fairseq.install()\n"
        "from fairseq import options\n"
        "args = options.parse_args_and_arch(options.get_training_parser())\n"
        "print(args.arch, args.user_dir, sys.modules['nartk'].__file__)"
    )
    flags = ["none", "--user-dir", "nartk", "--arch", "nartk_transformer_tiny", "--criterion", "nartk_nar"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"nartk_transformer_tiny nartk {nartk.__file__}\n", done.stderr


def test_a_start_of_python_pays_for_one_module(tmp_path: Path) -> None:
    installed_hook(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); before = set(sys.modules)\n"
        "import _nartk_fairseq; _nartk_fairseq.install(); print(*set(sys.modules) - before)\n"
        "import json; print('_nartk_fairseq_cure' in sys.modules)"
    )
    # Without site, which would load modules of its own, and this environment's hook.
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "_nartk_fairseq\nFalse\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nowhere", "--max-tokens", "9"], "error[E201 InputFile] nowhere: no such file or folder. Fix: "),
        (["nowhere"], "error[E101 Usage] Must specify batch size either with --max-tokens or --batch-size. "),
    ],
)
def test_what_fairseq_refuses_is_one_line(
    flags: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from nartk.cli.train import main

    flags = [*flags, "--arch", "nartk_transformer_tiny", "--cpu"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, about itself
        assert main(flags) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"nartk: {message}"), last


def muon_of(weights: Sequence[torch.nn.Parameter], **settings: Any) -> Any:
    from fairseq.optim import OPTIMIZER_REGISTRY

    cfg = Namespace(
        lr=[1e-2],
        adam_betas="(0.9, 0.98)",
        adam_eps=1e-8,
        weight_decay=0.0,
        muon_momentum=0.0,
        fp16_adam_stats=False,
    )
    return OPTIMIZER_REGISTRY["nartk_muon"](Namespace(**{**vars(cfg), **settings}), weights)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_muon_moves_a_matrix_by_its_gradients_directions(shape: tuple[int, int]) -> None:
    """The oracle is numpy's singular value decomposition: the step is U S V^T of the gradient with its U and
    V, and with singular values near 1 whatever the gradient's are."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape))
    before = weight.detach().clone()
    weight.grad = torch.randn(shape) * 1e-3
    muon_of([weight]).step()
    step = (before - weight.detach()).numpy() / (1e-2 * 0.2 * max(shape) ** 0.5)
    u, values, v = np.linalg.svd(weight.grad.numpy(), full_matrices=False)
    in_its_axes = u.T @ step @ v.T
    assert np.diag(in_its_axes)[values > 0.1 * values.max()].min() > 0.4
    assert np.diag(in_its_axes).max() < 1.4
    assert np.abs(in_its_axes - np.diag(np.diag(in_its_axes))).max() < 0.05


def test_muon_leaves_tables_and_vectors_to_adamw() -> None:
    model = build("--dropout", "0")
    names = {id(weight): name for name, weight in model.named_parameters()}
    optimizer = muon_of([*model.parameters()])
    matrices, others = ([names[id(each)] for each in group["params"]] for group in optimizer.param_groups)
    assert len(matrices) == 2 * 4 + 2 * 7  # of two layers each: qkv, out, up, down; q, kv and out more
    assert sorted(matrices + others) == sorted(names.values())
    assert {name for name in others if model.get_parameter(name).ndim == 2} == {
        name for name in names.values() if "words" in name or "positions" in name or "output" in name
    } - {name for name in names.values() if name.endswith("bias")}


def test_muon_goes_on_from_a_checkpoint_as_if_it_had_not_ended() -> None:
    def step(optimizer: Any, weights: Sequence[torch.nn.Parameter]) -> None:
        for weight in weights:
            weight.grad = (
                torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) + weight.detach()
            )
        optimizer.step()

    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(6, 4)), torch.nn.Parameter(torch.randn(5))]
    optimizer = muon_of(weights, muon_momentum=0.9)
    step(optimizer, weights)
    copies = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    other = muon_of(copies, muon_momentum=0.9)
    other.load_state_dict(deepcopy(optimizer.state_dict()), {"lr": 1e-2})
    for _ in range(2):
        step(optimizer, weights)
        step(other, copies)
    for ours, theirs in zip(weights, copies, strict=True):
        assert torch.equal(ours, theirs)


MATRICES = [(6, 4), (8, 8), (4, 12), (3, 3), (2, 2)]


class Threads:
    """Stands for torch.distributed where each process is a thread."""

    def __init__(self, processes: int) -> None:
        self.own, self.barrier, self.sent = threading.local(), threading.Barrier(processes, timeout=60), None

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self.barrier.parties

    def get_rank(self) -> int:
        return int(self.own.rank)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        if rank == self.own.rank:
            self.sent = tensor
        self.barrier.wait()
        tensor.copy_(self.sent)
        self.barrier.wait()


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_processes_that_share_muons_matrices_move_them_like_one(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps; two matrices have no gradient. Weights and states are bit for bit those of one process."""

    def trained() -> tuple[list[torch.nn.Parameter], dict[str, Any]]:
        generator = torch.Generator().manual_seed(5)
        weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in [*MATRICES, (5,)]]
        optimizer = muon_of(weights, muon_momentum=0.9)
        for _ in range(3):
            for weight in (*weights[:-3], weights[-1]):
                weight.grad = torch.randn(weight.shape, generator=generator)
            optimizer.step()
        return weights, optimizer.state_dict()

    def of_thread(rank: int) -> tuple[list[torch.nn.Parameter], dict[str, Any]]:
        threads.own.rank = rank
        return trained()

    weights, wanted = trained()
    threads = Threads(processes)
    monkeypatch.setattr("nartk.tasks.muon.dist", threads)
    with ThreadPoolExecutor(processes) as pool:
        for found, state in pool.map(of_thread, range(processes)):
            assert all(map(torch.equal, weights, found))
            assert state["param_groups"] == wanted["param_groups"]
            assert state["state"].keys() == wanted["state"].keys()
            for name, each in wanted["state"].items():
                assert all(torch.equal(each[key], state["state"][name][key]) for key in each)
