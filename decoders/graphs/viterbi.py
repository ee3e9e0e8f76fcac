"""The likeliest path for its length (Shao et al. 2022, arXiv:2210.05193).

A path of t tokens has t edges: one to each vertex that has a word, and one to the last, which has eos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nartk.decoders.graphs.paths import OnePath
from nartk.protocols.parallel import PathSearch
from nartk.registry import option


@dataclass(frozen=True, kw_only=True)
class Viterbi(OnePath):
    """Base of both Viterbi decoders.

    The authors' program (https://github.com/thu-coai/DA-Transformer) calls beta `decode_viterbibeta`, and
    looks no farther than paths of 2 L / `decode_upsample_scale` tokens.
    """

    beta: float = option(
        1.0, "log-probabilities are divided by length ** this; more favours long outputs", low=0, high=10
    )

    def wanted(self, limits: Sequence[int]) -> PathSearch:
        return replace(super().wanted(limits), beta=self.beta)

    def penalty(self, tokens: int) -> float:
        divisor: float = tokens**self.beta
        return divisor
