"""Drafters that learn while they decode: what they propose, and how many passes that takes.

The oracles are plain Python twins, which search the texts or keep a dictionary, and cases worked by hand.
That the output stays greedy search's is shown with all other strategies in test_promises_algorithm.py and
test_promises_exact.py.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scripted import ScriptScorer, TableScorer, decode, outputs_of, plain_greedy
from test_tree import ways_of
from torch import Tensor

from nartk.decoders.recycling import Recycler
from nartk.decoders.tensor_loop import Draft, Fed, pad_rows
from nartk.decoders.tree import chained, prune
from nartk.errors import UsageError
from nartk.hypothesis import Request, Result
from nartk.registry import make_strategy
from nartk.scorer import Source

PAD, EOS = 1, 2


def source_of(requests: Sequence[Request], device: torch.device) -> Source:
    lengths = torch.tensor([len(request.source) for request in requests], device=device)
    return Source(pad_rows([request.source for request in requests], PAD).to(device), lengths)


def drafted(
    drafter: Any, state: Any, outputs: Sequence[Sequence[int]], words: int, device: torch.device
) -> tuple[Any, list[list[int]]]:
    """The drafter's next state, and what it proposes after each row's output."""
    lengths = torch.tensor([len(output) for output in outputs], device=device)
    room = [[*output, *[PAD] * (40 - len(output))] for output in outputs]
    draft, state = drafter.draft(state, torch.tensor(room, device=device), lengths, lengths + 40)
    found = []
    for tokens, length in zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True):
        tokens = [*tokens[:length], -1]
        found.append(tokens[: next(i for i, token in enumerate(tokens) if not 0 <= token < words)])
    return state, found


def scripted(
    strategy: Any, outputs: Sequence[Sequence[int]], device: torch.device, *, batch_size: int = 1
) -> list[Result]:
    """Decodes each output behind a source of other words, each a little shorter than the one before."""
    count = len(outputs)
    sources = [(*(20 + i for _ in range(count - i)), EOS) for i in range(count)]
    script = dict(zip(sources, ([*output, EOS] for output in outputs), strict=True))
    scorer = ScriptScorer(20 + count, script, width=1, device=device)  # each in a bucket of its own
    requests = [Request(i, source, 40) for i, source in enumerate(sources)]
    results = decode(strategy, scorer, requests, batch_size=batch_size)
    assert outputs_of(results) == list(script.values())
    return results


def forgetting(name: str) -> Any:
    """Known to be wrong: begins anew with each batch."""
    cls = type(make_strategy(name, {}))
    return type("Forgetting", (cls,), {"make_drafter": cls.new_drafter})()


def passes(strategy: Any, outputs: Sequence[Sequence[int]], device: torch.device) -> list[int]:
    return [result.passes for result in scripted(strategy, outputs, device)]


def test_a_run_forgets_the_one_before(device: torch.device) -> None:
    strategy = make_strategy("recycling", {})
    first, second = (passes(strategy, [[4, 5, 6, 7], [4, 5, 6, 7]], device) for _ in range(2))
    assert first == second
    assert first[1] < first[0]


# recycling


def recycled(ranked: dict[int, list[int]], last: int, shape: Sequence[int], longest: int) -> list[list[int]]:
    """The twin: the ways, level by level, of which after the shape's end the first alone is followed."""
    found: list[list[int]] = []
    level = [[last]]
    for depth in range(longest):
        if depth >= len(shape):
            level = level[:1]
        grown = []
        for way in level:
            fresh = [word for word in ranked.get(way[-1], []) if word not in way]
            # A way that has ended keeps its place, so that no other is followed for it.
            some = fresh[: shape[depth] if depth < len(shape) else 1] or ([-1] if way is level[0] else [])
            grown += [[*way, word] for word in some]
        level = grown
        found += [way[1:] for way in level if -1 not in way]
    return found


def random_fed(rng: random.Random, first: int, words: int, longest: int) -> tuple[list[int], list[int]]:
    """Tokens that are fed in a row, and which of them each follows."""
    tokens = [first, *rng.choices(range(words), k=rng.randint(0, longest))]
    return tokens, [-1, *(rng.randrange(max(0, i - rng.choice([1, 3])), i) for i in range(1, len(tokens)))]


def recycling_mismatches(make: type[Recycler], seeds: int, device: torch.device) -> int:
    """How often a recycler proposes otherwise than a dictionary of the last ranking after each word."""
    wrong = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        words, k, longest = rng.randint(6, 14), rng.randint(1, 16), rng.randint(0, 5)
        shape = [] if seed % 3 == 0 else rng.choices([1, 2, 3], k=rng.randint(1, 4))
        recycler = make(words, EOS, k, longest, device, shape=shape)
        ranked: dict[int, list[int]] = {}
        batch = rng.randint(1, 4)
        requests = [Request(i, (EOS,), 40) for i in range(batch)]
        state = recycler.start(source_of(requests, device), requests)
        outputs: list[list[int]] = [[] for _ in requests]
        for _ in range(6):
            lengths = torch.tensor([len(output) for output in outputs], device=device)
            room = torch.tensor([[*output, *[PAD] * (40 - len(output))] for output in outputs], device=device)
            draft, state = recycler.draft(state, room, lengths, lengths + 40)
            draft = dataclasses.replace(draft, parents=chained(draft))
            draft, _ = prune(draft, words, torch.full_like(lengths, longest), branching=True)
            for row, output in enumerate(outputs):
                wanted = recycled(ranked, output[-1] if output else EOS, shape, longest)
                wrong += ways_of(draft, row) != list(map(tuple, wanted))
            rows, fed, drafted, logits = [], [], [], []
            for row, output in enumerate(outputs):
                tokens, parents = random_fed(rng, output[-1] if output else EOS, words, longest)
                for i, token in enumerate(tokens):
                    order = rng.sample(range(words), words)
                    ranked[token] = order[:k]
                    logits.append([float(-order.index(word)) for word in range(words)])
                    drafted.append(next((tokens[j] for j in range(i, len(tokens)) if parents[j] == i), -1))
                rows += [row] * len(tokens)
                fed += tokens
                output += rng.choices(range(words), k=rng.randint(1, 3))
            owner, after, tokens_fed = (torch.tensor(x, device=device) for x in (rows, drafted, fed))
            at = Fed(owner, torch.zeros_like(owner), after, owner, tokens=tokens_fed)
            state = recycler.observe(state, torch.tensor(logits, device=device), at)
    return wrong


def test_recycling_proposes_as_its_twin(device: torch.device) -> None:
    assert recycling_mismatches(Recycler, 60, device) == 0


class OneTooFar(Recycler):
    """Known to be wrong: takes the candidates for those after the drafted word."""

    def observe(self, state: Any, logits: Tensor, fed: Fed) -> Any:
        return super().observe(state, logits, dataclasses.replace(fed, tokens=fed.drafted.clamp(min=0)))


class Rolls(Recycler):
    """Known to be wrong in a tree: takes what was drafted at a place for what is fed at the next."""

    def observe(self, state: Any, logits: Tensor, fed: Fed) -> Any:
        assert fed.tokens is not None
        begins = fed.rows != fed.rows.roll(1)
        tokens = torch.where(begins, fed.tokens, fed.drafted.roll(1).clamp(min=0))
        return super().observe(state, logits, dataclasses.replace(fed, tokens=tokens))


class Repeats(Recycler):
    """Known to be wrong: drafts words again that lie on the way."""

    def draft(self, state: Any, outputs: Tensor, lengths: Tensor, budget: Tensor) -> tuple[Draft, Any]:
        draft, state = super().draft(state, outputs, lengths, budget)
        return dataclasses.replace(draft, tokens=self.candidates[draft.tokens][..., 0]), state


@pytest.mark.parametrize("make", [OneTooFar, Rolls, Repeats])
def test_the_recycling_comparison_fails(make: type[Recycler], device: torch.device) -> None:
    assert recycling_mismatches(make, 10, device) > 0


def test_recycling_passes_by_hand(device: torch.device) -> None:
    # 4, 5, 6 and 4 come from the verifier; then 5 6 are drafted, but not 4, with which the chain began.
    again = [4, 5, 6, 4, 5, 6, 4, 5, 6]
    assert passes(make_strategy("recycling", {"k": 1}), [again], device) == [6]
    # The second sentence follows the first one's words: 4 to 8, then 9, then eos.
    said = [4, 5, 6, 7, 8, 9]
    assert passes(make_strategy("recycling", {"k": 1, "max_draft": 5}), [said, said], device) == [7, 2]
    assert passes(forgetting("recycling"), [said, said], device) == [7, 7]
    assert passes(make_strategy("recycling", {"max_draft": 0}), [said, said], device) == [7, 7]


class SaysSecond(ScriptScorer):
    """Ranks a word second everywhere, as its script has it after each token."""

    def state_scores(self, state: Any, rows: Tensor, lengths: Tensor) -> Tensor:
        scores = 3 * super().state_scores(state, rows, lengths)
        last = state.cache[rows, lengths - 1]
        second = torch.where(last == EOS, 4, torch.where(last == 4, 6, 0))
        scores[torch.arange(len(rows), device=rows.device), second] += 2
        return scores


def test_a_tree_takes_the_second_candidates_by_hand(device: torch.device) -> None:
    """After 4, 5 was best and 6 the second; the next sentence says 4 6 7 8.

    Its passes as a chain: 4 is drafted, 5 falls to 6; after 6, 7 is unknown; after 7, 8 is; then eos. As a
    tree of 2 at the second level, 4 6 stand at once.
    """
    first, second = (20, 20, EOS), (21, EOS)
    script = {first: [4, 5, EOS], second: [4, 6, 7, 8, EOS]}
    for tree, wanted in (("", 4), ("1x2", 3)):
        scorer = SaysSecond(22, script, width=1, device=device)
        strategy = make_strategy("recycling", {"k": 2, "tree": tree})
        results = decode(
            strategy, scorer, [Request(0, first, 20), Request(1, second, 20)], batch_size=1, trace=True
        )
        assert outputs_of(results) == list(script.values())
        assert results[1].passes == wanted


def test_no_shape_is_refused_before_the_run() -> None:
    with pytest.raises(UsageError, match="tree '4x' is no shape"):
        make_strategy("recycling", {"tree": "4x"})


def test_more_candidates_than_words(device: torch.device) -> None:
    scorer = TableScorer(8, seed=1, device=device)
    requests = [Request(i, (4, 5, EOS), 20) for i in range(3)]
    found = decode(make_strategy("recycling", {"k": 50}), scorer, requests)
    assert outputs_of(found) == plain_greedy(scorer.scores, requests)
