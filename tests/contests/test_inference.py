"""Verdicts from paired seeds: against scipy, published tables, and simulated comparisons of equals."""

import math
import runpy
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from kinfolk.contests import inference
from kinfolk.contests.inference import BEST, BETTER, OPEN, WORSE, critical, estimate, judge
from kinfolk.contests.moderation import digamma, squeeze, trigamma, trigamma_inverse


def test_gamma_functions_agree_with_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    x = np.array([0.05, 0.5, 1.0, 2.5, 7.0, 50.0, 1e5])
    np.testing.assert_allclose(digamma(x), special.digamma(x), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(trigamma(x), special.polygamma(1, x), rtol=1e-10)
    np.testing.assert_allclose(trigamma_inverse(special.polygamma(1, x[:-1])), x[:-1], rtol=1e-8)


def test_squeezed_variances_by_the_paper() -> None:
    """Variances drawn from the prior of Smyth 2004: its hyperparameters are found again, and the posterior follows."""
    rng = np.random.default_rng(0)
    prior, scale, degrees, many = 6.0, 2.0, 4, 200_000
    sigma2 = prior * scale / rng.chisquare(prior, many)
    s2 = sigma2 * rng.chisquare(degrees, many) / degrees
    moderated, found = squeeze(s2, degrees)
    assert float(found) == pytest.approx(prior, rel=0.05)
    expected = (prior * scale + degrees * s2) / (prior + degrees)
    np.testing.assert_allclose(moderated, expected, rtol=0.05)
    # spreads that differ no more than chance makes them become one
    same, strength = squeeze(np.array([1.0, 1.01, 0.99, 1.0]), 4)
    assert float(strength) > 1e5
    assert np.ptp(same) < 1e-3


def test_two_contestants_are_the_paired_t_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for n in (3, 5, 8):
        shared = 3 * rng.standard_normal(n)
        a, b = shared + rng.standard_normal(n), shared + rng.standard_normal(n) + 0.5
        t = estimate(np.stack([a, b])).statistic(None).item()
        assert t == pytest.approx(abs(stats.ttest_rel(a, b).statistic), rel=1e-9)
        # the simulated critical value, at the share of the level that is spent
        exact = stats.t.ppf(1 - inference.MARGIN * inference.LEVEL / 2, n - 1)
        assert critical(2, (n,))[0] == pytest.approx(exact, rel=0.04)


@pytest.mark.parametrize(("k", "seeds"), [(3, 400), (6, 400), (10, 400)])
def test_with_many_seeds_critical_values_are_those_of_tukey_and_dunnett(k: int, seeds: int, monkeypatch) -> None:
    """With equal and well-known spreads the largest |t| is the studentized range over sqrt 2, or Dunnett's maximum."""
    stats = pytest.importorskip("scipy.stats")
    monkeypatch.setattr(inference, "SAMPLES", 3000)
    largest = inference.null.__wrapped__(k, (seeds,))[:, 0]
    tukey = stats.studentized_range.ppf(0.95, k, (k - 1) * (seeds - 1)) / math.sqrt(2)
    assert np.quantile(largest, 0.95) == pytest.approx(tukey, rel=0.03)
    paired = inference.null.__wrapped__(k, (seeds,), paired=True)[:, 0]
    rng = np.random.default_rng(3)
    free = rng.standard_normal((40_000, k))
    dunnett = np.quantile(np.abs(free[:, 1:] - free[:, :1]).max(1) / math.sqrt(2), 0.95)
    assert np.quantile(paired, 0.95) == pytest.approx(dunnett, rel=0.03)


def false_share(k: int, n: int, scatter: float, looks: tuple[int, ...] = (), reps: int = 2000) -> float:
    """How often any two of `k` equal contestants are told apart at any look; seeds share 0.8 of their variance."""
    rng = np.random.default_rng([k, n, int(10 * scatter)])
    looks = looks or (n,)
    sigma = np.exp(scatter * rng.standard_normal((reps, k, 1)))
    score = sigma * rng.standard_normal((reps, k, looks[-1])) + 2 * rng.standard_normal((reps, 1, looks[-1]))
    bounds = critical(k, looks)
    found = [estimate(score[..., :m]).statistic(None).max(-1) > bound for m, bound in zip(looks, bounds, strict=True)]
    return float(np.any(found, axis=0).mean())


# three standard errors of 2,000 comparisons above 5 %
ALLOWED = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("scatter", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(("k", "n"), [(2, 3), (5, 3), (5, 5), (10, 5), (20, 5), (10, 8)])
def test_equals_are_told_apart_in_at_most_five_percent(k: int, n: int, scatter: float) -> None:
    assert false_share(k, n, scatter) <= ALLOWED


def test_repeated_looks_keep_the_level() -> None:
    assert false_share(5, 5, 0.6, looks=(5, 7, 9, 11)) <= ALLOWED
    # each look alone would have a smaller bound: looking four times is paid for
    assert critical(5, (5, 7, 9, 11))[0] > critical(5, (5,))[0]


def test_a_gap_of_four_standard_deviations_is_found() -> None:
    """Welch's test with Holm's correction finds 0.28 of these (10 contestants, 5 seeds)."""
    rng = np.random.default_rng(5)
    reps, k, n = 1000, 10, 5
    sigma = np.exp(0.6 * rng.standard_normal((reps, k, 1)))
    score = sigma * rng.standard_normal((reps, k, n)) + 2 * rng.standard_normal((reps, 1, n))
    score[:, 1:] += 4
    fit = estimate(score)
    error = fit.variance / fit.count
    best = fit.mean.argmin(1)[:, None]
    gap = fit.mean - np.take_along_axis(fit.mean, best, 1)
    t = gap / np.sqrt(error + np.take_along_axis(error, best, 1))
    found = np.where(best == 0, t[:, 1:] > critical(k, (n,))[0], False)
    assert found.mean() > 0.6


def test_a_verdict_in_words() -> None:
    seeds = np.array([0.0, 0.5, -0.3, 0.2, 0.1])
    jitter = np.array([[1, -2, 1, 0, 0], [0, 1, -1, 1, -1], [-1, 0, 1, -1, 1]]) * 0.01
    scores = {
        "far": list(3 + seeds + jitter[0]),
        "near": list(1.001 + seeds + jitter[1]),
        "best": list(1 + seeds + jitter[2]),
    }
    best, near, far = judge(scores)
    assert [(s.name, s.rank, s.verdict) for s in (best, near, far)] == [
        ("best", 1, BEST),
        ("near", 2, OPEN),
        ("far", 3, WORSE),
    ]
    assert far.low is not None
    assert far.low < 2 < (far.high or 0)
    assert far.low > 1.9
    assert best.p is None
    assert (near.p or 0) > 0.05 > (far.p or 1)
    assert sum(s.chance or 0 for s in (best, near, far)) == pytest.approx(1)
    # the other way round, and against a named baseline
    assert judge(scores, higher=True)[0].name == "far"
    against = {s.name: s.verdict for s in judge(scores, against="far")}
    assert against == {"best": BETTER, "near": BETTER, "far": ""}


def test_missing_trials_and_single_seeds() -> None:
    nan = math.nan
    noise = np.random.default_rng(2).standard_normal((4, 5)) * 0.01
    blocks = np.array([0, 4, -2, 1, 9.0])
    scores = {str(i): list(row + blocks) for i, row in enumerate(noise)}
    # the seed with the largest losses is missing: without blocks this would look like a much better contestant
    scores["3"][4] = nan
    scores["once"] = [0.0, nan, nan, nan, nan]
    scores["never"] = [nan] * 5
    standings = {s.name: s for s in judge(scores)}
    assert set(standings) == {"0", "1", "2", "3", "once"}
    assert standings["3"].seeds == 4
    assert {standings[name].verdict for name in "0123"} <= {BEST, OPEN}
    assert (standings["once"].verdict, standings["once"].p, standings["once"].spread) == ("", None, None)
    assert judge({}) == []
    alone = judge({"a": [1.0], "b": [9.0]})
    assert [(s.name, s.rank, s.verdict) for s in alone] == [("a", 1, ""), ("b", 2, "")]


def test_equal_scores_are_not_told_apart() -> None:
    standings = judge({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0], "c": [1.0, 2.0, 3.0]})
    assert [s.rank for s in standings] == [1, 1, 1]
    assert {s.verdict for s in standings} == {BEST, OPEN}


def test_contestants_without_a_test_correct_nothing() -> None:
    """Those of whom too few trials ended are not among those that intervals and p-values are corrected for."""
    scores = {"a": [1.0, 1.1, 0.9], "b": [1.2, 1.4, 1.1], "c": [1.5, 1.3, 1.6]}
    alone = {row.name: row for row in judge(scores)}
    crowded = {row.name: row for row in judge(scores | {f"x{i}": [2.0, math.nan, math.nan] for i in range(5)})}
    assert {name: crowded[name] for name in alone} == alone
    assert all(crowded[f"x{i}"].p is None for i in range(5))


def test_quantiles_of_t_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 4, 7, 30):
        for p in (0.6, 0.9, 0.975, 0.999):
            assert inference.t_quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees), rel=1e-5)


def test_what_a_look_excluded_stays_excluded() -> None:
    """A contestant that was told apart gets no further seeds; the interval of its look is not widened by later ones."""
    rng = np.random.default_rng(8)
    table = 0.01 * rng.standard_normal((3, 9)) + rng.standard_normal(9)
    table[1] += 0.002
    table[2] += 0.5
    looks = (5, 7, 9)
    first = {s.name: s for s in judge({str(i): list(table[i, :5]) for i in range(3)}, looks=looks)}
    assert first["2"].verdict == WORSE
    late = table.copy()
    late[2, 5:] = math.nan
    last = {s.name: s for s in judge({str(i): list(late[i]) for i in range(3)}, looks=looks)}
    assert last["2"].verdict == WORSE
    assert (last["2"].low or 0) > 0
    assert (last["1"].high or 0) - (last["1"].low or 0) < (first["1"].high or 0) - (first["1"].low or 0)


@pytest.mark.long
@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("k", [2, 5, 10, 20])
def test_ten_thousand_comparisons_of_equals(k: int, n: int) -> None:
    assert false_share(k, n, 0.6, reps=10_000) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 10_000)


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 5, 10, 20])
def test_ten_thousand_races_of_equals(k: int) -> None:
    """Looks at 5, 7, 9 and 11 seeds, where only undecided contestants and the best go on."""
    study = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "studies" / "verdict.py"))
    share = study["racing"](np.random.default_rng([15, k]), 10_000, k, (5, 7, 9, 11))
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 10_000)


def test_the_simulation_takes_no_more_memory_for_more_seeds() -> None:
    whole = inference.null(3, (3, 5), scatter=0.6, at_once=1 << 40)
    assert np.array_equal(whole, inference.null(3, (3, 5), scatter=0.6, at_once=1000))
    tracemalloc.start()
    inference.null(2, (400,))  # 105 MB of scores
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20
