"""A checkpoint of fairseq: a pickled dictionary of settings and tensors."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nartk.architectures import architectures
from nartk.checkpoints.pickles import load_pickle, require_tensors
from nartk.errors import CheckpointError, UnsupportedCheckpointError
from nartk.files import JsonObject


@dataclass(frozen=True)
class FairseqCheckpoint:
    """A checkpoint that has been read, and checked to hold settings and tensors.

    Attributes:
        settings: The model's options by name, such as ``encoder_layers``.
        tensors: Weights by fairseq's names.
        state: Everything in the file.
    """

    path: Path
    settings: JsonObject
    tensors: dict[str, Tensor]
    state: JsonObject

    @property
    def updates(self) -> int:
        """Training steps so far; 0 where the file does not say."""
        history = self.state.get("optimizer_history")
        last = history[-1] if isinstance(history, list) and history else None
        found = last.get("num_updates") if isinstance(last, dict) else None
        return found if isinstance(found, int) else 0

    @property
    def validation(self) -> float | None:
        """The validation score at which it was saved, or None if it was saved without validating."""
        extra = self.state.get("extra_state")
        value = extra.get("val_loss") if isinstance(extra, dict) else None
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def higher_is_better(self) -> bool:
        """Tells whether :attr:`validation` is a quality rather than a loss."""
        return bool(self.part("checkpoint").get("maximize_best_checkpoint_metric", False))

    @property
    def name(self) -> str:
        """The name that fairseq has for its architecture."""
        return str(self.settings.get("arch", self.settings.get("_name", "")))

    @property
    def architecture(self) -> str:
        """The name of its architecture, as `nartk.architectures` has it.

        Raises:
            UnsupportedCheckpointError: It is neither one of nartk's nor fairseq's own `transformer`.
        """
        if re.match(r"(transformer|m?bart)(_(?!lm)|$)", self.name):
            return "transformer"
        for each in sorted(architectures(), key=len, reverse=True):  # one's name may begin with another's
            if re.match(rf"nartk_{each}(_|$)", self.name):
                return each
        raise UnsupportedCheckpointError(
            f"architecture {self.name!r}",
            fix=f"nartk_{', nartk_'.join(architectures())} and fairseq's transformer convert",
            where=str(self.path),
        )

    def part(self, name: str) -> JsonObject:
        """One part of fairseq's settings: of the whole training run, or (older files) of its command line."""
        return _part(self.state, name)

    def chosen(self, name: str) -> object:
        """The name of what the training run had for ``bpe`` or ``tokenizer``."""
        cfg = self.state.get("cfg")
        value = (cfg if isinstance(cfg, dict) else _options(self.state.get("args"))).get(name)
        return value if isinstance(value, str) else _options(value).get("_name")


def read_checkpoint(path: Path) -> FairseqCheckpoint:
    """Reads a fairseq ``.pt`` file without running anything in it.

    Raises:
        InputFileError: There is no such file.
        CheckpointError: It is truncated, corrupt, no checkpoint of fairseq, or asks for code to be run.
    """
    where, state = str(path), load_pickle(path)
    values = state if isinstance(state, dict) else {}
    otherwise = "not a checkpoint of fairseq: it holds no weights under 'model'"
    tensors = require_tensors(values.get("model"), otherwise, where)
    settings = _part(values, "model") or _options(values.get("args"))
    if not settings:
        raise CheckpointError("not a checkpoint of fairseq: it holds no settings", where=where)
    return FairseqCheckpoint(path, settings, tensors, values)


def _part(state: JsonObject, name: str) -> JsonObject:
    cfg = state.get("cfg")
    return _options(cfg.get(name)) if isinstance(cfg, dict) else _options(state.get("args"))


def _options(value: object) -> JsonObject:
    if isinstance(value, Namespace):
        return dict(vars(value))
    return dict(value) if isinstance(value, dict) else {}
