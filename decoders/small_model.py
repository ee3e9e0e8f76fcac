"""Drafts with a small autoregressive model, which keeps a cache of its own.

Symbols: B rows, K drafted tokens, T output positions, W tokens fed at once, N rows that still draft, V words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.tensor_loop import Draft, Drafter
from nartk.errors import StrategyMismatchError, UsageError
from nartk.hypothesis import Request
from nartk.rows import Packing, steps, told
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
    behind are fed. Rows that draft no more are not fed: the host waits once for each step, and keeps account
    of what each row has been fed.

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
        eos, device = self.scorer.vocab.eos, lengths.device
        said = F.pad(outputs, (1, 0), value=eos)  # [B,T+1]: fairseq's models begin with eos
        newest = said.gather(1, lengths[:, None]).squeeze(1)
        # Of what was fed, the accepted tokens stand: those before the newest one, which is the verifier's.
        fed = state.fed.minimum(lengths)
        inner = self.scorer.truncate(state.inner, fed)
        words, given, total, most = torch.stack([newest, lengths, fed, budget]).tolist()
        # The newest token; where the whole draft was accepted, also its last, which was not fed.
        counts = [
            length + 1 - old if room and (not length or word != eos) else 0
            for word, length, old, room in zip(words, given, total, most, strict=True)
        ]
        places = fed[:, None] + steps(max(1, *counts), device)
        tokens = said.gather(1, places.clamp(max=said.shape[1] - 1))  # [B,W]
        drafted, lprobs, sizes = [outputs[:, :0]], [], [0] * len(counts)
        for step in range(self.longest):
            if not any(counts):
                break
            logits, inner = self.scorer.verify(tokens, inner, counts)
            if max(counts) > 1:
                logits = logits[Packing(counts, device).last]
            rows = Packing([min(count, 1) for count in counts], device)
            picked = self.pick(logits, rows.pack(state.requests), rows.pack(lengths) + step)
            tokens = picked.tokens if picked.sure is None else torch.where(picked.sure, picked.tokens, -1)
            tokens = rows.unpack(tokens)  # [B,1]; -1, which is no word, ends the row's draft
            drafted.append(tokens)
            if picked.lprobs is not None:
                lprobs.append(rows.unpack(picked.lprobs))  # [B,1,V]
            total = [old + count for old, count in zip(total, counts, strict=True)]
            sizes = [size + count for size, count in zip(sizes, rows.counts, strict=True)]
            if step + 1 < self.longest:
                counts = [
                    int(size == step + 1 and size < room and word not in (-1, eos))
                    for size, room, (word,) in zip(sizes, most, tokens.tolist(), strict=True)
                ]
        none = outputs.new_zeros(len(sizes), 0, len(self.scorer.vocab), dtype=torch.float32)
        draft = Draft(
            torch.cat(drafted, 1),
            told(sizes, device),
            torch.cat([none, *lprobs], 1) if self.with_lprobs else None,
        )
        return draft, SmallModelState(inner, told(total, device), state.requests)

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
