"""Model folders: special ids, start tokens, and rows beyond the words.

The oracle of decoding is the network's plain forward over a whole prefix, without caches or batches.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from support.random_transformers import random_config, random_model, shape_of
from support.tiny import train_pieces

import nartk
from nartk.architectures import architecture
from nartk.architectures.settings import POSITIONS
from nartk.checkpoints.checkpoint import read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import CONFIG, WEIGHTS
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.convert import main as convert
from nartk.errors import CheckpointError
from nartk.models.transformer import Transformer
from nartk.serving.model import Model
from nartk.serving.scorers import reference_scorer
from nartk.vocab import SpecialIds, Vocab

FAIRSEQ = SpecialIds()
MARIAN = SpecialIds(bos=25, pad=25, eos=0, unk=1)  # its models have no bos, and outputs begin after pad
TAIL = SpecialIds(bos=22, pad=25, eos=24, unk=23)
WORDS = 26
LOSSLESS: dict[str, dict[str, Any]] = {"iad": {}, "ngram": {}, "recycling": {}}


def vocabulary(specials: SpecialIds, size: int = WORDS) -> Vocab:
    special = len({specials.bos, specials.pad, specials.eos, specials.unk})
    return Vocab.from_words([f"w{i}" for i in range(size - special)], specials)


def saved(
    folder: Path, seed: int, specials: SpecialIds, start_token: int, *, share: str, beyond: int = 0
) -> Transformer:
    """Writes a random model with rows for words that there are not; these would be the likeliest."""
    config = random_config(
        random.Random(seed), src_vocab=WORDS + beyond, tgt_vocab=WORDS + beyond, pad=specials.pad,
        max_source_len=30, max_target_len=30, share_embeddings=share,
        decoder_positions=POSITIONS[seed % len(POSITIONS)],
    )  # fmt: skip
    network = random_model(config, seed)
    network.output.weight[WORDS:] *= 4
    vocab = vocabulary(specials)
    save_checkpoint(
        folder,
        architecture="transformer",
        settings=asdict(config),
        tensors=network.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        card="",
        start_token=start_token,
    )
    return network


def logits(network: Transformer, source: Sequence[int], fed: Sequence[int]) -> torch.Tensor:
    """Of all rows, after what was fed: [V]."""
    memory = network.encoder.encode_masked(
        torch.tensor([source]), torch.arange(len(source))[None], None
    )  # positions are given, since a word may be pad
    x = network.decoder.embedding(torch.tensor([fed]), torch.arange(len(fed))[None])
    for layer in network.decoder.layers:
        x = layer(x, layer.source_kv(memory), None)
    return network.output(network.decoder.finish(x)[0, -1])


def both(folder: Path) -> dict[str, Model]:
    """A model on the engine, and on the reference scorer."""
    checkpoint = load_checkpoint(folder)
    reference = Model(
        checkpoint,
        read_config(checkpoint),
        device="cpu",
        dtype="fp32",
        passes=reference_scorer(checkpoint, "cpu", "fp32"),
        open_other=lambda model, _: model,
    )
    return {"engine": nartk.load(folder), "reference": reference}


@pytest.mark.parametrize("share", ["all", "decoder", "none"])
@pytest.mark.parametrize(("specials", "start_token"), [(FAIRSEQ, 2), (FAIRSEQ, 0), (MARIAN, 25), (TAIL, 22)])
def test_greedy_is_the_networks_argmax_over_the_words_that_there_are(
    specials: SpecialIds, start_token: int, share: str, tmp_path: Path
) -> None:
    elsewhere = 0
    for seed in range(2):
        network = saved(tmp_path / "model", seed, specials, start_token, share=share, beyond=6)
        rng = random.Random(seed)
        ordinary = [w for w in vocabulary(specials).words if w.startswith("w")]
        lines = [" ".join(rng.choices(ordinary, k=rng.randint(1, 12))) for _ in range(6)]
        for name, model in both(tmp_path / "model").items():
            assert model.passes.start_token == start_token
            found = model.decode(lines, max_len=15)
            for line, each in zip(lines, found, strict=True):
                source = [vocabulary(specials).words.index(w) for w in line.split()] + [specials.eos]
                assert list(model.encode(line)) == source  # type: ignore[arg-type]
                for i, word in enumerate(each.tokens):
                    rows = logits(network, source, [start_token, *each.tokens[:i]])
                    kept = rows[:WORDS].log_softmax(0)
                    assert float(kept[word]) == pytest.approx(float(kept.max()), abs=1e-4)
                    assert each.positional_scores[i] == pytest.approx(float(kept[word]), abs=1e-4)
                    elsewhere += int(rows.argmax()) >= WORDS
                assert specials.eos not in each.tokens[:-1]
            for strategy, options in LOSSLESS.items():
                again = model.decode(lines, strategy, max_len=15, **options)
                assert [each.tokens for each in again] == [each.tokens for each in found], (name, strategy)
            for each in model.decode(lines, "sample", temperature=5.0, max_len=15):
                assert max(each.tokens) < WORDS
    assert elsewhere > 0  # else nothing was left out


def test_int8_folders_hold_the_words_alone(tmp_path: Path) -> None:
    saved(tmp_path / "model", 1, TAIL, 22, share="decoder", beyond=6)
    assert convert([str(tmp_path / "model"), "--quantize", "int8", "--output", str(tmp_path / "int8")]) == 0
    stored = load_file(tmp_path / "int8" / WEIGHTS)
    assert len(stored["decoder_embedding.words.scales"]) == WORDS
    lines = ["w1 w2 w3", "w4", "w5 w6 w7 w8"]
    quantized = nartk.load(tmp_path / "int8")
    assert quantized.passes.start_token == 22
    assert quantized.checkpoint.target_vocab.specials == TAIL
    wanted = nartk.load(tmp_path / "model", dtype="int8").decode(lines)
    assert quantized.decode(lines) == wanted


def test_a_special_id_of_a_parallel_model_is_fairseqs(tmp_path: Path) -> None:
    sizes = {"src_vocab": WORDS, "tgt_vocab": WORDS, "pad": TAIL.pad}
    shape = random_config(random.Random(1), **sizes, decoder_positions="none")
    config = architecture("ctc").config(**shape_of(shape))
    save_checkpoint(
        tmp_path,
        architecture="ctc",
        settings=asdict(config),
        tensors=architecture("ctc").network(config).state_dict(),
        source_vocab=vocabulary(TAIL),
        target_vocab=vocabulary(TAIL),
        card="",
    )
    with pytest.raises(CheckpointError, match=r"the special ids are .*bos=22.* of a ctc model .*bos=0"):
        nartk.load(tmp_path)


def test_what_config_json_says(tmp_path: Path) -> None:
    source, target = Vocab.from_words(["x"]), Vocab.from_words(["y", "z"])
    pieces = tmp_path / "pieces"
    train_pieces(pieces)
    arguments: dict[str, Any] = {"architecture": "k", "settings": {"d": 1}, "tensors": {}, "card": ""}
    save_checkpoint(tmp_path / "a", source_vocab=target, target_vocab=target, **arguments)
    save_checkpoint(
        tmp_path / "b", source_vocab=source, target_vocab=target, tokenizer=pieces, start_token=1, **arguments
    )
    save_checkpoint(
        tmp_path / "c", source_vocab=source, target_vocab=target, tokenizer=pieces, target_tokenizer=pieces,
        **arguments,
    )  # fmt: skip
    a, b, c = (json.loads((tmp_path / name / CONFIG).read_text()) for name in "abc")
    assert a.pop("files").keys() == {"card.md", "dict.txt", WEIGHTS}
    assert a == {
        "format": 3,
        "architecture": "k",
        "model": {"d": 1},
        "aliases": {},
        "special_ids": {"bos": 0, "pad": 1, "eos": 2, "unk": 3},
        "start_token": 2,
        "input": {"name": "text", "words": 6, "dictionary": "dict.txt"},
        "output": {"name": "text", "words": 6, "dictionary": "dict.txt"},
    }
    assert b["start_token"] == 1
    assert b["input"] == {
        "name": "text", "words": 5, "dictionary": "dict.txt", "sentencepiece": "spm.model",
    }  # fmt: skip
    assert b["output"] == {
        "name": "text", "words": 6, "dictionary": "dict.target.txt", "sentencepiece": "spm.model",
    }  # fmt: skip
    assert c["output"] == {**b["output"], "sentencepiece": "spm.target.model"}


def test_special_symbols_stand_at_their_ids(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 1\nb 1\nc 1\n")
    found = Vocab.read(tmp_path / "dict.txt", SpecialIds(bos=5, pad=5, eos=0, unk=2))
    assert found.words == ("</s>", "a", "<unk>", "b", "c", "<pad>")
    assert found.ids(["a", "x", "c"]) == [1, 2, 4]
    found.write(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == "a 1\nb 1\nc 1\n"
    with pytest.raises(CheckpointError, match="<pad> has id 6, but there are 5 words before it"):
        Vocab.read(tmp_path / "dict.txt", SpecialIds(bos=6, pad=6, eos=0, unk=2))
