"""Proves kernels on the machine they run on, before anything relies on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def agree(
    name: str,
    ours: Callable[[], Sequence[Tensor]],
    wanted: Callable[[], Sequence[Tensor]],
    bound: float = 1e-8,
) -> bool:
    """Tells whether kernels run, and compute what torch computes; a warning says why where they do not.

    Args:
        name: Subject of the warning, such as ``the Triton kernels of the DAG loss``.
        ours, wanted: Compute a small case, with the kernels and with torch.
        bound: Greatest absolute difference, beside 1e-5 of the value.
    """
    try:
        pairs = zip(ours(), wanted(), strict=True)
        if all(torch.allclose(one, other, atol=bound) for one, other in pairs):
            return True
        reason = "they compute something else than torch"
    except Exception as error:  # whatever a compiler raises: there is another way
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
    warnings.warn(f"{name} do not run here, torch does: {reason}", stacklevel=3)
    return False
