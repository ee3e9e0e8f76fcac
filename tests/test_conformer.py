"""The Conformer and the E-Branchformer: against NumPy, transformers and plain loops; serving; decoding."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.labellings import all_outputs
from support.losses import losses_of
from support.random_transformers import vocabulary
from support.scorers import ConformerReference, OwsmCtcReference
from support.scripted import decode
from support.speech_models import EncoderTwin, assert_slope, random_settings, random_speech, random_speeches
from support.transformers_small import padded
from torch import Tensor

import nartk
from nartk.architectures.conformer import ConformerConfig
from nartk.architectures.positions import interleaved_sinusoids
from nartk.checkpoints.saving import save_checkpoint
from nartk.decoders.beam import BeamStrategy
from nartk.decoders.ctc_beam import CtcBeam
from nartk.decoders.ctc_greedy import CtcGreedy
from nartk.decoders.gad import GeneralizedAggressive
from nartk.decoders.greedy import Greedy
from nartk.errors import PassError, SourceMismatchError, UsageError
from nartk.models.losses import Training
from nartk.models.parts import BatchNormModule, DepthwiseModule, train_batch_norm
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import FeatureSource, PassScorer, TextSource, Want
from nartk.vocab import MASK as BLANK

PAD, EOS = 1, 2
LENGTHS = (61, 7, 30, 18)


def requests_of(sources: Sequence[FeatureSource], longest: int = 12) -> list[Request]:
    return [Request(index, source, longest) for index, source in enumerate(sources)]


# The encoder


@pytest.mark.parametrize("seed", range(8))
def test_the_encoder_equals_a_numpy_twin(seed: int, device: torch.device) -> None:
    rng = random.Random(seed)
    model = random_speech("conformer", seed, subsampling=4 if seed % 4 else 8, **random_settings(rng))
    sources = random_speeches(seed, [length for length in LENGTHS if length >= model.config.least_frames])
    found = model.to(device).encoder(*model.encoder.frames_of(sources))
    twin = EncoderTwin(model.cpu())
    for row, source in enumerate(sources):
        memory, heads = twin.encode(source.frames)
        kept = found.kept[row].cpu()
        assert int(kept.sum()) == len(memory) == model.config.encoded_length(len(source.frames))
        np.testing.assert_allclose(found.memory[row].cpu()[kept], memory, atol=3e-5)
        logits = [*found.intermediate, model.to(device).encoder.ctc(found.memory)]
        assert len(logits) == len(heads)
        for mine, theirs in zip(logits, heads, strict=True):
            log_probs = mine[row].cpu()[kept].log_softmax(-1)
            np.testing.assert_allclose(log_probs, theirs, atol=1e-4)
        model.cpu()


def test_the_direction_of_a_distance_matters() -> None:
    model = random_speech("conformer", 3)
    (source,) = random_speeches(3, [40])
    found = model.encoder(*model.encoder.frames_of([source])).memory[0]
    right, wrong = (EncoderTwin(model, far).encode(source.frames)[0] for far in (1, -1))
    assert np.abs(found.numpy() - right).max() < 3e-5
    assert np.abs(found.numpy() - wrong).max() > 0.1


def test_a_block_equals_that_of_transformers() -> None:
    """Wav2Vec2-Conformer's, a port of ESPnet's with relative positions."""
    hf = pytest.importorskip("transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer")
    config = hf.Wav2Vec2ConformerConfig(
        hidden_size=12,
        num_attention_heads=2,
        intermediate_size=20,
        hidden_act="swish",
        conv_depthwise_kernel_size=5,
        position_embeddings_type="relative",
        attention_dropout=0.0,
        activation_dropout=0.0,
        hidden_dropout=0.0,
        conformer_conv_dropout=0.0,
        attn_implementation="eager",
    )
    theirs = hf.Wav2Vec2ConformerEncoderLayer(config).eval()
    ours = random_speech("conformer", 1).encoder.layers[0]
    for name in ("conv.up", "conv.depthwise", "conv.down"):  # which have no biases there
        ours.get_submodule(name).bias.zero_()
    w = dict(ours.state_dict())
    q, k, v = w["self_attention.qkv.weight"].chunk(3)
    biases = w["self_attention.qkv.bias"].chunk(3)
    names = {"self_attn_layer_norm": "self_norm", "final_layer_norm": "final_norm"}
    names |= {"conv_module.layer_norm": "conv_norm", "conv_module.batch_norm": "conv.norm"}
    names |= {
        "self_attn.linear_out": "self_attention.out",
        "self_attn.linear_pos": "self_attention.positions",
    }
    for half in ("ffn1", "ffn2"):
        names |= {f"{half}_layer_norm": f"{half}_norm", f"{half}.intermediate_dense": f"{half}.up"}
        names[f"{half}.output_dense"] = f"{half}.down"
    state = {
        f"{to}.{part}": w[f"{name}.{part}"]
        for to, name in names.items()
        for part in ("weight", "bias", "running_mean", "running_var")
        if f"{name}.{part}" in w
    }
    for letter, matrix, bias in zip("qkv", (q, k, v), biases, strict=True):
        state |= {f"self_attn.linear_{letter}.weight": matrix, f"self_attn.linear_{letter}.bias": bias}
    state |= {f"self_attn.pos_bias_{letter}": w[f"self_attention.bias_{letter}"] for letter in "uv"}
    state |= {f"conv_module.pointwise_conv{i}.weight": w[f"conv.{name}.weight"][:, :, None] for i, name in
              ((1, "up"), (2, "down"))}  # fmt: skip
    state["conv_module.depthwise_conv.weight"] = w["conv.depthwise.weight"]
    state["conv_module.batch_norm.num_batches_tracked"] = torch.tensor(0)
    theirs.load_state_dict(state)
    x = torch.randn(2, 17, 12)
    distances = hf.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    with torch.no_grad():
        wanted = theirs(x, relative_position_embeddings=distances)
    table = torch.from_numpy(interleaved_sinusoids(range(16, -17, -1), 12))
    torch.testing.assert_close(table, distances[0], atol=2e-6, rtol=0)
    kept = torch.ones(2, 17, dtype=torch.bool)
    torch.testing.assert_close(ours(x, kept, table), wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("block", ["conformer", "e-branchformer"])
def test_padding_changes_nothing(block: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_speech("conformer", 5, encoder_block=block).to(device)
    sources = random_speeches(5, LENGTHS)
    frames, lengths = model.encoder.frames_of(sources)
    for row, length in zip(frames, lengths, strict=True):
        row[length:] = 1e3  # as what lies behind an utterance in memory may be

    def worst() -> float:
        found = model.encoder(frames, lengths)
        alone = [model.encoder(*model.encoder.frames_of([source])).memory[0] for source in sources]
        rows = zip(found.memory, found.kept, alone, strict=True)
        return max(float((row[kept] - own).abs().max()) for row, kept, own in rows)

    assert worst() < 2e-5
    unmasked = DepthwiseModule.forward

    def careless(self: Any, x: Tensor, kept: Tensor) -> Tensor:
        return unmasked(self, x, torch.ones_like(kept))

    monkeypatch.setattr(DepthwiseModule, "forward", careless)
    assert worst() > 1e-2


@pytest.mark.parametrize(("first", "momentum"), [(0, None), (99, 0.01), (5000, 0.01)])
def test_batch_norm_counts_what_is_kept(first: int, momentum: float | None) -> None:
    """Against torch's over the positions that count, in a row: a mean (None) at first, then 1 %."""
    torch.manual_seed(0)
    mine, theirs = BatchNormModule(6, 1e-4), torch.nn.BatchNorm1d(6, 1e-4, momentum)
    kept = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    for update in range(first, first + 3):
        train_batch_norm(mine, update, -1)
        x = torch.randn(3, 9, 6) * 3 + 1
        torch.testing.assert_close(mine(x, kept)[kept], theirs(x[kept]))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(mine, name), getattr(theirs, name))
    mine.eval(), theirs.eval()
    torch.testing.assert_close(mine(x, kept)[kept], theirs(x[kept]))


def test_batch_norm_that_is_fixed_trains_as_it_evaluates() -> None:
    """Outputs and gradients are then those of torch's in evaluation."""
    torch.manual_seed(0)
    mine, theirs = BatchNormModule(6, 1e-4).double(), torch.nn.BatchNorm1d(6, 1e-4, None).double()
    kept = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    for update in range(5):
        train_batch_norm(mine, update, 3)
        assert mine.training
        assert mine.fixed == (update >= 3)
        theirs.train(update < 3)
        x = torch.randn(3, 9, 6, dtype=torch.float64) * (1 + update)
        ours, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, wanted = mine(ours, kept)[kept], theirs(other[kept])
        torch.testing.assert_close(found, wanted)
        found.pow(3).sum().backward(), wanted.pow(3).sum().backward()
        torch.testing.assert_close(ours.grad, other.grad)
        torch.testing.assert_close(mine.weight.grad, theirs.weight.grad, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(mine.running_mean, theirs.running_mean)


def test_what_cannot_be_read_is_refused() -> None:
    encoder = random_speech("conformer").encoder
    good, short, long = random_speeches(0, [20, 6, 201])
    with pytest.raises(PassError, match="source 1 has 6 frames, not between 7 and 200"):
        encoder.read([good, short])
    with pytest.raises(PassError, match="source 0 has 201 frames, not between 7 and 200"):
        encoder.read([long])
    with pytest.raises(SourceMismatchError, match="source 0 is text of 2 tokens"):
        encoder.read([TextSource((4, EOS))])
    with pytest.raises(PassError, match="source 0 has words beside its frames, which the model does not"):
        encoder.read([FeatureSource(good.frames, 10.0, words=(4,))])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("subsampling", 6),
        ("input_features", 6),
        ("max_source_len", 6),
        ("conv_kernel", 4),
        ("merge_kernel", 2),
        ("cgmlp_features", 3),
        ("intermediate_ctc", "2,1"),
        ("intermediate_ctc", "6"),
        ("intermediate_ctc", "a"),
        ("bias", False),
        ("self_conditioning", True),
    ],
)
def test_settings_have_bounds(setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"`{setting}`"):
        ConformerConfig(**{setting: value})


# Training

TARGETS = [[4, 5, 5, EOS], [6, EOS], [7, 4, EOS]]


def small(**changes: Any) -> Any:
    return random_speech("conformer", 2, words=8, **changes).double().requires_grad_(True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_attention_and_ctc(smoothing: float) -> None:
    """Cross-entropy of torch along the decoder, and the sum over all labellings by enumeration."""
    model = small(intermediate_ctc="1", self_conditioning=True)
    sources = random_speeches(2, (22, 7, 16))
    frames, lengths = model.encoder.frames_of(sources)
    training = Training(label_smoothing=smoothing, ctc_weight=0.3, intermediate_weight=0.4)
    losses = losses_of(model, frames, lengths, padded(TARGETS), training=training, update=0)
    attention = ctc = 0.0
    twin = EncoderTwin(model.requires_grad_(False))
    for source, target in zip(sources, TARGETS, strict=True):
        previous = torch.tensor([[EOS, *target[:-1]]])
        logits = model(*model.encoder.frames_of([source]), previous)[0]
        # fairseq's smoothing spreads its mass over the other words alone.
        attention += F.cross_entropy(
            logits, torch.tensor(target), reduction="sum", label_smoothing=smoothing * 8 / 7
        ).item()
        middle, last = (all_outputs(head, BLANK, [1, 2, 3])[tuple(target[:-1])] for head in
                        twin.encode(source.frames)[1])  # fmt: skip
        ctc -= 0.6 * last + 0.4 * middle
    assert losses.total.item() == pytest.approx(0.7 * attention + 0.3 * ctc, rel=1e-6)
    assert int(losses.tokens) == 9
    assert losses.parts["ctc"].item() == pytest.approx(ctc / 9, rel=1e-6)


def test_targets_that_need_more_positions_count_for_attention_alone() -> None:
    model = small()
    frames, lengths = model.encoder.frames_of(random_speeches(1, [7]))  # one position
    training = Training(ctc_weight=1.0)
    losses = losses_of(model, frames, lengths, torch.tensor([[4, 5, EOS]]), training=training, update=0)
    losses.total.backward()
    assert (losses.total.item(), int(losses.parts["dropped"])) == (0.0, 1)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_gradients_are_the_slope_of_the_loss() -> None:
    """In a random direction of all weights, padding and all."""
    for seed, block in enumerate(("conformer", "e-branchformer")):
        model = small(encoder_block=block, intermediate_ctc="1", self_conditioning=True).train()
        frames, lengths = model.encoder.frames_of(random_speeches(seed, (22, 9, 16)))

        def loss(model: Any = model, frames: Tensor = frames, lengths: Tensor = lengths) -> Tensor:
            total: Tensor = losses_of(
                model, frames, lengths, padded(TARGETS), training=Training(), update=0
            ).total
            return total

        assert_slope(model, loss)


# Serving


@pytest.fixture(scope="module")
def served() -> ConformerReference:
    return ConformerReference(random_speech("conformer", 9), vocabulary(9))


def test_it_speaks_both_protocols(served: ConformerReference) -> None:
    assert isinstance(served, PassScorer)
    assert isinstance(served, FrameScorer)


def test_greedy_search_is_that_of_whole_passes(served: ConformerReference) -> None:
    """Word by word, each time from the network over the whole target."""
    model = random_speech("conformer", 9)
    sources = random_speeches(9, LENGTHS)
    outputs = set()
    for result, source in zip(decode(Greedy(), served, requests_of(sources)), sources, strict=True):
        words, total = [EOS], 0.0
        while len(words) <= 12 and (len(words) == 1 or words[-1] != EOS):
            log_probs = model(*model.encoder.frames_of([source]), torch.tensor([words]))[0, -1].log_softmax(
                -1
            )
            words.append(int(log_probs.argmax()))
            total += float(log_probs.max())
        (best,) = result.hypotheses
        assert list(best.tokens) == words[1:]
        assert best.score == pytest.approx(total, abs=1e-3)
        outputs.add(best.tokens)
    assert len(outputs) > 2
    assert served.cells_in_use == 0


def test_frames_are_those_of_the_encoder(served: ConformerReference) -> None:
    model = random_speech("conformer", 9)
    sources = random_speeches(9, LENGTHS)
    memory = served.encode(sources)
    counts = served.frames(memory)
    assert counts.tolist() == [((n - 1) // 2 - 1) // 2 for n in LENGTHS]
    logits = served.read_frames(memory, Want()).rows(range(counts.sum()))
    wanted = [EncoderTwin(model).encode(source.frames)[1][-1] for source in sources]
    found = torch.from_numpy(logits).log_softmax(1)
    np.testing.assert_allclose(found, np.concatenate(wanted), atol=1e-4)
    served.free(memory[:2])
    assert served.frames(memory[2:]).tolist() == counts[2:].tolist()
    for call in (served.frames, lambda handles: served.read_frames(handles, Want())):
        with pytest.raises(PassError, match=f"memory {memory[0]} is not open"):
            call(memory[:1])
    served.free(memory[2:])
    assert not len(served._memories)


def test_ctc_decodes_its_frames(served: ConformerReference) -> None:
    sources = random_speeches(8, LENGTHS)
    twin = EncoderTwin(random_speech("conformer", 9))
    for result, source in zip(decode(CtcGreedy(), served, requests_of(sources, 99)), sources, strict=True):
        heads = twin.encode(source.frames)[1][-1]
        heads[:, [PAD, EOS]] = -math.inf  # which are no words
        labels = [label for label, _ in itertools.groupby(heads.argmax(1).tolist()) if label != BLANK]
        assert list(result.hypotheses[0].tokens) == [*labels, EOS]
    (best,) = decode(CtcBeam(beam_size=64), served, requests_of(random_speeches(8, [22])))
    outputs = all_outputs(twin.encode(random_speeches(8, [22])[0].frames)[1][-1], BLANK, [PAD, EOS])
    likeliest = max(outputs, key=lambda words: outputs[words])
    assert best.hypotheses[0].tokens == (*likeliest, EOS)
    assert best.hypotheses[0].score == pytest.approx(outputs[likeliest], abs=1e-3)


def test_beam_search_finds_at_least_what_greedy_search_does(served: ConformerReference) -> None:
    requests = requests_of(random_speeches(9, LENGTHS))
    for wide, narrow in zip(
        decode(BeamStrategy(beam_size=8, length_penalty=0.0), served, requests),
        decode(Greedy(), served, requests),
        strict=True,
    ):
        assert wide.hypotheses[0].score >= narrow.hypotheses[0].score - 1e-4


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_ctc_model_drafts_for_an_autoregressive_one(served: ConformerReference, batch_size: int) -> None:
    """Equal to greedy search, with a drafter that is often right and with one that never is."""
    requests = requests_of(random_speeches(11, (61, 40, 30, 55, 18)))
    wanted = decode(Greedy(), served, requests)
    for seed in range(3):
        drafter = OwsmCtcReference(random_speech("owsm_ctc", seed), vocabulary(9))
        strategy = GeneralizedAggressive(auxiliary={"drafter": drafter})
        strategy.check_auxiliary()
        found = decode(strategy, served, requests, batch_size=batch_size)
        assert [r.hypotheses[0].tokens for r in found] == [r.hypotheses[0].tokens for r in wanted]
        assert sum(r.drafted for r in found) > 0
    assert served.cells_in_use == 0


def test_a_folder_loads_and_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    model = random_speech("conformer", 9)
    vocab = vocabulary(9)
    save_checkpoint(
        tmp_path / "model",
        architecture="conformer",
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
    loaded = nartk.load(tmp_path / "model")
    scorer = ConformerReference(Transformer(model.config), vocab)
    scorer.model.load_state_dict(model.state_dict())
    for name, strategy in (("greedy", Greedy()), ("ctc-greedy", CtcGreedy())):
        found = loaded.decode(lines, strategy=name, max_len=12)
        wanted = decode(strategy, scorer, requests_of(sources))
        assert [hypothesis.tokens for hypothesis in found] == [r.hypotheses[0].tokens for r in wanted]
