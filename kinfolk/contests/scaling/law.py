r"""A scaling law: a power law fitted to losses, with intervals.

$L(x_1, \dots) = E + \sum_j A_j x_j^{-\alpha_j}$, the form of Hoffmann et al. 2022, section 3.3: x are parameters and
tokens, or one of them where the other does not change; E is the loss that no size takes away. Fitted by least squares
on $\log L$ (Levenberg and Marquardt) from many starts. Refitting shows how far to trust it: 400 times,
with residuals drawn anew.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError

Array = NDArray[np.float64]

EXPONENTS, FLOORS = (0.05, 0.1, 0.2, 0.4, 0.8), (0.02, 0.5, 0.9)
"""Where fits start: exponents of every term, and the floor as a share of the smallest loss."""
REFITS, LEVEL, ITERATIONS = 400, 0.95, 200


@dataclasses.dataclass(frozen=True)
class Measured:
    """One trained model: its parameters outside tables, the tokens it learnt from, and its loss in nats."""

    params: float
    tokens: float
    loss: float


@dataclasses.dataclass(frozen=True)
class Range:
    """A number and the interval that refits leave it in."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """A fitted law and its refits.

    variables: "params", "tokens" or both, in this order. Rows of `refits` are like `found`: the logarithm of the floor
    (where there is one), then for each variable the logarithm of its term at `centre` and its exponent.
    residual: root mean square of the residuals of log L, so that 0.01 is one percent of a loss.
    """

    variables: tuple[str, ...]
    centre: Array
    has_floor: bool
    found: Array
    refits: Array
    residual: float
    n_points: int

    @property
    def floor(self) -> Range:
        """E: what is left at infinite size and data."""
        if not self.has_floor:
            return Range(0.0, 0.0, 0.0)
        return _range(np.exp(self.found[0]), np.exp(self.refits[:, 0]))

    def exponent(self, variable: str) -> Range:
        """Return the power with which a variable's term falls."""
        j = self._place(variable) + 1
        return _range(self.found[j], self.refits[:, j])

    def coefficient(self, variable: str) -> float:
        """Return A, of A / x^alpha."""
        j = self._place(variable)
        return float(np.exp(self.found[j] + self.found[j + 1] * self.centre[self.variables.index(variable)]))

    def at(self, **where: float) -> Range:
        """Return the loss at some size and amount of data, with the interval of the law; seeds scatter besides."""
        x = np.array([[math.log(where[name]) for name in self.variables]]) - self.centre
        values = np.exp(_log_loss(np.concatenate([self.found[None], self.refits]), x, self.has_floor))[:, 0]
        return _range(values[0], values[1:])

    def losses(self, values: Array) -> Array:
        """Return the loss of a law in one variable at these places, and below it that of every refit."""
        if len(self.variables) != 1:
            raise DataError("a curve of losses needs a law in one variable")
        x = np.log(values)[:, None] - self.centre
        return np.exp(_log_loss(np.concatenate([self.found[None], self.refits]), x, self.has_floor))

    def best_size(self, flops: float) -> tuple[float, float]:
        r"""Return the parameters and tokens that lower the loss most for a number of operations, counted as 6 N D."""
        if self.variables != ("params", "tokens"):
            raise DataError("the best size for a budget needs a law of both; give several amounts of tokens")
        (a, alpha), (b, beta) = ((self.coefficient(v), self.exponent(v).value) for v in self.variables)
        if alpha <= 0 or beta <= 0:
            raise DataError("the loss does not fall with both parameters and tokens here, so there is no best size")
        n = (alpha * a / (beta * b)) ** (1 / (alpha + beta)) * (flops / 6) ** (beta / (alpha + beta))
        return n, flops / 6 / n

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "floor": dataclasses.asdict(self.floor),
            "terms": {
                v: {"coefficient": self.coefficient(v), "exponent": dataclasses.asdict(self.exponent(v))}
                for v in self.variables
            },
            "residual": self.residual,
            "points": self.n_points,
        }

    def _place(self, variable: str) -> int:
        return int(self.has_floor) + 2 * self.variables.index(variable)


def fit(points: Sequence[Measured], seed: int = 0) -> Law:
    """Fit a law to what was measured, in the variables that change.

    A floor is fitted only where there are more points than numbers with one; else E is 0, a straight line in
    logarithms (Kaplan et al. 2020).
    """
    if any(not (math.isfinite(p.loss) and p.loss > 0) for p in points):
        raise DataError("a law needs losses that are finite and above 0")
    columns = {"params": [p.params for p in points], "tokens": [p.tokens for p in points]}
    variables = tuple(name for name, values in columns.items() if len(set(values)) > 1)
    places = len({(p.params, p.tokens) for p in points})
    if not variables or places < 2 * len(variables) + 1:
        raise DataError(
            f"a power law in {' and '.join(variables) or 'nothing'} needs at least {2 * max(1, len(variables)) + 1} "
            f"different models, found {places}"
        )
    logs = np.log(np.array([columns[name] for name in variables]).T)
    # a curve is seen to bend where some variable takes four values
    has_floor = places > 2 * len(variables) + 1 and any(len(set(columns[name])) >= 4 for name in variables)
    centre, y = logs.mean(0), np.log([p.loss for p in points])
    x = logs - centre
    best = _least(_starts(x, y, has_floor), x, y[None], has_floor)
    fitted = _log_loss(best[None], x, has_floor)[0]
    rest = y - fitted
    refits = _refits(best, x, fitted, rest, has_floor, seed)
    return Law(variables, centre, has_floor, best, refits, float(np.sqrt((rest**2).mean())), len(y))


def _refits(best: Array, x: Array, fitted: Array, rest: Array, has_floor: bool, seed: int) -> Array:
    n, p = len(rest), len(best)
    draw = np.random.default_rng(seed)
    # residuals of a fit are smaller than errors, by what the fit has used up
    scale = math.sqrt(n / max(1, n - p))
    y = fitted + scale * rest[draw.integers(n, size=(REFITS, n))]
    return _descend(np.repeat(best[None], REFITS, 0), x, y, has_floor)[0]


def _starts(x: Array, y: Array, has_floor: bool) -> Array:
    k = x.shape[1]
    grids = np.meshgrid(*([EXPONENTS] * k), FLOORS if has_floor else (0.0,), indexing="ij")
    flat = np.stack([g.ravel() for g in grids], 1)
    low, mean = float(np.exp(y.min())), float(np.exp(y.mean()))
    floor = flat[:, -1] * low
    term = np.log((mean - floor) / k)
    columns = [np.log(floor)] if has_floor else []
    for j in range(k):
        columns += [term, flat[:, j]]
    return np.stack(columns, 1)


def _terms(theta_sp: Array, x_nk: Array, has_floor: bool) -> Array:
    """Return the logarithms of the floor and of the terms: [s, n, 1 + k]."""
    first = int(has_floor)
    a, alpha = theta_sp[:, first::2], theta_sp[:, first + 1 :: 2]
    terms = a[:, None] - alpha[:, None] * x_nk
    if not has_floor:
        return terms
    floor = np.broadcast_to(theta_sp[:, None, :1], (*terms.shape[:2], 1))
    return np.concatenate([floor, terms], 2)


def _log_loss(theta_sp: Array, x_nk: Array, has_floor: bool) -> Array:
    return np.logaddexp.reduce(_terms(theta_sp, x_nk, has_floor), axis=2)


def _least(starts: Array, x: Array, y: Array, has_floor: bool) -> Array:
    ends, errors = _descend(starts, x, np.repeat(y, len(starts), 0), has_floor)
    return ends[np.argmin(errors)]


def _descend(theta_sp: Array, x_nk: Array, y_sn: Array, has_floor: bool) -> tuple[Array, Array]:
    """Levenberg-Marquardt for many problems at once: what each comes to, and its sum of squares."""
    damping = np.full(len(theta_sp), 1e-2)
    error = ((_log_loss(theta_sp, x_nk, has_floor) - y_sn) ** 2).sum(1)
    for _ in range(ITERATIONS):
        terms = _terms(theta_sp, x_nk, has_floor)
        log_loss = np.logaddexp.reduce(terms, axis=2)
        jacobian = _jacobian(np.exp(terms - log_loss[..., None]), x_nk, has_floor)
        gradient = np.einsum("snp,sn->sp", jacobian, log_loss - y_sn)
        curvature = np.einsum("snp,snq->spq", jacobian, jacobian)
        diagonal = np.einsum("spp->sp", curvature) + 1e-12
        damped = curvature + np.einsum("s,sp,pq->spq", damping, diagonal, np.eye(theta_sp.shape[1]))
        step = np.linalg.solve(damped + 1e-14 * np.eye(theta_sp.shape[1]), gradient[..., None])[..., 0]
        tried = theta_sp - np.clip(step, -2.0, 2.0)
        new = ((_log_loss(tried, x_nk, has_floor) - y_sn) ** 2).sum(1)
        better = new < error
        theta_sp, error = np.where(better[:, None], tried, theta_sp), np.where(better, new, error)
        damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-9, 1e9)
    return theta_sp, error


def _jacobian(share_snt: Array, x_nk: Array, has_floor: bool) -> Array:
    """Return d log L / d theta, `share` being how much of the loss each term is."""
    first = int(has_floor)
    columns = [share_snt[..., 0]] if has_floor else []
    for j in range(x_nk.shape[1]):
        mine = share_snt[..., first + j]
        columns += [mine, -mine * x_nk[:, j]]
    return np.stack(columns, 2)


def _range(value: float, refits: Array) -> Range:
    low, high = np.quantile(refits, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Range(float(value), float(low), float(high))
