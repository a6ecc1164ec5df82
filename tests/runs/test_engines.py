"""`--engine auto` goes by what is installed and what is in the folder."""

import importlib.util

import torch

from kinfolk.cli.main import main
from kinfolk.core.durable import digest
from kinfolk.runs import engines
from kinfolk.runs.engines import KEPT, automatic
from kinfolk.runs.onnx_export import ExportRecord
from tests.use.serve.conftest import make_run


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
