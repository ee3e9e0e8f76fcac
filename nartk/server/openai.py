"""OpenAI's dialect for speech: ``/v1/audio/transcriptions``, ``/v1/audio/translations`` and ``/v1/models``.

Settings that a model has not, such as a prompt of one that follows none, are passed over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from nartk.errors import NartkError, UsageError
from nartk.protocols.hypothesis import Hypothesis
from nartk.registry import options_of
from nartk.server.service import RefusedError, Service
from nartk.serving.transcripts import transcript

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/models")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

router = APIRouter(tags=["OpenAI"])
Form_ = Literal["json", "text", "srt", "verbose_json", "vtt"]


@router.get("/v1/models")
def models(request: Request) -> dict[str, Any]:
    """The models, each with its purpose, the strategies that decode with it, and its greedy search."""
    data = [
        {
            "id": name,
            "object": "model",
            "created": served.created,
            "owned_by": "nartk",
            "does": served.does,
            "strategy": served.strategy,
            "strategies": served.strategies,
            "reference": served.reference,
        }
        for name, served in request.app.state.service.models.items()
    ]
    return {"object": "list", "data": data}


@router.post("/v1/audio/transcriptions")
async def transcribe(
    request: Request,
    file: Annotated[UploadFile, File()],
    model: Annotated[str, Form()],
    language: Annotated[str | None, Form()] = None,
    prompt: Annotated[str | None, Form()] = None,
    response_format: Annotated[Form_, Form()] = "json",
    temperature: Annotated[float, Form(ge=0, le=1)] = 0.0,
    timestamp_granularities: Annotated[
        list[Literal["segment", "word"]] | None, Form(alias="timestamp_granularities[]")
    ] = None,
    stream: Annotated[bool, Form()] = False,
) -> Response:
    """The text of a recording."""
    asked = {"language": language, "initial_prompt": prompt, "temperatures": temperature or None}
    words = "word" in (timestamp_granularities or ())
    found = await _heard(request, file, model, asked, "transcribe", words=words)
    if stream and response_format in ("json", "text"):
        return StreamingResponse(_events(found), media_type="text/event-stream")
    return _answer(found, response_format, "transcribe")


@router.post("/v1/audio/translations")
async def translate(
    request: Request,
    file: Annotated[UploadFile, File()],
    model: Annotated[str, Form()],
    prompt: Annotated[str | None, Form()] = None,
    response_format: Annotated[Form_, Form()] = "json",
    temperature: Annotated[float, Form(ge=0, le=1)] = 0.0,
) -> Response:
    """A recording in English."""
    asked = {"initial_prompt": prompt, "temperatures": temperature or None, "task": "translate"}
    found = await _heard(request, file, model, asked, "translate")
    return _answer(found, response_format, "translate")


def refusal(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """The answer to a request that failed."""
    type_ = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"error": {"message": message, "type": type_, "param": None, "code": None}}
    return JSONResponse(body, status, headers=dict(headers))


async def _heard(
    request: Request,
    file: UploadFile,
    model: str,
    asked: Mapping[str, Any],
    task: str,
    *,
    words: bool = False,
) -> Hypothesis:
    service: Service = request.app.state.service
    served = service.named(model, ("transcribe",))
    sound = await file.read()
    if not sound:
        raise RefusedError(400, "the file is empty")
    await asyncio.to_thread(service.require_short, sound)
    known = options_of(served.strategy)
    if task == "translate" and "task" not in known:
        raise RefusedError(400, f"the model {served.name!r} does not translate")
    flags = {"word_timestamps": words}
    options = {
        name: str(value) if name == "temperatures" else value
        for name, value in {**asked, **flags}.items()
        if name in known and value not in (None, "", False)
    }
    (found,) = await service.decode(served, [sound], None, options)
    if isinstance(found, NartkError):
        raise found
    return found


def _answer(found: Hypothesis, form: str, task: str) -> Response:
    if form == "json":
        return JSONResponse({"text": found.text})
    if form == "text":
        return PlainTextResponse(found.text + "\n")
    try:
        text = transcript(found, {"verbose_json": "json"}.get(form, form), task=task)
    except UsageError as error:
        raise RefusedError(400, f"the model gives no times: {error.message}") from error
    return JSONResponse(json.loads(text)) if form == "verbose_json" else PlainTextResponse(text + "\n")


async def _events(found: Hypothesis) -> AsyncIterator[str]:
    """The text by its segments, as OpenAI's server sends it."""
    texts = [each.text for each in found.segments] or [found.text]
    for text in texts:
        yield _event({"type": "transcript.text.delta", "delta": text})
    yield _event({"type": "transcript.text.done", "text": found.text})


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
