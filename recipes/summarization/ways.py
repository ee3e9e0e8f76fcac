"""The models that the recipe trains, and how the verifier is decoded with them.

    python recipes/summarization/ways.py [--updates N]

Prints lines as `recipes/mt/systems.py` does: `model NAME ARCHITECTURE FLAGS`, `decode NAME SPEC FLAGS` and
`missing NAME SPEC REASON`. DRAFTER, SMALL and LIGHT in SPEC and FLAGS stand for the folders of these models.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mt"))

from systems import System, describe

HEADROOM = "--max-source-len 512 --max-target-len 256"  # the same for all: drafts must fit the verifier
MODELS = (
    System(
        "ar",
        "autoregressive Transformer",
        "transformer",
        HEADROOM,
        (
            "greedy",
            "iad",
            "gad:drafter=DRAFTER",
            "gad:drafter=DRAFTER:beta=3",
            "speculative:drafter=SMALL",
            "speculative:drafter=LIGHT",
            "bild:drafter=SMALL",
        ),
    ),
    System("drafter", "blockwise drafter", "blockwise", f"{HEADROOM} --glancing 0.5:0.3@{{updates}}", ()),
    System("small", "small autoregressive Transformer", "transformer", HEADROOM, ()),
    System("light", "light drafter", "light_drafter", "", ()),  # its verifier's lengths are its own
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=5000, help="of each drafter (default: %(default)s)")
    args = parser.parse_args()
    for row in describe(args.updates, only=set(), systems=MODELS):
        print("\t".join(row))


if __name__ == "__main__":
    main()
