"""Pass scorers whose scores do not tie, for strategies that add scores up or draw from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from nartk import engine
from nartk.models.transformer import Transformer
from nartk.vocab import Vocab
from support.scorers import TransformerReference
from support.scripted_passes import EOS, Table, TablePasses

UNIT = 2**13  # integers of a table in a logit of 1


class RealPasses(TablePasses):
    """A table whose logits, 0 to 8, are no small integers, so that sums hardly ever tie.

    Args:
        copying: What the source's word gains at the output's position; eos loses 4 there before the end.
    """

    def __init__(self, words: int, *, seed: int, copying: float = 0) -> None:
        bonus, patience = int(copying * UNIT), 2**15 if copying else 0
        super().__init__(Table(words, seed=seed, spread=2**16, bonus=bonus, patience=patience))

    def scores(self, sources: Sequence[tuple[int, ...]], paths: Sequence[npt.NDArray[np.int64]]) -> Any:
        return super().scores(sources, paths) / UNIT

    def logits(self, source: Sequence[int], output: Sequence[int]) -> list[float]:
        """Of each word after an output, in plain Python."""
        return [score / UNIT for score in self.table.scores_by_hand(source, [EOS, *output])]

    def log_probs(self, source: Sequence[int], output: Sequence[int]) -> list[float]:
        """Of each word after an output, in plain Python."""
        scores = self.logits(source, output)
        total = math.log(sum(math.exp(score) for score in scores))
        return [score - total for score in scores]


def engine_of(model: Transformer, vocab: Vocab, type: str = "fp32") -> Any:
    """A network on the engine; the test is skipped where it is left out."""
    if not engine.available():
        pytest.skip("the engine is left out")
    from support.scorers import TransformerEngine

    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return TransformerEngine(model.config, arrays, vocab, type=type, threads=1)


def network_of(name: str, model: Transformer, vocab: Vocab, device: torch.device) -> Any:
    """A network on the scorer `engine` or `reference`."""
    return engine_of(model, vocab) if name == "engine" else TransformerReference(model, vocab, device=device)
