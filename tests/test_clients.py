"""Clients that people have, unmodified, of their packages: LanguageTool's, LibreTranslate's and OpenAI's.

The oracle of what they give back is `Model.decode` without a server.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
from support.sounds import noise, wav

import nartk
from nartk.protocols.passes import FloatArray
from nartk.serving.model import Model

for needed in ("httpx", "uvicorn", "fastapi", "prometheus_client", "soundfile"):
    pytest.importorskip(needed)

from support.serving import serving  # noqa: E402  # which needs them

from nartk.server.service import Service  # noqa: E402

TEXT = "She go home. I has a dog 🙂 and he like me very much."
LINES = ("She go home.", "They is here.")


@pytest.fixture(scope="module")
def corrector() -> Model:
    return nartk.load("gec-en", threads=1)


@pytest.fixture(scope="module")
def translator(corrector: Model) -> Model:
    """The correction model, without its guard, in a translator's place."""
    return replace(corrector, checkpoint=replace(corrector.checkpoint, guard=None))


@pytest.fixture(scope="module")
def recognizer() -> Model:
    return nartk.load("asr-digits", threads=1)


@pytest.fixture(scope="module")
def sound() -> bytes:
    rate = 8000
    loud: FloatArray = noise(2 * rate, seed=3, loudness=0.5) * np.repeat([1.0, 0.001, 1.0, 0.001], rate // 2)
    return wav(loud.astype(np.float32), rate)


@pytest.fixture(scope="module")
def base(corrector: Model, translator: Model, recognizer: Model) -> Iterator[str]:
    models = {"gec-en": corrector, "en-de": translator, "asr-digits": recognizer}
    with serving(Service(models)) as client:
        yield str(client.base_url).rstrip("/")


def test_languagetools_client_corrects(base: str, corrector: Model) -> None:
    language_tool_python = pytest.importorskip("language_tool_python")
    with language_tool_python.LanguageTool("en-US", remote_server=base) as tool:
        matches = tool.check(TEXT)
        assert [TEXT[each.offset :][: each.error_length] for each in matches][:2] == ["go", "has"]
        assert tool.correct(TEXT) == corrector.decode(TEXT).text


def test_libretranslates_client_translates(base: str, translator: Model) -> None:
    libretranslatepy = pytest.importorskip("libretranslatepy")
    client = libretranslatepy.LibreTranslateAPI(f"{base}/")
    for line in LINES:
        assert client.translate(line, "en", "de") == translator.decode(line).text
    assert client.languages() == [{"code": "en", "name": "en", "targets": ["de"]}]
    with pytest.raises(HTTPError, match="400"):
        client.detect("She goes.")  # which no model does


def test_openais_client_transcribes(base: str, recognizer: Model, sound: bytes) -> None:
    openai = pytest.importorskip("openai")
    wanted = recognizer.decode(sound)

    def transcribed(**options: Any) -> Any:
        file = io.BytesIO(sound)
        file.name = "number.wav"
        return client.audio.transcriptions.create(model="asr-digits", file=file, **options)

    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        assert [each.id for each in client.models.list()] == ["gec-en", "en-de", "asr-digits"]
        assert transcribed().text == wanted.text
        assert transcribed(response_format="text").rstrip("\n") == wanted.text
        found = transcribed(response_format="verbose_json", timestamp_granularities=["word"])
        assert found.text == wanted.text
        assert [each.word.strip() for each in found.words] == [each.text.strip() for each in wanted.words]
        assert all(each.start <= each.end <= found.duration for each in found.words)
        assert "-->" in transcribed(response_format="srt")
        *_, last = transcribed(stream=True)
        assert (last.type, last.text) == ("transcript.text.done", wanted.text)
        with pytest.raises(openai.NotFoundError):
            client.audio.transcriptions.create(model="none", file=("a.wav", sound))
        with pytest.raises(openai.BadRequestError):
            client.audio.transcriptions.create(model="asr-digits", file=("a.wav", b"no sound"))
