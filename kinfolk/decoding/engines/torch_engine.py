"""The torch engine: runs a model as it is, with the KV cache (or other recurrent state) of its layers."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from kinfolk.core.annotations import PrefixLength
from kinfolk.core.batch import Batch
from kinfolk.core.device import host, known_on_host, remember, send
from kinfolk.core.errors import SpecError
from kinfolk.decoding.engines.engine import Engine, Reading, chunks
from kinfolk.decoding.engines.weight_layout import for_decoding
from kinfolk.decoding.padding import batch_of
from kinfolk.models.joining import join, least_room, leave
from kinfolk.models.model import Transformer
from kinfolk.runs.run import Run

ROOM = 32
"""Capacities of states that join each other are multiples of this, so that similar lengths need no padding."""
SCORED = 256
"""Positions of a prompt whose logits are computed at once."""


class TorchEngine(Engine, kind="torch"):
    """Runs a model."""

    bf16: ClassVar[bool] = False

    def __init__(self, model: Transformer) -> None:
        self.model = model.eval()
        self.generation = model.generation
        self.pairs = model.spec.topology == "encoder-decoder"
        self.limit = model.limit
        self.device = next(model.parameters()).device
        # the least capacity of states that join each other; 0: all sequences are read at once
        self._least = 0

    @classmethod
    def open(cls, run: Run, threads: int = 0) -> Self:
        """Load the weights of a run, laid out for decoding."""
        return cls(cls.laid_out(run.model()))

    @classmethod
    def laid_out(cls, model: Transformer, rows: int = 1) -> Transformer:
        """Return a model with its weights laid out as this engine reads them for `rows` sequences."""
        return for_decoding(model, rows, cls.bf16)

    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run a whole batch."""
        with torch.inference_mode():
            output = self.model.run(batch.map(lambda x: x.to(self.device)))
            return output.hidden.cpu(), output.logits.cpu()

    def within(self, context: int) -> Self:
        """Make states of one kind and of rounded capacities from now on."""
        super().within(context)
        assert self.limit is not None
        self._least = least_room(self.model, self.limit)
        return self

    def read(self, prompts: list[list[int]], sources: list[list[int]] | None, need: int, chunk: int) -> Reading:
        """Prefill."""
        if self.model.spec.topology == "encoder":
            raise SpecError("an encoder does not generate: it has no causal stack")
        room = need
        if self._least and self.limit is not None:
            room = min(self.limit, max(self._least, -(-need // ROOM) * ROOM))
        state = self.model.new_state(len(prompts), room)
        cache = self.prefixes if len(prompts) == 1 and not self.pairs and self.model.spec.prompt == "causal" else None
        known = 0 if cache is None else cache.restore(prompts[0], state)
        batch, *more = self._batches([row[known:] for row in prompts], sources, chunk)
        parts = [self.model.run(batch, state).hidden]
        for one in more:
            yield
            parts.append(self.model.run(one, state).hidden)
        hidden_BLD = parts[0] if not more else torch.cat(parts, dim=1)
        if cache is not None:
            cache.store(prompts[0], state)

        def scores(i: int) -> Iterator[Tensor]:
            n = len(prompts[i]) - 1
            # of what the cache knew there are keys and values only
            states_BLD = hidden_BLD if not known else self.model.run(batch_of(prompts, self.device)).hidden
            for at in range(0, n, SCORED):
                yield self.model.head.logits(states_BLD[i : i + 1, at : min(n, at + SCORED)])[0]

        return state, self._after(hidden_BLD, batch.keep), scores

    def join(self, state: Any, n: int, other: Any, n_other: int) -> Any:
        """Append rows."""
        join(state, n, other, n_other)
        return state

    def select(self, state: Any, rows_B: Tensor) -> Any:
        """Copy rows."""
        leave(state, rows_B)
        return state

    def advance(self, state: Any, tokens_B: Tensor) -> Tensor:
        """Append a token to every row."""
        tokens_B1 = tokens_B[:, None]
        if tokens_B.device.type != "cpu" and known_on_host(tokens_B):
            remember(tokens_B1, host(tokens_B)[:, None])
        step = Batch(index=tokens_B, tokens=tokens_B1)
        return self.model.head.logits(self.model.run(step, state).hidden[:, -1])

    def _batches(self, prompts: list[list[int]], sources: list[list[int]] | None, chunk: int) -> list[Batch]:
        if sources is None:
            # a bidirectional prompt is read whole
            size = chunk if self.model.spec.prompt == "causal" else max(map(len, prompts))
            return [batch_of(rows, self.device) for rows in chunks(prompts, size)]
        source = batch_of(sources, self.device)
        return [batch_of(prompts, self.device).replace(source=source.tokens, source_keep=source.keep)]

    def _after(self, hidden_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        """Return the logits after the last real token of each row."""
        if keep_BL is None:
            return self.model.head.logits(hidden_BLD[:, -1])
        last_B = host(keep_BL).sum(1) - 1
        rows_B = torch.arange(len(last_B), device=self.device)
        return self.model.head.logits(hidden_BLD[rows_B, send(last_B, self.device)])


class Bf16Engine(TorchEngine, kind="torch-bf16"):
    """Runs a model with the matrices of its maps and its output layer rounded to bf16: half the bytes for each token.

    Logits differ by about a hundredth of their spread; a processor without instructions for bf16 is refused.
    """

    bf16: ClassVar[bool] = True


TORCH: dict[str, type[TorchEngine]] = {engine.kind: engine for engine in (TorchEngine, Bf16Engine)}
"""Engines that run the modules themselves, by name: beams, drafts and averages are for all of them."""


@dataclasses.dataclass
class Texts:
    """The state of an engine without a cache: all tokens of every row, its source and the length of its prompt."""

    rows: list[list[int]]
    sources: list[list[int]] | None
    lengths: list[int]


class UncachedEngine(TorchEngine):
    """Computes every step from scratch. Cached decoding is compared with it."""

    def read(self, prompts: list[list[int]], sources: list[list[int]] | None, need: int, chunk: int) -> Reading:
        """Run the prompts."""
        state = Texts([list(row) for row in prompts], sources, [len(row) for row in prompts])
        yield from ()
        return state, self._all(state), lambda i: iter(())

    def join(self, state: Any, n: int, other: Any, n_other: int) -> Any:
        """Append rows."""
        sources = None if state.sources is None or other.sources is None else state.sources + other.sources
        return Texts(state.rows + other.rows, sources, state.lengths + other.lengths)

    def select(self, state: Any, rows_B: Tensor) -> Any:
        """Copy rows."""
        which = rows_B.tolist()
        sources = None if state.sources is None else [state.sources[i] for i in which]
        return Texts([state.rows[i] for i in which], sources, [state.lengths[i] for i in which])

    def advance(self, state: Any, tokens_B: Tensor) -> Tensor:
        """Append a token to every row, and run all of them again."""
        state.rows = [[*row, token] for row, token in zip(state.rows, tokens_B.tolist(), strict=True)]
        return self._all(state)

    def _all(self, state: Texts) -> Tensor:
        (batch,) = self._batches(state.rows, state.sources, max(map(len, state.rows)))
        if self.model.spec.prompt == "bidirectional":
            batch = batch.annotate(PrefixLength(torch.tensor(state.lengths, device=self.device)))
        return self._after(self.model.run(batch).hidden, batch.keep)
