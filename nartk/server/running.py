"""Runs the server until it is told to end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from nartk.server.service import Service

_FIRST = 0.2  # seconds in which clients that send one request after another learn that it ends
_LAST = 2  # seconds for the last answers to be written


class Server(uvicorn.Server):
    """Ends within `drain` seconds, and what is not done by then is refused with 503.

    Args:
        drain: Longest time for requests that have come, s.
    """

    def __init__(self, config: uvicorn.Config, service: Service, drain: float) -> None:
        config.timeout_graceful_shutdown = int(drain) + _LAST
        config.http = _bounded(service.limits.read_seconds)
        super().__init__(config)
        self._service, self._drain = service, drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses further requests, and ends those that have come."""
        self._service.is_closing = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._drain, lambda: loop.run_in_executor(None, self._service.close))
        await asyncio.sleep(
            _FIRST
        )  # or a request may come on a connection that is just closed for being idle
        await super().shutdown(sockets)


def _bounded(seconds: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol with connections that are closed if a request's headers take longer than `seconds`.

    Uvicorn bounds only the time between two requests, so that clients which send nothing, or one byte now and
    then, would keep their connections for ever.
    """

    class Bounded(AutoHTTPProtocol):  # type: ignore[valid-type, misc]  # one of two, by what is installed
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:  # the headers have come
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(seconds, self.transport.close)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Bounded
