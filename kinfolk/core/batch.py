"""What a step of training or evaluation eats: token ids and what must be known about them."""

import dataclasses
from collections.abc import Callable
from typing import Self

from torch import Tensor

IGNORE = -100
"""A target that is not scored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
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
    other: Tensor | None = None  # [B, M] of another document than the tokens', for those who ask which follows which
    other_keep: Tensor | None = None
    targets: Tensor | None = None  # [B, L] what to predict at each position, IGNORE where nothing
    candidates: Tensor | None = None  # [B, L, C] what is wrong at each position, where only some of it is looked at
    labels: Tensor | None = None  # [B] classes; [B] numbers; [B, C] classes that hold; [B, 2] first and last of a span
    task: Tensor | None = None  # [B] which of several tasks, the same one for all rows; None: the first
    segments: Tensor | None = None  # [B, L] which sentence of a pair a token belongs to, 0 or 1
    positions: Tensor | None = None  # [B, L] where packing restarts them
    document: Tensor | None = None  # [B, L] which packed document a token belongs to
    visible: Tensor | None = None  # [B, L, M] which of the first M positions each may look at; None: as patterns say
    prefix: Tensor | None = None  # [B] how many of the first positions are visible to one another, both ways
    lots: Tensor | None = None  # [B, L] numbers in [0, 1) for what is drawn while a model runs
    heads: Tensor | None = None  # [B, W] a parse of what an encoder reads: the head of each word, -1 of a root
    words: Tensor | None = None  # [B, L or M] the word that each token of it belongs to, -1 outside the parse
    spoken: Tensor | None = None  # [B, L] true for tokens of the text itself, where others are read beside it
    mentions: Tensor | None = None  # [B, S, 2] first and last token of what names something, -1 where there is none
    entities: Tensor | None = None  # [B, S, C] what each mention may mean, -1 where there is nothing more
    priors: Tensor | None = None  # [B, S, C] how often it means that
    links: Tensor | None = None  # [B, S] which of them is meant, IGNORE where nobody says
    continues: Tensor | None = None  # [B] true where a row goes on with the same row of the last batch; None: nowhere

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
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return dataclasses.replace(self, **{name: change(x) for name, x in fields if x is not None})

    def rows(self, which: slice) -> Self:
        """Return some of the examples."""
        return self.map(lambda x: x[which])
