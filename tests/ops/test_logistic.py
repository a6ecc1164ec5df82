import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops import discretized_logistic as logistic
from kinfolk.ops.naive import discretized_logistic as naive
from tests.exact import assert_exact


def scores(n, components, seed=0, spread=1.5):
    g = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n, 3 * components, dtype=torch.float64, generator=g)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 13), st.integers(1, 5), st.sampled_from([1, 2, 32, 255]), st.integers(0, 99))
@example(2, 1, 32, 96)  # far above the mean
def test_the_mixture_is_the_definition(n, components, highest, seed):
    x = scores(n, components, seed).requires_grad_()
    value = torch.randint(0, highest + 1, (n,), generator=torch.Generator().manual_seed(seed))
    value[0], value[-1] = 0, highest
    got, want = (module.mixture(x, value, highest) for module in (logistic, naive))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    weight = torch.arange(1.0, n + 1, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (got, want))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spread", [0.1, 1.5, 5.0])
@pytest.mark.parametrize("highest", [1, 7, 255])
def test_probabilities_add_up_to_one(highest, spread):
    x = scores(6, 4, spread=spread)
    values = torch.arange(highest + 1).repeat(6)
    log_p = logistic.mixture(x.repeat_interleave(highest + 1, 0), values, highest).view(6, -1)
    assert log_p.isfinite().all()
    assert_exact(log_p.exp().sum(1), torch.ones(6, dtype=torch.float64))


def test_no_value_is_impossible_in_float32():
    """A sharp peak at one end: the other end has a finite loss, and a gradient that leads there."""
    x = torch.tensor([[0.0, -1.0, -9.0]], requires_grad=True)
    log_p = logistic.mixture(x, torch.tensor([255]), 255)
    assert log_p.isfinite()
    log_p.sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[0, 1] > 0


def test_a_wide_logistic_is_flat_and_one_component_has_no_weight():
    x = torch.tensor([[3.0, 0.0, 6.0]], dtype=torch.float64)
    middle = logistic.mixture(x.expand(9, 3), torch.arange(100, 109), 255)
    torch.testing.assert_close(middle, middle[:1].expand(9), rtol=1e-4, atol=1e-4)
    other = x + torch.tensor([[7.0, 0.0, 0.0]])
    assert_exact(logistic.mixture(other, torch.tensor([5]), 255), logistic.mixture(x, torch.tensor([5]), 255))
