"""Supervised models from any relative: another head and objective, the same body."""

import dataclasses

from kinfolk.family.recipe import Recipe
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.objectives.image import ImageObjective
from kinfolk.objectives.supervised import Labels
from kinfolk.objectives.tasks.classify import Classification
from kinfolk.objectives.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class Labelling:
    """Requirements of labelled data: how many classes, of one sequence or two, of how many tokens each.

    length: of the longest sequence, its end included; 0: whatever a model is made for.
    apart: two sequences are encoded each for itself. row: the most tokens of a whole row, if that is known; 0: as many
    as its sequences. between: separators between two sequences.
    """

    n_classes: int
    length: int = 0
    n_sequences: int = 1
    apart: bool = False
    task: Task = dataclasses.field(default_factory=Classification)
    row: int = 0
    between: int = 1

    @property
    def together(self) -> int:
        """How many sequences one row has."""
        return 1 if self.apart else self.n_sequences

    @property
    def marks(self) -> int:
        """How many tokens a row has besides its sequences, whose ends are part of them: what opens it, and between
        two sequences all separators but the one that the first ends with."""
        return 1 + (self.together - 1) * (self.between - 1)


def as_classifier(recipe: Recipe, asked: Labelling) -> Recipe:
    """Put the head and the objective of a task on a relative (`Task.asking`).

    Positions are made to suffice for the longest row. A recipe that scores labels already keeps its way of doing so,
    and gets the number of classes.
    """
    model, head = recipe.model, recipe.model.head
    judges = isinstance(recipe.objective, Labels) and isinstance(recipe.objective, asked.task.objectives)
    if judges and isinstance(head, ClassHead):
        return recipe.replace(model=model.replace(head=asked.task.resized(head, asked.n_classes)))
    head, objective = asked.task.asking(model, asked.n_classes, apart=asked.apart)
    training = recipe.training
    if asked.length:
        training = training.replace(length=asked.length)
        longest = asked.row or asked.marks + asked.together * asked.length
        model = model.replace(max_len=max(model.max_len, longest))
    return recipe.replace(model=model.replace(head=head), objective=objective, training=training)


def judging(recipe: Recipe, labelling: Labelling | None) -> Recipe:
    """Fit a recipe to what its data asks; data without labels asks nothing, and who makes images is not asked."""
    if labelling is None or isinstance(recipe.objective, ImageObjective):
        return recipe
    return as_classifier(recipe, labelling)
