"""From a list of runs to a server that listens."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.core.errors import MissingExtraError, SpecError
from kinfolk.serve.app import App
from kinfolk.serve.limits import Limits
from kinfolk.serve.served import Served

if TYPE_CHECKING:
    import uvicorn

GRACE = 30
"""Seconds that running answers are given when the server is told to stop."""


def open_runs(paths: Sequence[str | Path]) -> dict[str, Served]:
    """Open runs, each under the name of its folder."""
    found: dict[str, Served] = {}
    for path in paths:
        one = Served.open(path)
        if one.name in found:
            raise SpecError(f"{path}: another run is called {one.name!r} already; rename one of the folders")
        found[one.name] = one
    return found


def listen(host: str, port: int) -> socket.socket:
    """Take a port, 0 for any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise SpecError(f"{host}:{port}: cannot listen here: {error.strerror}") from None
    return found


def make_server(app: App) -> "uvicorn.Server":
    """Return a server of an application; `run(sockets=[…])` blocks until it is told to stop."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError("serve", "kin serve") from None

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: Any = None) -> None:
            # who is being answered gets the rest; who comes now over an open connection is refused
            app.engine.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE,
        ws="none",
    )
    return Server(config)


def serve(paths: Sequence[str | Path], sock: socket.socket, limits: Limits, token: str = "") -> None:
    """Serve runs until told to stop."""
    make_server(App(open_runs(paths), limits, token)).run(sockets=[sock])
