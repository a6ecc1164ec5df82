"""Open runs and make an HTTP server of them."""

import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.core.errors import MissingExtraError, SpecError
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.served import Served

if TYPE_CHECKING:
    from kinfolk.use.serve.listening import Server

EXTRA = ("uvicorn", "starlette", "pydantic", "prometheus_client")


def open_runs(paths: Sequence[str | Path], engine: str = "torch", threads: int = 0) -> dict[str, Served]:
    """Open runs, each under the name of its folder."""
    found: dict[str, Served] = {}
    for path in paths:
        one = Served.open(path, engine, threads)
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


def own_names() -> set[str]:
    """Return the names under which this machine is known to itself."""
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def make_server(
    served: Mapping[str, Served],
    limits: ServerLimits | None = None,
    token: str = "",
    hosts: Collection[str] | None = (),
) -> "Server":
    """Return a server of runs; `run(sockets=[…])` blocks until it is stopped."""
    try:
        from kinfolk.use.serve.app import App
        from kinfolk.use.serve.listening import server_of
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise MissingExtraError("serve", "kin serve") from None
    return server_of(App(served, limits, token, hosts))
