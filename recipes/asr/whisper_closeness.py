"""Measures how close a Whisper's int8 is to its fp32, on nartk and in CTranslate2: of the same words.

python recipes/asr/whisper_closeness.py FOLDER --clips TSV [--digits N] [--markdown FILE]
    FOLDER: CTranslate2's; TSV: under a line of headings `file`, beside the list; --digits: recordings
    besides of eight spoken digits each, joined, of the corpus that ships

Each recording is read as it is, 37 samples later, and with white noise 20 and 10 dB below it: roundings fall
anew each time, where one reading of a few clips tells chance. Both engines get the features of transformers'
extractor, and read the words of fp32's greedy output, each behind those before it; what they give is compared
among words of text and eos. CTranslate2 gives logits only of what it outputs itself: where it outputs another
word, it begins anew behind fp32's. A text changes if any of its words does. Intervals are of resampled
recordings, each with all its readings. Outputs of 100 words are loops, and do not count.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

os.environ["OMP_NUM_THREADS"] = "1"  # before CTranslate2 is loaded

import numpy as np

from nartk.bench.report import heading, markdown, publish, recipe_parser
from nartk.bench.runner import environment
from nartk.data.audio.sounds import read_sound, resample
from nartk.metrics.bootstrap import compare
from nartk.metrics.result import MetricResult
from nartk.protocols.passes import FeatureSource, FloatArray, Pass, Scores, Want

sys.path += [str(folder) for folder in Path(__file__).parents[:2]]
from corpora import RATE as DIGITS_RATE
from corpora import connected, recordings
from whisper_libraries import RATE, SHIFT, CTranslate2Whisper, NartkWhisper
from whisper_peers import read_clips

MOST = 100  # words of an output
LATER, NOISE = 37, (20, 10)  # samples; dB below the sound
TOGETHER, PAUSE_MS = 8, 150  # digits
SEED, SAMPLES = 1, 1000  # of intervals
NARTK, THEIRS = "nartk", "CTranslate2"
MEASURES = ("log-probability", "KL", "flips", "texts")


class Reading(NamedTuple):
    """Differences of the probabilities of a sound's words from fp32's.

    Attributes:
        recording: Number of the recording that the sound is made of.
        off: Absolute differences of the words' log-probabilities [n], nats.
        divergence: Kullback-Leibler divergences of all words' probabilities there [n], nats.
        flips: Places [n] where another word is the likeliest.
    """

    recording: int
    off: FloatArray
    divergence: FloatArray
    flips: FloatArray


def reading(recording: int, wanted: FloatArray, found: FloatArray) -> Reading:
    """Compares log-probabilities [n,V], of which the likeliest ones of `wanted` are the words."""
    words, index = wanted.argmax(1), np.arange(len(wanted))
    return Reading(
        recording,
        np.abs(found[index, words] - wanted[index, words]),
        (np.exp(wanted) * (wanted - found)).sum(1),
        (found.argmax(1) != words).astype(np.float64),
    )


class Prompted:
    """The words in front of an output, from the folder's tokenizer."""

    def __init__(self, model: CTranslate2Whisper) -> None:
        self.library, self.model, self.extractor = model.library, model.model, model.extractor
        ids = model.tokenizer.convert_tokens_to_ids
        around = ["<|en|>", "<|transcribe|>"] if model.model.is_multilingual else []
        self.prompt = ids(["<|startoftranscript|>", *around, "<|notimestamps|>"])
        self.eos = ids("<|endoftext|>")

    def frames(self, samples: FloatArray) -> FloatArray:
        """Features [F,T]."""
        found = self.extractor(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
        return np.ascontiguousarray(found, np.float32)

    def log_probs(self, logits: FloatArray | list[FloatArray]) -> FloatArray:
        rows = np.asarray(logits, np.float64)[:, : self.eos + 1]
        rows = rows - rows.max(1, keepdims=True)
        found: FloatArray = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        return found


class OfNartk:
    def __init__(self, folder: Path, dtype: str, prompted: Prompted) -> None:
        self.passes, self.prompted = NartkWhisper(folder, dtype).model.passes, prompted

    def encode(self, frames: FloatArray) -> Any:
        return self.passes.encode([FeatureSource(np.ascontiguousarray(frames.T), SHIFT)])

    def read(self, memory: Any, words: Sequence[int]) -> FloatArray:
        context = self.passes.open(1)
        count = len(words) + 1
        _, logits = self._run(memory, context, 0, [*self.prompted.prompt, *words], count)
        self.passes.close(context)
        return self.prompted.log_probs(logits)

    def greedy(self, memory: Any) -> list[int]:
        """The likeliest words of text, one after the other, without eos; at most `MOST`."""
        words: list[int] = []
        context, tokens, before = self.passes.open(1), self.prompted.prompt, 0
        while len(words) < MOST:
            scores, logits = self._run(memory, context, before, tokens, 1)
            self.passes.commit(scores, range(len(tokens)))
            best = int(logits[0, : self.prompted.eos + 1].argmax())
            if best == self.prompted.eos:
                break
            words.append(best)
            before, tokens = before + len(tokens), [best]
        self.passes.close(context)
        return words

    def free(self, memory: Any) -> None:
        self.passes.free(memory)

    def _run(
        self, memory: Any, context: Any, before: int, tokens: Sequence[int], count: int
    ) -> tuple[Scores, FloatArray]:
        """A pass over tokens behind others, and the logits [count,V] after its last ones."""
        index = np.arange(len(tokens), dtype=np.int32)
        of_all = (np.full_like(index, memory[0]), np.full_like(index, context[0]), index - 1)  # -1: ROOT
        work = Pass(np.array(tokens, np.int32), before + index, *of_all)
        scores = self.passes.run(work, Want(only=index[-count:]))
        return scores, np.array(scores.rows(range(count)))


class OfCTranslate2:
    def __init__(self, loaded: CTranslate2Whisper, prompted: Prompted) -> None:
        self.model, self.prompted = loaded.model, prompted

    def encode(self, frames: FloatArray) -> Any:
        return self.model.encode(self.prompted.library.StorageView.from_array(frames[None]), to_cpu=True)

    def read(self, memory: Any, words: Sequence[int]) -> FloatArray:
        wanted = [*words, self.prompted.eos]
        rows: list[FloatArray] = []
        settings = {"beam_size": 1, "suppress_blank": False, "suppress_tokens": []}
        while len(rows) < len(wanted):
            prompt = [*self.prompted.prompt, *wanted[: len(rows)]]
            (found,) = self.model.generate(memory, [prompt], return_logits_vocab=True, **settings)
            for logits in found.logits[0][len(rows) :]:  # also of the prompt's words of text
                rows.append(np.array(logits).reshape(-1)[: self.prompted.eos + 1])
                if len(rows) == len(wanted) or rows[-1].argmax() != wanted[len(rows) - 1]:
                    break
        return self.prompted.log_probs(rows)

    def free(self, memory: Any) -> None:
        """Nothing to do."""


Engine: TypeAlias = OfNartk | OfCTranslate2


def digits(count: int) -> list[FloatArray]:
    """Recordings of eight digits each, drawn without putting back."""
    held = recordings("fsdd.tar.xz")
    names = np.random.default_rng(SEED).permutation(sorted(held))[: TOGETHER * count].reshape(count, TOGETHER)
    gaps = [0, *[PAUSE_MS] * TOGETHER]
    return [resample(connected([held[name] for name in row], gaps), DIGITS_RATE, RATE) for row in names]


def readings(samples: FloatArray, seed: int) -> Iterator[FloatArray]:
    """A recording as it is, later, and with noise."""
    yield samples
    yield np.pad(samples, (LATER, 0))
    rng, level = np.random.default_rng(seed), math.sqrt(float(np.mean(samples**2)))
    for below in NOISE:
        noise = rng.standard_normal(len(samples), np.float32)
        yield samples + np.float32(level * 10 ** (-below / 20)) * noise


def measure(
    sounds: Sequence[FloatArray], prompted: Prompted, fp32: OfNartk, engines: dict[str, Engine]
) -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = {name: [] for name in engines}
    for recording, samples in enumerate(sounds):
        for sound in readings(samples, recording):
            frames = prompted.frames(sound)
            memory = fp32.encode(frames)
            words = fp32.greedy(memory)
            wanted = fp32.read(memory, words)
            fp32.free(memory)
            if len(words) == MOST:
                continue
            for name, engine in engines.items():
                memory = engine.encode(frames)
                found[name].append(reading(recording, wanted, engine.read(memory, words)))
                engine.free(memory)
    return found


def score(found: Sequence[Reading], measure: str) -> MetricResult:
    """A mean over words, or of `texts` over readings, which resamples recordings."""
    of_each = {
        "log-probability": lambda each: (each.off.sum(), len(each.off)),
        "KL": lambda each: (each.divergence.sum(), len(each.off)),
        "flips": lambda each: (each.flips.sum(), len(each.off)),
        "texts": lambda each: (each.flips.any(), 1),
    }[measure]
    sums = np.zeros((1 + max(each.recording for each in found), 2))
    for each in found:
        sums[each.recording] += of_each(each)

    def resample(weights: FloatArray) -> FloatArray:
        changed, words = (weights @ sums).T
        means: FloatArray = changed / np.maximum(words, 1)
        return means

    whole = float(sums[:, 0].sum() / sums[:, 1].sum())
    return MetricResult(measure, whole, {}, "", len(sums), resample)


def page(found: dict[str, Any]) -> str:
    rows = [
        [
            each["measure"],
            f"{each[NARTK]:.4f}",
            f"{each[THEIRS]:.4f}",
            f"{each['difference']:+.4f} ({each['low']:+.4f} to {each['high']:+.4f})",
        ]
        for each in found["measures"]
    ]
    facts = {
        "recordings": f"{found['recordings']}, {found['readings']} readings, {found['words']} words with eos"
    }
    return "\n".join(
        [
            *heading(found["model"], found, facts),
            *markdown(["int8 from fp32", NARTK, THEIRS, "difference (95 %)"], rows),
            "",
            "log-probability: mean absolute difference of words'; KL: mean divergence of the probabilities",
            "of all words there; flips: share of places where another word is the likeliest; texts: share of",
            "outputs with one.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("model", type=Path, help="folder of CTranslate2")
    parser.add_argument("--clips", type=Path, required=True, help="list of recordings")
    parser.add_argument(
        "--digits", type=int, default=0, metavar="N", help="recordings of eight digits besides"
    )
    options = parser.parse_args(argv)
    theirs = CTranslate2Whisper(options.model, "int8")
    prompted = Prompted(theirs)
    engines: dict[str, Engine] = {
        NARTK: OfNartk(options.model, "int8", prompted),
        THEIRS: OfCTranslate2(theirs, prompted),
    }
    sounds = [read_sound(str(path), rate=RATE) for path, _ in read_clips(options.clips)]
    sounds += digits(options.digits)
    found = measure(sounds, prompted, OfNartk(options.model, "fp32", prompted), engines)

    def figures(measure: str) -> dict[str, Any]:
        mine, other = (score(found[name], measure) for name in (NARTK, THEIRS))
        compared = compare(mine, other, samples=SAMPLES, seed=SEED)
        between = {"low": compared.interval.low, "high": compared.interval.high}
        return {
            "measure": measure,
            NARTK: mine.score,
            THEIRS: other.score,
            "difference": compared.difference,
            **between,
        }

    whole = {
        "model": options.model.name,
        "command": ["python", "recipes/asr/whisper_closeness.py", *argv],
        "environment": environment("cpu"),
        "recordings": len(sounds),
        "readings": len(found[NARTK]),
        "words": sum(len(each.off) for each in found[NARTK]),
        "measures": [figures(measure) for measure in MEASURES],
    }
    publish(whole, page(whole), options)


if __name__ == "__main__":
    main()
