"""OWSM-CTC's configuration and weights (Peng et al. 2024, https://arxiv.org/abs/2402.12654).

An encoder of speech whose CTC heads recognise, translate and identify languages, as the words in front of its
frames say: `FeatureSource.words`, such as a language and a task. Without such words, prompt and
translations it is the self-conditioned CTC of Nozaki and Komatsu 2021 (https://arxiv.org/abs/2104.02724).
"""

from __future__ import annotations

from dataclasses import dataclass

from nartk.architectures import register_architecture
from nartk.architectures.conformer import ConformerConfig, layer_norm
from nartk.architectures.transformer import TINY, linear, setting
from nartk.errors import UsageError
from nartk.protocols.parallel import FrameScorer

_SELF_CONDITIONED = {"self_conditioning": True, "decoder_layers": 0}


@register_architecture(
    "owsm_ctc",
    protocols=(FrameScorer,),
    criterions=("nartk_speech",),
    presets={
        "": {
            **_SELF_CONDITIONED,
            "d_model": 256,
            "encoder_layers": 12,
            "encoder_heads": 4,
            "intermediate_ctc": "3,6,9",
        },
        "_tiny": {**TINY, **_SELF_CONDITIONED, "intermediate_ctc": "1"},
        "_published": {
            **_SELF_CONDITIONED,
            "d_model": 1024,
            "encoder_layers": 27,
            "encoder_heads": 16,
            "encoder_ffn": 4096,
            "encoder_block": "e-branchformer",
            "cgmlp_features": 4096,
            "subsampling": 8,
            "intermediate_ctc": "6,12,15,21",
            "intermediate_norm": False,
            "norm_eps": 1e-12,
            "transcript_ctc": 3,
            "words_in_front": True,
            "prompt_layers": 4,
        },
    },
    network="nartk.models.owsm_ctc:OwsmCtc",
    scorer="nartk.models.speech_reference:FrameReference",
    engine="nartk.engine.speech_scorer:OwsmCtcEngine",
    strategy="ctc-greedy",
)
@dataclass(frozen=True)
class OwsmCtcConfig(ConformerConfig):
    """The shape of an encoder of speech that has CTC heads alone.

    Weights beside those of `ConformerConfig.encoder_shapes`: ``encoder_prompt.embedding`` embeds the words in
    front of the frames, and those of the prompt at sinusoidal positions. With a prompt encoder,
    ``encoder_prompt.layers.{i}`` and ``encoder_prompt.norm`` are those of a pre-norm Transformer over the
    prompt, and each `prompt_every`-th layer has ``cross_norm`` and ``cross_attention`` behind its second
    feed-forward network.

    Raises:
        UsageError: As ConformerConfig does; or there are fewer intermediate CTC than `transcript_ctc`.
    """

    decoder_layers: int = setting(0, "it has no decoder", choices=(0,))
    transcript_ctc: int = setting(
        0, "the first so many intermediate CTC learn the transcript, also of what is to be translated"
    )
    words_in_front: bool = setting(False, "it reads words in front of the frames, as a language and a task")
    prompt_layers: int = setting(0, "layers of the prompt's encoder; 0: it reads no prompt")
    prompt_every: int = setting(3, "so many layers of the encoder, of which the last reads the prompt")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transcript_ctc > len(self.intermediate_layers):
            raise UsageError(
                f"`transcript_ctc` is {self.transcript_ctc}, of {len(self.intermediate_layers)} CTC",
                fix="name more layers in `intermediate_ctc`",
            )
        if self.prompt_every < 1:
            raise UsageError(f"`prompt_every` is {self.prompt_every}, below 1")

    @property
    def target_positions(self) -> int:
        """Positions that the words of the longest source come from."""
        return self.encoded_length(self.max_source_len)

    @property
    def reads_words(self) -> bool:
        """Whether it reads words beside frames."""
        return self.words_in_front or self.prompt_layers > 0

    @property
    def prompted_layers(self) -> tuple[int, ...]:
        """The layers that read the prompt, from 0."""
        if not self.prompt_layers:
            return ()
        return tuple(range(self.prompt_every - 1, self.encoder_layers, self.prompt_every))

    def encoder_shapes(self) -> dict[str, tuple[int, ...]]:
        d, width = self.d_model, self.encoder_heads * self.attention_features("encoder")
        shapes = super().encoder_shapes()
        if self.reads_words:
            shapes["encoder_prompt.embedding.words.weight"] = self.tgt_vocab, d
            if self.norm_embedding:
                shapes |= layer_norm("encoder_prompt.embedding.norm", d)
        for i in range(self.prompt_layers):
            layer = self._layer("encoder", i)
            own = f"encoder_layers.{i}."
            shapes |= {f"encoder_prompt.layers.{i}.{name.removeprefix(own)}": layer[name] for name in layer}
        if self.prompt_layers:
            shapes |= layer_norm("encoder_prompt.norm", d)
        for i in self.prompted_layers:
            cross = f"encoder_layers.{i}.cross"
            shapes |= layer_norm(f"{cross}_norm", d) | linear(f"{cross}_attention.q", width, d)
            shapes |= linear(f"{cross}_attention.kv", 2 * width, d)
            shapes |= linear(f"{cross}_attention.out", d, width)
        return shapes

    def decoder_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def shared_weights(self) -> dict[str, str]:
        return {}
