"""The clipped surrogate and the entropy, against case by case references, with gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.ops import ppo as surrogate
from kinfolk.ops.naive import ppo as naive


@given(
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 7]),
    clip=st.sampled_from([0.1, 0.2, 0.5]),
    seed=st.integers(0, 99),
)
def test_the_surrogate_and_its_gradient(batch, length, clip, seed):
    g = torch.Generator().manual_seed(seed)
    now, then, good = (torch.randn(batch, length, generator=g, dtype=torch.float64) for _ in range(3))
    now = (then + 0.3 * now).requires_grad_()
    got, want = (f.surrogate(now, then, good, clip) for f in (surrogate, naive))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    ours, theirs = (torch.autograd.grad(f.surrogate(now, then, good, clip).sum(), now)[0] for f in (surrogate, naive))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("advantage", "ratio", "moves"), [(1.0, 1.5, False), (1.0, 0.5, True), (-1.0, 0.5, False)])
def test_what_went_far_enough_has_no_gradient(advantage, ratio, moves):
    now = torch.full((1, 1), math.log(ratio), dtype=torch.float64, requires_grad=True)
    loss = surrogate.surrogate(now, torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), advantage), 0.2)
    (grad,) = torch.autograd.grad(loss.sum(), now)
    assert bool(grad != 0) == moves


@given(batch=st.integers(1, 3), length=st.sampled_from([1, 2, 7]), n=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_likelihood_of_numbers_and_its_gradients(batch, length, n, seed):
    g = torch.Generator().manual_seed(seed)
    actions, means = (torch.randn(batch, length, n, generator=g, dtype=torch.float64) for _ in range(2))
    log_stds = 0.5 * torch.randn(n, generator=g, dtype=torch.float64)
    wanted = [x.requires_grad_() for x in (actions, means, log_stds)]
    got, want = (f.gaussian(*wanted) for f in (surrogate, naive))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    scale = torch.randn(got.shape, generator=g, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((f.gaussian(*wanted) * scale).sum(), wanted) for f in (surrogate, naive))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_entropy():
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(surrogate.entropy(logits), naive.entropy(logits), rtol=1e-10, atol=1e-10)
    assert surrogate.entropy(torch.zeros(1, 1, 4)).item() == pytest.approx(math.log(4))
