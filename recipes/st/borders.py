"""Compares borders of nartk-align with another aligner's, on English that is read aloud.

    python recipes/st/borders.py --output OUT --samples FOLDER [--quick]
        OUT/data.aligner/{train,valid}.tsv, English sentences by synthetic voices; .txt, their phonemes
        OUT/data.read/test.tsv, the recordings of FOLDER; .txt, their phonemes; borders.json, their times
    python recipes/st/borders.py --output OUT --score
        prints how far OUT/aligned, which nartk-align wrote of them, is from these borders

FOLDER has recordings NAME.wav and align/NAME.phone.json, as `pocketsphinx -phone_align yes align NAME.wav`
prints them: its phonemes are those of the CMU dictionary.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("st", "asr")]

from english import write_words
from prepare_speech import CHANGES, ESPEAK, HEARD, PITCHES, QUICK, SPEEDS, synthetic, write_part
from prompts import RATE
from sounds import log, write_input
from varied import strange

from nartk.data.audio.sounds import read_sound
from nartk.data.audio.targets import SUFFIX, SpeechCorpus
from nartk.data.text import read_corpus
from nartk.protocols.passes import FloatArray

VOICE = "en-us"
SENTENCES = {"train": 6000, "valid": 40}
PLAIN = re.compile(r"[A-Za-z][a-z]*(?: [a-z]+){2,11} ?[.?!]?")
SILENCE = "SIL"
# The phonemes of the CMU dictionary, each behind espeak-ng's symbols for it, without stress and length.
_TABLE = """
    ɑ AA   æ AE   ʌəɐ AH   ɔo AO   b B   d D   ð DH   ɛ EH   ɚɜ ER   f F   ɡ G   h HH   ɪᵻ IH   i IY
    k K   l L   m M   n N   ŋ NG   p P   ɹr R   s S   ʃ SH   tɾʔ T   θ TH   ʊ UH   u UW   v V   w W   j Y
    z Z   ʒ ZH"""
_PHONEMES = {
    **{symbol: name for symbols, name in re.findall(r"(\S+) (\S+)", _TABLE) for symbol in symbols},
    **{"aɪ": "AY", "eɪ": "EY", "oʊ": "OW", "aʊ": "AW", "ɔɪ": "OY", "dʒ": "JH", "tʃ": "CH"},
}
_LONGEST_FIRST = re.compile("|".join(sorted(_PHONEMES, key=len, reverse=True)))
_UNSPOKEN = re.compile("[ˈˌː\u0329]")  # stress, length, and that a consonant is a syllable


def cmu(symbol: str) -> str:
    """The phonemes of the CMU dictionary of one symbol of espeak-ng; empty where there is none.

    A vowel with what follows it is one symbol of espeak-ng's: "ɔːɹ" is "AO R".
    """
    plain = _UNSPOKEN.sub("", symbol)
    found = _LONGEST_FIRST.findall(plain)
    if "".join(found) != plain:
        return ""
    before = "AH " if "\u0329" in symbol else ""
    return before + " ".join(_PHONEMES[each] for each in found)


def phonemes_of(sentence: str) -> str:
    """The phonemes in which espeak-ng says a sentence; empty where one has no name in the CMU dictionary."""
    command = [ESPEAK, "-q", "-v", VOICE, "--ipa", "--sep=_", "--", sentence]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [cmu(symbol) for symbol in re.split(r"[\s_]+", symbols.strip()) if symbol]
    return " ".join(found) if all(found) else ""


def sentences(counts: dict[str, int], rng: np.random.Generator) -> Iterator[tuple[str, str, FloatArray]]:
    """Parts, phonemes and sounds of sentences, each by a random voice, and changed."""
    lines = [line for line in map(" ".join, read_corpus("tanaka")) if PLAIN.fullmatch(line)]
    order = iter(rng.permutation(len(lines)))
    for split, count in counts.items():
        while count:
            sentence = lines[next(order)]
            if phonemes := phonemes_of(sentence):
                speed, pitch = int(rng.integers(*SPEEDS)), int(rng.integers(*PITCHES))
                sound = synthetic(sentence, f"{VOICE}+{rng.choice(CHANGES)}", speed, pitch)
                yield split, phonemes, strange(sound, rng)
                count -= 1


def borders_of(path: Path) -> list[tuple[str, float]]:
    """Phonemes of one of the other aligner's files, and the time at which each begins, s."""
    words = json.loads(path.read_text(encoding="utf-8"))["w"]
    return [(each["t"], each["b"]) for word in words for each in word["w"] if each["t"] != SILENCE]


def prepare(output: Path, samples: Path, counts: dict[str, int]) -> None:
    """Writes the data."""
    aligner, read = output / "data.aligner", output / "data.read"
    for folder in (aligner, read):
        folder.mkdir(parents=True, exist_ok=True)
    known = {path.name.split(".")[0]: borders_of(path) for path in sorted(samples.glob("align/*.phone.json"))}
    if not known:
        raise SystemExit(f"borders.py: --samples {samples}: has no align/NAME.phone.json")
    recordings = (
        (name, " ".join(phoneme for phoneme, _ in borders), read_sound(samples / f"{name}.wav", rate=RATE))
        for name, borders in known.items()
    )
    write_part(read, "test", recordings)
    (read / "borders.json").write_text(json.dumps([*known.values()]), encoding="utf-8")
    made: dict[str, list[tuple[str, str, FloatArray]]] = {split: [] for split in counts}
    for split, phonemes, sound in sentences(counts, np.random.default_rng(5)):
        made[split].append((f"{len(made[split]):05d}", phonemes, sound))
    for split, recordings in made.items():
        write_part(aligner, split, recordings)
    write_words(aligner, [*_PHONEMES.values()])
    write_input(aligner, HEARD)
    log(f"{len(known)} recordings of {samples}")


def score(output: Path) -> None:
    """Prints how far borders are apart: of all phonemes but each recording's first, which begins at 0."""
    corpus = SpeechCorpus.read(output / "aligned" / f"test{SUFFIX}")
    mel = json.loads((output / "aligned" / "mel.json").read_text(encoding="utf-8"))
    frame = mel["hop"] / mel["sample_rate"]
    known = json.loads((output / "data.read" / "borders.json").read_text(encoding="utf-8"))
    differences = np.concatenate(
        [
            np.cumsum(found.durations)[:-1] * frame - [begin for _, begin in borders[1:]]
            for found, borders in zip(corpus, known, strict=True)
        ]
    )
    apart = np.abs(differences)
    print(
        f"{len(apart)} borders: median {np.median(apart):.3f} s apart, 90th percentile "
        f"{np.percentile(apart, 90):.3f}; {np.mean(apart <= 0.04):.0%} within 0.04; ours "
        f"{abs(np.median(differences)):.3f} {'later' if np.median(differences) > 0 else 'earlier'} (median)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--samples", type=Path, metavar="FOLDER", help="recordings and their alignments")
    parser.add_argument("--score", action="store_true", help="compare the borders")
    parser.add_argument("--quick", action="store_true", help="some sentences alone")
    args = parser.parse_args()
    if args.score:
        score(args.output)
    elif args.samples is None:
        parser.error("--samples FOLDER is needed: recordings, and the borders to compare with")
    else:
        prepare(args.output.resolve(), args.samples, QUICK if args.quick else SENTENCES)


if __name__ == "__main__":
    main()
