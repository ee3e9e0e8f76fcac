"""Makes the data of translation into speech: English numbers, a voice that says them in another language.

python recipes/st/prepare_speech.py --target fr|es|it --output OUT [--voice prompts|espeak] [--spoken N]
                                    [--heard N] [--copies N] [--new N] [--without SPEAKER] [--quick]
    OUT/data/{train,valid,test}.tsv, lists of spoken English numbers, as prepare.py writes them; .txt, the
    phonemes of their translations; dict.txt, the phonemes; test.words.txt, the words of the translations
    OUT/data.voice/{train,valid,test}.tsv, the recordings of a voice that says N of those that train, and the
    others; .txt, their phonemes
    OUT/data.aligner/{train,valid}.tsv, the same voice's words in random order; .txt, their phonemes
    OUT/data.recogniser/{train,valid}.tsv, random numbers of N other, synthetic voices; .txt, their words
python recipes/st/prepare_speech.py --pair --output OUT
    OUT/data.daspeech/{train,valid}.lst, the English numbers of OUT/data.fastspeech2, which nartk-align wrote;
    its phonemes and its speech
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from english import SPLITS, Spoken, write_sounds, write_words
from prompts import LANGUAGES, MOST, RATE, joined, names_of, trimmed, with_gaps, words

from nartk.data.audio.sounds import read_sound, write_wav
from nartk.data.audio.targets import SUFFIX
from nartk.protocols.passes import FloatArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "asr"))

from sounds import DIGITS, log, write_input, write_lines, write_split, write_statistics
from varied import WORDS as ENGLISH
from varied import strange

ESPEAK = "espeak-ng"
SPEED = 160  # words a minute of the synthetic voice that is a target
# Voices of espeak-ng by language, the first that of the target, and changes of them that make others.
VOICES = {"fr": ("fr", "fr-be", "fr-ch"), "es": ("es", "es-419"), "it": ("it",)}
CHANGES = (
    *(f"m{i}" for i in range(1, 9)),
    *(f"f{i}" for i in range(1, 6)),
    *("klatt", "klatt2", "klatt3", "klatt4", "klatt6", "adam", "Alex", "Alicia", "Andrea", "Andy", "Annie"),
    *("antonio", "belinda", "benjamin", "boris", "david", "Denis", "ed", "edward", "Gene", "Hugo", "Jacky"),
    *("john", "Lee", "linda", "Marco", "Mario", "max", "Michael", "michel", "Mike", "pablo", "paul", "pedro"),
    *("quincy", "rob", "robert", "steph", "steph2", "travis", "victor", "anika", "grandma", "grandpa"),
)
SPEEDS, PITCHES = (110, 220), (15, 85)  # of these others
APART = 0.5  # share of numbers whose words these others say one by one, as the prompts are
TARGET = {"name": "audio", "sample_rate": RATE, "bins": 80, "cmvn": "global", "statistics": "cmvn.json"}
# Of each recording its own mean and variance: the voice that is heard is none of those that trained.
HEARD = {"name": "audio", "sample_rate": RATE, "bins": 80, "cmvn": "utterance"}
QUICK = {"train": 200, "valid": 20}
# Random words train the aligner: in numbers it could know from some what the others are, and place their
# phonemes anywhere.
SHUFFLED = {"train": 1200, "valid": 20}  # recordings
Voice = Callable[[Sequence[str]], FloatArray]  # of the names of words, samples [N] of `RATE`


def number_of(text: str) -> int:
    """The number whose digits are said."""
    return int("".join(str(ENGLISH.index(word)) for word in text.split()))


def phonemes_of(names: Iterable[str], language: str) -> str:
    """The phonemes of words, by the names of their recordings, with spaces between."""
    table = words(language)
    return " ".join(phoneme for name in names for phoneme in table[name].phonemes)


def text_of(names: Iterable[str], language: str) -> str:
    """The text of words, those of compounds apart, which sound the same."""
    table = words(language)
    return " ".join(table[name].words for name in names).replace("-", " ")


def words_of(number: int, language: str) -> str:
    """The text of a number."""
    return text_of(names_of(number, language), language)


def synthetic(text: str, voice: str, speed: int, pitch: int) -> FloatArray:
    """Speech of espeak-ng, samples [N] of `RATE`."""
    command = [ESPEAK, "--stdout", "-v", voice, "-s", str(speed), "-p", str(pitch), "--", text]
    return read_sound(subprocess.run(command, check=True, capture_output=True).stdout, rate=RATE)


def target_voice(name: str, language: str) -> Voice:
    """A voice that says words: the professional's, word by word, or espeak-ng's, in one breath."""
    rng = np.random.default_rng(2)
    if name == "prompts":
        return lambda names: joined(names, language, rng).samples
    return lambda names: synthetic(text_of(names, language), VOICES[language][0], SPEED, 50)


def other_voices(language: str, count: int, rng: np.random.Generator) -> Iterator[tuple[str, FloatArray]]:
    """Words of random numbers, each said by a random voice that is not the target, and changed."""
    for _ in range(count):
        voice = f"{rng.choice(VOICES[language])}+{rng.choice(CHANGES)}"
        speed, pitch = int(rng.integers(*SPEEDS)), int(rng.integers(*PITCHES))
        text = words_of(int(rng.integers(10 ** rng.integers(1, 5))), language)
        if rng.random() < APART:
            parts = [trimmed(synthetic(word, voice, speed, pitch)) for word in text.split()]
            samples, _ = with_gaps(parts, rng)
        else:
            samples = synthetic(text, voice, speed, pitch)
        yield text, strange(samples, rng)


def write_part(output: Path, split: str, recordings: Iterable[tuple[str, str, FloatArray]]) -> None:
    """Writes recordings of `RATE` by their names, their list and their texts."""
    (output / split).mkdir(exist_ok=True)
    found = []
    for name, text, samples in recordings:
        write_wav(output / split / f"{name}.wav", samples, RATE)
        found.append((f"{split}/{name}.wav", text))
    write_split(output, split, found, output)


def write_english(output: Path, numbers: Spoken, language: str) -> None:
    """Writes the lists of English numbers, with phonemes."""
    for split, rows in numbers.items():
        found = [number_of(each.text) for _, each in rows]
        texts = [
            (path, phonemes_of(names_of(number, language), language))
            for (path, _), number in zip(rows, found, strict=True)
        ]
        write_split(output, split, texts, output)
        if split == "test":
            write_lines(output / "test.words.txt", (words_of(number, language) for number in found))
    write_words(output, (phonemes_of([name], language) for name in words(language)))
    write_input(output, DIGITS)
    write_statistics(output, DIGITS)


def write_voice(output: Path, numbers: Spoken, voice: Voice, language: str, count: int) -> None:
    """Writes the recordings of the target's voice: `count` numbers that train, and the others."""
    for split, rows in numbers.items():
        kept = {each.id: names_of(number_of(each.text), language) for _, each in rows}
        if split == "train":  # neither changed copies nor new numbers, whose names are longer
            kept = {id: names for id, names in kept.items() if id.count("-") == 1}
            kept = dict([*kept.items()][:count])
        recordings = ((id, phonemes_of(names, language), voice(names)) for id, names in kept.items())
        write_part(output, split, recordings)


def write_shuffled(output: Path, voice: Voice, language: str, counts: Mapping[str, int]) -> None:
    """Writes recordings of two to six random words of the target's voice."""
    rng, known = np.random.default_rng(4), sorted(words(language))
    for split, count in counts.items():
        drawn = (rng.choice(known, rng.integers(2, 7)).tolist() for _ in range(count))
        recordings = (
            (f"{i:05d}", phonemes_of(names, language), voice(names)) for i, names in enumerate(drawn)
        )
        write_part(output, split, recordings)
    write_input(output, TARGET)
    write_statistics(output, TARGET)


def pair(output: Path) -> None:
    """Writes the data of speech into speech: sounds of OUT/data for each recording that is aligned."""
    data, spoken, paired = (output / name for name in ("data", "data.fastspeech2", "data.daspeech"))
    paired.mkdir(exist_ok=True)
    for name in ("dict.txt", "input.json", DIGITS["statistics"]):
        shutil.copy(data / str(name), paired)
    shutil.copy(data / "dict.txt", spoken)
    shutil.copy(spoken / "mel.json", paired)
    for split in SPLITS[:2]:
        recordings = (spoken / f"{split}.lst").read_text(encoding="utf-8").splitlines()
        write_lines(paired / f"{split}.lst", (str(data / split / Path(each).name) for each in recordings))
        for ending in (".txt", SUFFIX):
            shutil.copy(spoken / f"{split}{ending}", paired)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pair", action="store_true", help="pair what is aligned with English numbers")
    parser.add_argument("--target", choices=(*LANGUAGES,), default="fr", help="language of the output")
    parser.add_argument("--voice", choices=("prompts", "espeak"), default="prompts", help="whose it is")
    parser.add_argument("--spoken", type=int, default=3000, help="numbers that the voice trains with")
    parser.add_argument("--heard", type=int, default=4000, help="numbers that the recogniser trains with")
    parser.add_argument("--copies", type=int, default=1, help="as prepare.py")
    parser.add_argument("--new", type=int, default=0, help="as prepare.py")
    parser.add_argument("--without", default="", help="as prepare.py")
    parser.add_argument("--quick", action="store_true", help="some utterances alone")
    args = parser.parse_args()
    output, language = args.output.resolve(), args.target
    if args.pair:
        pair(output)
        return
    if shutil.which(ESPEAK) is None:
        parser.error(f"{ESPEAK} is not installed, whose voices train the recogniser: apt install {ESPEAK}")
    folders = [output / f"data{name}" for name in ("", ".voice", ".aligner", ".recogniser")]
    data, recordings, aligner, recogniser = folders
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    args.anew = 0
    numbers = write_sounds(data, args)
    write_english(data, numbers, language)
    shutil.copy(data / "dict.txt", aligner)
    count = QUICK["train"] if args.quick else args.spoken
    voice = target_voice(args.voice, language)
    write_voice(recordings, numbers, voice, language, count)
    write_shuffled(aligner, voice, language, QUICK if args.quick else SHUFFLED)
    rng = np.random.default_rng(3)
    for split, most in (("train", QUICK["train"] if args.quick else args.heard), ("valid", QUICK["valid"])):
        heard = other_voices(language, most, rng)
        write_part(recogniser, split, ((f"{i:05d}", *each) for i, each in enumerate(heard)))
    write_words(recogniser, (words_of(number, language) for number in range(MOST)))
    write_input(recogniser, HEARD)
    log(f"{len(words(language))} recordings of {args.voice}")


if __name__ == "__main__":
    main()
