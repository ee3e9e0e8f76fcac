"""`nartk-preprocess`: fairseq-preprocess on the Python at hand."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nartk.cli import _common, _fairseq
from nartk.errors import OutputError
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
    for text in _texts(args):
        _fairseq.require_text(text)
    make_folder(Path(args.destdir))
    try:
        preprocess.main(args)
    except FileExistsError as error:  # of a dictionary, which fairseq does not replace
        fix = "name another --destdir, or remove it yourself"
        raise OutputError("exists already", fix=fix, where=str(error)) from error
    return 0


def _texts(args: argparse.Namespace) -> Iterator[str]:
    """The files of text that fairseq will read."""
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    prefixes = [args.trainpref]
    if not args.dict_only:
        prefixes += [*(args.validpref or "").split(","), *(args.testpref or "").split(",")]
    for prefix in filter(None, prefixes):
        for language in languages:
            name = prefix if language is None else f"{prefix}.{language}"
            # A dictionary alone is made of text only where none is given.
            if not args.dict_only or os.path.exists(name):
                yield name
