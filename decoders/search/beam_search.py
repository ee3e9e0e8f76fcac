"""Beam search over passes: draft, run, choose, commit.

A hypothesis is a context. A pass scores the last token of every hypothesis of all sentences, and what is
drafted after it; as long as all survivors were drafted, the next words are chosen without another pass.
With groups this is diverse beam search (Vijayakumar et al. 2018, https://arxiv.org/abs/1610.02424, algorithm
1), ended and ranked as `generate` of transformers 4.46 has it, the last that was compared.
Symbols: B sentences, k hypotheses of a group, C candidates after each, N tokens of a pass, n of them scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nartk.decoders.loop.drafter import verifiable
from nartk.decoders.loop.packing import Packed, pack
from nartk.decoders.loop.prompting import Prompt
from nartk.decoders.loop.rows import RowRun
from nartk.decoders.search.beam_constraints import BeamConstraints
from nartk.decoders.search.beam_drafts import BeamDrafter
from nartk.decoders.search.beam_rows import Beam, BeamGroup, BeamRow, Candidates, Ranking
from nartk.decoders.search.fusion import Fusion
from nartk.decoders.search.interleaved import Interleaved
from nartk.protocols.hypothesis import Hypothesis, Request, Result
from nartk.protocols.passes import ROOT, FloatArray, IntArray, PassScorer, Scores, Want
from nartk.protocols.runs import ACCEPT, DRAFT, ENCODE, VERIFY, Batching


class Scored(NamedTuple):
    """Words that may follow the hypotheses of B groups, all [B,k,C].

    Attributes:
        words, log_probs: C words after each hypothesis, and their log-probabilities.
        added: Scores of them that these leave out, nats; None: there are none.
        totals: `Beam.total` of the outputs with them.
    """

    words: IntArray
    log_probs: npt.NDArray[np.floating]
    added: FloatArray | None
    totals: npt.NDArray[np.float64]


class BeamSearch(RowRun[BeamRow]):
    """Implements `nartk.protocols.runs.Run`: a row of the batch is a request, with several hypotheses.

    Args:
        drafter: Proposes continuations of hypotheses, or None.
        ranking: Number of hypotheses of a group, and the rule that tells when it is done.
        nbest: Hypotheses given back.
        fusion: Adds scores to the model's; None: nothing.
        groups: Groups of hypotheses of a sentence, each with k.
        interleaved: Chooses the continuations of one group's hypotheses in groups of its own, or None.
        candidates: Words after each hypothesis that are read, at least.
    """

    def __init__(
        self,
        scorer: PassScorer,
        constraints: BeamConstraints,
        ranking: Ranking,
        batching: Batching,
        *,
        nbest: int,
        drafter: BeamDrafter | None = None,
        fusion: Fusion | None = None,
        groups: int = 1,
        interleaved: Interleaved | None = None,
        candidates: int = 0,
    ) -> None:
        super().__init__(scorer, batching)
        self.constraints, self.drafter, self.ranking, self.nbest = constraints, drafter, ranking, nbest
        self.words, self.k, self.fusion, self.groups = len(scorer.vocab), ranking.k, fusion, groups
        # More than k of one hypothesis cannot go on, the others that count end, and those that earlier groups
        # have taken may fall behind others.
        # Of candidates that pay among themselves all have to be known.
        self.most = (1 + len(ranking.ends)) * self.k
        self.interleaved = interleaved
        least = groups * self.k + len(ranking.ends) if interleaved is None else self.most
        self.wanted = Want(top=min(max(least, candidates), self.words))

    def admit(self, request: Request) -> None:
        super().admit(request)
        self.constraints = self.constraints.including(request)

    def _result(self, row: BeamRow, *, early: bool) -> Result:
        return row.result(
            perf_counter(), nbest=row.request.nbest or self.nbest, phases=self.clock.take(), early=early
        )

    def _so_far(self, row: BeamRow) -> Hypothesis:
        """The best hypothesis that goes on; another one may be the best in the end."""
        best = row.live[0]
        count = len(best.log_probs)  # of a forced prefix that was not scored yet there are none
        return Hypothesis(tuple(best.tokens[:count]), best.total, tuple(best.log_probs))

    def _row(self, request: Request, prompt: Prompt, memory: int, context: int, now: float) -> BeamRow:
        first = Beam(request, prompt.tokens, memory=memory, context=context)
        self.constraints.begin(first)
        if self.drafter is not None:
            first.state = self.drafter.start(request)
        groups: list[BeamGroup] = []
        for _ in range(self.groups):
            groups.append(BeamGroup(request, (*groups,), [first]))
        chosen_at = [0] * first.pending
        return BeamRow(request, memory, now, groups, [first], [context], prompt, chosen_at=chosen_at)

    def _step(self, rows: list[BeamRow]) -> None:
        if self.fusion is not None and (new := [row for row in rows if row.groups[0].states is None]):
            self.fusion.begin(new)
            self.clock.lap(ENCODE)
        self._draft(rows)
        self.clock.lap(DRAFT)
        beams = [beam for row in rows for beam in row.live]
        packed = pack(beams)
        want = self.constraints.want(replace(self.wanted, only=packed.only), beams)
        self.clock.lap(ACCEPT)
        scores = self.scorer.run(packed.work, want)
        self.clock.lap(VERIFY)
        left = self.constraints.left(scores, want, beams)
        for row in rows:
            first = row.live[0]
            if first.pending:
                first.log_probs = self.constraints.known(first, left)
                if self.fusion is not None:
                    self.fusion.read_known(row)
                first.total = sum(first.log_probs) + first.added
        nodes = Nodes(packed, beams)
        self._choose(rows, nodes, *self.constraints.candidates(left, beams))
        self._commit(rows, nodes, scores)
        self.clock.lap(ACCEPT)

    def _draft(self, rows: list[BeamRow]) -> None:
        """Lets drafts follow the hypotheses, as many levels as leave room for one token more."""
        for row in rows:
            row.passes += 1
        if self.drafter is None:
            return
        for row in rows:
            budget = row.request.max_len - len(row.chosen_at) - 1
            for beam in row.live:
                if beam.closing >= 0:
                    continue
                beam.draft = verifiable(self.drafter.draft(beam), self.words, budget)
                row.drafted += len(beam.draft.tokens)

    def _choose(self, rows: list[BeamRow], nodes: Nodes, top: IntArray, log_probs: FloatArray) -> None:
        """Extends the hypotheses by a word, and by more as long as all survivors were drafted.

        Args:
            top, log_probs: [n,C], the best words after each scored token.
        """
        while rows:
            if self.drafter is not None:
                for row in rows:
                    for beam in row.live:
                        self.drafter.observe(beam, top[beam.node])
            for row in rows:
                for group in row.groups:
                    if group.ended:  # before this word
                        group.live = []
            for number in range(self.groups):
                groups = [row.groups[number] for row in rows if not row.groups[number].ended]
                for group, found in zip(groups, self._candidates(groups, top, log_probs), strict=True):
                    group.extend(found, self.ranking)
            for row in rows:
                row.gather()
            rows = [row for row in rows if not row.ended and nodes.follow(row.live)]
            for row in rows:
                row.accepted += len(row.live)

    def _candidates(
        self, groups: Sequence[BeamGroup], top: IntArray, log_probs: FloatArray
    ) -> Iterator[Candidates]:
        """The best continuations of each group [B]: k, and as many more as may end."""
        words, each, added, sums = self._scored(groups, top, log_probs)
        count, k, width = words.shape
        if self.interleaved is not None:
            rest = np.zeros(words.shape) if added is None else added
            parts = zip(words, each, rest, sums, strict=True)
            return (
                self.interleaved.candidates(group.live, *part, self.most)
                for group, part in zip(groups, parts, strict=True)
            )
        sums = sums.reshape(count, k * width)
        best = np.argsort(-sums, axis=1, kind="stable")[:, : self.most]  # of equal ones the first
        at = best + np.arange(0, sums.size, k * width)[:, None]
        rest = np.zeros(at.shape) if added is None else added.ravel()[at]
        columns = sums.ravel()[at], best // width, words.ravel()[at], each.ravel()[at], rest
        return map(Candidates._make, zip(*(column.tolist() for column in columns), strict=True))

    def _scored(self, groups: Sequence[BeamGroup], top: IntArray, log_probs: FloatArray) -> Scored:
        """Words that may follow the hypotheses of groups [B]; minus infinity is where there is none."""
        k, count = self.k, len(groups)
        nodes = np.zeros((count, k), np.int64)
        totals = np.full((count, k), -np.inf)
        for i, group in enumerate(groups):
            nodes[i, : len(group.live)] = [beam.node for beam in group.live]
            totals[i, : len(group.live)] = [beam.total for beam in group.live]
        words, each, added = top[nodes], log_probs[nodes], None  # [B,k,C]
        if self.fusion is not None:
            words, each, added = self.fusion.added_to(groups, words, each)
        sums = (each if added is None else each + added) + totals[:, :, None]
        return Scored(words, each, added, sums)

    def _commit(self, rows: list[BeamRow], nodes: Nodes, scores: Scores) -> None:
        """Keeps the cells that the hypotheses of each sentence stand on, in a context each.

        The first hypothesis that comes from a context takes it over, the others fork it. What a fork does not
        share with the first is scored once more in the next pass.
        """
        kept: list[int] = []
        forked: list[Beam] = []
        dropped: list[int] = []
        for row in rows:
            if row.ended:
                continue
            paths: dict[int, list[int]] = {}
            for beam in row.live:
                path, first = nodes.path(beam.node), paths.get(beam.context)
                if first is None:
                    paths[beam.context] = path
                    kept += path
                    beam.cells += len(path)
                else:
                    forked.append(beam)
                    beam.cells += sum(a == b for a, b in zip(path, first, strict=False))
            dropped += [context for context in row.contexts if context not in paths]
            row.contexts = [*paths]
        self.scorer.commit(scores, kept)
        if forked:
            contexts = self.scorer.fork([beam.context for beam in forked]).tolist()
            for beam, context in zip(forked, contexts, strict=True):
                beam.context = context
            self.scorer.truncate(contexts, [beam.cells for beam in forked])
            for row in rows:
                row.contexts = row.contexts if row.ended else [beam.context for beam in row.live]
        if dropped:
            self.scorer.close(dropped)


class Nodes:
    """The scored tokens of a pass, and which of them a word after another leads to."""

    def __init__(self, packed: Packed, beams: Sequence[Beam]) -> None:
        self._parents = packed.parents
        self._scored = range(len(packed.parents)) if packed.only is None else packed.only.tolist()
        self._children: dict[tuple[int, int], int] = {}  # the scored token for a word after a scored token
        for beam in beams:
            draft, node = beam.draft, beam.node
            before = range(ROOT, len(draft.tokens) - 1) if draft.parents is None else draft.parents
            for i, (token, parent) in enumerate(zip(draft.tokens, before, strict=True)):
                self._children.setdefault((node + 1 + parent, token), node + 1 + i)

    def follow(self, beams: Sequence[Beam]) -> bool:
        """Moves hypotheses to the drafted tokens that are their last ones, if all of them were drafted."""
        nodes = [self._children.get((beam.node, beam.tokens[-1]), -1) for beam in beams]
        if -1 in nodes:
            return False
        for beam, node in zip(beams, nodes, strict=True):
            beam.node = node
        return True

    def path(self, node: int) -> list[int]:
        """The tokens of the pass from its context's last cell to a scored token."""
        at, path = self._scored[node], []
        while at != ROOT:
            path.append(at)
            at = self._parents[at]
        return path[::-1]
