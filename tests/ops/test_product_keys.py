import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.ops import product_keys as fast
from kinfolk.ops.naive import product_keys as slow


def leaves(n, heads, n_keys, half, d=3):
    g = torch.Generator().manual_seed(n)
    shapes = ((n, heads, 2 * half), (heads, n_keys, half), (heads, n_keys, half), (n_keys**2, d))
    return [torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 25))
@example(1, 1, 1, 1, 1)
@example(2, 2, 5, 2, 7)
@example(2, 1, 3, 2, 9)
def test_equals_scoring_every_key(n, heads, n_keys, half, n_best):
    inputs, n_best = leaves(n, heads, n_keys, half), min(n_best, n_keys**2)
    ours, weights, places = fast.product_key_memory(*inputs, n_best)
    theirs, want = slow.product_key_memory(*inputs, n_best)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert torch.equal(places, want)
    torch.testing.assert_close(weights.sum(-1), torch.ones(n, heads, dtype=torch.float64))
    weight = torch.randn(ours.shape, dtype=torch.float64)
    both = [(y * weight).sum() + sum(t.sum() * 0 for t in inputs) for y in (ours, theirs)]
    pairs = zip(*(torch.autograd.grad(y, inputs) for y in both), strict=True)
    for got, want_grad in pairs:
        torch.testing.assert_close(got, want_grad, rtol=1e-10, atol=1e-12)


def test_all_keys_are_a_dense_softmax_memory():
    q, left, right, values = leaves(4, 1, 3, 2)
    scores = (q[:, 0, :2] @ left[0].mT)[:, :, None] + (q[:, 0, 2:] @ right[0].mT)[:, None]
    want = scores.flatten(1).softmax(-1) @ values
    torch.testing.assert_close(fast.product_key_memory(q, left, right, values, 9)[0], want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_best", [1, 4])
def test_only_values_that_were_read_get_a_gradient(n_best):
    q, left, right, values = leaves(2, 2, 5, 2)
    y, _, places = fast.product_key_memory(q, left, right, values, n_best)
    (grad,) = torch.autograd.grad(y.sum(), values)
    assert set(grad.abs().sum(1).nonzero().flatten().tolist()) == set(places.flatten().tolist())
