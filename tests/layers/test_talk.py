"""Attention whose heads talk: what it reduces to, that it decodes, and what it refuses."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.cost import Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.talking_heads import Talking
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.relative import ALiBi, Shaw
from kinfolk.ops.patterns.leaves import Causal, Full, PerHead, Window

DIMS = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)


def layer(talk=True, identity=False, **options):
    torch.manual_seed(0)
    spec = Attention(n_heads=4, **({"pattern": Causal()} | options))
    module = (spec.replace(talk=Talking()) if talk else spec).build(DIMS).double()
    torch.manual_seed(1)
    for p in module.talk.parameters():
        if not identity:
            torch.nn.init.normal_(p)
    return module


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 2}, {"position": ALiBi()}, {"position": Shaw(clip=3)}], ids=str)
def test_starts_as_ordinary_attention(options):
    ours, theirs = layer(identity=True, **options), layer(talk=False, **options)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    torch.testing.assert_close(ours(x(11), Context(), None)[0], theirs(x(11), Context(), None)[0], rtol=1e-12, atol=0)
    ours.talk.weights_HH.data = ours.talk.weights_HH.data.flip(0)
    assert not torch.allclose(ours(x(11), Context(), None)[0], theirs(x(11), Context(), None)[0])


def test_a_model_is_its_parent_at_first():
    ours, theirs = (kf.build(kf.relative(name, size="tiny"), seed=3).eval() for name in ("talking-heads", "gpt2"))
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", [Causal(), Window(left=4)], ids=repr)
@pytest.mark.parametrize("chunks", [(1,) * 17, (7, 1, 1, 5, 3)], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(pattern, chunks):
    attention, full = layer(pattern=pattern), x(17)
    want, _ = attention(full, Context(), None)
    state, at, got = attention.new_state(2, 17), 0, []
    for n in chunks:
        y, state = attention(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-12)


def test_dropout_falls_on_what_has_been_mixed():
    """With one head, a map is a factor, and dropout a mask of the weights times 1 / (1 - p)."""
    attention = Attention(n_heads=1, dropout=0.5, talk=Talking()).build(DIMS).double().train()
    attention.talk.weights_HH.data.fill_(3.0)
    attention.out.weight.data.copy_(torch.eye(12))
    attention.out.bias.data.zero_()
    attention.qkv.weight.data.zero_()
    attention.qkv.bias.data.fill_(1.0)
    torch.manual_seed(0)
    got = attention(x(50), Context(), None)[0]
    # each of 50 equal weights is dropped or doubled, so outputs are multiples of 3 * 2 / 50
    assert torch.allclose((got / 0.12).round() * 0.12, got)
    assert abs(got.mean() - 3) < 0.2


def test_counts_its_parameters_and_refuses_a_pattern_per_head():
    for n_heads in (1, 3, 4):
        spec = Attention(n_heads=n_heads, talk=Talking())
        n = sum(p.numel() for p in spec.build(DIMS).parameters())
        assert (
            spec.cost(DIMS, Shape(7)).params
            == n
            == Attention(n_heads=n_heads).cost(DIMS, Shape(7)).params + (2 * n_heads**2)
        )
    with pytest.raises(SpecError, match="cannot have one pattern per head"):
        layer(pattern=PerHead(patterns=(Full(), Causal())))
