"""Runs a bash script whose commands of nartk cost no start: one process imports all that they need.

    python tests/support/warm_commands.py SCRIPT

Each command runs in a fork of that process, with the arguments, the folder, the environment and the streams
that bash gives it; all others are what they are. Commands of a pipe run at the same time. Exits with the exit
code of the script. Needs /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

from nartk.errors import MissingDependencyError

# Stands in for each command: asks, waits, and ends as the command ended.
SHIM = """#!/usr/bin/env bash
here=${BASH_SOURCE[0]%/*}
mkfifo "$here/$$.answer"
printf '%s\\0' "$PWD" "${0##*/}" "$@" >"$here/$$.ask"
echo $$ >"$here/.ask"
read -r code <"$here/$$.answer"
exit "$code"
"""
COMMANDS = (
    *("align", "bench", "calibrate", "convert", "decode", "distill", "doctor", "noise", "score", "trace"),
    *("verify",),
)
FAIRSEQ = ("average", "generate", "preprocess", "train")


def serve(folder: Path) -> None:
    """Runs what the script's shims ask for, until it has ended."""
    # Open for writing too, so that it has no end between two questions.
    with (folder / ".ask").open("r+b", buffering=0) as asks:
        waiting = b""
        while True:
            *pids, waiting = (waiting + os.read(asks.fileno(), 4096)).split(b"\n")
            for pid in map(os.fsdecode, pids):
                if not pid:  # the script's end, see `main`
                    return
                if os.fork() == 0:
                    os._exit(answer(folder, pid))


def answer(folder: Path, pid: str) -> int:
    """Runs the command that the shim `pid` asks for in a process of its own, and tells how it ended."""
    child = os.fork()
    if child == 0:
        os._exit(command(folder, pid))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / f"{pid}.answer").write_text(f"{code if code >= 0 else 128 - code}\n")
    return 0


def command(folder: Path, pid: str) -> int:
    """Runs a command in the place of the process `pid`; its exit code."""
    try:
        asked = (folder / f"{pid}.ask").read_bytes().removesuffix(b"\0").split(b"\0")
        where, name, *args = map(os.fsdecode, asked)
        settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        os.environ.update(os.fsdecode(each).partition("=")[::2] for each in settings if b"=" in each)
        for stream, flags in enumerate((os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)):
            os.dup2(os.open(f"/proc/{pid}/fd/{stream}", flags), stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  the one that there was is of another stream
        os.chdir(where)
        module = import_module(f"nartk.cli.{name.removeprefix('nartk-')}")
        sys.argv = [name, *args]
        code: int = module.main(args)
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def imported() -> tuple[str, ...]:
    """Imports what the commands need; the names of those that are there."""
    for name in (*COMMANDS, "nartk"):
        import_module(f"nartk.cli.{name}")
    import_module("nartk.serving.loading")
    try:
        import_module("nartk.cli._fairseq").start()
    except MissingDependencyError:
        return COMMANDS
    for module in (*(f"nartk.cli.{name}" for name in FAIRSEQ), "fairseq_cli.train", "fairseq_cli.preprocess"):
        import_module(module)
    return COMMANDS + FAIRSEQ


def main() -> int:
    names = [f"nartk-{name}" for name in imported()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.mkfifo(folder / ".ask")
        for each in ["nartk", *names]:
            shim = folder / each
            shim.write_text(SHIM)
            shim.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        # When bash has ended, for whatever reason, an empty question says so.
        ended = 'bash "$1"; code=$?; echo >"$2"; exit $code'
        script = ["bash", "-c", ended, "bash", sys.argv[1], str(folder / ".ask")]
        with subprocess.Popen(script, env=environment) as running:
            serve(folder)
        return running.returncode


if __name__ == "__main__":
    sys.exit(main())
