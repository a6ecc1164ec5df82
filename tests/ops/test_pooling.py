"""Means over slots and the way back, against loops and against Hugging Face's Funnel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.ops import pooling
from kinfolk.ops.naive import pooling as naive


@given(
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 7, 13]),
    n=st.integers(1, 6),
    alike=st.booleans(),
    padded=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pooling_is_the_mean_of_what_is_real(batch, length, n, alike, padded, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, 3, generator=g, dtype=torch.float64, requires_grad=True)
    slot = torch.randint(n, (1 if alike else batch, length), generator=g).expand(batch, length)
    keep = torch.rand(batch, length, generator=g) < 0.6 if padded else None
    got, want = (f.pool(x, slot, keep, n) for f in (pooling, naive))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    back, hand = (f.unpool(got, slot) for f in (pooling, naive))
    torch.testing.assert_close(back, hand, rtol=1e-10, atol=1e-10)
    scale = torch.randn(back.shape, generator=g, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((f.unpool(f.pool(x, slot, keep, n), slot) * scale).sum(), x)[0] for f in (pooling, naive)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_what_is_constant_in_its_slots_comes_back():
    slot = torch.tensor([[0, 1, 1, 2, 2, 2], [0, 0, 1, 2, 3, 3]])
    x = pooling.unpool(torch.randn(2, 4, 5, dtype=torch.float64), slot)
    torch.testing.assert_close(pooling.unpool(pooling.pool(x, slot, None, 4), slot), x, rtol=1e-12, atol=1e-12)
    assert pooling.count(slot, None, 4).tolist() == [[1, 2, 3, 0], [2, 1, 1, 2]]


@pytest.mark.parametrize("length", [1, 5, 9, 10])
def test_it_is_hugging_faces(length):
    transformers = pytest.importorskip("transformers", reason="the identity with Hugging Face needs kinfolk[bench]")
    from transformers.models.funnel.modeling_funnel import FunnelAttentionStructure, upsample

    config = transformers.FunnelConfig(separate_cls=True, truncate_seq=False, pooling_type="mean")
    x = torch.randn(2, length, 4, dtype=torch.float64)
    theirs = FunnelAttentionStructure(config).pool_tensor(x, mode="mean")
    slot = torch.tensor([[0, *(1 + i // 2 for i in range(length - 1))]]).expand(2, length)
    ours = pooling.pool(x, slot, None, theirs.shape[1])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if length % 2:
        again = upsample(theirs, stride=2, target_len=length, separate_cls=True, truncate_seq=False)
        torch.testing.assert_close(pooling.unpool(ours, slot), again, rtol=1e-12, atol=1e-12)
