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
from scripted import ScriptScorer, TableScorer, decode, differing, outputs_of, plain_greedy
from test_tree import ways_of
from torch import Tensor

from nartk.decoders.ngram_draft import NgramCache
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


# ngram


class Texts:
    """The twin: all texts in the order of their sentences, each with the place before its first word."""

    def __init__(self, max_ngram: int, max_draft: int) -> None:
        self.max_ngram, self.max_draft = max_ngram, max_draft
        self.texts: list[tuple[int, list[int]]] = []
        self.outputs: dict[int, list[int]] = {}

    def begin(self, owner: int, source: Sequence[int]) -> None:
        self.outputs[owner] = [-2]
        self.texts += [(owner, [-2, *source]), (owner, self.outputs[owner])]

    def propose(self, owner: int) -> list[int]:
        output = self.outputs[owner]
        for n in range(min(self.max_ngram, len(output)), 0, -1):
            for own in (True, False):
                for of, text in reversed(self.texts):
                    if own and of != owner:
                        continue
                    for i in reversed(range(len(text) - n)):
                        if text[i : i + n] == output[-n:] and text[i + n] >= 0:
                            found = [*text[i + n : i + n + self.max_draft], -1]
                            return found[: found.index(-1)]
        return []


def ngram_mismatches(make: type[NgramCache], seeds: int, device: torch.device) -> int:
    """How often a cache proposes otherwise than the twin, for rows that come, grow and go."""
    wrong = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        words, size = rng.choice([7, 9, 14]), (rng.randint(1, 5), rng.choice([1, 3, 6]))
        unmapped = torch.arange(words, device=device)
        unmapped[-1] = -1
        cache, twin = make(unmapped, words, *size, slots=1 << 20), Texts(*size)
        state: Any = None
        outputs: dict[int, list[int]] = {}
        for step in range(14):
            if step % 3 == 0:
                sources = [
                    rng.choices(range(4, words), k=rng.randint(0, 9)) for _ in range(rng.randint(1, 3))
                ]
                new = [Request(step * 10 + i, (*source, EOS), 40) for i, source in enumerate(sources)]
                fresh = cache.start(source_of(new, device), new)
                state = fresh if state is None else cache.join(state, fresh)
                for request, source in zip(new, sources, strict=True):
                    outputs[request.index] = []
                    twin.begin(request.index, [-1 if word == words - 1 else word for word in source])
            elif len(outputs) > 4:
                gone = rng.randrange(len(outputs))
                kept = [i for i in range(len(outputs)) if i != gone]
                state = cache.select(state, torch.tensor(kept, device=device))
                del outputs[list(outputs)[gone]]
            for owner, output in outputs.items():
                # As much as a draft and the verifier's token, some of it as the twin proposes.
                grown = twin.propose(owner)[: rng.randint(0, size[1])] if output else []
                grown += rng.choices(range(4, words), k=rng.randint(0 if grown else 1, size[1] + 1))
                grown = grown[: size[1] + 1]
                if len(output) + len(grown) <= 40 and step % 3:
                    output += grown
                    twin.outputs[owner] += grown
            state, found = drafted(cache, state, list(outputs.values()), words, device)
            wrong += len(differing(found, [twin.propose(owner) for owner in outputs]))
    return wrong


def test_the_cache_proposes_as_its_twin(device: torch.device) -> None:
    assert ngram_mismatches(NgramCache, 30, device) == 0


class OthersFirst(NgramCache):
    """Known to be wrong: a text of any sentence counts as much as the row's own."""

    def _keys(self, before: Tensor, salts: Tensor) -> Tensor:
        return super()._keys(before, torch.zeros_like(salts))


class OldestFirst(NgramCache):
    """Known to be wrong: what stood first stays."""

    def _write(self, *what: Tensor) -> tuple[Tensor, Tensor]:
        before = self.table.clone()
        written = super()._write(*what)
        self.table = torch.where(before > 0, before, self.table)
        return written


@pytest.mark.parametrize("make", [OthersFirst, OldestFirst])
def test_the_comparison_fails_with_another_order(make: type[NgramCache], device: torch.device) -> None:
    assert ngram_mismatches(make, 10, device) > 0


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


def test_ngram_passes_by_hand(device: torch.device) -> None:
    # 4, 5, 6 and 4 come from the verifier; after 4, 5 6 4 stood before, then comes 5; after 5, 6 4 5.
    again = [4, 5, 6, 4, 5, 6, 4, 5, 6]
    assert passes(make_strategy("ngram", {}), [again], device) == [6]
    # With one token a draft: 4, 5, 6, 4, [5] 6, [4] 5, [6] eos.
    assert passes(make_strategy("ngram", {"max_draft": 1}), [again], device) == [7]
    # The second sentence begins with its source, which is wrong, and goes on with what the first one said.
    said = [4, 5, 6, 7, 8, 9]
    assert passes(make_strategy("ngram", {}), [said, said], device) == [7, 2]
    assert passes(forgetting("ngram"), [said, said], device) == [7, 7]
    assert passes(make_strategy("ngram", {"max_draft": 0}), [said, said], device) == [7, 7]


def test_ngram_copies_the_source(device: torch.device) -> None:
    source = (*range(4, 14), EOS)
    scorer = ScriptScorer(20, {source: source}, device=device)
    (result,) = decode(make_strategy("ngram", {}), scorer, [Request(0, source, 40)])
    assert (result.passes, result.drafted, result.accepted) == (1, 10, 10)


def test_a_run_forgets_the_one_before(device: torch.device) -> None:
    for name in ("ngram", "recycling"):
        strategy = make_strategy(name, {})
        first, second = (passes(strategy, [[4, 5, 6, 7], [4, 5, 6, 7]], device) for _ in range(2))
        assert first == second
        assert first[1] < first[0]


def test_memory_is_bounded_and_the_output_stays(device: torch.device) -> None:
    """A ring of fewer cells than a sentence needs, and a table of few slots."""
    made: list[NgramCache] = []

    def small(strategy: Any, scorer: Any) -> NgramCache:
        made.append(NgramCache(scorer.source_to_target, len(scorer.vocab), 4, 10, cells=64, slots=16))
        return made[-1]

    strategy = type("Small", (type(make_strategy("ngram", {})),), {"new_drafter": small})()
    rng = random.Random(0)
    for seed in range(6):
        scorer = TableScorer(12, seed=seed, device=device)
        requests = [
            Request(i, (*rng.choices(range(4, 12), k=rng.randint(0, 50)), EOS), rng.choice([5, 60]))
            for i in range(40)
        ]
        found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 2, 8]))
        assert outputs_of(found) == plain_greedy(scorer.scores, requests)
        assert sum(result.accepted for result in found) > 0
    assert {(cache.text.numel(), cache.table.numel()) for cache in made} == {(65, 16)}


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
