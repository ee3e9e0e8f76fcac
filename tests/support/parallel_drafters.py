"""Parallel models that draft in tests: scripted ones that know an output, garbage, and random networks."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nartk.architectures import architectures
from nartk.checkpoints.saving import save_checkpoint
from nartk.decoders.drafters.parallel import declared_for
from nartk.decoders.loop.drafter import Drafter
from nartk.protocols.contexts import Handles, check_sources
from nartk.protocols.parallel import Canvas, Graphs, GraphScorer
from nartk.protocols.passes import FloatArray, IntArray, Limits, Scores, Want
from nartk.protocols.reading import Reading, check_want, read
from nartk.registry import make_strategy
from nartk.vocab import Vocab
from support.parallel_models import engine_of
from support.scripted_passes import EOS, PAD
from support.transformers_small import stir, vocabulary

MASK = BLANK = BOS = 0
SILENT = (BOS, PAD, EOS)
KINDS = ("blockwise", "nat", "ctc", "dag")
Answers = Mapping[tuple[int, ...], Sequence[int]]


def parallel_drafter(scorer: Any, block_size: int, **options: int) -> Drafter:
    """What drafts with a model, at most so many tokens."""
    return declared_for(scorer)(block_size=block_size, **options).make_drafter(scorer)


def may_branch(scorer: Any) -> bool:
    """Tells whether drafts of a model may be trees: those of graphs alone."""
    return isinstance(scorer, GraphScorer)


def with_drafter(scorer: Any, *, tree: int = 0, **options: Any) -> Any:
    """The strategy with a drafter, as Model.strategy makes it; its drafts are whole.

    Args:
        tree: Tokens beside the best draft, of a drafter whose drafts may branch.
    """
    options["tree"] = tree if may_branch(scorer) else 0
    made = make_strategy("gad", {"drafter": "a name", "adaptive": False, **options})
    return dataclasses.replace(made, auxiliary={"drafter": scorer})


class LogitScores(Reading):
    """Implements nartk.protocols.passes.Scores over logits [n,V]."""

    def __init__(self, logits: FloatArray, want: Want) -> None:
        check_want(want, len(logits), logits.shape[1])
        logits = logits if want.only is None else logits[want.only]
        super().__init__(**vars(read(logits, want)))
        self.logits = logits

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        return self.logits[list(index)]


class Knowing:
    """Base of the scripted drafters: for each source they know an output, eos included.

    Args:
        answers: By source, eos included; of other sources the source is the output.

    Attributes:
        encoded: How many sources each call of `encode` was given.
        calls: How many canvases, sources or graphs each other call was given.
    """

    def __init__(self, words: int, answers: Answers) -> None:
        self.vocab, self.answers, self.limits = vocabulary(words), dict(answers), Limits(512, 512, words)
        self.sources: Handles[tuple[int, ...]] = Handles("memory")
        self.encoded: list[int] = []
        self.calls: list[int] = []

    def encode(self, sources: Sequence[Sequence[int]]) -> IntArray:
        check_sources(sources, longest=self.limits.source, words=10**6)
        self.encoded.append(len(sources))
        return self.sources.add(tuple(source) for source in sources)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.sources.remove(memory)

    @property
    def memories_in_use(self) -> int:
        return len(self.sources)

    def known(self, memory: Sequence[int] | IntArray) -> list[list[int]]:
        self.calls.append(len(memory))
        found = [self.sources[int(handle)] for handle in memory]
        return [list(self.answers.get(source, source)) for source in found]

    def scores(self, words: Sequence[int], want: Want) -> Scores:
        """Of places at which these words are known."""
        return LogitScores(self.logits(np.array(words, np.int64)), want)

    def logits(self, words: Any) -> FloatArray:
        """[N,V] where words [N] are known."""
        return (20 * np.eye(len(self.vocab))[words % len(self.vocab)]).astype(np.float32)


class KnowingFiller(Knowing):
    """Implements Filler: fills in the words that it knows for the places, pad behind them."""

    mask = MASK

    def fill(self, canvas: Canvas, want: Want) -> Scores:
        assert canvas.lengths.min(initial=1) >= 1
        assert canvas.lengths.sum() == len(canvas.words)
        rows = zip(self.known(canvas.memory), canvas.lengths.tolist(), strict=True)
        return self.scores([w for row, size in rows for w in [*row, *[PAD] * size][:size]], want)


class KnowingBlock(KnowingFiller):
    """Implements BlockScorer."""

    block = 25


class KnowingCanvas(KnowingFiller):
    """Implements CanvasScorer."""

    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        rows = [self.sources[int(handle)] for handle in memory]
        found = np.full((len(rows), self.limits.target + 1), -np.inf, np.float32)
        for row, source in zip(found, rows, strict=True):
            row[len(self.answers.get(source, source))] = 0.0
        return found


class KnowingFrames(Knowing):
    """Implements FrameScorer: two frames a word, and a blank after them; or without blank a frame a word."""

    def __init__(self, words: int, answers: Answers, *, blank: int | None = BLANK) -> None:
        super().__init__(words, answers)
        self.blank = blank

    def labels(self, row: Sequence[int]) -> list[int]:
        if self.blank is None:
            return list(row)
        return [*(x for word in row[:-1] for x in (word, word, self.blank)), self.blank]

    def frames(self, memory: Sequence[int] | IntArray) -> IntArray:
        found = [self.sources[int(handle)] for handle in memory]
        return np.array([len(self.labels(self.answers.get(x, x))) for x in found], np.int32)

    def read_frames(self, memory: Sequence[int] | IntArray, want: Want) -> Scores:
        return self.scores([label for row in self.known(memory) for label in self.labels(row)], want)


class KnowingGraph(Knowing):
    """Implements GraphScorer: a vertex for each word, on a single path."""

    def links(self, size: int) -> FloatArray:
        return np.where(np.eye(size, k=1) > 0, 0.0, -np.inf).astype(np.float32)

    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        rows = [[BOS, *row] for row in self.known(memory)]
        features = np.array([[word] for row in rows for word in row], np.float32)
        sizes = np.array([len(row) for row in rows], np.int32)
        return Graphs(sizes, features, tuple(self.links(len(row)) for row in rows))

    def words_at(self, graphs: Graphs, vertices: IntArray, want: Want) -> Scores:
        return self.scores(graphs.features_of(vertices)[:, 0].astype(int).tolist(), want)


SCRIPTED: dict[str, Callable[..., Any]] = {
    "block": KnowingBlock,
    "canvas": KnowingCanvas,
    "frames": KnowingFrames,
    "frames without blank": lambda words, answers: KnowingFrames(words, answers, blank=None),
    "graph": KnowingGraph,
}

# What a model without sense gives: logits [N,V] for those of one that knows.
GARBAGE: dict[str, Callable[[FloatArray], Any]] = {
    "random": lambda logits: np.random.default_rng(logits.size).normal(size=logits.shape),
    "pad": lambda logits: 99.0 * (np.arange(logits.shape[1]) == PAD) + 0 * logits,
    "eos": lambda logits: 99.0 * (np.arange(logits.shape[1]) == EOS) + 0 * logits,
    "blank": lambda logits: 99.0 * (np.arange(logits.shape[1]) == BLANK) + 0 * logits,
    "ever the same": lambda logits: 0 * logits,
    "the opposite": lambda logits: -logits,
    "one word alone": lambda logits: np.where(np.arange(logits.shape[1]) == 4, 0.0, -np.inf) + 0 * logits,
}


def garbage(scorer: Any, kind: str) -> Any:
    """A scripted drafter that knows nothing; lengths and links are random."""
    logits, links = scorer.logits, getattr(scorer, "links", None)
    scorer.logits = lambda words: GARBAGE[kind](logits(words)).astype(np.float32)
    if links is not None:

        def random_links(size: int) -> FloatArray:
            values = np.random.default_rng(size).normal(size=(size, size)) * 3
            return np.where(np.triu(np.ones((size, size)), 1) > 0, values, -np.inf).astype(np.float32)

        scorer.links = random_links
    if hasattr(scorer, "predict_lengths"):
        scorer.predict_lengths = lambda memory: np.random.default_rng(len(memory)).normal(
            size=(len(memory), 40)
        )
    return scorer


class ScriptedGraphs:
    """Implements GraphScorer: random graphs, the i-th for sources that begin with word i.

    Features are the numbers of graph and vertex.
    """

    def __init__(self, seed: int, *, graphs: int, largest: int, words: int, spread: float) -> None:
        rng = random.Random(seed)
        self.vocab = Vocab.from_words([f"w{i}" for i in range(words - 4)])
        self.limits = Limits(512, 512, words)
        self.sizes = [rng.randint(2, largest) for _ in range(graphs)]
        self.links = [
            [
                log_softmax([rng.gauss(0, spread) if j > i else -math.inf for j in range(size)])
                for i in range(size)
            ]
            for size in self.sizes
        ]
        self.logits = [
            [[rng.gauss(0, spread) for _ in range(words)] for _ in range(size)] for size in self.sizes
        ]
        self.sources: Handles[int] = Handles("memory")

    def encode(self, sources: Sequence[Sequence[int]]) -> IntArray:
        return self.sources.add(source[0] for source in sources)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.sources.remove(memory)

    @property
    def memories_in_use(self) -> int:
        return len(self.sources)

    def graphs(self, memory: Sequence[int] | IntArray) -> Graphs:
        numbers = [self.sources[int(handle)] for handle in memory]
        sizes = np.array([self.sizes[i] for i in numbers], np.int32)
        features = [[i, vertex] for i in numbers for vertex in range(self.sizes[i])]
        links = tuple(np.array(self.links[i], np.float32) for i in numbers)
        return Graphs(sizes, np.array(features, np.float32), links)

    def words_at(self, graphs: Graphs, vertices: IntArray, want: Want) -> Scores:
        logits = [self.logits[int(i)][int(vertex)] for i, vertex in graphs.features_of(vertices)]
        return LogitScores(np.array(logits, np.float32), want)

    def lprobs(self, i: int, vertex: int) -> list[float]:
        return log_softmax(self.logits[i][vertex])


def log_softmax(scores: Sequence[float]) -> list[float]:
    mass = sum(map(math.exp, scores))
    return [score - math.log(mass) if mass else -math.inf for score in scores]


def small_network(kind: str, words: int, seed: int, *, weights: float | None = None) -> Any:
    """A small random network of a kind; `weights` is what all its weights are, if not random."""
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
    model = stir(found.network(config).eval()).requires_grad_(False)
    if weights is not None:
        for weight in model.parameters():
            torch.nn.init.constant_(weight, weights)
    return model


def write_network(folder: Path, kind: str, words: Sequence[str], seed: int) -> Path:
    """Writes the same over these words, besides those of every vocabulary, to a folder."""
    vocab = Vocab.from_words(words)
    network = small_network(kind, len(vocab), seed)
    save_checkpoint(
        folder,
        architecture=kind,
        settings=dataclasses.asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        card="# A small model for tests\n",
    )
    return folder


def small_drafter(kind: str, words: int, seed: int, *, type: str = "fp32") -> Any:
    """The same on the engine."""
    return engine_of(small_network(kind, words, seed), type=type)


def spoilt(rng: random.Random, tokens: Sequence[int], words: int) -> list[int]:
    """An output like `tokens`: some replaced, left out or put in; ends with eos, as all outputs do."""
    changed: list[int] = []
    for token in tokens[:-1]:
        kept = rng.random() < 0.9
        changed += [token] if kept else rng.choices(range(3, words), k=rng.randint(0, 2))
    return [*changed, EOS]
