"""Batches made ahead of time, so that training never waits for them; the same batches in the same order."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from torch.utils.data import DataLoader, Dataset

from kinfolk.core.batch import Batch
from kinfolk.data.batches.batches import Batches

Prepare = Callable[[Batch], Batch]


class Loader:
    """Iterate over the batches from `start` to `stop` (None: for ever).

    prepare: what an objective does to a batch; it runs ahead as well, so it must be a pure function of the batch.
    rank, world: which rows this process takes.
    workers: 0 makes batches ahead in one thread, which is enough for prepared data; more uses that many processes.
    ahead: how many batches to have ready.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        start: int = 0,
        stop: int | None = None,
        prepare: Prepare | None = None,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        ahead: int = 2,
    ) -> None:
        self.start, self.stop, self.workers, self.ahead = start, stop, workers, max(1, ahead)
        self._made = _Made(batches, prepare, rank, world)

    def __iter__(self) -> Iterator[Batch]:
        return self._from_processes() if self.workers else self._from_thread()

    def _steps(self) -> Iterator[int]:
        step = self.start
        while self.stop is None or step < self.stop:
            yield step
            step += 1

    def _from_thread(self) -> Iterator[Batch]:
        steps = self._steps()
        ready: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1, "kinfolk-loader") as thread:
            try:
                for step in steps:
                    ready.append(thread.submit(self._made.__getitem__, step))
                    if len(ready) > self.ahead:
                        yield ready.popleft().result()
                while ready:
                    yield ready.popleft().result()
            finally:
                thread.shutdown(wait=False, cancel_futures=True)

    def _from_processes(self) -> Iterator[Batch]:
        # batch_size=None: an item is a batch already; the sampler is the numbers of the steps
        yield from DataLoader(
            self._made, batch_size=None, sampler=self._steps(), num_workers=self.workers, prefetch_factor=self.ahead
        )


class _Made(Dataset[Batch]):
    """The batches as a dataset whose items are steps."""

    def __init__(self, batches: Batches, prepare: Prepare | None, rank: int, world: int) -> None:
        self.batches, self.prepare, self.rank, self.world = batches, prepare, rank, world

    def __getitem__(self, step: int) -> Batch:
        batch = self.batches.at(step, self.rank, self.world)
        return self.prepare(batch) if self.prepare else batch
