"""False marks among equals and power of the verdict, simulated, beside Welch's t-test with Holm's correction.

    python docs/studies/verdict.py [comparisons]

Scores are mu_i + b_j + e_ij: seeds share b_j (correlation rho of a trial's total variance, 0.8 as measured), spreads of
contestants are log-normal (standard deviation of log sigma 0.6 as measured). Gaps are in residual standard deviations.
Needs scipy for the old test.
"""

import sys

import numpy as np
from scipy import stats

from kinfolk.contests.inference import critical, estimate

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


def main() -> None:
    """Print both tables."""
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
