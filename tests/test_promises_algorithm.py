"""P1, P7 and P8: under a table of exact scores, every lossless strategy says what greedy search says.

The reference is a textbook loop in tests/support/scripted.py that shares no code with nartk. Each promise
comes with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.scripted import (
    OVER_TENSORS,
    TableScorer,
    decode,
    differing,
    outputs_of,
    over_tensors,
    plain_greedy,
)
from torch import Tensor

from nartk.decoders.tensor_loop import (
    Acceptance,
    Draft,
    DraftAndVerify,
    Drafter,
    Fed,
    Judged,
    argmax_acceptance,
)
from nartk.hypothesis import Request
from nartk.scorer import Seq2SeqScorer, Source

# Those over tensors; those over passes are in test_draft_loop.py.
LOSSLESS = [name for name in OVER_TENSORS if name != "greedy"]
PAD, EOS = 1, 2


def random_table(rng: random.Random, device: torch.device) -> TableScorer:
    scorer = TableScorer(
        4 + rng.randint(2, 50),
        seed=rng.getrandbits(60),
        spread=rng.choice([1, 2, 4, 8, 50]),
        bonus=rng.choice([0, 1, 2, 4, 8, 40]),
        stretch=rng.randint(1, 20),
        patience=rng.choice([0, 2, 8, 40]),
        width=rng.choice([8, 64]),
        device=device,
    )
    unmapped = (
        torch.rand(len(scorer.vocab), generator=torch.Generator().manual_seed(scorer.seed)).to(device) < 0.1
    )
    if rng.random() < 0.5:
        scorer.source_to_target = scorer.source_to_target.masked_fill(unmapped, -1)
    return scorer


def random_request(rng: random.Random, index: int, words: int, longest: int = 64) -> Request:
    """A source of 0 to `longest` words, eos after them and perhaps among them, often with repeats."""
    size = rng.randint(0, longest)
    used = rng.sample(range(words), rng.randint(1, min(words, 12)))
    source = [rng.choice(used) for _ in range(size)]
    prefix = tuple(rng.randrange(3, words) for _ in range(rng.choice([0, 0, 0, 1, 5])))
    max_len = min(rng.randint(1, 64), rng.randint(1, 64))  # long ones cost time
    return Request(index, (*source, EOS), max_len, prefix[:max_len])


def random_strategy(name: str, rng: random.Random) -> Any:
    """The strategy with the draft's cap at random."""
    return over_tensors(name, {"max_draft": rng.randint(0, 32)})


def mismatches(
    make: Callable[[random.Random], Any], cases: int, device: torch.device, *, seed: int, **kwargs: Any
) -> int:
    """How many of `cases` random sentences a strategy decodes otherwise than greedy search."""
    wrong = done = 0
    while done < cases:
        rng = random.Random(f"{seed}.{done}")
        # Small batches cost time, so most sentences go through large ones.
        batch_size = rng.choice([*range(1, 9), 200, 200])
        group = 200 if batch_size == 200 else 2 * batch_size
        scorer = random_table(rng, device)
        requests = [random_request(rng, i, len(scorer.vocab), **kwargs) for i in range(group)]
        found = decode(make(rng), scorer, requests, batch_size=batch_size)
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.scores, requests)))
        done += group
    return wrong


def test_the_table_is_what_its_definition_says(device: torch.device) -> None:
    rng = random.Random(0)
    for _ in range(100):
        table = random_table(rng, device)
        size = len(table.vocab)
        request = random_request(rng, 0, size, 20)
        prefix = [EOS, *(rng.randrange(size) for _ in range(rng.randint(0, 20)))]
        left_over = [rng.randrange(size) for _ in range(3)]  # past the prefix: must not count
        scores = table.scores(
            torch.tensor([request.source], device=device),
            torch.tensor([len(request.source)], device=device),
            torch.tensor([prefix + left_over], device=device),
            torch.tensor([len(prefix)], device=device),
        )
        assert scores[0].tolist() == table.scores_by_hand(request.source, prefix)


@pytest.mark.parametrize("name", LOSSLESS)
def test_p1_lossless_strategies_equal_greedy(name: str, device: torch.device) -> None:
    assert mismatches(lambda rng: random_strategy(name, rng), 10_000, device, seed=1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSLESS)
def test_p1_at_full_size(name: str, device: torch.device) -> None:
    assert mismatches(lambda rng: random_strategy(name, rng), 200_000, device, seed=2) == 0


def accept_one_too_many(logits: Tensor, fed: Fed) -> Judged:
    """Known to be wrong: the token after an accepted one stands whatever the verifier says."""
    judged = argmax_acceptance(logits, fed)
    same = judged.tokens == fed.drafted
    return dataclasses.replace(judged, stands=(same | same.roll(1)) & (fed.drafted >= 0))


def accept_runner_up(logits: Tensor, fed: Fed) -> Judged:
    """Known to be wrong: the verifier's second word is good enough."""
    judged = argmax_acceptance(logits, fed)
    second = logits.topk(2, -1).indices[:, 1]
    return dataclasses.replace(judged, stands=(judged.tokens == fed.drafted) | (second == fed.drafted))


def last_of_equals(logits: Tensor, fed: Fed) -> Judged:
    """Known to be wrong: of equal scores the last word wins."""
    judged = argmax_acceptance(logits, fed)
    return dataclasses.replace(judged, tokens=logits.shape[1] - 1 - logits.flip(1).argmax(1))


def with_acceptance(rule: Acceptance) -> Any:
    copying = type(over_tensors("iad", {}))
    return type("Wrong", (copying,), {"acceptance": lambda *_: rule})()


@pytest.mark.parametrize("rule", [accept_one_too_many, accept_runner_up, last_of_equals])
def test_p1_fails_with_a_wrong_acceptance(rule: Acceptance, device: torch.device) -> None:
    assert mismatches(lambda _: with_acceptance(rule), 500, device, seed=1) > 0


@pytest.mark.parametrize(
    "forgotten",
    [
        {"truncate": lambda scorer, state, lengths: dataclasses.replace(state, lengths=state.lengths)},
        {
            "truncate": lambda scorer, state, lengths: dataclasses.replace(
                state, lengths=state.lengths.minimum(lengths + 1)
            )
        },
        {
            "select": lambda scorer, state, rows: TableScorer.select(
                scorer, state, torch.arange(len(rows), device=rows.device)
            )
        },
        {"join": lambda scorer, first, second: TableScorer.join(scorer, second, first)},
    ],
    ids=["truncates nothing", "truncates one too few", "selects the first rows", "joins in the wrong order"],
)
def test_p1_fails_with_a_wrong_cache(forgotten: dict[str, Any], device: torch.device) -> None:
    def encode(scorer: TableScorer, source: Any, max_len: int) -> Any:
        return TableScorer.encode(scorer, source, 64 * 65)  # room for what is never forgotten

    wrong_scorer = type("WrongScorer", (TableScorer,), {"encode": encode, **forgotten})
    rng = random.Random(1)
    scorer = wrong_scorer(20, seed=1, device=device)
    requests = [random_request(rng, i, 20) for i in range(60)]
    try:
        found = outputs_of(decode(over_tensors("iad", {}), scorer, requests, batch_size=8))
    except AssertionError:
        return  # the scorer noticed
    assert differing(found, plain_greedy(scorer.scores, requests))


# P7: edges.


def edge_request(rng: random.Random, index: int, words: int) -> Request:
    """A source of 0, 1 or 2 words or with eos first, twice or inside, and a limit of a few tokens."""
    word = rng.randrange(4, words)
    source = rng.choice(
        [
            (),
            (word,),
            (EOS,),
            (PAD,),
            (EOS, word),
            (word, EOS, word, word),
            (word, EOS, EOS),
            (EOS, EOS, EOS),
            (word,) * 40,
            tuple(rng.randrange(words) for _ in range(40)),
        ]
    )
    max_len = rng.choice([1, 1, 2, 3, 4, 64])
    prefix = rng.choice([(), (), (), (word,), (EOS,), (word, EOS), (word,) * 10])[:max_len]
    return Request(index, (*source, EOS), max_len, prefix)


@pytest.mark.parametrize("name", LOSSLESS)
def test_p7_edges(name: str, device: torch.device) -> None:
    wrong = 0
    for seed in range(25):
        rng = random.Random(seed)
        scorer = random_table(rng, device)
        requests = [edge_request(rng, i, len(scorer.vocab)) for i in range(20)]
        found = decode(random_strategy(name, rng), scorer, requests, batch_size=rng.randint(1, 8))
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.scores, requests)))
    assert wrong == 0


def test_p7_fails_when_the_limit_is_overlooked(device: torch.device) -> None:
    overlooked = 0
    for seed in range(25):
        rng = random.Random(seed)
        scorer = random_table(rng, device)
        requests = [edge_request(rng, i, len(scorer.vocab)) for i in range(20)]
        longer = [dataclasses.replace(request, max_len=request.max_len + 1) for request in requests]
        found = decode(over_tensors("iad", {}), scorer, longer)
        overlooked += len(differing(outputs_of(found), plain_greedy(scorer.scores, requests)))
    assert overlooked > 0


# P8: garbage drafts.


@dataclasses.dataclass(frozen=True)
class GarbageState:
    sources: Tensor


@dataclasses.dataclass(frozen=True)
class GarbageDrafter(Drafter):
    """Proposes what no drafter should: see `GARBAGE`."""

    kind: str
    words: int
    generator: torch.Generator

    def start(self, source: Source, requests: Sequence[Request]) -> GarbageState:
        return GarbageState(source.lengths)

    def draft(
        self, state: GarbageState, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, GarbageState]:
        tokens, counts = GARBAGE[self.kind](len(lengths), self.words, self.generator)
        return Draft(tokens.to(lengths.device), counts.to(lengths.device)), state


def _ints(low: int, high: int, *shape: int, generator: torch.Generator) -> Tensor:
    return torch.randint(low, high, shape, generator=generator)


Garbage = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]
GARBAGE: dict[str, Garbage] = {
    "random": lambda b, v, g: (_ints(0, v, b, 9, generator=g), _ints(0, 10, b, generator=g)),
    "all pad": lambda b, v, g: (torch.full((b, 7), PAD), torch.full((b,), 7)),
    "all eos": lambda b, v, g: (torch.full((b, 7), EOS), torch.full((b,), 7)),
    "longer than the limit": lambda b, v, g: (_ints(0, v, b, 99, generator=g), torch.full((b,), 99)),
    "length past its tokens": lambda b, v, g: (_ints(0, v, b, 3, generator=g), torch.full((b,), 12)),
    "negative length": lambda b, v, g: (_ints(0, v, b, 3, generator=g), _ints(-9, 4, b, generator=g)),
    "no tokens": lambda b, v, g: (torch.zeros(b, 0, dtype=torch.int64), torch.zeros(b, dtype=torch.int64)),
    "no tokens, yet a length": lambda b, v, g: (torch.zeros(b, 0, dtype=torch.int64), torch.full((b,), 3)),
    "no words": lambda b, v, g: (_ints(-(2**40), 2**40, b, 6, generator=g), torch.full((b,), 6)),
    "words and no words": lambda b, v, g: (_ints(-1, v + 1, b, 6, generator=g), torch.full((b,), 6)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Garbled(DraftAndVerify):
    """Drafts with garbage."""

    kind: str
    words: int
    seed: int

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        return GarbageDrafter(self.kind, self.words, torch.Generator().manual_seed(self.seed))


def garbled_mismatches(kind: str, blocks: int, device: torch.device, rule: Acceptance | None = None) -> int:
    wrong = 0
    for seed in range(blocks):
        rng = random.Random(seed)
        scorer = random_table(rng, device)
        requests = [random_request(rng, i, len(scorer.vocab), 20) for i in range(20)]
        strategy = Garbled(kind=kind, words=len(scorer.vocab), seed=seed)
        if rule is not None:
            object.__setattr__(strategy, "acceptance", lambda *_: rule)
        found = decode(strategy, scorer, requests, batch_size=rng.randint(1, 8))
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.scores, requests)))
    return wrong


@pytest.mark.parametrize("kind", GARBAGE)
def test_p8_garbage_never_changes_the_output(kind: str, device: torch.device) -> None:
    assert garbled_mismatches(kind, 10, device) == 0  # 200 cases a kind


@pytest.mark.parametrize("kind", ["random", "all pad", "all eos"])
def test_p8_fails_when_garbage_is_believed(kind: str, device: torch.device) -> None:
    def believe(logits: Tensor, fed: Fed) -> Judged:
        return dataclasses.replace(argmax_acceptance(logits, fed), stands=fed.drafted >= 0)

    assert garbled_mismatches(kind, 3, device, believe) > 0
