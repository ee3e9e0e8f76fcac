"""Runs the server until it is told to end."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

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
