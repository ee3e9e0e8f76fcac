"""The Conformer's and the E-Branchformer's configuration and weights, for speech.

The encoders are those of Gulati et al. 2020 (https://arxiv.org/abs/2005.08100) and Kim et al. 2022
(https://arxiv.org/abs/2210.00077) over frames that convolutions subsample. A Transformer decoder and a CTC
head both read what they encode (Kim et al. 2017, https://arxiv.org/abs/1609.06773).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.architectures import register_architecture
from nartk.architectures.transformer import (
    POSITIONS,
    TINY,
    TransformerConfig,
    both,
    linear,
    norm,
    setting,
)
from nartk.errors import UsageError
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import PassScorer

_SUBSAMPLINGS = {4: 2, 8: 3}  # how many convolutions of stride 2 each takes
_PUBLISHED = {"d_model": 256, "encoder_layers": 12, "decoder_layers": 6, **both(ffn=2048, heads=4)}
SPEECH_PRESETS: dict[str, dict[str, Any]] = {
    "": _PUBLISHED,
    "_tiny": TINY,
    "_large": {**_PUBLISHED, "d_model": 512, **both(heads=8)},
    "_e_branchformer": {
        **_PUBLISHED,
        "encoder_block": "e-branchformer",
        "encoder_ffn": 1024,
        "intermediate_norm": False,
    },
}


def interleaved_sinusoids(
    positions: Sequence[int] | npt.NDArray[np.int64], features: int
) -> npt.NDArray[np.float32]:
    """The sine and cosine of each frequency side by side, [len(positions), features] of an even number.

    Of positions from 0 (Vaswani et al. 2017, section 3.5), or of distances, a query's position less its key's
    (Dai et al. 2019, section 3.3). In fp64, rounded at the end.
    """
    angles = np.asarray(positions)[:, None] * 10000.0 ** (-np.arange(0, features, 2) / features)
    return np.stack([np.sin(angles), np.cos(angles)], 2).reshape(len(positions), features).astype(np.float32)


@register_architecture(
    "conformer",
    protocols=(PassScorer, FrameScorer),
    criterions=("nartk_speech",),
    presets=SPEECH_PRESETS,
    network="nartk.models.conformer:Conformer",
    scorer="nartk.models.speech_reference:ConformerReference",
    engine="nartk.engine.speech_scorer:ConformerEngine",
    strategy="greedy",
)
@dataclass(frozen=True)
class ConformerConfig(TransformerConfig):
    """The shape of an encoder of speech with a Transformer decoder and a CTC head.

    A source is frames [T, `input_features`]. Settings of feed-forward networks and norms are the decoder's:
    the encoder's have SiLU, biases and layer norms before each sublayer, as published.

    Raises:
        UsageError: As TransformerConfig does; and where a size that only some values can have has another.
    """

    share_embeddings: str = setting(
        "decoder", "one matrix for target and output words (decoder), or none", choices=("decoder", "none")
    )
    norm: str = setting("layer", "of all norms", choices=("layer",))
    bias: bool = setting(True, "biases in the linear layers", choices=(True,))
    encoder_norm_first: bool = setting(True, "pre-norm encoder", choices=(True,))
    max_source_len: int = setting(6000, "longest source, frames")
    encoder_positions: str = setting(
        "transformer-xl",
        "of the encoder; transformer-xl: relative ones (Dai et al. 2019)",
        choices=("transformer-xl", "sinusoidal", "none"),
    )
    decoder_positions: str = setting("sinusoidal", "target positions", choices=POSITIONS)
    encoder_block: str = setting(
        "conformer", "what the encoder's layers are", choices=("conformer", "e-branchformer")
    )
    input_features: int = setting(80, "features of a frame")
    subsampling: int = setting(4, "frames of a position of the encoder", choices=(*_SUBSAMPLINGS,))
    subsampling_channels: int = setting(0, "channels of the subsampling convolutions; 0: d_model")
    conv_kernel: int = setting(31, "positions that an encoder layer's convolution sees, odd")
    conv_norm: str = setting(
        "batch",
        "norm behind the Conformer's depthwise convolution",
        choices=("batch", "layer"),
    )
    batch_norm_eps: float = setting(
        0.0, "what batch norm adds to the variance; 0: norm_eps. ESPnet's are 1e-5, and norm_eps 1e-12"
    )
    cgmlp_features: int = setting(0, "inner features of E-Branchformer's gating branch, even; 0: 6 d_model")
    merge_kernel: int = setting(31, "positions that E-Branchformer's merging convolution sees, odd")
    intermediate_ctc: str = setting(
        "", "layers of the encoder behind which CTC is trained too, from 1, such as 6,12"
    )
    intermediate_norm: bool = setting(
        True,
        "intermediate CTC reads what the encoder's last norm makes of a layer, as in ESPnet's Conformer; its "
        "E-Branchformer and OWSM-CTC have none there",
    )
    self_conditioning: bool = setting(
        False, "layers behind intermediate CTC read what it predicts (Nozaki and Komatsu 2021)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._features_left < 1:
            raise UsageError(
                f"`input_features` is {self.input_features}, of which subsampling by {self.subsampling} "
                "leaves none"
            )
        if self.encoded_length(self.max_source_len) < 1:
            raise UsageError(f"`max_source_len` is {self.max_source_len}, below {self.least_frames}")
        for name in ("conv_kernel", "merge_kernel"):
            if getattr(self, name) % 2 == 0:
                raise UsageError(f"`{name}` is {getattr(self, name)}, which is not odd")
        if self.cgmlp_features % 2:
            raise UsageError(f"`cgmlp_features` is {self.cgmlp_features}, which is not even")
        if self.encoder_positions != "none" and self.d_model % 2:
            raise UsageError(
                f"`d_model` is {self.d_model}, which is not even", fix="set encoder_positions='none'"
            )
        if not self.intermediate_layers and self.self_conditioning:
            raise UsageError(
                "`self_conditioning` without intermediate CTC", fix="name layers in `intermediate_ctc`"
            )

    @property
    def intermediate_layers(self) -> tuple[int, ...]:
        """How many layers stand before each intermediate CTC, ascending.

        Raises:
            UsageError: `intermediate_ctc` does not name layers of the encoder before its last in ascending
                order.
        """
        if not self.intermediate_ctc:
            return ()
        parts = self.intermediate_ctc.split(",")
        layers = tuple(int(part) if part.isdecimal() else 0 for part in parts)
        if list(layers) != sorted({*layers}) or layers[0] < 1 or layers[-1] >= self.encoder_layers:
            raise UsageError(
                f"`intermediate_ctc` is {self.intermediate_ctc!r}, not ascending numbers from 1 to "
                f"{self.encoder_layers - 1}",
                fix="write such as 6,12",
            )
        return layers

    @property
    def eps_of_batch_norm(self) -> float:
        """What batch norm adds to the variance."""
        return self.batch_norm_eps if self.batch_norm_eps else self.norm_eps

    @property
    def channels(self) -> int:
        """Of the subsampling convolutions."""
        return self.subsampling_channels if self.subsampling_channels else self.d_model

    @property
    def gating_features(self) -> int:
        """Inner features of E-Branchformer's gating branch."""
        return self.cgmlp_features if self.cgmlp_features else 6 * self.d_model

    @property
    def convolutions(self) -> int:
        """Of stride 2, which subsample."""
        return _SUBSAMPLINGS[self.subsampling]

    @property
    def least_frames(self) -> int:
        """The frames of the shortest source that has a position of the encoder."""
        return 2 ** (self.convolutions + 1) - 1

    def encoded_length(self, frames: int) -> int:
        """The encoder's positions of a source of so many frames; 0 below `least_frames`."""
        for _ in range(self.convolutions):
            frames = max(0, (frames - 1) // 2)  # a kernel of 3, a stride of 2, no padding
        return frames

    @property
    def _features_left(self) -> int:
        return self.encoded_length(self.input_features)  # features shrink as frames do

    def encoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights of the encoder, and of the CTC head and its feedback."""
        d, c = self.d_model, self.channels
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.convolutions):
            shapes |= convolution(f"encoder_subsample.conv.{i}", c, 1 if i == 0 else c, 3, 3)
        shapes |= linear("encoder_subsample.out", d, c * self._features_left)
        for i in range(self.encoder_layers):
            shapes |= self._encoder_layer(f"encoder_layers.{i}")
        shapes |= layer_norm("encoder_norm", d)
        shapes |= linear("ctc", self.tgt_vocab, d)
        if self.self_conditioning:
            shapes |= linear("condition", d, self.tgt_vocab)
        return shapes

    def _encoder_layer(self, name: str) -> dict[str, tuple[int, ...]]:
        d, inner, features = self.d_model, self.encoder_ffn, self.attention_features("encoder")
        width = self.encoder_heads * features
        shapes: dict[str, tuple[int, ...]] = {}
        for ffn in (f"{name}.ffn1", f"{name}.ffn2"):
            shapes |= layer_norm(f"{ffn}_norm", d) | linear(f"{ffn}.up", inner, d)
            shapes |= linear(f"{ffn}.down", d, inner)
        shapes |= layer_norm(f"{name}.self_norm", d)
        shapes |= linear(f"{name}.self_attention.qkv", 3 * width, d)
        shapes |= linear(f"{name}.self_attention.out", d, width)
        if self.encoder_positions == "transformer-xl":
            shapes |= linear(f"{name}.self_attention.positions", width, d, bias=False)
            for bias in ("bias_u", "bias_v"):
                shapes[f"{name}.self_attention.{bias}"] = self.encoder_heads, features
        if self.encoder_block == "conformer":
            shapes |= layer_norm(f"{name}.conv_norm", d) | linear(f"{name}.conv.up", 2 * d, d)
            shapes |= convolution(f"{name}.conv.depthwise", d, 1, self.conv_kernel)
            shapes |= layer_norm(f"{name}.conv.norm", d)
            if self.conv_norm == "batch":
                for statistic in ("running_mean", "running_var"):
                    shapes[f"{name}.conv.norm.{statistic}"] = (d,)
            shapes |= linear(f"{name}.conv.down", d, d)
        else:
            m = self.gating_features
            shapes |= layer_norm(f"{name}.cgmlp_norm", d) | linear(f"{name}.cgmlp.up", m, d)
            shapes |= layer_norm(f"{name}.cgmlp.norm", m // 2)
            shapes |= convolution(f"{name}.cgmlp.depthwise", m // 2, 1, self.conv_kernel)
            shapes |= linear(f"{name}.cgmlp.down", d, m // 2)
            shapes |= convolution(f"{name}.merge.depthwise", 2 * d, 1, self.merge_kernel)
            shapes |= linear(f"{name}.merge.out", d, 2 * d)
        return shapes | layer_norm(f"{name}.final_norm", d)

    def decoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights of the decoder and the output words, as TransformerConfig has them."""
        found = super().weight_shapes()
        return {name: shape for name, shape in found.items() if not name.startswith("encoder_")}

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return self.encoder_shapes() | self.decoder_shapes()


def layer_norm(name: str, features: int) -> dict[str, tuple[int, ...]]:
    """The weights of a layer norm."""
    return norm(name, features, bias=True)


def convolution(name: str, outputs: int, inputs: int, *kernel: int) -> dict[str, tuple[int, ...]]:
    """The weights of a convolution with a bias."""
    return {f"{name}.weight": (outputs, inputs, *kernel), f"{name}.bias": (outputs,)}
