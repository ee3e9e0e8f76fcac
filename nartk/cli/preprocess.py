"""`nartk-preprocess`: fairseq-preprocess on the Python at hand."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nartk.cli import _common, _fairseq
from nartk.errors import LengthMismatchError, OutputError, UsageError, number_of
from nartk.files import make_folder

EXAMPLES = """examples:
  nartk-preprocess --source-lang src --target-lang trg --trainpref train.sp --validpref dev.sp \\
      --joined-dictionary --srcdict dict.txt --destdir data-bin --workers 2
"""


@_fairseq.command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    from fairseq import options
    from fairseq_cli import preprocess

    parser = _fairseq.parser_of(options.get_preprocessing_parser(), "nartk-preprocess", EXAMPLES)
    args = parser.parse_args(list(argv))
    _common.require_least(args, 1, "workers")
    groups = {key: _texts(args, key) for key in ("trainpref", "validpref", "testpref")}
    _require_dictionaries(args)
    make_folder(Path(args.destdir))
    with TemporaryDirectory(dir=args.destdir) as folder:
        for key, texts in groups.items():
            if texts:
                copies = (_readable(each, Path(folder, f"{key}{at}")) for at, each in enumerate(texts))
                setattr(args, key, ",".join(copies))
        if args.alignfile and not args.dict_only and not _fairseq.measure_text(args.alignfile)[1]:
            copy = Path(folder, "alignfile")
            _fairseq.copy_text(args.alignfile, copy)
            args.alignfile = str(copy)
        try:
            preprocess.main(args)
        except FileExistsError as error:  # of a dictionary, which fairseq does not replace
            fix = "name another --destdir, or remove it yourself"
            raise OutputError("exists already", fix=fix, where=str(error)) from error
    return 0


def _require_dictionaries(args: argparse.Namespace) -> None:
    """Refuses what leaves a dictionary open, which fairseq finds out when there is a folder.

    Raises:
        UsageError: There is neither a dictionary nor a text to make it of, or there are two for one.
    """
    given = [args.srcdict, *([] if args.only_source else [args.tgtdict])]
    if args.joined_dictionary:
        if args.srcdict and args.tgtdict:
            raise UsageError(
                "--joined-dictionary takes one of --srcdict and --tgtdict", fix="leave one of them out"
            )
        given = [args.srcdict or args.tgtdict]
    if not args.trainpref and not all(given):
        raise UsageError(
            "--trainpref is missing, from which dictionaries are built",
            fix="give it, or --srcdict and --tgtdict",
        )


@dataclass(frozen=True)
class _ParallelTexts:
    """The texts of a prefix, which belong together line by line.

    Attributes:
        ends: Suffixes of their names, after the prefix.
        same: True if fairseq reads the lines that other commands read.
    """

    prefix: str
    ends: tuple[str, ...]
    same: bool


def _texts(args: argparse.Namespace, key: str) -> list[_ParallelTexts]:
    """The texts that fairseq will read of a flag; all are read once.

    Raises:
        InputFileError: A text cannot be read, or is not UTF-8.
        LengthMismatchError: Texts that belong together have different numbers of lines.
    """
    given = getattr(args, key)
    if not given or (args.dict_only and key != "trainpref"):
        return []
    # fairseq takes one prefix for training, and of the others several.
    prefixes = [given] if key == "trainpref" else given.split(",")
    return [_measure(args, prefix, is_train=key == "trainpref") for prefix in prefixes]


def _measure(args: argparse.Namespace, prefix: str, *, is_train: bool) -> _ParallelTexts:
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    ends = ["" if language is None else f".{language}" for language in languages]
    aligned: list[str] = []
    if args.dict_only:  # is made of text only where none is given
        ends = [end for end in ends if os.path.exists(prefix + end)]
    elif args.align_suffix and os.path.exists(f"{prefix}.{args.align_suffix}"):
        ends.append(f".{args.align_suffix}")
    if not args.dict_only and args.alignfile and is_train:
        aligned.append(args.alignfile)
    found = {name: _fairseq.measure_text(name) for name in [*(prefix + end for end in ends), *aligned]}
    counts = [(name, count) for name, (count, _) in found.items()]
    for name, count in counts[1:]:
        if count != counts[0][1] and not args.dict_only:
            raise LengthMismatchError(
                f"{name} has {number_of(count, 'line')}, but {counts[0][0]} has {counts[0][1]}",
                fix="give files with the same sentences in the same order",
            )
    return _ParallelTexts(prefix, (*ends,), all(same for _, same in found.values()))


def _readable(texts: _ParallelTexts, copy: Path) -> str:
    """The prefix of texts, or where fairseq would read other lines, of copies."""
    if texts.same:
        return texts.prefix
    for end in texts.ends:
        _fairseq.copy_text(texts.prefix + end, Path(f"{copy}{end}"))
    return str(copy)
