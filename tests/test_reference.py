"""The scorers in torch, against the whole model at once: `Transformer.forward` in fp64, which knows no cells.

They are the reference, and the one that takes its place on a GPU; both run on any device.

Log-probabilities may differ from it by 1e-4; what the scorer gives in one pass and in several, by 1e-5, or by
16 of fp32's steps at the largest logit, which are more where logits are above 5.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support import scorers
from support.random_transformers import magnify, random_options, recurrent
from torch import nn

from nartk.architectures.settings import FINAL_NORMS, JOINT, POSITIONS
from nartk.architectures.transformer import TransformerConfig
from nartk.errors import PassError
from nartk.models.transformer import Transformer
from nartk.protocols.passes import (
    ROOT,
    CopiesSource,
    Draw,
    FloatArray,
    Limits,
    Pass,
    PassScorer,
    Ragged,
    Want,
)
from nartk.vocab import Vocab

EOS = 2
CONFIGS = 24
Scorer: Any = None  # the class that is tested


@pytest.fixture(autouse=True, params=["TransformerReference", "TransformerDevice"])
def scorer_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Scorer", getattr(scorers, request.param))


def vocabulary(size: int) -> Vocab:
    return Vocab.from_words([f"w{i}" for i in range(size - 4)])


def random_config(rng: random.Random) -> TransformerConfig:
    """Any shape, odd sizes among them, with every option of the configuration."""
    heads = rng.choice([(1, 1), (2, 3), (3, 1), (4, 2), (2, 2), (5, 3)])
    share = rng.choice(["all", "decoder", "inputs", "none"])
    words = rng.randint(12, 90)
    settings = {
        "src_vocab": words if share in JOINT else rng.randint(12, 90),
        "tgt_vocab": words,
        "pad": rng.choice([0, 1]),
        "d_model": int(np.lcm(*heads)) * rng.choice([1, 3, 7, 8]),
        "encoder_layers": rng.choice([0, 1, 2]),
        "decoder_layers": rng.choice([1, 2, 3]),
        "encoder_ffn": rng.choice([1, 17, 64]),
        "decoder_ffn": rng.choice([1, 50, 33]),
        "encoder_heads": heads[0],
        "decoder_heads": heads[1],
        "encoder_norm_first": rng.random() < 0.5,
        "decoder_norm_first": rng.random() < 0.5,
        "encoder_final_norm": FINAL_NORMS[words % 3],
        "decoder_final_norm": FINAL_NORMS[words // 3 % 3],
        "encoder_positions": rng.choice(POSITIONS),
        "decoder_positions": rng.choice([*POSITIONS, "relative"]),
        "max_source_len": rng.randint(9, 40),
        "max_target_len": rng.randint(20, 40),
        "share_embeddings": share,
        "scale_embedding": rng.random() < 0.5,
        "norm_embedding": rng.random() < 0.5,
        "dropout": 0.3,
        "attention_dropout": 0.3,
        "activation_dropout": 0.3,
    }
    return TransformerConfig(**recurrent(settings | random_options(rng)))


def random_model(config: TransformerConfig, seed: int) -> Transformer:
    """A model in training, of weights that let the next word depend on all that was read."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                magnify(name, weight, config, by=2.0)
                if weight.dim() == 1:
                    weight.add_(torch.randn_like(weight) * 0.2)  # biases, and scales of norms
    return model


class Case:
    """A random model, its scorer, and the whole model as the oracle."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.rng = random.Random(seed)
        self.config = random_config(self.rng)
        self.model = random_model(self.config, seed)
        self.vocab = vocabulary(self.config.tgt_vocab)
        source_vocab = vocabulary(self.config.src_vocab)
        self.scorer = Scorer(self.model, self.vocab, source_vocab=source_vocab, device=device)
        self.whole = random_model(self.config, seed).eval().double()

    def source(self) -> list[int]:
        size = self.rng.randint(0, self.config.max_source_len - 1)
        return [*(self.rng.randrange(4, self.config.src_vocab) for _ in range(size)), EOS]

    def words(self, count: int) -> list[int]:
        return [self.rng.randrange(4, self.config.tgt_vocab) for _ in range(count)]

    def oracle(self, source: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Log-probabilities [T,V] fp64 after each of the tokens, the start token first."""
        with torch.inference_mode():
            logits = self.whole(torch.tensor([source]), torch.tensor([tokens]))[0]
        return logits.log_softmax(-1).numpy()


@pytest.fixture(params=range(CONFIGS))
def case(request: pytest.FixtureRequest, device: torch.device) -> Case:
    return Case(request.param, device)


def a_pass(tokens: Any, positions: Any, memory: Any, contexts: Any, parents: Any) -> Pass:
    return Pass(*(np.array(each, np.int32) for each in (tokens, positions, memory, contexts, parents)))


def chains(rows: Sequence[tuple[Sequence[int], int, int, int]], rng: random.Random | None = None) -> Pass:
    """Tokens, first position, memory and context of each row, as chains; interleaved at random."""
    order = [row for row, (tokens, *_) in enumerate(rows) for _ in tokens]
    if rng is not None:
        rng.shuffle(order)
    done = [0] * len(rows)
    last = [ROOT] * len(rows)
    columns: list[list[int]] = [[], [], [], [], []]
    for i, row in enumerate(order):
        tokens, first, memory, context = rows[row]
        values = (tokens[done[row]], first + done[row], memory, context, last[row])
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        done[row] += 1
        last[row] = i
    return a_pass(*columns)


def log_softmax(logits: FloatArray) -> np.ndarray:
    return torch.tensor(logits).double().log_softmax(-1).numpy()


def close_to(found: Any, wanted: Any, bound: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


def rounding_of(logits: FloatArray) -> float:
    """How far logits in one pass and in several may be apart, which in fp64 are the same."""
    return max(1e-5, 16 * 2.0**-23 * float(np.abs(logits).max()))


def test_it_is_a_scorer_that_copies_the_source(case: Case) -> None:
    assert isinstance(case.scorer, PassScorer)
    assert isinstance(case.scorer, CopiesSource)
    config = case.config
    assert case.scorer.limits == Limits(config.max_source_len, config.max_target_len, config.tgt_vocab)
    assert case.scorer.start_token == EOS
    assert case.model.training  # it serves a copy


def test_source_words_are_mapped_to_target_words(device: torch.device) -> None:
    config = TransformerConfig(src_vocab=8, tgt_vocab=7, d_model=8, share_embeddings="none")
    target, source = Vocab.from_words(["a", "b", "c"]), Vocab.from_words(["x", "c", "a", "b"])
    model = Transformer(config)
    scorer = Scorer(model, target, source_vocab=source, device=device)
    assert scorer.source_to_target.dtype == np.int32
    assert scorer.source_to_target.tolist() == [0, 1, 2, -1, -1, 6, 4, 5]
    same = Scorer(model, target, device=device)
    assert same.source_to_target.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_chains_are_teacher_forcing(case: Case) -> None:
    """Rows of different sources and lengths in one pass, their tokens interleaved."""
    scorer, rng = case.scorer, case.rng
    sources = [case.source() for _ in range(4)]
    outputs = [[EOS, *case.words(rng.randint(0, 19))] for _ in sources]
    memory, contexts = scorer.encode(sources), scorer.open(len(sources))
    rows = [(tokens, 0, int(m), int(c)) for tokens, m, c in zip(outputs, memory, contexts, strict=True)]
    work = chains(rows, rng)
    count = len(work.tokens)
    given = np.array([rng.randrange(-1, case.config.tgt_vocab) for _ in range(count)], np.int32)
    scores = scorer.run(work, Want(given=given, hidden=True, margin=True))
    wanted = np.zeros((count, case.config.tgt_vocab))
    for context, source, tokens in zip(contexts, sources, outputs, strict=True):
        wanted[work.contexts == context] = case.oracle(source, tokens)
    logits = scores.rows(range(count))
    close_to(log_softmax(logits), wanted, 1e-4)
    close_to(scores.log_probs, wanted.max(1), 1e-4)
    close_to(wanted[np.arange(count), scores.best], wanted.max(1), 1e-4)  # the same word but for ties
    close_to(scores.given_log_probs, np.where(given < 0, 0, wanted[np.arange(count), given]), 1e-4)
    two = np.sort(wanted, 1)[:, -2:]
    close_to(scores.margins, two[:, 1] - two[:, 0], 1e-4)
    assert scores.hidden is not None
    with torch.inference_mode():
        close_to(case.whole.output(torch.tensor(scores.hidden).double()), logits, 1e-4)


def test_token_by_token_is_all_at_once(case: Case) -> None:
    """An output is read in random pieces, some in a pass with another row; prefixes are not scored."""
    scorer, rng = case.scorer, case.rng
    sources = [case.source(), case.source()]
    tokens = [[EOS, *case.words(17)] for _ in sources]
    memory, contexts = scorer.encode(sources), scorer.open(2)
    done = [0, 0]
    found: list[list[np.ndarray]] = [[], []]
    while min(done) < 18:
        rows, kept_rows = [], []
        for row in (0, 1):
            size = min(rng.randint(0, 4), 18 - done[row])
            piece = tokens[row][done[row] : done[row] + size]
            rows.append((piece, done[row], int(memory[row]), int(contexts[row])))
            kept_rows += [row] * size
            done[row] += size
        work = chains(rows)
        if len(work.tokens) == 0:
            continue
        scores = scorer.run(work, Want())
        for row, logits in zip(kept_rows, scores.rows(range(len(kept_rows))), strict=True):
            found[row].append(logits)
        scorer.commit(scores, range(len(kept_rows)))
    assert scorer.cells_in_use == 36
    for row in (0, 1):
        whole = scorer.open(1)
        work = chains([(tokens[row], 0, int(memory[row]), int(whole[0]))])
        wanted = scorer.run(work, Want()).rows(range(18))
        close_to(found[row], wanted, rounding_of(wanted))
        close_to(log_softmax(np.array(found[row])), case.oracle(sources[row], tokens[row]), 1e-4)


def test_a_tree_is_its_paths(case: Case) -> None:
    """Trees behind prefixes of two rows in one pass: each token's scores are those of its path alone."""
    scorer, rng = case.scorer, case.rng
    sources = [case.source(), case.source()]
    prefixes = [[EOS, *case.words(3)], [EOS]]
    memory, contexts = scorer.encode(sources), scorer.open(2)
    rows = [(p, 0, int(m), int(c)) for p, m, c in zip(prefixes, memory, contexts, strict=True)]
    scores = scorer.run(chains(rows), Want(only=np.zeros(0, np.int32)))
    assert len(scores.best) == 0
    scorer.commit(scores, range(5))

    whose = [rng.choice([0, 1]) for _ in range(14)]
    words, parents, paths = case.words(14), [], []
    for i, row in enumerate(whose):
        parent = rng.choice([ROOT, *(j for j in range(i) if whose[j] == row)])
        before = prefixes[row] if parent == ROOT else paths[parent]
        parents.append(parent)
        paths.append([*before, words[i]])
    positions = [len(path) - 1 for path in paths]
    work = a_pass(words, positions, memory[whose], contexts[whose], parents)
    only = np.array(sorted(rng.sample(range(14), 9)), np.int32)
    scores = scorer.run(work, Want(only=only))
    found = scores.rows(range(9))
    for at, i in enumerate(only):
        alone = scorer.open(1)
        chain = scorer.run(chains([(paths[i], 0, int(memory[whose[i]]), int(alone[0]))]), Want())
        last = len(paths[i]) - 1
        wanted = chain.rows([last])[0]
        close_to(found[at], wanted, rounding_of(wanted))
        close_to(scores.log_probs[at], chain.log_probs[last], 1e-5)
        close_to(log_softmax(found[at]), case.oracle(sources[whose[i]], paths[i])[last], 1e-4)


def test_random_decoding_is_that_of_lists_of_tokens(device: torch.device) -> None:
    """Contexts fork, grow by paths of trees, are cut and closed; the oracle keeps the tokens of each."""
    for seed in range(4):
        play_with_contexts(Case(100 + seed, device))


def play_with_contexts(case: Case) -> None:
    scorer, rng = case.scorer, case.rng
    sources = [case.source() for _ in range(3)]
    memory = scorer.encode(sources)
    rows: dict[int, tuple[int, list[int]]] = {}  # by context: which source, and the tokens
    for _ in range(40):
        for context in scorer.open(rng.randint(0, 2)):
            rows[int(context)] = (rng.randrange(3), [])
        chosen = rng.sample(sorted(rows), min(len(rows), 3))
        for old, new in zip(chosen, scorer.fork(chosen), strict=True):
            rows[int(new)] = (rows[old][0], [*rows[old][1]])
        cut = rng.sample(sorted(rows), min(len(rows), 2))
        lengths = [rng.randint(len(rows[context][1]) // 2, len(rows[context][1])) for context in cut]
        scorer.truncate(cut, lengths)
        for context, length in zip(cut, lengths, strict=True):
            del rows[context][1][length:]
        extra = rng.sample(sorted(rows), max(len(rows) - 6, 0))
        scorer.close(extra)
        for context in extra:
            del rows[context]
        read_trees(case, memory, sources, rows)
        assert scorer.cells_in_use <= sum(len(tokens) for _, tokens in rows.values())
    scorer.close(sorted(rows))
    scorer.free(memory)
    assert scorer.cells_in_use == 0
    assert scorer._source_cells.pool.in_use == 0


def read_trees(
    case: Case, memory: np.ndarray, sources: Sequence[Sequence[int]], rows: dict[int, tuple[int, list[int]]]
) -> None:
    """A pass with a tree behind each row that is not too long, of which a random path is kept."""
    scorer, rng = case.scorer, case.rng
    columns: list[list[int]] = [[], [], [], [], []]
    paths: list[list[int]] = []
    for context, (source, tokens) in rows.items():
        if len(tokens) > 14:
            continue
        begin = len(paths)
        for i in range(begin, begin + rng.randint(1, 4)):
            parent = rng.choice([ROOT, *range(begin, i)])
            before = tokens if parent == ROOT else paths[parent]
            paths.append([*before, *case.words(1)])
            values = (paths[-1][-1], len(before), int(memory[source]), context, parent)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    if not paths:
        return
    work = a_pass(*columns)
    scores = scorer.run(work, Want())
    found = log_softmax(scores.rows(range(len(paths))))
    for path, lprobs, context in zip(paths, found, columns[3], strict=True):
        close_to(lprobs, case.oracle(sources[rows[context][0]], path)[-1], 1e-4)
    last: dict[int, int] = {}
    kept = []
    for i, (context, parent) in enumerate(zip(columns[3], columns[4], strict=True)):
        if last.get(context, ROOT) == parent and rng.random() < 0.8:
            last[context] = i
            kept.append(i)
    scorer.commit(scores, kept)
    for context, i in last.items():
        rows[context] = (rows[context][0], paths[i])


def simple(device: torch.device, **changes: Any) -> tuple[Any, Transformer]:
    config = TransformerConfig(
        src_vocab=11,
        tgt_vocab=11,
        d_model=12,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn=16,
        decoder_ffn=16,
        encoder_heads=2,
        decoder_heads=3,
        max_source_len=10,
        max_target_len=10,
    )
    model = random_model(config, 5)
    return Scorer(model, vocabulary(11), device=device, **changes), model


def test_all_that_is_wanted_is_read_of_the_logits(device: torch.device) -> None:
    scorer, _ = simple(device)
    memory, (context,) = scorer.encode([[5, 6, EOS]]), scorer.open(1)
    work = chains([([EOS, 5, 6], 0, int(memory[0]), int(context))])
    want = Want(
        only=np.array([0, 2], np.int32),
        banned=Ragged.of([[4, 5, 6], []]),
        top=4,
        draw=Draw(np.array([0.0, 0.3]), top_k=1),
    )
    scores = scorer.run(work, want)
    logits = scores.rows([0, 1])
    left = logits.copy()
    left[0, [4, 5, 6]] = -np.inf
    assert scores.best.tolist() == left.argmax(1).tolist()
    assert scores.drawn is not None
    assert scores.drawn.tolist() == scores.best.tolist()
    assert scores.top is not None
    assert scores.top.tolist() == (-left).argsort(1)[:, :4].tolist()
    close_to(scores.top_log_probs, np.take_along_axis(log_softmax(logits), scores.top, 1), 1e-5)
    assert (scores.margins, scores.hidden, scores.given_log_probs) == (None, None, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_come_near(dtype: torch.dtype, device: torch.device) -> None:
    """Within a few of the type's steps of fp32 (2 ** -8 of a number for bf16, 2 ** -11 for fp16)."""
    found = []
    for each in (torch.float32, dtype):
        scorer, _ = simple(device, dtype=each)
        memory, (context,) = scorer.encode([[5, 6, 9, EOS]]), scorer.open(1)
        work = chains([([EOS, 5, 6], 0, int(memory[0]), int(context))])
        scores = scorer.run(work, Want(hidden=True))
        assert scores.hidden is not None
        assert (scores.log_probs.dtype, scores.hidden.dtype) == (np.float32, np.float32)
        found.append(scores.rows([0, 1, 2]))
    steps = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    bound = 16 * steps * float(np.abs(found[0]).max())
    close_to(found[1], found[0], bound)


BREAKS: list[tuple[str, Callable[[Any, Pass], object]]] = [
    ("memory 1 is not open", lambda scorer, work: scorer.free([1])),
    ("memory 0 is named twice", lambda scorer, work: scorer.free([0, 0])),
    ("source 0 has 11 tokens, not between 1 and 10", lambda scorer, work: scorer.encode([[5] * 10 + [EOS]])),
    ("source 0 has 0 tokens, not between 1 and 10", lambda scorer, work: scorer.encode([[]])),
    ("source 1 holds word 11, not between 0 and 10", lambda scorer, work: scorer.encode([[EOS], [11, EOS]])),
    ("`top` is -1, below 0", lambda scorer, work: scorer.run(work, Want(top=-1))),
    (
        "token 1 has position 10, not between 0 and 9",
        lambda scorer, work: scorer.run(chains([([2, 2], 9, 0, 0)]), Want()),
    ),
    (
        "token 0 has word 11, not between 0 and 10",
        lambda scorer, work: scorer.run(chains([([11], 0, 0, 0)]), Want()),
    ),
    ("memory 7 is not open", lambda scorer, work: scorer.run(chains([([2], 0, 7, 0)]), Want())),
    ("context 9 is not open", lambda scorer, work: scorer.run(chains([([2], 0, 0, 9)]), Want())),
    (
        "`only` holds 2, not between 0 and 1",
        lambda scorer, work: scorer.run(work, Want(only=np.array([2], np.int32))),
    ),
    ("str is not what `run` gave", lambda scorer, work: scorer.commit("scores", [0])),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "act"), BREAKS, ids=[message for message, _ in BREAKS])
def test_broken_rules_are_refused_and_change_nothing(
    message: str, act: Callable[[Any, Pass], object], device: torch.device
) -> None:
    scorer, _ = simple(device)
    scorer.encode([[5, EOS]])
    scorer.open(1)
    work = chains([([EOS, 5], 0, 0, 0)])
    wanted = scorer.run(work, Want()).rows([0, 1])
    assert scorer.cells_in_use == 0  # the pass was dropped
    with pytest.raises(PassError) as caught:
        act(scorer, work)
    assert caught.value.message == message
    assert scorer.cells_in_use == 0
    assert scorer._source_cells.pool.in_use == 2
    assert (scorer.run(work, Want()).rows([0, 1]) == wanted).all()


def test_a_freed_source_is_refused(device: torch.device) -> None:
    scorer, _ = simple(device)
    memory, (context,) = scorer.encode([[5, EOS], [6, 7, EOS]]), scorer.open(1)
    scorer.free(memory[:1])
    assert scorer.encode([]).tolist() == []
    assert scorer.encode([[8, EOS]]).tolist() == [2]  # never the same handle again
    with pytest.raises(PassError) as caught:
        scorer.run(chains([([EOS], 0, int(memory[0]), int(context))]), Want())
    assert caught.value.message == "memory 0 is not open"
    assert scorer.run(chains([([EOS], 0, int(memory[1]), int(context))]), Want()).best.shape == (1,)


def test_nan_is_refused_and_stays_in_its_row(device: torch.device) -> None:
    """A word whose embedding is NaN: its row is refused by name, and a row beside it is as if alone."""
    _, model = simple(device)
    spoilt = random_model(model.config, 5)
    assert isinstance(spoilt.decoder.embedding.words, nn.Embedding)
    with torch.no_grad():
        spoilt.decoder.embedding.words.weight[7] = float("nan")
        spoilt.output.weight = nn.Parameter(model.output.weight.detach().clone())
    scorer = Scorer(spoilt, vocabulary(11), device=device)
    memory, contexts = scorer.encode([[5, EOS]]), scorer.open(2)
    spoilt_row = chains([([7, 5], 0, int(memory[0]), int(contexts[0]))])
    with pytest.raises(PassError) as caught:
        scorer.run(spoilt_row, Want())
    assert caught.value.message == "the logits of scored token 0 hold NaN or infinity"
    assert scorer.cells_in_use == 0

    scorer.commit(scorer.run(spoilt_row, Want(only=np.zeros(0, np.int32))), [0, 1])
    other = ([EOS], 0, int(memory[0]), int(contexts[1]))
    alone = scorer.run(chains([other]), Want()).log_probs
    both = chains([([5], 2, int(memory[0]), int(contexts[0])), other])
    beside = scorer.run(both, Want(only=np.array([1], np.int32))).log_probs
    close_to(beside, alone, 1e-6)


def test_a_pass_that_nobody_holds_ends(device: torch.device) -> None:
    scorer, _ = simple(device)
    memory, contexts = scorer.encode([[5, EOS]]), scorer.open(1)
    work = chains([([EOS, 5], 0, int(memory[0]), int(contexts[0]))])
    scores = scorer.run(work, Want())
    with pytest.raises(PassError) as caught:
        scorer.run(work, Want())
    assert caught.value.message == "context 0 waits for `commit`"
    assert scorer.cells_in_use == 2
    del scores, caught
    gc.collect()
    assert scorer.cells_in_use == 0
    scorer.commit(scorer.run(work, Want()), [0, 1])
    scorer.close(contexts)
    assert scorer.cells_in_use == 0
