"""Encoders and decoders are combined by declaration: trained, converted and served on both sides."""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import run
from support.fairseq_host import require_fairseq
from support.speech_models import SMALL as SMALL_SPEECH
from support.speech_models import random_speeches
from support.tones import write_corpus
from support.transformers_small import stir, vocabulary

import nartk
from nartk.architectures import architecture
from nartk.architectures.parts import Depthwise, Group, Linear, Shape, weight_shapes
from nartk.cli.convert import main as convert
from nartk.cli.preprocess import main as preprocess
from nartk.engine import available
from nartk.protocols.passes import Want

COMBINED = {
    "speech_dag": {"decoder_input": "uniform-copy", "upsampling": "predict", "upsample_scale": "2"},
    "speech_ctc": {"upsample": 2},
    "cif": {},
}
SIZES = {"d_model": 12, "encoder_ffn": 20, "decoder_ffn": 18, "encoder_heads": 2, "decoder_heads": 2}
CLOSE = 2e-4  # nats


def network_of(name: str, seed: int) -> Any:
    found = architecture(name)
    torch.manual_seed(seed)
    sizes = {**SMALL_SPEECH, "link_heads": 2, "length_difference": 5, **SIZES, **COMBINED[name]}
    known = inspect.signature(found.config).parameters
    sizes |= {"src_vocab": 11, "tgt_vocab": 11, "share_embeddings": "none"}
    config = found.config(**{key: value for key, value in sizes.items() if key in known})
    return stir(found.network(config).eval()).requires_grad_(False)


def sources_of(name: str, seed: int) -> Sequence[Any]:
    if name.startswith("speech"):
        return random_speeches(seed, (31, 7, 60))
    rng = random.Random(seed)
    return [[*(rng.randrange(4, 11) for _ in range(size)), 2] for size in (7, 1, 20)]


def readings(scorer: Any, sources: Sequence[Any]) -> list[np.ndarray]:
    """All log-probabilities that the decoders of a model read, and which words are best."""
    memory = scorer.encode(sources)
    want = Want(top=3)
    if hasattr(scorer, "graphs"):
        graphs = scorer.graphs(memory)
        scores = scorer.words_at(graphs, graphs.vertices, want)
        links = [np.exp(each).ravel() for each in graphs.links]
        return [graphs.sizes, *links, scores.top_log_probs, scores.best]
    scores = scorer.read_frames(memory, want)
    return [scorer.frames(memory), scores.top_log_probs, scores.best]


@pytest.mark.skipif(not available(), reason="there is no engine here")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", COMBINED)
def test_the_engine_reads_what_the_network_does(name: str, seed: int) -> None:
    network, sources = network_of(name, seed), sources_of(name, seed)
    arrays = {key: weight.numpy() for key, weight in network.state_dict().items()}
    engine = architecture(name).engine(network.config, arrays, vocabulary(11), threads=1)
    reference = architecture(name).scorer(network.double(), vocabulary(11), dtype=torch.float64)
    both = zip(readings(engine, sources), readings(reference, sources), strict=True)
    for found, wanted in both:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)


SPEECH = (
    "--task nartk_speech --criterion nartk_speech --input-features 20 --subsampling-channels 8 "
    "--conv-kernel 7 --glancing 0.5 --max-source-len 400 --max-target-len 64 --max-tokens 1500"
)
TRAINED = {
    "speech_dag": f"{SPEECH} --upsampling predict --upsample-scale 3 --decoder-input uniform-copy",
    "speech_ctc": f"{SPEECH} --subsampling 8",
    "cif": "--task translation --criterion nartk_nar --max-source-len 40 --max-tokens 300",
}
BOTH = (
    "--d-model 32 --encoder-layers 1 --decoder-layers 1 --encoder-heads 2 --decoder-heads 2 --encoder-ffn 64 "
    "--decoder-ffn 64 --dropout 0 --optimizer nartk_adamw --lr 0.005 --cpu --seed 7 --max-update 50 "
    "--no-epoch-checkpoints --validate-interval 1000 --save-interval 1000 --num-workers 0 --log-format json "
    "--log-interval 10"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_fairseq()
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    folder = tmp_path_factory.mktemp("combined")
    (folder / "sounds").mkdir()
    write_corpus(folder / "sounds", 80)
    rng = random.Random(1)
    lines = [" ".join(rng.choices(["a", "b", "c", "d", "e"], k=rng.randint(3, 8))) for _ in range(80)]
    for split in ("train", "valid"):
        (folder / f"{split}.x").write_text("\n".join([*lines, ""]))
        # As many words as the source has, less one: what a row of weights in (0, 1) can fire.
        (folder / f"{split}.y").write_text("\n".join([*(line[2:].upper() for line in lines), ""]))
    command = f"--source-lang x --target-lang y --trainpref {folder}/train --validpref {folder}/valid"
    assert preprocess([*command.split(), "--destdir", str(folder / "text"), "--workers", "1"]) == 0
    return folder


@pytest.mark.parametrize("name", COMBINED)
def test_it_trains_converts_and_decodes(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 updates; the decoder that the architecture names; each side, a line at a time and together."""
    speech = name.startswith("speech")
    kept, log = data / name, data / f"{name}.log"
    flags = f"--arch nartk_{name} {TRAINED[name]} {BOTH} --save-dir {kept} --log-file {log}"
    if not speech:
        flags += " --share-embeddings none"
    arguments = [str(data / ("sounds" if speech else "text")), *flags.split()]
    run([sys.executable, "-c", f"from nartk.cli.train import main\nassert main({arguments!r}) == 0"])
    logged = [json.loads(line) for line in log.read_text().splitlines() if line[:2] == '{"']
    losses = [float(each["words"]) for each in logged if "words" in each]
    assert losses[-1] < 0.9 * losses[0]
    folder = data / f"{name}-model"
    assert convert([str(kept / "checkpoint_last.pt"), "--output", str(folder), "--quiet"]) == 0
    lines = ["a b c d", "e a", "b b d c a e"]
    if speech:
        lines = [str(data / "sounds" / "sounds" / f"valid{i}.wav") for i in range(4)]
    texts = []
    for left_out in ("1", "0"):
        if left_out == "0" and not available():
            continue
        monkeypatch.setenv("NARTK_NO_ENGINE", left_out)
        model = nartk.load(folder)
        for size in (1, 3):
            texts.append([found.text for found in model.decode(lines, batch_size=size)])
    assert all(each == texts[0] for each in texts)
    assert any(texts[0])


def test_a_declaration_is_short() -> None:
    """Lines of code of each, its docstrings left out."""
    for name in COMBINED:
        path = Path(inspect.getfile(architecture(name).config))
        assert len([line for line in path.read_text().splitlines() if line.strip()]) <= 25


def test_a_new_kind_of_layer_is_described_once() -> None:
    """Of a gated convolution: names and shapes of weights, their int8 layout, and the engine's arrays."""
    layer = Group(
        {"up": Linear(6, 3), "depthwise": Depthwise(3, 5), "down": Linear(3, 3)}, {"of_gate": False}
    )
    model = Group({"encoder": Group({"gate": layer}, joint="_")})
    shapes = weight_shapes(model)
    assert shapes == {
        "encoder_gate.up.weight": (6, 3), "encoder_gate.up.bias": (6,),
        "encoder_gate.depthwise.weight": (3, 1, 5), "encoder_gate.depthwise.bias": (3,),
        "encoder_gate.down.weight": (3, 3), "encoder_gate.down.bias": (3,),
    }  # fmt: skip
    packed = {name: part.packed for name, part in model.leaves("") if part.packed is not None}
    assert packed == {"encoder_gate.up": (6, 3), "encoder_gate.down": (3, 3)}

    class Arrays:
        def array(self, name: str) -> np.ndarray:
            return np.ones(shapes[name], np.float32)

        def layer(self, name: str, part: Linear) -> tuple[str, Shape]:
            return name, part.matrix(self.array(f"{name}.weight"), None)[0].shape

        def words(self, name: str) -> str:
            return name

    built = model.read("", Arrays())["encoder"]["gate"]
    assert (built["of_gate"], built["up"]) == (False, ("encoder_gate.up", (6, 3)))
    taps, bias = built["depthwise"]
    assert (taps.shape, bias.shape) == ((5, 16), (16,))  # as many channels as the engine's vectors have
