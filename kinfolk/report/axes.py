"""Axes of charts: linear, logarithmic or square-root scales, and round ticks on them."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from kinfolk.report.numbers import tick

AIR = 0.05
"""Share of the range that is left free at both ends of an axis."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows.

    scale: "log" leaves out values that are not positive; "root" spreads small values from 0 on. include: values that
    must be on it. descending: larger values to the left, or at the bottom. write: how a tick is written. bare: no
    ticks and no grid.
    """

    label: str
    scale: Literal["linear", "log", "root"] = "linear"
    include: tuple[float, ...] = ()
    descending: bool = False
    bare: bool = False
    write: Callable[[float], str] = tick

    def shows(self, value: float) -> bool:
        """Tell whether a value has a place on this axis."""
        return math.isfinite(value) and (value > 0 or self.scale != "log")


@dataclasses.dataclass(frozen=True)
class Scale:
    """An axis over a range of values, from `start` to `stop` on the page."""

    axis: Axis
    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return where a value is on the page; values beyond the range are put at its ends."""
        low, high = self._bent(self.low), self._bent(self.high)
        share = (self._bent(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.start + (self.stop - self.start) * (1 - share if self.axis.descending else share)

    def ticks(self, gap: float) -> list[float]:
        """Return round values whose places are at least `gap` apart."""
        if self.axis.bare:
            return []
        places: list[float] = []
        chosen: list[float] = []
        for value in _candidates(self, max(2, int(abs(self.stop - self.start) / gap))):
            place = self(value)
            if all(abs(place - other) >= gap for other in places):
                places.append(place)
                chosen.append(value)
        return sorted(chosen)

    def _bent(self, value: float) -> float:
        if self.axis.scale == "log":
            return math.log(value)
        return math.sqrt(max(0.0, value)) if self.axis.scale == "root" else value


def scale(axis: Axis, values: Iterable[float], start: float, stop: float) -> Scale:
    """Return the scale that shows all values, with some air around them."""
    shown = [value for value in (*values, *axis.include) if axis.shows(value)] or [1.0]
    low, high = min(shown), max(shown)
    if axis.scale == "log":
        low, high = (low / 2, high * 2) if low == high else (low * (low / high) ** AIR, high * (high / low) ** AIR)
    elif axis.scale == "root":
        low, high = 0.0, (1 + 2 * AIR) * high or 1.0
    else:
        air = AIR * (high - low) or AIR * abs(high) or 1.0
        # an axis that begins at 0 keeps it at its end
        low, high = (low if low == 0 != high else low - air), high + air
    return Scale(axis, low, high, start, stop)


def _candidates(found: Scale, about: int) -> Sequence[float]:
    """Return ticks in the order of how round they are: the first ones stay where there is no room for all."""
    low, high = found.low, found.high
    if found.axis.scale == "linear" or (found.axis.scale == "log" and high / low < 4):
        return _steps(low, high, about)
    bottom = math.floor(math.log10(low if low > 0 else high / 1000))
    powers = range(bottom, math.ceil(math.log10(high)) + 1)
    # 1 before 5 and 2, so that decades are marked where only some fit
    values = [multiple * 10.0**power for multiple in (1, 3, 2, 5) for power in powers]
    values = [0.0] * (found.axis.scale == "root") + values
    return [value for value in values if low <= value <= high]


def _steps(low: float, high: float, about: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * i:.12g}") for i in range(first, last + 1)]
