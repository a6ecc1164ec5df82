"""The server: what each address answers."""

import asyncio
import base64
import contextlib
import hmac
import itertools
import struct
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any

from kinfolk.decoding.running import RunningBatch
from kinfolk.use.serve import origin, protocol
from kinfolk.use.serve.answers import Answer, Choice
from kinfolk.use.serve.exchange import Exchange, GoneError, Receive, Scope, Send, deadline, parsed
from kinfolk.use.serve.limits import Limits
from kinfolk.use.serve.metrics import Metrics
from kinfolk.use.serve.openapi import document
from kinfolk.use.serve.protocol import Asked, RefusalError
from kinfolk.use.serve.scheduler import BusyError, ClosingError, Done, Event, Failed, Piece, Request, Scheduler
from kinfolk.use.serve.served import Served

OPEN = {"/", "/health", "/live.js", "/page.js"}
"""What needs no token: the page has to be there before it can be told one. Nothing of it names a run then."""
LATE = 5.0
"""Seconds after its deadline at which a request ends even if the engine does not say so."""
STATUSES = {"timeout": (504, "timeout"), "refused": (400, "invalid_request"), "broken": (500, "internal_error")}

Handler = Callable[[Exchange, Mapping[str, str]], Awaitable[None]]


class App:
    """An ASGI application over some runs."""

    def __init__(
        self,
        served: Mapping[str, Served],
        limits: Limits | None = None,
        token: str = "",
        hosts: Collection[str] | None = (),
    ) -> None:
        self.served, self.limits, self.token, self.hosts = dict(served), limits or Limits(), token, hosts
        running = {name: RunningBatch(one.engine(self.limits.context)) for name, one in served.items() if one.writes}
        self.scheduler = Scheduler(running, self.limits)
        self.metrics = Metrics(self.scheduler)
        self.forms = protocol.forms(self.served, self.limits)
        self._numbers = itertools.count(1)
        self.routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._page},
            "/live.js": {"GET": lambda exchange, _: self._script(exchange, "/live.js")},
            "/page.js": {"GET": lambda exchange, _: self._script(exchange, "/page.js")},
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
            "/v1/models": {"GET": self._models},
            "/v1/completions": {"POST": self._completions},
            "/v1/embeddings": {"POST": self._embeddings},
            "/v1/classify": {"POST": self._classify},
            "/v1/inspect": {"POST": self._inspect},
            "/tokenizer_info": {"GET": self._tokenizer},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.scheduler.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.scheduler.stop)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, exchange = time.perf_counter(), Exchange(receive, send, self.limits)
        path = scope["path"] if scope["path"] in self.routes else "other"
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            try:
                handler = self._find(scope, headers)
                await handler(exchange, headers)
            except RefusalError as error:
                await exchange.answer(error.status, error.body, error.headers)
            except (GoneError, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            # a panic of a tokenizer is no Exception
            except BaseException as error:
                traceback.print_exception(error)
                if not exchange.status:
                    await exchange.answer(500, RefusalError(500, "internal_error", "the server failed").body)
        except GoneError:
            self.metrics.gone += 1
        finally:
            self.metrics.answered(path, exchange.status, time.perf_counter() - began)

    def _find(self, scope: Scope, headers: Mapping[str, str]) -> Handler:
        path, method = scope["path"], scope["method"]
        origin.check(headers, self.hosts)
        if path not in OPEN and not self._knows_token(headers):
            raise RefusalError(401, "invalid_token", "a bearer token is needed here", {"www-authenticate": "Bearer"})
        found = self.routes.get(path)
        if found is None and path.startswith("/v1/models/"):
            found = {"GET": lambda exchange, _: self._model(exchange, path.removeprefix("/v1/models/"))}
        if found is None:
            raise RefusalError(404, "not_found", f"there is nothing at this address; see {', '.join(self.routes)}")
        if method not in found:
            allowed = ", ".join(found)
            raise RefusalError(405, "method_not_allowed", f"this address takes {allowed}", {"allow": allowed})
        return found[method]

    def _knows_token(self, headers: Mapping[str, str]) -> bool:
        given = headers.get("authorization", "").encode("latin-1")
        return not self.token or hmac.compare_digest(given, f"Bearer {self.token}".encode())

    async def _page(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        from kinfolk.use.serve.page import HEADERS, page

        html = await asyncio.to_thread(page, {} if self.token else self.served)
        await exchange.send(200, html.encode(), "text/html; charset=utf-8", HEADERS)

    async def _script(self, exchange: Exchange, path: str) -> None:
        from kinfolk.use.serve.page import HEADERS, script

        await exchange.send(200, script(path), "text/javascript; charset=utf-8", HEADERS)

    async def _health(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        if self.scheduler.closing:
            raise RefusalError(503, "closing", "the server is about to stop")
        if trouble := self.scheduler.trouble:
            raise RefusalError(503, "engine_down", trouble)
        names = {"models": list(self.served)} if self._knows_token(headers) else {}
        await exchange.answer(200, {"status": "ok", **names})

    async def _metrics(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        await exchange.send(200, self.metrics.text().encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        await exchange.answer(200, document(self.forms, bool(self.token)))

    async def _models(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        await exchange.answer(200, {"object": "list", "data": [_told(one) for one in self.served.values()]})

    async def _model(self, exchange: Exchange, name: str) -> None:
        await exchange.answer(200, _told(protocol.find(self.served, name)))

    async def _completions(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        body, served = await self._asked(await exchange.body(headers), "completions")
        asked = await asyncio.to_thread(protocol.understand, body, served, self.limits)
        answer = Answer(asked, f"cmpl-{next(self._numbers)}", int(time.time()))
        waiting = Waiting(self.scheduler, deadline(self.limits))
        request = Request(served.name, waiting.tell, asked.rows, asked.texts, deadline=waiting.deadline)
        waiting.submit(request)
        try:
            if asked.stream:
                # the first news decide whether there is a stream at all
                first = await exchange.while_there(waiting.news())
                await exchange.while_there(exchange.events(_stream(answer, first, waiting)))
            else:
                choices = await exchange.while_there(_collect(asked, waiting))
                await exchange.answer(200, await asyncio.to_thread(answer.whole, choices))
        finally:
            self.scheduler.cancel(request)

    async def _embeddings(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        body, served = await self._asked(await exchange.body(headers), "embeddings")
        most = served.limit(self.limits.context)
        rows = await asyncio.to_thread(protocol.sequences, served, body["input"], most)
        texts = [
            ids if isinstance(one, list) else one
            for one, ids in zip(protocol.several(body["input"]), rows, strict=True)
        ]
        vectors, n_cut = await self._call(exchange, served, lambda: served.embed(texts))
        if n_cut:
            raise RefusalError(400, "context_length_exceeded", f"{n_cut} of the texts do not fit {served.name}")
        packed = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _packed(vector) if packed else vector}
            for i, vector in enumerate(vectors)
        ]
        await exchange.answer(200, _listed(served, data, sum(map(len, rows))))

    async def _classify(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        body, served = await self._asked(await exchange.body(headers), "classify")
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        said = await self._call(exchange, served, lambda: served.classify(texts))
        n = await asyncio.to_thread(_n_tokens, served, texts)
        await exchange.answer(200, _listed(served, [{"index": i, **one} for i, one in enumerate(said)], n))

    async def _inspect(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        from kinfolk.use.serve.page import seen

        body, served = await self._asked(await exchange.body(headers), "inspect")
        found = await self._call(exchange, served, lambda: seen(served, body["text"], body.get("target")))
        await exchange.answer(200, found)

    async def _tokenizer(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        tokenizer = next(iter(self.served.values())).tokenizer
        names = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
        await exchange.answer(200, {name: tokenizer.inner.id_to_token(i) for name, i in names.items()})

    async def _tokenize(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        body, served = await self._asked(await exchange.body(headers), "tokenize")
        ids = await asyncio.to_thread(protocol.tokens, served, body["prompt"])
        found = {"tokens": ids, "count": len(ids), "max_model_len": served.limit(self.limits.context)}
        await exchange.answer(200, found)

    async def _detokenize(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        body, served = await self._asked(await exchange.body(headers), "detokenize")
        text = await asyncio.to_thread(served.decode, [int(i) for i in body["tokens"]])
        await exchange.answer(200, {"prompt": text})

    async def _asked(self, raw: bytes, form: str) -> tuple[dict[str, Any], Served]:
        """Return a request that is as it should be, and the run that it is for; the first, if it does not say."""
        return await asyncio.to_thread(self._checked, raw, form)

    def _checked(self, raw: bytes, form: str) -> tuple[dict[str, Any], Served]:
        body = parsed(raw)
        name = body.get("model") if isinstance(body, dict) else None
        served = protocol.find(self.served, name if isinstance(name, str) else next(iter(self.served)))
        if isinstance(name, str):
            protocol.able(served, form)
        return protocol.checked(body, getattr(self.forms, form)), served

    async def _call(self, exchange: Exchange, served: Served, call: Callable[[], Any]) -> Any:
        waiting = Waiting(self.scheduler, deadline(self.limits))
        request = Request(served.name, waiting.tell, call=call, deadline=waiting.deadline)
        waiting.submit(request)
        try:
            found = await exchange.while_there(waiting.news())
        finally:
            self.scheduler.cancel(request)
        assert isinstance(found, Done)
        return found.value


class Waiting:
    """What somebody waits for, from the engine's thread to the loop of this one."""

    def __init__(self, scheduler: Scheduler, deadline: float) -> None:
        self.scheduler, self.deadline, self._loop = scheduler, deadline, asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def submit(self, request: Request) -> None:
        """Hand a request to the engine, or refuse it."""
        try:
            self.scheduler.submit(request)
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


async def _collect(asked: Asked, waiting: Waiting) -> list[Choice]:
    choices = [Choice() for _ in asked.rows]
    while any(choice.finish is None for choice in choices):
        event = await waiting.news()
        assert isinstance(event, Piece)
        choices[event.row].add(event)
    return choices


async def _stream(answer: Answer, event: Event, waiting: Waiting) -> AsyncIterator[Any]:
    left, begun, n_new = len(answer.asked.rows), set[int](), 0
    while True:
        assert isinstance(event, Piece)
        n_new += len(event.tokens)
        left -= event.finish is not None
        # the first piece of a row may hold a prompt that is echoed with all its probabilities
        first = event.row not in begun
        yield await asyncio.to_thread(answer.piece, event, True) if first else answer.piece(event, False)
        begun.add(event.row)
        if not left:
            break
        try:
            event = await waiting.news()
        except RefusalError as error:
            yield error.body
            return
    if answer.asked.usage:
        yield answer.ending(n_new)


def _n_tokens(served: Served, texts: list[Any]) -> int:
    return sum(len(served.tokenizer.encode(t)) for one in texts for t in ([one] if isinstance(one, str) else one))


def _told(served: Served) -> dict[str, Any]:
    named = {"id": served.name, "object": "model", "created": served.created, "owned_by": served.recipe.name}
    return named | {"topology": served.spec.topology}


def _listed(served: Served, data: list[Any], n: int) -> dict[str, Any]:
    usage = {"prompt_tokens": n, "total_tokens": n}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
