"""What is run, in which order, and what is kept, with processes that are only pretended."""

import io
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinfolk.contests import plan, run
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DIVERGED, DONE, Outcome, Point
from kinfolk.contests.settings import Settings
from kinfolk.models.cost import ModelCost

Pretend = Callable[[Job], Outcome | None]


def ended(job: Job, status: str = DONE, loss: float = 1.0) -> Outcome:
    point = Point(step=5, tokens=50, seconds=1.0, flops=1.0, valid={"target-token": loss})
    curve = (point,) if status == DONE else ()
    return Outcome(name=job.name, seed=job.seed, key=job.key, status=status, steps=5, seconds=1.0, curve=curve)


class Machine:
    """Takes jobs instead of running them."""

    def __init__(self) -> None:
        self.rounds: list[list[Job]] = []
        self.how: Pretend = ended

    def __call__(self, jobs: Sequence[Job], slots: int, screen: object, held: Sequence[int], *_: object) -> None:
        self.rounds.append(list(jobs))
        for job in jobs:
            outcome = self.how(job)
            if outcome is None:
                raise KeyboardInterrupt
            outcome.write(job.folder)

    @property
    def labels(self) -> list[list[str]]:
        return [[f"{job.name}{job.seed}" for job in jobs] for jobs in self.rounds]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(run, "run_all", made)
    return made


def compare(folder: Path, **asked: Any) -> run.Comparison:
    known = {"contestants": ("gpt", "gpt2", "bert"), "data": "copy", "budget": "10k-tokens", "seeds": 2, "jobs": 2}
    settings = Settings(**(known | asked), out=folder)
    return run.run(settings, "kin compare", Console(file=io.StringIO()))


def test_seed_0_of_everybody_comes_first(machine: Machine, tmp_path: Path) -> None:
    result = compare(tmp_path)
    assert machine.labels == [["gpt0", "gpt20", "bert0", "gpt1", "gpt21", "bert1"]]
    assert [len(trials) for trials in result.outcomes.values()] == [2, 2, 2]
    assert "all 6 have finished" in result.facts["trials"]
    assert (tmp_path / "report.html").exists()


def test_more_seeds_and_contestants_add_only_what_is_missing(machine: Machine, tmp_path: Path) -> None:
    compare(tmp_path, contestants=("gpt", "gpt2"))
    compare(tmp_path, contestants=("gpt", "gpt2", "bert"), seeds=3)
    assert machine.labels[1] == ["bert0", "bert1", "gpt2", "gpt22", "bert2"]
    compare(tmp_path, contestants=("gpt", "gpt2", "bert"), seeds=3)
    assert len(machine.rounds) == 2


def test_a_divergence_is_kept_and_a_crash_is_tried_again(machine: Machine, tmp_path: Path) -> None:
    machine.how = lambda job: ended(job, {"gpt": CRASHED, "gpt2": DIVERGED}.get(job.name, DONE))
    first = compare(tmp_path)
    assert {row.name: row.failed for row in first.rows} == {"bert": 0, "gpt": 2, "gpt2": 2}
    assert first.facts["trials"] == "2 of 6 have finished, 2 crashed, 2 diverged"
    machine.how = ended
    second = compare(tmp_path)
    assert machine.labels[1] == ["gpt0", "gpt1"]
    assert {row.name: row.failed for row in second.rows} == {"bert": 0, "gpt": 0, "gpt2": 2}


def test_an_interruption_leaves_a_report_of_what_there_is(machine: Machine, tmp_path: Path) -> None:
    machine.how = lambda job: None if job.seed else ended(job)
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path)
    assert "3 of 6 have finished" in (tmp_path / "report.html").read_text()
    machine.how = ended
    compare(tmp_path)
    assert machine.labels[1] == ["gpt1", "gpt21", "bert1"]


def test_a_request_to_terminate_is_an_interruption(machine: Machine, tmp_path: Path) -> None:
    def terminate(job: Job) -> Outcome:
        os.kill(os.getpid(), signal.SIGTERM)
        return ended(job)

    before = signal.getsignal(signal.SIGTERM)
    machine.how = terminate
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path)
    assert (tmp_path / "report.html").exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_seconds_are_measured_in_full_rounds_and_only_once(machine: Machine, tmp_path: Path) -> None:
    result = compare(tmp_path, budget="10s")
    # three contestants on two places: the first keeps the third company
    assert machine.labels[0] == ["gpt0", "gpt20", "bert0", "gpt0"]
    assert len({job.folder for job in machine.rounds[0]}) == 4
    # five steps in a second make fifty in ten
    assert {card.steps for card in result.cards} == {50}
    compare(tmp_path, budget="10s")
    assert len(machine.rounds) == 2
    # a longer budget is measured for longer
    compare(tmp_path, budget="40s", seeds=1)
    assert len(machine.rounds) == 4


def test_a_contestant_that_cannot_be_measured_is_a_row(machine: Machine, tmp_path: Path) -> None:
    machine.how = lambda job: ended(job, CRASHED if job.name == "bert" else DONE).replace(reason="it broke")
    result = compare(tmp_path, budget="10s")
    assert machine.labels[1] == ["gpt0", "gpt20", "gpt1", "gpt21"]
    bert = next(row for row in result.rows if row.name == "bert")
    assert "could not be measured: it broke" in bert.note
    assert "it broke" in (tmp_path / "report.html").read_text()


def test_a_cost_that_is_not_known_is_a_row_where_operations_are_the_budget(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plan.cost_of

    def sometimes(recipe: Any, reading: Any) -> ModelCost:
        if recipe.name == "gpt2":
            raise NotImplementedError
        return real(recipe, reading)

    monkeypatch.setattr(plan, "cost_of", sometimes)
    result = compare(tmp_path, budget="1e10-flops", match="params")
    assert machine.labels == [["gpt0", "bert0", "gpt1", "bert1"]]
    gpt2 = next(row for row in result.rows if row.name == "gpt2")
    assert "operations of a token are not known" in gpt2.note
    assert "not matched" in gpt2.note
    # with a budget of tokens it takes part, and its parameters are those that the trial counted
    machine.how = lambda job: ended(job).replace(params=77)
    result = compare(tmp_path, budget="10k-tokens")
    assert next(row.params for row in result.rows if row.name == "gpt2") == 77


def test_jobs_say_how_to_run_them(machine: Machine, tmp_path: Path) -> None:
    compare(tmp_path, threads=3, timeout="1m", contestants=("gpt",), seeds=1)
    (job,) = machine.rounds[0]
    assert job.command[1:] == ["-m", "kinfolk.contests.trial", str(job.folder)]
    assert (job.threads, job.limit) == (3, 60)
    assert job.progress() == 0
    (job.folder / "run").mkdir()
    steps = compare(tmp_path, threads=3, timeout="1m", contestants=("gpt",), seeds=1).cards[0].steps
    (job.folder / "run" / "metrics.jsonl").write_text('{"step": 3}\n{"step": 4}\n{"ste')
    assert job.progress() == pytest.approx(4 / steps)
