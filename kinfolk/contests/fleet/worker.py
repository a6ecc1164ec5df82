"""`kin work DIR`: claim a waiting trial of a shared folder, run it, repeat."""

import contextlib
import dataclasses
import importlib.metadata
import os
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from kinfolk.contests.fleet.queue import Claim, Queue, Ticket, Watch
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.schedule import Running
from kinfolk.contests.trial import Trial
from kinfolk.core import child, plugins
from kinfolk.core.errors import DataError

HEARTBEAT = 5.0
"""Seconds between two signs of life."""

PATIENCE = 60.0
"""Seconds without a sign of life after which a worker is taken for dead."""

ROOMS = ("trials", "calibrations")


@dataclasses.dataclass(frozen=True)
class Worker:
    """One worker: its name, the queue it pulls from, and how often it looks.

    say: takes one line of progress. patience: see `PATIENCE`.
    """

    queue: Queue
    say: Callable[[str], None]
    name: str = dataclasses.field(default_factory=lambda: worker_name())
    heartbeat: float = HEARTBEAT
    patience: float = PATIENCE

    def work(self, wait: float = 0.0, most: int | None = None) -> int:
        """Run trials until none has been waiting for `wait` seconds, or `most` were run; return how many were run."""
        done, idle = 0, time.monotonic()
        refused: set[str] = set()
        watch = Watch(self.queue, self.patience)
        while most is None or done < most:
            for file in watch.dead():
                if (ticket := self.queue.revive(file)) is not None:
                    self.say(f"{ticket.name}: {ticket.deaths} workers died over it; given up")
            claim = self.queue.claim(self.name, lambda ticket: self._accepts(ticket, refused))
            if claim is None:
                if time.monotonic() - idle >= wait:
                    break
                time.sleep(min(1.0, self.heartbeat))
                continue
            self.say(f"{claim.ticket.name} begins")
            if outcome := self.run(claim):
                self.say(f"{claim.ticket.name}: {outcome.status}")
                done += 1
            idle = time.monotonic()
        if refused and not done:
            raise DataError("\n".join(sorted(refused)))
        return done

    def run(self, claim: Claim) -> Outcome | None:
        """Run a claimed trial to its end; None if the claim was lost. An interruption gives the ticket back."""
        running = Running.start(job_of(self.queue.home, claim.ticket))
        beat = time.monotonic()
        try:
            with _terminable():
                while (outcome := running.look(neighbours=0)) is None:
                    if time.monotonic() - beat >= self.heartbeat:
                        beat = time.monotonic()
                        if not claim.beat():
                            self.say(f"{claim.ticket.name}: another worker has taken over; stopped here")
                            running.stop(patience=0)
                            return None
                    time.sleep(min(0.2, self.heartbeat / 4))
        except BaseException:
            running.stop()
            self.queue.release(claim)
            raise
        self.queue.end(claim)
        return outcome

    def _accepts(self, ticket: Ticket, refused: set[str]) -> bool:
        """Tell whether this worker has what a ticket requires; what is missing is said once, by name."""
        missing = mismatches(ticket.requires)
        for line in missing:
            if line not in refused:
                refused.add(line)
                self.say(line)
        return not missing


def requirements() -> dict[str, str]:
    """Return what a worker must have to run trials of this process: the package's version, plugins by hash."""
    own = {"kinfolk": importlib.metadata.version("kinfolk")}
    return own | {f"plugin {Path(entry['path']).name}": entry["sha256"] for entry in plugins.loaded()}


def mismatches(required: dict[str, str]) -> list[str]:
    """Return one line for everything that is required and not here."""
    mine = requirements()
    return [
        f"{name} {value[:12]} is required, this worker has {mine[name][:12] if name in mine else 'none'}"
        + ("" if name in mine or not name.startswith("plugin ") else " (start it with --plugin)")
        for name, value in required.items()
        if mine.get(name) != value
    ]


def job_of(home: Path, ticket: Ticket) -> Job:
    """Return the job of a ticket: the trial in its folder, by the command of this installation and no other."""
    if ticket.room not in ROOMS:
        raise DataError(f"{home}: a ticket names the folder {ticket.room!r} (known: {', '.join(ROOMS)})")
    folder = home / ticket.room / ticket.name
    try:
        trial = Trial.read(folder)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder}: its trial cannot be read: {error}") from None
    return Job(
        name=trial.name,
        seed=trial.seed,
        key=trial.key,
        folder=folder,
        command=[sys.executable, *child.safe_path(), "-m", "kinfolk.contests.trial", str(folder)],
        threads=ticket.threads,
        limit=ticket.limit,
    )


def worker_name() -> str:
    """Return a name that no other worker has: host, process, and a part of a random number."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Take a request to terminate, as batch systems send it before preemption, for Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
