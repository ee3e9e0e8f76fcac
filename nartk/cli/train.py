"""`nartk-train`: fairseq-train with nartk's architectures, on the Python at hand."""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nartk.cli import _fairseq
from nartk.errors import UsageError
from nartk.files import make_folder

EXAMPLES = """examples:
  nartk-train data-bin --arch nartk_transformer_tiny --criterion nartk_cross_entropy --label-smoothing 0.1 \\
      --optimizer nartk_adamw --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 1000 \\
      --max-tokens 4096 --max-update 10000 --save-dir checkpoints
  nartk-train data-bin ... --cpu --autocast bf16     about twice as fast on a CPU with bf16 instructions
  torchrun --nproc-per-node 2 -m nartk train data-bin ...     in two processes; on several machines:
      docs/training.md
  nartk-train data-bin --arch NAME --criterion NAME --help        with the options of these
"""


# mallopt(3) of glibc.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


@_fairseq.command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed

    parser = _fairseq.parser_of(options.get_training_parser(), "nartk-train", EXAMPLES)
    _help_last(parser)
    args = options.parse_args_and_arch(parser, list(argv))
    make_folder(Path(args.save_dir))
    if args.cpu:
        _communicate_on_cpu(args)
    # Or fairseq sends what one process has read to the others in a form that torch 2.6 refuses to read.
    args.load_checkpoint_on_all_dp_ranks = True
    distributed.call_main(convert_namespace_to_omegaconf(args), _train)
    return 0


def _help_last(parser: argparse.ArgumentParser) -> None:
    """Lets `--help` wait for the options that fairseq adds after a first look at the flags."""
    parse = parser.parse_known_args

    def first(args: Any = None, namespace: Any = None) -> Any:
        parser.parse_known_args = parse  # type: ignore[method-assign]
        asked = {"-h", "--help"} & set(args)
        found, unknown = parse([each for each in args if each not in asked], namespace)
        if found.arch is not None:
            return found, unknown
        if asked:
            parser.print_help()
            parser.exit()
        raise UsageError("--arch is missing", fix="name the model's architecture; --help lists them")

    parser.parse_known_args = first  # type: ignore[method-assign]


def _communicate_on_cpu(args: argparse.Namespace) -> None:
    """Changes what several processes need GPUs for: NCCL, and torch's DDP as fairseq makes it."""
    if args.distributed_backend == "nccl":
        args.distributed_backend = "gloo"
    if args.ddp_backend in ("c10d", "pytorch_ddp"):
        args.ddp_backend = "legacy_ddp"


def _train(cfg: Any) -> None:
    """Trains in this process, which on several GPUs is one that torch has spawned."""
    _fairseq.start()
    from fairseq_cli import train

    if cfg.common.cpu and sys.platform == "linux":
        _keep_memory()
    train.main(cfg)


def _keep_memory() -> None:
    """Keeps freed memory for the next step: to get it back from the system costs 5 to 15 % of a CPU step."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
