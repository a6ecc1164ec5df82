"""`kin work DIR`: claim a waiting trial of a shared folder, run it, repeat."""

import contextlib
import dataclasses
import importlib.metadata
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.fleet import hosts
from kinfolk.contests.fleet.desk import Desk
from kinfolk.contests.fleet.queue import FOLDER, Claim, Queue, Ticket, Watch, full
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, Outcome
from kinfolk.contests.outcome import FILE as RESULT
from kinfolk.contests.schedule import Running
from kinfolk.contests.trial import INTERRUPTED, Trial
from kinfolk.core import child, plugins
from kinfolk.core.errors import DataError, KinfolkError

HEARTBEAT = 5.0
"""Seconds between two signs of life."""

PATIENCE = 60.0
"""Seconds without a sign of life after which a worker is taken for dead."""

ROOMS = ("trials", "calibrations")
JOURNAL = "journal"

DATA = "data"
"""In what a ticket requires: the fingerprint of its trial's data."""

PLUGIN = "plugin "
"""In what a ticket requires: how the names of plugins begin."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """One worker: its name, the queue it pulls from, and how often it looks.

    say: takes one line of progress. patience: see `PATIENCE`.
    """

    queue: Queue
    say: Callable[[str], None]
    name: str = dataclasses.field(default_factory=hosts.worker_name)
    heartbeat: float = HEARTBEAT
    patience: float = PATIENCE

    def work(self, wait: float = 0.0, most: int | None = None) -> int:
        """Run trials until none has been waiting for `wait` seconds, or `most` were run; return how many were run."""
        done, idle = 0, time.monotonic()
        needs = Requirements(self.queue.home, self.say)
        watch = Watch(self.queue, self.patience)
        with full(self.queue.home), child.terminable():
            ahead = hosts.skew(self.queue.running)
            if abs(ahead) > hosts.SKEW:
                self.say(
                    f"this host's clock is {ahead:+,.0f} s from the shared folder's; only dates in journals differ"
                )
            while most is None or done < most:
                claim = self.queue.claim(self.name, needs.met)
                if claim is not None:
                    done += self.run(claim) is not None
                    idle = time.monotonic()
                    continue
                # the driver looks for the dead; workers do so when there is nothing else to do
                for file in watch.dead():
                    if (ticket := self.queue.revive(file, self.name)) is not None:
                        self.say(f"{ticket.name}: {ticket.deaths} workers died over it; given up")
                if time.monotonic() - idle >= wait:
                    break
                time.sleep(min(1.0, self.heartbeat))
        if needs.unmet and not done:
            raise DataError("\n".join(sorted(needs.unmet)))
        return done

    def run(self, claim: Claim) -> Outcome | None:
        """Run a claimed trial to its end; None if the claim was lost. An interruption gives the ticket back."""
        desk = Desk(self.queue.home / claim.ticket.room / claim.ticket.name, self.name)
        journal = Journal(self.queue, self.name)
        if (outcome := desk.published) is not None:
            # its worker died after it had published, and before it could say so
            self.queue.end(claim)
            return outcome
        journal.write("claimed", claim.ticket)
        self.say(f"{claim.ticket.name} begins")
        try:
            with self._beating(claim) as lost:
                outcome = desk.open() or self._watched(claim, desk, lost)
            if outcome is not None and desk.publish():
                self.queue.end(claim)
                journal.write("ended", claim.ticket, outcome)
                self.say(f"{claim.ticket.name}: {outcome.status}")
                return outcome
        except FileNotFoundError:
            if claim.beat():
                raise
        except Terminated as error:
            # something other than this worker has ended the process, for example a batch system on its way to us
            desk.leave()
            journal.write("died", claim.ticket)
            self.queue.release(claim, 1, str(error))
            self.say(f"{claim.ticket.name}: {error}")
            return None
        except BaseException:
            if claim.beat():
                desk.leave()
                journal.write("released", claim.ticket)
                self.queue.release(claim)
            raise
        self.say(f"{claim.ticket.name}: another worker has taken over; stopped here")
        journal.write("lost", claim.ticket)
        return None

    @contextlib.contextmanager
    def _beating(self, claim: Claim) -> Iterator[threading.Event]:
        """Give signs of life from a thread; the event that is given is set once the claim is lost.

        What a worker does between two looks at its trial, importing PyTorch from a slow disk above all, may take longer
        than others wait for a sign.
        """
        done, lost = threading.Event(), threading.Event()

        def beat() -> None:
            while not done.wait(self.heartbeat):
                # a file server that does not answer now may answer the next time
                with contextlib.suppress(OSError):
                    if not claim.beat():
                        lost.set()
                        return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            done.set()
            thread.join()

    def _watched(self, claim: Claim, desk: Desk, lost: threading.Event) -> Outcome | None:
        """Run the trial's process; None if the claim was lost."""
        running = Running.start(job_of(self.queue.home, claim.ticket, desk.folder))
        try:
            while (outcome := running.look(neighbours=0)) is None:
                if lost.wait(min(0.2, self.heartbeat / 4)):
                    running.stop(patience=0)
                    return None
        except BaseException:
            running.stop()
            raise
        if outcome.status == CRASHED and running.child.process.returncode in INTERRUPTIONS:
            (desk.folder / RESULT).unlink()
            raise Terminated(outcome.reason.partition("\n")[0])
        if is_full(outcome):
            (desk.folder / RESULT).unlink(missing_ok=True)
            raise DataError(outcome.reason.splitlines()[-1])
        return outcome


def queues(home: Path) -> list[Queue]:
    """Return the queue of a folder, or those inside it: of the tasks of a suite, the sizes, the amounts of a ladder."""
    folders = [home] if Queue(home).exists else [path.parent for path in sorted(home.glob(f"*/{FOLDER}"))]
    return [queue for queue in map(Queue, folders) if queue.exists]


def work_inside(home: Path, worker_of: Callable[[Queue], Worker], wait: float = 0.0, most: int | None = None) -> int:
    """Run trials of all queues inside a folder, also of those that come later; see `Worker.work`."""
    done, idle = 0, time.monotonic()
    while most is None or done < most:
        before = done
        for queue in queues(home):
            if queue.count()["waiting"] and done != most:
                done += worker_of(queue).work(0.0, None if most is None else most - done)
        if done > before:
            idle = time.monotonic()
        elif time.monotonic() - idle >= wait:
            break
        else:
            time.sleep(1.0)
    return done


class Terminated(Exception):  # noqa: N818
    """A trial's process was ended from outside, by a signal that means "stop" and not by a fault of its own."""


INTERRUPTIONS = (-signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT, INTERRUPTED)


def is_full(outcome: Outcome) -> bool:
    """Tell whether a trial failed because the shared folder was full, which the trial is not to blame for."""
    return outcome.status == CRASHED and "the disk is full" in outcome.reason


class Requirements:
    """What tickets require and whether this process has it; data is opened once and compared by fingerprint."""

    def __init__(self, home: Path, say: Callable[[str], None]) -> None:
        self.home, self.say = home, say
        self.unmet: set[str] = set()
        self._differences: dict[str, list[str]] = {}

    def met(self, ticket: Ticket) -> bool:
        """Tell whether this worker has what a ticket requires; what is missing is said once, by name."""
        missing = mismatches(ticket.requires)
        if not missing and (wanted := ticket.requires.get(DATA)):
            missing = self._data(ticket, wanted)
        for line in missing:
            if line not in self.unmet:
                self.unmet.add(line)
                self.say(line)
        return not missing

    def _data(self, ticket: Ticket, wanted: str) -> list[str]:
        """Compare the data of a ticket's trial with its fingerprint."""
        source = trial_of(self.home, ticket).data
        key = json.dumps([source, wanted], sort_keys=True)
        if key not in self._differences:
            self._differences[key] = difference(source, wanted)
        return self._differences[key]


def difference(source: Mapping[str, Any], wanted: str) -> list[str]:
    """Open data; return one line if this host cannot, or if its fingerprint is not the one that is wanted."""
    from kinfolk.data import open_data

    try:
        mine = open_data(**source).fingerprint
        if mine == wanted:
            return []
        reason = f"this worker has {mine[:12]}: its content differs"
    except (KinfolkError, OSError) as error:
        reason = f"this worker cannot open it: {error}"
    return [f"data {source.get('name')!r} {wanted[:12]} is required, {reason}"]


class Journal:
    """What a worker did, line by line in a file of its own: `queue/journal/WORKER.jsonl`."""

    def __init__(self, queue: Queue, worker: str) -> None:
        self.file = queue.home / FOLDER / JOURNAL / f"{worker}.jsonl"

    def write(self, event: str, ticket: Ticket, outcome: Outcome | None = None) -> None:
        """Append one event."""
        line = {"event": event, "trial": ticket.name, "at": time.time(), "deaths": ticket.deaths}
        line |= {"status": outcome.status, "seconds": outcome.seconds} if outcome else {}
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("a", encoding="utf-8") as text:
            text.write(json.dumps(line) + "\n")


def requirements() -> dict[str, str]:
    """Return what a worker must have to run trials of this process: the package's version, plugins by hash."""
    own = {"kinfolk": importlib.metadata.version("kinfolk")}
    return own | {f"{PLUGIN}{Path(entry['path']).name}": entry["sha256"] for entry in plugins.loaded()}


def mismatches(required: dict[str, str]) -> list[str]:
    """Return one line for everything that is required and not here."""
    mine = requirements()
    return [
        f"{name} {value[:12]} is required, this worker has {mine[name][:12] if name in mine else 'none'}"
        + ("" if name in mine or not name.startswith(PLUGIN) else " (start it with --plugin)")
        for name, value in required.items()
        if name != DATA and mine.get(name) != value
    ]


def job_of(home: Path, ticket: Ticket, folder: Path) -> Job:
    """Return the job of a ticket: its trial in a folder."""
    return Job.of(trial_of(home, ticket), folder, threads=ticket.threads, limit=ticket.limit)


def trial_of(home: Path, ticket: Ticket) -> Trial:
    """Return the trial of a ticket."""
    if ticket.room not in ROOMS:
        raise DataError(f"{home}: a ticket names the folder {ticket.room!r} (known: {', '.join(ROOMS)})")
    folder = home / ticket.room / ticket.name
    try:
        return Trial.read(folder)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder}: its trial cannot be read: {error}") from None
