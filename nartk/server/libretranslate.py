"""LibreTranslate's dialect: ``/translate`` and ``/languages`` of its API.

A model that is served as ``en-pt`` translates English into Portuguese. Languages are not detected: ``auto``
stands for the source of the only pair that has the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, ValidationError

from nartk.errors import NartkError
from nartk.server.service import RefusedError, Served, Service, keys_of

PATHS = ("/translate", "/languages", "/detect")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")

router = APIRouter(tags=["LibreTranslate"])


class Translated(BaseModel):
    """A request; fields that the dialect has besides are passed over."""

    q: str | list[str]
    source: str
    target: str
    format: str = "text"
    alternatives: Annotated[int, Field(ge=0, le=10)] = 0
    api_key: str | None = None


_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            form: {"schema": Translated.model_json_schema()} for form in ("application/json", *_FORMS)
        },
    }
}


@router.post("/translate", openapi_extra=_BODY)
async def translate(request: Request) -> dict[str, Any]:
    """Translates a text, or several."""
    asked = await _asked(request)
    service: Service = request.app.state.service
    service.authorise([*keys_of(request.headers), asked.api_key])
    if asked.format != "text":
        raise RefusedError(400, f"the format {asked.format!r} is not supported; there is text")
    served = _translator(service, asked.source, asked.target)
    is_one = isinstance(asked.q, str)
    lines = [text.split("\n") for text in ([asked.q] if isinstance(asked.q, str) else asked.q)]
    more = {"beam_size": max(5, asked.alternatives + 1), "nbest": asked.alternatives + 1}
    found = await service.decode(
        served, [line for each in lines for line in each], None, more if asked.alternatives else {}
    )
    outputs = iter(found)
    texts, others = [], []
    for each in lines:
        decoded = [next(outputs) for _ in each]
        for one in decoded:
            if isinstance(one, NartkError):
                raise one
        hypotheses = [one for one in decoded if not isinstance(one, NartkError)]
        texts.append("\n".join(one.text for one in hypotheses))
        others.append([one.text for one in hypotheses[0].alternatives] if len(hypotheses) == 1 else [])
    answer: dict[str, Any] = {"translatedText": texts[0] if is_one else texts}
    if asked.alternatives:
        answer["alternatives"] = others[0] if is_one else others
    if asked.source == "auto":
        detected = {"language": served.languages[0], "confidence": 0}
        answer["detectedLanguage"] = detected if is_one else [detected] * len(texts)
    return answer


@router.get("/languages")
def languages(request: Request) -> list[dict[str, Any]]:
    """The languages that are translated, each with those into which."""
    found: dict[str, list[str]] = {}
    for served in request.app.state.service.models.values():
        if served.does == "translate":
            source, target = served.languages
            found.setdefault(source, []).append(target)
    return [{"code": code, "name": code, "targets": targets} for code, targets in found.items()]


@router.post("/detect")
def detect() -> list[dict[str, Any]]:
    """Refuses: no model here tells the language of a text."""
    raise RefusedError(400, "languages are not detected here")


def refusal(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """The answer to a request that failed."""
    return JSONResponse({"error": message}, status, headers=dict(headers))


async def _asked(request: Request) -> Translated:
    """The request, of JSON or a form."""
    type_ = request.headers.get("content-type", "").partition(";")[0].strip()
    try:
        if type_ in _FORMS:
            async with request.form(max_files=0) as form:
                return Translated.model_validate({**form})
        return Translated.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        raise RefusedError(400, f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from None


def _translator(service: Service, source: str, target: str) -> Served:
    pairs = {each.languages: each for each in service.models.values() if each.does == "translate"}
    if source == "auto":
        fits = [each for pair, each in pairs.items() if pair[1] == target]
        if len(fits) == 1:
            return fits[0]
    elif (source, target) in pairs:
        return pairs[source, target]
    known = ", ".join("-".join(pair) for pair in pairs) or "none"
    raise RefusedError(400, f"{source} to {target} is not supported; there are {known}")
