"""Every kind of non-autoregressive model under fairseq: options, loss, training, conversion, loading."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.commands import own
from support.losses import losses_of
from support.tiny import SENTENCES

import nartk
from nartk.adapters.fairseq.checkpoint import read_checkpoint
from nartk.adapters.fairseq.network import to_network
from nartk.architectures import architectures
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.errors import CheckpointError, UsageError, VocabMismatchError
from nartk.models.losses import Training

WORDS = 21
KIND_NAMES = [name for name, kind in architectures().items() if "nartk_nar" in kind.criterions]


@pytest.fixture(autouse=True)
def _fairseq() -> None:
    fairseq_host.require_fairseq()


def criterion(**options: Any) -> Any:
    """The criterion as fairseq builds it, with its options' defaults but for those given."""
    from fairseq.criterions import CRITERION_REGISTRY

    from nartk.tasks.nar import criterion_config

    return CRITERION_REGISTRY["nartk_nar"].build_criterion(
        criterion_config("nartk_nar")(**options), fairseq_host.task(WORDS)
    )


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_loss_and_gradients_are_the_cores(kind: str) -> None:
    plugin = fairseq_host.build(kind, "--dropout", "0").double()
    core = architectures()[kind].network(plugin.core.config).double()
    core.load_state_dict(plugin.core.state_dict())
    source, prev_output = fairseq_host.padded_batch(WORDS, left=True)
    right, _ = fairseq_host.padded_batch(WORDS, left=False)
    target = torch.full_like(prev_output, fairseq_host.PAD)
    target[:, :-1] = prev_output[:, 1:]
    target[torch.arange(len(target)), prev_output.ne(fairseq_host.PAD).sum(1) - 1] = fairseq_host.EOS
    batch = {"net_input": {"src_tokens": source}, "target": target}

    plugin.set_num_updates(50)
    torch.manual_seed(3)
    found, size, log = criterion(glancing="0.8:0@100")(plugin, batch)
    found.backward()
    torch.manual_seed(3)
    # The core is given the source without padding on its left, and the share that half the steps leave.
    losses = losses_of(core, right, target, training=Training(glancing="0.4"), update=0)
    losses.total.backward()

    assert size == log["sample_size"] == int(losses.tokens) > 0
    assert abs(found.item() - losses.total.item()) <= 1e-10 * abs(losses.total.item())
    wanted = {name: p.grad for name, p in core.named_parameters() if p.grad is not None}
    grads = {name: p.grad for name, p in plugin.core.named_parameters() if p.grad is not None}
    assert grads.keys() == wanted.keys() != set()
    for name, gradient in wanted.items():
        torch.testing.assert_close(grads[name], gradient, rtol=1e-10, atol=1e-10)


def test_logs_are_means_over_all_workers() -> None:
    from fairseq import metrics

    cls = type(criterion())
    logs = [
        {"loss": 6.0, "sample_size": 2, "part_words": 4.0},
        {"loss": 2.0, "sample_size": 6, "part_words": 12.0},
    ]
    with metrics.aggregate() as found:
        cls.reduce_metrics(logs)
    assert found.get_smoothed_values() == {"loss": 1.0, "words": 2.0}


def test_the_criterions_options_are_the_fields_of_the_trainings() -> None:
    made = criterion(glancing="0.5:0.3@2k", label_smoothing=0.2).training_options
    assert made == Training(glancing="0.5:0.3@2k", label_smoothing=0.2)
    assert [item.name for item in fields(Training) if item.init][:2] == [
        "label_smoothing",
        "length_factor",
    ]
    with pytest.raises(UsageError, match=r"START:END@UPDATES"):
        criterion(glancing="half")


@pytest.fixture(scope="module")
def binarised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nar")
    for name, copies in (("train", 4), ("dev", 1)):
        for side in ("src", "tgt"):
            (folder / f"{name}.{side}").write_text("\n".join(SENTENCES * copies) + "\n")
    own(
        "preprocess",
        *f"--source-lang src --target-lang tgt --trainpref {folder}/train --validpref {folder}/dev "
        f"--destdir {folder}/bin --joined-dictionary --workers 1".split(),
    )
    return folder


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_train_resume_convert_and_refuse_what_does_not_fit(
    kind: str, binarised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = (
        f"{binarised}/bin --user-dir nartk --task translation --arch nartk_{kind}_tiny --d-model 32 "
        "--encoder-heads 2 --decoder-heads 2 --criterion nartk_nar --glancing 0.5:0.3@10 "
        "--glancing-strategy fixed --optimizer nartk_adamw --lr 0.003 --max-tokens 200 --cpu --seed 7 "
        f"--no-epoch-checkpoints --log-format json --save-dir {tmp_path} --log-file {tmp_path}/log"
    )
    own("train", *base.split(), "--max-update", "3")
    assert read_checkpoint(tmp_path / "checkpoint_last.pt").updates == 3
    own("train", *base.split(), "--max-update", "5")
    assert read_checkpoint(tmp_path / "checkpoint_last.pt").updates == 5
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line[:2] == '{"']
    assert float([log for log in logged if "train_loss" in log][-1]["train_shown"]) > 0

    folder = tmp_path / "model"
    assert convert([str(tmp_path / "checkpoint_last.pt"), "--output", str(folder)]) == 0
    model = nartk.load(folder)
    assert model.checkpoint.architecture == kind
    assert type(model.passes) is architectures()[kind].engine
    capsys.readouterr()
    assert decode([str(folder), "--strategy", "greedy", "--quiet", str(binarised / "dev.src")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nartk: error[E103 StrategyMismatch] strategy 'greedy' needs a PassScorer")
    assert error.count("\n") == 1


def test_a_model_begins_with_the_encoder_of_another(binarised: Path, tmp_path: Path) -> None:
    base = (
        f"{binarised}/bin --user-dir nartk --task translation --d-model 32 --encoder-heads 2 "
        "--decoder-heads 2 --optimizer nartk_adamw --max-tokens 200 --cpu --no-epoch-checkpoints "
        "--max-update 1"
    )
    teacher = tmp_path / "teacher" / "checkpoint_last.pt"
    teaching = "--arch nartk_transformer_tiny --criterion nartk_cross_entropy --lr 0.003"
    own("train", *base.split(), *teaching.split(), "--save-dir", str(teacher.parent))
    verifier = to_network(read_checkpoint(teacher)).state_dict()
    names = [name for name in verifier if name.startswith("encoder_")]
    assert "encoder_embedding.words.weight" in names
    folder = tmp_path / "model"
    assert convert([str(teacher), "--output", str(folder)]) == 0
    for number, begun in enumerate((teacher, folder)):
        drafting = f"--arch nartk_blockwise_tiny --criterion nartk_nar --lr 0 --init-encoder {begun}"
        saved = tmp_path / str(number)
        own("train", *base.split(), *drafting.split(), "--save-dir", str(saved))
        drafter = to_network(read_checkpoint(saved / "checkpoint_last.pt")).state_dict()
        for name in names:
            assert torch.equal(verifier[name], drafter[name]), name
    with pytest.raises(CheckpointError, match=r"'encoder_embedding.words.weight' has shape \[72, 32\]"):
        fairseq_host.build("blockwise", "--init-encoder", str(teacher))
    with pytest.raises(VocabMismatchError, match=r"the source dictionary of .* and that of the data"):
        fairseq_host.build("blockwise", "--init-encoder", str(folder))
