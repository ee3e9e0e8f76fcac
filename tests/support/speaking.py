"""Small random FastSpeech 2 networks, and fairseq's with the same weights."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nartk.architectures.fastspeech2 import FastSpeech2Config
from nartk.models.fastspeech2 import FastSpeech2
from nartk.protocols.spectrograms import MelSettings
from nartk.vocab import SPECIALS
from support import fairseq_host
from support.transformers_small import stir

WORDS, EOS = 12, 2
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
FIRST_WORD = len(SPECIALS)
PHONEMES = [f"P{i}" for i in range(WORDS - FIRST_WORD)]
MEL = MelSettings(sample_rate=16000, bins=SMALL["mel_features"], window=96, hop=24, high=7000)
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
            ("encoder_embedding.words", "embed_tokens"),
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


def speaker(seed: int = 1, **changes: Any) -> FastSpeech2:
    """A network whose durations are 4 frames, far from a rounding, and of which any error is small."""
    network = random_network(seed, **changes).float().eval()
    variance = network.acoustic.variance
    with torch.no_grad():
        for each in variance.duration.out.parameters():
            each.fill_(0.0)
        variance.duration.out.bias.fill_(float(np.log(1 + 4.1)))
        network.acoustic.statistics.get_buffer("mel_mean").sub_(6.0)  # as quiet as speech is
    return network


def write_checkpoint(path: Path, network: FastSpeech2, **task: str) -> Path:
    fairseq_host.require_fairseq()
    args = Namespace(**asdict(network.config), arch="nartk_fastspeech2")
    weights = {f"core.{name}": each for name, each in network.state_dict().items()}
    cfg = {"model": args, "task": {"_name": "nartk_tts", **task}, "checkpoint": {}}
    return fairseq_host.save(path, args, weights, cfg=cfg)


def write_training(folder: Path) -> Path:
    """Writes what a conversion reads of a folder of training data, and a checkpoint of random weights."""
    (folder / "dict.txt").write_text("".join(f"{each} 1\n" for each in PHONEMES))
    (folder / "mel.json").write_text(json.dumps(asdict(MEL)))
    write_checkpoint(folder / "checkpoint.pt", speaker(7), data=str(folder))
    return folder
