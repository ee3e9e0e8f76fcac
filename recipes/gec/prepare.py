"""Makes the training data of the English correction model from the text that ships with nartk.

    python recipes/gec/prepare.py --output DIR [--quick] [--copies 6] [--seed 1] [--rates gec-en]

Writes synthetic pairs (noised -> clean) train.src/.trg and valid.src/.trg, the SentencePiece model
spm.model and spm.vocab, the encoded pairs *.spm.src/.trg and fairseq's dict.txt. The same options give the
same files.
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import sentencepiece

from nartk.data.gec.lexicon import misspellings
from nartk.data.gec.noise import Noiser, annotate
from nartk.data.gec.rates import DEFAULT_RATES, load_rates, rates_names
from nartk.data.text import corpus_names, read_corpus

LONGEST = 80  # tokens of the noised or clean side
VALID = 1000  # pairs
VOCABULARY = 4000  # pieces
QUICK_SENTENCES = 3000
FRAGMENT_SHARE = 0.08  # of all pairs, at most, are lists of misspelt words without context

Pair = tuple[str, str]


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def clean_sentences(*, quick: bool) -> list[list[str]]:
    """All shipped sentences, or an even sample of them."""
    sentences = [tokens for name in corpus_names() for tokens in read_corpus(name)]
    return sentences[:: max(1, len(sentences) // QUICK_SENTENCES)] if quick else sentences


def noised_pairs(sentences: list[list[str]], noiser: Noiser, copies: int) -> Iterator[Pair]:
    """Several different noised copies of each sentence; the line number seeds each."""
    start = time.monotonic()
    for line, tokens in enumerate(sentences):
        sentence = annotate(tokens)
        clean = " ".join(tokens)
        variants = {" ".join(noiser.noise_line(sentence, line, copy)): None for copy in range(copies)}
        for noised in variants:
            if max(noised.count(" "), len(tokens)) < LONGEST:
                yield noised, clean
        if line % 20000 == 19999:
            speed = (line + 1) / (time.monotonic() - start)
            log(f"  {line + 1}/{len(sentences)} sentences, {speed:.0f} a second")


def spelling_pairs(sentences: list[list[str]], rng: Random, most: int) -> Iterator[Pair]:
    """Each known misspelling once: inside a sentence that has the word, else in a list of such words."""
    holders: dict[str, list[int]] = defaultdict(list)
    for line, tokens in enumerate(sentences):
        for token in set(tokens):
            if len(holders[token]) < 40:
                holders[token].append(line)
    alone: list[Pair] = []
    for right, wrongs in misspellings().items():
        for wrong in wrongs:
            if holders.get(right):
                tokens = sentences[rng.choice(holders[right])]
                yield " ".join(wrong if token == right else token for token in tokens), " ".join(tokens)
            else:
                alone.append((wrong, right))
    rng.shuffle(alone)
    rest = iter(alone[: most * 4])
    while group := list(itertools.islice(rest, rng.randint(3, 6))):
        yield " ".join(wrong for wrong, _ in group), " ".join(right for _, right in group)


def write_pairs(folder: Path, name: str, pairs: list[Pair]) -> None:
    for side, suffix in enumerate(("src", "trg")):
        with (folder / f"{name}.{suffix}").open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(f"{pair[side]}\n" for pair in pairs)


def train_vocabulary(folder: Path, lines: Iterable[str], size: int) -> None:
    """Trains a joint unigram model that keeps every character as it is."""
    model = io.BytesIO()  # a file's name would become part of the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        character_coverage=0.9999,
        normalization_rule_name="identity",
        num_threads=1,
        hard_vocab_limit=False,
        minloglevel=1,
    )
    (folder / "spm.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    with (folder / "spm.vocab").open("w", encoding="utf-8", newline="\n") as out:
        for index in range(processor.get_piece_size()):
            out.write(f"{processor.id_to_piece(index)}\t{processor.get_score(index):.6g}\n")


def encode(folder: Path, names: Iterable[str]) -> None:
    """Writes the pieces of every side and fairseq's dictionary with their counts."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    counts: Counter[str] = Counter()
    for name in names:
        for suffix in ("src", "trg"):
            with (
                (folder / f"{name}.{suffix}").open(encoding="utf-8") as lines,
                (folder / f"{name}.spm.{suffix}").open("w", encoding="utf-8", newline="\n") as out,
            ):
                while batch := list(itertools.islice(lines, 20000)):
                    stripped = [line.rstrip("\n") for line in batch]
                    for pieces in model.encode(stripped, out_type=str, num_threads=1):
                        out.write(" ".join(pieces) + "\n")
                        if name == "train":
                            counts.update(pieces)
    with (folder / "dict.txt").open("w", encoding="utf-8", newline="\n") as out:
        for index in range(model.get_piece_size()):
            piece = model.id_to_piece(index)
            if not (model.is_control(index) or model.is_unknown(index)):
                out.write(f"{piece} {counts[piece]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--quick", action="store_true", help=f"about {QUICK_SENTENCES} sentences, for a test run"
    )
    parser.add_argument("--copies", type=int, default=6, help="noised copies of each sentence (default: 6)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all noise (default: 1)")
    parser.add_argument(
        "--rates",
        default=DEFAULT_RATES,
        help=f"{', '.join(rates_names())} or a JSON file of nartk-noise --fit (default: %(default)s)",
    )
    args = parser.parse_args()
    rates = load_rates(args.rates)
    args.output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    rng = Random(args.seed)
    sentences = clean_sentences(quick=args.quick)
    rng.shuffle(sentences)
    held_out = len(sentences) // 20 if args.quick else VALID
    valid, train = sentences[:held_out], sentences[held_out:]
    log(f"{len(train)} clean sentences to train on, {len(valid)} to validate on")
    noiser = Noiser(rates, seed=args.seed)
    pairs = list(noised_pairs(train, noiser, args.copies))
    if not args.quick:
        pairs += spelling_pairs(train, rng, int(len(pairs) * FRAGMENT_SHARE))
    rng.shuffle(pairs)
    write_pairs(args.output, "train", pairs)
    write_pairs(args.output, "valid", list(noised_pairs(valid, Noiser(rates, seed=args.seed + 1), 1)))
    log(f"{len(pairs)} pairs after {time.monotonic() - start:.0f} s; training the vocabulary")
    sample = pairs[:: max(1, len(pairs) // 120000)]
    train_vocabulary(args.output, itertools.chain.from_iterable(sample), VOCABULARY)
    encode(args.output, ("train", "valid"))
    log(f"done after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
