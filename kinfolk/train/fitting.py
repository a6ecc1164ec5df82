"""A recipe fitted to the data it is to learn from."""

from typing import Any, cast

import numpy as np

from kinfolk.data import Data
from kinfolk.family.pictures import Picture
from kinfolk.family.supervise import Labelling

LONGEST = 4096
"""Sequences are cut here unless `training.length` says otherwise: one long one must not fill the memory."""

_LOOKED_AT = 1 << 16


def labelling_of(data: Data) -> Labelling | None:
    """Return what labelled data asks of a model; None for data without labels.

    The longest sequence is that of the first 65,536 examples of each part.
    """
    if data.kind != "labelled":
        return None
    longest, sides = 1, 1
    for name in data.splits:
        split = cast(Any, data.split(name))
        lengths = split.lengths(np.arange(min(len(split), _LOOKED_AT)))
        both = lengths if isinstance(lengths, tuple) else (lengths,)
        ends, sides = int(getattr(split, "ends", True)), len(both)
        longest = max(longest, *(int(side.max()) + ends for side in both))
    classes = cast(Any, data.split("train")).classes
    return Labelling(len(classes), min(longest, LONGEST), sides)


def picture_of(data: Data) -> Picture | None:
    """Return the size of pictures; None for data that is not made of them."""
    split = cast(Any, data.split("train"))
    return Picture(split.height, split.width, split.channels) if hasattr(split, "channels") else None
