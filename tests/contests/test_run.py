"""What is run, in which order, and what is kept, with processes that are only pretended."""

import io
import json
import math
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinfolk.contests import plan, rates, run, trials
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DIVERGED, DONE, Outcome, Point
from kinfolk.contests.settings import Settings
from kinfolk.contests.table import notes
from kinfolk.core.errors import SpecError
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
    monkeypatch.setattr(trials, "run_all", made)
    return made


def compare(folder: Path, **asked: Any) -> run.Comparison:
    known = {
        "contestants": ("gpt", "gpt2", "bert"),
        "data": "copy",
        "budget": "10k-tokens",
        "seeds": 2,
        "jobs": 2,
        "tune": "off",
        "match": "none",
    }
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


def loss_of(job: Job) -> float:
    """A bowl around each contestant's best rate, a block effect of the seed, and a little noise."""
    trial = json.loads((job.folder / "trial.json").read_text())
    lr = trial["recipe"]["training"]["optimiser"]["lr"]
    best = {"gpt": 1e-3, "gpt2": 9e-3, "alibi": 1e-3}[job.name]
    noise = random.Random(f"{job.name} {job.seed} {lr}").gauss(0, 0.002)
    steps = trial["recipe"]["training"]["steps"]
    return 2 + math.log(lr / best, 3) ** 2 / 10 + 0.1 * math.cos(job.seed) + noise + 5 / steps


def scored(job: Job) -> Outcome:
    """A trial that learns: worse on what judges by a constant, and only where it judges."""
    loss, judged = loss_of(job), json.loads((job.folder / "trial.json").read_text())["held_out"] == "judged"
    curve = tuple(
        Point(step=s, tokens=10 * s, seconds=0.1 * s, flops=1e3 * s, valid={"next-token": loss + 1 / s}) for s in (1, 5)
    )
    return Outcome(
        name=job.name,
        seed=job.seed,
        key=job.key,
        status=DONE,
        steps=5,
        planned_steps=5,
        tokens=50,
        seconds=0.5,
        flops=5e3,
        tokens_per_second=100.0,
        curve=curve,
        test={"next-token": loss + 0.5} if judged else {},
    )


TUNED = {"contestants": ("gpt", "gpt2", "alibi"), "data": "stdlib:megabytes=1", "tune": "lr", "seeds": 5}


def test_rates_are_tuned_on_other_seeds_and_another_split_than_the_verdict(machine: Machine, tmp_path: Path) -> None:
    machine.how = scored
    result = compare(tmp_path, **TUNED)
    orders = [json.loads((job.folder / "trial.json").read_text()) for jobs in machine.rounds for job in jobs]
    seeds = {kind: {o["seed"] for o in orders if o["held_out"] == kind} for kind in ("apart", "judged")}
    assert seeds == {"apart": set(rates.SEEDS), "judged": set(range(5))}
    assert {name: curve.chosen for name, curve in result.rates.items()} == {"gpt": 1e-3, "gpt2": 9e-3, "alibi": 1e-3}
    rows = {row.name: row for row in result.rows}
    # the verdict is on the test scores; what is as is has the recipe's own rate
    assert rows["gpt2"].final == pytest.approx(loss_at("gpt2", result), abs=0.1)
    assert (rows["gpt2"].as_is or 0) > (rows["gpt2"].final or 0) + 0.3
    assert rows["gpt"].as_is == rows["gpt"].final
    assert (rows["gpt"].final_low or 0) < (rows["gpt"].final or 0) < (rows["gpt"].final_high or 9)
    protocol = result.protocol
    assert (protocol.judged_on, protocol.chosen_on) == (
        "the other half of valid (this data has no test split)",
        "one half of valid",
    )
    n_tuning = sum(o["held_out"] == "apart" for o in orders)
    assert protocol.costs["tuning"].trials == n_tuning
    assert protocol.costs["verdict"].trials == 15
    assert protocol.costs["as is"].trials == 5
    plain = json.loads((tmp_path / "results.json").read_text())
    assert len(plain["searched"]) == n_tuning
    tried = {(row["name"], t["lr"]) for row in plain["rows"] for t in row["rates"]["tried"]}
    assert {(trial["name"], trial["lr"]) for trial in plain["searched"]} == tried
    assert f"{n_tuning} trials" in plain["facts"]["learning rates"]


def loss_at(name: str, result: run.Comparison) -> float:
    return 2.5 + 5 / next(card.steps for card in result.cards if card.name == name)


def timeless(folder: Path) -> Any:
    plain = json.loads((folder / "results.json").read_text())
    del plain["facts"]["made"]
    return plain


def long(*cases: float) -> list[Any]:
    """Further cases of a test whose cases are interchangeable."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


TO_STOP = TUNED | {"max_seeds": 9}


def without_a_stop(folder: Path, how: Pretend, asked: dict[str, Any]) -> tuple[run.Comparison, Any, int]:
    """Run a comparison on a machine of its own: what it found, its results but for the date, and its trials."""
    made = Machine()
    made.how = how
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "run_all", made)
        found = compare(folder, **asked)
    return found, timeless(folder), sum(map(len, made.rounds))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results of a comparison that nothing stopped, for all moments at which another is stopped."""
    return without_a_stop(tmp_path_factory.mktemp("whole"), scored, TO_STOP)[1]


@pytest.mark.parametrize("stop", [3, 16, 30, 50, *long(0, 7, 15, 20, 44, 58)])
def test_stopped_at_any_trial_the_report_is_the_same(machine: Machine, tmp_path: Path, stop: int, whole: Any) -> None:
    """In tuning, in the finals, in the verdict, in a round of more seeds: bit for bit but for the date."""
    left = iter(range(stop))
    machine.how = lambda job: scored(job) if next(left, None) is not None else None
    try:
        compare(tmp_path / "stopped", **TO_STOP)
    except KeyboardInterrupt:
        assert (tmp_path / "stopped" / "report.html").exists()
    machine.how = scored
    compare(tmp_path / "stopped", **TO_STOP)
    assert timeless(tmp_path / "stopped") == whole


def test_more_seeds_go_to_what_is_undecided(machine: Machine, tmp_path: Path) -> None:
    gaps = {"gpt": 0.0, "gpt2": 0.5, "alibi": 0.0}
    machine.how = lambda job: scored(job).replace(
        test={"next-token": 2 + gaps[job.name] + random.Random(f"{job.name}{job.seed}").gauss(0, 0.01)}
    )
    result = compare(tmp_path, **TUNED, max_seeds=9)
    rows = {row.name: row for row in result.rows}
    assert {name: row.seeds for name, row in rows.items()} == {"gpt": 9, "alibi": 9, "gpt2": 5}
    assert rows["gpt2"].mark == "*"
    assert result.protocol.looks == (5, 7, 9)
    assert {rows["gpt"].mark, rows["alibi"].mark} == {"", "≈"}
    assert {limit.measure for limit in result.limits} == {"next-token"}


def test_everybody_is_held_against_a_baseline(machine: Machine, tmp_path: Path) -> None:
    machine.how = lambda job: scored(job).replace(
        test={"next-token": {"gpt": 2.0, "gpt2": 3.0, "alibi": 1.0}[job.name] + 0.001 * math.sin(7 * job.seed)}
    )
    result = compare(tmp_path, **TUNED, against="gpt")
    assert {row.name: row.mark for row in result.rows} == {"alibi": "+", "gpt": "", "gpt2": "*"}
    page = (tmp_path / "report.html").read_text()
    assert "Difference to gpt in" in page
    assert "Difference to the best" not in page
    assert {"+ better than gpt", "* worse than gpt (simultaneous 95% intervals over paired seeds)"} < set(
        notes(result.rows)
    )
    with pytest.raises(SpecError, match="against: 'gtp' is not a contestant"):
        compare(tmp_path, **TUNED, against="gtp")


def test_branches_give_the_loss_at_every_share_of_the_budget(machine: Machine, tmp_path: Path) -> None:
    machine.how = lambda job: scored(job).replace(tokens=job.steps)
    asked = TUNED | {"branches": 2, "budget": "200k-tokens", "contestants": ("gpt", "gpt2")}
    result = compare(tmp_path, **asked)
    for row in result.rows:
        assert [branch.share for branch in row.branches] == [0.125, 0.25, 0.5, 1.0]
        assert [len(branch.losses) for branch in row.branches] == [2] * 4
        assert [branch.mean for branch in row.branches] == sorted((b.mean or 0 for b in row.branches), reverse=True)
        assert row.speedup is not None
        assert "from 4 shares of the budget" in row.speedup.law
    # two trunks of 0.8 budgets for each of two, and a fifth of each of their branches
    spent = result.protocol.costs["branches"]
    assert spent.trials == 4 + 16
    part = result.outcomes["gpt"][0].tokens // 40
    assert spent.tokens == 4 * part * (32 + 1 + 2 + 4 + 8)
    # the trunks run before their branches, and nothing runs twice
    n = len(machine.rounds)
    compare(tmp_path, **asked)
    assert len(machine.rounds) == n


def answered(job: Job) -> Outcome:
    """A battery answers, a training learns."""
    trial = json.loads((job.folder / "trial.json").read_text())
    if "battery" not in trial["begins"]:
        return scored(job).replace(start_bytes=10, peak_bytes=30)
    known = {"by_position": {"8": 3.0}, "latency": 0.1 + loss_of(job)}
    return Outcome(name=job.name, seed=job.seed, key=job.key, status=DONE, battery=known)


EVERYTHING = TUNED | {"max_seeds": 7, "branches": 1, "battery": "quick", "budget": "200k-tokens"}


SIZED = EVERYTHING | {"sizes": ("tiny", "small"), "contestants": ("gpt", "alibi")}


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, int]:
    """Results of all stages together, and how many trials they are."""
    found, results, n = without_a_stop(tmp_path_factory.mktemp("sized"), answered, SIZED)
    assert found.sizes is not None
    assert set(found.sizes.losses) == {"tiny", "small"}
    return results, n


@pytest.mark.parametrize("share", [0.3, 0.46, 0.9, 1.0, *long(0.02, 0.42, 0.49, 0.6, 0.97)])
def test_stopped_in_branches_battery_or_sizes_the_report_is_the_same(
    machine: Machine, tmp_path: Path, share: float, sized: tuple[Any, int]
) -> None:
    whole, n = sized
    left = iter(range(int(share * (n - 1))))
    machine.how = lambda job: answered(job) if next(left, None) is not None else None
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path, **SIZED)
    machine.how = answered
    compare(tmp_path, **SIZED)
    assert timeless(tmp_path) == whole


def test_every_contestant_is_asked_once_after_its_verdict(machine: Machine, tmp_path: Path) -> None:
    machine.how = answered
    result = compare(tmp_path, **EVERYTHING)
    for row in result.rows:
        assert row.battery is not None
        assert row.battery.by_position == {"8": 3.0}
        assert row.battery.train_bytes == 20
    asked = [json.loads((job.folder / "trial.json").read_text())["begins"] for job in machine.rounds[-1]]
    assert [begins["battery"] for begins in asked] == ["quick"] * 3
    machine.how = lambda job: ended(job, CRASHED) if "battery" in (job.folder / "trial.json").read_text() else None
    broken = compare(tmp_path, **EVERYTHING | {"battery": "full"})
    assert {row.battery.problems["battery"] for row in broken.rows if row.battery} == {CRASHED}


def test_several_hyperparameters_are_searched_over_the_same_trials(machine: Machine, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    machine.how = scored
    result = compare(tmp_path, **TUNED | {"tune": "lr,weight_decay", "contestants": ("gpt", "gpt2")})
    orders = [json.loads((job.folder / "trial.json").read_text()) for jobs in machine.rounds for job in jobs]
    judged = {o["recipe"]["training"]["optimiser"]["lr"] for o in orders if o["held_out"] == "judged"}
    assert {curve.chosen for curve in result.rates.values()} <= judged
    assert 3e-3 < result.rates["gpt2"].chosen < 1e-2
    assert "lr,weight_decay" in result.facts["hyperparameters"]
    with pytest.raises(SpecError, match="tune: unknown choice 'wd'"):
        compare(tmp_path, **TUNED | {"tune": "lr,wd"})


def test_widths_matched_by_time_are_measured_once_and_kept(machine: Machine, tmp_path: Path) -> None:
    slow = {"gpt": 1.0, "alibi": 2.0}

    def timed(job: Job) -> Outcome:
        flops = json.loads((job.folder / "trial.json").read_text())["flops_per_token"]
        return ended(job).replace(seconds=slow[job.name] * flops)

    machine.how = timed
    asked = {"contestants": ("gpt", "alibi"), "match": "time", "data": "stdlib:megabytes=1"}
    result = compare(tmp_path, **asked)
    cards = {card.name: card for card in result.cards}
    assert cards["alibi"].flops_per_token == pytest.approx(cards["gpt"].flops_per_token / 2, rel=0.1)
    assert "by time" in cards["alibi"].matched
    kept = json.loads((tmp_path / "widths.json").read_text())
    slow["alibi"] = 0.1
    again = compare(tmp_path, **asked)
    assert json.loads((tmp_path / "widths.json").read_text()) == kept
    assert again.cards == result.cards


def test_what_goes_wrong_is_said_in_the_row_the_report_and_the_files(machine: Machine, tmp_path: Path) -> None:
    """One that diverges, one that crashes, one ahead at an eighth of the steps and behind at the end."""

    def outcome(job: Job) -> Outcome:
        if job.name == "gpt2":
            return ended(job, DIVERGED).replace(reason="loss is nan at step 3")
        if job.name == "rezero":
            return ended(job, CRASHED).replace(reason="exit code 1\nRuntimeError: it fell off the table")
        early, late = {"gpt": (3.0, 2.0), "alibi": (2.5, 2.2)}[job.name]
        noise = random.Random(f"{job.name} {job.seed}").gauss(0, 0.01)
        losses = {1: 5.0, 2: early + noise, 16: late + noise}
        curve = tuple(
            Point(step=step, tokens=step, seconds=1.0, flops=1.0, valid={"next-token": loss})
            for step, loss in losses.items()
        )
        return ended(job).replace(curve=curve, steps=16, planned_steps=16)

    machine.how = outcome
    result = compare(tmp_path, contestants=("gpt", "gpt2", "rezero", "alibi"), data="stdlib:megabytes=1", seeds=4)
    rows = {row.name: row for row in result.rows}
    assert {name: (row.rank, row.mark) for name, row in rows.items()} == {
        "gpt": (1, ""),
        "alibi": (2, "*"),
        "gpt2": (None, ""),
        "rezero": (None, ""),
    }
    said = {
        "alibi": "ahead of gpt at 0.125 of the steps and behind at the end",
        "gpt2": "diverged (4 of 4 trials)",
        "rezero": "crashed (4 of 4 trials)",
    }
    page, table = (tmp_path / "report.html").read_text(), (tmp_path / "results.csv").read_text()
    for name, flag in said.items():
        assert rows[name].flags == (flag,)
        assert flag in page
        assert flag in table
    assert "loss is nan at step 3" in rows["gpt2"].note
    assert "it fell off the table" in rows["rezero"].note
