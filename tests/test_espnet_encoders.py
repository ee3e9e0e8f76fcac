"""Encoders of speech give what ESPnet's own modules give, with the same random weights.

tests/oracles/espnet_encoders.py wrote the numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.espnet_encoders import ENCODERS, ORACLE, PREFIX, config_of, inputs_of, weights_of
from support.random_transformers import vocabulary
from support.scorers import OwsmCtcEngine

from nartk.architectures import architecture
from nartk.architectures.owsm_ctc import OwsmCtcConfig
from nartk.models.transformer import Encoded
from nartk.protocols.passes import FeatureSource, Want

WORDS, PAD = 11, 1


def network_of(config: OwsmCtcConfig, name: str) -> Any:
    """nartk's network with the weights that ESPnet's was given, in fp64."""
    network = architecture("owsm_ctc").network(config).double().eval().requires_grad_(False)
    network.load_state_dict({key: torch.from_numpy(value) for key, value in weights_of(name).items()})
    return network


def encoded(network: Any, frames: np.ndarray, prompt: np.ndarray, beside: bool) -> Encoded:
    """What the network makes of an utterance and of the words beside it.

    The prompt is given with its positions, which are others than ESPnet's.
    """
    encoder = network.encoder
    words = tokens = None
    if beside:
        # ESPnet scales frames and words in front alike, which nartk's embedding does to words.
        words = torch.tensor([PREFIX])
        tokens = torch.full((1, len(prompt) - 1), 3)
        given = torch.from_numpy(prompt)[None]
        encoder.prompt.embedding.forward = lambda tokens, positions: given
    found: Encoded = encoder(torch.from_numpy(frames)[None], torch.tensor([len(frames)]), words, tokens)
    return found


def differences(config: OwsmCtcConfig, name: str) -> list[float]:
    """The largest of each output, over all utterances."""
    network, largest = network_of(config, name), []
    with np.load(ORACLE) as wanted:
        for i, (frames, prompt) in enumerate(inputs_of(name)):
            out = encoded(network, frames, prompt, config.reads_words)
            found = {
                "memory": out.memory,
                "ctc": network.encoder.ctc(out.memory),
                **{
                    f"ctc {layer}": logits
                    for layer, logits in zip(config.intermediate_layers, out.intermediate, strict=True)
                },
            }
            assert {f"{name} {i} {key}" for key in found} == {
                key for key in wanted.files if key.startswith(f"{name} {i} ")
            }
            for key, value in found.items():
                theirs = wanted[f"{name} {i} {key}"]
                assert value[0].shape == theirs.shape
                assert np.abs(theirs).max() > 1
                largest.append(float(np.abs(value[0].numpy() - theirs).max()))
    return largest


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_are_espnets(name: str) -> None:
    """Intermediate CTC, whose predictions the next layers read, and the output, to 1e-6."""
    assert max(differences(config_of(name), name)) < 1e-6


@pytest.mark.parametrize("name", ENCODERS)
def test_the_numbers_tell_other_settings(name: str) -> None:
    config = config_of(name)
    changes: list[dict[str, Any]] = [{"intermediate_norm": not config.intermediate_norm}, {"norm_eps": 1e-3}]
    if config.encoder_block == "conformer":
        changes.append({"batch_norm_eps": 1e-3})
    for change in changes:
        assert max(differences(replace(config, **change), name)) > 1e-5


@pytest.mark.parametrize("name", [name for name in ENCODERS if not config_of(name).reads_words])
def test_the_engines_encoders_are_espnets(name: str) -> None:
    config = config_of(name)
    tensors = {key: value.astype(np.float32) for key, value in weights_of(name).items()}
    scorer = OwsmCtcEngine(config, tensors, vocabulary(WORDS), type="fp32", threads=1)
    with np.load(ORACLE) as wanted:
        for i, (frames, _) in enumerate(inputs_of(name)):
            memory = scorer.encode([FeatureSource(frames.astype(np.float32), 10.0)])
            theirs = wanted[f"{name} {i} ctc"]
            logits = scorer.read_frames(memory, Want()).rows(range(len(theirs)))
            assert np.abs(logits - theirs).max() < 2e-5
            scorer.free(memory)
