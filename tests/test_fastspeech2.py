"""FastSpeech 2 is fairseq's network, and its bins, durations and losses are as published."""

from __future__ import annotations

import math
import warnings
from argparse import Namespace
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.transformers_small import stir
from torch import Tensor

from nartk.architectures import architecture
from nartk.architectures.fastspeech2 import FastSpeech2Config
from nartk.errors import PassError, UsageError
from nartk.models.fastspeech2 import LOSSES, FastSpeech2, SpeechTargets, bins, durations_of, regulate
from nartk.models.losses import Training

WORDS, PAD, EOS = 12, 1, 2
CLOSE = 1e-5
SMALL: dict[str, Any] = {
    "d_model": 16,
    "acoustic_encoder_layers": 2,
    "acoustic_decoder_layers": 2,
    "acoustic_heads": 2,
    "acoustic_ffn": 24,
    "acoustic_kernel": 5,
    "acoustic_second_kernel": 5,
    "predictor_features": 20,
    "mel_features": 6,
    "variance_bins": 9,
    "dropout": 0.0,
    "predictor_dropout": 0.0,
    "max_source_len": 32,
    "max_target_len": 32,
    "max_mel_len": 200,
}
LENGTHS = (7, 3, 2, 9)  # with eos
LOWEST, HIGHEST = -1.5, 2.0  # of pitch and energy


def random_network(seed: int, **changes: Any) -> FastSpeech2:
    torch.manual_seed(seed)
    config = FastSpeech2Config(src_vocab=WORDS, tgt_vocab=WORDS, **{**SMALL, **changes})
    network = stir(FastSpeech2(config)).double()
    statistics = network.acoustic.statistics
    with torch.no_grad():
        for name in ("pitch", "energy"):
            bounds = statistics.get_buffer(f"{name}_bounds")
            bounds.copy_(torch.linspace(LOWEST, HIGHEST, len(bounds)))
        statistics.get_buffer("mel_mean").normal_()
        statistics.get_buffer("mel_deviation").uniform_(0.5, 2.0)
        network.acoustic.encoder_positions.fill_(0.7)
        network.acoustic.decoder_positions.fill_(-1.3)
        network.acoustic.variance.duration.out.bias.fill_(1.0)
    return network


def theirs(network: FastSpeech2) -> Any:
    """fairseq's encoder with the weights of a network."""
    fairseq_host.require_fairseq()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fairseq.models.text_to_speech import fastspeech2

    config = network.config
    args = Namespace(
        n_frames_per_step=1,
        output_frame_dim=config.mel_features,
        max_source_positions=config.max_source_len,
        encoder_embed_dim=config.d_model,
        decoder_embed_dim=config.d_model,
        encoder_layers=config.acoustic_encoder_layers,
        decoder_layers=config.acoustic_decoder_layers,
        encoder_attention_heads=config.acoustic_heads,
        decoder_attention_heads=config.acoustic_heads,
        fft_hidden_dim=config.acoustic_ffn,
        fft_kernel_size=config.acoustic_kernel,
        attention_dropout=0.0,
        var_pred_hidden_dim=config.predictor_features,
        var_pred_kernel_size=3,
        var_pred_dropout=0.0,
        var_pred_n_bins=config.variance_bins,
        pitch_min=LOWEST,
        pitch_max=HIGHEST,
        energy_min=LOWEST,
        energy_max=HIGHEST,
        dropout=0.0,
    )
    fastspeech2.base_architecture(args)
    found = fastspeech2.FastSpeech2Encoder(args, fairseq_host.task(WORDS).source_dictionary, None)
    weights = {}
    for name, weight in network.state_dict().items():
        name = name.removeprefix("acoustic.")
        for ours, other in (
            ("encoder.words", "embed_tokens"),
            ("encoder_positions", "pos_emb_alpha"),
            ("decoder_positions", "dec_pos_emb_alpha"),
            ("encoder.", "encoder_fft_layers."),
            ("decoder.", "decoder_fft_layers."),
            ("out.", "out_proj."),
            ("variance.pitch_embedding", "var_adaptor.embed_pitch"),
            ("variance.energy_embedding", "var_adaptor.embed_energy"),
        ):
            if name.startswith(ours):
                name = other + name.removeprefix(ours)
                break
        for ours, other in (
            (".self_norm.", ".layer_norm."),
            (".ffn_norm.", ".ffn.layer_norm."),
            (".ffn.up.", ".ffn.ffn.0."),
            (".ffn.down.", ".ffn.ffn.2."),
            (".self_attention.out.", ".self_attn.out_proj."),
            (".conv.0.", ".conv1.0."),
            (".conv.1.", ".conv2.0."),
            (".norm.0.", ".ln1."),
            (".norm.1.", ".ln2."),
        ):
            name = name.replace(ours, other)
        if name.startswith("variance."):
            part, _, rest = name.removeprefix("variance.").partition(".")
            name = f"var_adaptor.{part}_predictor.{rest.replace('out.', 'proj.')}"
        if ".qkv." in name:
            for letter, own in zip("qkv", weight.chunk(3), strict=True):
                weights[name.replace("self_attention.qkv", f"self_attn.{letter}_proj")] = own
        elif not name.startswith("statistics."):
            weights[name] = weight
    missing, unexpected = found.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["embed_positions._float_tensor"], [])
    found = found.double().train(network.training)
    for name in ("pitch", "energy"):  # which are no buffers
        bounds = getattr(found.var_adaptor, f"{name}_bins").double()
        torch.testing.assert_close(
            bounds, network.acoustic.statistics.get_buffer(f"{name}_bounds"), rtol=0, atol=1e-6
        )
        setattr(found.var_adaptor, f"{name}_bins", network.acoustic.statistics.get_buffer(f"{name}_bounds"))
    return found


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
        (network.encoder.words, oracle.embed_tokens),
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
    losses = network.losses(network.encode(tokens), tokens, training=Training(), update=0, speech=targets)
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


def test_an_output_that_is_too_long_is_refused() -> None:
    network = random_network(7, max_mel_len=5).eval()
    source = network.encode(torch.tensor([[4, 5, 6, 7, 8, 9, EOS]]))
    with pytest.raises(PassError, match=r"an output of \d+ frames, more than `max_mel_len` 5"):
        network.acoustic.mel(source.memory, source.kept)


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
