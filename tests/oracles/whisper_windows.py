"""Has OpenAI's program follow scripted outputs of windows, and writes what it makes of them.

``python whisper_windows.py FILE``, where openai-whisper is installed: `transcribe` is the program's own, and
so are the tokens in front of an output and the ratio of compression; what a window's decoding gives is drawn.
Of each case are written the options, frames of sound, drawn outputs with mean log-probability and probability
of no speech in the order in which they were asked for, what stood in front of the start token then and at
which temperature, and the segments that are not empty.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from whisper.decoding import DecodingResult, DecodingTask
from whisper.tokenizer import get_tokenizer
from whisper.transcribe import transcribe
from whisper.utils import compression_ratio

CONTEXT = 64  # positions of the model: so few that prompts are cut
TOKENIZER = get_tokenizer(multilingual=False)
BEGIN = TOKENIZER.timestamp_begin
TEXTS = [" a", " dog", " runs", " home", ".", " the", " same", ",", " again", " and"]
WORDS = {TOKENIZER.encode(text)[0]: text for text in TEXTS}
SPACE = TOKENIZER.encode(" ")[0]


def drawn_tokens(rng: random.Random, seconds: float) -> list[int]:
    """A window's output: pairs of timestamps, one at the end, or none; empty and repeating segments too."""
    words = [*WORDS]
    steps = sorted(rng.sample(range(1, max(8, round(seconds * 50))), 4))
    kind = rng.choice(["pairs", "pairs", "single", "one", "none", "zero", "blank", "loop"])

    def text(most: int = 4) -> list[int]:
        return rng.choices(words, k=rng.randint(1, most))

    if kind == "none":
        return [BEGIN, *text()]
    if kind == "one":
        return [BEGIN + steps[0], *text(), BEGIN + steps[1]]
    if kind == "loop":
        return [BEGIN, *(text(2) * 20)[:28], BEGIN + steps[3]]
    if kind == "blank":
        return [BEGIN, SPACE, BEGIN + steps[0], BEGIN + steps[0], *text(), BEGIN + steps[1], BEGIN + steps[1]]
    if kind == "zero":
        at = BEGIN + steps[1]
        return [BEGIN, *text(), at, at, *text(), at, at, *text(), BEGIN + steps[2], BEGIN + steps[2]]
    pairs = [BEGIN, *text(), *[BEGIN + steps[0]] * 2, *text(), *[BEGIN + steps[1]] * 2]
    if kind == "single":
        return [*pairs, *text(), BEGIN + steps[2]]
    return [*pairs, *(text() if rng.random() < 0.5 else [])]


class ScriptedModel:
    """What `transcribe` needs of a model."""

    device = "cpu"
    is_multilingual = False
    num_languages = 99
    dims = SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_text_ctx=CONTEXT)

    def __init__(self, rng: random.Random, seconds: float) -> None:
        self.rng, self.seconds = rng, seconds
        self.script: list[Any] = []
        self.calls: list[Any] = []

    def decode(self, mel: Any, options: Any) -> DecodingResult:
        task = SimpleNamespace(
            sot_sequence=TOKENIZER.sot_sequence,
            options=options,
            tokenizer=TOKENIZER,
            n_ctx=CONTEXT,
            sample_len=CONTEXT // 2,
        )
        before = DecodingTask._get_initial_tokens(task)[: -len(TOKENIZER.sot_sequence)]
        tokens = drawn_tokens(self.rng, self.seconds)
        mean = self.rng.choice([-0.3, -0.8, -1.2])
        no_speech = self.rng.choice([0.1, 0.5, 0.7])
        if options.temperature and self.calls and self.script:
            no_speech = self.script[-1][2]  # a window's own
        self.script.append([tokens, mean, no_speech])
        self.calls.append([[*before], options.temperature])
        text = TOKENIZER.decode(tokens).strip()
        return DecodingResult(
            audio_features=None,
            language="en",
            tokens=tokens,
            text=text,
            avg_logprob=mean,
            no_speech_prob=no_speech,
            temperature=options.temperature,
            compression_ratio=compression_ratio(text),
        )


def case(seed: int) -> dict[str, Any]:
    """A case with drawn options."""
    rng = random.Random(seed)
    seconds = rng.choice([4.3, 29.99, 30.0, 71.5, 100.25, 130.0])
    model = ScriptedModel(rng, min(30.0, seconds))
    options: dict[str, Any] = {
        "temperature": rng.choice([(0.0,), (0.0, 0.6, 1.0), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]),
        "condition_on_previous_text": rng.random() < 0.7,
        "clip_timestamps": rng.choice(["0", "0", "0.5", "0,1.5,2,3.25", "1,2,2,3"]),
        "initial_prompt": rng.choice([None, None, "the dog, the dog"]),
        "carry_initial_prompt": rng.random() < 0.3,
        "compression_ratio_threshold": rng.choice([2.4, 1.5]),
        "no_speech_threshold": rng.choice([0.6, 0.4]),
    }
    found = transcribe(model, np.zeros(round(seconds * 16000), np.float32), fp16=False, **options)
    names = ("seek", "start", "end", "text", "tokens", "temperature", "avg_logprob")
    names = (*names, "compression_ratio", "no_speech_prob")
    initial = options["initial_prompt"]
    return {
        "options": options,
        "initial": [] if initial is None else TOKENIZER.encode(f" {initial}"),
        "frames": round(seconds * 16000) // 160,
        "script": model.script,
        "calls": model.calls,
        "segments": [[each[name] for name in names] for each in found["segments"] if each["tokens"]],
        "text": found["text"],
    }


if __name__ == "__main__":
    words = {
        **WORDS,
        SPACE: " ",
        **{id: TOKENIZER.decode([id]) for id in TOKENIZER.encode(" the dog, the dog")},
    }
    special = {"eos": TOKENIZER.eot, "start": TOKENIZER.sot, "no_timestamps": TOKENIZER.no_timestamps}
    values = {"context": CONTEXT, "words": words, **special, "cases": [case(seed) for seed in range(60)]}
    Path(sys.argv[1]).write_text(json.dumps(values, separators=(",", ":")) + "\n", encoding="utf-8")
