"""Models of the Hugging Face Hub by their names, from a server of its interface on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.hf_folders import text_folder

pytest.importorskip("huggingface_hub")

NAME, COMMIT = "somebody/marian", "a" * 40
LINES = "she goes to school .\nshe sees nothing\n"


class Hub:
    """A hub with one model.

    Attributes:
        asked: Paths of the requests so far.
        answers: What stands in for files or the list of them, by path.
    """

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.files |= {"pytorch_model.bin": b"pickled", "tf_model.h5": b"", "onnx/model.onnx": b""}
        self.asked: list[str] = []
        self.answers: dict[str, bytes] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                path = self.path.partition("?")[0]
                hub.asked.append(path)
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
        return data, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}


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
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server.server_port}",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        **variables,
    }
    command = [sys.executable, "-m", "nartk", *words]
    return subprocess.run(
        command, input=LINES, capture_output=True, text=True, env=environment, cwd=folder, check=False
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
