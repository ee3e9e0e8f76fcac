"""Makes the text, the vocabulary and the encoded text of the translation recipe.

python recipes/mt/prepare.py text --pair en-de [--data DIR] --output OUT [--quick]
    OUT/{train,valid,test}.{en,de} from Multi30k in DIR; en-ja from the Tanaka corpus, which ships
python recipes/mt/prepare.py pieces --output OUT --langs en de --size N
    OUT/spm.model and fairseq's OUT/dict.txt, one for both languages, from OUT/train.*
python recipes/mt/prepare.py encode --model OUT/spm.model FILE ...
    FILE -> FILE with .spm before its suffix (train.en -> train.spm.en)
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
from collections import Counter
from pathlib import Path

import sentencepiece

from nartk.data.text import read_shipped

QUICK = {"train": 3000, "valid": 150, "test": 40}  # pairs
HELD_OUT = 500  # of the end of Tanaka's training pairs, which has one set to test on and none to validate on


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def read(folder: Path, name: str) -> list[str]:
    """The lines of a file, which may be compressed."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if packed.is_file():
        text = gzip.decompress(packed.read_bytes()).decode("utf-8")
    elif plain.is_file():
        text = plain.read_text(encoding="utf-8")
    else:
        raise SystemExit(f"prepare.py: neither {plain} nor {packed.name} is there: see recipes/mt/README.md")
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def multi30k(folder: Path, source: str, target: str) -> dict[str, list[tuple[str, str]]]:
    files = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    return {
        split: list(zip(*(read(folder, f"{name}.{language}") for language in (source, target)), strict=True))
        for split, name in files.items()
    }


def tanaka(source: str, target: str) -> dict[str, list[tuple[str, str]]]:
    """Japanese is written without the spaces between its words, as people write it."""

    def pairs(split: str) -> list[tuple[str, str]]:
        found = []
        for line in read_shipped(f"tanaka_enja.{split}.tsv.xz"):
            english, japanese = line.split("\t")
            sides = {"en": english, "ja": japanese.replace(" ", "")}
            found.append((sides[source], sides[target]))
        return found

    train = pairs("train")
    return {"train": train[:-HELD_OUT], "valid": train[-HELD_OUT:], "test": pairs("dev")}


def write_text(args: argparse.Namespace) -> None:
    source, target = args.pair.split("-")
    if "ja" in (source, target):
        corpus = tanaka(source, target)
    elif args.data is None:
        raise SystemExit("prepare.py: --data DIR is needed: see recipes/mt/README.md")
    else:
        corpus = multi30k(args.data, source, target)
    args.output.mkdir(parents=True, exist_ok=True)
    for split, pairs in corpus.items():
        kept = pairs[: QUICK[split]] if args.quick else pairs
        if split == "train":
            kept = [pair for pair in kept if all(pair)]
        log(f"{split}: {len(kept)} pairs")
        for side, language in enumerate((source, target)):
            with (args.output / f"{split}.{language}").open("w", encoding="utf-8", newline="\n") as out:
                out.writelines(f"{pair[side]}\n" for pair in kept)


def train_pieces(args: argparse.Namespace) -> None:
    lines = [
        line
        for language in args.langs
        for line in (args.output / f"train.{language}").read_text(encoding="utf-8").split("\n")[:-1]
    ]
    model = io.BytesIO()  # a file's name would become part of the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=args.size,
        character_coverage=0.9995 if "ja" in args.langs else 1.0,
        num_threads=1,
        hard_vocab_limit=False,
        minloglevel=1,
    )
    (args.output / "spm.model").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    counts: Counter[str] = Counter()
    for encoded in pieces.encode(lines, out_type=str, num_threads=1):
        counts.update(encoded)
    with (args.output / "dict.txt").open("w", encoding="utf-8", newline="\n") as out:
        for index in range(pieces.get_piece_size()):
            piece = pieces.id_to_piece(index)
            if not (pieces.is_control(index) or pieces.is_unknown(index)):
                out.write(f"{piece} {counts[piece]}\n")
    log(f"{pieces.get_piece_size()} pieces from {len(lines)} lines")


def encode(args: argparse.Namespace) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(args.model))
    for file in args.files:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        with (file.parent / f"{file.stem}.spm{file.suffix}").open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(
                f"{' '.join(words)}\n" for words in pieces.encode(lines, out_type=str, num_threads=1)
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    text = commands.add_parser("text")
    text.add_argument("--pair", required=True, choices=("en-de", "de-en", "en-ja"))
    text.add_argument("--data", type=Path)
    text.add_argument("--output", type=Path, required=True)
    text.add_argument("--quick", action="store_true")
    text.set_defaults(run=write_text)
    vocabulary = commands.add_parser("pieces")
    vocabulary.add_argument("--output", type=Path, required=True)
    vocabulary.add_argument("--langs", nargs=2, required=True)
    vocabulary.add_argument("--size", type=int, required=True)
    vocabulary.set_defaults(run=train_pieces)
    encoding = commands.add_parser("encode")
    encoding.add_argument("--model", type=Path, required=True)
    encoding.add_argument("files", type=Path, nargs="+")
    encoding.set_defaults(run=encode)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
