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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
from corpora import FULL_SIZE, READERS, Utterance, numbers
from sounds import (
    DIGITS,
    STATISTICS,
    TELEPHONE,
    log,
    trained_recordings,
    utterances_of,
    write_input,
    write_lines,
    write_signals,
    write_split,
    write_statistics,
)
from varied import varied

from nartk.files import JsonObject


@dataclass(frozen=True)
class Recipe:
    """Settings by which a corpus is read.

    Attributes:
        input: Settings of the processor ``audio``.
        pieces: Model type of sentencepiece: ``word``, ``char`` or ``unigram``.
        size: Most pieces.
    """

    input: JsonObject
    pieces: str
    size: int = 0


_STUDIO = {"name": "audio", "cmvn": "global", "statistics": STATISTICS}
RECIPES = {
    "numbers": Recipe(DIGITS, "word"),
    "yesno": Recipe(TELEPHONE, "word"),
    "an4": Recipe({"name": "audio", "features": "stored", "bins": 13, "cmvn": "utterance"}, "word"),
    # 4,233 characters of AISHELL-1, and 5,000 pieces of LibriSpeech, as ESPnet's and FunASR's recipes have.
    "aishell": Recipe(_STUDIO, "char"),
    "librispeech": Recipe(_STUDIO, "unigram", 5000),
}


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


def small(corpus: str, output: Path, *, count: int, anew: int, without: str, quick: bool) -> None:
    """A corpus that ships: writes its sounds, of those that train also changed ones, or its features.

    Args:
        count: Copies of each training sound, all but one changed.
        anew: Further utterances that train, made of the recordings of those that do.
        without: A speaker who is in no part but the test, which is then of this speaker alone.
    """
    rng = np.random.default_rng(1)
    for split in ("train", "valid", "test"):
        kept = utterances_of(corpus, split, without=without, quick=quick, count=count, rng=rng)
        if split == "train" and anew:
            kept = itertools.chain(kept, spoken_anew(anew, without, rng))
        found = [(path, each.text) for path, each in write_signals(output, split, kept)]
        write_split(output, split, found, output)


def spoken_anew(count: int, without: str, rng: np.random.Generator) -> Iterator[Utterance]:
    """Numbers of the recordings that train, none of which is a number of another part (`varied`)."""
    held_out = {each.text for split in ("valid", "test") for each in numbers(split)}
    return varied(trained_recordings(without), count, rng, unspoken=held_out)


def full_size(corpus: str, data: Path, output: Path) -> None:
    """A corpus of the user's: lists its sounds, which are read when it trains."""
    for split in ("train", "valid", "test"):
        found = [(str(path.relative_to(data)), text) for path, text in FULL_SIZE[corpus](data, split)]
        if not found:
            raise SystemExit(f"prepare.py: no sound of {split} in {data}: see recipes/asr/README.md")
        write_split(output, split, found, data)


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
    write_input(output, recipe.input)
    if "statistics" in recipe.input:
        write_statistics(output, recipe.input)


if __name__ == "__main__":
    main()
