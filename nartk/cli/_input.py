"""Inputs of commands that decode: the model and files they are given, and the flags of both."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import nartk.data
from nartk.cli._common import Parser
from nartk.cli._files import expanded, form_of, require_readable
from nartk.cli._output import tell
from nartk.data.readers import FEATURES, FORMATS, MANIFEST, SOUND, format_of
from nartk.errors import (
    InputFileError,
    ModelNotFoundError,
    OutputError,
    SourceMismatchError,
    UsageError,
    named,
)
from nartk.files import STDIN, first_bytes, shown
from nartk.unpacking import is_packed

if TYPE_CHECKING:
    from nartk.checkpoints.checkpoint import Checkpoint
    from nartk.data.audio.sounds import Piped
    from nartk.serving.model import Model


def add_input(parser: Parser) -> None:
    """Adds MODEL and FILE, and how the files are to be read."""
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="MODEL FILE",
        help="a shipped model, a folder, or ORG/NAME of the Hugging Face Hub (default: gec-en-medium), then "
        "files, folders of sound, patterns such as 'calls/*.mp3', - for stdin (default: stdin)",
    )
    parser.add_argument(
        "--format", choices=(*FORMATS, SOUND, MANIFEST), help="of the files (default: by suffix, else txt)"
    )
    parser.add_argument("--column", type=int, metavar="N", help="TSV column of the sentence (default: 1)")
    parser.add_argument(
        "--prefix-column",
        type=int,
        metavar="N",
        help='TSV column of what the output must begin with; in JSONL the key "prefix"',
    )
    parser.add_argument(
        "--key", metavar="NAME", help="JSONL key of the sentence (default: source, else text)"
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="cut sentences too long for the model; with a guard a sentence that is too long is decoded in "
        "pieces instead, or kept",
    )


def add_sound(parser: Parser) -> argparse._ArgumentGroup:
    """Adds a group of flags, of how sound files are read."""
    group = parser.add_argument_group("of sound")
    group.add_argument(
        "--manifest",
        metavar="FILE",
        help="list of sound files: fairseq's .tsv, Kaldi's wav.scp, or a path a line",
    )
    group.add_argument(
        "--root", metavar="DIR", help="folder of the files in a manifest; those outside of it are refused"
    )
    group.add_argument(
        "--strict-audio",
        action="store_true",
        help="refuse sound of another rate, of several channels or without its end, instead of converting it",
    )
    group.add_argument(
        "--long-form",
        type=float,
        metavar="SECONDS",
        help="decode recordings of any length in buffers of at most so many seconds, such as 30, of which an "
        "eighth on either side is context; with ctc-greedy, ctc-beam and paraformer",
    )
    group.add_argument(
        "--no-vad",
        action="store_true",
        help="output what the model makes of silence, noise and hum too, instead of nothing",
    )
    return group


def with_manifest(args: argparse.Namespace, files: Sequence[str]) -> list[str]:
    """The files to read, with that of `add_sound`'s flag, which then says their format.

    Raises:
        UsageError: There are others, or a folder for what is no manifest.
    """
    if args.manifest is not None:
        if files:
            raise UsageError(f"--manifest with {files[0]!r}", fix="leave one of them out")
        files, args.format = [args.manifest], MANIFEST
    if args.root is not None and {form_of(name, args.format) for name in files or [STDIN]} != {MANIFEST}:
        raise UsageError("--root without a manifest", fix="give the manifest with --manifest")
    return [*files]


def add_pretokenized(parser: Parser) -> None:
    """Adds the flag of text that is tokenised already."""
    parser.add_argument(
        "--pretokenized",
        action="store_true",
        help="a line is one sentence as the model reads it, with spaces between its tokens, and outputs are "
        "left so, as with models that know no tokenization; M2 is always read so",
    )


def add_guard(parser: Parser) -> None:
    """Adds the flags of the guard that a model may have."""
    parser.add_argument(
        "--no-guard",
        action="store_true",
        help="take every output as it is; else a model whose output should resemble its input, such as "
        "gec-en-medium, decodes a sentence in pieces, or leaves it as it is, where its output is not sound",
    )
    parser.add_argument(
        "--min-edit-confidence",
        type=float,
        metavar="P",
        help="with such a model undo single edits whose probability, against the text without them, is below "
        "P, from 0 to 1 (default: as its folder says)",
    )


def add_languages(parser: Parser) -> argparse._ArgumentGroup:
    """Adds a group of flags, of what a folder of Hugging Face leaves open."""
    group = parser.add_argument_group("of a folder of Hugging Face")
    for side, what in (("source", "the lines"), ("target", "the outputs")):
        group.add_argument(
            f"--{side}-lang",
            metavar="LANG",
            help=f"language of {what}, as the model's tokenizer names it, such as de_DE or deu_Latn",
        )
    group.add_argument(
        "--source-prefix", metavar="TEXT", help="put before each line, such as 'summarize: ' of T5"
    )
    return group


def languages(args: argparse.Namespace) -> dict[str, Any]:
    """Values of `add_languages`' flags, as `nartk.load` takes them; none for a command without them."""
    names = ("source_lang", "target_lang", "source_prefix") if hasattr(args, "source_prefix") else ()
    return {name: getattr(args, name) for name in names}


def add_model(parser: Parser) -> None:
    """Adds the flags of how a model reads and computes, but for its type."""
    add_pretokenized(parser)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--no-cuda-graphs",
        action="store_true",
        help="compute each pass on a GPU anew; else passes are captured in CUDA graphs, which take memory",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="require that neither batch nor drafts change a bit: so it is on the engine, always; torch is "
        "refused",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare all files of the models with their hashes, those that are only mapped too",
    )
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="most source tokens at a time, padding included"
    )


def add_computation(parser: Parser) -> None:
    """Adds the flags of how a model computes, in one type and one batch size."""
    add_model(parser)
    parser.add_argument(
        "--dtype",
        help="fp32, bf16, int8 (CPU) or fp16 (GPU), of the computation (default: fp32, or what the model's "
        "folder holds if that is int8)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="most sentences at a time (default: 32)"
    )


def batching(args: argparse.Namespace) -> dict[str, Any]:
    """Values of `add_computation`'s flags on batches, and of --truncate, as `Model.stream` takes them."""
    return {name: getattr(args, name) for name in ("batch_size", "max_tokens", "truncate")}


def add_drafts(parser: Parser) -> None:
    """Adds where the drafts of a strategy that reads drafts come from."""
    parser.add_argument(
        "--drafts",
        metavar="FILE",
        help="what the outputs may be, a line for each sentence; several drafts of it with tabs between",
    )
    parser.add_argument(
        "--draft-columns",
        type=numbers,
        default=(),
        metavar="LIST",
        help='TSV columns of drafts, such as 2,3; in JSONL the key "drafts", a text or a list of them',
    )


def numbers(text: str) -> tuple[int, ...]:
    """An argument's type: numbers from 1 on, with commas between."""
    found = text.split(",")
    if not all(number.isdecimal() and int(number) >= 1 for number in found):
        raise argparse.ArgumentTypeError(f"must be numbers from 1 on with commas between, but is {text!r}")
    return tuple(map(int, found))


def split_inputs(inputs: Sequence[str], prog: str, *, optional: bool = False) -> tuple[str, list[str]]:
    """The model and the files, which must be readable.

    Args:
        optional: True if the model may be left out, before files or stdin: the first shipped one is meant;
            and files may be folders and patterns (`expanded`).

    Raises:
        ModelNotFoundError: The first argument is no model.
        UsageError: It may be a shipped model or a file.
        InputFileError: A file cannot be read.
    """
    from nartk.checkpoints.names import SHIPPED

    model, *files = inputs or [STDIN]
    is_file = model == STDIN or (os.path.exists(model) and not os.path.isdir(model))
    shipped = ", ".join(SHIPPED)
    if model.endswith(".pt"):
        raise ModelNotFoundError(
            f"{model!r} is a checkpoint, not a model's folder", fix=f"nartk-convert {model} --output DIR"
        )
    if optional and model in SHIPPED and is_file:
        raise UsageError(
            f"{model!r} is a shipped model, and a file here",
            fix=f"name the file ./{model}, or the model by its folder, which `nartk models` shows",
        )
    if optional and is_file:
        model, files = SHIPPED[0], list(inputs)
    elif model not in SHIPPED and not os.path.isdir(model):
        what = "no model's folder, nor a file" if optional else "no folder"
        raise ModelNotFoundError(
            f"{model!r} is no shipped model ({shipped}), {what}",
            fix=f"name the model before the files, as in {prog} {SHIPPED[0]} FILE",
        )
    if optional:
        files = expanded(files)
    for file in files:
        if file != STDIN and format_of(file) != SOUND:  # which is a record, and may fail as such
            require_readable(file)
    return model, files


def load_model(
    name: str,
    args: argparse.Namespace,
    dtype: str | None,
    *,
    files: Sequence[str] = (),
    replicas: int = 1,
    pretokenized: bool | None = None,
) -> Model:
    """Loads a model as `add_model`'s flags say, for these files.

    Args:
        pretokenized: True if the files are tokenised; None: they are looked at.

    Raises:
        UsageError: Some of the files are tokenised and others not.
        NartkError: Same as in `nartk.load`.
    """
    from nartk.serving.loading import load

    model = load(
        getattr(args, "opened", {}).get(name, name),
        device=args.device,
        dtype=dtype,
        threads=args.threads,
        replicas=replicas,
        check=args.check,
        cuda_graphs=not args.no_cuda_graphs,
        **languages(args),
        tell=partial(tell, args),
    )
    model = replace(
        model,
        pretokenized=are_tokenized(model.checkpoint, args, files) if pretokenized is None else pretokenized,
        guard=not getattr(args, "no_guard", True),  # without these flags, outputs are the model's own
        min_edit_confidence=getattr(args, "min_edit_confidence", None),
        vad=not getattr(args, "no_vad", False),
    )
    if (sound := model.sound) is not None:
        sound.tell = partial(tell, args)
        sound.strict |= getattr(args, "strict_audio", False)
        if pretokenized is None and reads_stdin(args, files):
            sound.stdin = _stdin(sys.stdin.buffer)
    if getattr(args, "long_form", None) is not None:
        from nartk.serving.long_form import buffers_for

        model = replace(model, buffers=buffers_for(model, args.long_form))
    if args.exact:
        require_exact(model, "--exact")
    return model


def reads_stdin(args: argparse.Namespace, files: Sequence[str]) -> bool:
    """Tells whether the files are, or hold, sound that stdin brings."""
    form = getattr(args, "format", None)
    return (not files or STDIN in files) and form_of(STDIN, form) == SOUND


@lru_cache(maxsize=1)
def _stdin(file: IO[bytes]) -> Piped:
    """The sound of stdin, which all models of a run read."""
    from nartk.data.audio.sounds import Piped

    return Piped(file, shown(STDIN))


def are_tokenized(checkpoint: Checkpoint, args: argparse.Namespace, files: Sequence[str]) -> bool:
    """Tells whether all sentences of the files are tokenised.

    Raises:
        SourceMismatchError: A file holds sound, and the model reads text.
        UsageError: Only some are, or a flag of sound is given for text.
    """
    form = getattr(args, "format", None)
    forms = {form_of(name, form): name for name in files or [STDIN]}
    if checkpoint.input.vocab is None:
        _require_lists([name for name in files or [STDIN] if form_of(name, form) not in (SOUND, FEATURES)])
    else:
        for form in (SOUND, FEATURES, MANIFEST):
            if form in forms:
                raise SourceMismatchError(
                    f"{shown(forms[form])!r} holds sound or names files that do, the model reads text",
                    fix="name a model of speech",
                )
        for name in ("strict_audio", "no_vad"):
            if getattr(args, name, False):
                raise UsageError(f"{named(name)}, but the model reads text", fix="leave it out")
    if checkpoint.tokenization.name and not args.pretokenized and "m2" in forms and len(forms) > 1:
        raise UsageError(
            "files in M2, which are tokenised, beside others",
            fix="give them apart, or --pretokenized if all are",
        )
    return args.pretokenized or set(forms) == {"m2"}


def _require_lists(names: Sequence[str]) -> None:
    """Refuses files, read as lists of sound files, that are no text; raises InputFileError."""
    from nartk.data.audio.signatures import CONVERT, HEAD, is_binary

    for name in names:
        head = first_bytes(name, HEAD)
        if is_binary(head) and not is_packed(BytesIO(head)):
            raise InputFileError(
                "neither sound of a format that is known nor a list of such files",
                fix=CONVERT,
                where=shown(name),
            )


def require_own(name: str, folder: Path, *, fix: str) -> None:
    """Refuses to store in a model that is part of the package; raises OutputError, with what can be done."""
    if folder.resolve().is_relative_to(Path(nartk.data.__path__[0]).resolve()):
        raise OutputError(f"{name!r} is shipped inside the package, where nothing is stored", fix=fix)


def require_exact(model: Model, flag: str) -> None:
    """Refuses a flag where torch serves the model; raises UsageError."""
    if not model.is_exact:
        raise UsageError(
            f"{flag}, but torch serves the model in {model.dtype} on {model.device}, where near ties may "
            "fall either way",
            fix="leave it out, or decode with the engine, on a CPU",
        )
