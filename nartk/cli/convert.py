"""`nartk-convert`: a checkpoint of fairseq or Hugging Face becomes a model folder, and that another."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from nartk import engine
from nartk.architectures import architecture
from nartk.checkpoints.names import MOST_CARD
from nartk.cli._common import Parser, command, with_model
from nartk.cli._input import add_languages, languages
from nartk.cli._output import add_output, tell
from nartk.errors import InputFileError, UnsupportedCheckpointError, UsageError
from nartk.files import Folder, read_file, writing_folder
from nartk.processors.bpe import BPE
from nartk.processors.text import TOKENIZATIONS

if TYPE_CHECKING:
    from nartk.architectures.settings import Config
    from nartk.checkpoints.checkpoint import Checkpoint

EXAMPLES = """\
  nartk-convert checkpoints/checkpoint_best.pt --output model --spm spm.model
  nartk-convert wmt.pt --output model --source-dict dict.en.txt --target-dict dict.de.txt
  nartk-convert wmt.pt --output model --dict dict.txt --tokenizer moses --bpe fastbpe --bpe-codes bpecodes
  nartk-convert averaged.pt --output model --dict dict.txt --spm spm.model --dtype fp16 --card card.md
  nartk-convert averaged.pt --output model --spm spm.model --tokenization penn      ordinary text in and out
  nartk-convert tiny.en.pt --tokenizer openai/whisper-tiny.en --output model       OpenAI's own file
  nartk-convert exp/asr_train_conformer --output model      ESPnet's config.yaml and valid.acc.ave.pth
  nartk-convert paraformer-zh --output model                a folder of FunASR
  nartk-convert opus-mt-en-de --output model                a folder of Hugging Face
  nartk-convert nllb --output model --source-lang eng_Latn --target-lang deu_Latn
  nartk-convert acc_model.pt --map map.json --config config.json --dict vocab.json --output model
  nartk-convert gec-en --quantize int8 --output gec-en-int8     for the engine, a quarter of fp32's size
  nartk-convert light/checkpoint_last.pt --word-counts distilled/word_counts.json --output model/drafter
  nartk-convert gec-en-medium --to hf --output gec-en-hf        for AutoModelForSeq2SeqLM and AutoTokenizer
  nartk-convert gec-en-medium --to ctranslate2 --quantize int8 --output gec-en-ct2
"""
# Flags of what a folder of Hugging Face, and a checkpoint of fairseq, alone leave open.
_OF_FOLDERS = ("allow_pickle", "source_lang", "target_lang", "source_prefix")
_OF_FAIRSEQ = (
    *("spm", "target_spm", "tokenization", "tokenizer", "moses_source_lang", "moses_target_lang"),
    *("bpe", "bpe_codes", "encoder_json", "dict", "target_dict"),
)
_COMPLETE = "leave it out: the folder has what it takes"


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    argv = with_model(argv)
    parser = Parser(
        prog="nartk-convert",
        description="Writes a checkpoint of fairseq (nartk_transformer, or fairseq's own transformer), the "
        "state dict of a Transformer with --map and --config, a model of ESPnet, a Paraformer of FunASR, or "
        "a folder of Hugging Face (BART, M2M-100 and NLLB, Marian, mBART, mT5, Pegasus, T5, Whisper), as a "
        "folder that nartk-decode reads. Nothing in it is run, and "
        "neither fairseq nor transformers is needed. With --quantize int8 it may be a model "
        "folder already; what is written decodes as --dtype int8 does. With --to it may be one too, and what "
        "is written is another library's folder, with what tokenises.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="fairseq's .pt file, or a folder; with --quantize or --to also a shipped model's name",
    )
    add_output(parser, "DIR", "the model folder to write", type=Path, required=True)
    parser.add_argument("--spm", type=Path, help="sentencepiece model; without it words stand between spaces")
    parser.add_argument("--target-spm", type=Path, help="the target's sentencepiece model, if another")
    parser.add_argument(
        "--tokenization",
        choices=(*TOKENIZATIONS,),
        help="of the English sentences that the model was trained on, penn as in the Penn Treebank: "
        "nartk-decode then splits ordinary text into sentences and tokens, and writes ordinary text",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="{moses,none,FOLDER}",
        help="what made the tokens that a model of fairseq was trained on; none: lines are tokens already. "
        "Of OpenAI's Whisper (tiny.pt) the folder of transformers, with tokenizer.json and "
        "generation_config.json (default: the folder of the file)",
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--moses-{side}-lang", metavar="LANG", help=f"the {side}'s (default: that of its training data)"
        )
    parser.add_argument(
        "--bpe", choices=(*BPE, "none"), help="what cut its words into subwords; none: lines are cut already"
    )
    parser.add_argument(
        "--bpe-codes", "--vocab-bpe", type=Path, help="the merges of --bpe, for gpt2 fairseq's vocab.bpe"
    )
    parser.add_argument("--encoder-json", type=Path, help="the words of --bpe gpt2, fairseq's encoder.json")
    parser.add_argument(
        "--dict",
        "--source-dict",
        type=Path,
        help="fairseq's dict.txt (default: the one in the folder of the training data)",
    )
    parser.add_argument("--target-dict", type=Path, help="the target's dictionary, if another")
    parser.add_argument(
        "--map",
        type=Path,
        help="JSON file that gives the tensors their names here, where CHECKPOINT is a state dict (.pt, "
        ".pth, .bin or .safetensors); its words are given with --dict, a JSON file, or a word a line",
    )
    parser.add_argument("--config", type=Path, help="JSON file of its sizes, special tokens and settings")
    parser.add_argument(
        "--word-counts",
        type=Path,
        help="of a drafter: nartk-distill's word_counts.json, for --drafter-words",
    )
    parser.add_argument("--card", type=Path, help="text of card.md (default: what the checkpoint says)")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="type of the stored weights"
    )
    parser.add_argument(
        "--quantize", choices=("int8",), help="store matrices as the engine's int8 blocks, or CTranslate2's"
    )
    parser.add_argument(
        "--to",
        choices=("hf", "ctranslate2"),
        help="write what transformers, or CTranslate2, loads: greedy search there has the same outputs",
    )
    group = add_languages(parser)
    group.add_argument(
        "--allow-pickle",
        action="store_true",
        help="read pytorch_model.bin where there are no safetensors; what it holds is not run; needs torch",
    )
    args = parser.parse_args(argv)
    if args.word_counts is not None and args.to is not None:
        raise UsageError("--word-counts with --to, which writes no drafter", fix="leave one of them out")
    for path in (
        *(args.spm, args.target_spm, args.card, args.bpe_codes, args.encoder_json),
        args.word_counts,
    ):
        if path is not None and not os.path.isfile(path):
            raise InputFileError("no such file", fix="check the name", where=str(path))

    if args.map is not None or args.config is not None:
        return _convert_state_dict(args)
    wanted = 2 if args.bpe == "gpt2" else int(args.bpe in BPE)
    given = [args.bpe_codes is not None, args.encoder_json is not None]
    if given != [wanted > 0, wanted > 1]:
        files = ("no files", "--bpe-codes", "--bpe-codes and --encoder-json")[wanted]
        raise UsageError(f"--bpe {args.bpe or 'none'} goes with {files}", fix="give these and no others")
    if args.spm is not None and (wanted or args.tokenizer == "moses"):
        raise UsageError("--spm with --bpe or --tokenizer", fix="give what the model was trained with")

    from nartk.checkpoints.foreign import is_argos, is_ctranslate2, is_espnet, is_funasr, is_marian
    from nartk.checkpoints.loading import is_hugging_face, load_checkpoint

    if is_espnet(args.checkpoint):
        return _convert_espnet(args)
    if is_funasr(args.checkpoint):
        return _convert_funasr(args)
    if os.path.isdir(args.checkpoint):
        folder = Folder(args.checkpoint)
        if is_hugging_face(folder) or any(known(folder) for known in (is_ctranslate2, is_argos, is_marian)):
            return _convert_folder(args, folder)
        if args.quantize is None and args.to is None:
            load_checkpoint(folder)  # what it is, if it is no model
            raise UsageError(
                f"{str(args.checkpoint)!r} is a model of nartk already", fix="give --quantize or --to as well"
            )
    if os.path.isfile(args.checkpoint):
        from nartk.checkpoints.openai import is_openai

        if is_openai(args.checkpoint):
            return _convert_openai(args)
    if args.tokenizer not in (None, "moses", "none"):
        raise UsageError(f"--tokenizer is {args.tokenizer!r}", fix="choose from moses, none")
    _refuse(args, _OF_FOLDERS, "which is no folder of Hugging Face", "leave it out")
    if args.quantize is None and args.to is None:
        tell(args, f"{args.output}: {_convert(args, args.output)}, {args.dtype}")
        return 0
    _require_types(args)
    if os.path.isfile(args.checkpoint):
        with TemporaryDirectory() as made:
            _convert(args, Path(made))
            _write(load_checkpoint(made), args)
        return 0
    _refuse(args, (*_OF_FAIRSEQ, "card"), "which is no checkpoint of fairseq", _COMPLETE)
    from nartk.checkpoints.names import model_folder

    _write(load_checkpoint(model_folder(str(args.checkpoint))), args)
    return 0


def _convert_state_dict(args: argparse.Namespace) -> int:
    """Writes a native folder, or one of int8 weights or another library's, of a state dict."""
    from nartk.checkpoints.state_dicts.reading import Files, reading_state_dict

    if args.map is None or args.config is None:
        raise UsageError("--map and --config go together", fix="give both")
    described = ("spm", "target_spm", "dict", "target_dict")
    others = (flag for flag in (*_OF_FAIRSEQ, *_OF_FOLDERS) if flag not in described)
    _refuse(args, [*others], "which --map and --config describe", "leave it out")
    files = Files(
        args.checkpoint, args.map, args.config, args.dict, args.target_dict, args.spm, args.target_spm
    )
    with reading_state_dict(files) as checkpoint:
        return _convert_read(args, checkpoint)


def _convert_openai(args: argparse.Namespace) -> int:
    """Writes a native folder, or one of int8 weights or another library's, of OpenAI's file of Whisper."""
    from nartk.checkpoints.loading import located
    from nartk.checkpoints.openai import read_openai

    others = [flag for flag in _OF_FAIRSEQ if flag != "tokenizer"]
    _refuse(args, [*others, "allow_pickle"], "which is OpenAI's Whisper", _COMPLETE)
    tokenizer = None if args.tokenizer is None else located(args.tokenizer)
    return _convert_read(args, read_openai(args.checkpoint, tokenizer, **languages(args)))


def _convert_espnet(args: argparse.Namespace) -> int:
    """Writes a native folder, or one of int8 weights, of a model of ESPnet."""
    from nartk.checkpoints.espnet.reading import reading_espnet

    others = [flag for flag in (*_OF_FAIRSEQ, *_OF_FOLDERS) if flag != "spm"]
    _refuse(args, others, "which is ESPnet's", _COMPLETE)
    with reading_espnet(args.checkpoint, args.spm) as checkpoint:
        return _convert_read(args, checkpoint)


def _convert_funasr(args: argparse.Namespace) -> int:
    """Writes a native folder, or one of int8 weights, of a Paraformer of FunASR."""
    from nartk.checkpoints.funasr.reading import reading_funasr

    _refuse(args, [*_OF_FAIRSEQ, *_OF_FOLDERS], "which is FunASR's", _COMPLETE)
    with reading_funasr(args.checkpoint) as checkpoint:
        return _convert_read(args, checkpoint)


def _convert_read(args: argparse.Namespace, checkpoint: Checkpoint) -> int:
    """Writes a native folder, or what --quantize and --to ask for, of a checkpoint of another library."""
    from nartk.checkpoints.hugging_face.reading import convert

    for notice in checkpoint.notices:
        tell(args, notice)
    if args.quantize is not None or args.to is not None:
        _require_types(args)
        _refuse(args, ("card",), "with --quantize or --to", "leave it out")
        _write(checkpoint, args)
        return 0
    _require_other(args.output, checkpoint)
    checkpoint = _with_counts(args, checkpoint)
    config = convert(checkpoint, args.output, dtype=args.dtype, card=_card(args))
    tell(args, f"{args.output}: {_in_words(config)}, {args.dtype}")
    return 0


def _require_types(args: argparse.Namespace) -> None:
    """Refuses two types at a time, and int8 blocks without the engine."""
    if args.quantize is not None and args.dtype != "fp32":
        raise UsageError(f"--dtype {args.dtype} with --quantize {args.quantize}", fix="leave one of them out")
    if args.to is None and not engine.available():
        raise UsageError(
            f"--quantize needs the engine: {engine.describe()}", fix="install nartk with its engine"
        )


def _refuse(args: argparse.Namespace, flags: Sequence[str], why: str, fix: str) -> None:
    """Raises UsageError where one of the flags is given, for what is no such thing."""
    for flag in flags:
        if getattr(args, flag) not in (None, False):
            raise UsageError(f"--{flag.replace('_', '-')} for {str(args.checkpoint)!r}, {why}", fix=fix)


def _convert_folder(args: argparse.Namespace, folder: Folder) -> int:
    """Writes a native folder, or one of int8 weights, of a folder of Hugging Face or of CTranslate2."""
    from nartk.checkpoints.hugging_face.reading import read_hugging_face
    from nartk.checkpoints.loading import is_hugging_face, load_checkpoint

    _refuse(args, _OF_FAIRSEQ, "which is no checkpoint of fairseq", _COMPLETE)
    if args.quantize is not None or args.to is not None:
        _require_types(args)
        _refuse(args, ("card",), "with --quantize or --to", "leave it out")
    if is_hugging_face(folder):
        checkpoint = read_hugging_face(folder, allow_pickle=args.allow_pickle, **languages(args))
    else:
        _refuse(args, ("allow_pickle",), "which is no folder of Hugging Face", "leave it out")
        checkpoint = load_checkpoint(folder, **languages(args))
    return _convert_read(args, checkpoint)


def _with_counts(args: argparse.Namespace, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the file of --word-counts, if that is given."""
    from nartk.checkpoints.word_counts import counts_file

    return replace(
        checkpoint, files={**checkpoint.files, **counts_file(args.word_counts, checkpoint.target_vocab)}
    )


def _require_other(output: Path, checkpoint: Checkpoint) -> None:
    if os.path.exists(output) and output.samefile(checkpoint.folder):
        raise UsageError(f"--output is {str(output)!r}, the model itself", fix="name another folder")


def _write(checkpoint: Checkpoint, args: argparse.Namespace) -> None:
    """Writes a folder of int8 weights, or of another library, of a model."""
    output = args.output
    _require_other(output, checkpoint)
    if args.to is not None:
        _export(checkpoint, args)
        return
    from nartk.engine.quantize import quantize

    before, after = quantize(_with_counts(args, checkpoint), output)
    tell(args, f"{output}: int8, {after / 1e6:.1f} MB of weights for {before / 1e6:.1f} MB")


def _export(checkpoint: Checkpoint, args: argparse.Namespace) -> None:
    """Writes the folder of another library, which must be new or empty."""
    from nartk.adapters import ctranslate2, hf, hf_whisper

    of_speech = {("whisper", "hf"): hf_whisper}
    found = of_speech.get((checkpoint.architecture, args.to))
    library: Any = found or {"hf": hf, "ctranslate2": ctranslate2}[args.to]
    dtype = args.dtype if args.quantize is None else args.quantize
    if dtype not in library.TYPES:
        raise UsageError(
            f"--to {args.to} with --quantize {dtype}, which transformers does not store",
            fix="choose --to ctranslate2, or leave --quantize out",
        )
    if checkpoint.input.vocab is None and found is None:
        raise UnsupportedCheckpointError(
            f"a {checkpoint.architecture!r} model, which reads sound; --to {args.to} writes models of text"
            + (", and Whisper" if args.to == "hf" else ""),
            fix="name another model",
            where=str(checkpoint.folder),
        )
    if not architecture(checkpoint.architecture).autoregressive:
        raise UnsupportedCheckpointError(
            f"a {checkpoint.architecture!r} model, of which {args.to} has none",
            fix="name an autoregressive model",
            where=str(checkpoint.folder),
        )
    with writing_folder(args.output, known=()) as made:
        notices = [*library.write_folder(checkpoint, made, dtype)]
    tell(args, "\n".join(f"{args.output}: {line}" for line in [f"{args.to}, {dtype}", *notices]))


def _convert(args: argparse.Namespace, output: Path) -> str:
    """Writes a native folder of a fairseq checkpoint; the model in words."""
    from nartk.adapters.fairseq.converting import convert

    config = convert(
        args.checkpoint,
        output,
        source_dict=args.dict,
        target_dict=args.target_dict,
        tokenizer=args.spm,
        target_tokenizer=args.target_spm,
        tokenization=args.tokenization,
        bpe=args.bpe,
        bpe_codes=args.bpe_codes,
        encoder_json=args.encoder_json,
        moses_source_lang=args.moses_source_lang,
        moses_target_lang=args.moses_target_lang,
        moses=None if args.tokenizer is None else args.tokenizer == "moses",
        word_counts=args.word_counts,
        card=_card(args),
        dtype=args.dtype,
    )
    return _in_words(config)


def _card(args: argparse.Namespace) -> str | None:
    try:
        return None if args.card is None else read_file(args.card, most=MOST_CARD).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFileError(f"not UTF-8: {error}", fix="convert it to UTF-8", where=str(args.card)) from None


def _in_words(config: Config) -> str:
    words = config.src_vocab if config.src_vocab else config.tgt_vocab  # what reads sound has no source words
    return f"{config.layers('encoder')}+{config.layers('decoder')} layers, {words} words"
