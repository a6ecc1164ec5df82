"""uvicorn with graceful shutdown and a timeout for idle connections."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kinfolk.use.serve.app import App

GRACE = 30
"""Seconds that running answers are given when the server is asked to stop."""


class Server(uvicorn.Server):
    """A server whose engine closes first: who is being answered gets the rest, and who comes now is refused."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self.app = app

    async def shutdown(self, sockets: Any = None) -> None:
        self.app.scheduler.close()
        await super().shutdown(sockets)


class Impatient(H11Protocol):
    """Closes connections that take too long to say what they want."""

    patience = 20.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self.timer is None:
            self.timer = self.loop.call_later(self.patience, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def server_of(app: App) -> Server:
    """Return a server of an application."""
    protocol = type("Protocol", (Impatient,), {"patience": app.limits.body_seconds})
    config = uvicorn.Config(
        app,
        http=protocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE,
        ws="none",
    )
    return Server(config, app)
