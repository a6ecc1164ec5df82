"""`prepare`: raw files to a folder of shards, on all cores, in bounded memory, the same bytes every time.

The order of events, each safe to be killed in: plan the jobs; learn the tokenizer; do the jobs, each leaving its
shards and then its record; write the manifest; remove the work folder. Run again, it goes on where it was.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinfolk.core.durable import digest, write_json
from kinfolk.core.errors import DataError
from kinfolk.core.lock import LOCK, locked
from kinfolk.data.files.reader import Bad
from kinfolk.data.preparing.crew import run_jobs, useful_workers
from kinfolk.data.preparing.gather import gather, records
from kinfolk.data.preparing.job import HELD_OUT, PLAN, WORK, PreparationWorkshop
from kinfolk.data.preparing.manifest import BAD, MANIFEST, TOKENIZER, PreparedManifest, open_prepared, read_manifest
from kinfolk.data.preparing.plan import PreparationPlan, make_plan
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.preparing.progress import bar
from kinfolk.data.preparing.sampling import sample
from kinfolk.data.tokenizers.learn import make_tokenizer, needs_sample

# what was asked for, beside the manifest and not in it: a copy of the input with another date gives the same data
REQUEST = ".request"


def prepare(
    inputs: Sequence[str | Path], out: str | Path, choices: Preparation | None = None, *, workers: int | None = None
) -> PreparedManifest:
    """Prepare files and folders into the folder `out` and return its manifest.

    Killed and called again with the same arguments it goes on; called once more it has nothing left to do. The
    number of workers (None: all cores, if that pays) changes the time and nothing else.
    """
    choices, folder = choices or Preparation(), Path(out)
    learned = needs_sample(choices)
    plan = make_plan(inputs, choices)
    _refuse_bad_files(plan)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder) as lock:
            if not (folder / MANIFEST).exists():
                _begin(folder, plan)
                _make_tokenizer(folder, plan, learned=learned)
                _do_jobs(folder, workers or useful_workers(plan), lock)
                gather(PreparationWorkshop.open(folder))
            elif not _is_request(folder, plan):
                raise DataError(f"{folder}: holds data of other files or other choices; choose a new folder")
            shutil.rmtree(folder / WORK, ignore_errors=True)
            open_prepared(folder)
            return read_manifest(folder)
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: {error.strerror}; what is finished stays, run again to go on") from error


def _refuse_bad_files(plan: PreparationPlan) -> None:
    if plan.bad and plan.choices.on_bad == "stop":
        path, reason, detail = plan.bad[0]
        more = f", and {len(plan.bad) - 1} more such files" if len(plan.bad) > 1 else ""
        why = Bad(1, reason, detail).why
        raise DataError(f"{path}:1: {why}{more} (kin prepare --on-bad skip leaves such files out)")
    if not plan.jobs:
        raise DataError(f"nothing to prepare: none of the {len(plan.sources)} files can be used")


def _begin(folder: Path, plan: PreparationPlan) -> None:
    """Write the plan, unless it is the one already begun; what was begun for another plan is removed."""
    if not (folder / WORK).is_dir():
        strangers = {path.name for path in folder.iterdir()} - {LOCK, REQUEST}
        if strangers:
            raise DataError(f"{folder}: not empty (it holds {min(strangers)!r}); choose a new folder")
    elif not _is_request(folder, plan):
        shutil.rmtree(folder / WORK)
        for path in (*folder.glob("*.bin"), *folder.glob("*.idx"), folder / TOKENIZER, folder / BAD):
            path.unlink(missing_ok=True)
    (folder / WORK).mkdir(exist_ok=True)
    write_json(folder / REQUEST, _request(plan))
    if not (folder / WORK / HELD_OUT).exists():
        write_json(folder / WORK / HELD_OUT, {"below": plan.choices.valid})
    # written even when it is there: what a bad row does may have changed
    write_json(folder / WORK / PLAN, plan.plain())


def _is_request(folder: Path, plan: PreparationPlan) -> bool:
    try:
        return bool(json.loads((folder / REQUEST).read_bytes()) == _request(plan))
    except (OSError, ValueError):
        return False


def _request(plan: PreparationPlan) -> dict[str, str]:
    """Return a hash of everything that finished jobs depend on; stopping at a bad row or not is no such thing."""
    file = Path(plan.choices.tokenizer)
    tokenizer = digest(file) if file.is_file() else plan.choices.tokenizer
    choices = replace(plan.choices, on_bad="skip")
    text = json.dumps([replace(plan, choices=choices).plain(), tokenizer], sort_keys=True)
    return {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def _make_tokenizer(folder: Path, plan: PreparationPlan, *, learned: bool) -> None:
    if (folder / TOKENIZER).exists():
        return
    if not learned:
        make_tokenizer(plan.choices, ()).save(folder / TOKENIZER)
        return
    with bar("learning the tokenizer", min(plan.choices.sample, plan.total)) as tell:
        make_tokenizer(plan.choices, sample(plan, tell)).save(folder / TOKENIZER)


def _do_jobs(folder: Path, workers: int, lock: int) -> None:
    """Do what is left to do; then see that both splits have something."""
    shop = PreparationWorkshop.open(folder)
    _do_left(shop, workers, lock)
    lowest, count = 1.0, {"train": 0, "valid": 0}
    for record in records(shop):
        lowest = min(lowest, record["lowest"])
        for name in count:
            count[name] += record["splits"][name]["documents"]
    if not any(count.values()):
        raise DataError(f"{folder}: nothing to prepare: every row of the input is bad")
    if shop.plan.choices.valid and sum(count.values()) > 1 and not all(count.values()):
        # so few documents that chance left a split empty: hold out the one with the lowest place, and no other
        write_json(folder / WORK / HELD_OUT, {"below": float(np.nextafter(lowest, 1))})
        _do_left(PreparationWorkshop.open(folder), workers, lock)


def _do_left(shop: PreparationWorkshop, workers: int, lock: int) -> None:
    left = [job for job in range(len(shop.plan.jobs)) if not _done(shop, job)]
    with bar("preparing", shop.plan.total) as tell:
        tell(shop.plan.total - sum(map(shop.plan.size, left)))
        run_jobs(shop, left, workers, tell, lock)


def _done(shop: PreparationWorkshop, job: int) -> bool:
    try:
        below: float = json.loads(shop.record(job).read_bytes())["below"]
    except FileNotFoundError:
        return False
    return below == shop.below
