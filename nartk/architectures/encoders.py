"""The encoders that architectures combine with decoders: of text, of speech, and Whisper's.

Those of speech are the Conformer of Gulati et al. 2020 (https://arxiv.org/abs/2005.08100) and the
E-Branchformer of Kim et al. 2022 (https://arxiv.org/abs/2210.00077), over frames that convolutions subsample,
with a CTC head. Whisper's (Radford et al. 2023, arXiv:2212.04356) is a Transformer's over frames that two
convolutions halve: over three frames with zeros on both sides, GELU behind each, and positions as the
checkpoint stores them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nartk.architectures.parts import (
    BatchNorm,
    Convolution,
    Depthwise,
    FromImages,
    Group,
    HeadVectors,
    IntoHeads,
    Linear,
    Norm,
    Normed,
    Numbered,
    Part,
    Positions,
    feed_forward,
)
from nartk.architectures.settings import FINAL_NORMS, JOINT, POSITIONS, Config, Speaks, setting
from nartk.errors import PassError, UsageError
from nartk.protocols.encoded import ReadsEncoded
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import FeatureSource, Source

WHISPER_KERNEL = 3  # frames that a convolution of Whisper's reads
WHISPER_STRIDES = (1, 2)  # frames, of its two convolutions
_SUBSAMPLINGS = {4: 2, 8: 3}  # how many convolutions of stride 2 each takes


# No configuration is of these classes alone, and every method that a dataclass generates delays the start.
@dataclass(frozen=True, init=False, repr=False, eq=False)
class TextEncoder(Config):
    """A Transformer's encoder.

    Raises:
        UsageError: Same as Config; and source and target share embeddings but not a dictionary.
    """

    encoder: ClassVar[str] = "nartk.models.transformer:TextEncoderModule"  # in torch
    reads_text: ClassVar[bool] = True

    encoder_layers: int = setting(6, "layers of the encoder")
    encoder_ffn: int = setting(2048, "inner features of the encoder's feed-forward networks")
    encoder_heads: int = setting(8, "attention heads of the encoder")
    encoder_norm_first: bool = setting(True, "pre-norm encoder")
    encoder_final_norm: str = setting(
        "pre-norm",
        "norm behind the encoder's last layer: where its layers are pre-norm, always, or never",
        choices=FINAL_NORMS,
    )
    encoder_positions: str = setting(
        "sinusoidal", "source positions; relative: of T5", choices=(*POSITIONS, "relative")
    )
    share_embeddings: str = setting(
        "all",
        "one matrix for source, target and output words (all), for target and output (decoder), for source "
        "and target (inputs), or none",
        choices=("all", "decoder", "inputs", "none"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_embeddings in JOINT and self.side_features("decoder") != self.d_model:
            raise UsageError(
                f"source and target share embeddings, but have {self.d_model} and "
                f"{self.side_features('decoder')} features",
                fix="share_embeddings='decoder', or 'none'",
            )
        if self.share_embeddings in JOINT and self.src_vocab != self.tgt_vocab:
            raise UsageError(
                f"source and target share embeddings, but have {self.src_vocab} and {self.tgt_vocab} words",
                fix="use one joint dictionary, or share_embeddings='decoder'",
            )

    @property
    def source_positions(self) -> int:
        """Positions of the encoder."""
        return self.max_source_len

    def parts(self) -> dict[str, Part]:
        encoder = self.stack_part("encoder", self.source_positions, words=self.src_vocab)
        return {"encoder": encoder, **super().parts()}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class EncodedSources(Config):
    """No encoder: sources are vectors of `d_model` features that another model's encoder gave."""

    encoder: ClassVar[str] = "nartk.models.light_drafter:EncodedSourcesModule"
    reads_text: ClassVar[bool] = False
    speaks: ClassVar[Speaks | None] = Speaks(
        (ReadsEncoded,), "nartk.engine.scorer:VectorsOnEngine", "nartk.models.light_drafter:VectorsOnTorch"
    )

    drafts_for: str = setting("", "fingerprint of the model whose encoded sources it reads")

    def parts(self) -> dict[str, Part]:
        return {"encoder": Group({}, {"vectors": self.max_source_len}), **super().parts()}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FrameEncoder(Config):
    """An encoder whose sources are frames [T, `input_features`]."""

    reads_text: ClassVar[bool] = False
    covers_frames: ClassVar[bool] = False  # True if every frame of a source has a part in a position

    encoder_layers: int = setting(6, "layers of the encoder")
    encoder_ffn: int = setting(2048, "inner features of the encoder's feed-forward networks")
    encoder_heads: int = setting(8, "attention heads of the encoder")
    encoder_norm_first: bool = setting(True, "pre-norm encoder, with a norm after its last layer")
    input_features: int = setting(80, "features of a frame")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_features < 1:
            raise UsageError(f"`input_features` is {self.input_features}, below 1")

    def words_beside(self, index: int, source: Source) -> tuple[Sequence[int], Sequence[int]]:
        """The words in front of a source's frames and its prompt, as the model reads them.

        Raises:
            PassError: It has such words, and the model reads none.
        """
        if isinstance(source, FeatureSource) and (source.words or source.prompt):
            raise PassError(f"source {index} has words beside its frames, which the model does not read")
        return (), ()


@dataclass(frozen=True, init=False, repr=False, eq=False)
class WhisperEncoder(FrameEncoder):
    """Whisper's encoder; the defaults are its size "base"."""

    encoder: ClassVar[str] = "nartk.models.whisper:WhisperEncoderModule"

    activation: str = setting(
        "gelu", "of the feed-forward networks", choices=("relu", "gelu", "gelu_tanh", "silu")
    )
    encoder_positions: str = setting("learned", "source positions", choices=("learned",))
    max_source_len: int = setting(3000, "longest source, frames")
    scale_embedding: bool = setting(False, "multiply embeddings by the square root of d_model")
    dropout: float = setting(0.0, "on embeddings and on each sublayer's output")

    @property
    def source_positions(self) -> int:
        """Positions of the encoder: those of the longest source."""
        return self.encoded_length(self.max_source_len)

    def encoded_length(self, frames: int) -> int:
        """The encoder's positions of a source of so many frames."""
        return (frames - 1) // WHISPER_STRIDES[1] + 1

    def parts(self) -> dict[str, Part]:
        d = self.d_model
        conv = [
            Convolution(d, inputs, exact=i == 0, kernel=(WHISPER_KERNEL,), stride=stride, padding=1)
            for i, (inputs, stride) in enumerate(zip((self.input_features, d), WHISPER_STRIDES, strict=True))
        ]
        stack = self.stack_part("encoder", self.source_positions, words=None)
        frames = {
            "images": False,
            "features": self.input_features,
            "most": self.max_source_len,
            "activation": "gelu",
            "strides": WHISPER_STRIDES,
        }
        encoder = Group({**stack.parts, "conv": Numbered(conv)}, {**stack.settings, "frames": frames}, "_")
        return {"encoder": encoder, **super().parts()}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SpeechEncoder(FrameEncoder):
    """A Conformer or an E-Branchformer, with a CTC head that reads what it encodes.

    Settings of feed-forward networks are the decoder's: the encoder's have SiLU and biases, and layer norms
    before each sublayer, as published.

    Raises:
        UsageError: Same as Config; and a size is not one of its allowed values.
    """

    encoder: ClassVar[str] = "nartk.models.speech_encoder:SpeechEncoderModule"

    norm: str = setting("layer", "of all norms", choices=("layer",))
    bias: bool = setting(True, "biases in the linear layers", choices=(True,))
    encoder_norm_first: bool = setting(True, "pre-norm encoder", choices=(True,))
    max_source_len: int = setting(6000, "longest source, frames")
    encoder_positions: str = setting(
        "transformer-xl",
        "of the encoder; transformer-xl: relative ones (Dai et al. 2019)",
        choices=("transformer-xl", "sinusoidal", "none"),
    )
    encoder_block: str = setting(
        "conformer", "what the encoder's layers are", choices=("conformer", "e-branchformer")
    )
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
        """Numbers of layers before each intermediate CTC, ascending.

        Raises:
            UsageError: `intermediate_ctc` does not name layers of the encoder before its last in ascending
                order.
        """
        return layer_numbers("intermediate_ctc", self.intermediate_ctc, self.encoder_layers - 1)

    @property
    def eps_of_batch_norm(self) -> float:
        """The epsilon that batch norm adds to the variance."""
        return self.batch_norm_eps if self.batch_norm_eps else self.norm_eps

    @property
    def channels(self) -> int:
        """Channels of the subsampling convolutions."""
        return self.subsampling_channels if self.subsampling_channels else self.d_model

    @property
    def gating_features(self) -> int:
        """Inner features of E-Branchformer's gating branch."""
        return self.cgmlp_features if self.cgmlp_features else 6 * self.d_model

    @property
    def convolutions(self) -> int:
        """Number of subsampling convolutions, each of stride 2."""
        return _SUBSAMPLINGS[self.subsampling]

    @property
    def least_frames(self) -> int:
        """The frames of the shortest source that has a position of the encoder."""
        return int(2 ** (self.convolutions + 1)) - 1

    @property
    def source_positions(self) -> int:
        """Positions of the encoder: those of the longest source."""
        return self.encoded_length(self.max_source_len)

    def encoded_length(self, frames: int) -> int:
        """The encoder's positions of a source of so many frames; 0 below `least_frames`."""
        for _ in range(self.convolutions):
            frames = max(0, (frames - 1) // 2)  # a kernel of 3, a stride of 2, no padding
        return frames

    @property
    def _features_left(self) -> int:
        return self.encoded_length(self.input_features)  # features shrink as frames do

    @property
    def prompted_layers(self) -> tuple[int, ...]:
        """The layers that read a prompt, from 0."""
        return ()

    def prompt_parts(self) -> dict[str, Part]:
        """The layers that encode words beside the frames, if there are any."""
        return {}

    def parts(self) -> dict[str, Part]:
        d, scaled = self.d_model, self.encoder_positions != "none"
        positions: dict[str, Part] = {}
        if self.encoder_positions == "sinusoidal":
            positions["positions"] = Positions("interleaved", self.source_positions, d)
        parts: dict[str, Part] = {
            "embedding": Group(positions, {"scale": 1.0, "count": self.source_positions}),
            "subsample": self._subsample(math.sqrt(d) if scaled else 1.0),
            "layers": Numbered([self.speech_layer_part(i) for i in range(self.encoder_layers)]),
            "norm": self.norm_part(),
            **self.prompt_parts(),
        }
        frames = {
            "images": True,
            "features": self.input_features,
            "most": self.max_source_len,
            "activation": "relu",
            "strides": [2] * self.convolutions,
        }
        condition = {"condition": Linear(d, self.tgt_vocab)} if self.self_conditioning else {}
        encoder = Group(parts, {"frames": frames}, joint="_")
        return {"encoder": encoder, "ctc": Linear(self.tgt_vocab, d), **condition, **super().parts()}

    def _subsample(self, scale: float) -> Group:
        c = self.channels
        conv = [
            Convolution(c, c if i else 1, exact=i == 0, kernel=(3, 3), stride=2)
            for i in range(self.convolutions)
        ]
        return Group(
            {
                "conv": Numbered(conv),
                "out": FromImages(self.d_model, c * self._features_left, True, scale, channels=c),
            }
        )

    def speech_layer_part(self, index: int) -> Group:
        """A layer of the encoder."""
        d, heads, features = self.d_model, self.encoder_heads, self.attention_features("encoder")
        half, norm = feed_forward(d, self.encoder_ffn, "silu", scale=0.5), self.norm_part()
        attends = self.attention_part("encoder")
        if self.encoder_positions == "transformer-xl":
            relative = {
                "positions": IntoHeads(heads * features, d, False, exact=True, heads=heads),
                **dict.fromkeys(("bias_u", "bias_v"), HeadVectors(heads, features)),
            }
            attends = Group({**attends.parts, **relative}, attends.settings)
        parts: dict[str, Part] = {"ffn1_norm": norm, "ffn1": half}
        parts |= {"self_norm": norm, "self_attention": attends}
        if self.encoder_block != "e-branchformer":
            is_batch = self.conv_norm == "batch"
            inner = BatchNorm(d, self.eps_of_batch_norm) if is_batch else norm
            layers = {
                "up": Linear(2 * d, d),
                "depthwise": Depthwise(d, self.conv_kernel),
                "norm": inner,
                "down": Linear(d, d),
            }
            parts |= {"conv_norm": norm, "conv": (Normed if is_batch else Group)(layers, {"of_gate": False})}
        else:
            m = self.gating_features
            layers = {
                "up": Linear(m, d),
                "norm": Norm(m // 2, self.norm_eps),
                "depthwise": Depthwise(m // 2, self.conv_kernel),
                "down": Linear(d, m // 2),
            }
            merge = {"depthwise": Depthwise(2 * d, self.merge_kernel), "out": Linear(d, 2 * d)}
            parts |= {"cgmlp_norm": norm, "cgmlp": Group(layers, {"of_gate": True}), "merge": Group(merge)}
        parts |= {"ffn2_norm": norm, "ffn2": half}
        if index in self.prompted_layers:
            parts |= {"cross_norm": norm, "cross_attention": self.attention_part("encoder", over_source=True)}
        conditioned = self.self_conditioning and index + 1 in self.intermediate_layers
        return Group({**parts, "final_norm": norm}, {"norm_first": True, "conditioned": conditioned})

    def engine_settings(self) -> dict[str, Any]:
        return {**super().engine_settings(), "condition_normed": self.intermediate_norm}


def layer_numbers(name: str, value: str, most: int) -> tuple[int, ...]:
    """The layers that a setting names, such as 6,12, from 1; none if it is empty.

    Raises:
        UsageError: They are not in ascending order, or one is above `most`.
    """
    if not value:
        return ()
    layers = tuple(int(part) if part.isdecimal() else 0 for part in value.split(","))
    if list(layers) != sorted({*layers}) or layers[0] < 1 or layers[-1] > most:
        raise UsageError(
            f"`{name}` is {value!r}, not ascending numbers from 1 to {most}", fix="write such as 6,12"
        )
    return layers


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CtcHead(Config):
    """Decodes by the CTC head of an encoder of speech."""

    speaks: ClassVar[Speaks | None] = Speaks(
        (FrameScorer,),
        "nartk.engine.parallel_scorer:HeadFramesOnEngine",
        "nartk.models.parallel_reference:HeadFramesOnTorch",
    )
