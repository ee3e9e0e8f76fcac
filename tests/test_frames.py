"""A model that reads features, added from outside, decodes with strategies that need no words of a source.

The oracle is the network's plain forward over a whole prefix, without caches or batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.beams import textbook
from support.frames import BOS, FEATURES, declared, frame_model
from support.random_transformers import random_config, random_model, vocabulary
from support.scorers import TransformerEngine, TransformerReference
from support.tiny import random_model as text_model

import nartk
from nartk.errors import InputFileError, SourceMismatchError, StrategyMismatchError, VocabMismatchError
from nartk.models.reference import PassesOnTorch
from nartk.models.transformer import Transformer
from nartk.protocols.passes import CopiesSource, FeatureSource, TextSource
from nartk.serving.model import Model

EOS = 2
NAMES = [f"{i}.txt" for i in range(12)]


@pytest.fixture(scope="module", autouse=True)
def architecture() -> Iterator[None]:
    with declared():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    rng = np.random.default_rng(5)
    for name in NAMES:
        np.savetxt(folder / name, rng.normal(size=(rng.integers(1, 15), FEATURES)))
    frame_model(folder / "model", seed=3, d_model=16, layers=2)
    frame_model(folder / "small", seed=7, d_model=8, layers=1)
    return folder


@pytest.fixture(scope="module")
def network(folder: Path) -> Transformer:
    return frame_model(folder / "same", seed=3, d_model=16, layers=2)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return nartk.load(folder / "model")


def log_probs(network: Transformer, frames: np.ndarray, output: Sequence[int]) -> list[float]:
    """Of the word after an output, by one forward over all of it."""
    memory = network.encoder.project(torch.from_numpy(frames))[None]
    decoder, tokens = network.decoder, torch.tensor([[BOS, *output]])
    x = decoder.embedding(tokens, torch.arange(tokens.shape[1])[None])  # a sample may hold pad
    for layer in decoder.layers:
        x = layer(x, layer.source_kv(memory), None)
    return network.output(decoder.finish(x)[0, -1]).log_softmax(0).tolist()


def greedy(network: Transformer, frames: np.ndarray, longest: int) -> tuple[int, ...]:
    found: list[int] = []
    while len(found) < longest and EOS not in found:
        scores = log_probs(network, frames, found)
        found.append(scores.index(max(scores)))
    return tuple(found)


def frames_of(model: Model, name: str) -> np.ndarray:
    source = model.encode(name)
    assert isinstance(source, FeatureSource)
    assert source.shift == 10.0
    return source.frames


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_greedy_is_the_argmax_of_a_plain_forward(model: Model, network: Transformer, batch_size: int) -> None:
    wanted = [greedy(network, frames_of(model, name), 20) for name in NAMES]
    found = model.decode(NAMES, batch_size=batch_size, max_len=20, max_ratio=20.0)
    assert [each.tokens for each in found] == wanted
    assert len(set(wanted)) > 6  # what is read decides
    assert any(EOS in each for each in wanted)
    for name, each in zip(NAMES, found, strict=True):
        scores = [
            log_probs(network, frames_of(model, name), each.tokens[:i])[word]
            for i, word in enumerate(each.tokens)
        ]
        assert each.positional_scores == pytest.approx(scores, abs=1e-4)


def test_beam_search_is_the_textbooks(model: Model, network: Transformer) -> None:
    run = model.run(NAMES, "beam", {"beam_size": 3, "nbest": 3, "max_len": 8}, batch_size=5)
    strategy = model.strategy("beam", {"max_len": 8})
    for i, name in enumerate(NAMES):
        request = model.request(i, name, strategy)

        def of(source: object, output: Sequence[int], name: str = name) -> list[float]:
            return log_probs(network, frames_of(model, name), output)

        wanted = textbook(of, request, 3, 1.0, 0)
        assert [each.tokens for each in run.hypotheses[i]] == [tokens for _, tokens in wanted]
        assert [each.score for each in run.hypotheses[i]] == pytest.approx([s for s, _ in wanted], abs=1e-4)


def test_samples_have_the_models_log_probabilities(model: Model, network: Transformer) -> None:
    """Cold, they are greedy search's; else each has the log-probability that a plain forward gives it."""
    cold = model.decode(NAMES, "sample", temperature=1e-3, max_len=20)
    assert [each.tokens for each in cold] == [each.tokens for each in model.decode(NAMES, max_len=20)]
    # Not seed 1: it draws an output of which rounding the frames to fp32 moves a log-probability by 3.6e-5.
    warm = model.decode(NAMES, "sample", seed=2, max_len=20)
    assert [each.tokens for each in warm] != [each.tokens for each in cold]
    for name, each in zip(NAMES, warm, strict=True):
        frames = frames_of(model, name)
        wanted = [log_probs(network, frames, each.tokens[:i])[w] for i, w in enumerate(each.tokens)]
        assert each.positional_scores == pytest.approx(wanted, abs=1e-4)


def test_a_small_model_of_frames_drafts(model: Model, folder: Path) -> None:
    drafter = str(folder / "small")
    run = model.run(NAMES, "speculative", {"drafter": drafter, "max_len": 20, "adaptive": False})
    wanted = model.decode(NAMES, max_len=20)
    assert [each[0].tokens for each in run.hypotheses] == [each.tokens for each in wanted]
    assert run.stats.drafted > run.stats.accepted > 0


def test_what_copies_its_source_is_refused(model: Model) -> None:
    assert not isinstance(model.passes, CopiesSource)
    for name in ("iad", "ngram"):
        with pytest.raises(StrategyMismatchError, match=f"'{name}' needs a .*CopiesSource") as caught:
            model.decode(NAMES, name)
        assert "greedy" in caught.value.fix
        assert "iad" not in caught.value.fix.replace("choose from ", "").split(", ")


def test_a_drafter_that_reads_text_is_refused(model: Model, tmp_path: Path) -> None:
    other = text_model(tmp_path / "text", words=[f"w{i}" for i in range(9)])
    with pytest.raises(VocabMismatchError, match="read other frames"):
        model.decode(NAMES, "speculative", drafter=str(other))
    with pytest.raises(VocabMismatchError, match=r"the model reads text, drafter .* does not"):
        nartk.load(other).decode(["w1"], "speculative", drafter=str(model.checkpoint.folder))
    with pytest.raises(SourceMismatchError, match=r"does not read text.*Fix: name a model that does"):
        _ = model.checkpoint.source_vocab


def test_a_line_whose_file_is_missing_fails_alone(model: Model) -> None:
    run = model.run([NAMES[0], "absent.txt", NAMES[1]])
    assert list(run.errors) == [1]
    assert isinstance(run.errors[1], InputFileError)
    assert run.hypotheses[0]
    assert run.hypotheses[2]


def test_each_scorer_refuses_the_other_source_by_name() -> None:
    features = FeatureSource(np.zeros((4, FEATURES), np.float32), 10.0)
    text = TextSource((5, EOS))
    config = random_config(random.Random(1), src_vocab=20, tgt_vocab=20)
    network = random_model(config, 1)
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    of_text = [
        TransformerReference(network, vocabulary(20)),
        TransformerEngine(config, arrays, vocabulary(20)),
    ]
    for scorer in of_text:
        with pytest.raises(SourceMismatchError, match=r"source 1 is 4 frames .* reads text\. Fix: give"):
            scorer.encode([text, features])
        assert len(scorer.encode([text])) == 1


def test_features_of_another_shape_are_refused(model: Model) -> None:
    scorer = model.passes
    assert isinstance(scorer, PassesOnTorch)
    with pytest.raises(SourceMismatchError, match=r"source 0 is text of 2 tokens.* Fix: give it features"):
        scorer.encode([TextSource((5, EOS))])
    for frames, message in (
        (np.zeros((3, FEATURES + 1), np.float32), r"float32 \[3, 6\], the model reads float32 \[T, 5\]"),
        (np.zeros((3, FEATURES)), r"float64 \[3, 5\]"),
        (np.zeros(FEATURES, np.float32), r"float32 \[5\]"),
    ):
        with pytest.raises(SourceMismatchError, match=message):
            scorer.encode([FeatureSource(frames, 10.0)])
