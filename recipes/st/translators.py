"""The systems that the recipe of speech translation trains and compares, and how each is decoded.

    python recipes/st/translators.py [--updates N] [--only NAME,...]

Prints lines as `recipes/asr/recognizers.py` does. A name with a dot is a part of what the system before the
dot is tested on: of OWSM-CTC another task, or the same with the language hidden.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mt"))

from systems import System, print_systems

# CTC finds out soonest what an encoder is to tell: all others begin with its encoder.
_ENCODER = "--init-encoder WORK/ctc/model"
# Half a vertex a frame, as published (Fang et al. 2023, https://arxiv.org/abs/2310.07403); but what the
# encoder has at the same share of the sound in place of its masks, which learn in more steps.
GRAPH = (
    "--upsample-scale 2 --max-target-len 512 --ctc-weight 0.3 --decoder-layers 2 --decoder-input uniform-copy"
)
DAG = System(
    "dag",
    "DA-Transformer",
    "speech_dag",
    f"{GRAPH} --glancing 0.5:0.1@{{updates}} {_ENCODER}",
    ("dag-greedy", "dag-lookahead", "dag-viterbi", "dag-joint-viterbi", "dag-beam"),
)
SYSTEMS = (
    System(
        "ctc", "CTC", "owsm_ctc", "--no-self-conditioning --intermediate-ctc=", ("ctc-greedy", "ctc-beam")
    ),
    System(
        "ctc-sc",
        "self-conditioned CTC",
        "owsm_ctc",
        f"--self-conditioning --intermediate-ctc 2 {_ENCODER}",
        ("ctc-greedy", "ctc-beam"),
    ),
    System(
        "owsm",
        "OWSM-CTC",
        "owsm_ctc",
        # Three tasks: three times as much sound in a step, and twice as many steps.
        "--self-conditioning --intermediate-ctc 2,3 --transcript-ctc 1 --words-in-front --prompt-layers 0 "
        f"--hide-language 0.3 --max-tokens 12000 "
        f"--total-num-update {{longer}} --max-update {{longer}} --fix-batch-norm {{updates}} {_ENCODER}",
        ("ctc-greedy",),
        ("asr", "st_deu", "st_fra", "hidden"),
    ),
    System(
        "ctc-decoder",
        "CTC with a decoder",
        "speech_ctc",
        f"--upsample 2 --ctc-weight 0.3 --decoder-layers 2 {_ENCODER}",
        ("ctc-greedy", "ctc-beam"),
    ),
    System(
        "ctc-glat",
        "CTC + GLAT",
        "speech_ctc",
        f"--upsample 2 --ctc-weight 0.3 --decoder-layers 2 --glancing 0.5:0.1@{{updates}} {_ENCODER}",
        ("ctc-greedy", "ctc-beam"),
    ),
    DAG,
    System(
        "ar",
        "attention and CTC",
        "conformer",
        _ENCODER,
        (
            "greedy",
            "beam:beam_size=5",
            "beam:beam_size=5:early_stopping=first",
            "joint-ctc:beam_size=5",
            "ctc-greedy",
            "ctc-draft",
            "gad:drafter=CTC",
            "gad:drafter=CTC-SC",
            "gad:drafter=CTC-GLAT",
            "gad:drafter=DAG",
        ),
    ),
)
# Titles of what OWSM-CTC is tested on besides the task of the others.
PARTS = {
    "owsm.asr": "OWSM-CTC, recognition",
    "owsm.st_deu": "OWSM-CTC, into German",
    "owsm.st_fra": "OWSM-CTC, into French",
    "owsm.hidden": "OWSM-CTC, language hidden",
}

if __name__ == "__main__":
    print_systems(__doc__, SYSTEMS, 1500)
