"""Passes of the engine: what they compute, against torch; and that nothing depends on what is beside it.

Symbols: B rows, N tokens of a pass, n of them scored, V words.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from support.engine import ISAS, same_bits, wide_linear
from support.random_transformers import (
    EOS,
    FIRST_WORD,
    arrays_of,
    random_config,
    random_model,
    random_source,
    vocabulary,
)
from support.scorers import TransformerEngine, TransformerReference
from torch import nn
from torch.nn import functional

from nartk.architectures.transformer import TransformerConfig
from nartk.engine import FORCED_ISA, TYPES, _native
from nartk.engine.weights import Weights
from nartk.errors import PassError
from nartk.models.transformer import Transformer
from nartk.protocols.passes import ROOT, CopiesSource, Draw, Limits, Pass, PassScorer, Ragged, Scores, Want
from nartk.protocols.reading import check_want, read

QUICK, SLOW = 50, 1000  # cases of each type and instruction set
BATCHES = (1, 2, 3, 8, 32)


def engine_of(model: Transformer, type: str = "fp32", threads: int = 1) -> TransformerEngine:
    config = model.config
    return TransformerEngine(
        config,
        arrays_of(model),
        vocabulary(config.tgt_vocab),
        source_vocab=vocabulary(config.src_vocab),
        type=type,
        threads=threads,
    )


def int32(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def chain(tokens: Sequence[int], first: int, memory: int, context: int) -> Pass:
    count = len(tokens)
    return Pass(
        int32(tokens),
        np.arange(first, first + count, dtype=np.int32),
        np.full(count, memory, np.int32),
        np.full(count, context, np.int32),
        np.arange(-1, count - 1, dtype=np.int32),
    )


# --- Against the whole model at once


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.tensor(logits).double().log_softmax(-1).numpy()


@pytest.mark.parametrize("seed", range(40))
def test_log_probabilities_are_those_of_the_whole_model(seed: int) -> None:
    rng = random.Random(seed)
    config = random_config(rng)
    model = random_model(config, seed)
    scorer, whole = engine_of(model, threads=rng.choice([1, 2])), model.double()
    assert isinstance(scorer, PassScorer)
    assert isinstance(scorer, CopiesSource)
    assert scorer.limits == Limits(config.max_source_len, config.max_target_len, config.tgt_vocab)
    sources = [random_source(rng, config) for _ in range(4)]
    memories, contexts = scorer.encode(sources).tolist(), scorer.open(4).tolist()
    for source, memory, context in zip(sources, memories, contexts, strict=True):
        words = [rng.randrange(FIRST_WORD, config.tgt_vocab) for _ in range(rng.randint(0, 18))]
        tokens = [scorer.start_token, *words]
        with torch.inference_mode():
            wanted = whole(torch.tensor([source]), torch.tensor([tokens]))[0].log_softmax(-1).numpy()
        scores = scorer.run(chain(tokens, 0, memory, context), Want())
        found = log_softmax(scores.rows(range(len(tokens))))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
        np.testing.assert_allclose(scores.log_probs, wanted.max(1), rtol=0, atol=1e-4)
        assert (wanted.max(1) - wanted[np.arange(len(tokens)), scores.best] <= 2e-4).all()


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()  # to the nearest, of two the even one


def to_int8(x: torch.Tensor) -> torch.Tensor:
    """Rows as whole numbers of at most 127 times a scale each."""
    most = x.abs().amax(-1, keepdim=True)
    numbers = (x * torch.where(most > 0, 127 / most, most)).round()  # of halves the even one
    return numbers * (most / 127)


def to_steps(x: torch.Tensor) -> torch.Tensor:
    """Rows as whole numbers of steps, 254 from the least number to the largest, or to 0."""
    step = (x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)) / 254
    return (x * torch.where(step > 0, 1 / step, step)).round() * step


ROUND = {"bf16": (to_bf16, to_bf16), "int8": (to_int8, to_steps)}  # weights and inputs


def rounded_twin(model: Transformer, type: str) -> Transformer:
    """The network with inputs and weights of linear layers, and vectors of words, rounded to a type."""
    (rounded, read), twin = ROUND[type], copy.deepcopy(model)
    for module in twin.modules():
        weight = rounded(module.weight) if isinstance(module, (nn.Linear, nn.Embedding)) else None
        if isinstance(module, nn.Linear):
            module.forward = lambda x, w=weight, b=module.bias: functional.linear(read(x), w, b)  # type: ignore[method-assign]
        elif isinstance(module, nn.Embedding):
            module.forward = lambda words, w=weight: functional.embedding(words, w)  # type: ignore[method-assign]
    return twin


@pytest.mark.parametrize("type", ROUND)
def test_smaller_types_round_as_a_twin_does(type: str) -> None:
    """Of torch: but for numbers halfway between two, which fp32's own rounding moves to either."""
    near, far = [], []
    for seed in range(16):
        rng = random.Random(seed)
        config = random_config(rng, encoder_positions="sinusoidal", decoder_positions="sinusoidal")
        model = random_model(config, seed)
        scorer, twin = engine_of(model, type), rounded_twin(model, type)
        source = random_source(rng, config)
        (memory,), (context,) = scorer.encode([source]), scorer.open(1)
        tokens = [scorer.start_token, *(rng.randrange(FIRST_WORD, config.tgt_vocab) for _ in range(15))]
        found = log_softmax(scorer.run(chain(tokens, 0, memory, context), Want()).rows(range(16)))
        for network, errors in ((twin, near), (model, far)):
            with torch.inference_mode():
                wanted = network(torch.tensor([source]), torch.tensor([tokens]))[0].log_softmax(-1)
            errors += np.abs(found - wanted.numpy()).max(1).tolist()
    assert np.quantile(near, 0.75) < 1e-5
    assert max(near) < 0.2
    assert np.median(far) > 1e-3


def random_tree(rng: random.Random, size: int) -> list[int]:
    """Parents of so many tokens; the first is the only one that follows the context."""
    return [ROOT, *(rng.choice([i - 1, rng.randrange(i)]) for i in range(1, size))]


def depths_of(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent == ROOT else depths[parent] + 1)
    return depths


@dataclass
class Trees:
    """A pass over trees of several rows, interleaved.

    Attributes:
        indices: Of each row, where its tokens are in the pass.
    """

    work: Pass
    indices: list[list[int]]


def interleaved(
    rng: random.Random, rows: Sequence[tuple[Sequence[int], Sequence[int], int, int, int]]
) -> Trees:
    """Tokens, parents, first position, memory and context of each row."""
    order = [row for row, (tokens, *_) in enumerate(rows) for _ in tokens]
    rng.shuffle(order)
    indices: list[list[int]] = [[] for _ in rows]
    columns: list[list[int]] = [[], [], [], [], []]
    for at, row in enumerate(order):
        tokens, parents, first, memory, context = rows[row]
        i = len(indices[row])
        depth = depths_of(parents)[i]
        parent = ROOT if parents[i] == ROOT else indices[row][parents[i]]
        for column, value in zip(columns, (tokens[i], first + depth, memory, context, parent), strict=True):
            column.append(value)
        indices[row].append(at)
    return Trees(Pass(*map(int32, columns)), indices)


@pytest.mark.parametrize("seed", range(20))
def test_trees_score_as_the_reference_does(seed: int) -> None:
    """The same calls to both, whose handles are therefore the same."""
    rng = random.Random(seed)
    config = random_config(rng)
    model = random_model(config, seed)
    scorers: list[PassScorer] = [
        engine_of(model, threads=2),
        TransformerReference(model, vocabulary(config.tgt_vocab), source_vocab=vocabulary(config.src_vocab)),
    ]
    sources = [random_source(rng, config) for _ in range(3)]
    for scorer in scorers:
        assert scorer.encode(sources).tolist() == [0, 1, 2]
        assert scorer.open(3).tolist() == [0, 1, 2]
    lengths = [0, 0, 0]
    for _ in range(3):
        rows = []
        for row in range(3):
            parents = random_tree(rng, rng.randint(1, 6))
            tokens = [rng.randrange(config.tgt_vocab) for _ in parents]
            rows.append((tokens, parents, lengths[row], row, row))
        trees = interleaved(rng, rows)
        found, wanted = (scorer.run(trees.work, Want(hidden=True, margin=True)) for scorer in scorers)
        everything = range(len(trees.work.tokens))
        np.testing.assert_allclose(
            log_softmax(found.rows(everything)), log_softmax(wanted.rows(everything)), rtol=0, atol=1e-4
        )
        np.testing.assert_allclose(found.hidden, wanted.hidden, rtol=1e-4, atol=1e-4)
        clear = wanted.margins > 1e-4
        assert (found.best[clear] == wanted.best[clear]).all()
        kept = []
        for row, (_, parents, *_) in enumerate(rows):
            path = [0]
            while len(path) < 4 and path[-1] in parents:
                path.append(rng.choice([i for i, parent in enumerate(parents) if parent == path[-1]]))
            kept += [trees.indices[row][i] for i in path]
            lengths[row] += len(path)
        for scorer, scores in zip(scorers, (found, wanted), strict=True):
            scorer.commit(scores, kept)
        assert scorers[0].cells_in_use == scorers[1].cells_in_use == sum(lengths)


# --- Exactness: P2, P4

WANTED = Want(top=3, margin=True, hidden=True)


def bits(scores: Scores, i: int) -> tuple[bytes, ...]:
    """All that is read of a token, for comparison."""
    fields = scores.best, scores.log_probs, scores.top, scores.top_log_probs, scores.margins, scores.hidden
    return tuple(array[i].tobytes() for array in fields if array is not None)


@dataclass
class Alone:
    """Greedy search over one source, a token a pass.

    Attributes:
        tokens: What each pass read, the start token first.
        read: What was read after each.
    """

    tokens: list[int]
    read: list[tuple[bytes, ...]] = field(default_factory=list)


def greedy_alone(scorer: TransformerEngine, source: Sequence[int], passes: int) -> Alone:
    memory, context = scorer.encode([source]), scorer.open(1)
    found = Alone([scorer.start_token])
    for position in range(passes):
        scores = scorer.run(chain(found.tokens[-1:], position, memory[0], context[0]), WANTED)
        found.read.append(bits(scores, 0))
        found.tokens.append(int(scores.best[0]))
        scorer.commit(scores, [0])
    scorer.close(context)
    scorer.free(memory)
    return found


@dataclass
class Row:
    """A row that is verified: how far it is."""

    alone: Alone
    memory: int
    context: int
    passes: int  # of greedy search
    done: int = 0

    def draft(self, rng: random.Random, words: int) -> tuple[list[int], list[int]]:
        """A tree below the last token: greedy search's continuation, broken off at random, and others."""
        parents = random_tree(rng, rng.randint(1, min(9, self.passes - self.done)))
        tokens, right = [self.alone.tokens[self.done]], [0]  # `right`: its path is greedy search's
        for i, parent in enumerate(parents[1:], 1):
            follows = parent in right and rng.random() < 0.8
            at = self.done + depths_of(parents)[i]
            tokens.append(self.alone.tokens[at] if follows else rng.randrange(words))
            if parent in right and tokens[i] == self.alone.tokens[at]:
                right.append(i)
        return tokens, parents

    def accept(
        self, tokens: Sequence[int], parents: Sequence[int], index: Sequence[int], scores: Scores
    ) -> tuple[list[int], bool]:
        """The path that equals greedy search, as indices of the row's tokens; whether a branch was taken."""
        path, branched = [0], False
        while True:
            at = path[-1]
            assert bits(scores, index[at]) == self.alone.read[self.done + len(path) - 1]
            following = [i for i, parent in enumerate(parents) if parent == at]
            right = [i for i in following if tokens[i] == scores.best[index[at]]]
            if not right:
                return path, branched
            branched |= right[0] != at + 1
            path.append(right[-1])


def verified(
    rng: random.Random, scorer: TransformerEngine, alone: Sequence[Alone], sources: Sequence[Sequence[int]]
) -> Counter[str]:
    """Decodes a batch with random drafts, and asserts that each bit is what greedy search reads alone."""
    counts: Counter[str] = Counter()
    before = scorer.cells_in_use
    memories, contexts = scorer.encode(sources), scorer.open(len(sources))
    rows = [
        Row(each, memory, context, len(each.read))
        for each, memory, context in zip(alone, memories.tolist(), contexts.tolist(), strict=True)
    ]
    while rows:
        rng.shuffle(rows)
        drafts = [row.draft(rng, scorer.limits.words) for row in rows]
        trees = interleaved(
            rng,
            [(*draft, row.done, row.memory, row.context) for draft, row in zip(drafts, rows, strict=True)],
        )
        scores = scorer.run(trees.work, WANTED)
        kept = []
        for row, draft, index in zip(rows, drafts, trees.indices, strict=True):
            path, branched = row.accept(*draft, index, scores)
            kept += [index[i] for i in path]
            row.done += len(path)
            counts["accepted"] += len(path) - 1
            counts["rejected"] += len(draft[0]) - len(path)
            counts["branches"] += branched
        scorer.commit(scores, kept)
        ended = [row for row in rows if row.done == row.passes]
        rows = [row for row in rows if row.done < row.passes]
        counts["left"] += len(ended) if rows else 0
        scorer.close([row.context for row in ended])
        scorer.free([row.memory for row in ended])
    assert scorer.cells_in_use == before == 0
    return counts


def check_exactness(cases: range, type: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in cases:
        rng = random.Random(seed)
        config = random_config(rng)
        model = random_model(config, seed)
        if seed % 2:
            model = model.half().float()  # its weights lie as fp16
        # Alone with one thread, together with one or two.
        scorer, threads = engine_of(model, type), engine_of(model, type, threads=rng.choice([1, 2]))
        sources = [random_source(rng, config) for _ in range(BATCHES[seed % len(BATCHES)])]
        alone = [greedy_alone(scorer, source, rng.randint(1, 12)) for source in sources]
        counts += verified(rng, threads, alone, sources)
    return counts


@pytest.fixture(params=[None, "avx2", "plain"], ids=["best", "avx2", "plain"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The best instruction set, or a forced one."""
    if request.param is not None:
        if request.param not in ISAS:
            pytest.skip(f"this processor has no {request.param}")
        monkeypatch.setenv(FORCED_ISA, request.param)
    return request.param


@pytest.mark.parametrize("type", TYPES)
def test_drafts_and_batches_equal_greedy_search(forced: str | None, type: str) -> None:
    counts = check_exactness(range(QUICK), type)
    assert min(counts[name] for name in ("accepted", "rejected", "branches", "left")) > 0, counts


@pytest.mark.slow
@pytest.mark.parametrize("type", TYPES)
def test_many_drafts_and_batches_equal_greedy_search(forced: str | None, type: str) -> None:
    check_exactness(range(QUICK, QUICK + SLOW), type)


def pack_wide(
    self: Weights, layer: str, weight: np.ndarray, bias: np.ndarray | None, scales: np.ndarray | None
) -> _native.Linear:
    halved = _native.Linear.pack(weight, bias, "fp32", scales)
    made = wide_linear(weight, bias)
    assert 2 * halved.weights.nbytes == made.weights.nbytes
    self.packed[layer] = made, bias
    return made


@pytest.mark.parametrize("seed", range(5))
def test_weights_that_lie_as_fp16_change_no_bit(
    forced: str | None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    config = random_config(rng)
    model = random_model(config, seed).half().float()
    sources = [random_source(rng, config) for _ in range(3)]
    halves = engine_of(model)
    monkeypatch.setattr(Weights, "_pack", pack_wide)
    wide = engine_of(model)
    for source in sources:
        assert greedy_alone(halves, source, 12) == greedy_alone(wide, source, 12)


@pytest.mark.parametrize("isa", ISAS)
def test_a_forced_instruction_set_is_taken(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA, isa)
    assert engine_of(random_model(random_config(random.Random(1)), 1)).isa == isa


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_encoded_sources_of_any_length_are_near_those_of_torch(seed: int, type: str) -> None:
    """Below 64 tokens and from there on, which are computed in two forms. The oracle is torch in fp64."""
    rng = random.Random(seed)
    config = random_config(rng, max_source_len=200, encoder_layers=rng.choice([1, 2]))
    model = random_model(config, seed)
    scorer, whole = engine_of(model, type), copy.deepcopy(model).double()
    errors = []
    for size in (40, 63, 64, 65, 96, 200):
        source = [*(rng.randrange(FIRST_WORD, config.src_vocab) for _ in range(size - 1)), EOS]
        with torch.inference_mode():
            wanted = whole.encoder.read([source]).memory[0].numpy()
        (found,) = scorer.encodings(scorer.encode([source]))
        errors.append(float(np.abs(found - wanted).mean() / np.abs(wanted).mean()))
    assert max(errors) < {"fp32": 1e-5, "bf16": 0.05, "int8": 0.1}[type]
    assert max(errors[2:]) < 4 * max(errors[:2])


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_long_sources_and_passes_equal_short_ones(type: str, threads: int, positions: str) -> None:
    """More tokens than the engine computes at a time, of one source and of a pass, and fewer than that."""
    rng = random.Random(7)
    config = random_config(
        rng, max_source_len=400, max_target_len=400, encoder_layers=2, d_model=30, encoder_positions=positions
    )
    model = random_model(config, 7)
    scorer, other = engine_of(model, type), engine_of(model, type, threads)
    sources = [
        [*(rng.randrange(FIRST_WORD, config.src_vocab) for _ in range(size - 1)), EOS]
        for size in (129, 1, 400, 128, 60, 64, 60, 60, 63, 65, 3)
    ]
    together = other.encode(sources).tolist()
    for source, memory in zip(sources, together, strict=True):
        (single,) = scorer.encode([source]).tolist()
        same_bits(other._engine.output(memory), scorer._engine.output(single))
    alone = greedy_alone(scorer, sources[2], 390)
    context = other.open(1)[0]
    for first, last in ((0, 1), (1, 300), (300, 390)):
        scores = other.run(chain(alone.tokens[first:last], first, together[2], context), WANTED)
        assert [bits(scores, i) for i in range(last - first)] == alone.read[first:last]
        other.commit(scores, range(last - first))


@pytest.mark.parametrize("type", TYPES)
def test_forked_and_truncated_contexts_equal_new_ones(type: str) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        config = random_config(rng, max_target_len=20)
        scorer = engine_of(random_model(config, seed), type)
        source = random_source(rng, config)
        alone, memory, context = (
            greedy_alone(scorer, source, 12),
            scorer.encode([source])[0],
            scorer.open(1)[0],
        )
        wrong = [*alone.tokens[:5], *(rng.randrange(config.tgt_vocab) for _ in range(6))]
        scorer.commit(scorer.run(chain(wrong, 0, memory, context), Want(only=int32([]))), range(11))
        (fork,) = scorer.fork([context]).tolist()
        scorer.truncate([fork], [5])
        scorer.close([context])
        assert scorer.cells_in_use == 5
        scores = scorer.run(chain(alone.tokens[5:12], 5, memory, fork), WANTED)
        assert [bits(scores, i) for i in range(7)] == alone.read[5:12]


def test_other_weights_than_the_arrays_are_not_read() -> None:
    """The engine keeps what it needs: the caller's arrays may change afterwards."""
    config = random_config(random.Random(3))
    model = random_model(config, 3)
    scorer = engine_of(model)
    wanted = greedy_alone(scorer, [4, EOS], 5)
    arrays = arrays_of(model)
    copied = {name: array.copy() for name, array in arrays.items()}
    again = TransformerEngine(config, copied, scorer.vocab, source_vocab=vocabulary(config.src_vocab))
    del copied, arrays
    assert greedy_alone(again, [4, EOS], 5) == wanted


# --- Ties: P3


def tied(config: TransformerConfig, seed: int, kind: str) -> Transformer:
    model = random_model(config, seed)
    weight = model.output.weight
    if model.output.bias is not None:
        model.output.bias.zero_()
    if kind == "zero":
        weight.zero_()
    elif kind == "twins":  # each word of the upper half is one of the lower half
        half = config.tgt_vocab // 2
        weight[half : 2 * half] = weight[:half]
    elif kind == "whole":  # few whole numbers, so that many rows are equal
        weight.copy_(weight.sign())
        weight[:, 2:] = 0
    elif kind == "eos":
        weight[EOS] = weight[-1]
    return model


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("kind", ["zero", "twins", "whole", "eos"])
def test_of_equal_words_the_lowest_id_is_best(forced: str | None, type: str, kind: str) -> None:
    ties = 0
    for seed in range(12):
        rng = random.Random(seed)
        config = random_config(rng, tgt_vocab=42, src_vocab=42)
        scorer = engine_of(tied(config, seed, kind), type, threads=rng.choice([1, 2]))
        sources = [random_source(rng, config) for _ in range(3)]
        alone = [greedy_alone(scorer, source, 8) for source in sources]
        verified(rng, scorer, alone, sources)
        for source, each in zip(sources, alone, strict=True):
            memory, context = scorer.encode([source])[0], scorer.open(1)[0]
            scores = scorer.run(chain(each.tokens[:8], 0, memory, context), Want(top=42, margin=True))
            logits = scores.rows(range(8))
            order = np.lexsort((np.tile(np.arange(42), (8, 1)), -logits))
            assert (scores.top == order).all()
            assert (scores.best == order[:, 0]).all()
            ties += int((scores.margins == 0).sum())
            if kind == "zero":
                assert not scores.best.any()
            if kind == "twins":
                assert (scores.best < 21).all()
    assert ties > 0


# --- What is read: against nartk.protocols.reading


def random_want(rng: random.Random, count: int, words: int) -> Want:
    only = None
    if rng.random() < 0.5:
        only = int32(sorted(rng.sample(range(count), rng.randint(0, count))))
    n = count if only is None else len(only)
    banned = None
    if rng.random() < 0.5:
        most = rng.choice([1, 3, words - 1])
        banned = Ragged.of([[rng.randrange(words) for _ in range(rng.randint(0, most))] for _ in range(n)])
    given = int32([rng.randint(-1, words - 1) for _ in range(n)]) if rng.random() < 0.5 else None
    draw = None
    if rng.random() < 0.7:
        uniforms = [rng.choice([0.0, 1 - 2**-53, rng.random(), rng.random()]) for _ in range(n)]
        draw = Draw(
            np.array(uniforms, np.float64),
            temperature=rng.choice([1.0, 0.01, 0.7, 30.0, 1e-300]),
            top_k=rng.choice([0, 1, 2, 5, words, words + 3]),
            top_p=rng.choice([1.0, 0.9, 0.5, 1e-9]),
        )
    return Want(
        only=only,
        banned=banned,
        top=rng.choice([0, 1, 4, words, words + 2]),
        margin=rng.random() < 0.5,
        hidden=rng.random() < 0.5,
        given=given,
        draw=draw,
    )


def same_reading(scores: Scores, want: Want, count: int) -> None:
    logits = scores.rows(range(count))
    wanted = read(logits, want, scores.hidden)
    for name in ("best", "top", "margins", "drawn"):  # equal; the others are rounded otherwise
        found, right = getattr(scores, name), getattr(wanted, name)
        assert (found is None) == (right is None), name
        if right is not None:
            assert found.dtype == right.dtype
            np.testing.assert_array_equal(found, right, err_msg=name)
    for name in ("log_probs", "top_log_probs", "given_log_probs", "drawn_log_probs"):
        found, right = getattr(scores, name), getattr(wanted, name)
        assert (found is None) == (right is None), name
        if right is not None:
            assert found.dtype == right.dtype
            np.testing.assert_allclose(found, right, rtol=1e-6, atol=4e-6, err_msg=name)
    assert (scores.hidden is None) == (not want.hidden)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_wanted_is_read(seed: int) -> None:
    rng = random.Random(seed)
    config = random_config(rng)
    scorer = engine_of(tied(config, seed, rng.choice(["none", "twins", "whole"])), threads=2)
    (memory,) = scorer.encode([random_source(rng, config)])
    for _ in range(10):
        count = rng.randint(1, 18)
        want = random_want(rng, count, config.tgt_vocab)
        (context,) = scorer.open(1)
        work = chain([rng.randrange(config.tgt_vocab) for _ in range(count)], 0, memory, context)
        try:
            scored = check_want(want, count, config.tgt_vocab)
        except PassError:  # all words forbidden
            with pytest.raises(PassError, match="all words are forbidden after token"):
                scorer.run(work, want)
            continue
        scores = scorer.run(work, want)
        same_reading(scores, want, scored)
        if want.hidden:
            assert scores.hidden is not None
            assert scores.hidden.shape == (scored, config.d_model)
        scorer.commit(scores, range(count))
        scorer.close([context])


def scorer_of_logits(logits: Sequence[float]) -> tuple[TransformerEngine, Pass]:
    """A scorer that has these logits after each token, and a pass of one."""
    config = TransformerConfig(
        src_vocab=len(logits),
        tgt_vocab=len(logits),
        d_model=4,
        encoder_layers=0,
        decoder_layers=1,
        decoder_heads=1,
        encoder_heads=1,
        decoder_ffn=3,
        share_embeddings="none",
    )
    model = random_model(config, 1)
    assert model.decoder.norm is not None
    model.decoder.norm.weight.zero_()
    model.decoder.norm.bias.copy_(torch.tensor([1.0, 0, 0, 0]))
    model.output.weight.zero_()
    model.output.weight[:, 0] = torch.tensor(logits)
    scorer = engine_of(model)
    return scorer, chain([0], 0, scorer.encode([[EOS]])[0], scorer.open(1)[0])


INF = float("inf")
UNIFORM = np.array([0.5])


@pytest.mark.parametrize(
    ("logits", "want"),
    [
        ([-INF] * 20, Want(top=3, margin=True, given=int32([7]))),
        ([-INF] * 16 + [2.0] + [-INF] * 3, Want(top=3, margin=True, given=int32([7]), draw=Draw(UNIFORM))),
        ([-INF] * 16 + [2.0], Want(top=3, margin=True, banned=Ragged.of([[16, 0]]))),
        ([1.0, -INF, -INF, 5.0, 0.0], Want(top=9, margin=True, banned=Ragged.of([[3, 0, 4]]))),
        ([1.0, -INF, -INF, 5.0, 0.0], Want(top=9, margin=True, banned=Ragged.of([[1, 2, 3, 4]]))),
        ([1.0] * 5, Want(top=2, margin=True, draw=Draw(UNIFORM, top_k=3), banned=Ragged.of([[0, 2]]))),
        ([0.0, -0.0, 0.0, -0.0, 0.0], Want(top=5, margin=True)),
        ([300.0, -300.0, 0.0, 88.0, -1e30], Want(top=5, margin=True, given=int32([4]))),
    ],
)
def test_extreme_scores_are_read(logits: list[float], want: Want) -> None:
    scorer, work = scorer_of_logits(logits)
    # The output layer multiplies the other features, all 0, by 0.
    scores = scorer.run(work, want)
    assert np.array_equal(scores.rows([0])[0], np.array(logits, np.float32))
    with np.errstate(invalid="ignore"):
        same_reading(scores, want, 1)


@pytest.mark.parametrize("bad", [np.nan, INF])
@pytest.mark.parametrize("where", [[0], [19], range(20)])
def test_scores_that_are_no_numbers_are_an_error_by_name(bad: float, where: Sequence[int]) -> None:
    logits = np.linspace(-1, 1, 20)
    logits[list(where)] = bad
    scorer, work = scorer_of_logits(logits.tolist())
    with pytest.raises(PassError, match="NaN or infinity in the scores of token 0"):
        scorer.run(work, Want())
    assert scorer.cells_in_use == 0


@pytest.mark.parametrize(
    ("logits", "want"),
    [
        ([-INF] * 5, Want(draw=Draw(UNIFORM))),
        ([1.0, -INF, -INF, 5.0, 0.0], Want(draw=Draw(UNIFORM), banned=Ragged.of([[3, 0, 4]]))),
    ],
)
def test_nothing_is_drawn_where_nothing_has_a_probability(logits: list[float], want: Want) -> None:
    scorer, work = scorer_of_logits(logits)
    with pytest.raises(PassError, match="no word has a probability after token 0"):
        scorer.run(work, want)
    assert scorer.cells_in_use == 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", ["decoder_layers.0.ffn.up.weight", "decoder_layers.0.ffn.down.bias"])
def test_weights_that_are_no_numbers_are_an_error_by_name(type: str, name: str) -> None:
    config = random_config(random.Random(5), decoder_norm_first=True, activation="relu", bias=True)
    model = random_model(config, 5)
    model.state_dict()[name].flatten()[-1] = float("nan")
    scorer = engine_of(model, type)
    (memory,), (context,) = scorer.encode([[EOS]]), scorer.open(1)
    with pytest.raises(PassError, match="NaN or infinity in the scores of token 2"):
        scorer.run(chain([0, 1, 2], 0, memory, context), Want(only=int32([2])))
    assert scorer.cells_in_use == 0
