"""Griffin-Lim leaves recordings intelligible; HiFi-GAN equals fairseq's and transformers' networks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host
from support.metrics import error_rate
from support.recipe_scripts import RECIPES
from support.sounds import noise, sine
from support.spoken_numbers import spoken_numbers
from torch.nn.functional import conv1d, conv_transpose1d, leaky_relu

import nartk
from nartk.data.audio.sounds import read_sound, resample
from nartk.data.audio.spectra import log_mel
from nartk.errors import CheckpointError, NartkError, UnknownStrategyError, UsageError
from nartk.models.hifigan import HifiGanConfig
from nartk.protocols.spectrograms import MelSettings
from nartk.registry import VOCODERS
from nartk.vocoders import hifi_gan
from nartk.vocoders.hifi_gan import load_hifigan
from nartk.vocoders.vocoder import load_vocoder

SMALL = {
    "num_mels": 20,
    "sampling_rate": 16000,
    "hop_size": 24,
    "win_size": 96,
    "upsample_rates": [4, 3, 2],
    "upsample_kernel_sizes": [8, 7, 4],
    "upsample_initial_channel": 32,
    "resblock": "1",
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 2, 3]],
    "fmin": 0,
    "fmax": 8000,
}
OF = MelSettings(sample_rate=16000, bins=20, window=96, hop=24, low=0, high=8000)


def spectrogram(frames: int, bins: int = 20) -> np.ndarray:
    return np.random.default_rng(frames).normal(-3, 2, (frames, bins)).astype(np.float32)


def randomise(network: torch.nn.Module) -> None:
    """Weights of a size that makes sound, none of them 0."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, each in network.named_parameters():
            std = 1 / max(1, each[0].numel()) ** 0.5
            each.copy_(torch.randn(each.shape, generator=generator) * std)
            if name.endswith("original0") or name.endswith("_g"):
                each.abs_().add_(0.3)


def write_fairseq(folder: Path, settings: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Writes a folder of fairseq's generator, and gives what computes as it does."""
    fairseq_host.require_fairseq()
    from fairseq.models.text_to_speech.hifigan import Generator

    network = Generator(settings | {"model_in_dim": settings["num_mels"]}).eval()
    randomise(network)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    torch.save({"generator": network.state_dict()}, folder / "generator_v9")

    def run(mel: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(mel.T[None].copy()))[0, 0].numpy()

    return run


@pytest.fixture
def written(tmp_path: Path) -> Callable[[np.ndarray], np.ndarray]:
    return write_fairseq(tmp_path, SMALL)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*weight_norm:UserWarning")
@pytest.mark.parametrize("frames", [1, 2, 37])
def test_hifigan_is_fairseqs(tmp_path: Path, frames: int) -> None:
    theirs = write_fairseq(tmp_path, SMALL)
    mel = spectrogram(frames)
    found, wanted = load_vocoder(f"hifi-gan:{tmp_path}", OF).samples(mel), theirs(mel)
    assert found.shape == (24 * frames,)
    assert np.abs(wanted).max() > 0.05
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("normalizes", [True, False])
def test_hifigan_is_transformers(tmp_path: Path, normalizes: bool) -> None:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    config = SpeechT5HifiGanConfig(
        model_in_dim=20,
        upsample_initial_channel=32,
        upsample_rates=[4, 6],
        upsample_kernel_sizes=[8, 12],
        normalize_before=normalizes,
    )
    network = SpeechT5HifiGan(config).eval()
    randomise(network)
    network.mean.copy_(torch.linspace(-3, -1, 20))
    network.scale.copy_(torch.linspace(0.5, 2, 20))
    network.save_pretrained(tmp_path)
    mel = spectrogram(23)
    with torch.inference_mode():
        wanted = network(torch.from_numpy(mel)).numpy()
    found = load_vocoder(f"hifi-gan:{tmp_path}", OF).samples(mel)
    assert np.abs(wanted).max() > 0.05
    assert np.abs(found - wanted).max() < 1e-5
    # The same weights as torch pickles them, normalised in its recent way.
    (tmp_path / "model.safetensors").unlink()
    network.apply_weight_norm()
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    assert np.abs(load_vocoder(f"hifi-gan:{tmp_path}", OF).samples(mel) - wanted).max() < 1e-5


def test_the_third_shape_has_single_convolutions(tmp_path: Path) -> None:
    """V3's blocks, which neither library has, against the paper's formula in functions of torch."""
    settings = SMALL | {
        "resblock": "2",
        "resblock_kernel_sizes": [3, 5],
        "resblock_dilation_sizes": [[1, 2], [2, 6]],
        "upsample_rates": [6, 4],
        "upsample_kernel_sizes": [12, 8],
    }
    generator = torch.Generator().manual_seed(3)
    shapes = {"conv_pre": (32, 20, 7), "ups.0": (32, 16, 12), "ups.1": (16, 8, 8), "conv_post": (1, 8, 7)}
    for i, width in ((0, 16), (1, 16), (2, 8), (3, 8)):
        kernel = (3, 5)[i % 2]
        shapes |= {f"resblocks.{i}.convs.{j}": (width, width, kernel) for j in range(2)}
    w = {f"{name}.weight": torch.randn(shape, generator=generator) / 6 for name, shape in shapes.items()}
    for name, shape in shapes.items():
        width = shape[1] if name.startswith("ups") else shape[0]
        w[f"{name}.bias"] = torch.randn(width, generator=generator) / 6
    tmp_path.joinpath("config.json").write_text(json.dumps(settings))
    torch.save({"generator": w}, tmp_path / "g_00000001")

    def conv(name: str, x: torch.Tensor, dilation: int = 1) -> torch.Tensor:
        kernel = w[f"{name}.weight"].shape[2]
        padding = dilation * (kernel - 1) // 2
        return conv1d(x, w[f"{name}.weight"], w[f"{name}.bias"], padding=padding, dilation=dilation)

    mel = spectrogram(11)
    x = conv("conv_pre", torch.from_numpy(mel.T[None].copy()))
    for i, (rate, kernel) in enumerate(((6, 12), (4, 8))):
        up, bias = w[f"ups.{i}.weight"], w[f"ups.{i}.bias"]
        x = conv_transpose1d(leaky_relu(x, 0.1), up, bias, stride=rate, padding=(kernel - rate) // 2)
        outs = []
        for j, dilations in enumerate(((1, 2), (2, 6))):
            y = x
            for k, each in enumerate(dilations):
                y = y + conv(f"resblocks.{2 * i + j}.convs.{k}", leaky_relu(y, 0.1), each)
            outs.append(y)
        x = (outs[0] + outs[1]) / 2
    wanted = torch.tanh(conv("conv_post", leaky_relu(x, 0.01)))[0, 0].numpy()
    found = load_vocoder(f"hifi-gan:{tmp_path}", OF).samples(mel)
    assert np.abs(wanted).max() > 0.05
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*weight_norm:UserWarning")
def test_long_spectrograms_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Callable[[np.ndarray], np.ndarray]
) -> None:
    mel = spectrogram(120)
    vocoder = load_vocoder(f"hifi-gan:{tmp_path}", OF)
    monkeypatch.setattr(hifi_gan, "_TOGETHER", 13)
    assert np.abs(vocoder.samples(mel) - written(mel)).max() < 1e-5
    # Known bad: pieces that see nothing of their neighbours.
    monkeypatch.setattr(HifiGanConfig, "context", 0)
    assert np.abs(vocoder.samples(mel) - written(mel)).max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample_rate": 22050}, "for spectrograms of sample_rate 16000, the model's have 22050"),
        ({"bins": 80}, "for spectrograms of bins 20, the model's have 80"),
        ({"hop": 32}, "for spectrograms of hop 24, the model's have 32"),
        ({"high": 7600}, "for spectrograms of high 8000, the model's have 7600"),
    ],
)
def test_a_vocoder_of_other_spectrograms_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    of = MelSettings(**{name: getattr(OF, name) for name in OF.__dict__} | settings)
    with pytest.raises(UsageError, match=message):
        load_hifigan(tmp_path, of)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("boom",))


def no_weights(folder: Path) -> None:
    (folder / "generator_v9").unlink()


def two_files(folder: Path) -> None:
    (folder / "g_1").write_bytes(b"")


def a_bomb(folder: Path) -> None:
    (folder / "generator_v9").write_bytes(pickle.dumps({"generator": Bomb()}, protocol=2))


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        values = torch.load(folder / "generator_v9", weights_only=True)
        change(values["generator"])
        torch.save(values, folder / "generator_v9")

    return apply


def configured(**settings: object) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(SMALL | settings)) and None


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*weight_norm:UserWarning")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_weights, "holds no weights"),
        (two_files, "holds 'g_1' and 'generator_v9'"),
        (a_bomb, "asks for '.*print'"),
        (lambda folder: (folder / "generator_v9").write_bytes(b"PK\x03\x04 cut"), "not a checkpoint"),
        (changed(lambda w: w.pop("ups.1.bias")), "lacks the tensor 'ups.1.bias'"),
        (changed(lambda w: w.pop("conv_pre.weight_g")), "lacks the tensor 'conv_pre.weight_g'"),
        (changed(lambda w: w["ups.0.bias"].fill_(np.nan)), "'ups.0.bias' holds NaN or infinity"),
        (changed(lambda w: w.update(more=torch.ones(1))), "has the tensor 'more'"),
        (configured(upsample_initial_channel=64), r"'conv_pre.weight' is \[32, 20, 7\], not \[64, 20, 7\]"),
        (configured(upsample_rates=[4, 3]), "`upsample_kernel_sizes` is"),
        (configured(upsample_kernel_sizes=[8, 8, 4]), "`upsample_kernel_sizes` is"),
        (configured(upsample_rates="x"), "`upsample_rates` is 'x'"),
        (configured(upsample_initial_channel=20), "`upsample_initial_channel` is 20"),
        (configured(upsample_initial_channel=1 << 40), "`upsample_initial_channel` is"),
        (configured(resblock="3"), "`resblock` is '3'"),
        (configured(resblock_kernel_sizes=[3, 4]), "`resblock_kernel_sizes` is"),
        (configured(resblock_dilation_sizes=[[1], 2]), "`resblock_dilation_sizes` is"),
        (configured(leaky_relu_slope="x"), "`leaky_relu_slope` is"),
        (lambda folder: (folder / "config.json").unlink(), "cannot read"),
    ],
)
def test_damaged_folders_are_named(
    tmp_path: Path,
    written: Callable[[np.ndarray], np.ndarray],
    damage: Callable[[Path], object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_hifigan(tmp_path, OF)
    assert "boom" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("griffin", {}, UnknownStrategyError, "no vocoder 'griffin'"),
        ("hifi-gan", {}, UsageError, "'hifi-gan' has weights, but no folder is named"),
        ("griffin-lim:/x", {}, UsageError, "'griffin-lim' has no weights, but '/x' is named"),
        ("griffin-lim", {"iterations": 0}, UsageError, "iterations"),
        ("griffin-lim:iterations=0", {}, UsageError, "iterations of 'griffin-lim' is 0"),
        ("griffin-lim:momentum=nan", {}, UsageError, "momentum of 'griffin-lim' is nan"),
        ("griffin-lim:iterations=x", {}, UsageError, "has the value 'x'. Fix: give one that is of type int"),
        (
            "griffin-lim:steps=3",
            {},
            UsageError,
            "Fix: griffin-lim knows iterations, momentum, as OPTION=VALUE",
        ),
        ("griffin-lim:iterations", {}, UsageError, "has no weights, but 'iterations' is named"),
        ("hifi-gan:/x:dtypes=int8", {}, UsageError, "sets 'dtypes=int8'. Fix: hifi-gan knows dtype, threads"),
        ("hifi-gan:/x:dtype=int4", {}, UsageError, "dtype of 'hifi-gan' is 'int4'"),
        ("hifi-gan:dtype=int8", {}, UsageError, "'hifi-gan' has weights, but no folder is named"),
    ],
)
def test_names_and_options_are_checked(
    name: str, options: dict[str, Any], error: type[NartkError], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_vocoder(name, OF, options)
    assert list(VOCODERS.all()) == ["griffin-lim", "hifi-gan"]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning", "ignore:.*weight_norm:UserWarning")
def test_options_stand_behind_the_name(tmp_path: Path) -> None:
    """As they do behind a strategy's; those that are given by name go before them."""
    mel = spectrogram(9)
    wanted = load_vocoder("griffin-lim", OF, {"iterations": 3, "momentum": 0.5}).samples(mel)
    for name, options in (
        ("griffin-lim:iterations=3:momentum=0.5", {}),
        ("griffin-lim:iterations=9:momentum=0.5", {"iterations": 3}),
    ):
        assert np.array_equal(load_vocoder(name, OF, options).samples(mel), wanted)
    folder = tmp_path / "a:b c"
    write_fairseq(folder, SMALL)
    wanted = load_vocoder(f"hifi-gan:{folder}", OF, {"dtype": "int8", "threads": 2}).samples(mel)
    assert np.array_equal(load_vocoder(f"hifi-gan:{folder}:dtype=int8:threads=2", OF).samples(mel), wanted)
    assert not np.array_equal(load_vocoder(f"hifi-gan:{folder}", OF).samples(mel), wanted)


@pytest.mark.parametrize("window", [1024, 1000])
def test_griffin_lim_gives_the_spectrogram_back(window: int) -> None:
    of = MelSettings(window=window)
    sound = 0.3 * sine(22050, 440, 22050) + 0.05 * noise(22050)
    mel = log_mel(sound, of)
    found = load_vocoder(settings=of).samples(mel)
    assert found.dtype == np.float32
    assert found.shape == (256 * len(mel),)
    error = np.abs(log_mel(found, of)[2 : len(mel) - 2] - mel[2:-2]).mean()
    assert error < 0.3
    # Known bad: phases that nothing has fitted. More steps fit better.
    one, many = (load_vocoder(settings=of, options={"iterations": each}).samples(mel) for each in (1, 100))
    errors = [np.abs(log_mel(each, of)[2 : len(mel) - 2] - mel[2:-2]).mean() for each in (one, many)]
    assert errors[0] > error > errors[1]
    assert load_vocoder(settings=of).samples(mel).tobytes() == found.tobytes()


def test_what_is_no_spectrogram_is_refused() -> None:
    vocoder = load_vocoder(settings=OF)
    assert vocoder.samples(np.zeros((0, 20), np.float32)).shape == (0,)
    assert len(vocoder.samples(np.zeros((1, 20), np.float32))) == 24
    for wrong in (np.zeros((3, 80), np.float32), np.zeros(20, np.float32)):
        with pytest.raises(UsageError, match=r"the vocoder reads \[T, 20\]"):
            vocoder.samples(wrong)
    with pytest.raises(UsageError, match="holds NaN or infinity"):
        vocoder.samples(np.full((3, 20), np.nan, np.float32))
    loud = vocoder.samples(np.full((30, 20), 9, np.float32))
    assert np.abs(loud).max() == 1


def test_what_is_too_loud_becomes_softer_as_a_whole() -> None:
    """Magnitudes that are 1,000 times as large give the same sound: no sample is clipped."""
    vocoder = load_vocoder(settings=OF)
    mel = np.random.default_rng(0).normal(2, 1, (30, 20)).astype(np.float32)
    loud, louder = vocoder.samples(mel), vocoder.samples(mel + np.float32(np.log(1000)))
    assert np.abs(loud).max() == np.abs(louder).max() == 1
    assert np.abs(loud - louder).max() < 1e-3
    assert np.count_nonzero(np.abs(loud) == 1) == 1
    soft = vocoder.samples(mel - 9)
    assert np.abs(soft).max() < 0.5


@pytest.mark.skipif(not RECIPES.is_dir(), reason="the recordings are not beside the tests")
def test_griffin_lim_changes_no_word(tmp_path: Path) -> None:
    """A hundred numbers of four voices, through the spectrogram and back, as the recogniser hears them."""
    sounds, said = spoken_numbers(tmp_path, 100)
    model, vocoder = nartk.load("asr-digits"), load_vocoder()
    again = []
    for each in sounds:
        mel = log_mel(read_sound(each, rate=22050), MelSettings())
        again.append((resample(vocoder.samples(mel), 22050, 8000), 8000))
    before, after = (error_rate(said, [each.text for each in model.decode(x)]).score for x in (sounds, again))
    assert abs(after - before) <= 1
    # Known bad: the spectrogram from its end to its beginning.
    backwards = resample(vocoder.samples(mel[::-1]), 22050, 8000)
    assert model.decode([(backwards, 8000)])[0].text != said[-1]
