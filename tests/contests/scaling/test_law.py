"""Planted laws come back, refits cover them, and the fit is the least-squares fit of code that is not ours."""

import math

import numpy as np
import pytest

from kinfolk.contests.scaling.law import Law, Measured, fit
from kinfolk.core.errors import DataError

SIZES, AMOUNTS = (1e4, 3e4, 1e5, 3e5, 1e6), (2e5, 5e5, 1e6, 2e6)


def planted(n, d, floor=1.2, a=40.0, alpha=0.35, b=300.0, beta=0.4):
    return floor + a / n**alpha + b / d**beta


def measured(noise=0.0, seed=0, amounts=AMOUNTS, **numbers):
    draw = np.random.default_rng(seed)
    return [
        Measured(n, d, planted(n, d, **numbers) * math.exp(noise * draw.standard_normal()))
        for n in SIZES
        for d in amounts
    ]


def test_a_planted_law_comes_back_exactly():
    law = fit(measured())
    assert law.variables == ("params", "tokens")
    assert law.residual < 1e-8
    assert law.floor.value == pytest.approx(1.2, rel=1e-4)
    assert law.exponent("params").value == pytest.approx(0.35, rel=1e-4)
    assert law.exponent("tokens").value == pytest.approx(0.4, rel=1e-4)
    assert law.coefficient("params") == pytest.approx(40, rel=1e-3)
    assert law.coefficient("tokens") == pytest.approx(300, rel=1e-3)
    assert law.at(params=1e8, tokens=1e9).value == pytest.approx(planted(1e8, 1e9), rel=1e-4)


def test_where_data_does_not_change_only_size_counts():
    law = fit(measured(amounts=(1e6,), b=0.0))
    assert law.variables == ("params",)
    assert law.exponent("params").value == pytest.approx(0.35, rel=1e-3)
    assert law.at(params=1e7).value == pytest.approx(1.2 + 40 / 1e7**0.35, rel=1e-3)


def test_few_sizes_are_fitted_without_a_floor():
    points = [Measured(n, 1e6, 50 / n**0.3) for n in SIZES[:3]]
    law = fit(points)
    assert not law.has_floor
    assert law.floor.value == 0
    assert law.exponent("params").value == pytest.approx(0.3, rel=1e-6)


def test_is_the_least_squares_fit_of_scipy():
    optimize = pytest.importorskip("scipy.optimize", reason="needs the extra that brings scipy")
    points = measured(noise=0.01, amounts=(1e6,), b=0.0)
    law = fit(points)

    def log_loss(x, e, a, alpha):
        return np.logaddexp(e, a - alpha * x)

    x = np.log([p.params for p in points])
    y = np.log([p.loss for p in points])
    theirs, _ = optimize.curve_fit(log_loss, x, y, p0=[0.0, 3.0, 0.3], maxfev=20_000)
    assert law.floor.value == pytest.approx(math.exp(theirs[0]), rel=1e-3)
    assert law.exponent("params").value == pytest.approx(theirs[2], rel=1e-3)


@pytest.mark.long
def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = {"alpha": 0, "ahead": 0}
    trials = 40
    for seed in range(trials):
        law = fit(measured(noise=0.01, seed=seed), seed=seed)
        alpha, ahead = law.exponent("params"), law.at(params=1e7, tokens=2e7)
        held["alpha"] += alpha.low <= 0.35 <= alpha.high
        held["ahead"] += ahead.low <= planted(1e7, 2e7) <= ahead.high
    # 38 of 40 are expected; below 32 has a chance of less than one in a thousand if intervals are right
    assert min(held.values()) >= 32
    assert law.exponent("params").high - law.exponent("params").low > 0.005


def test_the_best_size_is_the_best_of_all_for_so_many_operations():
    law = fit(measured())
    n, d = law.best_size(1e15)
    assert 6 * n * d == pytest.approx(1e15)
    best = law.at(params=n, tokens=d).value
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert law.at(params=n * factor, tokens=d / factor).value > best


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_models_are_refused(n):
    with pytest.raises(DataError, match="needs at least"):
        fit([Measured(10.0**i, 1e6, 2.0 / (i + 1)) for i in range(n)])


def test_what_is_no_loss_is_refused():
    with pytest.raises(DataError, match="finite"):
        fit([Measured(10.0**i, 1e6, math.nan) for i in range(5)])


def test_no_best_size_without_both_variables():
    law = fit(measured(amounts=(1e6,), b=0.0))
    with pytest.raises(DataError, match="needs a law of both"):
        law.best_size(1e15)


def test_plain_data_says_everything():
    found = fit(measured()).plain()
    assert set(found["terms"]) == {"params", "tokens"}
    assert found["points"] == 20
    assert isinstance(fit(measured()), Law)
