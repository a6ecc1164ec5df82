"""`ops.compress` against its naive reference in float64, outputs and gradients, and against PyTorch's convolution."""

import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops import compressed_keys as fast
from kinfolk.ops.naive import compressed_keys as slow


def draw(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)


def assert_same(name, leaves, *args):
    ours, theirs = getattr(fast, name)(*leaves, *args), getattr(slow, name)(*leaves, *args)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weight = draw(*theirs.shape, seed=7).detach()
    for a, b in zip(*(torch.autograd.grad((out * weight).sum(), leaves) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 11),
    spare=st.integers(0, 3),
    rank=st.integers(1, 7),
    padded=st.booleans(),
)
@example(batch=2, heads=1, length=1, spare=0, rank=1, padded=True)
def test_maps_over_positions_equal_naive(batch, heads, length, spare, rank, padded):
    keep = draw(batch, length) > 0 if padded else None
    assert_same("compress_positions", [draw(batch, heads, length, 4), draw(heads, rank, length + spare)], keep)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    length=st.integers(1, 11),
    taps=st.integers(1, 4),
    bias=st.booleans(),
)
@example(batch=1, heads=2, length=2, taps=3, bias=True)  # no window is full
@example(batch=2, heads=2, length=11, taps=3, bias=True)
def test_windows_equal_naive(batch, heads, length, taps, bias):
    leaves = [draw(batch, heads, length, 3), draw(heads, 3, taps, 3), *([draw(heads, 3)] if bias else [])]
    if length < taps and bias:
        assert fast.compress_windows(*leaves).shape == slow.compress_windows(*leaves).shape == (batch, heads, 0, 3)
    else:
        assert_same("compress_windows", leaves)


def test_windows_are_pytorchs_strided_convolution():
    x, w, b = draw(2, 3, 17, 4), draw(3, 4, 5, 4), draw(3, 4)
    flat = x.transpose(2, 3).flatten(1, 2)
    want = F.conv1d(flat, w.transpose(2, 3).flatten(0, 1), b.flatten(), stride=5, groups=3)
    torch.testing.assert_close(fast.compress_windows(x, w, b).transpose(2, 3).flatten(1, 2), want)


def test_the_identity_leaves_all_as_it_is():
    x = draw(2, 3, 7, 4)
    torch.testing.assert_close(fast.compress_positions(x, torch.eye(7, 9).double().expand(3, -1, -1)), x)
    torch.testing.assert_close(fast.compress_windows(x, torch.eye(4).double()[None, :, None].expand(3, -1, -1, -1)), x)
