"""The draft-and-verify loop over passes: greedy search's output whatever is drafted, and nothing left behind.

The references are a textbook loop and plain Python twins that share no code with nartk. Each safeguard comes
with a variant that is known to be wrong and must fail the same check.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.constraints import constrained_greedy, random_rules
from support.pass_strategies import (
    Drafting,
    MakeDrafter,
    OneTooMany,
    Proposes,
    RunnerUp,
    given_drafts,
    ngram_cache,
    only,
    paths_of,
    proposing,
    source_copy,
)
from support.scripted_passes import (
    EOS,
    PAD,
    ScriptPasses,
    Table,
    TablePasses,
    decode,
    differing,
    edge_request,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)
from support.sizes import FACTOR, cases

from nartk.decoders.drafters.union import Union
from nartk.decoders.loop.acceptance import ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.drafter import Draft, verifiable
from nartk.decoders.loop.rows import Row
from nartk.decoders.loop.trees import merged
from nartk.errors import PassError
from nartk.protocols.hypothesis import Request, Result, TokenTrace
from nartk.protocols.passes import ROOT
from nartk.protocols.runs import Batching
from nartk.registry import make_strategy

BATCHES = (1, 2, 3, 8, 32)


# P8: garbage drafts, chains and trees. It is never believed.


def garbage(kind: str, rng: random.Random, words: int) -> Callable[[Row], Draft]:
    width, bushy = rng.choice([1, 2, 6, 12, 30]), rng.choice([1, 2, 40])
    nothing = np.full((width, words), np.nan, np.float32)

    def tokens(row: Row) -> list[int]:
        low, high = {"few words": (4, 7), "no words": (-2, words + 3)}.get(kind, (0, words))
        source = row.request.source
        at = len(row.tokens)
        copied = [source[min(at + rng.randrange(3), len(source) - 1)] for _ in range(width)]
        return [word if rng.random() < 0.7 else rng.randrange(low, max(high, low + 1)) for word in copied]

    def draft(row: Row) -> Draft:
        count = rng.randint(0, width)
        near = [max(ROOT, i - 1 - rng.randrange(bushy)) for i in range(width)]
        any_parents = [rng.randrange(-9, width + 9) for _ in range(width)]
        return {
            "chain": lambda: Draft(tokens(row)[:count]),
            "tree": lambda: Draft(tokens(row), near),
            "few words": lambda: Draft([rng.randrange(4, min(7, words)) for _ in range(width)], near),
            "no words": lambda: Draft([rng.randrange(-(2**40), 2**40) for _ in range(width)], near),
            "words and no words": lambda: Draft([rng.randrange(-1, words + 1) for _ in range(width)], near),
            "wrong parents": lambda: Draft(tokens(row), any_parents),
            "too few parents": lambda: Draft(tokens(row), near[: width // 2]),
            "too many parents": lambda: Draft(tokens(row), [*near, 0, 1, 2]),
            "all pad": lambda: Draft([PAD] * width),
            "all eos": lambda: Draft([EOS] * width, near),
            "longer than the limit": lambda: Draft([*tokens(row), *tokens(row)] * 9),
            "nothing": lambda: Draft(),
            "nan": lambda: Draft([float("nan"), *tokens(row)]),  # type: ignore[list-item]
            "nan distributions": lambda: Draft(tokens(row), None, [math.nan] * width, nothing),
            "too few distributions": lambda: Draft(tokens(row), any_parents, [0.0], nothing[:1]),
        }[kind]()

    return draft


GARBAGE = (
    "chain",
    "tree",
    "few words",
    "no words",
    "words and no words",
    "wrong parents",
    "too few parents",
    "too many parents",
    "all pad",
    "all eos",
    "longer than the limit",
    "nothing",
    "nan",
    "nan distributions",
    "too few distributions",
)


def counted(results: Sequence[Result]) -> Counter[str]:
    return Counter(
        {
            "accepted": sum(result.accepted for result in results),
            "rejected": sum(result.drafted - result.accepted for result in results),
            "branches": sum(result.branches for result in results),
            "left mid-batch": sum(result.left_mid_batch for result in results),
        }
    )


def mismatches(
    make: Callable[[random.Random, int], Proposes], count: int, *, longest: int = 30, size: int | None = None
) -> tuple[int, Counter[str]]:
    """How many random sentences a strategy decodes otherwise than greedy search, and what happened."""
    wrong, seen = 0, Counter[str]()
    for seed in range(-(-count // 40)):
        rng = random.Random(f"{seed} {size}")
        scorer = random_table(rng)
        requests = [random_request(rng, i, scorer.table.words, longest) for i in range(40)]
        strategy = make(rng, scorer.table.words)
        batch_size = rng.choice(BATCHES) if size is None else size
        results = decode(strategy, scorer, requests, batch_size=batch_size, trace=seed % 2 == 0)
        wrong += len(differing(outputs_of(results), plain_greedy(scorer.table, requests)))
        seen += counted(results)
    return wrong, seen


def test_the_table_is_what_its_definition_says() -> None:
    rng = random.Random(0)
    for _ in range(100):
        scorer = random_table(rng)
        table, request = scorer.table, random_request(rng, 0, scorer.table.words, 20)
        prefix = [EOS, *(rng.randrange(table.words) for _ in range(rng.randint(0, 20)))]
        found = scorer.scores([request.source], [np.array(prefix)])
        assert found[0].tolist() == table.scores_by_hand(request.source, prefix)


@pytest.mark.parametrize("kind", GARBAGE)
def test_p8_garbage_never_changes_the_output(kind: str) -> None:
    wrong, seen = mismatches(lambda rng, words: proposing(garbage(kind, rng, words)), cases(200))
    assert wrong == 0
    assert seen["left mid-batch"] > 0
    if kind in ("chain", "tree", "wrong parents", "nan distributions", "too few distributions"):
        assert min(seen["accepted"], seen["rejected"]) > 0
    if kind == "tree":
        assert seen["branches"] > 0


def test_p8_garbage_in_a_union_never_changes_the_output() -> None:
    """Of two or three drafters, one of which may be right now and then."""

    def make(rng: random.Random, words: int) -> Proposes:
        kinds = rng.choices(GARBAGE, k=rng.randint(2, 3))
        drafters = [Drafting(garbage(kind, rng, words)) for kind in kinds]
        nodes = rng.choice([1, 8, 96])
        return Proposes(drafter=lambda _: Union(drafters, words=words, max_draft=99, nodes=nodes))

    wrong, seen = mismatches(make, cases(2_000))
    assert wrong == 0
    assert FACTOR < 1 or min(seen.values()) > 0, seen


@pytest.mark.parametrize("size", BATCHES)
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_p1_at_every_batch_size(kind: str, size: int) -> None:
    wrong, seen = mismatches(lambda rng, words: proposing(garbage(kind, rng, words)), 80, size=size)
    assert wrong == 0
    assert seen["accepted"] > 0
    assert (seen["left mid-batch"] > 0) == (size > 1)


DRAFTERS: dict[str, Callable[[random.Random], MakeDrafter]] = {
    "nothing": lambda rng: lambda scorer: None,
    "source": lambda rng: source_copy(rng.choice(["aligned", "unique"]), rng.randint(0, 32)),
    "ngram": lambda rng: ngram_cache(rng.randint(1, 5), rng.randint(0, 32)),
    "small ngram": lambda rng: ngram_cache(grams=16),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_p1_drafters_equal_greedy(name: str) -> None:
    wrong, seen = mismatches(lambda rng, _: Proposes(drafter=DRAFTERS[name](rng)), 400)
    assert wrong == 0
    assert seen["left mid-batch"] > 0
    if name != "nothing":
        assert min(seen["accepted"], seen["rejected"]) > 0


class Believes(ArgmaxAcceptance):
    """Known to be wrong: whatever is drafted is accepted."""

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        if row.draft.parents is not None or not row.draft.tokens:
            return super().verdict(row, verified)
        tokens = [*row.draft.tokens, verified.words[row.node + len(row.draft.tokens)]]
        return Verdict(range(len(row.draft.tokens)), tokens, [0.0] * len(tokens))


@pytest.mark.parametrize("rule", [Believes(), OneTooMany(), RunnerUp()], ids=lambda rule: type(rule).__name__)
def test_p1_fails_with_a_wrong_acceptance(rule: ArgmaxAcceptance) -> None:
    def make(rng: random.Random, words: int) -> Proposes:
        return Proposes(drafter=source_copy(), rule=rule)

    try:
        wrong, _ = mismatches(make, 80)
    except (AssertionError, PassError):
        return  # a position that is none, or a token that was not output, is noticed
    assert wrong > 0


class LastOfEquals(TablePasses):
    """Known to be wrong: of equal scores the last word is best."""

    def scores(self, sources: Any, paths: Any) -> Any:
        return super().scores(sources, paths) + 1e-3 * np.arange(self.table.words)


def test_p1_fails_where_ties_fall_otherwise() -> None:
    scorer, rng = LastOfEquals(Table(20, spread=2, bonus=0)), random.Random(0)
    requests = [random_request(rng, i, 20) for i in range(20)]
    found = outputs_of(decode(Proposes(drafter=source_copy()), scorer, requests))
    assert differing(found, plain_greedy(scorer.table, requests))


class OtherRows(TablePasses):
    """Known to be wrong: commits each row's tokens to another row's context."""

    def run(self, work: Any, want: Any) -> Any:
        swapped = np.where(work.contexts == work.contexts[0], work.contexts[-1], work.contexts)
        swapped = np.where(work.contexts == work.contexts[-1], work.contexts[0], swapped).astype(np.int32)
        return super().run(dataclasses.replace(work, contexts=swapped), want)


def test_p1_fails_with_mixed_contexts() -> None:
    scorer, rng = OtherRows(Table(20)), random.Random(0)
    requests = [random_request(rng, i, 20) for i in range(20)]
    try:
        found = outputs_of(decode(Proposes(), scorer, requests, batch_size=8))
    except (AssertionError, PassError):
        return  # the scorer noticed
    assert differing(found, plain_greedy(scorer.table, requests))


# P7: edges.


@pytest.mark.parametrize("name", [*DRAFTERS, "given"])
def test_p7_edges(name: str) -> None:
    wrong = 0
    for seed in range(25):
        rng = random.Random(seed)
        scorer = random_table(rng)
        requests = [edge_request(rng, i, scorer.table.words) for i in range(20)]
        make = given_drafts() if name == "given" else DRAFTERS[name](rng)
        found = decode(Proposes(drafter=make), scorer, requests, batch_size=rng.randint(1, 8))
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.table, requests)))
    assert wrong == 0


def test_p7_fails_when_the_limit_is_overlooked() -> None:
    rng = random.Random(0)
    scorer = random_table(rng)
    requests = [edge_request(rng, i, scorer.table.words) for i in range(100)]
    longer = [dataclasses.replace(request, max_len=request.max_len + 1) for request in requests]
    found = decode(Proposes(drafter=source_copy()), scorer, longer)
    assert differing(outputs_of(found), plain_greedy(scorer.table, requests))


# Drafts that branch, by hand.

OUTPUT = [5, 6, 7, 8, 9, EOS]
SCRIPT = {(4, EOS): OUTPUT}


def test_what_cannot_be_verified_is_cut_by_hand() -> None:
    """Words are 0 to 9. 5 > 6 > 7, a word that is none, one under it, a wrong parent, and 5 again."""
    draft = Draft([5, 6, 99, 7, 8, 3, 5, 4], [-1, 0, -1, 1, 2, 7, -1, 6])
    for budget, tokens, parents in (
        (9, [5, 6, 7, 5, 4], [-1, 0, 1, -1, 3]),
        (2, [5, 6, 5, 4], [-1, 0, -1, 2]),
        (0, [], []),
    ):
        found = verifiable(draft, 10, budget)
        assert (found.tokens, found.parents) == (tokens, parents)
    assert verifiable(Draft([5, 6, -1, 7]), 10, 9).tokens == [5, 6]
    assert verifiable(Draft([5, 6, 7]), 10, 2).tokens == [5, 6]


def test_numbers_of_a_draft_go_with_its_tokens() -> None:
    logits = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = verifiable(Draft([5, 99, 6], [-1, -1, 0], [0.1, 0.2, 0.3], logits), 10, 9)
    assert found.log_probs == [0.1, 0.3]
    assert found.logits is not None
    assert found.logits.tolist() == [[0, 1], [4, 5]]


def test_drafts_are_merged_as_a_trie() -> None:
    """Oracle: the paths in their order, each once."""
    rng, chains, trees = random.Random(1), 0, 0
    for _ in range(200):
        drafts = []
        for _ in range(rng.randint(1, 5)):
            count, is_chain = rng.randint(0, 6), rng.random() < 0.5
            parents = None if is_chain else [rng.randrange(-1, i) for i in range(count)]
            drafts.append(Draft(rng.choices(range(3), k=count), parents, passes=rng.randrange(3)))
            chains, trees = chains + is_chain, trees + (not is_chain)
        most = rng.choice([99, rng.randint(1, 12)])
        tree = merged(drafts, most=most)
        assert paths_of(tree) == [*dict.fromkeys(path for each in drafts for path in paths_of(each))][:most]
        assert tree.passes == sum(draft.passes for draft in drafts)
    assert min(chains, trees) > 99


def test_a_tree_with_the_right_draft_takes_one_pass() -> None:
    drafts = [[5, 6, 1, 1, 1], [5, 6, 7, 1, 9], [3, 6, 7, 8, 9], [5, 6, 7, 8, 9]]
    nodes = len({tuple(draft[:end]) for draft in drafts for end in range(1, 6)})
    (result,) = decode(only(drafts), ScriptPasses(10, SCRIPT), [Request(0, (4, EOS), 20)], trace=True)
    assert list(result.hypotheses[0].tokens) == OUTPUT
    assert (result.passes, result.drafted, result.accepted) == (1, nodes, 5)
    assert result.branches == 2  # 7 beside 1, and 8 beside 1
    assert result.hypotheses[0].trace == (
        *[TokenTrace("draft", 1, 1.0)] * 5,
        TokenTrace("verifier", 1, 1.0),
    )


def test_eos_in_a_tree_ends_the_output() -> None:
    drafts = [[5, EOS], [5, 6, 7, 8, 9, EOS, 5], [5, 6, EOS]]
    (result,) = decode(only(drafts), ScriptPasses(10, SCRIPT), [Request(0, (4, EOS), 20)], trace=True)
    assert list(result.hypotheses[0].tokens) == OUTPUT
    assert (result.passes, result.drafted, result.accepted) == (1, 9, 6)
    assert result.hypotheses[0].trace == (TokenTrace("draft", 1, 1.0),) * 6


def test_the_limit_cuts_a_tree_by_its_depth() -> None:
    for limit, drafted in ((1, 0), (2, 2), (3, 4), (4, 6), (5, 8)):
        requests = [Request(0, (4, EOS), limit)]
        (result,) = decode(only([[4, 4, 4, 4], [5, 6, 7, 8]]), ScriptPasses(10, SCRIPT), requests)
        assert list(result.hypotheses[0].tokens) == OUTPUT[:limit]
        assert (result.passes, result.drafted, result.accepted) == (1, drafted, limit - 1)


def test_drafts_follow_a_forced_prefix() -> None:
    """Forced 4 4, after which the script has pad: of 5 6 7, 4 3 and pad 3 a token of the last is accepted."""
    request = Request(0, (4, EOS), 4, (4, 4))
    drafts = merged([Draft([5, 6, 7]), Draft([4, 3]), Draft([PAD, 3])], most=99)
    strategy = proposing(lambda row: drafts if row.tokens == [4, 4] else Draft())
    (result,) = decode(strategy, ScriptPasses(10, SCRIPT), [request], trace=True)
    assert result.hypotheses[0].tokens == (4, 4, PAD, PAD)
    assert (result.passes, result.accepted) == (1, 1)
    assert result.hypotheses[0].trace is not None
    assert [each.origin for each in result.hypotheses[0].trace] == ["prefix", "prefix", "draft", "verifier"]


def test_a_pass_holds_what_the_protocol_says() -> None:
    """Two rows: of 5 6 and 5 7 8, and of 4, whose columns are written down here."""
    script = {(4, 4, EOS): [5, 7, 8, 9, EOS], (3, EOS): [6, EOS]}
    drafts = {0: merged([Draft([5, 6]), Draft([5, 7, 8])], most=9), 1: Draft([4])}
    scorer = ScriptPasses(10, script)
    requests = [Request(0, (4, 4, EOS), 9), Request(1, (3, EOS), 9)]
    strategy = proposing(lambda row: Draft() if row.tokens else drafts[row.request.index])
    results = decode(strategy, scorer, requests)
    first, second = scorer.passes[:2]
    assert first.tokens.tolist() == [EOS, 5, 6, 7, 8, EOS, 4]
    assert first.positions.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert first.memory.tolist() == [0] * 5 + [1] * 2
    assert first.contexts.tolist() == [0] * 5 + [1] * 2
    assert first.parents.tolist() == [ROOT, 0, 1, 1, 3, ROOT, 5]
    assert all(column.dtype == np.int32 for column in vars_of(first))
    assert (second.tokens.tolist(), second.positions.tolist()) == ([9, 6], [4, 1])
    assert [result.accepted for result in results] == [3, 0]


def vars_of(work: Any) -> list[Any]:
    return [getattr(work, field.name) for field in dataclasses.fields(work)]


def test_outputs_begin_with_the_scorers_start_token() -> None:
    scorer = ScriptPasses(10, SCRIPT)
    scorer.start_token = 3
    (result,) = decode(Proposes(), scorer, [Request(0, (4, EOS), 20)])
    assert list(result.hypotheses[0].tokens) == OUTPUT
    assert [work.tokens.tolist() for work in scorer.passes] == [[3], [5], [6], [7], [8], [9]]


# Constraints: as the textbook's loop keeps to them.


def constrained_mismatches(cases: int, *, forget: str = "") -> int:
    wrong = 0
    for seed in range(cases // 8):
        rng = random.Random(seed)
        scorer = TablePasses(Table(rng.randint(12, 30), seed=seed, spread=rng.choice([3, 8])))
        words = scorer.table.words
        rules = random_rules(rng, words)
        scorer.vocab = dataclasses.replace(scorer.vocab, also_eos=rules.also_eos)
        requests = [random_request(rng, i, words, 12) for i in range(8)]
        requests = [
            dataclasses.replace(request, max_len=1 + request.max_len % 20, prefix=request.prefix[:1])
            for request in requests
        ]
        wanted = [constrained_greedy(scorer.table, request, rules) for request in requests]
        used = dataclasses.replace(rules, **{forget: getattr(Constraints(), forget)}) if forget else rules
        what = garbage(rng.choice(["tree", "chain", "nothing"]), rng, words)
        found = decode(proposing(what, rules=used), scorer, requests, batch_size=rng.choice([1, 3, 8]))
        wrong += len(differing(outputs_of(found), wanted))
    return wrong


def test_constraints_hold_whatever_is_drafted() -> None:
    assert constrained_mismatches(160) == 0


# Of shortlists, which need vocabularies, see tests/test_shortlist.py.
RULES = [field.name for field in dataclasses.fields(Constraints) if field.name != "shortlist"]


@pytest.mark.parametrize("name", RULES)
def test_a_forgotten_constraint_is_noticed(name: str) -> None:
    assert constrained_mismatches(80, forget=name) > 0


def test_scores_are_the_models_own_under_constraints() -> None:
    table = Table(15, seed=9, spread=6)
    rules = Constraints(min_len=9, repetition_penalty=1.5, suppressed=(5,), forbidden=((6,), (7, 8)))
    request = Request(0, (5, 6, 7, 8, EOS), 12, (9, 5))
    for used in (rules, Constraints()):
        (result,) = decode(Proposes(rules=used), TablePasses(table), [request])
        (hypothesis,) = result.hypotheses
        assert hypothesis.positional_scores is not None
        prefix = [EOS]
        for token, score in zip(hypothesis.tokens, hypothesis.positional_scores, strict=True):
            scores = table.scores_by_hand(request.source, prefix)
            assert score == pytest.approx(scores[token] - math.log(sum(map(math.exp, scores))), abs=1e-5)
            prefix.append(token)
        assert hypothesis.score == pytest.approx(math.fsum(hypothesis.positional_scores))


# Whatever a decoding ends with, nothing of it stays.


class Stumbling(TablePasses):
    """Raises at the n-th call of one of its methods."""

    def __init__(self, method: str, after: int, error: BaseException) -> None:
        super().__init__(Table(20))
        self.method, self.left, self.error = method, after, error

    def _count(self, name: str) -> None:
        if name == self.method:
            self.left -= 1
            if self.left == 0:
                raise self.error

    def encode(self, sources: Any) -> Any:
        self._count("encode")
        return super().encode(sources)

    def open(self, count: int) -> Any:
        self._count("open")
        return super().open(count)

    def run(self, work: Any, want: Any) -> Any:
        self._count("run")
        scores = super().run(work, want)
        self._count("after run")
        return scores

    def commit(self, scores: Any, kept: Any) -> None:
        self._count("commit")
        super().commit(scores, kept)
        self._count("after commit")


def sentences(count: int) -> list[Request]:
    rng = random.Random(count)
    return [random_request(rng, i, 20, 20) for i in range(count)]


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=["error", "stop"])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("method", ["encode", "open", "run", "after run", "commit", "after commit"])
def test_an_error_gives_all_back(method: str, after: int, error: BaseException) -> None:
    scorer, drafter = Stumbling(method, after, error), Drafting(garbage("tree", random.Random(0), 20))
    with pytest.raises(type(error)):
        list(Proposes(drafter=lambda _: drafter).run(scorer, sentences(30), batch_size=4))
    assert scorer.in_use == (0, 0)
    assert drafter.stopped == drafter.started


@pytest.mark.parametrize("method", ["start", "draft", "observe"])
def test_a_drafter_that_fails_gives_all_back(method: str) -> None:
    def fail(*arguments: Any) -> Any:
        if drafter.started.total() > 4 or method == "start":
            raise RuntimeError("no")
        return real(*arguments)

    scorer, drafter = TablePasses(Table(20)), Drafting(garbage("chain", random.Random(0), 20))
    real = getattr(drafter, method)
    setattr(drafter, method, fail)
    with pytest.raises(RuntimeError, match="no"):
        list(Proposes(drafter=lambda _: drafter).run(scorer, sentences(30), batch_size=4))
    assert scorer.in_use == (0, 0)
    assert drafter.stopped == drafter.started


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_iterator_that_is_closed_gives_all_back(taken: int) -> None:
    scorer, drafter = TablePasses(Table(20)), Drafting(garbage("tree", random.Random(0), 20))
    found = Proposes(drafter=lambda _: drafter).run(scorer, sentences(30), batch_size=4)
    for _ in range(taken):
        next(found)
    found.close()  # type: ignore[attr-defined]
    assert scorer.in_use == (0, 0)
    assert drafter.stopped == drafter.started
    assert (drafter.started.total() > 0) == (taken > 0)


def test_every_row_that_ends_is_stopped_once() -> None:
    drafter = Drafting(garbage("tree", random.Random(0), 20))
    decode(Proposes(drafter=lambda _: drafter), TablePasses(Table(20)), sentences(30), batch_size=4)
    assert drafter.started == drafter.stopped == Counter(range(30))


def test_a_prefix_that_ends_too_soon_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [dataclasses.replace(each, prefix=(5, 6, 7)[: each.max_len]) for each in sentences(20)]
    wanted = plain_greedy(Table(20), requests)
    assert outputs_of(decode(Proposes(drafter=source_copy()), TablePasses(Table(20)), requests)) == wanted
    right = Constraints.beginning

    def shorter(rules: Constraints, request: Request, *words: Any) -> tuple[list[int], bool]:
        return right(rules, request, *words)[0][:-1], False

    monkeypatch.setattr(Constraints, "beginning", shorter)
    assert outputs_of(decode(Proposes(drafter=source_copy()), TablePasses(Table(20)), requests)) != wanted


# Rows come and go.


def test_a_batch_of_b_equals_b_batches_of_one() -> None:
    requests = sentences(60)
    for make in (DRAFTERS["nothing"], DRAFTERS["source"]):
        strategy = Proposes(drafter=make(random.Random(0)))

        def what(size: int, strategy: Any = strategy) -> list[Result]:
            found = decode(strategy, TablePasses(Table(20, seed=5)), requests, batch_size=size, trace=True)
            return [dataclasses.replace(result, seconds=0.0) for result in found]

        alone = what(1)
        for size in (2, 7, 60, 1000):
            assert what(size) == alone


def test_requests_may_come_in_any_order() -> None:
    requests = sentences(40)
    wanted = plain_greedy(Table(20), requests)
    random.Random(1).shuffle(requests)
    results = Proposes(drafter=source_copy()).run(TablePasses(Table(20)), requests, batch_size=8)
    assert {result.index: list(result.hypotheses[0].tokens) for result in results} == dict(enumerate(wanted))


def test_waiting_sentences_take_the_place_of_finished_ones() -> None:
    """30 sentences, 29 of 1 word and one of 12, four at a time: the long one does not hold the others up."""
    script = {(i + 4, EOS): [i + 4, EOS] for i in range(29)}
    script[(*range(4, 16), EOS)] = [*range(4, 16), EOS]
    scorer = ScriptPasses(40, script)
    requests = [Request(i, source, 20) for i, source in enumerate(script)]
    found = decode(Proposes(), scorer, requests, batch_size=4)
    assert outputs_of(found) == list(script.values())
    # The long one takes 13 passes, in which three others run beside it; 18 short ones of 2 passes fit there.
    # The 11 that are left take 2 passes in fours.
    assert len(scorer.passes) <= 13 + 2 * 3
    assert max(len(work.tokens) for work in scorer.passes) == 4
    assert sum(result.left_mid_batch for result in found) > 20


@pytest.mark.parametrize("size", BATCHES)
def test_sources_are_encoded_together(size: int) -> None:
    """At least a quarter of the batch at a time, but for the last ones."""
    scorer = TablePasses(Table(20))
    decode(Proposes(), scorer, sentences(100), batch_size=size)
    assert scorer.encoded[0] == size
    assert all(4 * count >= size for count in scorer.encoded[:-1])
    assert max(len({*work.contexts.tolist()}) for work in scorer.passes) == size


def test_sources_that_come_one_by_one_are_encoded_together() -> None:
    """Where less than a quarter of the rows is free they wait for four passes, and else not at all."""
    script = {(i + 4, EOS): [i + 4] * 30 + [EOS] for i in range(40)}
    requests = [Request(i, source, 40) for i, source in enumerate(script)]

    def encoded(size: int, first: int, then: Sequence[int]) -> list[int]:
        """Sources that have been encoded after each pass, where so many come before it."""
        scorer, left = ScriptPasses(50, script), iter(requests)
        run = Proposes().begin(scorer, Batching(size))
        counts = []
        for count in (first, *then):
            for _ in range(count):
                run.admit(next(left))
            run.step()
            counts.append(sum(scorer.encoded))
        run.close()
        assert scorer.in_use == (0, 0)
        return counts

    assert encoded(8, 6, [1]) == [6, 7]
    assert encoded(8, 7, [1, 0, 0, 0, 0]) == [7, 7, 7, 7, 7, 8]
    assert encoded(32, 26, [1, 1, 1, 1, 1]) == [26, 26, 26, 26, 26, 31]
    assert encoded(32, 26, [1, 0, 0, 0, 0, 1, 1, 0, 0, 0]) == [26] * 5 + [27] * 5 + [29]
    assert encoded(32, 26, [7, 0, 0, 0, 0, 0]) == [26] * 7  # there is no space for all


def test_max_tokens_bounds_the_sources_of_a_batch() -> None:
    requests = sentences(40)
    wanted = plain_greedy(Table(20), requests)
    for bound in (60, 1):
        scorer = TablePasses(Table(20))
        found = decode(Proposes(drafter=source_copy()), scorer, requests, batch_size=32, max_tokens=bound)
        assert outputs_of(found) == wanted
        rows = [len({*work.memory.tolist()}) for work in scorer.passes]
        assert (max(rows) == 1) == (bound == 1)  # one row is always allowed
    longest = {i: len(request.source) for i, request in enumerate(requests)}
    order = sorted(longest, key=lambda i: (-longest[i], i))  # handles are given out in this order
    scorer = TablePasses(Table(20))
    decode(Proposes(), scorer, requests, batch_size=32, max_tokens=60)
    for work in scorer.passes:
        assert sum(longest[order[handle]] for handle in {*work.memory.tolist()}) <= 60


def test_requests_may_come_from_a_generator() -> None:
    wanted = decode(Proposes(), TablePasses(Table(20)), sentences(5))
    found = list(Proposes().run(TablePasses(Table(20)), iter(sentences(5)), batch_size=2))
    assert sorted(outputs_of(found)) == sorted(outputs_of(wanted))
    assert len(found) == 5


def test_no_requests_no_results() -> None:
    assert decode(Proposes(), TablePasses(Table(10)), []) == []


# What is reported.


def test_the_trace_of_a_correction() -> None:
    """she go home . -> she goes home . in two passes: goes is the verifier's, the rest is copied."""
    she, go, home, stop, goes = range(4, 9)
    scorer = ScriptPasses(9, {(she, go, home, stop, EOS): [she, goes, home, stop, EOS]})
    request = Request(0, (she, go, home, stop, EOS), 20)
    (result,) = decode(Proposes(drafter=source_copy()), scorer, [request], trace=True)
    assert result.hypotheses[0].trace == (
        TokenTrace("draft", 1, 1.0),
        TokenTrace("rollback", 1, 1.0),
        TokenTrace("draft", 2, 1.0),
        TokenTrace("draft", 2, 1.0),
        TokenTrace("verifier", 2, 1.0),
    )
    # Pass 1 drafts all four words, of which one is accepted; pass 2 drafts home and the full stop.
    assert (result.passes, result.drafted, result.accepted) == (2, 6, 3)
    assert result.seconds > 0


def test_the_margin_is_the_lead_of_the_best_word() -> None:
    table, request = Table(15, seed=2, spread=9), Request(0, (5, 6, 7, EOS), 12)
    (result,) = decode(Proposes(drafter=source_copy()), TablePasses(table), [request], trace=True)
    (hypothesis,) = result.hypotheses
    assert hypothesis.trace is not None
    for i, each in enumerate(hypothesis.trace):
        scores = sorted(table.scores_by_hand(request.source, [EOS, *hypothesis.tokens[:i]]))
        assert each.margin == scores[-1] - scores[-2]


def test_without_a_trace_there_is_none() -> None:
    (result,) = decode(Proposes(), TablePasses(Table(10)), [Request(0, (5, EOS), 5)])
    assert result.hypotheses[0].trace is None


def test_counts_are_what_happened() -> None:
    scorer = TablePasses(Table(20, seed=1))
    requests = sentences(25)
    results = decode(Proposes(drafter=source_copy()), scorer, requests, batch_size=1)
    assert sum(result.passes for result in results) == len(scorer.passes)  # one row a pass
    verified = sum(len(work.tokens) for work in scorer.passes)
    # The last word of an output that is forced as a whole is not read.
    forced = sum(len(each.prefix) - (len(each.prefix) == each.max_len) for each in requests)
    assert forced > 0
    assert sum(result.passes + result.drafted for result in results) + forced == verified
    tokens = sum(len(result.hypotheses[0].tokens) for result in results)
    # Each pass gives one token of the verifier's own, but for those that a draft's eos ends.
    assert 0 <= sum(result.passes + result.accepted for result in results) + forced - tokens <= 25


def test_a_prefix_takes_one_pass() -> None:
    """Eleven forced tokens, and the word behind them."""
    for name in ("greedy", "beam", "sample"):
        for size in (0, 1, 11):
            scorer = TablePasses(Table(20, seed=1, spread=3))
            request = Request(0, (*range(4, 16), EOS), 30, prefix=tuple(range(5, 5 + size)))
            (result,) = decode(make_strategy(name, {"min_len": 29}), scorer, [request])
            assert result.hypotheses[0].tokens[:size] == request.prefix
            assert len(result.hypotheses[0].tokens) == 30
            assert result.passes == len(scorer.passes) == 30 - size
            assert len(scorer.passes[0].tokens) == 1 + size


def test_drafter_passes_are_counted() -> None:
    strategy = proposing(lambda row: Draft([5], passes=3))
    (result,) = decode(strategy, ScriptPasses(10, SCRIPT), [Request(0, (4, EOS), 20)])
    assert result.drafter_passes == 3 * result.passes


def test_phases_add_up_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that each reading moves on by a second, so that sums are known."""
    now = iter(range(10**6))
    monkeypatch.setattr("nartk.protocols.runs.perf_counter", lambda: float(next(now)))
    scorer = TablePasses(Table(20))
    strategy = proposing(lambda row: Draft([5]))
    results = decode(strategy, scorer, sentences(25), batch_size=4)
    passes = len(scorer.passes)
    sums = [sum(getattr(r.phases, name) for r in results) for name in ("encode", "draft", "verify", "accept")]
    # Each pass: one lap as rows enter, and in `_step` two for drafts, one for the verifier, and two for
    # the host.
    assert sums == [passes, 2 * passes, passes, 2 * passes]
