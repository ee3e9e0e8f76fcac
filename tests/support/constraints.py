"""Constraints of greedy search, by the textbook's loop in plain Python."""

from __future__ import annotations

import math
import random

from nartk.decoders.loop.constraints import Constraints
from nartk.hypothesis import Request
from support.scripted_passes import (
    EOS,
    Table,
)


def constrained_greedy(table: Table, request: Request, rules: Constraints) -> list[int]:
    output: list[int] = []
    while len(output) < request.max_len and output[-1:] != [EOS]:
        scores: list[float] = [*table.scores_by_hand(request.source, [EOS, *output])]
        for word in {*output} if rules.repetition_penalty != 1 else ():
            factor = rules.repetition_penalty
            scores[word] = scores[word] / factor if scores[word] > 0 else scores[word] * factor
        for word in range(table.words):
            said = [*output, word]
            early = word == EOS and len(output) < rules.min_len
            bad = any(said[-len(each) :] == list(each) for each in rules.forbidden)
            n = rules.no_repeat_ngram
            recurs = n > 0 and any(said[i : i + n] == said[-n:] for i in range(len(said) - n))
            if word in rules.suppressed or early or bad or recurs:
                scores[word] = -math.inf
        best = scores.index(max(scores))
        output.append(request.prefix[len(output)] if len(output) < len(request.prefix) else best)
    return output


def random_rules(rng: random.Random, words: int) -> Constraints:
    return Constraints(
        min_len=rng.choice([0, 0, 3, 12]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.25, 4.0]),
        suppressed=tuple(rng.sample(range(3, words), rng.choice([0, 0, 1]))),
        forbidden=tuple(
            tuple(rng.choices(range(3, words), k=rng.randint(1, 2))) for _ in range(rng.choice([0, 2]))
        ),
        no_repeat_ngram=rng.choice([0, 0, 2, 3]),
    )
