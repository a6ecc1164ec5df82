"""One request and its answer over ASGI, with a limit on everything: bytes, time to send, time to read."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from kinfolk.use.serve.limits import Limits
from kinfolk.use.serve.protocol import RefusalError

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
DRAINED = 64 << 20
"""Bytes of a request that is too long which are read and dropped, so that its sender gets to hear why."""


class GoneError(Exception):
    """The client is not there any more."""


class Exchange:
    """What a client sends and gets."""

    def __init__(self, receive: Receive, send: Send, limits: Limits) -> None:
        self._receive, self._send, self.limits = receive, send, limits
        self.status = 0

    async def body(self, headers: Mapping[str, str]) -> bytes:
        """Read a request that should be JSON, or refuse it."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusalError(415, "unsupported_media_type", f"content-type: should be application/json, got {kind!r}")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                return await self._read()
        except TimeoutError:
            raise RefusalError(408, "request_timeout", "the request did not arrive in time") from None

    async def _read(self) -> bytes:
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            size += len(message.get("body", b""))
            if size <= self.limits.body:
                parts.append(message.get("body", b""))
            if size > DRAINED or (size > self.limits.body and not message.get("more_body")):
                parts.clear()
                raise RefusalError(413, "request_too_large", f"a request may have {self.limits.body:,} bytes")
            if not message.get("more_body"):
                return b"".join(parts)

    async def while_there(self, work: Awaitable[T]) -> T:
        """Wait for something as long as the client is there."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise GoneError
            return task.result()
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send JSON."""
        raw = await asyncio.to_thread(_written, value) if status == 200 else _written(value)
        await self.send(status, raw, "application/json", headers)

    async def send(self, status: int, raw: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        """Send bytes of a kind."""
        await self._begin(status, {"content-type": kind, "content-length": str(len(raw)), **(headers or {})})
        await self._pass_on({"type": "http.response.body", "body": raw})

    async def events(self, pieces: AsyncIterator[Any]) -> None:
        """Send a stream of server-sent events, each a JSON value, and the word that ends it."""
        await self._begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"})
        async for piece in pieces:
            line = f"data: {json.dumps(piece, allow_nan=False)}\n\n"
            await self._pass_on({"type": "http.response.body", "body": line.encode(), "more_body": True})
        await self._pass_on({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._pass_on({"type": "http.response.start", "status": status, "headers": raw})

    async def _pass_on(self, message: Message) -> None:
        try:
            # `wait_for` would swallow a cancellation that comes as the message is sent
            async with asyncio.timeout(self.limits.stall_seconds):
                await self._send(message)
        # it does not read what it asked for
        except (TimeoutError, OSError):
            raise GoneError from None


def parsed(raw: bytes) -> Any:
    """Return what the bytes of a request say."""
    try:
        return json.loads(raw, parse_constant=_refuse)
    # too deep, a number of too many digits, or bytes that are no text
    except (ValueError, RecursionError) as error:
        raise RefusalError(400, "invalid_json", f"the request is not JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _written(value: Any) -> bytes:
    """Write JSON; the items of a long list one by one, because the encoder lets no other thread run meanwhile."""
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        items = ", ".join(json.dumps(item, allow_nan=False) for item in value["data"])
        rest = json.dumps({key: item for key, item in value.items() if key != "data"}, allow_nan=False)
        return f'{{"data": [{items}]{", " if len(value) > 1 else ""}{rest[1:]}'.encode()
    return json.dumps(value, allow_nan=False).encode()


def deadline(limits: Limits) -> float:
    """Return when a request that arrives now is given up."""
    return time.monotonic() + limits.seconds
