"""`nartk-align`: durations, pitch and energy of phonemes, for training speech output."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.checkpoints import names
from nartk.cli._common import Parser, command
from nartk.cli._input import add_model, load_model
from nartk.cli._output import add_output, progress, tell
from nartk.errors import (
    EXIT_OK,
    EXIT_SOME_FAILED,
    InputFileError,
    InputFormatError,
    LengthMismatchError,
    NartkError,
    StrategyMismatchError,
    number_of,
)
from nartk.files import make_folder, read_lines, reading, shown, write_json, writing
from nartk.protocols.spectrograms import MelSettings

if TYPE_CHECKING:
    from nartk.data.audio.targets import Utterance
    from nartk.data.readers import Record
    from nartk.serving.model import Model

DESCRIPTION = """Aligns texts to recordings by a model with CTC, and writes what speech output is trained on:
SPLIT.speech.npz, with the log-mel spectrogram of each recording and the duration, pitch and energy of each of
its phonemes; SPLIT.txt, the phonemes, a line a recording; SPLIT.lst, the recordings; and mel.json, settings
of the spectrograms, which a trained model keeps. SPLIT as in LIST.

The likeliest alignment is taken, and frames that say nothing belong to the phoneme before them, those at the
beginning to the first. Durations are whole frames of the spectrogram, all of which they share out. Pitch is
found by autocorrelation, with lines over unvoiced frames: log(f0 + 1) of the mean of a phoneme. Energy is the
L2 norm of the magnitudes: log(e + 1) of its mean.

A recording that cannot be read, is too short for its text or has no pitch, and a text with a word that the
model does not know, are named on stderr, counted and left out; the exit code is 3 then."""
EXAMPLES = """  nartk-align CTC_MODEL data/train.tsv -o speech             what is said in data/train.txt
  nartk-align CTC_MODEL wavs.scp --text phonemes.txt -o speech --sample-rate 16000 --high 7600"""
# Fields of `MelSettings`, each a flag.
MEL = {
    "sample_rate": "sampling rate of the spectrogram, Hz",
    "bins": "mel bins",
    "window": "samples of a frame's window",
    "hop": "samples from one frame to the next",
    "low": "lowest frequency of a bin, Hz",
    "high": "highest frequency of a bin, Hz",
}


def _parser() -> Parser:
    parser = Parser(prog="nartk-align", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a model with CTC of the same phonemes")
    parser.add_argument(
        "list", metavar="LIST", help="sound files: fairseq's .tsv, Kaldi's .scp, or a path a line"
    )
    parser.add_argument(
        "--text", metavar="FILE", help="what is said in each, a line a file (default: LIST with suffix .txt)"
    )
    add_output(parser, "FOLDER", "the folder to write to", required=True)
    add_model(parser)
    for field in fields(MelSettings):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            metavar="N",
            help=f"{MEL[field.name]} (default: %(default)s)",
        )
    parser.add_argument(
        "--pitch-range",
        nargs=2,
        type=float,
        default=(65.0, 500.0),
        metavar=("LOW", "HIGH"),
        help="lowest and highest pitch of the voice, Hz (default: 65 500)",
    )
    return parser


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    args = _parser().parse_args(argv)
    settings = MelSettings(**{name: getattr(args, name) for name in MEL})
    path = Path(args.list)
    records = _records(args.list, str(path.with_suffix(".txt")) if args.text is None else args.text)
    folder = Path(args.output)
    make_folder(folder)

    from nartk.data.audio.targets import SUFFIX, SpeechCorpus
    from nartk.protocols.parallel import FrameScorer

    model = load_model(args.model, args, None)
    if not isinstance(model.passes, FrameScorer) or model.passes.blank is None:
        raise StrategyMismatchError(f"{args.model} has no CTC", fix="name a model of speech that has")
    kept: list[tuple[str, str, Utterance]] = []
    with progress("aligning", len(records), drawn=not args.quiet and sys.stderr.isatty()) as done:
        for number, (record, line) in enumerate(records, start=1):
            try:
                kept.append((record.text, *_speech(model, record, line, settings, args.pitch_range)))
            except NartkError as error:
                error.where = record.where
                print(f"nartk: {error}", file=sys.stderr)
            done(number)
    left_out = len(records) - len(kept)
    if not kept:
        raise InputFileError("no recording is aligned", fix="see the errors of each", where=args.list)
    sounds, lines, utterances = zip(*kept, strict=True)
    corpus = SpeechCorpus.of(utterances)
    corpus.write(folder / f"{path.stem}{SUFFIX}")
    with writing(folder / names.MEL) as file:
        write_json(file, asdict(settings))
    for suffix, column in ((".txt", lines), (".lst", map(os.path.abspath, sounds))):
        with writing(folder / f"{path.stem}{suffix}") as file:
            file.writelines(f"{each}\n" for each in column)
    seconds = int(corpus.frames.sum()) * settings.hop / settings.sample_rate
    missing = f", {left_out} left out" if left_out else ""
    tell(args, f"{number_of(len(kept), 'recording')} of {seconds:.0f} s aligned{missing}")
    return EXIT_SOME_FAILED if left_out else EXIT_OK


def _records(name: str, text: str) -> list[tuple[Record, str]]:
    """The recordings of a list, each with its line of text.

    Raises:
        InputFileError: One of the two cannot be read, or the list is empty.
        LengthMismatchError: They differ in length.
    """
    from nartk.data.audio.manifests import read_manifest

    with reading(name) as file:
        records = [*read_manifest(file, shown(name))]
    lines = read_lines(text)
    if len(lines) != len(records):
        raise LengthMismatchError(
            f"{text} has {number_of(len(lines), 'line')}, {name} {number_of(len(records), 'recording')}",
            fix="give a line for each recording",
        )
    if not records:
        raise InputFileError("names no recordings", fix="give a list of some", where=name)
    return [*zip(records, lines, strict=True)]


def _speech(
    model: Model, record: Record, line: str, settings: MelSettings, pitch_range: Sequence[float]
) -> tuple[str, Utterance]:
    """The phonemes of a line, between spaces, and their speech.

    Raises:
        InputFormatError: The line is empty, or has a word that the model does not know.
        InputFileError: The recording cannot be read, or has no pitch.
        UsageError: It is too short for its text.
    """
    from nartk.data.audio.prosody import speech_of
    from nartk.data.audio.sounds import read_sound
    from nartk.tracing.speech import align

    if record.error is not None:
        raise record.error
    vocab = model.checkpoint.target_vocab
    ids = model.checkpoint.output.encode(line)
    if not ids or vocab.unk in ids:
        wrong = "has a word that the model does not know" if ids else "is empty"
        raise InputFormatError(f"its text {line[:80]!r} {wrong}", fix="write the model's phonemes")
    samples = read_sound(record.text, rate=settings.sample_rate)
    found = align(model, record.text, ids)
    padding = getattr(model.sound, "padding", 0) * found.seconds / len(found.frames)
    low, high = pitch_range
    begins = found.times[:, 0] - padding
    return " ".join(vocab.to_words(ids)), speech_of(samples, begins, settings, lowest=low, highest=high)
