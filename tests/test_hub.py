"""Models of the Hugging Face Hub by their names, from a server of its interface on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.hf_folders import text_folder

from nartk.checkpoints.hub_answers import is_named_by_hash

pytest.importorskip("huggingface_hub")

NAME, COMMIT = "somebody/marian", "a" * 40
LINES = "she goes to school .\nshe sees nothing\n"


class Hub:
    """A hub with one model.

    Attributes:
        asked: Paths of the requests so far.
        answers: What stands in for files or the list of them, by path.
        faults: What answers requests in place of the server, by path; it gets method and handler.
    """

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.files |= {"pytorch_model.bin": b"pickled", "tf_model.h5": b"", "onnx/model.onnx": b""}
        self.asked: list[str] = []
        self.answers: dict[str, bytes] = {}
        self.faults: dict[str, Callable[[str, BaseHTTPRequestHandler], None]] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                path = self.path.partition("?")[0]
                hub.asked.append(path)
                if path in hub.faults:
                    with suppress(ConnectionError):  # of one who does not listen any more
                        hub.faults[path](self.command, self)
                    return
                body, headers = hub.answer(path)
                if path.startswith("/api/") and body is not None:
                    body = hub.answers.get(path, body)  # of files the length stays
                self.send_response(404 if body is None else 200)
                if body is None:
                    headers, body = {"X-Error-Code": "RepoNotFound"}, b""
                for key, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(hub.answers.get(path, body))

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[bytes | None, dict[str, str]]:
        own = {"Content-Type": "application/json"}
        if path in (
            f"/api/models/{NAME}",
            *(f"/api/models/{NAME}/revision/{each}" for each in ("main", "v2")),
        ):
            names = [{"rfilename": name} for name in self.files]
            return json.dumps({"id": NAME, "sha": COMMIT, "siblings": names}).encode(), own
        if path == f"/api/models/{NAME}/tree/{COMMIT}":
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            return json.dumps(listed).encode(), own
        data = self.files.get(path.removeprefix(f"/{NAME}/resolve/{COMMIT}/"))
        if data is None:
            return None, {}
        return data, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(path, data)}"'}


def etag(path: str, data: bytes) -> str:
    """What the hub names a file by: SHA-256 of large files, git's SHA-1 of others."""
    large = path.endswith(".safetensors")
    own = hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)
    return own.hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    text_folder(tmp_path / "model")
    made = Hub(tmp_path / "model")
    yield made
    made.server.shutdown()
    made.server.server_close()


def decoded(hub: Hub, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Decodes `LINES` by greedy search, as `ran` does."""
    return ran(hub, folder, "decode", *words, "--strategy", "greedy", "--quiet", **variables)


def ran(hub: Hub, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that reads `LINES`, in a process of its own, with a cache of its own."""
    return python(hub, folder, ["-m", "nartk", *words], **variables)


def python(
    hub: Hub, folder: Path, words: Sequence[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Python with what it is given, in a process of its own, with a cache of its own."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server.server_port}",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, *words],
        input=LINES,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )


def test_a_model_is_decoded_by_its_name_and_then_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    wanted = decoded(hub, tmp_path, str(tmp_path / "model"))
    assert (wanted.returncode, hub.asked) == (0, [])
    found = decoded(hub, tmp_path, NAME)
    assert (found.returncode, found.stdout) == (0, wanted.stdout), found.stderr
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    needed = {"config.json", "generation_config.json", "model.safetensors", "source.spm", "target.spm"}
    assert fetched == needed | {"tokenizer_config.json", "vocab.json"}
    assert decoded(hub, tmp_path, f"{NAME}@v2").stdout == wanted.stdout
    before = len(hub.asked)
    offline = decoded(hub, tmp_path, NAME, HF_HUB_OFFLINE="1")
    assert (offline.stdout, len(hub.asked)) == (wanted.stdout, before)


def test_a_drafter_is_named_as_a_model_is(hub: Hub, tmp_path: Path) -> None:
    """It drafts what the folder of the same files does; where a command tries it beforehand, too."""
    own, draft = str(tmp_path / "model"), ["decode", "--strategy", "speculative", "--no-adaptive"]
    outputs = []
    for name in (own, NAME):
        stats = tmp_path / f"{len(outputs)}.json"
        each = ran(hub, tmp_path, *draft, own, "--drafter", name, "--stats", str(stats))
        assert each.returncode == 0, each.stderr
        counts = json.loads(stats.read_text())
        outputs.append((each.stdout, counts["accepted"], counts["signature"]))
    assert outputs[0] == outputs[1]
    assert outputs[0][1] > 0
    assert any("/resolve/" in path for path in hub.asked)
    (tmp_path / "in.txt").write_text(LINES)
    for command in (
        ["verify", own, "in.txt", "--strategy", "speculative"],
        ["bench", own, "in.txt", "--strategies", "speculative", "--rounds", "1"],
    ):
        found = ran(hub, tmp_path, *command, "--drafter", NAME)
        assert found.returncode == 0, found.stderr
    missing = ran(hub, tmp_path, *draft, own, "--drafter", "somebody/other")
    assert missing.returncode == 2
    assert "'somebody/other' is no file and no folder, and did not come from" in missing.stderr


def test_pickles_alone_are_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    found = decoded(hub, tmp_path, NAME)
    assert found.returncode == 5
    assert "neither safetensors nor a model.bin of CTranslate2" in found.stderr
    assert not any("pytorch_model" in path for path in hub.asked)


@pytest.mark.parametrize("name", ["somebody/other", f"{NAME}@v3"])
def test_what_the_hub_does_not_have(name: str, hub: Hub, tmp_path: Path) -> None:
    found = decoded(hub, tmp_path, name)
    assert (found.returncode, found.stdout) == (2, "")
    assert f"{name!r} is no file and no folder, and did not come from the Hugging Face Hub" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (f"/api/models/{NAME}/tree/{COMMIT}", b"[{]"),
        (f"/api/models/{NAME}/tree/{COMMIT}", b'[{"type": "file", "path": "../../evil.json"}]'),
        (f"/{NAME}/resolve/{COMMIT}/model.safetensors", b"cut"),
        (f"/{NAME}/resolve/{COMMIT}/config.json", b"cut"),
    ],
)
def test_answers_that_are_wrong_or_cut_off(path: str, answer: bytes, hub: Hub, tmp_path: Path) -> None:
    hub.answers[path] = answer
    found = decoded(hub, tmp_path, NAME)
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1].startswith(
        "nartk: error[E401 ModelNotFound]"
    )  # behind the library's
    assert not [*tmp_path.rglob("evil.json")]


LISTED, WEIGHTS = f"/api/models/{NAME}/tree/{COMMIT}", f"/{NAME}/resolve/{COMMIT}/model.safetensors"
CONFIG = f"/{NAME}/resolve/{COMMIT}/config.json"


def headers(handler: BaseHTTPRequestHandler, status: int, **fields: object) -> None:
    handler.send_response(status)
    for key, value in fields.items():
        handler.send_header(key.replace("_", "-"), str(value))
    handler.end_headers()


class Fault:
    """A server's misbehaviour.

    Args:
        hub: The server that would answer well.
        path: What it is asked for.
    """

    def __init__(self, hub: Hub, path: str) -> None:
        self.path, self.hub = path, hub
        body, self.fields = hub.answer(path)
        assert body is not None
        self.body = body

    def head(self, handler: BaseHTTPRequestHandler, **others: object) -> None:
        fields = {**self.fields, "Content-Length": len(self.body)}
        headers(handler, 200, **{**fields, **{key.replace("_", "-"): value for key, value in others.items()}})

    def trickles(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        self.head(handler)
        for byte in self.body if method == "GET" else b"":
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.05)

    def stalls(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        self.head(handler)
        if method == "GET":
            handler.wfile.write(self.body[:10])
            handler.wfile.flush()
            time.sleep(3)

    def is_silent(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        time.sleep(3)

    def is_cut_off(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        self.head(handler)
        if method == "GET":
            handler.wfile.write(self.body[:-5])

    def lies_about_its_size(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        self.head(handler, Content_Length=len(self.body) + 7 * (method == "HEAD"))
        if method == "GET":
            handler.wfile.write(self.body)

    def has_another_hash(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        self.head(handler)
        if method == "GET":
            handler.wfile.write(self.body[:-1] + bytes([self.body[-1] ^ 1]))

    def goes_in_circles(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        headers(handler, 302, Location=self.path, Content_Length=0)

    def pages_without_end(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        address = f"http://127.0.0.1:{self.hub.server.server_port}{self.path}"
        self.head(handler, Link=f'<{address}>; rel="next"')
        handler.wfile.write(self.body)

    def is_html(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        page = b"<html><body>Sign in</body></html>"
        headers(handler, 200, Content_Type="text/html", Content_Length=len(page))
        if method == "GET":
            handler.wfile.write(page)

    def asks_to_wait(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        headers(handler, 429, Retry_After=86400, Content_Length=0)

    def is_away(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        headers(handler, 503, Retry_After=86400, Content_Length=0)

    def has_vanished(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        headers(handler, 404, X_Error_Code="RevisionNotFound", Content_Length=0)

    def lists_nothing(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        self.body = b"[]"
        self.head(handler)
        handler.wfile.write(self.body)

    def lists_what_is_elsewhere(self, method: str, handler: BaseHTTPRequestHandler) -> None:
        rows = json.loads(self.body)
        for path in ("../../evil.json", "..", "/etc/evil.json", "a/../../evil.json", "..\\evil.json"):
            rows.append({"type": "file", "path": path, "size": 2, "oid": "0" * 40})
        rows = [each for each in rows if each["path"] != "model.safetensors"]
        self.body = json.dumps(rows).encode()
        self.head(handler)
        handler.wfile.write(self.body)


FAULTS = [
    (LISTED, "trickles", "bytes came in 1 s"),
    pytest.param(LISTED, "is_silent", "ReadTimeout|timed out", marks=pytest.mark.slow),
    pytest.param(LISTED, "is_cut_off", "RemoteProtocolError|peer closed", marks=pytest.mark.slow),
    (LISTED, "goes_in_circles", "TooManyRedirects"),
    (LISTED, "pages_without_end", "more than 1000 answers"),
    (LISTED, "is_html", "JSONDecodeError"),
    (LISTED, "asks_to_wait", "answers 429 and asks to wait 86400 s"),
    (LISTED, "is_away", "answers 503 and asks to wait 86400 s"),
    (LISTED, "has_vanished", "RevisionNotFound"),
    (LISTED, "lists_nothing", "neither safetensors nor a model.bin"),
    (LISTED, "lists_what_is_elsewhere", ""),
    (WEIGHTS, "trickles", "bytes came in 1 s"),
    (WEIGHTS, "stalls", "ReadTimeout|timed out"),
    (WEIGHTS, "is_cut_off", "RemoteProtocolError|peer closed"),
    (WEIGHTS, "lies_about_its_size", "Consistency check"),
    (WEIGHTS, "has_another_hash", "model.safetensors is not what its hash names"),
    (CONFIG, "has_another_hash", "config.json is not what its hash names"),
    (CONFIG, "goes_in_circles", "TooManyRedirects"),
    (WEIGHTS, "asks_to_wait", "answers 429 and asks to wait 86400 s"),
    (WEIGHTS, "has_vanished", "RevisionNotFound"),
    (CONFIG, "is_html", ""),
]


@pytest.mark.parametrize(
    ("path", "fault", "says"),
    FAULTS,
    ids=lambda each: each.removesuffix(COMMIT).strip("/").rpartition("/")[2],
)
def test_a_server_that_misbehaves_is_left_and_a_good_one_works(
    path: str, fault: str, says: str, hub: Hub, tmp_path: Path
) -> None:
    """Within 6 tries of HF_HUB_DOWNLOAD_TIMEOUT, here 1 s, and the 24 s that the library pauses in all."""
    hub.faults[path] = getattr(Fault(hub, path), fault)
    began = time.monotonic()
    found = fetched(hub, tmp_path)
    assert time.monotonic() - began < 45
    name, _, message = found.partition(": ")
    assert name in ("ModelNotFoundError", "UnsupportedCheckpointError"), found
    assert re.search(says, message), found
    assert not [*tmp_path.rglob("*evil*")]
    hub.faults.clear()
    assert fetched(hub, tmp_path) == "whole"
    for name in ("model.safetensors", "config.json"):
        (held,) = tmp_path.glob(f"home/hub/*/snapshots/*/{name}")
        assert held.read_bytes() == hub.files[name]


def fetched(hub: Hub, folder: Path) -> str:
    """What becomes of a download, in a process of its own without torch: an error's name and message."""
    program = f"""
from nartk.checkpoints.hub import hub_folder
from nartk.errors import NartkError
try:
    hub_folder({NAME!r})
    print("whole")
except NartkError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    found = python(hub, folder, ["-c", program])
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_hooks_leave_the_librarys_client_as_it_was(hub: Hub, tmp_path: Path) -> None:
    program = f"""
from huggingface_hub.utils import get_session
from nartk.checkpoints.hub import hub_folder
from nartk.errors import NartkError
before = {{name: [*each] for name, each in get_session().event_hooks.items()}}
hub_folder({NAME!r})
try:
    hub_folder("somebody/other")
except NartkError:
    assert get_session().event_hooks == before
    print("same")
"""
    found = python(hub, tmp_path, ["-c", program])
    assert found.stdout == "same\n", found.stderr


def test_names_of_files_are_git_hashes_or_sha256(tmp_path: Path) -> None:
    from huggingface_hub.utils.sha import git_hash

    data = random.Random(0).randbytes(3 << 20)
    plain = [hashlib.sha1(data).hexdigest(), hashlib.sha256(data).hexdigest()]
    for name in (git_hash(data), *plain, "of-a-mirror"):
        (tmp_path / name).write_bytes(data)
        assert is_named_by_hash(tmp_path / name)
        (tmp_path / name).write_bytes(data[:-1])
        assert is_named_by_hash(tmp_path / name) == (name == "of-a-mirror")
