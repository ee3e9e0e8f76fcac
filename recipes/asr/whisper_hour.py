"""Decodes an hour of real clips with pauses between, by nartk and faster-whisper: words, memory, time.

python recipes/asr/whisper_hour.py MODEL --clips TSV [--minutes N] [--pauses SHARE] [--dtype fp32|int8]
    [--rows FILE]
    MODEL: a CTranslate2 folder of a Whisper of English; TSV: under a line of headings `file`, beside the
    list, and `transcript`; those in other characters than ASCII, and empty ones, are left out

Clips are drawn at random until the recording is long enough. Pauses hold silence, or noise 60 dB below the
largest sample, half and half; they are short (0.2 to 1 s) or long (2 to 8 s). Greedy search without earlier
text, one thread, a process for each row. Words are invented if the whole segment that they are in lies in
pauses, half a second beside a clip left out. Silero is used where silero-vad and onnxruntime are installed,
faster-whisper where it is. Each row is told as it ends and, with `--rows`, kept: a run that was broken off
goes on behind those in the file, of the same recording, weights and type.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before CTranslate2 is loaded

import numpy as np

import nartk
from nartk.bench.report import heading, markdown, publish, recipe_parser
from nartk.bench.runner import environment
from nartk.bench.worker import peak_mb
from nartk.data.audio.sounds import read_sound, write_wav
from nartk.files import writing
from nartk.metrics.wer import WordErrorRate

RATE, NEAR = 16000, 0.5  # samples a second; seconds beside a clip that count as its own
SHORT, LONG, QUIET = (0.2, 1.0), (2.0, 8.0), 1e-3  # seconds of pauses; amplitude of noise in them
HEADINGS = (
    "engine",
    "cut by",
    "WER, normalised",
    "words in pauses",
    "CPU time of the sound's",
    "memory, MB",
)
Segment = tuple[float, float, str]


def by_nartk(**options: Any) -> Callable[[str, str, str], list[Segment]]:
    def decode(model: str, sound: str, dtype: str) -> list[Segment]:
        found = nartk.load(model, dtype=dtype, threads=1).decode(sound, batch_size=8, **options)
        return [(each.start, each.end, each.text) for each in found.segments]

    return decode


def by_faster_whisper(*, batched: bool = False, **options: Any) -> Callable[[str, str, str], list[Segment]]:
    def decode(model: str, sound: str, dtype: str) -> list[Segment]:
        import faster_whisper

        types = {"fp32": "float32", "int8": "int8"}
        found = faster_whisper.WhisperModel(model, compute_type=types[dtype], cpu_threads=1)
        greedy = {"language": "en", "beam_size": 1, "best_of": 1, "condition_on_previous_text": False}
        if batched:
            pipeline = faster_whisper.BatchedInferencePipeline(model=found)
            segments, _ = pipeline.transcribe(
                sound, batch_size=8, without_timestamps=False, **greedy, **options
            )
        else:
            segments, _ = found.transcribe(sound, **greedy, **options)
        return [(each.start, each.end, each.text) for each in segments]

    return decode


NARTK, PEER = "nartk", "faster-whisper"
ROWS: dict[tuple[str, str], Callable[[str, str, str], list[Segment]]] = {
    (NARTK, "windows"): by_nartk(condition=False),
    (NARTK, "energy"): by_nartk(condition=False, vad="energy"),
    (NARTK, "silero"): by_nartk(condition=False, vad="silero"),
    (PEER, "windows"): by_faster_whisper(),
    (PEER, "silero, windows"): by_faster_whisper(vad_filter=True),
    (PEER, "silero, batches of 8"): by_faster_whisper(batched=True),
}


def read_clips(file: Path) -> list[tuple[np.ndarray, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [*csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    spoken = [row for row in rows if row["transcript"] and row["transcript"].isascii()]
    return [(read_sound(str(file.parent / row["file"]), rate=RATE), row["transcript"]) for row in spoken]


def long_recording(
    clips: Sequence[tuple[np.ndarray, str]], seconds: float, share: float, seed: int = 1
) -> tuple[np.ndarray, list[str], list[tuple[float, float]]]:
    """Samples of so many seconds and more, what is spoken, and where."""
    draw, parts, spoken, spans = np.random.default_rng(seed), [], [], []
    speech = pauses = 0
    while speech + pauses < seconds * RATE:
        samples, text = clips[draw.integers(len(clips))]
        begin = (speech + pauses) / RATE
        spans.append((begin, begin + len(samples) / RATE))
        speech += len(samples)
        # Pauses keep to their share of the whole; a short one follows where they are ahead.
        is_ahead = pauses > share * (speech + pauses)
        count = round(draw.uniform(*(SHORT if is_ahead else LONG)) * RATE)
        pauses += count
        noise = draw.normal(0.0, QUIET * draw.integers(2), count).astype(np.float32)
        parts += [samples, noise]
        spoken.append(text)
    return np.concatenate(parts), spoken, spans


def invented(segments: Sequence[Segment], spans: Sequence[tuple[float, float]]) -> int:
    """Words of segments that lie in pauses."""
    begins, ends = np.array(spans).T
    alone = (
        text for start, end, text in segments if not ((begins - NEAR < end) & (ends + NEAR > start)).any()
    )
    return sum(len(text.split()) for text in alone)


def run_apart(row: int, options: argparse.Namespace, sound: str) -> dict[str, Any]:
    """The segments of a row, its CPU seconds and its memory, MB, in a process of its own."""
    command = [sys.executable, __file__, options.model, "--clips", sound, "--row", str(row)]
    done = subprocess.run([*command, "--dtype", options.dtype], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one_row(options: argparse.Namespace) -> None:
    decode = [*ROWS.values()][options.row]
    begin = time.process_time()
    segments = decode(options.model, str(options.clips), options.dtype)
    seconds = time.process_time() - begin
    print(json.dumps({"segments": segments, "seconds": seconds, "memory": peak_mb(cuda=False)}))


class Rows:
    """Figures of rows by engine and cut, of one recording and model, kept in a file of tab-separated values.

    Args:
        file: Rows of any recordings and models; None: none are kept.
        about: Facts that a row must share to be of this run.
    """

    COLUMNS = (
        "recording",
        "model",
        "dtype",
        "engine",
        "cut",
        "wer",
        "invented",
        "seconds",
        "memory",
        "segments",
    )

    def __init__(self, file: Path | None, about: dict[str, str]) -> None:
        self.file, self.about = file, about

    def kept(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Rows of this run that the file has."""
        if self.file is None or not self.file.exists():
            return {}
        lines = self.file.read_text(encoding="utf-8").splitlines()[1:]
        rows = [dict(zip(self.COLUMNS, line.split("\t"), strict=True)) for line in lines]
        return {
            (row["engine"], row["cut"]): row | {key: json.loads(row[key]) for key in self.COLUMNS[5:]}
            for row in rows
            if self.about.items() <= row.items()
        }

    def add(self, row: dict[str, Any]) -> None:
        """Keeps a row, with the segments."""
        if self.file is None:
            return
        is_new = not self.file.exists()
        before = "\t".join(self.COLUMNS) + "\n" if is_new else self.file.read_text(encoding="utf-8")
        found = [{**self.about, **row}[key] for key in self.COLUMNS]
        line = "\t".join(each if isinstance(each, str) else json.dumps(each) for each in found)
        with writing(self.file) as file:
            file.write(f"{before}{line}\n")


def chosen() -> Iterator[int]:
    """The rows whose packages are installed."""
    packages = {PEER: ["faster_whisper"], "silero": ["silero_vad", "onnxruntime"]}
    for number, (engine, cut) in enumerate(ROWS):
        needed = packages.get(engine, []) + (packages["silero"] if (engine, cut) == (NARTK, "silero") else [])
        if all(find_spec(package) for package in needed):
            yield number
        else:
            print(f"left out: {engine}, {cut}: {' or '.join(needed)} is not installed", file=sys.stderr)


def cells(row: dict[str, Any], seconds: float) -> list[str]:
    """A row of the table, of a recording of so many seconds."""
    return [
        row["engine"],
        row["cut"],
        f"{row['wer']:.1f}",
        str(row["invented"]),
        f"{row['seconds'] / seconds:.3f}",
        f"{row['memory']:.0f}",
    ]


def page(found: dict[str, Any]) -> str:
    rows = [cells(each, found["seconds"]) for each in found["rows"]]
    facts = {
        "recording": f"{found['seconds'] / 60:.1f} minutes, {found['clips']} clips, "
        f"{100 * found['pauses']:.0f} % pauses",
        "weights": found["dtype"],
    }
    return "\n".join([*heading(found["model"], found, facts), *markdown(HEADINGS, rows)])


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("model", help="CTranslate2 folder")
    parser.add_argument("--clips", type=Path, required=True, help="list of recordings and transcripts")
    parser.add_argument("--minutes", type=float, default=60.0, help="of the recording (default: 60)")
    parser.add_argument("--pauses", type=float, default=0.3, help="share of pauses in it (default: 0.3)")
    parser.add_argument("--dtype", choices=("fp32", "int8"), default="fp32")
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="keep rows here as they end, and go on behind"
    )
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.row is not None:  # of `run_apart`, which names the recording in the list's place
        one_row(options)
        return
    samples, spoken, spans = long_recording(read_clips(options.clips), 60 * options.minutes, options.pauses)
    reference, rows, seconds = " ".join(spoken), [], len(samples) / RATE
    about = {
        "recording": hashlib.sha256(samples.tobytes()).hexdigest()[:12],
        "model": Path(options.model).name,
        "dtype": options.dtype,
    }
    store = Rows(options.rows, about)
    kept = store.kept()
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder, "hour.wav")
        write_wav(sound, samples, RATE)
        for number in chosen():
            engine, cut = [*ROWS][number]
            row = kept.get((engine, cut))
            if row is None:
                found = run_apart(number, options, str(sound))
                text = " ".join(words.strip() for _, _, words in found["segments"])
                errors = WordErrorRate(normalize="english").score([[reference]], [text])[0].score
                strange = invented(found["segments"], spans)
                row = {"engine": engine, "cut": cut, "wer": errors, "invented": strange, **found}
                store.add(row)
            print(" | ".join(cells(row, seconds)), file=sys.stderr, flush=True)
            rows.append(row)
    figures = {
        "model": Path(options.model).name,
        "command": ["python", "recipes/asr/whisper_hour.py", *argv],
        "environment": environment("cpu"),
        "dtype": options.dtype,
        "seconds": seconds,
        "clips": len(spoken),
        "pauses": 1 - sum(end - begin for begin, end in spans) / seconds,
        "rows": rows,
    }
    publish(figures, page(figures), options)


if __name__ == "__main__":
    main()
