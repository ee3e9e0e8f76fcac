"""Folders of Marian's own models: outputs are those of a twin of its program in NumPy."""

from __future__ import annotations

import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.marian_models import (
    EOS,
    PRE_NORM,
    SETTINGS,
    UNK,
    D,
    Twin,
    model,
    pieces,
    quantised,
    weights,
    write_bin,
    write_npz,
)
from support.tiny import SENTENCES

import nartk
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import read_config
from nartk.checkpoints.loading import generation_of, load_checkpoint
from nartk.checkpoints.marian.options import read_options
from nartk.checkpoints.marian.tensors import MarianTensors
from nartk.cli.convert import main as convert
from nartk.engine import available
from nartk.errors import CheckpointError, NartkError, UnsupportedCheckpointError, UsageError
from nartk.files import Folder
from nartk.protocols.passes import Pass, Want
from nartk.serving.scorers import load_network, words_of

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")
ATTENTION = {"transformer_decoder_autoreg": "self-attention"}
UNTIED = {"tied_embeddings_all": "false"}
KINDS: dict[str, dict[str, Any]] = {
    "firefox": {},
    "attention": ATTENTION,
    "pre-norm": {name.replace("-", "_"): value for name, value in PRE_NORM.items()},
    "pre-norm attention": {
        **ATTENTION,
        **{name.replace("-", "_"): value for name, value in PRE_NORM.items()},
    },
    "post-norm and a norm": {"transformer_postprocess_top": "n"},
    "pre-norm without the last": {"transformer_preprocess": "n", "transformer_postprocess": "a"},
    "two vocabularies": {"two": True, **UNTIED},
    "target tied": {"two": True, **UNTIED, "tied_embeddings": "true"},
    "inputs tied": {**UNTIED, "tied_embeddings_src": "true"},
    "inputs and target tied": {
        "tied_embeddings_all": "true",
        "tied_embeddings_src": "true",
        "tied_embeddings": "true",
    },
    "swish": {"transformer_ffn_activation": "swish", "transformer_postprocess": "an"},
}
CLOSE = 2e-4  # nats


def scorers_of(folder: Path) -> list[Any]:
    """On the engine, where there is one, and in torch."""
    checkpoint = load_checkpoint(folder)
    found = architecture("transformer")
    reference = found.scorer(
        model=load_network(checkpoint), vocab=checkpoint.target_vocab, **words_of(checkpoint)
    )
    if not available():
        return [reference]
    config = read_config(checkpoint)
    return [
        found.engine(config, checkpoint.tensors, checkpoint.target_vocab, threads=1, **words_of(checkpoint)),
        reference,
    ]


def chain(tokens: list[int], first: int, memory: int, context: int) -> Pass:
    count = len(tokens)
    columns = (
        tokens,
        range(first, first + count),
        [memory] * count,
        [context] * count,
        range(-1, count - 1),
    )
    return Pass(*(np.array([*each], np.int32) for each in columns))


def log_probs(scorer: Any, source: list[int], output: list[int], cut: int) -> np.ndarray:
    """Behind the start and each word, of a chain that is cut into two passes."""
    (memory,), (context,) = scorer.encode([source]), scorer.open(1)
    tokens, found = [scorer.start_token, *output], []
    for begin, end in ((0, cut), (cut, len(tokens))):
        scores = scorer.run(chain(tokens[begin:end], begin, memory, context), Want())
        found.append(scores.rows(range(end - begin)))
        scorer.commit(scores, range(end - begin))
    logits = np.concatenate(found).astype(np.float64)
    most = logits.max(1, keepdims=True)
    return logits - most - np.log(np.exp(logits - most).sum(1, keepdims=True))


@pytest.mark.parametrize("form", ["npz", "bin", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_a_twin(kind: str, form: str, tmp_path: Path) -> None:
    for seed in range(3):
        folder, twin = model(tmp_path / str(seed), seed, form=form, **KINDS[kind])
        rng = random.Random(f"{kind} {seed}")
        words = twin.w["decoder_ff_logit_out_b"].shape[1]
        source = [*(rng.randrange(2, 40) for _ in range(rng.randint(0, 11))), EOS]
        output = [rng.randrange(2, words) for _ in range(9)]
        wanted = twin.log_probs(source, output)
        for scorer in scorers_of(folder):
            found = log_probs(scorer, source, output, rng.randint(1, 9))
            large = kind == "pre-norm without the last"  # logits of some thousands, in fp32
            close = 1e-4 * np.abs(wanted).max() if large else CLOSE
            np.testing.assert_allclose(found[:, :words], wanted, rtol=0, atol=close)
            assert large or (found[:, words:] < -1000.0).all()  # rows that are no words


def test_the_twin_tells_the_layers_apart(tmp_path: Path) -> None:
    """A gate or a candidate of the other sign is seen."""
    folder, twin = model(tmp_path / "model", 1)
    scorer = scorers_of(folder)[0]
    source, output = [5, 9, 12, EOS], [7, 3, 30, 8]
    found = log_probs(scorer, source, output, 2)[:, : twin.w["Wemb"].shape[0]]
    for name in ("decoder_l1_rnn_Wf", "decoder_l2_rnn_bf", "decoder_l1_rnn_W"):
        other = Twin({**twin.w, name: -twin.w[name]}, twin.settings)
        assert np.abs(other.log_probs(source, output) - found).max() > 5 * CLOSE


@pytest.mark.parametrize("kind", ["firefox", "attention", "two vocabularies"])
def test_lines_are_decoded_as_by_the_twin(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, twin = model(tmp_path / "model", 2, form="int8", **KINDS[kind])
    checkpoint = load_checkpoint(folder)
    assert checkpoint.generation == generation_of(Folder(folder)) == {"suppress_ids": str(UNK)}
    sources = [checkpoint.text.read(line, longest=100).tokens for line in SENTENCES]
    assert all(source[-1] == EOS for source in sources)
    wanted = [twin.greedy(source, 12) for source in sources]
    assert len({*map(tuple, wanted)}) > 3
    for left_out in ("1", "0") if available() else ("1",):
        monkeypatch.setenv("NARTK_NO_ENGINE", left_out)
        served = nartk.load(folder)
        found = served.decode([*SENTENCES], max_len=12, batch_size=3)
        assert [each.text for each in found] == [checkpoint.output.decode(words) for words in wanted]


@needs_engine
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_every_lossless_strategy_gives_greedys_output(dtype: str, tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 2, form="int8")
    served = nartk.load(folder, dtype=dtype, threads=1)
    lines = [*SENTENCES, "", "goes home"]

    def outputs(strategy: str, size: int, **options: Any) -> list[tuple[Any, ...]]:
        found = served.decode(lines, strategy, batch_size=size, max_len=30, **options)
        return [(each.tokens, each.positional_scores) for each in found]

    wanted = outputs("greedy", 1)
    assert outputs("greedy", 4) == wanted
    for strategy in ("iad", "ngram", "recycling", "union"):
        for size in (1, 4):
            assert outputs(strategy, size, adaptive=False) == wanted, strategy
    beams = [outputs("beam", size, beam_size=3) for size in (1, 4)]
    assert beams[0] == beams[1]


@needs_engine
def test_int8_stays_int8(tmp_path: Path) -> None:
    """Numbers of a converted int8 folder are the file's; its scales 1 over what they were multiplied by."""
    folder, _ = model(tmp_path / "model", 2, form="int8")
    target = tmp_path / "made"
    assert convert([str(folder), "--quantize", "int8", "--output", str(target), "--quiet"]) == 0
    arrays = weights(np.random.default_rng(2), SETTINGS, (len(load_checkpoint(folder).target_vocab) - 1,) * 2)
    stored = load_checkpoint(target).tensors

    def numbers(name: str) -> np.ndarray:
        block = stored.mapped(f"{name}.weight").transpose(0, 2, 1, 3)
        return block.reshape(block.shape[0] * block.shape[1], -1)[:, :D]

    words, multiplier = quantised(arrays["Wemb"])
    np.testing.assert_array_equal(numbers("encoder_embedding.words")[: len(words)], words)
    scales = stored["encoder_embedding.words.scales"][: len(words)]
    np.testing.assert_array_equal(scales, np.float32(1.0) / multiplier)
    joined = [quantised(arrays[f"decoder_l2_rnn_{name}"]) for name in ("W", "Wf")]
    rows = np.concatenate([each.T for each, _ in joined])
    np.testing.assert_array_equal(numbers("decoder_layers.1.recurrence.project")[: len(rows)], rows)
    scales = stored["decoder_layers.1.recurrence.project.scales"][: len(rows)]
    np.testing.assert_array_equal(scales, np.repeat([np.float32(1.0) / each for _, each in joined], D))
    # Heads of 8 features are filled up to 16.
    q, multiplier = quantised(arrays["decoder_l1_context_Wq"])
    filled = numbers("decoder_layers.0.cross_attention.q").reshape(-1, 16, D)[:3]
    np.testing.assert_array_equal(filled[:, :8].reshape(-1, D), q.T)
    assert not filled[:, 8:].any()
    both = [nartk.load(each, dtype="int8", threads=1).decode([*SENTENCES]) for each in (folder, target)]
    assert [(each.tokens, each.score) for each in both[0]] == [(each.tokens, each.score) for each in both[1]]


@pytest.mark.parametrize("form", ["npz", "int8"])
def test_a_converted_folder_decodes_alike(form: str, tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 5, form=form, two=True, **UNTIED)
    target = tmp_path / "made"
    assert convert([str(folder), "--output", str(target), "--quiet"]) == 0
    both = [nartk.load(each).decode([*SENTENCES], max_len=20) for each in (folder, target)]
    assert [(each.text, each.score) for each in both[0]] == [(each.text, each.score) for each in both[1]]
    assert "decoder_recurrence" in (target / "config.json").read_text()


@pytest.mark.parametrize("library", ["hf", "ctranslate2"])
def test_other_libraries_have_no_such_decoder(library: str, tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 5)
    command = [str(folder), "--to", library, "--output", str(tmp_path / "made"), "--quiet"]
    assert convert(command) == 5
    assert not (tmp_path / "made").exists()


def test_files_are_found_by_bergamots_configuration(tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 6, form="int8", two=True, **UNTIED)
    wanted = nartk.load(folder).decode(SENTENCES[0]).text
    (folder / "srcvocab.spm").rename(folder / "zz.spm")
    (folder / "trgvocab.spm").rename(folder / "aa.spm")
    (folder / "lex.50.50.s2t.bin").write_bytes(struct.pack("<Q", 0xF11A48D5013417F5) + b"\0" * 40)
    shutil.copy(folder / "model.xxyy.intgemm.alphas.bin", folder / "another.bin")
    (folder / "config.intgemm8bitalpha.yml").write_text(
        "relative-paths: true\nmodels:\n  - model.xxyy.intgemm.alphas.bin\n"
        "vocabs:\n  - zz.spm\n  - ./aa.spm\n"
        "shortlist:\n    - lex.50.50.s2t.bin\n    - false\nbeam-size: 1\n"
    )
    assert nartk.load(folder).decode(SENTENCES[0]).text == wanted


def test_options_are_read() -> None:
    text = """# a comment
a: 1
"b": "two words"  # another
list:
  - x
  - 'y'
inline: [1, 'b']
empty: []
none: ~
nested:
  key: 3
  - z
c: ""
"""
    assert read_options(text) == {
        "a": "1", "b": "two words", "list": ["x", "y"],
        "inline": ["1", "b"], "empty": [], "none": "", "nested": [], "c": "",
    }  # fmt: skip


# What is refused

REFUSED = {
    "type": "s2s",
    "transformer_decoder_autoreg": "average-attention",
    "dec_cell": "gru",
    "transformer_ffn_activation": "gelu",
    "transformer_ffn_depth": "3",
    "transformer_postprocess": "dhn",
    "transformer_preprocess": "n",
    "transformer_postprocess_emb": "n",
    "transformer_postprocess_top": "an",
    "transformer_tied_layers": ["1", "1"],
    "transformer_train_position_embeddings": "true",
    "transformer_no_projection": "true",
    "transformer_pool": "true",
    "layer_normalization": "true",
    "output_omit_bias": "true",
    "right_left": "true",
    "lemma_dim_emb": "64",
    "something_new": "3",
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_networks_lack_are_refused_by_name(name: str, tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1)
    settings = {**SETTINGS, name.replace("_", "-"): REFUSED[name]}
    arrays = weights(np.random.default_rng(1), SETTINGS, (80, 80))
    write_npz(folder / "model.npz", arrays, settings)
    if name == "transformer_preprocess":
        name = "transformer_postprocess"  # one of the two
    with pytest.raises(UnsupportedCheckpointError, match=name.replace("_", "-")):
        load_checkpoint(folder)


def without_vocabulary(folder: Path) -> None:
    (folder / "vocab.spm").unlink()


def vocabulary_of_words(folder: Path) -> None:
    (folder / "decoder.yml").write_text("models:\n  - model.npz\nvocabs:\n  - v.yml\n  - v.yml\n")
    (folder / "v.yml").write_text('"</s>": 0\n')


def two_models(folder: Path) -> None:
    shutil.copy(folder / "model.npz", folder / "other.npz")


def three_vocabularies(folder: Path) -> None:
    for name in "ab":
        shutil.copy(folder / "vocab.spm", folder / f"{name}.spm")


def no_pieces(folder: Path) -> None:
    (folder / "vocab.spm").write_bytes(b"nothing")


def larger_vocabulary(folder: Path) -> None:
    pieces(folder / "vocab.spm", [each.upper() for each in SENTENCES])


def compressed(folder: Path) -> None:
    with np.load(folder / "model.npz") as file:
        np.savez_compressed(folder / "model.npz", **dict(file))


def listed_but_missing(folder: Path) -> None:
    (folder / "config.yml").write_text("models:\n  - model.npz\nvocabs:\n  - gone.spm\n")


FAULTS: dict[Callable[[Path], None], str] = {
    without_vocabulary: "with 0 vocabularies",
    vocabulary_of_words: "vocabulary is v.yml",
    two_models: "several models: model.npz, other.npz",
    three_vocabularies: "with 3 vocabularies",
    no_pieces: "not a sentencepiece model",
    compressed: "is compressed",
    listed_but_missing: "'gone.spm', which it lists, is missing",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folders_that_are_not_whole_are_refused(fault: Callable[[Path], None], tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1)
    fault(folder)
    with pytest.raises(NartkError, match=FAULTS[fault]):
        load_checkpoint(folder)
    assert generation_of(Folder(folder)) in ({}, {"suppress_ids": "1"})


def test_tensors_are_those_of_the_settings(tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1)
    with np.load(folder / "model.npz") as file:
        whole = {name: file[name] for name in file.files if not name.startswith("special")}
    for changed, message in (
        ({**whole, "extra": np.zeros((1, 2), np.float32)}, "'extra' is not in the model's settings"),
        ({k: v for k, v in whole.items() if k != "decoder_l1_rnn_bf"}, "'decoder_l1_rnn_bf' is missing"),
        ({**whole, "encoder_l1_self_Wq": np.zeros((D, 3), np.float32)}, "has shape"),
        ({**whole, "encoder_l1_self_bq": np.full((1, D), np.nan, np.float32)}, "NaN or infinity"),
        ({**whole, "encoder_l1_self_bq": np.zeros((1, D), np.int8)}, "no floating point"),
    ):
        write_npz(folder / "model.npz", changed, SETTINGS)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(folder)
    write_npz(folder / "model.npz", whole, {**SETTINGS, "dim-emb": "lots"})
    with pytest.raises(CheckpointError, match="'dim-emb' is 'lots', no number"):
        load_checkpoint(folder)
    write_npz(folder / "model.npz", whole, {**SETTINGS, "enc-depth": "1"})
    with pytest.raises(CheckpointError, match="is not in the model's settings"):
        load_checkpoint(folder)


@pytest.mark.parametrize("form", ["npz", "int8"])
def test_files_that_are_cut_off_are_refused(form: str, tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1, form=form)
    (path,) = (each for each in folder.iterdir() if each.suffix in (".npz", ".bin"))
    raw = path.read_bytes()
    for i in range(20):
        path.write_bytes(raw[: len(raw) * i // 20])
        with pytest.raises(NartkError):
            load_checkpoint(folder)


def test_binary_files_whose_sizes_lie_are_refused(tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1, form="int8")
    (path,) = folder.glob("*.bin")
    raw = path.read_bytes()
    assert len(MarianTensors(path).shapes) > 50
    rng = random.Random(1)
    refused = 0
    for _ in range(200):  # of the description alone: a changed weight is a weight
        at, value = rng.randrange(8, 3000), rng.choice([0, 1, 255, rng.randrange(256)])
        path.write_bytes(raw[:at] + bytes([value]) + raw[at + 1 :])
        try:
            load_checkpoint(folder)
        except NartkError:
            refused += 1
    assert refused > 100
    path.write_bytes(raw[:8] + struct.pack("<Q", 1 << 60) + raw[16:])
    with pytest.raises(CheckpointError, match="tensors"):
        load_checkpoint(folder)
    # The type of the first tensor becomes that of fbgemm, which is packed for a processor.
    path.write_bytes(raw[:24] + struct.pack("<Q", 0x1801) + raw[32:])
    with pytest.raises(UnsupportedCheckpointError, match="packed for a processor"):
        load_checkpoint(folder)


def test_archives_that_hold_other_things_are_refused(tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1)
    path = folder / "model.npz"
    for name, raw in (("a.npy", b"\x93NUMPY\x01\x00"), ("b.npy", b"text"), ("../c.npy", b"")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, raw)
        with pytest.raises(CheckpointError):
            load_checkpoint(folder)
    np.savez(path, a=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(CheckpointError, match="type"):
        load_checkpoint(folder)
    np.savez(path, a=np.zeros((2, 3), np.float32))
    with pytest.raises(CheckpointError, match="no settings"):
        load_checkpoint(folder)


def test_languages_are_no_option(tmp_path: Path) -> None:
    folder, _ = model(tmp_path / "model", 1)
    with pytest.raises(UsageError, match="a model of Marian"):
        load_checkpoint(folder, target_lang="de")


def test_a_binary_file_without_whole_numbers(tmp_path: Path) -> None:
    """Both files of one model hold the same weights."""
    folder, _ = model(tmp_path / "model", 8)
    arrays = weights(np.random.default_rng(8), SETTINGS, (len(load_checkpoint(folder).target_vocab) - 1,) * 2)
    write_bin(tmp_path / "model.bin", arrays, SETTINGS)
    one, other = MarianTensors(folder / "model.npz"), MarianTensors(tmp_path / "model.bin")
    assert one.options == other.options
    assert one.shapes == other.shapes
    for name in one.shapes:
        np.testing.assert_array_equal(one[name], other[name])
