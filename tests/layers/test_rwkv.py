"""RWKV-6 and RWKV-7 token by token, from their papers' equations, with gradients."""

import math

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.layer_values import LayerValues
from kinfolk.layers.mixers.rwkv import ChannelMix, Rwkv6, Rwkv7
from tests.layers.test_latent_attention import DIMS, assert_same, built, normal

HEADS, WIDTH = 2, 4


def heads(x):
    return x.view(HEADS, WIDTH)


def normed(y, norm):
    """Normalise each head of one token by hand."""
    out = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return out.flatten() * norm.weight + norm.bias


def rwkv6(m, x):
    state, before, rows = torch.zeros(HEADS, WIDTH, WIDTH, dtype=x.dtype), torch.zeros_like(x[0]), []
    for now in x:
        first, *shares = m.shift.shares_nD
        narrow = torch.tanh(m.mix_down(now + (before - now) * first)).view(5, -1)
        mixed = [now + (before - now) * (s + narrow[i] @ m.mix_up_5rD[i]) for i, s in enumerate(shares)]
        w, k, v, r, g = mixed
        decay = heads(torch.exp(-torch.exp(m.decay_up(torch.tanh(m.decay_down(w))))))
        k, v, r = heads(m.k(k)), heads(m.v(v)), heads(m.r(r))
        outer = k[:, :, None] * v[:, None]
        y = (r[:, :, None] * (state + m.bonus_HK[:, :, None] * outer)).sum(1)
        state = decay[:, :, None] * state + outer
        rows.append(m.out(normed(y, m.norm) * F.silu(m.g(g))))
        before = now
    return torch.stack(rows)


def rwkv7(m, x, first):
    state, before, rows = torch.zeros(HEADS, WIDTH, WIDTH, dtype=x.dtype), torch.zeros_like(x[0]), []
    for t, now in enumerate(x):
        r, w, k, v, a, g = (now + (before - now) * share for share in m.shift.shares_nD)
        log_decay = -math.exp(-0.5) * torch.sigmoid(m.decay_up(torch.tanh(m.decay_down(w))))
        decay = heads(torch.exp(log_decay))
        rate, keys, values = heads(torch.sigmoid(m.rate_up(m.rate_down(a)))), heads(m.k(k)), m.v(v)
        if m.value_down is not None:
            values = values + (first[t] - values) * torch.sigmoid(m.value_up(m.value_down(v)))
        values, r = heads(values), heads(m.r(r))
        removal = keys * heads(m.scales_3D[0])
        removal = removal / removal.norm(dim=-1, keepdim=True)
        keys = keys * (1 + (rate - 1) * heads(m.scales_3D[1]))
        # what the removal key reads is taken away along the removal key times the rate
        seen = (removal[:, :, None] * state).sum(1)
        state = decay[:, :, None] * state - (removal * rate)[:, :, None] * seen[:, None]
        state = state + keys[:, :, None] * values[:, None]
        y = (r[:, :, None] * state).sum(1)
        bonus = (r * keys * heads(m.scales_3D[2])).sum(-1, keepdim=True) * values
        gate = m.gate_up(torch.sigmoid(m.gate_down(g)))
        rows.append(m.out((normed(y, m.norm) + bonus.flatten()) * gate))
        before = now
    return torch.stack(rows)


def test_rwkv6_is_its_equations():
    module = built(Rwkv6(n_heads=HEADS, mix_rank=3, decay_rank=2))
    x = normal(1, 9, 8).requires_grad_()
    assert_same(module(x, Context(), None)[0][0], rwkv6(module, x[0]), [x, *module.parameters()])


@pytest.mark.parametrize("value_rank", [0, 3])
def test_rwkv7_is_its_equations(value_rank):
    module = built(Rwkv7(n_heads=HEADS, decay_rank=3, rate_rank=2, gate_rank=4, value_rank=value_rank))
    x, first = normal(1, 9, 8).requires_grad_(), normal(1, 9, 8, seed=7)
    record = LayerValues()
    record.holder.values = first
    ours = module(x, Context(annotations=(record,)), None)[0][0]
    assert_same(ours, rwkv7(module, x[0], first[0]), [x, *module.parameters()])


@pytest.mark.parametrize("gate", ["none", "sigmoid"])
def test_channel_mixing_is_its_equations(gate):
    module = built(ChannelMix(d_ff=6, gate=gate))
    x = normal(1, 5, 8).requires_grad_()
    before = F.pad(x[:, :-1], (0, 0, 1, 0))
    k, *r = (x + (before - x) * share for share in module.shift.shares_nD)
    wanted = module.narrow(F.relu(module.widen(k)) ** 2)
    wanted = wanted if module.gate is None else torch.sigmoid(module.gate(r[0])) * wanted
    assert_same(module(x, Context(), None)[0], wanted, [x, *module.parameters()])


def test_values_of_the_first_layer_reach_the_others():
    model = kf.build(kf.relative("rwkv7", size="tiny", d_model=32, n_heads=2)).eval()
    tokens = torch.arange(9)[None]
    before = model(tokens).logits
    model.decoder.walk = model.decoder.walk.of
    assert not torch.allclose(model(tokens).logits, before)


@pytest.mark.parametrize("spec", [Rwkv6(n_heads=3), Rwkv7(n_heads=3)], ids=lambda spec: spec.kind)
def test_heads_that_do_not_fit_are_refused(spec):
    with pytest.raises(SpecError, match=f"{spec.kind}: d_model 8 is not a multiple of n_heads 3"):
        spec.build(DIMS)
