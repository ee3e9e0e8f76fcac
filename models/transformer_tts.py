"""Transformer TTS: a mel spectrogram of phonemes, a few frames a step (Li et al. 2019).

"Neural Speech Synthesis with Transformer Network", https://arxiv.org/abs/1809.08895. Each step of the
decoder reads the frames of the step before through a prenet, gives the next ones, and tells whether they are
the last. It is what FastSpeech 2 is compared with.

It differs from fairseq 0.12.2's `tts_transformer` in this. The encoder is a Transformer's, without
convolutions before it; positions have no learned scale, and there is no postnet, so that frames have one loss
of each kind. The prenet drops features in training alone, so that a spectrogram depends on its sentence and
on nothing else. A last step that an utterance does not fill has its last frame again; fairseq leaves those
frames out. There is no loss of attention.

Symbols: B rows, N phonemes with eos, U steps of r frames, T frames, D features, F bins of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.parts import Group
from nartk.architectures.transformer_tts import TransformerTtsConfig
from nartk.models.fastspeech2 import MelModule, SpeakingNetwork, SpeechTargets
from nartk.models.layers import Attention, DecoderLayer, Embedding, init_linears
from nartk.models.losses import TtsTraining
from nartk.models.nar import wide
from nartk.models.parts import AnyNorm, PartModule
from nartk.models.training import Dropout
from nartk.models.transformer import Encoded, TextEncoderModule, name_weights


class Prenet(PartModule):
    """Maps the frames of a step to a vector: layers with ReLU and dropout, and a projection."""

    layers: Sequence[nn.Linear]
    out: nn.Linear

    def __init__(self, part: Group, config: TransformerTtsConfig) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.prenet_dropout)

    def forward(self, frames: Tensor) -> Tensor:
        """frames [...,r*F] -> [...,D]."""
        for layer in self.layers:
            frames = self.dropout(F.relu(layer(frames)))
        out: Tensor = self.out(frames)
        return out


class _Grown:
    """Keys and values [B,H,T,D] of the steps so far. See layers.Cache."""

    keys: Tensor | None = None
    values: Tensor

    def attend(self, attention: Attention, qkv: Tensor) -> Tensor:
        q, k, v = attention.split(qkv, 3)
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        self.keys, self.values = k, v
        return attention.attend(q, k, v, None)


class StepDecoder(MelModule):
    """Maps encoded phonemes to a mel spectrogram, step by step."""

    embedding: Embedding  # of positions alone
    layers: Sequence[DecoderLayer]
    norm: AnyNorm | None
    prenet: Prenet
    out: nn.Linear

    def __init__(self, part: Group, config: TransformerTtsConfig) -> None:
        super().__init__(part, config, embedding=Embedding(part["embedding"], config))
        self.frames_per_step, self.most_steps = config.frames_per_step, config.most_steps
        init_linears(self)

    def source_kv(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of phonemes, for each layer: memory [B,N,D] -> two of [B,H,N,D/H]."""
        return [layer.source_kv(memory) for layer in self.layers]

    def forward(
        self,
        previous: Tensor,
        sources: Sequence[tuple[Tensor, Tensor]],
        mask: Tensor | None,
        caches: Sequence[_Grown | None] | None = None,
        *,
        first: int = 0,
    ) -> Tensor:
        """Computes the frames of steps, and the logits of their being the last.

        Args:
            previous: [B,U,r*F], normalised: the frames of the step before each, zeros before the first.
            sources: Keys and values of the phonemes, of which a mask [B,1,1,N] counts.
            caches: Keys and values of the steps before `first`; None: there are none.

        Returns:
            [B,U,r*F+1], the logits last.
        """
        positions = torch.arange(first, first + previous.shape[1], device=previous.device)
        x = self.embedding.add_positions(self.prenet(previous), positions)
        held = [None] * len(self.layers) if caches is None else caches
        for layer, source, cache in zip(self.layers, sources, held, strict=True):
            x = layer(x, source, mask, cache=cache)
        found: Tensor = self.out(x if self.norm is None else self.norm(x))
        return found

    def mel(self, memory: Tensor, kept: Tensor) -> list[Tensor]:
        """Log-mel frames [T,F] of each row of encoded phonemes [B,N,D], of which `kept` [B,N] counts.

        A spectrogram ends with the first step that says so, and after `max_mel_len` frames.
        """
        sources, mask = self.source_kv(memory), kept[:, None, None]
        caches = [_Grown() for _ in self.layers]
        previous = memory.new_zeros(len(memory), 1, self.out.out_features - 1)
        made = []
        counts = torch.full((len(memory),), self.most_steps, device=memory.device)
        for step in range(self.most_steps):
            found = self(previous, sources, mask, caches, first=step)
            previous = found[:, :, :-1]
            made.append(previous)
            counts = torch.where(found[:, 0, -1] > 0, counts.clamp(max=step + 1), counts)
            if int(counts.max()) <= step + 1:
                break
        frames = torch.cat(made, 1).unflatten(2, (self.frames_per_step, -1)).flatten(1, 2)
        return self.rows(frames, (counts * self.frames_per_step).clamp(max=self.most))

    def losses(self, source: Encoded, targets: SpeechTargets, *, stop_weight: float) -> dict[str, Tensor]:
        """Losses of encoded phonemes, each a mean over all that counts in the batch, all of weight 1.

        ``mel`` is the L1 distance of the normalised frames, ``mse`` their squared error, ``stop`` the
        cross-entropy of each step's being the last one, which counts `stop_weight` times there. All steps
        read true frames.

        Raises:
            PassError: A target has more frames than `max_mel_len`.
        """
        self.require_short(targets.durations)
        frames, r = targets.durations.sum(1), self.frames_per_step
        counts = (frames + r - 1).div(r, rounding_mode="floor")
        width = int(counts.max())
        at = torch.minimum(torch.arange(width * r, device=frames.device), frames[:, None] - 1)
        mel = self.normalise(targets.mel)
        mel = mel.gather(1, at[:, :, None].expand(-1, -1, mel.shape[2]))
        mel = mel.unflatten(1, (width, r)).flatten(2)  # [B,U*r,F] -> [B,U,r*F]
        found = wide(self(F.pad(mel, (0, 0, 1, -1)), self.source_kv(source.memory), source.mask))
        counted = torch.arange(width, device=frames.device) < counts[:, None]
        last = torch.arange(1, width + 1, device=frames.device) == counts[:, None]
        made, mel = found[:, :, :-1][counted], mel[counted].to(found.dtype)
        stop = F.binary_cross_entropy_with_logits(
            found[:, :, -1][counted],
            last[counted].to(found.dtype),
            pos_weight=found.new_tensor(stop_weight),
        )
        return {"mel": F.l1_loss(made, mel), "mse": F.mse_loss(made, mel), "stop": stop}


class TransformerTts(SpeakingNetwork):
    """Computes frames step by step."""

    config: TransformerTtsConfig

    def __init__(self, config: TransformerTtsConfig) -> None:
        super().__init__(config)
        encoder, decoder = config.tree["encoder"], config.tree["decoder"]
        self.encoder = TextEncoderModule(config, Embedding(encoder["embedding"], config))
        init_linears(self.encoder)
        self.decoder = StepDecoder(decoder, config)
        name_weights(self)

    @property
    def acoustic(self) -> StepDecoder:
        """The part that makes spectrograms."""
        return self.decoder

    def speech_losses(
        self, source: Encoded, speech: SpeechTargets, training: TtsTraining
    ) -> dict[str, Tensor]:
        return self.decoder.losses(source, speech, stop_weight=training.stop_weight)
