"""nartk's own dialect: all options of a strategy, and outputs as they grow."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from nartk.errors import NartkError
from nartk.protocols.hypothesis import Hypothesis, Result
from nartk.registry import options_of, strategies, strategy_class
from nartk.server.edits import edits_between, in_utf16
from nartk.server.service import RefusedError, Served, Service, Submitted, outcome
from nartk.serving.session import Ticket
from nartk.tracing import describe_graph, finite, provenance
from nartk.tracing.speech import align, for_page, require_short

PATHS = ("/v1/decode", "/v1/strategies")
TEXT = ("correct", "translate", "generate")
_EVERY = 0.02  # seconds between two looks at an output that grows

router = APIRouter(tags=["nartk"])
Option = bool | int | float | str


class DecodeRequest(BaseModel, extra="forbid"):
    """Lines to decode, or recordings."""

    lines: Annotated[list[str], Field(examples=[["She go home."]])] = []
    sounds: Annotated[list[str], Field(description="sound files in base64, in place of lines")] = []
    model: Annotated[str | None, Field(description="a name of /v1/models; by default the first of text")] = (
        None
    )
    strategy: Annotated[str | None, Field(description="a name of /v1/strategies", examples=["iad"])] = None
    options: Annotated[dict[str, Option], Field(description="options of the strategy")] = {}
    prefixes: Annotated[list[str], Field(description="beginnings of outputs, one for each line")] = []
    trace: Annotated[bool, Field(description="tell where each token comes from")] = False
    edits: Annotated[bool, Field(description="tell how each line becomes its output")] = False
    stream: Annotated[bool, Field(description="server-sent events: outputs as they grow")] = False


@router.post("/v1/decode")
async def decode(asked: DecodeRequest, request: Request) -> Response:
    """Decodes lines; with `stream` events ``partial``, ``output`` for each line that has ended, and ``end``.

    A request that is not done by its deadline ends with ``error`` in place of ``end``.
    """
    service: Service = request.app.state.service
    if bool(asked.lines) == bool(asked.sounds):
        raise RefusedError(400, "give 'lines' or 'sounds', one of them at least, and not both")
    served = service.named(asked.model, ("transcribe",) if asked.sounds else TEXT)
    sources = await asyncio.to_thread(_sounds, service, asked.sounds) if asked.sounds else asked.lines
    if asked.prefixes and len(asked.prefixes) != len(sources):
        raise RefusedError(400, f"{len(asked.prefixes)} prefixes for {len(sources)} lines")
    given = service.submitted(
        served, sources, asked.strategy, asked.options, prefixes=asked.prefixes, trace=asked.trace
    )
    if asked.stream:
        events = _events(service, served, asked, given)
        first = await anext(events)  # refused before the answer begins
        return StreamingResponse(_behind(first, events), media_type="text/event-stream")
    begun = time.perf_counter()
    tickets = await service.ended(given)
    seconds = time.perf_counter() - begun
    outputs = [await output_fields(served, each, asked) for each in tickets]
    return JSONResponse({"model": served.name, "seconds": seconds, "outputs": outputs})


def _sounds(service: Service, given: Sequence[str]) -> list[bytes]:
    """The sound files of a request."""
    found = []
    for index, text in enumerate(given):
        try:
            sound = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RefusedError(400, f"sounds[{index}] is no base64: {error}") from error
        if not sound:
            raise RefusedError(400, f"sounds[{index}] is empty")
        service.require_short(sound)
        found.append(sound)
    return found


@router.get("/v1/strategies")
def listed() -> dict[str, Any]:
    """The strategies, with their promises and options."""
    return {
        name: {
            "promise": strategy_class(name).promise.guarantee.value,  # type: ignore[attr-defined]
            "options": {
                option: {"default": item.default}
                | {key: item.metadata[key] for key in ("help", "choices", "low", "high")}
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


async def output_fields(served: Served, ticket: Ticket, asked: DecodeRequest) -> dict[str, Any]:
    """An output, or the reason why there is none, in JSON."""
    found = outcome(ticket)
    if isinstance(found, NartkError):
        return {"text": "", "error": _error(found)}
    result = ticket.found
    assert result is not None
    fields: dict[str, Any] = {"text": found.text, "score": finite(found.score), "tokens": [*found.pieces]}
    fields |= {key: getattr(result, key) for key in ("passes", "drafted", "accepted", "seconds")}
    if asked.edits and isinstance(source := ticket.asked.source, str):
        edits = edits_between(source, found.text)
        fields["edits"] = [
            {"offset": offset, "length": length, "text": each.text}
            for each, (offset, length) in zip(edits, in_utf16(source, edits), strict=True)
        ]
    if asked.trace:
        fields |= await _traced(served, ticket, found, result)
    if found.alternatives:
        fields["alternatives"] = [
            {"text": each.text, "score": finite(each.score)} for each in found.alternatives
        ]
    return fields


async def _traced(served: Served, ticket: Ticket, found: Hypothesis, result: Result) -> dict[str, Any]:
    """Fields of an output that tell how it came about: as in the lines of a trace (`nartk.tracing`)."""
    columns = provenance(found)
    fields: dict[str, Any] = {
        "trace": [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    }
    lprobs = found.positional_scores
    fields["lprob"] = None if lprobs is None else [*map(finite, lprobs)]
    if result.graph is not None:
        fields["graph"] = describe_graph(result.graph, served.model.checkpoint.target_vocab.to_words)
    if not isinstance(ticket.asked.source, str):
        fields |= await asyncio.to_thread(_aligned, served, ticket, found, fields.get("graph"))
    return fields


def _aligned(
    served: Served, ticket: Ticket, found: Hypothesis, graph: dict[str, Any] | None
) -> dict[str, Any]:
    """The recording with what the model made of it, as the page of a trace draws it; or why there is none."""
    source, model = ticket.asked.source, served.model
    try:
        require_short(found.seconds or 0.0)
        query = lambda: {"speech": for_page(align(model, source, found.tokens, graph))}  # noqa: E731
        return served.session.query(query, {})
    except NartkError as error:
        return {"unaligned": _error(error)}


def _error(error: NartkError) -> dict[str, str]:
    return {"code": error.code, "message": str(error)}


async def _behind(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events, of which ``error`` is the last one where the answer can no longer be refused as a whole."""
    yield first
    try:
        async for each in rest:
            yield each
    except RefusedError as error:
        yield _event("error", {"message": str(error), "code": error.status})


async def _events(
    service: Service, served: Served, asked: DecodeRequest, given: AbstractAsyncContextManager[Submitted]
) -> AsyncIterator[str]:
    """Events of outputs as they grow, the first of which says which model decodes."""
    # Not by `asyncio.timeout`, which ends the task that it begins in: an answer is sent by another one.
    until = time.monotonic() + service.limits.seconds
    async with given as submitted:
        begun, seconds = time.perf_counter(), 0.0  # without the time to make a strategy
        waiting = dict(enumerate(submitted.tickets))
        yield _event("begin", {"model": served.name, "lines": len(waiting)})
        lengths = [0] * len(waiting)
        while waiting:
            for index, ticket in [*waiting.items()]:
                if ticket.done():
                    del waiting[index]
                    seconds = time.perf_counter() - begun
                    yield _event("output", {"line": index, **await output_fields(served, ticket, asked)})
                elif fields := await _grown(ticket, lengths, index):
                    yield _event("partial", fields)
            if waiting:
                if time.monotonic() > until:
                    raise service.too_late()
                with suppress(TimeoutError):
                    await asyncio.wait_for(submitted.changed.wait(), _EVERY)
                submitted.changed.clear()
    yield _event("end", {"seconds": seconds})


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
