"""Latent and differential attention against plain loops, with the gradients of input and weights."""

import pytest
import torch

from kinfolk.core.context import Context
from kinfolk.layers.mixers.differential_attention import DifferentialAttention
from kinfolk.layers.mixers.latent_attention import LatentAttention
from kinfolk.layers.module import Dims
from kinfolk.ops.naive.differential_attention import differential_attention
from kinfolk.ops.naive.latent_attention import latent_attention
from kinfolk.ops.patterns.leaves import Causal

DIMS = Dims(d_model=8, vocab_size=5, max_len=16, dropout=0.0, n_sublayers=2, direction="past")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(spec):
    module = spec.build(DIMS).double()
    for n, p in enumerate(module.parameters()):
        p.data = normal(*p.shape, seed=n + 1) * 0.5
    return module


def assert_same(ours, theirs, leaves):
    weight = normal(*ours.shape, seed=99)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    both = [torch.autograd.grad((out * weight).sum(), leaves, retain_graph=True) for out in (ours, theirs)]
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("q_rank", [0, 3])
def test_latent_attention_equals_naive(q_rank):
    module = built(LatentAttention(n_heads=2, kv_rank=3, d_nope=3, d_rope=2, d_value=4, q_rank=q_rank))
    x = normal(1, 6, 8).requires_grad_()
    weights = {
        "q_up": module.q_up.weight,
        "kv_down": module.kv_down.weight,
        "kv_gain": module.kv_norm.weight,
        "kv_up": module.kv_up.weight,
        "out": module.out.weight,
    }
    if q_rank:
        weights |= {"q_down": module.q_down.weight, "q_gain": module.q_norm.weight}
    naive = latent_attention(x[0], weights, 2, 2)
    assert_same(module(x, Context(), None)[0][0], naive, [x, *module.parameters()])
    # decoding attends to the latents themselves
    state, steps = module.new_state(1, 6), []
    with torch.no_grad():
        for t in range(6):
            steps.append(module(x[:, t : t + 1], Context(start=t), state)[0])
    torch.testing.assert_close(torch.cat(steps, 1)[0], naive, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [0, 2])
def test_differential_attention_equals_naive(n_kv_heads):
    spec = DifferentialAttention(n_heads=4, n_kv_heads=n_kv_heads, pattern=Causal(), bias=False, start=0.35)
    module = built(spec)
    x = normal(1, 6, 8).requires_grad_()
    n = [4, n_kv_heads or 4, n_kv_heads or 4]
    q, k, v = module.qkv(x).unflatten(-1, (-1, 2))[0].transpose(0, 1).split(n)
    pairs = differential_attention(q, k, v, module.factor_4K, 0.35)
    naive = module.out(pairs.transpose(0, 1).flatten(1))
    assert_same(module(x, Context(), None)[0][0], naive, [x, *module.parameters()])
