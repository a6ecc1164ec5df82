"""Memory from step to step: it is used, it is in the checkpoint, and no cut of the batch changes what it holds."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kinfolk as kf
from kinfolk.core.annotations import Continuation
from kinfolk.core.batch import Batch
from kinfolk.core.errors import CheckpointError
from kinfolk.data import Batches, Data, open_data
from kinfolk.objectives.learner import Learner
from kinfolk.runs.checkpoint import Checkpoints
from kinfolk.runs.run import Run
from kinfolk.runs.vocabulary import vocabulary_of
from kinfolk.train import RunOptions, resume, train
from kinfolk.train.evaluate import evaluate
from kinfolk.train.loop import Session
from kinfolk.train.memory import Memories
from kinfolk.train.parallel import Team
from kinfolk.train.run import make_job
from tests.train.toy import rows, same_run

QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu", threads=1)
SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 64, "segment": 8, "memory": 12}
SHORT = {
    "training.steps": 9,
    "training.batch_size": 4,
    "training.length": 8,
    "training.eval_every": 3,
    "training.eval_batches": 2,
    "training.save_every": 2,
    "training.precision": "fp32",
    "training.compile": "off",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Make a text short enough that every row begins anew after seven steps."""
    folder, cache = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("cache")
    for i in range(8):
        (folder / f"{i}.txt").write_text(" ".join(str(j * (i + 3)) for j in range(10 + i)))
    return open_data(folder, cache=cache)


def recipe(data: Data, **changes: Any) -> Any:
    numbers: dict[str, Any] = SMALL | SHORT | {"dropout": 0.1} | changes
    return kf.relative("transformer-xl", size="tiny", vocab_size=data.tokenizer.vocab_size, **numbers)


class CutError(Exception):
    """Stands for whatever may end a process between two steps."""


@pytest.mark.parametrize("changes", [{}, {"training.accumulate": 2}, {"training.recompute": "blocks"}], ids=str)
@pytest.mark.parametrize("step", [3, 7])
def test_a_run_that_remembers_resumes_to_the_bit(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], step: int
) -> None:
    train(recipe(data, **changes), data, tmp_path / "whole", seed=3, options=QUIET)
    update = Session.update

    def dying(self: Session, stop: Any) -> Any:
        if self.counters.step >= step:
            raise CutError
        return update(self, stop)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "update", dying)
        with pytest.raises(CutError):
            train(recipe(data, **changes), data, tmp_path / "cut", seed=3, options=QUIET)
    assert (tmp_path / f"cut/checkpoints/step-00000{step - 1}/memory.safetensors").exists()
    assert resume(tmp_path / "cut", data=data, options=QUIET).status == "finished"
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_what_is_remembered_counts(data: Data, tmp_path: Path) -> None:
    """Without the memory of the step before, the second loss is another, and the first is not."""
    train(recipe(data, dropout=0.0), data, tmp_path / "with", options=QUIET)
    train(recipe(data, dropout=0.0, **{"training.order": "shuffled"}), data, tmp_path / "shuffled", options=QUIET)
    job = make_job(recipe(data, dropout=0.0), data, 0)
    batch, _ = job.read(2, Team())
    assert rows(tmp_path / "with")[0]["loss"] != rows(tmp_path / "with")[1]["loss"]
    newest = Checkpoints(tmp_path / "shuffled/checkpoints").newest()
    assert newest is not None
    assert newest.tensors("memory") == {}
    memory = job.learner.new_memory()
    job.learner(job.read(1, Team())[0], memory)
    memory.settle()
    assert job.learner(batch, memory).total != job.learner(batch).total


def test_rows_that_begin_anew_remember_nothing(data: Data) -> None:
    job = make_job(recipe(data, dropout=0.0), data, 0)
    memories, per_row = Memories(job.learner), job.batches.steps_per_epoch
    for step in range(1, per_row + 2):
        batch, _ = job.read(step, Team())
        found = job.learner(batch, *memories.before(0, batch)).total
        assert (found == job.learner(batch).total) == (step in (1, per_row + 1))
        memories.settle()


def test_accumulating_changes_nothing_but_memory(data: Data, tmp_path: Path) -> None:
    """Each micro-batch has the memory of its own rows."""
    for n in (1, 4):
        train(recipe(data, dropout=0.0, **{"training.accumulate": n}), data, tmp_path / str(n), options=QUIET)
    one, four = ([row["loss"] for row in rows(tmp_path / n) if "loss" in row] for n in ("1", "4"))
    assert one == pytest.approx(four, rel=1e-5)


def test_evaluation_remembers_and_ends_with_every_token(data: Data) -> None:
    r = recipe(data, dropout=0.0)
    model = kf.build(r, seed=2).double()
    learner = Learner(model, r.objective, vocabulary_of(data.tokenizer))
    valid: Any = data.split("valid")
    stream = torch.tensor(valid.window(0, valid.n_tokens).astype("int64"))[None]
    whole = learner.prepare(Batch(index=torch.zeros(1), tokens=stream), None)  # type: ignore[arg-type]
    (total, count) = learner.eval().measure(whole)["next-token"]
    found = evaluate(learner, Batches(valid, batch_size=1, length=8, shuffle=False, order="contiguous"))
    assert found["next-token"].count == int(count) == valid.n_tokens - 1
    assert found["next-token"].total == pytest.approx(float(total), rel=1e-10)
    several = evaluate(learner, Batches(valid, batch_size=5, length=8, shuffle=False, order="contiguous"))
    assert several["next-token"].count == count
    assert several["next-token"].mean != pytest.approx(found["next-token"].mean, rel=1e-9)
    alone = evaluate(learner, Batches(valid, batch_size=5, length=8, shuffle=False))
    assert alone["next-token"].count == count
    assert alone["continuation"].count < 0.6 * int(count)


def test_the_run_is_scored_as_it_was_trained(data: Data, tmp_path: Path) -> None:
    result = train(recipe(data), data, tmp_path / "run", options=QUIET)
    read, learner = Run.open(tmp_path / "run").recipe, Run.open(tmp_path / "run").learner()
    assert read.training.order == "contiguous"
    batches = Batches(data.split("valid"), batch_size=4, length=8, shuffle=False, order="contiguous")
    assert evaluate(learner, batches, 2)["next-token"].mean == result.best


@dataclasses.dataclass(frozen=True)
class Half(Team):
    """One of two processes, which is told the rows of the other."""

    others: Any = None

    def rows(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor, self.others.pop(0)])


def test_rows_find_their_memory_whatever_the_processes(data: Data) -> None:
    learner: Any = make_job(recipe(data, dropout=0.0), data, 0).learner.eval()
    job = make_job(recipe(data, dropout=0.0), data, 0)
    batches = [job.read(step, Team())[0] for step in (1, 2, 3)]

    def after(parts: int) -> list[Memories]:
        found = []
        for i in range(parts):
            memories = Memories(learner)
            for batch in batches[:2]:
                part = batch.rows(slice(4 // parts * i, 4 // parts * (i + 1)))
                learner(part, *memories.before(0, part))
                memories.settle()
            found.append(memories)
        return found

    whole, (first, second) = after(1)[0], after(2)
    want = whole.tensors(Team())
    others = [x for name, x in second.tensors(Team()).items() if name != "next_pos"]
    got = first.tensors(Half(others=others))
    assert want.keys() == got.keys()
    assert {name.split(".")[-1] for name in want} == {"x", "keep", "group", "next_pos"}
    torch.testing.assert_close(got, want)
    losses = []
    for rank in (0, 1):
        memories = Memories(learner)
        memories.restore(got, Team(rank=rank, world=2))
        part = batches[2].rows(slice(2 * rank, 2 * rank + 2))
        losses.append(learner(part, *memories.before(0, part)).total.detach())
    want = learner(batches[2], *whole.before(0, batches[2])).total.detach()
    torch.testing.assert_close(torch.stack(losses).sum(), want)
    with pytest.raises(CheckpointError, match="does not fit 3 micro-batches"):
        Memories(learner, 3).restore(got, Team())


def test_who_has_nothing_to_remember_is_not_asked(data: Data) -> None:
    batch = Batch(index=torch.arange(2), tokens=torch.zeros(2, 3))
    batch = batch.annotate(Continuation(torch.ones(2, dtype=torch.bool)))
    memories = Memories(object())
    assert memories.before(0, batch) == ()
    assert memories.tensors(Team()) == {}
    memories.restore({}, Team())
    memories.settle()
    assert Memories(make_job(recipe(data), data, 0).learner).before(0, batch.without(Continuation)) == ()


def test_what_layers_borrow_is_sharded_with_the_rest(data: Data) -> None:
    """XL's biases are read by every layer and called by none."""
    learner = make_job(recipe(data), data, 0).learner
    sharded = list(learner.model.decoder.units)
    assert sharded == list(learner.model.decoder.blocks)
    assert len(learner.model.decoder.shared) == 1
