"""Several tasks at once: one body, a head for each, and the first is what the model is for."""

import json

import numpy as np
import torch
from safetensors.torch import load_file

from kinfolk.cli.main import main
from kinfolk.core.annotations import TaskNumber
from kinfolk.data import Batches, open_data
from kinfolk.data.splits.several import Turns, name_of
from kinfolk.runs.run import Run
from kinfolk.train.finetune.source import open_source
from tests.train.finetune.conftest import rows, write_csv


class Counting:
    """An order that says its own step."""

    def __init__(self, n):
        self.steps_per_epoch = n

    def at(self, step):
        return step


def test_every_part_has_its_turns():
    turns = Turns([Counting(5), Counting(2)], seed=3)
    for epoch in range(3):
        found = [turns.at(7 * epoch + slot) for slot in range(7)]
        assert [t.rows for t in found if t.part == 0] == list(range(5 * epoch, 5 * epoch + 5))
        assert [t.rows for t in found if t.part == 1] == list(range(2 * epoch, 2 * epoch + 2))
    orders = {tuple(turns.at(7 * epoch + slot).part for slot in range(7)) for epoch in range(9)}
    assert len(orders) > 1


def test_batches_say_whose_they_are(files, tmp_path):
    other = write_csv(tmp_path / "c.csv", [{"text": r["text"], "label": i / 3} for i, r in enumerate(rows(40))])
    names = [f"labelled:{files[0]}", f"labelled:labels=number:{other}"]
    data = open_data(name_of(names))
    batches = Batches(data.split("train"), batch_size=8, length=16)
    whole, numbers = (Batches(open_data(name).split("train"), batch_size=8, length=16) for name in names)
    assert batches.steps_per_epoch == whole.steps_per_epoch + numbers.steps_per_epoch
    kinds = {
        int(b.annotation(TaskNumber).task_B[0]): b.labels.dtype for b in map(batches.at, range(batches.steps_per_epoch))
    }
    assert kinds == {0: torch.int64, 1: torch.float32}
    assert torch.equal(batches.at(3).tokens, batches.at(3).tokens)
    assert data.split("valid").classes == ("no", "yes")
    assert len(data.split("train")) == len(whole.split) + len(numbers.split)


def test_a_body_learns_two_tasks_and_is_asked_for_the_first(run, files, tmp_path, capsys):
    lengths = [{"text": r["text"], "score": float(len(r["text"])) / 8} for r in rows(64, seed=2)]
    other = write_csv(tmp_path / "c.csv", lengths)
    given = ["--train", str(files[0]), "--valid", str(files[1]), "--also", str(other), "--out", str(tmp_path / "out")]
    short = ["--steps", "8", "--batch-size", "8", "--quiet", "--no-tensorboard", "--json", "--lr", "1e-2"]
    assert main(["finetune", str(run), *given, *short]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"accuracy", "mcc"} <= set(found["valid"])
    recipe, learner = Run.open(tmp_path / "out").recipe, Run.open(tmp_path / "out").learner()
    assert [o.kind for o in recipe.objective.others] == ["regress"]
    # both heads have moved, and only the first is in the weights of the model
    start = load_file(tmp_path / "out" / "start.safetensors")
    ended = load_file(tmp_path / "out" / "model.safetensors")
    assert set(start) == set(ended)
    assert not torch.equal(start["head.output.weight"], ended["head.output.weight"])
    own = open_source(tmp_path / "out").weights
    assert not any("partner" in name for name in own)
    assert np.isfinite(learner.partner.heads[0].output.weight.detach().numpy()).all()
    assert main(["eval", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judgement"]["classes"][0]["name"] == "no"
    # then the one task alone, as Sun et al. 2019 advise
    again = ["--train", str(files[0]), "--valid", str(files[1]), "--out", str(tmp_path / "then"), *short]
    assert main(["finetune", str(tmp_path / "out"), *again]) == 0
    assert json.loads(capsys.readouterr().out)["fresh"] == []


def test_several_tasks_are_learnt_in_one_process(run, files, tmp_path, capsys):
    given = ["--train", str(files[0]), "--also", str(files[1]), "--processes", "2", "--out", str(tmp_path / "out")]
    assert main(["finetune", str(run), *given]) == 2
    assert "use one process" in capsys.readouterr().err
