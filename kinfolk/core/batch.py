"""A batch of examples: token ids, padding masks, targets or labels, packing, and annotations."""

import dataclasses
from collections.abc import Callable
from typing import Self

from torch import Tensor

from kinfolk.core.annotations import Annotated, Annotation

IGNORE = -100
"""A target that is not scored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch(Annotated):
    """Tensors of one batch. Shapes: B examples, L positions, M source positions. Padding is on the right.

    A batch as read has `index`, `tokens` (and `source` for pairs) and their masks, and `labels` where whole examples
    are judged; an objective turns it into one with `targets`, or leaves the labels to be scored. `index` is the number
    of each example in the run, so that anything random about an example is a pure function of (seed, index), whatever
    the number of processes.
    """

    index: Tensor
    tokens: Tensor
    keep: Tensor | None = None  # [B, L] true where a token is real; None: all are
    source: Tensor | None = None  # [B, M] the encoder's side of a pair
    source_keep: Tensor | None = None
    targets: Tensor | None = None  # [B, L] what to predict at each position, IGNORE where nothing
    labels: Tensor | None = None  # [B] classes; [B] numbers; [B, C] multi-label; [B, 2] first and last of a span
    segments: Tensor | None = None  # [B, L] which sentence of a pair a token belongs to, 0 or 1
    positions: Tensor | None = None  # [B, L] where packing restarts them
    document: Tensor | None = None  # [B, L] which packed document a token belongs to
    annotations: tuple[Annotation, ...] = ()  # what only some relatives and objectives read

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def n_scored(self) -> int:
        """How many predictions a prepared batch asks for."""
        return len(self) if self.targets is None else int((self.targets != IGNORE).sum())

    def replace(self, **changes: Tensor | None) -> Self:
        """Return a copy with some tensors changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with a function applied to every tensor."""
        annotations = tuple(record.map(change) for record in self.annotations)
        own = {name: change(x) for name, x in self._own.items()}
        return dataclasses.replace(self, **own, annotations=annotations)

    def rows(self, which: slice) -> Self:
        """Return some of the examples."""
        return self.map(lambda x: x[which])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; those of annotations by type and field."""
        named = {
            f"{type(record).__name__}.{name}": x for record in self.annotations for name, x in record.tensors.items()
        }
        return self._own | named

    @property
    def _own(self) -> dict[str, Tensor]:
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: x for name, x in named if isinstance(x, Tensor)}
