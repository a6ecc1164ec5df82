"""Run jobs side by side, each in its own process, until all have an outcome; none can end the others.

Knows nothing of Transformers: a job is a folder and a command that leaves `result.json` in it.
"""

import contextlib
import dataclasses
import functools
import os
import pkgutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, FILE, OUT_OF_MEMORY, TIMED_OUT, Outcome
from kinfolk.contests.screen import Screen
from kinfolk.contests.trial import last_row
from kinfolk.core.child import Child, explain
from kinfolk.core.errors import KinfolkError
from kinfolk.core.lock import locked

LOOK_EVERY = 0.2
"""Seconds between two looks at the children."""

TRAINING = ("kinfolk.train.run", "kinfolk.train.testing", "kinfolk.data", "kinfolk.contests.devices")
"""What every trial runs."""

SAVING = 30.0
"""Seconds a child may take to save when it is asked to stop."""


def run_all(
    jobs: Sequence[Job],
    slots: int,
    screen: Screen,
    held: Sequence[int] = (),
    environments: Sequence[Mapping[str, str]] = (),
) -> list[Outcome]:
    """Run every job, `slots` at a time, in the order given; an interruption stops the children and goes on up.

    environments: what names the accelerators, one for each; a job that starts gets the one with the fewest jobs.
    """
    waiting, running, outcomes = deque(jobs), list[Running](), list[Outcome]()
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                running.append(Running.start(waiting.popleft(), held, _emptiest(environments, running)))
                screen.started(running[-1].job)
            for trial in list(running):
                outcome = trial.look(neighbours=len(running) - 1)
                if outcome is not None:
                    running.remove(trial)
                    outcomes.append(outcome)
                    screen.finished(trial.job, outcome)
            screen.counted(queued=len(waiting), running=len(running))
            rows = [(trial.job, last_row(trial.job.folder)) for trial in running]
            for job, row in rows:
                screen.heard(job, row)
            screen.update([(job, job.fraction(row)) for job, row in rows])
            time.sleep(LOOK_EVERY)
    except BaseException:
        screen.note("stopping: each running trial saves what it has")
        _stop(running)
        raise
    return outcomes


@dataclasses.dataclass(eq=False)
class Running:
    """A job and the process that does it."""

    job: Job
    child: Child

    @classmethod
    def start(cls, job: Job, held: Sequence[int] = (), environment: Mapping[str, str] = MappingProxyType({})) -> Self:
        """Start a job. held: see `lock`; environment: variables besides those of this process."""
        job.folder.mkdir(parents=True, exist_ok=True)
        # an account of an earlier attempt must not be taken for that of this one
        (job.folder / FILE).unlink(missing_ok=True)
        child = Child(
            job.command, job.folder, threads=job.threads, held=held, environment=environment, preloaded=preloaded()
        )
        return cls(job, child)

    def look(self, neighbours: int) -> Outcome | None:
        """Return how the job ended, or None while it runs; stop it when its time is over."""
        code, limit = self.child.watch(neighbours), self.job.limit
        if code is None and limit is not None and self.child.seconds > limit:
            self.stop()
            return self._settle(TIMED_OUT, f"not finished after {limit:.0f} s")
        if code is None:
            return None
        self.child.close()
        if code == -9:
            return self._settle(OUT_OF_MEMORY, "killed by SIGKILL, as the system does when memory runs out")
        return self._settle(CRASHED, explain(code))

    def stop(self, patience: float | None = None) -> None:
        """Ask the process to save and leave, and kill it after `patience` seconds (`SAVING`) if it has not."""
        self.child.ask_to_stop()
        self.child.end(SAVING if patience is None else patience)

    def _settle(self, status: str, reason: str) -> Outcome:
        """Complete the child's own account, or give one in its place when it left none, and write it down."""
        words = self.child.last_words()
        outcome = Outcome.read(self.job.folder) or self.job.ended(status, f"{reason}\n{words}".strip())
        outcome = outcome.replace(
            peak_bytes=max(outcome.peak_bytes, self.child.peak_bytes), neighbours=round(self.child.neighbours, 2)
        )
        outcome.write(self.job.folder)
        return outcome


@functools.cache
def preloaded() -> tuple[str, ...]:
    """Return what a trial imports whatever it trains: the loop, and the family."""
    relatives = pkgutil.iter_modules([str(Path(__file__).parents[1] / "family")])
    return (*TRAINING, *(f"kinfolk.family.{module.name}" for module in relatives))


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[list[int]]:
    """Hold a folder for one comparison; give the descriptors that keep it held while children live.

    The lock belongs to the open file, which the children inherit, so it lasts until the last of them has left even
    when the parent was killed: nothing starts a second time in a folder where something still writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    busy = KinfolkError(
        f"{folder}: another comparison runs in this folder, or its trials are still saving; "
        f"wait for it, or choose another --out"
    )
    with locked(folder, busy) as descriptor:
        # elsewhere than on POSIX a child inherits no descriptor
        yield [descriptor] if os.name == "posix" else []


def _emptiest(environments: Sequence[Mapping[str, str]], running: Iterable[Running]) -> Mapping[str, str]:
    taken = [trial.child.environment for trial in running]
    return min(environments, key=taken.count, default={})


def _stop(running: Sequence[Running]) -> None:
    for trial in running:
        trial.child.ask_to_stop()
    deadline = time.monotonic() + SAVING
    for trial in running:
        try:
            trial.child.end(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            # a second interrupt: do not wait for the checkpoint
            deadline = time.monotonic()
            trial.child.end(0)
