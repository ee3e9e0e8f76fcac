"""Folders of Hugging Face, read without transformers: log-probabilities and greedy outputs are its."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import hf_folders
from support.scripted_passes import decode, outputs_of

from nartk import engine
from nartk.adapters.hf_folder import FAMILIES, read_network
from nartk.architectures.transformer import TransformerConfig
from nartk.hypothesis import Request
from nartk.models.reference import ReferenceScorer
from nartk.models.transformer import Transformer
from nartk.passes import Pass, Want
from nartk.registry import make_strategy
from nartk.vocab import Vocab

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
SCORERS = ("torch",)


def scorer_of(name: str, folder: Path, model: Any, **options: Any) -> Any:
    """A folder, on the engine or in torch; words are named by their ids."""
    config, tensors = read_network(folder, **options)
    generation = model.generation_config
    vocab = Vocab(
        tuple(map(str, range(config.tgt_vocab))), pad=config.pad, eos=generation.eos_token_id, unk=-1, bos=-1
    )
    source = None if config.src_vocab == config.tgt_vocab else Vocab(tuple(map(str, range(config.src_vocab))))
    words = {"source_vocab": source, "start_token": generation.decoder_start_token_id}
    if name == "torch":
        return ReferenceScorer(network_of(config, tensors), vocab, **words)
    if not engine.available():
        pytest.skip("the engine is left out")
    from nartk.engine.scorer import EngineScorer

    return EngineScorer(config, tensors, vocab, threads=1, **words)


def network_of(config: TransformerConfig, tensors: Any) -> Transformer:
    model = Transformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return model


def our_log_probs(scorer: Any, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
    """[T,V] after each token of a target, of one pass."""
    count = len(target)
    memory, contexts = scorer.encode([tuple(source)]), scorer.open(1)
    numbers = [target, range(count), [memory[0]] * count, [contexts[0]] * count, range(-1, count - 1)]
    scores = scorer.run(Pass(*(np.array(each, np.int32) for each in numbers)), Want())
    found = torch.from_numpy(np.array(scores.rows(np.arange(count, dtype=np.int32)))).log_softmax(-1)
    scorer.commit(scores, np.zeros(0, np.int32))
    scorer.close(contexts)
    scorer.free(memory)
    return found


def our_greedy(scorer: Any, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    requests = [Request(i, tuple(source), hf_folders.LONGEST) for i, source in enumerate(sources)]
    return outputs_of(decode(make_strategy("greedy", {}), scorer, requests))


def require_equal(scorer: Any, model: Any, rng: random.Random, count: int = 4) -> None:
    """Compares a folder on a scorer with transformers' model, on random texts."""
    sources, targets = hf_folders.random_texts(model, rng, count)
    for source, target in zip(sources, targets, strict=True):
        wanted = hf_folders.their_log_probs(model, source, target)
        torch.testing.assert_close(our_log_probs(scorer, source, target), wanted, atol=1e-4, rtol=0)
    assert our_greedy(scorer, sources) == hf_folders.their_greedy(model, sources)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_greedy_outputs_are_transformers(
    family: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    model = hf_folders.random_model(
        family, hf_folders.random_settings(family, rng), seed, biased=seed % 2 == 0
    )
    folder = hf_folders.save(model, tmp_path / "model")
    for name in SCORERS:
        require_equal(scorer_of(name, folder, model), model, rng)
