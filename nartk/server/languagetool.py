"""LanguageTool's dialect, which editors and browsers speak: ``/v2/check`` of its public API.

A correction is given as matches: where the text is to be changed, in units of UTF-16, and a replacement. All
are of one rule. A model that is served as ``gec-en`` corrects English, of any country. Options that name
LanguageTool's own rules and dictionaries are passed over, and languages are not detected: ``auto`` stands for
that of the first model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel

from nartk.errors import NartkError
from nartk.server.edits import Edit, edits_between, in_utf16
from nartk.server.service import RefusedError, Served, Service, keys_of
from nartk.version import __version__

PATHS = ("/v2/check", "/v2/languages")
_AROUND = 40  # characters of a match's context before and behind it
_RULE = {
    "id": "NARTK_CORRECTION",
    "description": "Correction by a model",
    "issueType": "grammar",
    "category": {"id": "GRAMMAR", "name": "Grammar"},
}

router = APIRouter(tags=["LanguageTool"])


class Checked(BaseModel):
    """The fields of a form that count; others are passed over."""

    language: str
    text: str | None = None
    data: str | None = None
    username: str | None = None
    apiKey: str | None = None  # the dialect's


@router.get("/v2/languages")
def languages(request: Request) -> list[dict[str, str]]:
    """The languages that are corrected."""
    models = request.app.state.service.models.values()
    codes = dict.fromkeys(code for served in models if served.corrects for code in served.languages)
    return [{"name": code, "code": code, "longCode": code} for code in codes]


@router.post("/v2/check")
async def check(asked: Annotated[Checked, Form()], request: Request) -> dict[str, Any]:
    """Corrects a text."""
    service: Service = request.app.state.service
    service.authorise([*keys_of(request.headers), asked.apiKey])
    served = _corrector(service, asked.language)
    text = _text_of(asked)
    lines = re.split(r"(\r\n|\n|\r)", text)  # with the breaks between
    found = await service.decode(served, lines[::2])
    edits, begin = [], 0
    for i, line in enumerate(lines):
        if i % 2 == 0 and not isinstance(output := found[i // 2], NartkError):
            edits += [
                Edit(begin + each.begin, begin + each.end, each.text)
                for each in edits_between(line, output.text)
            ]
        begin += len(line)
    failed = any(isinstance(each, NartkError) for each in found)
    code = served.languages[0] if asked.language == "auto" else asked.language
    detected = {"name": code, "code": code, "confidence": 1.0, "source": "given"}
    return {
        "software": {
            "name": "nartk",
            "version": __version__,
            "buildDate": "",
            "apiVersion": 1,
            "premium": False,
            "premiumHint": "",
            "status": "",
        },
        "warnings": {"incompleteResults": failed},
        "language": {"name": code, "code": code, "detectedLanguage": detected},
        "matches": [*_matches(text, edits)],
    }


def _corrector(service: Service, language: str) -> Served:
    for served in service.models.values():
        if served.corrects and served.languages:
            code = served.languages[0]
            if language in ("auto", code) or language.startswith(f"{code}-"):
                return served
    raise RefusedError(400, f"Error: '{language}' is not a language code known to LanguageTool.")


def refusal(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """The answer to a request that failed: LanguageTool's is plain text."""
    return PlainTextResponse(message, status, headers=dict(headers))


def _text_of(asked: Checked) -> str:
    """The text, or that of an annotated one, where markup is as long as it is and says nothing."""
    if (asked.text is None) == (asked.data is None):
        raise RefusedError(400, "Error: give 'text' or 'data'")
    if asked.text is not None:
        return asked.text
    try:
        parts = json.loads(asked.data or "")["annotation"]
        return "".join(each["text"] if "text" in each else "\n" * len(each["markup"]) for each in parts)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RefusedError(400, "Error: 'data' is no annotated text") from error


def _matches(text: str, edits: list[Edit]) -> list[dict[str, Any]]:
    found = []
    for edit, (offset, length) in zip(edits, in_utf16(text, edits), strict=True):
        first, last = max(0, edit.begin - _AROUND), min(len(text), edit.end + _AROUND)
        around = text[first:last].replace("\n", " ")
        within = Edit(edit.begin - first, edit.end - first, "")
        ((at, _),) = in_utf16(around, [within])
        found.append(
            {
                "message": f"Perhaps: {edit.text.strip() or 'leave it out'}",
                "shortMessage": "",
                "replacements": [{"value": edit.text}],
                "offset": offset,
                "length": length,
                "context": {"text": around, "offset": at, "length": length},
                "sentence": _sentence(text, edit),
                "type": {"typeName": "Other"},
                "rule": _RULE,
                "ignoreForIncompleteSentence": False,
                "contextForSureMatch": 0,
            }
        )
    return found


def _sentence(text: str, edit: Edit) -> str:
    """The sentence around an edit, by its full stops."""
    begin = max((each.end() for each in re.finditer(r"[.!?]\s+|\n", text[: edit.begin])), default=0)
    rest = re.search(r"[.!?](?=\s|\Z)|\n", text[edit.end :])
    return text[begin : len(text) if rest is None else edit.end + rest.end()].strip()
