"""The OpenAPI document holds what it says: schemathesis finds nothing, and requests are held to the same schemas."""

import os
import subprocess
import sys
from typing import Annotated

import pytest
from pydantic import Field, create_model

from kinfolk.use.serve import messages
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.messages import RefusalError, validated
from tests.use.serve.conftest import make_run, serving

# all phases and many examples take minutes
THOROUGH = os.environ.get("KINFOLK_THOROUGH")
HOW = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "100"]
QUICK = ["--phases", "examples,fuzzing,stateful", "--max-examples", "8"]


@pytest.mark.slow
def test_schemathesis_finds_nothing(judge, tmp_path):
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    run = make_run(tmp_path / "gpt2", "gpt2", n_layers=1, max_len=4096)
    with serving([run, judge], ServerLimits(rows=8, queue=64, new=32), token="sesame") as running:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json"]
        command += ["-H", "Authorization: Bearer sesame", "--seed", "1", "--checks", "all", "--continue-on-failure"]
        command += HOW if THOROUGH else QUICK
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
        cases = running.app.metrics.requests.collect()[0].samples
        assert done.returncode == 0, "\n".join(line[:300] for line in done.stdout.splitlines())[-6000:]
    counts = {(one.labels["route"], one.labels["status"]): one.value for one in cases if one.name.endswith("_total")}
    assert counts["/v1/completions", "200"] >= 1
    assert counts["/v1/completions", "400"] >= 1
    assert not [status for (_, status), n in counts.items() if n and status >= "500"]


class Small(messages.Form):
    """A request of two fields."""

    a: Annotated[int, Field(ge=0, le=3), messages.WHOLE]
    b: Annotated[list[str], Field(min_length=1, max_length=2)] = ["x"]  # noqa: RUF012 - pydantic copies it


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "the request: 'a' is missing"),
        ({"a": None}, "the request: 'a' is missing"),
        ({"a": 1, "c": 2}, "unknown field 'c'"),
        ({"a": 1.5}, "a: input should be a valid integer, got 1.5"),
        ({"a": True}, "a: input should be a valid integer"),
        ({"a": "1"}, "a: input should be a valid integer"),
        ({"a": 9}, "a: input should be less than or equal to 3, got 9"),
        ({"a": 1, "b": []}, "b: list should have at least 1 item"),
        ({"a": 1, "b": ["x", 2]}, "b[1]: input should be a valid string"),
        ([], "the request: input should be"),
    ],
)
def test_refusals_say_where_and_what(value, message):
    with pytest.raises(RefusalError) as refused:
        validated(value, Small)
    assert message in refused.value.message


@pytest.mark.parametrize("value", [{"a": 0}, {"a": 3.0}, {"a": 1, "b": ["x", "y"]}, {"a": 1, "b": None}])
def test_what_is_right_is_taken(value):
    form = validated(value, Small)
    assert (type(form.a), form.a, form.b) == (int, value["a"], value.get("b") or ["x"])


def test_the_schema_says_what_validation_does():
    fields = Small.model_json_schema()["properties"]
    assert (fields["a"]["minimum"], fields["a"]["maximum"], "anyOf" in fields["a"]) == (0, 3, False)
    assert {"type": "null"} in fields["b"]["anyOf"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 9], "input[1]: input should be less than 9, got 9"),
        ([[1], [2, -1]], "input[1][1]: input should be greater than or equal to 0"),
        (["a", 3], "input[1]: input should be a valid string"),
        ([[]], "input[0]: list should have at least 1 item"),
        ([], "input: list should have at least 1 item"),
        ([1] * 6, "input: list should have at most 5 items"),
        ({"a": 1}, "input: input should be a valid string"),
    ],
)
def test_a_text_is_judged_by_the_form_it_was_meant_in(value, message):
    form = create_model("Texts", __base__=messages.Form, input=(messages.texts(9, 5, 3), ...))
    assert validated({"input": [1.0, 2]}, form).input == [1, 2]
    assert validated({"input": ["a", "b"]}, form).input == ["a", "b"]
    with pytest.raises(RefusalError) as refused:
        validated({"input": value}, form)
    assert message in refused.value.message
