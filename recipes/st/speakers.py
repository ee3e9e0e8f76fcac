"""The systems that the recipe of translation into speech trains and compares, and how each is decoded.

    python recipes/st/speakers.py [--updates N] [--only NAME,...]

Prints lines as `recipes/asr/recognizers.py` does. `dag` translates into phonemes, which `fastspeech2` then
speaks: the cascade. `fastspeech2` speaks the true phonemes, and so does `tts-N`, which gives N frames a step.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from translators import DAG, GRAPH

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mt"))

from systems import System, print_systems

_CTC = "--no-self-conditioning --intermediate-ctc="
# Fang et al. 2023: both parts are trained before, and glancing has ended. The graph's shape is that of `dag`.
_JOINT = (
    f"{GRAPH} --task nartk_s2s --criterion nartk_s2s --glancing 0.1 --lr 0.0005 "
    "--decoder-features 0 --decoder-norm-first --activation relu "
    "--init-translation WORK/dag/model --init-acoustic WORK/fastspeech2/model --acoustic-input"
)
SYSTEMS = (
    System("recogniser", "recogniser", "owsm_ctc", f"{_CTC} --input-features 80 --bin-width 16", ()),
    System("aligner", "aligner", "owsm_ctc", f"{_CTC} --input-features 80", ()),
    System("ctc", "CTC", "owsm_ctc", _CTC, ()),
    System("fastspeech2", "FastSpeech 2, true phonemes", "fastspeech2", "", ("speak",)),
    *(
        System(
            f"tts-{n}",
            f"Transformer TTS, {n} frame{'s' * (n > 1)} a step, true phonemes",
            "transformer_tts",
            f"--frames-per-step {n}",
            ("speak",),
        )
        for n in (1, 2, 4)
    ),
    replace(DAG, title="cascade"),
    System("daspeech", "DASpeech", "daspeech", f"{_JOINT} expected", DAG.decoders),
    System("daspeech-path", "DASpeech, best path", "daspeech", f"{_JOINT} path", ("dag-lookahead",)),
)

if __name__ == "__main__":
    print_systems(__doc__, SYSTEMS, 1500)
