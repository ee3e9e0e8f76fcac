"""OWSM-CTC's configuration and weights (Peng et al. 2024, https://arxiv.org/abs/2402.12654).

An encoder of speech with CTC heads for recognition, translation and identification of languages. Prompt
tokens before the frames (`FeatureSource.words`: a language, a task) choose among these. Without prompt and
translations it is the self-conditioned CTC of Nozaki and Komatsu 2021 (https://arxiv.org/abs/2104.02724).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from nartk.architectures import register_architecture
from nartk.architectures.decoders import Decoder
from nartk.architectures.encoders import CtcHead, SpeechEncoder, layer_numbers
from nartk.architectures.parts import Group, Linear, Numbered, Part
from nartk.architectures.settings import TINY, setting
from nartk.errors import UsageError
from nartk.protocols.passes import FeatureSource, Source
from nartk.vocab import MASK

_SELF_CONDITIONED = {"self_conditioning": True}


@register_architecture(
    "owsm_ctc",
    criterions=("nartk_speech",),
    presets={
        "": {
            **_SELF_CONDITIONED,
            "d_model": 256,
            "encoder_layers": 12,
            "encoder_heads": 4,
            "intermediate_ctc": "3,6,9",
        },
        "_tiny": {
            **{name: TINY[name] for name in ("d_model", "encoder_layers", "encoder_ffn", "encoder_heads")},
            **_SELF_CONDITIONED,
            "intermediate_ctc": "1",
        },
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
    strategy="ctc-greedy",
)
@dataclass(frozen=True)
class OwsmCtcConfig(SpeechEncoder, CtcHead):
    """The shape of an encoder of speech that has CTC heads alone.

    Weights beside those of the encoder: ``encoder_prompt.embedding`` embeds the words in
    front of the frames, and those of the prompt at sinusoidal positions. With a prompt encoder,
    ``encoder_prompt.layers.{i}`` and ``encoder_prompt.norm`` are those of a pre-norm Transformer over the
    prompt, and each layer that reads it has ``cross_norm`` and ``cross_attention`` behind its second
    feed-forward network. Where words have other features than the encoder, ``encoder_prompt.front``
    projects those in front of the frames; keys and values are projections of the prompt as it is.

    Raises:
        UsageError: Same as SpeechEncoder; or there are fewer intermediate CTC than `transcript_ctc`, or no
            such layers, words or heads as a prompt's setting names.
    """

    encoder: ClassVar[str] = "nartk.models.owsm_ctc:OwsmEncoder"
    network: ClassVar[str] = "nartk.models.owsm_ctc:OwsmCtc"
    stored: ClassVar[frozenset[str]] = frozenset(item.name for item in fields(Decoder))

    transcript_ctc: int = setting(
        0, "the first so many intermediate CTC learn the transcript, also of what is to be translated"
    )
    words_in_front: bool = setting(False, "it reads words in front of the frames, as a language and a task")
    prompt_layers: int = setting(0, "layers of the prompt's encoder; 0: it reads no prompt")
    prompt_every: int = setting(3, "so many layers of the encoder, of which the last reads the prompt")
    prompt_readers: str = setting("", "the layers that read the prompt, from 1, in place of `prompt_every`")
    prompt_features: int = setting(0, "features of words beside the frames; 0: d_model")
    prompt_heads: int = setting(0, "attention heads of the prompt's encoder; 0: encoder_heads")
    prompt_ffn: int = setting(0, "inner features of the prompt's feed-forward networks; 0: encoder_ffn")
    prompt_positions: str = setting(
        "sinusoidal",
        "of the prompt; interleaved: a sine and a cosine side by side, as Vaswani et al. 2017",
        choices=("sinusoidal", "interleaved"),
    )
    absent_prompt: int = setting(
        0, "word that is read where there is no prompt; 0: a mask is in front of every prompt"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transcript_ctc > len(self.intermediate_layers):
            raise UsageError(
                f"`transcript_ctc` is {self.transcript_ctc}, of {len(self.intermediate_layers)} CTC",
                fix="name more layers in `intermediate_ctc`",
            )
        if self.prompt_every < 1:
            raise UsageError(f"`prompt_every` is {self.prompt_every}, below 1")
        layer_numbers("prompt_readers", self.prompt_readers, self.encoder_layers)
        if self.absent_prompt and self.absent_prompt >= max(self.tgt_vocab, 1):
            raise UsageError(f"`absent_prompt` is {self.absent_prompt}, of {self.tgt_vocab} words")
        sizes = self._prompt_sizes
        if self.reads_words and sizes["d_model"] % 2:
            raise UsageError(f"`prompt_features` is {sizes['d_model']}, which is not even")
        if self.prompt_layers and sizes["d_model"] % sizes["encoder_heads"]:
            raise UsageError(
                f"`prompt_features` {sizes['d_model']} is no multiple of `prompt_heads` "
                f"{sizes['encoder_heads']}"
            )

    @property
    def target_positions(self) -> int:
        """Positions that the words of the longest source come from."""
        return self.encoded_length(self.max_source_len)

    @property
    def reads_words(self) -> bool:
        """Tells whether it reads words besides frames."""
        return self.words_in_front or self.prompt_layers > 0

    @property
    def prompted_layers(self) -> tuple[int, ...]:
        """The layers that read the prompt, from 0."""
        if not self.prompt_layers:
            return ()
        if self.prompt_readers:
            named = layer_numbers("prompt_readers", self.prompt_readers, self.encoder_layers)
            return tuple(number - 1 for number in named)
        return tuple(range(self.prompt_every - 1, self.encoder_layers, self.prompt_every))

    @property
    def source_positions(self) -> int:
        """Positions of the encoder: of the longest source, with words in front of it."""
        return self.encoded_length(self.max_source_len) + (self.max_target_len if self.reads_words else 0)

    def words_beside(self, index: int, source: Source) -> tuple[Sequence[int], Sequence[int]]:
        assert isinstance(source, FeatureSource)
        if (source.words and not self.words_in_front) or (source.prompt and not self.prompt_layers):
            return super().words_beside(index, source)
        if not self.prompt_layers:
            return source.words, ()
        if self.absent_prompt:
            is_there = source.prompt and self.absent_prompt not in source.prompt
            return source.words, source.prompt if is_there else (self.absent_prompt,)
        return source.words, (MASK, *source.prompt)

    @property
    def source_features(self) -> int:
        """Features of the prompt that layers read."""
        return self.side_features("prompt")

    @property
    def _prompt_sizes(self) -> dict[str, Any]:
        """Sizes of the prompt's encoder, which is a Transformer's."""
        return {
            "d_model": self.side_features("prompt"),
            "encoder_heads": self.prompt_heads if self.prompt_heads else self.encoder_heads,
            "encoder_ffn": self.prompt_ffn if self.prompt_ffn else self.encoder_ffn,
        }

    def prompt_parts(self) -> dict[str, Part]:
        if not self.reads_words:
            return {}
        own, features = replace(self, **self._prompt_sizes, prompt_layers=0), self.side_features("prompt")
        positions, count = self.prompt_positions, self.max_target_len
        prompt: dict[str, Part] = {
            "embedding": own.embedding_part(positions, count, words=self.tgt_vocab),
            "layers": Numbered([own.layer_part("encoder")] * self.prompt_layers),
        }
        if self.prompt_layers:
            prompt["norm"] = own.norm_part()
        if features != self.d_model:
            prompt["front"] = Linear(self.d_model, features, exact=True)
        return {"prompt": Group(prompt, {"features": features})}
