"""DASpeech: expected states against all paths, the gradient that they let through, and joint training."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host, memory
from support.commands import run
from support.speech_models import SMALL as SMALL_SPEECH
from support.tones import PITCHES, write_corpus
from support.transformers_small import stir
from torch import Tensor

import nartk
from nartk.architectures import architecture
from nartk.architectures.daspeech import DaSpeechConfig
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.data.audio.sounds import read_sound
from nartk.data.audio.targets import SpeechCorpus, Utterance
from nartk.decoders.graphs.beam import WordLattice
from nartk.errors import CheckpointError, LengthMismatchError, UsageError
from nartk.models import daspeech
from nartk.models.da_transformer import TrainedGraphs, force
from nartk.models.daspeech import DaSpeech, expected_states, path_states
from nartk.models.fastspeech2 import LOSSES, SpeechTargets
from nartk.models.losses import S2sTraining
from nartk.processors.speech import SpokenText
from nartk.processors.text import WhitespaceTokenizer
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.paragraph import Paragraph, Tokenized
from nartk.protocols.spectrograms import MelSettings, Speech
from nartk.serving.scorers import load_network
from nartk.vocab import Vocab

INF = math.inf
WORDS, PAD, EOS = 9, 1, 2
ROWS, LENGTH, WIDTH, FEATURES = 8, 5, 7, 3
CLOSE = 1e-10


def random_graphs(seed: int, *, glanced: bool) -> TrainedGraphs:
    """A batch of unequal graphs and targets, some of which no path emits; some tokens are pinned."""
    draw = torch.Generator().manual_seed(seed)
    match = 3.0 * torch.randn(ROWS, LENGTH, WIDTH, generator=draw, dtype=torch.float64)
    links = 3.0 * torch.randn(ROWS, WIDTH, WIDTH, generator=draw, dtype=torch.float64)
    links[torch.rand(links.shape, generator=draw) < 0.2] = -INF
    sizes = torch.randint(2, WIDTH + 1, (ROWS,), generator=draw)
    counts = torch.randint(2, LENGTH + 1, (ROWS,), generator=draw)
    if glanced:
        shown = torch.rand(ROWS, LENGTH, generator=draw) < 0.4
        shown[:, 0] = shown[:, -1] = False
        match = force(match, torch.arange(LENGTH).expand(ROWS, -1) + seed % 2, shown)
    features = torch.randn(ROWS, WIDTH, FEATURES, generator=draw, dtype=torch.float64)
    every = torch.ones(ROWS, dtype=torch.bool)
    return TrainedGraphs(every, features, match, links, counts, sizes)


def paths_of(graphs: TrainedGraphs, row: int) -> list[tuple[float, tuple[int, ...]]]:
    """Log-probability and vertices of each path of a row that emits its target."""
    count, size = int(graphs.counts[row]), int(graphs.sizes[row])
    found = []
    for inner in itertools.combinations(range(1, size - 1), count - 2):
        path = (0, *inner, size - 1)
        score = sum(float(graphs.match[row, t, vertex]) for t, vertex in enumerate(path))
        score += sum(float(graphs.links[row, i, j]) for i, j in itertools.pairwise(path))
        if score > -INF:
            found.append((score, path))
    return found


@pytest.mark.parametrize("glanced", [False, True])
def test_expected_states_equal_enumeration_on_600_graphs(glanced: bool) -> None:
    possible = impossible = 0
    for seed in range(75):
        graphs = random_graphs(seed, glanced=glanced)
        states, fits = expected_states(graphs)
        best, reached = path_states(graphs)
        assert torch.equal(fits, reached)
        for row in range(ROWS):
            paths = paths_of(graphs, row)
            assert bool(fits[row]) == bool(paths)
            possible, impossible = possible + bool(paths), impossible + (not paths)
            wanted = np.zeros((LENGTH - 1, FEATURES))
            total = sum(math.exp(score) for score, _ in paths)
            features = graphs.features[row].numpy()
            for score, path in paths:
                for t, vertex in enumerate(path[1:]):  # without bos
                    wanted[t] += math.exp(score) / total * features[vertex]
            np.testing.assert_allclose(states[row].numpy(), wanted, rtol=0, atol=CLOSE)
            likeliest = max(paths, default=(0.0, ()))[1][1:]
            wanted[:] = 0.0
            wanted[: len(likeliest)] = features[[*likeliest]]
            np.testing.assert_array_equal(best[row].numpy(), wanted)
    assert possible > 200
    assert impossible > 50


def check_gradient(seed: int) -> None:
    """That by features is the transposed posterior; none comes to the scores."""
    graphs = random_graphs(seed, glanced=False)
    features, match, links = (
        each.clone().requires_grad_() for each in (graphs.features, graphs.match, graphs.links)
    )
    tracked = TrainedGraphs(graphs.fits, features, match, links, graphs.counts, graphs.sizes)
    states, _ = expected_states(tracked)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(seed), dtype=states.dtype)
    (states * weights).sum().backward()
    for row in range(ROWS):
        wanted = np.zeros((WIDTH, FEATURES))
        paths = paths_of(graphs, row)
        total = sum(math.exp(score) for score, _ in paths)
        for score, path in paths:
            for t, vertex in enumerate(path[1:]):
                wanted[vertex] += math.exp(score) / total * weights[row, t].numpy()
        np.testing.assert_allclose(features.grad[row].numpy(), wanted, rtol=0, atol=CLOSE)
    assert match.grad is None
    assert links.grad is None


def leaking(match: Tensor, links: Tensor, counts: Tensor, sizes: Tensor) -> Tensor:
    """The posterior, with a gradient to the scores of words."""
    posterior = daspeech_posterior(match, links, counts, sizes)
    return posterior * (1.0 + (match - match.detach()).nan_to_num())


daspeech_posterior = daspeech.dag_posterior


def test_the_gradient_is_the_transposed_posterior_and_reaches_no_score() -> None:
    for seed in range(20):
        check_gradient(seed)


def test_a_build_that_lets_it_through_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daspeech, "dag_posterior", leaking)
    with pytest.raises(AssertionError):
        check_gradient(0)
    network, batch = random_network(0), random_batch(0)
    with pytest.raises(AssertionError):
        check_reached(network, batch)


def test_expected_states_take_little_memory() -> None:
    """At 32 x 32 x 512, where [B,T,L,L] is 1 GB and a [B,L,L] 32 MiB."""
    draw = torch.Generator().manual_seed(0)
    match = torch.randn(32, 32, 512, generator=draw)
    links = torch.randn(32, 512, 512, generator=draw)
    features = torch.randn(32, 512, 64, generator=draw, requires_grad=True)
    sizes = torch.full((32,), 512)
    graphs = TrainedGraphs(sizes > 0, features, match, links, torch.full((32,), 32), sizes)
    with memory.rising_at_most(100 * 1024):
        states, possible = expected_states(graphs)
        states.sum().backward()
    assert bool(possible.all())


# The network

SMALL: dict[str, Any] = {
    **SMALL_SPEECH,
    "d_model": 12,
    "encoder_heads": 2,
    "encoder_ffn": 16,
    "decoder_heads": 2,
    "decoder_ffn": 16,
    "decoder_layers": 1,
    "decoder_features": 8,
    "link_heads": 2,
    "adaptor_features": 10,
    "acoustic_features": 6,
    "acoustic_encoder_layers": 1,
    "acoustic_decoder_layers": 1,
    "acoustic_heads": 2,
    "acoustic_ffn": 8,
    "acoustic_kernel": 3,
    "acoustic_second_kernel": 1,
    "predictor_features": 8,
    "predictor_dropout": 0.0,
    "mel_features": 4,
    "variance_bins": 5,
    "max_mel_len": 60,
    "dropout": 0.0,
    "share_embeddings": "none",
}


def random_network(seed: int, *, words: int = WORDS, **changes: Any) -> DaSpeech:
    torch.manual_seed(seed)
    known = DaSpeechConfig.__dataclass_fields__
    settings = {name: value for name, value in {**SMALL, **changes}.items() if name in known}
    network = DaSpeech(DaSpeechConfig(tgt_vocab=words, **settings))
    zeros, ones = torch.zeros(4), torch.ones(4)
    network.acoustic.keep_statistics(zeros, ones, (-1.0, 1.0), (-2.0, 0.5))
    return stir(network).double()


def random_batch(seed: int) -> tuple[dict[str, Tensor], Tensor, SpeechTargets]:
    """Frames, targets with eos, and speech; the second target is too long for its graph."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([60, 20, 45])
    frames = torch.randn(3, 60, SMALL["input_features"], generator=draw).double()
    sizes = torch.tensor([6, 12, 3])  # with eos
    words = torch.arange(12) < sizes[:, None] - 1
    target = torch.randint(4, WORDS, (3, 12), generator=draw).where(words, EOS)
    target = target.where(torch.arange(12) < sizes[:, None], PAD)
    durations = torch.randint(1, 4, (3, 12), generator=draw) * words
    pitch, energy = (torch.randn(3, 12, generator=draw).double() * words for _ in range(2))
    mel = torch.randn(3, int(durations.sum(1).max()), 4, generator=draw).double()
    return {"frames": frames, "lengths": lengths}, target, SpeechTargets(mel, durations, pitch, energy)


def joint_step(words: int) -> None:
    """A training step of 32 rows, 32 tokens with bos and eos, and 512 vertices: it holds 500 MiB at most."""
    changes = {"max_target_len": 512, "max_mel_len": 200, "encoder_layers": 1, "max_source_len": 1100}
    network = random_network(5, words=words, **changes).float().train()
    draw = torch.Generator().manual_seed(0)
    frames = torch.randn(32, 1030, SMALL["input_features"], generator=draw)
    target = torch.randint(4, words, (32, 31), generator=draw)
    target[:, -1] = EOS
    durations = torch.randint(1, 4, (32, 31), generator=draw)
    durations[:, -1] = 0
    pitch, energy = (torch.randn(32, 31, generator=draw) for _ in range(2))
    mel = torch.randn(32, int(durations.sum(1).max()), 4, generator=draw)
    speech = SpeechTargets(mel, durations, pitch, energy)
    with memory.rising_at_most(500 * 1024):
        source = network.encode(frames, torch.full((32,), 1030))
        assert network.sizes(source.lengths, 2.0).tolist() == [512] * 32
        losses = network.losses(source, target, training=S2sTraining(glancing="0.5"), update=0, speech=speech)
        losses.total.backward()
    assert int(losses.parts["dropped"]) == 0


def test_a_joint_step_takes_little_memory() -> None:
    """At 20,000 words, where [B,L,V] is 1.2 GB and the encoder's own logits half of that."""
    joint_step(20_000)


@pytest.mark.parametrize("shape", [(32, 32, 512, 512), (32, 256, 20_000)])
def test_a_step_that_holds_more_is_noticed(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def holding(*given: Tensor) -> Tensor:
        found = daspeech_posterior(*given)
        return found + torch.ones(shape).mean() - 1.0

    monkeypatch.setattr(daspeech, "dag_posterior", holding)
    with pytest.raises(AssertionError):
        joint_step(100)


def check_reached(network: DaSpeech, batch: tuple[dict[str, Tensor], Tensor, SpeechTargets]) -> None:
    """The acoustic part's loss trains features, adaptor and acoustic part, and neither links nor words."""
    inputs, target, speech = batch
    totals = []
    for factor in (0.0, 1.0):
        network.zero_grad(set_to_none=False)
        losses = network.losses(
            network.encode(**inputs), target, training=S2sTraining(tts_factor=factor), update=0, speech=speech
        )
        losses.total.backward()
        totals.append({name: weight.grad.clone() for name, weight in network.named_parameters()})
    alone, both = totals
    for name, gradient in both.items():
        same = torch.allclose(gradient, alone[name], rtol=0, atol=1e-12)
        unreached = name.startswith(("links.", "output.", "encoder.ctc."))
        assert same == unreached, name


@pytest.mark.parametrize("seed", range(3))
def test_the_acoustic_loss_reaches_neither_links_nor_words(seed: int) -> None:
    check_reached(random_network(seed).eval(), random_batch(seed))


@pytest.mark.parametrize("acoustic_input", ["expected", "path"])
@pytest.mark.parametrize("trains", [False, True])
def test_the_loss_is_the_graphs_and_five_times_the_acoustic_parts(acoustic_input: str, trains: bool) -> None:
    """With glancing in training mode, of pinned scores; the target that does not fit counts in neither."""
    network, (inputs, target, speech) = random_network(3).train(trains), random_batch(3)
    training = S2sTraining(glancing="0.5", acoustic_input=acoustic_input)
    source = network.encode(**inputs)

    torch.manual_seed(5)
    losses = network.losses(source, target, training=training, update=0, speech=speech)
    torch.manual_seed(5)
    plain, graphs = network.graph_losses(source, target, training=training, update=0)
    assert graphs is not None
    assert int(losses.parts["dropped"]) == int(plain.parts["dropped"]) == 1
    assert graphs.fits.tolist() == [True, False, True]
    if trains:
        assert bool((graphs.match == 0.0).any())  # a shown token, at its vertex
    states, _ = (expected_states if acoustic_input == "expected" else path_states)(graphs)
    kept = torch.arange(states.shape[1]) < torch.tensor([[6], [3]])
    own = SpeechTargets(
        speech.mel[[0, 2]], *(each[[0, 2], :6] for each in (speech.durations, speech.pitch, speech.energy))
    )
    parts = network.acoustic.losses(network.adaptor(states), kept, own)
    tts = sum(float(parts[name].detach()) for name in LOSSES)
    assert float(losses.total.detach()) == pytest.approx(
        float(plain.total.detach()) + 5.0 * tts * (6 + 3), rel=1e-9
    )
    for name in LOSSES:
        assert float(losses.parts[name]) == pytest.approx(float(parts[name].detach()), rel=1e-9)


def test_a_batch_of_which_no_target_fits_has_no_loss() -> None:
    network, (inputs, target, speech) = random_network(4), random_batch(4)
    one = SpeechTargets(*(each[1:2] for each in (speech.mel, speech.durations, speech.pitch, speech.energy)))
    source = network.encode(inputs["frames"][1:2], inputs["lengths"][1:2])
    losses = network.losses(source, target[1:2], training=S2sTraining(), update=0, speech=one)
    assert (float(losses.total.detach()), int(losses.parts["dropped"])) == (0.0, 1)
    assert {name: float(losses.parts[name]) for name in LOSSES} == dict.fromkeys(LOSSES, 0.0)
    losses.total.backward()


@pytest.mark.parametrize("changes", [{"tts_factor": -1.0}, {"tts_factor": INF}, {"acoustic_input": "best"}])
def test_options_have_bounds(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(changes))}`"):
        S2sTraining(**changes)


def test_it_has_the_published_size() -> None:
    found = architecture("daspeech")
    with torch.device("meta"):
        network = found.network(found.config(tgt_vocab=80, **found.presets["nartk_daspeech"]))
    assert 93.0e6 < sum(weight.numel() for weight in network.parameters()) < 94.0e6


# Training

SYMBOLS = [*PITCHES]
FLAGS = (
    "--d-model 16 --encoder-layers 1 --encoder-heads 2 --encoder-ffn 32 --input-features 20 --conv-kernel 7"
    " --subsampling-channels 4 --decoder-layers 1 --decoder-heads 2 --decoder-ffn 32 --link-heads 2"
    " --max-source-len 400 --max-target-len 64"
)
ACOUSTIC = (
    "--acoustic-features 12 --acoustic-encoder-layers 1 --acoustic-decoder-layers 1 --acoustic-ffn 16"
    " --predictor-features 8 --mel-features 5 --variance-bins 6"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sounds, their words as phonemes, the speech of these, and a checkpoint of each trained part."""
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    fairseq_host.require_fairseq()
    folder = tmp_path_factory.mktemp("s2s")
    (folder / "data").mkdir()
    write_corpus(folder / "data", 40)
    rng = np.random.default_rng(1)
    for split in ("train", "valid"):
        speech = []
        for line in (folder / "data" / f"{split}.txt").read_text().splitlines():
            numbers = np.array([SYMBOLS.index(word) for word in line.split()])
            durations = (2 + numbers).astype(np.int32)
            mel = rng.standard_normal((int(durations.sum()), 5)).astype(np.float32)
            mel += 3.0 * np.repeat(numbers, durations)[:, None]
            pitch, energy = (rng.uniform(4, 5, len(numbers)).astype(np.float32) for _ in range(2))
            speech.append(Utterance(mel, durations, pitch, energy))
        SpeechCorpus.of(speech).write(folder / "data" / f"{split}.speech.npz")
    for name, text in (("speech_dag", FLAGS), ("fastspeech2", ACOUSTIC)):
        write_checkpoint(folder / f"{name}.pt", name, text)
    return folder


def write_checkpoint(path: Path, name: str, flags: str) -> None:
    """A checkpoint of random weights as fairseq saves it."""
    words = flags.split()
    given = {
        key.removeprefix("--").replace("-", "_"): int(value)
        for key, value in zip(words[::2], words[1::2], strict=True)
    }
    found = architecture(name)
    presets = {**found.presets[f"nartk_{name}_tiny"], **given}
    vocab = {"tgt_vocab": 4 + len(SYMBOLS), "src_vocab": 4 + len(SYMBOLS) if name == "fastspeech2" else 0}
    torch.manual_seed(len(name))
    network = stir(found.network(found.config(**presets, **vocab)))
    args = Namespace(**asdict(network.config), arch=f"nartk_{name}_tiny")
    fairseq_host.save(path, args, {f"core.{key}": each for key, each in network.state_dict().items()})


def task_of(folder: Path) -> Any:
    from nartk.tasks.s2s import S2sTask
    from nartk.tasks.speech import SpeechTaskConfig

    return S2sTask(SpeechTaskConfig(data=str(folder), seed=3))


def test_it_begins_with_both_trained_parts(data: Path, tmp_path: Path) -> None:
    from nartk.tasks.core_model import read_model

    task, graph, acoustic = task_of(data / "data"), data / "speech_dag.pt", data / "fastspeech2.pt"

    def build(flags: str) -> Any:
        return fairseq_host.build("daspeech", *flags.split(), trained=task).core

    both = f"{FLAGS} {ACOUSTIC} --init-translation {graph} --init-acoustic {acoustic}"
    weights = build(both).state_dict()
    for path in (graph, acoustic):
        for name, weight in read_model(str(path))[0].state_dict().items():
            if not (path == acoustic and name.startswith("encoder_embedding.")):
                assert torch.equal(weights[name], weight), name
    # Without a trained acoustic part the statistics are those of the corpus.
    network = build(f"{FLAGS} {ACOUSTIC}")
    mean = torch.from_numpy(SpeechCorpus.read(data / "data" / "train.speech.npz").statistics.mean)
    torch.testing.assert_close(network.acoustic.statistics.get_buffer("mel_mean"), mean)
    for changed, message in (
        (both.replace("--decoder-heads 2", "--decoder-heads 4"), "--decoder-heads is 4, the model has 2"),
        (f"{both} --acoustic-heads 1", "--acoustic-heads is 1, the model has 2"),
        (both.replace("--acoustic-ffn 16", "--acoustic-ffn 18"), "--acoustic-ffn is 18"),
        (f"{FLAGS} {ACOUSTIC} --init-acoustic {graph}", "is missing"),
    ):
        with pytest.raises(CheckpointError, match=message):
            build(changed)


def test_targets_and_speech_go_together(data: Path, tmp_path: Path) -> None:
    task = task_of(data / "data")
    task.load_dataset("train")
    found = task.datasets["train"]
    found.items = found.items[::-1]  # as where some are left out: speech is found by the line's number
    batch = found.collater([found[i] for i in range(5)])
    inputs = batch["net_input"]
    for row in range(5):
        words = [SYMBOLS[i - 4] for i in batch["target"][row].tolist() if i >= 4]
        count = len(words)
        assert inputs["durations"][row].tolist()[: count + 1] == [*(2 + SYMBOLS.index(w) for w in words), 0]
        assert not inputs["pitch"][row, count:].any()
    (data / "data" / "short.tsv").write_bytes((data / "data" / "valid.tsv").read_bytes())
    lines = (data / "data" / "valid.txt").read_text().splitlines()
    (data / "data" / "short.txt").write_text("\n".join([*lines[:-1], lines[-1] + " low"]) + "\n")
    (data / "data" / "short.speech.npz").write_bytes((data / "data" / "valid.speech.npz").read_bytes())
    with pytest.raises(LengthMismatchError, match=r"of utterance 11, line 12 of short\.txt"):
        task.load_dataset("short")


def test_it_learns_jointly(data: Path, tmp_path: Path) -> None:
    """30 updates by `nartk-train`, from both parts: each loss falls."""
    log = tmp_path / "train.log"
    command = (
        f"{data}/data --task nartk_s2s --criterion nartk_s2s --arch nartk_daspeech_tiny --dropout 0"
        f" {FLAGS} {ACOUSTIC} --init-translation {data}/speech_dag.pt --predictor-dropout 0"
        f" --init-acoustic {data}/fastspeech2.pt --acoustic-input expected"
        " --optimizer nartk_adamw --lr 0.005 --cpu --seed 3 --max-tokens 3000 --max-update 30"
        " --no-epoch-checkpoints --validate-interval 1000 --save-interval 1000 --num-workers 0"
        f" --most-padding 0.5 --log-format json --log-interval 5 --save-dir {tmp_path} --log-file {log}"
    ).split()
    run([sys.executable, "-c", f"from nartk.cli.train import main\nassert main({command!r}) == 0"])
    logged = [json.loads(line) for line in log.read_text().splitlines() if line[:2] == '{"']
    logged = [{key: float(value) for key, value in each.items()} for each in logged if "mel" in each]
    for name in ("loss", "words", "mel", "duration", "pitch", "energy"):
        assert logged[-1][name] < 0.9 * logged[0][name], name


# In use


@pytest.fixture(scope="module")
def model(data: Path) -> Any:
    """A converted checkpoint of random weights, which has learned nothing, but speaks."""
    write_checkpoint(data / "daspeech.pt", "daspeech", f"{FLAGS} {ACOUSTIC}")
    command = [str(data / "daspeech.pt"), "--dict", str(data / "data" / "dict.txt")]
    assert convert([*command, "--output", str(data / "model"), "--quiet"]) == 0
    return nartk.load(data / "model")


STRATEGIES: list[tuple[str, dict[str, Any]]] = [
    ("dag-lookahead", {}),
    ("dag-greedy", {"merge_repeats": True}),
    ("dag-viterbi", {}),
    ("dag-joint-viterbi", {}),
    ("dag-beam", {"nbest": 2}),
    ("dag-sample", {"nbest": 2}),
]


@pytest.mark.parametrize(("strategy", "options"), STRATEGIES)
def test_outputs_are_spoken_at_their_vertices(
    strategy: str, options: dict[str, Any], model: Any, data: Path
) -> None:
    """Spectrograms are those of the network's features at the vertices, and eos's, alone and together."""
    sounds = [str(data / "data" / "sounds" / f"valid{i}.wav") for i in range(3)]
    network = load_network(model.checkpoint).eval()
    for size in (1, 3):
        for sound, best in zip(
            sounds, model.decode(sounds, strategy=strategy, batch_size=size, **options), strict=True
        ):
            frames = torch.from_numpy(model.checkpoint.input.read(sound, longest=9999).frames)[None]
            with torch.no_grad():
                source = network.encode(frames, torch.tensor([frames.shape[1]]))
                features = network.vertices(network.canvas(network.sizes(source.lengths, 2.0)), source)[0]
            for found in (best, *best.alternatives):
                assert isinstance(found.output, Speech)
                assert found.output.mel_settings == MelSettings(bins=5)
                assert (str(found.output), found.output.fields()["mel_frames"]) == (
                    found.text,
                    len(found.output.mel),
                )
                words = [i for i in found.tokens if i != EOS]
                assert len(found.output.mel) >= len(words) > 0
                path = [*found.vertices[: len(words)], len(features) - 1]
                with torch.no_grad():
                    x = network.adaptor(features[path][None])
                    (mel,) = network.acoustic.mel(x, torch.ones(1, len(path), dtype=torch.bool))
                np.testing.assert_allclose(found.output.mel, mel.numpy(), rtol=0, atol=1e-4)


def test_sound_is_written_beside_the_text(model: Any, data: Path, tmp_path: Path, capsys: Any) -> None:
    sound, stats = data / "data" / "sounds" / "valid1.wav", tmp_path / "stats.json"
    command = [str(data / "model"), "--speech", str(tmp_path), str(sound), "--stats", str(stats)]
    assert decode(command) == 0
    (found,) = model.decode([str(sound)])
    assert capsys.readouterr().out == f"{found.text}\n"
    written = read_sound(str(tmp_path / "valid1.wav"), rate=22050)
    assert abs(len(written) - 256 * len(found.output.mel)) <= 256
    report = json.loads(stats.read_text())
    parts = report["speech"]["parts"]
    assert [*parts] == ["encoder", "graph", "acoustic"]
    assert 0 < sum(part["seconds"] for part in parts.values()) < report["seconds"]
    for part in parts.values():
        factor = part["seconds"] / report["speech"]["sound_seconds"]
        assert part["real_time_factor"] == pytest.approx(factor)


def test_of_equal_neighbours_the_first_is_spoken(model: Any, data: Path) -> None:
    sounds = [str(data / "data" / "sounds" / f"valid{i}.wav") for i in range(12)]
    merging = model.decode(sounds, strategy="dag-joint-viterbi", merge_repeats=True)
    fewer = 0
    for merged, plain in zip(merging, model.decode(sounds, strategy="dag-joint-viterbi"), strict=True):
        pairs = zip((None, *plain.tokens), plain.tokens, plain.vertices, strict=False)
        firsts = [vertex for before, token, vertex in pairs if token != before]
        assert [*merged.vertices] == firsts
        fewer += len(firsts) < len(plain.vertices)
    assert fewer > 2


def test_a_beams_path_is_the_likeliest_that_emits_its_words() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        size, count = int(rng.integers(4, 8)), int(rng.integers(1, 4))
        links = np.full((size, size), -INF, np.float32)
        above = np.triu_indices(size, 1)
        links[above] = rng.normal(size=len(above[0])) * 2
        words = np.stack([rng.permutation(4)[:3] + 4 for _ in range(size)]).astype(np.int32)
        scores = rng.normal(size=words.shape).astype(np.float32)
        words[-1, 0], scores[-1, 1:] = EOS, -INF
        lattice = WordLattice.of(links, words, scores)
        found = []
        for inner in itertools.combinations(range(1, size - 1), min(count, size - 2)):
            tokens = [int(words[vertex, rng.integers(3)]) for vertex in inner]
            found.append([*tokens, EOS])
        for tokens in found:
            best = max(
                (
                    (score_of(links, words, scores, path, tokens), path)
                    for path in paths_to(size, len(tokens))
                ),
                key=lambda each: each[0],
            )
            assert lattice.path(tokens) == [*best[1]]


def paths_to(size: int, count: int) -> list[tuple[int, ...]]:
    """Vertices behind the first of all paths with so many."""
    return [(*inner, size - 1) for inner in itertools.combinations(range(1, size - 1), count - 1)]


def score_of(links: Any, words: Any, scores: Any, path: tuple[int, ...], tokens: list[int]) -> float:
    total, before = 0.0, 0
    for vertex, token in zip(path, tokens, strict=True):
        emitted = [float(scores[vertex, i]) for i in range(3) if words[vertex, i] == token]
        total += float(links[before, vertex]) + (emitted[0] if emitted else -INF)
        before = vertex
    return total


def test_speech_is_joined_and_text_stays_text() -> None:
    words = Vocab.from_words(["a", "b"])
    output = SpokenText(WhitespaceTokenizer(words), MelSettings(bins=2))
    spoken = output.write(Hypothesis((4, 5, EOS), mel=np.ones((3, 2), np.float32)))
    assert isinstance(spoken, Speech)
    assert str(spoken) == "a b"
    assert not isinstance(output.write(Hypothesis((4, EOS))), Speech)
    both = output.join([spoken, spoken], Paragraph((Tokenized("a"), Tokenized("b")), ("", " ", "")))
    assert isinstance(both, Speech)
    assert both.mel.shape == (6, 2)


def test_settings_of_spectrograms_are_converted_and_checked(data: Path, tmp_path: Path, capsys: Any) -> None:
    write_checkpoint(tmp_path / "daspeech.pt", "daspeech", f"{FLAGS} {ACOUSTIC}")
    folder = tmp_path / "data"
    shutil.copytree(data / "data", folder)
    command = [str(tmp_path / "daspeech.pt"), "--dict", str(folder / "dict.txt"), "--quiet"]
    command += ["--output", str(tmp_path / "model")]
    for values, message in (
        ({"bins": 6}, "mel.json has 6 bins, the model 5"),
        ({"bins": 5, "hop": 0}, "'mel': `hop` is 0"),
        ({"bin": 5}, "'mel' is {'bin': 5}, no settings of spectrograms"),
    ):
        (folder / "mel.json").write_text(json.dumps(values))
        assert convert(command) == 5
        assert message in capsys.readouterr().err
    (folder / "mel.json").write_text(json.dumps({"bins": 5, "sample_rate": 16000}))
    assert convert(command) == 0
    found = nartk.load(tmp_path / "model").checkpoint.output
    assert found.mel_settings == MelSettings(bins=5, sample_rate=16000)
