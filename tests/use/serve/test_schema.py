"""The OpenAPI document holds what it says: schemathesis finds nothing, and requests are held to the same schemas."""

import os
import subprocess
import sys

import pytest

from kinfolk.use.serve.limits import Limits
from kinfolk.use.serve.schema import array, complaint, integer, record
from tests.use.serve.conftest import make_run, serving

# all phases and many examples take minutes
THOROUGH = os.environ.get("KINFOLK_THOROUGH")
HOW = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "100"]
QUICK = ["--phases", "examples,fuzzing,stateful", "--max-examples", "8"]


@pytest.mark.slow
def test_schemathesis_finds_nothing(judge, tmp_path):
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    run = make_run(tmp_path / "gpt2", "gpt2", n_layers=1, max_len=4096)
    with serving([run, judge], Limits(rows=8, queue=64, new=32), token="sesame") as running:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json"]
        command += ["-H", "Authorization: Bearer sesame", "--seed", "1", "--checks", "all", "--continue-on-failure"]
        command += HOW if THOROUGH else QUICK
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
        cases = running.app.metrics.requests
        assert done.returncode == 0, "\n".join(line[:300] for line in done.stdout.splitlines())[-6000:]
    assert cases["/v1/completions", 200] >= 1
    assert cases["/v1/completions", 400] >= 1
    assert not [status for (_, status), n in cases.items() if n and status >= 500]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({}, "'a' is missing"),
        ({"a": 1, "c": 2}, "unknown field 'c'"),
        ({"a": 1.5}, "a: should be integer or null"),
        ({"a": True}, "a: should be integer or null"),
        ({"a": 9}, "a: should be at most 3, got '9'"),
        ({"a": 1, "b": []}, "b: should be of at least so many items: 1"),
        ({"a": 1, "b": ["x", 2]}, "b[1]: should be string"),
        ([], "the request: should be object"),
    ],
)
def test_complaints_say_where_and_what(value, told):
    form = record(["a"], a=integer(0, 3, None, ""), b=array({"type": "string"}, 1, 2))
    assert told in complaint(value, form)


@pytest.mark.parametrize("value", [{"a": 0}, {"a": 3.0}, {"a": None, "b": ["x", "y"]}])
def test_what_is_right_is_not_complained_about(value):
    assert complaint(value, record(["a"], a=integer(0, 3, None, ""), b=array({"type": "string"}, 1, 2))) is None
