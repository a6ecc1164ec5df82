"""The driver's side of a fleet: put trials into the queue, wait until they have been run, report on the way."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from kinfolk.contests.fleet.desk import PREFIX
from kinfolk.contests.fleet.queue import DEATHS, Queue, Ticket, Watch
from kinfolk.contests.fleet.worker import PATIENCE, requirements
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, KEPT, Outcome
from kinfolk.contests.outcome import FILE as RESULT
from kinfolk.contests.screen import Screen
from kinfolk.contests.trial import last_row

LOOK_EVERY = 1.0
"""Seconds between two looks at the queue."""

QUIET = 60.0
"""Seconds without a running worker after which the driver says what to start and looks for tickets that were lost."""

SAMPLE = 20
"""Running trials whose progress is read at one look; the others follow at the next ones."""


class FleetEngine(Protocol):
    """What starts workers, or runs trials itself."""

    def tend(self, driver: "Driver") -> None:
        """Do what there is to do between two looks; raise if trials can never run."""

    def close(self) -> None:
        """Stop what was started."""


class Driver:
    """Hands jobs to workers. The queue is the only state: a driver may be stopped and started again on any host."""

    def __init__(self, home: Path, screen: Screen, watch: Watch | None = None) -> None:
        self.queue, self.screen = Queue(home), screen
        self.queue.create()
        self.watch = watch or Watch(self.queue, PATIENCE)
        self.open: dict[str, Job] = {}
        self.outcomes: list[Outcome] = []
        self.n_running = 0
        self._turn = 0
        self._claimed: set[tuple[str, str]] = set()

    @property
    def n_waiting(self) -> int:
        """How many trials no worker has claimed."""
        return max(0, len(self.open) - self.n_running)

    def put(self, jobs: Iterable[Job]) -> None:
        """Queue jobs, in order; those that wait or run already are only waited for."""
        new = {job.folder.name: job for job in jobs}
        self.open |= new
        # listed before results are read: what ends in between has its result, what does not is listed
        present, needs = self.queue.names(), requirements()
        missing = []
        for name, job in new.items():
            if name in present:
                continue
            outcome = Outcome.read(job.folder)
            if outcome is not None and outcome.status in KEPT:
                self._take(job, outcome)
                continue
            (job.folder / RESULT).unlink(missing_ok=True)
            requires, room = needs | dict(job.needs), job.folder.parent.name
            missing.append(Ticket(name=name, room=room, threads=job.threads, limit=job.limit, requires=requires))
        self.queue.put(missing)

    def look(self) -> int:
        """Take in what has ended, put back what has died, and return how many trials are running."""
        for ticket in self.queue.collect():
            if (job := self.open.get(ticket.name)) is not None:
                self._take(job, self._outcome(job, ticket))
        for file in self.watch.dead():
            self.queue.revive(file)
        claims = [(name, worker) for name, worker in self.watch.claims if name in self.open]
        self.n_running = len(claims)
        for name, worker in sorted(set(claims) - self._claimed):
            self.screen.claimed(self.open[name], worker)
        self._claimed = set(claims)
        self.screen.counted(queued=self.n_waiting, running=self.n_running)
        self.screen.update(self._progress(claims))
        return self.n_running

    def run(self, engine: FleetEngine, every: float = LOOK_EVERY) -> list[Outcome]:
        """Wait until every job has an outcome; the engine is tended at every look."""
        heard = time.monotonic()
        while True:
            n_running = self.look()
            if not self.open:
                return self.outcomes
            heard = time.monotonic() if n_running else heard
            if time.monotonic() - heard > QUIET:
                heard = time.monotonic()
                # another driver may have collected them, or somebody may have removed the folder
                self.put(list(self.open.values()))
                self.screen.note(f"{len(self.open)} trials wait for workers; start some: kin work {self.queue.home}")
            engine.tend(self)
            time.sleep(every)

    def _progress(self, claims: list[tuple[str, str]]) -> list[tuple[Job, float]]:
        """Read how far some of the running trials are, in turn: a look costs the same however many there are."""
        rows = []
        for i in range(min(SAMPLE, len(claims))):
            name, worker = claims[(self._turn + i) % len(claims)]
            job = self.open[name]
            row = last_row(job.folder / f"{PREFIX}{worker}")
            self.screen.heard(job, row)
            rows.append((job, job.fraction(row)))
        self._turn += SAMPLE
        return rows

    def _take(self, job: Job, outcome: Outcome) -> None:
        self.open.pop(job.folder.name)
        self.outcomes.append(outcome)
        self.screen.finished(job, outcome)

    def _outcome(self, job: Job, ticket: Ticket) -> Outcome:
        """Return what a trial left, or an account of the workers that died over it."""
        if (outcome := Outcome.read(job.folder)) is not None:
            return outcome
        last = f": {ticket.reason}" if ticket.reason else ""
        outcome = job.ended(CRASHED, f"{max(DEATHS, ticket.deaths)} workers died while they ran it{last}")
        outcome.write(job.folder)
        return outcome
