"""Worker processes of `kin prepare`, on all cores: each is given the next job when it has finished one.

Workers are started by their module's name and read everything from the folder, so nothing is pickled and a
script without `if __name__ == "__main__"` works too.
"""

import json
import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.child import Child, module
from kinfolk.core.errors import DataError
from kinfolk.core.machine import cores
from kinfolk.data.preparing.job import PreparationWorkshop, Tell, run_job
from kinfolk.data.preparing.plan import PreparationPlan

# bytes of input from which on processes pay, by whether the tokenizer is quick
_QUICK = 48 << 20
_SLOW = 4 << 20


def run_jobs(shop: PreparationWorkshop, jobs: Sequence[int], workers: int, tell: Tell, lock: int) -> None:
    """Do the jobs, in this process or in several; raise the error of the first that fails.

    lock: the descriptor that holds the folder. Workers have it too, so that a command started after this process was
    killed waits for those that still write.
    """
    workers = min(workers, len(jobs))
    if workers <= 1:
        for job in jobs:
            run_job(shop, job, tell)
        return
    todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    for _ in range(workers):
        todo.put(None)
    heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    crew = [_start(shop.folder, workers, lock) for _ in range(workers)]
    try:
        for worker in crew:
            threading.Thread(target=_serve, args=(worker, todo, heard), daemon=True).start()
        _listen(heard, workers, tell)
    finally:
        for worker in crew:
            worker.end()


def useful_workers(plan: PreparationPlan) -> int:
    """Return all cores, or 1 where starting processes would take longer than the work."""
    quick = plan.choices.tokenizer in ("byte", "char")
    return cores() if plan.total > (_QUICK if quick else _SLOW) else 1


def _listen(heard: "queue.SimpleQueue[dict[str, Any] | None]", workers: int, tell: Tell) -> None:
    while workers:
        message = heard.get()
        if message is None:
            workers -= 1
        elif "error" in message:
            raise DataError(message["error"])
        elif "read" in message:
            tell(message["read"])


def _serve(
    worker: Child,
    todo: "queue.SimpleQueue[int | None]",
    heard: "queue.SimpleQueue[dict[str, Any] | None]",
) -> None:
    """Hand jobs to one worker and pass on what it says, until there are no more."""
    while (job := todo.get()) is not None:
        worker.say(str(job))
        for line in worker.lines():
            message = json.loads(line)
            heard.put(message)
            if "read" not in message:
                break
        else:
            code = worker.process.wait()
            heard.put({"error": f"a worker ended (code {code}) in the middle of job {job}; run again to go on"})
            return
    heard.put(None)


def _start(folder: Path, workers: int, lock: int) -> Child:
    home = str(Path(__file__).parents[3])
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))}
    # the library's own threads would only fight over the cores that the workers use
    threads = max(1, cores() // workers)
    # elsewhere than on POSIX a child inherits no descriptor
    held = [lock] if os.name == "posix" else []
    return Child(module("kinfolk.data.preparing.worker", folder), threads=threads, held=held, environment=environment)
