import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kinfolk.ops import experts as fast
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.naive import experts as slow


def leaves(n, n_experts, k, bias=True, d=3, f=5, gated=False):
    g = torch.Generator().manual_seed(n)

    def make(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64, requires_grad=True)

    weights = fast.ExpertWeights(
        make(n_experts, f * (1 + gated), d),
        make(n_experts, f * (1 + gated)) if bias else None,
        make(n_experts, d, f),
        make(n_experts, d) if bias else None,
    )
    scores = torch.rand(n, n_experts + k, generator=g)
    # distinct experts, some of them beyond the last: nobody
    expert = scores.argsort(-1)[:, :k].clamp(max=n_experts)
    return make(n, d), expert, make(n, k), weights


@pytest.mark.parametrize("activation", ["swish", "gelu-tanh", "clamped-swish"])
@pytest.mark.parametrize("bias", [True, False])
def test_gated_experts_equal_naive(bias, activation):
    x, expert, choice, weights = leaves(11, 5, 2, bias, gated=True)
    x = (4 * x).detach().requires_grad_()  # beyond the clamps
    ours, theirs = (op.mix_experts(x, expert, choice, weights, activation) for op in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    seated = fast.seated(x, expert, choice, weights, activation, 11)
    torch.testing.assert_close(seated, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fast._all(x, expert, choice, activation, weights), theirs, rtol=1e-10, atol=1e-12)
    inputs, weight = [t for t in (x, choice, *weights) if t is not None], torch.randn_like(ours)
    pairs = zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (ours, theirs)), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@given(st.integers(1, 13), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.sampled_from(list(ACTIVATIONS)))
@example(1, 1, 1, True, "relu")
@example(11, 3, 2, False, "gelu-tanh")
@example(5, 7, 1, True, "swish")
def test_equals_naive(n, n_experts, k, bias, activation):
    x, expert, gate, weights = leaves(n, n_experts, k, bias)
    ours, theirs = (op.mix_experts(x, expert, gate, weights, activation) for op in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(fast.mix_experts(x, expert, gate, weights, activation), ours)
    inputs = [t for t in (x, gate, *weights) if t is not None]
    weight = torch.randn(ours.shape, dtype=torch.float64)
    got = torch.autograd.grad((ours * weight).sum(), inputs)
    want = torch.autograd.grad((theirs * weight).sum() + sum(t.sum() * 0 for t in inputs), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_nobody_at_all_adds_nothing():
    x, expert, gate, weights = leaves(5, 3, 2)
    y = fast.mix_experts(x, torch.full_like(expert, 3), gate, weights, "relu")
    assert torch.equal(y, torch.zeros_like(x))
    assert all(torch.equal(g, torch.zeros_like(g)) for g in torch.autograd.grad(y.sum(), [x, gate, *weights]))


def test_no_table_of_tokens_times_experts_exists():
    n, n_experts, biggest = 64, 2048, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            out = function(*args, **(kwargs or {}))
            # weights and their gradients have an axis of experts, tokens must not
            if isinstance(out, torch.Tensor) and out.ndim < 3 and out.shape[:1] != (n_experts,):
                biggest = max(biggest, out.numel())
            return out

    x, _, gate, weights = leaves(n, n_experts, 1)
    expert = torch.arange(n)[:, None] * 31 % n_experts
    with Watch():
        fast.mix_experts(x, expert, gate, weights, "relu").sum().backward()
    assert 0 < biggest < n * n_experts / 8


def test_only_the_input_and_the_inside_of_experts_are_kept():
    kept = []
    x, expert, gate, weights = leaves(40, 4, 2, d=8, f=16)
    own = {t.data_ptr() for t in (gate, *weights)}

    def note(t):
        if t.is_floating_point() and t.data_ptr() not in own:
            kept.append(tuple(t.shape))
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        fast.mix_experts(x, expert.clamp(max=3), gate, weights, "relu")
    inside = [shape for shape in kept if shape != (40, 8)]
    assert len(kept) == len(inside) + 1
    assert {width for _, width in inside} == {16}
    assert sum(n for n, _ in inside) == 80


@pytest.mark.parametrize("pay", [True, False])
def test_a_gradient_in_tiles_is_the_whole_one(pay, monkeypatch):
    shapes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.bmm.out:
                shapes.append(tuple(kwargs["out"].shape))
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(fast, "_tiles_pay", lambda device: pay)
    x, _, gate, weights = leaves(100, 3, 1, d=2 * fast.TILE, f=3 * fast.TILE)
    # few, many and no tokens
    expert = (torch.arange(100) >= fast.TOKENS.start - 1).long()[:, None]
    inputs = [x, gate, *weights]
    with Watch():
        got = torch.autograd.grad(fast.mix_experts(x, expert, gate, weights, "relu").square().sum(), inputs)
    want = torch.autograd.grad(slow.mix_experts(x, expert, gate, weights, "relu").square().sum(), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    tiles = [(3, fast.TILE, 2 * fast.TILE), (2, fast.TILE, 3 * fast.TILE)]
    assert shapes == (tiles if pay else [])


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast_multiplies_in_16_bits(dtype):
    x, expert, gate, weights = leaves(40, 4, 2, d=8, f=16)
    x, gate = x.float().detach().requires_grad_(), gate.float().detach().requires_grad_()
    weights = fast.ExpertWeights(*(t.float().detach().requires_grad_() for t in weights))
    want = fast.mix_experts(x, expert, gate, weights, "relu")
    with torch.autocast("cpu", dtype=dtype):
        got = fast.mix_experts(x, expert, gate, weights, "relu")
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.3)
    grads = [torch.autograd.grad(y.float().sum(), [x, gate, *weights]) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.05 * b.norm()


@pytest.mark.parametrize("bias", [True, False])
def test_places_for_every_expert_equal_naive(bias):
    """What accelerators run: as many places for each expert as it may have tokens."""
    x, expert, gate, weights = leaves(11, 3, 2, bias)
    inputs = [t for t in (x, gate, *weights) if t is not None]
    wanted = slow.mix_experts(x, expert, gate, weights, "gelu")
    most = int(torch.bincount(expert.flatten())[:3].max())
    found = fast.seated(x, expert, gate, weights, "gelu", most)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    weight = torch.randn(found.shape, dtype=torch.float64)
    grads = [torch.autograd.grad((y * weight).sum(), inputs) for y in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)
