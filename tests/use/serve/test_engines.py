"""Other things than text of a language model: classes, and graphs in the place of the model."""

import shutil

import pytest

from kinfolk.core.errors import SpecError
from kinfolk.data.files.reader import FileRow as Given
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.use.predict.opening import open_run
from kinfolk.use.predict.predicting import predict
from kinfolk.use.serve.limits import ServerLimits
from kinfolk.use.serve.served import Served
from tests.decoding.test_running import PROMPTS, written
from tests.use.serve.conftest import make_run, serving


def test_classes_are_those_that_kin_predict_says(judge, gpt2):
    texts = ["it is good", "bad x x x x", "perhaps"]
    alone = list(predict(open_run(judge), [Given("", i, {"text": text}) for i, text in enumerate(texts)]))
    with serving([judge, gpt2]) as running:
        answer = running.post("/v1/classify", {"model": "judge", "input": texts}).json()
        one = running.post("/v1/classify", {"model": "judge", "input": texts[1]}).json()
        pair = running.post("/v1/classify", {"model": "judge", "input": [["a", "b"]]})
        other = running.post("/v1/classify", {"model": "gpt2", "input": "a"})
        write = running.post("/v1/completions", {"model": "judge", "prompt": "a"})
    assert [said["label"] for said in answer["data"]] == [said["label"] for said in alone]
    assert one["data"][0]["probabilities"] == pytest.approx(answer["data"][1]["probabilities"])
    assert set(one["data"][0]["probabilities"]) == {"no", "yes", "perhaps"}
    assert (pair.status_code, "input[0]" in pair.json()["error"]["message"]) == (400, True)
    assert (other.status_code, write.status_code) == (404, 404)


def test_rows_get_what_kin_predict_says(judge, asker, gpt2):
    import kinfolk as kf

    row = {"question": "who wrote about machines?", "context": "Ada wrote a program. Alan wrote about machines."}
    with serving([judge, asker, gpt2]) as running:
        said = running.post("/v1/predict", {"model": "asker", "input": [row]}).json()["data"]
        judged = running.post("/v1/predict", {"model": "judge", "input": [{"text": "it is good"}]}).json()["data"]
        missing = running.post("/v1/predict", {"model": "asker", "input": [{"question": "who?"}]})
        unknown = running.post("/v1/predict", {"model": "judge", "input": [{"texts": "a"}]})
        writer = running.post("/v1/predict", {"model": "gpt2", "input": [{"text": "a"}]})
        models = {one["id"]: one for one in running.get("/v1/models").json()["data"]}
    alone = kf.predict(asker, [row])[0]
    assert said[0]["answer"] == alone["answer"]
    assert row["context"][said[0]["start"] : said[0]["stop"]] == said[0]["answer"]
    assert judged[0]["label"] == kf.predict(judge, ["it is good"])[0]["label"]
    assert [one.status_code for one in (missing, unknown, writer)] == [400, 400, 404]
    assert "context" in missing.json()["error"]["message"]
    assert {name: one["columns"] for name, one in models.items()} == {
        "judge": ["text"],
        "asker": ["question", "context"],
        "gpt2": [],
    }


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A run, and its graphs in a folder of their own."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    import kinfolk.use.onnx.opening  # noqa: F401 - registers the engine
    from kinfolk.runs.run import Run

    # the check of an export wants differences of less than 1e-4, so weights must not be large
    run = make_run(tmp_path_factory.mktemp("runs") / "gpt2", "gpt2", scale=1.5, n_layers=1, max_len=128)
    Run.open(run).engine("onnx", threads=1)
    return run, shutil.copytree(run / "onnx", run.parent / "graphs")


@pytest.mark.slow
def test_rows_of_graphs_join_and_leave_as_those_of_the_model(graphs):
    n_new, made = [7, 3, 5, 4], []
    for engine in ("torch", "onnx"):
        rows = [
            RunningSequence(prompt=p, max_new=n, how=Decoding(greedy=True)) for p, n in zip(PROMPTS, n_new, strict=True)
        ]
        made.append(written(RunningBatch(Served.open(graphs[0], engine, threads=1).engine(64)), rows))
    assert made[0] == made[1]


@pytest.mark.slow
def test_an_export_is_served_and_scores_prompts_too(graphs):
    run, export = graphs
    with pytest.raises(SpecError, match="--engine onnx"):
        Served.open(export)
    asked = {"prompt": "def f(", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1}
    with serving([run]) as running:
        expected = running.write(**asked)["choices"][0]
    with serving([export], engine="onnx") as running:
        got = running.write(model="graphs", **asked)["choices"][0]
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/inspect", {"text": "a"})):
            answer = running.post(path, {"model": "graphs"} | body)
            assert (answer.status_code, "serve the run" in answer.json()["error"]["message"]) == (400, True)
    assert got["text"] == expected["text"]
    scores = zip(got["logprobs"]["token_logprobs"], expected["logprobs"]["token_logprobs"], strict=True)
    assert all(a == pytest.approx(b, abs=1e-3) for a, b in list(scores)[1:])


def test_a_prompt_that_starts_like_another_is_not_read_again(gpt2):
    start = "def area(width, height):\n"
    with serving([gpt2]) as cached, serving([gpt2], ServerLimits(prefixes=0)) as plain:
        for end in ("    return width", "    return height", "    return width"):
            mine, its = (one.write(prompt=start + end, max_tokens=12) for one in (cached, plain))
            assert mine["choices"][0]["text"] == its["choices"][0]["text"]
            assert mine["usage"] == its["usage"]
        reused = cached.app.metrics.value("kinfolk_prefix_reused_total", model="gpt2")
        assert reused == len(start) + len("    return ") + len(start) + len("    return width") - 1
        assert cached.app.metrics.value("kinfolk_prefix_hits_total", model="gpt2") == 2
        assert cached.app.metrics.value("kinfolk_prefix_held", model="gpt2") > 0
        assert plain.app.metrics.value("kinfolk_prefix_hits_total", model="gpt2") == 0
