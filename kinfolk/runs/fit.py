"""`fit`: a recipe for the data it is to learn from: vocabulary, kind of data, labels, image size."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.data import Batches, Data, Split, open_data
from kinfolk.family import registry
from kinfolk.family.building import read_recipe
from kinfolk.family.changes import parted
from kinfolk.family.making import divided, make, numbers_of
from kinfolk.family.pictures import Picture, read_whole
from kinfolk.family.recipe import Recipe
from kinfolk.family.supervise import Labelling, judging
from kinfolk.objectives.tasks.registry import named, of_labels
from kinfolk.objectives.tasks.task import Task
from kinfolk.runs.run import Run

LONGEST = 4096
"""Sequences are cut here unless `training.length` says otherwise: one long one must not fill the memory."""

_LOOKED_AT = 1 << 16


@dataclasses.dataclass(frozen=True)
class Needs:
    """What data asks of a recipe: ids, "text", "pairs" or "labelled", labels, and the size of images."""

    vocab_size: int
    kind: str = "text"
    labelling: Labelling | None = None
    picture: Picture | None = None

    @classmethod
    def of(cls, data: Data) -> "Needs":
        """Return what data asks for."""
        return cls(data.tokenizer.vocab_size, data.kind, labelling_of(data), picture_of(data))

    def numbers(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers of a relative that follow from the data, of those that it has."""
        fitting = {"vocab_size": self.vocab_size} if "vocab_size" in known else {}
        return fitting | ({} if self.picture is None else self.picture.numbers(known))

    def adapt(self, recipe: Recipe, assignments: Sequence[str] = ()) -> Recipe:
        """Return a recipe of the right vocabulary with the objective and head of the data, and `path=value` applied."""
        recipe = judging(recipe.learning_from(self.kind), self.labelling)
        return read_whole(recipe, self.picture).assigned(assignments)


def fit(
    recipe: Recipe | str | Path, data: Data | str | Path, *, size: str = "tiny", assignments: Sequence[str] = ()
) -> Recipe:
    """Return a recipe for data.

    recipe: a recipe, the name of a relative, a spec file or a run. data: open, or the name of it. assignments: numbers
    of a relative (`n_layers=4`) and paths of the recipe (`training.clip=0.5`).
    """
    needs = Needs.of(data if isinstance(data, Data) else open_data(data))
    if not isinstance(recipe, Recipe):
        name, path = str(recipe), Path(recipe)
        if name in registry.relatives() or not (path.suffix == ".toml" or path.exists()):
            numbers = numbers_of(registry.entry(parted(name)[0]).function)
            own, assignments = divided(assignments, numbers, name)
            return needs.adapt(make(name, size=size, **(needs.numbers(numbers) | own)), assignments)
        recipe = Run.open(path).recipe if path.is_dir() else read_recipe(path)
    return needs.adapt(recipe.fitted(needs.vocab_size), assignments)


def task_of(data: Data) -> Task | None:
    """Return the task of labelled data: the one that its name says, or else what its labels are; None of others."""
    if data.kind != "labelled":
        return None
    split = data.split("train")
    if data.task:
        return named(data.task)
    return of_labels(split.asks, len(split.sides(np.arange(1))), image=split.picture is not None)


def labelling_of(data: Data) -> Labelling | None:
    """Return what labelled data asks of a model; None for data without labels.

    The longest sequence is that of the first 65,536 examples of each part, unless a part knows how long it may be.
    """
    task = task_of(data)
    if task is None:
        return None
    longest, sides = 1, 1
    for name in data.splits:
        split = data.split(name)
        most = split.longest
        both = split.sides(np.arange(min(len(split), 1 if most else _LOOKED_AT)))
        sides = len(both)
        here = max((most or int(side.max())) + int(split.ends) for side in both)
        # what is made up was asked for in its length; of files `n_cut` counts what is lost, and it is said
        longest = max(longest, min(here, LONGEST) if split.from_file else here)
    split = data.split("train")
    return Labelling(len(split.classes), longest, sides, split.apart, task, split.row, data.tokenizer.between)


def n_cut(split: Split, length: int) -> int:
    """Count the examples of a file that are longer than what is read of them; what is made up is as long as asked."""
    if not split.from_file:
        return 0
    return Batches(split, batch_size=1, length=length, shuffle=False).n_cut


def picture_of(data: Data) -> Picture | None:
    """Return the size of images; None for data that is not made of them."""
    size = data.split("train").picture
    return None if size is None else Picture(*size)
