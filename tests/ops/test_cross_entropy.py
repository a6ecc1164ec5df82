import pytest
import torch
import torch.nn.functional as F

from kinfolk.ops import cross_entropy as fast
from kinfolk.ops.naive import cross_entropy as slow


def leaves(n, d=3, v=7, bias=True):
    g = torch.Generator().manual_seed(n)
    h, w, b = (torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in ((n, d), (v, d), (v,)))
    return h, w, (b if bias else None), torch.randint(v, (n,), generator=g)


@pytest.mark.parametrize("n", [0, 1, 5, 131])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("epsilon", "over"), [(0.0, "all"), (0.1, "all"), (0.1, "others")])
def test_equals_naive(n, bias, epsilon, over, monkeypatch):
    monkeypatch.setattr(fast, "CHUNK_BYTES", 0)  # chunks of 64 tokens
    h, w, b, target = leaves(n, bias=bias)
    weights = fast.smoothing(epsilon, 7, over)
    inputs = [x for x in (h, w, b) if x is not None]
    ours = fast.cross_entropy(h, w, b, target, *weights)
    theirs = slow.cross_entropy(h, w, b, target, *weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    for got, want in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs, allow_unused=True), strict=True
    ):
        torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("softcap", "z"), [(2.0, 0.0), (0.0, 0.3), (1.5, 0.2)])
def test_softcap_and_z_loss_equal_naive(softcap, z, monkeypatch):
    monkeypatch.setattr(fast, "CHUNK_BYTES", 0)
    h, w, b, target = leaves(71)
    weights = (*fast.smoothing(0.1, 7, "all"), softcap, z)
    ours, theirs = (module.cross_entropy(h, w, b, target, *weights) for module in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    pairs = zip(torch.autograd.grad(3 * ours, (h, w, b)), torch.autograd.grad(3 * theirs, (h, w, b)), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(fast.cross_entropy(h, w, b, target, *weights), theirs)


def test_equals_torch_with_its_label_smoothing():
    h, w, b, target = leaves(9)
    want = F.cross_entropy(F.linear(h, w, b), target, label_smoothing=0.2, reduction="none")
    weights = fast.smoothing(0.2, 7, "all")
    torch.testing.assert_close(fast.cross_entropy(h, w, b, target, *weights), want.sum())
    torch.testing.assert_close(fast.token_losses(h, w, b, target, *weights), want.detach())


def test_the_two_conventions_put_the_mass_where_they_say():
    gold, uniform = fast.smoothing(0.1, 5, "all")
    assert gold + uniform == pytest.approx(0.9 + 0.1 / 5)
    gold, uniform = fast.smoothing(0.1, 5, "others")
    assert gold + uniform == pytest.approx(0.9)
    assert uniform == pytest.approx(0.1 / 4)


def test_no_tensor_holds_all_logits():
    n, v, biggest = 4096, 512, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                biggest = max(biggest, out.numel())
            return out

    h, w = torch.randn(n, 8, requires_grad=True), torch.randn(v, 8, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch, Watch():
        patch.setattr(fast, "CHUNK_BYTES", 1 << 18)
        fast.cross_entropy(h, w, None, torch.zeros(n, dtype=torch.long), 1.0, 0.0).backward()
    assert biggest < n * v / 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_autocast_multiplies_in_16_bits_and_sums_in_32(dtype, epsilon):
    h, w, b, target = (x.float().detach() if x.is_floating_point() else x for x in leaves(40, d=16, v=300))
    inputs = [x.requires_grad_() for x in (h, w, b)]
    weights = fast.smoothing(epsilon, 300, "others")
    want = fast.cross_entropy(h, w, b, target, *weights)
    with torch.autocast("cpu", dtype=dtype):
        got = fast.cross_entropy(h, w, b, target, *weights)
        each = fast.token_losses(h, w, b, target, *weights)
    assert got.dtype == each.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-2, atol=0)
    torch.testing.assert_close(each.sum(), want.detach(), rtol=1e-2, atol=0)
    for mine, theirs in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.05)


def mixture_leaves(n, k=3, d=3, v=7):
    g = torch.Generator().manual_seed(n)
    shapes = ((n, k, d), (n, k), (v, d))
    h, prior, w = (torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes)
    return h, prior, w, torch.randint(v, (n,), generator=g)


@pytest.mark.parametrize("n", [0, 1, 5, 131])
@pytest.mark.parametrize("k", [1, 3])
def test_a_mixture_equals_naive(n, k, monkeypatch):
    monkeypatch.setattr(fast, "CHUNK_BYTES", 0)
    h, prior, w, target = mixture_leaves(n, k)
    ours, theirs = (op.mixture_cross_entropy(h, prior.log_softmax(-1), w, target) for op in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    each = fast.mixture_token_losses(h, prior.log_softmax(-1), w, target)
    torch.testing.assert_close(each.sum(), ours.detach(), rtol=1e-10, atol=1e-12)
    for got, want in zip(*(torch.autograd.grad(3 * y, [h, prior, w]) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_component_without_a_share_has_no_gradient():
    h, prior, w, target = mixture_leaves(5, k=2)
    prior = torch.tensor([[0.0, -torch.inf]], dtype=torch.float64).expand(5, 2)
    loss = fast.mixture_cross_entropy(h, prior, w, target)
    torch.testing.assert_close(loss, fast.cross_entropy(h[:, 0], w, None, target, 1.0, 0.0))
    (grad,) = torch.autograd.grad(loss, h)
    assert grad.isfinite().all()
    assert grad[:, 1].abs().max() == 0


def test_autocast_mixes_in_16_bits_and_sums_in_32():
    h, prior, w, target = (x.float().detach() if x.is_floating_point() else x for x in mixture_leaves(40, d=16, v=300))
    inputs = [x.requires_grad_() for x in (h, prior, w)]
    want = fast.mixture_cross_entropy(h, prior.log_softmax(-1), w, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = fast.mixture_cross_entropy(h, prior.log_softmax(-1), w, target)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-2, atol=0)
    for mine, theirs in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.05)
