"""HTTP middleware: limits of size and time, server-sent events, and errors as answers."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.messages import RefusalError
from kinfolk.use.serve.metrics import Metrics

T = TypeVar("T")
DRAINED = 64 << 20
"""Bytes of a request that is too long which are read and dropped, so that its sender gets to hear why."""


class GoneError(Exception):
    """The client is not there any more."""


class Guard:
    """Middleware: checks headers, counts, gives up clients that do not read, and answers what is raised."""

    def __init__(
        self, app: ASGIApp, check: Callable[[str, Headers], str], metrics: Metrics, limits: ServerLimits
    ) -> None:
        """check: refuses a request by path and headers, or returns the route that it is counted under."""
        self.app, self.check, self.metrics, self.limits = app, check, metrics, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, route = time.perf_counter(), 0, "other"

        async def pass_on(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            try:
                # `wait_for` would swallow a cancellation that comes as the message is sent
                async with asyncio.timeout(self.limits.stall_seconds):
                    await send(message)
            # it does not read what it asked for
            except (TimeoutError, OSError):
                raise GoneError from None

        try:
            try:
                route = self.check(scope["path"], Headers(scope=scope))
                await self.app(scope, receive, pass_on)
            except (GoneError, ClientDisconnect, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            # a panic of a tokenizer is no Exception
            except BaseException as error:
                answer = refusal(error)
                if not status:
                    await answer(scope, receive, pass_on)
        except (GoneError, ClientDisconnect):
            self.metrics.gone.inc()
        finally:
            self.metrics.answered(route, status, time.perf_counter() - begin)


def refusal(error: BaseException) -> Response:
    """Return the answer to what was raised."""
    if isinstance(error, HTTPException):
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        error = RefusalError(405, "method_not_allowed", f"this address takes {allowed}", {"allow": allowed})
    elif not isinstance(error, RefusalError):
        traceback.print_exception(error)
        error = RefusalError(500, "internal_error", "the server failed")
    return Response(written(error.body), error.status, error.headers, "application/json")


async def body(request: Request, limits: ServerLimits) -> bytes:
    """Read a request that should be JSON, or refuse it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusalError(415, "unsupported_media_type", f"content-type: should be application/json, got {kind!r}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > DRAINED:
                    break
                if size <= limits.body:
                    parts.append(part)
    except TimeoutError:
        raise RefusalError(408, "request_timeout", "the request did not arrive in time") from None
    if size > limits.body:
        raise RefusalError(413, "request_too_large", f"a request may have {limits.body:,} bytes")
    return b"".join(parts)


async def while_there(receive: Receive, work: Awaitable[T]) -> T:
    """Wait for something as long as the client is there."""

    async def leaving() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(leaving())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class Events(StreamingResponse):
    """Server-sent events, each a JSON value, and the word that ends them; `end` is called however they end."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncIterator[Any], end: Callable[[], None]) -> None:
        super().__init__(_lines(pieces), headers={"cache-control": "no-store"})
        self.end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events as long as the client is there."""
        try:
            await while_there(receive, self.stream_response(send))
        finally:
            self.end()


async def _lines(pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield b"data: " + written(piece) + b"\n\n"
    yield b"data: [DONE]\n\n"


def written(value: Any) -> bytes:
    """Write JSON."""
    return value.model_dump_json().encode() if isinstance(value, BaseModel) else to_json(value, inf_nan_mode="null")


async def answer(value: Any) -> Response:
    """Return an answer; what grows with the request is written in another thread."""
    return Response(await asyncio.to_thread(written, value), media_type="application/json")
