"""A recipe fitted to the data it is to learn from."""

from typing import Any, cast

import numpy as np

from kinfolk.data import Batches, Data
from kinfolk.family.pictures import Picture
from kinfolk.family.supervise import Labelling

LONGEST = 4096
"""Sequences are cut here unless `training.length` says otherwise: one long one must not fill the memory."""

_LOOKED_AT = 1 << 16


def labelling_of(data: Data) -> Labelling | None:
    """Return what labelled data asks of a model; None for data without labels.

    The longest sequence is that of the first 65,536 examples of each part, unless a part knows how long it may be.
    """
    if data.kind != "labelled":
        return None
    longest, sides = 1, 1
    for name in data.splits:
        split = cast(Any, data.split(name))
        known = getattr(split, "longest", 0)
        lengths = split.lengths(np.arange(min(len(split), 1 if known else _LOOKED_AT)))
        both = lengths if isinstance(lengths, tuple) else (lengths,)
        ends, sides = int(getattr(split, "ends", True)), len(both)
        here = max((known or int(side.max())) + ends for side in both)
        # what is made up was asked for in its length; of files `n_cut` counts what is lost, and it is said
        longest = max(longest, min(here, LONGEST) if hasattr(split, "described") else here)
    split = cast(Any, data.split("train"))
    asked = getattr(split, "asks", "") or _kind(split)
    apart, row = getattr(split, "apart", False), getattr(split, "row", 0)
    return Labelling(len(split.classes), longest, sides, apart, asked, row, data.tokenizer.between)


def _kind(split: Any) -> str:
    """Tell by the first example what labels are."""
    *_, label = split.examples(np.zeros(1, np.int64))[0]
    whole = np.issubdtype(np.asarray(label).dtype, np.integer)
    return "classes" if np.ndim(label) else "class" if whole else "number"


def n_cut(split: Any, length: int) -> int:
    """Count the examples of a file that are longer than what is read of them; what is made up is as long as asked."""
    if not hasattr(split, "described"):
        return 0
    return Batches(split, batch_size=1, length=length, shuffle=False).n_cut


def picture_of(data: Data) -> Picture | None:
    """Return the size of pictures; None for data that is not made of them."""
    split = cast(Any, data.split("train"))
    return Picture(split.height, split.width, split.channels) if hasattr(split, "channels") else None
