"""What is unusual is said, and effective speed-up is what its definition says."""

import dataclasses
import math

import pytest

from kinfolk.contests.evidence import Branch, RateCurve
from kinfolk.contests.flags import epochs, flags
from kinfolk.contests.outcome import CRASHED, DIVERGED, Outcome
from kinfolk.contests.results import ResultRow
from kinfolk.contests.speedup import BaselineLaw, finished, law_of, speedup
from tests.contests.made_up import outcome

M = "next-token"


def test_endings_and_the_clock() -> None:
    trials = (
        Outcome(name="a", seed=0, status=DIVERGED),
        Outcome(name="a", seed=1, status=CRASHED),
        outcome("a", 2, {M: [3.0, 2.0]}, planned_steps=9),
    )
    assert flags("a", M, {"a": trials}, None) == [
        "diverged (1 of 3 trials)",
        "crashed (1 of 3 trials)",
        "cut short by the clock (1 of 3 trials)",
    ]


def test_a_validation_that_turned_up() -> None:
    trials = (outcome("a", 0, {M: [3.0, 2.0, 2.5]}), outcome("a", 1, {M: [3.0, 2.0, 2.001]}))
    assert flags("a", M, {"a": trials}, None) == ["validation turned up (1 of 2 trials): it may have overfitted"]
    high = (outcome("a", 0, {"accuracy": [0.2, 0.9, 0.6]}),)
    assert flags("a", "accuracy", {"a": high}, None)[0].startswith("validation turned up")


def test_ahead_early_and_behind_at_the_end() -> None:
    quick = tuple(outcome("quick", s, {M: [2.0 + s, 1.9 + s]}) for s in (0, 1))
    slow = tuple(outcome("slow", s, {M: [3.0 + s, 1.5 + s]}) for s in (0, 1))
    both = {"quick": quick, "slow": slow}
    assert flags("quick", M, both, None) == ["ahead of slow at 0.125 of the steps and behind at the end"]
    assert flags("slow", M, both, None) == []
    # one seed that says otherwise, and nothing is said
    mixed = both | {"slow": (slow[0], outcome("slow", 1, {M: [2.0, 2.5]}))}
    assert flags("quick", M, mixed, None) == []


def test_a_rate_at_the_edge() -> None:
    curve = RateCurve(measure=M, own=1.0, chosen=9.0, tried=(), edge="highest")
    assert flags("a", M, {}, curve) == ["its best rate is the highest that was tried"]


def test_a_search_that_ended_with_a_worse_rate_is_said() -> None:
    chosen = [outcome("a", seed, {M: [3.0, 2.5 + seed / 10]}) for seed in range(3)]
    own = [outcome("a", seed, {M: [3.0, 2.4 + seed / 10]}) for seed in range(2)]
    said = ["better at its recipe's own rate, under every seed, than at the one that was chosen"]
    assert flags("a", M, {"a": chosen}, None, as_is=own) == said
    # the same trials, one seed, or one that disagrees say nothing
    other = outcome("a", 1, {M: [3.0, 2.7]})
    for as_is in (chosen, own[:1], [own[0], other]):
        assert flags("a", M, {"a": chosen}, None, as_is=as_is) == []
    right = {"accuracy": [0.1, 0.5]}, {"accuracy": [0.1, 0.4]}
    first, second = ([outcome("a", seed, scores) for seed in range(2)] for scores in right)
    assert flags("a", "accuracy", {"a": second}, None, as_is=first) == said
    assert flags("a", "accuracy", {"a": first}, None, as_is=second) == []


def test_epochs() -> None:
    assert epochs([outcome("a", 0, {M: [1.0, 1.0]})], 50) == 4
    assert epochs([], 50) is None


def row(name: str, final: float, speed: float, **more: object) -> ResultRow:
    known = ResultRow(name=name, params=1, flops_per_token=1.0, measure=M, final=final, tokens_per_second=speed)
    return dataclasses.replace(known, **more)  # type: ignore[arg-type]


def test_a_law_of_four_shares_is_recovered() -> None:
    shares = (0.125, 0.25, 0.5, 1.0)
    law = law_of({c: 1.5 + 0.5 * c**-0.4 for c in shares})
    assert law is not None
    assert (law.floor, law.scale, law.exponent) == (
        pytest.approx(1.5, rel=0.01),
        pytest.approx(0.5, rel=0.03),
        pytest.approx(0.4, rel=0.03),
    )
    # the loss that the baseline would have with twice the budget is worth twice the budget
    assert law.ratio(1.5 + 0.5 * 2**-0.4) == pytest.approx(2, rel=0.03)
    assert law.ratio(1.4) is None


def test_two_shares_are_a_line_in_logarithms() -> None:
    law = law_of({0.5: 2 * 2**0.1, 1.0: 2.0})
    assert law == BaselineLaw(0.0, 2.0, pytest.approx(0.1), 2)  # type: ignore[arg-type]
    assert law_of({0.5: 1.9, 1.0: 2.0}) is None
    assert law_of({1.0: 2.0}) is None


def test_speed_up_is_the_compute_ratio_times_the_ratio_of_speeds() -> None:
    law = BaselineLaw(0.0, 2.0, 0.1, 2)
    base = row("base", 2.0, 100.0)
    better = row("better", 2 * 2**-0.1, 50.0, difference=-0.1, low=-0.15, high=-0.05, p=0.01)
    found = speedup(better, base, law)
    assert found is not None
    # as good as twice the compute, at half of the speed
    assert found.compute_ratio == pytest.approx(2)
    assert found.value == pytest.approx(1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < found.high
    own = speedup(base, base, law)
    assert own is not None
    assert (own.value, own.low, own.high) == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
    assert speedup(row("x", 2.0, 0.0), base, law) is None
    # an interval with retrials has two sides of its own
    worse = row("worse", 2.2, 100.0, difference=0.2, low=0.0, high=0.3, p=0.04)
    skewed = speedup(worse, base, law)
    assert skewed is not None
    assert (skewed.high, skewed.low) == (pytest.approx(1.0), pytest.approx((2.3 / 2) ** -10))
    best = speedup(row("best", 1.9, 100.0), row("base", 2.0, 100.0, difference=0.1, low=0.05, high=0.3, p=0.01), law)
    assert best is not None
    assert (best.low, best.high) == (pytest.approx((1.95 / 2) ** -10), pytest.approx((1.7 / 2) ** -10))
    assert (
        speedup(dataclasses.replace(better, measure="accuracy"), dataclasses.replace(base, measure="accuracy"), law)
        is None
    )


def test_branches_are_what_a_law_is_fitted_to() -> None:
    branches = tuple(
        Branch(share=c, tokens=c, flops=c, losses={}, mean=None if c == 0.25 else 2 + math.log(1 / c))
        for c in (0.25, 0.5, 1)
    )
    assert finished(row("a", 2.0, 1.0, branches=branches)) == {0.5: 2 + math.log(2), 1: 2.0}
