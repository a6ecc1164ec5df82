"""Ranks and marks, against published values, scipy, and simulation."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.compare.statistics import ALIKE, NO_TEST, WORSE, holm, rank, spread, student, welch

finite = st.floats(-1e3, 1e3)


@pytest.mark.parametrize(
    ("degrees", "t"),
    # the two-sided 5 % points of Student's t as every textbook prints them
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_student_agrees_with_the_printed_table(degrees: float, t: float) -> None:
    assert student(t, degrees) == pytest.approx(0.05, abs=5e-5)


def test_student_at_the_edges() -> None:
    assert student(0, 3) == 1
    assert student(math.inf, 3) == 0
    # one degree of freedom is the Cauchy distribution, which has a closed form
    assert student(2.5, 1) == pytest.approx(1 - 2 * math.atan(2.5) / math.pi, abs=1e-13)


@given(t=st.floats(0, 50), degrees=st.floats(0.7, 400))
@settings(max_examples=100, deadline=None)
def test_student_agrees_with_scipy(t: float, degrees: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    # near t = 0 it is scipy that loses digits
    assert student(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-7, abs=1e-14)


@given(a=st.lists(finite, min_size=2, max_size=6), b=st.lists(finite, min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_welch_agrees_with_scipy(a: list[float], b: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    if min(spread(a) or 0, spread(b) or 0) < 1e-3:
        return  # scipy warns about cancellation there
    ours = welch(a, b)
    assert ours == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-6, abs=1e-12)
    assert ours == welch(b, a)


def test_welch_without_spread_or_without_enough_values() -> None:
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0
    assert welch([1.0], [2.0, 3.0]) is None


def test_holm_by_hand() -> None:
    # 0.01 * 3, then 0.02 * 2 = 0.04, then 0.03 * 1 is lifted to 0.04
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, None, 0.8]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_rank_marks_a_clear_loser_and_leaves_a_near_one_alone() -> None:
    places = rank({"far": [5.0, 5.1, 4.9], "near": [1.02, 1.11, 0.95], "best": [1.0, 1.1, 0.9]})
    assert [(p.name, p.rank, p.mark) for p in places] == [("best", 1, NO_TEST), ("near", 2, ALIKE), ("far", 3, WORSE)]
    assert places[0].p is None
    assert places[0].spread == pytest.approx(0.1)


def test_one_seed_has_no_mark() -> None:
    places = rank({"a": [1.0], "b": [9.0]})
    assert [(p.rank, p.mark, p.spread, p.p) for p in places] == [(1, NO_TEST, None, None), (2, NO_TEST, None, None)]


def test_equal_means_share_a_rank_and_those_without_scores_have_none() -> None:
    places = rank({"a": [1.0, 2.0], "b": [2.0, 1.0], "c": [3.0, 3.5], "failed": []})
    assert [(p.name, p.rank) for p in places] == [("a", 1), ("b", 1), ("c", 3)]
    assert rank({}) == []


def test_false_marks_stay_near_the_promised_level() -> None:
    # five equal contestants, three seeds each: how often is anyone marked as worse?
    draw = random.Random(0)
    trials = 400
    marked = sum(
        any(p.mark == WORSE for p in rank({str(c): [draw.gauss(0, 1) for _ in range(3)] for c in range(5)}))
        for _ in range(trials)
    )
    # picking the best first costs a little, so a little more than 5 % is allowed, and no more
    assert marked / trials < 0.12
