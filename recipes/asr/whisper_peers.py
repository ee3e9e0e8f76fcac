"""Compares a Whisper on nartk, transformers and CTranslate2: outputs, word errors, CPU time.

python recipes/asr/whisper_peers.py MODEL --ctranslate2 FOLDER --clips TSV [--rounds N] [--markdown FILE]
    MODEL: a Hugging Face folder, such as recipes/asr/whisper_tiny.py writes; FOLDER: CTranslate2's, of the
    same weights; TSV: under a line of headings `file`, beside the list, and `transcript`, which may be empty

Greedy search, one recording of up to 30 s at a time, one thread each, in turns. nartk's time is from the
sound file to the text; that of the others begins with features, which transformers' extractor computed.
Only transcripts in ASCII count, as they are and by Whisper's own normaliser of English.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and CTranslate2 are loaded

import torch

import nartk
from nartk.adapters.ctranslate2 import TYPES, import_ctranslate2
from nartk.adapters.hf import import_transformers
from nartk.bench.report import add_outputs, heading, markdown, publish, ratio, times
from nartk.bench.runner import environment
from nartk.bench.turns import TimedCall, in_turns
from nartk.data.audio.sounds import read_sound
from nartk.metrics.wer import WordErrorRate

RATE = 16000
CHOSEN = ("fp32", "int8")
transformers, ctranslate2 = import_transformers(), import_ctranslate2()


class Nartk:
    def __init__(self, folder: str, dtype: str) -> None:
        self.model = nartk.load(folder, dtype=dtype, threads=1)

    def run(self, path: Path, features: Any) -> str:
        (found,) = self.model.decode([str(path)], "greedy", batch_size=1)
        return found.text


class Transformers:
    def __init__(self, folder: str, dtype: str) -> None:
        self.model = transformers.WhisperForConditionalGeneration.from_pretrained(
            folder, dtype="float32"
        ).eval()
        self.tokenizer = transformers.WhisperTokenizerFast.from_pretrained(folder)

    def run(self, path: Path, features: Any) -> str:
        with torch.inference_mode():
            found = self.model.generate(torch.from_numpy(features), do_sample=False, num_beams=1)
        return self.tokenizer.decode(found[0], skip_special_tokens=True)


class CTranslate2:
    def __init__(self, folder: str, dtype: str) -> None:
        settings = {"compute_type": TYPES[dtype], "inter_threads": 1, "intra_threads": 1}
        self.model = ctranslate2.models.Whisper(folder, **settings)
        self.tokenizer = transformers.WhisperTokenizerFast(
            tokenizer_file=str(Path(folder) / "tokenizer.json")
        )
        self.prompt = self.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])

    def run(self, path: Path, features: Any) -> str:
        memory = self.model.encode(ctranslate2.StorageView.from_array(features))
        (found,) = self.model.generate(memory, [self.prompt], beam_size=1)
        return self.tokenizer.decode(found.sequences_ids[0], skip_special_tokens=True)


def read_clips(file: Path) -> list[tuple[Path, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(file.parent / row["file"], row["transcript"] or "") for row in rows]


def features_of(clips: Sequence[tuple[Path, str]], folder: str) -> list[Any]:
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    found = []
    for path, _ in clips:
        samples = read_sound(str(path), rate=RATE)
        found.append(extractor(samples, sampling_rate=RATE, return_tensors="np").input_features)
    return found


def measure(
    engines: dict[tuple[str, str], Any],
    clips: Sequence[tuple[Path, str]],
    features: Sequence[Any],
    rounds: int,
) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], list[float]]]:
    """The texts of each engine, and its CPU seconds for all clips by round, after one round to warm up."""

    def timed(engine: Any) -> tuple[list[str], float]:
        run = TimedCall(engine.run)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="Hugging Face folder")
    parser.add_argument("--ctranslate2", required=True, help="folder of the same weights")
    parser.add_argument("--clips", type=Path, required=True, help="list of recordings and transcripts")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default: 5)")
    add_outputs(parser)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    clips = read_clips(options.clips)
    engines = {("nartk", dtype): Nartk(options.model, dtype) for dtype in CHOSEN}
    engines |= {("transformers", "fp32"): Transformers(options.model, "fp32")}
    engines |= {("CTranslate2", dtype): CTranslate2(options.ctranslate2, dtype) for dtype in CHOSEN}
    around = environment("cpu")
    texts, seconds = measure(engines, clips, features_of(clips, options.model), options.rounds)
    counted = [i for i, (_, reference) in enumerate(clips) if reference.strip() and reference.isascii()]

    def errors(name: tuple[str, str], normalize: str) -> float:
        references, written = (
            [lines[i] for i in counted] for lines in ([text for _, text in clips], texts[name])
        )
        return WordErrorRate(normalize=normalize).score([references], written)[0].score

    found = {
        "model": Path(options.model).name,
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
