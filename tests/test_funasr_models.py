"""Whole Paraformers of FunASR's, converted, give what its own program gives of sounds.

tests/oracles/funasr_models.py wrote the numbers.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.funasr_models import (
    MODELS,
    ORACLE,
    RATE,
    SAMPLES,
    STACKS,
    TOKENS,
    config_of,
    mvn_of,
    sounds,
    state_of,
    statistics_of,
    write,
)

import nartk
from nartk.architectures.sanm_paraformer import SanmParaformerConfig
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode_main
from nartk.engine import available
from nartk.models.sanm import SanmEncoderModule
from nartk.processors.audio import AudioInput
from nartk.processors.funasr import FunasrText
from nartk.protocols.passes import FeatureSource, Want
from nartk.serving.long_form import buffers_for
from nartk.serving.scorers import load_network, reference_scorer
from nartk.vocab import Vocab

yaml = pytest.importorskip("yaml")
engine = pytest.mark.skipif(not available(), reason="no engine")

UNUSED = 3  # words that nartk puts in front
UNKNOWN = TOKENS.index("<unk>")


def oracle(key: str) -> Any:
    with np.load(ORACLE) as stored:
        return stored[key] if key in stored.files else None


def converted(tmp_path: Path, name: str, *arguments: str) -> Path:
    path = write(tmp_path / name, name)
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet", *arguments]) == 0
    return tmp_path / "model"


def load(model: Path, **settings: Any) -> Any:
    """The model, which takes no sound for silence by itself."""
    return nartk.load(model, vad=False, **settings)


def text_of(name: str, i: int) -> str:
    """FunASR's text, whose words all have spaces between them where it gives their times."""
    found = str(oracle(f"{name} {i} text"))
    return found.replace(" ", "") if name == "bicif" else found


def sources_of(model: Path) -> list[FeatureSource]:
    input = load_checkpoint(model).input
    assert isinstance(input, AudioInput)
    return [input.of_samples(each) for each in sounds()]


def by_theirs(rows: np.ndarray) -> np.ndarray:
    """Log-probabilities [N,V] by FunASR's ids, which nartk's first words have no part in."""
    assert len(rows) == 0 or np.exp(rows[:, :UNUSED]).max() == 0
    others = [i for i in range(len(TOKENS)) if i != UNKNOWN]
    places = {id: UNUSED + 1 + at for at, id in enumerate(others)} | {UNKNOWN: UNUSED}
    return rows[:, [places[id] for id in range(len(TOKENS))]]


def theirs_of(name: str, i: int) -> np.ndarray:
    """The log-probabilities [N,V] of a sound."""
    found = oracle(f"{name} {i} scores")
    return np.zeros((0, len(TOKENS)), np.float32) if found is None else found


@pytest.mark.parametrize("stack", STACKS)
def test_frames_lie_side_by_side_as_funasrs(stack: tuple[int, int]) -> None:
    """Of 1 to 30 frames, alone and in one batch."""
    config = SanmParaformerConfig(
        tgt_vocab=9, d_model=4, encoder_heads=1, decoder_heads=1, encoder_layers=1, input_features=1
    )
    config = replace(config, stacked_frames=stack[0], subsampling=stack[1], scale_embedding=False)
    network = SanmEncoderModule(config)
    theirs = [oracle(f"lfr {stack[0]} {stack[1]} {count}") for count in range(1, 31)]
    lengths = torch.arange(1, 31)
    frames = torch.arange(30.0)[None, :, None].expand(30, -1, -1)  # those behind a row's end too
    both, kept = network.stacked(frames, lengths)
    for i, wanted in enumerate(theirs):
        alone, _ = network.stacked(frames[:1, : i + 1], lengths[i : i + 1])
        assert alone[0].tolist() == wanted.tolist()
        assert both[i][kept[i]].tolist() == wanted.tolist()
        assert config.encoded_length(i + 1) == len(wanted)


@pytest.mark.parametrize("name", MODELS)
def test_networks_are_funasrs(name: str, tmp_path: Path) -> None:
    """Frames side by side, memory, weights of positions, counts and log-probabilities of six sounds."""
    model = converted(tmp_path, name)
    network: Any = load_network(load_checkpoint(model)).eval()
    counts = []
    for i, source in enumerate(sources_of(model)):
        frames = torch.from_numpy(source.frames)[None]
        with torch.no_grad():
            entered, _ = network.encoder.stacked(frames, torch.tensor([frames.shape[1]]))
            encoded = network.encoder.read([source])
            fires, lengths, alpha = network.fires(encoded.memory, encoded.kept)
            features = entered[0] / math.sqrt(network.config.d_model)
            assert np.abs(features.numpy() - oracle(f"{name} {i} features")).max() < 1e-4
            assert np.abs(encoded.memory[0].numpy() - oracle(f"{name} {i} memory")).max() < 1e-4
            assert np.abs(alpha[0].numpy() - oracle(f"{name} {i} alphas")[:-1]).max() < 1e-4
            counts.append(int(lengths[0]))
            assert counts[-1] == int(oracle(f"{name} {i} counts"))
            if counts[-1]:
                hidden = network.fill(
                    network.embed_vectors(fires),
                    fires[:, :, 0] == fires[:, :, 0],
                    *(encoded.memory, encoded.mask),
                )
                scores = network.output(hidden)[0].log_softmax(1).numpy()
                assert np.abs(by_theirs(scores) - theirs_of(name, i)).max() < 1e-3
    assert counts.count(0) < len(counts) - 2


@pytest.mark.parametrize("device", ["torch", pytest.param("engine", marks=engine)])
@pytest.mark.parametrize("name", MODELS)
def test_scorers_read_what_funasr_does(name: str, device: str, tmp_path: Path) -> None:
    """In one batch; sounds without a fire have none."""
    model = converted(tmp_path, name)
    scorer: Any = nartk.load(model).passes
    if device == "torch":
        scorer = reference_scorer(load_checkpoint(model), "cpu", "fp32")
    memory = scorer.encode(sources_of(model))
    wanted = [theirs_of(name, i) for i in range(len(SAMPLES))]
    assert scorer.frames(memory).tolist() == [len(each) for each in wanted]
    everything = np.arange(sum(map(len, wanted)), dtype=np.int32)
    logits = scorer.read_frames(memory, Want()).rows(everything)
    found = torch.from_numpy(logits).double().log_softmax(1).numpy()
    assert np.abs(by_theirs(found) - np.concatenate(wanted)).max() < 2e-3
    for weights, i in zip(scorer.weights(memory), range(len(SAMPLES)), strict=True):
        assert np.abs(weights - oracle(f"{name} {i} alphas")[:-1]).max() < 1e-4
    silent = [handle for handle, each in zip(memory, wanted, strict=True) if not len(each)]
    if silent:
        assert scorer.read_frames(silent, Want(margin=True)).best.tolist() == []
    scorer.free(memory)


@engine
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_funasrs(name: str, tmp_path: Path) -> None:
    """Words and text, alone and in a batch with the same bits.

    Not the text of a subword that no word follows, which FunASR leaves out.
    """
    loaded = load(converted(tmp_path, name))
    given = [(each, RATE) for each in sounds()]
    together = loaded.decode(given)
    assert loaded.checkpoint.architecture == "sanm_paraformer"
    words, texts = set(), set()
    for i, (found, sound) in enumerate(zip(together, given, strict=True)):
        (alone,) = loaded.decode([sound])
        assert (alone.tokens, alone.positional_scores) == (found.tokens, found.positional_scores)
        said = [TOKENS.index(each) for each in loaded.checkpoint.target_vocab.to_words(found.tokens[:-1])]
        theirs = oracle(f"{name} {i} tokens").tolist()
        assert [each for each in said if each > 2] == theirs
        assert said == theirs_of(name, i).argmax(1).tolist()
        if not re.search("hel@@ ?(?:[你好们7]|$)", " ".join(TOKENS[each] for each in theirs)):
            assert (found.text.replace(" ", "") if name == "bicif" else found.text) == text_of(name, i)
            texts.add(found.text)
        assert found.positional_scores == pytest.approx([*theirs_of(name, i).max(1), 0.0], abs=2e-3)
        words |= {*theirs}
    assert len(words) > 2
    assert len(texts) > 2


@engine
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_it_runs_in_smaller_types(dtype: str, tmp_path: Path) -> None:
    """Close to fp32 where scores are, and the same bits alone and in a batch."""
    model = converted(tmp_path, "small")
    try:
        loaded = load(model, dtype=dtype)
    except nartk.errors.NartkError as error:
        pytest.skip(error.message)
    given = [(each, RATE) for each in sounds()]
    together, whole = loaded.decode(given), load(model).decode(given)
    for found, sound, wanted in zip(together, given, whole, strict=True):
        (alone,) = loaded.decode([sound])
        assert (alone.tokens, alone.positional_scores) == (found.tokens, found.positional_scores)
        if len(found.tokens) == len(wanted.tokens):
            assert found.positional_scores == pytest.approx(wanted.positional_scores, abs=1.5)
    assert sum(a.tokens == b.tokens for a, b in zip(together, whole, strict=True)) >= 3


@engine
def test_an_int8_folder_gives_what_int8_does(tmp_path: Path) -> None:
    path = write(tmp_path / "theirs", "large")
    assert convert([str(path), "--quantize", "int8", "--output", str(tmp_path / "int8"), "--quiet"]) == 0
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    given = [(each, RATE) for each in sounds()]
    one = load(tmp_path / "int8").decode(given)
    other = load(tmp_path / "model", dtype="int8").decode(given)
    assert [(each.tokens, each.positional_scores) for each in one] == [
        (each.tokens, each.positional_scores) for each in other
    ]


@engine
@pytest.mark.parametrize("name", MODELS)
def test_words_lie_where_the_weights_are(name: str, tmp_path: Path) -> None:
    """Spans by a running sum of FunASR's weights; times of words inside of the sound, one after the other."""
    loaded = load(converted(tmp_path, name))
    timed = 0
    for i, found in enumerate(loaded.decode([(each, RATE) for each in sounds()])):
        count = len(found.tokens) - 1
        sums = np.concatenate([[0.0], np.cumsum(oracle(f"{name} {i} alphas")[:-1], dtype=np.float64)])
        for at, (begin, end) in enumerate(found.spans or ()):
            wanted = np.interp(at + 0.1, sums, range(len(sums))), np.interp(at + 0.9, sums, range(len(sums)))
            assert (begin, end) == pytest.approx(wanted, abs=0.01)
        assert len(found.spans or ()) == count
        last = 0.0
        for word in found.words:
            assert last <= word.start < word.end <= SAMPLES[i] / RATE + 1e-6
            last, timed = word.end, timed + 1
        assert "".join(word.text for word in found.words).strip() == found.text
    assert timed > 3


def test_texts_are_joined_as_funasrs() -> None:
    """But for punctuation between letters and Chinese, which FunASR leaves out."""
    for words, wanted in json.loads(str(oracle("texts"))):
        vocab = Vocab(("<unused_0>", "<unused_1>", "<unused_2>", "<unk>", *TOKENS[:3], *{*words} - {*TOKENS}))
        vocab = Vocab((*vocab.words, *TOKENS[3:-1]))
        output = FunasrText(vocab)
        ids = vocab.ids(words)
        if "," in words:
            assert wanted == "word ,word好."
        assert output.decode([*ids, vocab.eos]) == wanted
        spans = [at for at, _ in output.words(ids)]
        assert all(one.stop <= other.start for one, other in itertools.pairwise(spans))


def test_texts_are_read_back() -> None:
    output = FunasrText(Vocab(("<s>", "<pad>", "</s>", "<unk>", "你", "好", "word", "a", "b")))
    assert output.vocab.to_words(output.encode("你好word ab 好x")) == [
        "你",
        "好",
        "word",
        "a",
        "b",
        "好",
        "<unk>",
    ]


def test_a_subword_that_no_word_follows_is_written() -> None:
    vocab = Vocab(("<s>", "<pad>", "</s>", "<unk>", "你", "hel@@", "word"))
    assert FunasrText(vocab).decode(vocab.ids(["word", "hel@@", "你", "hel@@"])) == "word hel你hel"


@engine
def test_other_names_of_files_are_read(tmp_path: Path) -> None:
    """What ModelScope's configuration.json names, a state dict beside others, and words as lines."""
    path = write(tmp_path / "theirs", "large")
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    for old, new in (("model.pt", "best.pb"), ("config.yaml", "large.yaml"), ("am.mvn", "am.txt")):
        (path / old).rename(path / new)
    state = {f"module.{name}": value for name, value in state_of("large").items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, path / "model.pt")
    (path / "tokens.json").unlink()
    (path / "words.txt").write_text("\n".join(TOKENS), "utf-8")
    metas = {
        "init_param": "model.pt",
        "config": "large.yaml",
        "tokenizer_conf": {"token_list": "words.txt", "seg_dict_file": "seg_dict"},
        "frontend_conf": {"cmvn_file": "am.txt"},
    }
    described = {"framework": "pytorch", "model": {"type": "funasr"}, "file_path_metas": metas}
    (path / "configuration.json").write_text(json.dumps(described))
    assert convert([str(path), "--output", str(tmp_path / "other"), "--quiet"]) == 0
    one, other = ((tmp_path / each / "model.safetensors").read_bytes() for each in ("model", "other"))
    assert one == other


def test_the_file_of_weights_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "theirs", "large")
    assert convert([str(path / "model.pt"), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    offset = load_checkpoint(tmp_path / "model").tensors["encoder_stacking.offset"]
    assert offset == pytest.approx(statistics_of("large")[0], abs=1e-5)


@engine
def test_what_reads_hotwords_is_left_out(tmp_path: Path) -> None:
    """SeacoParaformer: without hotwords its outputs are those of what it is made of."""
    config = config_of("bicif") | {"model": "SeacoParaformer", "seaco_decoder": "ParaformerSANMDecoder"}
    state = state_of("bicif") | {"bias_encoder.weight_ih_l0": torch.zeros(4, 4)}
    state |= {"seaco_decoder.after_norm.bias": torch.zeros(4), "hotword_output_layer.bias": torch.zeros(9)}
    path = write(tmp_path / "theirs", "bicif", config, state)
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    (found,) = load(tmp_path / "model").decode([(sounds()[0], RATE)])
    assert found.text.replace(" ", "") == text_of("bicif", 0)


@engine
def test_long_recordings_are_read_in_buffers(tmp_path: Path) -> None:
    """Buffers that hold all of a recording give what it gives as a whole, and positions are all covered."""
    loaded = load(converted(tmp_path, "large"))
    sound = np.concatenate(sounds() * 4)
    buffers = buffers_for(loaded, 60.0)
    whole, cut = (each.decode([(sound, RATE)])[0] for each in (loaded, replace(loaded, buffers=buffers)))
    assert cut.tokens == whole.tokens
    shorter = replace(loaded, buffers=buffers_for(loaded, 2.0)).decode([(sound, RATE)])[0]
    assert shorter.error is None
    assert abs(len(shorter.tokens) - len(whole.tokens)) <= 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "Transducer"}, "model is 'Transducer'"),
    "encoder": ({"encoder": "ConformerEncoder"}, "encoder is 'ConformerEncoder'"),
    "chunks": ({"encoder": "SANMEncoderChunkOpt"}, "encoder is 'SANMEncoderChunkOpt'"),
    "decoder": ({"decoder": "ParaformerSANDecoder"}, "decoder is 'ParaformerSANDecoder'"),
    "predictor": ({"predictor": ["CifPredictor"]}, "predictor is ['CifPredictor']"),
    "frontend": ({"frontend": "WavFrontendOnline"}, "frontend is 'WavFrontendOnline'"),
    "tokenizer": ({"tokenizer": "SentencepiecesTokenizer"}, "tokenizer is 'SentencepiecesTokenizer'"),
    "normalize": ({"normalize": "UtteranceMVN"}, "normalize is 'UtteranceMVN'"),
    "eos": ({"model_conf.eos": 5}, "model_conf.eos is 5"),
    "input layer": ({"encoder_conf.input_layer": "conv2d"}, "encoder_conf.input_layer is 'conv2d'"),
    "attention": ({"encoder_conf.selfattention_layer_type": "selfattn"}, "layer_type is 'selfattn'"),
    "unknown": ({"encoder_conf.rotary": 1}, "encoder_conf.rotary is 1"),
    "lora": ({"decoder_conf.lora_list": ["q"]}, "decoder_conf.lora_list is ['q']"),
    "threshold": ({"predictor_conf.threshold": 0.9}, "predictor_conf.threshold is 0.9"),
    "order": ({"predictor_conf.l_order": 2}, "predictor_conf.l_order is 2"),
    "smooth": ({"predictor_conf.smooth_factor": 1.1}, "predictor_conf.smooth_factor is 1.1"),
    "tail": ({"predictor_conf.tail_threshold": 0.0}, "predictor_conf.tail_threshold is 0.0"),
    "no such": ({"predictor_conf.beta": 1}, "predictor_conf.beta is 1"),
    "window": ({"frontend_conf.window": "blackman"}, "frontend_conf.window is 'blackman'"),
    "edges": ({"frontend_conf.snip_edges": False}, "frontend_conf.snip_edges is False"),
    "rate": ({"frontend_conf.fs": "16k"}, "frontend_conf.fs is '16k'"),
    "lfr": ({"frontend_conf.lfr_m": 0}, "frontend_conf.lfr_m is 0"),
    "many": ({"frontend_conf.lfr_n": 101}, "`subsampling` is 101"),
    "shift": ({"encoder_conf.sanm_shfit": 9}, "`encoder_memory_shift` is 9"),
    "shift of text": ({"encoder_conf.sanm_shfit": "no"}, "encoder_conf.sanm_shfit is 'no'"),
    "heads": ({"encoder_conf.attention_heads": 5}, "no multiple of `encoder_heads` 5"),
    "layers": ({"encoder_conf.num_blocks": 2}, "is not in the configuration"),
    "more layers": ({"encoder_conf.num_blocks": 4}, "tensor 'encoder.encoders.2."),
    "reading layers": ({"decoder_conf.att_layer_num": 3}, "tensor 'decoder.decoders.2."),
    "kernel": ({"encoder_conf.kernel_size": 7}, "has shape [12, 1, 5], the configuration says [12, 1, 7]"),
    "statistics": ({"frontend_conf.n_mels": 9}, "<AddShift> has 56 numbers, not 63"),
    "words": ({"encoder_conf": [1]}, "encoder_conf is [1], no settings by name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_named(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = REFUSED[case]
    config = config_of("large")
    for key, value in changes.items():
        part, _, inner = key.rpartition(".")
        (config[part] if part else config)[inner] = value
    path = write(tmp_path / "theirs", "large", config)
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 5
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()


class Code:
    """What a pickle runs."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


def without(*names: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return damage


def text(name: str, content: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / name).write_text(content, "utf-8")

    return damage


def tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        state: dict[str, Any] = state_of("large")
        change(state)
        torch.save(state, path / "model.pt")

    return damage


BIAS = "predictor.cif_output.bias"
DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no statistics": (without("am.mvn"), "am.mvn is missing"),
    "no weights": (without("model.pt"), "model.pt is missing"),
    "no words": (without("tokens.json"), "tokens.json is missing"),
    "a tensor is missing": (tensors(lambda state: state.pop(BIAS)), f"tensor {BIAS!r} is missing"),
    "another size": (
        tensors(lambda state: state.update({BIAS: torch.zeros(2)})),
        f"tensor {BIAS!r} has shape [2], the configuration says [1]",
    ),
    "another": (
        tensors(lambda state: state.update(x=torch.zeros(2))),
        "tensor 'x' is not in the configuration",
    ),
    "integers": (
        tensors(lambda state: state.update({BIAS: torch.zeros(1, dtype=torch.int64)})),
        "which is no floating point",
    ),
    "NaN": (tensors(lambda state: state[BIAS].fill_(math.nan)), f"tensor {BIAS!r} holds NaN"),
    "code": (tensors(lambda state: state.update(x=Code())), "asks for"),
    "no pickle": (text("model.pt", "weights"), "E402"),
    "no numbers": (text("am.mvn", "<Nnet>\n"), "has no numbers of <AddShift>"),
    "no rescale": (text("am.mvn", mvn_of("large").partition("<Rescale>")[0]), "has no numbers of <Rescale>"),
    "words for numbers": (
        text("am.mvn", re.sub(r"\[ -\S+", "[ x", mvn_of("large"))),
        "could not convert string to float: 'x'",
    ),
    "infinite": (text("am.mvn", re.sub(r"\[ -\S+", "[ inf", mvn_of("large"))), "that are finite"),
    "few": (text("am.mvn", re.sub(r"\[ -\S+", "[", mvn_of("large"))), "<AddShift> has 55 numbers, not 56"),
    "a word twice": (text("tokens.json", json.dumps([*TOKENS, "a"])), "a word stands there twice"),
    "other specials": (text("tokens.json", json.dumps(TOKENS[1:])), "the words begin ['<s>', '</s>', '你']"),
    "more words": (text("tokens.json", json.dumps([*TOKENS, "c"])), "has shape [14"),
    "no list": (text("tokens.json", "{}"), "no list of words"),
    "numbers": (text("tokens.json", "[1, 2, 3, 4, 5, 6]"), "6 words, not strings"),
    "no JSON": (text("tokens.json", "["), "no list of words"),
    "another's YAML": (text("config.yaml", "a: 1"), "model is None"),
    "no YAML": (text("config.yaml", "a: ["), "no YAML"),
    "a path": (
        text("configuration.json", '{"file_path_metas": {"init_param": "../model.pt"}}'),
        "names '../model.pt', no file of the folder",
    ),
    "a name that is not there": (
        text("configuration.json", '{"file_path_metas": {"frontend_conf": {"cmvn_file": "x.mvn"}}}'),
        "x.mvn is missing",
    ),
    "no names": (text("configuration.json", '{"file_path_metas": 3}'), "file_path_metas is 3"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_folders_are_named(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, message = DAMAGED[case]
    path = write(tmp_path / "theirs", "large")
    damage(path)
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 5
    out, error = capsys.readouterr()
    assert message in error
    assert (out, error.count("\n")) == ("", 1)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("place", range(20))
def test_truncated_weights_are_named(place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs", "large")
    whole = (path / "model.pt").read_bytes()
    (path / "model.pt").write_bytes(whole[: len(whole) * place // 20])
    assert convert([str(path), "--output", str(tmp_path / "model")]) == 5
    assert "error[E402 Checkpoint]" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_no_statistics_may_be_said(tmp_path: Path) -> None:
    config = config_of("large")
    config["frontend_conf"]["cmvn_file"] = None
    path = write(tmp_path / "theirs", "large", config)
    (path / "am.mvn").unlink()
    assert convert([str(path), "--output", str(tmp_path / "model"), "--quiet"]) == 0
    tensors = load_checkpoint(tmp_path / "model").tensors
    assert not tensors["encoder_stacking.offset"].any()
    assert (tensors["encoder_stacking.factor"] == 1).all()


def test_decoding_names_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs", "large")
    assert decode_main([str(path), "a.wav"]) == 5
    assert f"is a model of FunASR. Fix: nartk-convert {path} --output DIR" in capsys.readouterr().err
