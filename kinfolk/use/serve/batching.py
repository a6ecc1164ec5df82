"""The running batch: rows join it when their prompt is read, and leave it when they have written enough.

Each step makes one token of every row, whoever else is there. A row's draws depend on its own seed and step alone, so
what it writes is what it would write alone.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinfolk.core.errors import ShapeError
from kinfolk.decoding.choose import choose
from kinfolk.decoding.constraints import constrain
from kinfolk.decoding.options import Decoding
from kinfolk.use.serve.text import Text
from kinfolk.use.serve.workers import Worker


class Scored(NamedTuple):
    """A token with its logarithmic probability, and the likeliest tokens in its place with theirs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(eq=False, kw_only=True)
class Row:
    """A text in the making: what was asked for, and what has been written.

    choice: its number among the texts of one request, which draw independently.
    n_top: how many of the likeliest tokens are reported with each; -1: no probabilities at all.
    presence, frequency: taken from the scores of tokens already written, once or each time.
    scores_prompt: whether the tokens of the prompt get probabilities too; they are in `read`.
    """

    prompt: Sequence[int]
    max_new: int
    how: Decoding
    choice: int = 0
    n_top: int = -1
    presence: float = 0.0
    frequency: float = 0.0
    scores_prompt: bool = False
    written: list[int] = dataclasses.field(default_factory=list)
    read: list[Scored] = dataclasses.field(default_factory=list)

    @property
    def plain(self) -> bool:
        """Whether it takes the likeliest token as the model says it."""
        own = self.presence or self.frequency or self.how.repetition_penalty != 1.0 or self.how.constrains
        return self.how.greedy and not own

    @property
    def finish(self) -> str | None:
        """Why nothing more is written: "stop", "length", or None while it goes on."""
        if self.written and self.written[-1] in self.how.stops:
            return "stop"
        return "length" if len(self.written) >= self.max_new else None


class Running:
    """The rows of one model that are being written, and their state."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.rows = worker, list[Row]()
        self._state: Any = None
        self._logits_BV: Tensor | None = None

    def room_for(self, row: Row) -> int:
        """Return how many positions a row needs; the last of its tokens is not read again."""
        return (1 if self.worker.pairs else len(row.prompt)) + max(0, row.max_new - 1)

    def start(self, rows: Sequence[Row]) -> None:
        """Read the prompts of new rows, and let those join who have something to write."""
        for _ in self.coming(rows, max(1, *(len(row.prompt) for row in rows))):
            raise AssertionError("one piece is all of it")

    @torch.inference_mode()
    def coming(self, rows: Sequence[Row], piece: int) -> Iterator[None]:
        """Do as `start` does, and stop after every so many tokens of a prompt that comes alone."""
        need = max(map(self.room_for, rows))
        if need > self.worker.context:
            raise ShapeError(f"prompt and new tokens need {need} positions, the model has {self.worker.context}")
        state, logits_BV, scores = yield from self.worker.begin([list(row.prompt) for row in rows], need, piece)
        for i, row in enumerate(rows):
            if row.scores_prompt:
                row.read = _read(row, scores(i))
        going = [i for i, row in enumerate(rows) if row.max_new > 0]
        if 0 < len(going) < len(rows):
            state, logits_BV = self.worker.leave(state, going), logits_BV[going]
        if going:
            self._take_in([rows[i] for i in going], state, logits_BV)

    @torch.inference_mode()
    def step(self) -> list[Scored]:
        """Choose the next token of every row; return the tokens in the order of `rows`."""
        assert self._logits_BV is not None
        likeliest = self._logits_BV.argmax(-1).tolist()
        rows = zip(self.rows, self._logits_BV, likeliest, strict=True)
        made = [_next(*one, self.worker.pairs) for one in rows]
        for row, one in zip(self.rows, made, strict=True):
            row.written.append(one.token)
        return made

    @torch.inference_mode()
    def go_on(self, staying: Sequence[Row]) -> None:
        """Let all rows leave but these, and read their newest tokens."""
        if len(staying) < len(self.rows):
            kept = set(staying)
            which = [i for i, row in enumerate(self.rows) if row in kept]
            self.rows = [self.rows[i] for i in which]
            if not which:
                self.clear()
                return
            self._state = self.worker.leave(self._state, which)
        self._logits_BV = self.worker.go_on(self._state, [row.written[-1] for row in self.rows])

    def clear(self) -> None:
        """Forget all rows, after something went wrong."""
        self.rows, self._state, self._logits_BV = [], None, None

    def _take_in(self, rows: list[Row], state: Any, logits_BV: Tensor) -> None:
        if self._logits_BV is None:
            self._state, self._logits_BV = state, logits_BV
        else:
            self._state = self.worker.join(self._state, len(self.rows), state, len(rows))
            self._logits_BV = torch.cat([self._logits_BV, logits_BV])
        self.rows += rows


def _next(row: Row, logits_V: Tensor, likeliest: int, pairs: bool) -> Scored:
    token = likeliest if row.plain else _chosen(row, logits_V, pairs)
    return Scored(token) if row.n_top < 0 else _scored(logits_V.log_softmax(-1)[None], [token], row.n_top)[0]


def _read(row: Row, scores: Iterator[Tensor]) -> list[Scored]:
    """Score the tokens of a prompt, each by those before it; the first has nothing before it."""
    ids = list(row.prompt)
    found = [Scored(ids[0])]
    for logits_LV in scores:
        at = len(found)
        found += _scored(logits_LV.log_softmax(-1), ids[at : at + len(logits_LV)], row.n_top)
    return found


def _chosen(row: Row, logits_V: Tensor, pairs: bool) -> int:
    """Choose a token as a request wants it; rows draw by their own numbers."""
    seen = [*row.prompt, *row.written] if row.how.repetition_penalty != 1.0 else [0]
    seen_1L = torch.tensor([seen], device=logits_V.device)
    step, rows = len(row.written), [[*([row.how.ids.start_id] if pairs else row.prompt), *row.written]]
    allowed_1V = constrain(_weighed(row, logits_V)[None], step, row.max_new, rows, row.how)
    return int(choose(allowed_1V, seen_1L, step, row.how, (row.choice,)))


def _weighed(row: Row, logits_V: Tensor) -> Tensor:
    """Return scores that have become lower for what is already written."""
    if row.written and (row.presence or row.frequency):
        ids, times = torch.tensor(row.written, device=logits_V.device).unique(return_counts=True)
        logits_V = logits_V.index_add(0, ids, -(row.presence + row.frequency * times).to(logits_V))
    return logits_V


def _scored(log_p_LV: Tensor, ids: list[int], n_top: int) -> list[Scored]:
    own_L = log_p_LV[torch.arange(len(ids)), torch.tensor(ids, device=log_p_LV.device)].tolist()
    tops: list[Any] = [()] * len(ids)
    if n_top > 0:
        values, at = log_p_LV.topk(min(n_top, log_p_LV.shape[-1]))
        rows = zip(at.tolist(), values.tolist(), strict=True)
        tops = [tuple(zip(which, log_p, strict=True)) for which, log_p in rows]
    return [Scored(*one) for one in zip(ids, own_L, tops, strict=True)]


def write(batch: Running, rows: Sequence[Row], texts: Sequence[Text], most: int) -> list[str]:
    """Write all rows, at most so many at once, and return what each wrote."""
    waiting, owner = list(range(len(rows))), {row: i for i, row in enumerate(rows)}
    found = [""] * len(rows)
    while waiting or batch.rows:
        free = most - len(batch.rows)
        if waiting and free:
            batch.start([rows[i] for i in waiting[:free]])
            waiting = waiting[free:]
        staying = []
        for row, made in zip(list(batch.rows), batch.step(), strict=True):
            i = owner[row]
            new, finish = texts[i].take(made.token, row.finish)
            found[i] += new
            if finish is None:
                staying.append(row)
        batch.go_on(staying)
    return found
