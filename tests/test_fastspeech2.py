"""FastSpeech 2 is fairseq's network, and its bins, durations and losses are as published."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host
from support.commands import run
from support.phonemes import utterances, write_phonemes
from support.speaking import EOS, SMALL, WORDS, random_network, theirs
from torch import Tensor

import nartk
from nartk.adapters.fairseq.checkpoint import read_checkpoint
from nartk.adapters.fairseq.network import to_network
from nartk.architectures import architecture
from nartk.architectures.fastspeech2 import FastSpeech2Config
from nartk.cli.convert import main as convert
from nartk.data.audio.targets import SpeechCorpus
from nartk.errors import InputFileError, LengthMismatchError, PassError, UsageError
from nartk.models.fastspeech2 import LOSSES, FastSpeech2, SpeechTargets, bins, cut, durations_of, regulate
from nartk.models.losses import TtsTraining

PAD = 1
CLOSE = 1e-5
LENGTHS = (7, 3, 2, 9)  # with eos


def random_batch(seed: int, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, SpeechTargets]:
    """Tokens [B,N], padded on the right, and their speech; phonemes without a frame too."""
    generator = torch.Generator().manual_seed(seed)
    size = len(lengths), max(lengths)
    counts = torch.tensor(lengths)
    kept = torch.arange(size[1]) < counts[:, None]
    words = torch.arange(size[1]) < counts[:, None] - 1
    tokens = torch.randint(4, WORDS, size, generator=generator).where(words, EOS).where(kept, PAD)
    durations = torch.randint(0, 5, size, generator=generator) * words
    durations[:, 0] += 1
    width = int(durations.sum(1).max())
    pitch, energy = (torch.randn(size, generator=generator).double() * words for _ in range(2))
    mel = torch.randn((len(lengths), width, SMALL["mel_features"]), generator=generator).double()
    return tokens, SpeechTargets(mel, durations, pitch, energy)


def alone(targets: SpeechTargets, row: int, length: int) -> dict[str, Tensor]:
    """A row of the targets as fairseq's network takes it."""
    return {
        "durations": targets.durations[row : row + 1, :length],
        "pitches": targets.pitch[row : row + 1, :length],
        "energies": targets.energy[row : row + 1, :length],
    }


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("trains", [True, False])
def test_it_is_fairseqs_network(seed: int, trains: bool) -> None:
    """Sentences of unequal lengths in a batch, each as fairseq has it alone; with gradients in training."""
    network = random_network(seed).train(trains)
    oracle = theirs(network)
    tokens, targets = random_batch(seed)
    source = network.encode(tokens)
    given = targets if trains else None
    found = network.acoustic(source.memory, source.kept, given)
    durations = (
        targets.durations if trains else durations_of(found.log_durations, source.kept, SMALL["max_mel_len"])
    )
    assert found.frames.tolist() == durations.sum(1).tolist()
    weights = torch.randn(found.mel.shape[1:]).double()
    total = torch.zeros(())
    for row, length in enumerate(LENGTHS):
        prosody = alone(targets, row, length) if trains else {"durations": durations[row : row + 1, :length]}
        mel, _, frames, *others = oracle(tokens[row : row + 1, :length], **prosody)
        count = int(frames[0])
        torch.testing.assert_close(found.mel[row, :count], mel[0], rtol=0, atol=CLOSE)
        for ours, their in zip((found.log_durations, found.pitch, found.energy), others, strict=True):
            torch.testing.assert_close(ours[row, :length], their[0], rtol=0, atol=CLOSE)
        total = total + (mel[0] * weights[:count]).sum() + sum(other.sum() for other in others)
    if not trains:
        return
    seen = torch.arange(found.mel.shape[1]) < found.frames[:, None]
    ours = (found.mel * weights)[seen].sum()
    ours = ours + sum(each[source.kept].sum() for each in (found.log_durations, found.pitch, found.energy))
    ours.backward()
    total.backward()
    pairs = [
        (network.encoder.embedding.words, oracle.embed_tokens),
        (network.acoustic.variance.pitch_embedding, oracle.var_adaptor.embed_pitch),
        (network.acoustic.encoder[0].ffn.up, oracle.encoder_fft_layers[0].ffn.ffn[0]),
        (network.acoustic.variance.energy.conv[0], oracle.var_adaptor.energy_predictor.conv1[0]),
        (network.acoustic.out, oracle.out_proj),
    ]
    for mine, their in pairs:
        torch.testing.assert_close(mine.weight.grad, their.weight.grad, rtol=1e-5, atol=CLOSE)


@pytest.mark.filterwarnings("ignore")  # fairseq's own
def test_losses_are_fairseqs() -> None:
    """Against its criterion, on sentences of one length, whose padding it does not read."""
    network = random_network(5)
    oracle = theirs(network)
    from fairseq.criterions.fastspeech2_loss import FastSpeech2Loss

    tokens, targets = random_batch(5, (6, 6, 6))
    targets.durations[:, 1] = 16 - targets.durations.sum(1) + targets.durations[:, 1]
    mel = torch.randn(3, 16, SMALL["mel_features"]).double()
    targets = SpeechTargets(mel, targets.durations, targets.pitch, targets.energy)
    lengths = torch.full((3,), 6)
    sample = {
        "net_input": {"src_tokens": tokens, "src_lengths": lengths, "prev_output_tokens": None},
        "target": network.acoustic.normalise(mel),
        "target_lengths": torch.full((3,), 16),
        "durations": targets.durations,
        "pitches": targets.pitch,
        "energies": targets.energy,
        "speaker": None,
        "nsentences": 3,
        "ntokens": 18,
    }
    # Durations are fp32 there.
    wanted, _, logged = FastSpeech2Loss(fairseq_host.task(WORDS), 0.0)(oracle, sample)
    losses = network.losses(network.encode(tokens), tokens, training=TtsTraining(), update=0, speech=targets)
    assert int(losses.tokens) == 18
    assert float(losses.total) / 18 == pytest.approx(float(wanted), abs=CLOSE)
    names = ("l1_loss", "dur_loss", "pitch_loss", "energy_loss")
    for name, other in zip(LOSSES, names, strict=True):
        assert float(losses.parts[name]) == pytest.approx(logged[other], abs=CLOSE)


def test_losses_are_means_over_all_that_counts() -> None:
    """Of unequal sentences, eos included in the predictors' losses, padding in none."""
    network = random_network(2)
    tokens, targets = random_batch(2)
    source = network.encode(tokens)
    found = network.acoustic.losses(source.memory, source.kept, targets)
    made = network.acoustic(source.memory, source.kept, targets)
    mel = network.acoustic.normalise(targets.mel)
    sums = dict.fromkeys(LOSSES, 0.0)
    count = frames = 0
    for row, length in enumerate(LENGTHS):
        for i in range(length):
            count += 1
            log = math.log(int(targets.durations[row, i]) + 1)
            sums["duration"] += (float(made.log_durations[row, i]) - log) ** 2
            sums["pitch"] += float(made.pitch[row, i] - targets.pitch[row, i]) ** 2
            sums["energy"] += float(made.energy[row, i] - targets.energy[row, i]) ** 2
        for t in range(int(targets.durations[row].sum())):
            frames += 1
            sums["mel"] += float((made.mel[row, t] - mel[row, t]).abs().mean())
    for name, total in sums.items():
        assert float(found[name]) == pytest.approx(total / (frames if name == "mel" else count), rel=1e-6)


def test_a_sentence_does_not_depend_on_its_batch() -> None:
    network = random_network(3, acoustic_second_kernel=1).eval()
    tokens, _ = random_batch(3)
    together = network.encode(tokens)
    batch = network.acoustic.mel(together.memory, together.kept)
    for row, length in enumerate(LENGTHS):
        source = network.encode(tokens[row : row + 1, :length])
        (mel,) = network.acoustic.mel(source.memory, source.kept)
        torch.testing.assert_close(batch[row], mel, rtol=0, atol=1e-12)


def test_normalisation_is_undone_behind_the_network() -> None:
    network = random_network(4).eval()
    tokens, _ = random_batch(4)
    source = network.encode(tokens)
    made = network.acoustic(source.memory, source.kept)
    for row, mel in enumerate(network.acoustic.mel(source.memory, source.kept)):
        assert len(mel) == int(made.frames[row]) >= LENGTHS[row] - 1
        torch.testing.assert_close(network.acoustic.normalise(mel), made.mel[row, : len(mel)])


def test_bins_at_their_edges() -> None:
    """fairseq's: a value that is a bound lies in the bin below it."""
    bounds = torch.tensor([0.0, 1.0, 2.0])
    values = torch.tensor([-9.0, 0.0, 0.001, 1.0, 1.001, 2.0, 2.001, 99.0])
    assert bins(values, bounds).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_durations_are_rounded_and_at_least_one() -> None:
    """exp(x) - 1 to the nearest number, of two the even one; eos and padding have none."""
    frames = [-0.5, 0.0, 0.4, 1.4999, 2.5, 3.5, 3.5001, 7.0, 9.0]
    logs = torch.tensor([frames, frames]).double().add(1.0).log()
    kept = torch.arange(9) < torch.tensor([[9], [5]])
    assert durations_of(logs, kept, 50).tolist() == [[1, 1, 1, 1, 2, 4, 4, 7, 0], [1, 1, 1, 1, 0, 0, 0, 0, 0]]
    assert durations_of(torch.tensor([[100.0, 2.0]]), kept[:1, :2], 50).tolist() == [[50, 0]]


def test_phonemes_are_repeated_for_their_frames() -> None:
    x = torch.arange(8.0).view(2, 4, 1)
    found, frames = regulate(x, torch.tensor([[2, 0, 3, 0], [0, 1, 0, 0]]))
    assert frames.tolist() == [5, 1]
    assert found[0, :, 0].tolist() == [0, 0, 2, 2, 2]
    assert found[1, :1, 0].tolist() == [5]
    assert regulate(x, torch.zeros(2, 4, dtype=torch.int64))[1].tolist() == [0, 0]


def test_an_output_without_phonemes_has_no_frames() -> None:
    network = random_network(6).eval()
    source = network.encode(torch.tensor([[5, EOS], [EOS, PAD]]))
    one, none = network.acoustic.mel(source.memory, source.kept)
    assert len(one) > 0
    assert none.shape == (0, SMALL["mel_features"])


def test_an_output_that_is_too_long_is_cut_and_a_target_refused() -> None:
    assert cut(torch.tensor([[2, 1, 3, 4, 0], [1, 1, 1, 1, 0]]), 5).tolist() == [
        [2, 1, 2, 0, 0],
        [1, 1, 1, 1, 0],
    ]
    network = random_network(7, max_mel_len=5).eval()
    source = network.encode(torch.tensor([[4, 5, 6, 7, 8, 9, EOS]]))
    (mel,) = network.acoustic.mel(source.memory, source.kept)
    assert len(mel) == 5
    _, targets = random_batch(7, (7,))
    targets.durations[0, 1] = 6
    with pytest.raises(PassError, match=r"a target of \d+ frames, more than `max_mel_len` 5"):
        network.acoustic(source.memory, source.kept, targets)


@pytest.mark.parametrize(
    "changes",
    [{"acoustic_kernel": 4}, {"variance_bins": 1}, {"mel_features": 0}, {"acoustic_heads": 5}],
)
def test_bounds_of_the_configuration(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(changes))}`"):
        FastSpeech2Config(**changes)


def test_it_has_the_published_size() -> None:
    config = architecture("fastspeech2").config(src_vocab=80, tgt_vocab=80)
    with torch.device("meta"):
        network = FastSpeech2(config)
    assert 41.0e6 < sum(weight.numel() for weight in network.parameters()) < 41.5e6


# Training


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phonemes")
    write_phonemes(folder, 60)
    return folder


def test_it_learns_to_speak(data: Path, tmp_path: Path) -> None:
    """120 updates by `nartk-train`; the checkpoint speaks, with the statistics of its corpus."""
    pytest.importorskip("omegaconf", reason="fairseq is not installed: pip install 'nartk[train]'")
    log = tmp_path / "train.log"
    command = (
        f"{data} --task nartk_tts --criterion nartk_tts --arch nartk_fastspeech2_tiny --d-model 32"
        " --acoustic-encoder-layers 1 --acoustic-decoder-layers 1 --acoustic-ffn 48 --predictor-features 32"
        " --mel-features 3 --variance-bins 6 --dropout 0 --predictor-dropout 0 --optimizer nartk_adamw"
        " --lr-scheduler polynomial_decay --total-num-update 120 --max-update 120 --max-tokens 300 --lr 0.006"
        " --most-padding 0.5 --no-epoch-checkpoints --validate-interval 1000 --seed 3 --num-workers 0 --cpu"
        f" --save-interval 1000 --log-format json --log-interval 5 --save-dir {tmp_path} --log-file {log}"
    ).split()
    run([sys.executable, "-c", f"from nartk.cli.train import main\nassert main({command!r}) == 0"])
    logged = [json.loads(line) for line in log.read_text().splitlines() if line[:2] == '{"']
    logged = [{key: float(value) for key, value in each.items()} for each in logged if "mel" in each]
    assert all(logged[-1][name] < 0.7 * logged[0][name] for name in ("loss", *LOSSES))
    last = logged[-1]
    assert last["loss"] == pytest.approx(sum(last[name] for name in LOSSES), abs=1e-3)

    network = to_network(read_checkpoint(tmp_path / "checkpoint_last.pt")).eval()
    source = network.encode(torch.tensor([[5, 4, 6, EOS]]))
    with torch.no_grad():
        (mel,) = network.acoustic.mel(source.memory, source.kept)
    assert len(mel) >= 3
    assert -8.0 < float(mel.min()) < -6.0 < -5.0 < float(mel.max()) < -2.0  # as frames of the corpus are
    statistics = network.acoustic.statistics
    bounds = statistics.get_buffer("pitch_bounds")
    assert (float(bounds[0]), float(bounds[-1])) == (0.0, pytest.approx(4.5 + 0.03 * 2))
    corpus = SpeechCorpus.read(data / "train.speech.npz").statistics
    torch.testing.assert_close(statistics.get_buffer("mel_mean"), torch.from_numpy(corpus.mean))

    command = [str(tmp_path / "checkpoint_last.pt"), "--output", str(tmp_path / "model"), "--quiet"]
    assert convert(command) == 0
    found = nartk.load(tmp_path / "model").decode("K AA S")
    assert found.text == "K AA S"
    assert found.mel is not None
    np.testing.assert_allclose(found.mel, mel.numpy(), rtol=0, atol=1e-3)


def test_speech_is_read_as_it_is_written(tmp_path: Path) -> None:
    lines = [["AA", "S"], ["S"], ["K", "S", "AA"]]
    made = utterances(3, lines)
    SpeechCorpus.of(made).write(tmp_path / "a.npz")
    found = SpeechCorpus.read(tmp_path / "a.npz")
    assert found.phonemes.tolist() == [2, 1, 3]
    assert found.frames.tolist() == [len(each.mel) for each in made]
    for one, other in zip(found, made, strict=True):
        for name in ("mel", "durations", "pitch", "energy"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    frames = np.concatenate([each.mel for each in made]).astype(np.float64)
    statistics = found.statistics
    np.testing.assert_allclose(statistics.mean, frames.mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.deviation, frames.std(0), rtol=1e-5)
    assert statistics.energy == (0.0, pytest.approx(1.04))


def arrays() -> dict[str, Any]:
    """The arrays of a file of two utterances."""
    return {
        "phonemes": np.array([2, 1]),
        "durations": np.array([1, 2, 3]),
        "mel": np.zeros((6, 4), np.float32),
        "pitch": np.zeros(3, np.float32),
        "energy": np.zeros(3, np.float32),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pitch": None}, "it has no 'pitch'"),
        ({"mel": np.zeros(6, np.float32)}, r"'mel' is float32 \[6\], not numbers \[frames, bins\]"),
        ({"durations": np.array([1.0, 2, 3])}, r"'durations' is float64 \[3\], not whole numbers \[N\]"),
        ({"durations": np.array([-1, 4, 3])}, "'durations' has a number below 0"),
        ({"phonemes": np.array([3, 0])}, "'phonemes' has a number below 1"),
        ({"phonemes": np.array([], int)}, "it has no utterances"),
        ({"energy": np.array([0, np.nan, 0])}, "'energy' has an infinite number or NaN"),
        ({"pitch": np.zeros(2)}, "'pitch' has 2 phonemes, 'phonemes' 3 together"),
        ({"mel": np.zeros((5, 4))}, "'mel' has 5 frames, 'durations' 6 together"),
        ({"durations": np.array([3, 3, 0])}, "utterance 1 has no frames"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    found = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
    np.savez(tmp_path / "a.npz", **found)
    with pytest.raises(InputFileError, match=message) as raised:
        SpeechCorpus.read(tmp_path / "a.npz")
    assert raised.value.where == str(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"no arrays", pickle.dumps([1])])
def test_what_is_no_file_of_arrays_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputFileError, match="cannot be read as arrays"):
        SpeechCorpus.read(tmp_path / "a.npz")


def test_what_does_not_fit_is_named(data: Path, tmp_path: Path) -> None:
    fairseq_host.require_fairseq()
    from nartk.tasks.tts import TtsTask, TtsTaskConfig

    def load() -> Any:
        made = TtsTask(TtsTaskConfig(data=str(tmp_path)))
        made.load_dataset("train")
        return made

    for path in data.iterdir():
        shutil.copy(path, tmp_path)
    task = load()
    batch = task.datasets["train"].collater([task.datasets["train"][i] for i in range(3)])
    assert batch["net_input"]["durations"].sum() <= batch["net_input"]["mel"].shape[:2].numel()
    assert batch["net_input"]["durations"].shape == batch["target"].shape
    for i in range(3):
        assert batch["net_input"]["pitch"][i, int(batch["target"][i].ne(PAD).sum()) - 1] == 0.0

    for flags, message in (
        (["--mel-features", "6"], "--mel-features is 6, frames of train.speech.npz have 3"),
        (["--mel-features", "3", "--max-mel-len", "3"], r"--max-mel-len is 3, an utterance .* frames"),
    ):
        with pytest.raises(UsageError, match=message):
            fairseq_host.build("fastspeech2", *flags, trained=task)
    with pytest.raises(UsageError, match="trains on speech, which the task does not read"):
        fairseq_host.build("fastspeech2")

    lines = (tmp_path / "train.txt").read_text().splitlines()
    (tmp_path / "train.txt").write_text("\n".join([*lines[:-1], "AA Q"]) + "\n")
    with pytest.raises(InputFileError, match=r"train\.txt:60: 'Q' is not in dict\.txt"):
        load()
    (tmp_path / "train.txt").write_text("\n".join([lines[0] + " AA", *lines[1:]]) + "\n")
    with pytest.raises(LengthMismatchError, match=r"\d phonemes of utterance 0, line 1 of train.txt \d"):
        load()
    (tmp_path / "train.txt").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(LengthMismatchError, match=r"train\.speech\.npz has 60 utterances, train\.txt 59"):
        load()
    (tmp_path / "train.speech.npz").unlink()
    with pytest.raises(InputFileError, match=r"no train\.speech\.npz"):
        load()
    (tmp_path / "dict.txt").unlink()
    with pytest.raises(InputFileError, match=r"no dict\.txt"):
        load()
