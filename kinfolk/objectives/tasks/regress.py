"""Regression: a number of a text, or of two."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from kinfolk.data.splits.split import Split
from kinfolk.layers.heads.class_head import RegressionHead
from kinfolk.layers.heads.head import Head
from kinfolk.objectives.measures.tallies import Correlation, Tally
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Regress
from kinfolk.objectives.tasks.answering import How
from kinfolk.objectives.tasks.classify import RowTask
from kinfolk.objectives.tasks.task import TableColumns

FEW = 50
"""The largest number of different integers that are taken for names of classes."""


class Regression(RowTask, kind="regress"):
    """A number of a text, or of two."""

    labels: ClassVar[str] = "number"
    objectives: ClassVar[tuple[type[Objective], ...]] = (Regress,)
    decides: ClassVar[str] = "pearson"
    second_text: ClassVar[bool] = True

    @classmethod
    def in_columns(cls, columns: TableColumns) -> bool:
        numbers = [_number(x) for x in columns.labels]
        known = [x for x in numbers if x is not None]
        varied = any(not x.is_integer() for x in known) or len(set(known)) > FEW
        return len(known) == len(numbers) and varied

    def head(self, n_classes: int, pooling: dict[str, Any]) -> Head:
        return RegressionHead(**pooling)

    def tally(self, objective: Objective, split: Split) -> Tally | None:
        return Correlation()

    def blank(self, classes: Sequence[str]) -> Any:
        return 0.0

    def said(self, classes: Sequence[str], logits: Tensor, how: How) -> dict[str, Any]:
        return {"value": float(logits)}

    def written(self, classes: Sequence[str], label: Tensor, logits: Tensor) -> tuple[str, str]:
        return f"{float(label):g}", f"{float(logits):g}"


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
