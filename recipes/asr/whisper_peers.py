"""Compares a Whisper on nartk, CTranslate2, faster-whisper and transformers: outputs, errors, CPU time.

python recipes/asr/whisper_peers.py FOLDER --clips TSV [--transformers FOLDER] [--rounds N] [--markdown FILE]
    FOLDER: CTranslate2's, which all but transformers read; transformers' is what nartk-convert FOLDER --to hf
    writes; TSV: under a line of headings `file`, beside the list, and `transcript`, which may be empty

Greedy search without times, recordings of up to 30 s one at a time and several together, one thread each, in
turns. Time is of the CPU, from the files to the texts: reading sound and its features count for all.
faster-whisper takes part where it is installed. Only transcripts in ASCII count, as they are and by Whisper's
own normaliser of English.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and CTranslate2 are loaded

from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import TimedCall, in_turns
from nartk.metrics.bootstrap import confidence
from nartk.metrics.wer import WordErrorRate

sys.path.append(str(Path(__file__).parents[1]))
from whisper_libraries import CTranslate2Whisper, FasterWhisper, Library, NartkWhisper, TransformersWhisper

CHOSEN, SIZES = ("fp32", "int8"), (1, 8)
NARTK, THEIRS, FASTER = "nartk", "CTranslate2", "faster-whisper"
SEED, SAMPLES = 1, 1000  # of intervals


class Contender(NamedTuple):
    """A library in a type, with so many recordings together."""

    engine: str
    dtype: str
    size: int


def read_clips(file: Path) -> list[tuple[Path, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(file.parent / row["file"], row["transcript"] or "") for row in rows]


def contenders(folder: Path, hugging_face: Path | None) -> dict[Contender, Library]:
    found: dict[Contender, Library] = {}
    for dtype in CHOSEN:
        made: dict[str, Library] = {
            NARTK: NartkWhisper(folder, dtype),
            THEIRS: CTranslate2Whisper(folder, dtype),
        }
        found |= {Contender(name, dtype, size): each for size in SIZES for name, each in made.items()}
        if find_spec("faster_whisper") is not None:
            found[Contender(FASTER, dtype, 1)] = FasterWhisper(folder, dtype)
    if hugging_face is not None:
        found[Contender("transformers", "fp32", 1)] = TransformersWhisper(hugging_face, "fp32")
    return found


def measure(
    engines: dict[Contender, Library], paths: Sequence[Path], rounds: int
) -> tuple[dict[Contender, list[str]], dict[Contender, list[float]]]:
    """The texts of each engine, and its CPU seconds for all clips by round, after a batch to warm up."""

    def contender(engine: Library, size: int) -> Callable[[], tuple[list[str], float]]:
        parts = [paths[i : i + size] for i in range(0, len(paths), size)]
        turns = iter([parts[:1]])  # which do not count

        def run() -> tuple[list[str], float]:
            call = TimedCall(engine.texts)
            texts = [text for part in next(turns, parts) for text in call(part)]
            return texts, call.seconds

        return run

    found = in_turns({name: contender(engine, name.size) for name, engine in engines.items()}, rounds)
    return (
        {name: each[-1][0] for name, each in found.items()},
        {name: [seconds for _, seconds in each] for name, each in found.items()},
    )


def page(found: dict[str, Any]) -> str:
    rows = [
        [
            each["engine"],
            each["dtype"],
            str(each["size"]),
            f"{each['same']} of {found['clips']}",
            f"{each['wer']:.1f}",
            f"{each['normalised']:.1f} ({each['low']:.1f}-{each['high']:.1f})",
            f"{1000 * statistics.median(each['seconds']) / found['clips']:.0f}",
            *(times(each["over"].get(name)) for name in (THEIRS, FASTER)),
        ]
        for each in found["engines"]
    ]
    columns = ["engine", "type", "batch", f"texts as {THEIRS}'s fp32", "WER", "normalised", "ms a clip"]
    facts = {
        "clips": f"{found['clips']}, {found['references']} with a transcript that counts",
        "time": f"of the CPU, median of {found['rounds']} rounds in turns, after a batch to warm up",
    }
    return "\n".join(
        [
            *heading(found["model"], found, facts),
            *markdown([*columns, f"x {THEIRS}", f"x {FASTER}"], rows),
            "",
            "WER: percent, of words as they are written, and behind Whisper's normaliser of English, with",
            "its 95 % interval over resampled recordings. ms a clip: from the file to the text. x: how many",
            "times as fast, of the same type, paired by round (lowest-highest);",
            f"{FASTER} decodes one file at a time.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("model", type=Path, help="folder of CTranslate2")
    parser.add_argument("--transformers", type=Path, metavar="FOLDER", help="of the same weights")
    parser.add_argument("--clips", type=Path, required=True, help="list of recordings and transcripts")
    options = parser.parse_args(argv)
    clips = read_clips(options.clips)
    engines = contenders(options.model, options.transformers)
    around = environment("cpu")
    texts, seconds = measure(engines, [path for path, _ in clips], options.rounds)
    counted = [i for i, (_, reference) in enumerate(clips) if reference.strip() and reference.isascii()]

    def errors(name: Contender, normalize: str) -> Any:
        references, written = (
            [lines[i] for i in counted] for lines in ([text for _, text in clips], texts[name])
        )
        return WordErrorRate(normalize=normalize).score([references], written)[0]

    def figures(name: Contender) -> dict[str, Any]:
        bases = {THEIRS: name._replace(engine=THEIRS), FASTER: Contender(FASTER, name.dtype, 1)}
        normalised = errors(name, "english")
        interval = confidence(normalised, samples=SAMPLES, seed=SEED)
        return {
            **name._asdict(),
            "same": sum(map(str.__eq__, texts[name], texts[Contender(THEIRS, "fp32", 1)])),
            "wer": errors(name, "none").score,
            "normalised": normalised.score,
            "low": interval.low,
            "high": interval.high,
            "seconds": seconds[name],
            "over": {base: ratio(seconds[at], seconds[name]) for base, at in bases.items() if at in seconds},
            "texts": texts[name],
        }

    found = {
        "model": options.model.name,
        "command": ["python", "recipes/asr/whisper_peers.py", *argv],
        "environment": around,
        "clips": len(clips),
        "references": len(counted),
        "rounds": options.rounds,
        "engines": [figures(name) for name in engines],
    }
    publish(found, page(found), options)


if __name__ == "__main__":
    main()
