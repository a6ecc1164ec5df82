"""Make contestants comparable: scale a width until parameters (or operations per token) come nearest to a target.

Only the model's width moves, and with it what the relative derives from it; depth, heads and everything that a paper
is about stay. A width is a multiple of the heads and of 8, the lanes of a vector unit, so a match is near and not
exact; what remains is said.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.spec import Spec

BY = ("params", "flops", "none")
WIDEST = 1 << 16


def check(by: str) -> str:
    """Return how to match, or refuse it."""
    if by not in BY:
        raise SpecError(f"match: unknown choice {by!r}{suggest(by, BY)}")
    return by


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


def unit_of(spec: Spec) -> int:
    """Return the step in which a model's width may change: every head an even width, and whole vectors of 8."""
    return math.lcm(8, *(2 * heads for heads in _values(spec, "n_heads")))


def difference(value: float, target: float) -> str:
    """Say how far from a target something is."""
    return f"{100 * (value - target) / target:+.1f} %"


def _values(value: Any, name: str) -> Iterator[Any]:
    """Yield every value of a field of this name anywhere in a spec."""
    if isinstance(value, tuple):
        for item in value:
            yield from _values(item, name)
    elif isinstance(value, Spec):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name == name:
                yield inner
            else:
                yield from _values(inner, name)
