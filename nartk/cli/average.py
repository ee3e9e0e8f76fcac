"""`nartk-average`: the mean of several fairseq checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nartk.cli._common import Parser, command
from nartk.cli._output import add_output, tell
from nartk.errors import UsageError

EXAMPLES = """\
  nartk-average --inputs checkpoint8.pt checkpoint9.pt --output averaged.pt
  nartk-average --last 5 checkpoints --output averaged.pt      the five with the most updates
  nartk-average --best 5 checkpoints --output averaged.pt      the five with the best validation score
"""


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(
        prog="nartk-average",
        description="Averages the weights of checkpoints in fp64. The result has no optimizer state; it "
        "serves fairseq-generate and nartk-convert.",
        examples=EXAMPLES,
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--inputs", nargs="+", type=Path, metavar="CHECKPOINT.pt")
    chosen.add_argument("--last", nargs=2, metavar=("K", "DIR"), help="the K with the most updates")
    chosen.add_argument("--best", nargs=2, metavar=("K", "DIR"), help="the K with the best validation score")
    add_output(parser, "OUT.pt", "the checkpoint to write", type=Path, required=True)
    args = parser.parse_args(argv)

    from nartk.adapters.fairseq.averaging import average, best_checkpoints, last_checkpoints, write_checkpoint
    from nartk.adapters.fairseq.checkpoint import read_checkpoint

    if args.inputs is not None:
        checkpoints = [read_checkpoint(path) for path in args.inputs]
    elif args.last is not None:
        checkpoints = last_checkpoints(Path(args.last[1]), _count("--last", args.last[0]))
    else:
        checkpoints = best_checkpoints(Path(args.best[1]), _count("--best", args.best[0]))
    write_checkpoint(args.output, average(checkpoints))
    names = ", ".join(checkpoint.path.name for checkpoint in checkpoints)
    tell(args, f"{args.output}: mean of {names}")
    return 0


def _count(flag: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{flag} is {value!r}, not a number of at least 1")
    return int(value)
