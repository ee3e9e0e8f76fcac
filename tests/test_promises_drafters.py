"""P1 to P4, P6 and P7 for every drafter: greedy search's tokens under a table of exact scores; on the engine
each bit of its log-probabilities, on every instruction set, in every type, batch and order, with 1 and 2
threads; in torch its tokens but for ties.

The references are a textbook loop (P1, P7) and the scorer's greedy search, a sentence at a time (P2 to P4,
P6), whose passes are compared with torch in test_engine_passes.py. `pytest -rP` shows what each run saw.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.engine import ISAS
from support.engine_models import TYPES, Bits, alone, bits_of, on_engine
from support.every_drafter import (
    COUNTS,
    EVERY,
    Make,
    Sentences,
    assert_nothing_open,
    decoded,
    happens,
    knowing,
    sentences,
)
from support.light_drafters import random_light
from support.own_layers import KeptLayers, LayersOfTable, random_layers
from support.parallel_drafters import KINDS, small_drafter
from support.random_transformers import random_config, random_model, random_source, vocabulary
from support.real_passes import RealPasses
from support.scorers import TransformerReference
from support.scripted_passes import (
    differing,
    edge_request,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)
from support.sizes import FACTOR, cases
from support.small_drafters import shaken
from support.small_passes import Light, random_small

from nartk.bench.verification import measure
from nartk.engine import FORCED_ISA
from nartk.models.reference import DTYPES
from nartk.models.transformer import Transformer
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, Want
from nartk.registry import make_strategy, strategies, strategy_class

RandomRequest = Callable[[random.Random, int, int], Request]
BATCHES = (1, 2, 3, 8, 32)
LIMITS = (1, 2, 3, 4, 5, 6, 9)  # tokens of an output, at most
GROUP = 50  # sentences of a model


def report(name: str, counts: Counter[str], wanted: Sequence[str] = COUNTS) -> None:
    """Prints what happened, and asserts that each of what is wanted did."""
    print(name, dict(counts))
    assert FACTOR < 1 or min(counts[each] for each in wanted) > 0, (name, counts)


def test_every_strategy_that_promises_it_is_here() -> None:
    promising = {
        name for name in strategies() if strategy_class(name).promise.guarantee is Guarantee.IDENTICAL
    }
    assert promising == {name.split()[0] for name in EVERY}


# P1 and P7: under a table of exact scores.


def table_mismatches(name: str, count: int, seed: int, request_of: RandomRequest) -> tuple[int, Counter[str]]:
    """How many random sentences are decoded otherwise than by greedy search. Most go through large batches,
    for speed."""
    wrong, counts = 0, Counter[str]()
    while counts["cases"] < count:
        rng = random.Random(f"{name} {seed} {counts['cases']}")
        network_seed = rng.getrandbits(20)
        batch_size = rng.choice([*BATCHES, 200, 200])
        group = 200 if batch_size == 200 else 2 * batch_size
        scorer = random_table(rng)
        words = scorer.table.words
        requests = [request_of(rng, i, words) for i in range(group)]
        wanted = plain_greedy(scorer.table, requests)
        each = sentences(
            rng,
            words,
            requests,
            wanted,
            small=lambda rng, scorer=scorer: random_small(rng, scorer),
            light=lambda rng, scorer=scorer: random_small(rng, scorer, Light),
            own=lambda rng: LayersOfTable(rng.getrandbits(60)),
            network=lambda kind, words=words, seed=network_seed: small_drafter(kind, words, seed),
        )
        results = decoded(EVERY[name](rng, each), scorer, each.requests, batch_size=batch_size, counts=counts)
        wrong += len(differing(outputs_of(results), wanted))
    return wrong, counts


def check_table(name: str, count: int, seed: int, request_of: RandomRequest = random_request) -> None:
    wrong, counts = table_mismatches(name, cases(count), seed, request_of)
    assert wrong == 0
    report(name, counts, happens(name))


@pytest.mark.parametrize("name", EVERY)
def test_p1_the_output_is_greedys(name: str) -> None:
    """10,000 sentences; of the random networks together, of which little is accepted here."""
    check_table(name, 10_000 // len(KINDS) if name.startswith("gad with") else 10_000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_p1_at_full_size(name: str) -> None:
    check_table(name, 200_000, 2)


@pytest.mark.parametrize("name", EVERY)
def test_p7_edges(name: str) -> None:
    check_table(name, 500, 1, edge_request)


# P2, P3 and P4: on the engine.


@dataclasses.dataclass
class Block:
    """A random model by numbers of threads, 1 and 2, and what greedy search gives alone."""

    scorers: dict[int, Any]
    sentences: Sentences
    wanted: Bits


def twins(model: Transformer) -> None:
    """Every second word scores as the word before it does."""
    rows = model.output.weight
    rows[1::2] = rows[: len(rows) - len(rows) % 2 : 2]


def silent(model: Transformer) -> None:
    """Every word scores 0."""
    model.output.weight.zero_()


def whole_numbers(model: Transformer) -> None:
    """Scores are small whole multiples of each other's parts, so that many are equal."""
    for weight in model.parameters():
        weight.copy_((2 * weight).round() / 2)


def twins_of_eos(model: Transformer) -> None:
    """Eos, the first word and the last score the same, and high."""
    rows = model.output.weight
    rows[0] = rows[-1] = rows[2] = 2 * rows[2]


TIES: dict[str, Callable[[Transformer], None]] = {
    "none": lambda model: None,
    "twins": twins,
    "silent": silent,
    "whole numbers": whole_numbers,
    "twins of eos": twins_of_eos,
}


TORCH = "torch"  # in the place of an instruction set


def in_torch(model: Transformer, *, type: str, threads: int = 1) -> TransformerReference:
    """The reference scorer, whose threads are the process's."""
    return TransformerReference(model, vocabulary(model.config.tgt_vocab), dtype=DTYPES[type])


@functools.lru_cache(maxsize=64)
def block(isa: str, type: str, number: int, count: int, ties: str = "none") -> Block:
    """Of the instruction set that is forced, or in torch."""
    serve = in_torch if isa == TORCH else on_engine
    rng = random.Random(f"{number} {ties}")
    words = rng.choice([12, 12, rng.randint(13, 90)])  # of few words some come by chance
    config = random_config(
        rng,
        src_vocab=words,
        tgt_vocab=words,
        share_embeddings="none" if ties != "none" else rng.choice(["all", "decoder", "none"]),
        max_source_len=30,
        max_target_len=48,
        output_bias=ties == "none" and rng.random() < 0.5,
    )
    model = random_model(config, rng.getrandbits(30))
    with torch.no_grad():
        TIES[ties](model)
    scorers = {threads: serve(model, type=type, threads=threads) for threads in (1, 2)}
    limits = (6, 20, 40) if isa == TORCH else (*LIMITS, 40 if number % 4 == 0 else 6)
    requests = [Request(i, tuple(random_source(rng, config)), rng.choice(limits)) for i in range(count)]
    wanted = alone(scorers[1], requests)
    small_seed = rng.getrandbits(30)

    @functools.lru_cache(maxsize=8)
    def network(kind: str) -> Any:
        return small_drafter(kind, words, small_seed, type="fp32" if isa == TORCH else type)

    each = sentences(
        rng,
        words,
        requests,
        [tokens for tokens, _ in wanted],
        small=lambda rng: serve(shaken(model, small_seed, rng.choice([0.0, 0.02, 0.1])), type=type),
        light=lambda rng: random_light(rng, config, type=type, on_torch=isa == TORCH),
        own=lambda rng: random_layers(rng, config.decoder_layers),
        network=network,
    )
    return Block(scorers, each, wanted)


@pytest.fixture(params=["best", "avx2", "plain"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An instruction set, which is forced."""
    name: str = ISAS[0] if request.param == "best" else request.param
    if name not in ISAS:
        pytest.skip(f"this processor has no {name}")
    monkeypatch.setenv(FORCED_ISA, name)
    return name


def reordered(rng: random.Random, requests: Sequence[Request]) -> list[Request]:
    """In another order, with the indices that they had."""
    return rng.sample(list(requests), len(requests))


def changed_bits(
    name: str, isa: str, type: str, count: int, *, group: int = GROUP, first: int = 0, ties: str = "none"
) -> Counter[str]:
    """Decodes so many sentences, in batches, orders and with threads at random; ``changed`` must stay 0."""
    counts = Counter[str]()
    for number in range(first, first + -(-count // group)):
        rng = random.Random(f"{name} {number} {ties}")
        made = block(isa, type, number, min(group, count), ties)
        strategy = EVERY[name](rng, made.sentences)
        results = decoded(
            strategy,
            made.scorers[rng.choice([1, 2])],
            reordered(rng, made.sentences.requests),
            batch_size=rng.choice(BATCHES),
            counts=counts,
        )
        counts["changed"] += len(differing(bits_of(results), made.wanted))
    return counts


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", EVERY)
def test_p2_no_bit_changes(name: str, type: str) -> None:
    """On the best instruction set."""
    counts = changed_bits(name, ISAS[0], type, cases(1_000))
    assert counts["changed"] == 0
    report(f"{name}, {type}", counts, happens(name))


@pytest.mark.parametrize("type", TYPES)
def test_p2_no_bit_changes_on_any_instruction_set(isa: str, type: str) -> None:
    """50 sentences of each drafter."""
    counts = Counter[str]()
    for name in EVERY:
        counts += changed_bits(name, isa, type, cases(50), first=4)
    assert counts["changed"] == 0
    report(f"{isa}, {type}", counts)


@pytest.mark.slow
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", EVERY)
def test_p2_at_full_size(name: str, isa: str, type: str) -> None:
    """10,000 of each type and instruction set for all drafters together."""
    counts = changed_bits(name, isa, type, cases(10_000 // len(EVERY)), first=1_000)
    assert counts["changed"] == 0
    report(f"{name}, {isa}, {type}", counts, happens(name))


@pytest.mark.parametrize("ties", [name for name in TIES if name != "none"])
@pytest.mark.parametrize("type", TYPES)
def test_p3_ties_change_no_bit(type: str, ties: str) -> None:
    """27 of each kind, type and drafter, of 3 models: 324 of a drafter."""
    counts = Counter[str]()
    for name in EVERY:
        counts += changed_bits(name, ISAS[0], type, cases(27), group=9, ties=ties)
    assert counts["changed"] == 0
    report(f"{ties}, {type}", counts)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [name for name in TIES if name != "none"])
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", EVERY)
def test_p3_at_full_size(name: str, type: str, ties: str) -> None:
    """250 of each: 3,000 of a drafter."""
    assert changed_bits(name, ISAS[0], type, cases(250), first=1_000, ties=ties)["changed"] == 0


def check_company(name: str, type: str, count: int, first: int) -> None:
    """Alone, in batches, in order or not, with 1 and 2 threads."""
    counts = Counter[str]()
    for number in range(first, first + -(-count // GROUP)):
        rng = random.Random(f"company {name} {number}")
        made = block(ISAS[0], type, number, min(GROUP, count))
        for batch_size in BATCHES:
            for scorer in made.scorers.values():
                requests = made.sentences.requests
                results = decoded(
                    EVERY[name](rng, made.sentences),
                    scorer,
                    reordered(rng, requests) if rng.random() < 0.5 else requests,
                    batch_size=batch_size,
                    counts=counts,
                )
                assert bits_of(results) == made.wanted
    report(f"{name}, {type}", counts, [each for each in happens(name) if each != "branches"])


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", EVERY)
def test_p4_company_order_and_threads_change_no_bit(name: str, type: str) -> None:
    """34 of each type: 102 of a drafter, in five sizes of batches."""
    check_company(name, type, cases(34), 4)


@pytest.mark.slow
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", EVERY)
def test_p4_at_full_size(name: str, type: str) -> None:
    check_company(name, type, cases(334), 2_000)


class Leaky(RealPasses):
    """Known to be wrong: log-probabilities are an ulp higher in a pass of 8 tokens or more."""

    def run(self, work: Pass, want: Want) -> Any:
        scores = super().run(work, want)
        if len(work.tokens) >= 8:
            scores.log_probs = np.nextafter(scores.log_probs, np.float32(1))
        return scores


def test_p4_fails_where_results_depend_on_the_batch() -> None:
    """As do P2 and P3 with kernels that are known to be wrong: see test_engine_kernels.py."""
    scorer, rng = Leaky(30, seed=1), random.Random(0)
    requests = [random_request(rng, i, 30) for i in range(20)]
    greedy = make_strategy("greedy", {})
    together = decoded(greedy, scorer, requests, batch_size=8, counts=Counter())
    assert differing(bits_of(together), alone(scorer, requests))


# P6: in torch, where a near tie may fall either way.


def ledger(type: str, tokens: int, makes: dict[str, Make], *, first: int = 0) -> Counter[str]:
    """Decodes so many tokens. Where an output leaves greedy search's, the worse of the two words is at most
    twice the noise below the best one, a tie, or farther, a bug. Noise is measured there and on a fourth of
    the outputs."""
    counts = Counter[str]()
    for number in itertools.count(first):
        made = block(TORCH, type, number, 20)
        scorer, requests = made.scorers[1], made.sentences.requests
        longest = sorted((request.source for request in requests), key=len)[-7:]
        wanted = [output for output, _ in made.wanted]
        pairs = list(zip(requests, wanted, strict=True))
        noise = max(measure(scorer, each.source, output, peers=longest)[1] for each, output in pairs[::4])
        rng = random.Random(f"ledger {number}")
        for name in rng.sample(list(makes), min(4, len(makes))):
            results = decoded(
                makes[name](rng, made.sentences),
                scorer,
                reordered(rng, requests),
                batch_size=rng.choice(BATCHES),
                counts=counts,
            )
            found = outputs_of(results)
            counts["tokens"] += sum(map(len, found))
            for i in differing(found, [*map(list, wanted)]):
                both = zip(found[i], wanted[i], strict=False)
                at, words = next((at, [*pair]) for at, pair in enumerate(both) if pair[0] != pair[1])
                longer = max(wanted[i], found[i], key=len)
                every, here = measure(scorer, requests[i].source, longer, peers=longest)
                logits = every[at]
                is_tie = logits.max() - logits[words].min() <= 2 * max(noise, here)
                counts["ties" if is_tie else "bugs"] += 1
        if counts["tokens"] >= tokens:
            return counts
    raise AssertionError


@pytest.mark.parametrize("type", ["bf16", "fp16"])
def test_p6_only_ties_fall_otherwise(type: str) -> None:
    counts = ledger(type, cases(2_000), EVERY)
    assert counts["bugs"] == 0
    report(f"torch, {type}", counts, ["accepted", "rejected"])


@pytest.mark.slow
@pytest.mark.parametrize("type", ["bf16", "fp16"])
def test_p6_at_full_size(type: str) -> None:
    counts = ledger(type, cases(50_000), EVERY, first=1_000)
    assert counts["bugs"] == 0
    report(f"torch, {type}", counts, [*COUNTS, "ties"])


def test_p6_fails_where_a_wrong_word_is_kept() -> None:
    """The second best of two that are a nat apart."""

    def nearly_best(rng: random.Random, each: Sentences) -> Any:
        return dataclasses.replace(knowing("block")(rng, each), beta=2, tau=1.0, tree=0)

    assert ledger("bf16", 400, {"nearly best": nearly_best})["bugs"] > 0


# However a decoding ends, nothing stays open on the engine.


def closed_early(strategy: Any, scorer: Any, requests: Sequence[Request], _: pytest.MonkeyPatch) -> None:
    """After the first result."""
    running = strategy.run(scorer, requests, batch_size=3)
    next(running)
    running.close()


def broken_off(strategy: Any, scorer: Any, requests: Sequence[Request], patch: pytest.MonkeyPatch) -> None:
    """By an interrupt in each of the first passes, of the verifier and of what drafts."""
    auxiliary = [*getattr(strategy, "auxiliary", {}).values()]
    drafting = [each.of(scorer) if isinstance(each, KeptLayers) else each for each in auxiliary]
    for broken in (scorer, *drafting):
        methods = ("run", "encode", "fill", "read_frames", "graphs", "words", "commit", "draft_chains")
        ended = [
            break_off(strategy, scorer, requests, patch, broken, method, after)
            for method, after in itertools.product(methods, range(3))
        ]
        assert any(ended), broken


def break_off(
    strategy: Any,
    scorer: Any,
    requests: Sequence[Request],
    patch: pytest.MonkeyPatch,
    broken: Any,
    method: str,
    after: int,
) -> bool:
    """Whether it was called so often, and so broken off."""
    right, left = getattr(broken, method, None), iter(range(after))
    if right is None:
        return False
    ended = True

    def breaking(*given: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return right(*given)

    with patch.context() as inner:
        inner.setitem(vars(broken), method, breaking)  # undone without a trace, which a view would copy
        with contextlib.suppress(KeyboardInterrupt):
            list(strategy.run(scorer, requests, batch_size=3))
            ended = False
    assert_nothing_open(strategy, scorer)
    return ended


@pytest.mark.parametrize("end", [closed_early, broken_off])
@pytest.mark.parametrize("name", EVERY)
def test_nothing_stays_open_however_a_decoding_ends(
    name: str, end: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(name)
    made = block(ISAS[0], "fp32", 4, 12)
    strategy = EVERY[name](rng, made.sentences)
    end(strategy, made.scorers[2], made.sentences.requests, monkeypatch)
    assert_nothing_open(strategy, made.scorers[2])
    results = decoded(strategy, made.scorers[2], made.sentences.requests, batch_size=3, counts=Counter())
    assert bits_of(results) == made.wanted


# Beam search with drafts against the same without.


@pytest.mark.parametrize("type", TYPES)
def test_beams_with_drafts_change_no_bit(isa: str, type: str) -> None:
    counts = Counter[str]()
    for number in range(1, 1 + cases(4)):
        rng = random.Random(f"beams {number}")
        made = block(isa, type, number, 13)
        k = rng.randint(2, 5)
        options = {"beam_size": k, "nbest": k, "length_penalty": rng.choice([0.0, 0.6, 1.0])}
        plain = decoded(
            make_strategy("beam", options),
            made.scorers[1],
            made.sentences.requests,
            batch_size=1,
            counts=Counter(),
        )
        for draft in ("source", "recycling", "both"):
            results = decoded(
                make_strategy("beam", {**options, "draft": draft, "max_draft": rng.choice([1, 3, 6])}),
                made.scorers[rng.choice([1, 2])],
                made.sentences.requests,
                batch_size=rng.choice(BATCHES),
                counts=counts,
            )
            assert [each.hypotheses for each in results] == [each.hypotheses for each in plain]
    report(f"beams, {isa}, {type}", counts, ["accepted", "rejected", "left mid-batch"])
