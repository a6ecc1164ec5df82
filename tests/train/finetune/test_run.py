"""From a model that knows something to a run of one's own task."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from kinfolk.cli.main import main
from kinfolk.core.errors import CheckpointError, SpecError
from kinfolk.objectives.tasks.registry import named
from kinfolk.runs.folder import read
from kinfolk.train import RunOptions
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import finetune, prepare, write_start
from kinfolk.train.finetune.source import open_source
from kinfolk.train.run import reopen
from tests.train.finetune.conftest import make_run

FEW = ("--epochs", "2", "--batch-size", "16", "--lr", "5e-3", "--quiet", "--no-tensorboard")


def tune(what, files, out, *more):
    given = ["--train", str(files[0]), "--valid", str(files[1]), "--out", str(out), *FEW, *more]
    return main(["finetune", str(what), *given])


@pytest.mark.slow
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


def test_a_run_outlives_the_cache(run, files, tmp_path, capsys):
    assert tune(run, files, tmp_path / "mine", "--json", "--steps", "2") == 0
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(run)
    capsys.readouterr()
    assert reopen(tmp_path / "mine").fingerprint == read(tmp_path / "mine").fingerprint
    assert main(["eval", str(tmp_path / "mine"), "--json"]) == 0


def test_new_tokens_stand_behind_the_old_ones(words, files, tmp_path):
    small = make_run(tmp_path / "small", "bert", words, vocab_size=words.vocab_size - 3)
    made = prepare(open_source(small), named("classify"), files)
    assert made.recipe.model.vocab_size == words.vocab_size
    start, source = load_file(write_start(made, tmp_path / "start")[0]), load_file(small / "model.safetensors")
    name = "embedding.table.weight"
    assert torch.equal(start[name][:-3], source[name])
    assert start[name][-3:].abs().sum() > 0


def test_a_body_that_does_not_fit_is_refused_by_name(run, files, tmp_path):
    wider = ("model.encoder.blocks[0].parts[1].d_ff=48",)
    made = prepare(open_source(run), named("classify"), files, assignments=wider)
    with pytest.raises(CheckpointError, match=r"encoder.blocks.0.parts.1.widen.weight has shape \(32, 16\)"):
        write_start(made, tmp_path / "start")
    with pytest.raises(SpecError, match="40 tokens of 1 texts do not fit"):
        prepare(open_source(run), named("classify"), files, effort=Effort(length=40))
    with pytest.raises(SpecError, match="metric: no validation measures 'mmc'; did you mean 'mcc'"):
        finetune(prepare(open_source(run), named("classify"), files, effort=Effort(metric="mmc")), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckpointError, match=r"none of run\.toml, onnx\.json, spec\.toml, config\.json is here"):
        open_source(tmp_path)


def test_the_best_checkpoint_is_that_of_the_metric(run, files, tmp_path):
    effort = Effort(steps=12, batch_size=16, lr=1e-2, metric="mcc", validations=4, patience=2)
    made = prepare(open_source(run), named("classify"), files, effort=effort)
    result, _ = finetune(made, tmp_path / "out", options=RunOptions(quiet=True, tensorboard=False, threads=1))
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    found = {row["step"]: row["valid"]["mcc"] for row in rows if "valid" in row}
    assert len(found) > 1
    assert result.best == max(found.values())
    assert result.best_step == min(step for step, value in found.items() if value == result.best)
