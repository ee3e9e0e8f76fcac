"""FastSpeech 2: a mel spectrogram of phonemes, all frames at once (Ren et al. 2021).

"FastSpeech 2: Fast and High-Quality End-to-End Text to Speech", https://arxiv.org/abs/2006.04558. The network
is that of fairseq 0.12.2, whose `fastspeech2` gives the same spectrogram of a sentence alone.

It differs from fairseq's in this. A sentence's spectrogram depends on it alone: convolutions see zeros behind
its end, and fairseq's see whatever the padding of a batch became. In use a phoneme has at least one frame and
eos none, where fairseq and DASpeech take what is predicted, down to 0. The second convolution of a
feed-forward network may have a kernel of its own, as in the paper.

Symbols: B rows, N phonemes with eos, T frames, D features of the acoustic part, F bins of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.decoders import AcousticDecoder, MelOutput
from nartk.architectures.fastspeech2 import FastSpeech2Config
from nartk.architectures.parts import Group, Positions
from nartk.architectures.positions import sinusoids
from nartk.architectures.settings import Config
from nartk.errors import PassError
from nartk.models.layers import Attention, Embedding, init_linears, pad_lists
from nartk.models.losses import Losses, TtsTraining
from nartk.models.nar import wide
from nartk.models.parts import AnyNorm, PartModule
from nartk.models.training import Dropout
from nartk.models.transformer import Encoded, Network, SourceEncoder, align_left, name_weights
from nartk.protocols.contexts import check_sources
from nartk.protocols.passes import Source, texts_of


@dataclass(frozen=True)
class SpeechTargets:
    """Speech that training compares with: mel spectrograms, and the prosody of their phonemes.

    Attributes:
        mel: [B,T,F] log-mel frames, as many of each row as its durations sum to.
        durations: [B,N] int64 frames of each phoneme, of eos and of padding 0.
        pitch: [B,N] log(f0 + 1), f0 in Hz and the mean over a phoneme; of eos 0.
        energy: [B,N] log(e + 1), e the mean L2 norm of a phoneme's STFT magnitudes; of eos 0.
    """

    mel: Tensor
    durations: Tensor
    pitch: Tensor
    energy: Tensor

    def rows(self, which: Tensor) -> SpeechTargets:
        """Those of the rows [B] bool."""
        return SpeechTargets(self.mel[which], self.durations[which], self.pitch[which], self.energy[which])

    def trimmed(self, width: int) -> SpeechTargets:
        """Those with so many phonemes; the others are padding."""
        return SpeechTargets(
            self.mel, self.durations[:, :width], self.pitch[:, :width], self.energy[:, :width]
        )


@dataclass(frozen=True)
class Spectrograms:
    """Spectrograms of a batch, and the predicted prosody of the phonemes.

    Attributes:
        mel: [B,T,F], normalised by the statistics of the corpus.
        frames: [B] int64, how many count.
        log_durations: [B,N] log(frames + 1).
        pitch, energy: [B,N], as in `SpeechTargets`.
    """

    mel: Tensor
    frames: Tensor
    log_durations: Tensor
    pitch: Tensor
    energy: Tensor


def convolve(conv: nn.Conv1d, x: Tensor, kept: Tensor) -> Tensor:
    """Convolves rows x [B,N,D], in which what `kept` [B,N] leaves out is 0 -> [B,N,D']."""
    found: Tensor = conv(x.masked_fill(~kept[:, :, None], 0.0).transpose(1, 2)).transpose(1, 2)
    return found


class ConvolvedFeedForward(PartModule):
    """A feed-forward network of two convolutions over positions."""

    up: nn.Conv1d
    down: nn.Conv1d

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,N,D] -> the same shape."""
        return convolve(self.down, F.relu(convolve(self.up, x, kept)), kept)


class FftLayer(PartModule):
    """A feed-forward Transformer block: self-attention and a convolution, a norm behind each."""

    self_attention: Attention
    self_norm: AnyNorm
    ffn: ConvolvedFeedForward
    ffn_norm: AnyNorm

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x [B,N,D] -> the same shape."""
        q, k, v = self.self_attention.split(self.self_attention.qkv(x), 3)
        x = self.self_norm(x + self.self_attention.attend(q, k, v, kept[:, None, None]))
        found: Tensor = self.ffn_norm(x + self.dropout(self.ffn(x, kept)))
        return found


class Predictor(PartModule):
    """Predicts a number for each phoneme: x [B,N,D] -> [B,N]."""

    conv: Sequence[nn.Conv1d]
    norm: Sequence[nn.LayerNorm]
    out: nn.Linear

    def __init__(self, part: Group, config: AcousticDecoder) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.predictor_dropout)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        for conv, norm in zip(self.conv, self.norm, strict=True):
            x = self.dropout(norm(F.relu(convolve(conv, x, kept))))
        found: Tensor = self.out(x).squeeze(2)
        return found


class VarianceAdaptor(PartModule):
    """Predicts prosody, in this order: duration, pitch, and energy of what the pitch was added to."""

    duration: Predictor
    pitch: Predictor
    energy: Predictor
    pitch_embedding: nn.Embedding
    energy_embedding: nn.Embedding

    def forward(
        self, x: Tensor, kept: Tensor, bounds: tuple[Tensor, Tensor], targets: SpeechTargets | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Adds embeddings of pitch and energy, the true ones if there are targets.

        Args:
            bounds: Upper bounds of the bins of pitch and of energy, ascending.

        Returns:
            x [B,N,D] with both; predicted logarithms of durations, pitch and energy, each [B,N].
        """
        log_durations = self.duration(x, kept)
        pitch = self.pitch(x, kept)
        x = x + self.pitch_embedding(bins(pitch if targets is None else targets.pitch, bounds[0]))
        energy = self.energy(x, kept)
        x = x + self.energy_embedding(bins(energy if targets is None else targets.energy, bounds[1]))
        return x, log_durations, pitch, energy


def bins(values: Tensor, bounds: Tensor) -> Tensor:
    """Bins of values: of bounds [K] the first that is no lower, K above the last."""
    return torch.bucketize(values.to(bounds.dtype).contiguous(), bounds)


def durations_of(log_durations: Tensor, kept: Tensor, most: int) -> Tensor:
    """Frames [B,N] by predicted log(frames + 1): the nearest number from 1 to `most`; of eos and padding 0.

    The last position of a row that is `kept` [B,N] is its eos.
    """
    phonemes = torch.arange(kept.shape[1], device=kept.device) < kept.sum(1, keepdim=True) - 1
    return (wide(log_durations).exp() - 1.0).round().clamp(1, most).long() * phonemes


def cut(durations: Tensor, most: int) -> Tensor:
    """Durations [B,N] of which a row's sum to `most` frames, where they would be more."""
    ends = durations.cumsum(1).clamp(max=most)
    return ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))


def regulate(x: Tensor, durations: Tensor) -> tuple[Tensor, Tensor]:
    """Repeats each phoneme for its frames: x [B,N,D], durations [B,N] int64 -> [B,T,D], frames [B].

    T is the most frames of a row, and at least 1. What lies behind a row's frames is not to be read.
    """
    ends = durations.cumsum(1)
    width = max(1, int(ends[:, -1].max()))
    frames = torch.arange(width, device=x.device).expand(len(x), -1).contiguous()
    phonemes = torch.searchsorted(ends, frames, right=True).clamp(max=x.shape[1] - 1)
    return x.gather(1, phonemes[:, :, None].expand(-1, -1, x.shape[2])), ends[:, -1]


class MelModule(PartModule):
    """Computes mel spectrograms, normalised by the statistics of a corpus and at most `most` frames long."""

    statistics: nn.Module

    def __init__(self, part: Group, config: MelOutput, **given: nn.Module) -> None:
        super().__init__(part, config, **given)
        self.most: int = part.settings["most"]
        nn.init.ones_(self._mel_statistics()[1])

    def _mel_statistics(self) -> tuple[Tensor, Tensor]:
        return self.statistics.get_buffer("mel_mean"), self.statistics.get_buffer("mel_deviation")

    def keep_statistics(
        self, mean: Tensor, deviation: Tensor, pitch: tuple[float, float], energy: tuple[float, float]
    ) -> None:
        """Keeps the statistics of a corpus, with which training begins.

        Args:
            mean, deviation: [F] of its frames.
            pitch, energy: Lowest and highest value, for a network that has bins of them.
        """
        for found, value in zip(self._mel_statistics(), (mean, deviation), strict=True):
            found.copy_(value)

    def normalise(self, mel: Tensor) -> Tensor:
        """Frames [...,F] less the corpus's mean, by its deviation."""
        mean, deviation = self._mel_statistics()
        return (mel - mean) / deviation

    def rows(self, mel: Tensor, frames: Tensor) -> list[Tensor]:
        """Log-mel frames [T,F] of each row of normalised ones [B,T,F], of which `frames` [B] count."""
        mean, deviation = self._mel_statistics()
        found = wide(mel) * deviation + mean
        return [row[:count] for row, count in zip(found, frames.tolist(), strict=True)]

    def require_short(self, durations: Tensor) -> None:
        """Raises PassError where durations [B,N] sum to more frames than `max_mel_len`."""
        longest = int(durations.sum(1).max())
        if longest > self.most:
            raise PassError(f"a target of {longest} frames, more than `max_mel_len` {self.most}")


class Acoustic(MelModule):
    """Maps vectors of phonemes to mel spectrograms."""

    encoder_positions: nn.Parameter
    encoder: Sequence[FftLayer]
    variance: VarianceAdaptor
    decoder_positions: nn.Parameter
    decoder: Sequence[FftLayer]
    out: nn.Linear
    table: Tensor  # sinusoids of positions

    def __init__(self, part: Group, config: AcousticDecoder) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)
        positions: Positions = part["positions"]
        table = torch.from_numpy(sinusoids(positions.count, positions.features).copy())
        self.register_buffer("table", table, persistent=False)
        init_linears(self)
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.xavier_uniform_(module.weight, nn.init.calculate_gain("relu"))

    def forward(self, x: Tensor, kept: Tensor, targets: SpeechTargets | None = None) -> Spectrograms:
        """Computes spectrograms of phonemes x [B,N,D] of which `kept` [B,N] counts, eos the last of a row.

        Args:
            targets: The true prosody, which training reads in place of the predicted.

        Without targets a spectrogram ends after `max_mel_len` frames.

        Raises:
            PassError: A target has more frames than that.
        """
        x = self.dropout(x + self.encoder_positions * self.table[: x.shape[1]].to(x.dtype))
        for layer in self.encoder:
            x = layer(x, kept)
        bounds = self.statistics.get_buffer("pitch_bounds"), self.statistics.get_buffer("energy_bounds")
        x, log_durations, pitch, energy = self.variance(x, kept, bounds, targets)
        if targets is None:
            durations = cut(durations_of(log_durations, kept, self.most), self.most)
        else:
            durations = targets.durations
            self.require_short(durations)
        x, frames = regulate(x, durations)
        x = x + self.decoder_positions * self.table[: x.shape[1]].to(x.dtype)
        at = torch.arange(x.shape[1], device=x.device)
        seen = (at < frames[:, None]) | (at == 0)  # attention is to see something in a row of no frames too
        for layer in self.decoder:
            x = layer(x, seen)
        return Spectrograms(self.out(x), frames, log_durations, pitch, energy)

    def keep_statistics(
        self, mean: Tensor, deviation: Tensor, pitch: tuple[float, float], energy: tuple[float, float]
    ) -> None:
        """Keeps the statistics of a corpus; pitch and energy are the ends of the bounds of their bins."""
        super().keep_statistics(mean, deviation, pitch, energy)
        for name, ends in (("pitch_bounds", pitch), ("energy_bounds", energy)):
            bounds = self.statistics.get_buffer(name)
            bounds.copy_(torch.linspace(*ends, len(bounds)))

    def mel(self, x: Tensor, kept: Tensor) -> list[Tensor]:
        """Log-mel frames [T,F] of each row of phonemes x [B,N,D], by the predicted prosody."""
        found = self(x, kept)
        return self.rows(found.mel, found.frames)

    def losses(self, x: Tensor, kept: Tensor, targets: SpeechTargets) -> dict[str, Tensor]:
        """Losses of phonemes x [B,N,D], each a mean over all that counts in the batch, all of weight 1.

        ``mel`` is the L1 distance of the normalised frames, ``duration``, ``pitch`` and ``energy`` the
        squared error of their logarithms; eos counts in the last three. The keys are those of `LOSSES`.
        """
        found = self(x, kept, targets)
        frames = torch.arange(found.mel.shape[1], device=x.device) < found.frames[:, None]
        mel = self.normalise(targets.mel)[:, : frames.shape[1]]
        log_durations = (targets.durations + 1).log()
        pairs = (
            (F.l1_loss, found.mel[frames], mel[frames]),
            (F.mse_loss, found.log_durations[kept], log_durations[kept]),
            (F.mse_loss, found.pitch[kept], targets.pitch[kept]),
            (F.mse_loss, found.energy[kept], targets.energy[kept]),
        )
        each = [loss(wide(ours), truth.to(wide(ours).dtype)) for loss, ours, truth in pairs]
        return dict(zip(LOSSES, each, strict=True))


LOSSES = ("mel", "duration", "pitch", "energy")  # of the acoustic part


class PhonemeEmbedding(SourceEncoder):
    """Vectors of phonemes, which the acoustic part reads without anything between."""

    inputs: ClassVar[tuple[str, ...]] = ("src_tokens",)

    embedding: Embedding
    ctc: nn.Linear | None

    def __init__(self, part: Group, config: FastSpeech2Config) -> None:
        super().__init__(part, config)
        self.pad, self.longest = config.pad, config.max_source_len

    def forward(self, src_tokens: Tensor) -> Encoded:
        """Embeds src_tokens [B,N] with eos, padded on either side."""
        tokens = align_left(src_tokens, self.pad)
        return Encoded(self.embedding.vectors(tokens), tokens.ne(self.pad), tokens)

    def read(self, sources: Sequence[Source]) -> Encoded:
        """Embeds texts."""
        texts = texts_of(sources)
        words = self.embedding.words
        check_sources(texts, longest=self.longest, words=words.num_embeddings)
        tokens, kept = pad_lists(texts, words.weight.device)
        return Encoded(self.embedding.vectors(tokens), kept, tokens)


class SpeakingNetwork(Network):
    """Base of the networks that map phonemes, or letters, to a mel spectrogram.

    Attributes:
        acoustic: The `MelModule` that does.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.adaptor = nn.Identity()  # between the encoder and the acoustic part

    def losses(
        self,
        source: Encoded,
        target: Tensor,
        *,
        training: TtsTraining,
        update: int,
        speech: SpeechTargets,
    ) -> Losses:
        """The sum of the losses of speech, times the number of phonemes; `target` is the source."""
        parts = self.speech_losses(source, speech, training)
        tokens = source.kept.sum()
        total = torch.stack([*parts.values()]).sum() * tokens
        return Losses(total, tokens, {name: value.detach() for name, value in parts.items()})

    def speech_losses(
        self, source: Encoded, speech: SpeechTargets, training: TtsTraining
    ) -> dict[str, Tensor]:
        """The losses of encoded phonemes and their speech by name, each a mean over all that counts."""
        raise NotImplementedError


class FastSpeech2(SpeakingNetwork):
    """Computes all frames at once."""

    config: FastSpeech2Config

    def __init__(self, config: FastSpeech2Config) -> None:
        super().__init__(config)
        self.encoder = PhonemeEmbedding(config.tree["encoder"], config)
        self.acoustic = Acoustic(config.tree["acoustic"], config)
        name_weights(self)

    def speech_losses(
        self, source: Encoded, speech: SpeechTargets, training: TtsTraining
    ) -> dict[str, Tensor]:
        return self.acoustic.losses(source.memory, source.kept, speech)
