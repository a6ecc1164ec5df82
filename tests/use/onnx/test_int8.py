"""Weights of 8-bit integers: how far they are from what they stand for, and what they are said to cost."""

import json

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import SpecError
from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.runs.onnx_export import ExportRecord
from kinfolk.use.onnx.export import to_int8
from kinfolk.use.onnx.int8 import LEVELS, Int8Quantizer
from kinfolk.use.onnx.quantizer import columns
from tests.cli.test_train import options
from tests.use.onnx.toys import after, engine, exported, graph

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def test_a_column_is_off_by_half_a_step_at_most():
    weight = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32) * np.array([1, 10, 0.1, 1, 1, 1, 0])
    whole, scale = columns(weight, LEVELS)
    assert whole.dtype == np.int8
    assert np.abs(whole).max() == LEVELS
    assert (np.abs(whole * scale - weight) <= scale / 2 * (1 + 1e-5)).all()
    np.testing.assert_allclose(scale[:6], np.abs(weight).max(0)[:6] / LEVELS, rtol=1e-6)


def test_products_sums_and_turned_matrices_are_found_and_others_left_alone():
    make, draw = onnx.helper.make_node, np.random.default_rng(1)
    w, v, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((40, 50), (30, 50), 50))
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Add", ["p", "b"], ["y"]),
        make("Transpose", ["v"], ["t"], perm=[1, 0]),
        make("MatMul", ["y", "t"], ["z"]),
        make("MatMul", ["x", "x2"], ["free"]),
    ]
    proto = graph(nodes, ["x", "x2"], ["z", "free"], {"w": w, "v": v, "b": b})
    small, errors = Int8Quantizer.quantised(proto)
    assert [n.op_type for n in small.graph.node] == ["DynamicQuantizeMatMul", "DynamicQuantizeMatMul", "MatMul"]
    assert {n.name for n in small.graph.initializer} == {"w.int8", "w.scale", "b", "t.int8", "t.scale"}
    assert [0.005 < error < 0.02 for error in errors] == [True, True]
    assert next(n.op_type for n in proto.graph.node) == "MatMul"
    import onnxruntime

    x, x2 = draw.standard_normal((3, 40)).astype(np.float32), draw.standard_normal((40, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(small.SerializeToString())
    z, free = session.run(None, {"x": x, "x2": x2})
    want = (x @ w + b) @ v.T
    assert 0 < np.abs(z - want).max() < 0.05 * np.abs(want).max()
    np.testing.assert_allclose(free, x @ x2, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_int8_writes_nearly_the_same_and_is_a_quarter_of_the_size(tmp_path):
    about = to_int8(exported("gpt2"), tmp_path / "small")
    assert about.precision == "int8"
    assert 1e-4 < max(about.differences.values()) < 0.2
    assert 1e-3 < about.errors["weights"] < 0.02
    assert 1e-4 < about.errors["outputs"] < 0.2
    assert ExportRecord.read(tmp_path / "small").errors == about.errors
    run = ExportedModel(tmp_path / "small", threads=1)
    mine, its = (after(one, [[9, 30, 21]]) for one in (run, engine("gpt2")))
    assert torch.nn.functional.cosine_similarity(mine, its).item() > 0.99
    assert len(kf.generate(OnnxEngine(run), [9, 30], max_new=8, greedy=True)) == 10
    with pytest.raises(SpecError, match="int8 already"):
        to_int8(tmp_path / "small", tmp_path / "smaller")


@pytest.mark.slow
@pytest.mark.long
def test_from_a_run_to_a_score_of_int8(tmp_path, capsys):
    run, small = tmp_path / "run", tmp_path / "small"
    assert main(["train", "gpt2", *options(run, 40)]) == 0
    capsys.readouterr()
    words = ["--to", "onnx", "--out", str(small), "--int8", "--data", "own", "--batches", "2", "--json"]
    assert main(["export", str(run), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["precision"] == "int8"
    scores = found["scores"]["target-token"]
    assert scores["torch fp32"] != scores["onnxruntime int8"]
    assert scores["torch fp32"] == pytest.approx(scores["onnxruntime int8"], abs=0.05)
    assert {path.name for path in small.iterdir()} == {"model.onnx", "onnx.json", "spec.toml", "tokenizer.json"}
    assert b"/kinfolk/" not in (small / "model.onnx").read_bytes()
    assert main(["generate", str(small), "--engine", "onnx", "--prompt", "abc", "--greedy", "--max-new", "5"]) == 0
    assert capsys.readouterr().out.startswith("abc")
    assert main(["generate", str(small), "--engine", "torch", "--prompt", "abc"]) == 2
    assert "is an export for onnxruntime and has no weights" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_keeps_the_graphs_that_were_made_of_it(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "gpt2", *options(run, 40)]) == 0
    texts = []
    for engine_name in ("torch", "onnx", "onnx"):
        capsys.readouterr()
        words = ["--engine", engine_name, "--prompt", "ab", "--greedy", "--max-new", "8"]
        assert main(["generate", str(run), *words]) == 0
        texts.append(capsys.readouterr().out)
        made = (run / "onnx" / "onnx.json").stat().st_mtime_ns if engine_name == "onnx" else None
    assert texts[0] == texts[1] == texts[2]
    assert (run / "onnx" / "onnx.json").stat().st_mtime_ns == made
