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
