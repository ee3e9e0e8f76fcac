"""Many clients at a time, of all dialects: no request is lost, and texts are those of a model alone."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import numpy as np
import pytest
from support.sounds import noise, wav

import nartk

for needed in ("httpx", "uvicorn", "fastapi", "prometheus_client", "soundfile"):
    pytest.importorskip(needed)

import httpx  # noqa: E402  # what needs them
from support.serving import applied, held, serving_command  # noqa: E402

LINES = (
    "She go home.",
    "I has a dog and he like me very much.",
    "They is here , he said.",
    "No errors here.",
    "Yesterday I am go to school with mine brother, who are ten year old. He like football.",
)
STRATEGIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("iad", {}),
    ("greedy", {}),
    ("beam", {"beam_size": 3}),
    ("sample", {"seed": 5}),
)
QUEUE, DEADLINE = 24, 60  # lines; s


class Visitors:
    """Clients at a time, each of which sends requests of dialects at random until all are answered.

    Attributes:
        refused: Number of requests that found the queue full, and came again.
        seconds: Times from a request that was taken to its answer.
    """

    def __init__(self, base: str, sound: bytes) -> None:
        self.base, self.sound = base, sound
        self.refused = 0
        self.seconds: list[float] = []
        corrector, recognizer = nartk.load("gec-en", threads=1), nartk.load("asr-digits", threads=1)
        self.corrected = {line: corrector.decode(line).text for line in LINES}
        self.decoded = {
            (name, line): corrector.decode(line, name, **options).text
            for name, options in STRATEGIES
            for line in LINES
        }
        self.transcribed = recognizer.decode(sound).text

    async def visit(self, clients: int, requests: int) -> int:
        """Returns the number of texts that are as they should be."""
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(base_url=self.base, timeout=2 * DEADLINE, limits=limits) as client:
            found = await asyncio.gather(*(self._send(client, seed, requests) for seed in range(clients)))
        return sum(found)

    async def _send(self, client: httpx.AsyncClient, seed: int, requests: int) -> int:
        rng = random.Random(seed)
        right = 0
        for _ in range(requests):
            line = rng.choice(LINES)
            dialect = rng.choice(("decode", "decode", "check", "audio"))
            if dialect == "decode":
                name, options = rng.choice(STRATEGIES)
                body = {"lines": [line], "strategy": name, "options": options}
                answer = await self._post(client, rng, "/v1/decode", json=body)
                right += answer.json()["outputs"][0]["text"] == self.decoded[name, line]
            elif dialect == "check":
                answer = await self._post(client, rng, "/v2/check", data={"language": "en", "text": line})
                right += applied(line, answer.json()["matches"]) == self.corrected[line]
            else:
                file = {"file": ("a.wav", self.sound, "audio/wav")}
                named = {"model": "asr-digits"}
                answer = await self._post(client, rng, "/v1/audio/transcriptions", data=named, files=file)
                right += answer.json()["text"] == self.transcribed
        return right

    async def _post(self, client: httpx.AsyncClient, rng: random.Random, path: str, **what: Any) -> Any:
        """Sends a request until the queue has space for it."""
        while True:
            start = time.monotonic()
            answer = await client.post(path, **what)
            if answer.status_code != 429:
                assert answer.status_code == 200, answer.text
                self.seconds.append(time.monotonic() - start)
                return answer
            self.refused += 1
            await asyncio.sleep(float(answer.headers["retry-after"]) * rng.uniform(0.5, 1.5))


@pytest.mark.parametrize(
    ("clients", "requests"), [(48, 3), pytest.param(512, 20, marks=pytest.mark.slow)], ids=["48", "512"]
)
def test_no_request_of_many_is_lost_or_changed(clients: int, requests: int) -> None:
    rate = 8000
    loud = noise(rate, seed=3, loudness=0.5) * np.repeat([1.0, 0.001], rate // 2)
    bounds = ("--max-queue", str(QUEUE), "--deadline", str(DEADLINE))
    with serving_command("gec-en", "asr-digits", *bounds) as (client, _):
        visitors = Visitors(str(client.base_url), wav(loud.astype(np.float32), rate))
        start = time.monotonic()
        assert asyncio.run(visitors.visit(clients, requests)) == clients * requests
        took = time.monotonic() - start
        assert visitors.refused > 0
        assert np.percentile(visitors.seconds, 99) < DEADLINE
        assert held(client) == {"waiting_lines": 0, "cells": 0, "encoded_sources": 0}
        print(
            f"{clients} clients: {clients * requests / took:.0f} requests/s, p50 "
            f"{np.percentile(visitors.seconds, 50):.2f} s, p99 {np.percentile(visitors.seconds, 99):.2f} s, "
            f"{visitors.refused} refused"
        )
