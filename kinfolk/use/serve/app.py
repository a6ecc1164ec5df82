"""ASGI application of the server: its routes and what each answers."""

import asyncio
import base64
import contextlib
import hmac
import itertools
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from kinfolk.decoding.running import RunningBatch
from kinfolk.use.serve import messages, origin, protocol
from kinfolk.use.serve.answers import ChatAnswer, Choice, CompletionAnswer
from kinfolk.use.serve.exchange import Events, Guard, answer, body, while_there
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.messages import Form, RefusalError, parsed
from kinfolk.use.serve.metrics import Metrics
from kinfolk.use.serve.openapi import Address, document
from kinfolk.use.serve.protocol import TextRequest
from kinfolk.use.serve.scheduler import Done, Piece, Scheduler
from kinfolk.use.serve.served import Served
from kinfolk.use.serve.waiting import RequestEvents

OPEN = {"/", "/health", "/live.js", "/page.js"}
"""What needs no token: the page has to be there before it can be told one. Nothing of it names a run then."""
STREAM = ("application/json", "text/event-stream")
PLAIN = ("text/plain",)

Handler = Callable[[HttpRequest], Awaitable[Response]]
F = TypeVar("F", bound=Form)


class App:
    """An ASGI application over some runs."""

    def __init__(
        self,
        served: Mapping[str, Served],
        limits: ServerLimits | None = None,
        token: str = "",
        hosts: Collection[str] | None = (),
    ) -> None:
        self.served, self.limits, self.token, self.hosts = dict(served), limits or ServerLimits(), token, hosts
        bounds = self.limits.context, self.limits.rows, self.limits.prefixes
        running = {name: RunningBatch(one.engine(*bounds)) for name, one in served.items() if one.writes}
        self.scheduler = Scheduler(running, self.limits)
        self.metrics = Metrics(self.scheduler)
        self.forms = protocol.forms(self.served, self.limits)
        self._numbers = itertools.count(1)
        self.addresses = self._addresses()
        routes = [Route(one.path, handler, methods=["POST" if one.form else "GET"]) for one, handler in self.addresses]
        for path, handler in (("/", self._page), ("/live.js", self._script), ("/page.js", self._script)):
            routes.append(Route(path, handler, methods=["GET"]))
        self.paths = {route.path for route in routes}
        router = Router(routes, redirect_slashes=False, default=self._nothing, lifespan=self._lifespan)
        self.guard = Guard(router, self._check, self.metrics, self.limits)

    def _addresses(self) -> list[tuple[Address, Handler]]:
        forms, m = self.forms, messages
        handlers: dict[Handler, Address] = {
            self._health: Address("/health", "whether it answers", answer=m.Health, open=True),
            self._metrics: Address("/metrics", "metrics for Prometheus", kinds=PLAIN),
            self._openapi: Address("/openapi.json", "this document"),
            self._models: Address("/v1/models", "what is served", answer=m.ServedModels),
            self._model: Address("/v1/models/{name}", "one of them", answer=m.ServedModel),
            self._completions: Address(
                "/v1/completions", "continue prompts", forms.completions, m.TextCompletion, STREAM
            ),
            self._chat: Address(
                "/v1/chat/completions", "the next message of a chat", forms.chat, m.ChatCompletion, STREAM
            ),
            self._embeddings: Address("/v1/embeddings", "a vector for each text", forms.embeddings, m.Embeddings),
            self._classify: Address("/v1/classify", "the class of each text", forms.classify, m.Classifications),
            self._predict: Address(
                "/v1/predict", "answers, tags, numbers or classes of rows", forms.predict, m.Predictions
            ),
            self._inspect: Address("/v1/inspect", "attention of every layer and head", forms.inspect),
            self._tokenizer: Address("/tokenizer_info", "the names of special tokens", answer=m.TokenizerInfo),
            self._tokenize: Address("/tokenize", "the ids of a text", forms.tokenize, m.TokenizedText),
            self._detokenize: Address("/detokenize", "the text of ids", forms.detokenize, m.Prompt),
        }
        return [(address, handler) for handler, address in handlers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.guard(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        self.scheduler.start()
        yield
        await asyncio.to_thread(self.scheduler.stop)

    def _check(self, path: str, headers: Headers) -> str:
        """Refuse other sites, other names and those without the token; return what a request is counted under."""
        origin.check(headers, self.hosts)
        if path not in OPEN and not self._knows_token(headers):
            raise RefusalError(401, "invalid_token", "a bearer token is needed here", {"www-authenticate": "Bearer"})
        return path if path in self.paths else "other"

    def _knows_token(self, headers: Headers) -> bool:
        credentials = headers.get("authorization", "").encode("latin-1")
        return not self.token or hmac.compare_digest(credentials, f"Bearer {self.token}".encode())

    async def _nothing(self, *_: Any) -> None:
        raise RefusalError(404, "not_found", f"there is nothing at this address; see {', '.join(sorted(self.paths))}")

    async def _page(self, _: HttpRequest) -> Response:
        from kinfolk.use.serve.page import HEADERS, page

        html = await asyncio.to_thread(page, {} if self.token else self.served)
        return Response(html, headers=HEADERS, media_type="text/html")

    async def _script(self, request: HttpRequest) -> Response:
        from kinfolk.use.serve.page import HEADERS, script

        return Response(script(request.url.path), headers=HEADERS, media_type="text/javascript")

    async def _health(self, request: HttpRequest) -> Response:
        if self.scheduler.closing:
            raise RefusalError(503, "closing", "the server is about to stop")
        if trouble := self.scheduler.trouble:
            raise RefusalError(503, "engine_down", trouble)
        return await answer(messages.Health(models=list(self.served) if self._knows_token(request.headers) else None))

    async def _metrics(self, _: HttpRequest) -> Response:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, _: HttpRequest) -> Response:
        return await answer(document((one for one, _ in self.addresses), bool(self.token)))

    async def _models(self, _: HttpRequest) -> Response:
        return await answer(messages.ServedModels(data=[_described(one) for one in self.served.values()]))

    async def _model(self, request: HttpRequest) -> Response:
        return await answer(_described(protocol.find(self.served, request.path_params["name"])))

    async def _completions(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.completions)
        order = await asyncio.to_thread(protocol.completion, form, served, self.limits)
        return await self._write(request, CompletionAnswer(order, f"cmpl-{next(self._numbers)}", int(time.time())))

    async def _chat(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.chat)
        order = await asyncio.to_thread(protocol.chat, form, served, self.limits)
        return await self._write(request, ChatAnswer(order, f"chatcmpl-{next(self._numbers)}", int(time.time())))

    async def _write(self, request: HttpRequest, shape: CompletionAnswer) -> Response:
        """Write texts, and answer with all of them or with a stream."""
        order = shape.order
        waiting = RequestEvents(self.scheduler, self.limits)
        work = waiting.submit(order.served.name, rows=order.rows, texts=order.texts)
        stream = None
        try:
            if order.stream:
                # the first news decide whether there is a stream at all
                first = await while_there(request.receive, waiting.news())
                stream = Events(_stream(shape, first, waiting), lambda: self.scheduler.cancel(work))
                return stream
            choices = await while_there(request.receive, _collect(order, waiting))
            return await answer(await asyncio.to_thread(shape.whole, choices))
        finally:
            if stream is None:
                self.scheduler.cancel(work)

    async def _embeddings(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.embeddings)
        rows = await asyncio.to_thread(protocol.sequences, served, form.input, served.limit(self.limits.context))
        texts = [
            ids if isinstance(one, list) else one for one, ids in zip(protocol.several(form.input), rows, strict=True)
        ]
        vectors, n_cut = await self._call(request, served, lambda: served.embed(texts))
        if n_cut:
            raise RefusalError(400, "context_length_exceeded", f"{n_cut} of the texts do not fit {served.name}")
        usage = _read(sum(map(len, rows)))
        packed = form.encoding_format == "base64"
        return await answer(await asyncio.to_thread(_embeddings, served.name, vectors, packed, usage))

    async def _classify(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.classify)
        texts = [form.input] if isinstance(form.input, str) else form.input
        labels = await self._call(request, served, lambda: served.classify(texts))
        n = await asyncio.to_thread(_n_tokens, served, texts)
        data = [messages.Label(index=i, **one) for i, one in enumerate(labels)]
        return await answer(messages.Classifications(data=data, model=served.name, usage=_read(n)))

    async def _predict(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.predict)
        data = await self._call(request, served, lambda: served.predict(form.input))
        return await answer(messages.Predictions(data=data, model=served.name))

    async def _inspect(self, request: HttpRequest) -> Response:
        from kinfolk.use.serve.page import seen

        form, served = await self._form(request, self.forms.inspect)
        target = (form.target or None) if isinstance(form, messages.InspectPairForm) else None
        return await answer(await self._call(request, served, lambda: seen(served, form.text, target)))

    async def _tokenizer(self, _: HttpRequest) -> Response:
        tokenizer = next(iter(self.served.values())).tokenizer
        names = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
        return await answer(messages.TokenizerInfo(**{key: tokenizer.inner.id_to_token(i) for key, i in names.items()}))

    async def _tokenize(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.tokenize)
        ids = await asyncio.to_thread(protocol.tokens, served, form.prompt)
        most = served.limit(self.limits.context)
        return await answer(messages.TokenizedText(tokens=ids, count=len(ids), max_model_len=most))

    async def _detokenize(self, request: HttpRequest) -> Response:
        form, served = await self._form(request, self.forms.detokenize)
        return await answer(messages.Prompt(prompt=await asyncio.to_thread(served.decode, form.tokens)))

    async def _form(self, request: HttpRequest, form: type[F]) -> tuple[F, Served]:
        """Return a valid request, and the run that it is for; the first, if it does not say."""
        raw = await body(request, self.limits)
        return await asyncio.to_thread(self._validated, raw, form)

    def _validated(self, raw: bytes, form: type[F]) -> tuple[F, Served]:
        fields = parsed(raw)
        name = fields.get("model") if isinstance(fields, dict) else None
        served = protocol.find(self.served, name if isinstance(name, str) else next(iter(self.served)))
        if isinstance(name, str):
            protocol.able(served, form)
        return messages.validated(fields, form), served

    async def _call(self, request: HttpRequest, served: Served, call: Callable[[], Any]) -> Any:
        waiting = RequestEvents(self.scheduler, self.limits)
        work = waiting.submit(served.name, call=call)
        try:
            event = await while_there(request.receive, waiting.news())
        finally:
            self.scheduler.cancel(work)
        assert isinstance(event, Done)
        return event.value


async def _collect(order: TextRequest, waiting: RequestEvents) -> list[Choice]:
    choices = [Choice() for _ in order.rows]
    while any(choice.finish is None for choice in choices):
        event = await waiting.news()
        assert isinstance(event, Piece)
        choices[event.row].add(event)
    return choices


async def _stream(shape: CompletionAnswer, event: Any, waiting: RequestEvents) -> AsyncIterator[Any]:
    left, begun, n_new = len(shape.order.rows), set[int](), 0
    while True:
        assert isinstance(event, Piece)
        n_new += len(event.tokens)
        left -= event.finish is not None
        # the first piece of a row may hold a prompt that is echoed with all its probabilities
        first = event.row not in begun
        yield await asyncio.to_thread(shape.piece, event, True) if first else shape.piece(event, False)
        begun.add(event.row)
        if not left:
            break
        try:
            event = await waiting.news()
        except RefusalError as error:
            yield error.body
            return
    if shape.order.usage:
        yield shape.ending(n_new)


def _embeddings(name: str, vectors: list[list[float]], packed: bool, usage: messages.Usage) -> messages.Embeddings:
    data = [
        messages.EmbeddingItem(index=i, embedding=_packed(vector) if packed else vector)
        for i, vector in enumerate(vectors)
    ]
    return messages.Embeddings(data=data, model=name, usage=usage)


def _n_tokens(served: Served, texts: list[Any]) -> int:
    return sum(len(served.tokenizer.encode(t)) for one in texts for t in ([one] if isinstance(one, str) else one))


def _described(served: Served) -> messages.ServedModel:
    return messages.ServedModel(
        id=served.name,
        created=served.created,
        owned_by=served.recipe.name,
        topology=served.spec.topology,
        does=list(served.verbs),
        columns=list(served.columns),
    )


def _read(n: int) -> messages.Usage:
    return messages.Usage(prompt_tokens=n, total_tokens=n)


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
