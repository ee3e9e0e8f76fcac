"""Beam search with drafts says what it says without, bit for bit, in fewer passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from realtable import EOS, RealTable, random_transformer
from scripted import ScriptedScorer, ScriptedState, TableScorer, decode
from test_beam import said, textbook
from torch import Tensor

import nartk.decoders.beam as beam_module
from nartk.decoders.beam_drafts import Answers, Successors
from nartk.decoders.tensor_loop import Draft
from nartk.decoders.tree import DraftTree
from nartk.errors import UsageError
from nartk.hypothesis import Request, Result
from nartk.models.transformer_scorer import TransformerScorer
from nartk.registry import make_strategy
from nartk.scorer import Source
from nartk.vocab import Vocab

DRAFTS = ("source", "recycling", "both")


class CopyingTable(RealTable):
    """A real table that favours the source's words, so that hypotheses often go on as it does."""

    def __init__(self, words: int, *, seed: int, bonus: float, device: torch.device | str = "cpu") -> None:
        super().__init__(words, seed=seed, device=device)
        self.bonus, self.patience = int(bonus * 2**13), 2**15


# Drafters of the tests.


@dataclass(frozen=True)
class Garbage:
    """Proposes anything, in trees of any shape, whether they are any or not."""

    generator: torch.Generator

    def start(self, source: Source, requests: list[Request], k: int) -> None:
        pass

    def draft(
        self, state: None, outputs: Tensor, lengths: Tensor, last: Tensor, budget: Tensor
    ) -> tuple[Draft, None]:
        shape = (len(last), 9)
        tokens = torch.randint(-3, 16, shape, generator=self.generator).to(last)
        parents = torch.randint(-2, 9, shape, generator=self.generator).minimum(torch.arange(9) + 1).to(last)
        counts = torch.randint(0, 10, shape[:1], generator=self.generator).to(last)
        return Draft(tokens, counts, parents=parents), None

    def learn(self, last: Tensor, best: Tensor) -> None:
        pass

    def select(self, state: None, rows: Tensor) -> None:
        pass

    def join(self, first: None, second: None) -> None:
        pass


@dataclass(frozen=True)
class Told:
    """The outputs [R,N,T] that a sentence will have."""

    outputs: Tensor


@dataclass(frozen=True)
class Knowing:
    """Proposes all outputs that beam search will give back, as a tree, where they go on as the row does."""

    answers: dict[int, list[tuple[int, ...]]]
    depth: int
    branching: bool

    def start(self, source: Source, requests: list[Request], k: int) -> Told:
        width, count = 80, max(map(len, self.answers.values()))
        told = torch.full((len(requests), count, width), -1)
        for i, request in enumerate(requests):
            for j, output in enumerate(self.answers[request.index]):
                told[i, j, : len(output)] = torch.tensor(output)
        return Told(told.to(source.tokens.device).repeat_interleave(k, 0))

    def draft(
        self, state: Told, outputs: Tensor, lengths: Tensor, last: Tensor, budget: Tensor
    ) -> tuple[Draft, Told]:
        width = outputs.shape[1]
        steps = torch.arange(width, device=last.device)
        fits = (state.outputs[:, :, :width] == outputs[:, None]) | (steps >= lengths[:, None, None])
        index = lengths[:, None] + torch.arange(self.depth, device=last.device)
        index = index.clamp(max=state.outputs.shape[2] - 1)[:, None].expand(-1, state.outputs.shape[1], -1)
        tokens = torch.where(fits.all(2)[:, :, None], state.outputs.gather(2, index), -1)  # [R,N,D]
        counts = (tokens >= 0).cumprod(2).sum(2)
        if self.branching:
            return DraftTree.merge(tokens, counts), state
        best = counts.argmax(1)
        chosen = tokens[torch.arange(len(best), device=best.device), best]
        return Draft(chosen, counts.amax(1)), state

    def learn(self, last: Tensor, best: Tensor) -> None:
        pass

    def select(self, state: Told, rows: Tensor) -> Told:
        return Told(state.outputs[rows])

    def join(self, first: Told, second: Told) -> Told:
        return Told(torch.cat([first.outputs, second.outputs]))


def random_case(rng: random.Random, words: int, count: int) -> tuple[list[Request], dict[str, Any]]:
    k = rng.randint(1, 5)
    options = {
        "beam_size": k,
        "nbest": k,
        "length_penalty": rng.choice([0.0, 0.6, 1.0, 2.0]),
        "no_repeat_ngram": rng.choice([0, 0, 0, 1, 2, 3]),
        "exact": rng.random() < 0.7,
    }
    requests = []
    for i in range(count):
        source = (*(rng.randrange(4, words) for _ in range(rng.randint(0, 12))), EOS)
        longest = rng.choice([1, 2, 5, 16, 16])
        prefix = [rng.randrange(3, words) for _ in range(rng.choice([0, 0, 0, 1, 4]))]
        requests.append(Request(i, source, longest, tuple(prefix[:longest])))
    return requests, options


def differences(
    cases: int,
    make: Callable[[random.Random, int], Any],
    *,
    start: int = 0,
    count: int = 6,
    kinds: tuple[str, ...] = (*DRAFTS, "garbage", "tree", "chain"),
) -> tuple[int, int, int]:
    """Sentences that get other hypotheses, order or bits than without drafts; passes with drafts, without."""
    wrong = passes = plain_passes = 0
    for seed in range(start, start + cases):
        rng = random.Random(seed)
        words = rng.randint(8, 14)
        scorer = make(rng, words)
        requests, options = random_case(rng, words, count)
        plain = decode(make_strategy("beam", options), scorer, requests, batch_size=rng.choice([1, 2, 8]))
        told = {result.index: said(result) for result in plain}
        kind, depth = rng.choice(kinds), rng.randint(1, 6)
        with pytest.MonkeyPatch.context() as patch:
            made: Any = None
            if kind == "garbage":
                made = Garbage(torch.Generator().manual_seed(seed))
            elif kind not in DRAFTS:
                made = Knowing(told, depth, kind == "tree")
            if made is not None:
                patch.setattr(beam_module, "make_beam_drafter", lambda *_, made=made: made)
                strategy = make_strategy("beam", options)
            else:
                strategy = make_strategy("beam", {**options, "draft": kind, "max_draft": depth})
            found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 2, 8]))
        for mine, theirs in zip(found, plain, strict=True):
            wrong += mine.hypotheses != theirs.hypotheses or mine.passes > theirs.passes
            assert 0 <= mine.accepted <= mine.drafted
            passes, plain_passes = passes + mine.passes, plain_passes + theirs.passes
    return wrong, passes, plain_passes


def make_table(rng: random.Random, words: int, device: torch.device | str = "cpu") -> ScriptedScorer:
    if rng.random() < 0.3:  # scores that tie
        return TableScorer(words, seed=rng.getrandbits(30), spread=rng.choice([2, 5]), device=device)
    table = CopyingTable(words, seed=rng.getrandbits(30), bonus=rng.choice([0, 4, 8, 12]), device=device)
    if rng.random() < 0.2:
        table.verify_tree = None  # type: ignore[method-assign, assignment]
    return table


def test_drafts_change_no_hypothesis_and_take_no_more_passes(device: torch.device) -> None:
    wrong, passes, plain_passes = differences(45, lambda rng, words: make_table(rng, words, device))
    assert wrong == 0
    assert passes < 0.9 * plain_passes


@pytest.mark.slow
def test_drafts_change_no_hypothesis_in_many_cases(device: torch.device) -> None:
    wrong, _, _ = differences(3000, lambda rng, words: make_table(rng, words, device), start=1000)
    assert wrong == 0


def best_known(self: Answers, rows: Tensor, columns: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    found, known = CHILD(self, rows, columns, words)
    return found, known[:, :1].expand_as(known)


def any_parent(self: Answers, rows: Tensor, columns: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    found = (self.parents[rows] >= 0) & (self.tokens[rows] == words[..., None])
    return found.long().argmax(2), found.any(2)


def row_of_its_own(self: Answers, rows: Tensor, columns: Tensor) -> Tensor:
    own = torch.arange(len(rows), device=rows.device)
    return AFTER(self, own, columns)


def stays(self: Answers, scorer: Any, rows: Tensor, columns: Tensor, lengths: Tensor) -> Any:
    alike = len(rows) == len(self.begins)
    return KEEP(self, scorer, torch.arange(len(rows)) if alike else rows, columns, lengths)


def first_way(self: Answers, scorer: Any, rows: Tensor, columns: Tensor, lengths: Tensor) -> Any:
    if self.tree is not None:
        depth = self.tree.tree.depths[rows, columns]
        same = self.tree.tree.depths[rows] == depth[:, None]
        columns = same.long().argmax(1)
    return KEEP(self, scorer, rows, columns, lengths)


CHILD, AFTER, KEEP = Answers.child, Answers.after, Answers.keep


@pytest.mark.parametrize(
    ("method", "wrong_method", "kinds"),
    [
        ("child", best_known, ("source", "tree")),
        ("child", any_parent, ("tree",)),
        ("after", row_of_its_own, ("source", "tree")),
        ("keep", stays, ("source", "tree")),
        ("keep", first_way, ("tree",)),
    ],
    ids=[
        "goes on if the best is known",
        "takes a word from elsewhere in the tree",
        "asks of the row that the hypothesis has now",
        "keeps the order of rows",
        "keeps any way of the right length",
    ],
)
def test_a_wrong_replay_shows(
    method: str, wrong_method: Any, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, method, wrong_method)

    def make(rng: random.Random, words: int) -> ScriptedScorer:
        return CopyingTable(words, seed=rng.getrandbits(30), bonus=6)

    def shows(seed: int) -> bool:
        try:
            return differences(1, make, start=seed, kinds=kinds)[0] > 0
        except (AssertionError, IndexError):  # of the scorer, which was fed nonsense
            return True

    assert any(shows(seed) for seed in range(40))


def test_it_is_the_textbooks_beam_search(device: torch.device) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        table = RealTable(rng.randint(6, 12), seed=rng.getrandbits(40), device=device)
        k, draft = rng.randint(1, 5), rng.choice(DRAFTS)
        requests = [
            Request(i, (*(rng.randrange(4, len(table.vocab)) for _ in range(rng.randint(0, 9))), EOS), 9)
            for i in range(5)
        ]
        strategy = make_strategy("beam", {"beam_size": k, "nbest": k, "draft": draft, "max_draft": 2})
        for request, result in zip(requests, decode(strategy, table, requests), strict=True):
            wanted = textbook(table, request, k, 1.0, 0)
            assert said(result) == [output for _, output in wanted]
            scores = [hypothesis.score for hypothesis in result.hypotheses]
            assert scores == pytest.approx([score for score, _ in wanted], abs=1e-4)


# By hand.


class TwoBeginnings(ScriptedScorer):
    """Copies the source, whose first word may also be said as word 5; then says eos."""

    def state_scores(self, state: ScriptedState, rows: Tensor, lengths: Tensor) -> Tensor:
        sources = state.sources[rows]
        word = sources.gather(1, (lengths - 1).clamp(max=sources.shape[1] - 1)[:, None]).squeeze(1)
        scores = 40 * F.one_hot(word, len(self.vocab))
        scores[:, 5] += 39 * (lengths == 1)
        return scores


@pytest.mark.parametrize(("k", "draft", "passes"), [(1, "source", 3), (2, "source", 4), (2, "both", 4)])
def test_passes_where_the_source_is_copied(k: int, draft: str, passes: int, device: torch.device) -> None:
    words = tuple(range(10, 19))  # nine, and eos
    scorer = TwoBeginnings(20, device=device)
    strategy = make_strategy("beam", {"beam_size": k, "nbest": k, "draft": draft})
    (result,) = decode(strategy, scorer, [Request(0, (*words, EOS), 30)], trace=True)
    assert said(result) == [(*words, EOS), (5, *words[1:], EOS)][:k]
    assert result.passes == passes
    trace = result.hypotheses[0].trace
    assert trace is not None
    # One hypothesis: three drafted words and the verifier's own, four times over. Two: the first pass
    # settles the first word alone, since word 5 is not drafted.
    wanted = "dddvdddvdv" if k == 1 else "vdddvdddvv"
    assert "".join(each.origin[0] for each in trace) == wanted
    at = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3] if k == 1 else [1, 2, 2, 2, 2, 3, 3, 3, 3, 4]
    assert [each.verifier_pass for each in trace] == at
    if draft == "source":
        assert (result.drafted, result.accepted) == ((7, 7) if k == 1 else (3 + 6 + 6, 12))


def test_without_drafts_every_token_takes_a_pass(device: torch.device) -> None:
    (result,) = decode(
        make_strategy("beam", {"beam_size": 2}),
        TwoBeginnings(20, device=device),
        [Request(0, (9, 8, EOS), 9)],
    )
    assert (result.passes, result.drafted, result.accepted) == (3, 0, 0)


def test_successors_are_the_last_ones_seen() -> None:
    rng = random.Random(0)
    known = Successors(9, EOS, "cpu")
    twin: dict[int, list[int]] = {}
    for _ in range(30):
        last = [rng.randrange(9) for _ in range(5)]
        best = [rng.sample(range(9), 3) for _ in last]
        known.learn(torch.tensor(last), torch.tensor(best))
        for token, words in reversed(list(zip(last, best, strict=True))):
            twin[token] = words[:2]
        assert known.table.tolist() == [twin.get(token, [-1, -1]) for token in range(10)]
    chain = known.chain(torch.tensor([4, 7]), 3).tolist()
    for first, row in zip((4, 7), chain, strict=True):
        for word in row:
            assert word == twin[first][0]
            first = word


def test_drafts_that_nobody_makes_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("beam", {"max_draft": 7})
    assert caught.value.message == "--max-draft is 7, but nothing is drafted"
    assert caught.value.fix == "choose what with --draft: source, recycling or both"


# With a network.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_a_network_the_bits_are_the_same(dtype: torch.dtype, device: torch.device) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(40)])
    scorer = TransformerScorer(random_transformer(3, len(vocab)), vocab, device=device, dtype=dtype)
    rng = random.Random(1)
    requests = [
        Request(i, (*(rng.randrange(4, 44) for _ in range(rng.randint(1, 9))), EOS), 14) for i in range(5)
    ]
    for k, draft, batch in ((1, "source", 2), (3, "both", 8), (5, "tree", 1), (4, "tree", 2)):
        options = {"beam_size": k, "nbest": k}
        plain = decode(make_strategy("beam", options), scorer, requests, batch_size=3)
        found = with_drafts(scorer, requests, options, draft, plain, batch)
        assert [result.hypotheses for result in found] == [result.hypotheses for result in plain]
        if draft == "tree":
            assert sum(r.passes for r in found) < sum(r.passes for r in plain)


def test_in_fast_mode_scores_are_nearly_the_same(device: torch.device) -> None:
    vocab = Vocab.from_words([f"w{i}" for i in range(40)])
    scorer = TransformerScorer(random_transformer(3, len(vocab)), vocab, device=device)
    requests = [Request(i, (4 + i, 9, 20 + i, EOS), 14) for i in range(5)]
    for draft in ("both", "tree"):
        options = {"beam_size": 4, "nbest": 4, "exact": False}
        plain = decode(make_strategy("beam", options), scorer, requests, batch_size=3)
        found = with_drafts(scorer, requests, options, draft, plain, 2)
        for mine, theirs in zip(found, plain, strict=True):
            assert said(mine) == said(theirs)
            for one, other in zip(mine.hypotheses, theirs.hypotheses, strict=True):
                assert one.positional_scores == pytest.approx(other.positional_scores, abs=1e-4)


def with_drafts(
    scorer: Any, requests: list[Request], options: dict[str, Any], draft: str, plain: list[Result], batch: int
) -> list[Result]:
    if draft != "tree":
        return decode(make_strategy("beam", {**options, "draft": draft}), scorer, requests, batch_size=batch)
    told = {result.index: said(result) for result in plain}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_module, "make_beam_drafter", lambda *_: Knowing(told, 4, True))
        return decode(make_strategy("beam", options), scorer, requests, batch_size=batch)
