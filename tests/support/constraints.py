"""Constraints of greedy search, by the textbook's loop in plain Python."""

from __future__ import annotations

import math
import random

from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.momentum import Momentum
from nartk.protocols.hypothesis import Request
from support.scripted_passes import (
    EOS,
    Table,
)


def constrained_greedy(table: Table, request: Request, rules: Constraints) -> list[int]:
    output: list[int] = []
    while len(output) < request.max_len and (not output or output[-1] not in (EOS, *rules.also_eos)):
        scores: list[float] = [*table.scores_by_hand(request.source, [EOS, *output])]
        for word in {EOS, *output} if rules.repetition_penalty != 1 else ():
            factor = rules.repetition_penalty
            scores[word] = scores[word] / factor if scores[word] > 0 else scores[word] * factor
        for word in range(table.words):
            said = [EOS, *output, word]
            first = len(output) == (1 if rules.forced_bos >= 0 else 0) and word in rules.suppressed_first
            early = word in (EOS, *rules.also_eos) and len(output) < rules.min_len
            bad = any(said[-len(each) :] == list(each) for each in rules.forbidden)
            n = rules.no_repeat_ngram
            recurs = n > 0 and any(said[i : i + n] == said[-n:] for i in range(len(said) - n))
            n = rules.no_source_ngram
            grams = [[*request.source[i : i + n]] for i in range(len(request.source) - n + 1)]
            copies = n > 0 and len(said) >= n and said[-n:] in grams
            if word in rules.suppressed or first or early or bad or recurs or copies:
                scores[word] = -math.inf
        best = scores.index(max(scores))
        if rules.momentum.strength:
            best = best_by_momentum(scores, output, rules.momentum.strength, rules.momentum.top)
        if len(output) < len(request.prefix):
            best = request.prefix[len(output)]
        if not output and rules.forced_bos >= 0:
            best = rules.forced_bos
        if len(output) == request.max_len - 1 and rules.forced_eos:
            best = EOS
        output.append(best)
    return output


def best_by_momentum(scores: list[float], output: list[int], strength: float, top: int) -> int:
    """The best of the likeliest words by probability less what the n-gram costs that it would repeat."""
    total = math.fsum(math.exp(score) for score in scores)
    ranked = sorted(range(len(scores)), key=lambda word: (-scores[word], word))
    found: list[tuple[float, int]] = []
    for word in ranked[:top]:
        said = [*output, word]
        repeated = [n for n in range(1, 6) if any(said[i : i + n] == said[-n:] for i in range(len(said) - n))]
        cost = strength * {0: 0, 1: 1, 2: 3, 3: 4, 4: 5, 5: 6}[max(repeated, default=0)]
        if scores[word] > -math.inf:
            found.append((math.exp(scores[word]) / total - cost, word))
    best = max(value for value, _ in found)
    return next(word for value, word in found if value == best)


def random_rules(rng: random.Random, words: int) -> Constraints:
    return Constraints(
        min_len=rng.choice([0, 0, 3, 12]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.25, 4.0]),
        suppressed=tuple(rng.sample(range(3, words), rng.choice([0, 0, 1]))),
        forbidden=tuple(
            tuple(rng.choices(range(3, words), k=rng.randint(1, 2))) for _ in range(rng.choice([0, 2]))
        ),
        no_repeat_ngram=rng.choice([0, 0, 2, 3]),
        no_source_ngram=rng.choice([0, 0, 1, 2]),
        also_eos=tuple(rng.sample(range(3, words), rng.choice([0, 0, 2]))),
        forced_bos=rng.choice([-1, rng.randrange(3, words)]),
        forced_eos=rng.choice([False, True]),
        suppressed_first=tuple(rng.sample(range(3, words), rng.choice([0, 4]))),
        momentum=rng.choice([Momentum(), Momentum(rng.choice([0.02, 0.2, 1.5]), rng.choice([1, 2, 5, 40]))]),
    )
