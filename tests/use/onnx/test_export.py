"""Exported graphs say what torch says: at lengths and batches that were not traced, and token by token."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import CheckpointError, MissingExtraError, ShapeError, SpecError
from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.decoding.engines.onnx.rows import joined
from kinfolk.runs.onnx_export import ExportRecord
from kinfolk.use.onnx.check import LIMIT, apart
from kinfolk.use.onnx.export import to_int8, to_onnx
from tests.family.test_relatives import tokens
from tests.use.onnx.toys import after, engine, exported, toy

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

HOUSE = Path(__file__).parents[3]
PROMPTS = [[9, 30, 21], [12], [33, 8, 8, 17, 20], [9, 9, 9]]
HOW = [{"greedy": True}, {"beams": 3}, {"seed": 3, "top_p": 0.9}]
DECODERS = ["gpt2", "t5", "transformer-xl", "lstm"]
"""By the fused operator; with a bias and an encoder; by keys that grow; by a state of one size."""
CASES = [pytest.param(name, marks=[pytest.mark.long] * (name in ("t5", "transformer-xl"))) for name in DECODERS]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_same_text_comes_out_of_torch_and_onnxruntime(name):
    for how in HOW:
        mine = kf.generate(OnnxEngine(engine(name)), PROMPTS, max_new=10, **how)
        assert mine == kf.generate(toy(name), PROMPTS, max_new=10, **how), how


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_scores_are_torchs_at_lengths_that_were_not_traced(name):
    about = engine(name).about
    assert set(about.differences) == {"1 x 1", "1 x 8", "3 x 11"}
    assert 0 < max(about.differences.values()) <= LIMIT
    for rows, length in ((1, 23), (5, 2)):
        t = tokens(rows, length, seed=rows)
        got = after(engine(name), t.tolist())
        m = toy(name)
        want = m(t, torch.ones(rows, 1, dtype=torch.long)) if about.topology == "encoder-decoder" else m(t)
        assert apart(got, m.head.logits(want.hidden[:, -1])) < LIMIT


def test_an_encoder_says_the_same_of_padded_pairs():
    m, run = toy("bert"), engine("bert")
    t, keep = tokens(4, 17), torch.arange(17) < torch.tensor([[17], [3], [9], [1]])
    segments = (torch.arange(17) > 5).long().expand(4, 17).contiguous()
    batch = Batch(index=torch.arange(4), tokens=t, keep=keep, segments=segments)
    hidden, logits = run.answer(batch)
    out = m.run(batch)
    assert apart(hidden[keep], out.hidden[keep]) < LIMIT
    assert apart(logits[keep], out.logits[keep]) < LIMIT
    other = run.answer(batch.replace(segments=torch.zeros_like(segments)))[0]
    assert apart(other[keep], hidden[keep]) > 0.01
    with pytest.raises(SpecError, match="does not generate"):
        kf.generate(OnnxEngine(run), [3, 4], max_new=1)


def test_rows_join_a_state_and_are_chosen_from_it():
    run = engine("gpt2")
    apart_states = [run.prompt([row], 12) for row in PROMPTS[:3]]
    state = joined([one for one, _ in apart_states])
    state.select(np.array([2, 0, 0]))
    got = run.advance(state, np.array([[7], [8], [9]]), np.zeros(1, np.int64))[:, 0]
    m = toy("gpt2")
    for i, row in enumerate([[*PROMPTS[2], 7], [*PROMPTS[0], 8], [*PROMPTS[0], 9]]):
        want = m.head.logits(m(torch.tensor([row])).hidden[0, -1:])[0]
        assert apart(torch.from_numpy(got[i]), want) < LIMIT


def test_what_is_wrong_is_said(tmp_path, monkeypatch):
    with pytest.raises(ShapeError, match="64"):
        kf.generate(OnnxEngine(engine("gpt2")), [9] * 60, max_new=10)
    with pytest.raises(CheckpointError, match=r"no onnx\.json"):
        ExportedModel(tmp_path)
    (tmp_path / "onnx.json").write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match="another version"):
        ExportRecord.read(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(SpecError, match="is no export"):
        to_int8(exported("gpt2"), tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep me"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="onnx"):
        to_onnx(toy("gpt2"), tmp_path / "x")


def test_pictures_are_of_one_size():
    graphs, model = engine("vit"), toy("vit")
    length = model.spec.max_len
    assert (graphs.about.length, graphs.about.padded, graphs.about.limit) == (length, False, None)
    batch = Batch(index=torch.arange(5), tokens=tokens(5, length))
    hidden, logits = graphs.answer(batch)
    with torch.no_grad():
        wanted = model.run(batch)
    torch.testing.assert_close(hidden, wanted.hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, wanted.logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match=f"{length - 1} values are given"):
        graphs.answer(batch.replace(tokens=batch.tokens[:, 1:]))


@pytest.mark.slow
def test_what_cannot_be_exported_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"decoder\S* \(.*\) cannot be exported"):
        to_onnx(toy("act-rnn"), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind", "state"),
    [
        ("gla", "linear-recurrence", "RecurrentMatrix"),
        ("mamba", "mamba", "RecurrentVector"),
        ("griffin", "rg-lru", "RecurrentVector"),
        ("rwkv7", "rwkv7", ""),
        ("xlstm", "", ""),
        ("hyena", "hyena", "ConvolvedInputs"),
        ("mixture-of-depths", "attention", "ChosenSlots"),
    ],
)
def test_states_without_a_form_are_refused_by_name(name, kind, state, tmp_path):
    place = rf"decoder\.blocks\.0\.parts\.0 \({kind or '.*'}\) cannot be exported: a state of the kind {state}"
    with pytest.raises(SpecError, match=place):
        to_onnx(toy(name), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_the_page_lists_every_relative():
    text = (HOUSE / "docs" / "onnx.md").read_text(encoding="utf-8")
    table = text.partition("<!-- relatives -->")[2].partition("<!-- /relatives -->")[0]
    rows = {
        line.split("|")[1].strip(): line for line in table.splitlines() if re.match(r"\| (?!relative )[a-z0-9]", line)
    }
    missing = set(kf.relatives()) - rows.keys()
    assert not missing, f"run docs/studies/onnx_table.py {' '.join(sorted(missing))}"
    found = {name: line.split("|")[2].strip() for name, line in rows.items()}
    refused = {name for name, how in found.items() if how == "no"}
    assert refused.isdisjoint({*DECODERS, "bert"})
    assert "act-rnn" in refused
    for name in rows.keys() - refused:
        assert float(rows[name].split("|")[3]) <= LIMIT, name


def test_importing_kinfolk_onnx_needs_no_extra():
    import subprocess

    code = (
        "import sys, kinfolk.use.onnx.opening; print(sorted({'onnx', 'onnxruntime', 'onnxscript'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOUSE)
    assert done.stdout.strip() == "[]"
