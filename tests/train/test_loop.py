"""The loop: repeats itself, stops when it should, and says what it did."""

import dataclasses
import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kinfolk.core.errors import TrainingError
from kinfolk.optim import AdamW
from kinfolk.runs import folder
from kinfolk.runs.checkpoint import Checkpoints, DamagedCheckpoint
from kinfolk.train import precision
from kinfolk.train.evaluate import MeanScore, bits_per_byte, evaluate
from kinfolk.train.job import TrainingJob
from kinfolk.train.parallel import Team
from kinfolk.train.state import Counters
from tests.train.toy import QUIET, ToyBatches, ToyLoss, job, rows, same_run, signalled, start


def test_the_same_seed_gives_the_same_bits(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        start(tmp_path / name, job(seed))
    assert same_run(tmp_path / "a", tmp_path / "b")
    assert not same_run(tmp_path / "a", tmp_path / "c")


def test_it_learns_and_says_so(tmp_path: Path) -> None:
    result = start(tmp_path / "run", job(steps=80, eval_every=20, flops=1000.0))
    losses = [row["loss"] for row in rows(tmp_path / "run") if "loss" in row]
    assert len(losses) == 80
    assert losses[-1] < 0.8 * losses[0]
    assert result.status == "finished"
    assert result.step == result.total_steps == 80
    assert json.loads((tmp_path / "run/result.json").read_text()) == dataclasses.asdict(result)
    assert result.tokens == rows(tmp_path / "run")[-1]["tokens"]
    assert result.flops == 1000 * result.tokens


def test_the_run_folder_is_complete(tmp_path: Path) -> None:
    start(tmp_path / "run", job())
    names = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    written = {"spec.toml", "run.toml", "metrics.jsonl", "checkpoints", "result.json", "model.safetensors"}
    assert names == {*written, "manifest.json", "report.html"}
    assert not list((tmp_path / "run").rglob("*.part"))
    kept = Checkpoints(tmp_path / "run/checkpoints")
    found = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(found[name], x) for name, x in kept.best().tensors("model").items())


def test_rows_have_the_agreed_fields(tmp_path: Path) -> None:
    start(tmp_path / "run", job(steps=3, flops=1000.0))
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    clocks = {"seconds", "tokens_per_second", "mfu", "waiting"}
    assert set(lines[0]) == {"step", "loss", "lr", "tokens", "grad_norm"} | clocks
    assert set(lines[-1]) == {"step", "valid", "bits_per_byte", "seconds", "tokens", "flops"}
    assert [line["step"] for line in lines] == [1, 2, 3, 3]
    assert list(lines[-1]["valid"]) == ["next-token"]


@pytest.mark.parametrize("steps", range(1, 12))
def test_stopping_after_any_step_and_going_on_changes_nothing(tmp_path: Path, steps: int) -> None:
    start(tmp_path / "whole", job())
    first = job()
    stopper = StopAt(first, steps)
    assert start(tmp_path / "cut", stopper).status == "interrupted"
    assert not (tmp_path / "cut/result.json").exists()
    assert start(tmp_path / "cut", job()).status == "finished"
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def StopAt(the_job: TrainingJob, step: int) -> TrainingJob:  # noqa: N802
    """Return a job during whose step a signal arrives: SIGTERM or SIGINT, one after the other."""
    signals = [signal.SIGTERM if step % 2 else signal.SIGINT]
    return signalled(the_job, step, signals)


def test_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    start(tmp_path / "run", StopAt(job(), 2))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut", signalled(job(), 6, [signal.SIGINT, signal.SIGINT]))
    start(tmp_path / "cut", job())
    start(tmp_path / "whole", job())
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_newest_checkpoint_costs_only_its_steps(tmp_path: Path) -> None:
    start(tmp_path / "whole", job())
    start(tmp_path / "cut", StopAt(job(), 10))
    newest = tmp_path / "cut/checkpoints/step-000010/model.safetensors"
    os.truncate(newest, newest.stat().st_size // 2)
    with pytest.warns(DamagedCheckpoint, match="step-000010"):
        start(tmp_path / "cut", job())
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_an_optimiser_without_tensors_resumes_too(tmp_path: Path) -> None:
    adam = {"optimiser": AdamW(lr=0.02, decay="all", weight_decay=0.1), "accumulate": 2}
    start(tmp_path / "whole", job(**adam))
    start(tmp_path / "cut", StopAt(job(**adam), 5))
    start(tmp_path / "cut", job(**adam))
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_fp16_resumes_with_its_loss_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the toy is small enough for fp16 on a CPU
    monkeypatch.setattr(precision, "settle", lambda training, _: precision.PrecisionChoice(training.precision))

    def half() -> TrainingJob:
        return job(precision="fp16")

    start(tmp_path / "whole", half())
    start(tmp_path / "cut", StopAt(half(), 5))
    start(tmp_path / "cut", half())
    assert same_run(tmp_path / "whole", tmp_path / "cut")
    files = [tmp_path / run / "checkpoints/step-000012/state.json" for run in ("cut", "whole")]
    scales = [json.loads(file.read_text())["scale"] for file in files]
    assert scales[0] == scales[1]
    assert scales[0]["good"] > 7
    assert folder.read(tmp_path / "cut").choice.precision == "fp16"


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    """A rate so high that the loss gets worse."""
    wild = {"optimiser": AdamW(lr=3.0), "patience": 2, "steps": 60, "keep_last": 1, "eval_every": 2, "clip": 0.0}
    result = start(tmp_path / "run", job(**wild))
    assert result.status == "early"
    assert result.step < 60
    valid = [(row["valid"]["next-token"], row["step"]) for row in rows(tmp_path / "run") if "valid" in row]
    assert (result.best, result.best_step) == min(valid)
    assert result.step == result.best_step + 4
    assert Checkpoints(tmp_path / "run/checkpoints").best().step == result.best_step
    again = start(tmp_path / "run", job(**wild))
    assert again == dataclasses.replace(result, mfu=again.mfu)


@pytest.mark.parametrize(("accumulate", "shown"), [(1, range(48, 56)), (4, range(52, 54)), (8, range(53, 54))])
def test_not_a_number_stops_with_step_and_examples_named(tmp_path: Path, accumulate: int, shown: range) -> None:
    """Example 53 is the sixth row of the seventh batch."""
    the_job = job(accumulate=accumulate)

    def poison(module: object, inputs: tuple, output: ToyLoss) -> ToyLoss:
        hit = module.training and 53 in inputs[0].index.tolist()
        return dataclasses.replace(output, total=output.total * (math.nan if hit else 1.0))

    the_job.learner.register_forward_hook(poison)
    with pytest.raises(TrainingError, match="step 7: the loss is nan") as caught:
        start(tmp_path / "run", the_job)
    assert f"examples {', '.join(map(str, shown))} (saved in" in str(caught.value)
    saved = load_file(tmp_path / "run/bad-batch-step-000007-process-0.safetensors")
    assert saved["index"].tolist() == list(shown)
    assert torch.equal(saved["tokens"], ToyBatches().at(6).tokens[shown[0] - 48 : shown[-1] - 47])
    assert rows(tmp_path / "run")[-1]["step"] == 6


def test_the_clock_ends_a_run(tmp_path: Path) -> None:
    options = QUIET.replace(max_seconds=1e-9)
    result = start(tmp_path / "run", job(), options)
    assert (result.status, result.step) == ("clock", 1)
    assert result.valid


def test_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinfolk.runs import checkpoint

    save = checkpoint.save_file

    def full(tensors: object, path: Path) -> None:
        if "step-000008" in str(path):
            path.write_bytes(b"some of it")
            raise OSError(28, "No space left on device")
        save(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(TrainingError, match="the disk is full"):
        start(tmp_path / "cut", job(eval_every=0))
    monkeypatch.undo()
    assert Checkpoints(tmp_path / "cut/checkpoints").newest().step == 4
    start(tmp_path / "cut", job(eval_every=0))
    start(tmp_path / "whole", job(eval_every=0))
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_validation_covers_every_example_once() -> None:
    the_job, batches = job(), ToyBatches(rows=4, last_rows=1)
    scores = evaluate(the_job.learner, batches)
    count = sum(int(batches.at(i).keep[:, 1:].sum()) for i in range(3))
    assert scores["next-token"].count == count
    part = evaluate(the_job.learner, batches, 2)
    assert part["next-token"].count == sum(int(batches.at(i).keep[:, 1:].sum()) for i in range(2))
    assert the_job.learner.training
    shares = [evaluate(the_job.learner, batches, team=Lonely(rank=r, world=2))["next-token"] for r in (0, 1)]
    assert sum(s.count for s in shares) == count
    assert sum(s.total for s in shares) == pytest.approx(scores["next-token"].total)


class Lonely(Team):
    """One of several processes, without the others."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def test_a_validation_that_is_not_a_number_is_never_the_best() -> None:
    counters = Counters(step=1)
    assert [counters.judge({"next-token": value}) for value in (math.nan, 3.0, math.nan, 2.0)] == [
        False,
        True,
        False,
        True,
    ]
    assert (counters.best, counters.stale) == (2.0, 0)


def test_bits_per_byte() -> None:
    class Text:
        kind, n_tokens, n_bytes = "text", 100, 400

    assert bits_per_byte({"next-token": MeanScore(20.0, 10.0)}, Text()) == pytest.approx(2.0 / math.log(2) / 4)
    assert bits_per_byte({"masked-token": MeanScore(20.0, 10.0)}, Text()) is None
    assert bits_per_byte({"next-token": MeanScore(20.0, 10.0)}, None) is None


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from kinfolk.core.errors import CheckpointError
    from tests.train.toy import ToyLearner, ToyModel

    start(tmp_path / "run", StopAt(job(), 3))
    other = ToyModel()
    other.blocks.append(torch.nn.Linear(8, 8))
    with pytest.raises(CheckpointError, match="does not fit the model: 2 names differ"):
        start(tmp_path / "run", dataclasses.replace(job(), learner=ToyLearner(other)))
    wide = ToyModel()
    wide.norm = torch.nn.LayerNorm(9)
    with pytest.raises(CheckpointError, match=r"norm.weight has shape \(8,\), the model \(9,\)"):
        start(tmp_path / "run", dataclasses.replace(job(), learner=ToyLearner(wide)))
