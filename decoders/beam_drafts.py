"""Drafts for beam search: what each hypothesis may go on with, and which of it a pass has answered.

Symbols: B sentences, k hypotheses of each, R = B*k rows, K tokens fed at once, N tokens fed in all, D tokens
of a draft, V words, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.tensor_copy import SourceCopy, spelling
from nartk.decoders.tensor_loop import Draft, Drafter
from nartk.decoders.tree import Fork, chained, feedable, fork
from nartk.hypothesis import Request
from nartk.scorer import Seq2SeqScorer, Source, State, TreeScorer

_REMEMBERED = 2  # successors of a word


class Successors:
    """The words that the verifier ranked best after each word when it was last asked, in any sentence (token
    recycling, Luo et al. 2024, arXiv:2408.08696).

    Args:
        words: V.
        first: The token that every output begins after.

    Attributes:
        table: [V+1,2] int64, best first; -1 where the word was never fed, and in the last row, which is the
            successor of -1.
    """

    def __init__(self, words: int, first: int, device: Any) -> None:
        self.first = first
        self.table = torch.full((words + 1, _REMEMBERED), -1, device=device)
        self._newest = torch.zeros(words + 1, dtype=torch.int64, device=device)

    def learn(self, last: Tensor, best: Tensor) -> None:
        """Remembers the words [M,C], best first, that follow the tokens [M]."""
        # Of a token that occurs several times the first place counts, whatever order the device writes in.
        places = torch.arange(len(last), device=last.device)
        self._newest.scatter_reduce_(0, last, places, "amin", include_self=False)
        found = best[self._newest[last], :_REMEMBERED]
        self.table[last, : found.shape[1]] = found

    def chain(self, last: Tensor, depth: int) -> Tensor:
        """The best after the tokens [R], the best after these, and so on: [R,D]."""
        chain = [last]
        for _ in range(depth):  # each depends on the one before
            chain.append(self.table[chain[-1], 0])
        return torch.stack(chain, 1)[:, 1:]


@dataclass(frozen=True)
class BeamDrafter:
    """Proposes a chain for every hypothesis, and beside its first token another one.

    The chain is the source from the place on that the hypothesis has reached; where there is none, the best
    successors. The other token is the best successor of the hypothesis' last that does not begin the chain.

    Args:
        copy: What copies the source, or None.
        successors: Those that are known, or None.
        max_draft: Longest chain, tokens.
    """

    copy: Drafter | None
    successors: Successors | None
    max_draft: int

    def start(self, source: Source, requests: Sequence[Request], k: int) -> Any:
        """The state of k rows for each source."""
        if self.copy is None:
            return None
        rows = torch.arange(len(requests), device=source.tokens.device).repeat_interleave(k)
        return self.copy.select(self.copy.start(source, requests), rows)

    def draft(
        self, state: Any, outputs: Tensor, lengths: Tensor, last: Tensor, budget: Tensor
    ) -> tuple[Draft, Any]:
        """Proposes after outputs [R,T], of which lengths [R] count, the newest of them `last` [R]."""
        tokens = last.new_full((len(last), self.max_draft), -1)
        if self.copy is not None:
            copied, state = self.copy.draft(state, outputs, lengths, budget)
            inside = torch.arange(copied.tokens.shape[1], device=last.device) < copied.lengths[:, None]
            tokens = torch.where(inside, copied.tokens, -1)  # [R,D]
        most = torch.full_like(lengths, tokens.shape[1])
        if self.successors is None:
            return Draft(tokens, most), state
        chain = self.successors.chain(last, self.max_draft)
        if tokens.shape[1] < self.max_draft:
            tokens = F.pad(tokens, (0, self.max_draft - tokens.shape[1]), value=-1)
        tokens = torch.where(tokens[:, :1] < 0, chain, tokens)
        known = self.successors.table[last]  # [R,2]
        other = torch.where(known[:, 0] == tokens[:, 0], known[:, 1], known[:, 0])
        tokens = torch.cat([tokens, other[:, None]], 1)
        parents = torch.arange(-1, self.max_draft, device=last.device)
        parents = torch.where(parents == self.max_draft - 1, -1, parents).expand_as(tokens)
        return Draft(tokens, torch.full_like(lengths, tokens.shape[1]), parents=parents), state

    def learn(self, last: Tensor, best: Tensor) -> None:
        """Sees the best words [M,C] after tokens [M]."""
        if self.successors is not None:
            self.successors.learn(last, best)

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of rows [N]."""
        return None if self.copy is None else self.copy.select(state, rows)

    def join(self, first: Any, second: Any) -> Any:
        """The rows of `first`, then those of `second`."""
        return None if self.copy is None else self.copy.join(first, second)


def make_beam_drafter(scorer: Seq2SeqScorer, draft: str, max_draft: int) -> BeamDrafter | None:
    """The drafter that is named `none`, `source`, `recycling` or `both`."""
    copy = successors = None
    if draft in ("source", "both"):
        spelt = spelling(scorer.vocab).to(scorer.device)
        copy = SourceCopy(scorer.source_to_target, spelt, max_draft)
    if draft in ("recycling", "both"):
        successors = Successors(len(scorer.vocab), scorer.vocab.eos, scorer.device)
    return None if copy is None and successors is None else BeamDrafter(copy, successors, max_draft)


@dataclass(frozen=True)
class Answers:
    """What one pass has said of R hypotheses and their drafts. A node is a fed token: its row and column.

    Attributes:
        logits: [N,V].
        state: The scorer's, before any node is kept.
        tokens: [R,K], the hypothesis' newest token first.
        parents: [R,K], which column each follows; -1 for the first, -2 for what was not fed.
        begins: [R], where each row's nodes begin among the N.
        tree: Where drafts branch; None: each is a chain.
    """

    logits: Tensor
    state: State
    tokens: Tensor
    parents: Tensor
    begins: Tensor
    tree: Fork | None

    def after(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The logits [M,V] after nodes [M]."""
        return self.logits[self.begins[rows] + columns]

    def child(self, rows: Tensor, columns: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of the words [B,k] after nodes [B,k], and whether each was fed there."""
        found = (self.parents[rows] == columns[..., None]) & (self.tokens[rows] == words[..., None])
        return found.long().argmax(2), found.any(2)

    def keep(self, scorer: Any, rows: Tensor, columns: Tensor, lengths: Tensor) -> State:
        """The scorer's state of hypotheses that end with nodes [M], whose lengths [M] include them."""
        state = self.state
        if not torch.equal(rows, torch.arange(len(self.begins), device=rows.device)):
            state = scorer.select(state, rows)
        if self.tree is None:
            return scorer.truncate(state, lengths)
        return scorer.keep(state, self.tree.ways[rows, columns], lengths)


def ask(
    scorer: Seq2SeqScorer, state: State, last: Tensor, draft: Draft, budget: Tensor
) -> tuple[Answers, Tensor]:
    """One pass over the last token of each hypothesis and its draft; how many tokens were drafted [R].

    Args:
        last: [R] int64.
        budget: [R], levels that are looked at.
    """
    size, device = len(scorer.vocab), last.device
    # Nothing follows eos.
    tokens = torch.where(draft.tokens == scorer.vocab.eos, -1, draft.tokens)
    branching, tree = isinstance(scorer, TreeScorer), None
    draft, shapes = feedable(replace(draft, tokens=tokens), size, budget, branching=branching)
    tokens, lengths, parents = draft.tokens, draft.lengths, chained(draft)
    if shapes is None:
        sizes = lengths[:, None].tolist()
        paths, leaves, depth = 1, 0, 0
    else:
        sizes = torch.cat([lengths[:, None], shapes], 1).tolist()  # the host waits for the device
        paths, depth = (max(each) for each in list(zip(*sizes, strict=True))[1:])
        leaves = sum(max(count, 1) for _, count, _ in sizes)
    counts = [1 + row[0] for row in sizes]
    width = max(counts)
    fed = torch.cat([last[:, None], tokens[:, : width - 1]], 1)
    parents = F.pad(parents[:, : width - 1] + 1, (1, 0), value=-1)
    if paths > 1:
        assert isinstance(scorer, TreeScorer)
        tree = fork(parents, lengths + 1, leaves, depth)
        logits, state = scorer.verify_tree(fed, state, counts, tree.tree)
    else:
        logits, state = scorer.verify(fed, state, counts)
    parents = torch.where(torch.arange(width, device=device) <= lengths[:, None], parents, -2)
    begins = (lengths + 1).cumsum(0) - lengths - 1
    return Answers(logits, state, fed, parents, begins, tree), lengths
