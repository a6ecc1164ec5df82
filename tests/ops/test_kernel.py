"""`ops.kernel` against its naive reference in float64, outputs and gradients, and against the quadratic form."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kinfolk.core.errors import SpecError
from kinfolk.ops import linear_attention as fast
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.feature_maps import Elu, Exponential, Rectified, draw
from kinfolk.ops.linear_attention import DIRECTIONS, Sums, kernel_attend, kernel_continue, work
from kinfolk.ops.naive import feature_maps as naive_features
from kinfolk.ops.naive import linear_attention as slow
from kinfolk.ops.patterns.leaves import Causal, Full

W = draw(5, 3, "orthogonal", seed=1)
MAPS = {
    "exponential": (Exponential(W), lambda x: naive_features.exponential(x, W)),
    "rectified": (Rectified(W), lambda x: naive_features.rectified(x, W)),
    "elu": (Elu(), naive_features.elu),
}


HIDDEN = ["nothing hidden", "padding on the right", "padding anywhere", "nothing kept", "packed", "packed and padded"]


def inputs(length, batch=2, heads=2, width=3, scale=1.0, dtype=torch.float64):
    g = torch.Generator().manual_seed(length)
    shape = batch, heads, length, width
    return [(scale * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype).requires_grad_() for _ in "qkv"]


def masks(what, length, batch=2):
    g = torch.Generator().manual_seed(length)
    some = torch.rand(batch, length, generator=g) > 0.4
    group = (torch.rand(batch, length, generator=g) * 3).long().sort(1).values
    right = torch.arange(length) < torch.tensor([[length], [length // 2]])
    nothing, packed = torch.zeros_like(some), (None, group)
    each = [(None, None), (right, None), (some, None), (nothing, None), packed, (some, group)]
    return each[HIDDEN.index(what)]


def run(op, leaves, *args):
    out = op(*leaves, *args)
    g = torch.Generator().manual_seed(7)
    loss = (out * torch.randn(out.shape, generator=g, dtype=torch.float64)).sum()
    # where nobody sees anything the output is a constant: tie the leaves in, with weight 0
    return out, *torch.autograd.grad(loss + 0.0 * sum(x.sum() for x in leaves), leaves)


def assert_same(ours, theirs):
    for name, a, b in zip(("out", "dq", "dk", "dv"), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=10)
@given(length=st.sampled_from([1, 2, 7, 11]), chunk=st.sampled_from([1, 3, 128]), what=st.sampled_from(HIDDEN))
@example(length=11, chunk=3, what="nothing kept")
@example(length=11, chunk=3, what="packed")
@example(length=11, chunk=3, what="packed and padded")
def test_equals_naive(name, direction, length, chunk, what):
    leaves, (phi, naive_phi), hidden = inputs(length, heads=1), MAPS[name], masks(what, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "CHUNK", chunk)
        ours = run(kernel_attend, leaves, phi, direction, *hidden)
    assert_same(ours, run(slow.kernel_attend, leaves, naive_phi, direction, *hidden))


def quadratic(q, k, v, phi, direction, keep=None, group=None):
    """The same average by a square matrix of weights, from the feature map and nothing else."""
    (fq, _), (fk, log) = phi(q), phi(k)
    weights = fq @ fk.mT
    ok = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    ok = ok.tril() if direction == "past" else ok
    if keep is not None:
        ok = ok & keep[:, None, None]
    if group is not None:
        ok = ok & (group[:, None, :, None] == group[:, None, None])
    if log is not None:
        weights = weights * (log - log.detach().amax()).exp().unsqueeze(-2)
    weights = weights * ok
    return (weights @ v) / weights.sum(-1, keepdim=True).clamp(min=1e-300)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("what", ["nothing hidden", "padding anywhere", "packed", "packed and padded"])
def test_several_chunks_equal_the_quadratic_form(name, direction, what):
    # maps work in place for speed, so autograd cannot look through them: values here, gradients above and below
    q, k, v = (x.detach() for x in inputs(307))
    phi, hidden = MAPS[name][0], masks(what, 307)
    got, want = (op(q, k, v, phi, direction, *hidden) for op in (kernel_attend, quadratic))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("what", ["nothing hidden", "packed and padded"])
def test_the_size_of_chunks_changes_nothing(name, direction, what, monkeypatch):
    leaves, hidden, found = inputs(61), masks(what, 61), []
    for chunk in (1, 7, 16, 61, 128):
        monkeypatch.setattr(fast, "CHUNK", chunk)
        found.append(run(kernel_attend, leaves, MAPS[name][0], direction, *hidden))
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAPS)
def test_the_future_does_not_even_touch_the_rounding(name, dtype):
    phi = MAPS[name][0].to(dtype)
    q, k, v = (x.detach() for x in inputs(300, dtype=dtype))
    before = kernel_attend(q, k, v, phi, "past")
    # within a chunk, at its borders, and in another
    for cut in (1, 60, 127, 128, 129, 290):
        for size in (0.0, 1.0, 30.0):
            q2, k2, v2 = (x.clone() for x in (q, k, v))
            for x in (q2, k2, v2):
                x[:, :, cut:] = size * x[:, :, cut:].flip(2)
            assert torch.equal(kernel_attend(q2, k2, v2, phi, "past")[:, :, :cut], before[:, :, :cut])


def test_no_gradient_reaches_the_future():
    for phi, _ in MAPS.values():
        q, k, v = inputs(140, batch=1, heads=1)
        out = kernel_attend(q, k, v, phi, "past")
        for grad in torch.autograd.grad(out[:, :, 40:131].sum(), (q, k, v)):
            assert (grad[:, :, 131:] == 0).all()
            assert (grad[:, :, 40:131] != 0).any()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MAPS)
def test_what_stands_at_padding_changes_nothing(name, direction):
    q, k, v = (x.detach() for x in inputs(150))
    keep, _ = masks("padding anywhere", 150)
    before = kernel_attend(q, k, v, MAPS[name][0], direction, keep)
    k, v = (torch.where(keep[:, None, :, None], x, torch.full_like(x, 50.0)) for x in (k, v))
    after = kernel_attend(q, k, v, MAPS[name][0], direction, keep)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sizes", [(1,) * 20, (7, 1, 1, 130, 2), (141,)], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_going_on_from_sums_equals_one_pass(name, sizes):
    phi, n = MAPS[name][0], sum(sizes)
    q, k, v = (x.detach() for x in inputs(n))
    want = kernel_attend(q, k, v, phi, "past")
    sums, got = Sums.empty(2, 2, phi(q)[0].shape[-1], 3, q), []
    for chunk in zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True):
        out, sums = kernel_continue(*chunk, phi, sums)
        got.append(out)
    torch.testing.assert_close(torch.cat(got, 2), want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", MAPS)
def test_padding_does_not_enter_the_sums(name):
    phi = MAPS[name][0]
    q, k, v = (x.detach() for x in inputs(9))
    keep = torch.arange(9) < torch.tensor([[4], [9]])
    empty = Sums.empty(2, 2, phi(q)[0].shape[-1], 3, q)
    _, padded = kernel_continue(q, k, v, phi, empty, keep)
    _, alone = kernel_continue(q[:, :, :4], k[:, :, :4], v[:, :, :4], phi, empty)
    torch.testing.assert_close(padded.sums_BHRK[0], alone.sums_BHRK[0], rtol=1e-12, atol=1e-14)
    assert padded.sums_BHRK.shape == alone.sums_BHRK.shape == empty.sums_BHRK.shape


def test_gradients_stop_at_the_sums_and_reach_what_is_new():
    phi = MAPS["exponential"][0]
    q, k, v = inputs(8, batch=1, heads=1)
    _, sums = kernel_continue(q[:, :, :5], k[:, :, :5], v[:, :, :5], phi, Sums.empty(1, 1, 5, 3, q))
    out, _ = kernel_continue(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], phi, sums)
    for grad in torch.autograd.grad(out.sum(), (k, v)):
        assert (grad[:, :, :5] == 0).all()
        assert (grad[:, :, 5:] != 0).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_large_queries_and_keys_stay_finite_in_single_precision(direction):
    phi = Exponential(draw(32, 8, "orthogonal", 0).float())
    for size in (1e-3, 10.0, 100.0, 1e4):
        leaves = inputs(200, width=8, scale=size, dtype=torch.float32)
        for x in run(kernel_attend, leaves, phi, direction):
            assert x.isfinite().all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MAPS)
def test_half_precision_sums_in_single(name, direction):
    leaves = inputs(200, dtype=torch.bfloat16)
    out, *grads = run(kernel_attend, leaves, MAPS[name][0].to(torch.float32), direction)
    exact = run(kernel_attend, [x.detach().double().requires_grad_() for x in leaves], MAPS[name][0], direction)
    assert out.dtype == torch.bfloat16
    for got, want in zip((out, *grads), exact, strict=True):
        assert (got.double() - want).abs().max() < 0.02 * want.abs().max()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_error_against_softmax_attention_falls_as_features_grow(direction):
    q, k, v = (x.detach() for x in inputs(150, width=8, scale=0.3))
    exact = attend(q, k, v, Causal() if direction == "past" else Full())

    def error(m, rows="orthogonal"):
        maps = (Exponential(draw(m, 8, rows, seed)) for seed in range(16))
        return torch.stack([(kernel_attend(q, k, v, phi, direction) - exact).square().mean() for phi in maps]).mean()

    few, many = error(64), error(512)
    # the mean squared error falls like 1 / m
    assert 6.5 < few / many < 10
    assert few < 0.95 * error(64, "independent")


class Watch(TorchDispatchMode):
    """Counts the numbers that operators write, and the largest tensor among them."""

    def __init__(self):
        super().__init__()
        self.written = self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not function.is_view:
            self.written += out.numel()
            self.largest = max(self.largest, out.numel())
        return out


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", MAPS)
def test_work_and_memory_grow_with_the_length_and_not_its_square(name, direction, packed):
    written = []
    for n in (512, 1024, 2048, 4096):
        leaves = inputs(n, batch=1, heads=1, dtype=torch.float32)
        group = torch.arange(n)[None] // 200 if packed else None
        with Watch() as watch:
            kernel_attend(*leaves, MAPS[name][0].to(torch.float32), direction, None, group).sum().backward()
        written.append(watch.written)
        # either the whole of one input or a chunk of pairs; nothing of features times length
        assert watch.largest <= max(3 * n, 128 * 128)
    slope = math.log2(written[-1] / written[0]) / 3
    assert slope < 1.05


@pytest.mark.parametrize("length", [1, 100, 128, 300])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_closed_form_counts_operations_and_sums(direction, length):
    q, k, v = inputs(length, batch=1, heads=1)
    flops, n_sums = work(length, 3, 3, direction)
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
    with FlopCounterMode(display=False) as counter, hooks:
        out = kernel_attend(q, k, v, Elu(), direction)
    assert out.shape == q.shape
    assert counter.get_total_flops() == pytest.approx(flops * length)
    assert sum(x.shape[-2:] == (3, 4) for x in kept) == n_sums


def test_an_unknown_direction_is_refused():
    with pytest.raises(SpecError, match="direction: unknown 'pats'; did you mean 'past'"):
        kernel_attend(*inputs(3), Elu(), "pats")
