"""Word errors of a model of digits under other conditions than those of its test set.

    python recipes/asr/conditions.py MODEL [--strategy NAME] [--voice FOLDER]

Prints a line of a table for each condition: the numbers that are tested as they are, softer, with noise, and
without pauses; single digits, as they are and cut tight; a minute of numbers at once, in buffers and as it
comes; and of a folder with `0.flac` to `9.flac`, such as the English digits of Asterisk's prompts, 200
numbers of that voice.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from corpora import RATE, connected, numbers, recordings
from sounds import write_sound
from varied import WORDS, tight

import nartk
from nartk.data.audio.sounds import read_sound
from nartk.metrics.wer import WordErrorRate
from nartk.protocols.passes import FloatArray
from nartk.serving.long_form import buffers_for
from nartk.serving.streaming import stream

TESTED = 5  # recordings of each digit and speaker
PAUSES_MS = (50, 300)
Spoken = list[tuple[FloatArray, str]]


def conditions(voice: Path | None) -> Iterator[tuple[str, Spoken]]:
    """The names of conditions, and sounds with what is said in each."""
    rng, test = np.random.default_rng(1), [*numbers("test")]
    yield "as recorded", [(each.signal, each.text) for each in test]
    for level in (-20, -30, -40):
        yield f"{level} dB", [(each.signal * 10 ** (level / 20), each.text) for each in test]
    for ratio in (20, 10):
        noisy = [(_with_noise(each.signal, ratio, rng), each.text) for each in test]
        yield f"white noise, {ratio} dB below", noisy
    held = {
        name: sound
        for name, sound in sorted(recordings("fsdd.tar.xz").items())
        if int(name.rsplit("_", 1)[1]) < TESTED
    }
    joined: Spoken = []
    for each in test:
        names = [f"{WORDS.index(word)}_{each.speaker}_{rng.integers(TESTED)}" for word in each.text.split()]
        sounds = [tight(held[name]) for name in names]
        joined.append((connected(sounds, [0] * (len(sounds) + 1)), each.text))
    yield "cut tight, without pauses", joined
    yield "one digit", [(sound, WORDS[int(name[0])]) for name, sound in held.items()]
    yield "one digit, cut tight", [(tight(sound), WORDS[int(name[0])]) for name, sound in held.items()]
    if voice is not None:
        own = {word: read_sound(voice / f"{i}.flac", rate=RATE) for i, word in enumerate(WORDS)}
        spoken: Spoken = []
        for _ in range(200):
            words = rng.choice(WORDS, int(rng.integers(1, 6))).tolist()
            gaps = rng.integers(*PAUSES_MS, len(words) + 1).tolist()
            spoken.append((connected([own[word] for word in words], gaps), " ".join(words)))
        yield f"the voice of {voice.name}", spoken


def minutes() -> Spoken:
    """The numbers that are tested, by one speaker each, in a row until they last a minute."""
    found: Spoken = []
    test = [*numbers("test")]
    for speaker in sorted({each.speaker for each in test}):
        sounds, texts = [], []
        for each in test:
            if each.speaker != speaker:
                continue
            sounds.append(each.signal)
            texts.append(each.text)
            if sum(map(len, sounds)) > 60 * RATE:
                found.append((np.concatenate(sounds), " ".join(texts)))
                sounds, texts = [], []
    return found


def _with_noise(sound: FloatArray, ratio: float, rng: np.random.Generator) -> FloatArray:
    level = np.sqrt(np.mean(sound**2)) * 10 ** (-ratio / 20)
    return (sound + level * rng.standard_normal(len(sound))).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--strategy", default=None, help="default: the model's own")
    parser.add_argument("--voice", type=Path, help="folder of 0.flac to 9.flac")
    args = parser.parse_args()
    model = nartk.load(args.model)
    model.checkpoint.input.tell = lambda line: None
    with tempfile.TemporaryDirectory() as folder:

        def written(spoken: Spoken) -> list[str]:
            paths = [Path(folder, f"{i}.wav") for i in range(len(spoken))]
            for path, (sound, _) in zip(paths, spoken, strict=True):
                write_sound(path, sound)
            return [*map(str, paths)]

        def show(name: str, spoken: Spoken, found: list[str]) -> None:
            (result,) = WordErrorRate().score([[text for _, text in spoken]], found)
            print(f"| {name} | {result.score:.2f} |", flush=True)

        for name, spoken in conditions(args.voice):
            show(name, spoken, [each.text for each in model.decode(written(spoken), args.strategy)])
        spoken = minutes()
        paths = written(spoken)
        for chunk, ahead in ((640, 320), (640, 640), (1280, 640)):
            texts = [[*stream(model, path, chunk_ms=chunk, look_ahead_ms=ahead)][-1].text for path in paths]
            show(f"a minute as it comes, chunks of {chunk} ms, {ahead} ms ahead", spoken, texts)
        for seconds in (4, 15):
            model = replace(model, buffers=buffers_for(model, seconds))
            texts = [each.text for each in model.decode(paths, args.strategy)]
            show(f"a minute in buffers of {seconds} s", spoken, texts)


if __name__ == "__main__":
    main()
