"""Thousands of trials on many workers in virtual time: real planning, queue, claims and driver, and a fake engine."""

import contextlib
import functools
import gc
import heapq
import io
import json
import os
import random
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinfolk.contests import plan, trials
from kinfolk.contests.fleet import driver as driving
from kinfolk.contests.fleet.desk import Desk
from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.queue import Claim, Queue
from kinfolk.contests.fleet.slurm_engine import LOOK_EVERY, WAIT, missing
from kinfolk.contests.fleet.worker import Requirements
from kinfolk.contests.outcome import CRASHED, DONE, Outcome
from kinfolk.contests.trial import Trial
from kinfolk.contests.trials import Trials
from kinfolk.core.console import Console
from tests.contests.fleet.test_compare import settings

TRIAL, START_UP, BEAT, LOOK = 60.0, 5.0, 5.0, 1.0
"""Seconds of training, of a process before the first step, between heartbeats, between looks of an idle worker."""

ARRIVAL, INTERPRETER = (5.0, 60.0), 3.0
"""Seconds that a batch system takes to start a worker, and that the worker takes to begin."""

SERVER = 0.5
"""Seconds of the file operations of a claim and a publication on a busy server: 25 operations of 20 ms."""

DEADLY = 0.01
"""The share of attempts in which the node dies."""

CONTESTANTS = ("gpt", "gpt2", "gpt-j", "gpt-neox", "alibi")
RESULT = '{"name": "t", "seed": 0, "status": "done", "seconds": 60.0, "curve": []}'
METRICS = '{"step": 5, "tokens": 100, "tokens_per_second": 10.0}\n'


class Fleet:
    """The clock of the driver and the engine that it tends: workers as events that arrive, claim, beat, end or die."""

    def __init__(self, home: Path, n_workers: int, seed: int = 0) -> None:
        self.now, self.random, self.home, self.most = 0.0, random.Random(seed), home, n_workers
        self.queue = Queue(home)
        self.needs = Requirements(home, lambda _: None)
        self.events: list[tuple[float, int, str, object]] = []
        self.busy = self.trained = self.held = self.working = 0.0
        self.alive = self.n_events = 0
        self.looked = -LOOK_EVERY
        self.ran: dict[str, int] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the workers act while the driver sleeps."""
        began = time.process_time()
        self.until(self.now + seconds)
        self.working += time.process_time() - began

    def until(self, moment: float) -> None:
        while self.events and self.events[0][0] <= moment:
            self.now, _, what, about = heapq.heappop(self.events)
            getattr(self, what)(about)
        self.now = moment

    def tend(self, driver: Driver) -> None:
        driver.watch.clock = self.monotonic
        if self.now - self.looked >= LOOK_EVERY:
            self.looked = self.now
            for _ in range(missing(driver.n_waiting, driver.n_running, self.alive, self.most)):
                self.alive += 1
                self.at(self.random.uniform(*ARRIVAL), "arrive", None)

    def close(self) -> None:
        """Let the workers find that nothing waits."""
        while self.alive:
            self.sleep(LOOK)

    def at(self, delay: float, what: str, about: object) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (self.now + delay, self.n_events, what, about))

    def arrive(self, _: object) -> None:
        name = f"node-{self.n_events}"
        self.at(INTERPRETER, "claim", (name, self.now, self.now + INTERPRETER))

    def claim(self, about: tuple[str, float, float]) -> None:
        name, arrived, idle = about
        claim = self.queue.claim(name, self.needs.met)
        if claim is None:
            if self.now - idle >= WAIT:
                self.leave(arrived)
            else:
                self.at(LOOK, "claim", about)
            return
        desk = Desk(self.home / "trials" / claim.ticket.name, name)
        assert desk.open() is None, "a trial that has ended is not handed out again"
        (desk.folder / "run").mkdir(exist_ok=True)
        (desk.folder / "run" / "metrics.jsonl").write_text(METRICS)
        work = max(5.0, self.random.gauss(TRIAL, TRIAL / 4))
        dies = self.random.random() < DEADLY
        lived = START_UP + (self.random.uniform(0, work) if dies else work)
        self.busy += lived
        self.trained += 0.0 if dies else work
        self.at(BEAT, "beat", (claim, desk, self.now + SERVER + lived, dies, arrived))

    def beat(self, about: tuple[Claim, Desk, float, bool, float]) -> None:
        claim, desk, end, dies, arrived = about
        if self.now < end:
            assert claim.beat()
            # stamps of one moment must differ, as they do in real time
            os.utime(claim.file, ns=(self.n_events, self.n_events))
            self.at(min(BEAT, max(0.01, end - self.now)), "beat", about)
        elif dies:
            self.leave(arrived)
        else:
            self.ran[claim.ticket.name] = self.ran.get(claim.ticket.name, 0) + 1
            (desk.folder / "result.json").write_text(RESULT)
            assert desk.publish()
            self.queue.end(claim)
            self.at(0.0, "claim", (desk.worker, arrived, self.now))

    def leave(self, arrived: float) -> None:
        self.alive -= 1
        self.held += self.now - arrived


@contextlib.contextmanager
def place(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in memory where there is one: what is measured is this code and not a disk."""
    shared = Path("/dev/shm")
    folder = (shared if shared.is_dir() else tmp_path) / f"kinfolk-fleet-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@functools.cache
def planned(home: Path) -> plan.Plan:
    return plan.make(settings(home, contestants=CONTESTANTS, seeds=1, on="workers"))


def orders(made: plan.Plan, n_trials: int) -> list[Trial]:
    """Plan trials as a comparison does: every contestant, seed by seed."""
    return [
        made.trial(made.entrants[i % len(CONTESTANTS)], i // len(CONTESTANTS), held_out="judged")
        for i in range(n_trials)
    ]


def handed_out(made: plan.Plan) -> Trials:
    return Trials(made.settings, made.layout, Console(file=io.StringIO()), ())


def simulate(home: Path, n_trials: int, n_workers: int, patch: pytest.MonkeyPatch) -> tuple[Fleet, float]:
    """Run trials; return the fleet and the seconds of CPU that the driver took from planning to the last outcome."""
    made, fleet = planned(home), Fleet(home, n_workers)
    patch.setattr(trials, "engine", lambda *_: fleet)
    patch.setattr(driving, "time", fleet)
    began = time.process_time()
    with contextlib.closing(handed_out(made)) as runner:
        outcomes = runner.run(orders(made, n_trials))
        driver_seconds = time.process_time() - began - fleet.working
    statuses = [outcome.status for outcome in outcomes if outcome is not None]
    assert len(statuses) == n_trials
    assert set(statuses) <= {DONE, CRASHED}
    # a trial is lost only after three deaths
    assert statuses.count(CRASHED) <= 1
    assert set(fleet.ran.values()) == {1}, "nothing runs twice to its end"
    return fleet, driver_seconds


def figures(home: Path, n_trials: int, n_workers: int, patch: pytest.MonkeyPatch) -> dict[str, float]:
    fleet, driver_seconds = simulate(home, n_trials, n_workers, patch)
    return {
        "milliseconds of the driver per trial": 1e3 * driver_seconds / n_trials,
        "busy": fleet.busy / fleet.held,
        "training": fleet.trained / fleet.held,
        "minutes": fleet.now / 60,
    }


def test_a_small_fleet_runs_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path) as home:
        assert figures(home, 100, 10, monkeypatch)["busy"] > 0.95


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_ten_thousand_trials_on_a_thousand_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Driver time per trial is flat, and workers are busy, from a hundred trials to ten thousand."""
    rows = {}
    for n_trials, n_workers in ((100, 10), (1_000, 100), (10_000, 1_000)):
        with place(tmp_path) as home:
            planned.cache_clear()
            rows[n_trials] = figures(home, n_trials, n_workers, monkeypatch)
    record_property("figures", json.dumps(rows))
    assert all(row["busy"] > 0.95 for row in rows.values()), rows
    first, *_, last = (row["milliseconds of the driver per trial"] for row in rows.values())
    assert last < 1.1 * first, rows


class Instant(Fleet):
    """Every trial ends at once, so that only the driver holds anything."""

    def tend(self, driver: Driver) -> None:
        while claim := self.queue.claim("w"):
            (self.home / "trials" / claim.ticket.name / "result.json").write_text(RESULT)
            self.queue.end(claim)


@pytest.mark.parametrize("most", [300, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(3000)
def test_memory_of_the_driver_per_trial_is_flat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None], most: int
) -> None:
    held = {}
    # the first imports what is imported late
    for n_trials in (20, 100, most):
        with place(tmp_path) as home:
            planned.cache_clear()
            made, fleet = planned(home), Instant(home, 1)
            monkeypatch.setattr(trials, "engine", lambda *_, fleet=fleet: fleet)
            monkeypatch.setattr(driving, "time", fleet)
            tracemalloc.start()
            with contextlib.closing(handed_out(made)) as runner:
                wanted = orders(made, n_trials)
                outcomes = runner.run(wanted)
            gc.collect()
            # pathlib interns names, in a table of the interpreter that doubles now and then
            traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*pathlib.py")])
            held[n_trials] = sum(statistic.size for statistic in traces.statistics("filename")) / n_trials
            tracemalloc.stop()
            assert sum(isinstance(outcome, Outcome) for outcome in outcomes) == n_trials
            del wanted, outcomes
    record_property("bytes per trial", json.dumps(held))
    assert held[most] < 1.1 * held[100], held


def test_trials_of_a_folder_are_listed_once_however_many_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further stage of a comparison looks for trials of earlier versions among all that there are."""
    made = planned(tmp_path)
    for order in orders(made, 40):
        order.write(handed_out(made).place(order))
    listings: list[Path] = []
    scandir, listdir = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", lambda path=".": (listings.append(Path(path)), scandir(path))[1])
    monkeypatch.setattr(os, "listdir", lambda path=".": (listings.append(Path(path)), listdir(path))[1])
    runner = handed_out(made)
    for order in orders(made, 80):
        runner.place(order)
    assert listings.count(tmp_path / "trials") <= 1
