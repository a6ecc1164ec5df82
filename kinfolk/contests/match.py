"""Match contestants in size: scale a width until parameters (or FLOPs per token) come nearest to a target.

Parameters are counted without the embedding and the output layer, whose size is the vocabulary's and not a paper's
(Kaplan et al. 2020, section 2.1). Only widths move: the model's, and the feed-forward's in proportion to it and then a
little more; depth, heads and everything that a paper is about stay. A width is a multiple of the heads and of 8, the
lanes of a vector unit, so a match is near and not exact; what remains is said.
"""

import math
from collections.abc import Callable
from pathlib import Path

from kinfolk.contests.outcome import read_kept
from kinfolk.core.nested import nested
from kinfolk.core.spec import Spec

BY = ("params", "flops", "time", "none")
WIDEST = 1 << 16
WIDTHS = "widths.json"
"""Widths that were matched by time, in the folder of a comparison."""


def kept_widths(folder: Path) -> dict[str, dict[str, int]] | None:
    """Return the widths that were matched by time in this folder, by contestant; None before they were.

    Seconds are a stopwatch's: measured again they would be others. So they decide once, and the folder remembers.
    """
    return read_kept(
        folder / WIDTHS, lambda data: all(type(n) is int and n > 0 for one in data.values() for n in one.values())
    )


def nearest_width(value_of: Callable[[int], float], target: float, unit: int) -> int:
    """Return the multiple of `unit` whose value is nearest to the target; values grow with the width."""
    low, high = unit, 2 * unit
    while value_of(high) < target and high < WIDEST:
        low, high = high, 2 * high
    # `low` is below the target or the narrowest there is, `high` is not below it or the widest
    while high - low > unit:
        middle = (low + high) // (2 * unit) * unit
        low, high = (middle, high) if value_of(middle) < target else (low, middle)
    return min((low, high), key=lambda width: abs(value_of(width) - target))


def near(width: int, usual: int, unit: int, share: float = 0.2) -> int:
    """Return a width no further than a share from the usual one, so that a match does not change what a model is."""
    most = int(share * usual) // unit * unit
    return min(max(width, usual - most), usual + most)


def unit_of(spec: Spec) -> int:
    """Return the step in which a model's width may change: every head an even width, and whole vectors of 8."""
    parts = [spec, *(part for _, part in nested(spec))]
    return math.lcm(8, *(2 * part.n_heads for part in parts if hasattr(part, "n_heads")))


def difference(value: float, target: float) -> str:
    """Say how far from a target something is."""
    return f"{100 * (value - target) / target:+.1f} %"
