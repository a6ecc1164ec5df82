"""The engine axis: what the decoding loop needs of whatever runs a model.

An engine reads prompts into a state, joins two states, selects rows of a state and appends one token to every row.
A subclass with a `kind` is registered for `Run.engine` and `--engine KIND`; a plugin's file can add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar, Self

from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.decoding.engines.prefix_cache import PrefixCache
from kinfolk.runs.engines import engine
from kinfolk.runs.run import Run

Scores = Callable[[int], Iterator[Tensor]]
"""From the number of a prompt to the logits at all its positions but the last, [n, V] at a time."""

Reading = Generator[None, None, tuple[Any, Tensor, Scores]]
"""A prefill that pauses between chunks. It returns a state, the logits after each prompt, and those inside prompts."""


class Engine(ABC):
    """Runs one model. A state belongs to the engine that returned it; the loop never looks inside.

    limit: the most positions of a sequence; None: no bound.
    pairs: whether it is an encoder-decoder, which reads a source and then a target from its start token on.
    generation: the special token ids of the model.
    """

    kind: ClassVar[str] = ""
    limit: int | None
    pairs: bool
    generation: GenerationIds
    prefixes: PrefixCache | None = None
    """Keys and values of earlier prompts, where the engine keeps any."""

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls.kind = kind
            engine(kind)(cls.open)

    @classmethod
    @abstractmethod
    def open(cls, run: Run, threads: int = 0) -> Self:
        """Open the engine of a run; `threads` 0 is one for each core. `Run.engine` calls this."""

    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the states [B, L, D] of a prepared batch, and the output of the head: what `kin predict` needs."""
        raise SpecError(f"engine {self.kind!r}: generates only; it does not answer whole batches")

    def within(self, context: int) -> Self:
        """Bound sequences to `context` positions, and prepare for sequences that join others later; return itself."""
        self.limit = context if self.limit is None else min(context, self.limit)
        return self

    @abstractmethod
    def read(self, prompts: list[list[int]], sources: list[list[int]] | None, need: int, chunk: int) -> Reading:
        """Prefill: read prompts (and the sources of an encoder-decoder) into a state of `need` positions.

        A single long prompt is read `chunk` tokens at a time, so that others decode in between.
        """

    @abstractmethod
    def join(self, state: Any, n: int, other: Any, n_other: int) -> Any:
        """Append the `n_other` rows of one state to the `n` of another; return the state of all."""

    @abstractmethod
    def select(self, state: Any, rows_B: Tensor) -> Any:
        """Return the state whose row i is a copy of row `rows[i]`."""

    @abstractmethod
    def advance(self, state: Any, tokens_B: Tensor) -> Tensor:
        """Append a token to every row, and return the logits that follow: [B, V]."""


def chunks(prompts: list[list[int]], size: int) -> list[list[list[int]]]:
    """Cut a single prompt into chunks; several prompts stay whole, as their ends would lie in different chunks."""
    if len(prompts) > 1:
        return [prompts]
    return [[prompts[0][at : at + size]] for at in range(0, max(1, len(prompts[0])), size)]
