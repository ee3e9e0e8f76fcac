"""Drafts with a small autoregressive model, which keeps a cache of its own.

Symbols: B rows, K drafted tokens, T output positions, W tokens fed at once, N rows that still draft, V words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.loop import Draft, Drafter
from nartk.errors import StrategyMismatchError, UsageError
from nartk.hypothesis import Request
from nartk.scorer import Seq2SeqScorer, Source

DRAFTER_HELP = "name or folder of the small autoregressive model that drafts"


@dataclass(frozen=True)
class Picked:
    """What a small model says in N rows.

    Attributes:
        tokens: [N] int64.
        sure: [N], False ends a row's draft before its token; None: every token is drafted.
        lprobs: [N,V] fp32, the distribution that each token was taken from, where the acceptance needs it.
    """

    tokens: Tensor
    sure: Tensor | None = None
    lprobs: Tensor | None = None


class Pick(Protocol):
    """Takes a token from what the small model says."""

    def __call__(self, logits: Tensor, requests: Tensor, positions: Tensor) -> Picked:
        """Takes one from each of logits [N,V] at output positions [N] of requests [N] (see loop.Fed)."""


def pick_best(logits: Tensor, requests: Tensor, positions: Tensor) -> Picked:
    """A Pick: the likeliest word, of equals the first."""
    return Picked(logits.float().max(-1).indices)


def small_model(helpers: Mapping[str, Any], strategy: str) -> Seq2SeqScorer:
    """The helper ``drafter``.

    Raises:
        UsageError: There is none.
        StrategyMismatchError: It does not say one word after the other.
    """
    if "drafter" not in helpers:
        raise UsageError(
            f"strategy {strategy!r} drafts with a second model, and --drafter names none",
            fix="name a small autoregressive model with --drafter",
        )
    scorer = helpers["drafter"]
    if not isinstance(scorer, Seq2SeqScorer):
        raise StrategyMismatchError(
            "--drafter needs a Seq2SeqScorer, the model it names is none",
            fix="name an autoregressive model, or draft with this one by --strategy gad",
        )
    return scorer


@dataclass(frozen=True)
class SmallModelState:
    """B rows that are drafted for.

    Attributes:
        inner: The scorer's own.
        fed: [B] int64, tokens in it, bos included.
        requests: [B] int64, the index of each row's Request.
    """

    inner: Any
    fed: Tensor
    requests: Tensor


@dataclass(frozen=True)
class SmallModel(Drafter):
    """Goes on from the output with a small model, up to eos, a token it is not sure of, or `longest` tokens.

    What was accepted of the last draft is not read again: the cache is truncated to it, and only the tokens
    behind are fed. Rows that draft no more are not fed, and the host waits once for each step.

    Args:
        scorer: Its words are the verifier's.
        longest: Most tokens of a draft.
        with_lprobs: Whether `pick` gives distributions.
    """

    scorer: Seq2SeqScorer
    longest: int
    pick: Pick
    with_lprobs: bool = False

    def start(self, source: Source, requests: Sequence[Request]) -> SmallModelState:
        indices = torch.tensor([request.index for request in requests], device=source.lengths.device)
        room = max(request.max_len for request in requests)
        return SmallModelState(self.scorer.encode(source, room), torch.zeros_like(indices), indices)

    def draft(
        self, state: SmallModelState, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, SmallModelState]:
        eos = self.scorer.vocab.eos
        said = F.pad(outputs, (1, 0), value=eos)  # [B,T+1]: fairseq's models begin with eos
        newest = said.gather(1, lengths[:, None]).squeeze(1)
        # Of what was fed, the accepted tokens stand: those before the newest one, which is the verifier's.
        fed = state.fed.minimum(lengths)
        inner = self.scorer.truncate(state.inner, fed)
        drafting = (budget > 0) & ((lengths == 0) | (newest != eos))
        # The newest token; where the whole draft was accepted, also its last, which was not fed.
        feeds = (lengths + 1 - fed) * drafting
        counts = feeds.tolist()
        places = fed[:, None] + torch.arange(max(1, *counts), device=fed.device)
        tokens = said.gather(1, places.clamp(max=said.shape[1] - 1))  # [B,W]
        drafted: list[Tensor] = []
        lprobs = [torch.zeros(len(fed), 0, len(self.scorer.vocab), device=fed.device)]
        sizes = torch.zeros_like(fed)
        for step in range(self.longest):
            if not any(counts):
                break
            logits, inner = self.scorer.verify(tokens, inner, counts)
            fed = fed + feeds
            rows, last = _last_fed(counts, fed.device)
            picked = self.pick(logits[last], state.requests[rows], lengths[rows] + step)
            token = torch.zeros_like(fed).index_copy(0, rows, picked.tokens)
            if picked.sure is not None:
                drafting = drafting & torch.zeros_like(drafting).index_copy(0, rows, picked.sure)
            sizes = sizes + drafting
            drafted.append(token)
            if picked.lprobs is not None:
                spread = lprobs[0].new_zeros(len(fed), picked.lprobs.shape[1])
                lprobs.append(spread.index_copy(0, rows, picked.lprobs)[:, None])
            if step + 1 < self.longest:
                drafting = drafting & (token != eos) & (sizes < budget)
                feeds = drafting.long()
                counts, tokens = feeds.tolist(), token[:, None]
        draft = Draft(
            torch.stack(drafted, 1) if drafted else outputs[:, :0],
            sizes,
            torch.cat(lprobs, 1) if self.with_lprobs else None,
        )
        return draft, SmallModelState(inner, fed, state.requests)

    def pause(self, state: SmallModelState, lengths: Tensor) -> SmallModelState:
        return replace(state, fed=state.fed.minimum(lengths))

    def select(self, state: SmallModelState, rows: Tensor) -> SmallModelState:
        return SmallModelState(self.scorer.select(state.inner, rows), state.fed[rows], state.requests[rows])

    def join(self, first: SmallModelState, second: SmallModelState) -> SmallModelState:
        return SmallModelState(
            self.scorer.join(first.inner, second.inner),
            torch.cat([first.fed, second.fed]),
            torch.cat([first.requests, second.requests]),
        )


def _last_fed(counts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows [N] that were fed `counts` tokens, 0 left out, and where each one's last is among all fed."""
    rows = [row for row, count in enumerate(counts) if count]
    ends = [*accumulate(counts)]
    return (
        torch.tensor(rows, device=device),
        torch.tensor([ends[row] - 1 for row in rows], device=device),
    )
