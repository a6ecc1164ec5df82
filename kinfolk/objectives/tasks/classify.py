"""Tasks with a label for a whole row: text classification, of one class or several, of pairs, and of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.spec import choices
from kinfolk.data.files.image_rows import ids, pixels_of
from kinfolk.data.files.reader import FileRow
from kinfolk.data.splits.asking import named
from kinfolk.data.splits.images import is_images
from kinfolk.data.splits.rows import TextRows
from kinfolk.data.splits.split import Split
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.two_tower_head import PairHead
from kinfolk.models.model import Model
from kinfolk.objectives.apart import ClassifyApart
from kinfolk.objectives.measures.tallies import Confusion, Holding, Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Classify, ClassifyMany
from kinfolk.objectives.tasks.answering import Answering, How, PredictionCounts, answered
from kinfolk.objectives.tasks.pooling import of_sequences
from kinfolk.objectives.tasks.task import Example, TableColumns, Task


class RowTask(Task):
    """Axis: tasks whose label belongs to a whole example: one text or two, or an image.

    A subclass says what its scores mean (`said`), which label means none (`blank`), and how a label is written
    (`written`).
    """

    def data(self, path: Path, window: int = 0) -> str:
        settings = {"text": self.text or "text", "label": self.label or "label", "second": self.second}
        own = "" if _implied(self) else self.kind
        settings |= {"labels": self.labels, "between": self.between, "unknown": self.unknown, "task": own}
        return named("labelled", settings, path)

    def asking(self, model: Model, n_classes: int, *, apart: bool = False) -> tuple[Head, Objective]:
        if apart:
            raise SpecError(f"labels: {self.labels!r} of two sequences that are read apart are not scored; use 'class'")
        pooling, reading = of_sequences(model)
        return self.head(n_classes, pooling), self.learning(reading)

    def head(self, n_classes: int, pooling: dict[str, Any]) -> Head:
        """Return the head, which pools states in the given way."""
        return ClassHead(n_classes=n_classes, **pooling)

    def resized(self, head: Head, n_classes: int) -> Head:
        other = self.head(n_classes, {})
        if isinstance(head, ClassHead) and isinstance(other, ClassHead):
            return head.replace(n_classes=other.n_classes)
        return head

    def learning(self, reading: dict[str, Any]) -> Objective:
        """Return the objective: the first of `objectives`."""
        return self.objectives[0](**reading)

    def ask(self, run: Answering, row: FileRow) -> Any:
        columns = run.columns
        if run.picture is not None:
            return pixels_of(row, columns.file, run.picture)
        if run.n_texts > 1 and not columns.second:
            raise DataError("the run judges two texts at once; name the column of the second one (--second-column)")
        names = (columns.text, columns.second) if run.n_texts > 1 else (columns.text,)
        return tuple(row.text(name) for name in names)

    def answers(self, run: Answering, asked: list[Any], how: How, counts: PredictionCounts) -> list[dict[str, Any]]:
        if run.picture is not None:
            labels = torch.as_tensor(np.array([self.blank(run.classes)] * len(asked)))
            batch = Batch(index=torch.arange(len(asked)), tokens=torch.from_numpy(ids(asked)), labels=labels)
            return [self.said(run.classes, row, how) for row in run.answer(run.prepare(batch))[1].double()]
        split = TextRows(run.tokenizer, asked, run.classes, self.blank(run.classes))
        counts.cut += int((split.longer_side(np.arange(len(split))) + 1 > run.length).sum())
        answers: list[dict[str, Any]] = [{}] * len(asked)
        for which, logits in answered(run, split, how, run.length):
            for i, row in zip(which, logits.double(), strict=True):
                answers[i] = self.said(run.classes, row, how)
        return answers

    def in_words(self, split: Split, i: int, loss: float, logits: Tensor, batch: Batch) -> Example:
        assert batch.labels is not None
        return Example(split.in_words(i), *self.written(split.classes, batch.labels[0], logits), loss)

    def blank(self, classes: Sequence[str]) -> Any:
        """Return a label that says nothing, for rows without one."""
        return 0

    def said(self, classes: Sequence[str], logits: Tensor, how: How) -> dict[str, Any]:
        """Return what the scores of one row say, as plain data."""
        raise NotImplementedError

    def written(self, classes: Sequence[str], label: Tensor, logits: Tensor) -> tuple[str, str]:
        """Return a label and what the scores say, in words."""
        raise NotImplementedError


class Classification(RowTask, kind="classify"):
    """One class of a text, or of whatever else a row has."""

    labels: ClassVar[str] = "class"
    objectives: ClassVar[tuple[type[Objective], ...]] = (Classify,)
    decides: ClassVar[str] = "accuracy"

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        return True

    def on(self, n_texts: int, *, image: bool) -> Task:
        if type(self) is Classification and (image or n_texts > 1):
            values: Any = {name: getattr(self, name) for name in ("text", "second", "label", "unknown")}
            return ImageClassification(**values) if image else PairClassification(**values)
        return self

    def asking(self, model: Model, n_classes: int, *, apart: bool = False) -> tuple[Head, Objective]:
        if not apart or self.objectives != Classification.objectives:
            return super().asking(model, n_classes, apart=apart)
        pooling, reading = of_sequences(model)
        return PairHead(n_classes=n_classes, pool=pooling["pool"]), ClassifyApart(**reading)

    def tally(self, objective: Objective, split: Split) -> Tally | None:
        n = len(split.classes)
        return Confusion(split.classes, torch.zeros(n, n, dtype=torch.long)) if n else None

    def said(self, classes: Sequence[str], logits: Tensor, how: How) -> dict[str, Any]:
        shares, order, shown = _shown(classes, logits.softmax(-1), how)
        return {"label": classes[order[0]], "score": shares[order[0]], "probabilities": shown}

    def written(self, classes: Sequence[str], label: Tensor, logits: Tensor) -> tuple[str, str]:
        shares = logits.softmax(-1)
        return classes[int(label)], f"{classes[int(shares.argmax())]} ({float(shares.max()):.2f})"


class PairClassification(Classification, kind="pairs"):
    """One class of two texts."""

    second_text: ClassVar[bool] = True

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        return bool(columns.second)

    def data(self, path: Path, window: int = 0) -> str:
        if not self.second:
            raise SpecError("task 'pairs' asks for a second text: name its column with --second-column")
        return super().data(path, window)


class ImageClassification(Classification, kind="image"):
    """One class of an image."""

    @classmethod
    def in_file(cls, path: Path) -> bool:
        return is_images(path)

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        return False

    def data(self, path: Path, window: int = 0) -> str:
        return str(path)


class MultiLabel(RowTask, kind="multi-label"):
    """Several classes of a text at once, each of which holds or not."""

    labels: ClassVar[str] = "classes"
    objectives: ClassVar[tuple[type[Objective], ...]] = (ClassifyMany,)
    decides: ClassVar[str] = "micro-f1"

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        return bool(columns.between) or any(isinstance(x, list) for x in columns.labels)

    @classmethod
    def of_columns(cls, columns: TableColumns) -> Task:
        return super().of_columns(columns).replace(between=columns.between)

    def tally(self, objective: Objective, split: Split) -> Tally | None:
        return Holding(split.classes, torch.zeros(len(split.classes), 3, dtype=torch.long))

    def blank(self, classes: Sequence[str]) -> Any:
        return np.zeros(len(classes), np.float32)

    def said(self, classes: Sequence[str], logits: Tensor, how: How) -> dict[str, Any]:
        shares, order, shown = _shown(classes, logits.sigmoid(), how)
        return {"labels": [classes[k] for k in order if shares[k] > how.threshold], "probabilities": shown}

    def written(self, classes: Sequence[str], label: Tensor, logits: Tensor) -> tuple[str, str]:
        both = (label > 0.5, logits > 0)
        holds, answers = (
            ", ".join(name for name, on in zip(classes, x.tolist(), strict=True) if on) or "(none)" for x in both
        )
        return holds, answers


def _shown(classes: Sequence[str], shares_C: Tensor, how: How) -> tuple[list[float], list[int], dict[str, float]]:
    """Return probabilities, classes from the likeliest on, and the probabilities that are reported."""
    order: list[int] = shares_C.argsort(descending=True, stable=True).tolist()
    values: list[float] = shares_C.tolist()
    kept = sorted(order[: how.top]) if how.top else range(len(values))
    return values, order, {classes[k]: values[k] for k in kept}


def _implied(task: Task) -> bool:
    """Tell whether labels, texts and images are enough to know a task, so that the name of data need not say it."""
    usual = next(one for one in choices(Task).values() if issubclass(one, Task) and one.labels == task.labels)()
    return type(task) in (type(usual), type(usual.on(2, image=False)), type(usual.on(1, image=True)))
