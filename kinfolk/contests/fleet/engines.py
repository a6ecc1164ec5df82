"""Where trials run: processes of this machine, workers that pull from the comparison's folder, Slurm, or Ray.

`local` is the default. `workers` only plans and waits: start `kin work DIR` wherever the folder is visible. A command
with `{dir}` in it, such as `ssh HOST kin work {dir} --wait 10m`, is started here and stopped with the comparison.
`slurm` submits an array of workers, `ray` runs trials as tasks of a cluster that shares no folder.
"""

import shlex
import subprocess
from pathlib import Path

from kinfolk.contests.fleet.driver import Driver, FleetEngine
from kinfolk.contests.fleet.places import FOLDER, SLURM, WORKERS, PerTrial, is_ray
from kinfolk.contests.fleet.queue import FOLDER as QUEUE
from kinfolk.core.child import last_lines
from kinfolk.core.errors import SpecError, TrainingError


def engine(on: str, home: Path, per_trial: PerTrial, most: int | None = None) -> FleetEngine:
    """Return what runs the trials of a folder. most: trials side by side; None: as many as there is room for."""
    if is_ray(on):
        from kinfolk.contests.fleet.ray_engine import RayEngine

        return RayEngine(on, home, per_trial, most)
    if on == SLURM:
        from kinfolk.contests.fleet.slurm_engine import SlurmEngine

        return SlurmEngine(home, per_trial, most)
    return ExternalWorkers() if on == WORKERS else Command(on, home)


class ExternalWorkers:
    """Nothing is started: workers come from elsewhere."""

    def __init__(self) -> None:
        self._said = False

    def tend(self, driver: Driver) -> None:
        """Say once what to start."""
        if not self._said:
            self._said = True
            driver.screen.note(f"waiting for workers: kin work {driver.queue.home}")

    def close(self) -> None:
        """Leave the workers alone."""


class Command:
    """A user's own command, started here and ended with the comparison; what it writes goes to `queue/command.txt`."""

    def __init__(self, on: str, home: Path) -> None:
        self.on, command = on, on.replace(FOLDER, shlex.quote(str(home)))
        self.output = home / QUEUE / "command.txt"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.output.open("wb") as out:
                self.process = subprocess.Popen(
                    shlex.split(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
                )
        except (OSError, ValueError) as error:
            raise SpecError(f"--on: cannot start {command!r}: {error}") from None

    def tend(self, driver: Driver) -> None:
        """Raise if it failed."""
        if self.process.poll() not in (None, 0):
            words = last_lines(self.output, 1)[-300:]
            raise TrainingError(
                f"--on: {self.on!r} ended with exit code {self.process.returncode}; its trials wait"
                + f" ({words})" * bool(words)
            )

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
