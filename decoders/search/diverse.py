"""Diverse beam search: groups of hypotheses, each of which pays for the words of the groups before it.

Vijayakumar et al. 2018, "Diverse Beam Search", https://arxiv.org/abs/1610.02424,
algorithm 1 with its Hamming diversity, ended and ranked as `generate` of transformers 4.46 has it, the last
that was compared. Symbols: n scored tokens of a pass, C candidates after each, k hypotheses of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nartk.decoders.loop.prompting import Prompt
from nartk.decoders.search.beam_constraints import BeamConstraints
from nartk.decoders.search.beam_drafts import BeamDrafter
from nartk.decoders.search.beam_rows import Beam, BeamRow, Ended, Ranking
from nartk.decoders.search.beam_search import BeamSearch, Nodes
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import FloatArray, IntArray, PassScorer, Want
from nartk.protocols.runs import Batching


@dataclass(frozen=True)
class GroupRanking(Ranking):
    """Ranks the hypotheses of a group.

    Attributes:
        best: The highest sum of any continuation: what ends counts too where it is asked what may yet come.
    """

    best: float = 0.0

    def is_done(self, finished: Sequence[Ended], best: float, length: int, longest: int) -> bool:
        return super().is_done(finished, self.best, length, longest)


@dataclass(slots=True, eq=False)
class DiverseRow(BeamRow):
    """A sentence whose hypotheses are in groups; `live` are those of all groups that go on."""

    groups: list[BeamRow] = field(default_factory=list)

    def gather(self) -> None:
        """Takes over what the groups have chosen."""
        self.chosen_at.append(0 if self.live[0].closing >= 0 else self.passes)
        self.live = [beam for group in self.groups if not group.ended for beam in group.live]
        self.ended = not self.live
        self.finished = [each for group in self.groups for each in group.finished]


class DiverseSearch(BeamSearch):
    """Runs requests through a batch of diverse beam searches.

    Args:
        ranking: Ranking of a group.
        groups: Number of groups.
        penalty: Subtracted from a word's log-probability for each hypothesis of the groups before that has
            just taken it, nats.
    """

    def __init__(
        self,
        scorer: PassScorer,
        constraints: BeamConstraints,
        drafter: BeamDrafter | None,
        ranking: Ranking,
        *,
        groups: int,
        penalty: float,
        nbest: int,
        batching: Batching,
    ) -> None:
        super().__init__(scorer, constraints, drafter, ranking, nbest, batching)
        self.groups, self.penalty = groups, penalty
        # So many words of a hypothesis may pay, and fall behind others.
        self.wanted = Want(top=min(groups * self.k + len(ranking.ends), self.words))

    def _row(self, request: Request, prompt: Prompt, memory: int, context: int, now: float) -> BeamRow:
        row = super()._row(request, prompt, memory, context, now)
        parts = [BeamRow(request, memory, now, row.live, [], prompt) for _ in range(self.groups)]
        begun = row.live, row.contexts, prompt
        return DiverseRow(request, memory, now, *begun, chosen_at=row.chosen_at, groups=parts)

    def _choose(self, rows: list[BeamRow], nodes: Nodes, top: IntArray, log_probs: FloatArray) -> None:
        while rows:
            if self.drafter is not None:
                for row in rows:
                    for beam in row.live:
                        self.drafter.observe(beam, top[beam.node])
            sentences = [row.groups for row in rows if isinstance(row, DiverseRow)]
            for groups in sentences:
                for group in groups:
                    if group.ended:  # before this word
                        group.live = []
            for number in range(self.groups):
                self._extend(sentences, number, top, log_probs)
            for row in rows:
                if isinstance(row, DiverseRow):
                    row.gather()
            rows = [row for row in rows if not row.ended and nodes.follow(row.live)]
            for row in rows:
                row.accepted += len(row.live)

    def _extend(
        self, sentences: Sequence[Sequence[BeamRow]], number: int, top: IntArray, log_probs: FloatArray
    ) -> None:
        """Extends the group of this number in each sentence by a word."""
        going = [groups for groups in sentences if not groups[number].ended]
        if not going:
            return
        paid = np.zeros_like(log_probs)
        for groups in going:
            taken = Counter(word for group in groups[:number] for word in self._taken(group))
            for beam in groups[number].live if taken else ():
                self._pay(beam, taken, top, paid)
        chosen = [groups[number] for groups in going]
        for row, found in zip(chosen, self._candidates(chosen, top, log_probs, paid), strict=True):
            row.extend(found, GroupRanking(**vars(self.ranking), best=found.totals[0]))

    def _taken(self, group: BeamRow) -> list[int]:
        """The words that a group has just taken; one that has ended takes padding."""
        return [beam.tokens[-1] for beam in group.live] or [self.scorer.vocab.pad] * self.k

    def _pay(self, beam: Beam, taken: Counter[int], top: IntArray, paid: FloatArray) -> None:
        """Lets words pay after a hypothesis, unless one is forced there."""
        rules, length = self.constraints.rules_of(beam.request), len(beam.tokens)
        if beam.closing >= 0:
            return
        if rules.forced(length, beam.request.max_len, self.constraints.eos) >= 0:
            return
        for at, word in enumerate(top[beam.node].tolist()):
            if word in taken:
                repeats = word in beam.tokens or word == self.constraints.start
                factor = rules.repetition_penalty if repeats else 1.0  # which comes behind the diversity
                paid[beam.node, at] = self.penalty * taken[word] * factor
