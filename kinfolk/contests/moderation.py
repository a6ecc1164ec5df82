"""Moderated variances: spreads of several contestants shrunk towards each other (Smyth 2004, limma's squeezeVar).

Few seeds say little about one contestant's spread, and all contestants together say a lot about what spreads are like.
With $s_i^2$ on $d$ degrees of freedom and a prior $1/\\sigma_i^2 \\sim \\chi^2_{d_0} / (d_0 s_0^2)$, the posterior
mean of the precision gives

    s~_i^2 = (d_0 s_0^2 + d s_i^2) / (d_0 + d)                                  Smyth 2004, section 5

and $d_0$, $s_0$ come from the mean and the variance of $\\log s_i^2$ (section 6.2). All functions work on whole
arrays: a simulation of thousands of comparisons is one call.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STRONGEST = 1e6
"""The prior's degrees of freedom where spreads do not differ more than chance makes them."""


def squeeze(variance: Floats, degrees: float) -> tuple[Floats, Floats]:
    """Return moderated variances along the last axis, and the prior's degrees of freedom; fewer than 3 stay as they
    are.

    Zero variances (equal scores) are raised to a millionth of the mean first: their logarithm must exist.
    """
    if variance.shape[-1] < 3:
        return variance, np.zeros(variance.shape[:-1])
    floor = 1e-6 * variance.mean(-1, keepdims=True) + 1e-300
    log = np.log(np.maximum(variance, floor)) - digamma(degrees / 2) + np.log(degrees / 2)
    middle, scatter = log.mean(-1), log.var(-1, ddof=1) - trigamma(degrees / 2)
    differs = scatter > 0
    prior = np.where(differs, 2 * trigamma_inverse(np.where(differs, scatter, 1.0)), STRONGEST)
    location = np.exp(middle + digamma(prior / 2) - np.log(prior / 2))
    weight = (prior / (prior + degrees))[..., None]
    return weight * location[..., None] + (1 - weight) * variance, prior


def digamma(x: Floats | float) -> Floats:
    """Return the derivative of log-gamma for positive arguments: recurrence up to 8, then DLMF 5.11.2."""
    x, total = _raised(x, 1)
    y = 1 / x**2
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132)))))
    return np.log(x) - total - 0.5 / x - series


def trigamma(x: Floats | float) -> Floats:
    """Return the second derivative of log-gamma for positive arguments: recurrence up to 8, then DLMF 5.15.9."""
    x, total = _raised(x, 2)
    y = 1 / x**2
    return total + 1 / x + y / 2 + y / x * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * (5 / 66)))))


def _raised(x: Floats | float, power: int) -> tuple[Floats, Floats]:
    """Return arguments raised to 8 by steps of 1, and the sum of x^-power over the steps."""
    x = np.array(x, dtype=np.float64)
    total = np.zeros_like(x)
    for _ in range(8):
        small = x < 8
        total += np.where(small, 1 / x**power, 0.0)
        x = np.where(small, x + 1, x)
    return x, total


def trigamma_inverse(value: Floats) -> Floats:
    """Solve trigamma(x) = value by Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    value = np.clip(np.asarray(value, dtype=np.float64), 1e-7, 1e7)
    x = 0.5 + 1 / value
    for _ in range(60):
        here = trigamma(x)
        # the slope of trigamma by a central difference: its own series would be a third function for one use
        width = 1e-4 * x
        slope = (trigamma(x + width) - trigamma(x - width)) / (2 * width)
        step = here * (1 - here / value) / slope
        x = np.maximum(x + step, 1e-9)
        if np.all(np.abs(step) < 1e-9 * x):
            break
    return x
