import pytest
import torch

from kinfolk.ops import activated_linear as fast
from kinfolk.ops.naive import activated_linear as slow


@pytest.mark.parametrize("activation", fast.ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_equals_naive(activation, bias):
    g = torch.Generator().manual_seed(0)
    u, w, b = (torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5), (4, 5), (4,)))
    inputs = [u, w, b] if bias else [u, w]
    ours = fast.activated_linear(u, w, b if bias else None, activation)
    theirs = slow.activated_linear(u, w, b if bias else None, activation)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weight = torch.randn(ours.shape, generator=g, dtype=torch.float64)
    for got, want in zip(
        torch.autograd.grad((ours * weight).sum(), inputs),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_every_activation_has_a_formula_of_its_own():
    assert set(fast.ACTIVATIONS) == set(slow.FORMULAS)


def test_the_activated_values_are_not_kept():
    kept = []
    u, w = torch.randn(2, 3, 50, requires_grad=True), torch.randn(4, 50, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        fast.activated_linear(u, w, None, "gelu")
    assert set(kept) == {u.data_ptr(), w.data_ptr()}
