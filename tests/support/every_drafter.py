"""Every drafter of the strategies that promise greedy search's output, model drafters included, by name.

Some model drafters half know what greedy search outputs, so that much of what they draft is accepted; others
are random networks.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from nartk.protocols.hypothesis import Request, Result
from nartk.registry import make_strategy, options_of
from support.joint import with_own_head
from support.parallel_drafters import KINDS, SCRIPTED, spoilt, with_drafter
from support.scripted_passes import EOS, PAD
from support.small_passes import drafting

COUNTS = ("accepted", "rejected", "branches", "left mid-batch")


@dataclasses.dataclass(frozen=True)
class Sentences:
    """What is decoded, and what drafters are made of.

    Attributes:
        words: V.
        requests: With drafts for `verify`.
        outputs: Greedy search's, by source.
        small: Makes an autoregressive model that is near the verifier.
        light: Makes one that reads what the verifier has encoded.
        own: Makes layers of the verifier that draft.
        network: Makes a random network of a non-autoregressive architecture.
    """

    words: int
    requests: Sequence[Request]
    outputs: dict[tuple[int, ...], Sequence[int]]
    small: Callable[[random.Random], Any]
    light: Callable[[random.Random], Any]
    own: Callable[[random.Random], Any]
    network: Callable[[str], Any]


def sentences(
    rng: random.Random,
    words: int,
    requests: Sequence[Request],
    outputs: Sequence[Sequence[int]],
    *,
    small: Callable[[random.Random], Any],
    light: Callable[[random.Random], Any],
    own: Callable[[random.Random], Any],
    network: Callable[[str], Any],
) -> Sentences:
    drafted = [
        dataclasses.replace(each, drafts=drafts_near(rng, output, words))
        for each, output in zip(requests, outputs, strict=True)
    ]
    by_source = {each.source: output for each, output in zip(requests, outputs, strict=True)}
    return Sentences(words, drafted, by_source, small, light, own, network)


def drafts_near(rng: random.Random, output: Sequence[int], words: int) -> tuple[tuple[int, ...], ...]:
    """Right drafts, near ones and noise, some of each."""
    near = [word if rng.random() < 0.9 else rng.randrange(words) for word in output]
    noise = rng.choices(range(-5, words + 5), k=rng.randint(0, 30))
    kinds = [output, output[:-1], near, near[1:], noise, [EOS] * 3, [PAD] * 50, [2**40], []]
    return tuple(map(tuple, rng.sample(kinds, rng.randint(0, len(kinds)))))


Make = Callable[[random.Random, Sentences], Any]


def free(name: str) -> Make:
    """A strategy without a second model, with random options."""

    def make(rng: random.Random, _: Sentences) -> Any:
        options: dict[str, Any] = {}
        for key, item in options_of(name).items():
            if item.metadata["choices"] is not None:
                options[key] = rng.choice(list(item.metadata["choices"]))
            elif key == "max_draft":
                options[key] = rng.randint(0, 32)
            elif key == "nodes":
                options[key] = rng.choice([1, 5, 30, 96])
            elif key == "tree":
                options[key] = rng.choice(["", "3", "4x3x2"])
        return make_strategy(name, options)

    return make


def speculative(rng: random.Random, each: Sentences) -> Any:
    return drafting("speculative", each.small(rng), block_size=rng.choice([1, 2, 3, 5, 40]))


def light(rng: random.Random, each: Sentences) -> Any:
    return drafting("speculative", each.light(rng), block_size=rng.choice([1, 2, 3, 5, 40]))


def own(rng: random.Random, each: Sentences) -> Any:
    return drafting("speculative", each.own(rng), block_size=rng.choice([1, 2, 3, 5, 40]))


def knowing(kind: str) -> Make:
    """`gad` with a drafter that half knows the outputs."""

    def make(rng: random.Random, each: Sentences) -> Any:
        return parallel(rng, SCRIPTED[kind](each.words, spoilt_answers(rng, each)))

    return make


def spoilt_answers(rng: random.Random, each: Sentences) -> dict[tuple[int, ...], list[int]]:
    """By source, outputs like greedy search's."""
    return {
        source: spoilt(rng, [*(word for word in output if word != EOS), EOS], each.words)
        for source, output in each.outputs.items()
    }


def own_head(rng: random.Random, each: Sentences) -> Any:
    """`ctc-draft` with a head that half knows the outputs."""
    answers = spoilt_answers(rng, each)
    return with_own_head(each.words, answers, block_size=rng.choice([1, 3, 8, 25]))


def random_network(kind: str) -> Make:
    return lambda rng, each: parallel(rng, each.network(kind))


def parallel(rng: random.Random, drafter: Any) -> Any:
    return with_drafter(drafter, block_size=rng.choice([1, 3, 8, 25]), tree=rng.choice([0, 1, 9, 30]))


EVERY: dict[str, Make] = {
    **{name: free(name) for name in ("greedy", "iad", "ngram", "recycling", "union", "verify")},
    "speculative": speculative,
    "speculative with a light drafter": light,
    "speculative with its own layers": own,
    "ctc-draft": own_head,
    **{f"gad that knows a {kind}": knowing(kind) for kind in SCRIPTED},
    **{f"gad with {kind}": random_network(kind) for kind in KINDS},
}
# Drafts of these are trees in some cases; the graph that is known has one path alone.
BRANCHING = {"recycling", "union", "verify", "gad with dag"}


def happens(name: str) -> list[str]:
    """Which of `COUNTS` must not stay 0."""
    if name == "greedy":
        return ["left mid-batch"]
    return [each for each in COUNTS if each != "branches" or name in BRANCHING]


def assert_nothing_open(strategy: Any, scorer: Any) -> None:
    """Neither in the verifier nor in what drafts."""
    for each in (scorer, *getattr(strategy, "auxiliary", {}).values()):
        assert getattr(each, "in_use", (0, 0)) == (0, 0)  # of a scripted one
        for name in ("cells_in_use", "memories_in_use"):
            assert getattr(getattr(each, "_engine", each), name, 0) == 0, f"{name} is not 0"


def decoded(
    strategy: Any, scorer: Any, requests: Sequence[Request], *, batch_size: int, counts: Counter[str]
) -> list[Result]:
    """The results in the requests' order, counted; nothing stays open."""
    results = list(strategy.run(scorer, requests, batch_size=batch_size))
    assert_nothing_open(strategy, scorer)
    counts["accepted"] += sum(result.accepted for result in results)
    counts["rejected"] += sum(result.drafted - result.accepted for result in results)
    counts["branches"] += sum(result.branches for result in results)
    counts["left mid-batch"] += sum(result.left_mid_batch for result in results)
    counts["cases"] += len(results)
    return sorted(results, key=lambda result: result.index)
