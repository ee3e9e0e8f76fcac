"""Measures all systems of the speech recipe in one process, in turns: one sound at a time, and in batches.

    python recipes/asr/speed.py --manifest FILE --output JSON [--rounds 3] [--single 100] [--many 500] < RUNS

RUNS and rounds are as recipes/rounds.py has them. Besides the whole time, from files to text, it measures
what reading sound and computing features takes of it, and what the encoder takes; the rest is the decoder's,
with a second model's encoder where one drafts. A Paraformer's predictor counts as encoder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nartk
from nartk.bench.turns import TimedCall
from nartk.data.audio.manifests import read_manifest
from nartk.decoders.strategy import Strategy
from nartk.serving.model import Model

sys.path.append(str(Path(__file__).resolve().parents[1]))
from rounds import in_rounds, parser, timed, write

PARTS = ("whole", "reading", "encoder", "decoder", "sound")


def _clock(device: str) -> Callable[[], float]:
    """Tells seconds, on a GPU once it has done what it was told."""
    if device == "cpu":
        return time.perf_counter
    from torch.cuda import synchronize

    def clock() -> float:
        synchronize()
        return time.perf_counter()

    return clock


def main() -> None:
    args = parser(__doc__, "--manifest", "sounds").parse_args()
    with args.manifest.open("rb") as file:
        lines = [record.text for record in read_manifest(file, str(args.manifest))]

    def load(folder: str) -> Model:
        model = nartk.load(folder, device=args.device, threads=args.threads, dtype=args.dtype)
        model.checkpoint.input.read = TimedCall(model.checkpoint.input.read, time.perf_counter)
        model.passes.encode = TimedCall(model.passes.encode, _clock(args.device))
        return model

    def run(model: Model, strategy: Strategy, paths: Sequence[str], size: int) -> tuple[float, ...]:
        """Seconds of each of `PARTS`, the last being the sound's own."""
        source, encode = model.checkpoint.input, model.passes.encode
        before = source.read.seconds, encode.seconds, source.seconds
        whole = timed(model, strategy, paths, size, truncate=False)
        after = source.read.seconds, encode.seconds, source.seconds
        reading, encoder, sound = (late - early for late, early in zip(after, before, strict=True))
        return whole, reading, encoder, whole - reading - encoder, sound

    found, facts = in_rounds(args, lines, load, run)
    columns = {
        key: {size: dict(zip(PARTS, zip(*each, strict=True), strict=True)) for size, each in sizes.items()}
        for key, sizes in found.items()
    }
    seconds = {
        key: {part: {size: each[part] for size, each in sizes.items()} for part in PARTS[:-1]}
        for key, sizes in columns.items()
    }
    sound = {size: each["sound"][-1] for sizes in columns.values() for size, each in sizes.items()}
    facts |= {"sounds": facts.pop("counts"), "sound_seconds": sound, "seconds": seconds}
    write(args.output, facts)


if __name__ == "__main__":
    main()
