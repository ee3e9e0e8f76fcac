"""HiFi-GAN with trained weights, of the folders of its program, fairseq and transformers.

A folder holds ``config.json`` and one file of weights. HiFi-GAN's own program and fairseq pickle a dictionary
whose ``generator`` has the tensors, with weight normalisation; transformers writes ``model.safetensors``, or
pickles the tensors alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from nartk import engine
from nartk.checkpoints.tensors import StoredTensors
from nartk.errors import CheckpointError, UsageError, requiring_torch
from nartk.files import Folder, JsonObject
from nartk.protocols.hifigan import HifiGanConfig
from nartk.protocols.passes import FloatArray
from nartk.protocols.spectrograms import MelSettings
from nartk.registry import option, register_vocoder
from nartk.vocoders.vocoder import Vocoder, VocoderOptions

if TYPE_CHECKING:
    from torch import Tensor

    from nartk.models.hifigan import HifiGan

CONFIG, SAFE = "config.json", "model.safetensors"
TYPES = ("fp32", "bf16", "int8")
_WEIGHTS = ("generator*", "g_*", "*.bin", "*.pt", "*.pth")  # pickled ones
_TOGETHER = 1000  # frames whose samples are computed at a time
_LAYERS, _MOST = 32, 1 << 16  # of layers, and of channels, strides and kernels, in a network that is meant
# Settings of the spectrogram by their names in config.json; of a transformers' folder it has the rate alone.
_MEL = {
    "sample_rate": "sampling_rate",
    "window": "win_size",
    "low": "fmin",
    "high": "fmax",
}
# Names of weights in transformers' folders, and of normalised weights in recent torch's.
_RENAMED = (
    (r"^upsampler\.", "ups."),
    (r"^(resblocks\.\d+)\.convs\.", r"\1.convs1."),
    (r"\.parametrizations\.weight\.original0$", ".weight_g"),
    (r"\.parametrizations\.weight\.original1$", ".weight_v"),
)


@register_vocoder("hifi-gan")
class HifiGanOptions(VocoderOptions):
    """A network that makes sound of mel bins, with the weights of a folder; needs torch to read them.

    The engine computes it, or torch where there is none.
    """

    reads_folder: ClassVar[bool] = True

    dtype: str = option("fp32", "type that the engine computes in", choices=TYPES)
    threads: int = option(1, "threads of the engine", low=1)

    def open(self, settings: MelSettings, folder: Path) -> Vocoder:
        network = load_hifigan(folder, settings)
        config = network.config
        if engine.available() and config.channels % (4 << len(config.upsample_rates)) == 0 == config.bins % 4:
            from nartk.engine.vocoder import GeneratorOnEngine

            tensors = {name: each.numpy() for name, each in network.state_dict().items()}
            return _Generator(config, GeneratorOnEngine(config, tensors, self.dtype, self.threads).sound)
        if self.dtype != "fp32":
            raise UsageError(
                f"the vocoder is to compute in {self.dtype}, and the engine does not compute it here",
                fix=engine.LACK or "compute it in fp32; the engine takes channels and bins that 4 divides",
            )
        return _Generator(config, network.sound)


class _Generator:
    """Implements `Vocoder` by a function from spectrograms [T,F] to sound, so many frames at a time."""

    def __init__(self, config: HifiGanConfig, sound: Callable[[FloatArray], FloatArray]) -> None:
        self.config, self._sound = config, sound

    def samples(self, mel: FloatArray) -> FloatArray:
        hop, context = self.config.hop, self.config.context
        found = []
        for begin in range(0, len(mel), _TOGETHER):
            before = min(context, begin)
            sound = self._sound(mel[begin - before : begin + _TOGETHER + context])
            found.append(sound[before * hop : (before + min(_TOGETHER, len(mel) - begin)) * hop])
        return np.concatenate(found)


def load_hifigan(path: Path, settings: MelSettings) -> HifiGan:
    """The generator in a folder, for spectrograms of these settings, with its normalised weights folded.

    Raises:
        UsageError: It is for other spectrograms.
        CheckpointError: A file is missing or damaged, a pickled one asks for code to be run, or its tensors
            are not those of its configuration.
        MissingDependencyError: torch is not installed.
    """
    with requiring_torch("the vocoder 'hifi-gan'"):
        import torch

        from nartk.models.hifigan import HifiGan
    folder = Folder(path)
    values = folder.json(CONFIG)
    config = _config(values, str(path / CONFIG))
    _require_same(values, config, settings, str(path / CONFIG))
    file = _weights_file(path)
    tensors = _folded(_read(file), str(file))
    with torch.device("meta"):
        network = HifiGan(config)
    wanted = {name: tuple(each.shape) for name, each in network.state_dict().items()}
    for name, shape in wanted.items():
        if name not in tensors:
            raise CheckpointError(f"lacks the tensor {name!r}", fix="copy it again", where=str(file))
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} is {list(tensors[name].shape)}, not {list(shape)} as {CONFIG} has it",
                fix=f"give weights and {CONFIG} of one model",
                where=str(file),
            )
        if not torch.isfinite(tensors[name]).all():
            raise CheckpointError(f"tensor {name!r} holds NaN or infinity", where=str(file))
    extra = sorted(tensors.keys() - wanted.keys() - {"mean", "scale"})
    if extra:
        raise CheckpointError(f"has the tensor {extra[0][:80]!r}, which {CONFIG} does not", where=str(file))
    network.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return network.eval()


def _config(values: JsonObject, where: str) -> HifiGanConfig:
    """The shape of the network in a configuration; raises CheckpointError where it has none."""

    def require(is_right: bool, name: str) -> None:
        if not is_right:
            raise CheckpointError(
                f"`{name}` is {values.get(name)!r}", fix="give HiFi-GAN's configuration", where=where
            )

    def sizes(name: str, found: object) -> tuple[int, ...]:
        is_list = isinstance(found, list | tuple) and 1 <= len(found) <= _LAYERS
        require(is_list and all(type(each) is int and 1 <= each <= _MOST for each in found), name)  # type: ignore[attr-defined]
        return tuple(found)  # type: ignore[arg-type]

    def size(name: str, default: int) -> int:
        return sizes(name, [values.get(name, default)])[0]

    v1, is_transformers = HifiGanConfig(), "model_in_dim" in values and "num_mels" not in values
    rates = sizes("upsample_rates", values.get("upsample_rates", v1.upsample_rates))
    ups = sizes("upsample_kernel_sizes", values.get("upsample_kernel_sizes", v1.upsample_kernels))
    fit = len(ups) == len(rates) and all(k >= r and (k - r) % 2 == 0 for r, k in zip(rates, ups, strict=True))
    require(fit, "upsample_kernel_sizes")
    kernels = sizes("resblock_kernel_sizes", values.get("resblock_kernel_sizes", v1.kernels))
    require(all(each % 2 for each in kernels), "resblock_kernel_sizes")
    rows = values.get("resblock_dilation_sizes", v1.dilations)
    require(isinstance(rows, list | tuple) and len(rows) == len(kernels), "resblock_dilation_sizes")
    require(str(values.get("resblock", 1)) in ("1", "2"), "resblock")
    slope = values.get("leaky_relu_slope", v1.slope)
    require(type(slope) in (int, float) and 0 <= slope < 1, "leaky_relu_slope")
    channels = size("upsample_initial_channel", v1.channels)
    require(channels % (1 << len(rates)) == 0, "upsample_initial_channel")
    return HifiGanConfig(
        bins=size("model_in_dim" if is_transformers else "num_mels", v1.bins),
        channels=channels,
        upsample_rates=rates,
        upsample_kernels=ups,
        kernels=kernels,
        dilations=tuple(sizes("resblock_dilation_sizes", row) for row in rows),
        paired=str(values.get("resblock", 1)) == "1",
        slope=slope,
        normalizes=is_transformers and values.get("normalize_before", True) is True,
    )


def _require_same(values: JsonObject, config: HifiGanConfig, settings: MelSettings, where: str) -> None:
    """Raises UsageError if spectrograms of the settings are not those that the network was trained on."""
    known: dict[str, object] = {"bins": config.bins, "hop": config.hop}
    known |= {name: values[key] for name, key in _MEL.items() if values.get(key) is not None}
    for name, value in known.items():
        if value != getattr(settings, name):
            raise UsageError(
                f"the vocoder is for spectrograms of {name} {value}, the model's have "
                f"{getattr(settings, name)} ({where})",
                fix="name a vocoder for the model's spectrograms, or griffin-lim, which takes all",
            )


def _weights_file(folder: Path) -> Path:
    """The file of weights in a folder; raises CheckpointError unless it is one."""
    if (folder / SAFE).is_file():
        return folder / SAFE
    found = sorted({file for pattern in _WEIGHTS for file in folder.glob(pattern) if file.is_file()})
    if len(found) != 1:
        names = " and ".join(repr(file.name) for file in found[:2])
        raise CheckpointError(
            f"holds {names}" if found else "holds no weights",
            fix=f"leave one file there: {SAFE}, or {', '.join(_WEIGHTS)}",
            where=str(folder),
        )
    return found[0]


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors in a file of weights under the names of HiFi-GAN's program."""
    import torch

    from nartk.checkpoints.pickles import load_pickle, require_tensors

    if file.name == SAFE:
        stored: Mapping[str, FloatArray] = StoredTensors(file)
        found = {name: torch.from_numpy(np.array(each, np.float32)) for name, each in stored.items()}
    else:
        values = load_pickle(file)
        values = values.get("generator", values) if isinstance(values, dict) else values
        found = require_tensors(values, "holds no generator, which is tensors by name", str(file))
    for pattern, name in _RENAMED:
        found = {re.sub(pattern, name, key): each for key, each in found.items()}
    return {name: each.float() for name, each in found.items()}


def _folded(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Tensors whose normalised weights, g * v / |v| of each first index, are one tensor each."""
    found = {name: each for name, each in tensors.items() if not name.endswith((".weight_g", ".weight_v"))}
    for name, direction in tensors.items():
        if not name.endswith(".weight_v"):
            continue
        stem = name.removesuffix("_v")
        gain = tensors.get(f"{stem}_g")
        if gain is None or direction.dim() != 3 or gain.shape != (len(direction), 1, 1):
            raise CheckpointError(
                f"lacks the tensor '{stem}_g', or it has another shape", fix="copy it again", where=where
            )
        found[stem] = gain * direction / direction.flatten(1).norm(dim=1)[:, None, None]
    return found
