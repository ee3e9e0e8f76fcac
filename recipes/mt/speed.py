"""Measures all systems of the recipe in one process, in turns: latency one by one, throughput in batches.

    python recipes/mt/speed.py --source FILE --output JSON [--rounds 3] [--single 100] [--many 500] < RUNS

RUNS and rounds are as recipes/rounds.py has them.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch

import nartk

sys.path.append(str(Path(__file__).resolve().parents[1]))
from rounds import in_rounds, parser, timed, write


def main() -> None:
    args = parser(__doc__, "--source", "sentences").parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    lines = [line for line in args.source.read_text(encoding="utf-8").split("\n") if line.strip()]
    load = partial(nartk.load, device=args.device, threads=args.threads, dtype=args.dtype)
    seconds, facts = in_rounds(args, lines, load, partial(timed, truncate=True))
    facts |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    facts |= {"sentences": facts.pop("counts"), "seconds": seconds}
    write(args.output, facts)


if __name__ == "__main__":
    main()
