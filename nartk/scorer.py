"""What decoders ask of models. A decoder sees these protocols and never a model.

B rows, S source positions, K tokens fed at once, V words, N tokens fed in all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from nartk.vocab import Vocab

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


@runtime_checkable
class Seq2SeqScorer(Protocol):
    """Any autoregressive encoder-decoder."""

    vocab: Vocab  # of the target
    source_to_target: Tensor  # [source words] int64: the target id of each source word, or -1

    @property
    def device(self) -> Any:
        """The device on which source and tokens are expected."""

    def mode(self, *, exact: bool) -> Seq2SeqScorer:
        """This scorer in exact mode (a row's results never depend on batch or draft) or in fast mode."""

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        """Requests that may share a batch have equal buckets. Depends on its arguments alone."""

    def encode(self, source: Source, max_len: int) -> State:
        """Reads the source and makes room for `max_len` target tokens a row, bos included."""

    def verify(
        self, tokens: Tensor, state: State, counts: Sequence[int] | None = None
    ) -> tuple[Tensor, State]:
        """Appends tokens [B,K] in one pass.

        Args:
            tokens: [B,K] int64.
            state: What `encode` or the last call returned. Its storage is reused.
            counts: How many of the K tokens are real in each row; None: all of them.

        Returns:
            Logits [B,K,V] and the state that holds the tokens; with `counts`, the logits [N,V] of the
            real tokens alone, row after row.
        """

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Appends one token a row, [B]: logits [B,V] and the new state."""

    def truncate(self, state: State, lengths: Tensor) -> State:
        """Keeps the first lengths [B] target tokens of each row and forgets the rest."""

    def select(self, state: State, rows: Tensor) -> State:
        """The state of rows [N], which may repeat or leave out rows."""

    def join(self, first: State, second: State) -> State:
        """The rows of `first`, then those of `second`."""
