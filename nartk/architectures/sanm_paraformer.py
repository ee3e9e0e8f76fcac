"""FunASR's Paraformer: an encoder and a decoder of SAN-M, and the fires of a predictor.

SAN-M (Gao et al. 2020, https://arxiv.org/abs/2006.01713) adds to what self-attention gives its values, each
with a convolution of its neighbours (a memory block of a feedforward sequential memory network). The
encoder's first layer reads log-mel frames side by side (a low frame rate) and has no residual around its
attention where it gives other features. In the decoder (``ParaformerSANMDecoder``) the memory takes the place
of self-attention, the feed-forward network comes first and has a norm inside, only the first layers read the
source, and a last one is such a network alone, without residual.

Symbols: F features of a frame, m frames side by side, D features of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from nartk.architectures import register_architecture
from nartk.architectures.decoders import FireDecoder
from nartk.architectures.encoders import FrameEncoder
from nartk.architectures.parts import (
    Constants,
    Depthwise,
    Group,
    IntoHeads,
    Linear,
    Norm,
    Numbered,
    Part,
    Positions,
)
from nartk.architectures.settings import setting
from nartk.errors import UsageError

_MOST_STACKED = 100  # frames side by side; more is a mistake or a corrupt file


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SanmEncoder(FrameEncoder):
    """An encoder of SAN-M over frames side by side.

    Raises:
        UsageError: Same as Config; and a size is not between its bounds.
    """

    encoder: ClassVar[str] = "nartk.models.sanm:SanmEncoderModule"
    covers_frames: ClassVar[bool] = True

    activation: str = setting("relu", "of the feed-forward networks", choices=("relu",))
    gated_ffn: bool = setting(False, "none has a gate", choices=(False,))
    norm: str = setting("layer", "of all norms", choices=("layer",))
    norm_embedding: bool = setting(False, "no norm behind the embeddings", choices=(False,))
    bias: bool = setting(True, "biases in the linear layers", choices=(True,))
    head_features: int = setting(0, "0: a token's divided by the heads", choices=(0,))
    encoder_norm_first: bool = setting(True, "pre-norm encoder", choices=(True,))
    encoder_positions: str = setting("sinusoidal", "of the frames side by side", choices=("sinusoidal",))
    max_source_len: int = setting(6000, "longest source, frames")
    stacked_frames: int = setting(7, "frames side by side, m; those beyond an end are its last one")
    subsampling: int = setting(6, "frames from one position of the encoder to the next")
    encoder_memory: int = setting(11, "positions that an encoder layer's memory sees")
    encoder_memory_shift: int = setting(0, "positions by which it sees further back, and less far ahead")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("stacked_frames", "subsampling"):
            if not 1 <= getattr(self, name) <= _MOST_STACKED:
                raise UsageError(f"`{name}` is {getattr(self, name)}, not between 1 and {_MOST_STACKED}")
        if self.encoder_layers < 1:
            raise UsageError(f"`encoder_layers` is {self.encoder_layers}, below 1")
        self._check_memory("encoder")

    def _check_memory(self, side: str) -> None:
        kernel, shift = getattr(self, f"{side}_memory"), getattr(self, f"{side}_memory_shift")
        if kernel < 1:
            raise UsageError(f"`{side}_memory` is {kernel}, below 1")
        if shift > kernel // 2:
            raise UsageError(
                f"`{side}_memory_shift` is {shift}, more than {kernel // 2} of {kernel} positions"
            )

    @property
    def stacked_features(self) -> int:
        """Features that the first layer reads, m F."""
        return self.stacked_frames * self.input_features

    @property
    def least_frames(self) -> int:
        """The frames of the shortest source that has a position of the encoder."""
        return 1

    @property
    def source_positions(self) -> int:
        """Positions of the encoder: those of the longest source."""
        return self.encoded_length(self.max_source_len)

    def encoded_length(self, frames: int) -> int:
        """The encoder's positions of a source of so many frames."""
        return -(-frames // self.subsampling)

    def sanm_layer_part(self, index: int) -> Group:
        """A layer of the encoder; the first one reads frames."""
        layer = self.layer_part("encoder")
        d, attends = self.d_model, layer["self_attention"]
        memory = Depthwise(d, self.encoder_memory, bias=False, later=self.encoder_memory_shift)
        attends = Group({**attends.parts, "memory": memory}, attends.settings)
        parts = {**layer.parts, "self_attention": attends}
        if index == 0:
            heads = self.encoder_heads
            qkv = IntoHeads(3 * d, self.stacked_features, heads=heads, count=3)
            parts["self_attention"] = Group({**attends.parts, "qkv": qkv}, attends.settings)
            parts["self_norm"] = Norm(self.stacked_features, self.norm_eps)
        return Group(parts, layer.settings)

    def parts(self) -> dict[str, Part]:
        positions = Positions("sinusoidal", self.source_positions, self.stacked_features, first=1)
        entering = {"scale": 1.0, "count": self.source_positions, "features": self.stacked_features}
        statistics = (self.stacked_features,)
        frames = {
            "features": self.input_features,
            "most": self.max_source_len,
            "window": self.stacked_frames,
            "shift": self.subsampling,
            "scale": math.sqrt(self.d_model) if self.scale_embedding else 1.0,
        }
        encoder = {
            "stacking": Constants({"offset": statistics, "factor": statistics}),
            "embedding": Group({"positions": positions}, entering),
            "layers": Numbered([self.sanm_layer_part(i) for i in range(self.encoder_layers)]),
            "norm": self.norm_part(),
        }
        return {"encoder": Group(encoder, {"frames": frames}, joint="_"), **super().parts()}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SanmDecoder(FireDecoder):
    """A decoder of SAN-M over fires, of which there may be none.

    Raises:
        UsageError: Same as Config; and the memory is shifted by more than it sees.
    """

    network: ClassVar[str] = "nartk.models.sanm:SanmParaformer"
    least_fires: ClassVar[int] = 0

    output_bias: bool = setting(True, "a bias of the output words", choices=(True,))
    decoder_norm_first: bool = setting(True, "pre-norm decoder", choices=(True,))
    decoder_final_norm: str = setting("always", "norm behind the decoder's last layer", choices=("always",))
    decoder_positions: str = setting("none", "of the fires", choices=("none",))
    reading_layers: int = setting(0, "layers of the decoder that read the source, the first ones; 0: all")
    decoder_memory: int = setting(11, "fires that a decoder layer's memory sees")
    decoder_memory_shift: int = setting(0, "fires by which it sees further back, and less far ahead")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_memory("decoder")  # type: ignore[attr-defined]  # of the encoder

    def layers(self, side: str) -> int:
        return super().layers(side) + (side == "decoder")  # the last one

    def sanm_decoder_layer_part(self, index: int) -> Group:
        """A layer of the decoder; that behind the last one is a feed-forward network alone."""
        d, inner = self.side_features("decoder"), self.decoder_ffn
        norm = self.norm_part("decoder")
        up, down = Linear(inner, d), Linear(d, inner, False)
        ffn = Group({"up": up, "norm": Norm(inner, self.norm_eps), "down": down}, {"activation": "relu"})
        parts: dict[str, Part] = {"ffn": ffn, "ffn_norm": norm}
        if index < self.decoder_layers:
            memory = Depthwise(d, self.decoder_memory, bias=False, later=self.decoder_memory_shift)
            parts |= {"memory": memory, "self_norm": norm}
            if index < self.reading_layers or not self.reading_layers:
                cross = self.attention_part("decoder", over_source=True)
                parts |= {"cross_attention": cross, "cross_norm": norm}
        return Group(parts, {"fed": True})

    def parts(self) -> dict[str, Part]:
        found = super().parts()
        stack = found["decoder"]
        assert isinstance(stack, Group)
        layers = Numbered([self.sanm_decoder_layer_part(i) for i in range(self.layers("decoder"))])
        return {**found, "decoder": Group({**stack.parts, "layers": layers}, stack.settings, stack.joint)}


@register_architecture("sanm_paraformer", criterions=(), presets={}, strategy="paraformer")
@dataclass(frozen=True)
class SanmParaformerConfig(SanmEncoder, SanmDecoder):
    """The shape of one of FunASR's Paraformers."""
