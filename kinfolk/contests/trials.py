"""The trials of a folder: those that have ended are kept, the others run side by side as jobs of the one runner.

A trial's folder is named after a hash of everything that decides its result, so the same trial is found again, by
every command that asks for it. A version whose recipes had fewer fields wrote another hash: its trials are read,
completed and compared.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.contests import devices
from kinfolk.contests.fleet import hosts
from kinfolk.contests.fleet.desk import PREFIX, Desk
from kinfolk.contests.fleet.driver import Driver, FleetEngine
from kinfolk.contests.fleet.engines import engine
from kinfolk.contests.fleet.places import LOCAL
from kinfolk.contests.fleet.queue import Queue
from kinfolk.contests.job import Job
from kinfolk.contests.layout import Layout
from kinfolk.contests.outcome import KEPT, Outcome
from kinfolk.contests.plan import slug
from kinfolk.contests.schedule import lock, run_all
from kinfolk.contests.screen import Screen
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.core.child import terminable
from kinfolk.core.console import Console
from kinfolk.core.errors import KinfolkError

TRIALS, CALIBRATIONS = "trials", "calibrations"


class Trials:
    """What runs trials, and knows how they ended."""

    def __init__(
        self, settings: Settings, layout: Layout, console: Console, held: Sequence[int], ungrouped: bool = False
    ) -> None:
        """ungrouped: batches are not grouped by length, so that their order is what it was in every version."""
        self.settings, self.layout, self.console, self.held = settings, layout, console, held
        self.ungrouped = ungrouped
        self._engine: FleetEngine | None = None
        self._earlier: dict[Path, Path | None] = {}
        self._listed: dict[Path, dict[str, list[Path]]] = {}

    def close(self) -> None:
        """Stop what starts workers, if anything does."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def run(self, orders: Sequence[Trial], what: str = "") -> list[Outcome | None]:
        """Run those that have no outcome to keep, in the order given, and return the outcomes of all."""
        distinct = {order.key: order for order in orders}
        missing = [o for o in distinct.values() if (end := self.known(o)) is None or end.status not in KEPT]
        if missing:
            self.start([self.job(order, self.place(order)) for order in missing], len(distinct) - len(missing), what)
        return [self.known(order) for order in orders]

    def known(self, order: Trial) -> Outcome | None:
        """Return how a trial ended; None if it has not."""
        outcome = Outcome.read(self.place(order))
        return None if outcome is None else outcome.replace(lr=order.recipe["training"]["optimiser"]["lr"])

    def place(self, order: Trial) -> Path:
        """Return the folder of a trial."""
        kind = CALIBRATIONS if order.calibrate else TRIALS
        home = self.settings.folder / kind
        folder = home / f"{slug(order.name)}-seed{order.seed}-{order.key}"
        if not folder.exists() and folder not in self._earlier:
            self._earlier[folder] = self._of_earlier_version(order, home)
        return folder if folder.exists() else self._earlier[folder] or folder

    def _of_earlier_version(self, order: Trial, home: Path) -> Path | None:
        """Return the folder of the same trial under the hash of a version whose recipes had fewer fields."""
        for folder in self._present(home).get(f"{slug(order.name)}-seed{order.seed}", []):
            try:
                other = Trial.read(folder)
                if ("grouping" in other.recipe["training"] or self.ungrouped) and other.completed().key == order.key:
                    return folder
            except (OSError, ValueError, TypeError, KeyError, KinfolkError):
                # not a trial, or one that this version cannot read: it is left alone
                continue
        return None

    def _present(self, home: Path) -> dict[str, list[Path]]:
        """Return the folders of trials that were there at the first look, by contestant and seed; listed once."""
        if home not in self._listed:
            folders: dict[str, list[Path]] = {}
            for folder in sorted(home.iterdir()) if home.is_dir() else ():
                folders.setdefault(folder.name.rpartition("-")[0], []).append(folder)
            self._listed[home] = folders
        return self._listed[home]

    def job(self, order: Trial, folder: Path) -> Job:
        """Return a trial as a job: its order is written into its folder, where the command finds it."""
        order.write(folder)
        steps, seconds = order.recipe["training"]["steps"], self.settings.allowance.unit == "seconds"
        return Job.of(
            order,
            folder,
            weight=1.0 if seconds else steps * (order.flops_per_token or 1.0),
            limit=self.settings.limit,
            steps=steps,
            needs={} if "env" in order.data else {"data": order.fingerprint},
        )

    def start(self, jobs: Sequence[Job], kept: int, what: str) -> None:
        """Run jobs to their end, and show how far they are."""
        weight = sum(job.weight for job in jobs)
        events = _line if self.settings.events else None
        with Screen(len(jobs) + kept, kept=kept, weight=weight, console=self.console, events=events) as screen:
            screen.note(f"{what or self.layout}{f'; {kept} finished before' if kept else ''}")
            if self.settings.on == LOCAL:
                self._reclaim(jobs)
                run_all(jobs, self.layout.jobs, screen, self.held, devices.environments())
            else:
                self._hand_out(jobs, screen)

    def _hand_out(self, jobs: Sequence[Job], screen: Screen) -> None:
        """Let others run jobs; what starts workers is kept from one stage of a comparison to the next."""
        settings, home = self.settings, self.settings.folder.resolve()
        driver = Driver(home, screen)
        driver.put(jobs)
        if self._engine is None:
            self._engine = engine(settings.on, home, settings.resources, settings.jobs)
        driver.run(self._engine)

    def _reclaim(self, jobs: Sequence[Job]) -> None:
        """Take back what workers have left; those that still run must not be joined by processes of this machine."""
        queue = Queue(self.settings.folder)
        owners = [file.name.rpartition("@")[2] for file in queue.claims()]
        alive = [owner for owner in owners if not hosts.is_gone(owner)]
        if alive:
            raise KinfolkError(
                f"{queue.home}: {len(alive)} trials are held by workers ({', '.join(alive[:3])}); stop those, or give "
                f"--on workers. If their hosts are gone for good, `kin work {queue.home} --wait 2m` takes over"
            )
        for job in jobs:
            if any(job.folder.glob(f"{PREFIX}*")):
                desk = Desk(job.folder, LOCAL)
                desk.open()
                desk.leave()


@contextlib.contextmanager
def opened(settings: Settings, layout: Layout, console: Console, ungrouped: bool = False) -> Iterator[Trials]:
    """Lock the folder of a comparison and give what runs its trials; a request to terminate ends them like Ctrl-C."""
    with (
        lock(settings.folder) as held,
        terminable(),
        contextlib.closing(Trials(settings, layout, console, held, ungrouped)) as trials,
    ):
        yield trials


def _line(text: str) -> None:
    """Write an event where progress is written, so that the result alone is on standard output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
