"""A work queue in a shared folder: claims by atomic rename, heartbeats, no file locks.

    queue/waiting/00012/07@NAME       a ticket that no worker has claimed; buckets keep listings short
    queue/running/NAME@WORKER         claimed; the worker touches it every few seconds
    queue/ended/NAME                  its trial has a result, or has died too often

Network file systems break `flock` but keep `rename` atomic: of several workers that rename one ticket, one succeeds.
A heartbeat is a change of the file's time stamp as the observer sees it, timed by the observer's own clock, so clocks
of hosts need not agree. A worker whose ticket is gone has lost its claim and must stop at once; what it still writes
goes to a folder of its own name and is never published (`kinfolk.contests.fleet.desk`).
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from kinfolk.contests.fleet import hosts
from kinfolk.core import durable
from kinfolk.core.errors import DataError

FOLDER = "queue"
BUCKET = 64
"""Tickets of one folder of waiting ones: workers list one bucket, however long the queue is."""

FIRST = "00000/00"
"""Bucket and number of tickets that were given back: they are claimed before all others."""

DEATHS = 3
"""Workers that may die over one trial before it is given up."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,200}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ticket:
    """A trial that waits for a worker.

    name: the trial's folder, below `room` of the comparison. requires: what a worker must have, by name: the version
    of the package, the hashes of plugins, the fingerprint of the data. deaths: workers that were lost while they ran
    it; reason: what is known of the last of them.
    """

    name: str
    room: str
    threads: int = 1
    limit: float | None = None
    requires: dict[str, str] = dataclasses.field(default_factory=dict)
    deaths: int = 0
    reason: str = ""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a ticket; what is not one is refused by the name of its file."""
        try:
            data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            ticket = cls(**data)
            wrong = ticket._wrong()
        except (ValueError, TypeError) as error:
            raise DataError(f"{file}: is not a ticket: {error}") from None
        if wrong:
            raise DataError(f"{file}: is not a ticket: {wrong}")
        return ticket

    def _wrong(self) -> str:
        """Say which field of a ticket that was read is not what it must be; "" if none."""
        if not NAME.fullmatch(self.name) or not NAME.fullmatch(self.room):
            return "its names must be plain names of folders"
        if type(self.threads) is not int or self.threads < 1 or type(self.deaths) is not int or self.deaths < 0:
            return f"threads {self.threads!r} and deaths {self.deaths!r} must be integers, threads at least 1"
        if self.limit is not None and (type(self.limit) not in (int, float) or not 0 < self.limit < math.inf):
            return f"limit must be a number of seconds above 0, found {self.limit!r}"
        texts = (self.reason, *self.requires, *dict(self.requires).values())
        if not isinstance(self.requires, dict) or not all(isinstance(text, str) for text in texts):
            return "reason and requires must be text"
        return ""

    def text(self) -> str:
        """Return the content of its file."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n"

    def write(self, file: Path) -> None:
        """Write the ticket in one stroke."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with full(file), durable.appearing(file) as aside:
            aside.write_text(self.text(), encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A ticket in the hands of a worker, and the file that shows it."""

    ticket: Ticket
    file: Path

    @property
    def worker(self) -> str:
        """Who holds it."""
        return self.file.name.rpartition("@")[2]

    def beat(self) -> bool:
        """Show that the worker lives; False if the claim was lost."""
        try:
            os.utime(self.file)
        except FileNotFoundError:
            return False
        return True


class Queue:
    """The queue of one comparison's folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.waiting, self.running, self.ended = (home / FOLDER / name for name in ("waiting", "running", "ended"))

    def create(self) -> None:
        """Make the folders; a place that cannot be written is an error here and not in a worker."""
        try:
            for folder in (self.waiting, self.running, self.ended):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.running / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise DataError(f"{self.home}: workers cannot share this folder: {error.strerror}") from None

    @property
    def exists(self) -> bool:
        """Whether anything was ever planned here."""
        return self.waiting.is_dir()

    def put(self, tickets: Iterable[Ticket]) -> int:
        """Add tickets, in order, that are neither waiting nor running; return how many were new."""
        present = self.names()
        last = max((int(bucket.name) for bucket in self._buckets()), default=0)
        added = 0
        for ticket in tickets:
            if ticket.name in present:
                continue
            # the account of an earlier attempt, which the driver did not keep
            (self.ended / ticket.name).unlink(missing_ok=True)
            ticket.write(self.waiting / f"{last + 1 + added // BUCKET:05}" / f"{added % BUCKET:02}@{ticket.name}")
            present.add(ticket.name)
            added += 1
        return added

    def names(self) -> set[str]:
        """Return the names of tickets that wait or run."""
        # a ticket that is claimed or given back between the two listings is seen in one of them
        running = {_name(file) for file in _files(self.running)}
        waiting = {_planned(file) for file in self._waiting_files()}
        return running | waiting | {_name(file) for file in _files(self.running)}

    def claim(self, worker: str, accepts: Callable[[Ticket], bool] = lambda _: True) -> Claim | None:
        """Take the first waiting ticket that the worker accepts; None if there is none."""
        for file in self._waiting_files(hurried=True):
            mine = self.running / f"{_planned(file)}@{worker}"
            try:
                # asked before it is taken: comparing data may take longer than observers wait for a sign of life
                if not accepts(Ticket.read(file)):
                    continue
                file.rename(mine)
                # a rename keeps the old time stamp, which could look like a worker that died long ago
                os.utime(mine)
                return Claim(Ticket.read(mine), mine)
            except FileNotFoundError:
                continue  # another worker was faster
        return None

    def end(self, claim: Claim) -> None:
        """Report a ticket as ended: its trial has left a result."""
        with contextlib.suppress(FileNotFoundError):
            claim.file.rename(self.ended / claim.ticket.name)

    def release(self, claim: Claim, deaths: int = 0, reason: str = "") -> Ticket | None:
        """Give a ticket back: its trial goes on from its checkpoint elsewhere. Return it if it has died too often.

        deaths: how many to add: none where the worker itself was asked to stop. reason: of the death.
        """
        if deaths and not claim.beat():
            return None  # another observer was faster
        ticket = dataclasses.replace(claim.ticket, deaths=claim.ticket.deaths + deaths, reason=reason)
        gone = ticket.deaths >= DEATHS
        if deaths:
            # in place: a file that was renamed away meanwhile must not appear again under this name
            with contextlib.suppress(FileNotFoundError), claim.file.open("r+", encoding="utf-8") as text:
                text.write(ticket.text())
                text.truncate()
        self._back(claim.file, self.ended / ticket.name if gone else self.waiting / f"{FIRST}@{ticket.name}")
        return ticket if gone else None

    def revive(self, file: Path, observer: str = "") -> Ticket | None:
        """Put the ticket of a dead worker back, and count the death; return it if it has died too often.

        The observer first takes the claim over under its own name, where it is a claim like any other: an observer
        that dies here is itself noticed, and of two observers one succeeds.
        """
        mine = file.with_name(f"{_name(file)}@{observer or hosts.worker_name()}")
        try:
            file.rename(mine)
            os.utime(mine)
            # a driver that held a claim on behalf of a node was stopped, and its trial is not to blame
            drove = file.name.rpartition("@")[2].startswith(hosts.DRIVER)
            reason = f"{file.name.rpartition('@')[2]} gave no sign of life"
            return self.release(Claim(Ticket.read(mine), mine), 0 if drove else 1, reason)
        except FileNotFoundError:
            return None  # it ended, or another observer was faster

    def collect(self) -> list[Ticket]:
        """Return tickets that have ended, and clear them away."""
        tickets = []
        for file in _files(self.ended):
            with contextlib.suppress(FileNotFoundError):
                tickets.append(Ticket.read(file))
                file.unlink()
        return tickets

    def claims(self) -> list[Path]:
        """Return the files of tickets that are claimed."""
        return _files(self.running)

    def count(self) -> dict[str, int]:
        """Return how many tickets wait and run."""
        return {"waiting": sum(1 for _ in self._waiting_files()), "running": sum(1 for _ in _files(self.running))}

    def _buckets(self) -> list[Path]:
        try:
            with os.scandir(self.waiting) as entries:
                return sorted(Path(entry.path) for entry in entries if entry.name.isdigit())
        except FileNotFoundError:
            return []

    def _waiting_files(self, hurried: bool = False) -> Iterator[Path]:
        """Yield waiting tickets in order. hurried: of a bucket, those after the first in any order.

        A worker that lost the first ticket of a bucket to another would otherwise lose the next to it as well.
        """
        for bucket in self._buckets():
            files = sorted(_files(bucket))
            yield from files[:1]
            rest = files[1:]
            if hurried and files and not files[0].exists() and rest:
                at = random.randrange(len(rest))
                rest = rest[at:] + rest[:at]
            yield from rest
            if not files:
                # the last one out removes the bucket; one that is being filled stays
                with contextlib.suppress(OSError):
                    bucket.rmdir()

    def _back(self, file: Path, target: Path) -> None:
        # a worker that lists an empty bucket removes it, perhaps between these two calls
        while file.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                file.rename(target)


class Watch:
    """Heartbeats as an observer sees them: which claims have not changed for `patience` seconds of its own clock.

    A claim of this host whose process is gone needs no patience.
    """

    def __init__(self, queue: Queue, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.queue, self.patience, self.clock = queue, patience, clock
        self._seen: dict[str, tuple[int, float]] = {}

    @property
    def claims(self) -> list[tuple[str, str]]:
        """The names of claimed tickets at the last look, and who holds them."""
        return [(name, worker) for name, _, worker in (key.rpartition("@") for key in self._seen)]

    def dead(self) -> list[Path]:
        """Look once, and return the claims whose workers are taken for dead."""
        now, silent, seen = self.clock(), [], {}
        with os.scandir(self.queue.running) as entries:
            for entry in entries:
                if not _is_ticket(entry.name):
                    continue
                try:
                    stamp = entry.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
                before, since = self._seen.get(entry.name, (stamp - 1, now))
                seen[entry.name] = (stamp, since if before == stamp else now)
                gone = before == stamp and now - since > self.patience
                if gone or hosts.is_gone(entry.name.rpartition("@")[2]):
                    silent.append(self.queue.running / entry.name)
        self._seen = seen
        return silent


@contextlib.contextmanager
def full(path: Path) -> Iterator[None]:
    """Say in one line that a shared folder refuses to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE):
            raise
        raise DataError(f"{path}: cannot be written: {error.strerror}; what was written before is intact") from None


def _is_ticket(name: str) -> bool:
    """Files that are still being written, and hidden ones, are no tickets."""
    return not name.startswith(".") and not name.endswith(durable.ASIDE)


def _files(folder: Path) -> list[Path]:
    """Return the tickets in a folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    return [folder / name for name in names if _is_ticket(name)]


def _name(file: Path) -> str:
    """Return the name of a claimed ticket."""
    return file.name.rpartition("@")[0]


def _planned(file: Path) -> str:
    """Return the name of a waiting ticket; one without a number was planned by an earlier version."""
    return file.name.rpartition("@")[2]
