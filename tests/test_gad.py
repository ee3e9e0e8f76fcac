"""Generalized aggressive decoding: no drafter changes the output, and each drafts what it should.

The oracles are greedy search, plain Python twins of the drafters, and a plain loop of draft and verify. The
scripted drafters know an output for each source, and may have some of its words wrong.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from support.copies import aligned_rule
from support.engine_models import TYPES, alone, bits_of, on_engine
from support.parallel_drafters import (
    GARBAGE,
    KINDS,
    MASK,
    SCRIPTED,
    SILENT,
    KnowingBlock,
    ScriptedGraphs,
    garbage,
    parallel_drafter,
    small_drafter,
    small_network,
    spoilt,
    with_drafter,
)
from support.parallel_models import canvas_of, engine_of
from support.random_transformers import random_config, random_model
from support.scripted_passes import (
    EOS,
    PAD,
    ScriptPasses,
    Table,
    TablePasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
    random_request,
    random_table,
)
from support.transformers_small import random_requests

from nartk.bench.runner import EngineRuns
from nartk.bench.specs import Spec
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.decode import main
from nartk.cli.verify import main as verify
from nartk.decoders import gad
from nartk.decoders.drafters import parallel_block, parallel_graph, parallel_text
from nartk.decoders.loop import loop
from nartk.decoders.loop.acceptance import Acceptance, ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.length import DraftLength
from nartk.decoders.loop.rows import Row
from nartk.errors import PassError, StrategyMismatchError, UsageError
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.parallel import BlockScorer, CanvasScorer, FrameScorer, GraphScorer
from nartk.protocols.passes import Want
from nartk.registry import make_strategy
from nartk.serving.loading import load
from nartk.vocab import Vocab

JUMP = -6.0  # log-probability with which a path goes where no edge of a graph leads
BATCHES = (1, 2, 3, 8, 32)


def test_the_scripted_drafters_speak_their_protocols() -> None:
    protocols = (BlockScorer, CanvasScorer, FrameScorer, GraphScorer)
    for name, make in SCRIPTED.items():
        made = make(9, {})
        assert sum(isinstance(made, protocol) for protocol in protocols) == 1, name


def scorer_of_nine() -> TablePasses:
    return TablePasses(Table(9))


def run(strategy: Any, scorer: Any, requests: Sequence[Request], batch_size: int) -> list[Result]:
    """The results; nothing is left in the verifier or in the drafter."""
    found = decode(strategy, scorer, requests, batch_size=batch_size)
    assert strategy.auxiliary["drafter"].memories_in_use == 0, (
        "sources of the drafter that were not given back"
    )
    return found


# The promise of beta 1: P1, P2, P4, P7 and P8.


def mismatches(kind: str, cases: int, *, rule: Acceptance | None = None) -> int:
    """How many random sentences are decoded otherwise than greedily with a drafter that half knows them."""
    wrong = accepted = rejected = left = 0
    for seed, batch_size in itertools.product(range(cases // 40), BATCHES if rule is None else (8,)):
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_table(rng)
        words = len(scorer.vocab)
        requests = [random_request(rng, i, words, 24) for i in range(40)]
        answers = {r.source: spoilt(rng, r.source, words) for r in requests}
        drafter = SCRIPTED[kind](words, answers)
        strategy = with_drafter(
            drafter, block_size=rng.choice([1, 2, 3, 8, 25]), tree=rng.choice([0, 1, 9, 30])
        )
        if rule is not None:
            object.__setattr__(strategy, "acceptance", lambda: rule)
        found = run(strategy, scorer, requests, batch_size)
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.table, requests)))
        accepted += sum(result.accepted for result in found)
        rejected += sum(result.drafted - result.accepted for result in found)
        left += sum(result.left_mid_batch for result in found)
    assert rule is not None or min(accepted, rejected, left) > 0
    return wrong


@pytest.mark.parametrize("kind", SCRIPTED)
def test_p1_the_output_is_greedys(kind: str) -> None:
    assert mismatches(kind, 160) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTED)
def test_p1_at_full_size(kind: str) -> None:
    assert mismatches(kind, 16_000) == 0


class AnyLength(DraftLength):
    """Lets some rows draft, some tokens, in some passes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def expect(self, start: float, length: float) -> None:
        """Expects nothing."""

    def levels(self, rows: Sequence[Row]) -> list[int]:
        return [self.rng.choice([0, 0, 1, 3, 30]) for _ in rows]

    def record(self, *rest: Any) -> None:
        """Learns nothing."""


@pytest.mark.adaptive
@pytest.mark.parametrize("kind", SCRIPTED)
def test_p1_passes_may_go_by_without_the_drafter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is started after any pass, and drafts in some."""
    for seed in range(6):
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_table(rng)
        words = len(scorer.vocab)
        requests = [random_request(rng, i, words, 24) for i in range(20)]
        answers = {r.source: spoilt(rng, r.source, words) for r in requests}
        strategy = with_drafter(SCRIPTED[kind](words, answers), tree=rng.choice([0, 9]))
        object.__setattr__(strategy, "adaptive", True)
        monkeypatch.setattr(loop, "DraftLength", lambda *_, rng=rng, **__: AnyLength(rng))
        found = run(strategy, scorer, requests, rng.choice(BATCHES))
        assert outputs_of(found) == plain_greedy(scorer.table, requests)
        assert sum(result.accepted for result in found) > 0


class Believe(ArgmaxAcceptance):
    """Known to be wrong: whatever is drafted is accepted."""

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        drafted, end = row.draft.tokens, row.node + len(row.draft.tokens)
        tokens = [*drafted, verified.words[end]]
        end_at = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
        return Verdict(range(min(end_at, len(drafted))), tokens[:end_at], [0.0] * end_at)


@pytest.mark.parametrize("rule", [Believe(), gad.NearlyBest(2, 1.0), gad.NearlyBest(3, 100.0)])
def test_p1_fails_with_a_wrong_acceptance(rule: Acceptance) -> None:
    assert mismatches("canvas", 80, rule=rule) > 0


@pytest.mark.parametrize("sense", GARBAGE)
@pytest.mark.parametrize("kind", SCRIPTED)
def test_p8_garbage_is_never_believed(kind: str, sense: str) -> None:
    """2,520 sentences of all together."""
    for seed, tree in enumerate((0, 0, 0, 12, 3, 1)):
        rng = random.Random(f"{kind}.{sense}.{seed}")
        scorer = random_table(rng)
        requests = [random_request(rng, i, len(scorer.vocab), 12) for i in range(12)]
        drafter = garbage(SCRIPTED[kind](len(scorer.vocab), {}), sense)
        strategy = with_drafter(drafter, block_size=rng.choice([1, 3, 25]), tree=tree)
        found = run(strategy, scorer, requests, rng.choice(BATCHES))
        assert not differing(outputs_of(found), plain_greedy(scorer.table, requests))


@pytest.mark.parametrize("weights", [math.nan, 1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_p8_a_broken_network_is_refused_by_name(kind: str, weights: float) -> None:
    """What cannot be read is an error, whoever scores it, and nothing is left behind."""
    scorer = random_table(random.Random(kind))
    drafter = engine_of(small_network(kind, len(scorer.vocab), 1, weights=weights))
    requests = random_requests(random.Random(2), 9, len(scorer.vocab), longest=12, limits=[5, 8])
    for tree in (0, 9):
        strategy = with_drafter(drafter, tree=tree)
        with pytest.raises(PassError, match="NaN or infinity"):
            list(strategy.run(scorer, requests, batch_size=4))
        assert (*scorer.in_use, drafter.memories_in_use) == (0, 0, 0)


def engine_pair(kind: str, seed: int, type: str) -> tuple[Any, Any, list[Request]]:
    """A random verifier, a drafter that is a network or half knows the outputs, and requests."""
    rng = random.Random(f"{kind}.{seed}")
    words = rng.randint(8, 60)
    config = random_config(
        rng, src_vocab=words, tgt_vocab=words, share_embeddings="none", max_source_len=40, max_target_len=40
    )
    scorer = on_engine(random_model(config, seed), type=type)
    requests = random_requests(rng, 12, words, limits=[1, 2, 6, 20])
    if kind in KINDS:
        return scorer, small_drafter(kind, words, seed, type=type), requests
    outputs = zip(requests, alone(scorer, requests), strict=True)
    answers = {request.source: spoilt(rng, [*tokens, EOS], words) for request, (tokens, _) in outputs}
    return scorer, SCRIPTED[kind](words, answers), requests


def changed_bits(kind: str, type: str, seeds: Sequence[int]) -> int:
    """How many sentences are decoded otherwise than greedily with a network, or with what half knows them."""
    wrong = accepted = rejected = branches = 0
    for seed in seeds:
        scorer, drafter, requests = engine_pair(kind, seed, type)
        wanted = alone(scorer, requests)
        for tree, batch_size in itertools.product((0, 12), BATCHES):
            strategy = with_drafter(drafter, block_size=(4, 25)[seed % 2], tree=tree)
            found = run(strategy, scorer, requests, batch_size)
            wrong += len(differing(bits_of(found), wanted))
            accepted += sum(result.accepted for result in found)
            rejected += sum(result.drafted - result.accepted for result in found)
            branches += sum(result.branches for result in found)
    assert min(accepted, rejected) > 0
    assert branches > 0 or kind != "dag"
    return wrong


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("kind", [*KINDS, "block", "graph"])
def test_p2_and_p4_no_drafter_changes_a_bit(kind: str, type: str) -> None:
    assert changed_bits(kind, type, range(4)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("kind", [*KINDS, *SCRIPTED])
def test_p2_and_p4_at_full_size(kind: str, type: str) -> None:
    assert changed_bits(kind, type, range(1, 30)) == 0


@pytest.mark.parametrize(("kind", "tree"), [*((kind, 0) for kind in KINDS), ("dag", 9)])
def test_p3_ties_change_no_bit(kind: str, tree: int) -> None:
    """Every second word scores as the word before it, or all words do."""
    for seed, is_silent in itertools.product(range(2), (False, True)):
        rng = random.Random(f"{kind}.{seed}")
        sizes = {"src_vocab": 30, "tgt_vocab": 30, "max_source_len": 40, "max_target_len": 40}
        config = random_config(rng, **sizes, share_embeddings="none", output_bias=False)
        model = random_model(config, seed)
        rows = model.output.weight
        rows[1::2] = rows[::2]
        if is_silent:
            rows.zero_()
        scorer = on_engine(model)
        requests = random_requests(rng, 12, 30, limits=[1, 3, 5, 8])
        strategy = with_drafter(small_drafter(kind, 30, seed), block_size=rng.choice([2, 25]), tree=tree)
        for batch_size in (1, 12):
            assert bits_of(run(strategy, scorer, requests, batch_size)) == alone(scorer, requests)


# What is asked, and what is given back.


@pytest.mark.parametrize("kind", SCRIPTED)
def test_rows_are_asked_for_in_one_call(kind: str) -> None:
    script = {(4 + i, 9, EOS): [*range(4, 16), EOS] for i in range(6)}
    drafter = SCRIPTED[kind](30, script)
    requests = [Request(i, source, 40) for i, source in enumerate(script)]
    found = run(with_drafter(drafter, block_size=4), ScriptPasses(30, script), requests, 8)
    assert drafter.encoded == [6]
    if kind == "block":
        assert drafter.calls == [6] * 3
        assert {result.drafter_passes for result in found} == {3}
    else:
        assert drafter.calls == [6]
        assert {result.drafter_passes for result in found} == {1}


@pytest.mark.parametrize("kind", SCRIPTED)
def test_nothing_stays_open_however_a_decoding_ends(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = random_table(random.Random(3))
    words = len(scorer.vocab)
    requests = random_requests(random.Random(1), 9, words, limits=[9])
    drafter = SCRIPTED[kind](words, {})
    running = with_drafter(drafter).run(scorer, requests, batch_size=3)
    next(running)
    running.close()
    assert (*scorer.in_use, drafter.memories_in_use) == (0, 0, 0)
    for limit in range(4):
        drafter = SCRIPTED[kind](words, {})
        logits, count = drafter.logits, itertools.count()

        def failing(words: Any, logits: Any = logits, count: Any = count, limit: int = limit) -> Any:
            if next(count) == limit:
                raise KeyboardInterrupt
            return logits(words)

        monkeypatch.setattr(drafter, "logits", failing)
        with pytest.raises(KeyboardInterrupt):
            list(with_drafter(drafter).run(scorer, [*requests, *requests], batch_size=2))
        assert (*scorer.in_use, drafter.memories_in_use) == (0, 0, 0)


# What is drafted.


# Of what was output so far and how much will be looked at, the drafts that are right: one, but for ties.
Twin = Callable[[list[int], int], list[list[int]]]


def up_to_eos(tokens: Sequence[int], most: int) -> list[int]:
    end = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
    return list(tokens[:end][:most])


def best(logits: Sequence[float], never: Sequence[int]) -> int:
    return max((word for word in range(len(logits)) if word not in never), key=logits.__getitem__)


def read_alone(scorer: Any, request: Request, ask: Callable[[Any], Any]) -> list[list[float]]:
    """The logits of all places that are asked of a source, which is encoded alone."""
    memory = scorer.encode([request.source])
    scores = ask(memory)
    scorer.free(memory)
    found: list[list[float]] = scores.rows(range(len(scores.best))).tolist()
    return found


def filled(scorer: Any, request: Request, canvas: list[int]) -> list[list[float]]:
    return read_alone(scorer, request, lambda memory: scorer.fill(canvas_of(memory, [canvas]), Want()))


def block_twin(scorer: Any, request: Request, block: int) -> Twin:
    def draft(output: list[int], budget: int) -> list[list[int]]:
        count = min(block, budget, scorer.block)
        if count == 0:
            return [[]]
        logits = filled(scorer, request, [*output, *[MASK] * count])[len(output) :]
        return [up_to_eos([best(each, (MASK, PAD)) for each in logits], budget)]

    return draft


def copy_twin(words: Sequence[int], vocab: Vocab, block: int) -> Twin:
    """Copies words and eos, from where the aligned rule of iad finds the output."""
    rule, memory = aligned_rule(vocab.words), {"cursor": 0, "seen": 0}

    def draft(output: list[int], budget: int) -> list[list[int]]:
        place = 0
        if output:
            accepted = len(output) - memory["seen"] - 1
            found = rule(list(words), output, {"cursor": memory["cursor"], "accepted": accepted})
            assert found is not None
            place = found
        memory.update(cursor=place, seen=len(output))
        return [[*words, EOS][place:][:block][:budget]]

    return draft


def frame_twin(scorer: Any, request: Request, block: int) -> Twin:
    rows = read_alone(scorer, request, lambda memory: scorer.read_frames(memory, Want()))
    labels = [best(row, [word for word in SILENT if word != scorer.blank]) for row in rows]
    words = [word for word, _ in itertools.groupby(labels) if word != scorer.blank]
    return copy_twin(words, scorer.vocab, block)


def canvas_twin(scorer: Any, request: Request, block: int) -> Twin:
    memory = scorer.encode([request.source])
    chances = scorer.predict_lengths(memory)[0].tolist()
    scorer.free(memory)
    masks = max(range(1, len(chances)), key=chances.__getitem__) - 1
    logits = filled(scorer, request, [*[MASK] * masks, EOS])[:masks]
    return copy_twin([best(each, (MASK, PAD, EOS)) for each in logits], scorer.vocab, block)


def graph_twin(graphs: ScriptedGraphs, request: Request, block: int) -> Twin:
    """The likeliest paths in Python's own numbers, over all pairs of vertices. The cost of a jump, and words
    that no vertex lists, make some equally likely."""
    number = request.source[0]
    links, last = graphs.links[number], graphs.sizes[number] - 1
    size = len(graphs.vocab)
    lprobs = {vertex: graphs.lprobs(number, vertex) for vertex in range(1, last + 1)}
    allowed = [word for word in range(size) if word not in SILENT]
    listed = {v: sorted(allowed, key=lambda w, v=v: -lprobs[v][w])[:8] for v in range(1, last)}

    def says(vertex: int, word: int) -> float:
        if vertex == 0:
            return JUMP
        rest = max(1e-6, 1 - sum(math.exp(lprobs[vertex][w]) for w in listed[vertex])) / size
        return max(math.log(rest), lprobs[vertex][word] if word in listed[vertex] else -math.inf)

    def following(vertex: int) -> tuple[int, int]:
        def score(to: int) -> float:
            return links[vertex][to] + (lprobs[to][EOS] if to == last else lprobs[to][listed[to][0]])

        to = max(range(vertex + 1, last + 1), key=score)
        return to, EOS if to == last else listed[to][0]

    def path(vertex: int) -> list[int]:
        tokens = []
        while vertex != last:
            vertex, word = following(vertex)
            tokens.append(word)
        return tokens

    def draft(output: list[int], budget: int) -> list[list[int]]:
        forward = {0: 0.0}
        for word in output:
            forward = {
                to: says(to, word) + max(score + max(links[at][to], JUMP) for at, score in forward.items())
                for to in range(last)
            }
        least = max(forward.values()) - 1e-3
        likeliest = [at for at, score in forward.items() if score > least]
        return [path(at)[:block][:budget] for at in likeliest]

    return draft


TWINS = {"blockwise": block_twin, "nat": canvas_twin, "ctc": frame_twin}


def wrong_drafts(kind: str, groups: int = 2) -> int:
    """How many drafts are not the twin's. Outputs grow by any number of tokens between two drafts."""
    count = wrong = 0
    for seed in range(groups):
        rng = random.Random(f"{kind}.{seed}")
        words, block = rng.randint(12, 60), rng.choice([2, 5, 25])
        if kind == "dag":
            scorer: Any = ScriptedGraphs(seed, graphs=12, largest=12, words=words, spread=3.0)
            sources = [(i, EOS) for i in range(12)]
            twin: Any = graph_twin
        else:
            scorer = small_drafter(kind, words, seed)
            sources = [r.source for r in random_requests(rng, 12, words, longest=40)]
            twin = TWINS[kind]
        requests = [Request(i, source, rng.choice([1, 2, 8, 25])) for i, source in enumerate(sources)]
        drafter = parallel_drafter(scorer, block)
        states = drafter.start(requests, [0] * 12)
        rows, twins, grown = [], [], []
        for request, state in zip(requests, states, strict=True):
            rows.append(Row(request, (EOS,), memory=0, context=0, started=0.0, state=state))
            twins.append(twin(scorer, request, block))
            # What the drafter itself would output, with errors: likely prefixes, and others.
            own = twin(scorer, request, 60)([], 60)[0]
            noise = rng.choices(range(4, words), k=request.max_len)
            rate = rng.choice([0.0, 0.2, 1.0])
            pairs = zip([*own, *[EOS] * len(noise)], noise, strict=False)
            grown.append([a if rng.random() >= rate and a != EOS else b for a, b in pairs])
        going = rows
        while going:
            rng.shuffle(going)
            budgets = [max(0, row.request.max_len - len(row.tokens) - 1) for row in going]
            for row, draft, budget in zip(going, drafter.draft(going, budgets), budgets, strict=True):
                right = twins[row.request.index](list(row.tokens), budget)
                count, wrong = count + 1, wrong + (draft.tokens[:budget] not in right)
            for row in going:
                size = len(row.tokens) + rng.randint(1, 5)
                row.tokens = grown[row.request.index][:size]
            going = [row for row in going if len(row.tokens) < row.request.max_len]
        drafter.stop(states)
        assert scorer.memories_in_use == 0
    assert count > 20 * groups
    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_the_twins(kind: str) -> None:
    assert wrong_drafts(kind, 4) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_the_twins_at_full_size(kind: str) -> None:
    assert wrong_drafts(kind, 60) == 0


def test_the_twins_notice_what_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: no prefix on the canvas, no word of the prefix in the graph, paths that follow its
    edges alone, no alignment."""
    canvas = parallel_block.BlockDrafter._canvas
    with monkeypatch.context() as patch:

        def without(self: Any, drafting: Any) -> Any:
            made, only = canvas(self, drafting)
            words = made.words.copy()
            words[: only[0]] = MASK
            return dataclasses.replace(made, words=words), only

        patch.setattr(parallel_block.BlockDrafter, "_canvas", without)
        assert wrong_drafts("blockwise", 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(parallel_graph.GraphState, "follow", lambda state, output: None)
        assert wrong_drafts("dag", 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(parallel_graph, "JUMP", -1e4)
        assert wrong_drafts("dag", 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(parallel_text, "aligned_position", lambda text, spelt, output: (0, 0))
        assert wrong_drafts("ctc", 1) > 0
        assert wrong_drafts("nat", 4) > 0


@pytest.mark.parametrize("kind", SCRIPTED)
@pytest.mark.parametrize(
    ("block", "passes", "drafted"),
    [(1, 6, 6), (4, 3, 9), (9, 2, 10), (10, 1, 10), (11, 1, 11), (25, 1, 11)],
)
def test_who_knows_the_answer_needs_a_pass_a_block(kind: str, block: int, passes: int, drafted: int) -> None:
    """Ten words and eos. A pass gives a block and one token more, so that blocks of 4 give 5, 5 and 1."""
    rng = random.Random(1)
    script = {(4 + i, 9, EOS): [*rng.sample(range(4, 30), 10), EOS] for i in range(5)}
    drafter = SCRIPTED[kind](30, script)
    requests = [Request(i, source, 40) for i, source in enumerate(script)]
    results = run(with_drafter(drafter, block_size=block), ScriptPasses(30, script), requests, 8)
    assert outputs_of(results) == list(script.values())
    assert {(each.passes, each.drafted, each.accepted) for each in results} == {(passes, drafted, drafted)}
    assert drafter.encoded == [5]  # each source is read once for all passes


def test_a_blockwise_model_drafts_no_more_than_it_has_learnt() -> None:
    source = (4, EOS)
    script = {source: [*range(4, 14), EOS]}
    drafter = KnowingBlock(30, script)
    drafter.block = 4
    (result,) = run(with_drafter(drafter), ScriptPasses(30, script), [Request(0, source, 40)], 8)
    assert (result.passes, result.drafted) == (3, 9)


# GAD++.


def plain_gad(
    scorer: TablePasses, request: Request, answer: Sequence[int], block: int, beta: int, tau: float
) -> tuple[list[int], list[float], int]:
    """Draft and verify, as the paper tells it: output, its log-probabilities, and the accepted drafts.

    Of equal words the lowest ids are the better ones.
    """
    output: list[int] = []
    scores: list[float] = []
    accepted = 0

    def append(table: Sequence[int], token: int) -> bool:
        output.append(token)
        scores.append(table[token] - math.log(sum(map(math.exp, table))))
        return token == EOS or len(output) == request.max_len

    while True:
        budget = request.max_len - len(output) - 1
        draft = up_to_eos([*answer[len(output) :], EOS], min(block, budget))
        for token in [*draft, None]:
            table = scorer.table.scores_by_hand(request.source, [EOS, *output])
            order = sorted(range(len(table)), key=lambda word: (-table[word], word))
            fails = token is None or token not in order[:beta] or max(table) - table[token] > tau
            accepted += not fails
            if append(table, order[0] if fails else token):
                return output, scores, accepted
            if fails:
                break


def nearly_differing(cases: int, rule: Callable[[int, float], Acceptance]) -> int:
    wrong = changed = 0
    for seed in range(cases // 10):
        rng = random.Random(seed)
        scorer = random_table(rng)
        words, block = len(scorer.vocab), rng.choice([1, 3, 25])
        # Scores are whole numbers: no rounding decides.
        beta, tau = rng.choice([2, 3, 5]), rng.choice([0.5, 1.5, 2.5, 3.5, 100.0])
        requests = [random_request(rng, i, words, 12) for i in range(10)]
        requests = [dataclasses.replace(r, prefix=(), max_len=min(r.max_len, 16)) for r in requests]
        known = {r.source: [max(token, 4) for token in r.source[:-1]] for r in requests}
        answers = {source: spoilt(rng, [*tokens, EOS], words) for source, tokens in known.items()}
        strategy = with_drafter(KnowingBlock(words, answers), block_size=block, beta=beta, tau=tau)
        object.__setattr__(strategy, "acceptance", lambda rule=rule, beta=beta, tau=tau: rule(beta, tau))
        results = run(strategy, scorer, requests, rng.choice([3, 10]))
        greedy = plain_greedy(scorer.table, requests)
        for result, request, plain in zip(results, requests, greedy, strict=True):
            tokens, scores, accepted = plain_gad(scorer, request, answers[request.source], block, beta, tau)
            (found,) = result.hypotheses
            same = list(found.tokens) == tokens and result.accepted == accepted
            wrong += not (same and found.positional_scores == pytest.approx(scores, abs=1e-4))
            changed += tokens != plain
    assert changed > cases / 20
    return wrong


def test_nearly_best_is_what_the_paper_tells() -> None:
    assert nearly_differing(200, gad.NearlyBest) == 0


class ScoresTheBest(gad.NearlyBest):
    """Known to be wrong: gives the log-probability of the verifier's word, whatever is output."""

    def __call__(self, rows: Sequence[Row], verified: Verified) -> list[Verdict]:
        return [
            Verdict(accepted, tokens, verified.log_probs[row.node : row.node + len(log_probs)])
            for row, (accepted, tokens, log_probs) in zip(rows, super().__call__(rows, verified), strict=True)
        ]


@pytest.mark.parametrize(
    "rule",
    [
        lambda beta, tau: gad.NearlyBest(beta + 1, tau),
        lambda beta, tau: gad.NearlyBest(beta - 1, tau),
        lambda beta, tau: gad.NearlyBest(beta, tau + 1.0),
        lambda beta, tau: gad.NearlyBest(beta, tau - 0.6),
        ScoresTheBest,
    ],
    ids=["a word too many", "a word too few", "too far below", "too near", "scores of other words"],
)
def test_a_wrong_rule_is_noticed(rule: Callable[[int, float], Acceptance]) -> None:
    assert nearly_differing(100, rule) > 0


def test_a_prefix_is_forced_also_where_other_words_are_nearly_best() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        scorer = random_table(rng)
        words = len(scorer.vocab)
        requests = [random_request(rng, i, words, 12) for i in range(12)]
        strategy = with_drafter(SCRIPTED["canvas"](words, {}), beta=5, tau=100.0)
        for result, request in zip(run(strategy, scorer, requests, 4), requests, strict=True):
            tokens = result.hypotheses[0].tokens
            assert tokens[: len(request.prefix)] == request.prefix[: len(tokens)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_nearly_best_depends_on_no_batch(kind: str) -> None:
    changed = 0
    for seed in range(4):
        scorer, drafter, requests = engine_pair(kind, seed, "fp32")
        strategy = with_drafter(drafter, beta=20, tau=100.0)
        wanted = bits_of(run(strategy, scorer, requests, 1))
        changed += len(differing(wanted, alone(scorer, requests)))
        for size in (3, 8):
            assert bits_of(run(strategy, scorer, requests, size)) == wanted
    assert changed > 0


# What is promised and refused.


def test_the_promise_depends_on_beta() -> None:
    assert make_strategy("gad", {}).promised.guarantee is Guarantee.IDENTICAL
    promised = make_strategy("gad", {"beta": 2}).promised
    assert promised.guarantee is Guarantee.APPROXIMATE
    assert str(promised) == "approximate: drafted words are accepted that are nearly the best"


def refusal(strategy: Any) -> str:
    with pytest.raises((UsageError, StrategyMismatchError)) as caught:
        strategy.check_auxiliary()
    with pytest.raises(type(caught.value)):
        decode(strategy, scorer_of_nine(), [Request(0, (5, EOS), 3)])
    return str(caught.value)


def test_what_cannot_draft_is_refused() -> None:
    assert refusal(make_strategy("gad", {})) == (
        "error[E101 Usage] strategy 'gad' has no model to draft with. "
        "Fix: name one with drafter, of one of these architectures: blockwise, cif, ctc, dag, daspeech, "
        "nat, owsm_ctc, paraformer, sanm_paraformer, speech_ctc, speech_dag."
    )
    assert refusal(with_drafter(scorer_of_nine())) == (
        "error[E103 StrategyMismatch] drafter names an autoregressive model, which drafts one token at a "
        "time. Fix: use strategy='speculative', or name a non-autoregressive model."
    )
    assert refusal(with_drafter(object())) == (
        "error[E103 StrategyMismatch] drafter names a model that cannot draft. "
        "Fix: name a model of one of these: blockwise, cif, ctc, dag, daspeech, nat, owsm_ctc, paraformer, "
        "sanm_paraformer, speech_ctc, speech_dag."
    )


def test_tau_without_beta_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("gad", {"tau": 1.0})
    assert str(caught.value) == (
        "error[E101 Usage] tau is 1.0, but with beta=1 only the best word is accepted. Fix: raise beta."
    )
    assert make_strategy("gad", {"tau": 1.0, "beta": 2}).tau == 1.0


# Commands.

LINES = ["a b c d", "", "e e e a", "b", "d c b a f g a b c d", "h unknown a"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A random verifier and random drafters by kind, and a file of sentences."""
    folder = tmp_path_factory.mktemp("models")
    words = [f"{letter}{end}" for letter in "abcdefgh" for end in ("", "x", "y")]
    vocab, found = Vocab.from_words(words), {}
    for seed, kind in enumerate(("transformer", *KINDS), start=5):  # 5 says something
        network = small_network(kind, len(vocab), seed)
        save_checkpoint(
            folder / kind,
            architecture=kind,
            settings=asdict(network.config),
            tensors=network.state_dict(),
            source_vocab=vocab,
            target_vocab=vocab,
            card="# A small model for tests\n",
        )
        found[kind] = str(folder / kind)
    lines = folder / "in.txt"
    lines.write_text("".join(f"{line}\n" for line in LINES))
    return {**found, "lines": str(lines)}


def test_the_command_says_what_greedy_search_says(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([folders["transformer"], folders["lines"], "--strategy", "greedy", "--quiet"]) == 0
    wanted = capsys.readouterr().out
    assert len(set(wanted.splitlines())) > 3
    for kind in KINDS:
        options = ["--strategy", "gad", "--drafter", folders[kind]]
        command = [folders["transformer"], folders["lines"], *options]
        assert main([*command, "--assert-lossless", "--batch-size", "2", "--verbose"]) == 0, kind
        captured = capsys.readouterr()
        assert captured.out == wanted, kind
        drafter = load(folders[kind]).checkpoint.fingerprint
        signature = f"|tree:0|drafter:{drafter}|beta:1|tau:3.0|exact:1|"
        assert signature in captured.err
    assert verify([*command, "--quiet"]) == 0


def test_an_approximate_gad_says_so(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--strategy", "gad", "--drafter", folders["nat"], "--beta", "25", "--tau", "99"]
    command = [folders["transformer"], folders["lines"], *options]
    assert main([*command, "--assert-lossless"]) == 2
    promised = "approximate: drafted words are accepted that are nearly the best"
    assert f"--assert-lossless, but the promise of 'gad' is '{promised}'" in capsys.readouterr().err
    assert verify([*command, "--quiet"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("deviation ")
    assert re.search(r"^NOT identical to greedy: .*, \d+ x deviation \|", out, re.MULTILINE)
    assert "bug" not in out


def test_the_commands_refuse_before_they_decode(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [folders["transformer"], folders["lines"], "--strategy", "gad"]
    assert main(command) == 2
    assert "strategy 'gad' has no model to draft with" in capsys.readouterr().err
    assert main([*command, "--drafter", folders["transformer"]]) == 2
    assert "use --strategy speculative" in capsys.readouterr().err
    assert main([folders["nat"], folders["lines"], "--strategy", "gad", "--drafter", folders["nat"]]) == 2
    assert "strategy 'gad' needs a PassScorer" in capsys.readouterr().err


def test_the_bench_expects_no_more_than_is_promised() -> None:
    def series(**options: Any) -> EngineRuns:
        return EngineRuns(Spec("gad", "gad", {"drafter": "a", **options}, "fp32"))

    assert series().guarantee is Guarantee.IDENTICAL
    assert series(beta=2).guarantee is Guarantee.APPROXIMATE
