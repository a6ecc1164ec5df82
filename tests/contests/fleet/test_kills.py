"""Workers and drivers killed at random moments: the same results, and nothing is run twice to its end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kinfolk.contests.fleet.queue import DEATHS, Queue, Ticket
from kinfolk.contests.outcome import DONE, Outcome
from kinfolk.contests.run import run
from kinfolk.contests.trial import last_row
from kinfolk.train import metrics
from tests.contests.fleet.killing import ended, trained, until_killed
from tests.contests.fleet.test_compare import TOY, quiet, settings

KIN = (sys.executable, "-m", "kinfolk")


class Scene:
    """A driver and two workers as processes, each started again when it has gone."""

    def __init__(self, home: Path, seeds: int, budget: str = "8k-tokens", patience: str = "60s") -> None:
        self.home, self.log = home, home.with_suffix(".log").open("ab")
        sets = [word for text in TOY for word in ("--set", text)]
        options = f"--data copy --budget {budget} --seeds {seeds} --tune off --match none --jobs 1 --threads 1 --nice 0"
        self.driving = [*KIN, "compare", "gpt2", *options.split(), "--on", "workers", "--out", str(home), *sets]
        self.working = [*KIN, "work", str(home), "--wait", "300s", "--patience", patience]
        self.driver = self.start(self.driving)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def tend(self) -> int | None:
        """Start workers that are missing; return the exit code of the driver once it has finished."""
        if (self.home / "queue" / "waiting").is_dir():
            self.workers = [worker for worker in self.workers if worker.poll() is None]
            self.workers += [self.start(self.working) for _ in range(2 - len(self.workers))]
        code = self.driver.poll()
        if code is not None and code < 0:
            self.driver = self.start(self.driving)
        return code if code is not None and code >= 0 else None

    def kill(self, what: str) -> bool:
        """Kill a driver, or a worker whose trial may lose one more; False if there is none now."""
        if what == "driver":
            os.kill(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
            return True
        for file in Queue(self.home).claims():
            pid = int(file.name.split("-")[-2])
            with contextlib.suppress(FileNotFoundError):
                if Ticket.read(file).deaths < DEATHS - 1 and pid in [worker.pid for worker in self.workers]:
                    os.kill(pid, signal.SIGKILL)
                    return True
        return False

    def close(self) -> None:
        for process in (self.driver, *self.workers):
            if process.poll() is None:
                process.terminate()
            process.wait(60)
        self.log.close()


def play(scene: Scene, kills: list[str], killed: list[object], chance: random.Random) -> None:
    """Kill at random moments until the comparison has ended."""
    try:
        moment = time.monotonic() + chance.uniform(2, 8)
        while (code := scene.tend()) is None:
            due = len(killed) < len(kills) and time.monotonic() > moment and scene.workers
            if due and scene.kill(kills[len(killed)]):
                killed.append(kills[len(killed)])
                moment = time.monotonic() + chance.uniform(1, 8)
            time.sleep(0.05)
    finally:
        scene.close()
    assert code == 0, scene.home.with_suffix(".log").read_text()


@pytest.mark.parametrize(
    ("kills", "seeds"),
    [pytest.param(1, 2, marks=pytest.mark.slow), pytest.param(10, 6, marks=pytest.mark.long)],
)
@pytest.mark.timeout(2400)
def test_killed_workers_and_drivers_change_nothing(tmp_path: Path, kills: int, seeds: int) -> None:
    local = run(settings(tmp_path / "local", contestants=("gpt2",), budget="8k-tokens", seeds=seeds), console=quiet())
    expected, chance, killed = {o.key: o for o in local.outcomes["gpt2"]}, random.Random(kills), list[object]()

    def compare(turn: int) -> None:
        home = tmp_path / f"shared{turn}"
        play(Scene(home, seeds), ["worker", "driver"] * kills, killed, chance)
        outcomes = {o.key: o for folder in (home / "trials").iterdir() if (o := Outcome.read(folder)) is not None}
        assert outcomes.keys() == expected.keys()
        for key, outcome in expected.items():
            assert (outcomes[key].status, outcomes[key].reason) == (DONE, "")
            assert outcomes[key].curve[-1].valid == outcome.curve[-1].valid
            assert outcomes[key].steps == outcome.steps
        assert trained(home) == trained(tmp_path / "local"), "to the bit, step by step"
        counts = ended(home)
        # a worker that is killed between publishing and its journal has ended a trial that no journal names
        assert set(counts.values()) <= {1}, json.dumps(counts)

    until_killed(2 * kills, killed, compare)


def wake(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_suspended_worker_that_wakes_up_changes_nothing(tmp_path: Path) -> None:
    """It is stopped with its trial while another takes over, and both go on at once."""
    local = run(settings(tmp_path / "local", contestants=("gpt2",), budget="24k-tokens", seeds=1), console=quiet())
    (expected,) = local.outcomes["gpt2"]
    home = tmp_path / "shared"
    scene = Scene(home, seeds=1, budget="24k-tokens", patience="4s")
    family, woken, stopped_at = list[psutil.Process](), False, 0
    try:
        while (code := scene.tend()) is None:
            for desk in home.glob("trials/*/work@*"):
                pid, step = int(desk.name.split("-")[-2]), last_row(desk).get("step", 0)
                if not family and step:
                    family, stopped_at = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)], step
                    for process in family:
                        process.suspend()
                if family and not woken and pid != family[0].pid and step > stopped_at:
                    # another holds it, and trains
                    woken = True
                    wake(family)
            time.sleep(0.05)
    finally:
        wake(family)
        scene.close()
    log = home.with_suffix(".log").read_text()
    assert code == 0, log
    assert woken, log
    assert "another worker has taken over" in log
    (folder,) = (home / "trials").iterdir()
    outcome = Outcome.read(folder)
    assert (outcome.key, outcome.steps, outcome.curve[-1].valid) == (
        expected.key,
        expected.steps,
        expected.curve[-1].valid,
    )
    steps = [row["step"] for row in metrics.read(folder / "run" / "metrics.jsonl") if "loss" in row]
    assert steps == sorted(set(steps)), "no row is written twice"
    assert list(ended(home).values()) == [1]
    assert list(folder.glob("work@*")) == []
