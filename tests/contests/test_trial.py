"""One trial, in this process: what it reports when it ends well, badly, or not at all."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.contests import trial
from kinfolk.contests.outcome import CRASHED, DIVERGED, DONE, OUT_OF_MEMORY, Outcome, Point
from kinfolk.contests.trial import Trial
from kinfolk.core.errors import TrainingError
from kinfolk.core.plain import to_plain
from kinfolk.data import open_data
from kinfolk.family.making import make


@pytest.fixture(scope="module")
def order() -> Trial:
    data = open_data("copy:length=4,symbols=5")
    recipe = make("gpt2", "tiny", vocab_size=data.tokenizer.vocab_size, d_model=8, n_layers=1, n_heads=1, d_ff=8)
    training = recipe.training.replace(
        steps=6, batch_size=4, length=16, eval_every=3, eval_batches=2, save_every=3, precision="fp32", compile="off"
    )
    return Trial(
        name="little",
        seed=0,
        recipe=to_plain(recipe.replace(training=training)),
        data={"name": "copy:length=4,symbols=5"},
        fingerprint=data.fingerprint,
        flops_per_token=10.0,
    )


def changed(order: Trial, **training: Any) -> Trial:
    return dataclasses.replace(order, recipe=order.recipe | {"training": order.recipe["training"] | training})


def test_a_good_end(order: Trial, tmp_path: Path) -> None:
    outcome = trial.run(order, tmp_path)
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.key) == (DONE, "", order.key)
    assert [point.step for point in outcome.curve] == [3, 6]
    assert all(math.isfinite(loss) for point in outcome.curve for loss in point.valid.values())
    assert (outcome.steps, outcome.planned_steps) == (6, 6)
    assert outcome.tokens == outcome.curve[-1].tokens > 0
    assert outcome.flops == 10 * outcome.tokens
    assert outcome.params > 0
    assert outcome.peak_bytes >= outcome.start_bytes > 0
    assert outcome.bytes_per_token > 0
    assert trial.last_row(tmp_path).get("step", 0) == 6


def test_orders_are_carried_out_from_a_folder(order: Trial, tmp_path: Path) -> None:
    order.write(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "interrupt_with_parent", lambda: None)
        assert trial.main(tmp_path) == 0
    outcome = Outcome.read(tmp_path)
    assert outcome is not None
    assert outcome.done
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_an_interruption_is_no_end(order: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    order.write(tmp_path)
    monkeypatch.setattr(trial, "interrupt_with_parent", lambda: None)
    monkeypatch.setattr(trial, "_train", interrupted)
    assert trial.main(tmp_path) == 130
    assert Outcome.read(tmp_path) is None


def test_other_data_than_planned_is_refused(order: Trial, tmp_path: Path) -> None:
    outcome = trial.run(dataclasses.replace(order, fingerprint="other"), tmp_path)
    assert outcome is not None
    assert outcome.status == CRASHED
    assert "is not the data it was" in outcome.reason


def test_a_loss_that_is_not_finite_is_a_divergence(order: Trial, tmp_path: Path) -> None:
    optimiser = order.recipe["training"]["optimiser"] | {"lr": 1e30}
    outcome = trial.run(changed(order, optimiser=optimiser, clip=0.0, steps=30), tmp_path)
    assert outcome is not None
    assert outcome.status == DIVERGED
    assert outcome.steps < 30


def test_far_worse_than_guessing_is_a_divergence() -> None:
    def ends(loss: float, step: int = 9) -> Outcome:
        point = Point(step=step, tokens=1, seconds=1.0, flops=1.0, valid={"next-token": loss})
        return trial._judged(Outcome(name="a", seed=0, status=DONE, steps=9, curve=(point,)), vocab_size=100)

    assert ends(4.7).status == DONE
    assert ends(12.0).status == DIVERGED
    assert "far worse than guessing (4.61 nats)" in ends(12.0).reason
    # its last validation was not a number and so is not on the curve
    assert ends(1.0, step=3).status == DIVERGED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TrainingError("step 3: the loss is nan; examples 1"), DIVERGED),
        (TrainingError("step 3: the gradient is inf; examples 1"), DIVERGED),
        (TrainingError("banana/info: cannot be written: the disk is full"), CRASHED),
        (MemoryError(), OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), OUT_OF_MEMORY),
        (ValueError("odd"), CRASHED),
    ],
)
def test_errors_have_their_names(
    order: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(trial, "_train", fail)
    outcome = trial.run(order, tmp_path)
    assert outcome is not None
    assert outcome.status == status
    assert str(error) in outcome.reason


def test_the_last_line_of_a_crash_says_what_and_where(
    order: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(trial, "_train", fail)
    outcome = trial.run(order, tmp_path)
    assert outcome is not None
    assert outcome.reason.splitlines()[-1].startswith("ValueError: odd (test_trial.py:")


def test_a_measurement_tells_seconds_and_steps(order: Trial) -> None:
    outcome = trial.measure(dataclasses.replace(order, max_seconds=0.05, calibrate=True))
    assert outcome.status == DONE
    assert outcome.steps >= 5
    assert outcome.seconds > 0
    failed = trial.measure(dataclasses.replace(order, fingerprint="other"))
    assert failed.status == CRASHED


def test_a_measurement_runs_where_trials_train(order: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinfolk.train import calibrate, parallel

    where = []
    monkeypatch.setattr(parallel, "choose_device", lambda *_: torch.device("meta"))
    monkeypatch.setattr(calibrate, "calibrate", lambda job, team, **_: where.append(team.device.type) or 1.0)
    trial.measure(dataclasses.replace(order, calibrate=True))
    assert where == ["meta", "meta"]


# what of a trial is no part of its key, and why
ELSEWHERE = {"data": "where the data lies; its fingerprint is a part", "nice": "how polite the process is"}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Trial)])
def test_everything_that_can_change_a_result_is_part_of_the_key(order: Trial, field: str) -> None:
    """A trial with the key of another is not run: its result would be taken for that of the other."""
    value = getattr(order, field)
    others = {str: "other", int: 77, float: 7.5, bool: not value, dict: {"other": 1}}
    changed = dataclasses.replace(order, **{field: others[type(value)]})
    assert (changed.key == order.key) == (field in ELSEWHERE)


def test_the_key_knows_a_source_by_its_weights(order: Trial) -> None:
    begun = dataclasses.replace(order, begins={"source": "a", "digest": "1", "tactic": "plain"})
    moved = dataclasses.replace(begun, begins=begun.begins | {"source": "b"})
    other = dataclasses.replace(begun, begins=begun.begins | {"digest": "2"})
    assert begun.key == moved.key != order.key
    assert other.key != begun.key


def test_progress_of_nothing_and_of_half_a_line(tmp_path: Path) -> None:
    assert trial.last_row(tmp_path).get("step", 0) == 0
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 7}\n{"st')
    assert trial.last_row(tmp_path).get("step", 0) == 7


def test_the_last_weights_are_judged_on_what_did_not_validate(order: Trial, tmp_path: Path) -> None:
    judged = dataclasses.replace(order, held_out="judged")
    apart = dataclasses.replace(order, held_out="apart")
    assert len({order.key, judged.key, apart.key}) == 3
    first = trial.run(judged, tmp_path / "judged")
    second = trial.run(apart, tmp_path / "apart")
    whole = trial.run(order, tmp_path / "whole")
    assert first is not None
    assert second is not None
    assert whole is not None
    # the same training, validated on the same half; only one of them was judged
    assert [p.valid for p in first.curve] == [p.valid for p in second.curve]
    assert set(first.test) == set(first.curve[-1].valid)
    assert first.test != first.curve[-1].valid
    assert first.scores == first.test
    assert second.test == {}
    assert second.scores == second.curve[-1].valid
    # the halves together are the whole: here four batches validate, two of each half
    assert whole.curve[-1].valid != first.curve[-1].valid
    # stopped after training and before it was judged, it is judged when it goes on
    again = trial.run(judged, tmp_path / "judged")
    assert again is not None
    assert again.test == first.test


def test_worse_weights_at_the_end_are_what_is_judged(order: Trial, tmp_path: Path) -> None:
    """The best checkpoint is not what a schedule ends with: with a rate far too high the last weights are worse."""
    fast = {"optimiser": order.recipe["training"]["optimiser"] | {"lr": 0.1}, "schedule": {"kind": "constant"}}
    wild = changed(order, **fast, clip=0.0, steps=6)
    outcome = trial.run(dataclasses.replace(wild, held_out="judged"), tmp_path)
    assert outcome is not None
    name = next(iter(outcome.test))
    losses = [point.valid[name] for point in outcome.curve]
    assert min(losses) < losses[-1]
    assert abs(outcome.test[name] - losses[-1]) < abs(outcome.test[name] - min(losses))


def test_a_branch_is_the_same_schedule_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant rate with branches that cool down costs less, and gives the same bits."""
    from kinfolk.contests import plan
    from kinfolk.contests.branches import SHARES, Tree
    from kinfolk.contests.settings import Settings

    small = ("n_layers=1", "d_model=8", "n_heads=1", "d_ff=8", "training.batch_size=4", "training.eval_batches=1")
    made = plan.make(
        Settings(
            contestants=("gpt2", "vanilla"),
            data="copy:length=4,symbols=5",
            budget="10k-tokens",
            assignments=small,
            match="none",
            tune="off",
            out=tmp_path / "plan",
        )
    )
    monkeypatch.setattr(trial, "interrupt_with_parent", lambda: None)
    for entrant in made.entrants:
        tree = Tree(made, entrant, seed=0, steps=80)
        tree.trunk().write(tmp_path / entrant.name)
        trial.main(tmp_path / entrant.name)
        for share in (SHARES[0], SHARES[2]):
            order = tree.branch(share, str(tmp_path / entrant.name))
            branch = trial.run(order, tmp_path / f"{entrant.name}-branch-{share}")
            whole = trial.run(dataclasses.replace(order, begins={}), tmp_path / f"{entrant.name}-whole-{share}")
            assert branch is not None
            assert whole is not None
            assert branch.steps == whole.steps == 80 * share
            assert branch.curve[-1].valid == whole.curve[-1].valid
            assert branch.tokens == whole.tokens
        # where a trunk lies is not part of what a branch is
        assert tree.branch(1.0, "here").key == tree.branch(1.0, "there").key
