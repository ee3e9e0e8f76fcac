"""fairseq's own models as peers that comparisons run against.

The Transformer has the weights of ours; unlike nartk_transformer it has fairseq's layers and its incremental
decoding. The Conformer has a shape of ours and random weights.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.speech_to_text.s2t_conformer import S2TConformerModel
from fairseq.models.speech_to_text.s2t_transformer import base_architecture as speech_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator

from nartk.adapters.names import position_table, renamed
from nartk.architectures.settings import POSITIONS
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.hugging_face.families import FAIRSEQ_NAMES
from nartk.errors import UnsupportedCheckpointError
from nartk.models.transformer import Transformer
from nartk.vocab import SPECIALS, Vocab

# What fairseq's `transformer` has of our choices, and settings of ours that it has not.
_KNOWN = {
    "activation": ("relu", "gelu"),
    "encoder_positions": POSITIONS,
    "decoder_positions": POSITIONS,
    "share_embeddings": ("all", "decoder", "none"),
}
_UNKNOWN = (
    "gated_ffn", "norm", "norm_eps", "bias", "head_features", "scale_attention", "output_bias",
    "scale_output", "encoder_final_norm", "decoder_final_norm", "decoder_recurrence",
)  # fmt: skip


def to_dictionary(vocab: Vocab) -> Dictionary:
    """fairseq's dictionary of the same words and ids."""
    dictionary = Dictionary()
    for word in vocab.words[len(SPECIALS) :]:
        dictionary.add_symbol(word, overwrite=True)
    return dictionary


def to_generator(model: Transformer, source: Vocab, target: Vocab, *, beam_size: int) -> SequenceGenerator:
    """fairseq's search over `to_fairseq`'s model; outputs may be empty, as ours may."""
    theirs = to_fairseq(model, source, target)
    return SequenceGenerator([theirs], to_dictionary(target), beam_size=beam_size, min_len=0)


def to_fairseq(model: Transformer, source: Vocab, target: Vocab) -> Any:
    """fairseq's `transformer`, in evaluation mode, that gives `model`'s logits.

    Raises:
        UnsupportedCheckpointError: fairseq's has no such settings.
    """
    config = model.config
    known = _KNOWN | {name: (getattr(TransformerConfig, name),) for name in _UNKNOWN}
    for name, values in known.items():
        if getattr(config, name) not in values:
            raise UnsupportedCheckpointError(f"`{name}` {getattr(config, name)!r}, which fairseq has not")
    position_types = (config.encoder_positions, config.decoder_positions)
    if position_types.count("none") == 1:
        raise UnsupportedCheckpointError("positions on one side alone, which fairseq has not")
    args = Namespace(
        **_sizes(config),
        encoder_normalize_before=config.encoder_norm_first,
        decoder_normalize_before=config.decoder_norm_first,
        encoder_learned_pos=config.encoder_positions == "learned",
        decoder_learned_pos=config.decoder_positions == "learned",
        no_token_positional_embeddings=position_types == ("none", "none"),
        activation_fn=config.activation,
        layernorm_embedding=config.norm_embedding,
        no_scale_embedding=not config.scale_embedding,
        share_all_embeddings=config.share_embeddings == "all",
        share_decoder_input_output_embed=config.share_embeddings != "none",
    )
    base_architecture(args)
    dictionary = to_dictionary(source)
    other = dictionary if source == target else to_dictionary(target)
    task = Namespace(source_dictionary=dictionary, target_dictionary=other)
    theirs = TransformerModel.build_model(args, task).eval()
    weights = theirs.state_dict() | renamed(model, FAIRSEQ_NAMES)
    weights["decoder.output_projection.weight"] = model.output.weight.detach()
    for side, embedding, longest in (
        ("encoder", model.encoder.embedding, config.max_source_len),
        ("decoder", model.decoder.embedding, config.max_target_len),
    ):
        if embedding.positions is not None:
            # fairseq's tables have unused rows up to the padding id.
            table = torch.zeros_like(weights[f"{side}.embed_positions.weight"])
            table[config.pad + 1 :] = position_table(embedding, longest)
            weights[f"{side}.embed_positions.weight"] = table
    theirs.load_state_dict(weights)
    return theirs.requires_grad_(False)


def _sizes(config: Any) -> dict[str, int]:
    """fairseq's names of the sizes of an encoder and an autoregressive decoder."""
    sizes = {f"{side}_embed_dim": config.side_features(side) for side in ("encoder", "decoder")}
    for name, ours in (("layers", "layers"), ("ffn_embed_dim", "ffn"), ("attention_heads", "heads")):
        sizes |= {f"{side}_{name}": getattr(config, f"{side}_{ours}") for side in ("encoder", "decoder")}
    lengths = {"max_source_positions": config.max_source_len, "max_target_positions": config.max_target_len}
    return sizes | lengths


def random_conformer(config: Any, vocab: Vocab) -> Any:
    """fairseq's `s2t_conformer` of a Conformer's shape, in evaluation mode, with random weights.

    Its attention is ESPnet's, with relative positions; two convolutions of kernel 5 subsample by 4.
    """
    args = Namespace(
        **_sizes(config),
        input_feat_per_channel=config.input_features,
        input_channels=1,
        depthwise_conv_kernel_size=config.conv_kernel,
        attn_type="espnet",
        pos_enc_type="rel_pos",
        fp16=False,
    )
    speech_architecture(args)
    task = Namespace(target_dictionary=to_dictionary(vocab))
    return S2TConformerModel.build_model(args, task).eval().requires_grad_(False)


def generator_of(model: Any, vocab: Vocab, *, beam_size: int, length: int) -> SequenceGenerator:
    """fairseq's search over a model of its own, whose outputs have so many tokens before eos."""
    return SequenceGenerator(
        [model], to_dictionary(vocab), beam_size=beam_size, min_len=length, max_len_b=length
    )
