"""The application: dialects, keys, limits, errors, health and figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nartk.errors import NartkError
from nartk.server import languagetool, libretranslate, native, openai, page
from nartk.server.metrics import CONTENT_TYPE, Metrics
from nartk.server.service import RefusedError, Service, ending, keys_of
from nartk.version import __version__

DIALECTS = (native, languagetool, libretranslate, openai)
_OPEN = ("/health", "/openapi.json", "/docs", "/redoc")  # without a key


def make_app(service: Service, *, origins: Iterable[str] = ()) -> FastAPI:
    """The application of a service, whose sessions it closes at its end.

    Args:
        origins: Origins of pages that may send requests (CORS).
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title="nartk", version=__version__, lifespan=lifespan)
    metrics = Metrics(service)
    service.on_decoded = metrics.decoded
    app.state.service = service
    for dialect in DIALECTS:
        app.include_router(dialect.router)
    app.include_router(page.router)
    _add_health(app, service, metrics)
    for error in (NartkError, RefusedError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _refused)
    app.add_middleware(Watched, service=service, metrics=metrics)
    if origins := [*origins]:
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return app


def _add_health(app: FastAPI, service: Service, metrics: Metrics) -> None:
    @app.get("/health", tags=["health"])
    @app.get("/health/live", tags=["health"])
    def live() -> dict[str, str]:
        """Answers as long as the server lives."""
        return {"status": "ok"}

    @app.get("/health/ready", tags=["health"])
    def ready() -> dict[str, str]:
        """Answers with 503 once the server is about to end."""
        if service.is_closing:
            raise ending()
        return {"status": "ok"}

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    def figures() -> Response:
        """Figures in Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to a request that failed, in its dialect."""
    status, message, headers = described(error)
    message = message.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair that it quotes
    for dialect in DIALECTS:
        if request.url.path in dialect.PATHS:
            answer: Response = dialect.refusal(status, message, headers)
            return answer
    return native.refusal(status, message, headers)


def described(error: Exception) -> tuple[int, str, Mapping[str, str]]:
    """Status, message and headers that tell of an error."""
    if isinstance(error, RefusedError):
        return error.status, str(error), error.headers
    if isinstance(error, NartkError):
        return 400, str(error), {}
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"] if each != "body")
        return 422, f"{where or 'the body'}: {first['msg']}", {}
    assert isinstance(error, HTTPException)
    return error.status_code, str(error.detail), error.headers or {}


class Watched:
    """Middleware that looks at each request: key, size, slow bodies, and what it took.

    A request whose client goes away is given up.
    """

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics) -> None:
        self.app, self.service, self.metrics = app, service, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 499  # the client went away

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._require_key(scope)
            body = Body(receive, self.service.limits.body, self.service.limits.read_seconds)
            body.require_length(scope)
            await _unless_gone(self.app(scope, body.receive, watched_send), body)
        except RefusedError as error:  # before the application has it
            answer = await _refused(Request(scope), error)
            await answer(scope, receive, watched_send)
        except asyncio.CancelledError:  # the server has waited long enough for the client
            if status == 499:
                answer = await _refused(Request(scope), ending())
                await answer(scope, receive, watched_send)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - begun)

    def _require_key(self, scope: Scope) -> None:
        """Refuses a request without a key; dialects whose keys stand in bodies look for themselves."""
        path = scope["path"]
        is_open = path.startswith(_OPEN) or page.is_of_page(path)
        if is_open or path in (*languagetool.PATHS, *libretranslate.PATHS):
            return
        self.service.authorise(keys_of(Request(scope).headers))


class Body:
    """A body that comes piece by piece, within bounds.

    Attributes:
        is_whole: Set once all of it has come.
        is_gone: Set once the client has gone away.
    """

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds, self._count = receive, most, seconds, 0
        self.is_whole, self.is_gone = asyncio.Event(), asyncio.Event()

    def require_length(self, scope: Scope) -> None:
        """Refuses a body whose headers say that it is too large."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most:
            raise RefusedError(413, f"a body of {int(length)} bytes, more than {self._most}")

    async def receive(self) -> Message:
        """Receives for the application."""
        if self.is_whole.is_set():  # what comes then is that the client goes, which `_unless_gone` waits for
            await self.is_gone.wait()
            return {"type": "http.disconnect"}
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"nothing of the body has come for {self._seconds:g} s") from None
        if message["type"] == "http.disconnect":
            self.is_gone.set()
            return message
        self._count += len(message.get("body", b""))
        if self._count > self._most:
            raise HTTPException(413, f"a body of more than {self._most} bytes")
        if not message.get("more_body", False):
            self.is_whole.set()
        return message

    async def gone(self) -> None:
        """Waits until the client has gone away."""
        await self.is_whole.wait()
        while not self.is_gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self.is_gone.set()


async def _unless_gone(work: Awaitable[None], body: Body) -> None:
    """Does work in the task of the caller unless the client goes away, which cancels it."""
    doing, is_done = asyncio.current_task(), False
    assert doing is not None

    def leave(watched: asyncio.Future[None]) -> None:
        if not (is_done or watched.cancelled()):
            doing.cancel()

    watching = asyncio.ensure_future(body.gone())
    watching.add_done_callback(leave)
    try:
        await work
    except asyncio.CancelledError:
        if not body.is_gone.is_set():
            raise
        doing.uncancel()
    finally:
        is_done = True
        watching.cancel()
