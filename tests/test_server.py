"""The server over real connections: outputs, the dialects of clients, bounds, hostile bodies.

The oracle of an output is `Model.decode` without a server; that of LanguageTool's matches is that they, made
in the text as JavaScript counts characters, give the correction.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sounds import noise, wav

import nartk
from nartk.cli.serve import main
from nartk.errors import NartkError
from nartk.server.edits import edits_between
from nartk.serving.model import Model
from nartk.serving.strategies import fitting
from nartk.tracing import speech
from nartk.tracing.speech import align, for_page

for needed in ("httpx", "uvicorn", "fastapi", "prometheus_client"):
    pytest.importorskip(needed)

from support.serving import SlowPasses, applied, serving, serving_command, settled  # noqa: E402

from nartk.server.service import Limits, Service  # noqa: E402

TEXT = (
    "She go home.",
    "I has a dog 🙂 and he like me very much.",
    "They is here , he said.",
    "",
    "It are 3.5 km to http://example.org/a?b .",
    "No errors here.",
    "Yesterday I am go to school with mine brother, who are ten year old. He like football.",
)
HEAD = b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def corrector() -> Model:
    # A guard that weighs edits takes a pass of its own.
    return nartk.load("gec-en", threads=1, min_edit_confidence=0)


@pytest.fixture(scope="module")
def recognizer() -> Model:
    pytest.importorskip("soundfile")
    return nartk.load("asr-digits", threads=1)


@pytest.fixture(scope="module")
def client(corrector: Model, recognizer: Model) -> Iterator[Any]:
    models = {"gec-en": corrector, "asr-digits": recognizer}
    with serving(Service(models, Limits(body=200_000, lines=40, queue=60))) as made:
        yield made


# What is decoded.


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (None, {}),
        ("greedy", {"max_len": 5}),
        ("iad", {}),
        ("beam", {"beam_size": 3, "nbest": 2}),
        ("sample", {"seed": 7, "temperature": 1.5}),
    ],
)
def test_outputs_are_the_models_own(
    client: Any, corrector: Model, strategy: str | None, options: dict[str, Any]
) -> None:
    body = {"lines": TEXT, "strategy": strategy, "options": options}
    answer = client.post("/v1/decode", json=body)
    assert answer.status_code == 200
    wanted = corrector.decode(TEXT, strategy, **options)
    outputs = answer.json()["outputs"]
    assert [each["text"] for each in outputs] == [each.text for each in wanted]
    assert [each["score"] for each in outputs] == [each.score for each in wanted]
    others = [[each["text"] for each in output.get("alternatives", ())] for output in outputs]
    assert others == [[each.text for each in found.alternatives] for found in wanted]


def test_requests_of_many_clients_share_batches_and_change_nothing(client: Any, corrector: Model) -> None:
    rng = random.Random(5)
    asked = [(rng.sample(TEXT, rng.randint(1, 3)), rng.choice(["greedy", "iad", "beam"])) for _ in range(40)]

    def ask(case: tuple[list[str], str]) -> list[str]:
        while True:
            answer = client.post("/v1/decode", json={"lines": case[0], "strategy": case[1]})
            if answer.status_code != 429:  # which is in order where so many come at once
                return [each["text"] for each in answer.json()["outputs"]]

    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(ask, asked)]
    assert found == [[each.text for each in corrector.decode(*case)] for case in asked]


def test_an_output_comes_as_it_grows(corrector: Model) -> None:
    line = "I has a dog and he like me very much."
    body = {"lines": [line, "She go home."], "strategy": "greedy", "stream": True}
    slow = replace(corrector, passes=SlowPasses(corrector.passes))
    with (
        serving(Service({"gec-en": slow})) as client,
        client.stream("POST", "/v1/decode", json=body) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events_of(answer)
    names, data = [name for name, _ in found], [each for _, each in found]
    assert names[0] == "begin"
    assert names[-1] == "end"
    assert "partial" in names
    outputs = {each["line"]: each["text"] for name, each in zip(names, data, strict=True) if name == "output"}
    assert [outputs[0], outputs[1]] == [each.text for each in corrector.decode(body["lines"], "greedy")]
    added = [
        word for name, each in zip(names, data, strict=True) if name == "partial" for word in each["added"]
    ]
    assert added


def events_of(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and data of server-sent events."""
    found = [each.split("\n") for each in "".join(answer.iter_text()).strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in found]


def test_a_deadline_within_a_stream_is_an_event(corrector: Model) -> None:
    """The answer ends as HTTP does, what had ended before is there, and nothing waits behind it."""
    long = " ".join(["I has a dog and he like me very much."] * 3)
    body = {"lines": ["", long], "strategy": "greedy", "stream": True}
    slow = replace(corrector, passes=SlowPasses(corrector.passes))
    with serving(Service({"gec-en": slow}, Limits(seconds=1.0))) as client:
        with client.stream("POST", "/v1/decode", json=body) as answer:
            assert answer.status_code == 200
            found = events_of(answer)
        assert settled(client)
    names = [name for name, _ in found]
    assert (names[0], names[-1], names.count("error")) == ("begin", "error", 1)
    assert "end" not in names
    assert [data["line"] for name, data in found if name == "output"] == [0]
    assert found[-1][1] == {"message": "not done within 1 s", "code": 504}


def test_prefixes_and_traces(client: Any, corrector: Model) -> None:
    body = {"lines": ["She go home."], "prefixes": ["He"], "trace": True}
    (output,) = client.post("/v1/decode", json=body).json()["outputs"]
    (wanted,) = corrector.decode(["She go home."], "iad", prefixes=["He"], trace=True)
    assert output["text"] == wanted.text
    assert wanted.trace is not None
    origins = [(each.origin, each.verifier_pass) for each in wanted.trace]
    assert [(each["origin"], each["pass"]) for each in output["trace"]] == origins
    body["prefixes"] = ["He", "She"]
    assert client.post("/v1/decode", json=body).status_code == 400


def test_what_an_output_took(client: Any, corrector: Model) -> None:
    """By greedy search a pass gives a token, and drafts that are accepted take none."""
    for strategy in ("greedy", "iad"):
        body = {"lines": TEXT, "strategy": strategy, "trace": True}
        answer = client.post("/v1/decode", json=body).json()
        assert 0 < max(each["seconds"] for each in answer["outputs"]) <= answer["seconds"]
        for line, output in zip(TEXT, answer["outputs"], strict=True):
            count = len(corrector.decode(line, strategy).tokens) if line else 0
            assert len(output["tokens"]) == count
            drafts = sum(each["origin"] == "draft" for each in output["trace"])
            assert (output["accepted"], output["accepted"] <= output["drafted"]) == (drafts, True)
            assert output["passes"] == count - drafts or strategy == "iad"
            assert output["passes"] <= count


def test_edits_of_a_line_make_its_output(client: Any) -> None:
    for line, output in zip(
        TEXT, client.post("/v1/decode", json={"lines": TEXT, "edits": True}).json()["outputs"], strict=True
    ):
        matches = [{**each, "replacements": [{"value": each["text"]}]} for each in output["edits"]]
        assert applied(line, matches) == output["text"]
    assert "edits" not in client.post("/v1/decode", json={"lines": ["a"]}).json()["outputs"][0]


def test_recordings_with_their_alignment(client: Any, recognizer: Model, tmp_path: Path) -> None:
    sounds = [wav(noise(8000 * seconds, seed=seconds), 8000) for seconds in (1, 2)]
    body = {"sounds": [base64.b64encode(each).decode() for each in sounds], "trace": True, "edits": True}
    outputs = client.post("/v1/decode", json=body).json()["outputs"]
    for sound, output in zip(sounds, outputs, strict=True):
        (tmp_path / "a.wav").write_bytes(sound)
        wanted = recognizer.decode(str(tmp_path / "a.wav"))
        assert output["text"] == wanted.text
        assert output["speech"] == for_page(align(recognizer, str(tmp_path / "a.wav"), wanted.tokens))
        assert "edits" not in output
    with client.stream("POST", "/v1/decode", json={**body, "stream": True}) as answer:
        streamed = {data["line"]: data for name, data in events_of(answer) if name == "output"}
    assert [streamed[i]["speech"] for i in (0, 1)] == [each["speech"] for each in outputs]


def test_a_long_recording_has_a_text_and_no_alignment(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "_MOST_SECONDS", 1.5)
    for seconds, key in ((1, "speech"), (2, "unaligned")):
        sound = base64.b64encode(wav(noise(8000 * seconds), 8000)).decode()
        (output,) = client.post("/v1/decode", json={"sounds": [sound], "trace": True}).json()["outputs"]
        assert output["text"]
        assert [each for each in ("speech", "unaligned") if each in output] == [key]
    assert "a picture of 2 s of sound. Fix: draw 2 s at most" in output["unaligned"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"lines": ["a"], "sounds": ["UklGRg=="]}, 400),
        ({"sounds": ["no base64"]}, 400),
        ({"sounds": [""]}, 400),
        ({"sounds": ["UklGRg=="], "model": "gec-en"}, 400),
        ({"sounds": ["UklGRg=="], "prefixes": ["a", "b"]}, 400),
        ({"sounds": ["UklGRg=="] * 41}, 413),
    ],
)
def test_bad_recordings_are_named(client: Any, body: dict[str, Any], status: int) -> None:
    answer = client.post("/v1/decode", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_recording_that_is_none_fails_alone(client: Any) -> None:
    good = base64.b64encode(wav(noise(4000), 8000)).decode()
    outputs = client.post("/v1/decode", json={"sounds": ["UklGRg==", good]}).json()["outputs"]
    assert ["error" in each for each in outputs] == [True, False]


def test_the_strategies_of_a_model_are_those_that_decode_with_it(
    client: Any, corrector: Model, recognizer: Model
) -> None:
    sound = wav(noise(4000), 8000)
    found = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    cases: list[tuple[str, Model, Any]] = [
        ("gec-en", corrector, "She go."),
        ("asr-digits", recognizer, sound),
    ]
    for name, model, line in cases:
        fitting = []
        for strategy in nartk.strategies():
            with suppress(NartkError):
                assert model.decode(line, strategy).error is None
                fitting.append(strategy)
        assert found[name]["strategies"] == fitting
    assert [found["gec-en"][key] for key in ("strategy", "reference")] == ["iad", "greedy"]
    assert [found["asr-digits"][key] for key in ("strategy", "reference")] == ["ctc-greedy", "ctc-greedy"]


def test_the_strategies_of_a_model_are_found_once_and_not_at_the_start(
    corrector: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def slow(model: Model) -> list[str]:
        calls.append(model)
        time.sleep(0.1)
        return fitting(model)

    monkeypatch.setattr("nartk.server.service.fitting", slow)
    service = Service({"gec-en": corrector})
    try:
        assert not calls
        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(lambda _: service.models["gec-en"].strategies, range(8))]
        assert calls == [corrector]
        assert found == [fitting(corrector)] * 8
    finally:
        service.close()


def test_options_are_listed_with_their_bounds(client: Any) -> None:
    options = client.get("/v1/strategies").json()["beam"]["options"]
    assert {key: options["beam_size"][key] for key in ("default", "low", "choices")} == {
        "default": 5, "low": 1, "choices": None
    }  # fmt: skip
    for size in (0, 1):  # the bound is the first that the server takes
        body = {"lines": ["a"], "strategy": "beam", "options": {"beam_size": size}}
        assert client.post("/v1/decode", json=body).status_code == (200 if size else 400)


# Other dialects.


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_languagetools_matches_make_the_correction(client: Any, corrector: Model, ends: str) -> None:
    text = ends.join(TEXT)
    answer = client.post("/v2/check", data={"language": "en-US", "text": text, "enabledOnly": "false"})
    assert answer.status_code == 200
    found = answer.json()
    assert applied(text, found["matches"]) == ends.join(each.text for each in corrector.decode(TEXT))
    units = text.encode("utf-16-le")
    for match in found["matches"]:
        marked = units[2 * match["offset"] : 2 * (match["offset"] + match["length"])].decode("utf-16-le")
        assert match["length"] > 0
        context = match["context"]
        around = context["text"].encode("utf-16-le")
        at = 2 * context["offset"]
        assert around[at : at + 2 * context["length"]].decode("utf-16-le") == marked.replace("\n", " ")
        assert marked.strip() in match["sentence"]


def test_languagetools_annotated_text(client: Any) -> None:
    parts = [{"text": "She "}, {"markup": "<b>"}, {"text": "go home."}]
    answer = client.post(
        "/v2/check", data={"language": "en", "data": json.dumps({"annotation": parts})}
    ).json()
    whole = "She <b>go home."
    assert all(each["offset"] + each["length"] <= len(whole) for each in answer["matches"])
    for bad in ("{", "[]", '{"annotation": 1}', '{"annotation": [{}]}'):
        assert client.post("/v2/check", data={"language": "en", "data": bad}).status_code == 400


def test_languages_of_languagetool(client: Any) -> None:
    assert [each["longCode"] for each in client.get("/v2/languages").json()] == ["en"]
    assert client.post("/v2/check", data={"language": "xx", "text": "a"}).status_code == 400
    assert client.post("/v2/check", data={"language": "auto", "text": "She go."}).status_code == 200


@pytest.mark.parametrize("seed", range(200))
def test_edits_make_the_output(seed: int) -> None:
    rng = random.Random(seed)
    words = ["a", "bb", ".", " ", "  ", "🙂", "don't", "\t", "c", ","]
    source, output = ("".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(2))
    made = source
    found = edits_between(source, output)
    for edit in reversed(found):
        made = made[: edit.begin] + edit.text + made[edit.end :]
    assert made == output
    assert all(edit.begin < edit.end for edit in found) or not source
    assert all(one.end <= two.begin for one, two in pairwise(found))


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("gec-en", ("en",)),
        ("gec-en-medium", ("en",)),
        ("my-gec-en", ("en",)),
        ("gec", ()),
    ],
)
def test_a_name_tells_what_language_is_corrected(
    corrector: Model, name: str, languages: tuple[str, ...]
) -> None:
    assert Service({name: corrector}).models[name].languages == languages


def test_a_translator_is_found_by_its_languages(corrector: Model) -> None:
    """The shipped correction model, without its guard, stands for a translator."""
    model = replace(corrector, checkpoint=replace(corrector.checkpoint, guard=None), min_edit_confidence=None)
    with serving(Service({"en-de": model, "gec-en": corrector})) as client:
        body = {"q": "She go home.\nI has a dog.", "source": "en", "target": "de", "format": "text"}
        wanted = "\n".join(each.text for each in model.decode(body["q"].split("\n")))
        for answer in (client.post("/translate", json=body), client.post("/translate", data=body)):
            assert answer.json() == {"translatedText": wanted}
        several = client.post("/translate", json={**body, "q": ["She go home.", "I has a dog."]}).json()
        assert several["translatedText"] == wanted.split("\n")
        found = client.post(
            "/translate", json={**body, "source": "auto", "q": "She go.", "alternatives": 2}
        ).json()
        best = model.decode("She go.", beam_size=5, nbest=3)
        assert [found["translatedText"], *found["alternatives"]] == [
            best.text,
            *(e.text for e in best.alternatives),
        ]
        assert found["detectedLanguage"]["language"] == "en"
        assert client.get("/languages").json() == [{"code": "en", "name": "en", "targets": ["de"]}]
        for wrong in ({"target": "fr"}, {"format": "html"}, {"q": 3}, {"source": None}):
            answer = client.post("/translate", json={**body, **wrong})
            assert answer.status_code == 400
            assert isinstance(answer.json()["error"], str)


def test_transcriptions_are_the_models_own(client: Any, recognizer: Model) -> None:
    rate = recognizer.sound.rate if hasattr(recognizer.sound, "rate") else 8000
    loud = noise(2 * rate, seed=3, loudness=0.5) * np.repeat([1.0, 0.001, 1.0, 0.001], rate // 2)
    sound = wav(loud.astype(np.float32), rate)
    wanted = recognizer.decode(sound)
    asked = {"model": "asr-digits", "language": "en"}
    file = {"file": ("a.wav", sound, "audio/wav")}

    def ask(form: str) -> Any:
        return client.post("/v1/audio/transcriptions", data={**asked, "response_format": form}, files=file)

    assert ask("json").json() == {"text": wanted.text}
    assert ask("text").text == wanted.text + "\n"
    verbose = ask("verbose_json").json()
    assert wanted.seconds is not None
    assert (verbose["text"], verbose["duration"]) == (wanted.text, round(wanted.seconds, 3))
    assert ask("vtt").text.startswith("WEBVTT")
    assert ask("pdf").status_code == 422
    assert client.get("/v1/models").json()["data"][1]["id"] == "asr-digits"
    answer = client.post("/v1/audio/translations", data=asked, files=file)
    assert answer.status_code == 400
    assert "does not translate" in answer.json()["error"]["message"]


# Bounds.


def test_what_is_too_much_is_refused(client: Any) -> None:
    assert client.post("/v1/decode", json={"lines": ["a"] * 41}).status_code == 413
    assert client.post("/v1/decode", json={"lines": ["a" * 300_000]}).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 10_000

    assert client.post("/v1/decode", content=pieces()).status_code == 413  # of no length that was told


def test_a_full_queue_and_a_deadline(corrector: Model) -> None:
    long = " ".join(["I has a dog and he like me."] * 10)
    with serving(Service({"gec-en": corrector}, Limits(queue=3, seconds=0.05))) as client:
        answer = client.post("/v1/decode", json={"lines": [long] * 4})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        answer = client.post("/v1/decode", json={"lines": [long] * 3})
        assert answer.status_code == 504
        assert settled(client)  # its rows are given up


def test_a_client_that_goes_away_leaves_nothing_behind(client: Any) -> None:
    long = " ".join(["I has a dog and he like me."] * 12)
    body = json.dumps({"lines": [long] * 20, "stream": True}).encode()
    for _ in range(5):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as gone:
            gone.sendall(HEAD % len(body) + body)
            gone.recv(10)
    begun = time.monotonic()
    assert settled(client)
    assert time.monotonic() - begun < 5


def test_a_body_that_does_not_come(corrector: Model) -> None:
    with (
        serving(Service({"gec-en": corrector}, Limits(read_seconds=0.2))) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as slow,
    ):
        slow.sendall(HEAD % 9 + b"{")
        assert b" 408 " in slow.recv(100)


@pytest.mark.parametrize("begun", [b"", b"GET /v1/models HTTP/1.1\r\nHost: "])
def test_headers_that_do_not_come(corrector: Model, begun: bytes) -> None:
    """Neither of the first request of a connection nor of the next one; what comes in time is answered."""
    whole = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        serving(Service({"gec-en": corrector}, Limits(read_seconds=0.3))) as client,
        socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as first,
        socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as second,
    ):
        first.sendall(begun)
        for piece in (whole[:20], whole[20:], whole[:9], whole[9:]):
            second.sendall(piece)
            time.sleep(0.1)
        second.sendall(b"GET / ")
        assert second.recv(9999).count(b"HTTP/1.1 200") == 2
        for each in (first, second):
            while each.recv(9999):
                pass


def test_keys(corrector: Model) -> None:
    with serving(Service({"gec-en": corrector}, keys=["first", "second"])) as client:
        body = {"lines": ["She go."]}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"X-API-Key": "é"},
            {"Authorization": "first"},
        ):
            raw = {key: value.encode() for key, value in headers.items()}
            assert client.post("/v1/decode", json=body, headers=raw).status_code == 401
            assert client.get("/v1/models", headers=raw).status_code == 401
            assert client.get("/metrics", headers=raw).status_code == 401
        for headers in ({"Authorization": "Bearer second"}, {"X-API-Key": "first"}):
            assert client.post("/v1/decode", json=body, headers=headers).status_code == 200
        check = {"language": "en", "text": "She go."}
        assert client.post("/v2/check", data=check).status_code == 401
        assert client.post("/v2/check", data={**check, "username": "u", "apiKey": "first"}).status_code == 200
        body = {"q": "a", "source": "en", "target": "de", "api_key": "no"}
        assert client.post("/translate", json=body).status_code == 401
        # As LibreTranslate's and LanguageTool's own servers tell their languages to everybody.
        assert client.get("/languages").status_code == client.get("/v2/languages").status_code == 200
        assert client.get("/health/ready").status_code == 200


def test_pages_of_other_origins_are_refused_unless_named(corrector: Model) -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    for origins, allowed in (((), None), (("https://a.example",), "https://a.example")):
        with serving(Service({"gec-en": corrector}), origins=origins) as client:
            answer = client.options("/v1/decode", headers=asks)
            assert answer.headers.get("access-control-allow-origin") == allowed


# Hostile requests.

BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"lines": "a"}',
    b'{"lines": [1]}',
    b'{"lines": ["a"], "more": 1}',
    b'{"lines": ["\\ud800"]}',
    b'{"lines": ["a\\u0000b"]}',
    b'{"lines": ["a"], "options": {"beam_size": NaN}}',
    b'{"lines": ["a"], "options": {"beam_size": 1e999}}',
    b'{"lines": ["a"], "options": {"no_such": 1}}',
    b'{"lines": ["a"], "options": {"max_len": -1}}',
    b'{"lines": ["a"], "options": {"lm": "/etc/passwd"}}',
    b'{"lines": ["a"], "options": {"shortlist": "/etc/passwd"}}',
    b'{"lines": ["a"], "options": {"drafter": "gec-en"}}',
    b'{"lines": ["a"], "strategy": "speculative"}',
    b'{"lines": ["a"], "strategy": "../greedy"}',
    b'{"lines": ["a"], "strategy": "ctc-greedy"}',
    b'{"lines": ["a"], "model": "/etc"}',
    b'{"lines": ["a"], "model": "asr-digits"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:40].decode("latin-1"))
def test_bad_bodies_are_named(client: Any, body: bytes) -> None:
    answer = client.post("/v1/decode", content=body, headers={"Content-Type": "application/json"})
    if answer.status_code == 200:  # the line alone has failed
        assert answer.json()["outputs"][0]["error"]["code"].startswith("E2")
        return
    assert 400 <= answer.status_code < 500
    message = answer.json()["error"]["message"]
    assert message
    assert "Traceback" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_bad_sounds_are_named(client: Any, path: str) -> None:
    whole = wav(noise(4000), 8000)
    for sound in (b"", b"RIFF", b"x" * 1000, whole[:50], b"ID3" + bytes(500), b"/etc/passwd"):
        answer = client.post(path, data={"model": "asr-digits"}, files={"file": ("../../x", sound)})
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for data, files in (
        ({}, {"file": ("a", whole)}),
        ({"model": "asr-digits"}, None),
        ({"model": "x"}, {"file": ("a", whole)}),
    ):
        assert 400 <= client.post(path, data=data, files=files).status_code < 500


# Starlette leaves the file of a part that does not end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_form_that_does_not_end_is_refused(client: Any) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
    for body in (head, b"", b"--x", b"--y--"):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = client.post("/v1/audio/transcriptions", content=body, headers=headers)
        assert 400 <= answer.status_code < 500


def test_figures_count_what_was_done(corrector: Model) -> None:
    with serving(Service({"gec-en": corrector})) as client:
        client.post("/v1/decode", json={"lines": ["She go home.", "I has."], "strategy": "greedy"})
        client.get("/nowhere")
        assert settled(client)
        text = client.get("/metrics").text
    wanted = corrector.decode(["She go home.", "I has."], "greedy")
    assert f'nartk_tokens_total{{model="gec-en"}} {sum(len(each.tokens) for each in wanted)}.0' in text
    assert 'nartk_requests_total{path="/v1/decode",status="200"} 1.0' in text
    assert 'nartk_requests_total{path="unknown",status="404"} 1.0' in text


# The command.


def test_the_command_serves_and_ends_on_sigterm() -> None:
    with serving_command() as (client, process):
        answer = client.post("/v1/decode", json={"lines": ["She go home."]})
        assert answer.json()["outputs"][0]["text"] == "She went home."
    assert process.returncode in (0, -15, 143)


def test_wrong_arguments_are_named(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("\n")
    for arguments, named in (
        (("=gec-en",), "gives no name"),
        (("gec-en", "gec-en"), "gives no name"),
        (("--port", "-1"), "--port is -1"),
        (("--api-key-file", str(empty)), "has no key"),
        (("--api-key-file", str(tmp_path / "none")), "cannot be read"),
        (("nothing-there",), "nothing-there"),
    ):
        code = main([*arguments])
        assert code != 0
        assert named in capfd.readouterr().err
