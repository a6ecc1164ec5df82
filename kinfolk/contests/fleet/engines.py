"""Where trials run: processes of this machine, or workers that pull from the comparison's folder.

`local` is the default. `workers` only plans and waits: start `kin work DIR` wherever the folder is visible. A command
with `{dir}` in it, such as `ssh HOST kin work {dir} --wait 10m`, is started here and stopped with the comparison.
"""

import contextlib
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.places import FOLDER, WORKERS
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.screen import Screen
from kinfolk.core.errors import SpecError, TrainingError


def run_on_workers(on: str, home: Path, jobs: Sequence[Job], screen: Screen) -> list[Outcome]:
    """Queue the jobs in a comparison's folder, and wait until workers have run them all."""
    driver = Driver(home.resolve(), screen)
    driver.put(jobs)
    if on == WORKERS:
        screen.note(f"waiting for workers: kin work {home.resolve()}")
        return driver.run()
    with _started(on.replace(FOLDER, shlex.quote(str(home.resolve())))) as process:

        def alive() -> None:
            if process.poll() not in (None, 0):
                raise TrainingError(f"--on: {on!r} ended with exit code {process.returncode}; its trials wait")

        return driver.run(alive=alive)


@contextlib.contextmanager
def _started(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a user's own command, and end it with the block."""
    try:
        process = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL)
    except (OSError, ValueError) as error:
        raise SpecError(f"--on: cannot start {command!r}: {error}") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
