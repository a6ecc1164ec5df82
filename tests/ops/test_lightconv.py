"""`ops.lightconv` against its naive reference in float64, outputs and gradients, and against PyTorch's convolution."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops import lightconv as fast
from kinfolk.ops.naive import lightconv as slow


def draw(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)


def run(op, leaves, *args):
    out = op(*leaves, *args)
    loss = (out * draw(*out.shape, seed=7).detach()).sum()
    return [out, *torch.autograd.grad(loss, leaves)]


def assert_same(ours, theirs):
    for name, a, b in zip(("out", "dx", "dw"), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2),
    n_in=st.integers(1, 19),
    n_out=st.integers(1, 19),
    taps=st.integers(1, 9),
    left=st.integers(0, 9),
    heads=st.sampled_from([1, 2, 3]),
    chunk=st.sampled_from([1, 1 << 22]),
)
@example(batch=1, n_in=37, n_out=37, taps=17, left=16, heads=2, chunk=1)  # tiles read as far as they may
@example(batch=1, n_in=1, n_out=1, taps=1, left=0, heads=1, chunk=1)
@example(batch=1, n_in=41, n_out=2, taps=3, left=0, heads=3, chunk=1)  # inputs that nobody reads
def test_dynamic_convolution_equals_naive(batch, n_in, n_out, taps, left, heads, chunk):
    leaves, left = [draw(batch, n_in, 6), draw(batch, n_out, heads, taps)], left % taps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "CHUNK_BYTES", chunk)
        assert_same(run(fast.dynamic_conv, leaves, left), run(slow.dynamic_conv, leaves, left))


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2),
    n_in=st.integers(1, 13),
    n_out=st.integers(1, 13),
    taps=st.integers(1, 7),
    left=st.integers(0, 6),
    hidden=st.booleans(),
    chunk=st.sampled_from([1, 1 << 22]),
)
def test_depthwise_convolution_equals_naive(batch, n_in, n_out, taps, left, hidden, chunk):
    leaves, left = [draw(batch, n_in, 4), draw(4, taps)], left % taps
    same = draw(batch, n_out, taps) > 0 if hidden else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "CHUNK_BYTES", chunk)
        ours = run(fast.depthwise_conv, leaves, left, n_out, same)
    assert_same(ours, run(slow.depthwise_conv, leaves, left, n_out, same))


def test_weights_alike_everywhere_are_pytorchs_grouped_convolution():
    x, w = draw(2, 53, 12), draw(3, 7)
    for left in (6, 3):
        padded = F.pad(x, (0, 0, left, 6 - left)).mT
        want = F.conv1d(padded, w.repeat_interleave(4, 0)[:, None], groups=12).mT
        got = fast.dynamic_conv(x, w.expand(2, 53, 3, 7), left)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(fast.depthwise_conv(x, w.repeat_interleave(4, 0), left, 53), want)


def test_a_convolution_is_a_band_matrix():
    x, w = draw(1, 11, 4), draw(1, 11, 2, 5)
    band = torch.zeros(2, 11, 11, dtype=torch.float64)
    for i in range(11):
        for t in range(5):
            if 0 <= i + t - 2 < 11:
                band[:, i, i + t - 2] = w[0, i, :, t]
    want = torch.cat([band[h] @ x[0, :, 2 * h : 2 * h + 2] for h in range(2)], 1)
    torch.testing.assert_close(fast.dynamic_conv(x, w, 2)[0], want)


def test_weights_that_sum_to_one_keep_a_constant_in_the_interior():
    w = draw(2, 40, 2, 9).softmax(-1)
    y = fast.dynamic_conv(torch.ones(2, 40, 6, dtype=torch.float64), w, 4)
    torch.testing.assert_close(y[:, 4:-4], torch.ones(2, 32, 6, dtype=torch.float64))
    assert (y[:, :4] < 1).all()


def largest(n):
    """Return the elements of the largest tensor that a forward and backward pass over n positions makes."""
    found = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal found
            out = function(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    found = max(found, x.untyped_storage().nbytes() // x.element_size())
            return out

    x, w = torch.randn(1, n, 64, requires_grad=True), torch.randn(1, n, 2, 31, requires_grad=True)
    kernel = torch.randn(64, 31, requires_grad=True)
    with Watch():
        (fast.dynamic_conv(x, w, 30) + fast.depthwise_conv(x, kernel, 30, n)).sum().backward()
    return found


def test_memory_grows_with_the_length_and_not_its_product_with_the_kernel(monkeypatch):
    monkeypatch.setattr(fast, "CHUNK_BYTES", 1 << 16)
    for n in (512, 1024):
        assert largest(n) < 1.1 * n * 64
