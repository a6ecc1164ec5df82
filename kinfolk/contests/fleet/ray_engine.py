"""`--on ray`: trials as plain tasks of a Ray cluster that shares no folder with the driver.

The driver claims trials from its own queue and holds the claims while tasks run them; data and plugins are shipped by
hash, once for each node; what a trial writes comes back in letters, through one actor on the head node. Ray's own
retries are off: a task that is lost with its node goes on from the newest checkpoint that came back.
"""

import dataclasses
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from kinfolk.contests.fleet import hosts
from kinfolk.contests.fleet.desk import Desk
from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.parcels import Shipment, pack, receive
from kinfolk.contests.fleet.places import RAY, PerTrial
from kinfolk.contests.fleet.queue import Claim, Queue
from kinfolk.contests.fleet.ray_task import Errand, attempt, content, load_order
from kinfolk.contests.fleet.worker import HEARTBEAT, Journal
from kinfolk.contests.outcome import Outcome
from kinfolk.core import plugins
from kinfolk.core.errors import DataError, SpecError, TrainingError

STOPPING = 40.0
"""Seconds that tasks may take to save and send when the driver is stopped."""


TRIES = 3
"""Attempts to join a cluster whose head could not start what it needs for a new driver."""

JOINING = 180.0
"""Seconds that joining a cluster at an address may take: a head whose server has died leaves its client waiting."""

HEAD = "node:__internal_head__"
"""The resource that Ray gives to the head node alone: letters must outlive all other nodes."""


class Mailbox:
    """Letters of running trials, until the driver takes them."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, dict[str, Any]]] = []

    def put(self, sender: str, letter: dict[str, Any]) -> None:
        """Take in a letter."""
        self.letters.append((sender, letter))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Hand out what there is."""
        letters, self.letters = self.letters, []
        return letters


def task(errand: Errand, parcels: dict[str, list[Any]], mailbox: Any, sender: str) -> list[str]:
    """Run one attempt on a node. parcels: references to files by hash, in lists so that Ray fetches none."""
    import ray

    return attempt(
        errand,
        fetch=lambda digest: ray.get(parcels[digest][0]),
        send=lambda letter: ray.get(mailbox.put.remote(sender, letter)),
    )


@dataclasses.dataclass
class Attempt:
    """A task, and the claim that the driver holds for it."""

    claim: Claim
    desk: Desk
    task: Any


class RayEngine:
    """A connection to a cluster, and the tasks that run there."""

    def __init__(self, on: str, home: Path, per_trial: PerTrial, most: int | None) -> None:
        self.queue, self.per_trial, self.most = Queue(home), per_trial, most
        self.ray, self._own = _connect(on)
        self.mailbox = self.ray.remote(Mailbox).options(num_cpus=0, resources={HEAD: 0.001}).remote()
        memory = {"memory": int(per_trial.memory * 1e9)} if per_trial.memory else {}
        self.remote = self.ray.remote(task).options(
            num_cpus=per_trial.cores, num_gpus=per_trial.gpus, max_retries=0, **memory
        )
        self.attempts: dict[str, Attempt] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self._parcels: dict[str, list[Any]] = {}
        self._beat = self._counted = 0.0
        self._slots = 0

    def tend(self, driver: Driver) -> None:
        """Take in letters and ends, show that claims are held, and start what there is room for."""
        try:
            self._deliver()
            self._end(driver)
            self._heartbeats()
            while len(self.attempts) < self._room():
                if not self._start(driver):
                    break
        except (self.ray.exceptions.RayActorError, ConnectionError) as error:
            raise TrainingError(f"ray: the head node is gone ({_line(error)}); start the same command again") from None

    def close(self) -> None:
        """Ask tasks to save, take in what they send, and give the claims back."""
        deadline = time.monotonic() + STOPPING
        pending = [each.task for each in self.attempts.values()]
        try:
            for running in pending:
                self.ray.cancel(running, force=False)
            while pending and time.monotonic() < deadline:
                _, pending = self.ray.wait(pending, num_returns=len(pending), timeout=1.0)
                self._deliver()
        except (self.ray.exceptions.RayError, ConnectionError):
            pass  # nothing more will come; what came is kept
        for each in self.attempts.values():
            each.desk.leave()
            self.queue.release(each.claim)
        self.attempts.clear()
        if self._own:
            self.ray.shutdown()

    def _deliver(self) -> None:
        for sender, letter in self.ray.get(self.mailbox.take.remote()):
            if sender in self.attempts:
                receive(self.attempts[sender].desk.folder, letter)

    def _end(self, driver: Driver) -> None:
        """Publish what has finished, and put back what was lost with its node."""
        if not self.attempts:
            return
        tasks = {each.task: sender for sender, each in self.attempts.items()}
        ready, _ = self.ray.wait(list(tasks), num_returns=len(tasks), timeout=0)
        if ready:
            # what a task sent before it ended
            self._deliver()
        for reference in ready:
            each = self.attempts.pop(tasks[reference])
            journal = Journal(driver.queue, each.desk.worker)
            try:
                lacking = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                each.desk.leave()
                if self._failed(error):
                    driver.queue.release(each.claim)
                    raise DataError(f"ray: a node cannot run trials: {_line(error)}; they wait") from None
                journal.write("died", each.claim.ticket)
                driver.queue.release(each.claim, 1, _line(error))
                driver.screen.note(f"{each.claim.ticket.name}: its node or process died ({_line(error)}); it goes on")
                continue
            if lacking:
                each.desk.leave()
                driver.queue.release(each.claim)
                raise DataError("\n".join(f"ray: {line}" for line in lacking))
            outcome = Outcome.read(each.desk.folder)
            if each.desk.publish():
                driver.queue.end(each.claim)
                journal.write("ended", each.claim.ticket, outcome)

    def _failed(self, error: Exception) -> bool:
        """Tell whether a task ended by an exception of its own, as without this package; not by a loss."""
        errors = self.ray.exceptions
        return isinstance(error, errors.RayTaskError) and not isinstance(error.cause, errors.RayError)

    def _heartbeats(self) -> None:
        if time.monotonic() - self._beat < HEARTBEAT:
            return
        self._beat = time.monotonic()
        for sender, each in list(self.attempts.items()):
            if not each.claim.beat():
                # this process was suspended and another has taken over
                self.ray.cancel(each.task, force=True)
                del self.attempts[sender]

    def _room(self) -> int:
        """Return how many trials the cluster has room for, and one more, which tells an autoscaler to grow."""
        if time.monotonic() - self._counted > HEARTBEAT:
            self._counted = time.monotonic()
            there = self.ray.cluster_resources()
            per = {
                "CPU": float(self.per_trial.cores),
                "GPU": self.per_trial.gpus,
                "memory": 1e9 * self.per_trial.memory,
            }
            self._slots = 1 + min(int(there.get(name, 0.0) / x) for name, x in per.items() if x)
        return min(self._slots, self.most or self._slots)

    def _start(self, driver: Driver) -> bool:
        """Claim a trial and submit it; False if none waits."""
        sender = hosts.worker_name(hosts.DRIVER)
        claim = driver.queue.claim(sender)
        if claim is None:
            return False
        ticket = claim.ticket
        desk = Desk(self.queue.home / ticket.room / ticket.name, sender)
        if desk.published is not None or (desk.open() is not None and desk.publish()):
            driver.queue.end(claim)
            return True
        shipment = Shipment.of(load_order(desk.folder), self._digest)
        parcels = {digest: self._parcels[digest] for digest in shipment.paths}
        for entry in plugins.loaded():
            file = Path(entry["path"])
            parcels[entry["sha256"]] = self._plugin(file, entry["sha256"])
        Journal(driver.queue, sender).write("claimed", ticket)
        errand = Errand(shipment.order, ticket.requires, ticket.limit, content(desk.folder))
        self.attempts[sender] = Attempt(claim, desk, self.remote.remote(errand, parcels, self.mailbox, sender))
        return True

    def _digest(self, path: Path, prefix: str) -> str:
        """Return the hash of a path, and keep its content in the cluster; read once for each driver."""
        key = (str(path), prefix)
        if key not in self._digests:
            digest, files = pack(path, prefix)
            self._digests[key] = digest
            self._parcels[digest] = [self.ray.put(files)]
        return self._digests[key]

    def _plugin(self, file: Path, digest: str) -> list[Any]:
        if digest not in self._parcels:
            self._parcels[digest] = [self.ray.put({file.name: file.read_bytes()})]
        return self._parcels[digest]


def _connect(on: str) -> tuple[Any, bool]:
    """Join a cluster; return Ray and whether this process has joined it now."""
    # nothing is reported to anybody
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise SpecError("--on ray needs an extra: pip install 'kinfolk[ray]', here and on every node") from None
    if on != RAY:
        _reach(on)
    if ray.is_initialized():
        return ray, False
    for left in reversed(range(TRIES)):
        try:
            _init(ray, on)
            break
        except Exception as error:
            # the head starts a process for each driver at an address, and that may fail on a busy host
            if not left or "Initialization failure" not in str(error):
                raise SpecError(f"--on {on}: cannot join the cluster: {_line(error)}") from None
    return ray, True


def _init(ray: Any, on: str) -> None:
    """Start a cluster here, or join one at an address for no longer than `JOINING` seconds."""
    if on == RAY:
        ray.init(log_to_driver=False, logging_level="ERROR")
        return
    failed: list[BaseException] = []

    def join() -> None:
        try:
            ray.init(address=on, log_to_driver=False, logging_level="ERROR")
        except BaseException as error:
            failed.append(error)

    # Ray's client waits for its server without a limit of its own
    joining = threading.Thread(target=join, name="join", daemon=True)
    joining.start()
    joining.join(JOINING)
    if joining.is_alive():
        raise TimeoutError(f"no answer within {JOINING:.0f} s; start the same command again (logs: ray_client_server*)")
    if failed:
        raise failed[0]


def _reach(on: str) -> None:
    """Refuse an address where nothing listens, which Ray itself would try for minutes."""
    host, _, port = on.removeprefix(f"{RAY}://").rpartition(":")
    if not host or not port.isdigit():
        raise SpecError(f"--on {on}: expected {RAY}://HOST:PORT, for example {RAY}://head:10001")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise SpecError(f"--on {on}: nothing answers there ({error}); is the port that of the Ray client?") from None


def _line(error: BaseException) -> str:
    """Return the most telling lines of an error: of one from elsewhere the last, of others the first and the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[-1:] if hasattr(error, "cause") else dict.fromkeys([lines[0], lines[-1]]))[:300]
