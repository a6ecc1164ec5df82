"""Random features: drawn as promised, unbiased, with the variance of the papers; maps and their gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.core.errors import SpecError
from kinfolk.ops import feature_maps as features
from kinfolk.ops.feature_maps import Elu, Exponential, Rectified, draw, haar
from kinfolk.ops.naive import feature_maps as slow


def vectors(n, width, seed=0, scale=1.0):
    return scale * torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(n=st.integers(1, 7), seed=st.integers(0, 99))
def test_orthogonal_rows_are_those_of_gram_and_schmidt(n, seed):
    normal = vectors(n, n, seed)
    torch.testing.assert_close(haar(normal), slow.haar(normal), rtol=1e-7, atol=1e-9)


def test_directions_are_orthogonal_in_blocks_and_uniform():
    w = draw(13, 5, "orthogonal", seed=3)
    for block in w.split(5):
        gram = block @ block.mT
        torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-12)
    # LAPACK's own signs would make every first entry negative
    first = torch.stack([draw(4, 4, "orthogonal", seed)[0, 0] for seed in range(400)])
    assert 0.4 < (first > 0).double().mean() < 0.6


def test_lengths_are_those_of_gaussian_vectors():
    lengths = draw(40_000, 8, "orthogonal", seed=0).square().sum(1)
    # chi squared: mean 8, variance 16
    assert abs(lengths.mean() - 8) < 0.1
    assert abs(lengths.var() - 16) < 0.8


def test_a_draw_is_a_function_of_seed_and_count():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    a, b, c, d = (draw(6, 4, "orthogonal", *key) for key in ((1, 0), (1, 0), (1, 1), (2, 0)))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, d)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(SpecError, match="rows: unknown 'orthogonl'; did you mean 'orthogonal'"):
        draw(6, 4, "orthogonl", 1)


def maps(width):
    w = draw(7, width, "orthogonal", seed=width)
    return {
        "exponential": (Exponential(w), lambda x: slow.exponential(x, w)),
        "rectified": (Rectified(w), lambda x: slow.rectified(x, w)),
        "elu": (Elu(), slow.elu),
    }


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("name", maps(1))
def test_maps_and_their_gradients_equal_naive(name, width):
    fast, naive = maps(width)[name]
    x = vectors(11, width, scale=2.0).requires_grad_()
    got, log = fast(x.detach())
    factor = torch.ones(11, 1, dtype=x.dtype) if log is None else log.exp().unsqueeze(-1)
    want = torch.stack([naive(row) for row in x])
    torch.testing.assert_close(got * factor, want, rtol=1e-11, atol=0)
    d_want = vectors(11, want.shape[1], seed=1)
    (grad,) = torch.autograd.grad(want, x, d_want)
    torch.testing.assert_close(fast.pull(x.detach(), got, d_want * factor), grad, rtol=1e-10, atol=1e-12)


def test_far_vectors_leave_no_range():
    x = torch.tensor([[300.0, -200.0, 5.0], [-1e4, 0.0, 0.0], [0.0, 0.0, 0.0]])
    f, log = Exponential(draw(16, 3, "orthogonal", 0).float())(x)
    assert f.isfinite().all()
    assert log.isfinite().all()
    assert torch.equal(f.amax(-1), torch.ones(3))
    tiny, _ = Elu()(torch.tensor([-60.0]))
    # elu(x) + 1 as it stands would be 0
    torch.testing.assert_close(tiny, torch.tensor([math.exp(-60.0)]))


def estimates(q, k, rows, m, n_draws=20_000):
    """The kernel of one pair, estimated n times from m rows each. Blocks of rows are independent of one another."""
    assert m % len(q) == 0
    phi = Exponential(draw(m * n_draws, len(q), rows, seed=m))
    (fq, lq), (fk, lk) = (phi(x[None]) for x in (q, k))
    return (fq * fk * (lq + lk).exp()).view(n_draws, m).mean(1)


def pair(width=8):
    q, k = vectors(2, width, seed=5, scale=0.7)
    return q, k, float(torch.exp(q @ k / math.sqrt(width)))


@pytest.mark.parametrize("rows", features.ROWS)
def test_the_estimate_of_the_softmax_kernel_is_unbiased(rows):
    q, k, exact = pair()
    found = estimates(q, k, rows, 8)
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - exact) < 4 * error
    # LAPACK's own signs are off by more than this
    assert 4 * error < 0.03 * exact


def test_the_error_is_that_of_the_paper_and_falls_like_one_over_m():
    q, k, exact = pair()
    z = float(((q + k) / 8**0.25).square().sum())
    # Choromanski et al. 2021, lemma 2
    paper = exact**2 * math.exp(z) * (1 - math.exp(-z))
    for m in (8, 32, 128):
        mse = float((estimates(q, k, "independent", m) - exact).square().mean())
        assert mse == pytest.approx(paper / m, rel=0.15)


def test_orthogonal_rows_have_less_error_than_independent_ones():
    q, k, exact = pair()
    orthogonal, independent = (
        float((estimates(q, k, rows, 8) - exact).square().mean()) for rows in ("orthogonal", "independent")
    )
    assert orthogonal < 0.9 * independent
