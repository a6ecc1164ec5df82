"""Prefetching: the next batches are read and prepared in a thread during the current step."""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from kinfolk.core.batch import Batch
from kinfolk.train.job import TrainingJob
from kinfolk.train.memory import Remembering
from kinfolk.train.parallel import Team

AHEAD = 2
"""How many batches are made ready."""

Read = tuple[Batch, int]


class Ahead:
    """`Job.read`, step after step, ahead of the loop; the same batches, since they depend on their number only.

    A source that acts with the weights as they are cannot be read ahead, so it is asked when its turn has come.
    """

    def __init__(self, job: TrainingJob, team: Team, last: int) -> None:
        self.job, self.team, self.last = job, team, last
        self.pure = not isinstance(job.batches, Remembering)
        self.ready: deque[tuple[int, Future[Read]]] = deque()
        self.thread = ThreadPoolExecutor(1, "kinfolk-ahead")

    def at(self, step: int) -> tuple[Batch, int, float]:
        """Return the batch of a step, how many tokens were read for it, and how long that made the caller wait."""
        start = time.perf_counter()
        if not self.pure:
            return *self.job.read(step, self.team), time.perf_counter() - start
        if not self.ready or self.ready[0][0] != step:
            self.ready.clear()
        first = self.ready[-1][0] + 1 if self.ready else step
        for number in range(first, min(step + AHEAD, max(self.last, step)) + 1):
            self.ready.append((number, self.thread.submit(self.job.read, number, self.team)))
        batch, tokens = self.ready.popleft()[1].result()
        return batch, tokens, time.perf_counter() - start

    def close(self) -> None:
        """Forget what will not be asked for."""
        self.thread.shutdown(wait=True, cancel_futures=True)
