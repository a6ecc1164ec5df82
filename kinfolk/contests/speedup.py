r"""Effective speed-up: at which budget would the baseline be as good, times the ratio of tokens per second.

The baseline's own law $L(C) = E + A C^{-\alpha}$, fitted to its finished losses at several shares of the budget, is
moved through its loss at the full budget. A contestant with loss L is worth the compute ratio $C'/C$ with $L(C') = L$;
times its tokens per second over the baseline's. 1.2 is "as good as 1.2 times the baseline's budget". With two shares
the law has no floor (E = 0), which is near enough for small differences only; with four (`--branches`) it is fitted.
"""

import dataclasses
import math
from collections.abc import Mapping

from kinfolk.contests.evidence import Speedup
from kinfolk.contests.results import ResultRow
from kinfolk.contests.scaling.law import Measured, fit
from kinfolk.objectives.measures.measure import measure_of

MOST = 100.0
"""A ratio beyond this is no longer a measurement."""


@dataclasses.dataclass(frozen=True)
class BaselineLaw:
    """Loss of a baseline by its share of the budget: L(c) = floor + scale * c^-exponent, exact at c = 1.

    points, least: how many shares it was fitted to, and the smallest of them.
    """

    floor: float
    scale: float
    exponent: float
    points: int
    least: float = 0.5

    def extrapolates(self, ratio: float | None) -> bool:
        """Tell whether a ratio lies beyond the fitted shares of the budget by more than a factor of 2."""
        return ratio is not None and not self.least / 2 <= ratio <= 2.0

    def ratio(self, loss: float) -> float | None:
        """Return the multiple of the budget at which the baseline has this loss; None at or below its floor."""
        if loss <= self.floor:
            return None
        found = ((loss - self.floor) / self.scale) ** (-1 / self.exponent)
        return found if found <= MOST else None

    def __str__(self) -> str:
        return f"L = {self.floor:.4g} + {self.scale:.4g} c^-{self.exponent:.3g} from {self.points} shares of the budget"


def law_of(losses: Mapping[float, float]) -> BaselineLaw | None:
    """Fit a law to finished losses by share of the budget, recentred on the full budget; None where none can be."""
    if 1.0 not in losses or len(losses) < 2 or any(value <= 0 for value in losses.values()):
        return None
    end = losses[1.0]
    if len(losses) < 4:
        share = min(losses)
        exponent = math.log(losses[share] / end) / math.log(1 / share)
        return BaselineLaw(0.0, end, exponent, len(losses), share) if exponent > 0 else None
    law = fit([Measured(1.0, share, loss) for share, loss in sorted(losses.items())])
    floor, exponent = law.floor.value, law.exponent("tokens").value
    if exponent <= 0 or floor >= end:
        return None
    return BaselineLaw(floor, end - floor, exponent, len(losses), min(losses))


def speedup(row: ResultRow, baseline: ResultRow, law: BaselineLaw) -> Speedup | None:
    """Return the effective speed-up of a contestant; None where its measure is no loss, or speeds are not known."""
    if row.final is None or baseline.final is None or row.measure != baseline.measure or measure_of(row.measure).higher:
        return None
    if not row.tokens_per_second or not baseline.tokens_per_second:
        return None
    speed = row.tokens_per_second / baseline.tokens_per_second
    gap = row.final - baseline.final
    low, high = _interval(row, baseline, gap)
    at = [law.ratio(law.floor + law.scale + x) for x in (gap, high, low)]
    value, least, most = (None if ratio is None else ratio * speed for ratio in at)
    return Speedup(
        baseline=baseline.name,
        value=value,
        low=least,
        high=most,
        compute_ratio=at[0],
        speed_ratio=speed,
        law=str(law),
        extrapolated=law.extrapolates(at[0]),
    )


def _interval(row: ResultRow, baseline: ResultRow, gap: float) -> tuple[float, float]:
    """Return the simultaneous interval of the difference of the two.

    It is known where one of them is what the other was tested against. Two others were both tested against the best:
    the wider of their intervals, moved to where their own difference is.
    """
    known = {
        each.name: (each.low, each.high)
        for each in (row, baseline)
        if each.p is not None and each.low is not None and each.high is not None
    }
    if row.name == baseline.name or not known:
        return gap, gap
    if len(known) == 2:
        reach = max(high - low for low, high in known.values()) / 2
        return gap - reach, gap + reach
    low, high = known.get(row.name) or sorted(-x for x in known[baseline.name])
    return min(low, gap), max(high, gap)


def finished(baseline: ResultRow) -> dict[float, float]:
    """Return the baseline's finished losses by share of the budget: branches, or what the search left at a half."""
    if baseline.branches:
        return {branch.share: branch.mean for branch in baseline.branches if branch.mean is not None}
    rates = baseline.rates
    if rates is None:
        return {}
    # the search's own trials on one split: the same rate at half and at all of the budget
    found = {tried.share: tried.mean for tried in rates.tried if tried.lr == rates.chosen and tried.mean is not None}
    return {share: mean for share, mean in found.items() if mean is not None}
