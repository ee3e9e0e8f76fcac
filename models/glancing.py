"""Glancing: training shows a model part of the target, the more the worse it is (Qian et al. 2021).

"Glancing Transformer for Non-Autoregressive Neural Machine Translation", https://arxiv.org/abs/2008.07905,
equations 6 and 7. Symbols: B rows, T positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from nartk.errors import UsageError

STRATEGIES = ("number-random", "fixed", "cmlm")
_SCHEDULE = re.compile(r"(?P<start>[\d.]+)(:(?P<end>[\d.]+)@(?P<updates>\d+)(?P<thousands>k?))?")


@dataclass(frozen=True)
class Schedule:
    """A share that goes linearly from `start` to `end` in `updates` steps, and stays there."""

    start: float
    end: float
    updates: int

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Reads ``0.5``, or ``0.5:0.3@300k`` for a share that falls from 0.5 to 0.3 in 300,000 steps.

        Raises:
            UsageError: It is neither, or a share is outside [0, 1].
        """
        found = _SCHEDULE.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            start = float(found["start"])
            end = start if found["end"] is None else float(found["end"])
        except ValueError:
            raise UsageError(
                f"the schedule {text!r} is none", fix="write a share, or START:END@UPDATES, as 0.5:0.3@300k"
            ) from None
        if not (0.0 <= start <= 1.0 and 0.0 <= end <= 1.0):
            raise UsageError(f"the schedule {text!r} leaves [0, 1]")
        updates = int(found["updates"] or 0) * (1000 if found["thousands"] else 1)
        return cls(start, end, updates)

    def at(self, update: int) -> float:
        """The share at a training step."""
        if update >= self.updates:
            return self.end
        return self.start + (self.end - self.start) * update / self.updates


def reveal(wrong: Tensor, kept: Tensor, share: float, strategy: str, *, nearest: bool = False) -> Tensor:
    """Draws the positions [B,T] whose target word is shown.

    Args:
        wrong: [B,T] bool, positions where the first pass was not right.
        kept: [B,T] bool, positions that may be shown.
        share: Share of the wrong positions (number-random), or of all (fixed); cmlm draws its own number,
            evenly between none and all but one (nearest: and all, none and all half as often).
        strategy: One of `STRATEGIES`.
        nearest: Numbers are rounded to the nearest, halves up, as the DA-Transformer's program does; else
            down, as GLAT's.
    """
    positions = kept.sum(1)
    if strategy == "number-random":
        count = _share_of((wrong & kept).sum(1), share, nearest)
    elif strategy == "fixed":
        count = _share_of(positions, share, nearest)
    else:
        count = _share_of(positions, torch.rand(positions.shape, device=kept.device), nearest)
    order = torch.rand(kept.shape, device=kept.device).masked_fill(~kept, 2.0)
    rank = order.argsort(1).argsort(1)
    return rank < count[:, None]


def same_dropout(device: torch.device, *, when: bool) -> AbstractContextManager[None]:
    """The context of a second pass that drops the features which the pass after this call drops.

    So do the papers' programs. Behind it random numbers go on as if it had drawn none.

    Args:
        when: True if there is a pass before it; else the context does nothing.
    """
    if not when:
        return nullcontext()
    devices, module = [] if device.type == "cpu" else [device], torch.get_device_module(device)
    on_host, on_device = torch.get_rng_state(), [module.get_rng_state(each) for each in devices]

    @contextmanager
    def again() -> Iterator[None]:
        with torch.random.fork_rng(devices, device_type=device.type):
            torch.set_rng_state(on_host)
            for each, state in zip(devices, on_device, strict=True):
                module.set_rng_state(state, each)
            yield

    return again()


def is_best(logits: Tensor, words: Tensor) -> Tensor:
    """Tells whether words [...] are the likeliest, or as likely as these, by logits [...,V]."""
    # argmax takes 15 times as long as amax in bf16 on a CPU.
    return logits.gather(-1, words[..., None]).squeeze(-1) == logits.amax(-1)


def _share_of(count: Tensor, share: float | Tensor, nearest: bool) -> Tensor:
    """The share of counts, rounded; 0.29 of 100 is 29, although the float is a little less than 0.29."""
    return (count.double() * share + 0.5 * nearest + 1e-9).long()
