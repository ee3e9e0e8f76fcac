"""Drafts that branch: however they branch, the output is greedy search's, in exact mode to the last bit."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.scripted import (
    ScriptScorer,
    TableScorer,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    same_words,
)
from support.transformers_small import padded, random_requests
from test_promises_algorithm import random_request, random_table
from test_promises_exact import DTYPES, TIES, Said, alone, random_scorer, said, tied_scorer
from torch import Tensor

from nartk.decoders.tensor_loop import Draft, DraftAndVerify, Drafter, Fed, Judged, argmax_acceptance
from nartk.decoders.tree import DraftTree, ancestors, parse_shape, prune
from nartk.errors import UsageError
from nartk.guarantee import IDENTICAL
from nartk.hypothesis import Request, TokenTrace
from nartk.models import transformer_scorer
from nartk.models.transformer_scorer import TransformerScorer
from nartk.scorer import Seq2SeqScorer, Source, Tree, TreeScorer

PAD, EOS = 1, 2


def ways_of(draft: Draft, row: int) -> list[tuple[int, ...]]:
    """The path to each node that counts, in plain Python."""
    assert draft.parents is not None
    ways: list[tuple[int, ...]] = []
    for i in range(int(draft.lengths[row])):
        parent = int(draft.parents[row, i])
        assert -1 <= parent < i
        ways.append((*(ways[parent] if parent >= 0 else ()), int(draft.tokens[row, i])))
    return ways


# Building trees.


def test_the_way_to_each_node(device: torch.device) -> None:
    rng = random.Random(0)
    for count in (0, 1, 2, 3, 5, 17, 40):
        parents = [[rng.randrange(-1, i) for i in range(count)] for _ in range(4)]
        found = ancestors(torch.tensor(parents, dtype=torch.int64, device=device).view(4, count))
        for row, above in zip(found.tolist(), parents, strict=True):
            for i in range(count):
                way = {i}
                while above[min(way)] >= 0:
                    way.add(above[min(way)])
                assert {j for j in range(count) if row[i][j]} == way


def test_drafts_are_merged_as_a_trie(device: torch.device) -> None:
    rng = random.Random(1)
    for _ in range(50):
        rows, count, width = rng.randint(1, 3), rng.randint(1, 5), rng.randint(1, 6)
        drafts = torch.tensor(
            [[[rng.randrange(3) for _ in range(width)] for _ in range(count)] for _ in range(rows)]
        ).to(device)
        lengths = torch.tensor([[rng.randint(0, width) for _ in range(count)] for _ in range(rows)])
        lengths = lengths.to(device)
        most = rng.choice([None, rng.randint(1, 12)])
        tree = DraftTree.merge(drafts, lengths, most=most)
        for row in range(rows):
            wanted: list[tuple[int, ...]] = []
            for draft, length in zip(drafts[row].tolist(), lengths[row].tolist(), strict=True):
                for end in range(1, length + 1):
                    if tuple(draft[:end]) not in wanted:
                        wanted.append(tuple(draft[:end]))
            assert ways_of(tree, row) == wanted[:most]


def test_candidates_in_a_static_shape_by_hand(device: torch.device) -> None:
    tokens = torch.tensor([[[10, 11, 12], [20, 21, 22], [30, 31, 32]]], device=device)
    tree = DraftTree.from_candidates(tokens, "3x2x1")
    assert ways_of(tree, 0) == [
        (10,),
        (11,),
        (12,),
        *((a, b) for a in (10, 11, 12) for b in (20, 21)),
        *((a, b, 30) for a in (10, 11, 12) for b in (20, 21)),
    ]
    assert ways_of(DraftTree.from_candidates(tokens[:, :1], (2, 2)), 0) == [(10,), (11,)]
    assert len(ways_of(DraftTree.from_candidates(torch.zeros(1, 3, 4).long(), "4x3x2"), 0)) == 4 + 12 + 24


@pytest.mark.parametrize("shape", ["", "4x", "x", "0x2", "4x-1", "a", (), (0,), (2, -1)])
def test_what_is_no_shape_is_refused(shape: Any) -> None:
    with pytest.raises(UsageError, match="is no shape"):
        parse_shape(shape)


def test_a_shape_with_too_few_candidates_is_refused() -> None:
    with pytest.raises(UsageError, match="asks for 4 candidates a level, there are 3"):
        DraftTree.from_candidates(torch.zeros(1, 2, 3, dtype=torch.int64), "4x1")


def test_what_cannot_be_fed_is_pruned_by_hand(device: torch.device) -> None:
    """Words are 0 to 9. 5 > 6 > 7, a word that is none, one under it, a wrong parent, and 5 again."""
    tokens = torch.tensor([[5, 6, 99, 7, 8, 3, 5, 4, 1]], device=device)
    parents = torch.tensor([[-1, 0, -1, 1, 2, 7, -1, 6, 0]], device=device)
    draft = Draft(tokens, torch.tensor([8], device=device), parents=parents)
    for budget, wanted, shape in (
        (9, [(5,), (5, 6), (5, 6, 7), (5,), (5, 4)], [2, 3]),
        (2, [(5,), (5, 6), (5,), (5, 4)], [2, 2]),
        (0, [], [0, 0]),
    ):
        found, shapes = prune(draft, 10, torch.tensor([budget], device=device), branching=True)
        assert ways_of(found, 0) == wanted
        assert shapes.tolist() == [shape]
    chain, shapes = prune(draft, 10, torch.tensor([9], device=device), branching=False)
    assert ways_of(chain, 0) == [(5,), (5, 6), (5, 6, 7)]
    assert shapes.tolist() == [[1, 3]]


# L0: under a table of exact scores.


@dataclasses.dataclass(frozen=True)
class NoState:
    sources: Tensor


@dataclasses.dataclass(frozen=True)
class Proposing(Drafter):
    """Drafts whatever a function of the source [B,S], the outputs [B,T] and their lengths [B] says."""

    what: Callable[[Tensor, Tensor, Tensor], Draft]

    def start(self, source: Source, requests: Sequence[Request]) -> NoState:
        return NoState(same_words(source)[0])

    def draft(
        self, state: NoState, outputs: Tensor, lengths: Tensor, budget: Tensor
    ) -> tuple[Draft, NoState]:
        return self.what(state.sources, outputs, lengths), state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposes(DraftAndVerify):
    promise = IDENTICAL
    name = "proposes"

    what: Callable[[Tensor, Tensor, Tensor], Draft]
    rule: Callable[[Tensor, Fed], Judged] = argmax_acceptance

    def make_drafter(self, scorer: Seq2SeqScorer) -> Drafter:
        return Proposing(self.what)

    def acceptance(self) -> Callable[[Tensor, Fed], Judged]:
        return self.rule


def plain(scorer: Any) -> Any:
    """The same scorer without the capability."""
    scorer.verify_tree = None
    return scorer


def test_scorers_say_what_they_can_do(device: torch.device) -> None:
    assert isinstance(TableScorer(9, device=device), TreeScorer)
    assert not isinstance(plain(TableScorer(9, device=device)), TreeScorer)
    assert isinstance(plain(TableScorer(9, device=device)), Seq2SeqScorer)


def garbage(rng: random.Random, words: int) -> Callable[[Tensor, Tensor, Tensor], Draft]:
    """Trees of any kind: source words, eos, pad, no words; equal siblings, chains, wrong parents."""
    generator = torch.Generator().manual_seed(rng.getrandbits(30))
    kind = rng.choice(["words", "few", "no words", "wrong parents", "eos", "chain"])
    width = rng.choice([1, 2, 6, 12, 30])
    bushy = rng.choice([1, 2, 40])  # how far back a parent may lie

    def draft(sources: Tensor, outputs: Tensor, lengths: Tensor) -> Draft:
        batch, device = len(sources), sources.device
        low, high = {"few": (4, 7), "no words": (-2, words + 3)}.get(kind, (0, words))
        tokens = torch.randint(low, max(high, low + 1), (batch, width), generator=generator)
        columns = torch.arange(width)
        parents = columns - 1 - torch.randint(bushy, (batch, width), generator=generator)
        # Half of them stand a level under the source word that greedy search may well say there.
        at = lengths.cpu()[:, None] + torch.randint(3, (batch, width), generator=generator)
        copied = sources.cpu().gather(1, at.clamp(max=sources.shape[1] - 1))
        use = torch.rand(batch, width, generator=generator) < 0.7
        tokens = torch.where(use & (kind != "few"), copied, tokens)
        parents = parents.clamp(min=-1)
        if kind == "wrong parents":
            parents = torch.randint(-9, width + 9, (batch, width), generator=generator)
        if kind == "eos":
            tokens[:, ::2] = EOS
        counts = torch.randint(-2, width + 3, (batch,), generator=generator)
        if kind == "chain":
            return Draft(tokens.to(device), counts.to(device))
        return Draft(tokens.to(device), counts.to(device), parents=parents.to(device))

    return draft


def table_mismatches(cases: int, device: torch.device, *, capable: bool, **wrong: Any) -> tuple[int, int]:
    """Sentences decoded otherwise than greedy search does; accepted tokens."""
    bad = accepted = 0
    for seed in range(cases // 16):
        rng = random.Random(f"tree {seed}")
        scorer = random_table(rng, device)
        if not capable:
            plain(scorer)
        requests = [random_request(rng, i, len(scorer.vocab), 12) for i in range(16)]
        strategy = Proposes(what=garbage(rng, len(scorer.vocab)), **wrong)
        results = decode(strategy, scorer, requests, batch_size=rng.choice([1, 3, 8, 16]))
        bad += len(differing(outputs_of(results), plain_greedy(scorer.scores, requests)))
        accepted += sum(result.accepted for result in results)
    return bad, accepted


@pytest.mark.parametrize("capable", [True, False])
def test_trees_of_any_kind_equal_greedy(capable: bool, device: torch.device) -> None:
    bad, accepted = table_mismatches(160, device, capable=capable)
    assert bad == 0
    assert accepted > 20


@pytest.mark.slow
@pytest.mark.parametrize("capable", [True, False])
def test_trees_of_any_kind_equal_greedy_at_full_size(capable: bool, device: torch.device) -> None:
    assert table_mismatches(16_000, device, capable=capable)[0] == 0


def test_trees_fail_with_a_wrong_acceptance(device: torch.device) -> None:
    def runner_up(logits: Tensor, fed: Fed) -> Judged:
        second = logits.topk(2, -1).indices[:, 1]
        return dataclasses.replace(argmax_acceptance(logits, fed), stands=second == fed.drafted)

    assert table_mismatches(64, device, capable=True, rule=runner_up)[0] > 0


# By hand.

OUTPUT = [5, 6, 7, 8, 9, EOS]
SCRIPT = {(4, EOS): OUTPUT}


def only(drafts: Sequence[Sequence[int]]) -> Callable[[Tensor, Tensor, Tensor], Draft]:
    """Merges these after nothing, and drafts nothing later."""

    def draft(sources: Tensor, outputs: Tensor, lengths: Tensor) -> Draft:
        width = max(map(len, drafts))
        rows = torch.tensor([[*each, *[-1] * (width - len(each))] for each in drafts]).to(lengths.device)
        sizes = torch.tensor([len(each) for each in drafts], device=lengths.device)
        batch = len(lengths)
        return DraftTree.merge(rows.expand(batch, -1, -1), sizes * (lengths[:, None] == 0))

    return draft


def test_a_lattice_with_the_right_draft_takes_one_pass(device: torch.device) -> None:
    """8 of 5 tokens, of which the fifth is right. They share 5 6, then 7 or 1 and so on: 2 + 4 * 3 nodes
    less the 7 that two share, and 4 drafts of 5 tokens that share nothing but 3."""
    drafts = [
        (5, 6, 1, 1, 1),
        (5, 6, 3, 8, 9),
        (5, 6, 7, 1, 9),
        (3, 6, 7, 8, 9),
        (5, 6, 7, 8, 9),
        (3, 7, 7, 8, 9),
    ]
    nodes = len({draft[:end] for draft in drafts for end in range(1, 6)})
    assert nodes == 2 + 3 + 3 + 3 + 2 + 5 + 4
    scorer = ScriptScorer(10, SCRIPT, device=device)
    (result,) = decode(Proposes(what=only(drafts)), scorer, [Request(0, (4, EOS), 20)], trace=True)
    assert list(result.hypotheses[0].tokens) == OUTPUT
    assert (result.passes, result.drafted, result.accepted) == (1, nodes, 5)
    assert result.hypotheses[0].trace == (
        *[TokenTrace("draft", 1, 1.0)] * 5,
        TokenTrace("verifier", 1, 1.0),
    )
    # A scorer that cannot is given the first draft, of which two tokens stand; a third comes with them.
    (result,) = decode(
        Proposes(what=only(drafts)),
        plain(ScriptScorer(10, SCRIPT, device=device)),
        [Request(0, (4, EOS), 20)],
    )
    assert list(result.hypotheses[0].tokens) == OUTPUT
    assert (result.passes, result.drafted, result.accepted) == (4, 5, 2)


def test_eos_in_a_tree_ends_the_output(device: torch.device) -> None:
    scorer = ScriptScorer(10, SCRIPT, device=device)
    drafts = [(5, EOS), (5, 6, 7, 8, 9, EOS, 5), (5, 6, EOS)]
    (result,) = decode(Proposes(what=only(drafts)), scorer, [Request(0, (4, EOS), 20)], trace=True)
    assert list(result.hypotheses[0].tokens) == OUTPUT
    assert (result.passes, result.drafted, result.accepted) == (1, 9, 6)
    assert result.hypotheses[0].trace == (TokenTrace("draft", 1, 1.0),) * 6


def test_the_limit_cuts_a_tree_by_its_depth(device: torch.device) -> None:
    scorer = ScriptScorer(10, SCRIPT, device=device)
    drafts = [(4, 4, 4, 4), (5, 6, 7, 8)]
    for limit, drafted in ((1, 0), (2, 2), (3, 4), (4, 6), (5, 8)):
        (result,) = decode(Proposes(what=only(drafts)), scorer, [Request(0, (4, EOS), limit)])
        assert list(result.hypotheses[0].tokens) == OUTPUT[:limit]
        assert (result.passes, result.drafted, result.accepted) == (1, drafted, limit - 1)


def test_a_forced_prefix_may_take_another_branch(device: torch.device) -> None:
    """Forced 4 4, after which the script says pad: of 5 6 7, 4 3 and 4 4 pad the last stands."""
    scorer = ScriptScorer(10, SCRIPT, device=device)
    drafts = [(5, 6, 7), (4, 3), (4, 4, PAD)]
    request = Request(0, (4, EOS), 4, (4, 4))
    (result,) = decode(Proposes(what=only(drafts)), scorer, [request], trace=True)
    assert result.hypotheses[0].tokens == (4, 4, PAD, PAD)
    assert (result.passes, result.accepted) == (1, 3)
    assert result.hypotheses[0].trace is not None
    assert [each.origin for each in result.hypotheses[0].trace] == ["prefix", "prefix", "draft", "verifier"]


def test_an_acceptance_of_its_own_judges_first_successors_alone(device: torch.device) -> None:
    """It takes any drafted 3. As a second successor that is not asked for, 3 falls."""

    def threes(logits: Tensor, fed: Fed) -> Judged:
        judged = argmax_acceptance(logits, fed)
        return dataclasses.replace(judged, stands=(judged.tokens == fed.drafted) | (fed.drafted == 3))

    for drafts, wanted in (
        ([(3, 8), (5, 6)], (3, PAD)),
        ([(8, 3), (3, 8)], (5, 6)),
        ([(8, 3), (5, 3), (5, 6)], (5, 3)),
    ):
        scorer = ScriptScorer(10, SCRIPT, device=device)
        (result,) = decode(Proposes(what=only(drafts), rule=threes), scorer, [Request(0, (4, EOS), 3)])
        assert result.hypotheses[0].tokens[:2] == wanted


def test_fed_tokens_stand_where_their_branch_puts_them(device: torch.device) -> None:
    """Two rows: of 5 6 and 5 7 8, and of 4, whose parents and positions are written down here."""
    seen: list[Fed] = []

    def watch(logits: Tensor, fed: Fed) -> Judged:
        seen.append(fed)
        return argmax_acceptance(logits, fed)

    def draft(sources: Tensor, outputs: Tensor, lengths: Tensor) -> Draft:
        tokens = torch.tensor([[5, 6, 7, 8], [4, -1, -1, -1]], device=device)
        parents = torch.tensor([[-1, 0, 0, 2], [-1, 0, 0, 0]], device=device)
        count = len(lengths)
        return Draft(tokens[:count], torch.full_like(lengths, 4), parents=parents[:count])

    requests = [Request(0, (4, 5, EOS), 9), Request(1, (5, 4, EOS), 9)]
    list(Proposes(what=draft, rule=watch).run(TableScorer(10, device=device), requests, batch_size=2))
    first = seen[0]
    assert first.tokens is not None
    assert first.parents is not None
    assert first.rows.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert first.tokens.tolist() == [EOS, 5, 6, 7, 8, EOS, 4]
    assert first.positions.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert first.parents.tolist() == [-1, 0, 1, 1, 3, -1, 5]
    assert first.drafted.tolist() == [5, 6, -1, 8, -1, 4, -1]


def first_pass(what: Any, scorer: TableScorer, requests: list[Request]) -> list[int]:
    """How many tokens the first pass settles for each sentence."""
    results = decode(Proposes(what=what), scorer, requests, batch_size=8, trace=True)
    traces = [result.hypotheses[0].trace or () for result in results]
    return [sum(each.verifier_pass == 1 for each in trace) for trace in traces]


def gains(cases: int, device: torch.device, *, last_first: bool = False) -> list[int]:
    """By how many tokens the first pass of a tree of 4 drafts is ahead of the first draft's."""
    found = []
    for seed in range(cases // 16):
        rng = random.Random(f"ahead {seed}")
        scorer = random_table(rng, device)
        requests = [random_request(rng, i, len(scorer.vocab), 12) for i in range(16)]
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randint(4, len(scorer.vocab), (64, 4, 6), generator=generator).to(device)

        def drafts(
            sources: Tensor, lengths: Tensor, noise: Tensor = noise, seed: int = seed
        ) -> tuple[Tensor, Tensor]:
            """Four copies of the source from its beginning, each with other wrong words."""
            steps = torch.arange(6, device=device)
            copied = sources.gather(1, steps.clamp(max=sources.shape[1] - 1).expand(len(sources), -1))
            mine = noise[: len(sources)]  # the same whatever comes later
            tokens = torch.where((mine + steps) % 3 == 0, mine, copied[:, None])
            return tokens, torch.where(lengths == 0, 6, 0)[:, None].expand(-1, 4)

        def tree(sources: Tensor, outputs: Tensor, lengths: Tensor) -> Draft:
            tokens, sizes = drafts(sources, lengths)
            return DraftTree.merge(tokens.flip(1) if last_first else tokens, sizes, most=7)

        def chain(sources: Tensor, outputs: Tensor, lengths: Tensor) -> Draft:
            tokens, sizes = drafts(sources, lengths)
            return Draft(tokens[:, 0], sizes[:, 0])

        together = first_pass(tree, scorer, requests[:8])
        found += [a - b for a, b in zip(together, first_pass(chain, scorer, requests[:8]), strict=True)]
    return found


def test_a_tree_is_never_behind_its_first_draft(device: torch.device) -> None:
    ahead = gains(240, device)
    assert min(ahead) >= 0
    assert max(ahead) > 0


def test_a_tree_may_fall_behind_a_draft_that_it_leaves_out(device: torch.device) -> None:
    """The last draft first, and no room for all: known to be wrong, and noticed."""
    assert min(gains(240, device, last_first=True)) < 0


# Exact mode: every bit.


def around(
    answers: dict[tuple[int, ...], Sequence[int]], words: int, rng: random.Random
) -> Callable[[Tensor, Tensor, Tensor], Draft]:
    """Several drafts a row near what greedy search will say, and trees without any plan."""
    generator = torch.Generator().manual_seed(rng.getrandbits(30))
    count, longest = rng.choice([(2, 8), (4, 5), (9, 3)])
    spoilt = rng.choice([0.1, 0.3])

    def draft(sources: Tensor, outputs: Tensor, lengths: Tensor) -> Draft:
        known = padded([[*answers[tuple(row[row >= 0].tolist())]] for row in sources]).to(lengths.device)
        steps = torch.arange(longest, device=lengths.device)
        at = (lengths[:, None] + steps).clamp(max=known.shape[1] - 1)
        right = known.gather(1, at)[:, None].expand(-1, count, -1)
        shape = tuple(right.shape)
        noise = torch.randint(words, shape, generator=generator).to(lengths.device)
        wrong = (torch.rand(shape, generator=generator) < spoilt).to(lengths.device)
        sizes = torch.randint(longest + 1, shape[:2], generator=generator).to(lengths.device)
        return DraftTree.merge(torch.where(wrong, noise, right), sizes)

    return draft


def tree_differences(
    scorer: TransformerScorer, requests: list[Request], rng: random.Random
) -> tuple[set[int], int]:
    """The sentences that get other tokens or bits than by greedy search alone; branches that were taken."""
    greedy: Said = alone(scorer, requests)
    answers = {
        tuple(w for w in r.source[:-1]): tokens for r, (tokens, _) in zip(requests, greedy, strict=True)
    }
    found: set[int] = set()
    accepted = 0
    for size in (1, 2, 8):
        strategy = Proposes(what=around(answers, len(scorer.vocab), rng))
        results = decode(strategy, scorer, requests, batch_size=size)
        found |= set(differing(said(results), greedy))
        accepted += sum(result.accepted for result in results)
    return found, accepted


def exact_requests(rng: random.Random, count: int, words: int, longest: int) -> list[Request]:
    """Sources that differ, with limits that differ, and here and there a forced prefix."""
    requests = random_requests(rng, count, words, limits=[2, 5, 9, longest])
    requests = [
        dataclasses.replace(request, prefix=tuple(rng.choices(range(4, words), k=rng.choice([0, 0, 2]))))
        for request in requests
    ]
    return list({request.source: request for request in requests}.values())


def numbered(requests: list[Request]) -> list[Request]:
    return [dataclasses.replace(request, index=i) for i, request in enumerate(requests)]


def random_differences(blocks: int, dtype: torch.dtype, device: torch.device, **kwargs: Any) -> int:
    wrong = accepted = 0
    for block in range(blocks):
        rng = random.Random(f"tree {block}")
        scorer = random_scorer(rng, dtype, device)
        scorer = kwargs.get("change", lambda scorer: scorer)(scorer)
        requests = numbered(exact_requests(rng, 10, len(scorer.vocab), 40 if block % 4 == 0 else 12))
        different, taken = tree_differences(scorer, requests, rng)
        wrong, accepted = wrong + len(different), accepted + taken
    assert accepted > 10 * blocks
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_trees_change_no_bit(dtype: str, device: torch.device) -> None:
    assert random_differences(4, DTYPES[dtype], device) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_trees_change_no_bit_at_full_size(dtype: str, device: torch.device) -> None:
    assert random_differences(300, DTYPES[dtype], device) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TIES)
def test_ties_in_trees_change_nothing(kind: str, dtype: str, device: torch.device) -> None:
    rng = random.Random(kind)
    scorer = tied_scorer(kind, 7, DTYPES[dtype], device)
    requests = numbered(exact_requests(rng, 8, len(scorer.vocab), 8))
    assert tree_differences(scorer, requests, rng)[0] == set()


class Appended(TransformerScorer):
    """Lays a tree's tokens one behind the other, under a mask, as most code does."""

    def verify_tree(self, *args: Any) -> Any:
        return TransformerScorer.verify_tree(TransformerScorer.mode(self, exact=False), *args)


def test_a_mask_over_appended_tokens_fails(device: torch.device) -> None:
    """Known to be wrong: a token's key then lies elsewhere than in greedy search."""

    def naive(scorer: TransformerScorer) -> TransformerScorer:
        scorer.__class__ = Appended
        return scorer

    assert random_differences(3, torch.float32, device, change=naive) > 0


class Cramped(TransformerScorer):
    """Leaves out some blocks of queries that are asked."""

    def _blocks(self, fed: int, paths: int, depth: int) -> tuple[int, int]:
        size, rows = super()._blocks(fed, paths, depth)
        return (size, -(-rows // 2)) if size < depth else (size, rows)


def test_blocks_of_queries_change_no_bit(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def cramped(scorer: TransformerScorer) -> TransformerScorer:
        scorer.__class__ = Cramped
        return scorer

    monkeypatch.setattr(transformer_scorer, "_SORT", 0)
    monkeypatch.setattr(transformer_scorer, "_COPY", 0)
    assert random_differences(2, torch.float32, device) == 0
    assert random_differences(2, torch.float32, device, change=cramped) > 0


def random_branches(rng: random.Random, batch: int, width: int, words: int, device: torch.device) -> Any:
    """Fed tokens [B,K], counts and parents of trees with several leaves."""
    tokens = torch.tensor([[rng.randrange(4, words) for _ in range(width)] for _ in range(batch)])
    counts = [rng.randint(2, width) for _ in range(batch)]
    counts[0] = width
    parents = [[-1, *(rng.randrange(max(0, i - 4), i) for i in range(1, width))] for _ in range(batch)]
    return tokens.to(device), counts, torch.tensor(parents, device=device)


def way_to(parents: list[int], node: int) -> list[int]:
    return [*(way_to(parents, parents[node]) if parents[node] >= 0 else []), node]


def test_a_block_has_room_for_all_that_ask() -> None:
    """However long the stretches are that paths do not share, in blocks of each size."""
    scorer = random_scorer(random.Random(0), torch.float32, torch.device("cpu"))
    rng, chosen = random.Random(1), set()
    for _ in range(300):
        paths = rng.randint(2, 60)
        own = [rng.randint(1, rng.choice([2, 40])) for _ in range(paths)]
        depth = max(own) + rng.randint(0, 20)
        size, rows = scorer._blocks(sum(own), paths, depth)
        whole = -(-depth // size) == 1
        needed = paths if whole else sum(-(-count // size) for count in own)
        assert needed <= rows <= paths * -(-depth // size)
        assert size % scorer.floors.queries == 0
        chosen.add(whole)
    assert chosen == {True, False}


@pytest.mark.parametrize(
    ("exact", "cost"),
    [(True, {}), (True, {"_SORT": 0, "_COPY": 0}), (True, {"_PIECE": 1, "_PIECES": 1}), (False, {})],
    ids=["whole paths", "blocks", "one at a time", "fast mode"],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_tree_pass_equals_a_chain_pass_of_each_path(
    exact: bool, dtype: str, cost: dict[str, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of all nodes, and the cache after one way was kept. In exact mode bitwise.

    Whether paths ask as a whole or in blocks, at once or one after the other.
    """
    for name, value in cost.items():
        monkeypatch.setattr(transformer_scorer, name, value)
    parts = 0
    for seed in range(3):
        rng = random.Random(f"pass {seed}")
        scorer = random_scorer(rng, DTYPES[dtype], device).mode(exact=exact)
        words, batch, width = len(scorer.vocab), rng.choice([1, 2, 5]), rng.choice([3, 7, 14, 20])
        source = padded([[*rng.choices(range(4, words), k=rng.randint(1, 30)), EOS] for _ in range(batch)])
        sizes = (source != PAD).sum(1)
        given = torch.tensor([[EOS, *rng.choices(range(4, words), k=9)] for _ in range(batch)])
        start = [rng.randint(0, 9) for _ in range(batch)]

        def before(
            scorer: TransformerScorer = scorer,
            source: Tensor = source,
            sizes: Tensor = sizes,
            given: Tensor = given,
            start: list[int] = start,
        ) -> Any:
            state = scorer.encode(Source(source.to(device), sizes.to(device)), 30)
            _, state = scorer.verify(given.to(device), state)
            return scorer.truncate(state, torch.tensor(start, device=device))

        tokens, counts, parents = random_branches(rng, batch, width, words, device)
        rows = [
            [way_to(row[:count], node) for node in range(count)]
            for row, count in zip(parents.tolist(), counts, strict=True)
        ]
        leaves = [[way for way in ways if all(way[-1] not in other[:-1] for other in ways)] for ways in rows]
        ends = torch.tensor([row * width + way[-1] for row, ways in enumerate(leaves) for way in ways])
        above = ancestors(parents)
        depth = max(len(way) for ways in rows for way in ways)
        tree = Tree(above.sum(2) - 1, above, ends.to(device), depth)
        parts += scorer._blocks(sum(counts), len(ends), depth)[0] < depth
        logits, state = scorer.verify_tree(tokens, before(), counts, tree)
        chosen = [rng.choice(ways) for ways in rows]
        kept = [rng.randint(1, len(way)) for way in chosen]
        way = padded(chosen).to(device)
        lengths = torch.tensor([a + b for a, b in zip(start, kept, strict=True)], device=device)
        state = scorer.keep(state, way, lengths)
        assert torch.equal(state.lengths, lengths)
        at = 0
        for row, ways in enumerate(rows):
            for node, path in enumerate(ways):
                chain = tokens[row, path].expand(batch, -1)
                wanted, after = scorer.verify(chain, before())
                check(logits[at + node], wanted[row, -1], exact, dtype)
                if path == chosen[row]:
                    end = int(lengths[row])
                    for mine, theirs in zip(state.target, after.target, strict=True):
                        check(mine.kv[row, :end], theirs.kv[row, :end], exact, dtype)
            at += len(ways)
        assert at == len(logits)
    assert (parts > 0) == ("_SORT" in cost)


def check(found: Tensor, wanted: Tensor, exact: bool, dtype: str) -> None:
    if exact:
        assert torch.equal(found, wanted)
    else:
        bound = 1e-3 if dtype == "fp32" else 0.5
        torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)


def test_fast_mode_says_what_exact_mode_says(device: torch.device) -> None:
    """In fp32, where random logits hardly ever tie."""
    rng = random.Random(3)
    scorer = random_scorer(rng, torch.float32, device)
    requests = numbered(exact_requests(rng, 12, len(scorer.vocab), 20))
    greedy = alone(scorer, requests)
    answers = {request.source[:-1]: tokens for request, (tokens, _) in zip(requests, greedy, strict=True)}
    strategy = Proposes(what=around(answers, len(scorer.vocab), rng), exact=False)
    found = said(decode(strategy, scorer, requests, batch_size=4))
    for (tokens, scores), (wanted, right) in zip(found, greedy, strict=True):
        assert tokens == wanted
        assert scores == pytest.approx(right, abs=1e-4)
