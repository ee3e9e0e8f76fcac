"""Writes encoders.npz: what ESPnet's encoders of speech give, with random weights.

    pip install --target /tmp/espnet --no-deps espnet==202511 'typeguard<3'
    PYTHONPATH=/tmp/espnet:tests python tests/oracles/espnet_encoders.py tests/oracles/encoders.npz

Of each class in tests/support/espnet_encoders.py and each utterance, alone and in fp64: ``memory``
[S,d_model], ``ctc`` [S,V] and, behind each layer with CTC, ``ctc 1`` [S,V] and so on, which are logits. The
layers behind read their softmax. In front of OWSM-CTC's frames are embedded words, and a Transformer encodes
its prompt.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder
from espnet2.asr.encoder.e_branchformer_ctc_encoder import EBranchformerCTCEncoder
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from espnet2.asr.encoder.transformer_encoder import TransformerEncoder
from support.espnet_encoders import ENCODERS, PREFIX, WORDS, config_of, inputs_of, weights_of

# ESPnet's names of the modules of a layer, by nartk's.
MODULES = {
    "ffn1.up": "feed_forward_macaron.w_1",
    "ffn1.down": "feed_forward_macaron.w_2",
    "ffn2.up": "feed_forward.w_1",
    "ffn2.down": "feed_forward.w_2",
    "ffn1_norm": "norm_ff_macaron",
    "ffn2_norm": "norm_ff",
    "self_norm": "norm_mha",
    "final_norm": "norm_final",
    "conv_norm": "norm_conv",
    "conv.up": "conv_module.pointwise_conv1",
    "conv.depthwise": "conv_module.depthwise_conv",
    "conv.norm": "conv_module.norm",
    "conv.down": "conv_module.pointwise_conv2",
    "cgmlp_norm": "norm_mlp",
    "cgmlp.up": "cgmlp.channel_proj1.0",
    "cgmlp.norm": "cgmlp.csgu.norm",
    "cgmlp.depthwise": "cgmlp.csgu.conv",
    "cgmlp.down": "cgmlp.channel_proj2",
    "merge.depthwise": "depthwise_conv_fusion",
    "merge.out": "merge_proj",
    "cross_norm": "norm_cross_attn",
    # of the prompt's Transformer
    "ffn.up": "feed_forward.w_1",
    "ffn.down": "feed_forward.w_2",
    "ffn_norm": "norm2",
}
ATTENTION = {
    "out": ["linear_out"],
    "qkv": ["linear_q", "linear_k", "linear_v"],
    "q": ["linear_q"],
    "kv": ["linear_k", "linear_v"],
    "positions": ["linear_pos"],
}


def layer_weights(name: str, value: np.ndarray, attention: str) -> dict[str, np.ndarray]:
    """A layer's weight, or its parts, by ESPnet's names."""
    module, _, kind = name.rpartition(".")
    if (found := re.fullmatch(r"(self|cross)_attention\.(\w+)", name)) and found[2].startswith("bias_"):
        return {f"{attention}.pos_{found[2]}": value}
    if found := re.fullmatch(r"(self|cross)_attention\.(\w+)", module):
        owner = attention if found[1] == "self" else "cross_attn"
        parts = ATTENTION[found[2]]
        return {
            f"{owner}.{part}.{kind}": own
            for part, own in zip(parts, np.split(value, len(parts)), strict=True)
        }
    if module in ("conv.up", "conv.down"):
        value = value[:, :, None] if value.ndim == 2 else value  # a convolution of one position
    return {f"{MODULES[module]}.{kind}": value}


def load(name: str, encoder: Any, ctc: Any, prompt: Any, embedding: Any) -> None:
    """Gives the modules nartk's weights; every one of theirs is set."""
    attention = "self_attn" if name == "ConformerEncoder" else "attn"
    own: dict[str, np.ndarray] = {}
    heard: dict[str, np.ndarray] = {}
    prompts: dict[str, np.ndarray] = {}
    for key, value in weights_of(name).items():
        if found := re.fullmatch(r"encoder_layers\.(\d+)\.(.+)", key):
            for part, each in layer_weights(found[2], value, attention).items():
                own[f"encoders.{found[1]}.{part}"] = each
        elif found := re.fullmatch(r"encoder_prompt\.layers\.(\d+)\.(.+)", key):
            for part, each in layer_weights(found[2], value, "self_attn").items():
                prompts[f"encoders.{found[1]}.{part}".replace("norm_mha", "norm1")] = each
        elif found := re.fullmatch(r"encoder_subsample\.conv\.(\d+)\.(\w+)", key):
            own[f"embed.conv.{2 * int(found[1])}.{found[2]}"] = value
        elif key.startswith("encoder_subsample.out."):
            inner = "" if config_of(name).subsampling == 8 else "0."
            own[f"embed.out.{inner}{key.rpartition('.')[2]}"] = value
        elif key == "encoder_prompt.embedding.words.weight":
            embedding.weight.data = torch.from_numpy(value)
        else:
            head, _, kind = key.rpartition(".")
            place, new = {
                "encoder_norm": (own, "after_norm"),
                "condition": (own, "conditioning_layer"),
                "ctc": (heard, "ctc_lo"),
                "encoder_prompt.norm": (prompts, "after_norm"),
            }[head]
            place[f"{new}.{kind}"] = value
    for module, weights in ((encoder, own), (ctc, heard), (prompt, prompts)):
        if module is not None:
            state = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in weights.items()}
            counted = {key for key in module.state_dict() if not key.endswith("num_batches_tracked")}
            assert counted == {*state}, counted ^ {*state}
            module.load_state_dict(state, strict=False)


def make(name: str) -> tuple[Any, Any, Any, Any]:
    """ESPnet's encoder, CTC head, prompt encoder and embedding of a case, with its weights."""
    config = config_of(name)
    common: dict[str, Any] = {
        "input_size": config.input_features,
        "output_size": config.d_model,
        "attention_heads": config.encoder_heads,
        "linear_units": config.encoder_ffn,
        "num_blocks": config.encoder_layers,
        "dropout_rate": 0.0,
        "positional_dropout_rate": 0.0,
        "rel_pos_type": "latest",
        "macaron_style" if name == "ConformerEncoder" else "macaron_ffn": True,
        "interctc_layer_idx": [*config.intermediate_layers],
        "interctc_use_conditioning": True,
    }
    prompt = embedding = None
    if name == "ConformerEncoder":
        encoder = ConformerEncoder(**common, cnn_module_kernel=config.conv_kernel, input_layer="conv2d")
    else:
        common |= {
            "cgmlp_linear_units": config.cgmlp_features,
            "cgmlp_conv_kernel": config.conv_kernel,
            "merge_conv_kernel": config.merge_kernel,
            "use_ffn": True,
        }
        if name == "EBranchformerEncoder":
            encoder = EBranchformerEncoder(**common, input_layer="conv2d")
        else:
            reads = [i in config.prompted_layers for i in range(config.encoder_layers)]
            encoder = EBranchformerCTCEncoder(**common, input_layer="conv2d8", use_cross_attention=reads)
            prompt = TransformerEncoder(
                config.d_model,
                output_size=config.d_model,
                attention_heads=config.encoder_heads,
                linear_units=config.encoder_ffn,
                num_blocks=config.prompt_layers,
                dropout_rate=0.0,
                positional_dropout_rate=0.0,
                input_layer=None,
            )
            embedding = torch.nn.Embedding(WORDS, config.d_model)
    encoder.conditioning_layer = torch.nn.Linear(WORDS, config.d_model)
    ctc = CTC(WORDS, config.d_model)
    for module in (encoder, ctc, prompt, embedding):
        if module is not None:
            module.double().eval()
    load(name, encoder, ctc, prompt, embedding)
    return encoder, ctc, prompt, embedding


def main(file: str) -> None:
    torch.set_grad_enabled(False)
    results = {}
    for name in ENCODERS:
        encoder, ctc, prompt, embedding = make(name)
        for i, (frames, words) in enumerate(inputs_of(name)):
            beside: dict[str, Any] = {}
            if prompt is not None:
                given = torch.from_numpy(words)[None]
                beside["memory"], _, _ = prompt(given, torch.tensor([len(words)]))
                beside["memory_mask"] = torch.ones(1, 1, len(words), dtype=torch.bool)
                beside["prefix_embeds"] = embedding(torch.tensor([PREFIX]))
            speech = torch.from_numpy(frames)[None]
            (memory, layers), _, _ = encoder(speech, torch.tensor([len(frames)]), ctc=ctc, **beside)
            results[f"{name} {i} memory"] = memory[0].numpy()
            results[f"{name} {i} ctc"] = ctc.ctc_lo(memory)[0].numpy()
            for layer, out in layers:
                results[f"{name} {i} ctc {layer}"] = ctc.ctc_lo(out)[0].numpy()
    np.savez_compressed(file, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
