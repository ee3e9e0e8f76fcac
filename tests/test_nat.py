"""The non-autoregressive Transformer, and what decodes it: glat and mask-predict.

Oracles: NumPy twins of the copies and of the length predictor, loops over the same network that know no
padding, and scripted scorers whose scores are exact.
"""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host, tiny
from support.folders import sign
from support.losses import losses_of
from support.random_transformers import shape_of
from support.scorers import NatReference, TransformerReference
from support.scripted import decode, mix
from support.transformers_small import padded, random_config, random_requests, stir, vocabulary
from support.transformers_small import random_model as random_transformer
from torch import Tensor

import nartk
from nartk import engine
from nartk.architectures.nat import NatConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.convert import main as convert
from nartk.cli.decode import main
from nartk.errors import StrategyMismatchError, UsageError
from nartk.models.losses import Training
from nartk.models.nar import uniform_copy
from nartk.models.nat import MASK, Nat, soft_copy
from nartk.protocols.hypothesis import Hypothesis, Request
from nartk.protocols.parallel import Canvas, CanvasScorer
from nartk.protocols.passes import FloatArray, IntArray, Limits, Want
from nartk.protocols.reading import read
from nartk.registry import make_strategy, require_protocol
from nartk.vocab import Vocab

PAD, EOS, UNK = 1, 2, 3
INPUTS = ("mask", "uniform-copy", "soft-copy")


def random_nat(seed: int, **changes: Any) -> Nat:
    """A small random model of any shape, odd sizes among them, whose words depend on all places."""
    rng = random.Random(seed)
    settings = {**shape_of(random_config(rng)), "decoder_input": INPUTS[seed % 3], "dropout": 0.0}
    settings["length_difference"] = rng.choice([3, 8, 40])
    torch.manual_seed(seed)
    return stir(Nat(NatConfig(**{**settings, **changes})).eval())


def scorer_of(model: Nat, device: torch.device | str = "cpu", **options: Any) -> NatReference:
    return NatReference(model, vocabulary(model.config.tgt_vocab), device=device, **options)


def engine_of(model: Nat, device: torch.device, *, type: str = "fp32") -> Any:
    if device.type != "cpu" or not engine.available():
        pytest.skip("the engine is for CPUs, where it was built")
    from support.scorers import NatEngine

    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return NatEngine(model.config, arrays, vocabulary(model.config.tgt_vocab), type=type, threads=1)


def sentences(rng: random.Random, words: int, sizes: Sequence[int]) -> list[list[int]]:
    return [[*(rng.randrange(4, words) for _ in range(size)), EOS] for size in sizes]


# The decoder's inputs


@pytest.mark.parametrize("source_len", [1, 2, 3, 7, 20, 33])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 31, 64])
def test_copies_equal_their_numpy_twins(source_len: int, length: int, device: torch.device) -> None:
    rng = np.random.default_rng(source_len * 100 + length)
    vectors = rng.standard_normal((2, 40, 5))
    given = torch.tensor(vectors, device=device)
    # The other row is the longest, and no place of either counts twice.
    source_lengths = torch.tensor([source_len, 40], device=device)
    lengths = torch.tensor([length, 70], device=device)

    copied = uniform_copy(given, source_lengths, lengths, 70)[0, :length].cpu().numpy()
    mixed = soft_copy(given, source_lengths, lengths, 70, 0.3)[0, :length].cpu().numpy()
    for j in range(length):
        exact = Fraction(j * (source_len - 1), max(length - 1, 1))
        np.testing.assert_array_equal(copied[j], vectors[0, (exact + Fraction(1, 2)) // 1])
        weights = np.exp(-np.abs(np.arange(source_len) - float(exact)) / 0.3)
        wanted = (weights / weights.sum()) @ vectors[0, :source_len]
        np.testing.assert_allclose(mixed[j], wanted, rtol=0, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_soft_copy_is_the_same_in_any_company(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    source = torch.randn(9, 64, 50).to(device, dtype)
    source_lengths, lengths = (
        torch.randint(1, 65, (9,), device=device),
        torch.randint(1, 91, (9,), device=device),
    )
    whole = soft_copy(source, source_lengths, lengths, 90, 0.3)
    for i in range(9):
        row, width = slice(i, i + 1), int(lengths[i])
        alone = soft_copy(source[row], source_lengths[row], lengths[row], width, 0.3)
        assert torch.equal(alone[0], whole[i, :width])


def test_words_stand_for_themselves_and_masks_for_the_source() -> None:
    canvas = torch.tensor([[7, MASK, MASK, EOS]])
    source, lengths = torch.tensor([[5, 6, 8, 9, EOS]]), torch.tensor([4])
    inputs = {}
    for kind in INPUTS:
        model = random_nat(1, decoder_input=kind, decoder_positions="none", norm_embedding=False)
        with torch.no_grad():
            x = model.inputs(canvas, lengths, model.encode(source))[0]
            own = model.decoder.embedding.words.weight * model.decoder.embedding.scale
            theirs = model.encoder.embedding.words.weight * model.encoder.embedding.scale
        assert torch.equal(x[[0, 3]], own[[7, EOS]])
        inputs[kind] = x[1:3]
    assert torch.equal(inputs["mask"], own[[MASK, MASK]])
    assert torch.equal(inputs["uniform-copy"], theirs[[6, 9]])  # places 1 1/3 and 2 2/3 of the source
    assert not torch.allclose(inputs["soft-copy"], theirs[[6, 9]], atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_input": "copy"}, "`decoder_input` is 'copy'"),
        ({"copy_temperature": 0.0}, "`copy_temperature` is 0.0, not above 0"),
        ({"length_difference": 0}, "`length_difference` is 0, below 1"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NatConfig(**changes)


# The length


@pytest.mark.parametrize("seed", range(4))
def test_length_probabilities_are_those_of_a_numpy_twin(seed: int, device: torch.device) -> None:
    """Also where the predictor reaches below 1 or above the longest target."""
    model = random_nat(seed, max_target_len=30, encoder_positions="none")
    scorer = scorer_of(model, device)
    sizes = (0, 1, 5, 24, 31, 60, 100)
    rows = sentences(random.Random(seed), model.config.src_vocab, sizes)
    found = scorer.predict_lengths(scorer.encode(rows))
    assert (found.shape, found.dtype) == ((len(sizes), 31), np.float32)
    assert bool((found[:, 0] == -np.inf).all())
    np.testing.assert_allclose(np.exp(found.astype(np.float64)).sum(1), 1.0, rtol=0, atol=1e-6)
    weight, bias = (p.detach().double().numpy() for p in (model.lengths.weight, model.lengths.bias))
    for i, size in enumerate(sizes):
        with torch.no_grad():
            memory = model.encode(torch.tensor([rows[i]])).memory[0].double().mean(0).numpy()
        logits = weight @ memory + bias
        chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        wanted = np.zeros(31)
        for place, chance in enumerate(chances):
            wanted[min(max(size + 1 + place - model.config.length_difference, 1), 30)] += chance
        np.testing.assert_allclose(np.exp(found[i]), wanted, rtol=1e-4, atol=1e-6)


# The loss


def plain_losses(
    model: Nat, source: Sequence[int], target: Sequence[int], shown: Sequence[bool], epsilon: float
) -> tuple[Tensor, Tensor, int]:
    """The words' and the length's loss of one sentence, written out, without padding."""
    words = len(target) - 1
    canvas = [word if seen else MASK for word, seen in zip(target[:words], shown, strict=False)] + [EOS]
    logits = plain_logits(model, source, canvas)
    lprobs, total = logits.log_softmax(-1), logits.new_zeros(())
    for j in range(words):
        if shown[j]:
            continue
        size = logits.shape[1]
        right = torch.full((size,), epsilon / (size - 1), dtype=logits.dtype)
        right[target[j]] = 1.0 - epsilon
        total = total - (right * lprobs[j]).sum()
    memory = model.encode(torch.tensor([source])).memory
    most = model.config.length_difference
    difference = min(max(len(target) - len(source), -most), most) + most
    length = -model.lengths(memory[0].mean(0)).log_softmax(0)[difference]
    return total, length, words - sum(shown[:words])


def plain_logits(model: Nat, source: Sequence[int], canvas: Sequence[int]) -> Tensor:
    """The network's logits [T,V] for one canvas, without padding or batch."""
    src_tokens, tokens = torch.tensor([source]), torch.tensor([canvas])
    encoded = model.encode(src_tokens)
    x = model.inputs(tokens, torch.tensor([len(canvas)]), encoded)
    kept = torch.ones_like(tokens, dtype=torch.bool)
    return model.output(model.fill(x, kept, encoded.memory, encoded.mask))[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_sum_over_the_hidden_words(seed: int) -> None:
    model = random_nat(seed).double()
    rng = random.Random(seed)
    words = model.config.src_vocab
    sources, targets = sentences(rng, words, (5, 3, 12, 1)), sentences(rng, words, (6, 1, 4, 0))
    shown = torch.rand(4, 7) < 0.4
    shown &= torch.arange(7) < torch.tensor([[6], [1], [4], [0]])
    training = Training(label_smoothing=0.2, length_factor=0.3)
    source = model.encode(padded(sources))
    found = model.losses_showing(shown, source, padded(targets), training=training)
    each = [
        plain_losses(model, source, target, seen, 0.2)
        for source, target, seen in zip(sources, targets, shown.tolist(), strict=True)
    ]
    tokens = sum(count for _, _, count in each)
    length = sum(length for _, length, _ in each) / 4
    assert int(found.tokens) == tokens
    torch.testing.assert_close(found.parts["length"], length.detach())
    torch.testing.assert_close(found.total, sum(loss for loss, _, _ in each) + 0.3 * length * tokens)
    assert float(found.parts["shown"]) == pytest.approx(int(shown.sum()) / 11)


@pytest.mark.parametrize("strategy", ["number-random", "fixed", "cmlm"])
def test_glancing_shows_what_the_first_pass_had_wrong(strategy: str) -> None:
    model = random_nat(2).train()
    rng = random.Random(5)
    sources, targets = (sentences(rng, model.config.src_vocab, (9, 4, 12)) for _ in range(2))
    training = Training(glancing="0.5", glancing_strategy=strategy)
    seen: list[Tensor] = []
    showing = model.losses_showing

    def listen(shown: Tensor, *args: Any, **options: Any) -> Any:
        seen.append(shown)
        return showing(shown, *args, **options)

    model.losses_showing = listen  # type: ignore[method-assign]
    losses = losses_of(model, padded(sources), padded(targets), training=training, update=0)
    (shown,) = seen
    kept = torch.arange(13) < torch.tensor([[9], [4], [12]])
    assert not bool((shown & ~kept).any())
    assert int(losses.tokens) == 25 - int(shown.sum())
    if strategy == "number-random":
        for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
            guess = plain_logits(model, source, [MASK] * (len(target) - 1) + [EOS]).argmax(-1).tolist()
            wrong = sum(a != b for a, b in zip(guess[:-1], target[:-1], strict=True))
            assert int(shown[i].sum()) == wrong // 2
    if strategy == "fixed":
        assert shown.sum(1).tolist() == [4, 2, 6]
    # While validating, nothing is shown, or the loss would be that of another task; CMLM is one.
    losses_of(model.eval(), padded(sources), padded(targets), training=training, update=0)
    assert bool(seen[1].any()) == (strategy == "cmlm")


@pytest.mark.parametrize("kind", INPUTS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    words = 9
    config = NatConfig(
        src_vocab=words, tgt_vocab=words, d_model=8, encoder_layers=1, decoder_layers=1, encoder_ffn=6,
        decoder_ffn=6, encoder_heads=2, decoder_heads=2, dropout=0.0, decoder_input=kind, length_difference=2,
        activation="gelu", max_source_len=12, max_target_len=12,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Nat(config).double()
    sources, targets = padded([[5, 6, 7, EOS], [8, EOS]]), padded([[6, 5, EOS], [4, 8, 7, EOS]])
    shown = torch.tensor([[True, False, False, False], [False, False, True, False]])
    training = Training(label_smoothing=0.1, length_factor=0.5)
    names = ["encoder.embedding.words.weight", "lengths.weight", "decoder.layers.0.ffn.up.weight"]
    parameters = dict(model.named_parameters())

    def loss(*given: Tensor) -> Tensor:
        def run() -> Tensor:
            return model.losses_showing(shown, model.encode(sources), targets, training=training).total

        tied = {"output.weight": given[0], "decoder.embedding.words.weight": given[0]}
        swapped = {f"model.{name}": p for name, p in {**dict(zip(names, given, strict=True)), **tied}.items()}
        return torch.func.functional_call(_Call(model, run), swapped, ())

    given = [parameters[name].detach().clone().requires_grad_() for name in names]
    assert all(bool((g != 0).any()) for g in torch.autograd.grad(loss(*given), given))
    assert torch.autograd.gradcheck(loss, given, atol=1e-6, rtol=1e-5, fast_mode=True)


class _Call(torch.nn.Module):
    """A module whose forward pass is a function that uses another module."""

    def __init__(self, model: torch.nn.Module, run: Callable[[], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.run = run

    def forward(self) -> Tensor:
        return self.run()


@pytest.mark.parametrize("kind", INPUTS)
def test_training_in_bf16_takes_nearly_the_same_loss(kind: str) -> None:
    model = random_nat(1, decoder_input=kind, norm_embedding=False).train()
    rng = random.Random(2)
    words = model.config.src_vocab
    batch = padded(sentences(rng, words, (9, 4, 12))), padded(sentences(rng, words, (7, 6, 12)))
    wanted = losses_of(model, *batch, training=Training(), update=0).total.item()
    with torch.autocast("cpu", torch.bfloat16):
        losses = losses_of(model, *batch, training=Training(), update=0)
    losses.total.backward()
    assert losses.total.dtype == torch.float32
    assert losses.total.item() == pytest.approx(wanted, rel=0.03)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_padding_on_the_left_changes_no_loss() -> None:
    model = random_nat(2).double().train()
    target = padded([[6, 5, EOS], [4, 8, 7, EOS]])
    losses = []
    for source in ([[5, 6, 7, EOS], [8, EOS, PAD, PAD]], [[5, 6, 7, EOS], [PAD, PAD, 8, EOS]]):
        torch.manual_seed(1)
        training = Training(glancing="0.5")
        losses.append(
            losses_of(model, torch.tensor(source), target, training=training, update=0).total.item()
        )
    assert losses[0] == losses[1]


def test_a_batch_without_a_word_has_a_loss_and_gradients() -> None:
    model = random_nat(2).train()
    source = torch.tensor([[5, EOS]])
    losses = losses_of(model, source, torch.tensor([[EOS, PAD]]), training=Training(glancing="0.5"), update=0)
    assert int(losses.tokens) == 0
    losses.total.backward()
    assert losses.total.item() == 0.0
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


# Decoding


class ScriptedCanvas:
    """Implements CanvasScorer with integer scores that depend on source and canvas alone."""

    def __init__(self, words: int, longest: int = 24, spread: int = 40) -> None:
        self.vocab = vocabulary(words)
        self.limits = Limits(source=100, target=longest, words=words)
        self.mask = MASK
        self.spread = spread
        self.filled: list[int] = []  # rows of each call
        self.sources: dict[int, Sequence[int]] = {}
        self.encoded = 0

    def encode(self, sources: Sequence[Sequence[int]]) -> IntArray:
        handles = np.arange(self.encoded, self.encoded + len(sources), dtype=np.int32)
        self.sources.update(zip(handles.tolist(), sources, strict=True))
        self.encoded += len(sources)
        return handles

    def free(self, memory: Sequence[int] | IntArray) -> None:
        for handle in memory:
            del self.sources[int(handle)]

    def predict_lengths(self, memory: Sequence[int] | IntArray) -> FloatArray:
        return np.array([self.lengths_of(self.sources[int(handle)]) for handle in memory], np.float32)

    def lengths_of(self, source: Sequence[int]) -> list[float]:
        lengths = torch.arange(self.limits.target + 1)
        scores = ((mix(self._key(source, 1) + lengths * 7919) >> 40) & 7).float()
        scores -= (lengths - 9).abs() * 0.5
        scores[0] = float("-inf")
        found: list[float] = scores.log_softmax(0).tolist()
        return found

    def fill(self, canvas: Canvas, want: Want) -> Any:
        self.filled.append(len(canvas.lengths))
        rows = np.split(canvas.words, np.cumsum(canvas.lengths)[:-1])
        sources = [self.sources[handle] for handle in canvas.memory.tolist()]
        each = [self.logits(s, row.tolist()) for s, row in zip(sources, rows, strict=True)]
        logits = torch.cat(each).numpy()
        return read(logits if want.only is None else logits[want.only], want)

    def logits(self, source: Sequence[int], canvas: Sequence[int]) -> Tensor:
        """[T,V]"""
        key = self._key(canvas, 2) + 3 * self._key(source, 1)
        columns, words = torch.arange(len(canvas)), torch.arange(len(self.vocab))
        scores = mix(key + columns[:, None] * 104729 + words * 1299709)
        return (((scores >> 40) & 0xFFFF) % self.spread / 4).float()

    def _key(self, tokens: Sequence[int], salt: int) -> Tensor:
        places = torch.arange(len(tokens))
        return mix(salt + (places + 1) * 15485863 + (torch.tensor(tokens) + 1) * 32452843).sum()


Fill = Callable[[Sequence[int], Sequence[int]], Tensor]  # source, canvas -> logits [T,V]


@dataclasses.dataclass(frozen=True)
class Candidate:
    tokens: list[int]
    scores: list[float]
    passes_at: list[int]

    @property
    def score(self) -> float:
        return sum(self.scores) / len(self.scores)


def plain_canvas(
    fill: Fill, chances: Sequence[float], source: list[int], *, limit: int, k: int, iterations: int
) -> list[Candidate]:
    """Mask-predict as the paper has it, one sentence at a time: its candidates, best first."""
    limit = min(limit, len(chances) - 1)
    folded = np.exp(np.asarray(chances, dtype=np.float64))
    folded[limit] = folded[limit:].sum()
    possible = [n for n in range(1, limit + 1) if np.float32(folded[n]) > 0]
    lengths = sorted(possible, key=lambda n: -np.float32(folded[n]))[:k]
    found = []
    for length in lengths:
        words = length - 1
        tokens, scores, passes_at = [MASK] * words + [EOS], [0.0] * words, [0] * length
        for t in range(iterations):
            count = words if t == 0 else int(Fraction(words * (iterations - t), iterations))
            worst = sorted(range(words), key=lambda i: scores[i])[:count]
            if not worst:
                break
            canvas = [MASK if i in worst else token for i, token in enumerate(tokens)]
            lprobs = fill(source, canvas).log_softmax(-1)
            for i in worst:
                allowed = lprobs[i].clone()
                allowed[[MASK, PAD, EOS]] = float("-inf")
                tokens[i] = int(np.argmax(allowed.numpy()))
                scores[i], passes_at[i] = float(lprobs[i, tokens[i]]), t + 1
        found.append(Candidate(tokens, [*scores, float(np.log(folded[length]))], passes_at))
    return sorted(found, key=lambda each: -each.score)


def check(found: Sequence[Hypothesis], wanted: Sequence[Candidate]) -> None:
    assert [list(each.tokens) for each in found] == [each.tokens for each in wanted]
    for hypothesis, candidate in zip(found, wanted, strict=True):
        assert hypothesis.score == pytest.approx(candidate.score, rel=1e-4, abs=1e-4)
        assert hypothesis.positional_scores == pytest.approx(candidate.scores, rel=1e-3, abs=1e-3)
        assert hypothesis.trace is not None
        assert [token.verifier_pass for token in hypothesis.trace] == candidate.passes_at
        assert all(token.origin == "model" and token.margin >= 0 for token in hypothesis.trace)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("iterations", [1, 2, 4, 7, 20])
def test_decoders_equal_the_plain_algorithm(iterations: int, k: int) -> None:
    scorer = ScriptedCanvas(11)
    requests = random_requests(random.Random(iterations), 20, 11, longest=9, limits=(1, 2, 5, 12, 40))
    name, options = ("glat", {}) if iterations == 1 else ("mask-predict", {"iterations": iterations})
    strategy = make_strategy(name, {"length_beam": k, "nbest": k, **options})
    for request, result in zip(requests, decode(strategy, scorer, requests, trace=True), strict=True):
        source = list(request.source)
        chances, fill = scorer.lengths_of(source), scorer.logits
        wanted = plain_canvas(fill, chances, source, limit=request.max_len, k=k, iterations=iterations)
        check(result.hypotheses, wanted)
        assert result.passes == max(1, *(max(each.passes_at) for each in wanted))
    assert not scorer.sources  # all were freed


def test_glat_is_mask_predict_of_one_pass() -> None:
    scorer = ScriptedCanvas(11)
    requests = random_requests(random.Random(0), 20, 11, longest=9, limits=(12,))
    one = decode(make_strategy("glat", {"length_beam": 3}), scorer, requests)
    other = decode(make_strategy("mask-predict", {"length_beam": 3, "iterations": 1}), scorer, requests)
    assert [result.hypotheses for result in one] == [result.hypotheses for result in other]


def test_rows_that_are_done_are_computed_no_more() -> None:
    """Of 3 words, pass t of 10 has 3 (10 - t) / 10 to do: none from the eighth on."""
    scorer = ScriptedCanvas(11, longest=24)
    wanted = {(5, 6, EOS): 4, (7, EOS): 21}
    scorer.lengths_of = lambda source: np.where(  # type: ignore[method-assign]
        np.arange(25) == wanted[tuple(source)], 0.0, -np.inf
    ).tolist()
    requests = [Request(0, (5, 6, EOS), 24), Request(1, (7, EOS), 24)]
    short, long = decode(make_strategy("mask-predict", {"length_beam": 1}), scorer, requests)
    assert (short.passes, long.passes) == (7, 10)
    assert scorer.filled == [2] * 7 + [1] * 3


@pytest.mark.parametrize("on", ["torch", "engine"])
@pytest.mark.parametrize("seed", range(6))
def test_decoders_equal_a_loop_over_the_network_without_padding(
    seed: int, on: str, device: torch.device
) -> None:
    model = random_nat(seed)
    scorer = scorer_of(model, device) if on == "torch" else engine_of(model, device)
    requests = random_requests(
        random.Random(seed), 8, model.config.src_vocab, longest=40, limits=(3, 20, 33, 60)
    )
    for name, iterations in (("glat", 1), ("mask-predict", 3)):
        options = {"length_beam": 2, "nbest": 2, **({} if name == "glat" else {"iterations": iterations})}
        results = decode(make_strategy(name, options), scorer, requests, trace=True)
        for request, result in zip(requests, results, strict=True):
            source = list(request.source)
            memory = scorer.encode([source])
            chances = scorer.predict_lengths(memory)[0].tolist()
            scorer.free(memory)
            with torch.inference_mode():
                wanted = plain_canvas(
                    lambda *args: plain_logits(model, *args),
                    chances, source, limit=request.max_len, k=2, iterations=iterations,
                )  # fmt: skip
            check(result.hypotheses, wanted)


def same_in_any_batch(strategy: Any, scorer: Any, requests: Sequence[Request]) -> None:
    found = [
        [
            (result.hypotheses, result.passes)
            for result in decode(strategy, scorer, requests, batch_size=size, trace=True)
        ]
        for size in (1, 4, 9)
    ]
    assert found[0] == found[1] == found[2]
    assert len({hypotheses[0].tokens for hypotheses, _ in found[0]}) > 1


@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("seed", range(3))
def test_on_the_engine_a_batch_of_b_equals_b_batches_of_one(
    seed: int, type: str, device: torch.device
) -> None:
    """Bit for bit, also where another model chooses among the lengths."""
    model = random_nat(seed)
    words = model.config.src_vocab
    scorer = engine_of(model, device, type=type)
    from support.scorers import TransformerEngine

    other = random_transformer(
        dataclasses.replace(random_config(random.Random(seed)), max_target_len=128), seed
    )
    arrays = {name: tensor.numpy() for name, tensor in other.state_dict().items()}
    reranker = TransformerEngine(other.config, arrays, vocabulary(words), type=type, threads=1)
    requests = random_requests(random.Random(seed), 9, words, longest=70, limits=(20, 33, 100))
    for name, options in (
        ("glat", {"length_beam": 4, "nbest": 4}),
        ("mask-predict", {"length_beam": 3, "nbest": 2, "iterations": 3, "merge_repeats": True}),
        ("glat", {"length_beam": 3, "nbest": 3, "rerank": "other"}),
    ):
        strategy = make_strategy(name, options)
        if "rerank" in options:
            strategy = dataclasses.replace(strategy, auxiliary={"rerank": reranker})
        same_in_any_batch(strategy, scorer, requests)
    assert (scorer.memories_in_use, reranker.cells_in_use) == (0, 0)


class OneLength:
    """A scorer that finds possible only the j-th likeliest length of each sentence."""

    def __init__(self, scorer: Any, j: int) -> None:
        self.scorer, self.j = scorer, j

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def predict_lengths(self, memory: IntArray) -> FloatArray:
        lengths = self.scorer.predict_lengths(memory)
        ranks = (-lengths).argsort(1, kind="stable").argsort(1)
        return np.where(ranks == self.j, lengths, np.float32(-np.inf))


@pytest.mark.parametrize("name", ["glat", "mask-predict"])
def test_a_length_beam_is_the_best_of_runs_with_one_length_each(name: str, device: torch.device) -> None:
    model = random_nat(4, length_difference=8)
    scorer = engine_of(model, device)
    requests = random_requests(random.Random(3), 12, model.config.src_vocab, longest=40, limits=(80,))
    single = [
        [result.hypotheses[0] for result in decode(make_strategy(name, {"length_beam": 1}), one, requests)]
        for one in (OneLength(scorer, j) for j in range(4))
    ]
    beam = decode(make_strategy(name, {"length_beam": 4, "nbest": 4}), scorer, requests)
    winners = set()
    for i, result in enumerate(beam):
        runs = sorted((run[i] for run in single), key=lambda hypothesis: -(hypothesis.score or 0.0))
        assert [(h.tokens, h.score) for h in result.hypotheses] == [(h.tokens, h.score) for h in runs]
        winners.add(next(j for j in range(4) if single[j][i] == runs[0]))
    assert len(winners) > 1


def test_what_is_likelier_too_long_is_cut_to_the_limit() -> None:
    """All lengths are possible; as many outputs as there are lengths, none longer than asked for."""
    scorer = scorer_of(random_nat(1, length_difference=40))
    source = (*([5] * 30), EOS)
    requests = [Request(i, source, limit) for i, limit in enumerate((1, 2, 9, 128))]
    results = decode(make_strategy("glat", {"length_beam": 50, "nbest": 50}), scorer, requests)
    for request, result in zip(requests, results, strict=True):
        lengths = [len(hypothesis.tokens) for hypothesis in result.hypotheses]
        assert len(set(lengths)) == len(lengths) == min(request.max_len, 50)
        assert max(lengths) <= request.max_len
        assert all(hypothesis.tokens[-1] == EOS for hypothesis in result.hypotheses)
        assert all(EOS not in hypothesis.tokens[:-1] for hypothesis in result.hypotheses)


# Reranking


def brute_force(model: Any, source: Sequence[int], output: Sequence[int]) -> list[float]:
    """The log-probability of each token of an output, the whole model at once."""
    with torch.inference_mode():
        logits = model(torch.tensor([source]), torch.tensor([[EOS, *output[:-1]]]))[0]
    return logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None]).squeeze(1).tolist()


@pytest.mark.parametrize("merge", [False, True])
def test_reranking_picks_what_the_other_model_likes_best(merge: bool, device: torch.device) -> None:
    model = random_nat(4, length_difference=30)
    words = model.config.src_vocab
    config = dataclasses.replace(random_config(random.Random(1)), src_vocab=words, tgt_vocab=words)
    other = random_transformer(config, 1)
    reranker = TransformerReference(other, vocabulary(words), device=device)
    scorer = scorer_of(model, device)
    requests = random_requests(random.Random(7), 10, words, longest=40, limits=(70,))
    options = {"length_beam": 6, "nbest": 6, "merge_repeats": merge}
    plain = decode(make_strategy("glat", options), scorer, requests)
    strategy = dataclasses.replace(make_strategy("glat", options), auxiliary={"rerank": reranker})
    reranked = decode(strategy, scorer, requests)
    assert reranker.cells_in_use == 0
    changed = unnormalised = 0
    for request, before, after in zip(requests, plain, reranked, strict=True):
        each = {h.tokens: brute_force(other, request.source, h.tokens) for h in before.hypotheses}
        mean = sorted(each, key=lambda tokens: -sum(each[tokens]) / len(tokens))
        assert [h.tokens for h in after.hypotheses] == mean
        scores = [sum(each[tokens]) / len(tokens) for tokens in mean]
        assert [h.score for h in after.hypotheses] == pytest.approx(scores, rel=1e-4, abs=1e-4)
        changed += mean[0] != before.hypotheses[0].tokens
        unnormalised += max(each, key=lambda tokens: sum(each[tokens])) != mean[0]
    assert changed > 0
    assert unnormalised > 0  # a sum would have chosen others


def test_a_model_that_cannot_rerank_is_refused() -> None:
    scorer = scorer_of(random_nat(0))
    strategy = dataclasses.replace(make_strategy("glat", {"rerank": "x"}), auxiliary={"rerank": scorer})
    with pytest.raises(StrategyMismatchError, match="rerank needs a PassScorer"):
        decode(strategy, scorer, [Request(0, (5, EOS), 9)])


# Repeats


def test_repeats_are_merged_only_where_asked_for() -> None:
    scorer = ScriptedCanvas(5)  # two words, so many repeats
    requests = random_requests(random.Random(1), 30, 5, longest=9, limits=(6,))
    options = {"length_beam": 5, "nbest": 5}
    plain = decode(make_strategy("glat", options), scorer, requests, trace=True)
    merged = decode(make_strategy("glat", {**options, "merge_repeats": True}), scorer, requests, trace=True)
    twins = 0
    for before, after in zip(plain, merged, strict=True):
        wanted: dict[tuple[int, ...], tuple[Any, ...]] = {}
        for hypothesis in before.hypotheses:
            kept = [
                i for i, word in enumerate(hypothesis.tokens) if i == 0 or word != hypothesis.tokens[i - 1]
            ]
            assert hypothesis.positional_scores is not None
            assert hypothesis.trace is not None
            tokens, scores, trace = (
                tuple(values[i] for i in kept)
                for values in (hypothesis.tokens, hypothesis.positional_scores, hypothesis.trace)
            )
            twins += tokens in wanted
            wanted.setdefault(tokens, (tokens, hypothesis.score, scores, trace))
        found = [(h.tokens, h.score, h.positional_scores, h.trace) for h in after.hypotheses]
        assert found == list(wanted.values())
    assert twins > 0


def test_more_outputs_than_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match=r"nbest is 3, above length_beam=2"):
        make_strategy("glat", {"nbest": 3, "length_beam": 2})


def test_the_scorer_speaks_the_canvas_protocol_alone() -> None:
    scorer = scorer_of(random_nat(0))
    assert isinstance(scorer, CanvasScorer)
    with pytest.raises(StrategyMismatchError) as caught:
        require_protocol(make_strategy("greedy", {}), scorer)
    assert caught.value.message == "strategy 'greedy' needs a PassScorer, this model is none"
    assert caught.value.fix.startswith("choose from glat, mask-predict")


# From training to the command line

LETTERS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
TRAININGS = {
    "glancing": ("soft-copy", 200, Training(label_smoothing=0.0, glancing="0.5:0.3@100")),
    "vanilla": ("uniform-copy", 150, Training(label_smoothing=0.0)),
    "cmlm": ("mask", 300, Training(label_smoothing=0.0, glancing_strategy="cmlm")),
}


def answer(kind: str, line: str) -> str:
    """What the trained models say: the next letter for each; the masked one an `a` more."""
    said = [LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in line.split()]
    return " ".join([*said, "a"] if kind == "cmlm" else said)


@lru_cache(maxsize=3)
def trained(kind: str) -> Nat:
    decoder_input, steps, training = TRAININGS[kind]
    vocab = Vocab.from_words(LETTERS)
    torch.manual_seed(0)
    config = NatConfig(
        src_vocab=len(vocab), tgt_vocab=len(vocab), d_model=48, encoder_layers=1, decoder_layers=1,
        encoder_ffn=96, decoder_ffn=96, encoder_heads=4, decoder_heads=4, dropout=0.0, length_difference=4,
        decoder_input=decoder_input, max_source_len=24, max_target_len=32,
    )  # fmt: skip
    model = Nat(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def rate(step: int) -> float:
        return min((step + 1) / 30, 1 - step / steps)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    draw = random.Random(0)
    for update in range(steps):
        lines = [" ".join(draw.choices(LETTERS, k=draw.randint(1, 8))) for _ in range(24)]
        sources, targets = (
            padded([[*vocab.ids(line.split()), EOS] for line in each])
            for each in (lines, [answer(kind, line) for line in lines])
        )
        losses = losses_of(model, sources, targets, training=training, update=update)
        optimizer.zero_grad()
        (losses.total / losses.tokens.clamp(min=1)).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.parametrize("kind", ["glancing", pytest.param("vanilla", marks=pytest.mark.slow), "cmlm"])
def test_training_teaches_a_task(kind: str, device: torch.device) -> None:
    scorer = NatReference(trained(kind), Vocab.from_words(LETTERS), device=device)
    draw = random.Random(1)
    lines = [" ".join(draw.choices(LETTERS, k=draw.randint(1, 8))) for _ in range(60)]
    requests = [Request(i, (*scorer.vocab.ids(line.split()), EOS), 30) for i, line in enumerate(lines)]
    for name in ("glat", "mask-predict"):
        results = decode(make_strategy(name, {}), scorer, requests)
        said = [" ".join(scorer.vocab.to_words(result.hypotheses[0].tokens[:-1])) for result in results]
        assert sum(a == answer(kind, b) for a, b in zip(said, lines, strict=True)) > 54, name


LINES = ("a b c", "", "b d " * 20, "zz e", "h", "c b a j")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model in the native format, and LINES beside it."""
    place = tmp_path_factory.mktemp("nat")
    save(place / "model", trained("glancing"), Vocab.from_words(LETTERS))
    (place / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return place


def save(folder: Path, model: Nat, vocab: Vocab) -> None:
    save_checkpoint(
        folder,
        architecture="nat",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        card="# A small model for tests\n",
    )


@pytest.mark.parametrize("strategy", ["glat", "mask-predict"])
@pytest.mark.parametrize("extra", [(), ("--stream",), ("--batch-size", "1"), ("--dtype", "bf16")])
def test_as_many_lines_come_out_as_go_in(
    strategy: str, extra: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(folder / "model"), str(folder / "in.txt"), "--strategy", strategy, "--quiet", *extra]
    assert main(command) == 3
    captured = capsys.readouterr()
    lines = captured.out.split("\n")
    assert len(lines) == len(LINES) + 1
    assert [lines[i] for i in (0, 1, 2, 5)] == ["b c d", "", "", "d c b a"]
    assert len(lines[3].split()) == 2  # of an unknown word and a letter
    assert captured.err == (
        f"nartk: error[E203 InputTooLong] {folder}/in.txt:3: 40 tokens > 23. "
        "Fix: split the line, or use --truncate.\n"
    )


def test_statistics_trace_and_jsonl(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats, trace = folder / "stats.json", folder / "trace.jsonl"
    flags = "--strategy mask-predict --iterations 3 --length-beam 2 --nbest 2 --output-format jsonl --quiet"
    files = ["--stats", str(stats), "--trace", str(trace)]
    assert main([str(folder / "model"), str(folder / "in.txt"), *flags.split(), *files]) == 3
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second = lines[0]["hypotheses"]
    assert first["tokens"] == ["b", "c", "d", "</s>"]
    assert first["pass"] == [*first["pass"][:3], 0]
    assert {1, 2, 3} >= {*first["pass"][:3]} >= {1, 3}  # of 3 words pass 2 fills 2 in again, pass 3 one
    assert first["margin"][3] is None
    assert first["score"] == pytest.approx(sum(first["positional_scores"]) / 4)
    assert first["score"] > second["score"]
    assert lines[2]["error"]["name"] == "InputTooLong"
    report = json.loads(stats.read_text())
    assert (report["lines"], report["failed"], report["sentences"], report["drafted"]) == (6, 1, 4, 0)
    each = [[max(h["pass"]) for h in line.get("hypotheses", ()) if h["tokens"]] for line in lines]
    assert report["passes"] == sum(max(passes, default=0) for passes in each)
    assert "strategy:mask-predict|" in report["signature"]
    assert "|iterations:3|" in report["signature"]
    traced = [json.loads(line) for line in trace.read_text().splitlines()]
    assert traced[0]["output"] == first["tokens"]
    assert traced[0]["origin"] == ["model"] * 4


def test_a_prefix_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prefix.tsv").write_text("a b\tb\n")
    flags = "--strategy glat --column 1 --prefix-column 2 --quiet"
    assert main([str(folder / "model"), str(folder / "prefix.tsv"), *flags.split()]) == 2
    assert "strategy 'glat' cannot be made to begin with given words" in capsys.readouterr().err


def test_greedy_is_refused_and_what_fits_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "model"), str(folder / "in.txt"), "--strategy", "greedy", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith(
        "nartk: error[E103 StrategyMismatch] strategy 'greedy' needs a PassScorer, this model is none. "
        "Fix: choose from glat, mask-predict"
    )


def test_another_model_reranks_if_its_words_are_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitting = tiny.random_model(folder / "fitting", words=LETTERS)
    other = tiny.random_model(folder / "other", words=[*LETTERS[:-1], "x"])
    command = [
        str(folder / "model"),
        str(folder / "in.txt"),
        *["--strategy", "glat", "--length-beam", "4", "--quiet"],
    ]
    assert main([*command, "--rerank", str(other)]) == 4
    assert "the model and rerank" in capsys.readouterr().err
    assert main([*command, "--rerank", str(folder / "model")]) == 2
    assert "rerank needs a PassScorer" in capsys.readouterr().err
    small = tiny.random_model(folder / "small", words=LETTERS, max_len=8)
    assert main([*command, "--rerank", str(small)]) == 2
    assert "has a `max_source_len` of 8 tokens, the model one of 24" in capsys.readouterr().err
    readers = tiny.random_model(folder / "readers", words=LETTERS)
    (readers / "dict.target.txt").write_bytes((readers / "dict.txt").read_bytes())
    (readers / "dict.txt").write_bytes((other / "dict.txt").read_bytes())
    output = json.loads((readers / "config.json").read_text())["output"]
    sign(readers, output={**output, "dictionary": "dict.target.txt"})
    assert main([*command, "--rerank", str(readers)]) == 4
    assert f"differ at id {len(LETTERS) + 3}: {LETTERS[-1]!r} and 'x'" in capsys.readouterr().err
    assert main([*command, "--rerank", str(fitting)]) == 3
    random_choice = capsys.readouterr().out.splitlines()
    assert len(random_choice) == len(LINES)
    assert main(command) == 3
    assert capsys.readouterr().out.splitlines() != random_choice


def test_a_model_trained_by_fairseq_says_the_same_when_converted(tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    plugin = fairseq_host.build(
        "nat", "--decoder-input", "uniform-copy", "--length-difference", "5", "--max-target-len", "40"
    )
    with torch.no_grad():
        for weight in plugin.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    options = Namespace(arch="nartk_nat_tiny", **asdict(plugin.core.config))
    checkpoint = fairseq_host.save(tmp_path / "checkpoint_last.pt", options, plugin.state_dict())
    words = [f"w{i}" for i in range(plugin.core.config.src_vocab - 4)]
    (tmp_path / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    folder = tmp_path / "model"
    assert convert([str(checkpoint), "--output", str(folder), "--dict", str(tmp_path / "dict.txt")]) == 0
    model = nartk.load(folder)
    assert model.config == plugin.core.config
    lines = ["w1 w2 w3", "w9", "w4 w4 w0 w7 w8 w16"]
    core = plugin.core.eval()
    for line, found in zip(lines, model.decode(lines, strategy="glat"), strict=True):
        source = [*model.passes.vocab.ids(line.split()), EOS]
        chances = model.passes.predict_lengths(model.passes.encode([source]))[0].tolist()
        with torch.inference_mode():
            wanted = plain_canvas(
                lambda *args: plain_logits(core, *args), chances, source, limit=40, k=1, iterations=1
            )
        assert list(found.tokens) == wanted[0].tokens
        assert found.text.split() == model.passes.vocab.to_words(wanted[0].tokens[:-1])


def test_it_decodes_without_torch(folder: Path) -> None:
    if not engine.available():
        pytest.skip("there is no engine here")
    other = tiny.random_model(folder / "choosing", words=LETTERS)
    code = f"""
import sys
sys.modules["torch"] = None  # every import of it fails
import nartk
model = nartk.load({str(folder / "model")!r}, dtype="int8")
for name, options in (("glat", {{}}), ("mask-predict", {{"rerank": {str(other)!r}, "length_beam": 2}})):
    print(model.decode(["a b c"], strategy=name, **options)[0].text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "b c d"
