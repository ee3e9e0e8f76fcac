"""nartk's own dialect: all options of a strategy, and outputs as they grow."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from nartk.errors import NartkError
from nartk.protocols.hypothesis import Hypothesis
from nartk.registry import options_of, strategies, strategy_class
from nartk.server.service import RefusedError, Served, Service, outcome
from nartk.serving.session import Ticket

PATHS = ("/v1/decode", "/v1/strategies")
TEXT = ("correct", "translate", "generate")
_EVERY = 0.02  # seconds between two looks at an output that grows

router = APIRouter(tags=["nartk"])
Option = bool | int | float | str


class DecodeRequest(BaseModel, extra="forbid"):
    """Lines to decode."""

    lines: Annotated[list[str], Field(min_length=1, examples=[["She go home."]])]
    model: Annotated[str | None, Field(description="a name of /v1/models; by default the first of text")] = (
        None
    )
    strategy: Annotated[str | None, Field(description="a name of /v1/strategies", examples=["iad"])] = None
    options: Annotated[dict[str, Option], Field(description="options of the strategy")] = {}
    prefixes: Annotated[list[str], Field(description="beginnings of outputs, one for each line")] = []
    trace: Annotated[bool, Field(description="tell where each token comes from")] = False
    stream: Annotated[bool, Field(description="server-sent events: outputs as they grow")] = False


@router.post("/v1/decode")
async def decode(asked: DecodeRequest, request: Request) -> Response:
    """Decodes lines; with `stream` events ``partial``, ``output`` for each line that has ended, and ``end``.

    A request that is not done by its deadline ends with ``error`` in place of ``end``.
    """
    service: Service = request.app.state.service
    served = service.named(asked.model, TEXT)
    if asked.prefixes and len(asked.prefixes) != len(asked.lines):
        raise RefusedError(400, f"{len(asked.prefixes)} prefixes for {len(asked.lines)} lines")
    if asked.stream:
        events = _events(service, served, asked)
        first = await anext(events)  # refused before the answer begins
        return StreamingResponse(_behind(first, events), media_type="text/event-stream")
    found = await service.decode(
        served, asked.lines, asked.strategy, asked.options, prefixes=asked.prefixes, trace=asked.trace
    )
    return JSONResponse({"model": served.name, "outputs": [output_fields(each) for each in found]})


@router.get("/v1/strategies")
def listed() -> dict[str, Any]:
    """The strategies, with their promises and options."""
    return {
        name: {
            "promise": strategy_class(name).promise.guarantee.value,  # type: ignore[attr-defined]
            "options": {
                option: {"default": item.default, "help": item.metadata["help"]}
                for option, item in options_of(name).items()
                if not item.metadata["model"] and not item.metadata["file"]
            },
        }
        for name in strategies()
    }


def refusal(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """The answer to a request that failed."""
    body = {"error": {"message": message, "code": status}}
    return JSONResponse(body, status, headers=dict(headers))


def output_fields(found: Hypothesis | NartkError) -> dict[str, Any]:
    """An output, or why there is none, in JSON."""
    if isinstance(found, NartkError):
        return {"text": "", "error": {"code": found.code, "message": str(found)}}
    fields: dict[str, Any] = {"text": found.text, "score": found.score, "tokens": [*found.pieces]}
    if found.trace is not None:
        fields["trace"] = [{"origin": each.origin, "pass": each.verifier_pass} for each in found.trace]
    if found.alternatives:
        fields["alternatives"] = [{"text": each.text, "score": each.score} for each in found.alternatives]
    return fields


async def _behind(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events, of which ``error`` is the last one where the answer can no longer be refused as a whole."""
    yield first
    try:
        async for each in rest:
            yield each
    except RefusedError as error:
        yield _event("error", {"message": str(error), "code": error.status})


async def _events(service: Service, served: Served, asked: DecodeRequest) -> AsyncIterator[str]:
    """Events of outputs as they grow, the first of which says which model decodes."""
    given = service.submitted(
        served, asked.lines, asked.strategy, asked.options, prefixes=asked.prefixes, trace=asked.trace
    )
    # Not by `asyncio.timeout`, which ends the task that it begins in: an answer is sent by another one.
    until = time.monotonic() + service.limits.seconds
    async with given as submitted:
        waiting = dict(enumerate(submitted.tickets))
        yield _event("begin", {"model": served.name, "lines": len(waiting)})
        lengths = [0] * len(waiting)
        while waiting:
            for index, ticket in [*waiting.items()]:
                if ticket.done():
                    del waiting[index]
                    yield _event("output", {"line": index, **output_fields(outcome(ticket))})
                elif fields := await _grown(ticket, lengths, index):
                    yield _event("partial", fields)
            if waiting:
                if time.monotonic() > until:
                    raise service.too_late()
                with suppress(TimeoutError):
                    await asyncio.wait_for(submitted.changed.wait(), _EVERY)
                submitted.changed.clear()
    yield _event("end", {})


async def _grown(ticket: Ticket, lengths: list[int], index: int) -> dict[str, Any]:
    """Gain of an output since it was last looked at; of several tokens of a pass all but one were drafted."""
    found = await asyncio.to_thread(ticket.partial)
    count = len(found.tokens)
    if ticket.done() or count <= lengths[index]:
        return {}
    added = [*found.pieces[lengths[index] :]]
    lengths[index] = count
    return {"line": index, "text": found.text, "added": added}


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
