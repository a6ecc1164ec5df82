import pytest
import torch
import torch.nn.functional as F

from kinfolk.ops import gelu as fast
from kinfolk.ops.naive import gelu as slow


@pytest.mark.parametrize("shape", [(1,), (7, 13), (2, 3, 5)])
def test_equals_naive(shape, monkeypatch):
    monkeypatch.setattr(fast, "PIECE", 8)  # several pieces, the last one short
    monkeypatch.setattr(fast, "FEW", 0)
    g = torch.Generator().manual_seed(0)
    u, d = (3 * torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(fast.gelu_tanh(u), slow.gelu_tanh(u), rtol=1e-10, atol=1e-12)
    want = slow.gelu_tanh_backward(u, d)
    for got, expected in zip(fast.gelu_tanh_backward(u, d.clone()), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_is_torchs_in_single_precision_far_from_zero_too(monkeypatch):
    monkeypatch.setattr(fast, "FEW", 0)
    u = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, -1e4, 1e4])])
    torch.testing.assert_close(fast.gelu_tanh(u), F.gelu(u, approximate="tanh"), rtol=1e-5, atol=1e-6)
    d = torch.ones_like(u)
    value, slope = fast.gelu_tanh_backward(u, d.clone())
    torch.testing.assert_close(value, fast.gelu_tanh(u), rtol=0, atol=0)
    torch.testing.assert_close(slope, torch.ops.aten.gelu_backward(d, u, approximate="tanh"), rtol=1e-5, atol=2e-6)


def test_other_precisions_and_layouts_take_torchs_kernel():
    u = torch.randn(4, 6, dtype=torch.bfloat16)
    assert torch.equal(fast.gelu_tanh(u), F.gelu(u, approximate="tanh"))
    turned = torch.randn(4, 6).mT
    value, slope = fast.gelu_tanh_backward(turned, torch.ones(6, 4))
    torch.testing.assert_close(value, F.gelu(turned, approximate="tanh"))
    torch.testing.assert_close(slope, torch.ops.aten.gelu_backward(torch.ones(6, 4), turned, approximate="tanh"))
