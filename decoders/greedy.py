"""Greedy search: the reference that lossless strategies equal."""

from typing import ClassVar

from nartk.decoders.loop.constrained import BestWords
from nartk.decoders.loop.loop import DraftAndVerify
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.registry import register_decoder


@register_decoder("greedy")
class Greedy(BestWords, DraftAndVerify):
    """Takes the best word, one a pass."""

    promise = Promise(Guarantee.IDENTICAL, "the reference")
    is_greedy: ClassVar[bool] = True
