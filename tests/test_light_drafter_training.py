"""Training a light drafter: the loss is that of torch's own modules over the verifier's memory, the verifier
is neither trained nor saved, and what is written drafts for it and for no other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import fairseq_host
from support.commands import own
from support.light_drafters import TorchTwin
from support.tiny import SENTENCES
from support.transformers_small import padded, stir

import nartk
from nartk.adapters.fairseq.checkpoint import read_checkpoint
from nartk.adapters.fairseq.converting import convert as write_folder
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.convert import main as convert
from nartk.errors import StrategyMismatchError, UsageError, VocabMismatchError
from nartk.models.transformer import Transformer
from nartk.vocab import Vocab

EOS = 2
SHAPE = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn": 32, "decoder_ffn": 32,
    "encoder_heads": 2, "decoder_heads": 2, "max_source_len": 60, "max_target_len": 50,
}  # fmt: skip
FLAGS = ["--decoder-features=24", "--decoder-heads=2", "--decoder-ffn=32", "--dropout=0"]


def verifier_in(folder: Path, vocab: Vocab, seed: int = 0) -> Transformer:
    """A random verifier, which is written."""
    torch.manual_seed(seed)
    model = stir(Transformer(TransformerConfig(src_vocab=len(vocab), tgt_vocab=len(vocab), **SHAPE))).eval()
    save_checkpoint(
        folder,
        architecture="transformer",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        card="# A verifier for tests\n",
    )
    return model.requires_grad_(False)


def built(task: Any, verifier: Path | str | None, *flags: str) -> Any:
    """As fairseq-train does it, which has the criterion's options beside the architecture's."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    arch = "nartk_light_drafter_tiny"
    args = fairseq_host.parsed(arch, flags)
    args.verifier = None if verifier is None else str(verifier)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task)


@pytest.fixture
def task() -> Any:
    fairseq_host.require_fairseq()
    return fairseq_host.task(9)


def test_logits_and_loss_are_those_of_torchs_modules(task: Any, tmp_path: Path) -> None:
    from fairseq.criterions import CRITERION_REGISTRY

    from nartk.tasks.drafter import DrafterConfig

    vocab = Vocab(tuple(task.target_dictionary.symbols))
    verifier = verifier_in(tmp_path / "model", vocab)
    plugin = built(task, tmp_path / "model", *FLAGS)
    stir(plugin.core)
    options = {"sentence_avg": False, "label_smoothing": 0.0, "distil_weight": 0.25}
    made = CRITERION_REGISTRY["nartk_drafter"].build_criterion(
        DrafterConfig(verifier=str(tmp_path / "model"), **options), task
    )
    sources, targets = [[4, 5, 6, EOS], [7, EOS]], [[5, 6, EOS], [8, 4, 4, 7, EOS]]
    fed = {"src_tokens": padded(sources, left=True), "src_lengths": torch.tensor([4, 2])}
    fed["prev_output_tokens"] = padded([[EOS, *target[:-1]] for target in targets])
    loss, size, logged = made(plugin, {"net_input": fed, "target": padded(targets)})
    twin, wanted = TorchTwin(plugin.core.config, plugin.core.state_dict()), 0.0
    for source, target in zip(sources, targets, strict=True):
        before = torch.tensor([EOS, *target[:-1]])
        ours = twin(verifier.encode(torch.tensor([source])).memory[0], before)
        theirs = verifier(torch.tensor([source]), before[None])[0].double().log_softmax(-1)
        words = F.nll_loss(ours, torch.tensor(target), reduction="sum").item()
        divergence = (theirs.exp() * (theirs - ours)).sum().item()
        wanted += 0.75 * words + 0.25 * divergence
    assert loss.item() == pytest.approx(wanted, rel=1e-4)
    assert size == logged["ntokens"] == 8
    loss.backward()
    assert all(weight.grad is not None for weight in plugin.parameters())
    assert not any(weight.requires_grad for weight in plugin.verifier[0].parameters())
    assert {name.removeprefix("core.") for name in plugin.state_dict()} == {
        *plugin.core.config.weight_shapes()
    }


def test_words_begin_as_the_verifiers_where_they_are_as_wide(task: Any, tmp_path: Path) -> None:
    vocab = Vocab(tuple(task.target_dictionary.symbols))
    words = verifier_in(tmp_path / "model", vocab).decoder.embedding.words.weight
    same, other = (
        built(task, tmp_path / "model", f"--decoder-features={width}", "--decoder-heads=2")
        for width in (16, 24)
    )
    assert torch.equal(same.core.decoder.embedding.words.weight, words)
    assert other.core.decoder.embedding.words.weight.shape == (len(vocab), 24)
    assert other.core.config.d_model == 16
    assert other.max_positions() == (60, 50)


def test_what_no_folder_names_is_refused(task: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--arch nartk_light_drafter without --verifier"):
        built(task, None)
    with pytest.raises(UsageError, match=r"verifier.pt is no model folder, which a light drafter names"):
        built(task, tmp_path / "verifier.pt")
    vocab = Vocab(tuple(task.target_dictionary.symbols))
    verifier_in(tmp_path / "model", vocab)
    with pytest.raises(UsageError, match="--init-encoder of a light drafter, which has no encoder"):
        built(task, tmp_path / "model", "--init-encoder", str(tmp_path / "model"))


@pytest.fixture(scope="module")
def binarised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fairseq_host.require_fairseq()
    folder = tmp_path_factory.mktemp("light")
    verifier_in(folder / "model", fairseq_host.binarised(folder, SENTENCES))
    return folder


def test_it_is_trained_converted_and_drafts(binarised: Path, tmp_path: Path) -> None:
    flags = (
        f"{binarised}/bin --task nartk_translation --arch nartk_light_drafter_tiny "
        f"--criterion nartk_drafter --verifier {binarised}/model --distil-weight 1 --optimizer nartk_adamw "
        f"--lr 0.01 --max-tokens 200 --cpu --seed 7 --no-epoch-checkpoints --max-update 24 --log-format json "
        f"--save-dir {tmp_path} --log-file {tmp_path}/log"
    )
    own("train", *flags.split(), *FLAGS)
    logs = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line[:2] == '{"']
    distances = [float(log["train_distil"]) for log in logs if "train_distil" in log]
    assert distances[-1] < 0.8 * distances[0]
    lengths = [float(log["valid_accept_len"]) for log in logs if "valid_accept_len" in log]
    assert lengths
    assert all(1.0 <= length <= 6.0 for length in lengths)
    saved = tmp_path / "checkpoint_last.pt"
    assert not [name for name in read_checkpoint(saved).tensors if "encoder" in name.replace("decoder", "")]
    folder = tmp_path / "drafter"
    assert convert([str(saved), "--output", str(folder)]) == 0
    made, model = load_checkpoint(folder), nartk.load(binarised / "model")
    assert made.settings["drafts_for"] == model.checkpoint.fingerprint
    assert (made.settings["d_model"], made.settings["decoder_features"]) == (16, 24)
    greedy = [each.tokens for each in model.decode(SENTENCES, "greedy")]
    found = model.decode(SENTENCES, "speculative", drafter=str(folder), adaptive=False)
    assert [each.tokens for each in found] == greedy
    verifier_in(tmp_path / "other", model.checkpoint.target_vocab, seed=1)
    with pytest.raises(StrategyMismatchError, match="drafts for the model"):
        nartk.load(tmp_path / "other").decode(SENTENCES, "speculative", drafter=str(folder))
    words = tmp_path / "words.txt"
    words.write_text("".join(f"w{i} 1\n" for i in range(20)))
    with pytest.raises(VocabMismatchError, match="the model has 72 target words, its dictionary 24"):
        write_folder(saved, tmp_path / "bad", source_dict=words)
