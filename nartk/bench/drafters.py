"""Figures of a drafter: accepted tokens by their position in a draft, tokens a pass, and bounds.

Symbols: K drafted tokens, V words; p the verifier's distribution and q the drafter's, tau output tokens a
pass of the verifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nartk.bench.engines import NartkEngine
from nartk.bench.report import markdown
from nartk.bench.specs import Setup, Spec
from nartk.decoders.loop.acceptance import Acceptance, Verdict, Verified
from nartk.decoders.loop.loop import DraftAndVerify, Loop
from nartk.decoders.loop.packing import depth
from nartk.decoders.speculative import RejectionSampling
from nartk.engine.costs import weights_read
from nartk.files import JsonObject
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import Batching, run_through
from nartk.serving.outcomes import summarize

if TYPE_CHECKING:
    import numpy.typing as npt

    from nartk.bench.work import Workload
    from nartk.decoders.loop.rows import Row
    from nartk.protocols.hypothesis import DecodeStats, Request

_BATCH = 32  # sentences; figures are the same in any batch
DRAFTS = (1, 2, 3)  # at a position, of which the bound is given
_COLUMNS = (
    "drafter",
    "type",
    "K",
    "K-th accepted",
    "tokens a pass",
    "drafter's cost",
    "memory-bound x",
)
_BOUND_COLUMNS = ("drafter", "type", "positions", "rejection sampling", *(f"bound of {k}" for k in DRAFTS))
LEGEND = """K: longest draft, tokens. K-th accepted: share of the K-th tokens of drafts that are accepted, if
  those before are. tokens a pass: block efficiency, output tokens a pass of the model with drafts of K.
drafter's cost: weights that a pass of it reads, by those of a pass of the model. memory-bound x: speed
  over greedy search's if reading weights alone took time."""
BOUND_LEGEND = """rejection sampling: share of drafted tokens that it accepts at temperature 1, mean of the
  positions of samples. bound of k: highest share of positions at which any rule outputs one of k independent
  drafts."""


def optimal_acceptance(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64], drafts: int) -> float:
    """The highest probability with which any lossless rule outputs one of so many tokens drawn from q.

    alpha* = min over sets H of words of 1 + p(H) - q(H)^k for k independent draws: the dual of an optimal
    transport (Hu et al. 2025, "Towards Optimal Multi-draft Speculative Decoding", arXiv:2502.18779).
    -q(H)^k is concave in q(H), so that a best H holds the words of smallest p/q. For one draw alpha* is the
    sum of min(p, q), what rejection sampling accepts (Leviathan et al. 2023, arXiv:2211.17192, section 3.2).

    Args:
        p, q: Distributions [V].
        drafts: k, 1 and more.
    """
    ratios = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    order = np.argsort(ratios, kind="stable")
    values = 1 + np.cumsum(p[order]) - np.cumsum(q[order]) ** drafts
    return min(1.0, float(values.min()))


def memory_bound_speedup(tokens: float, cost: float, drafter_passes: float) -> float:
    """Speed over greedy search's if only reading weights took time: tau / (1 + c K).

    Goel et al. 2024 (arXiv:2403.00858) report it as MBSU, and so does FastDraft (Zafrir et al. 2024,
    arXiv:2411.11055). A pass of the verifier reads its weights once, whatever it verifies, and each pass of
    the drafter reads the drafter's. Encoders, which read a source once, do not count.

    Args:
        tokens: tau, output tokens a pass.
        cost: c, weights that a pass of the drafter reads, by those that a pass of the verifier reads.
        drafter_passes: Passes of the drafter for one of the verifier: K where each gives a token, 1 where it
            gives a draft. A model that drafts a whole output at once counts as if it did so for each pass:
            its speed-up is a lower bound.
    """
    return tokens / (1 + cost * drafter_passes)


class DraftCounts:
    """Counts drafted tokens that an acceptance decides on and accepts, by their position in a draft, from 1.

    It decides on none behind a rejected token or behind the output's end.
    """

    def __init__(self, accept: Acceptance) -> None:
        self._accept, self.want = accept, accept.want
        self.tried: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        verdicts = self._accept(rows, verified)
        for row, verdict in zip(rows, verdicts, strict=True):
            count = len(verdict.accepted)
            is_rejected = count < len(verdict.tokens) and count < depth(row.draft)
            self.tried.update(range(1, count + is_rejected + 1))
            self.accepted.update(range(1, count + 1))
        return verdicts


class ComparedDistributions:
    """Compares p and q at each position of a sample; a pass outputs one word, whatever was drafted.

    Attributes:
        shares: Share that rejection sampling accepts, and the bounds of `DRAFTS`, of each position.
    """

    def __init__(self, accept: RejectionSampling) -> None:
        self.want, self._probs = accept.want, accept.accepts.probs
        self.shares: list[list[float]] = []

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        drafted = [row for row in rows if row.draft.logits is not None]
        if drafted:
            ps = self._probs(verified.scores.rows([row.node for row in drafted]))
            qs = self._probs(
                np.stack([row.draft.logits[0] for row in drafted if row.draft.logits is not None])
            )
            self.shares += [
                [float(np.minimum(p, q).sum()), *(optimal_acceptance(p, q, k) for k in DRAFTS)]
                for p, q in zip(ps, qs, strict=True)
            ]
        return [Verdict((), [verified.words[row.node]], [verified.log_probs[row.node]]) for row in rows]


def accepted_tokens(
    strategy: DraftAndVerify, scorer: PassScorer, requests: Sequence[Request]
) -> tuple[DraftCounts, DecodeStats]:
    """Decodes with a strategy and counts which drafted tokens it accepts."""
    run = _begin(strategy, scorer)
    counts = run.accept = DraftCounts(run.accept)
    return counts, _finish(run, requests)


def accepted_shares(
    strategy: DraftAndVerify, scorer: PassScorer, requests: Sequence[Request]
) -> list[list[float]]:
    """Draws a sample of each sentence; the `ComparedDistributions.shares` of all positions with a draft.

    Args:
        strategy: Accepts by rejection sampling, and drafts one token.
    """
    run = _begin(strategy, scorer)
    assert isinstance(run.accept, RejectionSampling)
    compared = run.accept = ComparedDistributions(run.accept)
    _finish(run, requests)
    return compared.shares


def _begin(strategy: DraftAndVerify, scorer: PassScorer) -> Loop:
    """A run whose acceptance may be replaced; each request is one row of it."""
    run = DraftAndVerify.begin(strategy, scorer, Batching(_BATCH))
    assert isinstance(run, Loop)
    return run


def _finish(run: Loop, requests: Sequence[Request]) -> DecodeStats:
    return summarize([result for _, result in run_through(run, requests)], 0.0)


@dataclass(frozen=True)
class DrafterReport:
    """Decodes a job with drafts of each length up to `max_draft`, then once with samples.

    Attributes:
        drafter: Name or folder of the model that drafts.
        max_draft, max_len: Longest draft and output, tokens.
    """

    drafter: str
    setup: Setup
    max_draft: int
    max_len: int

    def figures(self, job: Workload, dtype: str) -> JsonObject:
        """All figures of a type, as they are written to JSON.

        Raises:
            NartkError: The models do not fit each other or the job.
        """
        verifier = NartkEngine(Spec("greedy", "greedy", {}, dtype), self.setup).model
        other = verifier.other(self.drafter)
        gives_tokens = isinstance(other.passes, PassScorer)
        name = "speculative" if gives_tokens else "gad"
        cost = weights_read(other.config)[0] / weights_read(verifier.config)[0]
        lengths: list[JsonObject] = []
        for longest in range(1, self.max_draft + 1):
            engine = self._engine(name, dtype, block_size=longest, adaptive=False)
            counts, stats = accepted_tokens(*_parts(engine), engine.requests(job))
            tokens = stats.tokens / stats.passes
            passes = longest if gives_tokens else 1
            lengths.append(
                {
                    "longest": longest,
                    "tokens_per_pass": tokens,
                    "memory_bound_speedup": memory_bound_speedup(tokens, cost, passes),
                }
            )
        for each in lengths:
            each |= {"tried": counts.tried[each["longest"]], "accepted": counts.accepted[each["longest"]]}
        return {
            "drafter": self.drafter,
            "dtype": dtype,
            "strategy": name,
            "signature": engine.signature,
            "cost": cost,
            "lengths": lengths,
            "sampling": self._sampling(job, dtype) if gives_tokens else None,
        }

    def _sampling(self, job: Workload, dtype: str) -> JsonObject:
        """Shares that are accepted at temperature 1, means over all positions that have room for a draft."""
        engine = self._engine("speculative", dtype, block_size=1, temperature=1.0)
        shares = accepted_shares(*_parts(engine), engine.requests(job))
        means = np.mean(shares, axis=0).tolist() if shares else [None] * (1 + len(DRAFTS))
        return {
            "positions": len(shares),
            "rejection_sampling": means[0],
            "bounds": dict(zip(map(str, DRAFTS), means[1:], strict=True)),
            "signature": engine.signature,
        }

    def _engine(self, name: str, dtype: str, **options: Any) -> NartkEngine:
        options |= {"drafter": self.drafter, "max_len": self.max_len}
        return NartkEngine(Spec(name, name, options, dtype), self.setup)


def _parts(engine: NartkEngine) -> tuple[DraftAndVerify, PassScorer]:
    """The strategy of an engine, and the scorer that it decodes with."""
    strategy = engine.strategy
    assert isinstance(strategy, DraftAndVerify)
    return strategy, engine.model.scorer_for(strategy)


def tables(found: Sequence[JsonObject]) -> str:
    """Both tables in Markdown, that of bounds if a drafter has distributions."""
    rows = [
        (
            each["drafter"],
            each["dtype"],
            str(length["longest"]),
            _share(length["accepted"], length["tried"]),
            f"{length['tokens_per_pass']:.2f}",
            f"{each['cost']:.3f}",
            f"{length['memory_bound_speedup']:.2f}",
        )
        for each in found
        for length in each["lengths"]
    ]
    bounds = [
        (
            each["drafter"],
            each["dtype"],
            str(sampling["positions"]),
            *(_share(share) for share in (sampling["rejection_sampling"], *sampling["bounds"].values())),
        )
        for each in found
        if (sampling := each["sampling"]) is not None
    ]
    return "\n\n".join(
        "\n".join(markdown(*each)) for each in ((_COLUMNS, rows), (_BOUND_COLUMNS, bounds)) if each[1]
    )


def legend(found: Sequence[JsonObject]) -> str:
    """Explains the columns of the tables."""
    return f"{LEGEND}\n{BOUND_LEGEND}" if any(each["sampling"] for each in found) else LEGEND


def _share(count: float | None, of: float = 1) -> str:
    return "-" if count is None or not of else f"{count / of:.3f}"
