"""Clients that are wrong, slow, gone or too many: each gets a clear answer, and nobody else notices."""

import asyncio
import concurrent.futures
import json
import socket
import time

import httpx
import psutil
import pytest

import kinfolk as kf
from kinfolk.use.serve.exchange import Events, Guard
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.metrics import Metrics
from kinfolk.use.serve.scheduler import Scheduler
from tests.use.serve.conftest import serving

ASK = {"model": "gpt2", "prompt": "def f(", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def small(gpt2):
    limits = ServerLimits(rows=4, queue=4, body=1 << 20, seconds=60)
    with serving([gpt2], limits, token="sesame") as running:
        yield running


@pytest.fixture
def impatient(gpt2):
    with serving([gpt2], ServerLimits(body_seconds=0.3), token="sesame") as running:
        yield running


@pytest.fixture
def auth():
    return {"authorization": "Bearer sesame"}


def error(answer):
    found = answer.json()["error"]
    assert {"message", "type", "code"} <= found.keys()
    return found


def until(holds, seconds=30):
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "given", [None, "sesame", "Bearer sesam", "Bearer sesamee", "Basic sesame", "bearer\xe9"], ids=repr
)
def test_without_the_token_everything_but_health_and_the_page_is_refused(small, given):
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/nothing"):
        answer = small.get(path, headers=headers)
        assert answer.status_code == 401
        assert error(answer)["type"] == "authentication_error"
    assert small.post("/v1/completions", ASK, headers=headers).status_code == 401
    assert small.get("/health").status_code == small.get("/").status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b'{"model": "gpt2", "temperature": NaN}',
        b'{"model": "gpt2", "temperature": 1e999}',
        b"[]",
        b"null",
        b'{"model": 3}',
        b'{"prompt": "x"}',
        b'{"model": "gpt2", "prompt": {"a": 1}}',
        b'{"model": "gpt2", "prompt": []}',
        b'{"model": "gpt2", "prompt": [[]]}',
        b'{"model": "gpt2", "prompt": [-1]}',
        b'{"model": "gpt2", "prompt": [263]}',
        b'{"model": "gpt2", "prompt": ["a", 3]}',
        b'{"model": "gpt2", "max_tokens": 1.5}',
        b'{"model": "gpt2", "max_tokens": true}',
        b'{"model": "gpt2", "stop": ["", "a"]}',
        b'{"model": "gpt2", "stream_options": {"usage": true}}',
        b'{"model": "gpt2", "temprature": 1}',
    ],
    ids=lambda raw: raw[:40].decode("latin-1"),
)
def test_what_cannot_be_understood_is_refused(small, auth, raw):
    answer = httpx.post(
        small.url + "/v1/completions", content=raw, headers=auth | {"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code == 400
    assert error(answer)["type"] == "invalid_request_error"


def test_refusals_say_what_is_wrong(small, auth):
    def told(**wrong):
        return error(small.post("/v1/completions", ASK | wrong, headers=auth))["message"]

    assert "did you mean 'temperature'" in told(temprature=1)
    assert "prompt[1]" in told(prompt=[9, 999])
    assert "temperature: input should be less than or equal to 2" in told(temperature=3)
    assert "1024 positions" in told(prompt="x" * 2000)
    other = small.post("/v1/completions", ASK | {"model": "gpt"}, headers=auth)
    assert (other.status_code, error(other)["code"]) == (404, "model_not_found")
    many = small.post("/v1/completions", ASK | {"prompt": ["a"] * 9}, headers=auth)
    assert (many.status_code, "prompt" in error(many)["message"]) == (400, True)
    form = httpx.post(small.url + "/v1/completions", data={"model": "gpt2"}, headers=auth)
    assert form.status_code == 415


def test_ten_megabytes_are_refused_and_not_kept(small, auth):
    before = psutil.Process().memory_info().rss
    raw = json.dumps(ASK | {"prompt": "x" * 10_000_000}).encode()
    for _ in range(3):
        headers = auth | {"content-type": "application/json"}
        answer = httpx.post(small.url + "/v1/completions", content=raw, headers=headers, timeout=60)
        assert answer.status_code == 413
        assert "1,048,576" in error(answer)["message"]
    assert psutil.Process().memory_info().rss - before < 60e6


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/v1/models/../../../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/models/gpt2%00",
        "/v1/models/gpt2/",
        "//etc/passwd",
        "/v1/completions/../models",
        "/static/..%5c..%5cx",
        "/%ff%fe",
    ],
)
def test_paths_lead_nowhere_else(small, auth, path):
    with socket.create_connection(small.url.removeprefix("http://").split(":"), timeout=30) as raw:
        head = "host: localhost\r\nauthorization: Bearer sesame\r\nconnection: close"
        raw.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"root:" not in answer


def test_other_methods_are_told_which_there_are(small, auth):
    for method, path, allowed in (("GET", "/v1/completions", "POST"), ("DELETE", "/v1/models", "GET, HEAD")):
        answer = httpx.request(method, small.url + path, headers=auth)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        error(answer)


HEAD = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\n"


def opened(small, body):
    """Send a request over a plain socket."""
    raw, sent = socket.create_connection(small.url.removeprefix("http://").split(":"), timeout=30), json.dumps(body)
    raw.sendall(f"{HEAD}content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n{sent}".encode())
    return raw


def n_gone(app):
    return app.metrics.value("kinfolk_clients_gone_total")


@pytest.mark.parametrize("stream", [True, False])
def test_the_row_of_a_client_that_left_leaves_the_batch(small, auth, stream):
    counts = small.app.scheduler.counts["gpt2"]
    early, gone = counts.left_early, n_gone(small.app)
    raw = opened(small, ASK | {"max_tokens": 1000, "stream": stream})
    assert until(lambda: small.app.scheduler.n_running == 1)
    raw.close()
    assert until(lambda: small.app.scheduler.n_running == 0)
    assert counts.left_early == early + 1
    assert until(lambda: n_gone(small.app) == gone + 1)


def test_a_client_that_does_not_read_is_given_up():
    sent, ended, scheduler = [], [], Scheduler({}, ServerLimits())
    metrics = Metrics(scheduler)

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)
        if len(sent) > 3:
            await asyncio.sleep(60)

    async def pieces():
        for i in range(100):
            yield {"i": i}

    async def app(scope, receive, send):
        await Events(pieces(), lambda: ended.append(True))(scope, receive, send)

    guard = Guard(app, lambda path, headers: path, metrics, ServerLimits(stall_seconds=0.05))
    asyncio.run(guard({"type": "http", "path": "/x", "headers": []}, receive, send))
    assert len(sent) == 4
    assert ended == [True]
    assert metrics.value("kinfolk_clients_gone_total") == 1


def test_who_sends_too_slowly_is_told_or_cut_off(impatient):
    host, port = impatient.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as body:
        body.sendall(f"{HEAD}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
        assert body.recv(65536).startswith(b"HTTP/1.1 408")
    with socket.create_connection((host, int(port)), timeout=30) as silent:
        assert silent.recv(100) == b""
    with socket.create_connection((host, int(port)), timeout=30) as headers:
        headers.sendall(HEAD.encode())
        assert headers.recv(100) == b""


def ask_all(running, bodies, headers, n):
    """Ask many things at once, over a connection each."""
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        return list(pool.map(lambda body: running.post("/v1/completions", body, headers=headers), bodies))


def alone(running, prompt, n):
    one = running.served["gpt2"]
    ids = one.encode(prompt)
    out = kf.generate(one.model, ids, max_new=n, greedy=True, stop=(one.tokenizer.eos,))
    return one.decode(out[len(ids) :])


def test_many_at_once_get_what_each_would_get_alone(server):
    bodies = [ASK | {"prompt": "x" * (1 + i % 5) + str(i), "max_tokens": 10 + i} for i in range(16)]
    counts = server.app.scheduler.counts["gpt2"]
    steps, rows = counts.steps, counts.rows_in_steps
    answers = ask_all(server, bodies, {}, 16)
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.json()["choices"][0]["text"] == alone(server, body["prompt"], body["max_tokens"])
    # or it would prove nothing
    assert (counts.rows_in_steps - rows) / (counts.steps - steps) > 1.5


@pytest.mark.slow
def test_four_times_too_many_are_answered_or_refused(small, auth):
    text, before = alone(small, "def f(", 100), 0
    for round_ in range(2):
        answers = ask_all(small, [ASK | {"max_tokens": 100}] * 32, auth, 32)
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 8
        for answer in answers:
            if answer.status_code == 200:
                assert answer.json()["choices"][0]["text"] == text
            else:
                assert error(answer)["type"] == "rate_limit_error"
                assert int(answer.headers["retry-after"]) >= 1
        assert until(lambda: small.app.scheduler._taken == 0)
        before = before or psutil.Process().memory_info().rss
        assert psutil.Process().memory_info().rss - before < 50e6, round_


def test_metrics_count_what_happened(small, auth):
    small.post("/v1/completions", ASK, headers=auth)
    # the row leaves its batch after its last piece was told
    assert until(lambda: small.app.scheduler.n_running == 0)
    found = small.get("/metrics", headers=auth)
    assert found.headers["content-type"].startswith("text/plain; version=")
    numbers = dict(line.rsplit(" ", 1) for line in found.text.splitlines() if not line.startswith("#"))
    assert float(numbers['kinfolk_requests_total{route="/v1/completions",status="200"}']) >= 1
    assert float(numbers['kinfolk_new_tokens_total{model="gpt2"}']) >= 8
    assert float(numbers['kinfolk_running{model="gpt2"}']) == 0
    count = numbers['kinfolk_request_seconds_count{route="/v1/completions"}']
    assert numbers['kinfolk_request_seconds_bucket{le="+Inf",route="/v1/completions"}'] == count


def test_a_server_that_stops_finishes_what_it_writes_and_takes_nothing_on(gpt2):
    with serving([gpt2], ServerLimits(rows=2, queue=2)) as running:
        with httpx.stream("POST", running.url + "/v1/completions", json=ASK | {"max_tokens": 200, "stream": True}) as s:
            lines = s.iter_lines()
            first = next(lines)
            running.app.scheduler.close()
            assert running.post("/v1/completions", ASK).status_code == 503
            assert running.get("/health").status_code == 503
            running.server.should_exit = True
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        pieces = [json.loads(line[6:]) for line in (first, *rest[:-1])]
        assert "".join(p["choices"][0]["text"] for p in pieces) == alone(running, "def f(", 200)
