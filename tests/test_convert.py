"""Checkpoints of fairseq become native models that say the same; unsafe and broken ones are refused."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.fairseq_host import WORDS, native_checkpoint
from support.memory import rising_at_most

import nartk
from nartk.adapters.fairseq.averaging import best_checkpoints
from nartk.adapters.fairseq.checkpoint import read_checkpoint
from nartk.adapters.fairseq.network import to_network
from nartk.cli import average as average_command
from nartk.cli import convert as convert_command
from nartk.errors import CheckpointError, MissingDependencyError, UnsupportedCheckpointError


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"w{i} {100 - i}\n" for i in range(WORDS - 4)))
    return path


FAIRSEQ_MODELS: dict[str, dict[str, Any]] = {
    "post-norm, untied": {},
    "pre-norm, all tied": {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "share_all_embeddings": True,
    },
    "gelu, decoder tied": {"activation_fn": "gelu", "share_decoder_input_output_embed": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "learned positions on one side": {"decoder_learned_pos": True, "decoder_normalize_before": True},
    "no positions": {"no_token_positional_embeddings": True},
    "as BART": {
        "arch": "bart_base",
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
        "no_scale_embedding": True,
        "share_all_embeddings": True,
        "activation_fn": "gelu",
    },
    "deep and lopsided": {
        "encoder_layers": 5,
        "decoder_layers": 1,
        "encoder_normalize_before": True,
        "decoder_ffn_embed_dim": 20,
        "encoder_attention_heads": 8,
    },
    "a decoder of other features": {"decoder_embed_dim": 20, "share_decoder_input_output_embed": True},
    "a wider decoder": {
        "decoder_embed_dim": 48,
        "decoder_normalize_before": True,
        "layernorm_embedding": True,
        "decoder_learned_pos": True,
    },
    "layer drop in training": {"encoder_layerdrop": 0.3, "decoder_layerdrop": 0.2},
}


@pytest.mark.parametrize("left", [False, True], ids=["right-padded", "left-padded"])
@pytest.mark.parametrize("name", FAIRSEQ_MODELS)
def test_logits_equal_fairseqs(name: str, left: bool, tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    args = fairseq_host.settings(**FAIRSEQ_MODELS[name])
    task = fairseq_host.task(WORDS, None if args.share_all_embeddings else WORDS + 7)
    model = fairseq_host.random_model(args, task)
    source, target = fairseq_host.padded_batch(WORDS, left=left)
    wanted = fairseq_host.logits(model, source, target)
    path = fairseq_host.save(tmp_path / "a.pt", args, model.state_dict())

    core = to_network(read_checkpoint(path))

    with torch.no_grad():
        found = core(source, target)
    kept = target.ne(1)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found[kept], wanted[kept], rtol=0, atol=1e-5)
    # The bound tells models apart: one weight changed in one layer breaks it.
    with torch.no_grad():
        core.encoder.layers[0].self_attention.qkv.bias[-1] += 0.1
        assert (core(source, target)[kept] - wanted[kept]).abs().max() > 1e-5


def test_names_of_old_checkpoints_convert(tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    args = fairseq_host.settings()
    model = fairseq_host.random_model(args, fairseq_host.task(WORDS))
    modern = model.state_dict()
    old = {key: tensor for key, tensor in modern.items() if "_proj." not in key or "out" in key}
    for key in [key for key in modern if ".q_proj." in key]:
        old[key.replace("q_proj.", "in_proj_")] = torch.cat(
            [modern[key.replace("q_proj", f"{part}_proj")] for part in "qkv"]
        )
    for i in range(2):
        for number, norm in (
            (0, "self_attn_layer_norm"),
            (1, "encoder_attn_layer_norm"),
            (2, "final_layer_norm"),
        ):
            for part in ("weight", "bias"):
                key = f"decoder.layers.{i}.{norm}.{part}"
                old[f"decoder.layers.{i}.layer_norms.{number}.{part}"] = old.pop(key)
    old["decoder.embed_out"] = old.pop("decoder.output_projection.weight")
    del old["encoder.version"], old["decoder.version"]
    path = fairseq_host.save(tmp_path / "a.pt", args, old, cfg=None, args=args)
    source, target = fairseq_host.padded_batch(WORDS, left=True)

    core = to_network(read_checkpoint(path))

    with torch.no_grad():
        found = core(source, target)
    wanted = fairseq_host.logits(model, source, target)
    torch.testing.assert_close(found[target.ne(1)], wanted[target.ne(1)], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("adaptive_softmax_cutoff", [10]),
        ("adaptive_input", True),
        ("char_inputs", True),
        ("cross_self_attention", True),
        ("no_cross_attention", True),
        ("quant_noise_pq", 0.1),
        ("quant_noise_scalar", 0.1),
        ("encoder_layers_to_keep", "0,1"),
        ("decoder_layers_to_keep", "0"),
        ("base_layers", 1),
        ("decoder_input_dim", 8),
        ("decoder_output_dim", 8),
        ("activation_fn", "gelu_accurate"),
        ("no_decoder_final_norm", True),
    ],
)
def test_unsupported_settings_are_named(setting: str, value: object, tmp_path: Path) -> None:
    args = Namespace(arch="transformer", decoder_normalize_before=True)
    setattr(args, setting, value)
    path = fairseq_host.save(tmp_path / "a.pt", args, {"decoder.version": torch.tensor([3.0])})
    with pytest.raises(UnsupportedCheckpointError, match=f"'{setting}' is {value!r}".replace("[", r"\[")):
        to_network(read_checkpoint(path))


@pytest.mark.parametrize(
    "arch", ["cmlm_transformer", "transformer_lm", "lstm", "levenshtein_transformer", ""]
)
def test_other_architectures_are_refused(arch: str, tmp_path: Path) -> None:
    path = fairseq_host.save(tmp_path / "a.pt", Namespace(arch=arch), {})
    with pytest.raises(UnsupportedCheckpointError, match=f"architecture '{arch}'"):
        to_network(read_checkpoint(path))


def test_a_pre_norm_decoder_of_before_the_final_norm_is_refused(tmp_path: Path) -> None:
    args = Namespace(arch="transformer", decoder_normalize_before=True)
    path = fairseq_host.save(tmp_path / "a.pt", args, {"decoder.version": torch.tensor([1.0])})
    with pytest.raises(UnsupportedCheckpointError, match=r"'decoder.version' is 1.0 without the final norm"):
        to_network(read_checkpoint(path))


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    args = fairseq_host.settings()
    tensors = fairseq_host.random_model(args, fairseq_host.task(WORDS)).state_dict()
    path = fairseq_host.save(tmp_path / "a.pt", args, {**tensors, "decoder.layers.0.c_attn": torch.ones(4)})
    with pytest.raises(UnsupportedCheckpointError, match=r"the tensor 'decoder.layers.0.c_attn'"):
        to_network(read_checkpoint(path))
    del tensors["encoder.layers.1.fc1.bias"]
    path = fairseq_host.save(tmp_path / "b.pt", args, tensors)
    with pytest.raises(CheckpointError, match=r"'encoder.layers.1.fc1.bias' is missing"):
        to_network(read_checkpoint(path))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("encoder_layers", 10**12, "`encoder_layers` is 1000000000000, not between 0 and 10000000"),
        ("decoder_layers", 1001, "`decoder_layers` is 1001, more than 1000"),
        ("decoder_layers", -1, "`decoder_layers` is -1, not between 0 and 10000000"),
        ("encoder_layers", "2", "setting 'encoder_layers' is '2'"),
        ("encoder_layers", 2.0, "setting 'encoder_layers' is 2.0"),
        ("encoder_layers", True, "setting 'encoder_layers' is True"),
        ("encoder_embed_dim", 10**12, "`d_model` is 1000000000000, not between 0 and 10000000"),
        ("encoder_attention_heads", 0, "`encoder_heads` is 0, below 1"),
        ("dropout", 10**400, "damaged settings or tensors: int too large to convert to float"),
        ("decoder_layers", 1000, "tensor 'encoder.layers.0.self_attn.q_proj.weight' is missing"),
    ],
)
def test_corrupt_sizes_are_refused_before_anything_is_made(
    setting: str, value: object, message: str, tmp_path: Path
) -> None:
    args = Namespace(arch="transformer", **{setting: value})
    words = {f"{side}.embed_tokens.weight": torch.zeros(WORDS, 512) for side in ("encoder", "decoder")}
    path = fairseq_host.save(tmp_path / "a.pt", args, words)
    with rising_at_most(20_000), pytest.raises(CheckpointError) as caught:
        to_network(read_checkpoint(path))
    assert (caught.value.where, caught.value.message) == (str(path), message)


def test_matrices_that_are_tied_but_differ_are_refused(tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    args = fairseq_host.settings(share_decoder_input_output_embed=True)
    tensors = fairseq_host.random_model(args, fairseq_host.task(WORDS)).state_dict()
    tensors["decoder.output_projection.weight"] = tensors["decoder.output_projection.weight"] + 1
    path = fairseq_host.save(tmp_path / "a.pt", args, tensors)
    with pytest.raises(CheckpointError) as caught:
        to_network(read_checkpoint(path))
    assert caught.value.message == "output.weight and decoder_embedding.words.weight are tied, but differ"
    assert caught.value.where == str(path)


def test_command_writes_a_folder_that_loads(tmp_path: Path, dictionary: Path) -> None:
    path = native_checkpoint(tmp_path / "a.pt")
    output = tmp_path / "model"
    assert convert_command.main([str(path), "--output", str(output), "--dict", str(dictionary)]) == 0
    model = nartk.load(output)
    assert len(model.decode(["w1 w2 w3"], strategy="greedy", max_len=8)) == 1
    wanted = torch.load(path, weights_only=False)["model"]
    for name, tensor in nartk.checkpoints.loading.load_checkpoint(output).tensors.items():
        assert torch.equal(torch.from_numpy(tensor), wanted[f"core.{name}"])
    card = (output / "card.md").read_text()
    assert "- Architecture: nartk_transformer_tiny\n" in card
    assert "- Updates: 7\n" in card
    assert "- Validation score when saved: 1.5\n" in card


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_weights_are_stored_in_the_type_asked_for(dtype: str, tmp_path: Path, dictionary: Path) -> None:
    path = native_checkpoint(tmp_path / "a.pt")
    args = [str(path), "--output", str(tmp_path / "m"), "--dict", str(dictionary), "--dtype", dtype]
    assert convert_command.main(args) == 0
    tensors = nartk.checkpoints.loading.load_checkpoint(tmp_path / "m").tensors
    assert {*tensors.types.values()} == {dtype.upper().replace("FP", "F")}


def test_dictionary_is_found_in_the_data_folder(tmp_path: Path, dictionary: Path) -> None:
    for language in ("src", "trg"):
        (tmp_path / f"dict.{language}.txt").write_text(dictionary.read_text())
    task = {"data": str(tmp_path), "source_lang": "src", "target_lang": "trg"}
    model = torch.load(native_checkpoint(tmp_path / "a.pt"), weights_only=False)["cfg"]["model"]
    path = native_checkpoint(tmp_path / "a.pt", cfg={"model": model, "task": task})
    assert convert_command.main([str(path), "--output", str(tmp_path / "m")]) == 0


def test_dictionary_of_another_size_is_refused(
    tmp_path: Path, dictionary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dictionary.write_text("only 1\n")
    path = native_checkpoint(tmp_path / "a.pt")
    args = [str(path), "--output", str(tmp_path / "m"), "--dict", str(dictionary)]
    assert convert_command.main(args) == 4
    error = capsys.readouterr().err
    assert f"error[E302 VocabMismatch] {path}: the model has 24 source words, its dictionary 5" in error
    assert error.endswith("Fix: give the dictionary it was trained with as --source-dict.\n")


@pytest.mark.parametrize("flag", ["--spm", "--target-spm"])
def test_the_tokenizer_is_tried_at_conversion(
    flag: str, tmp_path: Path, dictionary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, pieces = native_checkpoint(tmp_path / "a.pt"), tmp_path / "pieces"
    pieces.write_bytes(b"no model")
    args = [str(path), "--output", str(tmp_path / "m"), "--dict", str(dictionary), flag, str(pieces)]
    assert convert_command.main(args) == 5
    assert f"error[E402 Checkpoint] {pieces}: not a sentencepiece model" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_missing_dictionary_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = native_checkpoint(tmp_path / "a.pt")
    assert convert_command.main([str(path), "--output", str(tmp_path / "m")]) == 5
    assert "the source dictionary of its training data is not found" in capsys.readouterr().err


def test_fairseq_is_not_needed(tmp_path: Path, dictionary: Path) -> None:
    path = native_checkpoint(tmp_path / "a.pt")
    code = (
        "import sys\n"
        "for name in ('fairseq', 'omegaconf', 'hydra'): sys.modules[name] = None\n"
        "from nartk.cli.convert import main; sys.exit(main())"
    )
    args = [str(path), "--output", str(tmp_path / "m"), "--dict", str(dictionary)]
    root = str(Path(nartk.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code, *args], cwd=root, check=True, capture_output=True)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("command", ["convert", "average"])
def test_malicious_checkpoint_runs_nothing(
    command: str, zipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary, path = tmp_path / "canary", tmp_path / "a.pt"
    torch.save(
        {"model": {}, "cfg": fairseq_host.Payload(canary)}, path, _use_new_zipfile_serialization=zipped
    )
    if command == "convert":
        status = convert_command.main([str(path), "--output", str(tmp_path / "m")])
    else:
        status = average_command.main(["--inputs", str(path), "--output", str(tmp_path / "b.pt")])
    assert status == 5
    assert not canary.exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.pt"]
    error = capsys.readouterr().err
    assert error.startswith(f"nartk: error[E402 Checkpoint] {path}: asks for ")
    assert ".system'" in error
    assert error.count("\n") == 1
    # The payload does bite where loading is not safe.
    torch.load(path, weights_only=False)
    assert canary.exists()


def test_broken_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = native_checkpoint(tmp_path / "good.pt").read_bytes()
    legacy = tmp_path / "legacy.pt"
    torch.save(
        torch.load(tmp_path / "good.pt", weights_only=False), legacy, _use_new_zipfile_serialization=False
    )
    old = legacy.read_bytes()
    broken = [good[:cut] for cut in (0, 1, 100, len(good) // 2, len(good) - 1)]
    broken += [old[:cut] for cut in (1, 100, len(old) // 2, len(old) - 1)]
    broken += [b"not a checkpoint\n", b"\x80\x02]q\x00.", bytes(1000)]
    path = tmp_path / "a.pt"
    for data in broken:
        path.write_bytes(data)
        assert convert_command.main([str(path), "--output", str(tmp_path / "m")]) == 5, data[:20]
        assert capsys.readouterr().err.startswith(f"nartk: error[E402 Checkpoint] {path}: ")
    for state in ([], {}, {"model": 3}, {"model": {"a": 1}}, {"model": {}}):
        torch.save(state, path)
        assert convert_command.main([str(path), "--output", str(tmp_path / "m")]) == 5
        assert "not a checkpoint of fairseq" in capsys.readouterr().err
    assert convert_command.main([str(tmp_path / "none.pt"), "--output", str(tmp_path / "m")]) == 2


def test_a_torch_that_may_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-32434: before torch 2.6, weights_only=True was no protection."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(MissingDependencyError, match=r"torch 2\.5\.1\+cpu may run code"):
        read_checkpoint(native_checkpoint(tmp_path / "a.pt"))


def test_fairseqs_own_loading_refuses_by_name(tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    from fairseq import checkpoint_utils

    from nartk.cli import _fairseq

    _fairseq.start()
    path, canary = tmp_path / "a.pt", tmp_path / "canary"
    torch.save({"model": {}, "cfg": fairseq_host.Payload(canary)}, path)
    with pytest.raises(CheckpointError, match=r"asks for '.*\.system', which a checkpoint has no need of"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert not canary.exists()


def test_infinite_weights_are_refused(tmp_path: Path) -> None:
    state = torch.load(native_checkpoint(tmp_path / "a.pt"), weights_only=False)
    state["model"]["core.encoder_layers.0.ffn.up.bias"][3] = float("inf")
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"'encoder_layers.0.ffn.up.bias' holds NaN or infinity"):
        to_network(read_checkpoint(tmp_path / "a.pt"))


def run_folder(folder: Path) -> Path:
    """Six checkpoints of a run: validated at every second one, named by update, with fairseq's copies."""
    folder.mkdir()
    losses = {10: None, 20: 3.0, 30: None, 40: 1.0, 50: None, 60: 2.0}
    for seed, (updates, loss) in enumerate(losses.items()):
        extra = {"optimizer_history": [{"num_updates": updates}], "extra_state": {"val_loss": loss}}
        path = native_checkpoint(
            folder / f"checkpoint_1_{updates}.pt", seed, **extra, last_optimizer_state={1: 2}
        )
    (folder / "checkpoint_last.pt").write_bytes(path.read_bytes())
    (folder / "checkpoint_best.pt").write_bytes((folder / "checkpoint_1_40.pt").read_bytes())
    (folder / "checkpoint_mean.pt").write_bytes(b"no checkpoint of the run itself")
    return folder


@pytest.mark.parametrize(
    ("flags", "updates"),
    [
        (["--last", "3", "RUN"], (40, 50, 60)),
        (["--best", "2", "RUN"], (40, 60)),
        (["--inputs", "RUN/checkpoint_1_10.pt"], (10,)),
        (["--inputs", "RUN/checkpoint_1_10.pt", "RUN/checkpoint_1_50.pt"], (10, 50)),
    ],
)
def test_average_is_numpys_mean(flags: list[str], updates: tuple[int, ...], tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    output = tmp_path / "mean.pt"
    arguments = [flag.replace("RUN", str(run)) for flag in flags]
    assert average_command.main([*arguments, "--output", str(output)]) == 0
    parts = [torch.load(run / f"checkpoint_1_{u}.pt", weights_only=False)["model"] for u in updates]
    mean = torch.load(output, weights_only=False)
    assert "last_optimizer_state" not in mean
    assert mean["model"].keys() == parts[0].keys()
    for name, tensor in mean["model"].items():
        wanted = sum(part[name].numpy().astype("float64") for part in parts) / len(parts)
        assert tensor.dtype == torch.float32
        assert abs(tensor.numpy() - wanted).max() <= 2**-24 * abs(wanted).max(), name


def test_best_follows_the_direction_of_the_metric(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    for path in run.glob("checkpoint_[1bl]*.pt"):
        state = torch.load(path, weights_only=False)
        state["cfg"]["checkpoint"]["maximize_best_checkpoint_metric"] = True
        torch.save(state, path)
    assert [c.updates for c in best_checkpoints(run, 2)] == [60, 20]


def test_average_refuses_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run")
    assert average_command.main(["--best", "4", str(run), "--output", str(tmp_path / "a.pt")]) == 2
    assert "4 validated checkpoints asked for, 3 in " in capsys.readouterr().err
    assert average_command.main(["--last", "0", str(run), "--output", str(tmp_path / "a.pt")]) == 2
    assert "--last is '0', not a number of at least 1" in capsys.readouterr().err
    other = torch.load(run / "checkpoint_1_10.pt", weights_only=False)
    del other["model"]["core.encoder_norm.bias"]
    torch.save(other, tmp_path / "other.pt")
    inputs = ["--inputs", str(tmp_path / "other.pt"), str(run / "checkpoint_1_20.pt")]
    assert average_command.main([*inputs, "--output", str(tmp_path / "a.pt")]) == 5
    assert "tensor 'core.encoder_norm.bias' is missing" in capsys.readouterr().err
