"""Maps across heads against plain loops in float64, outputs and gradients, alone and inside attention."""

import functools

import pytest
import torch

from kinfolk.ops.attention import attend as executor
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.naive import talking_heads as slow
from kinfolk.ops.patterns.leaves import Causal, Full, SameBlock, Strided, Window
from kinfolk.ops.talking_heads import mix_heads

PATTERNS = [Full(), Causal(), Window(left=3), Causal() & (SameBlock(size=4) | Strided(stride=3))]


def leaves(n, heads=3, batch=2, width=5):
    g = torch.Generator().manual_seed(n)
    shapes = [(batch, heads, n, width)] * 3 + [(heads, heads)] * 2
    return [torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for shape in shapes]


def fast(q, k, v, pattern, before_HH, after_HH):
    before, after = (functools.partial(mix_heads, m) for m in (before_HH, after_HH))
    return attend(q, k, v, pattern, View(), Scoring(before=before, after=after))


def assert_same(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    g = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    pairs = [torch.autograd.grad((out * g).sum(), inputs) for out in (ours, theirs)]
    for i, (a, b) in enumerate(zip(*pairs, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=lambda m, i=i: f"input {i}: {m}")


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 4, 2, 3, 5)])
def test_equals_naive(shape):
    g = torch.Generator().manual_seed(0)
    sizes = (shape[1], shape[1]), shape
    inputs = [torch.randn(size, generator=g, dtype=torch.float64, requires_grad=True) for size in sizes]
    assert_same(mix_heads(*inputs), slow.mix_heads(*inputs), inputs)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("n", [1, 2, 11])
@pytest.mark.parametrize("gathered", [False, True])
def test_attention_equals_naive(pattern, n, gathered, monkeypatch):
    if gathered:
        for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
            monkeypatch.setattr(executor, name, value)
    q, k, v, before, after = inputs = leaves(n)
    assert_same(fast(q, k, v, pattern, before, after), slow.attend(q, k, v, pattern, before, after), inputs)


def test_identity_maps_change_nothing_and_others_do():
    q, k, v, *_ = leaves(13)
    same = torch.eye(3, dtype=torch.float64)
    for pattern in PATTERNS:
        torch.testing.assert_close(fast(q, k, v, pattern, same, same), attend(q, k, v, pattern), rtol=1e-12, atol=1e-14)
        assert not torch.allclose(fast(q, k, v, pattern, same, same.flip(0)), attend(q, k, v, pattern))
        assert not torch.allclose(fast(q, k, v, pattern, same.flip(0), same), attend(q, k, v, pattern))


def test_bias_and_mask_come_after_the_map():
    """A bias that hides a key from one head hides it from that head's softmax, whatever the map before."""
    q, k, v, before, _ = leaves(5)

    def bias(q, k, q_pos, k_pos, heads):
        hidden = torch.zeros(1, 3, 1, 5, dtype=torch.float64)
        hidden[:, 1, :, 2] = -torch.inf
        return hidden

    seen = []
    scoring = Scoring(bias=bias, before=functools.partial(mix_heads, before), tap=seen.append)
    attend(q, k, v, Full(), View(), scoring)
    assert (seen[0][:, 1, :, 2] == 0).all()
    assert (seen[0][:, 0] > 0).all()
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))


def test_tapped_weights_are_those_of_the_output():
    q, k, v, before, after = leaves(9)
    seen = []
    before, after = (functools.partial(mix_heads, m) for m in (before, after))
    out = attend(q, k, v, Causal(), View(), Scoring(before=before, after=after, tap=seen.append))
    torch.testing.assert_close(seen[0] @ v, out)
