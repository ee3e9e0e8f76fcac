"""The systems that the speech recipe trains and compares, and how each is decoded.

    python recipes/asr/recognizers.py [--updates N] [--only NAME,...]

Prints lines as `recipes/mt/systems.py` does: `model NAME ARCHITECTURE FLAGS`, `decode NAME SPEC FLAGS` and
`missing NAME SPEC REASON`. A value in capitals, in SPEC and FLAGS, stands for the folder of the system of
that name, and WORK for the folder of the run.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mt"))

from systems import System, print_systems

# What is added to the sum of the weights: the value with which most counts of the validation set are right.
_TAIL = "--tail-threshold 0.6"
# The others begin with the first two: CTC finds out soonest what an encoder is to tell, and MWER training
# begins with a whole model, as in the paper.
_ENCODER = "--init-encoder WORK/ctc/checkpoints/checkpoint_last.pt"
SYSTEMS = (
    System(
        "ctc", "CTC", "owsm_ctc", "--no-self-conditioning --intermediate-ctc=", ("ctc-greedy", "ctc-beam")
    ),
    System(
        "paraformer", "Paraformer", "paraformer", f"--sampling-ratio 0.75 {_TAIL} {_ENCODER}", ("paraformer",)
    ),
    System(
        "ar",
        "attention and CTC",
        "conformer",
        # Attention learns later than CTC where words begin and end.
        f"{_ENCODER} --total-num-update {{longer}} --max-update {{longer}}",
        (
            "greedy",
            "beam:beam_size=5",
            "joint-ctc:beam_size=5",
            "ctc-greedy",
            "ctc-draft",
            "gad:drafter=CTC",
            "gad:drafter=CTC-SC",
            "gad:drafter=PARAFORMER",
        ),
    ),
    System(
        "ctc-sc",
        "self-conditioned CTC",
        "owsm_ctc",
        f"--self-conditioning --intermediate-ctc 2 {_ENCODER}",
        ("ctc-greedy", "ctc-beam"),
    ),
    System(
        "paraformer-ce",
        "Paraformer without GLM",
        "paraformer",
        f"--sampling-ratio 0 {_TAIL} {_ENCODER}",
        ("paraformer",),
    ),
    System(
        "paraformer-mwer",
        "Paraformer with MWER",
        "paraformer",
        f"--sampling-ratio 0.75 {_TAIL} --mwer-weight 1 --mwer-samples 4 "
        "--finetune-from-model WORK/paraformer/checkpoints/checkpoint_last.pt",
        ("paraformer",),
    ),
)


if __name__ == "__main__":
    print_systems(__doc__, SYSTEMS, 1000)
