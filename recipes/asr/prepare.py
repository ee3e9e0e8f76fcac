"""Makes the lists, transcripts and vocabulary of the speech recipe.

python recipes/asr/prepare.py --corpus numbers|an4|yesno --output OUT [--copies N] [--varied N]
                              [--without SPEAKER] [--quick]
python recipes/asr/prepare.py --corpus aishell|librispeech --data DIR --output OUT
    OUT/{train,valid,test}.tsv, lists of sounds, or of features; OUT/{train,valid,test}.txt, what is said in
    each; OUT/input.json, how they are read, with the OUT/cmvn.json that features are normalised by;
    OUT/spm.model and OUT/dict.txt, the pieces of words
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import sys
import wave
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from corpora import FULL_SIZE, RATE, READERS, Utterance, numbers, recordings
from varied import varied

from nartk.data.audio.augmentation import SPEEDS, change_speed
from nartk.data.audio.features import FeatureSettings, compute
from nartk.data.audio.normalization import Statistics
from nartk.data.audio.sounds import read_sound
from nartk.data.audio.stored import write_features
from nartk.protocols.passes import FloatArray

FIRST_TRAINED = 10  # recording of each digit and speaker of fsdd: those before validate and test
QUICK = {"train": 400, "valid": 30, "test": 30}  # utterances
STATISTICS = "cmvn.json"
LOUDNESS_DB = (-10.0, 10.0)  # of a changed copy, less that of its recording
SAMPLE = 2000  # sounds of a large corpus whose features are normalised by
NOISE_DB = (-60.0, -20.0)  # of white noise in a changed copy, less the loudest sample


@dataclass(frozen=True)
class Recipe:
    """Settings by which a corpus is read.

    Attributes:
        input: Settings of the processor ``audio``.
        pieces: Model type of sentencepiece: ``word``, ``char`` or ``unigram``.
        size: Most pieces.
    """

    input: dict[str, Any]
    pieces: str
    size: int = 0


_TELEPHONE = {"name": "audio", "sample_rate": RATE, "bins": 40, "cmvn": "global", "statistics": STATISTICS}
# Of 80 ms: single digits that are cut tight lose a sixth of their words without (README.md).
_DIGITS = {**_TELEPHONE, "padding": 8}
_STUDIO = {"name": "audio", "cmvn": "global", "statistics": STATISTICS}
RECIPES = {
    "numbers": Recipe(_DIGITS, "word"),
    "yesno": Recipe(_TELEPHONE, "word"),
    "an4": Recipe({"name": "audio", "features": "stored", "bins": 13, "cmvn": "utterance"}, "word"),
    # 4,233 characters of AISHELL-1, and 5,000 pieces of LibriSpeech, as ESPnet's and FunASR's recipes have.
    "aishell": Recipe(_STUDIO, "char"),
    "librispeech": Recipe(_STUDIO, "unigram", 5000),
}


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def changed(sound: FloatArray, speed: float, rng: np.random.Generator) -> FloatArray:
    """A sound at another speed and loudness, with white noise.

    Recordings that are put together have silence of exact zeros between, which nobody's microphone gives.
    """
    faster = change_speed(sound, speed) * 10 ** (rng.uniform(*LOUDNESS_DB) / 20)
    level = float(np.abs(faster).max()) * 10 ** (rng.uniform(*NOISE_DB) / 20)
    noisy = faster + level * rng.standard_normal(len(faster)).astype(np.float32)
    return np.clip(noisy, -1, 1).astype(np.float32)


def copies(utterances: Iterable[Utterance], count: int, rng: np.random.Generator) -> Iterator[Utterance]:
    """Each utterance, and of so many copies less one that are changed."""
    for each in utterances:
        yield each
        for number in range(1, count):
            signal = changed(each.signal, float(rng.choice(SPEEDS)), rng)
            yield replace(each, id=f"{each.id}-{number}", signal=signal)


def write_sound(path: Path, samples: FloatArray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32768).round().clip(-32768, 32767).astype("<i2").tobytes())


def train_pieces(lines: list[str], recipe: Recipe, output: Path) -> None:
    """Writes OUT/spm.model and fairseq's OUT/dict.txt, of the words that train."""
    lines = [line for line in lines if line]
    model = io.BytesIO()  # a file's name would become part of the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=recipe.pieces,
        vocab_size=recipe.size or 8000,
        use_all_vocab=not recipe.size,
        character_coverage=1.0,
        normalization_rule_name="identity",
        num_threads=1,
        hard_vocab_limit=False,
        minloglevel=1,
    )
    (output / "spm.model").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    counts = Counter(piece for line in lines for piece in pieces.encode(line, out_type=str))
    own = [i for i in range(pieces.get_piece_size()) if not (pieces.is_control(i) or pieces.is_unknown(i))]
    names = [pieces.id_to_piece(i) for i in own]
    write_lines(output / "dict.txt", (f"{name} {counts[name]}" for name in names))
    log(f"{len(names)} pieces")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)


def write_split(output: Path, split: str, found: Sequence[tuple[str, str]], root: Path) -> None:
    """Writes the list of sources, whose paths are in a folder, and what is said in each."""
    write_lines(output / f"{split}.tsv", [str(root), *(path for path, _ in found)])
    write_lines(output / f"{split}.txt", (text for _, text in found))
    log(f"{split}: {len(found)} utterances")


def write_signals(output: Path, split: str, utterances: Iterable[Utterance]) -> list[tuple[str, str]]:
    """Writes sounds, or features in one file; returns their paths in the folder and their words."""
    found, features = [], {}
    (output / split).mkdir(exist_ok=True)
    for each in utterances:
        if each.signal.ndim == 1:
            path = f"{split}/{each.id}.wav"
            write_sound(output / path, each.signal)
        else:
            path = f"{split}/features.npz#{each.id}"
            features[each.id] = each.signal
        found.append((path, each.text))
    if features:
        write_features(output / split / "features.npz", features)
    return found


def small(corpus: str, output: Path, *, count: int, anew: int, without: str, quick: bool) -> None:
    """A corpus that ships: writes its sounds, of those that train also changed ones, or its features.

    Args:
        count: Copies of each training sound, all but one changed.
        anew: Further utterances that train, made of the recordings of those that do.
        without: A speaker who is in no part but the test, which is then of this speaker alone.
    """
    rng = np.random.default_rng(1)
    for split in ("train", "valid", "test"):
        utterances = list(READERS[corpus](split))
        if without:
            if split == "test":
                utterances += READERS[corpus]("valid")
            utterances = [each for each in utterances if (each.speaker == without) == (split == "test")]
            if not utterances:
                raise SystemExit(f"prepare.py: --without {without!r}: {corpus} has no such speaker")
        if quick:
            utterances = utterances[:: max(1, len(utterances) // QUICK[split])]
        if count > 1 and utterances[0].signal.ndim > 1:
            raise SystemExit(f"prepare.py: --copies {count}: {corpus} has features, and no sound to change")
        kept = copies(utterances, count if split == "train" else 1, rng)
        if split == "train" and anew:
            kept = itertools.chain(kept, spoken_anew(anew, without, rng))
        write_split(output, split, write_signals(output, split, kept), output)


def spoken_anew(count: int, without: str, rng: np.random.Generator) -> Iterator[Utterance]:
    """Numbers of the recordings that train, none of which is a number of another part (`varied`)."""
    held_out = {each.text for split in ("valid", "test") for each in numbers(split)}
    own = {
        name: sound
        for name, sound in recordings("fsdd.tar.xz").items()
        if int(name.rsplit("_", 1)[1]) >= FIRST_TRAINED and name.split("_")[1] != without
    }
    return varied(own, count, rng, unspoken=held_out)


def full_size(corpus: str, data: Path, output: Path) -> None:
    """A corpus of the user's: lists its sounds, which are read when it trains."""
    for split in ("train", "valid", "test"):
        found = [(str(path.relative_to(data)), text) for path, text in FULL_SIZE[corpus](data, split)]
        if not found:
            raise SystemExit(f"prepare.py: no sound of {split} in {data}: see recipes/asr/README.md")
        write_split(output, split, found, data)


def write_statistics(output: Path, settings: FeatureSettings) -> None:
    """Writes OUT/cmvn.json, the means and variances of the features of some sounds that train."""
    root, *paths = (output / "train.tsv").read_text(encoding="utf-8").splitlines()
    sample = random.Random(1).sample(paths, min(SAMPLE, len(paths)))
    sounds = (read_sound(Path(root) / path, rate=settings.sample_rate) for path in sample)
    Statistics.of(compute(sound, settings) for sound in sounds).write(output / STATISTICS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, choices=(*RECIPES,))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of a corpus that does not ship, as it is unpacked")
    parser.add_argument(
        "--copies", type=int, default=1, help="of each sound that trains, all but one changed (default: 1)"
    )
    parser.add_argument(
        "--varied", type=int, default=0, help="numbers made anew that train too (default: 0; corpus numbers)"
    )
    parser.add_argument("--without", default="", help="a speaker who does not train, and alone is tested")
    parser.add_argument("--quick", action="store_true", help="some utterances of a corpus that ships")
    args = parser.parse_args()
    if (args.data is None) != (args.corpus in READERS):
        parser.error(f"--data goes with {', '.join(FULL_SIZE)}, and these need it")
    if args.varied and args.corpus != "numbers":
        parser.error(f"--varied is of the corpus numbers, not of {args.corpus}")
    output = args.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    if args.data is None:
        small(
            args.corpus, output, count=args.copies, anew=args.varied, without=args.without, quick=args.quick
        )
    else:
        full_size(args.corpus, args.data.resolve(), output)
    recipe = RECIPES[args.corpus]
    train_pieces((output / "train.txt").read_text(encoding="utf-8").splitlines(), recipe, output)
    write_lines(output / "input.json", [json.dumps(recipe.input, indent=2)])
    if "statistics" in recipe.input:
        own = {item.name for item in fields(FeatureSettings)} & recipe.input.keys()
        write_statistics(output, FeatureSettings(**{name: recipe.input[name] for name in own}))


if __name__ == "__main__":
    main()
