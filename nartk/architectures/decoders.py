"""The decoders of architectures: causal, canvas, blocks, frames, graph, fires, and an acoustic one.

All but the last have a Transformer's layers over what the encoder gives, whatever it was encoded from. Each
says what the engine reads of it, which protocols it speaks and what implements them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from nartk.architectures.parts import (
    Constants,
    Convolution,
    Depthwise,
    Factor,
    Group,
    Linear,
    Norm,
    Numbered,
    OutputWords,
    Part,
    Positions,
    Shape,
    recurrence,
)
from nartk.architectures.settings import (
    FINAL_NORMS,
    POSITIONS,
    SOURCE_WORDS,
    TARGET_WORDS,
    Config,
    Speaks,
    setting,
)
from nartk.errors import UsageError
from nartk.protocols.attending import AttendingScorer
from nartk.protocols.parallel import (
    BlockScorer,
    CanvasScorer,
    FireScorer,
    FrameScorer,
    GraphScorer,
    MelScorer,
    PhonemeScorer,
)
from nartk.protocols.passes import CopiesSource, PassScorer
from nartk.protocols.views import GivesViews

_MOST_FRAMES = 16  # of a position of the encoder; more is a mistake or a corrupt file
_SCALE = re.compile(r"(\d+(?:\.\d+)?)(?:~(\d+(?:\.\d+)?))?")


def _speaks(name: str, *protocols: type) -> Speaks:
    """The mixins of that name for non-autoregressive models."""
    engine, reference = f"parallel_scorer:{name}OnEngine", f"parallel_reference:{name}OnTorch"
    return Speaks(protocols, f"nartk.engine.{engine}", f"nartk.models.{reference}")


# No configuration is of these classes alone, and every method that a dataclass generates delays the start.
@dataclass(frozen=True, init=False, repr=False, eq=False)
class DecoderStack(Config):
    """The layers of a Transformer's decoder."""

    decoder_features: int = setting(0, "features of a token of the decoder; 0: d_model")
    decoder_layers: int = setting(6, "layers of the decoder")
    decoder_ffn: int = setting(2048, "inner features of the decoder's feed-forward networks")
    decoder_heads: int = setting(8, "attention heads of the decoder")
    decoder_norm_first: bool = setting(True, "pre-norm decoder")
    decoder_final_norm: str = setting(
        "pre-norm",
        "norm behind the decoder's last layer: where its layers are pre-norm, always, or never",
        choices=FINAL_NORMS,
    )
    decoder_positions: str = setting("sinusoidal", "target positions", choices=POSITIONS)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Decoder(DecoderStack):
    """A Transformer's decoder, and the output words.

    Raises:
        UsageError: Same as Config; and it copies vectors of the source, which have other features.
    """

    share_embeddings: str = setting(
        "decoder", "one matrix for target and output words (decoder), or none", choices=("decoder", "none")
    )
    output_bias: bool = setting(False, "a bias of the output words")
    scale_output: bool = setting(
        False, "divide what the output layer reads by the square root of the decoder's features"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        features = self.side_features("decoder")
        if features != self.d_model and self.engine_settings().get("copied", "none") != "none":
            raise UsageError(
                f"the decoder copies vectors of {self.d_model} features, `decoder_features` is {features}",
                fix="leave it out",
            )

    def parts(self) -> dict[str, Part]:
        features = self.side_features("decoder")
        scale = features**-0.5 if self.scale_output else 1.0
        return {
            "decoder": self.stack_part("decoder", self.target_positions, words=self.tgt_vocab),
            "output": OutputWords(self.tgt_vocab, features, self.output_bias, scale),
            **super().parts(),
        }

    def shared_weights(self) -> dict[str, str]:
        words = [SOURCE_WORDS, *TARGET_WORDS[:2]]
        shared = {"all": words, "decoder": words[1:], "inputs": words[:2], "none": words[:1]}
        first, *others = shared[self.share_embeddings]
        return dict.fromkeys(others, first)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CausalDecoder(Decoder):
    """Predicts the next word of an output.

    Raises:
        UsageError: Same as Config; and positions are relative, of a decoder without self-attention.
    """

    speaks: ClassVar[Speaks | None] = Speaks(
        (PassScorer, AttendingScorer, GivesViews),
        "nartk.engine.scorer:PassesOnEngine",
        "nartk.models.reference:PassesOnTorch",
        "nartk.models.device_passes:DevicePasses",
    )
    network: ClassVar[str] = "nartk.models.transformer:Transformer"

    decoder_positions: str = setting(
        "sinusoidal", "target positions; relative: of T5", choices=(*POSITIONS, "relative")
    )
    decoder_recurrence: str = setting(
        "none",
        "in place of the decoder's self-attention; ssru: the simpler simple recurrent unit of Marian",
        choices=("none", "ssru"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_recurrence != "none" and self.decoder_positions == "relative":
            raise UsageError(
                "`decoder_positions` relative are for attention, `decoder_recurrence` is "
                f"{self.decoder_recurrence}"
            )

    def layer_part(self, side: str) -> Group:
        layer = super().layer_part(side)
        if side != "decoder" or self.decoder_recurrence == "none":
            return layer
        others = {name: part for name, part in layer.parts.items() if name != "self_attention"}
        cell = recurrence(self.side_features("decoder"), bias=self.bias)
        return Group({"recurrence": cell, **others}, layer.settings)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CopiesWords(Config):
    """Source words that can be words of the output."""

    speaks: ClassVar[Speaks | None] = Speaks(
        (CopiesSource,), "nartk.engine.scorer:CopiesOnEngine", "nartk.models.reference:CopiesOnTorch"
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class BlockDecoder(Decoder):
    """Fills the masked positions behind a prefix."""

    speaks: ClassVar[Speaks | None] = _speaks("Blocks", BlockScorer)
    network: ClassVar[str] = "nartk.models.blockwise:Blockwise"

    decoder_positions: str = setting("learned", "target positions", choices=POSITIONS)
    block: int = setting(25, "places that are filled at once")

    def engine_settings(self) -> dict[str, Any]:
        return {**super().engine_settings(), "copied": "none"}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LengthHead(Config):
    """Predicts lengths as their differences from the source's."""

    length_difference: int = setting(
        128, "most tokens that a predicted length is longer or shorter than the source"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length_difference < 1:
            raise UsageError(f"`length_difference` is {self.length_difference}, below 1")

    def lengths_part(self) -> dict[str, Part]:
        """The predictor, which reads the mean of what is encoded."""
        return {"lengths": Linear(2 * self.length_difference + 1, self.d_model, exact=True)}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CanvasDecoder(LengthHead, Decoder):
    """Fills a canvas whose length is predicted.

    Raises:
        UsageError: Same as Config; and a soft copy has no temperature, or the predictor no length to choose
            from.
    """

    speaks: ClassVar[Speaks | None] = _speaks("Canvases", CanvasScorer)
    network: ClassVar[str] = "nartk.models.nat:Nat"

    decoder_input: str = setting(
        "soft-copy",
        "at unfilled places: the mask symbol (mask), the source word at the same share of the length "
        "(uniform-copy), or source words weighted by their distance from there (soft-copy); of speech what "
        "its positions were encoded to in place of words",
        choices=("mask", "uniform-copy", "soft-copy"),
    )
    copy_temperature: float = setting(0.3, "of the soft copy: source positions at which weights fall by e")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.copy_temperature <= 0.0:
            raise UsageError(f"`copy_temperature` is {self.copy_temperature}, not above 0")

    def parts(self) -> dict[str, Part]:
        return {**super().parts(), **self.lengths_part()}

    def engine_settings(self) -> dict[str, Any]:
        copied = {"mask": "none", "uniform-copy": "uniform", "soft-copy": "soft"}[self.decoder_input]
        return {**super().engine_settings(), "copied": copied, "temperature": self.copy_temperature}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FrameDecoder(Decoder):
    """Gives each position of the encoder several frames, which say a word or nothing (CTC).

    Raises:
        UsageError: Same as Config; and a position has no frames, or too many.
    """

    speaks: ClassVar[Speaks | None] = _speaks("DecoderFrames", FrameScorer)
    network: ClassVar[str] = "nartk.models.ctc:CtcNat"

    upsample: int = setting(2, "frames per source token")
    decoder_input: str = setting(
        "memory",
        "what the frames of a token begin with: its embedding (source), or its encoder output (memory)",
        choices=("memory",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.upsample <= _MOST_FRAMES:
            raise UsageError(f"`upsample` is {self.upsample}, not between 1 and {_MOST_FRAMES}")

    @property
    def target_positions(self) -> int:
        """Positions of the decoder: the frames of the longest source, however long targets may be."""
        positions: int = self.source_positions  # type: ignore[attr-defined]  # of the encoder
        return self.upsample * positions

    @property
    def labels_per_position(self) -> int:
        return self.upsample

    def engine_settings(self) -> dict[str, Any]:
        return {**super().engine_settings(), "copied": self.decoder_input, "frames": self.upsample}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class GraphDecoder(LengthHead, Decoder):
    """A graph of at least 2 and at most `max_target_len` vertices with a word each (DA-Transformer).

    Raises:
        UsageError: A value is out of its bounds, or the scale is none.
    """

    speaks: ClassVar[Speaks | None] = _speaks("Graph", GraphScorer)
    network: ClassVar[str] = "nartk.models.da_transformer:DaTransformer"

    decoder_positions: str = setting("learned", "positions of the vertices", choices=POSITIONS)
    decoder_input: str = setting(
        "mask",
        "what vertices begin with: the mask symbol (mask, as published), or the source word at the same "
        "share of the graph (uniform-copy), which learns in fewer steps; of speech what a position was "
        "encoded to in place of a word",
        choices=("mask", "uniform-copy"),
    )
    upsampling: str = setting(
        "source",
        "a graph's size goes by the length of the source, of speech by the encoder's positions, or by that "
        "of the target, which is predicted when decoding (predict), or is always the same (fixed)",
        choices=("source", "predict", "fixed"),
    )
    upsample_scale: str = setting(
        "8",
        "vertices per token of that length (fixed: vertices), never more than max_target_len; 4~8: any "
        "scale between, drawn for each training batch, and the last when decoding",
    )
    link_features: str = setting(
        "feature:position",
        "what links are computed from: the decoder's features, learned positions of the vertices, or both",
        choices=("feature:position", "feature", "position"),
    )
    link_heads: int = setting(8, "heads of the links")
    max_transition_length: int = setting(
        99999, "most vertices that a link leads ahead; as many as a graph has, or more: any"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        features = self.side_features("decoder")
        if self.link_heads < 1 or features % self.link_heads:
            own = "decoder_features" if self.decoder_features else "d_model"
            raise UsageError(f"`{own}` {features} is no multiple of `link_heads` {self.link_heads}")
        if self.max_transition_length < 1:
            raise UsageError(f"`max_transition_length` is {self.max_transition_length}, below 1")
        low, high = self.scales
        if not 0.0 < low <= high <= self.max_target_len:
            raise UsageError(
                f"`upsample_scale` {self.upsample_scale!r} is not between 0 and `max_target_len` "
                f"{self.max_target_len}, the lower first"
            )

    @property
    def scales(self) -> tuple[float, float]:
        """The least and the largest scale; raises UsageError where `upsample_scale` is none."""
        found = _SCALE.fullmatch(self.upsample_scale)
        if found is None:
            raise UsageError(
                f"`upsample_scale` is {self.upsample_scale!r}", fix="write a number, or two, as 4~8"
            )
        low = float(found[1])
        return low, low if found[2] is None else float(found[2])

    def parts(self) -> dict[str, Part]:
        d, read = self.side_features("decoder"), self.link_features.split(":")
        links: dict[str, Part] = {}
        if "position" in read:
            links["positions"] = Positions("learned", self.max_target_len, d)
        scale, inputs = (d // self.link_heads) ** -0.5, len(read) * d
        links["query"] = Linear(d, inputs, scale=scale, exact=True)
        links["key"] = Linear(d, inputs, exact=True)
        links["gate"] = Linear(self.link_heads, inputs, exact=True)
        settings = {"by_features": "feature" in read, "longest_link": self.max_transition_length}
        lengths = self.lengths_part() if self.upsampling == "predict" else {}
        return {**super().parts(), "links": Group(links, settings), **lengths}

    def engine_settings(self) -> dict[str, Any]:
        copied = "none" if self.decoder_input == "mask" else "uniform"
        return {**super().engine_settings(), "copied": copied}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FireDecoder(Decoder):
    """Sums the encoder's positions to one embedding a token, where a predictor fires, and fills these.

    Each fire is a token, eos included. The embeddings of words are the sampler's, which training alone reads.
    """

    speaks: ClassVar[Speaks | None] = _speaks("Fires", FireScorer, FrameScorer)
    network: ClassVar[str] = "nartk.models.paraformer:Paraformer"
    least_fires: ClassVar[int] = 1  # that a source has: eos is one

    decoder_positions: str = setting("sinusoidal", "of the fires", choices=POSITIONS)
    predictor: str = setting(
        "convolution",
        "what weighs positions: a convolution over all features (convolution: FunASR's CifPredictorV2), or "
        "one of each feature by itself that is added to what it reads (depthwise: its CifPredictor)",
        choices=("convolution", "depthwise"),
    )
    tail_threshold: float = setting(
        0.45, "added to the sum of the weights of a source, so that what is left of it may fire"
    )

    def parts(self) -> dict[str, Part]:
        d = self.d_model
        conv: Part = (
            Convolution(d, d, exact=True, padding=1) if self.predictor == "convolution" else Depthwise(d, 3)
        )
        settings = {"tail": self.tail_threshold, "least": self.least_fires}
        cif = Group({"conv": conv, "out": Linear(1, d, exact=True)}, settings)
        return {**super().parts(), "cif": cif}

    def engine_settings(self) -> dict[str, Any]:
        return {**super().engine_settings(), "copied": "fires"}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class MelOutput(Config):
    """Outputs that are mel spectrograms.

    Raises:
        UsageError: Same as Config; and a size is 0.
    """

    speaks: ClassVar[Speaks | None] = _speaks("Speech", MelScorer)

    mel_features: int = setting(80, "bins of a frame of the mel spectrogram")
    max_mel_len: int = setting(4096, "longest output, frames")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_least(mel_features=1, max_mel_len=1)

    def require_least(self, **bounds: int) -> None:
        """Raises UsageError where a setting is below its bound."""
        for name, bound in bounds.items():
            if getattr(self, name) < bound:
                raise UsageError(f"`{name}` is {getattr(self, name)}, below {bound}")

    def statistics_part(self, **others: Shape) -> Constants:
        """Mean and deviation of the corpus's frames, and other numbers by name."""
        return Constants({**dict.fromkeys(("mel_mean", "mel_deviation"), (self.mel_features,)), **others})


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PhonemeOutput(MelOutput, CopiesWords):
    """Outputs that are sources of words (phonemes or letters), spoken as they are encoded."""

    reads_text: ClassVar[bool] = True
    speaks: ClassVar[Speaks | None] = _speaks("Encoded", PhonemeScorer)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AcousticDecoder(MelOutput):
    """Computes a mel spectrogram of a vector a phoneme, whatever gives the vectors (FastSpeech 2).

    Ren et al. 2021, https://arxiv.org/abs/2006.04558, in fairseq's form. Two stacks of layers with a
    convolutional feed-forward network and norms behind each sublayer; between them the predictors of
    durations, pitch and energy, and the length regulator.

    Raises:
        UsageError: Same as Config; and a convolution sees an even number of positions, or a size is 0.
    """

    acoustic_features: int = setting(0, "features of a phoneme in the acoustic part; 0: d_model")
    acoustic_encoder_layers: int = setting(4, "layers over phonemes")
    acoustic_decoder_layers: int = setting(4, "layers over frames")
    acoustic_heads: int = setting(4, "attention heads of these layers")
    acoustic_ffn: int = setting(1024, "inner features of their convolutional feed-forward networks")
    acoustic_kernel: int = setting(9, "positions that the first convolution of such a network sees, odd")
    acoustic_second_kernel: int = setting(
        9, "positions that its second convolution sees, odd; the paper has 1, fairseq as many as the first"
    )
    predictor_features: int = setting(256, "inner features of the predictors of duration, pitch and energy")
    predictor_kernel: int = setting(3, "phonemes that a convolution of a predictor sees, odd")
    predictor_dropout: float = setting(0.5, "behind each convolution of a predictor")
    variance_bins: int = setting(256, "values of pitch, and of energy, that have an embedding")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("acoustic_kernel", "acoustic_second_kernel", "predictor_kernel"):
            if getattr(self, name) % 2 == 0:
                raise UsageError(f"`{name}` is {getattr(self, name)}, which is not odd")
        self.require_least(variance_bins=2, predictor_features=1)

    def _fft_layer_part(self) -> Group:
        d, inner, norm = self.side_features("acoustic"), self.acoustic_ffn, self.norm_part("acoustic")
        first, second = self.acoustic_kernel, self.acoustic_second_kernel
        up = Convolution(inner, d, kernel=(first,), padding=first // 2)
        down = Convolution(d, inner, kernel=(second,), padding=second // 2)
        ffn = Group({"up": up, "down": down}, {"activation": "relu"})
        attends = {"self_attention": self.attention_part("acoustic"), "self_norm": norm}
        return Group({**attends, "ffn": ffn, "ffn_norm": norm}, {"norm_first": False})

    def _predictor_part(self) -> Group:
        inner, kernel = self.predictor_features, self.predictor_kernel
        convs = [
            Convolution(inner, features, kernel=(kernel,), padding=kernel // 2)
            for features in (self.side_features("acoustic"), inner)
        ]
        norms = [Norm(inner, self.norm_eps)] * len(convs)
        return Group({"conv": Numbered(convs), "norm": Numbered(norms), "out": Linear(1, inner, exact=True)})

    def parts(self) -> dict[str, Part]:
        d, bins = self.side_features("acoustic"), self.variance_bins
        embedding = Positions("learned", bins, d)
        adaptor = {
            **dict.fromkeys(("duration", "pitch", "energy"), self._predictor_part()),
            **dict.fromkeys(("pitch_embedding", "energy_embedding"), embedding),
        }
        positions = max(self.max_mel_len, self.max_source_len, self.max_target_len + 1)
        acoustic: dict[str, Part] = {
            "positions": Positions("sinusoidal", positions, d),
            "encoder_positions": Factor(),
            "encoder": Numbered([self._fft_layer_part()] * self.acoustic_encoder_layers),
            "variance": Group(adaptor),
            "decoder_positions": Factor(),
            "decoder": Numbered([self._fft_layer_part()] * self.acoustic_decoder_layers),
            "out": Linear(self.mel_features, d),
            "statistics": self.statistics_part(pitch_bounds=(bins - 1,), energy_bounds=(bins - 1,)),
        }
        return {"acoustic": Group(acoustic, {"features": d, "most": self.max_mel_len}), **super().parts()}
