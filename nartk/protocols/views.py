"""Protocol of autoregressive models that give views: scorers of some of their decoder's layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from nartk.errors import StrategyMismatchError, UsageError
from nartk.protocols.passes import PassScorer

# Sublayers of a decoder's layer: attention to the target, or what stands for it; attention to the source; and
# the feed-forward network.
SUBLAYERS = ("self", "cross", "ffn")
Computed: TypeAlias = tuple[frozenset[str], ...]  # of each layer, the sublayers that are computed
_NAME = re.compile(rf"decoder\.(\d+)\.({'|'.join(SUBLAYERS)})")


@runtime_checkable
class GivesViews(Protocol):
    """A `PassScorer` of whose decoder a part can score passes."""

    def view(self, layers: int | None = None, skip: Sequence[str] = ()) -> PassScorer:
        """Makes a scorer of the first layers of the decoder, without some sublayers.

        It shares the weights and the encoded sources: a handle that one of the two gave is the other's too,
        and no source is encoded again. Contexts are its own. The decoder's last norm and the output layer
        are the model's. A sublayer that is left out adds nothing; a norm behind it stays.

        Args:
            layers: Number of layers; None: all.
            skip: Names of sublayers, such as ``decoder.3.self``, of `SUBLAYERS`; layers count from 0.

        Raises:
            UsageError: The decoder has fewer layers, or no such sublayer.
        """


def view_of(scorer: object, layers: int | None = None, skip: Sequence[str] = ()) -> PassScorer:
    """The view of a scorer, if it gives any.

    Raises:
        StrategyMismatchError: It gives none, as models do that do not write word after word.
        UsageError: Same as of `GivesViews.view`.
    """
    if not isinstance(scorer, GivesViews):
        raise StrategyMismatchError(
            f"{type(scorer).__name__} has no decoder that predicts the next word: no view of its layers",
            fix="take an autoregressive model",
        )
    return scorer.view(layers, skip)


def computed_of(layers: int) -> Computed:
    """All sublayers of so many layers."""
    return (frozenset(SUBLAYERS),) * layers


def narrowed(computed: Computed, layers: int | None, skip: Sequence[str]) -> Computed:
    """The sublayers that a view computes of those that are computed.

    Raises:
        UsageError: There are fewer layers, or no such sublayer.
    """
    have = len(computed)
    if layers is not None and not 1 <= layers <= have:
        raise UsageError(
            f"a view takes {layers} layers, the model's decoder has {have}", fix=f"give 1 to {have}"
        )
    found = list(computed[:layers])
    for name in skip:
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) >= len(found):
            raise UsageError(
                f"a view leaves out {name!r}, which is no sublayer of its {len(found)} decoder layers",
                fix=f"name decoder.N.self, decoder.N.cross or decoder.N.ffn, N from 0 to {len(found) - 1}",
            )
        found[int(match[1])] -= {match[2]}
    return tuple(found)
