"""Adaptive computation time: weights, remainders and their gradients."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops.act import halt
from kinfolk.ops.naive import act as naive


def run(chances_NB, eps):
    """Weights of all steps, and how many were made, for a row of inputs."""
    total, active = torch.zeros_like(chances_NB[0]), torch.ones(chances_NB.shape[1], dtype=torch.bool)
    weights, steps = [], torch.zeros(chances_NB.shape[1])
    for n, chance in enumerate(chances_NB):
        weight, total, halts = halt(chance, total, eps, n == len(chances_NB) - 1)
        weights.append(weight * active)
        steps += active
        active = active & ~halts
    assert not active.any()
    return torch.stack(weights), steps


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(1, 5), st.sampled_from([0.01, 0.05, 0.5]), st.integers(0, 10**6))
@example(1, 1, 0.01, 0)
def test_weights_are_those_of_the_paper(n, batch, eps, seed):
    g = torch.Generator().manual_seed(seed)
    chances = torch.rand(n, batch, generator=g, dtype=torch.float64, requires_grad=True)
    got, steps = run(chances, eps)
    probe = torch.randn(n, batch, generator=g, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((got * probe).sum(), chances)
    for b in range(batch):
        column = chances[:, b].detach().requires_grad_()
        want = naive.weights(list(column), eps)
        assert len(want) == steps[b]
        torch.testing.assert_close(got[: len(want), b], torch.stack(want), rtol=1e-10, atol=1e-12)
        assert (got[len(want) :, b] == 0).all()
        scored = sum(w * p for w, p in zip(want, probe[:, b], strict=False)) + 0 * column.sum()
        wanted = torch.autograd.grad(scored, column)[0]
        torch.testing.assert_close(gradient[:, b], wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.sum(0), torch.ones(batch, dtype=torch.float64), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("chances", "want"),
    [
        ((0.3, 0.3, 0.6, 0.9), (0.3, 0.3, 0.4, 0)),
        ((0.1, 0.1, 0.1), (0.1, 0.1, 0.8)),
        ((0.995, 0.5), (1.0, 0)),
        ((0.5, 0.49, 0.3), (0.5, 0.5, 0)),
    ],
)
def test_weights_by_hand(chances, want):
    got, _ = run(torch.tensor(chances, dtype=torch.float64)[:, None], 0.01)
    torch.testing.assert_close(got[:, 0], torch.tensor(want, dtype=torch.float64))


def test_the_cost_of_pondering_falls_by_every_chance_before_the_last():
    chances = torch.tensor([[0.3], [0.2], [0.9], [0.4]], requires_grad=True)
    weights, steps = run(chances, 0.01)
    remainder = weights[int(steps) - 1]
    (gradient,) = torch.autograd.grad((steps + remainder).sum(), chances)
    assert gradient[:, 0].tolist() == [-1, -1, 0, 0]
