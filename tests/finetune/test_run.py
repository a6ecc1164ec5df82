"""From a model that knows something to a run of one's own task."""

import json

import pytest
import torch
from safetensors.torch import load_file

from kinfolk.cli.main import main

FEW = ("--epochs", "2", "--batch-size", "16", "--lr", "5e-3", "--quiet", "--no-tensorboard")


def tune(what, files, out, *more):
    given = ["--train", str(files[0]), "--valid", str(files[1]), "--out", str(out), *FEW, *more]
    return main(["finetune", str(what), *given])


def test_a_run_learns_labels_and_stays_a_run(run, files, tmp_path, capsys):
    assert tune(run, files, tmp_path / "mine", "--json", "--epochs", "6") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "classify"
    assert found["fresh"]
    assert all(name.startswith("head.") for name in found["fresh"])
    assert found["valid"]["accuracy"] > 0.9
    assert {"macro-f1", "mcc"} <= set(found["valid"])
    assert main(["eval", str(tmp_path / "mine"), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["measures"]["accuracy"]["mean"] == pytest.approx(found["best"])
    # the body is that of the source, and it has moved
    begun = load_file(tmp_path / "mine" / "start.safetensors")
    source, ended = load_file(run / "model.safetensors"), load_file(tmp_path / "mine" / "model.safetensors")
    name = "encoder.blocks.0.parts.0.qkv.weight"
    assert torch.equal(begun[name], source[name])
    assert not torch.equal(ended[name], source[name])


def test_text_without_labels_first_and_labels_then(run, files, tmp_path, capsys):
    assert tune(run, files, tmp_path / "mine", "--json", "--steps", "4", "--further", "3") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4
    first = json.loads((tmp_path / "mine-further" / "result.json").read_text())
    assert "masked-token" in first["valid"]
    begun, learnt = (
        load_file(tmp_path / name) for name in ("mine/start.safetensors", "mine-further/model.safetensors")
    )
    body = [name for name in begun if not name.startswith("head.")]
    assert body
    assert all(torch.equal(begun[name], learnt[name]) for name in body)
    assert not torch.equal(
        begun["embedding.table.weight"], load_file(run / "model.safetensors")["embedding.table.weight"]
    )
