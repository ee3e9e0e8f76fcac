"""The extension module that csrc/ compiles to. A broken rule is a `PassError`.

Arrays are C-contiguous; handles are int32.

B sources, N tokens of a pass, n of them scored, K candidates, V words, D features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.protocols.passes import FloatArray, IntArray, Want

sources: str  # the stamp of those that it was compiled from

_Ints = Sequence[int] | IntArray

def isa(name: str = "") -> str:
    """The instruction set that is used, or `name` if this processor has it, else a ValueError."""

def cores() -> int:
    """Cores that this process may use: its affinity mask and its cgroup's quota."""

class Linear:
    """Packed weights."""

    outputs: int
    inputs: int
    weights: npt.NDArray[np.uint8]
    scales: FloatArray | None
    @staticmethod
    def pack(
        weights: FloatArray, bias: FloatArray | None, type: str, scales: FloatArray | None = None
    ) -> Linear:
        """Packs weights [outputs,inputs] as fp32, bf16 or int8; fp32 that fp16 holds lies as fp16.

        Scales [outputs] are those of int8 weights that are whole numbers times them; None: they are chosen.
        """

    @staticmethod
    def packed(
        weights: Any, bias: FloatArray | None, scales: FloatArray | None, outputs: int, inputs: int, type: str
    ) -> Linear:
        """Weights that are packed already, any buffer, which is kept and not copied."""

class Model:
    """Packed weights of a whole model, as `nartk.engine.weights` nests them."""

    def __init__(self, parts: Mapping[str, Any]) -> None: ...
    def view(self, layers: Sequence[tuple[bool, ...]]) -> Model:
        """The same weights with the decoder's first layers, of which each sublayer is computed or not."""

class Scores:
    """What a pass gave: `nartk.protocols.passes.Scores`."""

    best: IntArray
    log_probs: FloatArray
    top: IntArray
    top_log_probs: FloatArray
    margins: FloatArray
    given_log_probs: FloatArray
    drawn: IntArray
    drawn_log_probs: FloatArray
    hidden: FloatArray
    def rows(self, index: _Ints) -> FloatArray: ...

class Engine:
    """Contexts, cells and encoded sources of a model, and passes: see `nartk.protocols`."""

    cells_in_use: int
    memories_in_use: int
    def __init__(self, model: Model, isa: str, threads: int, of: Engine | None = None) -> None:
        """Takes the encoded sources of another engine, `of`, in place of its own."""

    def encode(self, tokens: _Ints, lengths: _Ints) -> IntArray: ...
    def encode_speech(
        self, frames: Sequence[FloatArray], words: Sequence[_Ints], prompts: Sequence[_Ints]
    ) -> IntArray:
        """Encodes sources of frames [T,F] each, with words in front of them and a prompt."""

    def encode_vectors(self, vectors: FloatArray, lengths: _Ints) -> IntArray:
        """Takes sources that another model has encoded: vectors [N,D], those of a source together."""

    def free(self, memories: _Ints) -> None: ...
    def open(self, count: int) -> IntArray: ...
    def fork(self, contexts: _Ints) -> IntArray: ...
    def truncate(self, contexts: _Ints, lengths: _Ints) -> None: ...
    def close(self, contexts: _Ints) -> None: ...
    def commit(self, scores: Any, kept: _Ints) -> None: ...
    def output(self, memory: int) -> FloatArray: ...
    def run(
        self,
        words: IntArray,
        positions: IntArray,
        memories: IntArray,
        contexts: IntArray,
        parents: IntArray,
        want: Want,
    ) -> Scores: ...
    def run_attending(
        self,
        words: IntArray,
        positions: IntArray,
        memories: IntArray,
        contexts: IntArray,
        parents: IntArray,
        want: Want,
        heads: Sequence[tuple[int, int]],
    ) -> tuple[Scores, FloatArray]:
        """Runs a pass over one source; weights [H,N,S] of its tokens' attention to it."""

    def draft(
        self,
        memories: _Ints,
        contexts: _Ints,
        most: _Ints,
        offsets: _Ints,
        tokens: _Ints,
        ends: _Ints,
        least: float,
        least_likely: float,
        words: _Ints,
    ) -> tuple[list[int], list[int], list[float], list[int]]:
        """Drafts chains of B rows, which read tokens [offsets[b], offsets[b + 1]).

        Returns:
            Number of words of each draft, the words and log-probabilities of all, and passes of each row.
        """

    def source_lengths(self, memories: _Ints) -> IntArray: ...
    def fires(self, memories: _Ints) -> IntArray: ...
    def fire_weights(self, memory: int) -> FloatArray: ...
    def read_encoded(self, memories: _Ints, want: Want) -> Scores:
        """Reads what positions of the encoder say to the CTC head."""

    def length_logits(self, memories: _Ints) -> FloatArray: ...
    def graph(self, memories: _Ints, lengths: _Ints, words: _Ints) -> tuple[FloatArray, FloatArray]: ...
    def speak(self, features: FloatArray, lengths: _Ints) -> dict[str, FloatArray]:
        """Spectrograms of vectors [N,D] of phonemes, or of vertices; those of a sentence follow each other.

        Returns:
            ``mel`` [T,F] of all sentences and ``frames`` of each; ``durations`` [N], and as predicted
            ``log_durations``, ``pitch`` and ``energy`` [N].

        Raises:
            PassError: A sentence has no phoneme, or more than there are positions.
        """

    def fill(
        self,
        memories: _Ints,
        lengths: _Ints,
        words: _Ints,
        want: Want,
        fired: FloatArray | None = None,
    ) -> Scores: ...
    def words(
        self,
        features: FloatArray,
        want: Want,
    ) -> Scores: ...

class Vocoder:
    """HiFi-GAN's generator, of nested dictionaries (`nartk.engine.vocoder`)."""

    def __init__(self, generator: Mapping[str, object], isa: str, threads: int) -> None: ...
    def run(self, mel: FloatArray) -> FloatArray:
        """Samples [N] of a spectrogram [T,F]."""
