"""Who is better, and is that more than luck? Means over seeds, and a test against the best.

The test is Welch's (1947): a difference of two means, divided by its own estimated error, against Student's t
with the Welch-Satterthwaite degrees of freedom. It asks for no equal spreads (contestants differ in it) and no
equal number of seeds (a trial may fail), and unlike a permutation test it can speak at three seeds, where the
smallest two-sided p of all paired sign changes is 0.25. Everyone is tested against the best, so the p-values are
corrected by Holm's step-down method (1979), which bounds the chance of any false mark by `LEVEL`. Two limits: the best
was picked by looking at the same numbers, which favours it slightly, and a t-test trusts that seeds scatter
roughly normally.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

LEVEL = 0.05

WORSE, ALIKE, NO_TEST = "*", "≈", ""
"""Marks beside a rank: worse than the best; not told apart from the best; nothing can be said."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A contestant's place: mean and sample standard deviation over `n` seeds, corrected p against the best."""

    name: str
    rank: int
    mean: float
    spread: float | None
    n: int
    p: float | None
    mark: str


def rank(scores: Mapping[str, Sequence[float]], *, higher: bool = False) -> list[Place]:
    """Order contestants by the mean of their scores, smallest first, and mark who differs from the first.

    higher: the largest is the first.
    """
    worth = {name: (-1 if higher else 1) * statistics.fmean(found) for name, found in scores.items() if found}
    names = sorted(worth, key=lambda name: worth[name])
    if not names:
        return []
    best = scores[names[0]]
    rest = names[1:]
    raw = [welch(best, scores[name]) for name in rest]
    corrected = dict(zip(rest, holm(raw), strict=True))
    return [
        Place(
            name=name,
            rank=1 + sum(worth[other] < worth[name] for other in names),
            mean=statistics.fmean(scores[name]),
            spread=spread(scores[name]),
            n=len(scores[name]),
            p=corrected.get(name),
            mark=_mark(corrected.get(name)),
        )
        for name in names
    ]


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None when one value cannot tell."""
    return statistics.stdev(values) if len(values) > 1 else None


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p of Welch's test that two means are equal; None with fewer than two values on a side."""
    if min(len(a), len(b)) < 2:
        return None
    error_a, error_b = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    gap = abs(statistics.fmean(a) - statistics.fmean(b))
    if error_a + error_b == 0:
        return 1.0 if gap == 0 else 0.0
    # Satterthwaite 1946: the degrees of freedom whose chi-square has the same two first moments
    degrees = (error_a + error_b) ** 2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
    return student(gap / math.sqrt(error_a + error_b), degrees)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for being many (Holm 1979): the smallest times n, the next times n - 1, never decreasing."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for done, (p, i) in enumerate(known):
        floor = max(floor, min(1.0, (len(known) - done) * p))
        corrected[i] = floor
    return corrected


def student(t: float, degrees: float) -> float:
    r"""Return the two-sided p of Student's t: $I_x(\nu/2, 1/2)$ with $x = \nu / (\nu + t^2)$ (DLMF 8.17)."""
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    # the fraction converges fast only below the mean of the distribution; above it, use the mirror image
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate 1 + d1/(1 + d2/(1 + …)) from the inside out; 200 terms are far more than double precision needs."""
    value = 1.0
    for n in range(200, 0, -1):
        m = n // 2
        if n % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + term / value
    return value


def _mark(p: float | None) -> str:
    if p is None:
        return NO_TEST
    return WORSE if p < LEVEL else ALIKE
