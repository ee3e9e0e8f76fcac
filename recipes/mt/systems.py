"""The systems that the recipe trains and compares, and how each is decoded.

    python recipes/mt/systems.py [--updates N] [--only NAME,...]

Prints lines of columns: `model NAME ARCHITECTURE FLAGS` for each system to train, `drafter NAME
ARCHITECTURE FLAGS` for one that is trained on distilled data alone, `decode NAME SPEC FLAGS` for each way to
decode one, and `missing NAME SPEC REASON` for what this version of nartk has not. SPEC is as in nartk-bench,
NAME:OPTION=VALUE; a value in capitals, in it and in FLAGS, stands for the folder of the system of that name,
and LM for the language model of the target. In flags of training, WORK stands for the folder of the run and
DATA for the kind of data.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nartk.architectures import architectures
from nartk.registry import options_of, strategies


@dataclass(frozen=True)
class System:
    """A model and its decoders.

    Attributes:
        architecture: Its name, after ``nartk_``.
        flags: Training flags, besides those that all share; {updates} stands for its length, {longer} for
            twice that, {fewer} for an eighth.
        decoders: Strategies with options.
        parts: Names of what it is tested on besides, which stand behind its own name and a dot.
    """

    name: str
    title: str
    architecture: str
    flags: str
    decoders: tuple[str, ...]
    parts: tuple[str, ...] = ()


TEACHER = System(
    "teacher",
    "autoregressive Transformer",
    "transformer",
    "--max-source-len 256 --max-target-len 256",
    (
        "greedy",
        "beam:beam_size=5",
        "ngram",
        "recycling",
        "speculative:drafter=SMALL",
        "speculative:drafter=LIGHT:block_size=4",
        "speculative:drafter=LIGHT-TWO:block_size=4",
        "gad:drafter=BLOCKWISE",
        "gad:drafter=GLAT",
        "gad:drafter=CTC-GLAT",
        "gad:drafter=DAG",
        "gad:drafter=DAG:tree=16",
        "bild:drafter=SMALL",
    ),
)
_NAT = "--max-source-len 256 --max-target-len 256 "
_CTC = "--max-source-len 256 --max-target-len 512 --upsample 2 --label-smoothing 0 "
# Not as published, which is for 300,000 steps: in a few thousand, masks in place of copied source words learn
# to read little but the words that glancing shows.
_DAG = (
    "--max-source-len 256 --max-target-len 1024 --label-smoothing 0 --decoder-input uniform-copy "
    "--upsample-scale 3 --glancing 0.3:0.1@{updates} "
)
_GOES_ON = "--finetune-from-model WORK/{}.DATA/checkpoints/checkpoint_last.pt"
# What a trained DA-Transformer goes on with; as published 5,000 steps after 300,000, with larger batches.
_FUZZY = (
    "--ngram-order 2 --glancing 0.1 --lr 0.0005 --warmup-updates 50 --max-tokens 4096 "
    "--total-num-update {fewer} --max-update {fewer} "
)
_GLAT_DECODERS = ("glat", "glat:length_beam=5", "glat:length_beam=5:rerank=TEACHER")
# The weights of the language model are those of which some were best on Multi30k's validation set.
_DAG_DECODERS = (
    "dag-greedy",
    "dag-lookahead",
    "dag-viterbi",
    "dag-joint-viterbi",
    "dag-beam",
    "dag-beam:lm=LM:gamma=0.3:alpha=1.3",
)
_CTC_DECODERS = ("ctc-greedy", "ctc-beam", "ctc-beam:lm=LM:lm_weight=0.3:word_bonus=1.5")
STUDENTS = (
    System("nat", "vanilla NAT", "nat", _NAT + "--decoder-input uniform-copy --glancing 0", _GLAT_DECODERS),
    System(
        "cmlm",
        "CMLM",
        "nat",
        _NAT + "--decoder-input mask --glancing-strategy cmlm",
        ("mask-predict:iterations=4", "mask-predict:iterations=10"),
    ),
    System("glat", "GLAT", "nat", _NAT + "--glancing 0.5:0.3@{updates}", _GLAT_DECODERS),
    System("ctc", "CTC", "ctc", _CTC + "--glancing 0", _CTC_DECODERS),
    System("ctc-glat", "CTC + GLAT", "ctc", _CTC + "--glancing 0.5:0.3@{updates}", _CTC_DECODERS),
    System("dag", "DA-Transformer", "dag", _DAG, _DAG_DECODERS),
    System(
        "dag-fuzzy",
        "DA-Transformer, fuzzy alignment",
        "dag",
        _DAG + _FUZZY + _GOES_ON.format("dag"),
        _DAG_DECODERS,
    ),
)
_LONGER = "--glancing 0.3:0.1@{longer} --total-num-update {longer} --max-update {longer}"
# Settings to compare with those above: trained where --only names them.
VARIANTS = tuple(
    replace(base, name=f"{base.name}-{name}", title=f"{base.title}, {title}", flags=f"{base.flags} {flags}")
    for base, name, title, flags in (
        (STUDENTS[2], "masked", "masked input", "--decoder-input mask"),
        (STUDENTS[5], "8", "8 vertices", "--upsample-scale 8"),
        (STUDENTS[5], "masked", "masked input", "--decoder-input mask"),
        (STUDENTS[5], "masked-8", "masked input, 8 vertices", "--decoder-input mask --upsample-scale 8"),
        (
            STUDENTS[5],
            "continued",
            "as long as fuzzy alignment",
            _FUZZY + _GOES_ON.format("dag") + " --ngram-order 0",
        ),
        (STUDENTS[6], "8", "8 vertices", "--upsample-scale 8 " + _GOES_ON.format("dag-8")),
        (STUDENTS[6], "masked", "masked input", "--decoder-input mask " + _GOES_ON.format("dag-masked")),
        (STUDENTS[5], "longer", "twice as long", _LONGER),
        (STUDENTS[5], "masked-longer", "masked input, twice as long", "--decoder-input mask " + _LONGER),
        (
            STUDENTS[5],
            "masked-8-continued",
            "masked input, 8 vertices, as long again",
            "--decoder-input mask --upsample-scale 8 --glancing 0.1 --lr 0.001 "
            + _GOES_ON.format("dag-masked-8"),
        ),
    )
)
# What drafts for the teacher, and is of no use but for it: it learns from what the teacher says.
DRAFTERS = (
    System(
        "blockwise", "blockwise drafter", "blockwise", _NAT + "--block 12 --glancing 0.5:0.3@{updates}", ()
    ),
    System(
        "small",
        "small autoregressive model",
        "transformer",
        "--max-source-len 256 --max-target-len 256 --decoder-layers 1",
        ("greedy",),
    ),
    System("light", "light drafter", "light_drafter", "--decoder-layers 1", ()),
    System("light-seed-2", "light drafter, another seed", "light_drafter", "--decoder-layers 1 --seed 2", ()),
    System("light-two", "light drafter of two layers", "light_drafter", "--decoder-layers 2", ()),
)


def why_missing(system: System) -> str | None:
    """Reason why this version of nartk cannot train a system; None where it can."""
    architecture = architectures().get(system.architecture)
    if architecture is None:
        return f"no architecture nartk_{system.architecture}"
    try:
        _ = architecture.network, architecture.scorer
    except ModuleNotFoundError as error:
        return f"nartk_{system.architecture} lacks {error.name}"
    return None


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """``NAME:OPTION=VALUE`` -> the strategy's name and its options."""
    name, *given = spec.split(":")
    return name, dict(part.split("=", 1) for part in given)


def describe(
    updates: int, *, only: set[str], systems: Iterable[System]
) -> Iterator[tuple[str, str, str, str]]:
    """Description that `systems.py` prints."""
    lengths = {"updates": updates, "longer": 2 * updates, "fewer": updates // 8}
    for system in systems:
        if system is not TEACHER and (system.name not in only if only else system in VARIANTS):
            continue
        reason = why_missing(system)
        if reason is not None:
            yield "missing", system.name, "-", reason
            continue
        what = "drafter" if system in DRAFTERS else "model"
        yield what, system.name, system.architecture, system.flags.format(**lengths)
        for spec in system.decoders:
            name, options = parse_spec(spec)
            if name not in strategies() or not options.keys() <= options_of(name).keys():
                yield "missing", system.name, spec, f"no strategy {spec}"
                continue
            given = [f"--{key.replace('_', '-')} {value}" for key, value in options.items()]
            for part in ("", *(f".{part}" for part in system.parts)):
                yield "decode", system.name + part, spec, " ".join([f"--strategy {name}", *given])


def print_systems(description: str, systems: Iterable[System], updates: int) -> None:
    """The command of a recipe that prints its systems: --updates, and --only some of them."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--updates", type=int, default=updates, help="of a system (default: %(default)s)")
    parser.add_argument("--only", default="", help="these systems alone, with commas")
    args = parser.parse_args()
    only = {name for name in args.only.split(",") if name}
    names = [system.name for system in systems if system is not TEACHER]
    unknown = only - set(names)
    if unknown:
        parser.error(f"no system {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    for row in describe(args.updates, only=only, systems=systems):
        print("\t".join(row))


if __name__ == "__main__":
    print_systems(__doc__, (TEACHER, *STUDENTS, *VARIANTS, *DRAFTERS), 4000)
