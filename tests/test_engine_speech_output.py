"""Spectrograms and sound on the engine are those of the networks in torch, alone and in any batch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.transformers_small import stir

from nartk.architectures.daspeech import DaSpeechConfig
from nartk.architectures.transformer_tts import TransformerTtsConfig
from nartk.engine import TYPES, _native
from nartk.engine.vocoder import GeneratorOnEngine
from nartk.engine.weights import Weights
from nartk.errors import PassError
from nartk.models.daspeech import DaSpeech
from nartk.models.hifigan import HifiGan
from nartk.models.transformer_tts import TransformerTts
from nartk.protocols.hifigan import HifiGanConfig

SMALL: dict[str, Any] = {
    "src_vocab": 0,
    "tgt_vocab": 12,
    "input_features": 8,
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_heads": 2,
    "decoder_layers": 1,
    "decoder_heads": 2,
    "decoder_ffn": 16,
    "encoder_ffn": 16,
    "max_target_len": 64,
    "max_mel_len": 400,
}
SHAPES: tuple[dict[str, Any], ...] = (
    {"acoustic_features": 24, "acoustic_heads": 2, "acoustic_kernel": 5, "acoustic_second_kernel": 3},
    {"acoustic_features": 40, "acoustic_heads": 5, "acoustic_kernel": 1, "acoustic_second_kernel": 7},
    {"acoustic_features": 16, "acoustic_heads": 1, "acoustic_encoder_layers": 0, "predictor_kernel": 5},
)
ODD = {
    "acoustic_ffn": 36,
    "predictor_features": 20,
    "adaptor_features": 28,
    "mel_features": 7,
    "variance_bins": 9,
}
LENGTHS = (7, 1, 2, 33)  # with eos
# Errors by the largest number: of fp32 sums in another order, and of what the types lose.
CLOSE = {"fp32": 2e-5, "bf16": 0.05, "int8": 0.1}


def random_network(**changes: Any) -> DaSpeech:
    torch.manual_seed(3)
    network = stir(DaSpeech(DaSpeechConfig(**SMALL | {"acoustic_decoder_layers": 2} | ODD | changes))).eval()
    statistics = network.acoustic.statistics
    with torch.no_grad():
        for name in ("pitch", "energy"):
            bounds = statistics.get_buffer(f"{name}_bounds")
            bounds.copy_(torch.linspace(-1, 1, len(bounds)))
        statistics.get_buffer("mel_mean").normal_()
        statistics.get_buffer("mel_deviation").uniform_(0.5, 2.0)
        network.acoustic.encoder_positions.fill_(0.7)
        network.acoustic.decoder_positions.fill_(-1.3)
        # Durations far from a rounding, so that all types find the same ones.
        for each in network.acoustic.variance.duration.out.parameters():
            each.fill_(0.0)
        network.acoustic.variance.duration.out.bias.fill_(float(np.log(1 + 5.1)))
    return network


def on_engine(network: DaSpeech | TransformerTts, type: str, threads: int = 1) -> Any:
    arrays: Mapping[str, Any] = {name: each.numpy() for name, each in network.state_dict().items()}
    model = Weights(arrays, type, shared=network.config.shared_weights()).model(network.config)
    return _native.Engine(model, _native.isa(), threads)


def vertices() -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    return [draw.normal(size=(length, SMALL["d_model"])).astype(np.float32) for length in LENGTHS]


def random_shape(seed: int) -> dict[str, Any]:
    """Odd sizes, none of which is a multiple of the engine's vectors but by chance."""
    draw = random.Random(seed)
    heads = draw.randint(1, 5)
    sizes = ("acoustic_ffn", "predictor_features", "adaptor_features", "mel_features")
    kernels = ("acoustic_kernel", "acoustic_second_kernel", "predictor_kernel")
    return {
        "acoustic_heads": heads,
        "acoustic_features": heads * draw.choice([9, 11, 16, 21]),
        "acoustic_encoder_layers": draw.randint(0, 2),
        "acoustic_decoder_layers": draw.randint(0, 2),
        "variance_bins": draw.randint(2, 40),
        **{name: draw.randint(5, 70) for name in sizes},
        **{name: 2 * draw.randint(0, 8) + 1 for name in kernels},
    }


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", [*SHAPES, *map(random_shape, range(8))], ids=str)
def test_spectrograms_are_torchs(shape: dict[str, Any], type: str) -> None:
    network, features = random_network(**shape), vertices()
    close = CLOSE[type] * (1 if shape in SHAPES else 2)  # narrow predictors lose more
    if (
        type != "fp32"
    ):  # a small error may choose another bin, and so a vector far away: here all are in the first
        for name in ("pitch", "energy"):
            network.acoustic.statistics.get_buffer(f"{name}_bounds").add_(100)
    found = on_engine(network, type).speak(np.concatenate(features), LENGTHS)
    assert found["frames"].tolist() == [5 * (length - 1) for length in LENGTHS]
    assert found["durations"].tolist() == [n for length in LENGTHS for n in [5] * (length - 1) + [0]]
    ends = np.cumsum(LENGTHS)[:-1]
    prosody = {name: np.split(found[name], ends) for name in ("log_durations", "pitch", "energy")}
    frames = np.split(found["mel"], np.cumsum(found["frames"])[:-1])
    for i, (each, mel) in enumerate(zip(features, frames, strict=True)):
        kept = torch.ones(1, len(each), dtype=torch.bool)
        with torch.no_grad():
            x = network.adaptor(torch.from_numpy(each)[None])
            wanted, (wanted_mel,) = network.acoustic(x, kept), network.acoustic.mel(x, kept)
        pairs = [(rows[i], getattr(wanted, name)[0]) for name, rows in prosody.items()]
        for ours, theirs in (*pairs, (mel, wanted_mel)):
            largest = max(1.0, theirs.abs().max().item()) if len(theirs) else 1.0
            assert np.abs(ours - theirs.numpy()).max(initial=0) < close * largest


@pytest.mark.parametrize("type", TYPES)
def test_a_sentences_bits_are_its_own(type: str) -> None:
    """Alone, in a batch, and with other numbers of threads."""
    network, features = random_network(**SHAPES[0]), vertices()
    together = on_engine(network, type).speak(np.concatenate(features), LENGTHS)
    threads = on_engine(network, type, 2).speak(np.concatenate(features), LENGTHS)
    assert all(np.array_equal(threads[name], together[name]) for name in together)
    one = on_engine(network, type)
    alone = [one.speak(each, [len(each)]) for each in features]
    for name in together:
        assert np.array_equal(np.concatenate([each[name] for each in alone]), together[name])


def test_a_spectrogram_ends_at_the_longest_output() -> None:
    network, features = random_network(**SHAPES[0], max_mel_len=83), vertices()
    found = on_engine(network, "fp32").speak(features[3], [33])
    assert found["frames"].tolist() == [83]
    assert found["durations"].tolist() == [*[5] * 16, 3, *[0] * 16]
    x = network.adaptor(torch.from_numpy(features[3])[None])
    with torch.no_grad():
        (wanted,) = network.acoustic.mel(x, torch.ones(1, 33, dtype=torch.bool))
    assert np.abs(found["mel"] - wanted.numpy()).max() < 1e-4


@pytest.mark.parametrize(
    ("rows", "lengths", "message"),
    [
        (3, [0, 3], "sentence 0 has 0 phonemes, not 1 to"),
        (3, [2], "vectors of phonemes of another size"),
        (401, [401], "sentence 0 has 401 phonemes, not 1 to 400"),
    ],
)
def test_sentences_of_no_or_too_many_phonemes(rows: int, lengths: list[int], message: str) -> None:
    engine = on_engine(random_network(**SHAPES[0], max_source_len=60), "fp32")
    with pytest.raises(PassError, match=message):
        engine.speak(np.zeros((rows, SMALL["d_model"]), np.float32), lengths)


# Step by step: Transformer TTS


STEPS: tuple[dict[str, Any], ...] = (
    {"frames_per_step": 1, "d_model": 24, "decoder_heads": 2, "norm_embedding": True},
    {"frames_per_step": 2, "d_model": 40, "decoder_heads": 5, "decoder_norm_first": False},
    {"frames_per_step": 4, "d_model": 16, "decoder_layers": 1, "decoder_positions": "learned"},
)


def random_steps(*, ends: bool = False, **changes: Any) -> TransformerTts:
    """A network that ends where its logits say so, or at its longest output."""
    torch.manual_seed(6)
    own = {
        **{name: SMALL[name] for name in ("encoder_layers", "encoder_heads", "encoder_ffn", "decoder_ffn")},
        **{"src_vocab": 12, "tgt_vocab": 12, "decoder_layers": 2, "decoder_heads": 2},
        **{"prenet_features": 36, "mel_features": 7, "max_mel_len": 42, "max_source_len": 60},
    }
    network = stir(TransformerTts(TransformerTtsConfig(**{**own, **changes}))).eval()
    statistics = network.decoder.statistics
    with torch.no_grad():
        statistics.get_buffer("mel_mean").normal_()
        statistics.get_buffer("mel_deviation").uniform_(0.5, 2.0)
        network.decoder.out.bias[-1] = 0.0 if ends else -1e3
    return network


def phonemes(network: TransformerTts) -> list[np.ndarray]:
    """Vectors of encoded phonemes."""
    draw = np.random.default_rng(7)
    return [draw.normal(size=(n, network.config.d_model)).astype(np.float32) for n in LENGTHS]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", STEPS, ids=str)
def test_steps_are_torchs(shape: dict[str, Any], type: str) -> None:
    network = random_steps(**shape)
    features = phonemes(network)
    engine = on_engine(network, type)
    found = engine.speak(np.concatenate(features), LENGTHS)
    assert found["frames"].tolist() == [42] * 4
    assert engine.cells_in_use == engine.memories_in_use == 0
    for each, mel in zip(features, np.split(found["mel"], 4), strict=True):
        # Errors grow from step to step, so that the network in torch reads the engine's frames.
        decoder, missing = network.decoder, -len(mel) % network.config.frames_per_step
        steps = decoder.normalise(torch.from_numpy(np.pad(mel, ((0, missing), (0, 0)))))
        steps = steps.unflatten(0, (-1, network.config.frames_per_step)).flatten(1)
        previous = torch.cat([torch.zeros_like(steps[:1]), steps[:-1]])
        with torch.no_grad():
            source = decoder.source_kv(torch.from_numpy(each)[None])
            wanted = decoder(previous[None], source, None)[0, :, :-1]
        wanted = wanted.unflatten(1, (-1, 7)).flatten(0, 1)[: len(mel)]
        error = (decoder.normalise(torch.from_numpy(mel)) - wanted).abs().mean().item()
        assert error < CLOSE[type] * wanted.abs().mean().item()


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", [STEPS[0], STEPS[2]], ids=str)
def test_a_sentences_steps_are_its_own(shape: dict[str, Any], type: str) -> None:
    """In bits alone, in a batch whose sentences end at other steps, and with other numbers of threads."""
    network = random_steps(ends=True, **shape)
    features = phonemes(network)
    together = on_engine(network, type).speak(np.concatenate(features), LENGTHS)
    frames = together["frames"].tolist()
    assert frames[0] < max(frames)  # those behind go on
    threads = on_engine(network, type, 2).speak(np.concatenate(features), LENGTHS)
    one = on_engine(network, type)
    alone = [one.speak(each, [len(each)]) for each in features]
    for name in ("mel", "frames"):
        assert np.array_equal(threads[name], together[name])
        assert np.array_equal(np.concatenate([each[name] for each in alone]), together[name])


def test_phonemes_of_another_size_are_refused() -> None:
    engine = on_engine(random_steps(), "fp32")
    with pytest.raises(PassError, match="vectors of phonemes of another size"):
        engine.speak(np.zeros((2, 9), np.float32), [2])
    with pytest.raises(PassError, match="sentence 0 has 61 phonemes, not 1 to 60"):
        engine.speak(np.zeros((61, 512), np.float32), [61])


# HiFi-GAN


GENERATORS = (
    HifiGanConfig(8, 32, (4, 3), (8, 7), (3, 5), ((1, 2), (2, 6)), normalizes=True),
    HifiGanConfig(12, 16, (5,), (11,), (3, 7, 11), ((1, 3, 5),) * 3),
    HifiGanConfig(8, 64, (3, 2), (3, 6), (3, 5), ((1, 2), (2, 6)), paired=False, slope=0.2),
)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("config", GENERATORS, ids=["paired", "one stage", "unpaired"])
def test_sound_is_torchs(config: HifiGanConfig, type: str) -> None:
    torch.manual_seed(4)
    network = HifiGan(config).eval()
    if config.normalizes:
        network.mean.normal_()
        network.scale.uniform_(0.5, 2.0)
    tensors = {name: each.numpy() for name, each in network.state_dict().items()}
    engines = [GeneratorOnEngine(config, tensors, type, threads) for threads in (1, 2)]
    for frames in (1, 2, 61):
        mel = np.random.default_rng(frames).normal(-1, 2, (frames, config.bins)).astype(np.float32)
        wanted = network.sound(mel)
        found, again = (each.sound(mel) for each in engines)
        assert np.array_equal(found, again)
        assert found.shape == wanted.shape == (frames * config.hop,)
        assert (
            np.abs(found - wanted).mean()
            < {"fp32": 1e-6, "bf16": 0.02, "int8": 0.04}[type] * np.abs(wanted).mean()
        )
