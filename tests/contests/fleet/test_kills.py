"""Workers and drivers killed at random moments: the same results, and nothing is run twice to its end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kinfolk.contests.fleet.queue import DEATHS, Queue, Ticket
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.run import run
from tests.contests.fleet.killing import ended
from tests.contests.fleet.test_compare import TOY, quiet, settings

KIN = (sys.executable, "-m", "kinfolk")


class Scene:
    """A driver and two workers as processes, each started again when it has gone."""

    def __init__(self, home: Path, seeds: int) -> None:
        self.home, self.log = home, home.with_suffix(".log").open("ab")
        sets = [word for text in TOY for word in ("--set", text)]
        options = (
            f"--data copy --budget 8k-tokens --seeds {seeds} --tune off --match none --jobs 1 --threads 1 --nice 0"
        )
        self.driving = [*KIN, "compare", "gpt2", *options.split(), "--on", "workers", "--out", str(home), *sets]
        self.working = [*KIN, "work", str(home), "--wait", "300s", "--patience", "10s"]
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


@pytest.mark.parametrize(
    ("kills", "seeds"),
    [pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(10, 6, marks=pytest.mark.long)],
)
@pytest.mark.timeout(2400)
def test_killed_workers_and_drivers_change_nothing(tmp_path: Path, kills: int, seeds: int) -> None:
    local = run(settings(tmp_path / "local", contestants=("gpt2",), budget="8k-tokens", seeds=seeds), console=quiet())
    chance, home = random.Random(kills), tmp_path / "shared"
    left = ["driver", "worker"] * kills
    scene = Scene(home, seeds)
    try:
        moment = time.monotonic() + 5
        while (code := scene.tend()) is None:
            if left and time.monotonic() > moment and scene.workers and scene.kill(left[-1]):
                left.pop()
                moment = time.monotonic() + chance.uniform(2, 8)
            time.sleep(0.1)
    finally:
        scene.close()
    log = home.with_suffix(".log").read_text()
    assert code == 0, log
    assert len(left) < 2 * kills, f"nothing was killed: {log}"
    outcomes = {o.key: o for folder in (home / "trials").iterdir() if (o := Outcome.read(folder)) is not None}
    expected = {o.key: o for o in local.outcomes["gpt2"]}
    assert outcomes.keys() == expected.keys()
    for key, outcome in expected.items():
        assert outcomes[key].curve[-1].valid == outcome.curve[-1].valid
        assert outcomes[key].steps == outcome.steps
    counts = ended(home)
    # a worker that is killed between publishing and its journal has ended a trial that no journal names
    assert set(counts.values()) <= {1}, json.dumps(counts)
