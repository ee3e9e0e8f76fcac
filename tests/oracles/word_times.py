"""Prints what OpenAI's program, openai-whisper 20250625, makes of random alignments and of segments."""

from __future__ import annotations

import io
import json
import random
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from whisper import timing
from whisper.timing import WordTiming, add_word_timestamps, dtw_cpu, median_filter, merge_punctuations
from whisper.tokenizer import get_tokenizer
from whisper.utils import get_writer

TEXTS = {
    "en": ' The "quick" brown fox (a dog?) jumped -- over 3 "fences", didn\'t it? Naïve café №5… Yes! 🙂 ok.',
    "ja": "今日は、いい天気ですね。東京🙂へ行く！",
    "de": " Größe „über“ alles: ¿Qué? Ende.",
}
MARKS = (" (", ' "', ",", ".", "?", "”", " ¿", "!", "-")


def paths() -> list[Any]:
    """Weights [H,N,S] and where the path through them jumps; whole numbers make many ties."""
    found = []
    for seed, (h, n, s) in enumerate([(1, 4, 3), (2, 5, 40), (3, 9, 25), (1, 2, 1), (2, 12, 90), (1, 6, 6)]):
        draw = np.random.default_rng(seed)
        weights = draw.random((h, n, s)).astype(np.float32)
        if seed % 2:
            weights = weights.round(1)
        x = torch.from_numpy(weights)
        std, mean = torch.std_mean(x, dim=-2, keepdim=True, unbiased=False)
        matrix = median_filter((x - mean) / std, 7).mean(axis=0)
        tokens, times = dtw_cpu(-matrix.double().numpy())
        jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
        found.append({"weights": weights.tolist(), "jumps": times[jumps].tolist()})
    return found


def ties() -> list[Any]:
    """Costs of few different numbers, and the whole path."""
    found = []
    for seed in range(12):
        draw = np.random.default_rng(seed)
        costs = draw.integers(-2, 2, (draw.integers(1, 7), draw.integers(1, 9))).astype(np.float64)
        found.append({"costs": costs.tolist(), "path": dtw_cpu(costs).tolist()})
    return found


def splits() -> list[Any]:
    """Texts as tokens, and their words."""
    found = []
    for language, text in TEXTS.items():
        tokenizer = get_tokenizer(multilingual=True, language=language)
        tokens = tokenizer.encode(text)
        for ids in (tokens, tokens[3:], tokens[10:], tokens[:1]):
            words, parts = tokenizer.split_to_word_tokens([*ids, tokenizer.eot])
            pieces = [list(tokenizer.encoding.decode_single_token_bytes(id)) for id in ids]
            found.append(
                {
                    "language": language,
                    "pieces": pieces,
                    "words": words[:-1],
                    "sizes": [*map(len, parts[:-1])],
                }
            )
    return found


def joined() -> list[Any]:
    """Words with punctuation, and where it went."""
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        words = [rng.choice([*MARKS, " word", " a", "b"]) for _ in range(rng.randint(1, 12))]
        timings = [WordTiming(word, [i], i, i + 1, 0.5) for i, word in enumerate(words)]
        merge_punctuations(timings, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
        found.append({"words": words, "merged": [[each.word, each.tokens] for each in timings]})
    return found


def cut() -> list[Any]:
    """Words of several segments with times, and what they become."""
    found = []
    for seed in range(60):
        rng = random.Random(seed)
        count, at, words = rng.randint(1, 14), 0, []
        for _ in range(count):
            at += rng.choice([0, 0, 10, 90])
            end = at + rng.choice([0, 5, 10, 20, 30, 60, 150])
            word = rng.choice([" word", " a", "b", *MARKS])
            words.append([word, at * 0.02, end * 0.02, rng.random(), rng.randint(1, 3)])
            at = end
        cuts = sorted({0, count, *(rng.randint(0, count) for _ in range(2))})
        segments, seek, last = [], rng.choice([0, 1234]), rng.choice([0.0, 3.0, 20.0])
        for one, end in pairwise(cuts):
            tokens = [1] * sum(each[4] for each in words[one:end])
            start = seek / 100 + words[one][1] + rng.choice([-1.0, 0.0, 0.3, 1.0])
            stop = seek / 100 + words[end - 1][2] + rng.choice([-1.0, 0.0, 0.3, 1.0])
            segments.append({"seek": seek, "start": max(0.0, start), "end": max(0.0, stop), "tokens": tokens})
        given = json.loads(json.dumps({"words": words, "segments": segments, "last": last}))
        timings = [WordTiming(word, [1] * n, start, end, prob) for word, start, end, prob, n in words]
        timing.find_alignment = lambda *_, found=timings, **__: found
        tokenizer = SimpleNamespace(eot=99)
        add_word_timestamps(
            segments=segments,
            model=None,
            tokenizer=tokenizer,
            mel=None,
            num_frames=0,
            last_speech_timestamp=last,
        )
        found.append({**given, "found": segments})
    return found


def written() -> list[Any]:
    """Segments, and the files of them."""
    texts = [" One.", " Two\tthree & <b>", "  Vier – fünf. ", " six --> seven"]
    segments = [
        {"start": 3599.5 * i + 0.0049, "end": 3599.5 * i + 2.3456, "text": text}
        for i, text in enumerate(texts)
    ]
    found = []
    for count in range(5):
        for form in ("srt", "vtt", "tsv"):
            file = io.StringIO()
            get_writer(form, ".").write_result({"segments": segments[:count]}, file)
            found.append({"segments": segments[:count], "format": form, "file": file.getvalue()})
    return found


made = {
    "written": written(),
    "paths": paths(),
    "ties": ties(),
    "splits": splits(),
    "joined": joined(),
    "cut": cut(),
}
json.dump(made, sys.stdout, default=float)
