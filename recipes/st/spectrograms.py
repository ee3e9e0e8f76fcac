"""Draws spectrograms of translation into speech: the source, the reference speech and an output.

    python recipes/st/spectrograms.py --work DIR [--key NAME.STRATEGY] [--line N] [--output FILE.png]

Phonemes and their borders are those of the recipe's aligner. Needs the extra plot.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

import nartk
from nartk.data.audio.sounds import read_sound
from nartk.data.audio.spectra import mel_and_energy
from nartk.errors import UsageError
from nartk.protocols.spectrograms import MelSettings
from nartk.tracing.plot import make_figure, save_figure
from nartk.tracing.speech import align

SETTINGS = MelSettings(sample_rate=16000, high=7600)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def borders(model: nartk.Model, path: str, phonemes: str) -> list[tuple[float, str]]:
    """The time at which each phoneme begins, s; none where the sound is too short for them."""
    ids = model.checkpoint.output.encode(phonemes)
    with suppress(UsageError):
        return [*zip(align(model, path, ids).times[:, 0].tolist(), phonemes.split(), strict=True)]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--key", default="daspeech.dag-lookahead", help="whose output (default: %(default)s)")
    parser.add_argument("--line", type=int, default=1, help="which of the tested (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("spectrograms.png"), help="file (default: %(default)s)"
    )
    args = parser.parse_args()
    work, at = args.work, args.line - 1
    root, *sources = lines(work / "data/test.tsv")
    aligner = nartk.load(work / "aligner/model")
    shown = [("source", f"{root}/{sources[at]}", "")]
    for title, sounds, texts in (
        ("reference speech", work / "out/reference.lst", work / "data/test.txt"),
        (args.key, work / "out" / f"{args.key}.lst", work / "out" / args.key),
    ):
        shown.append((title, lines(sounds)[at], lines(texts)[at]))
    figure = make_figure(10, 2.6 * len(shown))
    for axes, (title, path, phonemes) in zip(figure.subplots(len(shown), 1), shown, strict=True):
        samples = read_sound(path, rate=SETTINGS.sample_rate)
        mel, _ = mel_and_energy(samples, SETTINGS)
        seconds = len(samples) / SETTINGS.sample_rate
        axes.imshow(mel.T, origin="lower", aspect="auto", extent=(0, seconds, 0, SETTINGS.bins))
        axes.set_ylabel("mel bin")
        axes.set_title(title, loc="left")
        for begin, phoneme in borders(aligner, path, phonemes) if phonemes else ():
            axes.axvline(begin, color="white", linewidth=0.7)
            axes.text(begin, SETTINGS.bins, f" {phoneme}", color="white", va="top")
    axes.set_xlabel("seconds")
    save_figure(figure, args.output, "png")


if __name__ == "__main__":
    main()
