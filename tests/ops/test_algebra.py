"""How patterns combine: unions, differences, sheets, and one pattern per head."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.core.errors import SpecError
from kinfolk.ops.patterns.algebra import Except, PerHead
from kinfolk.ops.patterns.leaves import Causal, Full, Strided, Window
from tests.ops.test_pattern import PATTERNS, mask


@given(pattern=PATTERNS, n=st.integers(1, 30), start=st.integers(0, 9))
def test_sheets_are_disjoint_and_their_union_is_the_pattern(pattern, n, start):
    masks = torch.stack([mask(sheet, n, n, start) for sheet in pattern.sheets()])
    assert torch.equal(masks.sum(0) > 0, mask(pattern, n, n, start))
    assert int(masks.sum(0).max()) <= 1
    distance = start + torch.arange(n)[:, None] - torch.arange(n)
    for sheet, allowed in zip(pattern.sheets(), masks, strict=True):
        assert not (allowed & (distance % sheet.fold != 0)).any()


def test_a_union_of_two_orders_has_a_sheet_for_each():
    union = Causal() & (Window(left=3) | Strided(stride=4))
    assert [sheet.fold for sheet in union.sheets()] == [1, 4]
    assert (Window(left=3) | Window(left=5)).sheets() == (Window(left=3) | Window(left=5),)


@given(a=PATTERNS, b=PATTERNS)
def test_a_difference_is_what_one_allows_and_the_other_does_not(a, b):
    assert torch.equal(mask(Except(a=a, b=b), 17), mask(a, 17) & ~mask(b, 17))


def test_a_per_head_pattern_must_divide_the_heads():
    with pytest.raises(SpecError, match="2 patterns do not divide 3 heads"):
        PerHead(patterns=(Full(), Causal())).by_head(3)
