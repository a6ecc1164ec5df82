"""`kin serve` as a process: it says where it listens, answers, and ends when it is told to."""

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from kinfolk.cli import main
from kinfolk.use.serve.server import EXTRA


@pytest.mark.slow
def test_starts_answers_and_ends(gpt2):
    command = [sys.executable, "-m", "kinfolk", "serve", str(gpt2), "--port", "0", "--json", "--rows", "3"]
    environment = os.environ | {"KINFOLK_TOKEN": "sesame"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            told = json.loads(server.stdout.readline())
            assert (told["models"], told["rows"]) == (["gpt2"], 3)
            assert told["url"].startswith("http://127.0.0.1:")
            assert httpx.get(f"{told['url']}/health").json() == {"status": "ok"}
            assert httpx.get(f"{told['url']}/v1/models").status_code == 401
            body = {"model": "gpt2", "prompt": "a", "max_tokens": 2}
            headers = {"authorization": "Bearer sesame"}
            answer = httpx.post(f"{told['url']}/v1/completions", json=body, headers=headers, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] <= 2
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert server.stderr.read() == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engine", "torhc"], "did you mean 'torch'"),
        (["--rows", "0"], "rows: 0 is not allowed"),
        (["--port", "1", "--host", "192.0.2.1"], "192.0.2.1:1: cannot listen here"),
    ],
)
def test_what_cannot_be_is_refused(gpt2, capsys, words, told):
    assert main.main(["serve", str(gpt2), *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("extra", ["uvicorn", "pydantic"])
def test_without_its_extra_it_says_which_one_to_install(gpt2, extra):
    assert extra in EXTRA
    code = f"import sys; sys.modules[{extra!r}] = None; from kinfolk.cli import main; sys.exit(main.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", str(gpt2), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "kinfolk[serve]" in done.stderr


def test_two_runs_of_one_name_are_refused(gpt2, capsys):
    assert main.main(["serve", str(gpt2), str(gpt2), "--port", "0"]) == 2
    assert "another run is called 'gpt2'" in capsys.readouterr().err
