"""Small models away from their beginning, exported once for all tests."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import kinfolk as kf
from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.use.onnx.export import to_onnx
from tests.family.test_relatives import numbers


@functools.cache
def toy(name, **changes):
    """Return a model of one layer whose biases are not zero and whose gains are not one."""
    recipe = kf.relative(name, size="tiny", **numbers(name, n_layers=1, **changes))
    m, draw = kf.build(recipe, seed=1).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in m.parameters():
            p += 0.05 * torch.randn(p.shape, generator=draw)
    return m


@functools.cache
def exported(name):
    """Return the folder of its graphs."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    to_onnx(toy(name), folder / "graphs")
    return folder / "graphs"


@functools.cache
def engine(name):
    return ExportedModel(exported(name), threads=1)


def after(model, prompts, max_new=2):
    """Return the scores of an exported model after prompts."""
    batch, how = RunningBatch(OnnxEngine(model)), Decoding(ids=model.generation)
    batch.start([RunningSequence(prompt=row, max_new=max_new, how=how) for row in prompts])
    return batch.logits_BV


def graph(nodes, inputs, outputs, constants):
    """Return an ONNX graph of float tensors."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    infos = [[helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ns] for ns in (inputs, outputs)]
    made = helper.make_graph(nodes, "g", *infos, [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
