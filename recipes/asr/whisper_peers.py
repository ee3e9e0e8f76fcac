"""Compares a Whisper on nartk, transformers and CTranslate2: outputs, word errors, CPU time.

python recipes/asr/whisper_peers.py MODEL --ctranslate2 FOLDER --clips TSV [--rounds N] [--markdown FILE]
    MODEL: a Hugging Face folder, such as nartk-convert FOLDER --to hf writes; FOLDER: CTranslate2's, of the
    same weights; TSV: under a line of headings `file`, beside the list, and `transcript`, which may be empty

Greedy search, one recording of up to 30 s at a time, one thread each, in turns. nartk's time is from the
sound file to the text; that of the others begins with features, which transformers' extractor computed.
Only transcripts in ASCII count, as they are and by Whisper's own normaliser of English.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and CTranslate2 are loaded

from nartk.adapters.hf import import_transformers
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment
from nartk.bench.turns import TimedCall, in_turns
from nartk.data.audio.sounds import read_sound
from nartk.metrics.wer import WordErrorRate
from nartk.protocols.passes import FloatArray

sys.path.append(str(Path(__file__).parents[1]))
from whisper_libraries import CTranslate2Whisper, Library, NartkWhisper, TransformersWhisper

RATE = 16000
CHOSEN = ("fp32", "int8")


def read_clips(file: Path) -> list[tuple[Path, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(file.parent / row["file"], row["transcript"] or "") for row in rows]


def features_of(clips: Sequence[tuple[Path, str]], folder: str) -> list[FloatArray]:
    extractor = import_transformers().WhisperFeatureExtractor.from_pretrained(folder)
    found = []
    for path, _ in clips:
        samples = read_sound(str(path), rate=RATE)
        found.append(extractor(samples, sampling_rate=RATE, return_tensors="np").input_features)
    return found


def measure(
    engines: dict[tuple[str, str], Library],
    clips: Sequence[tuple[Path, str]],
    features: Sequence[FloatArray],
    rounds: int,
) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], list[float]]]:
    """The texts of each engine, and its CPU seconds for all clips by round, after one round to warm up."""

    def timed(engine: Library) -> tuple[list[str], float]:
        run = TimedCall(engine.text)
        texts = [run(path, frames).strip() for (path, _), frames in zip(clips, features, strict=True)]
        return texts, run.seconds

    found = in_turns({name: partial(timed, engine) for name, engine in engines.items()}, rounds)
    return (
        {name: each[-1][0] for name, each in found.items()},
        {name: [seconds for _, seconds in each] for name, each in found.items()},
    )


def page(found: dict[str, Any]) -> str:
    rows = [
        [
            each["engine"],
            each["dtype"],
            f"{each['same']} of {found['clips']}",
            f"{each['wer']:.1f}",
            f"{each['normalised']:.1f}",
            f"{1000 * statistics.median(each['seconds']) / found['clips']:.0f}",
            times(each["over"]),
        ]
        for each in found["engines"]
    ]
    columns = [
        "engine",
        "type",
        "texts as `generate`'s",
        "WER",
        "normalised",
        "ms a clip",
        "x CTranslate2 fp32",
    ]
    facts = {
        "clips": f"{found['clips']}, {found['references']} with a transcript that counts",
        "time": f"of the CPU, median of {found['rounds']} rounds in turns, after one to warm up",
    }
    return "\n".join(
        [
            *heading(found["model"], found, facts),
            *markdown(columns, rows),
            "",
            "WER: percent, of words as they are written, and behind Whisper's normaliser of English. ms a",
            "clip: nartk's with reading the sound and its features, the others' without. x: how many times",
            "as fast, paired by round (lowest-highest).",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("model", help="Hugging Face folder")
    parser.add_argument("--ctranslate2", required=True, help="folder of the same weights")
    parser.add_argument("--clips", type=Path, required=True, help="list of recordings and transcripts")
    options = parser.parse_args(argv)
    clips, model = read_clips(options.clips), Path(options.model)
    engines: dict[tuple[str, str], Library] = {
        ("nartk", dtype): NartkWhisper(model, dtype) for dtype in CHOSEN
    }
    engines["transformers", "fp32"] = TransformersWhisper(model, "fp32")
    for dtype in CHOSEN:
        engines["CTranslate2", dtype] = CTranslate2Whisper(Path(options.ctranslate2), dtype)
    around = environment("cpu")
    texts, seconds = measure(engines, clips, features_of(clips, options.model), options.rounds)
    counted = [i for i, (_, reference) in enumerate(clips) if reference.strip() and reference.isascii()]

    def errors(name: tuple[str, str], normalize: str) -> float:
        references, written = (
            [lines[i] for i in counted] for lines in ([text for _, text in clips], texts[name])
        )
        return WordErrorRate(normalize=normalize).score([references], written)[0].score

    found = {
        "model": model.name,
        "command": ["python", "recipes/asr/whisper_peers.py", *argv],
        "environment": around,
        "clips": len(clips),
        "references": len(counted),
        "rounds": options.rounds,
        "engines": [
            {
                "engine": name[0],
                "dtype": name[1],
                "same": sum(a == b for a, b in zip(own, texts["transformers", "fp32"], strict=True)),
                "wer": errors(name, "none"),
                "normalised": errors(name, "english"),
                "seconds": seconds[name],
                "over": ratio(seconds["CTranslate2", "fp32"], seconds[name]),
                "texts": own,
            }
            for name, own in ((name, texts[name]) for name in engines)
        ],
    }
    publish(found, page(found), options)


if __name__ == "__main__":
    main()
