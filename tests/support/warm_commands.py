"""Runs a bash script whose commands of nartk cost no start: one process imports all that they need.

    python tests/support/warm_commands.py SCRIPT

Each command runs in a fork of that process, with the arguments, the folder and the standard streams that bash
gives it; all others are what they are. Exits with the script's exit code. Needs /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

from nartk.cli import _fairseq

# Stands in for each command: asks, waits, and ends as the command ended.
SHIM = """#!/usr/bin/env bash
printf '%s\\0' $$ "$PWD" "${0##*/}" "$@" >"${BASH_SOURCE[0]%/*}/.ask"
read -r code <"${BASH_SOURCE[0]%/*}/.answer"
exit "$code"
"""
COMMANDS = ("bench", "calibrate", "convert", "decode", "distill", "noise", "preprocess", "train", "verify")


def serve(folder: Path, script: subprocess.Popen[bytes]) -> None:
    """Runs what the script's shims ask for, until it has ended."""
    while True:
        with (folder / ".ask").open("rb") as ask:
            asked = ask.read()
        if not asked:  # the script's end, see `main`
            return
        pid, where, name, *args = (os.fsdecode(part) for part in asked.removesuffix(b"\0").split(b"\0"))
        child = os.fork()
        if child == 0:
            os._exit(command(pid, where, name, args))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (folder / ".answer").write_text(f"{code}\n")


def command(pid: str, where: str, name: str, args: list[str]) -> int:
    """Runs a command in the place of the process `pid`; its exit code."""
    try:
        for stream, flags in enumerate((os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)):
            os.dup2(os.open(f"/proc/{pid}/fd/{stream}", flags), stream)
        os.chdir(where)
        code: int = import_module(f"nartk.cli.{name.removeprefix('nartk-')}").main(args)
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def main() -> int:
    for name in COMMANDS:
        import_module(f"nartk.cli.{name}")
    _fairseq.start()
    for name in ("nartk.serving.loading", "fairseq_cli.train", "fairseq_cli.preprocess"):
        import_module(name)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pipe in (".ask", ".answer"):
            os.mkfifo(folder / pipe)
        for each in COMMANDS:
            shim = folder / f"nartk-{each}"
            shim.write_text(SHIM)
            shim.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        # When bash has ended, for whatever reason, an empty question says so.
        script = [
            "bash",
            "-c",
            'bash "$1"; code=$?; : >"$2"; exit $code',
            "bash",
            sys.argv[1],
            folder / ".ask",
        ]
        with subprocess.Popen(script, env=environment) as running:
            serve(folder, running)
        return running.returncode


if __name__ == "__main__":
    sys.exit(main())
