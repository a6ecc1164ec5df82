"""Runs that were never trained, and servers of them on ports that are free."""

import contextlib
import json
import threading
import time

import httpx
import pytest
import torch

import kinfolk as kf
from kinfolk.core.plain import dumps
from kinfolk.data import Tokenizer
from kinfolk.models.folder import save_model
from kinfolk.runs import folder
from kinfolk.runs.metadata import Metadata
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.server import listen, make_server, open_runs
from tests.use.predict.made import reviews, train

TOY = {"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 4, "max_len": 1024}


def make_run(out, name, scale=3.0, **numbers):
    """Write a run with weights that are large enough for choices to differ."""
    tokenizer = Tokenizer.byte()
    recipe = kf.relative(name, size="tiny", **(TOY | {"vocab_size": tokenizer.vocab_size} | numbers))
    folder.create(out, dumps(recipe), Metadata().with_origin(), tokenizer)
    model = kf.build(recipe, seed=3)
    with torch.no_grad():
        for p in model.parameters():
            p *= scale
    save_model(model, out / "aside")
    folder.add(out, folder.WEIGHTS, lambda file: (out / "aside" / "model.safetensors").rename(file))
    return out


class Running:
    """A server in a thread."""

    def __init__(self, app, url, server):
        self.app, self.url, self.server = app, url, server
        self.served = app.served
        self.client = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=64))

    def post(self, path, body, **more):
        return self.client.post(self.url + path, json=body, **more)

    def get(self, path, **more):
        return self.client.get(self.url + path, **more)

    def write(self, **body):
        """Ask for texts, and return the answer."""
        answer = self.post("/v1/completions", {"model": "gpt2", "temperature": 0, "max_tokens": 8} | body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def serving(runs, limits=None, token="", engine="torch"):
    server, sock = make_server(open_runs(runs, engine, 1), limits or ServerLimits(), token), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    running = Running(server.app, f"http://127.0.0.1:{sock.getsockname()[1]}", server)
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if running.get("/health").status_code == 200:
                    break
            time.sleep(0.1)
        yield running
    finally:
        running.client.close()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not stop"


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "gpt2", "gpt2")


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "bert", "bert")


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    return train(folder / "judge", f"labelled:{reviews(folder / 'reviews.jsonl')}")


@pytest.fixture(scope="session")
def asker(tmp_path_factory):
    """A run that marks the answer to a question in a context."""
    folder = tmp_path_factory.mktemp("asker")
    context = "Ada wrote the first program. Alan wrote about machines."
    articles = [
        {"title": f"t{n}", "paragraphs": [{"context": f"{context} {n}", "qas": [
            {"id": f"q{n}", "question": "who wrote?", "answers": [{"text": "Ada", "answer_start": 0}]}
        ]}]}
        for n in range(40)
    ]  # fmt: skip
    (folder / "questions.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    return train(folder / "asker", f"labelled:labels=span:{folder / 'questions.json'}")


@pytest.fixture(scope="module")
def server(gpt2, bert):
    with serving([gpt2, bert]) as running:
        yield running
