"""Clients of a server, one after another and at once: what a running batch that they share is worth.

The server is a process of its own, and clients reach it over HTTP, as they would.
"""

import atexit
import concurrent.futures
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.bench.train import GPT, recipe_of

ENGINE = True
REQUESTS, PROMPT, NEW = 16, 16, 48
ALONE = "one after another"
WHO = (
    BenchContestant(ALONE, settings={"clients": 1}),
    BenchContestant("4 at once", settings={"clients": 4}),
    BenchContestant("16 at once", settings={"clients": 16}),
    BenchContestant("one after another, onnxruntime", OURS, {"clients": 1, "engine": "onnx"}, "onnxruntime", "onnx"),
    BenchContestant("16 at once, onnxruntime", OURS, {"clients": 16, "engine": "onnx"}, "onnxruntime", "onnx"),
)


def contests(long: bool = False) -> list[Contest]:
    """Return the one contest."""
    title = f"{REQUESTS} requests to a server: GPT of 6 layers, d=384, prompts of {PROMPT}, {NEW} new tokens each"
    return [Contest("serve", title, GPT | {"steps": 3}, WHO, ALONE)]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return all requests, sent by as many clients as the contestant has."""
    import torch

    folder = tempfile.TemporaryDirectory(prefix="kinfolk-serve-")
    run = write_run(Path(folder.name) / "gpt", sizes)
    host = start(run, contestant.settings.get("engine", "torch"), torch.get_num_threads())
    draw = torch.Generator().manual_seed(1)
    # prompts of unequal lengths, so that rows are at positions of their own
    lengths = [PROMPT - 4 + i % 9 for i in range(REQUESTS)]
    prompts = [torch.randint(7, 256, (n,), generator=draw).tolist() for n in lengths]
    clients = int(contestant.settings["clients"])

    def step() -> None:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            written = sum(pool.map(lambda prompt: ask(host, prompt), prompts))
        assert written == REQUESTS * NEW, f"{written} tokens"

    # the folder goes when the process does
    step.folder = folder  # type: ignore[attr-defined]
    return Work(step, units=REQUESTS * NEW, steps=sizes.get("steps", 3), warm_up=1)


def ask(host: str, prompt: list[int]) -> int:
    """Send one request and return how many tokens were written."""
    connection = http.client.HTTPConnection(host, timeout=300)
    # of a model that was not trained, the end of a text is as likely as anything
    body = {"model": "gpt", "prompt": prompt, "max_tokens": NEW, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    connection.close()
    return int(answer["usage"]["completion_tokens"])


def write_run(out: Path, sizes: Mapping[str, Any]) -> Path:
    """Write a run with the weights that a model begins with, and the byte tokenizer."""
    from kinfolk.core.plain import dumps
    from kinfolk.data import Tokenizer
    from kinfolk.family.building import build
    from kinfolk.models.folder import WEIGHTS, save_model
    from kinfolk.runs import folder
    from kinfolk.runs.metadata import Metadata

    recipe = recipe_of(sizes)
    folder.create(out, dumps(recipe), Metadata().with_origin(), Tokenizer.byte())
    save_model(build(recipe, 0), out / "aside")
    (out / "aside" / WEIGHTS).rename(out / WEIGHTS)
    return out


def start(run: Path, engine: str, threads: int) -> str:
    """Start a server of a run, and return where it listens."""
    command = [sys.executable, "-m", "kinfolk", "serve", str(run), "--port", "0", "--json"]
    command += ["--engine", engine, "--threads", str(threads)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    assert server.stdout is not None
    said = server.stdout.readline()
    if not said:
        raise RuntimeError("the server did not start")
    return str(json.loads(said)["url"]).removeprefix("http://")
