"""Makes the training data of the English correction model.

    python recipes/gec/prepare.py --output DIR [--quick] [--text FILE...] [--copies 6] [--seed 1] [--jobs 1]
                                  [--rates gec-en] [--real FOLDER] [--clean-share 0.3] [--pieces FOLDER]

From the text that ships with nartk and that of --text (see gather.py) it writes synthetic pairs (noised ->
clean) train.src/.trg and valid.src/.trg, the SentencePiece model spm.model and spm.vocab, the encoded pairs
*.spm.src/.trg and fairseq's dict.txt. With --real, train has the pairs of real_pairs.py too, and valid only
theirs. The same options give the same files, with any number of --jobs.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import sentencepiece
from copied import with_mark

from nartk.data.gec.lexicon import misspellings
from nartk.data.gec.noise import Noiser, annotate
from nartk.data.gec.rates import DEFAULT_RATES, NoiseRates, load_rates, rates_names
from nartk.data.text import corpus_names, read_corpus
from nartk.errors import InputFileError

LONGEST = 80  # tokens of the noised or clean side
VALID = 1000  # pairs
VOCABULARY = 4000  # pieces
QUICK_SENTENCES = 3000
FRAGMENT_SHARE = 0.08  # of all pairs, at most, are lists of misspelt words without context

Pair = tuple[str, str]
_noised: Callable[[tuple[int, list[str]]], list[str]]


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def clean_sentences(texts: Iterable[Path], *, quick: bool) -> list[list[str]]:
    """All shipped sentences, or an even sample of them, and the lines of other files of tokenised text."""
    shipped = {" ".join(tokens): None for name in corpus_names() for tokens in read_corpus(name)}
    sentences = list(shipped)
    if quick:
        sentences = sentences[:: max(1, len(sentences) // QUICK_SENTENCES)]
    for path in texts:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InputFileError(
                f"the text {path} cannot be read ({error})", fix="name a file of lines"
            ) from None
        sentences += (line for line in lines if line not in shipped)
        shipped.update(dict.fromkeys(lines))
    return [line.split() for line in sentences if not line.isspace() and line]


def _start(rates: NoiseRates, seed: int, copies: int) -> None:
    global _noised  # one of each process
    noiser = Noiser(rates, seed=seed)

    def noised(numbered: tuple[int, list[str]]) -> list[str]:
        line, tokens = numbered
        sentence = annotate(tokens)
        return list(
            dict.fromkeys(" ".join(noiser.noise_line(sentence, line, copy)) for copy in range(copies))
        )

    _noised = noised


def _work(numbered: tuple[int, list[str]]) -> list[str]:
    return _noised(numbered)


def noised_pairs(
    sentences: list[list[str]], rates: NoiseRates, seed: int, copies: int, jobs: int = 1
) -> Iterator[Pair]:
    """Several different noised copies of each sentence; the line number seeds each."""
    start = time.monotonic()
    with ExitStack() as stack:
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.Pool(jobs, _start, (rates, seed, copies)))
            results = pool.imap(_work, enumerate(sentences), chunksize=500)
        else:
            _start(rates, seed, copies)
            results = map(_work, enumerate(sentences))
        for line, (tokens, variants) in enumerate(zip(sentences, results, strict=True)):
            clean = " ".join(tokens)
            for noised in variants:
                if max(noised.count(" "), len(tokens)) < LONGEST:
                    yield noised, clean
            if line % 20000 == 19999:
                speed = (line + 1) / (time.monotonic() - start)
                log(f"  {line + 1}/{len(sentences)} sentences, {speed:.0f} a second")


def copied_pairs(sentences: list[list[str]], rng: Random, count: int) -> Iterator[Pair]:
    """Sentences with an address, a number, code or foreign words, to be copied as they are."""
    for _ in range(count):
        line = " ".join(with_mark(rng.choice(sentences), rng))
        yield line, line


def real_pairs(folder: Path, part: str) -> list[Pair]:
    """The pairs of a part that real_pairs.py wrote."""
    sides = []
    for suffix in ("src", "trg"):
        path = folder / f"{part}.{suffix}"
        try:
            sides.append(path.read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError) as error:
            raise InputFileError(
                f"the real pairs {path} cannot be read ({error})",
                fix="make them with recipes/gec/real_pairs.py",
            ) from None
    if len(sides[0]) != len(sides[1]):
        raise InputFileError(
            f"{folder / part}.src has {len(sides[0])} lines and .trg {len(sides[1])}", fix="make them again"
        )
    return list(zip(*sides, strict=True))


def with_clean_share(pairs: list[Pair], share: float, sentences: list[list[str]], rng: Random) -> list[Pair]:
    """The changed pairs and a share of unchanged ones: those there are, then clean sentences."""
    changed = [pair for pair in pairs if pair[0] != pair[1]]
    same = [pair for pair in pairs if pair[0] == pair[1]]
    wanted = round(len(changed) * share / (1 - share))
    rng.shuffle(same)
    while len(same) < wanted:
        line = " ".join(rng.choice(sentences))
        same.append((line, line))
    return changed + same[:wanted]


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


def encode(folder: Path, names: Iterable[str], *, count: bool) -> None:
    """Writes the pieces of every side, and with `count` fairseq's dictionary."""
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
    if not count:
        return
    with (folder / "dict.txt").open("w", encoding="utf-8", newline="\n") as out:
        for index in range(model.get_piece_size()):
            piece = model.id_to_piece(index)
            if not (model.is_control(index) or model.is_unknown(index)):
                out.write(f"{piece} {counts[piece]}\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--quick", action="store_true", help=f"about {QUICK_SENTENCES} sentences, for a test run"
    )
    parser.add_argument(
        "--text", type=Path, nargs="+", default=[], help="files of more clean sentences, tokenised"
    )
    parser.add_argument(
        "--sentences", type=int, help="clean sentences to take, drawn at random (default: all)"
    )
    parser.add_argument("--copies", type=int, default=6, help="noised copies of each sentence (default: 6)")
    parser.add_argument(
        "--copied-share",
        type=float,
        default=0.03,
        help="share of pairs with what must be copied (default: 0.03)",
    )
    parser.add_argument(
        "--clean-share", type=float, help="share of unchanged pairs (default: what the rates give)"
    )
    parser.add_argument("--real", type=Path, help="folder of pairs of real_pairs.py")
    parser.add_argument(
        "--real-times", type=int, default=1, help="how often each real pair that changes counts (default: 1)"
    )
    parser.add_argument(
        "--pieces", type=Path, help="folder whose spm.model and dict.txt are taken, instead of new ones"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all noise (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that noise (default: 1)")
    parser.add_argument(
        "--rates",
        default=DEFAULT_RATES,
        help=f"{', '.join(rates_names())} or a JSON file of nartk-noise --fit (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.clean_share is not None and not 0 <= args.clean_share < 1:
        parser.error(f"--clean-share must be at least 0 and below 1, but is {args.clean_share:g} instead")
    return args


def main() -> None:
    args = parse()
    rates = load_rates(args.rates)
    args.output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    rng = Random(args.seed)
    sentences = clean_sentences(args.text, quick=args.quick)
    rng.shuffle(sentences)
    held_out = len(sentences) // 20 if args.quick else VALID
    valid, train = sentences[:held_out], sentences[held_out:]
    if args.sentences is not None:
        train = train[: args.sentences]
    log(f"{len(train)} clean sentences to train on, {len(valid)} to validate on")
    pairs = list(noised_pairs(train, rates, args.seed, args.copies, args.jobs))
    if not args.quick:
        pairs += spelling_pairs(train, rng, int(len(pairs) * FRAGMENT_SHARE))
    if args.real is None:
        validation = list(noised_pairs(valid, rates, args.seed + 1, 1))
    else:
        validation = real_pairs(args.real, "dev")
        for pair in real_pairs(args.real, "train"):
            pairs += [pair] * (args.real_times if pair[0] != pair[1] else 1)
    pairs += copied_pairs(train, rng, int(len(pairs) * args.copied_share))
    if args.clean_share is not None:
        pairs = with_clean_share(pairs, args.clean_share, train, rng)
    rng.shuffle(pairs)
    write_pairs(args.output, "train", pairs)
    write_pairs(args.output, "valid", validation)
    same = sum(source == target for source, target in pairs)
    log(f"{len(pairs)} pairs, {same} of them unchanged, after {time.monotonic() - start:.0f} s")
    if args.pieces is None:
        sample = pairs[:: max(1, len(pairs) // 120000)]
        train_vocabulary(args.output, itertools.chain.from_iterable(sample), VOCABULARY)
    else:
        for name in ("spm.model", "spm.vocab", "dict.txt"):
            shutil.copyfile(args.pieces / name, args.output / name)
    encode(args.output, ("train", "valid"), count=args.pieces is None)
    log(f"done after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
