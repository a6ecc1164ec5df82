"""The state of a comparison as its folder shows it, read from any host."""

import contextlib
import time
from pathlib import Path

from kinfolk.contests.fleet.desk import PREFIX
from kinfolk.contests.fleet.queue import Queue
from kinfolk.contests.fleet.totals import Totals
from kinfolk.contests.fleet.worker import ROOMS
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.trial import FILE as ORDER
from kinfolk.contests.trial import RUN, last_row
from kinfolk.core.child import OUTPUT
from kinfolk.core.errors import DataError

RECENT = 60.0
"""Seconds within which a trial of local processes has begun or written something, if it is running."""


def status(home: Path) -> Totals:
    """Return the totals of a comparison's folder and of those inside it (the tasks of a suite, amounts of a ladder)."""
    folders = [path.parent for path in [home / "trials", *home.glob("*/trials")] if path.is_dir()]
    if not folders:
        raise DataError(f"{home}: holds no comparison: there is no folder trials/ in it")
    totals = Totals()
    for folder in folders:
        _add(totals, folder)
    return totals


def _add(totals: Totals, folder: Path) -> None:
    queue = Queue(folder)
    counts = queue.count()
    totals.queued += counts["waiting"]
    totals.running += counts["running"]
    for file in queue.claims():
        name, _, worker = file.name.rpartition("@")
        for room in ROOMS:
            row = last_row(folder / room / name / f"{PREFIX}{worker}")
            totals.tokens_per_second += float(row.get("tokens_per_second", 0.0))
    handed_out = queue.names()
    for path in (folder / "trials").iterdir():
        with contextlib.suppress(NotADirectoryError, FileNotFoundError):
            if (outcome := Outcome.read(path)) is not None:
                totals.add(outcome)
            elif path.name not in handed_out:
                _add_local(totals, path)


def _add_local(totals: Totals, path: Path) -> None:
    """Count a trial that a process of the comparison's own machine runs or will run."""
    files = [path / OUTPUT, path / RUN / "metrics.jsonl"]
    newest = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    if time.time() - newest < RECENT:
        totals.running += 1
        totals.tokens_per_second += float(last_row(path).get("tokens_per_second", 0.0))
    else:
        totals.queued += (path / ORDER).exists()
