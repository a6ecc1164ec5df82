"""Exported graphs say what torch says: at lengths and batches that were not traced, and token by token."""

import pytest

import kinfolk as kf
from tests.onnx.toys import exported, toy

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PROMPTS = [[9, 30, 21], [12], [33, 8, 8, 17, 20], [9, 9, 9]]


@pytest.mark.parametrize("how", [{"greedy": True}, {"beams": 3}, {"seed": 3, "top_p": 0.9}], ids=str)
def test_the_same_text_comes_out_of_torch_and_onnxruntime(how):
    m, engine = toy("gpt2"), exported("gpt2")
    assert engine.about.fused
    assert kf.generate(engine, PROMPTS, max_new=10, **how) == kf.generate(m, PROMPTS, max_new=10, **how)
