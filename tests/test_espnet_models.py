"""Whole models of ESPnet's, converted, give what its own program gives of a sound.

tests/oracles/espnet_models.py wrote the numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.espnet_models import (
    LONGEST,
    MODELS,
    ORACLE,
    TARGET,
    TOKENS,
    config_of,
    rate_of,
    sound_of,
    state_of,
    write,
)

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode_main
from nartk.engine import available
from nartk.processors.audio import AudioInput
from nartk.protocols.passes import FeatureSource
from nartk.serving.scorers import load_network

yaml = pytest.importorskip("yaml")

BLANK, UNKNOWN, END = 0, 1, len(TOKENS) - 1
SPELLED = [" " if word == "<space>" else word for word in TOKENS]


def oracle(name: str, key: str) -> Any:
    with np.load(ORACLE) as stored:
        return stored[f"{name} {key}"]


def converted(tmp_path: Path, name: str, **changes: Any) -> Path:
    path = write(tmp_path / name, name, **changes)
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    return tmp_path / "model"


def source_of(model: Path, name: str) -> FeatureSource:
    input = load_checkpoint(model).input
    assert isinstance(input, AudioInput)
    return input.of_samples(sound_of(name))


def by_theirs(model: Path, rows: np.ndarray) -> np.ndarray:
    """Log-probabilities [N,V] by ESPnet's ids, which a word of nartk's has no part in."""
    words = load_checkpoint(model).target_vocab.words
    rows = torch.from_numpy(rows).double().log_softmax(1).numpy()
    assert np.exp(rows[:, words.index("<pad>")]).max() == 0
    return rows[:, [words.index(word) for word in SPELLED]]


@pytest.mark.parametrize("name", MODELS)
def test_features_are_espnets(name: str, tmp_path: Path) -> None:
    """To what fp32 has of the logarithm of a power; silence is its floor."""
    source = source_of(converted(tmp_path, name), name)
    theirs = oracle(name, "normalized")
    assert source.frames.shape == theirs.shape
    close = np.abs(source.frames - theirs) < 2e-3
    assert close.mean() > 0.995
    assert np.abs(source.frames - theirs).max() < 0.2  # of bins that are next to silent


@pytest.mark.parametrize("name", MODELS)
def test_networks_are_espnets(name: str, tmp_path: Path) -> None:
    """Memory, CTC and decoder, of the very features of ESPnet's."""
    model = converted(tmp_path, name)
    checkpoint = load_checkpoint(model)
    network = load_network(checkpoint).eval().double()
    frames = torch.from_numpy(oracle(name, "normalized")).double()[None]
    with torch.no_grad():
        encoded = network.encoder(frames, torch.tensor([frames.shape[1]]))
        heard = network.encoder.ctc(encoded.memory)[0].numpy()
        assert np.abs(encoded.memory[0].numpy() - oracle(name, "memory")).max() < 1e-5
        assert np.abs(by_theirs(model, heard) - oracle(name, "ctc")).max() < 1e-5
        if name == "ctc":
            assert checkpoint.architecture == "owsm_ctc"
            return
        words = checkpoint.target_vocab
        read = torch.tensor([[words.eos, *words.ids(SPELLED[word] for word in TARGET)]])
        logits = network.output(network.features(encoded, read))[0].numpy()
    assert np.abs(by_theirs(model, logits) - oracle(name, "decoder")).max() < 1e-5


@pytest.mark.skipif(not available(), reason="no engine")
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_says_what_espnet_does(name: str, tmp_path: Path) -> None:
    model = converted(tmp_path, name)
    loaded, vocab = nartk.load(model), load_checkpoint(model).target_vocab
    sound = (sound_of(name), rate_of(name))
    labels = [word for word, _ in itertools.groupby(oracle(name, "ctc").argmax(1).tolist())]
    assert END not in labels
    (heard,) = loaded.decode([sound], "ctc-greedy")
    wanted = ["⁇" if word == UNKNOWN else SPELLED[word] for word in labels if word != BLANK]
    assert heard.text == "".join(wanted)
    assert len({*wanted}) > 2
    if name == "ctc":
        return
    (found,) = loaded.decode([sound], "greedy", max_len=LONGEST)
    theirs = [word for word in oracle(name, "greedy").tolist() if word != END]
    assert vocab.to_words(word for word in found.tokens if word != vocab.eos) == [
        SPELLED[word] for word in theirs
    ]
    assert len({*theirs}) > 2


def test_a_packed_model_with_pieces_is_read(tmp_path: Path) -> None:
    """What the hub has of ESPnet's: ``meta.yaml`` names the files, and the configuration the pieces."""
    packed = tmp_path / "packed"
    config = config_of("conformer") | {"token_type": "bpe", "bpemodel": "data/bpe_unigram7/bpe.model"}
    pieces = ["\u2581a", "b", "\u2581c", "d", "e", "f", "\u2581"]
    config["token_list"] = ["<blank>", "<unk>", *pieces, "g", "<sos/eos>"]
    inner = write(packed / "exp" / "asr_train", "conformer", config)
    small = write_model(packed / "data" / "bpe_unigram7" / "bpe.model", [*pieces, "g"])
    names = {"asr_model_file": "exp/asr_train/valid.acc.ave_10best.pth"}
    described = {"files": names, "yaml_files": {"asr_train_config": "exp/asr_train/config.yaml"}}
    (packed / "meta.yaml").write_text(yaml.dump(described))
    outputs = set()
    for i, given in enumerate(([packed], [inner], [inner / "valid.acc.ave.pth"], [inner, "--spm", small])):
        model = tmp_path / str(i)
        assert convert([*map(str, given), "--output", str(model), "--quiet"]) == 0
        checkpoint = load_checkpoint(model, check=True)
        text = "ab cd"
        assert checkpoint.output.decode(checkpoint.output.encode(text)) == text
        words = checkpoint.target_vocab
        assert words.to_words(checkpoint.output.encode(text)) == ["\u2581a", "b", "\u2581c", "d"]
        outputs.add((model / "model.safetensors").read_bytes())
    assert len(outputs) == 1


def write_model(path: Path, pieces: list[str]) -> Path:
    """A model of sentencepiece of these pieces."""
    from sentencepiece import sentencepiece_model_pb2 as pb

    path.parent.mkdir(parents=True)
    made = pb.ModelProto()
    for i, piece in enumerate(["<unk>", "<s>", "</s>", *pieces]):
        made.pieces.add(piece=piece, score=-float(i), type=(2, 3, 3)[i] if i < 3 else 1)
    made.trainer_spec.model_type = 1
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.skipif(not available(), reason="no engine")
def test_it_becomes_int8(tmp_path: Path) -> None:
    path = write(tmp_path / "theirs", "conformer")
    assert convert([str(path), "--quantize", "int8", "--output", str(tmp_path / "int8"), "--quiet"]) == 0
    (found,) = nartk.load(tmp_path / "int8").decode([(sound_of("conformer"), 16000)], "ctc-greedy")
    assert found.error is None


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "encoder": ("conformer", {"encoder": "transformer"}, "encoder is 'transformer'"),
    "decoder": ("conformer", {"decoder": "transducer"}, "decoder is 'transducer'"),
    "task": ("conformer", {"model": "maskctc"}, "model is 'maskctc'"),
    "preencoder": ("conformer", {"preencoder": "linear"}, "preencoder is 'linear'"),
    "frontend": ("conformer", {"frontend": "s3prl"}, "frontend is 's3prl'"),
    "normalize": ("conformer", {"normalize": ["utterance"]}, "normalize is ['utterance']"),
    "tokens": ("conformer", {"token_type": "phn"}, "token_type is 'phn'"),
    "no CTC": ("conformer", {"model_conf.ctc_weight": 0}, "model_conf.ctc_weight is 0"),
    "ends": ("conformer", {"model_conf.sym_sos": "<s>"}, "model_conf.sym_sos is '<s>'"),
    "legacy positions": ("conformer", {"encoder_conf.rel_pos_type": "legacy"}, "rel_pos_type is 'legacy'"),
    "no macaron": ("conformer", {"encoder_conf.macaron_style": False}, "macaron_style is False"),
    "unknown": ("conformer", {"encoder_conf.rotary": 1}, "encoder_conf.rotary is 1"),
    "input layer": ("conformer", {"encoder_conf.input_layer": "conv2d6"}, "input_layer is 'conv2d6'"),
    "gate": ("e_branchformer", {"encoder_conf.gate_activation": "gelu"}, "gate_activation is 'gelu'"),
    "no ffn": ("e_branchformer", {"encoder_conf.use_ffn": False}, "use_ffn is False"),
    "positions": (
        "ctc",
        {"encoder_conf.selfattention_layer_type": "rel_selfattn"},
        "selfattention_layer_type beside abs_pos is 'rel_selfattn'",
    ),
    "mel": ("conformer", {"frontend_conf.htk": True}, "frontend_conf.htk is True"),
    "window": ("conformer", {"frontend_conf.window": "hamming"}, "frontend_conf.window is 'hamming'"),
    "low": ("conformer", {"frontend_conf.fmin": 80}, "frontend_conf.fmin is 80"),
    "beams": (
        "conformer",
        {"frontend_conf.frontend_conf": {"use_beamformer": True}},
        "use_beamformer is True",
    ),
    "means": (
        "conformer",
        {"normalize": "utterance_mvn", "normalize_conf": {}},
        "normalize_conf.norm_vars of utterance_mvn is False",
    ),
    "blank": ("conformer", {"token_list": TOKENS[1:]}, "the first word of token_list is '<unk>'"),
    "layers": ("conformer", {"decoder_conf.num_blocks": 1}, "is not in the configuration"),
    "more layers": ("conformer", {"decoder_conf.num_blocks": 3}, "'decoder.decoders.2.self_attn"),
    "rate": ("conformer", {"frontend_conf.fs": "fast"}, "frontend_conf.fs is 'fast'"),
    "size": ("conformer", {"encoder_conf.num_blocks": "2"}, "encoder_conf.num_blocks is '2'"),
    "width": (
        "conformer",
        {"frontend_conf.win_length": 513},
        "frontend_conf.win_length is 513, not 1 to 512",
    ),
    "words": ("conformer", {"token_list": [*TOKENS[:-1], "more", "<sos/eos>"]}, "has shape [11"),
    "no words": ("conformer", {"token_list": "tokens.txt"}, "token_list is 'tokens.txt', no list of words"),
    "path": ("conformer", {"token_type": "bpe", "bpemodel": "../../x.model"}, "give --spm with the file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_named(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, changes, message = REFUSED[case]
    config = config_of(name)
    for key, value in changes.items():
        part, _, inner = key.rpartition(".")
        (config[part] if part else config)[inner] = value
    path = write(tmp_path / "a" / "b" / "theirs", name, config)
    (tmp_path / "x.model").write_bytes(b"not to be read")
    assert convert([str(path), "--output", str(tmp_path / "model")]) in (5, 6)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()


BOMB = "a: &a [x,x,x,x]\n" + "".join(
    f"{b}: &{b} [*{a},*{a},*{a}]\n" for a, b in itertools.pairwise("abcdefgh")
)


DAMAGED = {
    "aliases": (BOMB, "has an alias"),
    "depth": ("a: " + "[" * 5000, "nested more than 20 deep"),
    "truncated": ("a: [1, 2", "no YAML"),
    "code": ("a: !!python/object/apply:os.system [true]", "no YAML"),
    "a list": ("- a\n- b", "holds no settings by name"),
    "nothing": ("", "holds no settings by name"),
    "another's": ("a: 1", "no configuration of ESPnet's speech recognition"),
    "many": ("a: [" + "x," * 130_000 + "x]", "holds more than 120000 values"),
    "control": ("a: \x01", "no YAML"),
    "date": ("a: 9999-99-99", "no YAML"),
    "large": ("x" * 5_000_001, "5000000"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_configurations_are_named(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = DAMAGED[case]
    path = write(tmp_path / "theirs", "conformer")
    (path / "config.yaml").write_text(text)
    assert convert([str(path), "--output", str(tmp_path / "model")]) in (5, 6)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"asr_model_file": "../weights.pth"}, "asr_model_file is '../weights.pth', no file of the folder"),
        ({"asr_model_file": ["a"]}, "asr_model_file is ['a'], no file of the folder"),
        ({"enh_model_file": "a.pth"}, "names 'enh_model_file', not 'asr_model_file'"),
    ],
)
def test_manifests_name_files_inside(
    files: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "packed" / "exp", "conformer")
    (tmp_path / "weights.pth").write_bytes(b"")
    described = {"files": files, "yaml_files": {"asr_train_config": "exp/config.yaml"}}
    (tmp_path / "packed" / "meta.yaml").write_text(yaml.dump(described))
    assert convert([str(tmp_path / "packed"), "--output", str(tmp_path / "model")]) in (5, 6)
    assert message in capsys.readouterr().err


def test_a_folder_of_several_weights_asks_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs", "conformer")
    (path / "valid.acc.ave.pth").unlink()
    (path / "valid.acc.ave_10best.pth").rename(path / "4epoch.pth")
    torch.save(state_of("conformer"), path / "3epoch.pth")
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 2
    assert "holds 3epoch.pth, 4epoch.pth. Fix: name one of them" in capsys.readouterr().err
    assert convert([str(path / "4epoch.pth"), "--output", str(tmp_path / "model")]) == 0


def test_decoding_names_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs", "conformer")
    assert decode_main([str(path), "a.wav"]) == 5
    assert f"is a model of ESPnet. Fix: nartk-convert {path} --output DIR" in capsys.readouterr().err


@pytest.mark.parametrize("place", range(20))
def test_truncated_weights_are_named(place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs", "conformer")
    weights = path / "valid.acc.ave_10best.pth"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) * place // 20])
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 5
    assert "error[E402 Checkpoint]" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def shorter(state: dict[str, Any]) -> None:
    state["ctc.ctc_lo.bias"] = state["ctc.ctc_lo.bias"][:-1].clone()


def not_a_number(state: dict[str, Any]) -> None:
    state["encoder.after_norm.bias"][3] = float("nan")


def lost(state: dict[str, Any]) -> None:
    del state["decoder.decoders.1.src_attn.linear_v.weight"]


def more(state: dict[str, Any]) -> None:
    state["encoder.encoders.0.adapter.weight"] = torch.zeros(2)


def whole(state: dict[str, Any]) -> None:
    state["encoder.after_norm.bias"] = torch.zeros(12, dtype=torch.int64)


def unnormalized(state: dict[str, Any]) -> None:
    del state["normalize.std"]


def constant(state: dict[str, Any]) -> None:
    state["normalize.std"][2] = 0


def beside(state: dict[str, Any]) -> None:
    state["epoch"] = 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorter, "tensor 'ctc.ctc_lo.bias' has shape [10], the configuration says [11]"),
        (not_a_number, "holds NaN or infinity"),
        (lost, "tensor 'decoder.decoders.1.src_attn.linear_v.weight' is missing"),
        (more, "tensor 'encoder.encoders.0.adapter.weight' is not in the configuration"),
        (whole, "which is no floating point"),
        (unnormalized, "tensor 'normalize.std' is missing"),
        (constant, "normalize.std is 0, below 1e-05"),
        (beside, "holds something else than tensors by name"),
    ],
)
def test_damaged_weights_are_named(
    change: Callable[[dict[str, Any]], None],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state: dict[str, Any] = state_of("conformer")
    change(state)
    path = write(tmp_path / "theirs", "conformer", state=state)
    assert convert([str(path), "--output", str(tmp_path / "model")]) in (5, 6)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
