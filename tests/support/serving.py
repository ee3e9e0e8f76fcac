"""Servers on ports of their own, clients of them, and what LanguageTool's answers make of a text."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from nartk.protocols.passes import Pass, Scores, Want
from nartk.server.app import make_app
from nartk.server.running import Server
from nartk.server.service import Service

STARTS_WITHIN = 60  # s


class SlowPasses:
    """A scorer that takes so many seconds more for each pass, so that outputs are seen while they grow."""

    def __init__(self, scorer: Any, seconds: float = 0.1) -> None:
        self.scorer, self.seconds = scorer, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def run(self, work: Pass, want: Want) -> Scores:
        time.sleep(self.seconds)
        found: Scores = self.scorer.run(work, want)
        return found


@contextmanager
def serving(service: Service, **options: Any) -> Iterator[Any]:
    """A client of a server in a thread."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(make_app(service, **options), log_level="critical", access_log=False)
        server = Server(config, service, drain=10)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            base = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(base_url=base, timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving_command(*arguments: str, port: int | None = None) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """A client of `nartk-serve`, which ends by SIGTERM; no traceback may be on its stderr.

    Args:
        port: Its port; None: a free one.
    """
    if port is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    command = [sys.executable, "-m", "nartk", "serve", *arguments, "--port", str(port), "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                _await_ready(client, process)
                yield client, process
        finally:
            process.terminate()
            said = process.communicate(timeout=30)[1]
        assert "Traceback" not in said


def _await_ready(client: httpx.Client, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            assert client.get("/health/ready").json() == {"status": "ok"}
            return
        except httpx.TransportError:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)


def held(client: Any) -> dict[str, float]:
    """What the server holds for lines that have not ended, over all models."""
    found = dict.fromkeys(("waiting_lines", "cells", "encoded_sources"), 0.0)
    for line in client.get("/metrics").text.splitlines():
        name, _, count = line.partition("{")
        if name.removeprefix("nartk_") in found:
            found[name.removeprefix("nartk_")] += float(count.split()[-1])
    return found


def settled(client: Any) -> bool:
    """True once nothing is held, within 10 seconds."""
    until = time.monotonic() + 10
    while any(held(client).values()):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def applied(text: str, matches: list[dict[str, Any]]) -> str:
    """The text with all replacements made, as a client in JavaScript counts characters."""
    units = text.encode("utf-16-le")
    for match in sorted(matches, key=lambda each: -each["offset"]):
        begin, end = 2 * match["offset"], 2 * (match["offset"] + match["length"])
        units = units[:begin] + match["replacements"][0]["value"].encode("utf-16-le") + units[end:]
    return units.decode("utf-16-le")
