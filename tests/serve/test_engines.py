"""Other things than text of a language model: classes, and graphs in the place of the model."""

import shutil

import pytest

from kinfolk.core.errors import SpecError
from kinfolk.decoding.options import Decoding
from kinfolk.predict.opening import open_run
from kinfolk.predict.predicting import predict
from kinfolk.predict.rows import Row as Given
from kinfolk.serve.batching import Row, Running
from kinfolk.serve.served import Served
from tests.predict.made import reviews, train
from tests.serve.conftest import make_run, serving
from tests.serve.test_batching import PROMPTS, written


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    return train(folder / "judge", f"labelled:{reviews(folder / 'reviews.jsonl')}")


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
    assert (pair.status_code, "judges 1 text" in pair.json()["error"]["message"]) == (400, True)
    assert (other.status_code, write.status_code) == (400, 400)


@pytest.mark.parametrize("name", ["gpt2", "vanilla", "transformer-xl", "performer"])
def test_graphs_write_what_the_model_writes(name, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    run = make_run(tmp_path / name, name, max_len=64)
    torch, onnx = Served.open(run), Served.open(run, "onnx", threads=1)
    n_new = [7, 3, 5, 4]
    made = []
    for served in (torch, onnx):
        rows = [Row(prompt=p, max_new=n, how=Decoding(greedy=True)) for p, n in zip(PROMPTS, n_new, strict=True)]
        made.append(written(Running(served.worker(64)), rows))
    assert made[0] == made[1]


def test_a_server_of_graphs_scores_prompts_too(gpt2, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from kinfolk.onnx.opening import open_engine

    run = shutil.copytree(gpt2, tmp_path / "gpt2")
    open_engine(run, threads=1)
    graphs = shutil.move(run / "onnx", tmp_path / "graphs")
    with pytest.raises(SpecError, match="--engine onnx"):
        Served.open(graphs)
    asked = {"prompt": "def f(", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1}
    with serving([gpt2]) as running:
        expected = running.write(**asked)["choices"][0]
    with serving([graphs], engine="onnx") as running:
        got = running.write(model="graphs", **asked)["choices"][0]
        assert running.post("/v1/embeddings", {"model": "graphs", "input": "a"}).status_code == 400
    assert got["text"] == expected["text"]
    scores = zip(got["logprobs"]["token_logprobs"], expected["logprobs"]["token_logprobs"], strict=True)
    assert all(a == pytest.approx(b, abs=1e-3) for a, b in list(scores)[1:])
