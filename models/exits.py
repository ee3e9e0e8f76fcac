"""Training of a decoder whose first layers predict words, too, so that they can draft for it (LayerSkip,
Elhoushi et al. 2024, arXiv:2404.16710).

The loss of an exit weighs as much as the sum of the layers' numbers up to its own, which count from 1, as in
the authors' early-exit loss in torchtune. Different: the user names the exits, each of which is trained at
every step, and no layers are dropped.

Symbols: B rows, T target positions, V words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from nartk.errors import UsageError


def read_exits(text: str) -> tuple[int, ...]:
    """Numbers of layers between commas, ascending; none where there is no text.

    Raises:
        UsageError: They are no numbers from 1 on, or do not ascend.
    """
    if not text:
        return ()
    parts = text.split(",")
    found = tuple(int(each) for each in parts if each.isdecimal())
    if len(found) != len(parts) or found[0] < 1 or list(found) != sorted({*found}):
        raise UsageError(
            f"the exits are {text!r}, no ascending numbers of layers from 1 on", fix="write them as 1,2"
        )
    return found


def exit_weights(exits: Sequence[int], layers: int, scale: float) -> list[float]:
    """Shares of the exits' losses and, at the end, of the last layer's, whose sum is 1.

    A layer k weighs 1 + ... + k, an exit `scale` times that.

    Args:
        layers: Number of the decoder's layers.

    Raises:
        UsageError: An exit is the last layer, or behind it.
    """
    if exits and exits[-1] >= layers:
        raise UsageError(
            f"there is an exit behind layer {exits[-1]}, the decoder has {layers}",
            fix=f"name layers below {layers}, or leave the exits out",
        )
    weights = [*(scale * k * (k + 1) / 2 for k in exits), layers * (layers + 1) / 2]
    return [each / sum(weights) for each in weights]


@contextmanager
def watched(layers: Sequence[nn.Module], exits: Sequence[int]) -> Iterator[list[Tensor]]:
    """Collects the outputs [B,T,d_model] of the layers before exits while a network runs once."""
    found: list[Tensor] = []

    def keep(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        found.append(output)

    with ExitStack() as stack:
        for each in exits:
            stack.callback(layers[each - 1].register_forward_hook(keep).remove)
        yield found
