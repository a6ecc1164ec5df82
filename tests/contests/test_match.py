"""Widths are found that come nearest, in steps that heads and vector units allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.contests.match import difference, near, nearest_width, unit_of
from kinfolk.contests.settings import Settings
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec


@given(target=st.floats(1, 1e8), unit=st.integers(1, 64), a=st.floats(0.1, 20), b=st.floats(0, 1e4))
def test_no_other_width_is_nearer(target: float, unit: int, a: float, b: float) -> None:
    def value_of(width: int) -> float:
        return a * width**2 + b * width

    found = nearest_width(value_of, target, unit)
    assert found % unit == 0
    assert found >= unit
    rivals = (found - unit, found + unit)
    assert all(abs(value_of(found) - target) <= abs(value_of(w) - target) for w in rivals if w >= unit)


def test_a_target_out_of_reach_ends_the_search() -> None:
    assert nearest_width(lambda width: 0.0, 1e9, 8) >= 8
    assert nearest_width(lambda width: 1e12, 1e9, 8) == 8


class _Heads(Spec):
    n_heads: int


class _Layers(Spec):
    parts: tuple[_Heads, ...]
    bridge: _Heads | None = None


def test_a_unit_suits_every_head_of_a_spec() -> None:
    assert unit_of(_Layers(parts=())) == 8
    assert unit_of(_Layers(parts=(_Heads(n_heads=4),))) == 8
    assert unit_of(_Layers(parts=(_Heads(n_heads=4), _Heads(n_heads=6)), bridge=_Heads(n_heads=8))) == 48


def test_a_match_stays_near_what_is_usual() -> None:
    assert [near(width, 100, 8) for width in (8, 90, 100, 112, 400)] == [84, 90, 100, 112, 116]
    assert near(8, 16, 8) == 16


def test_what_is_said() -> None:
    assert difference(103, 100) == "+3.0 %"
    assert difference(99, 100) == "-1.0 %"
    assert Settings(match="params").matching == "params"
    with pytest.raises(SpecError, match="did you mean 'params'"):
        Settings(match="param")
