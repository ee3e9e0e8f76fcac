"""Compares a strategy's output with greedy search's, and tells a numerical tie from a bug.

Two ways of computing the same logits differ in their last bits, so two words whose logits nearly agree may
change places. That is a tie; every other difference is a bug, or a deviation where no identity is promised.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nartk.decoders.loop.prompting import prompts_of
from nartk.errors import NartkError
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.hypothesis import DecodeStats, Hypothesis, Request, Result
from nartk.protocols.passes import ROOT, FloatArray, Pass, PassScorer, Source, Want
from nartk.registry import reads_drafts
from nartk.serving.outcomes import summarize

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy
    from nartk.serving.model import Model


SAMPLE = 16  # outputs on which noise is measured


@dataclass(frozen=True)
class Difference:
    """First difference of an output to the reference.

    Attributes:
        line: Index of the sentence.
        position: Position of the first token that differs, or whose log-probability does, from 0.
        expected, found: The tokens there; None where the output had ended before.
        margin: Distance of the worse of the two to the best word's logit, nats; None where an output had
            ended without eos, which no tie explains.
        noise: Largest difference of logits between ways of computing them, in this and other sentences.
        approximate: True if the strategy promises no identity.
    """

    line: int
    position: int
    expected: int | None
    found: int | None
    margin: float | None
    noise: float
    approximate: bool = False

    @property
    def category(self) -> str:
        """``tie``, ``bug`` or ``deviation``; ``scores`` where only the log-probabilities differ."""
        if self.expected == self.found:
            return "scores"
        # Each of the two logits may be off by the noise.
        if self.margin is not None and self.margin <= 2 * self.noise:
            return "tie"
        return "deviation" if self.approximate else "bug"


@dataclass(frozen=True)
class Trial:
    """One way of decoding, compared with the reference.

    Attributes:
        exact: True if the model promises the reference's bits (`Model.is_exact`); else ties are allowed.
        lines: Number of lines compared.
        reordered: True if they were decoded in another order.
    """

    strategy: str
    exact: bool
    batch_size: int
    lines: int
    reordered: bool
    stats: DecodeStats
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """True if the promise was kept: no difference, or none but ties where bits are not promised."""
        return all(each.category == "tie" and not self.exact for each in self.differences)


class Divergences:
    """Explains where outputs leave a reference's: how near to a tie that is, and how much noise there is.

    Args:
        requests: The reference's requests, by line index.
        outputs: The reference's tokens, by line index.
    """

    def __init__(
        self, scorer: PassScorer, requests: Mapping[int, Request], outputs: Mapping[int, Sequence[int]]
    ) -> None:
        self.scorer, self.requests, self.outputs = scorer, requests, outputs

    def explain(
        self, line: int, position: int, found: Sequence[int], *, batch_size: int, approximate: bool = False
    ) -> Difference:
        """Describes the difference of an output that leaves the reference's at `position`."""
        # A pass may go on beyond the position, and so be as wide as the longer output.
        longer = max(self.outputs[line], found, key=len)
        every, noise = self._measure(line, longer, batch_size)
        logits = every[position]
        pair = (self.outputs[line], found)
        words = [tokens[position] if position < len(tokens) else None for tokens in pair]
        known = [word for word in words if word is not None]
        margin = float((logits.max() - logits[known]).max()) if len(known) == 2 else None
        return Difference(line, position, words[0], words[1], margin, max(noise, self._noise), approximate)

    @cached_property
    def _noise(self) -> float:
        """Noise of some whole outputs: in the few logits of one it may not show."""
        some = [*self.outputs][:: -(-len(self.outputs) // SAMPLE)]
        return max(self._measure(line, self.outputs[line], 8)[1] for line in some)

    def _measure(self, line: int, tokens: Sequence[int], batch_size: int) -> tuple[FloatArray, float]:
        others = (other.source for index, other in self.requests.items() if index != line)
        peers = sorted(others, key=len)[-(batch_size - 1) :] if batch_size > 1 else []
        return measure(self.scorer, self.requests[line].source, tokens, peers=peers)


class Verifier:
    """Decodes lines greedily once, and then compares other ways of decoding them.

    Args:
        reference: The greedy strategy, with the options it shares with those it is compared with.
        drafts: Drafts of each line's output, for the strategies that read drafts.
        trace: Keep margins, which `closest` needs.
        tick: Called for each decoded sentence.

    Attributes:
        hypotheses: The reference by line index; lines that cannot be decoded are left out.
        errors: Errors of the others.
        stats: Statistics of the reference.
    """

    def __init__(
        self,
        model: Model,
        lines: Sequence[str],
        reference: Strategy,
        *,
        batch_size: int,
        max_tokens: int | None = None,
        truncate: bool = False,
        drafts: Sequence[Sequence[str]] | None = None,
        trace: bool = False,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.lines, self.reference, self.drafts = model, lines, reference, drafts
        self.max_tokens, self.truncate, self.tick = max_tokens, truncate, tick
        self.errors: dict[int, NartkError] = {}
        self.hypotheses, self.stats = self._decode(reference, batch_size, range(len(lines)), trace=trace)
        requests = {
            line: model.request(line, lines[line], reference, truncate=truncate) for line in self.hypotheses
        }
        outputs = {line: hypothesis.tokens for line, hypothesis in self.hypotheses.items()}
        self._divergences = Divergences(model.passes, requests, outputs)

    def compare(self, strategy: Strategy, *, batch_size: int, order: Sequence[int] | None = None) -> Trial:
        """Decodes with a strategy and compares tokens and, of an exact model, the bits of log-probabilities.

        Args:
            order: Indices of the lines to decode, in the order they are given to the strategy; None: all.
        """
        chosen = range(len(self.lines)) if order is None else order
        found, stats = self._decode(strategy, batch_size, chosen)
        approximate = strategy.promised.guarantee is not Guarantee.IDENTICAL
        differences = []
        for line in sorted(found):
            expected, output = self.hypotheses[line], found[line]
            position = first_difference(expected.tokens, output.tokens)
            if position is None and self.model.is_exact:
                position = _first_score(expected, output)
            if position is not None:
                differences.append(
                    self._divergences.explain(
                        line, position, output.tokens, batch_size=batch_size, approximate=approximate
                    )
                )
        return Trial(
            strategy=strategy.name,
            exact=self.model.is_exact,
            batch_size=batch_size,
            lines=len(found),
            reordered=chosen != range(len(self.lines)),
            stats=stats,
            differences=tuple(differences),
        )

    def compare_guarded(self, strategy: Strategy, *, batch_size: int) -> tuple[list[int], DecodeStats]:
        """The lines whose outputs differ where the model's guard judges them, and what the strategy took.

        Texts and tokens are compared, and of an exact model the bits of log-probabilities.
        """
        guarded, every = replace(self.model, guard=True), range(len(self.lines))
        expected, _ = self._decode(self.reference, batch_size, every, model=guarded)
        found, stats = self._decode(strategy, batch_size, every, model=guarded)
        differing = [
            line
            for line, hypothesis in expected.items()
            if (hypothesis.text, hypothesis.tokens) != (found[line].text, found[line].tokens)
            or (self.model.is_exact and _first_score(hypothesis, found[line]) is not None)
        ]
        return sorted(differing), stats

    def closest(self, count: int) -> list[int]:
        """The lines in which a second word came nearest to the best one, nearest first; needs the trace."""
        margins = {
            line: min(token.margin for token in hypothesis.trace if token.margin is not None)
            for line, hypothesis in self.hypotheses.items()
            if hypothesis.trace
        }
        return sorted(margins, key=margins.__getitem__)[:count]

    def _decode(
        self,
        strategy: Strategy,
        batch_size: int,
        chosen: Sequence[int],
        *,
        model: Model | None = None,
        trace: bool = False,
    ) -> tuple[dict[int, Hypothesis], DecodeStats]:
        found: dict[int, Hypothesis] = {}
        finished: list[Result] = []
        drafts = None
        if self.drafts is not None and reads_drafts(strategy):
            drafts = [self.drafts[line] for line in chosen]
        start = time.perf_counter()
        for index, outcome in (self.model if model is None else model).stream(
            [self.lines[line] for line in chosen],
            strategy,
            batch_size=batch_size,
            max_tokens=self.max_tokens,
            drafts=drafts,
            truncate=self.truncate,
            trace=trace,
        ):
            self.tick()
            if isinstance(outcome, NartkError):
                self.errors[chosen[index]] = outcome
            else:
                found[chosen[index]] = outcome.hypotheses[0]
                finished.append(outcome)
        return found, summarize(finished, time.perf_counter() - start)


def measure(
    scorer: PassScorer, source: Source, tokens: Sequence[int], *, peers: Sequence[Source]
) -> tuple[FloatArray, float]:
    """The logits of an output's tokens and of what follows it, and how much the way of computing moves any.

    The ways: token by token, four at a time or all in one pass, alone or beside rows of other sources. Logits
    are [T+1,V] for T tokens, or [T,V] where the model allows no more than T.
    """
    tokens = tokens[: scorer.limits.target - 1]  # nothing follows the last one that there may be
    alone = _logits(scorer, [source], tokens, width=1)
    layouts = [([source, *peers], 1), ([source], len(tokens) + 1), ([source, *peers], 4)]
    others = [_logits(scorer, sources, tokens, width=width) for sources, width in layouts]
    return alone, max(float(np.abs(other - alone).max()) for other in others)


def _logits(
    scorer: PassScorer, sources: Sequence[Source], tokens: Sequence[int], *, width: int
) -> FloatArray:
    """Logits [len(tokens)+1,V] of the first source's row, when all rows read `tokens`, `width` in a pass."""
    memory, contexts = scorer.encode(sources), scorer.open(len(sources))
    found = []
    try:
        (prompt,) = prompts_of(scorer, memory[:1], [None])
        output = [*prompt.tokens, *tokens]
        for begin in range(0, len(output), width):
            piece = np.array(output[begin : begin + width], np.int32)
            size, rows = len(piece), len(sources)
            every = np.arange(rows * size, dtype=np.int32)
            work = Pass(
                np.tile(piece, rows),
                np.tile(np.arange(begin, begin + size, dtype=np.int32), rows),
                np.repeat(memory, size),
                np.repeat(contexts, size),
                np.where(every % size, every - 1, ROOT).astype(np.int32),
            )
            scores = scorer.run(work, Want())
            found.append(scores.rows(range(size)))  # [width,V]
            scorer.commit(scores, every)
    finally:
        scorer.close(contexts)
        scorer.free(memory)
    return np.concatenate(found)[len(prompt.tokens) - 1 :]


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """The first position where tokens differ."""
    for i, (a, b) in enumerate(zip(expected, found, strict=False)):
        if a != b:
            return i
    return None if len(expected) == len(found) else min(len(expected), len(found))


def _first_score(expected: Hypothesis, found: Hypothesis) -> int | None:
    """The first position where log-probabilities of the same tokens differ in any bit."""
    pair = (expected.positional_scores, found.positional_scores)
    if None in pair:
        return None
    first, second = (np.array(scores, np.float64).view(np.int64) for scores in pair)
    differing = np.flatnonzero(first != second)
    return int(differing[0]) if len(differing) else None


def fuzz_lines(model: Model, lines: Sequence[str], count: int, seed: int) -> list[str]:
    """Random sentences that the model can read: mixed words of `lines` and of the vocabulary."""
    draw = random.Random(seed)
    tokenizer = model.checkpoint.text.tokenizer
    vocab = tokenizer.vocab
    words = [line.split() for line in lines if line.strip()]
    made: list[str] = []
    while len(made) < count:
        if words and draw.random() < 0.5:
            mixed = [*draw.choice(words), *draw.choice(words)]
            line = " ".join(draw.sample(mixed, draw.randint(1, len(mixed))))
        else:
            size = draw.randint(1, min(40, model.max_source_len))
            line = tokenizer.decode([draw.randrange(4, len(vocab)) for _ in range(size)])
        if len(tokenizer.encode(line)) <= model.max_source_len:
            made.append(line)
    return made


def adversarial_lines(model: Model, lines: Sequence[str], reference: Strategy) -> list[str]:
    """Sentences on which drafters stumble: empty, endless, repetitive, unknown, said twice, and outputs."""
    tokenizer = model.checkpoint.text.tokenizer
    vocab = tokenizer.vocab
    draw = random.Random(0)

    def words(count: int) -> list[str]:
        return [tokenizer.decode([draw.randrange(4, len(vocab))]) for _ in range(count)]

    a, b, c = words(3)
    made = ["", " ", a, b, c, "\u2603", "\u2603 \U00010348 \u05d0", f"{a} \u2603 {b}"]
    for count in (2, 3, 8, 40, model.max_source_len):
        made += [
            " ".join([a] * count),
            " ".join([a, b] * (count // 2)),
            " ".join([a, b, c, a, b] * (count // 5)),
        ]
    longest = words(model.max_source_len)
    while len(tokenizer.encode(" ".join(longest))) > model.max_source_len:
        longest.pop()
    made.append(" ".join(longest))
    for line in lines[:8]:
        made += [f"{line} {line}", " ".join(line.split()[::-1]), line + line[-1:] * 20]
    run = model.stream([*made, *lines[:8]], reference, truncate=True)
    made += [result.hypotheses[0].text for _, result in run if isinstance(result, Result)]
    return [line for line in dict.fromkeys(made) if len(tokenizer.encode(line)) <= model.max_source_len]
