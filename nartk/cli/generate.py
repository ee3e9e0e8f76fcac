"""`nartk-generate`: fairseq-generate with nartk's architectures, on the Python at hand."""

from __future__ import annotations

from collections.abc import Sequence

from nartk.cli import _fairseq

EXAMPLES = """examples:
  nartk-generate data-bin --path checkpoints/checkpoint_best.pt --beam 4 --gen-subset valid
  nartk-convert checkpoints/checkpoint_best.pt --output model      nartk-decode is many times faster
"""


@_fairseq.command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    from fairseq import options
    from fairseq_cli import generate

    parser = _fairseq.parser_of(options.get_generation_parser(), "nartk-generate", EXAMPLES)
    generate.main(options.parse_args_and_arch(parser, list(argv)))
    return 0
