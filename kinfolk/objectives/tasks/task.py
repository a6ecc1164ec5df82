"""Axis Task: what is learnt from which columns, with which head and objective, judged by which metrics.

A value knows the whole way of a label: the columns it is read from and how they are guessed, the head and the objective
that learn it, the tally and the metric that judge it, and how an answer is written to a row. A new task is one file:
a subclass with a `kind` registers itself by being defined, and `--task KIND` then takes it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.data.files.reader import FileRow
from kinfolk.data.splits.split import Split
from kinfolk.layers.heads.head import Head
from kinfolk.models.model import Model
from kinfolk.objectives.measures.tallies import Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.tasks.answering import Answering, How, PredictionCounts


@dataclasses.dataclass(frozen=True)
class Example:
    """An example in words: its text, what is right, what the model says, and what that costs.

    notes: what is unusual, as the words whose tags are wrong.
    """

    text: str
    label: str
    answer: str
    loss: float
    notes: str = ""


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """What a table shows of a task: the names of its columns, and the values of the label column in its first rows.

    between: what separates several classes in one label, if anything does.
    """

    text: str
    second: str
    label: str
    labels: Sequence[Any]
    between: str


class Task(Spec):
    """Axis: tasks of labelled data, with the columns of a table they read; "" is the usual name.

    between: what separates classes that hold together, as in `Preparation`; "" is a bar. unknown: "add" learns with
    classes that only the validation file has; "" refuses them.

    labels: what its labels are in data (`labels=` in the name of a file): "class", "classes", "number", "tags", "span";
    "" for a task without labels. objectives: those that learn it. decides: the measure that selects the best
    checkpoint; "" is the loss. second_text: its columns
    may have a second text. windows: an example may be one of several windows of a longer text.
    """

    text: str = ""
    second: str = ""
    label: str = ""
    between: Literal["", "bar", "comma", "semicolon", "space"] = ""
    unknown: Literal["", "stop", "add"] = ""

    labels: ClassVar[str] = ""
    objectives: ClassVar[tuple[type[Objective], ...]] = ()
    decides: ClassVar[str] = ""
    second_text: ClassVar[bool] = False
    windows: ClassVar[bool] = False

    @classmethod
    def in_file(cls, path: Path) -> bool:
        """Tell whether a kind of file is enough to know the task."""
        return False

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        """Tell whether the columns of a table show the task; of several, the newest definition wins.

        Only a class that defines this itself is asked, so a task derived from another is chosen by name.
        """
        return False

    @classmethod
    def of_columns(cls, columns: TableColumns) -> "Task":
        """Return the task with the columns that were found."""
        return cls(text=columns.text, second=columns.second, label=columns.label)

    def data(self, path: Path, window: int = 0) -> str:
        """Return the name under which `open_data` reads a file for this task; `window` is for long contexts."""
        return str(path)

    def on(self, n_texts: int, *, image: bool) -> "Task":
        """Return its form for data with this many texts in a row, or with images."""
        return self

    def asking(self, model: Model, n_classes: int, *, apart: bool = False) -> tuple[Head, Objective]:
        """Return the head that answers and the objective that trains it.

        apart: two texts are encoded each for itself, by one model.
        """
        raise SpecError(f"task {self.kind!r}: has no labels, so no head is put on a model for it")

    def resized(self, head: Head, n_classes: int) -> Head:
        """Return a head of this task for another number of classes, which otherwise stays as it is."""
        return head

    def metric(self, classes: Sequence[str]) -> str:
        """Return the measure that decides, for these classes."""
        return self.decides

    def tally(self, objective: Objective, split: Split) -> Tally | None:
        """Return an empty tally; None where sums and counts are all there is to report.

        The examples must then be added in the order of the split.
        """
        return None

    def reads(self, run: Answering) -> tuple[str, ...]:
        """Return the columns of a row that are read."""
        return (run.columns.text, run.columns.second or "second")[: run.n_texts]

    def ask(self, run: Answering, row: FileRow) -> Any:
        """Return what a row asks, or raise `DataError` with its line."""
        raise SpecError(f"task {self.kind!r}: has no labels, so it answers no rows")

    def answers(self, run: Answering, asked: list[Any], how: How, counts: PredictionCounts) -> list[dict[str, Any]]:
        """Return the answers to some rows, each as plain data, in their order."""
        raise NotImplementedError

    def in_words(self, split: Split, i: int, loss: float, logits: Tensor, batch: Batch) -> Example:
        """Return an example for a report: example `i` of a split, what was said of it, and its batch of one row."""
        raise NotImplementedError

    def worst(self, tally: Tally, losses: Mapping[int, float], most: int) -> list[Example]:
        """Return the worst examples of a task whose examples are windows, by the losses of the whole ones."""
        raise NotImplementedError
