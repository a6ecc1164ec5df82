"""Attention with extras: against plain loops, fla's reference and torch's convolution, and step by step."""

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.annotations import TokenIds
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.attention_extras import ForgetGate, HeadGate, QKVConv
from kinfolk.layers.mixers.canon_conv import CanonConv, CanonGated
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.ops.naive.forgetting_attention import forgetting_attention
from kinfolk.ops.patterns.leaves import Causal, Window
from tests.layers.test_latent_attention import DIMS, assert_same, built, normal
from tests.ops.test_recurrences import fla, needs_fla

PLAIN = {"n_heads": 4, "n_kv_heads": 2, "bias": False, "pattern": Causal()}


def heads(module, x):
    packed = module.qkv(x).unflatten(-1, (-1, 2))[0].transpose(0, 1)
    return packed.split([4, 2, 2])


@pytest.mark.parametrize("n_kv_heads", [0, 2])
def test_forgetting_attention_equals_naive(n_kv_heads):
    module = built(ExtendedAttention(**(PLAIN | {"n_kv_heads": n_kv_heads}), extras=(ForgetGate(),)))
    x = normal(1, 6, 8).requires_grad_()
    n = n_kv_heads or 4
    q, k, v = module.qkv(x).unflatten(-1, (-1, 2))[0].transpose(0, 1).split([4, n, n])
    log_gate = F.logsigmoid(module.extras[0].gate(x))[0].mT
    naive = module.out(forgetting_attention(q, k, v, log_gate).transpose(0, 1).flatten(1))
    assert_same(module(x, Context(), None)[0][0], naive, [x, *module.parameters()])


@needs_fla
def test_forgetting_attention_equals_fla():
    """The reference computes in single precision."""
    module = built(ExtendedAttention(**PLAIN, extras=(ForgetGate(),)))
    x = normal(2, 70, 8)
    with torch.no_grad():
        q, k, v = (part.transpose(1, 2) for part in module.heads_of(module.qkv(x), Context()))
        gates = F.logsigmoid(module.extras[0].gate(x))
        theirs = fla("forgetting_attn").naive_forgetting_attn(q, k, v, gates).flatten(2).double()
        torch.testing.assert_close(module(x, Context(), None)[0], module.out(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["replace", "add"])
def test_queries_keys_and_values_are_convolved(form):
    module = built(ExtendedAttention(**PLAIN, extras=(QKVConv(form=form),)))
    x = normal(1, 6, 8).requires_grad_()
    qkv, taps = module.qkv(x), module.extras[0].conv.taps_Dt
    conv = F.conv1d(F.pad(qkv.mT, (2, 0)), taps[:, None], groups=len(taps)).mT
    packed = conv + qkv if form == "add" else conv
    q, k, v = packed.unflatten(-1, (-1, 2)).transpose(1, 2).split([4, 2, 2], 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wanted = module.out(y.transpose(1, 2).flatten(2))
    assert_same(module(x, Context(), None)[0], wanted, [x, *module.parameters()])


@pytest.mark.parametrize("by", ["channel", "head"])
def test_heads_are_gated(by):
    module = built(ExtendedAttention(**PLAIN, extras=(HeadGate(by=by),)))
    x = normal(1, 6, 8).requires_grad_()
    y = F.scaled_dot_product_attention(*(part[None] for part in heads(module, x)), is_causal=True, enable_gqa=True)
    gate = module.extras[0].gate(x).sigmoid().unflatten(-1, (4, -1)).transpose(1, 2)
    wanted = module.out((y * gate).transpose(1, 2).flatten(2))
    assert_same(module(x, Context(), None)[0], wanted, [x, *module.parameters()])


def test_a_canon_layer_adds_a_convolution_before_its_part():
    module = built(CanonConv(part=Attention(**PLAIN)))
    x = normal(1, 6, 8).requires_grad_()
    conv = F.conv1d(F.pad(x.mT, (3, 0)), module.conv.taps_Dt[:, None], groups=8).mT
    wanted = module.part(x + conv, Context(), None)[0]
    assert_same(module(x, Context(), None)[0], wanted, [x, *module.parameters()])


@pytest.mark.parametrize("pattern", [Causal(), Causal() & Window(left=2)], ids=repr)
def test_all_extras_together_decode_and_ignore_padding(pattern):
    extras = QKVConv(), ForgetGate(), HeadGate()
    module = built(ExtendedAttention(**(PLAIN | {"pattern": pattern}), extras=extras))
    x = normal(2, 7, 8)
    with torch.no_grad():
        whole = module(x, Context(), None)[0]
        state, steps = module.new_state(2, 7), []
        for t in range(7):
            steps.append(module(x[:, t : t + 1], Context(start=t), state)[0])
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-10, atol=1e-12)
        # two padded positions before the rest change nothing behind them
        keep = torch.tensor([[False] * 2 + [True] * 7] * 2)
        padded = torch.cat([normal(2, 2, 8, seed=5), x], 1)
        ctx = Context(padding=Padding.of(keep), pos_BL=torch.arange(-2, 7).clamp(min=0).expand(2, 9))
        torch.testing.assert_close(module(padded, ctx, None)[0][:, 2:], whole, rtol=1e-10, atol=1e-12)


def test_half_precision_keeps_sums_of_gates():
    """Of a sum near 600 bfloat16 has two digits: the weights of a long sequence are those of single precision."""
    spec = ExtendedAttention(n_heads=1, bias=False, pattern=Causal(), extras=(ForgetGate(),))
    module = spec.build(DIMS).float()
    x = normal(1, 900, 8).float()
    with torch.no_grad():
        whole = module(x, Context(), None)[0]
        half = module.bfloat16()(x.bfloat16(), Context(), None)[0]
    assert float((half.float() - whole).abs().max()) < 0.05 * float(whole.abs().max())


def test_extras_are_named_changes():
    spec = kf.relative("gpt2+head-gate+forget-gate", size="tiny")
    parts = [block.parts[0] for block in spec.model.decoder.blocks]
    assert all(part.extras == (HeadGate(), ForgetGate()) for part in parts)
    with pytest.raises(SpecError, match="extras: forget-gate, forget-gate names a kind twice"):
        kf.relative("gpt2+forget-gate+forget-gate", size="tiny")
    with pytest.raises(SpecError, match="forget-gate: scores decay towards the past"):
        kf.build(kf.relative("bert+forget-gate", size="tiny"))


def test_padding_in_the_middle_forgets_nothing():
    module = built(ExtendedAttention(**PLAIN, extras=(ForgetGate(), HeadGate())))
    x = normal(2, 7, 8)
    padded = torch.cat([x[:, :3], normal(2, 2, 8, seed=5), x[:, 3:]], 1)
    keep = torch.tensor([[True] * 3 + [False] * 2 + [True] * 4] * 2)
    with torch.no_grad():
        found = module(padded, Context(padding=Padding.of(keep)), None)[0]
        torch.testing.assert_close(found[keep], module(x, Context(), None)[0].flatten(0, 1), rtol=1e-10, atol=1e-12)


def test_value_embeddings_are_looked_up_by_token_and_shared_by_table():
    toy = {"d_model": 8, "n_layers": 4, "n_heads": 2, "group": 1, "d_ff": 12, "vocab_size": 20, "max_len": 16}
    model = kf.build(kf.relative("value-embeddings", n_tables=1, **toy)).double()
    tables = [m for m in model.decoder.shared if isinstance(m, torch.nn.Embedding)]
    first, *middle, last = (block.parts[0] for block in model.decoder.blocks)
    assert [t.weight.shape for t in tables] == [(20, 8)]
    assert first.extras[0].table is last.extras[0].table is tables[0]
    assert all(not hasattr(look, "extras") for look in middle)
    tokens = torch.tensor([[7, 12, 7]])
    v = normal(1, 2, 3, 4).requires_grad_()
    own, other = first.extras[0].shares_2
    rows = [own * v[0, :, i] + other * tables[0].weight[t].view(2, 4) for i, t in enumerate(tokens[0])]
    got = first.extras[0].valued(v, Context(annotations=(TokenIds(tokens),)))
    assert_same(got[0], torch.stack(rows, 1), [v, first.extras[0].shares_2, tables[0].weight])
    with pytest.raises(ShapeError, match="shown-tokens"):
        first.extras[0].valued(v, Context())


def test_canon_inside_the_feed_forward():
    module, x = built(CanonGated(d_ff=3, activation="swish")), normal(1, 6, 8).requires_grad_()
    u = x[0] @ module.widen.weight.T
    rows = []
    for i in range(6):
        here = u[i]
        for t in range(4):
            if i - t >= 0:
                here = here + module.conv.taps_Dt[:, 3 - t] * u[i - t]
        gate, value = here.chunk(2)
        rows.append(module.narrow.weight @ (F.silu(gate) * value))
    assert_same(module(x, Context(), None)[0][0], torch.stack(rows), [x, *module.parameters()])
