"""The tasks that exist: by name, by the labels of data, and by the objective of a trained model."""

from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.spec import choices

# defined here, in this order: of several tasks that suit a file, the newest definition is chosen
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.tasks.act import Acting
from kinfolk.objectives.tasks.answer import QuestionAnswering
from kinfolk.objectives.tasks.classify import Classification, MultiLabel
from kinfolk.objectives.tasks.regress import Regression
from kinfolk.objectives.tasks.tag import Tagging
from kinfolk.objectives.tasks.task import Task
from kinfolk.objectives.tasks.text import MaskedToken

BY_LABELS: dict[str, type[Task]] = {
    task.labels: task for task in (Classification, MultiLabel, Regression, Tagging, QuestionAnswering)
}
"""The task of data that says what its labels are and nothing else."""


def tasks() -> dict[str, type[Task]]:
    """Return every task by its kind, a user's own among them."""
    return {kind: task for kind, task in choices(Task).items() if issubclass(task, Task)}


def named(kind: str, **columns: Any) -> Task:
    """Return a task by its kind."""
    known = tasks()
    if kind not in known:
        raise SpecError(f"task: unknown {kind!r}{suggest(kind, known)}")
    return known[kind](**columns)


def of_labels(labels: str, n_texts: int = 1, *, image: bool = False) -> Task:
    """Return the task of data by what its labels are; of a plugin's kind of label, the newest task that learns it."""
    others = {task.labels: task for task in tasks().values() if task.labels}
    known = others | BY_LABELS
    if labels not in known:
        raise SpecError(f"labels: unknown {labels!r}{suggest(labels, known)}")
    return known[labels]().on(n_texts, image=image)


def of_objective(objective: Objective, n_texts: int = 1, *, image: bool = False) -> Task | None:
    """Return the task that an objective learns; None for pre-training objectives beyond language modelling.

    An objective that wraps another (distillation, several tasks) is of the task inside it.
    """
    inner = objective.inner
    known = list(tasks().values())
    exact = [task for task in known if type(inner) in task.objectives]
    related = [task for task in known if isinstance(inner, task.objectives)]
    # forms of a task for other data share its objectives, and are reached from it
    task = next(iter(exact or related), None)
    return None if task is None else task().on(n_texts, image=image)


def has_labels(objective: Objective) -> bool:
    """Tell whether an objective learns a task with labels."""
    task = of_objective(objective)
    return task is not None and bool(task.labels)


__all__ = ["Acting", "MaskedToken", "has_labels", "named", "of_labels", "of_objective", "tasks"]
