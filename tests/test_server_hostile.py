"""A server under hostile traffic: malformed requests, slow clients, clients that leave, SIGTERM and SIGKILL.

Behind each of them nothing waits, no cell is held, and a request of a good client has the model's own output.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sounds import noise, wav

import nartk
from nartk.serving.model import Model

for needed in ("httpx", "uvicorn", "fastapi", "prometheus_client", "soundfile"):
    pytest.importorskip(needed)

import httpx  # noqa: E402  # what needs them
from support.serving import held, serving, serving_command, settled  # noqa: E402

from nartk.server.service import Limits, Service  # noqa: E402

LINE = "I has a dog and he like me very much."
LONG = " ".join([LINE] * 12)
SOUND = wav(noise(8000, seed=3), 8000)
MINUTES = float(os.environ.get("NARTK_SERVER_MINUTES", "1"))  # of test_memory_is_flat
# Most that memory may rise in an hour of traffic, once it has settled, and on its way there, KiB.
SLOPE, RISE = 4 * 1024, 16 * 1024
slow = pytest.mark.slow


def sized(small: int, full: int) -> Any:
    return pytest.mark.parametrize(
        "count", [small, pytest.param(full, marks=slow)], ids=[str(small), str(full)]
    )


@pytest.fixture(scope="module")
def corrector() -> Model:
    return nartk.load("gec-en", threads=1)


@pytest.fixture(scope="module")
def client(corrector: Model) -> Iterator[Any]:
    models = {
        "gec-en": corrector,
        "en-de": replace(corrector, checkpoint=replace(corrector.checkpoint, guard=None)),
        "asr-digits": nartk.load("asr-digits", threads=1),
    }
    with serving(Service(models, Limits(body=100_000, lines=20, queue=160, seconds=30))) as made:
        yield made


@pytest.fixture
def unharmed(client: Any, corrector: Model) -> Iterator[None]:
    """Asserts that a server holds nothing afterwards, and decodes as before."""
    yield
    assert settled(client)
    assert held(client) == {"waiting_lines": 0, "cells": 0, "encoded_sources": 0}
    found = client.post("/v1/decode", json={"lines": [LINE]}).json()["outputs"][0]["text"]
    assert found == corrector.decode(LINE).text


def require_refused(answer: Any) -> None:
    """A status that is by design, and no word of where in the code it comes from."""
    assert answer.status_code < 500 or answer.status_code in (503, 504), answer.text
    assert not re.search(r"Traceback|File \"|site-packages|root:", answer.text)


# Malformed requests.

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"
BEAM = {"lines": [LINE], "strategy": "beam", "options": {"beam_size": 2}}
STREAM = {"lines": [LINE, ""], "prefixes": ["I", ""], "stream": True}
PAIR = {"source": "en", "target": "de"}
NAMED = b'--x\r\nContent-Disposition: form-data; name="%s"'
REQUESTS: tuple[tuple[str, str, bytes], ...] = (
    ("/v1/decode", JSON, json.dumps(BEAM).encode()),
    ("/v1/decode", JSON, json.dumps(STREAM).encode()),
    ("/v2/check", FORM, b"language=en-US&text=She+go+home."),
    ("/v2/check", FORM, b"language=en&data=%7B%22annotation%22%3A%5B%7B%22text%22%3A%22She+go.%22%7D%5D%7D"),
    ("/translate", JSON, json.dumps({"q": [LINE], **PAIR}).encode()),
    (
        "/translate",
        PARTS,
        b"".join(
            NAMED % name.encode() + b"\r\n\r\n%s\r\n" % value.encode()
            for name, value in {"q": LINE, **PAIR}.items()
        )
        + b"--x--\r\n",
    ),
    (
        "/v1/audio/transcriptions",
        PARTS,
        NAMED % b"model"
        + b"\r\n\r\nasr-digits\r\n"
        + NAMED % b"file"
        + b'; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + SOUND
        + b"\r\n--x--\r\n",
    ),
)
PIECES: tuple[bytes, ...] = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"{",
    b"]",
    b"1e999",
    b"-1",
    b"null",
    b"true",
    b"[[",
    b"\\ud800",
)
PIECES += (b"\r\n", b"--x", b"--x--", b"%", b"%00", b"&", b"=", b"../../etc/passwd", b"A" * 3000, b"\r\n\r\n")


def malformed(rng: random.Random, body: bytes) -> bytes:
    """A body with one to four changes: cut, bytes flipped, doubled, left out, or pieces put in."""
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randint(0, len(body)) for _ in range(2))
        end = min(end, at + 40)
        body = rng.choice(
            (
                body[:at],
                body[:at] + rng.choice(PIECES) + body[at:],
                body[:at] + rng.choice(PIECES) + body[end:],
                body[:at] + rng.randbytes(end - at) + body[end:],
                body[:at] + 2 * body[at:end] + body[end:],
            )
        )
    return body


# Starlette leaves the file of a part that does not end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("unharmed")
@sized(60, 500)
def test_malformed_bodies_are_refused(client: Any, count: int) -> None:
    rng = random.Random(count)
    statuses = set()
    for number in range(count):
        path, type_, body = REQUESTS[number % len(REQUESTS)]
        type_ = type_ if rng.random() < 0.8 else rng.choice((JSON, FORM, PARTS, "text/plain", ""))
        answer = client.post(path, content=malformed(rng, body), headers={"Content-Type": type_})
        require_refused(answer)
        statuses.add(answer.status_code)
    assert {200, 400, 422} <= statuses  # some changes are harmless, the others are named


HALF = "\ud800"  # of a surrogate pair
STRINGS: tuple[tuple[str, Any], ...] = (
    ("/v1/decode", {**BEAM, "model": "gec-en", "prefixes": ["She"]}),
    ("/v1/decode", {"lines": [LINE], "strategy": "beam", "options": {"constraints": "home"}}),
    ("/v1/decode", {"lines": [LINE], "strategy": "verify", "options": {"drafter": "gec-en"}, "stream": True}),
    ("/v1/decode", {"sounds": ["UklGRg=="], "model": "asr-digits"}),
    ("/translate", {"q": [LINE], "source": "en", "target": "de", "format": "text", "api_key": "x"}),
    ("/detect", {"q": LINE}),
    ("/v2/check", {"annotation": [{"text": "She go."}, {"markup": "<b>", "interpretAs": "x"}]}),
)


def halved(given: Any) -> Iterator[Any]:
    """The value with half a surrogate pair behind one of its strings, names of fields among them."""
    if isinstance(given, str):
        yield given + HALF
    elif isinstance(given, list):
        yield from (
            [*given[:i], new, *given[i + 1 :]] for i, each in enumerate(given) for new in halved(each)
        )
    elif isinstance(given, dict):
        for name, each in given.items():
            yield from ({**given, name: new} for new in halved(each))
            yield {key + HALF * (key == name): value for key, value in given.items()}


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(("path", "body"), STRINGS)
def test_half_a_surrogate_pair_is_no_fault_of_the_server(client: Any, path: str, body: Any) -> None:
    for given in halved(body):
        if path == "/v2/check":
            answer = client.post(path, data={"language": "en", "data": json.dumps(given)})
        else:
            answer = client.post(path, content=json.dumps(given), headers={"Content-Type": JSON})
        require_refused(answer)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("first", [b"", b'{"annotation":'])
def test_json_of_any_depth_is_refused(client: Any, first: bytes) -> None:
    deep = first + b"[" * 20_000
    for path in ("/v1/decode", "/translate", "/detect"):
        answer = client.post(path, content=deep, headers={"Content-Type": JSON})
        assert answer.status_code in (400, 422)
        require_refused(answer)
    answer = client.post("/v2/check", data={"language": "en", "data": deep.decode()})
    assert answer.status_code == 400
    require_refused(answer)


HTTP: tuple[bytes, ...] = (
    b"",
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("raw", HTTP, ids=lambda raw: raw[:30].decode("latin-1"))
def test_what_is_no_http_is_refused(client: Any, raw: bytes) -> None:
    with connected(client) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        found = b"".join(iter(partial(sock.recv, 1 << 16), b""))
    assert not re.search(rb"^HTTP/1.1 5|Traceback", found)


def connected(client: Any) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=30)


@pytest.mark.usefixtures("unharmed")
def test_neither_files_nor_addresses_are_opened(client: Any, corrector: Model, tmp_path: Path) -> None:
    """No request reaches a file of the server's, or has it connect anywhere."""
    secret = tmp_path / "secret"
    secret.write_text("the secret of this file\n")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/a"
        for name in (
            str(secret),
            f"file://{secret}",
            url,
            f"../../..{secret}",
            "//127.0.0.1/a",
            f"{url}.wav",
        ):
            fields = [
                ("model", name),
                *(("options", {option: name}) for option in ("lm", "shortlist", "drafter")),
            ]
            answers = [client.post("/v1/decode", json={"lines": [LINE], key: value}) for key, value in fields]
            answers += [client.post("/v1/decode", json={"lines": [LINE], "strategy": name})]
            answers += [client.post("/translate", json={"q": LINE, "source": name, "target": "de"})]
            answers += [client.post("/v2/check", data={"language": name, "text": LINE})]
            for sound in (name.encode(), b"#EXTM3U\n" + name.encode()):  # some decoders read lists of others
                file = {"file": (name, sound, "audio/wav")}
                for model in (name, "asr-digits"):
                    answers += [client.post("/v1/audio/transcriptions", data={"model": model}, files=file)]
            for answer in answers:
                assert 400 <= answer.status_code < 500, answer.text
                require_refused(answer)
                assert "the secret" not in answer.text
            # A line is text, whatever it names.
            (output,) = client.post("/v1/decode", json={"lines": [name]}).json()["outputs"]
            assert output["text"] == corrector.decode(name).text
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        f"/docs/..{secret}",
        "//etc/passwd",
        f"/{secret}",
    ):
        with connected(client) as sock:
            sock.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
            found = b"".join(iter(partial(sock.recv, 1 << 16), b""))
        assert found.startswith(b"HTTP/1.1 404")
        assert b"root:" not in found
        assert b"the secret" not in found


# Clients that are slow, or leave.


def posted(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = (
        b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    return head % len(raw) + raw


@sized(20, 200)
@pytest.mark.usefixtures("unharmed")
def test_clients_that_leave_mid_stream(client: Any, count: int) -> None:
    """They leave before the answer, within its head, and after some of its events."""
    rng = random.Random(count)

    def leave(number: int) -> None:
        body = {"lines": [LONG] * 20, "stream": True, "strategy": ("greedy", "beam", "iad")[number % 3]}
        with connected(client) as sock:
            sock.sendall(posted(body))
            for _ in range(rng.randint(0, 3)):
                sock.recv(rng.choice((1, 10, 1000)))
            if number % 2:  # by a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(leave, range(count))]
    assert settled(client)


@sized(20, 200)
def test_slow_clients_hold_nobody_up(corrector: Model, count: int) -> None:
    """Bodies that stop, heads without end and answers that nobody reads: others are served meanwhile."""
    bounds = Limits(seconds=10, read_seconds=0.5)
    with serving(Service({"gec-en": corrector}, bounds)) as client:
        whole = posted({"lines": [LINE] * 8, "stream": True})
        socks = [connected(client) for _ in range(count)]
        for number, sock in enumerate(socks):
            sock.sendall((whole[:-5], b"GET /health HTTP/1.1\r\nX: ", whole)[number % 3])
        for _ in range(5):
            answer = client.post("/v1/decode", json={"lines": [LINE]})
            assert answer.json()["outputs"][0]["text"] == corrector.decode(LINE).text
        for number, sock in enumerate(socks):
            if number % 3 == 0:  # nothing more of the body has come
                assert b" 408 " in sock.recv(100)
        assert settled(client)
        for sock in socks:
            sock.close()
        assert held(client) == {"waiting_lines": 0, "cells": 0, "encoded_sources": 0}


# How it ends.


class Load:
    """Clients that send lines until the server takes no more.

    Attributes:
        right: Number of answers with the model's own output.
        refused: Number of requests that came later and had 503 or a broken connection.
        lost: Number of requests that came before and have no answer.
    """

    def __init__(self, base: str, lines: list[str], outputs: dict[str, str]) -> None:
        self.base, self.lines, self.outputs = base, lines, outputs
        self.right = self.refused = self.lost = 0
        self.acted = float("inf")  # when the server was told to end

    async def run(self, clients: int, when: float, act: Callable[[], None]) -> None:
        """Sends by clients at a time, and acts once `when` seconds have gone."""
        async with (
            httpx.AsyncClient(base_url=self.base, timeout=60) as client,
            asyncio.TaskGroup() as group,
        ):
            for seed in range(clients):
                group.create_task(self._send(client, random.Random(seed)))
            await asyncio.sleep(when)
            self.acted = time.monotonic()
            act()

    async def _send(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        while True:
            line = rng.choice(self.lines)
            started = time.monotonic()
            try:
                answer = await client.post("/v1/decode", json={"lines": [line]})
            except httpx.ConnectError:
                return  # it takes no more
            except httpx.TransportError:
                self.lost += started < self.acted
                self.refused += started >= self.acted
                return
            if answer.status_code == 503:
                assert "about to end" in answer.json()["error"]["message"]
                self.refused += 1
                return
            assert answer.json()["outputs"][0]["text"] == self.outputs[line]
            self.right += 1


@pytest.fixture(scope="module")
def lines(corrector: Model) -> dict[str, str]:
    """Lines with their outputs."""
    return {line: corrector.decode(line).text for line in (LINE, "She go home.", LONG)}


def test_sigterm_under_load(lines: dict[str, str]) -> None:
    """What has come is answered; what comes later finds nobody."""
    with serving_command("gec-en", "--drain", "20") as (client, process):
        load = Load(str(client.base_url), [*lines], lines)
        asyncio.run(load.run(16, 1.5, process.terminate))
        begun = time.monotonic()
        process.wait(20)
        assert time.monotonic() - begun < 5  # nothing is left to wait for
        assert load.right > 16
        assert load.lost == 0
        with pytest.raises(httpx.ConnectError):
            client.get("/health")
    assert process.returncode in (0, -15, 143)


def test_what_outlasts_the_drain_is_refused(lines: dict[str, str]) -> None:
    """A request of more work than there is time for is answered with 503, a body that does not come, too."""
    heavy = {"lines": [LONG] * 200, "strategy": "beam", "options": {"beam_size": 10}}
    with serving_command("gec-en", "--drain", "1") as (client, process), ThreadPoolExecutor(2) as pool:
        decoding = pool.submit(client.post, "/v1/decode", json=heavy)
        streaming = pool.submit(client.post, "/v1/decode", json={**heavy, "stream": True})
        with connected(client) as half:
            half.sendall(posted(heavy)[:-5])
            until = time.monotonic() + 30
            while held(client)["waiting_lines"] < 400:
                assert time.monotonic() < until
                time.sleep(0.05)
            process.terminate()
            begun = time.monotonic()
            assert decoding.result(30).status_code == 503
            assert streaming.result(30).text.rstrip().endswith('"code": 503}')
            assert b" 503 " in half.recv(100)
            process.wait(30)
            assert time.monotonic() - begun < 10


def test_sigkill_under_load(lines: dict[str, str]) -> None:
    """Clients see a broken connection, no wrong answer; another server has the port and serves at once."""
    with serving_command("gec-en") as (client, process):
        load = Load(str(client.base_url), [*lines], lines)
        asyncio.run(load.run(16, 1.5, process.kill))
        assert load.right > 0
        assert load.lost + load.refused <= 16
        port = client.base_url.port
    with serving_command("gec-en", port=port) as (again, _):
        assert again.base_url.port == port
        for line, output in lines.items():
            assert again.post("/v1/decode", json={"lines": [line]}).json()["outputs"][0]["text"] == output
        assert held(again) == {"waiting_lines": 0, "cells": 0, "encoded_sources": 0}


# For long.


def rate(seconds: np.ndarray, sizes: np.ndarray) -> float:
    """Growth a second: the median over pairs of readings (Theil 1950, Sen 1968).

    It tells what grows all the time, a leak, from an allocator that takes one more block of memory.
    """
    first, second = np.triu_indices(len(seconds), 1)
    return float(np.median((sizes[second] - sizes[first]) / (seconds[second] - seconds[first])))


def test_a_leak_is_told_from_one_more_block() -> None:
    seconds = 10.0 * np.arange(120)
    leak, block = 6 * 1024 * seconds / 3600, np.where(seconds > 1000, 2600, 0)  # KiB
    assert 3600 * rate(seconds, leak // 132 * 132) > SLOPE  # in blocks of glibc's
    assert 3600 * rate(seconds, block) == 0


@slow
def test_memory_is_flat(corrector: Model) -> None:
    """Good, malformed and late requests and clients that leave, for NARTK_SERVER_MINUTES; RSS each 10 s."""
    with serving_command("gec-en", "asr-digits", "--max-queue", "40", "--deadline", "2") as (client, process):
        status = Path(f"/proc/{process.pid}/status")
        if not status.exists():
            pytest.skip("memory is read from /proc")
        rng, begun, found, sent = random.Random(0), time.monotonic(), list[tuple[float, int]](), 0

        def send(seed: int) -> None:
            rng = random.Random(seed)
            path, type_, body = rng.choice(REQUESTS[:4] + REQUESTS[-1:])
            if seed % 4 == 0:
                require_refused(
                    client.post(path, content=malformed(rng, body), headers={"Content-Type": type_})
                )
            elif seed % 4 == 1:
                with connected(client) as sock:
                    sock.sendall(posted({"lines": [LONG] * 3, "stream": True}))
                    sock.recv(rng.choice((1, 1000)))
            else:
                text = " ".join(rng.choices(LONG.split(), k=rng.randint(1, 60)))
                options: dict[str, Any] = {"seed": seed, "temperature": rng.choice((0.7, 1.0, 1.3))}
                strategy = rng.choice(("greedy", "iad", "beam", "sample"))
                asked: dict[str, Any] = {"lines": [text], "strategy": strategy}
                asked |= {"options": options if strategy == "sample" else {}}
                require_refused(client.post("/v1/decode", json=asked))

        with ThreadPoolExecutor(6) as pool:
            while time.monotonic() - begun < 60 * MINUTES:
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    [*pool.map(send, (rng.getrandbits(32) for _ in range(24)))]
                    sent += 24
                rss = re.search(r"VmRSS:\s+(\d+)", status.read_text())
                assert rss is not None
                found.append((time.monotonic() - begun, int(rss[1])))
        assert settled(client)
        assert held(client) == {"waiting_lines": 0, "cells": 0, "encoded_sources": 0}
    seconds, sizes = np.array(found).T
    later = slice(len(found) // 3, None)
    slope = 3600 * rate(seconds[later], sizes[later])
    print(
        f"{sent} requests in {seconds[-1] / 60:.1f} minutes: RSS {sizes[0] / 1024:.0f} MiB first, "
        f"{sizes[-1] / 1024:.0f} last, {sizes.max() / 1024:.0f} most; {slope / 1024:+.1f} MiB an hour"
    )
    print(*(f"{size / 1024:.1f}" for size in sizes))
    assert sizes.max() - sizes[0] < RISE
    assert MINUTES < 10 or slope < SLOPE


@slow
@pytest.mark.usefixtures("unharmed")
def test_what_the_interface_allows(client: Any, tmp_path: Path) -> None:
    """schemathesis makes requests by the OpenAPI document, right ones and wrong ones."""
    pytest.importorskip("schemathesis")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{client.base_url}/openapi.json"]
    command += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"]
    command += ["--max-examples", "600", "--generation-deterministic"]
    done = subprocess.run([*command, "--no-color"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    made = re.search(r"([\d,]+) generated", done.stdout)
    assert made is not None
    print(f"schemathesis: {made[0]}")
    assert int(made[1].replace(",", "")) > 2000
