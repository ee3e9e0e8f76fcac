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
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scripted import ScriptScorer, TableScorer, decode, differing, outputs_of, plain_greedy
from test_dag_decoders import ScriptedGraphs
from test_iad import aligned_rule
from test_promises_algorithm import edge_request, random_request, random_table
from test_promises_exact import TIES, alone, make_naive, random_scorer, said, tied_scorer
from torch import Tensor
from transformers_small import random_requests, stir, vocabulary

from nartk.architectures import architectures
from nartk.bench.engines import Spec
from nartk.bench.report import lossless
from nartk.bench.runner import Series
from nartk.checkpoint import save_checkpoint
from nartk.cli.decode import main
from nartk.cli.verify import main as verify
from nartk.decoders import gad, iad, parallel_drafts
from nartk.decoders.parallel_drafts import parallel_drafter
from nartk.decoders.tensor_loop import Acceptance, Drafter, Fed, Judged, argmax_acceptance, log_probs
from nartk.errors import StrategyMismatchError, UsageError
from nartk.hypothesis import Request
from nartk.models.transformer_scorer import TransformerScorer
from nartk.pipeline import load
from nartk.registry import make_strategy
from nartk.scorer import BlockScorer, CanvasScorer, Frames, FrameScorer, Graph, GraphScorer, Source
from nartk.vocab import Vocab

BOS, PAD, EOS, UNK = 0, 1, 2, 3
SILENT = (BOS, PAD, EOS)
MASK = BLANK = BOS
JUMP = -6.0  # log-probability with which a path goes where no edge of a graph leads
NETWORKS = ("blockwise", "nat", "ctc", "dag")
Answers = Mapping[tuple[int, ...], Sequence[int]]


def with_drafter(scorer: Any, **options: Any) -> Any:
    """The strategy with a drafter, as Model.strategy makes it."""
    made = make_strategy("gad", {"drafter": "a name", **options})
    return dataclasses.replace(made, helpers={"drafter": scorer})


# Drafters: scripted ones, and small networks.


class Knowing:
    """Base of the scripted drafters: for each source they know an output, eos included.

    Args:
        answers: By source, eos included; of other sources the source is the output.
    """

    def __init__(self, words: int, answers: Answers, device: Any = "cpu") -> None:
        self.vocab, self.answers, self.device = vocabulary(words), dict(answers), torch.device(device)
        self.reads = 0

    def mode(self, *, exact: bool) -> Any:
        return self

    def bucket(self, source_len: int, max_len: int) -> Hashable:
        return None

    def known(self, source: Source) -> list[list[int]]:
        self.reads += 1
        rows = zip(source.tokens.tolist(), source.lengths.tolist(), strict=True)
        sources = [tuple(tokens[:size]) for tokens, size in rows]
        return [list(self.answers.get(each, each)) for each in sources]


class KnowingFiller(Knowing):
    """Implements Filler: fills in the words that it knows for the places, pad behind them."""

    mask = MASK

    def read(self, source: Source) -> Tensor:
        rows = self.known(source)
        return torch.tensor([[len(row), *row, *[PAD] * (300 - len(row))] for row in rows], device=self.device)

    def select(self, state: Tensor, rows: Tensor) -> Tensor:
        return state[rows]

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first, second])

    def fill(self, canvas: Tensor, lengths: Tensor, state: Tensor, places: Tensor | None = None) -> Tensor:
        assert bool((lengths >= 1).all())
        assert bool((lengths <= canvas.shape[1]).all())
        words = state[:, 1 : canvas.shape[1] + 1]
        logits = F.one_hot(words, len(self.vocab)).float()
        return logits if places is None else logits[places]


class KnowingBlock(KnowingFiller):
    """Implements BlockScorer."""

    block = 25


class KnowingCanvas(KnowingFiller):
    """Implements CanvasScorer."""

    def predict_lengths(self, state: Tensor) -> Tensor:
        lengths = torch.arange(301, device=self.device)
        return torch.where(lengths == state[:, :1], 0.0, float("-inf"))


class KnowingFrames(Knowing):
    """Implements FrameScorer: two frames a word, and a blank after them; or without blank a frame a word."""

    def __init__(self, *args: Any, blank: int | None = BLANK, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blank = blank

    def emit(self, source: Source) -> Frames:
        rows = self.known(source)
        if self.blank is not None:
            rows = [[x for word in row[:-1] for x in (word, word, self.blank)] + [BLANK] for row in rows]
        width = max(map(len, rows))
        labels = torch.tensor([[*row, *[9 % len(self.vocab)] * (width - len(row))] for row in rows])
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        chances = F.one_hot(labels.to(self.device), len(self.vocab)).float()
        return Frames(chances.log(), lengths)


class KnowingGraph(Knowing):
    """Implements GraphScorer: a vertex for each word, on a single path."""

    def emit(self, source: Source) -> Graph:
        rows = self.known(source)
        width = max(map(len, rows)) + 1
        words = torch.tensor([[BOS, *row, *[0] * (width - 1 - len(row))] for row in rows], device=self.device)
        lengths = torch.tensor([len(row) + 1 for row in rows], device=self.device)
        places = torch.arange(width, device=self.device)
        linked = (places == places[:, None] + 1) & (places < lengths[:, None, None])
        return Graph(words[:, :, None], torch.where(linked, 0.0, float("-inf")), lengths)

    def words(self, hidden: Tensor) -> Tensor:
        return 20.0 * F.one_hot(hidden.squeeze(1), len(self.vocab)).float()


SCRIPTED: dict[str, Callable[..., Any]] = {
    "block": KnowingBlock,
    "canvas": KnowingCanvas,
    "frames": KnowingFrames,
    "frames without blank": lambda *args, **kwargs: KnowingFrames(*args, blank=None, **kwargs),
    "graph": KnowingGraph,
}


def test_the_scripted_drafters_speak_their_protocols() -> None:
    protocols = (BlockScorer, CanvasScorer, FrameScorer, GraphScorer)
    for name, make in SCRIPTED.items():
        made = make(9, {})
        assert sum(isinstance(made, protocol) for protocol in protocols) == 1, name


def network(
    kind: str,
    words: int,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
    weights: float | None = None,
) -> Any:
    """Serves a small random model of a kind; `weights` is what all its weights are, if not random."""
    rng = random.Random(seed)
    found = architectures()[kind]
    heads = rng.choice([1, 2])
    own = {
        "blockwise": {"block": rng.choice([3, 8])},
        "nat": {"length_difference": 3},  # else random weights predict the shortest output
        "dag": {"upsample_scale": "3"},
    }.get(kind, {})
    config = found.config(
        src_vocab=words,
        tgt_vocab=words,
        d_model=heads * rng.choice([16, 24]),
        encoder_layers=1,
        decoder_layers=rng.choice([1, 2]),
        encoder_ffn=48,
        decoder_ffn=48,
        encoder_heads=heads,
        decoder_heads=heads,
        max_source_len=128,
        max_target_len=128,
        **own,
    )
    torch.manual_seed(seed)
    model = stir(found.network(config).eval())
    if weights is not None:
        for weight in model.parameters():
            torch.nn.init.constant_(weight, weights)
    return found.scorer(model, vocabulary(words), dtype=dtype, device=device)


# The promise of beta 1: P1, P2, P4, P7 and P8.


def mismatches(
    kind: str, cases: int, device: torch.device, *, edges: bool, rule: Acceptance | None = None
) -> int:
    """How many random sentences are decoded otherwise than greedily with a drafter that half knows them."""
    wrong = 0
    for seed in range(cases // 40):
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_table(rng, device)
        make = edge_request if edges else random_request
        requests = [make(rng, i, len(scorer.vocab)) for i in range(40)]
        answers = {r.source: spoilt(rng, r.source, len(scorer.vocab)) for r in requests}
        drafter = SCRIPTED[kind](len(scorer.vocab), answers, device)
        strategy = with_drafter(drafter, block_size=rng.choice([1, 2, 3, 8, 25]))
        if rule is not None:
            object.__setattr__(strategy, "acceptance", lambda: rule)
        found = decode(strategy, scorer, requests, batch_size=rng.choice([3, 8, 40, 40]))
        wrong += len(differing(outputs_of(found), plain_greedy(scorer.scores, requests)))
    return wrong


def spoilt(rng: random.Random, tokens: Sequence[int], words: int) -> list[int]:
    """An output like `tokens`: some replaced, left out or put in; ends with eos, as all outputs do."""
    said: list[int] = []
    for token in tokens[:-1]:
        kind = rng.random()
        said += [token] if kind < 0.9 else rng.choices(range(3, words), k=rng.randint(0, 2))
    return [*said, EOS]


@pytest.mark.parametrize("kind", SCRIPTED)
def test_p1_the_output_is_greedys(kind: str, device: torch.device) -> None:
    assert mismatches(kind, 240, device, edges=False) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTED)
def test_p1_at_full_size(kind: str, device: torch.device) -> None:
    assert mismatches(kind, 40_000, device, edges=False) == 0


@pytest.mark.parametrize("kind", SCRIPTED)
def test_p7_edges(kind: str, device: torch.device) -> None:
    assert mismatches(kind, 200, device, edges=True) == 0


def believe(logits: Tensor, fed: Fed) -> Judged:
    """Known to be wrong: whatever is drafted stands."""
    return dataclasses.replace(argmax_acceptance(logits, fed), stands=fed.drafted >= 0)


@pytest.mark.parametrize("rule", [believe, gad.NearlyBest(2, 0.0), gad.NearlyBest(3, 100.0)])
def test_p1_fails_with_a_wrong_acceptance(rule: Acceptance, device: torch.device) -> None:
    assert mismatches("canvas", 80, device, edges=False, rule=rule) > 0


def different(
    drafter: Any,
    scorer: TransformerScorer,
    requests: list[Request],
    *,
    sizes: Sequence[int] = (1, 5, 12),
    **options: Any,
) -> int:
    """How many sentences get other tokens or other bits than greedy search gives them alone."""
    wanted = alone(scorer, requests)
    found = (decode(with_drafter(drafter, **options), scorer, requests, batch_size=size) for size in sizes)
    return sum(len(differing(said(results), wanted)) for results in found)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def changed_bits(kind: str, dtype: torch.dtype, device: torch.device, seeds: Sequence[int]) -> int:
    """How many sentences are decoded otherwise than greedily with a network, or with what half knows them."""
    wrong = 0
    for seed in seeds:
        rng = random.Random(f"{kind}.{seed}")
        scorer = random_scorer(rng, dtype, device)
        words = len(scorer.vocab)
        requests = random_requests(rng, 12, words, limits=[1, 2, 6, 20])
        if kind in NETWORKS:
            drafter = network(kind, words, seed, dtype=dtype, device=device)
        else:
            outputs = zip(requests, alone(scorer, requests), strict=True)
            answers = {request.source: spoilt(rng, [*tokens, EOS], words) for request, (tokens, _) in outputs}
            drafter = SCRIPTED[kind](words, answers, device)
        wrong += different(drafter, scorer, requests, block_size=rng.choice([4, 25]))
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*NETWORKS, "block", "graph"])
def test_p2_and_p4_no_drafter_changes_a_bit(kind: str, dtype: str, device: torch.device) -> None:
    assert changed_bits(kind, DTYPES[dtype], device, [0]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*NETWORKS, *SCRIPTED])
def test_p2_and_p4_at_full_size(kind: str, dtype: str, device: torch.device) -> None:
    assert changed_bits(kind, DTYPES[dtype], device, range(1, 30)) == 0


@pytest.mark.parametrize("weights", [math.nan, 1e30])
@pytest.mark.parametrize("kind", NETWORKS)
def test_p8_a_broken_network_never_changes_the_output(
    kind: str, weights: float, device: torch.device
) -> None:
    rng = random.Random(f"{kind}.{weights}")
    scorer = random_scorer(rng, torch.float32, device)
    drafter = network(kind, len(scorer.vocab), 1, device=device, weights=weights)
    requests = random_requests(rng, 9, len(scorer.vocab), longest=12, limits=[1, 3, 8])
    assert different(drafter, scorer, requests, sizes=(4,)) == 0


# What is drafted.


Twin = Callable[[list[int], int], list[int]]  # what was output so far, and how much will be looked at


def up_to_eos(tokens: Sequence[int], most: int) -> list[int]:
    end = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
    return list(tokens[:end][:most])


def best(logits: Sequence[float], never: Sequence[int]) -> int:
    return max((word for word in range(len(logits)) if word not in never), key=logits.__getitem__)


def alone_in_a_batch(request: Request, device: torch.device) -> Source:
    lengths = torch.tensor([len(request.source)], device=device)
    return Source(torch.tensor([request.source], device=device), lengths)


def filled(scorer: Any, request: Request, canvas: list[int]) -> list[list[float]]:
    state = scorer.read(alone_in_a_batch(request, scorer.device))
    lengths = torch.tensor([len(canvas)], device=scorer.device)
    return scorer.fill(torch.tensor([canvas], device=scorer.device), lengths, state)[0].float().tolist()


def block_twin(scorer: Any, request: Request, block: int) -> Twin:
    def draft(output: list[int], budget: int) -> list[int]:
        count = min(block, budget, scorer.block)
        if count == 0:
            return []
        logits = filled(scorer, request, [*output, *[MASK] * count])[len(output) :]
        return up_to_eos([best(each, (MASK, PAD)) for each in logits], budget)

    return draft


def copy_twin(words: Sequence[int], vocab: Vocab, block: int) -> Twin:
    """Copies words and eos, from where the aligned rule of iad finds the output."""
    rule, memory = aligned_rule(vocab.words), {"cursor": 0, "seen": 0}

    def draft(output: list[int], budget: int) -> list[int]:
        place = 0
        if output:
            accepted = len(output) - memory["seen"] - 1
            found = rule(list(words), output, {"cursor": memory["cursor"], "accepted": accepted})
            assert found is not None
            place = found
        memory.update(cursor=place, seen=len(output))
        return [*words, EOS][place:][:block][:budget]

    return draft


def frame_twin(scorer: Any, request: Request, block: int) -> Twin:
    frames = scorer.emit(alone_in_a_batch(request, scorer.device))
    rows = frames.log_probs[0, : int(frames.lengths[0])].tolist()
    labels = [best(row, {PAD, EOS} - {scorer.blank}) for row in rows]
    words = [word for word, _ in itertools.groupby(labels) if word != scorer.blank]
    return copy_twin(words, scorer.vocab, block)


def canvas_twin(scorer: Any, request: Request, block: int) -> Twin:
    state = scorer.read(alone_in_a_batch(request, scorer.device))
    chances = scorer.predict_lengths(state)[0].tolist()
    masks = max(range(1, len(chances)), key=chances.__getitem__) - 1
    logits = filled(scorer, request, [*[MASK] * masks, EOS])[:masks]
    return copy_twin([best(each, (MASK, PAD, EOS)) for each in logits], scorer.vocab, block)


def graph_twin(graphs: ScriptedGraphs, request: Request, block: int) -> Twin:
    """The likeliest path in Python's own numbers, over all pairs of vertices."""
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

    def draft(output: list[int], budget: int) -> list[int]:
        forward = {0: 0.0}
        for word in output:
            forward = {
                to: says(to, word) + max(score + max(links[at][to], JUMP) for at, score in forward.items())
                for to in range(last)
            }
        return path(max(forward, key=forward.__getitem__))[:block][:budget]

    return draft


def play(
    drafter: Drafter,
    requests: list[Request],
    outputs: Sequence[Sequence[int]],
    twins: Sequence[Twin],
    rng: random.Random,
    device: torch.device,
) -> tuple[int, int]:
    """Lets outputs grow and rows come and go, as the loop does; returns the drafts and the wrong ones."""
    width = max(request.max_len for request in requests) + 1
    waiting = [*requests]
    rows: list[Request] = []
    grown: list[int] = []
    state: Any = None
    count = wrong = 0

    def propose(state: Any, some: list[Request], lengths: list[int]) -> Any:
        nonlocal count, wrong
        said = [[*outputs[r.index][:n], *[PAD] * (width - n)] for r, n in zip(some, lengths, strict=True)]
        budget = [max(r.max_len - n - 1, 0) for r, n in zip(some, lengths, strict=True)]
        draft, state = drafter.draft(
            state, *(torch.tensor(each, device=device) for each in (said, lengths, budget))
        )
        for i, request in enumerate(some):
            found = draft.tokens[i, : int(draft.lengths[i])].tolist()
            end = found.index(-1) if -1 in found else len(found)
            wanted = twins[request.index](list(outputs[request.index][: lengths[i]]), budget[i])
            count, wrong = count + 1, wrong + (found[:end][: budget[i]] != wanted)
        return state

    while waiting or rows:
        if waiting and (not rows or rng.random() < 0.5):
            new = [waiting.pop() for _ in range(min(len(waiting), rng.randint(1, 4)))]
            longest = max(len(request.source) for request in new)
            tokens = [[*r.source, *[PAD] * (longest - len(r.source))] for r in new]
            source = Source(
                torch.tensor(tokens, device=device),
                torch.tensor([len(r.source) for r in new], device=device),
            )
            started = propose(drafter.start(source, new), new, [0] * len(new))
            state = started if not rows else drafter.join(state, started)
            rows, grown = rows + new, grown + [0] * len(new)
        grown = [
            min(n + rng.randint(1, 5), r.max_len, len(outputs[r.index]))
            for r, n in zip(rows, grown, strict=True)
        ]
        state = propose(state, rows, grown)
        going = [i for i, r in enumerate(rows) if grown[i] < min(r.max_len, len(outputs[r.index]))]
        rng.shuffle(going)
        rows, grown = [rows[i] for i in going], [grown[i] for i in going]
        state = drafter.select(state, torch.tensor(going, dtype=torch.int64, device=device))
    return count, wrong


TWINS = {"blockwise": block_twin, "nat": canvas_twin, "ctc": frame_twin}


def wrong_drafts(kind: str, device: torch.device, groups: int = 2) -> int:
    """How many drafts are not what the twin says; in exact mode, where the batch changes no bit."""
    wrong = 0
    for seed in range(groups):
        rng = random.Random(f"{kind}.{seed}")
        words = rng.randint(12, 60)
        block = rng.choice([2, 5, 25])
        verifier = TableScorer(words, device=device)
        if kind == "dag":
            scorer: Any = ScriptedGraphs(seed, graphs=12, largest=12, words=words, spread=3.0, device=device)
            sources = [(i, EOS) for i in range(12)]
            twin: Any = graph_twin
        else:
            scorer = network(kind, words, seed, device=device)
            sources = [r.source for r in random_requests(rng, 12, words, longest=40)]
            twin = TWINS[kind]
        requests = [Request(i, source, rng.choice([1, 2, 8, 25])) for i, source in enumerate(sources)]
        twins = [twin(scorer, request, block) for request in requests]
        outputs = []
        for request in requests:
            # What the drafter itself would say, with errors: likely prefixes, and others.
            own = twin(scorer, request, 60)([], 60)
            noise = rng.choices(range(4, words), k=request.max_len)
            rate = rng.choice([0.0, 0.2, 1.0])
            outputs.append(
                [
                    a if rng.random() >= rate and a != EOS else b
                    for a, b in zip([*own, *[EOS] * len(noise)], noise, strict=False)
                ]
            )
        drafter = parallel_drafter(scorer, verifier, block)
        count, some = play(drafter, requests, outputs, twins, rng, device)
        assert count > 20
        wrong += some
    return wrong


@pytest.mark.parametrize("kind", NETWORKS)
def test_drafts_are_what_the_twin_says(kind: str, device: torch.device) -> None:
    assert wrong_drafts(kind, device) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_drafts_are_what_the_twin_says_at_full_size(kind: str, device: torch.device) -> None:
    assert wrong_drafts(kind, device, 60) == 0


def test_the_twins_notice_what_is_forgotten(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: no prefix on the canvas, no word of the prefix in the graph, paths that follow its
    edges alone, no alignment."""
    blank = parallel_drafts._behind
    with monkeypatch.context() as patch:
        patch.setattr(
            parallel_drafts,
            "_behind",
            lambda outputs, lengths, sizes, mask: blank(outputs, lengths * 0, sizes, mask),
        )
        assert wrong_drafts("blockwise", device, 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(parallel_drafts, "_follow", lambda graph, outputs, lengths: graph)
        assert wrong_drafts("dag", device, 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(parallel_drafts, "_JUMP", -1e4)
        assert wrong_drafts("dag", device, 1) > 0
    with monkeypatch.context() as patch:
        patch.setattr(iad, "suffix_lengths", lambda text, outputs, lengths: 0 * F.pad(text, (0, 1)))
        assert wrong_drafts("ctc", device, 1) > 0
        assert wrong_drafts("nat", device, 4) > 0


def test_the_twins_notice_rows_that_are_mixed_up(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafters = {
        "blockwise": parallel_drafts.BlockDrafter,
        "nat": parallel_drafts.CanvasDrafter,
        "ctc": parallel_drafts.FrameDrafter,
        "dag": parallel_drafts.GraphDrafter,
    }
    for kind, drafter in drafters.items():
        with monkeypatch.context() as patch:
            right = drafter.join
            patch.setattr(
                drafter, "join", lambda self, first, second, right=right: right(self, second, first)
            )
            assert wrong_drafts(kind, device, 1) > 0, kind


@pytest.mark.parametrize("kind", SCRIPTED)
@pytest.mark.parametrize(
    ("block", "passes", "drafted"),
    [(1, 6, 6), (4, 3, 9), (9, 2, 10), (10, 1, 10), (11, 1, 11), (25, 1, 11)],
)
def test_who_knows_the_answer_needs_a_pass_a_block(
    kind: str, block: int, passes: int, drafted: int, device: torch.device
) -> None:
    """Ten words and eos. A pass gives a block and one token more, so that blocks of 4 give 5, 5 and 1."""
    rng = random.Random(1)
    script = {(4 + i, 9, EOS): [*rng.sample(range(4, 30), 10), EOS] for i in range(5)}
    drafter = SCRIPTED[kind](30, script, device)
    requests = [Request(i, source, 40) for i, source in enumerate(script)]
    results = decode(
        with_drafter(drafter, block_size=block), ScriptScorer(30, script, device=device), requests
    )
    assert outputs_of(results) == list(script.values())
    assert {(each.passes, each.drafted, each.accepted) for each in results} == {(passes, drafted, drafted)}
    assert drafter.reads == 1  # the source is read once for all passes


def test_a_blockwise_model_drafts_no_more_than_it_has_learnt(device: torch.device) -> None:
    source = (4, EOS)
    script = {source: [*range(4, 14), EOS]}
    drafter = KnowingBlock(30, script, device)
    drafter.block = 4
    (result,) = decode(
        with_drafter(drafter), ScriptScorer(30, script, device=device), [Request(0, source, 40)]
    )
    assert (result.passes, result.drafted) == (3, 9)


# GAD++.


def plain_gad(
    scorer: TableScorer, request: Request, answer: Sequence[int], block: int, beta: int, tau: float
) -> tuple[list[int], list[float], int]:
    """Draft and verify, as the paper tells it: output, its log-probabilities, and how many drafts stood."""
    output: list[int] = []
    scores: list[float] = []
    stood = 0

    def append(table: Sequence[int], token: int) -> bool:
        output.append(token)
        scores.append(table[token] - math.log(sum(map(math.exp, table))))
        return token == EOS or len(output) == request.max_len

    while True:
        budget = request.max_len - len(output) - 1
        draft = up_to_eos([*answer[len(output) :], EOS], min(block, budget))
        for token in [*draft, None]:
            table = scorer.scores_by_hand(request.source, [EOS, *output])
            rank = sum(score > table[token] for score in table) if token is not None else 0
            falls = token is None or rank >= beta or max(table) - table[token] > tau
            stood += not falls
            if append(table, table.index(max(table)) if falls else token):
                return output, scores, stood
            if falls:
                break


def nearly_differing(cases: int, device: torch.device, rule: Callable[[int, float], Acceptance]) -> int:
    wrong = changed = 0
    for seed in range(cases // 10):
        rng = random.Random(seed)
        scorer = TableScorer(
            rng.randint(6, 20),
            seed=seed,
            spread=rng.choice([2, 4, 8]),
            bonus=rng.choice([1, 4]),
            device=device,
        )
        words, block = len(scorer.vocab), rng.choice([1, 3, 25])
        beta, tau = rng.choice([2, 3, 5]), rng.choice([0.0, 1.0, 2.5, 3.0, 100.0])
        requests = [random_request(rng, i, words, 12) for i in range(10)]
        requests = [dataclasses.replace(r, prefix=(), max_len=min(r.max_len, 16)) for r in requests]
        known = {r.source: [max(token, 4) for token in r.source[:-1]] for r in requests}
        answers = {source: spoilt(rng, [*tokens, EOS], words) for source, tokens in known.items()}
        strategy = with_drafter(KnowingBlock(words, answers, device), block_size=block, beta=beta, tau=tau)
        object.__setattr__(strategy, "acceptance", lambda rule=rule, beta=beta, tau=tau: rule(beta, tau))
        results = decode(strategy, scorer, requests, batch_size=rng.choice([3, 10]))
        greedy = plain_greedy(scorer.scores, requests)
        for result, request, plain in zip(results, requests, greedy, strict=True):
            tokens, scores, stood = plain_gad(scorer, request, answers[request.source], block, beta, tau)
            (found,) = result.hypotheses
            same = list(found.tokens) == tokens and result.accepted == stood
            wrong += not (same and found.positional_scores == pytest.approx(scores, abs=1e-5))
            changed += tokens != plain
    assert changed > cases / 20
    return wrong


def test_nearly_best_is_what_the_paper_tells(device: torch.device) -> None:
    assert nearly_differing(200, device, gad.NearlyBest) == 0


@dataclasses.dataclass(frozen=True)
class ScoresTheBest(gad.NearlyBest):
    """Known to be wrong: gives the log-probability of the verifier's word, whatever is output."""

    def __call__(self, logits: Tensor, fed: Fed) -> Judged:
        judged = super().__call__(logits, fed)
        return dataclasses.replace(judged, scores=log_probs(logits, judged.tokens))


@pytest.mark.parametrize(
    "rule",
    [
        lambda beta, tau: gad.NearlyBest(beta + 1, tau),
        lambda beta, tau: gad.NearlyBest(beta - 1, tau),
        lambda beta, tau: gad.NearlyBest(beta, tau + 1.0),
        lambda beta, tau: gad.NearlyBest(beta, tau - 0.5),
        ScoresTheBest,
    ],
    ids=["a word too many", "a word too few", "too far below", "too near", "scores of other words"],
)
def test_a_wrong_rule_is_noticed(rule: Callable[[int, float], Acceptance], device: torch.device) -> None:
    assert nearly_differing(100, device, rule) > 0


@pytest.mark.parametrize("kind", NETWORKS)
def test_what_is_nearly_best_depends_on_no_batch(kind: str, device: torch.device) -> None:
    rng = random.Random(kind)
    scorer = random_scorer(rng, torch.float32, device)
    drafter = network(kind, len(scorer.vocab), 3, device=device)
    requests = random_requests(rng, 8, len(scorer.vocab), limits=[3, 8, 12])
    strategy = with_drafter(drafter, beta=20, tau=100.0)
    wanted = said(decode(strategy, scorer, requests, batch_size=1))
    assert differing(wanted, alone(scorer, requests))
    for size in (3, 8):
        assert said(decode(strategy, scorer, requests, batch_size=size)) == wanted


@pytest.mark.parametrize(
    ("options", "exact"), [({}, False), ({"beta": 2}, True), ({"beta": 2, "exact": False}, False)]
)
def test_only_what_changes_the_output_is_drafted_exactly(options: dict[str, Any], exact: bool) -> None:
    asked = []

    class Asked(KnowingCanvas):
        def mode(self, *, exact: bool) -> Any:
            asked.append(exact)
            return self

    decode(with_drafter(Asked(9, {}), **options), TableScorer(9), [Request(0, (5, EOS), 3)])
    assert asked == [exact]


# What is promised and refused.


def test_the_promise_depends_on_beta() -> None:
    assert make_strategy("gad", {}).promised == "identical to greedy"
    promised = make_strategy("gad", {"beta": 2}).promised
    assert promised == "approximate: drafted words are accepted that are nearly the best"


def refusal(strategy: Any) -> str:
    with pytest.raises((UsageError, StrategyMismatchError)) as caught:
        strategy.check_helpers()
    with pytest.raises(type(caught.value)):
        decode(strategy, TableScorer(9), [Request(0, (5, EOS), 3)])
    return str(caught.value)


def test_what_cannot_draft_is_refused() -> None:
    assert refusal(make_strategy("gad", {})) == (
        "error[E101 Usage] strategy 'gad' has no model to draft with. "
        "Fix: name one with --drafter: blockwise, nat, ctc or dag."
    )
    assert refusal(with_drafter(TableScorer(9))) == (
        "error[E103 StrategyMismatch] --drafter names an autoregressive model, which drafts one token at a "
        "time. Fix: use --strategy speculative, or name a non-autoregressive model."
    )
    assert refusal(with_drafter(object())) == (
        "error[E103 StrategyMismatch] --drafter names a model that cannot draft. "
        "Fix: name a non-autoregressive model: blockwise, nat, ctc or dag."
    )


def test_tau_without_beta_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("gad", {"tau": 1.0})
    assert str(caught.value) == (
        "error[E101 Usage] --tau is 1.0, but with --beta 1 only the best word is accepted. Fix: raise --beta."
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
    for seed, kind in enumerate(("transformer", *NETWORKS), start=5):  # 5 says something
        scorer = network(kind, len(vocab), seed)
        torch.manual_seed(seed)
        save_checkpoint(
            folder / kind,
            kind=kind,
            settings=asdict(scorer.config),
            tensors=stir(architectures()[kind].network(scorer.config)).state_dict(),
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
    for kind in NETWORKS:
        options = ["--strategy", "gad", "--drafter", folders[kind]]
        command = [folders["transformer"], folders["lines"], *options]
        assert main([*command, "--assert-lossless", "--batch-size", "2"]) == 0, kind
        captured = capsys.readouterr()
        assert captured.out == wanted, kind
        drafter = load(folders[kind]).checkpoint.fingerprint
        signature = f"|exact:1|adaptive:0|drafter:{drafter}|block_size:25|beta:1|tau:3.0|"
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
    assert "strategy 'gad' needs a Seq2SeqScorer" in capsys.readouterr().err


def test_the_bench_expects_no_more_than_is_promised() -> None:
    def series(**options: Any) -> Series:
        return Series(Spec("gad", "gad", {"drafter": "a", **options}, "fp32"))

    assert lossless(series())
    assert not lossless(series(beta=2))


# The promise of beta 1 where scores tie: P3.


def changed_ties(
    kind: str, dtype: torch.dtype, device: torch.device, seeds: Sequence[int], *, naive: bool = False
) -> int:
    """How many sentences are decoded otherwise than greedily by verifiers with constructed ties.

    Args:
        naive: Known to be wrong: plain layers at whatever shape comes, in both ways of decoding.
    """
    wrong = 0
    for seed, ties in itertools.product(seeds, TIES):
        rng = random.Random(f"{kind}.{ties}.{seed}")
        scorer = tied_scorer(ties, seed, dtype, device)
        if naive:
            make_naive(scorer)
        words = len(scorer.vocab)
        requests = random_requests(rng, 12, words, limits=[1, 3, 5, 8])
        wanted = alone(scorer, requests, exact=not naive)
        if kind in NETWORKS:
            drafter = network(kind, words, seed, dtype=dtype, device=device)
        else:
            outputs = zip(requests, wanted, strict=True)
            answers = {request.source: spoilt(rng, [*tokens, EOS], words) for request, (tokens, _) in outputs}
            drafter = SCRIPTED[kind](words, answers, device)
        strategy = with_drafter(drafter, block_size=rng.choice([2, 4, 25]), exact=not naive)
        found = [said(decode(strategy, scorer, requests, batch_size=size)) for size in (1, 12)]
        wrong += sum(len(differing(each, wanted)) for each in found)
    return wrong


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "fp32") for kind in (*NETWORKS, "block", "graph")), ("block", "bf16")]
)
def test_p3_ties_change_no_bit(kind: str, dtype: str, device: torch.device) -> None:
    assert changed_ties(kind, DTYPES[dtype], device, [0]) == 0  # 336 sentences in all


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*NETWORKS, *SCRIPTED])
def test_p3_at_full_size(kind: str, dtype: str, device: torch.device) -> None:
    assert changed_ties(kind, DTYPES[dtype], device, range(1, 8)) == 0  # 6,048 sentences in all


def test_p3_fails_the_naive_way(device: torch.device) -> None:
    assert changed_ties("block", torch.float32, device, range(3), naive=True) > 0
