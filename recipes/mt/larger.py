"""Makes a verifier of another size that says what MODEL says, to measure what its drafters would give it.

    python recipes/mt/larger.py MODEL SOURCE --output DIR [--d-model 512] [--layers 6] [--limit N]
    nartk-bench DIR DIR/said.tsv --column 1 --prefix-column 2 --strategies greedy,gad:drafter=DAG --costs

Its weights are random, but for those behind which it says nothing but eos; DIR/said.tsv has sentences of
SOURCE, and behind each what greedy search with MODEL says, which the verifier is made to say. So a pass costs
what it costs at that size, and of each draft stands what would stand of it with MODEL.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import torch

import nartk
from nartk.checkpoint import TARGET_TOKENIZER, TOKENIZER, save_checkpoint
from nartk.models.transformer import Transformer, TransformerConfig
from nartk.pipeline import Model


def verifier(model: Model, d_model: int, layers: int) -> Transformer:
    """A Transformer with MODEL's words and room, of so many features and layers each side, that says eos."""
    vocab = model.checkpoint.target_vocab
    base = TransformerConfig.from_dict(model.checkpoint.settings)
    config = replace(
        base,
        d_model=d_model,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn=4 * d_model,
        decoder_ffn=4 * d_model,
        encoder_heads=max(1, d_model // 64),
        decoder_heads=max(1, d_model // 64),
        decoder_norm_first=True,
    )
    torch.manual_seed(1)
    network = Transformer(config)
    assert network.decoder.norm is not None
    with torch.no_grad():
        # Whatever is computed, the last norm turns it into eos.
        network.decoder.norm.weight.zero_()
        network.decoder.norm.bias.copy_(network.output.weight[vocab.eos])
    return network


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model folder")
    parser.add_argument("source", type=Path, help="a file of sentences, one a line")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--d-model", type=int, default=512, help="features (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="of encoder and of decoder (default: 6)")
    parser.add_argument("--limit", type=int, default=100, help="sentences (default: %(default)s)")
    args = parser.parse_args()

    model = nartk.load(args.model)
    lines = args.source.read_text(encoding="utf-8").splitlines()[: args.limit]
    said = model.decode(lines, "greedy")
    network = verifier(model, args.d_model, args.layers)
    pieces = [model.checkpoint.folder / name for name in (TOKENIZER, TARGET_TOKENIZER)]
    own, target = (path if path.is_file() else None for path in pieces)
    save_checkpoint(
        args.output,
        kind="transformer",
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=model.checkpoint.source_vocab,
        target_vocab=model.checkpoint.target_vocab,
        tokenizer=own,
        target_tokenizer=target,
        card=f"# Random weights with the words of {model.checkpoint.fingerprint}, to measure speed\n",
    )
    with (args.output / "said.tsv").open("w", encoding="utf-8") as file:
        for line, hypothesis in zip(lines, said, strict=True):
            file.write(f"{line}\t{hypothesis.text}\n")


if __name__ == "__main__":
    main()
