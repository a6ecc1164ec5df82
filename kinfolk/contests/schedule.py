"""Run jobs side by side, each in its own process, until all have an outcome; none can end the others.

Knows nothing of Transformers: a job is a folder and a command that leaves `result.json` in it.
"""

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, FILE, OUT_OF_MEMORY, TIMED_OUT, Outcome
from kinfolk.contests.process import Child, explain
from kinfolk.contests.screen import Screen
from kinfolk.core.errors import KinfolkError

LOOK_EVERY = 0.2
"""Seconds between two looks at the children."""

SAVING = 30.0
"""Seconds a child may take to save when it is asked to stop."""


def run_all(
    jobs: Sequence[Job],
    slots: int,
    screen: Screen,
    held: Sequence[int] = (),
    environments: Sequence[Mapping[str, str]] = (),
) -> list[Outcome]:
    """Run every job, `slots` at a time, in the order given; an interruption stops the children and goes on up.

    environments: what names the accelerators, one for each; a job that starts gets the one with the fewest jobs.
    """
    waiting, running, outcomes = deque(jobs), dict[Child, Job](), list[Outcome]()
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                job = waiting.popleft()
                running[_start(job, held, _emptiest(environments, running))] = job
                screen.started(job)
            for child in list(running):
                outcome = _look(child, running[child], neighbours=len(running) - 1)
                if outcome is not None:
                    outcomes.append(outcome)
                    screen.finished(running.pop(child), outcome)
            screen.update([(job, job.progress()) for job in running.values()])
            time.sleep(LOOK_EVERY)
    except BaseException:
        screen.note("stopping: each running trial saves what it has")
        _stop(running)
        raise
    return outcomes


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[list[int]]:
    """Hold a folder for one comparison; give the descriptors that keep it held while children live.

    The lock belongs to the open file, which the children inherit, so it lasts until the last of them has left even
    when the parent was killed: nothing starts a second time in a folder where something still writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        # elsewhere than on POSIX there is no such lock, and two comparisons in one folder are the user's care
        yield []
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise KinfolkError(
                f"{folder}: another comparison runs in this folder, or its trials are still saving; "
                f"wait for it, or choose another --out"
            ) from None
        yield [file.fileno()]


def _emptiest(environments: Sequence[Mapping[str, str]], running: Iterable[Child]) -> Mapping[str, str]:
    taken = [child.environment for child in running]
    return min(environments, key=taken.count, default={})


def _start(job: Job, held: Sequence[int], environment: Mapping[str, str]) -> Child:
    job.folder.mkdir(parents=True, exist_ok=True)
    # an account of an earlier attempt must not be taken for that of this one
    (job.folder / FILE).unlink(missing_ok=True)
    return Child(job.command, job.folder, threads=job.threads, held=held, environment=environment)


def _look(child: Child, job: Job, neighbours: int) -> Outcome | None:
    code = child.watch(neighbours)
    if code is None and job.limit is not None and child.seconds > job.limit:
        child.ask_to_stop()
        child.end(SAVING)
        return _settle(child, job, TIMED_OUT, f"not finished after {job.limit:.0f} s")
    if code is None:
        return None
    child.close()
    if code == -9:
        return _settle(child, job, OUT_OF_MEMORY, "killed by SIGKILL, as the system does when memory runs out")
    return _settle(child, job, CRASHED, explain(code))


def _settle(child: Child, job: Job, status: str, reason: str) -> Outcome:
    """Complete the child's own account, or give one in its place when it left none, and write it down."""
    words = child.last_words()
    outcome = Outcome.read(job.folder) or Outcome(
        name=job.name,
        seed=job.seed,
        key=job.key,
        status=status,
        reason=f"{reason}\n{words}".strip(),
    )
    outcome = outcome.replace(
        peak_bytes=max(outcome.peak_bytes, child.peak_bytes), neighbours=round(child.neighbours, 2)
    )
    outcome.write(job.folder)
    return outcome


def _stop(running: dict[Child, Job]) -> None:
    for child in running:
        child.ask_to_stop()
    deadline = time.monotonic() + SAVING
    for child in running:
        try:
            child.end(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            # asked twice: whoever asks does not want to wait for the saving
            deadline = time.monotonic()
            child.end(0)
