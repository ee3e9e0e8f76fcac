"""The engine's models of speech: against their networks in fp64, in any company, in int8; what is refused.

Symbols: B sources, T frames, F features of a frame, S positions of the encoder, N tokens, V words.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.engine import ISAS
from support.random_transformers import vocabulary
from support.scorers import ParaformerReference
from support.speech_models import EncoderTwin, random_settings, random_speech, random_speeches
from torch import Tensor, nn
from torch.nn import functional

from nartk import engine
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import WEIGHTS
from nartk.checkpoints.quantized import restored
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.convert import main as convert
from nartk.errors import PassError, SourceMismatchError
from nartk.models.cif import count_fires
from nartk.models.layers import Attention
from nartk.models.speech_encoder import RelativeAttention, _by_key
from nartk.protocols.fires import Integrator
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import CopiesSource, FeatureSource, FloatArray, Pass, PassScorer, TextSource, Want
from nartk.vocab import MASK

KINDS = ("conformer", "owsm_ctc", "paraformer", "whisper")
CLOSE = 1e-4  # nats between engine and network in fp32
WORDS = 23
LENGTHS = (15, 16, 61, 250, 620)  # frames: one position, and more than a tile or a block of queries has


def random_network(kind: str, seed: int, **fixed: Any) -> Any:
    """A network of a random shape, in evaluation, whose sizes fill no vector of the engine."""
    rng = random.Random(f"{kind} {seed}")
    heads = rng.choice([1, 2, 3])
    settings: dict[str, Any] = {
        "d_model": heads * 2 * rng.choice([3, 5, 8, 11]),
        "encoder_heads": heads,
        "decoder_heads": heads,
        "encoder_ffn": rng.choice([17, 40]),
        "decoder_ffn": rng.choice([18, 33]),
        "max_source_len": 640,
    }
    if kind == "whisper":
        settings |= {"tgt_vocab": WORDS, "encoder_layers": 2, "decoder_layers": 2, "max_target_len": 24}
        settings |= {"input_features": rng.choice([5, 16]), "activation": rng.choice(["gelu", "relu"])}
        settings["max_source_len"] = 639  # an odd number, of which positions are rounded up
        torch.manual_seed(seed)
        found = architecture(kind)
        network = found.network(found.config(**settings | fixed)).eval().requires_grad_(False)
        for name, weight in network.named_parameters():
            weight.normal_(1.0 if "norm.weight" in name else 0.0, 0.3 if weight.dim() == 1 else 0.5)
        return network
    settings |= random_settings(rng) | {
        "input_features": rng.choice([16, 19]),
        "subsampling": rng.choice([4, 4, 8]),
        "subsampling_channels": rng.choice([3, 32, 35]),
        "conv_kernel": rng.choice([1, 5, 31]),
        "merge_kernel": rng.choice([1, 3, 31]),
        "cgmlp_features": rng.choice([16, 34]),
    }
    if kind == "owsm_ctc":
        settings |= {"words_in_front": rng.random() < 0.7, "prompt_layers": rng.choice([0, 1, 2])}
        settings |= {"prompt_every": rng.choice([1, 2])}
    if kind == "paraformer":
        settings["decoder_positions"] = rng.choice(["sinusoidal", "learned", "none"])
        settings["max_target_len"] = 90  # fires
        settings["scale_attention"] = True  # else fp32's own rounding of what fires is magnified
    return random_speech(kind, seed, words=WORDS, **settings | fixed)


def engine_of(network: Any, type: str = "fp32", threads: int = 1, arrays: Any = None) -> Any:
    (found,) = (each for each in map(architecture, KINDS) if each.config is network.config.__class__)
    if arrays is None:
        arrays = {key: weight.numpy() for key, weight in network.state_dict().items()}
    made = found.engine(network.config, arrays, vocabulary(WORDS), type=type, threads=threads)
    for protocol in found.protocols:
        assert isinstance(made, protocol)
    assert not isinstance(made, CopiesSource)
    return made


def sources_of(network: Any, seed: int, lengths: Sequence[int] = LENGTHS) -> list[FeatureSource]:
    """Sources of so many frames, with as many words beside them as the model reads."""
    rng, config = random.Random(seed), network.config
    made = []
    for source in random_speeches(seed, lengths, config.input_features):
        words, prompt = (
            tuple(rng.randrange(4, WORDS) for _ in range(rng.choice([0, 1, 3]) if read else 0))
            for read in (getattr(config, "words_in_front", False), getattr(config, "prompt_layers", 0))
        )
        made.append(FeatureSource(source.frames, source.shift, words, prompt))
    return made


def in_fp64(network: Any) -> Any:
    return copy.deepcopy(network).double()


def encoded(network: Any, source: FeatureSource) -> Tensor:
    """What a network makes of one source alone, [1,S,d], without padding."""
    encoded = network.encoder.read([source])
    memory, kept = encoded.memory, encoded.kept
    assert kept.all()
    return memory


def frame_log_probs(network: Any, source: FeatureSource) -> FloatArray:
    """Of a source's frames, [N,V], by the network alone."""
    memory = encoded(network, source)
    kept = torch.ones(memory.shape[:2], dtype=torch.bool)
    if not hasattr(network, "fires"):
        return network.encoder.ctc(memory)[0].log_softmax(-1).numpy()
    fired, counts, _ = network.fires(memory, kept)
    assert counts.tolist() == [fired.shape[1]]
    every = torch.ones(fired.shape[:2], dtype=torch.bool)
    hidden = network.fill(network.embed_vectors(fired), every, memory, kept[:, None, None])
    return network.output(hidden)[0].log_softmax(-1).numpy()


def read_log_probs(found: Any) -> FloatArray:
    count = len(found.best)
    return torch.from_numpy(found.rows(range(count))).double().log_softmax(-1).numpy()


def rounded_anew(frames: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Frames [T,F], each number moved by one rounding of fp32 at most."""
    return (frames * (1 + 2.0**-23 * rng.uniform(-1, 1, frames.shape))).astype(np.float32)


# What it computes


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "whisper"])
@pytest.mark.parametrize("seed", range(8))
def test_frames_are_those_of_the_network(kind: str, seed: int) -> None:
    network = random_network(kind, seed)
    scorer, exact = engine_of(network, threads=1 + seed % 2), in_fp64(network)
    assert scorer.blank == (None if kind == "paraformer" else MASK)
    sources = sources_of(network, seed)
    wanted = [frame_log_probs(exact, source) for source in sources]
    memory = scorer.encode(sources)
    assert scorer.frames(memory).tolist() == [len(each) for each in wanted]
    flat = np.concatenate(wanted)
    found = scorer.read_frames(memory, Want(hidden=True))
    # What fp32 rounds of weights moves fires, which the decoder may magnify: so does the network in fp32, the
    # more or less as its input rounds.
    rng, own = np.random.default_rng(seed), 0.0
    for _ in range(4):
        moved = [replace(source, frames=rounded_anew(source.frames, rng)) for source in sources]
        theirs = np.concatenate([frame_log_probs(network, source) for source in moved])
        own = max(own, float(np.abs(theirs - flat).max()))
    close = max(CLOSE, 4 * own)
    assert close < 20 * CLOSE
    np.testing.assert_allclose(read_log_probs(found), flat, rtol=0, atol=close)
    np.testing.assert_allclose(found.log_probs, flat.max(1), rtol=0, atol=close)
    assert flat.std() > 0.3  # that what is compared says something
    only = np.arange(0, len(flat), 3, dtype=np.int32)
    some = scorer.read_frames(memory, Want(only=only, hidden=True))
    np.testing.assert_array_equal(some.hidden, found.hidden[only])
    scorer.free(memory)
    assert scorer.memories_in_use == 0


@pytest.mark.parametrize("block", ["conformer", "e-branchformer"])
def test_an_encoder_is_that_of_the_papers(block: str) -> None:
    """In plain NumPy; a twin whose distances have the wrong sign is far away."""
    network = random_speech("conformer", 5, words=WORDS, encoder_block=block)
    scorer = engine_of(network)
    (source,) = random_speeches(5, (90,))
    found = read_log_probs(scorer.read_frames(scorer.encode([source]), Want()))
    for far, near in ((1, True), (-1, False)):
        _, (*_, wanted) = EncoderTwin(network, far).encode(source.frames)
        assert (np.abs(found - wanted).max() < CLOSE) == near


def pass_over(tokens: Sequence[int], memory: int, context: int) -> Pass:
    count = len(tokens)
    columns = (tokens, range(count), [memory] * count, [context] * count, range(-1, count - 1))
    return Pass(*(np.array(list(column), np.int32) for column in columns))


@pytest.mark.parametrize("kind", ["conformer", "whisper"])
@pytest.mark.parametrize("seed", range(8))
def test_passes_are_those_of_the_network(kind: str, seed: int) -> None:
    network = random_network(kind, seed)
    scorer, exact, rng = engine_of(network, threads=1 + seed % 2), in_fp64(network), random.Random(seed)
    assert isinstance(scorer, PassScorer)
    sources = sources_of(network, seed, (*LENGTHS, 639))
    memory, contexts = scorer.encode(sources), scorer.open(len(sources))
    for source, handle, context in zip(sources, memory, contexts, strict=True):
        tokens = [scorer.start_token, *(rng.randrange(4, WORDS) for _ in range(rng.randint(0, 9)))]
        frames = torch.from_numpy(source.frames)[None].double()
        logits = exact(frames, torch.tensor([len(source)]), torch.tensor([tokens]))
        wanted = logits[0].log_softmax(-1).numpy()
        found = scorer.run(pass_over(tokens, handle, context), Want())
        np.testing.assert_allclose(read_log_probs(found), wanted, rtol=0, atol=CLOSE)
    scorer.close(contexts)
    assert scorer.cells_in_use == 0


@pytest.mark.parametrize("predictor", ["convolution", "depthwise"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_fire_as_those_of_the_network(seed: int, predictor: str) -> None:
    network = random_network("paraformer", seed, predictor=predictor)
    scorer, exact = engine_of(network), in_fp64(network)
    sources = sources_of(network, seed)
    memory = scorer.encode(sources)
    tail = network.config.tail_threshold
    for source, weights, count in zip(sources, scorer.weights(memory), scorer.frames(memory), strict=True):
        states = encoded(exact, source)
        _, _, alpha = exact.fires(states, torch.ones(states.shape[:2], dtype=torch.bool))
        np.testing.assert_allclose(weights, alpha[0].numpy(), rtol=0, atol=2e-5)
        fires = int(count_fires(torch.from_numpy(weights)[None], tail_threshold=tail))
        assert count == min(max(1, fires), network.config.target_positions)


@pytest.mark.parametrize("seed", range(4))
def test_fires_that_are_given_are_read_as_the_network_reads_them(seed: int) -> None:
    """Given its own, both read what they read anyway; given others, the engine what the reference does."""
    network = random_network("paraformer", seed)
    scorers = engine_of(network), ParaformerReference(network, vocabulary(network.config.tgt_vocab))
    sources, rng, want = sources_of(network, seed), np.random.default_rng(seed), Want()
    memories = [scorer.encode(sources) for scorer in scorers]
    sizes = rng.integers(1, network.config.target_positions + 1, len(sources))
    fires = [rng.normal(size=(n, network.config.d_model)).astype(np.float32) for n in sizes]
    found = [scorer.read_fires(m, fires, want) for scorer, m in zip(scorers, memories, strict=True)]
    logits = [each.rows(range(sizes.sum())).copy() for each in found]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-3)  # both are fp32
    for scorer, memory in zip(scorers, memories, strict=True):
        own = []
        for encoded, weights, count in zip(
            scorer.encoded(memory), scorer.weights(memory), scorer.frames(memory), strict=True
        ):
            sums = Integrator()
            tokens, _ = sums.accept(encoded, weights)
            own.append(np.concatenate([tokens, sums.rest(scorer.tail)])[:count])
        wanted = scorer.read_frames(memory, want)
        total = int(scorer.frames(memory).sum())
        rows = wanted.rows(range(total)).copy()
        np.testing.assert_allclose(
            scorer.read_fires(memory, own, want).rows(range(total)), rows, rtol=0, atol=1e-3
        )


# In any company


def everything(scorer: Any, sources: Sequence[FeatureSource]) -> list[tuple[bytes, ...]]:
    """All numbers of each source, bit for bit."""
    memory = scorer.encode(sources)
    parts = [[scorer._engine.output(int(handle)).tobytes()] for handle in memory]
    if isinstance(scorer, PassScorer):
        for part, handle in zip(parts, memory, strict=True):
            (context,) = scorer.open(1)
            found = scorer.run(pass_over([scorer.start_token, 5, 7], handle, context), Want(hidden=True))
            part += [found.hidden.tobytes(), found.rows([0, 1, 2]).tobytes()]
            scorer.commit(found, ())
            scorer.close([context])
    if isinstance(scorer, FrameScorer):
        counts = scorer.frames(memory)
        found = scorer.read_frames(memory, Want(hidden=True))
        for values in (found.best, found.log_probs, found.hidden, found.rows(range(counts.sum()))):
            for part, each in zip(parts, np.split(values, np.cumsum(counts)[:-1]), strict=True):
                part.append(each.tobytes())
    scorer.free(memory)
    return [tuple(part) for part in parts]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type", engine.TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_the_same_in_any_company(
    kind: str, type: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in a batch, in another order, with two threads, and after a longer one."""
    monkeypatch.setenv(engine.FORCED_ISA, isa)
    for seed in range(2):
        network = random_network(kind, seed)
        sources = sources_of(network, seed, (15, 40, 240, 33, 300))
        one, two = (engine_of(network, type, threads) for threads in (1, 2))
        alone = [everything(one, [source])[0] for source in sources]
        order = random.Random(seed).sample(range(5), 5)
        for scorer in (one, two):
            assert everything(scorer, sources) == alone
            assert everything(scorer, [sources[i] for i in order]) == [alone[i] for i in order]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "frames"), [("whisper", 1300), ("conformer", 2600)])
def test_a_long_source_is_the_same_in_any_company_in_int8(
    kind: str, frames: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of more positions than an integer sum has: alone, beside a short one, with two threads."""
    monkeypatch.setenv(engine.FORCED_ISA, isa)
    network = random_network(kind, 0, max_source_len=frames)
    long, short = sources_of(network, 0, (frames, 40))
    assert network.encoder.read([long]).kept.shape[1] > 512
    one, two = (engine_of(network, "int8", threads) for threads in (1, 2))
    alone = [everything(one, [source])[0] for source in (long, short)]
    for scorer in (one, two):
        assert everything(scorer, [long, short]) == alone
        assert everything(scorer, [short, long]) == alone[::-1]


# int8 and bf16


def to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def to_int8(x: Tensor, largest: int = 127) -> Tensor:
    """Rows as whole numbers of at most `largest` times a scale each."""
    most = x.abs().amax(-1, keepdim=True)
    return (x * torch.where(most > 0, largest / most, most)).round() * (most / largest)


def to_steps(x: Tensor) -> Tensor:
    """Rows as whole numbers of steps, 254 from the least number to the largest, or to 0."""
    step = (x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)) / 254
    return (x * torch.where(step > 0, 1 / step, step)).round() * step


to_int16 = partial(to_int8, largest=2047)


def int16_attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """`nartk.models.transformer.Attention.attend` where all factors are whole numbers."""
    scores = to_int16(q) @ to_int16(k).transpose(-1, -2) * module.scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = ((scores - scores.amax(-1, keepdim=True)).exp() * 2047).round()
    columns = torch.cat([to_int16(part) for part in v.transpose(-1, -2).split(512, -1)], -1)
    y = weights @ columns.transpose(-1, -2) / weights.sum(-1, keepdim=True)
    return module.out(y.transpose(1, 2).flatten(2))


def int16_relative_attention(module: Any, x: Tensor, kept: Tensor, distances: Tensor) -> Tensor:
    """`RelativeAttention.forward`, its scores by distance too."""
    q, k, v = module.split(module.qkv(x), 3)
    r = module.positions(distances).unflatten(1, (module.heads, -1)).transpose(0, 1)
    by_distance = to_int16(q + module.bias_v[:, None]) @ to_int16(r).transpose(1, 2)
    scores = _by_key(by_distance) * module.scale
    return module.attend(q + module.bias_u[:, None], k, v, scores.masked_fill(~kept, -torch.inf))


def fp16_attention(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    return attend(q, k.half().float(), v.half().float(), mask)


def round_attention(twin: Any) -> None:
    """Of positions of sound to one another in int16; to what another part has encoded, over fp16."""
    modules: list[tuple[str, Any]] = list(twin.named_modules())
    for name, module in modules:
        if isinstance(module, Attention) and hasattr(module, "kv"):
            module.attend = partial(fp16_attention, module.attend)
        elif name.endswith("self_attention") and "decoder" not in name and "prompt" not in name:
            module.attend = partial(int16_attention, module)
            if isinstance(module, RelativeAttention) and module.positions is not None:
                _replace(module, partial(int16_relative_attention, module))


Rounded: TypeAlias = Callable[[Tensor], Tensor]
ROUND: dict[str, tuple[Rounded, Rounded]] = {"bf16": (to_bf16, to_bf16), "int8": (to_int8, to_steps)}


def rounded_twin(network: Any, rounded: Rounded, read: Rounded) -> Any:
    """The network with weights of layers and vectors of words rounded, and what layers read by `read`.

    Convolutions over all channels are layers over patches. What reads frames, distances and fires stays.
    """
    twin = copy.deepcopy(network)
    modules: list[tuple[str, Any]] = list(twin.named_modules())
    for name, module in modules:
        if name.endswith((".positions", "conv.0")) or name.startswith("cif") or "depthwise" in name:
            continue
        if isinstance(module, nn.Linear):
            scale = twin.encoder.scale if name.endswith("subsample.out") else 1.0  # a part of the weights
            _replace(module, _rounded_linear(module, rounded, read, scale))
        elif isinstance(module, nn.Embedding):
            words = rounded(module.weight)
            _replace(module, partial(_looked_up, words))
        elif isinstance(module, (nn.Conv1d, nn.Conv2d)):
            _replace(module, _rounded_patches(module, rounded, read))
    return twin


def _replace(module: Any, forward: Callable[[Tensor], Tensor]) -> None:
    module.forward = forward


def _looked_up(words: Tensor, at: Tensor) -> Tensor:
    return functional.embedding(at, words)


def _rounded_linear(module: nn.Linear, rounded: Rounded, read: Rounded, scale: float) -> Rounded:
    weight = rounded(module.weight * scale) / scale
    return lambda x: functional.linear(read(x), weight, module.bias)


def _rounded_patches(module: Any, rounded: Rounded, read: Rounded) -> Rounded:
    weight = rounded(module.weight.flatten(1))
    flat = module.weight.dim() == 3
    kernel, stride, padding = (
        (1, *pair) if flat else pair for pair in (module.kernel_size, module.stride, module.padding)
    )

    def forward(x: Tensor) -> Tensor:
        wide = x[:, :, None] if flat else x
        pad = (0, padding[1]) if flat else padding
        step = (1, stride[1]) if flat else stride
        patches = functional.unfold(wide, kernel, padding=pad, stride=step)  # [B,inputs,N]
        y = read(patches.transpose(1, 2)) @ weight.T + module.bias
        height = 1 if flat else (x.shape[2] - 3) // 2 + 1
        shaped = y.transpose(1, 2).unflatten(2, (height, -1))
        return shaped[:, :, 0] if flat else shaped

    return forward


@pytest.mark.parametrize("frames", [70, 2300])
@pytest.mark.parametrize("type", ROUND)
@pytest.mark.parametrize("kind", KINDS)
def test_smaller_types_round_as_a_twin_does(kind: str, type: str, frames: int) -> None:
    """But for numbers halfway between two, which fp32's own rounding moves to either.

    Among the positions of a long source some are, and a second layer would carry that to all of them.
    """
    near: list[float] = []
    far: list[float] = []
    shape: dict[str, Any] = {"max_source_len": 2300}
    if frames > 1000:
        shape["encoder_layers"] = 1
        if kind != "whisper":
            shape |= {"intermediate_ctc": "", "self_conditioning": False}
    for seed in range(6 if frames < 1000 else 3):
        network = random_network(kind, seed, **shape)
        scorer, twin = engine_of(network, type), rounded_twin(network, *ROUND[type])
        if type == "int8":
            round_attention(twin)
        (source,) = sources_of(network, seed, (frames,))
        (memory,) = scorer.encode([source])
        found = scorer._engine.output(int(memory))
        for model, errors in ((twin, near), (network, far)):
            errors += np.abs(found - encoded(model, source)[0].numpy()).max(1).tolist()
    assert np.median(near) < 0.1 * np.median(far)
    assert np.median(far) > 1e-3


# int8 folders


def stored(network: Any, kind: str, folder: Path) -> Path:
    """A network as an int8 folder has it."""
    save_checkpoint(
        folder / "model",
        architecture=kind,
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=None,
        target_vocab=vocabulary(WORDS),
        card="",
        input={"name": "audio", "features": "stored", "bins": network.config.input_features},
    )
    assert convert([str(folder / "model"), "--quantize", "int8", "--output", str(folder / "int8")]) == 0
    return folder / "int8"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_an_int8_folder_computes_the_same_bits(kind: str, seed: int, tmp_path: Path) -> None:
    network = random_network(kind, seed)
    found = load_checkpoint(stored(network, kind, tmp_path))
    assert read_config(found) == network.config
    sources = sources_of(network, seed, (15, 130))
    folder = engine_of(network, "int8", arrays=found.tensors)
    assert everything(folder, sources) == everything(engine_of(network, "int8"), sources)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_that_an_int8_folder_stands_for(kind: str, seed: int, tmp_path: Path) -> None:
    """They are the network's own, rounded to a step of their output's."""
    network = random_network(kind, seed)
    found = restored(load_checkpoint(stored(network, kind, tmp_path)).tensors, network.config)
    wanted = {name: weight.numpy() for name, weight in network.state_dict().items()}
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert found[name].shape == weight.shape
        if weight.ndim < 2:
            np.testing.assert_allclose(found[name], weight, rtol=1e-6)
        else:
            step = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True) / 127
            assert (np.abs(found[name] - weight) <= 0.501 * step).all(), name


def test_an_int8_folder_holds_layers_as_whole_numbers(tmp_path: Path) -> None:
    """Taps of convolutions as [3,3,channels]; what the layer behind them reads as [features,channels]."""
    network = random_network("conformer", 0, subsampling=4, subsampling_channels=5, input_features=16)
    weights = {name: weight.numpy() for name, weight in network.state_dict().items()}
    tensors = load_file(stored(network, "conformer", tmp_path) / WEIGHTS)
    types = {name: tensor.dtype for name, tensor in tensors.items()}
    for name in ("encoder_subsample.conv.1", "encoder_subsample.out", "ctc", "encoder_layers.1.ffn2.down"):
        weight = weights[f"{name}.weight"]
        if name.endswith("conv.1"):
            weight = weight.transpose(0, 2, 3, 1).reshape(5, 45)
        if name.endswith("out"):
            weight = weight.reshape(-1, 5, 3).transpose(0, 2, 1).reshape(-1, 15)
            scale = 1.0 if network.config.encoder_positions == "none" else network.config.d_model**0.5
            weight = weight * np.float32(scale)
        if name.endswith("down"):
            weight = weight * np.float32(0.5)  # half-step residual
        block = tensors[f"{name}.weight"]
        flat = block.transpose(0, 2, 1, 3).reshape(block.shape[0] * 32, -1)
        scales = tensors[f"{name}.scales"]
        np.testing.assert_allclose(scales, np.abs(weight).max(1) / 127, rtol=1e-6)
        numbers = flat[: len(weight), : weight.shape[1]]
        np.testing.assert_array_equal(
            numbers, np.rint(weight * (np.float32(127) / np.abs(weight).max(1, keepdims=True)))
        )
        assert types[f"{name}.weight"] == np.int8
    for name in ("encoder_subsample.conv.0", "encoder_layers.0.final_norm"):
        np.testing.assert_array_equal(tensors[f"{name}.weight"], weights[f"{name}.weight"], strict=True)


# What is refused


def frames_of(network: Any, length: int, **beside: Any) -> FeatureSource:
    return FeatureSource(np.ones((length, network.config.input_features), np.float32), 10.0, **beside)


def test_sources_that_break_a_rule_are_refused() -> None:
    network = random_network("conformer", 0, subsampling=4, input_features=16)
    scorer, good = engine_of(network), frames_of(network, 30)
    wrong = frames_of(network, 30)
    wrong.frames[7, 3] = np.nan
    infinite = frames_of(network, 30)
    infinite.frames[29, 15] = -np.inf
    cases = [
        (frames_of(network, 6), PassError, "source 1 has 6 frames, not 7 to 640"),
        (frames_of(network, 0), PassError, "source 1 has 0 frames, not 7 to 640"),
        (frames_of(network, 641), PassError, "source 1 has 641 frames, not 7 to 640"),
        (wrong, PassError, "NaN or infinity in frame 7 of source 1"),
        (infinite, PassError, "NaN or infinity in frame 29 of source 1"),
        (FeatureSource(np.ones((30, 15), np.float32), 10.0), SourceMismatchError, "the model reads float32"),
        (TextSource((5, 2)), SourceMismatchError, "the model reads features"),
        (frames_of(network, 30, words=(5,)), PassError, "source 1 has words beside its frames"),
    ]
    for source, error, message in cases:
        with pytest.raises(error, match=message):
            scorer.encode([good, source])
        assert scorer.memories_in_use == 0
    assert scorer.encode([]).tolist() == []
    with pytest.raises(PassError, match="the model reads frames, not words"):
        scorer._engine.encode([5], [1])
    (memory,) = scorer.encode([good])
    scorer.free([memory])
    for call in (lambda: scorer.read_frames([memory], Want()), lambda: scorer.free([memory])):
        with pytest.raises(PassError, match="encoded source 0 is not there"):
            call()


def test_words_beside_frames_that_break_a_rule_are_refused() -> None:
    network = random_network("owsm_ctc", 0, words_in_front=True, prompt_layers=1, max_target_len=6)
    scorer = engine_of(network)
    for beside, message in (
        ({"words": (WORDS,)}, f"word {WORDS} of source 0 is none of {WORDS}"),
        ({"prompt": (-1,)}, f"word -1 of source 0 is none of {WORDS}"),
        ({"words": (5,) * 7}, "source 0 has 7 words in front of its frames, more than 6"),
        ({"prompt": (5,) * 6}, "source 0 has a prompt of 7 words, not 1 to 6"),
    ):
        with pytest.raises(PassError, match=message):
            scorer.encode([frames_of(network, 40, **beside)])
    silent = engine_of(random_network("owsm_ctc", 0, words_in_front=False, prompt_layers=1))
    with pytest.raises(PassError, match="source 0 has words beside its frames"):
        silent.encode([frames_of(network, 40, words=(5,))])


def test_what_a_model_has_not_is_refused() -> None:
    owsm = engine_of(random_network("owsm_ctc", 0))
    whisper = engine_of(random_network("whisper", 0))
    one = np.zeros(1, np.int32)
    with pytest.raises(PassError, match="the model has no decoder"):
        owsm._engine.run(one, one, one, one, one - 1, Want())
    with pytest.raises(PassError, match="the model has no decoder"):
        owsm._engine.fill(one, one + 1, one, Want())
    with pytest.raises(PassError, match="the model has no CTC head"):
        whisper._engine.read_encoded(one, Want())


def test_bad_wiring_is_refused() -> None:
    """A model that says what its parts cannot do is never built."""
    from nartk.engine.weights import Weights

    network = random_network("conformer", 0, encoder_block="conformer")
    arrays = {name: weight.numpy().copy() for name, weight in network.state_dict().items()}
    short = arrays | {"encoder_subsample.out.weight": arrays["encoder_subsample.out.weight"][:, :-5]}
    with pytest.raises(ValueError, match=r"cannot reshape|out has another shape"):
        Weights(short, "fp32").model(network.config)
    odd = arrays | {"encoder_layers.0.conv.down.weight": arrays["encoder_layers.0.conv.down.weight"][:, :-1]}
    with pytest.raises(ValueError, match="down has another shape than its layer says"):
        Weights(odd, "fp32").model(network.config)
