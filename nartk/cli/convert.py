"""`nartk-convert`: a fairseq checkpoint becomes a native model folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nartk.cli._common import Parser, run
from nartk.errors import InputFileError

EXAMPLES = """\
  nartk-convert checkpoints/checkpoint_best.pt --output model --spm spm.model
  nartk-convert wmt.pt --output model --source-dict dict.en.txt --target-dict dict.de.txt
  nartk-convert averaged.pt --output model --dict dict.txt --spm spm.model --dtype fp16 --card card.md
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return run(_command, argv)


def _command(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="nartk-convert",
        description="Writes a checkpoint of fairseq (nartk_transformer, or fairseq's own transformer) as a "
        "folder that nartk-decode reads. Nothing in the checkpoint is run, and fairseq is not needed.",
        examples=EXAMPLES,
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT.pt")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the model folder to write")
    parser.add_argument("--spm", type=Path, help="sentencepiece model; without it words stand between spaces")
    parser.add_argument("--target-spm", type=Path, help="the target's sentencepiece model, if another")
    parser.add_argument(
        "--dict",
        "--source-dict",
        type=Path,
        help="fairseq's dict.txt (default: the one in the folder of the training data)",
    )
    parser.add_argument("--target-dict", type=Path, help="the target's dictionary, if another")
    parser.add_argument("--card", type=Path, help="text of card.md (default: what the checkpoint says)")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="type of the stored weights"
    )
    args = parser.parse_args(argv)
    for path in (args.spm, args.target_spm, args.card):
        if path is not None and not path.is_file():
            raise InputFileError("no such file", where=str(path))

    from nartk.adapters import fairseq

    config = fairseq.convert(
        args.checkpoint,
        args.output,
        source_dict=args.dict,
        target_dict=args.target_dict,
        tokenizer=args.spm,
        target_tokenizer=args.target_spm,
        card=None if args.card is None else args.card.read_text(encoding="utf-8"),
        dtype=args.dtype,
    )
    layers = f"{config.encoder_layers}+{config.decoder_layers} layers"
    print(f"{args.output}: {layers}, {config.src_vocab} words, {args.dtype}", file=sys.stderr)
    return 0
