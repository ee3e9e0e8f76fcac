"""The Paraformer: its scores and losses against NumPy, its sampler, serving, and drafts for other models."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fires import by_hand
from support.labellings import all_outputs
from support.losses import losses_of
from support.parallel_drafters import KnowingFrames, with_drafter
from support.scorers import ConformerReference, ParaformerReference
from support.scripted import decode
from support.speech_models import EncoderTwin, assert_slope, random_settings, random_speech, random_speeches
from support.transformers_small import padded, vocabulary
from torch import Tensor

import nartk
from nartk.architectures import architecture
from nartk.architectures.paraformer import ParaformerConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.decoders.ctc_greedy import CtcGreedy
from nartk.decoders.greedy import Greedy
from nartk.decoders.paraformer import ParaformerGreedy
from nartk.errors import PassError, StrategyMismatchError, UsageError
from nartk.models import paraformer
from nartk.models.losses import Training
from nartk.models.paraformer import Paraformer
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FireScorer, FrameScorer
from nartk.protocols.passes import FeatureSource, PassScorer, Want
from nartk.protocols.timestamps import cif_times
from nartk.registry import require_protocol

BLANK, PAD, EOS = 0, 1, 2
LENGTHS = (61, 7, 30, 18, 90)
ORACLE = Path(__file__).parent / "oracles" / "predictors.npz"


def requests_of(sources: Sequence[FeatureSource], longest: int = 30) -> list[Request]:
    return [Request(index, source, longest) for index, source in enumerate(sources)]


class Twin(EncoderTwin):
    """Reads one utterance with a pre-norm decoder with ReLU, in NumPy, from the weights."""

    def alpha(self, memory: np.ndarray) -> np.ndarray:
        wide = np.pad(memory, ((1, 1), (0, 0)))
        kernel = self.w["cif.conv.weight"]  # [d,d,3] or [d,1,3]
        if self.config.predictor == "depthwise":
            kernel = kernel * np.eye(len(kernel))[:, :, None]
            kernel[:, :, 1] += np.eye(len(kernel))
        rows = [sum(kernel[:, :, k] @ wide[t + k] for k in range(3)) for t in range(len(memory))]
        hidden = (np.stack(rows) + self.w["cif.conv.bias"]).clip(min=0)
        return 1 / (1 + np.exp(-self.linear(hidden, "cif.out")[:, 0]))

    def fires(self, memory: np.ndarray, count: int | None = None) -> np.ndarray:
        """The embeddings [N,d], of a target's length or as many as there are."""
        alpha = self.alpha(memory)
        if count is not None:
            # The last token of a target is never the one that rounding loses.
            return np.array(by_hand(memory, alpha * (count / alpha.sum()) * (1 + 1e-12))[:count])
        found = max(1, math.floor(alpha.sum() + self.config.tail_threshold))
        return np.array(by_hand(memory, alpha)[:found])

    def attended(self, name: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        out, heads = np.zeros_like(q), self.config.decoder_heads
        for head in range(heads):
            part = slice(head * q.shape[1] // heads, (head + 1) * q.shape[1] // heads)
            scores = q[:, part] @ k[:, part].T / math.sqrt(q.shape[1] // heads)
            share = np.exp(scores - scores.max(1, keepdims=True))
            out[:, part] = share / share.sum(1, keepdims=True) @ v[:, part]
        return self.linear(out, f"{name}.out")

    def decode(self, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Log-probabilities [N,V] of the words of embeddings [N,d]."""
        half = x.shape[1] // 2
        rate = np.exp(np.arange(half) * -(math.log(10000) / (half - 1)))
        angle = np.arange(2, len(x) + 2)[:, None] * rate
        x = x + np.concatenate([np.sin(angle), np.cos(angle)], 1)
        for i in range(self.config.decoder_layers):
            at = f"decoder_layers.{i}"
            own = np.split(self.linear(self.norm(x, f"{at}.self_norm"), f"{at}.self_attention.qkv"), 3, 1)
            x = x + self.attended(f"{at}.self_attention", *own)
            q = self.linear(self.norm(x, f"{at}.cross_norm"), f"{at}.cross_attention.q")
            k, v = np.split(self.linear(memory, f"{at}.cross_attention.kv"), 2, 1)
            x = x + self.attended(f"{at}.cross_attention", q, k, v)
            y = self.linear(self.norm(x, f"{at}.ffn_norm"), f"{at}.ffn.up").clip(min=0)
            x = x + self.linear(y, f"{at}.ffn.down")
        logits = self.norm(x, "decoder_norm") @ self.w["output.weight"].T
        return logits - np.logaddexp.reduce(logits, 1)[:, None]

    def scores(self, source: FeatureSource, count: int | None = None) -> np.ndarray:
        memory, _ = self.encode(source.frames)
        return self.decode(self.fires(memory, count), memory)


def encoder_settings(seed: int) -> dict[str, Any]:
    """Those that the twin's decoder has no part in."""
    found = random_settings(random.Random(seed))
    for name in ("head_features", "scale_attention", "gated_ffn", "activation"):
        del found[name]
    return {**found, "predictor": ("convolution", "depthwise")[seed % 2]}


# Predictors


@pytest.mark.parametrize(
    ("predictor", "theirs"), [("depthwise", "CifPredictor"), ("convolution", "CifPredictorV2")]
)
def test_predictors_are_those_of_funasr(predictor: str, theirs: str, device: torch.device) -> None:
    """With FunASR's weights and its numbers, which tests/oracles/funasr_predictors.py wrote."""
    model = random_speech("paraformer", predictor=predictor, tail_threshold=0.45).to(device)
    with np.load(ORACLE) as stored:
        own = {name.removeprefix(f"{theirs}."): torch.from_numpy(stored[name]) for name in stored}
    names = {"conv": "cif_conv1d", "out": "cif_output"}
    model.cif.load_state_dict(
        {f"{mine}.{part}": own[f"{its}.{part}"] for mine, its in names.items() for part in ("weight", "bias")}
    )
    for i in range(2):
        hidden, alphas, embeds = (own[f"{i}.{name}"] for name in ("hidden", "alphas", "embeds"))
        padded_one = F.pad(hidden, (0, 0, 0, 3), value=5.0)[None].to(device)
        kept = torch.arange(len(hidden) + 3, device=device)[None] < len(hidden)
        found, lengths, alpha = model.fires(padded_one, kept)
        torch.testing.assert_close(alpha[0, : len(hidden)].cpu(), alphas[:-1], atol=1e-6, rtol=0)
        assert lengths.tolist() == [len(embeds)]
        torch.testing.assert_close(found[0].cpu(), embeds, atol=1e-5, rtol=0)


def test_the_depthwise_predictor_has_dropout() -> None:
    model = random_speech("paraformer", predictor="depthwise", dropout=0.5).train()
    memory, kept = torch.randn(1, 9, 12), torch.ones(1, 9, dtype=torch.bool)
    assert not torch.equal(model.cif(memory, kept), model.cif(memory, kept))


# Serving


def test_weights_are_named_as_the_configuration_says() -> None:
    model = random_speech("paraformer", share_embeddings="decoder", intermediate_ctc="1")
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == model.config.weight_shapes()
    assert shapes["cif.conv.weight"] == (12, 12, 3)
    own = random_speech("paraformer", predictor="depthwise")
    shapes_own = {name: tuple(value.shape) for name, value in own.state_dict().items()}
    assert shapes_own == own.config.weight_shapes()
    assert shapes_own["cif.conv.weight"] == (12, 1, 3)
    assert shapes["cif.out.weight"] == (1, 12)
    assert architecture("paraformer").protocols == (FireScorer, FrameScorer)


@pytest.mark.parametrize("seed", range(6))
def test_fires_and_scores_equal_a_numpy_twin(seed: int, device: torch.device) -> None:
    model = random_speech("paraformer", seed, **encoder_settings(seed))
    scorer = ParaformerReference(model, vocabulary(9), device=device)
    assert isinstance(scorer, FireScorer)
    assert not isinstance(scorer, PassScorer)
    twin, sources = Twin(model), random_speeches(seed, LENGTHS)
    memory = scorer.encode(sources)
    wanted = [twin.scores(source) for source in sources]
    counts = scorer.frames(memory)
    assert counts.dtype == np.int32
    assert counts.tolist() == [len(each) for each in wanted]
    logits = scorer.read_frames(memory, Want()).rows(range(counts.sum()))
    np.testing.assert_allclose(torch.from_numpy(logits).log_softmax(1), np.concatenate(wanted), atol=2e-4)
    for own, source in zip(scorer.weights(memory), sources, strict=True):
        np.testing.assert_allclose(own, twin.alpha(twin.encode(source.frames)[0]), atol=1e-5)


def test_a_batch_changes_nothing(device: torch.device) -> None:
    scorer = ParaformerReference(random_speech("paraformer", 4), vocabulary(9), device=device)
    memory = scorer.encode(random_speeches(4, LENGTHS))
    counts = scorer.frames(memory)
    together = scorer.read_frames(memory, Want()).rows(range(counts.sum()))
    alone = [scorer.encode([source]) for source in random_speeches(4, LENGTHS)]
    assert [int(scorer.frames(each)[0]) for each in alone] == counts.tolist()
    rows = [
        scorer.read_frames(each, Want()).rows(range(count))
        for each, count in zip(alone, counts.tolist(), strict=True)
    ]
    np.testing.assert_allclose(together, np.concatenate(rows), atol=1e-4)
    assert len(set(counts.tolist())) > 2
    scorer.free(memory)
    for each in alone:
        scorer.free(each)
    assert not len(scorer._memories)
    assert len(scorer.encode([])) == 0
    for call in (scorer.frames, scorer.weights, lambda handles: scorer.read_frames(handles, Want())):
        with pytest.raises(PassError, match=f"memory {memory[0]} is not open"):
            call(memory[:1])


def test_a_source_fires_once_at_least_and_as_often_as_there_are_positions() -> None:
    for bias, count in ((-30.0, 1), (30.0, 5)):
        model = random_speech("paraformer", max_target_len=5)
        model.cif.out.bias.fill_(bias)
        scorer = ParaformerReference(model, vocabulary(9))
        memory = scorer.encode(random_speeches(0, (61, 90)))
        assert scorer.frames(memory).tolist() == [count, count]
        assert len(scorer.read_frames(memory, Want()).best) == 2 * count


def test_the_strategy_takes_the_best_word_of_each_fire() -> None:
    cut = whole = 0
    for seed in range(4):
        model = random_speech("paraformer", seed)
        scorer, sources = ParaformerReference(model, vocabulary(9)), random_speeches(seed, LENGTHS)
        found = decode(ParaformerGreedy(), scorer, requests_of(sources), batch_size=2, trace=True)
        for result, source in zip(found, sources, strict=True):
            log_probs = Twin(model).scores(source)
            log_probs[:, [BLANK, PAD]] = -math.inf
            words = log_probs.argmax(1).tolist()
            size = words.index(EOS) + 1 if EOS in words else len(words)
            (best,) = result.hypotheses
            assert list(best.tokens) == [*words[:size], *([] if EOS in words else [EOS])]
            own = log_probs.max(1)[:size].tolist() + [0.0] * (EOS not in words)
            assert best.positional_scores == pytest.approx(own, abs=2e-4)
            assert best.score == pytest.approx(sum(own), abs=1e-3)
            two = np.sort(log_probs, 1)[:size, -2:]
            assert best.trace is not None
            assert [each.origin for each in best.trace] == ["model"] * len(best.tokens)
            margins = [each.margin for each in best.trace][:size]
            assert margins == pytest.approx((two[:, 1] - two[:, 0]).tolist(), abs=5e-4)
            cut += EOS in words[:-1]
            whole += EOS not in words
        assert not len(scorer._memories)
    assert cut > 0
    assert whole > 0


def test_other_strategies_and_other_models_are_refused() -> None:
    scorer = ParaformerReference(random_speech("paraformer"), vocabulary(9))
    requests = requests_of(random_speeches(0, (30,)))
    with pytest.raises(StrategyMismatchError, match="whose frames may be blank, this model has no blank"):
        decode(CtcGreedy(), scorer, requests)
    with pytest.raises(StrategyMismatchError, match=r"needs a FireScorer, .* ctc-beam, ctc-greedy"):
        require_protocol(ParaformerGreedy, KnowingFrames(9, {}))
    with pytest.raises(UsageError, match="cannot be made to begin with given words"):
        decode(ParaformerGreedy(), scorer, [Request(0, requests[0].source, 9, prefix=(5,))])


def test_times_of_tokens_lie_in_their_source() -> None:
    scorer = ParaformerReference(random_speech("paraformer", 3), vocabulary(9))
    (source,) = random_speeches(3, (90,))
    memory = scorer.encode([source])
    (count,) = scorer.frames(memory).tolist()
    times = cif_times(scorer.weights(memory)[0], count, 0.04)
    assert times.shape == (count, 2)
    assert (times[:, 0] <= times[:, 1]).all()
    assert (times[1:, 0] >= times[:-1, 1] - 1e-9).all()
    assert times[-1, 1] <= 22 * 0.04


# Drafting


@pytest.mark.parametrize("batch_size", [1, 3])
def test_it_drafts_for_an_autoregressive_model(batch_size: int) -> None:
    """Equal to greedy search."""
    verifier = ConformerReference(random_speech("conformer", 9), vocabulary(9))
    requests = requests_of(random_speeches(11, (61, 40, 30, 55, 18)), 12)
    wanted = [result.hypotheses for result in decode(Greedy(), verifier, requests)]
    drafted = 0
    for seed in range(3):
        drafter = ParaformerReference(random_speech("paraformer", seed), vocabulary(9))
        strategy = with_drafter(drafter)
        strategy.check_auxiliary()
        found = decode(strategy, verifier, requests, batch_size=batch_size)
        assert [[each.tokens for each in result.hypotheses] for result in found] == [
            [each.tokens for each in hypotheses] for hypotheses in wanted
        ]
        drafted += sum(result.drafted for result in found)
        assert not len(drafter._memories)
    assert drafted > 0
    assert verifier.cells_in_use == 0


class Knowing(ParaformerReference):
    """Fires that emit known words."""

    answers: Sequence[Sequence[int]] = ()

    def read_frames(self, memory: Any, want: Want) -> Any:
        scores = super().read_frames(memory, want)
        at = 0
        for count, answer in zip(self.frames(memory).tolist(), self.answers, strict=True):
            scores.best[at : at + count] = ([*answer, *[EOS] * count])[:count]
            at += count
        return scores


def test_right_fires_are_accepted() -> None:
    verifier = ConformerReference(random_speech("conformer", 9), vocabulary(9))
    requests = requests_of(random_speeches(11, (61, 90, 80)), 12)
    plain = decode(Greedy(), verifier, requests, batch_size=3)
    drafter = Knowing(random_speech("paraformer", 0, tail_threshold=0.9), vocabulary(9))
    order = sorted(requests, key=lambda request: (-len(request.source), request.index))
    drafter.answers = [plain[request.index].hypotheses[0].tokens for request in order]
    found = decode(with_drafter(drafter), verifier, requests, batch_size=3)
    assert [each.hypotheses[0].tokens for each in found] == [each.hypotheses[0].tokens for each in plain]
    assert sum(each.accepted for each in found) >= 9
    assert sum(each.passes for each in found) < sum(each.passes for each in plain) / 2


# Training

TARGETS = [[4, 5, 5, EOS], [6, EOS], [EOS]]
FRAMES = (34, 12, 16)


def small(**changes: Any) -> Any:
    return random_speech("paraformer", 2, words=8, **changes).double().requires_grad_(True)


def batch(model: Any, frames: Sequence[int] = FRAMES) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = model.encoder.frames_of(random_speeches(2, frames))
    return found


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_words_ctc_and_quantity(smoothing: float) -> None:
    """Of each utterance alone: label smoothing by its formula, CTC by enumeration, fires by a plain loop."""
    model = small(intermediate_ctc="1").eval()
    training = Training(
        label_smoothing=smoothing, ctc_weight=0.3, intermediate_weight=0.4, quantity_weight=0.5
    )
    losses = losses_of(model, *batch(model), padded(TARGETS), training=training, update=0)
    twin, total, quantity = Twin(model.requires_grad_(False)), 0.0, 0.0
    for source, target in zip(random_speeches(2, FRAMES), TARGETS, strict=True):
        log_probs = twin.scores(source, len(target))
        memory, (middle, last) = twin.encode(source.frames)
        for own, word in zip(log_probs, target, strict=True):
            total -= 0.7 * (1 - smoothing) * own[word]
            total -= 0.7 * smoothing / 7 * (own.sum() - own[word])
        outputs = [all_outputs(each, BLANK, [1, 2, 3])[tuple(target[:-1])] for each in (middle, last)]
        total -= 0.3 * (0.4 * outputs[0] + 0.6 * outputs[1])
        quantity += abs(twin.alpha(memory).sum() - len(target))
    assert losses.total.item() == pytest.approx(total + 0.5 * quantity, rel=1e-5)
    assert int(losses.tokens) == sum(map(len, TARGETS))
    assert losses.parts["quantity"].item() == pytest.approx(quantity / 7, rel=1e-6)
    assert losses.parts["shown"].item() == 0.0


def test_padding_is_nothing() -> None:
    model = small(conv_norm="layer").eval()
    training = Training(mwer_weight=0.0)
    losses = losses_of(
        model, *batch(model), F.pad(padded(TARGETS), (0, 3), value=PAD), training=training, update=0
    )
    alone = 0.0
    for source, target in zip(random_speeches(2, FRAMES), TARGETS, strict=True):
        own = model.encoder.frames_of([source])
        alone += losses_of(model, *own, torch.tensor([target]), training=training, update=0).total.item()
    assert losses.total.item() == pytest.approx(alone, rel=1e-9)


def test_gradients_are_the_slope_of_the_loss() -> None:
    """In a random direction of all weights, with negative samples; every weight has a gradient."""
    model = small(self_conditioning=True, intermediate_ctc="1").train()
    frames, lengths = batch(model)
    training = Training(mwer_weight=1.0, sampling_ratio=1.0)

    def loss() -> Tensor:
        torch.manual_seed(5)
        total: Tensor = losses_of(model, frames, lengths, padded(TARGETS), training=training, update=0).total
        return total

    assert_slope(model, loss)


class Spied:
    """What a model's decoder was given, and what it made of that, pass by pass."""

    def __init__(self, model: Any) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.with_gradient: list[bool] = []
        place, fill = model.embed_vectors, model.fill

        def embed_vectors(x: Tensor) -> Tensor:
            self.inputs.append(x.detach())
            return place(x)

        def spied_fill(*arguments: Any) -> Tensor:
            self.outputs.append(fill(*arguments))
            self.with_gradient.append(self.outputs[-1].requires_grad)
            return self.outputs[-1]

        model.embed_vectors, model.fill = embed_vectors, spied_fill


@pytest.mark.parametrize("ratio", [0.4, 0.75, 1.0])
def test_the_sampler_shows_a_share_of_what_was_wrong(ratio: float) -> None:
    model = small().train()
    spied = Spied(model)
    targets = [[4, 5, 7, 6, 5, EOS], [6, EOS], [7, 7, 4, EOS]]
    training = Training(sampling_ratio=ratio)
    frames, lengths = batch(model, (34, 20, 26))
    losses = losses_of(model, frames, lengths, padded(targets), training=training, update=0)
    assert spied.with_gradient == [False, True]
    first, second = spied.inputs
    words, shown = model.output(spied.outputs[0]).argmax(2), 0
    for row, target in enumerate(targets):
        wrong = sum(int(word) != right for word, right in zip(words[row], target, strict=False))
        changed = [i for i in range(len(target)) if not torch.equal(first[row, i], second[row, i])]
        assert len(changed) == math.floor(wrong * ratio + 1e-9)
        for i in changed:
            right = model.decoder.embedding.words.weight[target[i]] * math.sqrt(12)
            torch.testing.assert_close(second[row, i], right.detach())
        assert torch.equal(first[row, len(target) :], second[row, len(target) :])
        shown += len(changed)
    assert losses.parts["shown"].item() == pytest.approx(shown / 12)
    assert shown > 0


def test_the_second_pass_drops_what_the_first_one_does() -> None:
    """Nothing is shown here: both passes are one. Random numbers then differ from those of the next batch."""
    model = small(dropout=0.3).train()
    spied = Spied(model)
    training = Training(sampling_ratio=0.01)
    for _ in range(2):
        losses_of(model, *batch(model), padded(TARGETS), training=training, update=0)
    one, two, three, four = spied.outputs
    assert torch.equal(one, two)
    assert torch.equal(three, four)
    assert not torch.allclose(one, three)


def test_nothing_is_shown_while_validating() -> None:
    model = small().eval()
    spied = Spied(model)
    losses_of(model, *batch(model), padded(TARGETS), training=Training(), update=0)
    assert len(spied.outputs) == 1


def test_word_errors_are_those_of_the_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = small().train(), {}

    def known(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        seen.update(options, logits=logits, target=target)
        return logits.new_tensor(7.0)

    monkeypatch.setattr(paraformer, "mwer_loss", known)
    spied, totals = Spied(model), []
    for weight in (0.0, 0.25):
        torch.manual_seed(3)
        training = Training(mwer_weight=weight, mwer_samples=5, mwer_share=0.3)
        totals.append(losses_of(model, *batch(model), padded(TARGETS), training=training, update=0))
    assert totals[1].total.item() - totals[0].total.item() == pytest.approx(0.25 * 7.0)
    assert totals[1].parts["mwer"].item() == pytest.approx(1.0)
    assert torch.equal(seen["logits"], model.output(spied.outputs[-1]))
    assert seen["target"].tolist() == padded(TARGETS).tolist()
    assert {name: seen[name] for name in ("pad", "eos", "samples", "share")} == {
        "pad": PAD, "eos": EOS, "samples": 5, "share": 0.3,
    }  # fmt: skip


def spoken(words: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Frames of words: each is a tone of some length, with silence around it."""
    frames = [np.zeros((int(rng.integers(4, 9)), 8))]
    for word in words:
        tone = np.zeros((int(rng.integers(12, 17)), 8))
        tone[:, word - 4] = 2.0
        frames += [tone, np.zeros((int(rng.integers(2, 9)), 8))]
    whole = np.concatenate(frames)
    return (whole + rng.normal(0, 0.1, whole.shape)).astype(np.float32)


@lru_cache(maxsize=1)
def speaker() -> Paraformer:
    """A model that has learnt to write down tones."""
    torch.manual_seed(0)
    config = ParaformerConfig(
        tgt_vocab=12, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn=32, decoder_ffn=32,
        encoder_heads=2, decoder_heads=2, input_features=8, subsampling_channels=8, conv_kernel=5,
        conv_norm="layer", dropout=0.0, max_source_len=400, max_target_len=20,
    )  # fmt: skip
    model, rng = Paraformer(config).train(), np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for update in range(120):
        targets = [rng.integers(4, 12, rng.integers(1, 7)).tolist() for _ in range(16)]
        frames = [torch.from_numpy(spoken(words, rng)) for words in targets]
        losses = losses_of(
            model,
            torch.nn.utils.rnn.pad_sequence(frames, batch_first=True),
            torch.tensor([len(each) for each in frames]),
            padded([[*words, EOS] for words in targets]),
            training=Training(mwer_weight=0.1 if update > 80 else 0.0),
            update=update,
        )
        optimizer.zero_grad()
        (losses.total / losses.tokens).backward()
        optimizer.step()
    return model.eval()


def test_it_learns_to_write_down_tones() -> None:
    rng = np.random.default_rng(1)
    words = [rng.integers(4, 12, rng.integers(1, 7)).tolist() for _ in range(40)]
    sources = [FeatureSource(spoken(each, rng), 10.0) for each in words]
    scorer = ParaformerReference(speaker(), vocabulary(12))
    found = decode(ParaformerGreedy(), scorer, requests_of(sources), batch_size=8)
    right = sum(
        result.hypotheses[0].tokens == (*each, EOS) for result, each in zip(found, words, strict=True)
    )
    assert right >= 36


def test_its_times_are_those_of_the_tones() -> None:
    """The middle of each token lies within its tone, give or take two positions."""
    rng, scorer, inside, total = (
        np.random.default_rng(2),
        ParaformerReference(speaker(), vocabulary(12)),
        0,
        0,
    )
    for _ in range(10):
        words = [4, 7, 5, 9]
        source = FeatureSource(spoken(words, rng), 10.0)
        memory = scorer.encode([source])
        (count,) = scorer.frames(memory).tolist()
        times = cif_times(scorer.weights(memory)[0], count, 0.04, margin=0.1)
        loud = source.frames.argmax(1), source.frames.max(1) > 1.0
        for word, (begin, end) in zip(words, times.tolist(), strict=False):
            at = np.flatnonzero((loud[0] == word - 4) & loud[1]) * 0.01
            inside += at[0] - 0.08 <= (begin + end) / 2 <= at[-1] + 0.08
            total += 1
    assert inside / total > 0.9


def test_a_folder_loads_and_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    model, vocab = random_speech("paraformer", 9), vocabulary(9)
    save_checkpoint(
        tmp_path / "model",
        architecture="paraformer",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=None,
        target_vocab=vocab,
        card="# Random\n",
        input={"name": "audio", "features": "stored", "bins": 16},
    )
    sources = random_speeches(9, LENGTHS)
    np.savez(tmp_path / "all.npz", **{f"u{i}": source.frames for i, source in enumerate(sources)})
    lines = [f"{tmp_path}/all.npz#u{i}" for i in range(len(sources))]
    loaded, scorer = nartk.load(tmp_path / "model"), ParaformerReference(model, vocab)
    for options in ({}, {"hotwords": "w3 w4 / w2", "hotword_weight": 1.5}):
        found = loaded.decode(lines, strategy="paraformer", **options)
        wanted = decode(ParaformerGreedy(**options), scorer, requests_of(sources, 99))
        assert [each.tokens for each in found] == [each.hypotheses[0].tokens for each in wanted]
    with pytest.raises(StrategyMismatchError, match=r"'greedy' needs a PassScorer.*paraformer"):
        loaded.decode(lines, strategy="greedy")
