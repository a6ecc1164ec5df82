"""`--on slurm`: an array of workers through submitit, requeued on preemption, as many as there are trials to run."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.places import PerTrial
from kinfolk.contests.fleet.queue import FOLDER, Queue
from kinfolk.contests.fleet.worker import Worker
from kinfolk.core import plugins
from kinfolk.core.child import last_lines
from kinfolk.core.errors import SpecError, TrainingError

MOST = 100
"""Workers of one comparison, unless --jobs says otherwise."""

WAIT = 10.0
"""Seconds that a worker stays when nothing waits: the next stage of a comparison may begin."""

LOOK_EVERY = 10.0
"""Seconds between two questions to the batch system."""

TRIES = 3
"""Arrays that may end without having claimed anything before the driver gives up."""


class Pull:
    """What a task of the array does; submitit stores it and calls it on the node, and again after a preemption."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self) -> int:
        """Pull trials until none waits."""
        plugins.load_inherited()
        return Worker(Queue(self.home), _say).work(WAIT)

    def checkpoint(self) -> Any:
        """Return what runs when the job was preempted or ran out of time: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


class SlurmEngine:
    """The arrays that were submitted, and how many of their tasks are alive."""

    def __init__(self, home: Path, per_trial: PerTrial, most: int | None) -> None:
        try:
            import submitit
        except ImportError:
            raise SpecError("--on slurm needs an extra: pip install 'kinfolk[slurm]'") from None
        self.home, self.per_trial, self.most = home, per_trial, most or MOST
        self.logs = home / FOLDER / "slurm"
        try:
            self.executor = submitit.AutoExecutor(folder=self.logs, cluster="slurm")
        except RuntimeError:
            raise SpecError("--on slurm: there is no sbatch on this host; run it on a login node") from None
        self.executor.update_parameters(
            name=f"kin-{home.name}",
            cpus_per_task=per_trial.cores,
            timeout_min=max(1, round(60 * per_trial.hours)),
            slurm_array_parallelism=self.most,
            slurm_additional_parameters={"requeue": True, "open-mode": "append"},
            **({"gpus_per_node": int(per_trial.gpus)} if per_trial.gpus else {}),
            **({"mem_gb": per_trial.memory} if per_trial.memory else {}),
            **({"slurm_partition": per_trial.partition} if per_trial.partition else {}),
        )
        self.jobs: list[str] = []
        self._looked, self._fruitless, self._left = -LOOK_EVERY, 0, 0

    def tend(self, driver: Driver) -> None:
        """Submit workers where fewer are alive than there are trials."""
        if time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._looked = time.monotonic()
        n_alive = len(self.alive())
        wanted = missing(driver.n_waiting, driver.n_running, n_alive, self.most)
        if not wanted:
            return
        if self.jobs and not n_alive:
            self._fruitless = self._fruitless + 1 if len(driver.open) == self._left else 0
            if self._fruitless >= TRIES:
                raise TrainingError(f"slurm: {TRIES} arrays of workers ended and ran nothing: {self._words()}")
        self._left = len(driver.open)
        self._submit(wanted, driver)

    def alive(self) -> list[str]:
        """Return the tasks that wait or run."""
        if not self.jobs:
            return []
        arrays = ",".join(sorted({job.partition("_")[0] for job in self.jobs}))
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={arrays}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # a controller that does not answer for a moment is not an array that has ended
        if done.returncode and "Invalid job id" not in done.stderr:
            return self.jobs
        return done.stdout.split()

    def close(self) -> None:
        """Cancel what still waits or runs; running workers give their trials back."""
        if alive := self.alive():
            subprocess.run(["scancel", *alive], capture_output=True, check=False)
        self.jobs.clear()

    def _submit(self, n: int, driver: Driver) -> None:
        from submitit.core.utils import FailedJobError

        try:
            with self.executor.batch():
                jobs = [self.executor.submit(Pull(self.home)) for _ in range(n)]
        except (FailedJobError, subprocess.SubprocessError, OSError) as error:
            raise SpecError(f"slurm: the workers were refused: {' '.join(str(error).split())[-300:]}") from None
        self.jobs += [str(job.job_id) for job in jobs]
        driver.screen.note(f"slurm: {n} workers submitted as {self.jobs[-1].partition('_')[0]}")

    def _words(self) -> str:
        logs = sorted(self.logs.glob("*_log.err"), key=lambda path: path.stat().st_mtime)
        return " ".join(last_lines(logs[-1], 1).split())[-300:] if logs else f"see {self.logs}"


def missing(n_waiting: int, n_running: int, n_alive: int, most: int) -> int:
    """Return how many workers to start: one for each trial, up to a limit."""
    return max(0, min(most, n_waiting + n_running) - n_alive)
