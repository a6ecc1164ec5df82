"""Scheduler with continuous batching: one thread runs the models, requests wait in a bounded queue.

Between two steps of the running batches rows come and go: those whose client left or whose time is up go, those that
wait come as there is room. Nothing here knows of HTTP.

Whatever is raised, a panic of a tokenizer (which is no `Exception`) included, ends the requests it belongs to and not
the thread; what breaks the loop itself ends all requests, and the loop starts again with empty batches.
"""

import collections
import dataclasses
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kinfolk.core.errors import KinfolkError
from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence, ScoredToken
from kinfolk.use.serve.limits import ServerLimits


class BusyError(Exception):
    """The queue is full: come back later."""


class ClosingError(Exception):
    """The server is about to stop and takes nothing on."""


class Piece(NamedTuple):
    """News of one row of a request: text that is settled, tokens behind it, and why it ended, if it did.

    offsets: where in the row's text each token begins.
    """

    row: int
    text: str
    tokens: tuple[ScoredToken, ...] = ()
    offsets: tuple[int, ...] = ()
    finish: str | None = None


class Failed(NamedTuple):
    """A request that comes to nothing: "timeout", "refused" or "broken", and why."""

    kind: str
    message: str


class Done(NamedTuple):
    """What a call found."""

    value: Any


Event = Piece | Failed | Done


@dataclasses.dataclass(eq=False)
class Request:
    """Something that somebody waits for; `tell` is called from the engine's thread.

    rows with their texts, to be written by a model; or one call, made between two steps.
    """

    model: str
    tell: Callable[[Event], None]
    rows: Sequence[RunningSequence] = ()
    texts: Sequence[Text] = ()
    call: Callable[[], Any] | None = None
    deadline: float = float("inf")
    cancelled: bool = False

    @property
    def size(self) -> int:
        """How much of the queue it takes."""
        return max(1, len(self.rows))


@dataclasses.dataclass
class Counts:
    """What an engine has done, for metrics."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    rows_in_steps: int = 0
    seconds: float = 0.0
    joined: int = 0
    left_early: int = 0


class Scheduler:
    """Runs the batches of several models in one thread."""

    def __init__(self, running: Mapping[str, RunningBatch], limits: ServerLimits) -> None:
        self.running, self.limits = dict(running), limits
        self.counts = {name: Counts() for name in running}
        self._news = threading.Condition()
        self._waiting: collections.deque[tuple[Request, int]] = collections.deque()
        self._calls: collections.deque[Request] = collections.deque()
        self._owners: dict[RunningSequence, tuple[Request, int]] = {}
        self._coming: dict[str, tuple[list[RunningSequence], Iterator[None]]] = {}
        # wherever a failure finds them, even between two queues; who waits for one holds it
        self._accepted: weakref.WeakSet[Request] = weakref.WeakSet()
        self._taken = 0
        self._closing = self._stopped = False
        self._beat = time.monotonic()
        self.restarts = 0
        self._thread = self._new_thread()

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, name="engine", daemon=True)

    def submit(self, request: Request) -> None:
        """Take a request on, or raise `BusyError` or `ClosingError`."""
        with self._news:
            if self._closing:
                raise ClosingError
            if not self._thread.is_alive() and self._thread.ident is not None:
                self._thread = self._new_thread()
                self._thread.start()
            # one that is larger than the queue is taken on by an engine that has nothing else to do
            if self._taken and self._taken + request.size > self.limits.rows + self.limits.queue:
                raise BusyError
            self._taken += request.size
            self._accepted.add(request)
            if request.call is not None:
                self._calls.append(request)
            else:
                self._waiting.extend((request, i) for i in range(len(request.rows)))
            self._news.notify()

    def cancel(self, request: Request) -> None:
        """Drop a request: its client is gone."""
        request.cancelled = True
        with self._news:
            self._news.notify()

    def close(self) -> None:
        """Take nothing on any more; what was taken on is finished."""
        with self._news:
            self._closing = True
            self._news.notify()

    def stop(self, seconds: float = 30.0) -> None:
        """Close, and wait for the thread to end; after that number of seconds what is left is dropped."""
        self.close()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._stopped = True
        with self._news:
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)

    @property
    def n_waiting(self) -> int:
        """Texts and calls that wait."""
        return len(self._waiting) + len(self._calls)

    @property
    def n_running(self) -> int:
        """Texts being written, or about to be."""
        coming = sum(len(rows) for rows, _ in list(self._coming.values()))
        return coming + sum(len(batch.sequences) for batch in self.running.values())

    @property
    def closing(self) -> bool:
        """Whether nothing more is taken on."""
        return self._closing

    @property
    def trouble(self) -> str:
        """Why requests would not be answered now; "" if they would be."""
        if not self._thread.is_alive():
            return "the engine's thread has ended; the next request starts another"
        quiet = time.monotonic() - self._beat
        if (self.n_waiting or self.n_running) and quiet > self.limits.seconds:
            return f"the engine has been busy with one step for {quiet:.0f} seconds"
        return ""

    def _work(self) -> None:
        while True:
            try:
                self._go_on()
                return
            except BaseException as error:
                self._begin_again(error)

    def _begin_again(self, error: BaseException) -> None:
        """End all requests, and forget everything that may be damaged."""
        self.restarts += 1
        with self._news:
            requests = list(self._accepted)
            for held in (self._owners, self._waiting, self._calls, self._coming):
                held.clear()
            self._taken = 0
        for batch in self.running.values():
            batch.clear()
        for request in requests:
            self._fail_one(request, error)

    def _go_on(self) -> None:
        while True:
            self._beat = time.monotonic()
            with self._news:
                while not (self._waiting or self._calls or self.n_running or self._closing):
                    self._news.wait()
                if self._stopped or (self._closing and not (self._waiting or self._calls or self.n_running)):
                    return
            self._answer()
            self._admit()
            for name in list(self._coming):
                self._read(name)
            for name, batch in self.running.items():
                if batch.sequences:
                    self._step(name, batch)

    def _answer(self) -> None:
        """Make one call; those who write wait for no more than that."""
        if not self._calls:
            return
        request = self._calls.popleft()
        if not self._dropped(request):
            assert request.call is not None
            try:
                request.tell(Done(request.call()))
            except BaseException as error:
                self._fail_one(request, error)
        self._release(1)

    def _admit(self) -> None:
        """Let rows that wait come in, as many as there is room for, in their order."""
        chosen: dict[str, list[tuple[Request, int]]] = {}
        budget, held = self.limits.prefill, list[tuple[Request, int]]()
        while self._waiting and budget > 0:
            request, i = self._waiting.popleft()
            mine = chosen.setdefault(request.model, [])
            if self._dropped(request):
                self._release(1)
            elif not self._has_room(request.model, [*mine, (request, i)]):
                held.append((request, i))
            else:
                mine.append((request, i))
                # padded to the longest of those that come in together
                longest = max(len(r.rows[n].prompt) for r, n in mine)
                budget = self.limits.prefill - longest * len(mine)
        with self._news:
            self._waiting.extendleft(reversed(held))
        for name, mine in chosen.items():
            if mine:
                self._start(name, mine)

    def _has_room(self, name: str, mine: list[tuple[Request, int]]) -> bool:
        """Tell whether these may come in together: never a long prompt beside another, nor any while one is read."""
        if name in self._coming or len(self.running[name].sequences) + len(mine) > self.limits.rows:
            return False
        return len(mine) == 1 or all(len(request.rows[i].prompt) <= self.limits.piece for request, i in mine)

    def _start(self, name: str, mine: list[tuple[Request, int]]) -> None:
        rows = [request.rows[i] for request, i in mine]
        self._owners.update(zip(rows, mine, strict=True))
        self._coming[name] = rows, self.running[name].coming(rows, self.limits.piece)

    def _read(self, name: str) -> None:
        """Read a piece of the prompts that are coming; after the last they are in."""
        rows, reading = self._coming[name]
        counts = self.counts[name]
        gone = [self._dropped(self._owners[row][0]) for row in rows]
        if all(gone):
            del self._coming[name]
            counts.left_early += len(rows)
            for row in rows:
                self._let_go(row)
            return
        try:
            with torch.inference_mode():
                next(reading)
            return
        except StopIteration:
            del self._coming[name]
        except BaseException as error:
            del self._coming[name]
            self._fail(rows, error)
            return
        counts.prompt_tokens += sum(len(row.prompt) for row in rows)
        counts.joined += len(rows)
        for row in rows:
            if row.max_new == 0:
                request, i = self._owners[row]
                request.tell(Piece(i, "", finish="length"))
                self._let_go(row)

    def _step(self, name: str, batch: RunningBatch) -> None:
        gone = [row for row in batch.sequences if self._dropped(self._owners[row][0])]
        if gone:
            self.counts[name].left_early += len(gone)
            for row in gone:
                self._let_go(row)
        began, rows = time.perf_counter(), list(batch.sequences)
        try:
            with torch.inference_mode():
                scored = batch.step()
                pairs = zip(rows, scored, strict=True)
                ended = [row for row, one in pairs if row in self._owners and self._tell(row, one)]
                batch.go_on([row for row in rows if row in self._owners and row not in ended])
        except BaseException as error:
            batch.clear()
            self._fail([row for row in rows if row in self._owners], error)
            return
        for row in ended:
            self._let_go(row)
        counts = self.counts[name]
        counts.steps += 1
        counts.rows_in_steps += len(rows)
        counts.new_tokens += len(rows)
        counts.seconds += time.perf_counter() - began

    def _tell(self, row: RunningSequence, made: ScoredToken) -> bool:
        """Pass on what a token adds to a text; return whether the row is done."""
        request, i = self._owners[row]
        text = request.texts[i]
        offset = text.length
        new, finish = text.take(made.token, row.finish)
        request.tell(Piece(i, new, (made,), (offset,), finish))
        return finish is not None

    def _dropped(self, request: Request) -> bool:
        """Tell whether a request is not to be gone on with; if its time is up, it gets one message."""
        if not request.cancelled and time.monotonic() > request.deadline:
            request.cancelled = True
            request.tell(Failed("timeout", f"not finished in {self.limits.seconds:g} seconds"))
        return request.cancelled

    def _fail(self, rows: Sequence[RunningSequence], error: BaseException) -> None:
        for row in rows:
            self._fail_one(self._owners[row][0], error)
            self._let_go(row)

    def _fail_one(self, request: Request, error: BaseException) -> None:
        if not request.cancelled:
            request.cancelled = True
            request.tell(_explained(error))

    def _let_go(self, row: RunningSequence) -> None:
        del self._owners[row]
        self._release(1)

    def _release(self, n: int) -> None:
        with self._news:
            self._taken -= n


def _explained(error: BaseException) -> Failed:
    if isinstance(error, KinfolkError):
        return Failed("refused", str(error))
    traceback.print_exception(error)
    return Failed("broken", f"the model failed: {type(error).__name__}")
