"""Simultaneous confidence intervals from paired seeds: who is better, by more than chance?

    y_ij = mu_i + b_j + e_ij,   e_ij ~ N(0, sigma_i^2)        contestant i, seed j

All contestants see the same batches under the same seed, so seeds are blocks: $b_j$ is common to all and cancels in
every difference. Spreads differ between contestants; they are moderated (`kinfolk.contests.moderation`), which makes a
few seeds enough. For all pairs,

    t_ij = (m_i - m_j) / sqrt(s~_i^2 / n_i + s~_j^2 / n_j)

and the critical value is the quantile of the largest |t| of a comparison in which nothing differs: over all pairs (the
studentized range, so that the best may be picked by looking), or over the pairs with a named baseline (Dunnett 1955).
With equal and known-to-be-equal spreads these are the tables of Tukey and Dunnett, which the tests hold them to;
moderated spreads have no table, so the quantile is simulated with the same estimator, seeded, and at the worse of two
assumptions about how spreads differ. Repeated looks (more seeds for what is undecided) are part of the simulation: one
level for every look, chosen so that the chance of any false difference over all looks is `level`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinfolk.contests.evidence import Retrial
from kinfolk.contests.moderation import Floats, squeeze

LEVEL = 0.05
SAMPLES = 16384
AT_ONCE = 1 << 20
"""Scores that the simulation holds at a time: 8 MB, and a few times that while they are fitted."""

SCATTER = (0.0, 0.6)
"""Standard deviations of log sigma assumed in the simulation; 0.6 was measured (docs/comparing.md)."""

MARGIN = 0.92
"""Share of the level that is spent: what a simulated quantile may be off by stays inside the level."""

BEST, WORSE, BETTER, OPEN, UNTESTED = "best", "worse", "better", "not told apart", ""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Means, moderated variances of a single trial, and numbers of seeds, per contestant (last axis)."""

    mean: Floats
    variance: Floats
    count: Floats

    def statistic(self, reference: int | None) -> Floats:
        """Return |t| of all pairs, or of the pairs with one contestant, flattened along the last axis."""
        i, j = _pairs(self.mean.shape[-1], reference)
        error = self.variance / self.count
        gap = np.abs(self.mean[..., i] - self.mean[..., j])
        return np.asarray(gap / np.sqrt(np.maximum(error[..., i] + error[..., j], 1e-300)))


def estimate(score: Floats) -> Estimate:
    """Fit contestants and blocks to scores [..., contestants, seeds]; NaN is a trial that is missing.

    Block effects are averages over contestants weighted by precision, so that one noisy contestant does not spoil the
    pairing of the others. A residual keeps sigma_i^2 - V of its variance, where V = 1 / sum(1 / sigma^2) is that of
    the block
    effect: it is added back. Two contestants have one difference and share its variance equally.
    """
    here = ~np.isnan(score)
    y = np.where(here, score, 0.0)
    count = here.sum(-1).astype(np.float64)
    complete = bool(here.all())
    k = score.shape[-2]
    degrees = max(float(count.mean()) - 1, 1.0)
    weight = np.full(score.shape[:-1], 1 / k)
    variance = weight
    for step in range(3):
        mean, residual = _two_way(y, here, weight, sweeps=1 if complete else 50)
        squares = (residual**2).sum(-1) / np.maximum(count - 1, 1)
        # of the block effect under these weights, from the variances so far; equal weights at first: sum / k^2
        if k == 2:
            variance = 2 * squares
        else:
            common = (
                squares.mean(-1, keepdims=True) / (k - 1) if step == 0 else 1 / (1 / variance).sum(-1, keepdims=True)
            )
            variance, _ = squeeze(squares + common, degrees)
        weight = 1 / np.maximum(variance, 1e-3 * variance.mean(-1, keepdims=True) + 1e-300)
        weight = weight / weight.sum(-1, keepdims=True)
        # no contestant may be the block by itself: its own residual would vanish
        weight = np.minimum(weight, 2 / k)
        weight = weight / weight.sum(-1, keepdims=True)
    return Estimate(mean, variance, count)


def _two_way(y: Floats, here: np.ndarray, weight: Floats, sweeps: int) -> tuple[Floats, Floats]:
    """Fit y = mean + block by alternating weighted averages; one sweep is exact where nothing is missing."""
    share = weight[..., None] * here
    total = np.maximum(share.sum(-2, keepdims=True), 1e-300)
    count = np.maximum(here.sum(-1), 1)
    block = np.zeros((*y.shape[:-2], 1, y.shape[-1]))
    for _ in range(sweeps):
        mean = ((y - block) * here).sum(-1) / count
        block = (share * (y - mean[..., None])).sum(-2, keepdims=True) / total
        block = block - block.mean(-1, keepdims=True)
    mean = ((y - block) * here).sum(-1) / count
    return mean, (y - mean[..., None] - block) * here


def _pairs(k: int, reference: int | None) -> tuple[np.ndarray, np.ndarray]:
    if reference is None:
        return np.triu_indices(k, 1)
    others = np.array([i for i in range(k) if i != reference])
    return others, np.full(len(others), reference)


@functools.cache
def null(k: int, looks: tuple[int, ...], paired: bool = False, scatter: float = 0.0, at_once: int = AT_ONCE) -> Floats:
    """Return the largest |t| of comparisons of `k` equal contestants at each look, [samples, looks], by simulation.

    looks: numbers of seeds, growing. paired: pairs with the first contestant only, instead of all pairs. Samples are
    drawn and fitted some at a time, about `at_once` scores, with the same result: memory does not grow with the seeds.
    """
    # a generator of its own: the same numbers in every process, whatever else is random
    rng = np.random.default_rng([2026, k, *looks])
    sigma = np.exp(scatter * rng.standard_normal((SAMPLES, k, 1)))
    some = max(1, at_once // (k * looks[-1]))
    return np.concatenate([_largest(rng, sigma[i : i + some], looks, paired) for i in range(0, SAMPLES, some)])


def _largest(rng: np.random.Generator, sigma: Floats, looks: tuple[int, ...], paired: bool) -> Floats:
    score = sigma * rng.standard_normal((*sigma.shape[:2], looks[-1]))
    statistics = [estimate(score[..., :n]).statistic(0 if paired else None).max(-1) for n in looks]
    return np.stack(statistics, -1)


@functools.cache
def _rarest(k: int, looks: tuple[int, ...], paired: bool, scatter: float) -> Floats:
    """Return the share of samples at least as extreme at the same look, the smallest over looks: [samples]."""
    largest = null(k, looks, paired, scatter)
    return (1 - largest.argsort(0).argsort(0) / len(largest)).min(-1)


@functools.cache
def critical(k: int, looks: tuple[int, ...], paired: bool = False, level: float = LEVEL) -> tuple[float, ...]:
    """Return the critical value of |t| at each look, so that any false difference at any look has chance `level`."""
    values = np.zeros(len(looks))
    for scatter in SCATTER:
        largest = null(k, looks, paired, scatter)
        bound = np.quantile(_rarest(k, looks, paired, scatter), MARGIN * level)
        values = np.maximum(values, np.quantile(largest, 1 - bound, axis=0))
    return tuple(map(float, values))


def p_value(t: float, k: int, looks: tuple[int, ...], look: int, paired: bool = False) -> float:
    """Return the chance of a |t| this large somewhere in a comparison of equals, corrected for all looks."""
    worst = 0.0
    for scatter in SCATTER:
        largest = null(k, looks, paired, scatter)
        own = float((largest[:, look] >= t).mean())
        rarest = _rarest(k, looks, paired, scatter)
        worst = max(worst, float((rarest <= own + 1 / len(largest)).mean()))
    return worst


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """A contestant beside the reference (the best, or the named baseline), in the unit of the score.

    noise: standard deviation of one trial without the part that all contestants share under its seed. difference, low,
    high: to the reference, positive is worse; the interval is simultaneous over all contestants and looks. p: corrected
    likewise. chance: of being the best of all. verdict: "best", "worse", "better" (than a named baseline), "not told
    apart", or "" without a test (the baseline itself; fewer than two seeds). retrials: the same pair at other rates,
    which the interval, p and verdict include.
    """

    name: str
    rank: int | None = None
    final: float | None = None
    spread: float | None = None
    seeds: int = 0
    noise: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    chance: float | None = None
    verdict: str = UNTESTED
    retrials: tuple[Retrial, ...] = ()


def judge(
    scores: Mapping[str, Sequence[float]],
    *,
    higher: bool = False,
    against: str = "",
    looks: tuple[int, ...] = (),
    level: float = LEVEL,
    picked: bool = False,
) -> list[Standing]:
    """Order contestants, best first, and say who differs from the best, or from the named baseline.

    scores: per contestant one score per seed, in the same order of seeds for all; NaN is a trial that failed.
    Contestants with fewer than two scores are ordered by their mean and not tested. looks: the numbers of seeds at
    which the comparison is judged, this one among them; without them this is the only look. picked: the named baseline
    was the best of an earlier comparison, so that all pairs count.
    """
    present = {name: [x for x in row if not math.isnan(x)] for name, row in scores.items()}
    present = {name: row for name, row in present.items() if row}
    sign = -1 if higher else 1
    worth = {name: sign * float(np.mean(row)) for name, row in present.items()}
    tested = [name for name, row in present.items() if len(row) > 1]
    tests: dict[str, dict[str, Any]] = {}
    if len(tested) > 1 and (not against or against in tested):
        table = sign * np.array([scores[name] for name in tested], dtype=np.float64)
        paired = bool(against) and not picked
        tests = _tests(tested, table, against, looks or (table.shape[1],), level, paired)
        # missing trials are accounted for by the fit, so the order is the fit's
        worth |= {name: test.pop("fitted") for name, test in tests.items()}
    return [
        Standing(
            name=name,
            rank=1 + sum(worth[other] < worth[name] for other in worth),
            final=float(np.mean(present[name])),
            spread=float(np.std(present[name], ddof=1)) if len(present[name]) > 1 else None,
            seeds=len(present[name]),
            **tests.get(name, {}),
        )
        for name in sorted(worth, key=lambda name: worth[name])
    ]


def _tests(
    names: Sequence[str], table: Floats, against: str, looks: tuple[int, ...], level: float, paired: bool
) -> dict[str, dict[str, Any]]:
    """Return what the test says of each contestant, as fields of `Standing`.

    Intervals hold at all looks together, so what an earlier look excluded stays excluded: the interval is the
    intersection over the looks so far, and a contestant that was told apart needs no further seeds.
    """
    seeds, k = table.shape[1], len(names)
    # seeds come in rounds: the look that has as many seeds as this comparison, or the next one
    last = next((at for at, n in enumerate(looks) if n >= seeds), len(looks) - 1)
    fit = estimate(table)
    reference = names.index(against) if against else int(fit.mean.argmin())
    bounds = critical(k, looks, paired, level)
    chances = _chances(fit)
    low, high, p = np.full(k, -np.inf), np.full(k, np.inf), np.ones(k)
    for look in range(last + 1):
        n = seeds if look == last else looks[look]
        gap, width = _differences(fit if look == last else estimate(table[:, :n]), reference)
        low, high = np.maximum(low, gap - bounds[look] * width), np.minimum(high, gap + bounds[look] * width)
        for i in range(k):
            t = abs(gap[i]) / width[i] if width[i] else math.inf if gap[i] else 0.0
            p[i] = min(p[i], p_value(t, k, looks, look, paired))
    gap, width = _differences(fit, reference)
    # two looks may exclude each other's interval by chance: then the last one, with all seeds, is shown
    empty = (low > gap) | (high < gap)
    low, high = np.where(empty, gap - bounds[last] * width, low), np.where(empty, gap + bounds[last] * width, high)
    return {
        name: {
            "fitted": float(fit.mean[i]),
            "noise": math.sqrt(fit.variance[i]),
            "difference": float(gap[i]),
            "low": float(low[i]),
            "high": float(high[i]),
            "p": None if i == reference else float(p[i]),
            "chance": float(chances[i]),
            "verdict": _verdict(i == reference, bool(against), float(gap[i]), float(low[i]), float(high[i])),
        }
        for i, name in enumerate(names)
    }


def _differences(fit: Estimate, reference: int) -> tuple[Floats, Floats]:
    """Return the difference of every contestant to the reference, and its standard error."""
    error = fit.variance / np.maximum(fit.count, 1)
    width = np.sqrt(error + error[reference])
    width[reference] = 0.0
    return fit.mean - fit.mean[reference], width


def _verdict(own: bool, named: bool, gap: float, low: float, high: float) -> str:
    if own:
        return UNTESTED if named else BEST
    if low <= 0 <= high or gap == 0:
        return OPEN
    return WORSE if gap > 0 else BETTER


def _chances(fit: Estimate, samples: int = 20000) -> Floats:
    """Return how likely each contestant is the best: the share of samples of all means in which its own is smallest."""
    rng = np.random.default_rng(2026)
    # moderated spreads borrow from all contestants: between the degrees of one and of all of them together
    degrees = max(float(fit.count.mean()) - 1, 1.0) * (1 + max(len(fit.mean) - 2, 0) / 2)
    draws = rng.standard_t(degrees, (samples, len(fit.mean))) * np.sqrt(fit.variance / fit.count) + fit.mean
    return np.asarray(np.bincount(draws.argmin(1), minlength=len(fit.mean)) / samples)


def t_quantile(p: float, degrees: float) -> float:
    """Return the quantile of Student's t for p above one half, by bisection on its integrated density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def above(x: float) -> float:
        # with u = tan(angle) the tail of the density is a smooth integrand on a finite interval
        angle = np.linspace(0.0, math.atan(x / math.sqrt(degrees)), 4001)
        density = np.cos(angle) ** (degrees - 1) * math.sqrt(degrees)
        return 0.5 + scale * float(((density[1:] + density[:-1]) / 2 * np.diff(angle)).sum())

    low, high = 0.0, 1.0
    while above(high) < p:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) < p else (low, middle)
    return (low + high) / 2
