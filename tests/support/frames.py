"""A model of frames: what somebody writes who adds speech, outside nartk, without touching a decoder.

An architecture, its network (a linear layer over frames, and the decoder that there is) and an input
processor that reads numbers from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from nartk.architectures import _DECLARED, register_architecture
from nartk.architectures.decoders import CausalDecoder
from nartk.architectures.parts import Group, Linear, Part
from nartk.architectures.settings import setting
from nartk.checkpoints.saving import save_checkpoint
from nartk.errors import InputFileError, InputTooLongError, PassError, VocabMismatchError
from nartk.files import Folder
from nartk.models.transformer import Encoded, SourceEncoder, Transformer
from nartk.processors import InputProcessor, register_processor
from nartk.protocols.passes import FeatureSource, Source, features_of
from nartk.vocab import SpecialIds, Vocab

FEATURES = 5  # of a frame
WORDS = [f"w{i}" for i in range(9)]
BOS = 0


@dataclass(frozen=True)
class FrameConfig(CausalDecoder):
    encoder: ClassVar[str] = "support.frames:FrameEncoder"
    reads_text: ClassVar[bool] = False
    encoder_layers: ClassVar[int] = 0

    features: int = setting(FEATURES, "numbers of a frame")

    def parts(self) -> dict[str, Part]:
        encoder = Group({"project": Linear(self.d_model, self.features)}, joint="_")
        return {"encoder": encoder, **super().parts()}


@contextmanager
def declared() -> Iterator[None]:
    """Has the architecture declared within; tests of all architectures are not to meet it."""
    register_architecture(
        "frames",
        criterions=(),
        presets={},
        engine=False,
    )(FrameConfig)
    yield
    del _DECLARED["frames"]


class FrameEncoder(SourceEncoder):
    project: nn.Linear

    def __init__(self, config: FrameConfig) -> None:
        super().__init__(config.tree["encoder"], config)
        self.longest = config.max_source_len

    def read(self, sources: Sequence[Source]) -> Encoded:
        frames = features_of(sources, self.project.in_features)
        for each in frames:
            if not 0 < len(each) <= self.longest:
                raise PassError(f"a source has {len(each)} frames, not between 1 and {self.longest}")
        lengths = torch.tensor([len(each) for each in frames])
        padded = nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in frames], batch_first=True)
        return Encoded(self.project(padded), torch.arange(padded.shape[1]) < lengths[:, None])


class FrameReader:
    """Reads a file of numbers, a frame a line, whose name the line is."""

    vocab = None

    def __init__(self, folder: Path, shift: float) -> None:
        self.folder, self.shift = folder, shift

    def read(self, line: str, *, longest: int, truncate: bool = False) -> FeatureSource:
        try:
            frames = np.loadtxt(self.folder / line, np.float32, ndmin=2)
        except OSError as error:
            raise InputFileError("no such file", where=line) from error
        if len(frames) > longest and not truncate:
            raise InputTooLongError(f"{len(frames)} frames > {longest}", fix="cut the recording")
        return FeatureSource(frames[:longest], self.shift)

    def require_equal(self, other: InputProcessor, mine: str, theirs: str) -> None:
        if not isinstance(other, FrameReader) or other.shift != self.shift:
            raise VocabMismatchError(f"{mine} and {theirs} read other frames", fix="use models of one kind")


@register_processor("input", "frames")
def load_reader(folder: Folder, settings: Mapping[str, Any], specials: SpecialIds) -> FrameReader:
    return FrameReader(folder.path.parent, settings["shift"])


def frame_model(folder: Path, *, seed: int, d_model: int, layers: int) -> Transformer:
    """Writes a random model whose outputs begin after bos; its network."""
    vocab = Vocab.from_words(WORDS)
    config = FrameConfig(
        tgt_vocab=len(vocab), d_model=d_model, decoder_layers=layers, decoder_ffn=32,
        decoder_heads=2, max_source_len=20, max_target_len=24, share_embeddings="decoder",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = Transformer(config).eval().requires_grad_(False)
        for weight in network.parameters():
            if weight.dim() == 2:
                weight.mul_(3.0)
    save_checkpoint(
        folder,
        architecture="frames",
        settings=asdict(config),
        tensors=network.state_dict(),
        source_vocab=None,
        target_vocab=vocab,
        card="",
        start_token=BOS,
        input={"name": "frames", "shift": 10.0},
    )
    return network
