"""Thousands of trials on many workers in virtual time: the real queue, claims, desks and driver, and a fake engine."""

import contextlib
import gc
import heapq
import io
import os
import random
import shutil
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.contests.fleet.desk import Desk
from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.queue import Claim, Queue, Watch
from kinfolk.contests.fleet.slurm_engine import LOOK_EVERY, WAIT, missing
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DONE
from kinfolk.contests.screen import Screen
from kinfolk.core.console import Console

TRIAL, START_UP, BEAT, PATIENCE, LOOK = 60.0, 5.0, 5.0, 60.0, 1.0
"""Seconds of a trial and of its process before the first step; a heartbeat, the patience, a look of the driver."""

ARRIVAL, INTERPRETER = (5.0, 60.0), 3.0
"""Seconds that a batch system takes to start a worker, and that the worker takes to begin."""

DEADLY = 0.01
"""The share of attempts in which the node dies."""

RESULT = '{"name": "t", "seed": 0, "status": "done", "seconds": 60.0, "curve": []}'
METRICS = '{"step": 5, "tokens": 100, "tokens_per_second": 10.0}\n'


class Fleet:
    """Workers as events: arrive, claim, beat, end or die; the engine's own rule says how many there should be."""

    def __init__(self, home: Path, n_trials: int, n_workers: int, seed: int = 0) -> None:
        self.now, self.random, self.home, self.most = 0.0, random.Random(seed), home, n_workers
        self.queue = Queue(home)
        screen = Screen(n_trials, console=Console(file=io.StringIO()))
        self.driver = Driver(home, screen, Watch(self.queue, PATIENCE, lambda: self.now))
        self.events: list[tuple[float, int, str, object]] = []
        self.busy = self.held = self.driving = 0.0
        self.alive = 0
        self.ran: dict[str, int] = {}
        self.n_events = 0
        jobs = [self.job(i) for i in range(n_trials)]
        with self.measured():
            self.driver.put(jobs)
        self.at(0.0, "look", None)
        self.at(0.0, "tend", None)

    def job(self, i: int) -> Job:
        folder = self.home / "trials" / f"t-seed{i:05}-k"
        folder.mkdir(parents=True)
        (folder / "trial.json").write_text("{}")
        return Job(name="t", seed=i, key="k", folder=folder, command=(), threads=1, steps=10)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.driving += time.process_time() - began

    def at(self, delay: float, what: str, about: object) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (self.now + delay, self.n_events, what, about))

    def run(self) -> None:
        while self.driver.open or self.alive:
            self.now, _, what, about = heapq.heappop(self.events)
            getattr(self, what)(about)

    def look(self, _: object) -> None:
        if self.driver.open:
            with self.measured():
                self.driver.look()
            self.at(LOOK, "look", None)

    def tend(self, _: object) -> None:
        if self.driver.open:
            for _ in range(missing(self.driver.n_waiting, self.driver.n_running, self.alive, self.most)):
                self.alive += 1
                self.at(self.random.uniform(*ARRIVAL), "arrive", None)
            self.at(LOOK_EVERY, "tend", None)

    def arrive(self, _: object) -> None:
        name = f"node-{self.n_events}"
        self.at(INTERPRETER, "claim", (name, self.now, self.now + INTERPRETER))

    def claim(self, about: tuple[str, float, float]) -> None:
        name, arrived, idle = about
        claim = self.queue.claim(name)
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
        end = self.now + START_UP + (self.random.uniform(0, work) if dies else work)
        self.busy += end - self.now
        self.at(BEAT, "beat", (claim, desk, end, dies, arrived))

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


def simulate(tmp_path: Path, n_trials: int, n_workers: int) -> Fleet:
    with place(tmp_path) as home:
        fleet = Fleet(home, n_trials, n_workers)
        fleet.run()
    statuses = [outcome.status for outcome in fleet.driver.outcomes]
    assert len(statuses) == n_trials
    assert set(statuses) <= {DONE, CRASHED}
    # a trial is lost only after three deaths
    assert statuses.count(CRASHED) <= 1
    assert set(fleet.ran.values()) == {1}, "nothing runs twice to its end"
    return fleet


def test_a_small_fleet_runs_everything_once(tmp_path: Path) -> None:
    fleet = simulate(tmp_path, 100, 10)
    assert fleet.busy / fleet.held > 0.95


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_trials_on_a_thousand_workers(tmp_path: Path) -> None:
    """Driver time per trial is flat, and workers are busy, from a hundred trials to ten thousand."""
    figures = {}
    for n_trials, n_workers in ((100, 10), (1_000, 100), (10_000, 1_000)):
        fleet = simulate(tmp_path, n_trials, n_workers)
        figures[n_trials] = {
            "milliseconds of the driver per trial": 1e3 * fleet.driving / n_trials,
            "busy": fleet.busy / fleet.held,
            "minutes": fleet.now / 60,
        }
    assert all(figure["busy"] > 0.95 for figure in figures.values()), figures
    first, *_, last = (figure["milliseconds of the driver per trial"] for figure in figures.values())
    assert last < 1.1 * first, figures


@pytest.mark.parametrize("most", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
def test_memory_of_the_driver_per_trial_is_flat(tmp_path: Path, most: int) -> None:
    held = {}
    # the first imports what is imported late
    for n_trials in (20, 100, most):
        with place(tmp_path) as home, Path(os.devnull).open("w") as nowhere:
            fleet = Fleet.__new__(Fleet)
            fleet.home = home
            jobs = [fleet.job(i) for i in range(n_trials)]
            tracemalloc.start()
            driver = Driver(home, Screen(n_trials, console=Console(file=nowhere)))
            driver.put(jobs)
            while claim := driver.queue.claim("w"):
                (home / "trials" / claim.ticket.name / "result.json").write_text(RESULT)
                driver.queue.end(claim)
                if claim.ticket.name.endswith("00-k"):
                    driver.look()
            driver.look()
            assert len(driver.outcomes) == n_trials
            gc.collect()
            # pathlib interns names, in a table of the interpreter that doubles now and then
            traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*pathlib.py")])
            held[n_trials] = sum(statistic.size for statistic in traces.statistics("filename")) / n_trials
            tracemalloc.stop()
    assert held[most] < 1.1 * held[100], held
