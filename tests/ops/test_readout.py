"""Pooling of whole sequences, held to the loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.ops import pooled_vector as readout
from kinfolk.ops.naive import pooled_vector as naive


@given(pool=st.sampled_from(readout.POOLS), length=st.sampled_from([1, 2, 5, 7]), seed=st.integers(0, 99))
def test_equals_the_loop_with_all_gradients(pool, length, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(3, length, 4, dtype=torch.float64, generator=draw, requires_grad=True)
    keep = torch.rand(3, length, generator=draw) < 0.6 if seed % 4 else None
    upstream = torch.randn(3, 4, dtype=torch.float64, generator=draw)
    out, expected = readout.readout(x, keep, pool), naive.readout(x, keep, pool)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    (grad,) = torch.autograd.grad((out * upstream).sum(), x)
    (expected_grad,) = torch.autograd.grad((expected * upstream).sum(), x)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pool", readout.POOLS)
def test_padding_may_hold_anything(pool):
    x = torch.randn(2, 5, 3)
    keep = torch.tensor([[True] * 5, [True, True, False, False, False]])
    clean = readout.readout(x, keep, pool)
    x[1, 2:] = torch.nan
    assert torch.equal(readout.readout(x, keep, pool), clean)
    assert torch.equal(clean[1], readout.readout(x[1:, :2], None, pool)[0])
