"""Measures nartk-serve beside nartk-decode and CTranslate2 behind FastAPI: requests a second, latency.

python recipes/speed/servers.py MODEL --input FILE [--limit N] [--clients N] [--batch-size N] [--rounds N]
    MODEL: a folder, or gec-en, of sentencepiece pieces
    FILE: lines of text, tokenised as the model was trained

Each client keeps a connection, and sends a line once it has the answer to the one before. Every program has
one thread for its model and runs in turns with the others, on the same lines. CTranslate2's servers get the
same weights, cut lines into pieces and search greedily; nartk's programs split lines into sentences and judge
outputs by the guard, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import nartk
from nartk.adapters.ctranslate2 import TYPES, write_folder
from nartk.bench.report import heading, markdown, publish, ratio, recipe_parser, times
from nartk.bench.runner import environment, version_of
from nartk.bench.turns import EngineError, in_turns
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import model_folder

LOOP: Callable[[], asyncio.AbstractEventLoop] | None = None  # asyncio's own
with suppress(ImportError):  # Clients share the cores with the server: they should compute little.
    from uvloop import new_event_loop

    LOOP = new_event_loop
SERVER = Path(__file__).with_name("ctranslate2_server.py")
DECODE, SERVE, CALLS, BATCHES = (
    "nartk-decode",
    "nartk-serve",
    "CTranslate2, a call each",
    "CTranslate2, batches",
)
DTYPES = ("int8", "fp32")
STARTS_WITHIN = 120  # seconds
Figures = dict[str, Any]


def decoded(model: str, file: Path, dtype: str, size: int) -> Figures:
    """Runs `nartk-decode` on a file.

    Returns:
        ``seconds`` of decoding, ``whole`` seconds of the command, ``cpu`` seconds, and ``texts``.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, stats = Path(folder) / "out", Path(folder) / "stats"
        command = [*nartk_command("decode", model, dtype, size), str(file), "--quiet"]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([*command, "--output", str(output), "--stats", str(stats)], check=True)
        whole, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "seconds": json.loads(stats.read_text())["seconds"],
            "whole": whole,
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "texts": output.read_text(encoding="utf-8").splitlines(),
        }


def nartk_command(name: str, model: str, dtype: str, size: int) -> list[str]:
    settings = ["--dtype", dtype, "--batch-size", str(size), "--threads", "1"]
    return [sys.executable, "-m", "nartk", name, model, *settings]


class Clients:
    """Clients of a server, each of which has a connection and one request at a time.

    Args:
        process: Number of the server's process.
        body: The body of a line's request.
        text: The text of an answer.
    """

    def __init__(
        self,
        process: int,
        port: int,
        path: str,
        body: Callable[[str], object],
        text: Callable[[Any], str],
        lines: Sequence[str],
        count: int,
    ) -> None:
        self.process, self.port, self.path = process, port, path
        self.body, self.text, self.lines, self.count = body, text, lines, count

    def __call__(self) -> Figures:
        """Sends all lines.

        Returns:
            ``seconds`` until all are answered, ``latencies``, ``cpu`` seconds of the server, and ``texts``.

        Raises:
            EngineError: The server refuses a line.
        """
        self._bodies, self._latencies = [b""] * len(self.lines), list[float]()
        requests = [*map(self._request, self.lines)]
        with asyncio.Runner(loop_factory=LOOP) as runner:
            cpu, begin = cpu_seconds(self.process), time.perf_counter()
            runner.run(self._send(requests))
            seconds = time.perf_counter() - begin
        return {
            "seconds": seconds,
            "latencies": self._latencies,
            "cpu": cpu_seconds(self.process) - cpu,
            "texts": [self.text(json.loads(each)) for each in self._bodies],
        }

    def _request(self, line: str) -> bytes:
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        body = json.dumps(self.body(line)).encode()
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _send(self, requests: Sequence[bytes]) -> None:
        waiting = iter([*enumerate(requests)])
        await asyncio.gather(*(self._client(waiting) for _ in range(self.count)))

    async def _client(self, waiting: Iterable[tuple[int, bytes]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for index, request in waiting:
                begin = time.perf_counter()
                writer.write(request)
                status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                length = next(
                    int(each.partition(":")[2]) for each in fields if each.startswith("content-length:")
                )
                answer = await reader.readexactly(length)
                self._latencies.append(time.perf_counter() - begin)
                if " 200 " not in status:
                    raise EngineError(f"{self.path}: {status}: {answer.decode()}")
                self._bodies[index] = answer
        finally:
            writer.close()
            await writer.wait_closed()


def cpu_seconds(process: int) -> float:
    """Seconds that all threads of a process have computed, as Linux tells."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(command: Callable[[int], list[str]], health: str) -> Iterator[tuple[int, int]]:
    """Starts a server; numbers of its process and port.

    Raises:
        SystemExit: It does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(command(port)) as process:
        try:
            until = time.monotonic() + STARTS_WITHIN
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise SystemExit(f"{command(port)[1:4]} does not start") from None
                    time.sleep(0.1)
            yield process.pid, port
        finally:
            process.terminate()


def measure(model: str, lines: list[str], dtype: str, clients: int, size: int, rounds: int) -> list[Figures]:
    """Runs all programs in turns.

    Returns:
        Of each its ``engine``, ``dtype``, ``seconds``, ``whole`` and ``cpu`` by round, ``over`` (times as
        fast as nartk-decode, without its start), ``p50`` and ``p99`` by round in ms, and ``same`` (texts that
        are nartk's own: of CTranslate2 without the guard, and each line as one sentence).
    """
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file, folder = work / "lines", work / "model"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        folder.mkdir()
        [*write_folder(load_checkpoint(model_folder(model)), folder, dtype)]

        def serve(port: int) -> list[str]:
            return [*nartk_command("serve", model, dtype, size), "--port", str(port), "--quiet"]

        def peer(*more: str) -> Callable[[int], list[str]]:
            return lambda port: [sys.executable, str(SERVER), str(folder), str(port), TYPES[dtype], *more]

        def of_peer(found: Any) -> str:
            return found["translatedText"]

        own = stack.enter_context(started(serve, "/health/ready"))
        calls = stack.enter_context(started(peer(), "/docs"))
        batches = stack.enter_context(started(peer(str(size)), "/docs"))
        asked: dict[str, Any] = {"lines": lines, "count": clients}
        contenders: dict[str, Callable[[], Figures]] = {
            DECODE: partial(decoded, model, file, dtype, size),
            SERVE: Clients(*own, "/v1/decode", lambda line: {"lines": [line]}, _of_nartk, **asked),
            CALLS: Clients(*calls, "/translate", lambda line: {"q": line}, of_peer, **asked),
            BATCHES: Clients(*batches, "/translate", lambda line: {"q": line}, of_peer, **asked),
        }
        runs = in_turns(contenders, rounds)
    bare = nartk.load(model, dtype=dtype, pretokenized=True, guard=False)
    whole = [each.text for each in bare.decode(lines, "greedy", batch_size=size)]
    wanted = {DECODE: runs[DECODE][0]["texts"], SERVE: runs[DECODE][0]["texts"], CALLS: whole, BATCHES: whole}
    base = [each["seconds"] for each in runs[DECODE]]
    return [
        {
            "engine": name,
            "dtype": dtype,
            "seconds": (seconds := [each["seconds"] for each in found]),
            "whole": [each["whole"] for each in found] if name == DECODE else None,
            "cpu": [each["cpu"] for each in found],
            "over": None if name == DECODE else ratio(base, seconds),
            **{
                f"p{part}": [1000 * float(np.percentile(each["latencies"], part)) for each in found]
                if name != DECODE
                else None
                for part in (50, 99)
            },
            "same": min(sum(map(str.__eq__, each["texts"], wanted[name])) for each in found),
        }
        for name, found in runs.items()
    ]


def _of_nartk(found: Any) -> str:
    return found["outputs"][0]["text"]


COLUMNS = ("program", "type", "lines/s", f"x {DECODE}", "p50 ms", "p99 ms", "CPU s", "texts as nartk's")
_LEGEND = f"""lines/s: of a server requests a second, each of one line; of {DECODE} without its start.
x {DECODE}: how many times as fast, paired by round (lowest-highest). p50 p99: from a request to its
answer. CPU s: of the program, all threads, for all lines; of {DECODE} its start included. texts as
nartk's: of {SERVE} those of {DECODE}; of CTranslate2 nartk's without the guard, each line as one
sentence. All are medians of the rounds, with the lowest and the highest in brackets."""


def spread(values: Sequence[float], digits: int = 0) -> str:
    """A cell: the median and, in brackets, lowest and highest."""
    low, middle, high = (
        f"{each:.{digits}f}" for each in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low}-{high})"


def page(found: Figures) -> str:
    count = found["lines"]
    rows = []
    for each in found["cells"]:
        name, dtype = each["engine"], each["dtype"]
        rows.append(
            [
                name,
                dtype,
                spread([count / seconds for seconds in each["seconds"]]),
                times(each["over"]),
                *("-" if each[part] is None else spread(each[part]) for part in ("p50", "p99")),
                spread(each["cpu"], 2),
                f"{each['same']} of {count}",
            ]
        )
        if each["whole"]:
            whole = spread([count / seconds for seconds in each["whole"]])
            rows.append([f"{name}, its start included", dtype, whole, *["-"] * 5])
    facts = {key: found[key] for key in ("model", "lines", "clients", "batch size", "rounds")}
    facts["time"] = "wall"
    return "\n".join([*heading("Servers", found, facts), *markdown(COLUMNS, rows), "", *_LEGEND.split("\n")])


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    parser = recipe_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--input", type=Path, required=True, help="lines of text")
    parser.add_argument("--limit", type=int, help="read so many lines")
    parser.add_argument("--clients", type=int, default=32, help="at a time (default: 32)")
    parser.add_argument("--batch-size", type=int, default=32, help="lines at a time (default: 32)")
    options = parser.parse_args(argv)
    around = environment("cpu")
    around["versions"] |= {name: version_of(name) for name in ("fastapi", "uvicorn", "httptools", "uvloop")}
    lines = options.input.read_text(encoding="utf-8").splitlines()[: options.limit]
    settings = (options.clients, options.batch_size, options.rounds)
    found = {
        "command": ["python", "recipes/speed/servers.py", *argv],
        "environment": around,
        "model": options.model,
        "lines": len(lines),
        "clients": options.clients,
        "batch size": options.batch_size,
        "rounds": options.rounds,
        "cells": [cell for dtype in DTYPES for cell in measure(options.model, lines, dtype, *settings)],
    }
    publish(found, page(found), options)


if __name__ == "__main__":
    main()
