"""Weights of 4-bit integers in blocks: held to plain loops over the bytes that a graph stores, and what they cost."""

import json

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import SpecError
from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.runs.onnx_export import ABOUT, ExportRecord
from kinfolk.use.onnx.check import relative_error
from kinfolk.use.onnx.export import to_int4, to_int8
from kinfolk.use.onnx.int4 import Int4Quantizer, block_size, blocks
from tests.cli.test_train import options
from tests.use.onnx.toys import after, engine, exported, graph

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_block_is_as_large_as_divides_the_inputs():
    assert {n: block_size(n) for n in (768, 384, 320, 192, 96, 100, 7)} == {
        768: 128, 384: 128, 320: 64, 192: 64, 96: 32, 100: 32, 7: 32
    }  # fmt: skip


def test_a_weight_is_off_by_half_a_step_and_the_furthest_of_a_block_by_nothing():
    weight = drawn(0, 70, 9) * np.array([1, 10, 0.1, 1, 1, 1, 1, 1, 0], np.float32)
    weight[3, 4], weight[5, 4] = 6.0, -6.0
    whole, scale = blocks(weight, 32)
    assert whole.shape == (9, 3, 32)
    assert scale.shape == (9, 3)
    for column in range(9):
        for i in range(70):
            step, n = float(scale[column, i // 32]), int(whole[column, i // 32, i % 32])
            off = abs(n * step - weight[i, column])
            # as far from zero as the furthest, on the other side: 7 steps are meant by 8
            clipped = n == 7 and abs(weight[i, column] / step) > 7.5
            assert off <= abs(step) * (1 if clipped else 0.5) * (1 + 1e-5)
        for block in range(3):
            column_block = weight[block * 32 : (block + 1) * 32, column]
            furthest = float(np.abs(column_block).max())
            assert abs(float(scale[column, block])) * 8 == pytest.approx(furthest or 8)
    assert (whole.min(), whole.max()) == (-8, 7)
    # behind the end of a column
    assert not whole[:, 2, 6:].any()


def restored(proto, key, n_in):
    """Return the matrix [in, out] that the stored bytes stand for, number by number."""
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in proto.graph.initializer}
    bytes_, scales = stored[f"{key}.int4"], stored[f"{key}.scale"]
    n_out, n_blocks, half = bytes_.shape
    size, weight = 2 * half, np.zeros((n_in, n_out))
    for column in range(n_out):
        for i in range(n_in):
            block, place = divmod(i, size)
            byte = int(bytes_[column, block, place // 2])
            unsigned = byte >> 4 if place % 2 else byte & 15
            weight[i, column] = (unsigned - 8) * float(scales[column * n_blocks + block])
    return weight, size


def room(x, weight, size):
    """Return what rounding activations to 8 bits may change: half a step of each, and its block has 127 to a side."""
    room = np.full((len(x), weight.shape[1]), 1e-4)
    for row in range(len(x)):
        for i in range(x.shape[1]):
            first = i // size * size
            step = np.abs(x[row, first : first + size]).max() / 127
            room[row] += step / 2 * np.abs(weight[i])
    return room


@pytest.mark.parametrize(("n_in", "n_out"), [(128, 50), (64, 17), (40, 50), (67, 33), (3, 400), (257, 5)])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_product_is_by_the_matrix_that_the_bytes_stand_for(n_in, n_out, rows):
    import onnxruntime

    w, b, x = drawn(n_in, n_in, n_out), drawn(1, n_out), drawn(2, rows, n_in)
    make = onnx.helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["p"]), make("Add", ["p", "b"], ["y"])]
    small, errors = Int4Quantizer.quantised(graph(nodes, ["x"], ["y"], {"w": w, "b": b}))
    assert [node.op_type for node in small.graph.node] == ["MatMulNBits"]
    weight, size = restored(small, "w", n_in)
    assert size == block_size(n_in)
    assert errors == [pytest.approx(np.linalg.norm(weight - w) / np.linalg.norm(w), rel=1e-4)]
    assert 0.02 < errors[0] < 0.15
    (y,) = onnxruntime.InferenceSession(small.SerializeToString()).run(None, {"x": x})
    off = np.abs(y - (x.astype(np.float64) @ weight + b))
    assert (off <= room(x, weight, size)).all()


def test_turned_matrices_are_found_and_tables_are_rows_of_eight_bits():
    import onnxruntime

    make, table, w = onnx.helper.make_node, drawn(3, 60, 32), drawn(4, 60, 32)
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, None)
    nodes = [
        make("Gather", ["table", "ids"], ["x"]),
        make("Transpose", ["w"], ["t"], perm=[1, 0]),
        make("MatMul", ["x", "t"], ["y"]),
        make("Gemm", ["y", "w"], ["z"]),
        make("Gemm", ["z", "w"], ["g"], transB=1),
    ]
    proto = graph(nodes, [], ["x", "y", "z", "g"], {"table": table, "w": w})
    proto.graph.input.append(ids)
    small, errors = Int4Quantizer.quantised(proto)
    assert len(errors) == 3
    ops = [node.op_type for node in small.graph.node]
    assert ops == ["Gather", "Gather", "Cast", "Mul", "MatMulNBits", "MatMulNBits", "MatMulNBits"]
    given = np.array([7, 59, 0])
    session = onnxruntime.InferenceSession(small.SerializeToString())
    x, y, z, g = session.run(None, {"ids": given})
    assert np.abs(x - table[given]).max() <= np.abs(table).max() / 127 / 2 * (1 + 1e-5)
    for found, before, n_in, key in [(y, x, 32, "t"), (z, y, 60, "w"), (g, z, 32, "w.turned")]:
        weight, size = restored(small, key, n_in)
        assert (np.abs(found - before @ weight) <= room(before, weight, size)).all()


def test_an_error_is_a_share_of_what_should_be_there():
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)
    assert relative_error(torch.tensor([torch.nan]), torch.tensor([1.0])) == torch.inf


def test_exports_of_before_have_no_errors_and_open(tmp_path):
    plain = json.loads(ExportRecord(topology="decoder", precision="int8").text())
    del plain["errors"]
    (tmp_path / ABOUT).write_text(json.dumps(plain))
    assert ExportRecord.read(tmp_path).errors == {}


def test_int4_is_for_onnx_and_one_precision_is_chosen(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--to", "hf", "--out", str(tmp_path / "out"), "--int4"]) == 2
    assert "--int4 belongs to --to onnx" in capsys.readouterr().err
    words = ["export", str(tmp_path), "--to", "onnx", "--out", str(tmp_path / "out"), "--int4", "--int8"]
    assert refused(words) == 2
    assert "not allowed with" in capsys.readouterr().err


def refused(words):
    """Return the exit code of a command line, whether it comes back or leaves."""
    try:
        return main(words)
    except SystemExit as error:
        return error.code


@pytest.mark.slow
def test_int4_is_smaller_than_int8_and_says_what_it_costs(tmp_path):
    about, eight = to_int4(exported("gpt2"), tmp_path / "small"), to_int8(exported("gpt2"), tmp_path / "int8")
    assert about.precision == "int4"
    assert 0.04 < about.errors["weights"] < 0.15
    assert eight.errors["outputs"] < about.errors["outputs"] < 0.5
    assert ExportRecord.read(tmp_path / "small").errors == about.errors
    four, of_eight = (folder / "model.onnx" for folder in (tmp_path / "small", tmp_path / "int8"))
    assert four.stat().st_size < of_eight.stat().st_size
    run = ExportedModel(tmp_path / "small", threads=1)
    mine, its = (after(one, [[9, 30, 21]]) for one in (run, engine("gpt2")))
    assert torch.nn.functional.cosine_similarity(mine, its).item() > 0.9
    assert len(kf.generate(OnnxEngine(run), [9, 30], max_new=8, greedy=True)) == 10
    with pytest.raises(SpecError, match="int4 already"):
        to_int8(tmp_path / "small", tmp_path / "smaller")


@pytest.mark.slow
@pytest.mark.long
def test_from_a_run_to_a_score_of_int4(tmp_path, capsys):
    run, small = tmp_path / "run", tmp_path / "small"
    assert main(["train", "gpt2", *options(run, 40)]) == 0
    capsys.readouterr()
    words = ["--to", "onnx", "--out", str(small), "--int4", "--data", "own", "--batches", "2", "--json"]
    assert main(["export", str(run), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["precision"] == "int4"
    assert set(found["errors"]) == {"weights", "outputs"}
    scores = found["scores"]["target-token"]
    assert scores["torch fp32"] != scores["onnxruntime int4"]
    assert scores["torch fp32"] == pytest.approx(scores["onnxruntime int4"], abs=0.1)
    for engine_name in ("onnx", "auto"):
        words = ["--engine", engine_name, "--prompt", "abc", "--greedy", "--max-new", "5"]
        assert main(["generate", str(small), *words]) == 0
        assert capsys.readouterr().out.startswith("abc")
    assert main(["export", str(small), "--to", "onnx", "--out", str(tmp_path / "again")]) == 2
    assert "--int8 and --int4 quantise its weights" in capsys.readouterr().err
