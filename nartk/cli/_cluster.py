"""`nartk-decode --ray`: lines are decoded by the workers of a Ray cluster."""

from __future__ import annotations

import argparse
import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from nartk.cli._common import Parser, require_least
from nartk.cli._files import form_of
from nartk.cli._input import load_model
from nartk.cli._output import tell
from nartk.data.readers import SOUND
from nartk.errors import UsageError
from nartk.files import STDIN
from nartk.protocols.runs import Batching

if TYPE_CHECKING:
    from nartk.decoders.strategy import Decoding
    from nartk.serving.cluster import ClusterRun
    from nartk.serving.model import Model

LOCAL = "local"  # as `nartk.serving.cluster` has it, which `--help` does without
_ADDRESS = re.compile(r"auto|local|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


def add_cluster(parser: Parser) -> None:
    """Adds the flags of a cluster."""
    parser.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="decode with workers of a Ray cluster (extra `ray`), on CPUs: HOST:PORT, or auto for that of "
        "this machine; without an address one is started here. The output is that of one process",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="with --ray, workers, each with a model and --replicas engines, or --threads (default: as many "
        "as the cluster has CPUs for)",
    )


def require_clustered(args: argparse.Namespace, files: Sequence[str]) -> None:
    """Refuses what does not go with `--ray`, or needs it; raises UsageError."""
    if args.ray is None:
        if args.workers is not None:
            raise UsageError("--workers without --ray", fix="give both; --replicas N is of one process")
        return
    require_least(args, 1, "workers", "replicas", "threads")
    if not _ADDRESS.fullmatch(args.ray):
        raise UsageError(
            f"--ray {args.ray!r} is no address of a cluster",
            fix="give HOST:PORT or auto, or write --ray behind the files to start a cluster here",
        )
    refused = {
        "--stream": (args.stream, "its lines are answered one at a time"),
        "--partials": (args.partials, "a recording that still comes is read here"),
        "--speech": (args.speech is not None, "sound is written here"),
        f"--device {args.device}": (args.device != "cpu", "workers compute on CPUs"),
        "--no-cuda-graphs": (args.no_cuda_graphs, "workers compute on CPUs"),
    }
    for flag, (is_given, why) in refused.items():
        if is_given:
            raise UsageError(f"--ray with {flag}: {why}", fix="leave one of them out")
    if any(name == STDIN and form_of(name, args.format) == SOUND for name in files or [STDIN]):
        raise UsageError("--ray with sound on stdin: workers read files", fix="store it as a file first")
    if args.threads is None and args.replicas == 1:
        args.threads = 1  # else each worker would take all CPUs of its machine


@contextmanager
def cluster(
    name: str, args: argparse.Namespace, options: Mapping[str, Any], model: Model, strategy: Decoding
) -> Iterator[ClusterRun]:
    """Connects to the cluster and starts its workers, until the end.

    Raises:
        NartkError: Same as in `nartk.serving.cluster`.
    """
    from nartk.serving.cluster import ClusterRun, connected

    cpus = max(args.replicas, args.threads or 1)
    count = None if args.workers is None else args.workers * cpus
    notify = partial(tell, args)
    given = copy.copy(args)
    given.opened, given.quiet = {}, True  # what there is to tell of a model, this process tells
    load = partial(_load, os.fspath(name), given, dict(options), model.pretokenized)
    with connected(args.ray, count):
        run = ClusterRun(
            load,
            model,
            strategy,
            Batching(args.batch_size, args.max_tokens),
            workers=args.workers,
            cpus=cpus,
            tell=notify,
        )
        if args.workers is not None and run.count < args.workers:
            notify(f"the cluster has CPUs for {run.count} of {args.workers} workers")
        try:
            yield run
        finally:
            run.close()


def _load(
    name: str, args: argparse.Namespace, options: dict[str, Any], pretokenized: bool
) -> tuple[Model, Decoding]:
    """Loads the model and the strategy in a worker, as the driver has them."""
    model = load_model(name, args, args.dtype, replicas=args.replicas, pretokenized=pretokenized)
    return with_strategy(model, args, options)


def with_strategy(
    model: Model, args: argparse.Namespace, options: Mapping[str, Any]
) -> tuple[Model, Decoding]:
    """The model as it decodes, with its strategy; with `--score`, without a guard, with the scoring."""
    if args.score is not None:
        from dataclasses import replace

        model = replace(model, guard=False, min_edit_confidence=None)  # what is given is not judged
        return model, model.scoring()
    return model, model.strategy(args.strategy, options, tell=partial(tell, args))
