"""Decoders whose tokens have other features than their encoder's: networks, engine, int8, fairseq."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.random_transformers import vocabulary
from support.speech_models import SMALL, random_speeches
from support.transformers_small import stir

from nartk.adapters.ctranslate2 import to_ctranslate2
from nartk.adapters.hf import to_hugging_face
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.saving import save_checkpoint
from nartk.engine import available
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError
from nartk.protocols.parallel import Canvas
from nartk.protocols.passes import Pass, Want

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")

WORDS = 11
SIZES = {
    "tgt_vocab": WORDS, "d_model": 12, "encoder_layers": 2, "decoder_layers": 2, "encoder_heads": 2,
    "decoder_heads": 4, "encoder_ffn": 20, "decoder_ffn": 18, "max_target_len": 40,
    "share_embeddings": "decoder",
}  # fmt: skip
TEXT = {"src_vocab": WORDS + 2, "max_source_len": 40}
GRAPH = {"upsample_scale": "2", "link_heads": 5, "upsampling": "predict", "length_difference": 4}
# Each wider and narrower than its encoder, by more and by less than the engine's vectors have lanes.
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {**TEXT, "norm_embedding": True, "scale_output": True, "encoder_positions": "relative"},
    "conformer": {**SMALL, "max_source_len": 200},
    "whisper": {"input_features": 16, "max_source_len": 200},
    "dag": {**TEXT, **GRAPH},
    "blockwise": {**TEXT, "block": 5},
    "nat": {**TEXT, "decoder_input": "mask"},
}
FEATURES = (20, 40, 4)
CLOSE = 2e-4  # nats


def network_of(name: str, features: int, seed: int) -> Any:
    torch.manual_seed(seed)
    settings = {**MODELS[name], **SIZES, "decoder_features": features}
    if features % settings.get("link_heads", 1):
        settings["link_heads"] = 4
    found = architecture(name)
    network = found.network(found.config.from_dict(settings)).eval()
    return stir(network).requires_grad_(False)


def sources_of(network: Any, seed: int) -> Sequence[Any]:
    if not network.config.reads_text:
        return random_speeches(seed, (31, 7, 60))
    rng = np.random.default_rng(seed)
    return [[*rng.integers(4, WORDS, size).tolist(), 2] for size in (7, 1, 20)]


def both_of(network: Any) -> tuple[Any, Any]:
    """Its scorers on the engine and, in fp64, in torch."""
    found = architecture(
        next(name for name in MODELS if isinstance(network.config, architecture(name).config))
    )
    arrays = {key: weight.numpy() for key, weight in network.state_dict().items()}
    vocabularies = {"source_vocab": vocabulary(WORDS + 2)} if network.config.reads_text else {}
    engine = found.engine(network.config, arrays, vocabulary(WORDS), threads=1, **vocabularies)
    reference = found.scorer(network.double(), vocabulary(WORDS), dtype=torch.float64, **vocabularies)
    return engine, reference


def readings(scorer: Any, sources: Sequence[Any]) -> list[np.ndarray]:
    """All log-probabilities that its decoder reads of words, and of lengths and links."""
    want = Want(top=WORDS)
    memory = scorer.encode(sources)
    if hasattr(scorer, "run"):  # four words behind each source, then one
        tokens, contexts = np.array([2, 5, 6, 7] * 3, np.int32), scorer.open(3)
        places, rows = np.tile(np.arange(4, dtype=np.int32), 3), np.repeat(np.arange(3), 4)
        parents = np.where(places, np.arange(12) - 1, -1).astype(np.int32)
        first = scorer.run(Pass(tokens, places, memory[rows], contexts[rows], parents), want)
        scorer.commit(first, range(12))
        root = np.full(3, -1, np.int32)
        second = scorer.run(Pass(tokens[1:4], root + 5, memory, contexts, root), want)
        return [first.top_log_probs, second.top_log_probs]
    if hasattr(scorer, "graphs"):
        graphs = scorer.graphs(memory)
        links = [np.exp(each).ravel() for each in graphs.links]
        return [graphs.sizes, *links, scorer.words_at(graphs, graphs.vertices, want).top_log_probs]
    words = np.array([0, 5, 0, 0, 6, 7, 0], np.int32)
    scores = scorer.fill(Canvas(np.array(memory, np.int32), np.array([2, 1, 4], np.int32), words), want)
    lengths = [scorer.predict_lengths(memory)] if hasattr(scorer, "predict_lengths") else []
    return [scores.top_log_probs, *lengths]


@needs_engine
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_reads_what_the_network_does(name: str, features: int) -> None:
    network = network_of(name, features, seed=features)
    sources = sources_of(network, features)
    engine, reference = both_of(network)
    for found, wanted in zip(readings(engine, sources), readings(reference, sources), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)


def written(network: Any, name: str, folder: Path) -> Path:
    save_checkpoint(
        folder,
        architecture=name,
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=vocabulary(WORDS + 2),
        target_vocab=vocabulary(WORDS),
        card="",
    )
    return folder


@needs_engine
@pytest.mark.parametrize("name", ["transformer", "dag"])
def test_an_int8_folder_is_what_the_engine_packs(name: str, tmp_path: Path) -> None:
    from nartk.engine.quantize import quantize  # imports the engine

    network = network_of(name, 20, seed=1)
    quantize(load_checkpoint(written(network, name, tmp_path / "full")), tmp_path / "int8")
    full, stored = (load_checkpoint(tmp_path / each) for each in ("full", "int8"))
    found = [
        architecture(name).engine(
            read_config(each), each.tensors, each.target_vocab, source_vocab=each.source_vocab, type="int8"
        )
        for each in (full, stored)
    ]
    sources = sources_of(network, 1)
    for one, other in zip(*(readings(each, sources) for each in found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shapes_are_checked(tmp_path: Path) -> None:
    network = network_of("transformer", 20, seed=1)
    folder = written(network, "transformer", tmp_path / "model")
    checkpoint = load_checkpoint(folder)
    assert read_config(checkpoint).side_features("decoder") == 20
    checkpoint.settings["decoder_features"] = 0
    with pytest.raises(CheckpointError, match="shape"):
        read_config(checkpoint)


def test_old_configurations_have_one_width() -> None:
    config = architecture("transformer").config.from_dict({"d_model": 24})
    assert (config.side_features("encoder"), config.side_features("decoder")) == (24, 24)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("transformer", {"share_embeddings": "all"}, "share embeddings, but have 16 and 24 features"),
        ("transformer", {"decoder_heads": 5}, "`decoder_features` 24 is no multiple of `decoder_heads` 5"),
        ("nat", {}, "the decoder copies vectors of 16 features, `decoder_features` is 24"),
        ("ctc", {}, "copies"),
        ("cif", {}, "copies"),
        ("paraformer", {}, "copies"),
        ("dag", {"link_heads": 7}, "`decoder_features` 24 is no multiple of `link_heads` 7"),
    ],
)
def test_pairs_of_settings_that_exclude_each_other(name: str, settings: dict[str, Any], message: str) -> None:
    given = {"d_model": 16, "decoder_features": 24, "share_embeddings": "none", **settings}
    with pytest.raises(UsageError, match=message):
        architecture(name).config(**given)


@pytest.mark.parametrize(
    ("library", "write"),
    [("transformers", to_hugging_face), ("ctranslate2", partial(to_ctranslate2, folder=Path()))],
)
def test_libraries_that_have_one_width_are_told(library: str, write: Callable[..., Any]) -> None:
    pytest.importorskip(library)
    network = network_of("transformer", 20, seed=1)
    with pytest.raises(UnsupportedCheckpointError, match="`decoder_features` 20"):
        write(network, vocabulary(WORDS))


def test_fairseqs_name_is_an_option() -> None:
    pytest.importorskip("fairseq")
    import argparse

    from nartk.tasks.transformer import FairseqTransformer

    parser = argparse.ArgumentParser()
    FairseqTransformer.add_args(parser)
    for flag in ("--decoder-embed-dim", "--decoder-features"):
        assert parser.parse_args([flag, "20"]) == Namespace(
            decoder_features=20, autocast="none", init_encoder=None
        )
