"""One attempt at a trial on a node that shares no folder with the driver: a plain function, for any engine."""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.fleet import hosts
from kinfolk.contests.fleet.parcels import Files, Sender, arrived, unpack
from kinfolk.contests.fleet.worker import DATA, PLUGIN, difference, is_full, mismatches
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import FILE as RESULT
from kinfolk.contests.outcome import Outcome, write_json
from kinfolk.contests.schedule import Running
from kinfolk.contests.trial import FILE as ORDER
from kinfolk.contests.trial import Trial
from kinfolk.core import plugins
from kinfolk.core.errors import KinfolkError
from kinfolk.data.opening import cache_folder

SEND_EVERY = 2.0
"""Seconds between two looks at what a trial has written."""


@dataclasses.dataclass(frozen=True)
class Errand:
    """What a node is sent to run.

    order: of the trial, with hashes in the place of paths. requires, limit: of its ticket. begun: files that an earlier
    attempt has left.
    """

    order: Mapping[str, Any]
    requires: Mapping[str, str]
    limit: float | None
    begun: Files


Fetch = Callable[[str], Files]
"""Files by hash, called for those that this node does not have yet."""

Send = Callable[[dict[str, Any]], None]
"""Takes a letter to the driver."""


def attempt(errand: Errand, fetch: Fetch, send: Send) -> list[str]:
    """Run a trial in a folder of this node and send back what it writes; return what this node lacks, by name."""
    try:
        lacking = _attempt(errand, fetch, send)
    except (OSError, KinfolkError) as error:
        # a full disk, a cache that cannot be written: the node is to blame, and not the trial
        lacking = [str(error)]
    return [f"node {hosts.host()}: {line}" for line in lacking]


def _attempt(errand: Errand, fetch: Fetch, send: Send) -> list[str]:
    cache, requires = cache_folder(None), errand.requires
    if lacking := mismatches({name: value for name, value in requires.items() if not name.startswith(PLUGIN)}):
        return lacking
    order = arrived(errand.order, lambda digest: unpack(digest, lambda: fetch(digest), cache))
    if (wanted := requires.get(DATA)) and (lines := difference(order["data"], wanted)):
        return lines
    environment = _plugins(requires, fetch, cache)
    folder = Path(tempfile.mkdtemp(prefix="kinfolk-trial-"))
    try:
        for name, content in errand.begun.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        write_json(folder / ORDER, order)
        outcome = _run(Job.of(Trial.read(folder), folder, limit=errand.limit), environment, send)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [outcome.reason.splitlines()[-1]] if is_full(outcome) else []


def _run(job: Job, environment: Mapping[str, str], send: Send) -> Outcome:
    sender = Sender(job.folder)
    running = Running.start(job, environment=environment)
    sent = time.monotonic()
    try:
        while (outcome := running.look(neighbours=0)) is None:
            if time.monotonic() - sent >= SEND_EVERY:
                if letter := sender.letter():
                    send(letter)
                sent = time.monotonic()
            time.sleep(0.2)
        if is_full(outcome):
            (job.folder / RESULT).unlink()
    except BaseException:
        running.stop()
        raise
    finally:
        if letter := sender.letter():
            send(letter)
    return outcome


def _plugins(requires: Mapping[str, str], fetch: Fetch, cache: Path) -> dict[str, str]:
    """Return the variable that lets a child load the user's own plugins, shipped by hash."""
    places = []
    for name, digest in requires.items():
        if name.startswith(PLUGIN):
            place = unpack(digest, lambda digest=digest: fetch(digest), cache)  # type: ignore[misc]
            file = place / name.removeprefix(PLUGIN)
            if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                raise ValueError(f"{file}: is not the plugin that was shipped")
            places.append(str(file))
    return {plugins.VARIABLE: os.pathsep.join(places)} if places else {}


def content(folder: Path) -> Files:
    """Return the files of an earlier attempt that the next one goes on from."""
    letter = Sender(folder).letter() or {"files": {}}
    return {name: data for name, data in letter["files"].items() if not name.endswith(".txt")}


def load_order(folder: Path) -> dict[str, Any]:
    """Read the order of a trial as plain data."""
    return json.loads((folder / ORDER).read_text(encoding="utf-8"))
