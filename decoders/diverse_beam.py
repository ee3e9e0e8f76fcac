"""Diverse beam search by fairseq's rules (Vijayakumar et al. 2018, https://arxiv.org/abs/1610.02424)."""

from __future__ import annotations

from nartk.decoders.beam import BeamStrategy
from nartk.decoders.search.interleaved import Interleaved
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.registry import HEAVIEST, option, register_decoder


@register_decoder("diverse-beam")
class DiverseBeam(BeamStrategy):
    """Keeps hypotheses in groups, each of which pays for the words that the groups before have at a place.

    The outputs and scores are those of fairseq 0.12.2's DiverseBeamSearch, where none reaches `max_len`,
    behind which fairseq adds an eos. What it pays stays in a hypothesis' score; `positional_scores` are the
    model's own, where fairseq's hold the price. ``beam`` with groups follows Hugging Face's `generate`
    instead: there a word pays for hypotheses that go on and not for all candidates, each group ends by
    itself, and no hypothesis changes its group.

    With `diversity_penalty` 0 all groups find the same hypotheses; with one group this is ``beam``.
    """

    promise = Promise(
        Guarantee.APPROXIMATE, "the best of k hypotheses in groups that differ; the same in any batch"
    )

    beam_groups: int = option(
        0,
        "groups of hypotheses, each of which pays for the words of the groups before it; 0: as many as "
        "hypotheses",
        low=0,
        most="beam_size",
    )
    diversity_penalty: float = option(
        0.5,
        "what a word costs for each candidate of an earlier group that has it at the same position, nats; "
        "fairseq's --diverse-beam-strength",
        low=0.0,
        high=HEAVIEST,
    )
    early_stopping: str = option(
        "first",
        "the first that end are given back, as in fairseq (first); true, false and never are those of beam",
        choices=("first", "true", "false", "never"),
    )

    def interleaved(self) -> Interleaved | None:
        return Interleaved(self.beam_groups or self.beam_size, self.diversity_penalty)
