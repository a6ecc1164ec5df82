"""The trials of a folder: those that have ended are kept, the others run side by side as jobs of the one runner.

A trial's folder is named after a hash of everything that decides its result, so the same trial is found again, whoever
asks for it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from kinfolk.contests import devices, trial
from kinfolk.contests.fleet.engines import run_on_workers
from kinfolk.contests.fleet.places import LOCAL
from kinfolk.contests.job import Job
from kinfolk.contests.layout import Layout
from kinfolk.contests.outcome import KEPT, Outcome
from kinfolk.contests.plan import slug
from kinfolk.contests.schedule import run_all
from kinfolk.contests.screen import Screen
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.core import child
from kinfolk.core.console import Console

TRIALS, CALIBRATIONS = "trials", "calibrations"


class Trials:
    """What runs trials, and knows how they ended."""

    def __init__(self, settings: Settings, layout: Layout, console: Console, held: Sequence[int]) -> None:
        self.settings, self.layout, self.console, self.held = settings, layout, console, held

    def run(self, orders: Sequence[Trial], what: str = "") -> list[Outcome | None]:
        """Run those that have no outcome to keep, in the order given, and return the outcomes of all."""
        distinct = {order.key: order for order in orders}
        missing = [order for order in distinct.values() if not self._is_kept(order)]
        if missing:
            self.start([self.job(order, self.place(order)) for order in missing], len(distinct) - len(missing), what)
        return [self.known(order) for order in orders]

    def known(self, order: Trial) -> Outcome | None:
        """Return how a trial ended; None if it has not."""
        return Outcome.read(self.place(order))

    def place(self, order: Trial) -> Path:
        """Return the folder of a trial."""
        kind = CALIBRATIONS if order.calibrate else TRIALS
        return self.settings.folder / kind / f"{slug(order.name)}-seed{order.seed}-{order.key}"

    def job(self, order: Trial, folder: Path) -> Job:
        """Return a trial as a job: its order is written into its folder, where the command finds it."""
        order.write(folder)
        steps, seconds = order.recipe["training"]["steps"], self.settings.allowance.unit == "seconds"
        return Job(
            name=order.name,
            seed=order.seed,
            key=order.key,
            folder=folder,
            command=[sys.executable, *child.safe_path(), "-m", "kinfolk.contests.trial", str(folder)],
            threads=order.threads,
            weight=1.0 if seconds else steps * (order.flops_per_token or 1.0),
            limit=self.settings.limit,
            progress=lambda: trial.last_step(folder) / steps,
        )

    def start(self, jobs: Sequence[Job], kept: int, what: str) -> None:
        """Run jobs to their end, and show how far they are."""
        weight = sum(job.weight for job in jobs)
        with Screen(len(jobs) + kept, kept=kept, weight=weight, console=self.console) as screen:
            screen.note(f"{what or self.layout}{f'; {kept} finished before' if kept else ''}")
            if self.settings.on == LOCAL:
                run_all(jobs, self.layout.jobs, screen, self.held, devices.environments())
            else:
                run_on_workers(self.settings.on, self.settings.folder, jobs, screen)

    def _is_kept(self, order: Trial) -> bool:
        outcome = self.known(order)
        return outcome is not None and outcome.status in KEPT
