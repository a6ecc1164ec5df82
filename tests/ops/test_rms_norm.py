import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.ops import rms_norm as fast
from kinfolk.ops.naive import rms_norm as slow


def leaves(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(shape[-1], generator=g, dtype=torch.float64, requires_grad=True)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 11), st.integers(1, 11))
@example(1, 1, 1, 1)
@example(2, 3, 7, 2)
def test_equals_naive(batch, length, width, n_seen):
    x, gain = leaves(batch, length, width)
    n_seen = min(n_seen, width)
    ours, theirs = (op.rms_norm(x, gain, n_seen, 1e-3) for op in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(fast.rms_norm(x, gain, n_seen, 1e-3), ours)
    weight = torch.randn(ours.shape, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad((y * weight).sum(), (x, gain)) for y in (ours, theirs)), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_only_the_input_and_one_number_for_each_position_are_kept():
    kept = {}
    x, gain = (t.float().detach().requires_grad_() for t in leaves(2, 3, 50))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.update({t.data_ptr(): t.shape}) or t, lambda t: t):
        fast.rms_norm(x, gain, 50, 1e-6)
    assert sorted(map(tuple, kept.values())) == [(2, 3, 1), (2, 3, 50), (50,)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_summed_in_32(dtype):
    # 300 squares of 30 pass the largest number of float16
    x = torch.full((1, 1, 300), 30.0, dtype=dtype)
    torch.testing.assert_close(fast.rms_norm(x, torch.ones(300, dtype=dtype), 300, 1e-6), torch.ones_like(x))
