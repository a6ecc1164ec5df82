"""False marks among equals and power of the verdict, simulated, beside Welch's t-test with Holm's correction.

    python docs/studies/verdict.py [comparisons]
    python docs/studies/verdict.py tuned [comparisons]

Scores are mu_i + b_j + e_ij: seeds share b_j (correlation rho of a trial's total variance, 0.8 as measured), spreads of
contestants are log-normal (standard deviation of log sigma 0.6 as measured). Gaps are in residual standard deviations.
Needs scipy for the old test.

With `tuned` the whole protocol is simulated, search and looks included: a bowl of loss against the logarithm of the
rate, whose bottom lies anywhere between two rates of the ladder, is searched, judged and judged again by the code of
`kin compare`.
"""

import dataclasses
import math
import sys
from collections.abc import Callable

import numpy as np
from scipy import stats

from kinfolk.contests import retrials
from kinfolk.contests.evidence import FULL, RateCurve, RatePoint
from kinfolk.contests.groups import Group
from kinfolk.contests.inference import OPEN, critical, estimate
from kinfolk.contests.outcome import DONE, Outcome, Point
from kinfolk.contests.rates import FACTOR, Search, SearchOrder
from kinfolk.contests.settings import ROUND

RHO, SCATTER = 0.8, 0.6


def scores(rng: np.random.Generator, reps: int, k: int, n: int, gap: float) -> np.ndarray:
    """Return scores [comparison, contestant, seed]; the first contestant is better than all others by the gap."""
    sigma = np.exp(SCATTER * rng.standard_normal((reps, k, 1)))
    shared = np.sqrt(RHO / (1 - RHO)) * rng.standard_normal((reps, 1, n))
    table = shared + sigma * rng.standard_normal((reps, k, n))
    table[:, 1:] += gap
    return table


def marks(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return who is best by its mean, and who is told apart from it: [comparison], [comparison, contestant]."""
    k, n = table.shape[1:]
    fit = estimate(table)
    error, best = fit.variance / fit.count, fit.mean.argmin(1)
    at = best[:, None]
    width = np.sqrt(error + np.take_along_axis(error, at, 1))
    told = fit.mean - np.take_along_axis(fit.mean, at, 1) > critical(k, (n,))[0] * width
    np.put_along_axis(told, at, False, 1)
    return best, told


def welch_holm(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the same by Welch's test of everybody against the best mean, corrected by Holm."""
    n = table.shape[2]
    mean, error = table.mean(2), table.var(2, ddof=1) / n
    best = mean.argmin(1)
    at = best[:, None]
    own = np.take_along_axis(error, at, 1)
    total = error + own
    degrees = total**2 / ((error**2 + own**2) / (n - 1))
    p = 2 * stats.t.sf((mean - np.take_along_axis(mean, at, 1)) / np.sqrt(total), degrees)
    np.put_along_axis(p, at, np.inf, 1)
    order = p.argsort(1)
    sorted_p = np.take_along_axis(p, order, 1)
    m = table.shape[1] - 1
    factor = np.maximum(m - np.arange(table.shape[1]), 1)
    corrected = np.maximum.accumulate(sorted_p * factor, 1)
    told = np.zeros_like(p, bool)
    np.put_along_axis(told, order, corrected < 0.05, 1)
    return best, told


def racing(rng: np.random.Generator, reps: int, k: int, looks: tuple[int, ...]) -> float:
    """Return how often equals are told apart where only undecided contestants and the best get further seeds."""
    table = scores(rng, reps, k, looks[-1], 0.0)
    bounds = critical(k, looks)
    seen = np.where(np.arange(looks[-1]) < looks[0], table, np.nan)
    false = np.zeros(reps, bool)
    for look, n in enumerate(looks):
        fit = estimate(seen[..., :n])
        error, at = fit.variance / fit.count, fit.mean.argmin(1)[:, None]
        width = np.sqrt(error + np.take_along_axis(error, at, 1))
        told = fit.mean - np.take_along_axis(fit.mean, at, 1) > bounds[look] * width
        false |= told.any(1)
        if look + 1 < len(looks):
            new = slice(n, looks[look + 1])
            seen[:, :, new] = np.where(told[..., None], np.nan, table[:, :, new])
    return float(false.mean())


OWN, MEASURE, SIGMA = 1e-3, "next-token", 0.02
ABOVE = 3.0
"""Noise of a trial a factor of 3 above its best rate, as a multiple of the noise below: measured 3 to 14."""


@dataclasses.dataclass(frozen=True)
class Bowl:
    """Loss of one contestant against rate: its least loss, where that is, in powers of 3 above 1e-3, and its curvature.

    Gaps and curvature are in residual standard deviations of a trial.
    """

    least: float = 0.0
    at: float = 0.0
    curvature: float = 4.0

    def trial(
        self, rng: np.random.Generator, block: Callable[[int], float], lr: float, seed: int, share: float
    ) -> Outcome:
        """Return a trial that is only drawn. Half of the budget prefers rates that are higher by a third of a step."""
        distance = math.log(lr / OWN, FACTOR) - self.at - (0.3 if share < FULL else 0.0)
        noise = SIGMA * (1 + (ABOVE - 1) * min(max(distance, 0.0), 1.0)) * rng.standard_normal()
        loss = 2 + SIGMA * (self.least + self.curvature * distance**2) + block(seed) + noise
        point = Point(step=1, tokens=1, seconds=1.0, flops=1.0, valid={MEASURE: loss})
        return Outcome(name="", seed=seed, status=DONE, curve=(point,))


def contest(
    rng: np.random.Generator, bowls: dict[str, Bowl], against: str, most: int
) -> tuple[set[str], set[str], int]:
    """Tune and judge contestants; return who is told apart without and with retrials, and distinct rates."""
    blocks: dict[int, float] = {}

    def block(seed: int) -> float:
        return blocks.setdefault(seed, SIGMA * math.sqrt(RHO / (1 - RHO)) * rng.standard_normal())

    rates: dict[str, RateCurve] = {}
    for name, bowl in bowls.items():
        search, known = Search(OWN, MEASURE), dict[SearchOrder, Outcome]()
        while orders := [order for order in search.orders(known) if order not in known]:
            known |= {order: bowl.trial(rng, block, order.lr, order.seed, order.share) for order in orders}
        rates[name] = search.result(known)
    drawn: dict[tuple[str, float, int], Outcome] = {}

    def trials(name: str, lr: float, n: int) -> list[Outcome]:
        for seed in range(n):
            if (name, lr, seed) not in drawn:
                drawn[name, lr, seed] = bowls[name].trial(rng, block, lr, seed, FULL)
        return [drawn[name, lr, seed] for seed in range(n)]

    found, looks = Group(MEASURE, tuple(bowls)), tuple(range(5, most + 1, ROUND))
    seeds = dict.fromkeys(bowls, looks[0])
    retried: dict[tuple[str, RatePoint], list[Outcome]] = {}
    for _ in looks:
        outcomes = {name: trials(name, rates[name].chosen, seeds[name]) for name in bowls}
        plain = retrials.standings(found, outcomes, against, looks)
        for pair in retrials.pairs(plain, rates):
            for point in pair.points:
                retried[pair.worse, point] = trials(pair.worse, point[0], seeds[pair.worse])
        places = retrials.standings(found, outcomes, against, looks, rates, retried)
        waiting = [place.name for place in places if place.verdict == OPEN]
        waiting += [place.name for place in places if place.p is None] if waiting else []
        seeds = {name: n + ROUND if name in waiting else n for name, n in seeds.items()}
    told = [{place.name for place in each if place.p is not None and place.verdict != OPEN} for each in (plain, places)]
    return told[0], told[1], len({curve.chosen for curve in rates.values()})


def tuned(reps: int) -> None:
    """Print false marks among equals and power with rates tuned."""
    rng = np.random.default_rng(16)
    print("| contestants | curvature | case | rates differ | told apart at their rates | with retrials |")
    print("|---|---|---|---|---|---|")
    cases = [(2, "equals", 0.0, 0.0), (5, "equals", 0.0, 0.0), (2, "equal at rates 3 times apart", 0.0, 1.0)]
    cases += [(2, f"worse by {gap:g}, {name}", gap, apart) for gap in (2.0, 4.0) for name, apart in PLACES]
    for k, case, gap, apart in cases:
        for curvature in (1.0, 4.0, 13.0):
            counts = np.zeros(3)
            for _ in range(reps):
                at = rng.uniform(-0.5, 0.5)
                bowls = {f"c{i}": Bowl(gap * (i > 0), at + apart * (i > 0), curvature) for i in range(k)}
                before, after, distinct = contest(rng, bowls, "c0" if k == 2 else "", 9)
                counts += (distinct > 1, bool(before), bool(after))
            shares = " | ".join(f"{count / reps:.3f}" for count in counts)
            print(f"| {k} | {curvature:g} | {case} | {shares} |", flush=True)


PLACES = (("best rate the same", 0.0), ("best rate 3 times higher", 1.0), ("best rate 3 times lower", -1.0))


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["tuned"]:
        tuned(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
        return
    reps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rng = np.random.default_rng(15)
    print("| contestants | seeds | false marks | Welch, Holm | power at 2 | Welch, Holm | power at 4 | Welch, Holm |")
    print("|---|---|---|---|---|---|---|---|")
    for k in (2, 5, 10, 20):
        for n in (3, 5, 8):
            cells = []
            for gap in (0.0, 2.0, 4.0):
                for test in (marks, welch_holm):
                    best, told = test(scores(rng, reps, k, n, gap))
                    share = told.any(1) if gap == 0 else np.where(best == 0, told[:, 1:].mean(1), 0.0)
                    cells.append(f"{share.mean():.3f}")
            print(f"| {k} | {n} | {' | '.join(cells)} |", flush=True)
    print()
    print("| contestants | looks | told apart among equals |")
    print("|---|---|---|")
    for k in (2, 5, 10, 20):
        looks = (5, 7, 9, 11)
        print(f"| {k} | 5, 7, 9, 11 seeds | {racing(rng, max(500, reps // 5), k, looks):.3f} |", flush=True)


if __name__ == "__main__":
    main()
