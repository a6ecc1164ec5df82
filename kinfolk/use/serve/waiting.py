"""Events of one request, from the engine's thread to the asyncio event loop, with a deadline."""

import asyncio
import contextlib
import time
from typing import Any

from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.messages import RefusalError
from kinfolk.use.serve.scheduler import BusyError, ClosingError, Event, Failed, Request, Scheduler

LATE = 5.0
"""Seconds after its deadline at which a request ends even if the engine does not say so."""
STATUSES = {"timeout": (504, "timeout"), "refused": (400, "invalid_request"), "broken": (500, "internal_error")}


class RequestEvents:
    """The events of one request."""

    def __init__(self, scheduler: Scheduler, limits: ServerLimits) -> None:
        self.scheduler, self.deadline = scheduler, time.monotonic() + limits.seconds
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def submit(self, model: str, **work: Any) -> Request:
        """Hand a request to the engine, or refuse it; work: its rows and texts, or its call."""
        request = Request(model, self.tell, deadline=self.deadline, **work)
        try:
            self.scheduler.submit(request)
            return request
        except BusyError:
            raise RefusalError(429, "busy", "too many requests are waiting", {"retry-after": "1"}) from None
        except ClosingError:
            raise RefusalError(503, "closing", "the server is about to stop") from None

    def tell(self, event: Event) -> None:
        """Pass an event on; called by the engine."""
        # a loop that has ended needs no news
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def news(self) -> Event:
        """Wait for the next event; what went wrong is raised."""
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic()) + LATE):
                event = await self._events.get()
        except TimeoutError:
            raise RefusalError(504, "timeout", "the engine did not answer in time") from None
        if isinstance(event, Failed):
            status, code = STATUSES[event.kind]
            raise RefusalError(status, code, event.message)
        return event
