"""The task of a recipe: what a trained model is asked for, by its objective."""

from kinfolk.family.recipe import Recipe
from kinfolk.objectives.distil import Distil
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.several import Several
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, SpanAnswer, Tag

TASKS: dict[type, str] = {
    SpanAnswer: "span",
    Tag: "tags",
    ClassifyMany: "classes",
    Regress: "number",
    Classify: "class",
}
"""Tasks with labels, by their objective."""


def objective_of(recipe: Recipe) -> Objective:
    """Return the objective of the main task: distillation and multi-task training wrap it."""
    objective = recipe.objective
    while isinstance(objective, Distil | Several):
        objective = objective.task
    return objective


def task_of(recipe: Recipe) -> str:
    """Return "class", "classes", "number", "tags" or "span"; "" for what has no labels."""
    return next((name for kind, name in TASKS.items() if isinstance(objective_of(recipe), kind)), "")
