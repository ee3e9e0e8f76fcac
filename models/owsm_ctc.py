"""OWSM-CTC: recognition, translation and language identification by CTC alone (Peng et al. 2024).

https://arxiv.org/abs/2402.12654. Words in front of the frames say what is wanted, a language and a task; the
output begins with such words too where the targets of training do, so that a language that was not given
(``<nolang>``) is identified. A prompt, text that came before, is encoded by itself, and every third layer
reads it. Lower intermediate CTC heads may learn the transcript of what upper ones translate.

It differs from ESPnet's program (s2t_ctc) in this, but where a setting says otherwise. A prompt is read
behind one mask word, which stands alone where there is none, as ESPnet's ``<na>`` (`absent_prompt`). Its
positions are the decoders' sinusoids, which ESPnet orders otherwise and counts from 0 (`prompt_positions`).
Where prompt and encoder have other features, ESPnet projects the encoded prompt, and layers make keys and
values of that; here they make them of the prompt itself, which is one projection instead of two. A transcript
that is not there counts for nothing at its layers. See also `nartk.models.speech_encoder`.

Symbols: B rows, T frames, F features of a frame, S positions of the encoder, P words in front, W words of a
prompt, U target tokens, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.owsm_ctc import OwsmCtcConfig
from nartk.errors import PassError
from nartk.models.layers import Embedding, EncoderLayer, init_linears
from nartk.models.losses import Losses, Training, ctc_losses
from nartk.models.parts import PartModule
from nartk.models.speech_encoder import SpeechEncoderModule
from nartk.models.transformer import Encoded, Network, name_weights
from nartk.protocols.passes import Source
from nartk.vocab import MASK


class PromptEncoder(PartModule):
    """Embeds words in front of the frames, and encodes prompts."""

    embedding: Embedding
    layers: Sequence[EncoderLayer]
    norm: nn.LayerNorm | None
    front: nn.Linear | None

    def in_front(self, words: Tensor) -> Tensor:
        """Words [B,P] in front of frames -> [B,P,d_model]."""
        x = self.embedding.vectors(words)
        return x if self.front is None else self.front(x)

    def encode(self, prompt: Tensor, kept: Tensor) -> Tensor:
        """Prompts [B,W], of which `kept` [B,W] counts -> [B,W,features of the prompt]."""
        positions = torch.arange(prompt.shape[1], device=prompt.device).expand_as(prompt)
        x = self.embedding(prompt, positions)
        for layer in self.layers:
            x = layer(x, kept[:, None, None])
        features: Tensor = x if self.norm is None else self.norm(x)
        return features


class OwsmEncoder(SpeechEncoderModule):
    """Encodes words, prompts and frames."""

    inputs: ClassVar[tuple[str, ...]] = ("frames", "lengths", "words", "prompt")
    config: OwsmCtcConfig
    prompt: PromptEncoder | None

    def forward(
        self, frames: Tensor, lengths: Tensor, words: Tensor | None = None, prompt: Tensor | None = None
    ) -> Encoded:
        """Encodes frames [B,T,F], of each row the first lengths [B], at least `least_frames`.

        Args:
            words: [B,P] in front of the frames, and `prompt` [B,W]: both padded on the right; None: there are
                none.
        """
        if self.config.prompt_layers:
            if prompt is None:
                prompt = torch.empty(len(frames), 0, dtype=torch.int64, device=frames.device)
            prompt = self._led(prompt)
        return self._encode(frames, lengths, words, prompt, intermediate=True)

    def read(self, sources: Sequence[Source]) -> Encoded:
        frames, lengths = self.frames_of(sources)
        for i, source in enumerate(sources):
            self._check_words(i, source)
        beside = [self.config.words_beside(i, source) for i, source in enumerate(sources)]
        words, prompts = (self._padded([each[part] for each in beside]) for part in (0, 1))
        return self._encode(frames, lengths, words, prompts, intermediate=False)

    def _check_words(self, index: int, source: Any) -> None:
        config = self.config
        for name, most in (
            ("words", config.max_target_len if config.words_in_front else 0),
            ("prompt", config.max_target_len - 1 if config.prompt_layers else 0),
        ):
            found = getattr(source, name)
            if len(found) > most:
                raise PassError(f"source {index} has {name} of {len(found)} tokens, more than {most}")
            for word in found:
                if not 0 <= word < config.tgt_vocab:
                    raise PassError(
                        f"source {index} holds word {word}, not between 0 and {config.tgt_vocab - 1}"
                    )

    def _padded(self, lists: Sequence[Sequence[int]]) -> Tensor:
        """Words of each row, padded on the right."""
        rows = [torch.tensor(each, dtype=torch.int64, device=self.ctc.weight.device) for each in lists]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.config.pad)

    def _encode(
        self,
        frames: Tensor,
        lengths: Tensor,
        words: Tensor | None,
        prompt: Tensor | None,
        *,
        intermediate: bool,
    ) -> Encoded:
        x, kept = self.subsampled(frames, lengths)
        pad = self.config.pad
        if self.prompt is not None and words is not None and words.shape[1]:
            before = self.prompt.in_front(words).to(x.dtype)
            x, kept = _joined(before, words.ne(pad), x, kept)
        read = None
        if self.prompt is not None and self.config.prompt_layers and prompt is not None:
            read = self.prompt.encode(prompt, prompt.ne(pad)), prompt.ne(pad)
        return self.encode(x, kept, prompt=read, intermediate=intermediate)

    def _led(self, prompt: Tensor) -> Tensor:
        """Prompts [B,W] as they are encoded: behind a mask, or `absent_prompt` in place of none."""
        absent = self.config.absent_prompt
        if not absent:
            return F.pad(prompt, (1, 0), value=MASK)
        if not prompt.shape[1]:
            return F.pad(prompt, (1, 0), value=absent)
        first = prompt[:, :1]
        return torch.cat([first.where(first.ne(self.config.pad), absent), prompt[:, 1:]], 1)


def _joined(one: Tensor, one_kept: Tensor, other: Tensor, other_kept: Tensor) -> tuple[Tensor, Tensor]:
    """Joins the positions of [B,P,D] and [B,S,D] that count, row by row, and returns the joined mask too."""
    both, kept = torch.cat([one, other], 1), torch.cat([one_kept, other_kept], 1)
    order = (~kept).to(torch.int8).argsort(dim=1, stable=True)  # what counts comes first
    return both.gather(1, order[:, :, None].expand_as(both)), kept.gather(1, order)


class OwsmCtc(Network):
    """An encoder whose CTC heads emit what the words in front of its frames ask for."""

    encoder: OwsmEncoder

    def __init__(self, config: OwsmCtcConfig) -> None:
        super().__init__(config)
        self.encoder = OwsmEncoder(config)
        init_linears(self)
        name_weights(self)

    def losses(
        self,
        source: Encoded,
        target: Tensor,
        *,
        training: Training,
        update: int,
        transcript: Tensor | None = None,
    ) -> Losses:
        """CTC of the last layer and of the intermediate ones, weighted by `intermediate_weight`, summed.

        A target that needs more positions than the encoder has counts for nothing; ``dropped`` is how many.

        Args:
            target: [B,U] with eos.
            transcript: [B,U] with eos, what the first `transcript_ctc` intermediate layers learn, where it
                is not the target; a row of padding alone is not known, and counts for nothing there.
        """
        pad, config = self.config.pad, self.config
        own = target, target.ne(pad).sum(1) - 1  # without eos
        targets = [own] * (1 + len(source.intermediate))
        if transcript is not None:
            heard = transcript, transcript.ne(pad).sum(1) - 1
            targets[: config.transcript_ctc] = [heard] * config.transcript_ctc
        losses, fits = ctc_losses(
            self.encoder.ctc(source.memory),
            source.intermediate,
            source.lengths,
            targets,
            weight=training.intermediate_weight,
        )
        tokens = target.ne(pad).sum()
        parts = {"ctc": losses.detach().sum() / tokens, "dropped": (~fits).sum()}
        return Losses(losses.sum(), tokens, parts)
