"""`--engine auto` goes by what is installed and what is in the folder."""

import importlib.util
import json

import pytest
import torch

from kinfolk.cli.main import main
from kinfolk.core.durable import digest
from kinfolk.decoding import generate
from kinfolk.decoding.engines import weight_layout
from kinfolk.decoding.engines.torch_engine import Bf16Engine
from kinfolk.decoding.engines.weight_layout import RoundedMap, bf16_available, blocks_available
from kinfolk.runs import engines
from kinfolk.runs.engines import KEPT, automatic
from kinfolk.runs.onnx_export import ExportRecord
from kinfolk.runs.run import Run
from tests.use.serve.conftest import make_run, serving


def graphs_of(folder, source):
    """Pretend that graphs were exported."""
    folder.mkdir(exist_ok=True)
    (folder / "onnx.json").write_text(ExportRecord(topology="decoder", precision="fp32", source=source).text())


def test_auto_takes_graphs_of_the_present_weights_and_torch_otherwise(tmp_path, monkeypatch):
    run = make_run(tmp_path / "a", "gpt2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engines, "accelerator", lambda: None)
    assert automatic(run) == ("torch", "a has no graphs of these weights; --engine onnx makes them, once")
    graphs_of(run / KEPT, "of other weights")
    assert automatic(run)[0] == "torch"
    graphs_of(run / KEPT, digest(run / "model.safetensors"))
    assert automatic(run)[0] == "onnx"
    monkeypatch.setattr(engines, "accelerator", lambda: torch.device("cuda"))
    assert automatic(run) == ("torch", "this machine has an accelerator (cuda)")
    monkeypatch.setattr(engines, "accelerator", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert automatic(run) == ("torch", "onnxruntime is not installed")
    assert automatic(run / KEPT) == ("onnx", "the folder is an export")


def test_generate_says_what_it_took(tmp_path, capsys):
    run = make_run(tmp_path / "a", "gpt2")
    assert main(["generate", str(run), "--prompt", "a", "--max-new", "2", "--greedy", "--engine", "auto"]) == 0
    found = capsys.readouterr()
    assert found.err.startswith("engine: torch: ")
    assert main(["generate", str(run), "--prompt", "a", "--max-new", "2", "--greedy"]) == 0
    assert capsys.readouterr().out == found.out


@pytest.mark.skipif(not (blocks_available() and bf16_available()), reason="no instructions for bf16")
def test_generate_and_serve_take_weights_in_bf16(tmp_path, capsys):
    run = make_run(tmp_path / "gpt2", "gpt2")
    write = ["generate", str(run), "--prompt", "a", "--max-new", "4", "--greedy", "--json"]
    assert main([*write, "--engine", "torch-bf16"]) == 0
    ids = json.loads(capsys.readouterr().out)["ids"]
    model = Bf16Engine.open(Run.open(run)).model
    assert ids == generate(model, [ids[:-4]], max_new=4, greedy=True)[0]
    with serving([run], engine="torch-bf16") as server:
        assert isinstance(server.served["gpt2"].model.decoder.blocks[0].parts[0].qkv, RoundedMap)
        assert len(server.write(prompt="a", max_tokens=4)["choices"]) == 1


def test_weights_in_bf16_are_refused_where_the_processor_has_no_instructions(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "a", "gpt2")
    monkeypatch.setattr(weight_layout, "bf16_available", lambda: False)
    assert main(["generate", str(run), "--prompt", "a", "--engine", "torch-bf16"]) == 2
    assert "instructions for bf16" in capsys.readouterr().err
