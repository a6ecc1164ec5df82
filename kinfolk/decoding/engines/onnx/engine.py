"""The onnxruntime engine: an exported model under the decoding loop."""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.decoding.engines.engine import Engine, Reading, chunks
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.decoding.engines.onnx.graph_model import GraphModel
from kinfolk.decoding.engines.onnx.rows import joined
from kinfolk.models.model import Model
from kinfolk.runs.run import Run

ROOM = 32
"""Capacities of KV caches are multiples of this, so that similar lengths need no padding when they join."""
FIRST = np.zeros(1, np.int64)


class OnnxEngine(Engine):
    """Runs the graphs of an export on the CPU."""

    def __init__(self, exported: ExportedModel) -> None:
        self.exported, self.generation = exported, exported.generation
        self.pairs = exported.encoder is not None
        self.limit = exported.about.limit

    @classmethod
    def open(cls, run: Run, threads: int = 0) -> Self:
        """Open an export."""
        return cls(ExportedModel(run.path, threads))

    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the hidden states of a whole batch, and what the head says of them; see `ExportedModel.answer`."""
        return self.exported.answer(batch)

    def as_model(self, spec: Model) -> Any:
        """Return the graphs as a model that a learner evaluates."""
        return GraphModel(self.exported, spec)

    def read(self, prompts: list[list[int]], sources: list[list[int]] | None, need: int, chunk: int) -> Reading:
        """Prefill."""
        if not self.exported.decodes:
            raise SpecError(f"{self.exported.folder}: an encoder does not generate: it has no causal stack")
        room = -(-need // ROOM) * ROOM
        room = room if self.limit is None else min(self.limit, room)
        if sources is not None:
            state = self.exported.encode(sources, room)
            logits_BV = self.exported.advance(state, np.array(prompts), FIRST)[:, 0]
        else:
            rows, *more = chunks(prompts, chunk)
            state, logits_BV = self.exported.prompt(rows, room)
            for rows in more:
                yield
                logits_BV = self.exported.advance(state, np.array(rows), np.array([len(rows[0]) - 1]))[:, 0]

        def scores(i: int) -> Iterator[Tensor]:
            if len(prompts[i]) > 1:
                yield self.exported.scores(torch.tensor([prompts[i]]))[0, :-1]

        return state, torch.from_numpy(logits_BV), scores

    def join(self, state: Any, n: int, other: Any, n_other: int) -> Any:
        """Append rows."""
        return joined([state, other])

    def select(self, state: Any, rows_B: Tensor) -> Any:
        """Copy rows."""
        state.select(rows_B.numpy())
        return state

    def advance(self, state: Any, tokens_B: Tensor) -> Tensor:
        """Append a token to every row."""
        return torch.from_numpy(self.exported.advance(state, tokens_B.numpy()[:, None], FIRST)[:, 0])
