"""P2, P3 and P4: in exact mode a sentence gets the same tokens and the same bits of every log-probability,
whatever is drafted for it and whatever shares its batch, also where scores tie.

The naive way, plain layers at whatever shape comes, must fail the same check.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.scripted import OVER_TENSORS, decode, differing, over_tensors
from support.transformers_small import (
    DraftsWhatIsKnown,
    random_config,
    random_model,
    random_requests,
    vocabulary,
)
from torch import Tensor

from nartk.guarantee import Guarantee
from nartk.hypothesis import Request, Result
from nartk.models.linear import ServingLinear
from nartk.models.transformer import Transformer
from nartk.models.transformer_scorer import TransformerScorer
from nartk.passes import PassScorer
from nartk.registry import options_of, protocols, strategies, strategy_class

# Those that need a second model are tested with all kinds of them in files of their own.
LOSSLESS = [
    name
    for name, promise in strategies().items()
    if promise.guarantee is Guarantee.IDENTICAL
    and name != "greedy"
    and (name in OVER_TENSORS or PassScorer not in protocols(strategy_class(name)))
    and not any(item.metadata["model"] for item in options_of(name).values())
]
EOS = 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Said = list[tuple[tuple[int, ...], tuple[float, ...] | None]]


def said(results: list[Result]) -> Said:
    """Tokens and log-probabilities; Python compares the floats by value, and none is NaN or zero-signed."""
    return [(r.hypotheses[0].tokens, r.hypotheses[0].positional_scores) for r in results]


def alone(scorer: TransformerScorer, requests: list[Request], **options: Any) -> Said:
    """Greedy search, a sentence at a time: the reference."""
    return said(decode(over_tensors("greedy", options), scorer, requests, batch_size=1))


def drafting(
    scorer: TransformerScorer, requests: list[Request], wanted: Said, rng: random.Random, **options: Any
) -> list[Any]:
    """Every lossless strategy, some with a cap, and one whose drafts stand in parts of any length."""
    made = []
    for name in LOSSLESS:
        known = options_of(name)
        cap = {"max_draft": rng.choice([0, 0, 1, 2, 5, 16])} if "max_draft" in known else {}
        made.append(over_tensors(name, {**cap, **options}))
    answers = {r.source[:-1]: tokens for r, (tokens, _) in zip(requests, wanted, strict=True)}
    knowing = DraftsWhatIsKnown(
        answers=answers,
        words=len(scorer.vocab),
        longest=rng.choice([1, 3, 8, 20]),
        spoilt=rng.choice([0.0, 0.2]),
        seed=rng.getrandbits(30),
        **options,
    )
    return [*made, knowing]


def different(
    scorer: TransformerScorer,
    requests: list[Request],
    rng: random.Random,
    *,
    sizes: tuple[int, ...] = (1, 5, 8, 32, 32),
    **options: Any,
) -> set[int]:
    """The sentences that some strategy or batch decodes otherwise than greedy search does alone."""
    wanted = alone(scorer, requests, **options)
    found: set[int] = set()
    greedy = over_tensors("greedy", options)
    for strategy in [greedy, *drafting(scorer, requests, wanted, rng, **options)]:
        results = decode(strategy, scorer, requests, batch_size=rng.choice(sizes))
        found |= set(differing(said(results), wanted))
    return found


def random_scorer(rng: random.Random, dtype: torch.dtype, device: torch.device) -> TransformerScorer:
    config = random_config(rng)
    return TransformerScorer(
        random_model(config, rng.getrandbits(30)),
        vocabulary(config.tgt_vocab),
        dtype=dtype,
        device=device,
    )


def differences(cases: int, seed: int, dtype: torch.dtype, device: torch.device, *, group: int = 50) -> int:
    """How many of `cases` random sentences, 50 a model, get other tokens or bits in some way."""
    wrong = 0
    for block in range(cases // group):
        rng = random.Random(f"{seed}.{block}")
        scorer = random_scorer(rng, dtype, device)
        limits = [1, 2, 3, 4, 5, 6, 40 if block % 4 == 0 else 6]
        requests = random_requests(rng, group, len(scorer.vocab), limits=limits)
        wrong += len(different(scorer, requests, rng))
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_p2_drafts_and_batches_change_no_bit(dtype: str, device: torch.device) -> None:
    assert differences(1_000, 1, DTYPES[dtype], device) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_p2_at_full_size(dtype: str, device: torch.device) -> None:
    assert differences(10_000, 1000, DTYPES[dtype], device) == 0


# P3: constructed ties. Each changes the output layer, or all weights, of a model whose layers share nothing.


def twins(model: Transformer, rng: random.Random) -> None:
    """Every second word scores as the word before it does."""
    rows = model.output.weight
    rows[1::2] = rows[: len(rows) - len(rows) % 2 : 2]


def silent(model: Transformer, rng: random.Random) -> None:
    """Every word scores 0."""
    model.output.weight.zero_()


def whole_numbers(model: Transformer, rng: random.Random) -> None:
    """Scores are small whole multiples of each other's parts, so that many are equal."""
    for weight in model.parameters():
        weight.copy_((2 * weight).round() / 2)


def twins_of_eos(model: Transformer, rng: random.Random) -> None:
    """Eos, the first word and the last score the same, and high."""
    rows = model.output.weight
    rows[0] = rows[-1] = rows[EOS] = 2 * rows[EOS]


TIES: dict[str, Callable[[Transformer, random.Random], None]] = {
    "twins": twins,
    "silent": silent,
    "whole numbers": whole_numbers,
    "twins of eos": twins_of_eos,
}


def tied_scorer(kind: str, seed: int, dtype: torch.dtype, device: torch.device) -> TransformerScorer:
    rng = random.Random(f"{kind}.{seed}")
    config = dataclasses.replace(random_config(rng), share_embeddings="none")
    model = random_model(config, seed)
    with torch.no_grad():
        TIES[kind](model, rng)
    return TransformerScorer(model, vocabulary(config.tgt_vocab), dtype=dtype, device=device)


def tied_differences(
    cases: int, kind: str, dtype: torch.dtype, device: torch.device, *, naive: bool = False
) -> int:
    wrong, group = 0, 25
    for seed in range(cases // group):
        rng = random.Random(seed)
        scorer = tied_scorer(kind, seed, dtype, device)
        options = {"exact": not naive}
        if naive:
            make_naive(scorer)
        requests = random_requests(rng, group, len(scorer.vocab), limits=[1, 3, 5, 8])
        wrong += len(different(scorer, requests, rng, **options))
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TIES)
def test_p3_ties_change_nothing(kind: str, dtype: str, device: torch.device) -> None:
    assert tied_differences(25, kind, DTYPES[dtype], device) == 0  # 300 in all


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TIES)
def test_p3_at_full_size(kind: str, dtype: str, device: torch.device) -> None:
    assert tied_differences(250, kind, DTYPES[dtype], device) == 0  # 3,000 in all


def make_naive(scorer: TransformerScorer) -> None:
    """Makes its linear layers plain ones, computed at whatever shape comes, as most code does."""
    for layer in scorer.model.modules():
        if isinstance(layer, ServingLinear):
            layer.chunk = 0
            if layer.packed:
                layer.packed = False
                layer.weight = layer.weight.to_dense()


def test_p3_fails_the_naive_way(device: torch.device) -> None:
    """In fp32, where the usual advice says that nothing can happen. Where the output has no words to choose
    between, scores are constant, so that kind is left out."""
    kinds = [kind for kind in TIES if kind != "silent"]
    assert sum(tied_differences(50, kind, torch.float32, device, naive=True) for kind in kinds) > 0


# P4: alone, batched, reordered, with 1 or 2 threads.


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def company_differences(cases: int, seed: int, dtype: torch.dtype, device: torch.device) -> int:
    """Alone with one thread, against batches of 1 to 32, in order or not, with one thread or two."""
    wrong, group = 0, 34
    for block in range(cases // group):
        rng = random.Random(f"company {seed}.{block}")
        scorer = random_scorer(rng, dtype, device)
        requests = random_requests(rng, group, len(scorer.vocab), limits=[2, 4, 8])
        with threads(1):
            wanted = alone(scorer, requests)
        bad: set[int] = set()
        for count in (1, 2):
            for size in (1, 2, 4, 8, 32):
                order = rng.sample(range(group), group) if rng.random() < 0.5 else list(range(group))
                mixed = [dataclasses.replace(requests[i], index=place) for place, i in enumerate(order)]
                strategy = over_tensors(rng.choice(["greedy", *LOSSLESS]), {})
                with threads(count):
                    found = said(decode(strategy, scorer, mixed, batch_size=size))
                bad |= {order[place] for place in differing(found, [wanted[i] for i in order])}
        wrong += len(bad)
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_p4_company_order_and_threads_change_no_bit(dtype: str, device: torch.device) -> None:
    assert company_differences(34, 1, DTYPES[dtype], device) == 0  # 102 in all


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_p4_at_full_size(dtype: str, device: torch.device) -> None:
    assert company_differences(1_666, 2, DTYPES[dtype], device) == 0


def test_p4_fails_where_results_depend_on_the_batch(device: torch.device) -> None:
    """A scorer whose logits are an ulp higher in a batch of 8 or more."""

    class Leaky(TransformerScorer):
        def verify(self, tokens: Tensor, state: Any, counts: Any = None) -> tuple[Tensor, Any]:
            logits, state = super().verify(tokens, state, counts)
            leak = 2.0**-20 if len(tokens) >= 8 else 0.0
            return logits * (1 + leak), state

    rng = random.Random(0)
    config = random_config(rng)
    scorer = Leaky(random_model(config, 0), vocabulary(config.tgt_vocab), device=device)
    requests = random_requests(rng, 20, config.tgt_vocab)
    together = said(decode(over_tensors("greedy", {}), scorer, requests, batch_size=8))
    assert differing(together, alone(scorer, requests))
