"""`nartk-preprocess`: fairseq-preprocess on the Python at hand."""

from __future__ import annotations

from collections.abc import Sequence

from nartk.cli import _fairseq

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
    preprocess.main(parser.parse_args(list(argv)))
    return 0
