"""Writes joint_ctc.json: n-best lists of ESPnet's beam search over scripted models, with its CTC scorer.

    pip install --target /tmp/espnet --no-deps espnet==202511
    PYTHONPATH=/tmp/espnet:tests python tests/oracles/espnet_joint.py tests/oracles/joint_ctc.json

The decoder, the frames and the language model are those of tests/support/joint.py. eos is never chosen before
the greatest length, since behind it ESPnet's search keeps fewer hypotheses than nartk's. The bonus is the
weight of LengthBonus, ESPnet's `penalty`. Pre-beams are wide enough that no hypothesis with a blank as a word
is kept: ESPnet takes 1e10 from it, but gives it back with the next word.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet.nets.beam_search import BeamSearch
from espnet.nets.scorer_interface import ScorerInterface
from espnet.nets.scorers.ctc import CTCPrefixScorer
from espnet.nets.scorers.length_bonus import LengthBonus
from support.joint import LM, JointPasses
from support.scripted_passes import EOS, PAD

from nartk.decoders.graphs.ngram_lm import read_arpa

WORDS, BEAM, LENGTH, NEVER = 20, 4, 6, -1e10
OPTIONS: list[dict[str, float]] = [
    {"ctc_weight": 0.5, "pre_beam_ratio": 1.5},
    {"ctc_weight": 0.3, "pre_beam_ratio": 1.75, "word_bonus": 0.7},
    {"ctc_weight": 0.5, "pre_beam_ratio": 1.5, "lm_weight": 0.8, "word_bonus": -0.5},
    {"ctc_weight": 0.7, "pre_beam_ratio": 2.5, "lm_weight": 1.0},
]


class Decoder(ScorerInterface):
    def __init__(self, model: JointPasses, source: tuple[int, ...]) -> None:
        self.model, self.source = model, source

    def score(self, y: torch.Tensor, state: Any, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        log_probs = torch.tensor(self.model.log_probs(self.source, y.tolist()[1:]))
        log_probs[EOS] = NEVER
        return log_probs, None


class LanguageModel(ScorerInterface):
    def __init__(self, lm: Any) -> None:
        self.lm = lm

    def score(self, y: torch.Tensor, state: Any, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        at = np.array(self.lm.start)
        for word in y.tolist()[1:]:
            _, at = self.lm.advance(at, np.array(word))
        return torch.tensor(self.lm.advance(at, np.arange(WORDS))[0]), None


class Frames:
    """What CTCPrefixScorer reads as a CTC head: the frames of a source."""

    def __init__(self, model: JointPasses, source: tuple[int, ...]) -> None:
        self.log_probs = torch.tensor(model.frame_logits(source)).double().log_softmax(1)
        self.log_probs[:, PAD] = NEVER

    def log_softmax(self, x: torch.Tensor) -> torch.Tensor:
        return self.log_probs[None]


def main(file: str) -> None:
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lm.arpa"
        path.write_text(LM, encoding="utf-8")
        for seed in range(5):
            model = JointPasses(WORDS, seed=seed, frames=lambda size: 3 * size)
            rng = random.Random(seed)
            source = (*(rng.randrange(4, WORDS) for _ in range(5)), EOS)
            for options in OPTIONS:
                weight = options["ctc_weight"]
                search = BeamSearch(
                    {
                        "decoder": Decoder(model, source),
                        "ctc": CTCPrefixScorer(Frames(model, source), EOS),
                        "lm": LanguageModel(read_arpa(path, model.vocab)),
                        "length_bonus": LengthBonus(WORDS),
                    },
                    {
                        "decoder": 1 - weight,
                        "ctc": weight,
                        "lm": options.get("lm_weight", 0),
                        "length_bonus": options.get("word_bonus", 0),
                    },
                    BEAM,
                    WORDS,
                    EOS,
                    EOS,
                    pre_beam_ratio=options["pre_beam_ratio"],
                    pre_beam_score_key="full",
                )
                found = search(torch.zeros(18, 1, dtype=torch.float64), maxlenratio=-LENGTH)
                nbest = [{"tokens": each.yseq.tolist()[1:-1], "score": float(each.score)} for each in found]
                cases.append({"seed": seed, "source": source, "options": options, "nbest": nbest})
    Path(file).write_text(json.dumps(cases) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
