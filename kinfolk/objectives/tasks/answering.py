"""Inference on rows: a trained model with its tokenizer, its options and counts."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, Split, Tokenizer
from kinfolk.data.splits.answering import WindowReading
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Objective

ON_BAD = ("stop", "skip")


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns that are read: one text or two, words, a question and its context, an image's file."""

    text: str = "text"
    second: str = ""
    tokens: str = "tokens"
    question: str = "question"
    context: str = "context"
    file: str = "file"


Answer = Callable[[Batch], tuple[Tensor, Tensor]]
"""From a prepared batch to the states [B, L, D] of its positions, and what the head says of them."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Answering:
    """A trained model that answers rows.

    objective: what it was taught, of several tasks the first. answer: the engine. n_texts: texts of a row. length:
    tokens of a text that are read; cut: which, of a longer one. reading, always: the windows of long contexts, and
    whether every question has an answer. columns: those that are read. `picture`: height, width and channels of the
    images that it reads instead of texts.
    """

    learner: Learner
    objective: Objective
    tokenizer: Tokenizer
    classes: tuple[str, ...]
    answer: Answer
    n_texts: int
    length: int
    cut: str = "head"
    reading: WindowReading
    always: bool
    columns: Columns
    picture: tuple[int, int, int] | None = None

    def prepare(self, batch: Batch) -> Batch:
        """Add the special tokens that the model was trained with."""
        return self.learner.prepare(batch, Rng(0))


@dataclasses.dataclass(frozen=True)
class How:
    """Options of a prediction.

    batch_size, chunk: rows at once, and rows that are sorted by length together. threshold: above which probability a
    class holds. margin: by how much an answer must beat having none; None: the run's own. top: probabilities of this
    many classes are reported, 0: of all. echo: copy the columns of the input. on_bad: stop at a bad row, or skip it.
    """

    batch_size: int = 32
    chunk: int = 1024
    threshold: float = 0.5
    margin: float | None = None
    top: int = 0
    echo: bool = False
    on_bad: Literal["stop", "skip"] | str = "stop"

    def __post_init__(self) -> None:
        for name, value in (("batch_size", self.batch_size), ("chunk", self.chunk)):
            if value < 1:
                raise SpecError(f"{name}: must be at least 1, not {value}")
        if self.on_bad not in ON_BAD:
            raise SpecError(f"on_bad: unknown {self.on_bad!r}{suggest(self.on_bad, ON_BAD)}")


@dataclasses.dataclass
class PredictionCounts:
    """What happened during a prediction: rows answered, rows that were cut or read in parts, and bad rows."""

    rows: int = 0
    cut: int = 0
    parted: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)


def answered(run: Answering, split: Split, how: How, length: int | None) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield which examples of a split a batch has, and what the head says of them."""
    batches = Batches(split, batch_size=how.batch_size, length=length, shuffle=False, by_length=0, cut=run.cut)
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        yield batch.index.tolist(), run.answer(run.prepare(batch))[1]
