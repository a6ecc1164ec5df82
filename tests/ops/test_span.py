"""Fading attention against plain loops that multiply and renormalise, in float64, outputs and gradients."""

import functools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops.adaptive_span import fade
from kinfolk.ops.attention import attend as executor
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.naive import adaptive_span as slow
from kinfolk.ops.patterns.leaves import Causal, Full, Strided, Window


def draws(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_()


def assert_same(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    g = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    # no gradient comes from what is -inf; where all is, tie the inputs in, with weight 0
    tie = [0.0 * x.sum() for x in inputs]
    losses = [(out * g).masked_fill(out == -torch.inf, 0).sum() + sum(tie) for out in (ours, theirs)]
    pairs = [torch.autograd.grad(loss, inputs, retain_graph=True) for loss in losses]
    for i, (a, b) in enumerate(zip(*pairs, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=lambda m, i=i: f"input {i}: {m}")


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 7),
    n_k=st.integers(1, 11),
    start=st.integers(0, 13),
    ramp=st.integers(1, 8),
    reach=st.lists(st.integers(0, 192).map(lambda i: i / 16), min_size=1, max_size=3),
)
@example(n_q=1, n_k=1, start=0, ramp=1, reach=[0.0])
@example(n_q=5, n_k=11, start=6, ramp=3, reach=[0.0, 2.0, 12.0])  # ends of the ramp on a key
def test_equals_naive(n_q, n_k, start, ramp, reach):
    q_pos, k_pos = torch.arange(start, start + n_q), torch.arange(n_k)
    z = torch.tensor(reach, dtype=torch.float64, requires_grad=True)
    ours = fade(q_pos[None], k_pos[None], z[None, :, None, None], ramp)[0]
    assert_same(ours, slow.fade(q_pos, k_pos, z, ramp), [z])


def attention(q, k, v, reach_BHL, pattern, ramp):
    def bias(q, k, q_pos, k_pos, heads):
        reach = reach_BHL if q.ndim == 4 else reach_BHL[:, :, q_pos[0]]
        return fade(q_pos, k_pos, reach[:, heads].unsqueeze(-1), ramp)

    return attend(q, k, v, pattern, View(), Scoring(bias=bias))


@pytest.mark.parametrize("pattern", [Full(), Causal(), Window(left=6), Causal() & (Window(left=2) | Strided(stride=3))])
@pytest.mark.parametrize("n", [1, 2, 11])
@pytest.mark.parametrize("gathered", [False, True])
def test_attention_equals_naive(pattern, n, gathered, monkeypatch):
    if gathered:
        for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
            monkeypatch.setattr(executor, name, value)
    q, k, v = (draws(2, 2, n, 3, seed=i) for i in range(3))
    reach = (draws(2, 2, n, seed=4).detach().abs() * 3).requires_grad_()
    inputs = [q, k, v, reach]
    assert_same(attention(*inputs, pattern, 3), slow.attend(q, k, v, pattern, reach, 3), inputs)


def test_the_gradient_of_a_reach_comes_from_its_ramp():
    """A finite difference, and nothing at all once the ramp is behind the last key."""
    q, k, v = (draws(1, 1, 12, 3, seed=i) for i in range(3))
    reach = torch.full((1, 1, 12), 2.6, dtype=torch.float64, requires_grad=True)
    run = functools.partial(attention, q, k, v, pattern=Causal(), ramp=4)
    (got,) = torch.autograd.grad(run(reach).sum(), reach)
    for i in (0, 2, 5, 11):
        step = torch.zeros_like(reach)
        step[0, 0, i] = 1e-6
        slope = (run(reach + step).sum() - run(reach - step).sum()) / 2e-6
        assert abs(slope - got[0, 0, i]) < 1e-7
    assert (got[0, 0, :3] == 0).all()
    assert (got[0, 0, 3:] != 0).all()


def test_beyond_the_ramp_is_nothing_and_before_it_all():
    at = torch.arange(20)[None]
    out = fade(at, at, torch.tensor([[[[5.0]]]]), 4)[0, 0]
    away = (at.T - at).abs()
    assert (out[away <= 5] == 0).all()
    assert (out[away >= 9] == -torch.inf).all()
    between = out[(away > 5) & (away < 9)]
    assert ((between < 0) & (between > -torch.inf)).all()
