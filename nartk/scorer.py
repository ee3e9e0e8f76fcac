"""What decoders ask of models. A decoder sees these protocols and never a model.

B rows, S source positions, K tokens fed at once, V words, N tokens fed in all, T frames or canvas places,
L graph vertices, D features.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nartk.vocab import Vocab

if TYPE_CHECKING:
    from torch import Tensor

State = Any  # a model's own; decoders hand it back as they got it


@dataclass(frozen=True)
class Source:
    """A batch of encoded sentences.

    Attributes:
        tokens: [B,S] int64, each row ends with eos and is padded on the right.
        lengths: [B] int64, eos included.
    """

    tokens: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Frames:
    """What a frame model says of B sources.

    Attributes:
        log_probs: [B,T,V] fp32.
        lengths: [B] int64, frames that count.
    """

    log_probs: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Graph:
    """What a DA-Transformer says of B sources. Edges go from low to high vertices only.

    Attributes:
        hidden: [B,L,D], what `GraphScorer.words` reads.
        links: [B,L,L] fp32 log-probabilities of the next vertex; minus infinity where there is no edge.
        lengths: [B] int64, vertices that count; a path goes from vertex 0 to the last of them.
    """

    hidden: Tensor
    links: Tensor
    lengths: Tensor


class Scorer(Protocol):
    """What all models have."""

    vocab: Vocab  # of the target

    @property
    def device(self) -> Any:
        """The device on which source and tokens are expected."""

    def mode(self, *, exact: bool) -> Any:
        """This scorer in exact mode (a row's results never depend on batch or draft) or in fast mode."""

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        """Requests that may share a batch have equal buckets. Depends on its arguments alone."""


@runtime_checkable
class FrameScorer(Scorer, Protocol):
    """Frames that each say a word or nothing: CTC, Paraformer."""

    blank: int | None  # id of the word that stands for nothing

    def emit(self, source: Source) -> Frames:
        """Reads the source and says all frames at once."""


@runtime_checkable
class GraphScorer(Scorer, Protocol):
    """A graph of vertices with a word each, whose paths are the outputs: DA-Transformer.

    Every output begins with bos, at vertex 0, and ends with eos, at the last vertex.
    """

    def emit(self, source: Source) -> Graph:
        """Reads the source and says all vertices and edges at once."""

    def words(self, hidden: Tensor) -> Tensor:
        """Logits [N,V] of the words at vertices [N,D]: asked for only where they are needed."""


class Filler(Scorer, Protocol):
    """Fills places of a canvas at once."""

    mask: int  # id of an unfilled place

    def read(self, source: Source) -> State:
        """Reads the source."""

    def fill(self, canvas: Tensor, lengths: Tensor, state: State, places: Tensor | None = None) -> Tensor:
        """Logits [B,T,V] of a canvas [B,T] int64 of which lengths [B] places count.

        With `places` [B,T] bool, the logits [N,V] of these alone, row after row.
        """

    def select(self, state: State, rows: Tensor) -> State:
        """The state of rows [N], which may repeat or leave out rows."""

    def join(self, first: State, second: State) -> State:
        """The rows of `first`, then those of `second`."""


@runtime_checkable
class CanvasScorer(Filler, Protocol):
    """Says how long an output is, and fills its canvas: glancing models, mask-predict."""

    def predict_lengths(self, state: State) -> Tensor:
        """[B,N] fp32: log-probability that the output has n tokens, eos included; minus infinity at 0."""


@runtime_checkable
class BlockScorer(Filler, Protocol):
    """Fills the places behind a prefix, and says nothing of lengths: the blockwise drafter."""

    @property
    def block(self) -> int:
        """Places that it has learnt to fill at once."""
