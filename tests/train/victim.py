"""Kill a run before every single thing it does to the disk, go on, and compare with a run that was left alone.

Started in a process of its own: `python -m tests.train.victim FOLDER`. Each run is a fork of this process, which has
imported everything and has one thread, so one round takes a fraction of a second. Prints one JSON object.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.train.toy import job, same_run, start

TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate")


def train(out: Path) -> None:
    """A run in which every kind of writing happens: better and worse validations, pruning, the end."""
    start(out, job(steps=6, eval_every=2, save_every=3, keep_last=1))


def in_a_fork(work: Callable[[], None]) -> int:
    """Run something in a child and return how it ended: 0, or minus the signal."""
    pid = os.fork()
    if pid == 0:
        # not even the interpreter's exit may run: it belongs to the parent
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying_at(touch: int, out: Path, report: Path | None = None) -> Callable[[], None]:
    """Return a run that kills itself before the touch of this number, and tells how many there were if it did not."""

    def work() -> None:
        seen = 0

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            # reading leaves the disk as it is, so dying before it is dying after the last change
            reads = event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR)
            if event in TOUCHES and not reads and any(str(out) in str(arg) for arg in args):
                seen += 1
                if seen == touch:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        train(out)
        if report is not None:
            report.write_text(str(seen))

    return work


def main(folder: Path) -> dict[str, Any]:
    """Try every touch; return how many there were and which went wrong."""
    torch.set_num_threads(1)
    # PyTorch imports a good deal when first used
    train(folder / "warm-up")
    whole = folder / "whole"
    assert in_a_fork(dying_at(0, whole, folder / "count")) == 0
    touches = int((folder / "count").read_text())
    wrong = []
    for touch in range(1, touches + 1):
        cut = folder / f"cut-{touch}"
        killed = in_a_fork(dying_at(touch, cut))
        resumed = in_a_fork(lambda: train(cut))  # noqa: B023
        if killed != -signal.SIGKILL or resumed != 0 or not same_run(whole, cut) or list(cut.rglob("*.part")):
            wrong.append({"touch": touch, "killed": killed, "resumed": resumed})
    return {"touches": touches, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201
