"""Transformer TTS: its decoder is fairseq's, step by step it gives what it gives at once, and it learns."""

from __future__ import annotations

import json
import math
import sys
import warnings
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host
from support.commands import main_of, run
from support.phonemes import SYMBOLS, write_phonemes
from support.transformers_small import stir
from torch import Tensor

import nartk
from nartk.adapters.fairseq.checkpoint import read_checkpoint
from nartk.adapters.fairseq.network import to_network
from nartk.architectures import architecture
from nartk.architectures.transformer_tts import TransformerTtsConfig
from nartk.checkpoints.hugging_face.families import FAIRSEQ_NAMES
from nartk.checkpoints.hugging_face.tensors import names_of
from nartk.cli.convert import main as convert
from nartk.data.audio.sounds import read_sound
from nartk.data.audio.targets import SUFFIX, SpeechCorpus
from nartk.errors import PassError, UsageError
from nartk.models.fastspeech2 import SpeechTargets
from nartk.models.losses import TtsTraining
from nartk.models.transformer_tts import TransformerTts

WORDS, PAD, EOS = 12, 1, 2
CLOSE = 1e-5
LENGTHS = (7, 3, 2, 9)  # of sentences, with eos
FRAMES = (11, 3, 8, 5)  # of their speech
SMALL: dict[str, Any] = {
    "src_vocab": WORDS,
    "tgt_vocab": WORDS,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_heads": 2,
    "decoder_heads": 2,
    "encoder_ffn": 24,
    "decoder_ffn": 24,
    "prenet_features": 20,
    "mel_features": 6,
    "max_mel_len": 30,
    "max_source_len": 32,
    "dropout": 0.0,
    "prenet_dropout": 0.0,
}


def random_network(seed: int, **changes: Any) -> TransformerTts:
    torch.manual_seed(seed)
    network = stir(TransformerTts(TransformerTtsConfig(**{**SMALL, **changes}))).double().eval()
    with torch.no_grad():
        network.decoder.statistics.get_buffer("mel_mean").normal_()
        network.decoder.statistics.get_buffer("mel_deviation").uniform_(0.5, 2.0)
    return network


def random_tokens(seed: int, lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    """Tokens [B,N] with eos, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(tokens, lengths, strict=True):
        row[: length - 1] = torch.randint(4, WORDS, (length - 1,), generator=generator)
        row[length - 1] = EOS
    return tokens


def random_speech(seed: int) -> SpeechTargets:
    """Speech of `FRAMES`, all of it said by the first phoneme."""
    generator = torch.Generator().manual_seed(seed)
    mel = torch.randn((len(FRAMES), max(FRAMES), SMALL["mel_features"]), generator=generator).double()
    durations = torch.zeros(len(FRAMES), max(LENGTHS), dtype=torch.int64)
    durations[:, 0] = torch.tensor(FRAMES)
    return SpeechTargets(mel, durations, mel[:, :1, 0], mel[:, :1, 0])


def theirs(network: TransformerTts) -> Any:
    """fairseq's decoder with the weights of a network."""
    fairseq_host.require_fairseq()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fairseq.models.text_to_speech import tts_transformer

    config = network.config
    args = Namespace(
        output_frame_dim=config.mel_features,
        n_frames_per_step=config.frames_per_step,
        max_target_positions=config.most_steps,
        encoder_embed_dim=config.d_model,
        decoder_embed_dim=config.d_model,
        decoder_ffn_embed_dim=config.decoder_ffn,
        decoder_transformer_layers=config.decoder_layers,
        decoder_attention_heads=config.decoder_heads,
        decoder_normalize_before=config.decoder_norm_first,
        prenet_dim=config.prenet_features,
        prenet_dropout=0.0,
        dropout=0.0,
    )
    tts_transformer.base_architecture(args)
    found = tts_transformer.TTSTransformerDecoder(args, fairseq_host.task(WORDS).source_dictionary)
    weights = {}
    for name, weight in network.state_dict().items():
        if name.startswith(("decoder_layers.", "decoder_norm.")):
            names = names_of(name, FAIRSEQ_NAMES, gated=False)
            for each, own in zip(names, weight.chunk(len(names)), strict=True):
                weights[each.removeprefix("decoder.").replace("layers.", "transformer_layers.", 1)] = own
        elif name.startswith("decoder_prenet."):
            path, _, kind = name.removeprefix("decoder_prenet.").rpartition(".")
            weights[f"prenet.1.{kind}" if path == "out" else f"prenet.0.{path}.0.{kind}"] = weight
        elif name.startswith("decoder_out."):
            kind = name.removeprefix("decoder_out.")
            weights |= {f"feat_proj.{kind}": weight[:-1], f"eos_proj.{kind}": weight[-1:]}
    missing, unexpected = found.load_state_dict(weights, strict=False)
    own = ("postnet.", "pos_emb_alpha", "embed_positions.")  # what ours has not
    assert [name for name in missing if not name.startswith(own)] == unexpected == []
    return found.double().eval()


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("frames_per_step", [1, 2, 4])
def test_the_decoder_is_fairseqs(frames_per_step: int, norm_first: bool) -> None:
    """Sentences of unequal lengths and speech of unequal lengths, teacher-forced."""
    network = random_network(1, frames_per_step=frames_per_step, decoder_norm_first=norm_first)
    oracle = theirs(network)
    source = network.encode(random_tokens(1))
    steps = torch.tensor([5, 2, 7, 1])
    previous = torch.randn(4, 7, frames_per_step * SMALL["mel_features"]).double()
    with torch.no_grad():
        found = network.decoder(previous, network.decoder.source_kv(source.memory), source.mask)
        encoded = {
            "encoder_out": [source.memory.transpose(0, 1)],
            "encoder_padding_mask": [~source.kept],
        }
        _, stop, extra = oracle(previous, encoder_out=encoded, target_lengths=steps)
    counted = torch.arange(7) < steps[:, None]
    wanted = torch.cat([extra["feature_out"], stop], 2)
    torch.testing.assert_close(found[counted], wanted[counted], rtol=0, atol=CLOSE)


def spoken_at_once(network: TransformerTts, tokens: Tensor, mel: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised frames [T,F] and logits of the end [U] that the whole pass gives where these were said."""
    source = network.encode(tokens)
    steps = network.decoder.normalise(mel).unflatten(0, (-1, network.config.frames_per_step)).flatten(1)
    previous = torch.cat([torch.zeros_like(steps[:1]), steps[:-1]])
    found = network.decoder(previous[None], network.decoder.source_kv(source.memory), source.mask)[0]
    return found[:, :-1].unflatten(1, (-1, SMALL["mel_features"])).flatten(0, 1), found[:, -1]


@torch.no_grad()
@pytest.mark.parametrize("frames_per_step", [1, 2, 4])
def test_step_by_step_it_gives_what_it_gives_at_once(frames_per_step: int) -> None:
    """And ends with the first step whose logit is above 0, each sentence where its own does."""
    network = random_network(2, frames_per_step=frames_per_step, max_mel_len=40, decoder_norm_first=False)
    tokens = random_tokens(2)
    stop = network.decoder.out
    stop.bias[-1] = -1e9
    source = network.encode(tokens)
    endless = network.decoder.mel(source.memory, source.kept)
    assert [len(mel) for mel in endless] == [40] * 4
    alone = [tokens[row : row + 1, :length] for row, length in enumerate(LENGTHS)]
    logits = []
    for each, mel in zip(alone, endless, strict=True):
        frames, logit = spoken_at_once(network, each, mel)
        torch.testing.assert_close(frames, network.decoder.normalise(mel), rtol=0, atol=1e-9)
        logits.append(logit + 1e9)
    rows = [logit.tolist() for logit in logits]

    def ends(threshold: float) -> list[int]:
        """Frames of each sentence if it ends with the first step above a threshold."""
        firsts = ([i for i, logit in enumerate(row) if logit > threshold] for row in rows)
        return [frames_per_step * (found[0] + 1) if found else 40 for found in firsts]

    threshold = max((x - 1e-4 for row in rows for x in row), key=lambda x: len({*ends(x)}))
    assert len({*ends(threshold)}) > 2
    stop.bias[-1] = -threshold
    found = network.decoder.mel(source.memory, source.kept)
    assert [len(mel) for mel in found] == ends(threshold)
    for mel, wanted in zip(found, endless, strict=True):
        torch.testing.assert_close(mel, wanted[: len(mel)], rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_sentence_does_not_depend_on_its_batch() -> None:
    network = random_network(3, frames_per_step=2)
    network.decoder.out.bias[-1] = -0.3
    tokens = random_tokens(3)
    together = network.encode(tokens)
    batch = network.decoder.mel(together.memory, together.kept)
    for row, length in enumerate(LENGTHS):
        source = network.encode(tokens[row : row + 1, :length])
        (mel,) = network.decoder.mel(source.memory, source.kept)
        torch.testing.assert_close(batch[row], mel, rtol=0, atol=1e-12)


@torch.no_grad()
def test_an_output_that_is_too_long_is_cut_and_a_target_refused() -> None:
    network = random_network(4, frames_per_step=4, max_mel_len=10)
    network.decoder.out.bias[-1] = -1e9
    source = network.encode(random_tokens(4))
    assert [len(mel) for mel in network.decoder.mel(source.memory, source.kept)] == [10] * 4
    with pytest.raises(PassError, match="a target of 11 frames, more than `max_mel_len` 10"):
        network.decoder.losses(source, random_speech(4), stop_weight=1.0)


@torch.no_grad()
@pytest.mark.parametrize("frames_per_step", [1, 4])
def test_losses_are_means_over_all_that_counts(frames_per_step: int) -> None:
    """By hand, row by row; a last step that is not full has the last frame again."""
    network = random_network(5, frames_per_step=frames_per_step)
    tokens, targets = random_tokens(5), random_speech(5)
    losses = network.losses(
        network.encode(tokens), tokens, training=TtsTraining(stop_weight=3.0), update=0, speech=targets
    )
    sums = dict.fromkeys(("mel", "mse", "stop"), 0.0)
    count = values = 0
    for row, (length, size) in enumerate(zip(LENGTHS, FRAMES, strict=True)):
        mel = [*targets.mel[row, :size]]
        while len(mel) % frames_per_step:
            mel.append(targets.mel[row, size - 1])
        said = torch.stack(mel)
        made, logits = spoken_at_once(network, tokens[row : row + 1, :length], said)
        difference = made - network.decoder.normalise(said)
        sums["mel"] += float(difference.abs().sum())
        sums["mse"] += float(difference.square().sum())
        values += difference.numel()
        for i, logit in enumerate(logits.tolist()):
            last = i == len(logits) - 1
            sums["stop"] += 3.0 * math.log1p(math.exp(-logit)) if last else math.log1p(math.exp(logit))
            count += 1
    for name, total in sums.items():
        assert float(losses.parts[name]) == pytest.approx(
            total / (count if name == "stop" else values), rel=1e-9
        )
    assert int(losses.tokens) == sum(LENGTHS)
    assert float(losses.total) == pytest.approx(sum(map(float, losses.parts.values())) * sum(LENGTHS))


def test_the_prenet_drops_features_in_training_alone() -> None:
    network = random_network(6, prenet_dropout=0.5)
    frames = torch.randn(1, 3, SMALL["mel_features"]).double()
    assert torch.equal(network.decoder.prenet(frames), network.decoder.prenet(frames))
    network.train()
    assert not torch.equal(network.decoder.prenet(frames), network.decoder.prenet(frames))


@pytest.mark.parametrize(
    "changes",
    [{"frames_per_step": 3}, {"prenet_features": 0}, {"mel_features": 0}, {"decoder_heads": 5}],
)
def test_bounds_of_the_configuration(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(changes))}`"):
        TransformerTtsConfig(**changes)
    with pytest.raises(UsageError, match="`stop_weight`"):
        TtsTraining(stop_weight=0.0)


@pytest.mark.filterwarnings("ignore")  # fairseq's own
def test_its_decoder_has_fairseqs_size() -> None:
    """But for the postnet and the scale of positions, as its `tts_transformer` has them."""
    fairseq_host.require_fairseq()
    from fairseq.models.text_to_speech import tts_transformer

    args = Namespace(n_frames_per_step=1, max_target_positions=4096)
    tts_transformer.base_architecture(args)
    own = architecture("transformer_tts")
    with torch.device("meta"):
        network = own.network(own.config(src_vocab=80, tgt_vocab=80, **own.presets["nartk_transformer_tts"]))
        other = tts_transformer.TTSTransformerDecoder(args, fairseq_host.task(80).source_dictionary)
    left_out = sum(weight.numel() for weight in other.postnet.parameters()) + 1
    count = sum(weight.numel() for weight in other.parameters()) - left_out
    assert sum(weight.numel() for weight in network.decoder.parameters()) == count


def test_it_learns_to_speak(tmp_path: Path) -> None:
    """200 updates by `nartk-train` on 8 utterances, which the checkpoint then says frame by frame."""
    pytest.importorskip("omegaconf", reason="fairseq is not installed: pip install 'nartk[train]'")
    write_phonemes(tmp_path, 8)
    log = tmp_path / "train.log"
    command = (
        f"{tmp_path} --task nartk_tts --criterion nartk_tts --arch nartk_transformer_tts_tiny --d-model 32"
        " --encoder-layers 1 --encoder-ffn 64 --decoder-ffn 64 --prenet-features 32 --prenet-dropout 0"
        " --frames-per-step 2 --mel-features 3 --max-mel-len 60 --dropout 0 --optimizer nartk_adamw"
        " --lr-scheduler polynomial_decay --total-num-update 200 --max-update 200 --max-tokens 300 --lr 0.004"
        " --clip-norm 5 --most-padding 0.9 --no-epoch-checkpoints --validate-interval 1000 --seed 3"
        " --num-workers 0 --cpu --save-interval 1000 --log-format json --log-interval 5"
        f" --save-dir {tmp_path} --log-file {log}"
    ).split()
    run([sys.executable, "-c", f"from nartk.cli.train import main\nassert main({command!r}) == 0"])
    logged = [json.loads(line) for line in log.read_text().splitlines() if line[:2] == '{"']
    last = [{key: float(value) for key, value in each.items()} for each in logged if "stop" in each][-1]
    assert last["loss"] == pytest.approx(sum(last[name] for name in ("mel", "mse", "stop")), abs=1e-3)

    checkpoint, folder = tmp_path / "checkpoint_last.pt", tmp_path / "model"
    assert convert([str(checkpoint), "--output", str(folder), "--quiet"]) == 0
    network, corpus = (
        to_network(read_checkpoint(checkpoint)).eval(),
        SpeechCorpus.read(tmp_path / f"train{SUFFIX}"),
    )
    lines = (tmp_path / "train.txt").read_text().splitlines()
    for line, said, found in zip(lines, corpus, nartk.load(folder).decode(lines), strict=True):
        source = network.encode(torch.tensor([[*(4 + SYMBOLS.index(word) for word in line.split()), EOS]]))
        with torch.no_grad():
            (mel,) = network.acoustic.mel(source.memory, source.kept)
        assert found.text == line
        assert found.mel is not None
        np.testing.assert_allclose(found.mel, mel.numpy(), rtol=0, atol=1e-3)
        assert len(mel) == len(said.mel) + len(said.mel) % 2
        assert np.abs(found.mel[: len(said.mel)] - said.mel).mean() < 0.1

    assert convert([str(folder), "--output", str(tmp_path / "int8"), "--quantize", "int8", "--quiet"]) == 0
    wanted, stored = nartk.load(folder, dtype="int8"), nartk.load(tmp_path / "int8")
    for one, other in zip(wanted.decode(lines), stored.decode(lines), strict=True):
        assert one.mel is not None
        assert other.mel is not None
        assert np.array_equal(one.mel, other.mel)


def test_an_output_that_does_not_end_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its sound is written; the user is told that it is cut."""
    fairseq_host.require_fairseq()
    network = random_network(7, src_vocab=7, tgt_vocab=7).float()
    network.decoder.out.bias.data[-1] = -1e9
    write_phonemes(tmp_path, 2)
    args = Namespace(**asdict(network.config), arch="nartk_transformer_tts")
    weights = {f"core.{name}": each for name, each in network.state_dict().items()}
    fairseq_host.save(tmp_path / "a.pt", args, weights)
    command = f"{tmp_path / 'a.pt'} --output {tmp_path / 'model'} --dict {tmp_path / 'dict.txt'} --quiet"
    assert convert(command.split()) == 0
    (tmp_path / "in.txt").write_text("AA K\n\n")
    command = f"decode {tmp_path / 'model'} {tmp_path / 'in.txt'} --speech {tmp_path / 'out'}"
    code, text, err = main_of(command, capfd)
    assert (code, text) == (0, "AA K\n\n")
    assert "in.txt:1: the sound ends after 30 frames, the model's longest output" in err
    assert len(read_sound(tmp_path / "out" / "1.wav", rate=22050)) == 30 * 256
