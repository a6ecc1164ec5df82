"""Thousands of trials on many workers in virtual time: the real queue, claims, heartbeats and driver, a fake engine."""

import heapq
import io
import os
import random
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest

from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.queue import Claim, Queue, Watch
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DONE
from kinfolk.contests.screen import Screen
from kinfolk.core.console import Console

TRIAL, START_UP, BEAT, PATIENCE, LOOK = 60.0, 5.0, 5.0, 60.0, 1.0
DEADLY = 0.01


class Fleet:
    """Workers as events: claim, beat, end or die; a dead one is replaced after a while, as batch systems do."""

    def __init__(self, home: Path, n_trials: int, n_workers: int, seed: int = 0) -> None:
        self.now, self.random, self.home = 0.0, random.Random(seed), home
        self.queue = Queue(home)
        self.screen = Screen(n_trials, console=Console(file=io.StringIO()))
        self.driver = Driver(home, self.screen, Watch(self.queue, PATIENCE, lambda: self.now))
        self.events: list[tuple[float, int, str, object]] = []
        self.busy = self.present = self.driving = 0.0
        self.ran: dict[str, int] = {}
        self.n_events = 0
        began = time.process_time()
        self.driver.put([self.job(i) for i in range(n_trials)])
        self.driving += time.process_time() - began
        for _ in range(n_workers):
            self.at(self.random.uniform(0, 10), "claim", None)
        self.at(0.0, "look", None)

    def job(self, i: int) -> Job:
        folder = self.home / "trials" / f"t-seed{i:05}-k"
        return Job(name="t", seed=i, key="k", folder=folder, command=(), threads=1)

    def at(self, delay: float, what: str, about: object) -> None:
        self.n_events += 1
        heapq.heappush(self.events, (self.now + delay, self.n_events, what, about))

    def run(self) -> None:
        while self.driver.open:
            self.now, _, what, about = heapq.heappop(self.events)
            getattr(self, what)(about)

    def look(self, _: object) -> None:
        began = time.process_time()
        self.driver.look()
        self.driving += time.process_time() - began
        self.at(LOOK, "look", None)

    def claim(self, _: object) -> None:
        claim = self.queue.claim(f"w{self.n_events}")
        if claim is None:
            self.at(LOOK, "claim", None)
            return
        work = max(5.0, self.random.gauss(TRIAL, TRIAL / 4))
        dies = self.random.random() < DEADLY
        end = self.now + START_UP + (self.random.uniform(0, work) if dies else work)
        self.busy += end - self.now
        self.at(BEAT, "beat", (claim, end, dies))

    def beat(self, about: tuple[Claim, float, bool]) -> None:
        claim, end, dies = about
        if self.now < end:
            assert claim.beat()
            # stamps of one moment must differ, as they do in real time
            os.utime(claim.file, ns=(self.n_events, self.n_events))
            self.at(min(BEAT, max(0.01, end - self.now)), "beat", about)
        elif dies:
            self.at(30.0, "claim", None)
        else:
            name = claim.ticket.name
            self.ran[name] = self.ran.get(name, 0) + 1
            folder = self.home / "trials" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").write_text('{"name": "t", "seed": 0, "status": "done", "curve": []}')
            self.queue.end(claim)
            self.at(0.0, "claim", None)


def simulate(home: Path, n_trials: int, n_workers: int) -> Fleet:
    place = home / f"kinfolk-fleet-{os.getpid()}-{n_trials}"
    place.mkdir()
    try:
        fleet = Fleet(place, n_trials, n_workers)
        fleet.run()
    finally:
        shutil.rmtree(place)
    statuses = [outcome.status for outcome in fleet.driver.outcomes]
    assert len(statuses) == n_trials
    assert set(statuses) <= {DONE, CRASHED}
    # a trial is lost only after three deaths
    assert statuses.count(CRASHED) <= 1
    assert set(fleet.ran.values()) == {1}, "nothing runs twice to its end"
    return fleet


def test_a_small_fleet_runs_everything_once(tmp_path: Path) -> None:
    fleet = simulate(tmp_path, 60, 10)
    assert fleet.busy / (10 * fleet.now) > 0.5


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_trials_on_a_thousand_workers(tmp_path: Path) -> None:
    """Driver time per trial is flat, and workers are busy, from a hundred trials to ten thousand."""
    shared = Path("/dev/shm")
    home = shared if shared.is_dir() else tmp_path
    figures = {}
    for n_trials, n_workers in ((100, 10), (1_000, 100), (10_000, 1_000)):
        fleet = simulate(home, n_trials, n_workers)
        figures[n_trials] = (1e3 * fleet.driving / n_trials, fleet.busy / (n_workers * fleet.now))
    assert figures[10_000][0] < 3 * figures[100][0], figures
    # ten trials for each worker: the last one to finish leaves the others idle at the end
    assert figures[10_000][1] > 0.8, figures


@pytest.mark.long
def test_memory_of_the_driver_grows_with_trials_and_no_faster(tmp_path: Path) -> None:
    peaks = {}
    for n_trials in (100, 1_000):
        tracemalloc.start()
        simulate(tmp_path, n_trials, n_trials // 10)
        peaks[n_trials] = tracemalloc.get_traced_memory()[1] / n_trials
        tracemalloc.stop()
    assert peaks[1_000] < 1.5 * peaks[100], peaks
