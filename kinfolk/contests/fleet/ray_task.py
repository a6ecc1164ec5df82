"""One attempt at a trial on a node that shares no folder with the driver: a plain function, for any engine."""

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
from kinfolk.contests.fleet.worker import DATA, difference, is_full, mismatches
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import FILE as RESULT
from kinfolk.contests.outcome import Outcome, write_json
from kinfolk.contests.schedule import Running
from kinfolk.contests.trial import FILE as ORDER
from kinfolk.contests.trial import Trial
from kinfolk.core import child, plugins
from kinfolk.core.errors import KinfolkError
from kinfolk.data.opening import cache_folder

SEND_EVERY = 2.0
"""Seconds between two looks at what a trial has written."""


def attempt(
    order: Mapping[str, Any],
    requires: Mapping[str, str],
    limit: float | None,
    begun: Files,
    fetch: Callable[[str], Files],
    send: Callable[[dict[str, Any]], None],
) -> list[str]:
    """Run a trial in a folder of this node and send back what it writes; return what this node lacks, by name.

    begun: what an earlier attempt has left. fetch: files by hash, called for those that this node does not have yet.
    """
    try:
        return [f"node {hosts.host()}: {line}" for line in _attempt(order, requires, limit, begun, fetch, send)]
    except (OSError, KinfolkError) as error:
        # a full disk, a cache that cannot be written: the node is to blame, and not the trial
        return [f"node {hosts.host()}: {error}"]


def _attempt(
    order: Mapping[str, Any],
    requires: Mapping[str, str],
    limit: float | None,
    begun: Files,
    fetch: Callable[[str], Files],
    send: Callable[[dict[str, Any]], None],
) -> list[str]:
    cache = cache_folder(None)
    own = {name: value for name, value in requires.items() if not name.startswith("plugin ")}
    lacking = mismatches(own)
    if lacking:
        return lacking
    order = arrived(order, lambda digest: unpack(digest, lambda: fetch(digest), cache))
    if (wanted := requires.get(DATA)) and (lines := difference(order["data"], wanted)):
        return lines
    environment = _plugins(requires, fetch, cache)
    folder = Path(tempfile.mkdtemp(prefix="kinfolk-trial-"))
    try:
        for name, content in begun.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        write_json(folder / ORDER, dict(order))
        outcome = _run(Trial.read(folder), folder, limit, environment, send)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [outcome.reason.splitlines()[-1]] if is_full(outcome) else []


def _run(
    trial: Trial, folder: Path, limit: float | None, environment: Mapping[str, str], send: Callable[..., None]
) -> Outcome:
    command = child.module("kinfolk.contests.trial", folder)
    job = Job(
        name=trial.name,
        seed=trial.seed,
        key=trial.key,
        folder=folder,
        command=command,
        threads=trial.threads,
        limit=limit,
    )
    sender = Sender(folder)
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
            (folder / RESULT).unlink()
    except BaseException:
        running.stop()
        raise
    finally:
        if letter := sender.letter():
            send(letter)
    return outcome


def _plugins(requires: Mapping[str, str], fetch: Callable[[str], Files], cache: Path) -> dict[str, str]:
    """Return the variable that lets a child load the user's own plugins, shipped by hash."""
    places = []
    for name, digest in requires.items():
        if name.startswith("plugin "):
            place = unpack(digest, lambda digest=digest: fetch(digest), cache)  # type: ignore[misc]
            file = place / name.removeprefix("plugin ")
            if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                raise ValueError(f"{file}: is not the plugin that was shipped")
            places.append(str(file))
    return {plugins.VARIABLE: os.pathsep.join(places)} if places else {}


def content(folder: Path) -> Files:
    """Return the files of an earlier attempt that the next one goes on from."""
    letter = Sender(folder).letter() or {"files": {}}
    files: Files = letter["files"]
    return {name: data for name, data in files.items() if not name.endswith((".txt",))}


def load_order(folder: Path) -> dict[str, Any]:
    """Read the order of a trial as plain data."""
    order: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    return order
