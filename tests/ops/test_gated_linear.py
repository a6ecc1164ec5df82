import pytest
import torch

from kinfolk.ops import gated_linear as fast
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.naive import gated_linear as slow


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_equals_naive(activation, bias):
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 10), (4, 5), (4,))
    u, w, b = (torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes)
    inputs = [u, w, b] if bias else [u, w]
    ours, theirs = (op.gated_linear(u, w, b if bias else None, activation) for op in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(fast.gated_linear(u, w, b if bias else None, activation), ours)
    weight = torch.randn(ours.shape, generator=g, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (ours, theirs)), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_the_gated_values_are_not_kept():
    kept = []
    u, w = torch.randn(2, 3, 50, requires_grad=True), torch.randn(4, 25, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        fast.gated_linear(u, w, None, "swish")
    assert set(kept) == {u.data_ptr(), w.data_ptr()}


def test_many_numbers_take_the_same_way():
    """Enough of them for the faster GELU."""
    g = torch.Generator().manual_seed(0)
    u, w = torch.randn(1, 300, 128, generator=g, dtype=torch.float64, requires_grad=True), torch.ones(1, 64).double()
    ours = fast.gated_linear(u, w, None, "gelu-tanh")
    inner, plain = u.chunk(2, -1)
    theirs = (torch.nn.functional.gelu(inner, approximate="tanh") * plain).sum(-1, keepdim=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    got, want = (torch.autograd.grad(y.square().sum(), u)[0] for y in (ours, theirs))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
