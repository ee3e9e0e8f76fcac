"""recipes/speed/servers.py: its clients of a real server, the peers' server, and its page."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.recipe_scripts import imported

import nartk

for needed in ("httpx", "uvicorn", "fastapi", "prometheus_client", "ctranslate2"):
    pytest.importorskip(needed)

import httpx  # noqa: E402  # what needs them
from support.serving import serving  # noqa: E402

from nartk.adapters.ctranslate2 import write_folder  # noqa: E402
from nartk.bench.turns import EngineError  # noqa: E402
from nartk.checkpoints.loading import load_checkpoint  # noqa: E402
from nartk.checkpoints.names import model_folder  # noqa: E402
from nartk.server.service import Limits, Service  # noqa: E402

servers = imported("speed", "servers.py")
peer = imported("speed", "ctranslate2_server.py")
LINES = ["She go home .", "I has a dog .", "", "They is here , he said .", "No errors here ."]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time of a server is read from /proc")
def test_clients_send_each_line_once() -> None:
    model = nartk.load("gec-en", threads=1)
    lines = LINES * 4
    with serving(Service({"gec-en": model})) as client:
        asked = {"lines": lines, "count": 3}
        body = {"body": lambda line: {"lines": [line]}, "text": servers._of_nartk}
        found = servers.Clients(os.getpid(), client.base_url.port, "/v1/decode", **body, **asked)()
        figures = client.get("/metrics").text
    assert found["texts"] == [each.text for each in model.decode(lines)]
    assert f'nartk_requests_total{{path="/v1/decode",status="200"}} {len(lines)}.0' in figures
    assert len(found["latencies"]) == len(lines)
    # Three at a time: their sum is what all took, three times.
    assert max(found["latencies"]) <= found["seconds"] <= sum(found["latencies"])
    assert sum(found["latencies"]) <= 3 * found["seconds"]
    assert 0 < found["cpu"] < 60


def test_a_request_that_fails_ends_the_measurement() -> None:
    model = nartk.load("gec-en", threads=1)
    with serving(Service({"gec-en": model}, Limits(lines=1))) as client:
        body = {"body": lambda line: {"lines": [line, line]}, "text": servers._of_nartk}
        asked = servers.Clients(os.getpid(), client.base_url.port, "/v1/decode", **body, lines=LINES, count=2)
        with pytest.raises(EngineError, match="413"):
            asked()


@pytest.mark.parametrize("size", [None, 2])
def test_the_peers_server_gives_each_request_its_own_text(size: int | None) -> None:
    calls: list[int] = []

    def reverse(lines: Sequence[str]) -> list[str]:
        calls.append(len(lines))
        return [line[::-1] for line in lines]

    async def ask() -> list[str]:
        app = peer.application(reverse, size)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app.router.lifespan_context(app))
            sent = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")
            client = await stack.enter_async_context(sent)
            found = await asyncio.gather(*(client.post("/translate", json={"q": line}) for line in LINES))
        return [each.json()["translatedText"] for each in found]

    assert asyncio.run(ask()) == [line[::-1] for line in LINES]
    assert sum(calls) == len(LINES)
    assert max(calls) == (1 if size is None else size)


def test_the_peer_decodes_as_nartk_does(tmp_path: Path) -> None:
    """On weights in fp32, without a guard, each line as one sentence."""
    [*write_folder(load_checkpoint(model_folder("gec-en")), tmp_path, "fp32")]
    model = nartk.load("gec-en", dtype="fp32", pretokenized=True, guard=False)
    lines = [line for line in LINES if line]
    found = peer.Library(tmp_path, "float32")(lines)
    assert found == [each.text for each in model.decode(lines, "greedy")]
    assert found != lines


def test_the_page_by_hand() -> None:
    over = {"median": 0.95, "low": 0.9, "high": 1.0}
    own = {"engine": "nartk-decode", "dtype": "int8", "seconds": [2.0, 4.0, 5.0], "whole": [4.0, 8.0, 10.0]}
    own |= {"cpu": [1.0, 1.5, 2.25], "over": None, "p50": None, "p99": None, "same": 20}
    server = {"engine": "nartk-serve", "dtype": "int8", "seconds": [2.0, 4.0, 5.0], "whole": None}
    server |= {"cpu": [2.0, 2.0, 2.0], "over": over, "p50": [10.4, 9.0, 11.0], "p99": [99.0, 100.0, 98.0]}
    found = {
        "command": ["python", "recipes/speed/servers.py"],
        "environment": {"cpu": "A CPU", "load_average": 0.5, "versions": {"nartk": "1", "uvloop": None}},
        "cells": [own, {**server, "same": 19}],
        **{"model": "gec-en", "lines": 20, "clients": 4, "batch size": 8, "rounds": 3},
    }
    page = servers.page(found)
    assert [line for line in page.splitlines() if line[:1] == "|"] == [
        "| program | type | lines/s | x nartk-decode | p50 ms | p99 ms | CPU s | texts as nartk's |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| nartk-decode | int8 | 5 (4-10) | - | - | - | 1.50 (1.00-2.25) | 20 of 20 |",
        "| nartk-decode, its start included | int8 | 2 (2-5) | - | - | - | - | - |",
        "| nartk-serve | int8 | 5 (4-10) | 0.95 (0.90-1.00) | 10 (9-11) | 99 (98-100) | 2.00 (2.00-2.00) "
        "| 19 of 20 |",
    ]
    assert "- clients: 4" in page
