"""Who runs a model for the running batch: torch, or the graphs of an export in onnxruntime.

Both read prompts into a state, let states join, let rows leave, and read one more token of every row.
"""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.decoding.decode import batch_of
from kinfolk.models.joining import join, least_room, leave
from kinfolk.models.model import State, Transformer

if TYPE_CHECKING:
    from kinfolk.use.onnx.engine import Engine
    from kinfolk.use.onnx.rows import Rows

CHUNK = 32
"""States are made for a multiple of so many positions: rows of similar lengths need no filling up."""
SCORED = 256
"""Positions of a prompt that are scored at once."""

Scores = Callable[[int], Iterator[Tensor]]
"""Of a prompt by its number: the scores at all its positions but the last, [n, V] at a time."""

Reading = Generator[None, None, tuple[Any, Tensor, Scores]]
"""Prompts being read, which stops between pieces: a state, the scores that follow each prompt, and those within."""


class Worker(Protocol):
    """What the running batch asks of whoever runs a model."""

    context: int
    pairs: bool

    def begin(self, prompts: list[list[int]], need: int, piece: int) -> Reading:
        """Read prompts that need so many positions; one that is alone is read so many tokens at a time."""
        ...

    def join(self, state: Any, n: int, other: Any, n_other: int) -> Any: ...

    def leave(self, state: Any, staying: list[int]) -> Any: ...

    def go_on(self, state: Any, newest: list[int]) -> Tensor: ...


class TorchWorker:
    """Runs a model as it is."""

    def __init__(self, model: Transformer, context: int) -> None:
        self.model = model.eval()
        self.context = min(context, model.limit or context)
        self.pairs = model.spec.topology == "encoder-decoder"
        self._least = least_room(model, self.context)
        self._device = next(model.parameters()).device

    def begin(self, prompts: list[list[int]], need: int, piece: int) -> Reading:
        """Read prompts."""
        room = min(self.context, max(self._least, -(-need // CHUNK) * CHUNK))
        state = self.model.new_state(len(prompts), room)
        batch, *more = self._batches(prompts, piece)
        hidden = [self.model.run(batch, state).hidden]
        for one in more:
            yield
            hidden.append(self.model.run(one, state).hidden)
        hidden_BLD = torch.cat(hidden, dim=1)
        n, width = hidden_BLD.shape[:2]
        lengths_B = torch.full((n,), width, device=self._device) if batch.keep is None else batch.keep.sum(1)
        logits_BV = self.model.head.logits(hidden_BLD[torch.arange(n, device=self._device), lengths_B - 1])

        def scores(i: int) -> Iterator[Tensor]:
            n = len(prompts[i]) - 1
            for at in range(0, n, SCORED):
                yield self.model.head.logits(hidden_BLD[i : i + 1, at : min(n, at + SCORED)])[0]

        return state, logits_BV, scores

    def _batches(self, prompts: list[list[int]], piece: int) -> list[Batch]:
        if not self.pairs:
            # a prompt that is read in both directions is read whole
            piece = piece if self.model.spec.prompt == "causal" else max(map(len, prompts))
            return [batch_of(rows, self._device) for rows in _pieces(prompts, piece)]
        starts = [[self.model.generation.start_id]] * len(prompts)
        start, source = (batch_of(rows, self._device) for rows in (starts, prompts))
        return [start.replace(source=source.tokens, source_keep=source.keep)]

    def join(self, state: State, n: int, other: State, n_other: int) -> State:
        """Append rows."""
        join(state, n, other, n_other)
        return state

    def leave(self, state: State, staying: list[int]) -> State:
        """Keep some rows."""
        leave(state, torch.tensor(staying, device=self._device))
        return state

    def go_on(self, state: State, newest: list[int]) -> Tensor:
        """Read one more token of every row."""
        step = batch_of([[token] for token in newest], self._device)
        return self.model.head.logits(self.model.run(step, state).hidden[:, -1])


class OnnxWorker:
    """Runs the graphs of an export; positions and the vocabulary are those of the run it was made from."""

    def __init__(self, engine: "Engine", pairs: bool, context: int) -> None:
        self.engine, self.pairs = engine, pairs
        self.context = min(context, engine.about.limit or context)

    def begin(self, prompts: list[list[int]], need: int, piece: int) -> Reading:
        """Read prompts."""
        import numpy as np

        room = min(self.context, -(-need // CHUNK) * CHUNK)
        if self.pairs:
            state = self.engine.read(prompts, room)
            starts = np.full((len(prompts), 1), self.engine.generation.start_id)
            found = self.engine.advance(state, starts, np.zeros(1))[:, 0]
        else:
            rows, *more = _pieces(prompts, piece)
            state, found = self.engine.prompt(rows, room)
            for rows in more:
                yield
                found = self.engine.advance(state, np.array(rows), np.array([len(rows[0]) - 1]))[:, 0]

        def scores(i: int) -> Iterator[Tensor]:
            if len(prompts[i]) > 1:
                yield self.engine.scores(torch.tensor([prompts[i]]))[0, :-1]

        return state, torch.from_numpy(found), scores

    def join(self, state: "Rows", n: int, other: "Rows", n_other: int) -> "Rows":
        """Append rows."""
        from kinfolk.use.onnx.rows import joined

        return joined([state, other])

    def leave(self, state: "Rows", staying: list[int]) -> "Rows":
        """Keep some rows."""
        import numpy as np

        state.select(np.array(staying))
        return state

    def go_on(self, state: "Rows", newest: list[int]) -> Tensor:
        """Read one more token of every row."""
        import numpy as np

        return torch.from_numpy(self.engine.advance(state, np.array(newest)[:, None], np.zeros(1))[:, 0])


def _pieces(prompts: list[list[int]], piece: int) -> list[list[list[int]]]:
    """Cut a prompt that is alone into pieces; the ends of several would lie in different ones."""
    if len(prompts) > 1:
        return [prompts]
    return [[prompts[0][at : at + piece]] for at in range(0, max(1, len(prompts[0])), piece)]
