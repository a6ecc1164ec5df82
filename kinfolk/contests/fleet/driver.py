"""The driver's side of a fleet: put trials into the queue, wait until workers have run them, report on the way."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from kinfolk.contests.fleet.queue import Queue, Ticket, Watch
from kinfolk.contests.fleet.worker import PATIENCE, requirements
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, Outcome
from kinfolk.contests.screen import Screen

LOOK_EVERY = 1.0
"""Seconds between two looks at the queue."""

QUIET = 60.0
"""Seconds without any running worker after which the driver says what to start."""


class Driver:
    """Hands jobs to workers. The queue is the only state: a driver may be stopped and started again on any host."""

    def __init__(self, home: Path, screen: Screen, watch: Watch | None = None) -> None:
        self.queue, self.screen = Queue(home), screen
        self.queue.create()
        self.watch = watch or Watch(self.queue, PATIENCE)
        self.open: dict[str, Job] = {}
        self.outcomes: list[Outcome] = []

    def put(self, jobs: Iterable[Job]) -> None:
        """Queue jobs, in order; those that wait or run already are only waited for."""
        new, needs = {job.folder.name: job for job in jobs}, requirements()
        self.open |= new
        self.queue.put(
            Ticket(name=name, room=job.folder.parent.name, threads=job.threads, limit=job.limit, requires=needs)
            for name, job in new.items()
        )

    def look(self) -> int:
        """Take in what has ended, put back what has died, and return how many trials are running."""
        for ticket in self.queue.collect():
            if (job := self.open.pop(ticket.name, None)) is not None:
                self.outcomes.append(self._outcome(job, ticket))
                self.screen.finished(job, self.outcomes[-1])
        for file in self.watch.dead():
            self.queue.revive(file)
        running = [name for name in self.watch.claims if name in self.open]
        self.screen.update([(self.open[name], self.open[name].progress()) for name in running])
        return len(running)

    def run(self, every: float = LOOK_EVERY, alive: Callable[[], None] = lambda: None) -> list[Outcome]:
        """Wait until every job has an outcome. alive: called at every look; an engine raises there if it failed."""
        heard = time.monotonic()
        while True:
            n_running = self.look()
            if not self.open:
                return self.outcomes
            heard = time.monotonic() if n_running else heard
            if time.monotonic() - heard > QUIET:
                heard = time.monotonic()
                self.screen.note(f"{len(self.open)} trials wait for workers; start some: kin work {self.queue.home}")
            alive()
            time.sleep(every)

    def _outcome(self, job: Job, ticket: Ticket) -> Outcome:
        """Return what a trial left, or an account of the workers that died over it."""
        if (outcome := Outcome.read(job.folder)) is not None:
            return outcome
        reason = f"{ticket.deaths} workers died while they ran it (no sign of life for {self.watch.patience:.0f} s)"
        outcome = Outcome(name=job.name, seed=job.seed, key=job.key, status=CRASHED, reason=reason)
        outcome.write(job.folder)
        return outcome
