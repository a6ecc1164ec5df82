"""A worker's own folder inside a trial's: what is written under its name is published by rename, by its owner alone.

    trials/NAME/trial.json             the order
    trials/NAME/work@WORKER/           run/, result.json and everything else that a running trial writes
    trials/NAME/run/, result.json      published, result.json last

A claim is taken over by renaming `work@OLD` to `work@NEW`. A worker that was suspended meanwhile and wakes up holds
paths that are gone: it cannot touch what the new owner writes, and nothing it writes can be published.
"""

import contextlib
import dataclasses
import shutil
from pathlib import Path

from kinfolk.contests.fleet import parcels
from kinfolk.contests.outcome import FILE as RESULT
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.trial import FILE as ORDER
from kinfolk.contests.trial import RUN
from kinfolk.core import durable
from kinfolk.core.errors import DataError
from kinfolk.core.lock import LOCK

PREFIX = "work@"
BEGINNINGS = (RUN, "start.safetensors")
"""What an attempt goes on from: the run with its checkpoints, and the weights of fine-tuning."""


@dataclasses.dataclass(frozen=True)
class Desk:
    """The folder of one attempt."""

    home: Path
    worker: str

    @property
    def folder(self) -> Path:
        """Where the trial runs."""
        return self.home / f"{PREFIX}{self.worker}"

    def open(self) -> Outcome | None:
        """Take over what an earlier attempt left; return the outcome if it lacked only being published."""
        # of several, the one that has come furthest; one without the order was written by a worker that had lost its
        # claim and did not know yet
        left = [old for old in self.home.glob(f"{PREFIX}*") if (old / ORDER).exists() and old != self.folder]
        for old in sorted(left, key=lambda path: not (path / RUN).exists()):
            if not (self.folder / ORDER).exists():
                with contextlib.suppress(OSError):
                    old.rename(self.folder)
        for old in self.home.glob(f"{PREFIX}*"):
            if old != self.folder:
                shutil.rmtree(old, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        try:
            durable.copy(self.home / ORDER, self.folder / ORDER)
        except FileNotFoundError:
            raise DataError(f"{self.home}: its trial cannot be read: there is no {ORDER}") from None
        parcels.apply(self.folder)
        self._move(self.home, self.folder)
        # the process of an earlier owner may still hold the lock, which went with the folder; here the claim decides
        (self.folder / RUN / LOCK).unlink(missing_ok=True)
        return Outcome.read(self.folder)

    @property
    def published(self) -> Outcome | None:
        """The outcome of the trial, if it was published by whichever worker."""
        return Outcome.read(self.home)

    def publish(self) -> bool:
        """Move everything where a finished trial has it; False if the folder is another worker's by now."""
        if not (self.folder / ORDER).exists() or Outcome.read(self.folder) is None:
            return False
        try:
            entries = [path for path in self.folder.iterdir() if path.name not in (RESULT, ORDER)]
            for path in [*entries, self.folder / RESULT]:
                target = self.home / path.name
                if target.is_dir() and path.name != RESULT:
                    shutil.rmtree(target)
                path.replace(target)
        except FileNotFoundError:
            return False
        shutil.rmtree(self.folder, ignore_errors=True)
        return True

    def leave(self) -> None:
        """Put back what the next attempt goes on from."""
        self._move(self.folder, self.home)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _move(self, source: Path, target: Path) -> None:
        for name in BEGINNINGS:
            if not (target / name).exists():
                with contextlib.suppress(FileNotFoundError):
                    (source / name).rename(target / name)
