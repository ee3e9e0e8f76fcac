"""Some of a model's own decoder layers as its drafter: self-speculative decoding.

The first layers (LayerSkip, Elhoushi et al. 2024, arXiv:2404.16710), or all but some sublayers (Draft &
Verify, Zhang et al. 2023, arXiv:2309.08168; SWIFT, Xia et al. 2024, arXiv:2410.06916). Different: the user
names the layers, and nothing searches for them; and the verifier computes the first layers anew, where
LayerSkip keeps what they gave to the drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nartk.errors import UsageError
from nartk.protocols.passes import IntArray, PassScorer
from nartk.protocols.trimmed import TrimmedWords
from nartk.protocols.views import view_of
from nartk.registry import read_options

_NAME = "self"  # in place of a drafter's name
_OPTIONS = {"layers": int, "skip": str}
_EXAMPLES = "self:layers=1 or self:skip=decoder.1.self,decoder.1.ffn"


@dataclass(frozen=True, eq=False)
class OwnLayers:
    """The layers of a model that draft for it; whoever drafts makes the scorer that the model has of them.

    Args:
        layers: Number of the first layers; None: all.
        skip: Names of sublayers that are left out (`nartk.protocols.views.GivesViews`).
        words: Ids [L] of the only words that are drafted, ascending; None: all.
    """

    layers: int | None = None
    skip: tuple[str, ...] = ()
    words: IntArray | None = None

    @staticmethod
    def are_named(drafter: str) -> bool:
        """Tells whether a drafter is named that is the model itself."""
        return drafter.split(":")[0] == _NAME

    @classmethod
    def kept_whole(cls, parts: Sequence[str]) -> list[str]:
        """Parts of a text between colons, of which those of ``drafter=self:layers=2`` are one again."""
        found: list[str] = []
        for part in parts:
            if found and cls.are_named(found[-1].partition("=")[2]) and part.split("=")[0] in _OPTIONS:
                found[-1] += f":{part}"
            else:
                found.append(part)
        return found

    @classmethod
    def read(cls, drafter: str) -> OwnLayers:
        """Reads ``self:layers=2``, ``self:skip=decoder.3.self,decoder.3.ffn``, or both.

        Raises:
            UsageError: It is not of that form.
        """
        _, *given = drafter.split(":")
        if not given:
            raise UsageError(f"the drafter is {drafter!r}, all layers of the model", fix=f"write {_EXAMPLES}")
        options = read_options(drafter, _NAME, given, _OPTIONS)
        skip = options.get("skip")
        return cls(options.get("layers"), () if skip is None else tuple(str(skip).split(",")))  # type: ignore[arg-type]

    def of(self, scorer: object) -> PassScorer:
        """The scorer of these layers of a model's scorer, whose encoded sources it reads.

        Raises:
            StrategyMismatchError, UsageError: Same as in `nartk.protocols.views.view_of`.
        """
        view = view_of(scorer, self.layers, self.skip)
        return view if self.words is None else TrimmedWords(view, self.words)

    def replica(self, stopped: Callable[[], bool]) -> OwnLayers:
        """Implements `nartk.protocols.passes.Replicable`: they are those of the model's replica."""
        return self
