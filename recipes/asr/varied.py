"""Makes spoken numbers of recordings of digits, as varied as strangers' sound is, and sound without speech.

Recordings of few speakers teach a model their voices, their microphones and their loudness. Here a number has
one to twelve digits, with pauses or without. Its speed is changed, and with it pitch and formants (Ko et al.
2015); its spectrum is coloured as another microphone colours it; its loudest sample has any level from forty
steps of 16-bit numbers to full scale; and noise or hum lies under it.

Symbols: N samples. Levels are of the loudest sample, dB of full scale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from corpora import RATE, Utterance, connected
from sounds import changed

from nartk.data.audio.augmentation import SPEEDS as COPIED_SPEEDS
from nartk.data.audio.augmentation import change_speed
from nartk.protocols.passes import FloatArray

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LENGTHS = {1: 0.2, **dict.fromkeys(range(2, 5), 0.4 / 3), **dict.fromkeys(range(5, 13), 0.4 / 8)}  # digits
SPEEDS = (0.7, 1.25)
LEVELS_DB = (-58.0, -1.0)
NOISE_DB = (-60.0, -12.0)  # of what lies under a number, less its loudest sample
COLOUR_DB, COLOUR_POINTS = 5.0, 6  # deviation of a microphone's response, at so many frequencies
PAUSES_MS = 400  # the longest
CORPUS_PAUSES_MS = 50, 300  # of the corpus of connected numbers
WITHOUT_PAUSES, WITHOUT_NOISE, WITHOUT_SPEECH = 0.4, 0.2, 0.08  # shares
QUIETEST_SECONDS = (0.3, 6.0)  # of sound without speech
_TIGHT_DB, _TIGHT_MS = (
    -30.0,
    10,
)  # a recording begins and ends where it is that loud, less its loudest stretch


def varied(
    recordings: Mapping[str, FloatArray],
    count: int,
    rng: np.random.Generator,
    *,
    unspoken: Collection[str] = (),
) -> Iterator[Utterance]:
    """Random utterances of recordings, whose names are as fsdd's: ``DIGIT_SPEAKER_NUMBER``.

    Args:
        unspoken: Texts that are not said.
    """
    by_speaker = _by_speaker(recordings)
    speakers = sorted(by_speaker)
    for i in range(count):
        id = f"varied-{i:05d}"
        if rng.random() < WITHOUT_SPEECH:
            yield Utterance(id, "", unspeaking(rng), "")
            continue
        own = by_speaker[speakers[int(rng.integers(len(speakers)))]]
        digits = _number(sorted(own), rng)
        while text_of(digits) in unspoken:
            digits = _number(sorted(own), rng)
        names = _drawn(own, digits, rng)
        sound = strange(_spoken([recordings[name] for name in names], rng), rng)
        yield Utterance(id, names[0].split("_")[1], sound, text_of(digits))


def respoken(
    utterances: Iterable[Utterance],
    recordings: Mapping[str, FloatArray],
    count: int,
    rng: np.random.Generator,
    *,
    plain: bool = False,
) -> Iterator[Utterance]:
    """Each number so many times, of other recordings of its speaker, as varied as those of `varied`.

    Args:
        plain: Put together as the corpus's numbers, half of them changed as `copies` changes them.
    """
    by_speaker = _by_speaker(recordings)
    for each in utterances:
        digits = "".join(str(WORDS.index(word)) for word in each.text.split())
        for number in range(count):
            names = _drawn(by_speaker[each.speaker], digits, rng)
            parts = [recordings[name] for name in names]
            sound = _plain(parts, rng) if plain else strange(_spoken(parts, rng), rng)
            yield replace(each, id=f"{each.id}-anew-{number}", signal=sound)


def _by_speaker(recordings: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Names of recordings by speaker and digit."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in sorted(recordings):
        digit, speaker, _ = name.split("_")
        found.setdefault(speaker, {}).setdefault(digit, []).append(name)
    return found


def _drawn(own: Mapping[str, Sequence[str]], digits: str, rng: np.random.Generator) -> list[str]:
    """A recording of each digit."""
    return [own[digit][int(rng.integers(len(own[digit])))] for digit in digits]


def _number(digits: Sequence[str], rng: np.random.Generator) -> str:
    size = int(rng.choice([*LENGTHS], p=[*LENGTHS.values()]))
    return "".join(rng.choice(list(digits), size))


def text_of(digits: str) -> str:
    """The words of digits."""
    return " ".join(WORDS[int(digit)] for digit in digits)


def _spoken(parts: list[FloatArray], rng: np.random.Generator) -> FloatArray:
    """Recordings in a row, with pauses drawn, or cut tight and without any."""
    if rng.random() < WITHOUT_PAUSES:
        return connected([tight(part) for part in parts], [0] * (len(parts) + 1))
    return connected(parts, rng.integers(PAUSES_MS, size=len(parts) + 1, endpoint=True).tolist())


def _plain(parts: list[FloatArray], rng: np.random.Generator) -> FloatArray:
    sound = connected(parts, rng.integers(*CORPUS_PAUSES_MS, size=len(parts) + 1, endpoint=True).tolist())
    return changed(sound, float(rng.choice(COPIED_SPEEDS)), rng) if rng.random() < 0.5 else sound


def tight(sound: FloatArray) -> FloatArray:
    """A recording [N] without the quiet at its ends."""
    step = _TIGHT_MS * RATE // 1000
    power = np.array([np.mean(sound[at : at + step] ** 2) for at in range(0, len(sound), step)])
    loud = np.flatnonzero(power >= power.max() * 10 ** (_TIGHT_DB / 10))
    return sound[loud[0] * step : (loud[-1] + 1) * step]


def strange(sound: FloatArray, rng: np.random.Generator) -> FloatArray:
    """A sound [N] at another speed and level, by another microphone, mostly with something under it."""
    sound = _coloured(change_speed(sound, float(rng.uniform(*SPEEDS))), rng)
    sound = sound / max(float(np.abs(sound).max()), 1e-9)
    if rng.random() >= WITHOUT_NOISE:
        sound = sound + 10 ** (rng.uniform(*NOISE_DB) / 20) * _background(len(sound), rng)
    return _at_level(sound, rng)


def unspeaking(rng: np.random.Generator) -> FloatArray:
    """Sound [N] in which nobody speaks: digital silence, noise or hum."""
    size = int(rng.uniform(*QUIETEST_SECONDS) * RATE)
    if rng.random() < 0.1:
        return np.zeros(size, np.float32)
    return _at_level(_background(size, rng), rng)


def _background(size: int, rng: np.random.Generator) -> FloatArray:
    """Noise of any colour from white to brown, steady or not, or hum; its loudest sample is 1."""
    noise = rng.standard_normal(size)
    spectrum = np.fft.rfft(noise)
    spectrum /= np.maximum(np.arange(len(spectrum)), 1) ** rng.uniform(0, 1)
    sound = np.fft.irfft(spectrum, size)
    sound /= np.abs(sound).max()
    times = np.arange(size) / RATE
    if rng.random() < 0.3:
        knots = rng.uniform(0, 1, 2 + size // (RATE // 4))
        sound *= np.interp(times, np.linspace(0, times[-1], len(knots)), knots)
    if rng.random() < 0.4:
        pitch = rng.choice((50.0, 60.0, rng.uniform(80, 800)))
        parts = np.arange(1, 1 + int(rng.integers(1, 9)))
        waves = rng.uniform(0, 1, len(parts)) @ np.sin(
            2 * np.pi * pitch * np.outer(parts, times) + rng.uniform(0, 2 * np.pi, (len(parts), 1))
        )
        sound = rng.uniform(0, 0.3) * sound + waves
    return (sound / np.abs(sound).max()).astype(np.float32)


def _coloured(sound: FloatArray, rng: np.random.Generator) -> FloatArray:
    spectrum = np.fft.rfft(sound)
    points = COLOUR_DB * rng.standard_normal(COLOUR_POINTS)
    response = np.interp(np.linspace(0, COLOUR_POINTS - 1, len(spectrum)), np.arange(COLOUR_POINTS), points)
    return np.fft.irfft(spectrum * 10 ** (response / 20), len(sound)).astype(np.float32)


def _at_level(sound: FloatArray, rng: np.random.Generator) -> FloatArray:
    loudest = max(float(np.abs(sound).max()), 1e-9)
    return (sound * (10 ** (rng.uniform(*LEVELS_DB) / 20) / loudest)).astype(np.float32)
