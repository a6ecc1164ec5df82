"""Additive scores against one pair at a time, in outputs and all gradients, however they are cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.ops import additive as module
from kinfolk.ops.additive import additive
from kinfolk.ops.naive.additive import additive as naive
from tests.exact import assert_exact


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 12, 1 << 15]))
def test_scores_are_made_pair_by_pair(batch, n_q, n_k, d, pairs):
    g = torch.Generator().manual_seed(n_q + 10 * n_k)
    q, k, v = (
        torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()
        for shape in ((batch, n_q, d), (batch, n_k, d), (d,))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS", pairs)
        got = additive(q, k, v)
        want = torch.stack([naive(q[b], k[b], v) for b in range(batch)])
        assert_exact(got, want)
        scale = torch.randn_like(got)
        ours, theirs = (torch.autograd.grad((e * scale).sum(), (q, k, v)) for e in (got, want))
    for a, b in zip(ours, theirs, strict=True):
        assert_exact(a, b)


def test_nothing_is_kept_for_a_pair():
    q, k, v = torch.randn(2, 6, 8).requires_grad_(), torch.randn(2, 9, 8), torch.randn(8)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        additive(q, k, v)
    assert sum(kept) == q.numel() + k.numel() + v.numel()
