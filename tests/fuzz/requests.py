"""Requests to a server: any method, path, header and body, straight into the application."""

import asyncio
import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from kinfolk.core.errors import KinfolkError
from kinfolk.runs import chat_template, folder
from kinfolk.use.serve.app import App
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.server import open_runs
from tests.fuzz.specs import NUMBERS, OTHERS, WORDS, deep
from tests.use.predict.made import reviews, train
from tests.use.serve.conftest import make_run
from tests.use.serve.test_chat import TEMPLATE

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "gpt2", "prompt": "def f(", "max_tokens": 3, "temperature": 0, "logprobs": 1, "n": 1},
    "/v1/chat/completions": {"model": "gpt2", "messages": [{"role": "user", "content": "so?"}], "max_tokens": 3},
    "/v1/embeddings": {"model": "gpt2", "input": ["a", "b"], "encoding_format": "float"},
    "/v1/classify": {"model": "judge", "input": "a"},
    "/v1/predict": {"model": "judge", "input": [{"text": "a"}]},
    "/v1/inspect": {"model": "gpt2", "text": "so it is"},
    "/tokenize": {"prompt": "so it is"},
    "/detokenize": {"tokens": [70, 71]},
}
WRITING = ("/v1/completions", "/v1/chat/completions")
MORE = {"stream": True, "echo": True, "stop": ["x"], "seed": 3, "top_p": 0.5, "stream_options": {"include_usage": True}}
PATHS = [
    "/",
    "/health",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/gpt2",
    "/v1/models/../x",
    "/tokenizer_info",
    "/live.js",
    "/page.js",
    "/nothing",
    "",
]


@functools.cache
def runs() -> list[Path]:
    """Return a writer that chats and a classifier to serve, made once."""
    root = Path(tempfile.mkdtemp(prefix="fuzz"))
    writer = make_run(root / "gpt2", "gpt2", n_layers=1, max_len=64)
    folder.add(writer, chat_template.FILE, lambda file: file.write_text(TEMPLATE))
    return [writer, train(root / "judge", f"labelled:{reviews(root / 'reviews.jsonl')}")]


@functools.cache
def app() -> App:
    """Return an application with a running engine; made in each worker, since threads do not survive a fork."""
    made = App(
        open_runs(runs(), "torch", 1), ServerLimits(rows=4, queue=8, new=16, body=1 << 18, seconds=20, stall_seconds=5)
    )
    made.scheduler.start()
    return made


def body(rng: random.Random, path: str) -> bytes:
    """Return a request with something wrong, or bytes that are none."""
    value: Any = dict(BODIES[path]) | {key: MORE[key] for key in rng.sample(sorted(MORE), rng.choice([0, 0, 1, 3]))}
    if path not in WRITING:
        value = dict(BODIES[path])
    for _ in range(rng.choice([0, 1, 1, 2])):
        key = rng.choice([*value, *MORE, "bogus", "x" * 5000])
        far = [
            rng.choice(NUMBERS),
            rng.choice(WORDS),
            rng.choice(OTHERS),
            deep(rng),
            [rng.choice(NUMBERS)] * 3,
            ["a"] * 99,
        ]
        value[key] = rng.choice(far)
    try:
        raw = json.dumps(value).encode()
    except (RecursionError, ValueError):
        raw = b"[" * 5000
    kind = rng.choice(["none"] * 6 + ["cut", "flip", "long", "random"])
    if kind == "cut":
        return raw[: rng.randrange(len(raw))]
    if kind == "flip":
        at = rng.randrange(len(raw))
        return raw[:at] + rng.randbytes(2) + raw[at + 2 :]
    if kind == "random":
        return rng.randbytes(rng.choice([0, 5, 3000]))
    return raw + b" " * (1 << 18) if kind == "long" else raw


async def answer(scope: dict[str, Any], parts: list[bytes]) -> tuple[int, bytes]:
    """Send a request, and return status and body."""
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app()(scope, receive, send)  # type: ignore[arg-type]
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def request_case(rng: random.Random) -> None:
    """Send one request: it is answered, or refused in words."""
    path = rng.choice([*BODIES, *BODIES, rng.choice(PATHS), "/" + rng.choice(WORDS)])
    raw = body(rng, path) if path in BODIES else rng.randbytes(3)
    method = rng.choice(["POST"] * 8 + ["GET", "DELETE", "é"]) if path in BODIES else rng.choice(["GET", "GET", "POST"])
    headers = {"content-type": rng.choice(["application/json"] * 9 + ["text/plain"]), "host": "localhost"}
    if rng.random() < 0.1:
        headers[rng.choice(["host", "origin", "authorization", "content-length"])] = rng.choice(WORDS)
    scope = {"type": "http", "method": method, "path": path}
    scope["headers"] = [(key.encode(), value.encode("utf-8", "replace")) for key, value in headers.items()]
    cut = rng.randrange(len(raw) + 1)
    status, found = asyncio.run(answer(scope, [raw[:cut], raw[cut:]]))
    if status >= 500:
        raise AssertionError(f"{status} for {method} {path} {raw[:200]!r}: {found[:200]!r}")
    assert app().scheduler._thread.is_alive()
    if status >= 400:
        raise KinfolkError(json.loads(found)["error"]["message"])
    # a stream has its status long before it fails
    assert b"server_error" not in found, found[-300:]
    assert not any(word in found for word in (b":NaN", b":Infinity", b":-Infinity")), found[:300]


request_case.setup = runs  # type: ignore[attr-defined]
