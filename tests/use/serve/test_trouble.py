"""What breaks inside a server: requests end, /health says so, the engine goes on, and the event loop stays free."""

import sys
import threading

import pytest

from kinfolk.use.serve import app as app_module
from kinfolk.use.serve import exchange, messages, protocol, waiting
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.scheduler import Scheduler
from kinfolk.use.serve.served import Served
from tests.use.serve.conftest import serving
from tests.use.serve.test_hostile import until

ASK = {"model": "gpt2", "prompt": "def f(", "max_tokens": 4, "temperature": 0}


class Panic(BaseException):
    """What a tokenizer written in Rust raises: no `Exception`."""


def panics(*_, **__):
    raise Panic("called `Option::unwrap()` on a `None` value")


@pytest.fixture(scope="module")
def running(gpt2):
    with serving([gpt2], ServerLimits(rows=2, queue=4, seconds=30)) as found:
        yield found


@pytest.mark.parametrize(
    ("owner", "name", "path", "body"),
    [
        (Served, "decode", "/v1/completions", ASK),
        (Served, "encode", "/v1/completions", ASK),
        (Served, "embed", "/v1/embeddings", {"model": "gpt2", "input": "x"}),
        (Scheduler, "_step", "/v1/completions", ASK),
        (Scheduler, "_read", "/v1/completions", ASK),
        (Scheduler, "_start", "/v1/completions", ASK),
    ],
)
def test_a_panic_ends_its_request_and_nothing_else(running, monkeypatch, capsys, owner, name, path, body):
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, panics)
        answer = running.post(path, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert running.get("/health").status_code == 200
    assert running.write()["choices"][0]["finish_reason"] == "length"
    assert until(lambda: running.app.scheduler._taken == 0)
    capsys.readouterr()


# a thread that ends so is what this is about
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_is_not_healthy_and_the_next_request_starts_another(running, monkeypatch):
    engine, dead = running.app.scheduler, running.app.scheduler._thread
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_admit", panics)
        # the end of a thread that nothing reports
        patch.setattr(Scheduler, "_begin_again", lambda *_: sys.exit())
        patch.setattr(waiting, "LATE", -29.5)
        assert running.post("/v1/completions", ASK).status_code == 504
        assert until(lambda: not dead.is_alive())
    answer = running.get("/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_down")
    assert running.write()["choices"][0]["finish_reason"] == "length"
    assert running.get("/health").status_code == 200
    assert engine._thread is not dead


def test_a_stuck_engine_is_not_healthy_and_its_requests_end(gpt2, monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(waiting, "LATE", 0.1)
    with serving([gpt2], ServerLimits(seconds=0.3)) as running:
        with monkeypatch.context() as patch:
            patch.setattr(Served, "embed", lambda *_: free.wait(60))
            answer = running.post("/v1/embeddings", {"model": "gpt2", "input": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
            # it is still busy with that call, and another waits behind it
            assert running.post("/v1/completions", ASK).status_code == 504
            assert running.get("/health").status_code == 503
            free.set()
        assert until(lambda: running.get("/health").status_code == 200)


REQUESTS = [
    ("/v1/completions", ASK | {"echo": True, "logprobs": 1}),
    ("/v1/completions", ASK | {"model": "x" * 500_000}),
    ("/v1/completions", ASK | {"prompt": [[1] * 400] * 70}),
    ("/v1/completions", ASK | {"stream": True, "echo": True}),
    ("/v1/embeddings", {"model": "gpt2", "input": ["a", "b"]}),
    ("/v1/inspect", {"model": "gpt2", "text": "so it is"}),
    ("/tokenize", {"prompt": "so it is"}),
    ("/detokenize", {"tokens": [70, 71]}),
]


def test_nothing_that_grows_with_a_request_runs_on_the_event_loop(running, monkeypatch):
    loop = {thread.ident for thread in threading.enumerate() if thread.name.startswith("Thread-")}
    seen, wrong = set(), []

    def watched(name, inner):
        def call(*args, **kwargs):
            found = inner(*args, **kwargs)
            seen.add(name)
            # refusals are short, and so are written where they are
            if threading.get_ident() in loop and not (name == "written" and len(found) < 1000):
                wrong.append(name)
            return found

        return call

    places = [(app_module, "parsed"), (exchange, "written"), (protocol, "suggest"), (messages, "validated")]
    places += [(Served, "encode"), (Served, "decode"), (Served, "embed"), (protocol, "tokens")]
    for owner, name in places:
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    for path, body in REQUESTS:
        assert running.post(path, body).status_code in (200, 400, 404), path
    assert seen >= {"parsed", "suggest", "validated", "encode", "decode", "embed", "tokens", "written"}
    assert wrong == []


def test_a_name_of_half_a_megabyte_is_answered_shortly(running):
    answer = running.post("/v1/completions", ASK | {"model": "x" * 500_000})
    assert answer.status_code == 404
    assert len(answer.content) < 1000
    # larger than any name may be: the bound on bodies holds by default
    assert running.post("/v1/completions", ASK | {"model": "x" * (1 << 20)}).status_code == 413


@pytest.mark.parametrize("path", ["/", "/health", "/live.js", "/v1/models", "/metrics"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "localhost.evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "[::1].evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:9000"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "192.168.0.7:8000"}, 200),
        ({"host": "box.example:8000"}, 200),
    ],
    ids=str,
)
def test_other_names_and_other_sites_are_refused(running, monkeypatch, path, headers, status):
    monkeypatch.setattr(running.app, "hosts", {"Box.example"})
    answer = running.get(path, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert "gpt2" not in answer.text


def test_without_the_token_no_run_is_named_and_no_script_is_inline(gpt2, running):
    with serving([gpt2], token="sesame") as guarded:
        for path in ("/", "/health", "/live.js", "/page.js"):
            answer = guarded.get(path)
            assert answer.status_code == 200
            assert "gpt2" not in answer.text
        known = guarded.get("/health", headers={"authorization": "Bearer sesame"})
        assert known.json() == {"status": "ok", "models": ["gpt2"]}
    page = running.get("/")
    assert 'value="gpt2"' in page.text
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy["script-src"] == "'self'"
    assert policy["default-src"] == "'none'"
    scripts = [part.partition(">")[0] for part in page.text.split("<script")[1:]]
    assert [one for one in scripts if "src=" not in one and "application/json" not in one] == []
    assert sum("src=" in one for one in scripts) == 2
    assert " onclick=" not in page.text
