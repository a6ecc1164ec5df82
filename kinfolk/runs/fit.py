"""A recipe fitted to the data it is to learn from."""

import numpy as np

from kinfolk.data import Batches, Data, Split
from kinfolk.family.pictures import Picture
from kinfolk.family.supervise import Labelling
from kinfolk.objectives.tasks.registry import named, of_labels
from kinfolk.objectives.tasks.task import Task

LONGEST = 4096
"""Sequences are cut here unless `training.length` says otherwise: one long one must not fill the memory."""

_LOOKED_AT = 1 << 16


def task_of(data: Data) -> Task | None:
    """Return the task of labelled data: the one that its name says, or else what its labels are; None of others."""
    if data.kind != "labelled":
        return None
    split = data.split("train")
    if data.task:
        return named(data.task)
    lengths = split.lengths(np.arange(1))
    return of_labels(split.asks, len(lengths) if isinstance(lengths, tuple) else 1, image=split.picture is not None)


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
        known = split.longest
        lengths = split.lengths(np.arange(min(len(split), 1 if known else _LOOKED_AT)))
        both = lengths if isinstance(lengths, tuple) else (lengths,)
        sides = len(both)
        here = max((known or int(side.max())) + int(split.ends) for side in both)
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
    """Return the size of pictures; None for data that is not made of them."""
    size = data.split("train").picture
    return None if size is None else Picture(*size)
