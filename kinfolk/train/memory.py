"""What is carried from one step to the next: the memory of the segments that rows come from, and what a source of
batches remembers, if it does.

It is the one thing besides weights and optimiser that a step depends on, so a checkpoint holds it, whole and in the
order of the rows: a run can go on with another number of processes or of micro-batches.
"""

import functools
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kinfolk.core.annotations import Continuation
from kinfolk.core.batch import Batch
from kinfolk.core.device import host
from kinfolk.core.errors import CheckpointError
from kinfolk.train.parallel import Team

_NEXT = "next_pos"
_SOURCE = "source."


@runtime_checkable
class Remembering(Protocol):
    """A source of batches that are no pure function of their number: one that acts with the weights as they are."""

    def meet(self, memories: list[Any]) -> None:
        """Be told the memories of the learner, one for each micro-batch."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold."""

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Be what `tensors` said."""


class Memories:
    """One memory for each micro-batch of this process; none where the learner has nothing to remember."""

    def __init__(self, learner: object = None, count: int = 1, source: object = None) -> None:
        make: Any = getattr(learner, "new_memory", lambda: None)
        memories = [make() for _ in range(count)]
        self._each = [memory for memory in memories if memory is not None]
        self._source = source if isinstance(source, Remembering) else None
        if self._source is not None:
            self._source.meet(self._each)

    def before(self, micro: int, batch: Batch) -> tuple[Any, ...]:
        """Return what the learner gets besides a batch: the memory of its rows, or nothing where all start afresh."""
        continuation = batch.annotation(Continuation)
        if not self._each or continuation is None:
            return ()
        self._each[micro].forget(~host(continuation.continues_B))
        return (self._each[micro],)

    def settle(self) -> None:
        """End a step: remember its segments."""
        for memory in self._each:
            memory.settle()

    def tensors(self, team: Team) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold, the rows of all processes; all must call it."""
        parts = [{name: part.tensors() for name, part in memory.parts.items()} for memory in self._each]
        named: dict[str, Tensor] = {}
        for name, tensors in parts[0].items() if parts else ():
            for key in tensors:
                mine = torch.cat([part[name][key] for part in parts])
                named[f"{name}.{key}"] = team.rows(mine).cpu().contiguous()
        if named:
            named[_NEXT] = torch.tensor(self._each[0].next_pos)
        own = {} if self._source is None else self._source.tensors()
        return named | {f"{_SOURCE}{name}": x.cpu() for name, x in own.items()}

    def restore(self, tensors: dict[str, Tensor], team: Team) -> None:
        """Take this process's rows of what `tensors` returned."""
        if self._source is not None and tensors:
            self._source.restore({k.removeprefix(_SOURCE): x for k, x in tensors.items() if k.startswith(_SOURCE)})
        tensors = {name: x for name, x in tensors.items() if not name.startswith(_SOURCE)}
        if not tensors:
            return
        total = len(self._each) * team.world
        if not total or any(len(x) % total for name, x in tensors.items() if name != _NEXT):
            raise CheckpointError(f"the memory of the run does not fit {total} micro-batches of its learner")
        for micro, memory in enumerate(self._each):
            memory.next_pos = int(tensors[_NEXT])
            mine = functools.partial(_share, tensors, team.rank * len(self._each) + micro, total)
            for name, part in memory.parts.items():
                part.restore({key: x.to(team.device) for key, x in mine(f"{name}.").items()})


def _share(tensors: dict[str, Tensor], number: int, total: int, prefix: str) -> dict[str, Tensor]:
    """Return one of `total` equal runs of rows of the tensors of one part, by their names in it."""
    own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    return {key: x[len(x) // total * number : len(x) // total * (number + 1)].clone() for key, x in own.items()}
