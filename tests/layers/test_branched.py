"""Heads that think by themselves, against the formula in loops, and against attention and feed-forward in a row."""

import pytest
import torch

from kinfolk.core.context import Context, Padding
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.experts import Experts
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.convolution import LightConv
from kinfolk.layers.mixers.weighted_heads import Branched
from kinfolk.layers.module import Dims
from kinfolk.ops.patterns.leaves import Causal

D, F = 12, 20
DIMS = Dims(d_model=D, vocab_size=7, max_len=32, dropout=0.0, n_sublayers=4)
LOOKS = [Attention(n_heads=3), Attention(n_heads=3, pattern=Causal(), d_head=5, bias=False), CrossAttention(n_heads=2)]


def built(spec):
    torch.manual_seed(0)
    module = spec.build(DIMS).double()
    for p in module.parameters():
        p.data.normal_(std=0.5)
    return module


def context():
    g = torch.Generator().manual_seed(1)
    return Context(encoder_output=EncoderOutput(torch.randn(2, 5, D, generator=g, dtype=torch.float64)))


def heads(module, x, ctx):
    """Return what attention hands to the map that joins its heads."""
    inside, module.out = module.out, torch.nn.Identity()
    y = module(x, ctx, None)[0]
    module.out = inside
    return y


def normalised(numbers):
    total = sum(n.exp() for n in numbers)
    return [n.exp() / total for n in numbers]


@pytest.mark.parametrize("think", [Dense(d_ff=F), Gated(d_ff=F, activation="swish", bias=True)], ids=lambda s: s.kind)
@pytest.mark.parametrize("look", LOOKS, ids=["full", "causal", "cross"])
@pytest.mark.parametrize("length", [1, 7])
def test_it_is_the_weighted_sum_of_its_branches(look, think, length):
    module, ctx = built(Branched(look=look, think=think)), context()
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    got = module(x, ctx, None)[0]
    y, out = heads(module, x, ctx), module.out
    width = y.shape[-1] // look.n_heads
    before, after = (normalised(list(row)) for row in out.shares_2H)
    want = 0
    for i in range(look.n_heads):
        mine = slice(i * width, (i + 1) * width)
        hidden = before[i] * (y[..., mine] @ out.join.weight[:, mine].T)
        want = want + after[i] * out.think(hidden, ctx, None)[0]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    inputs, scale = [x, *module.parameters()], torch.randn_like(got)
    pairs = [torch.autograd.grad((z * scale).sum(), inputs, allow_unused=True) for z in (got, want)]
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n_heads", [1, 3])
def test_with_a_linear_feed_forward_it_is_attention_and_then_that(n_heads):
    """Equal shares are 1 / heads before and after; attention has them in the map of its heads."""
    look, think = Attention(n_heads=n_heads), Dense(d_ff=F, activation="identity")
    module, plain = built(Branched(look=look, think=think)), built(look)
    plain.qkv.load_state_dict(module.qkv.state_dict())
    plain.out.weight.data, plain.out.bias.data = module.out.join.weight.data / n_heads**2, torch.zeros(D).double()
    module.out.shares_2H.data.zero_()
    x = torch.randn(2, 7, D, dtype=torch.float64)
    want = module.out.think(plain(x, Context(), None)[0], Context(), None)[0]
    torch.testing.assert_close(module(x, Context(), None)[0], want, rtol=1e-10, atol=1e-10)


def test_one_head_is_attention_and_then_the_feed_forward():
    look, think = Attention(n_heads=1, pattern=Causal()), Dense(d_ff=F)
    module, plain = built(Branched(look=look, think=think)), built(look)
    plain.qkv.load_state_dict(module.qkv.state_dict())
    plain.out.weight.data, plain.out.bias.data = module.out.join.weight.data, torch.zeros(D).double()
    x, keep = torch.randn(2, 7, D, dtype=torch.float64), torch.arange(7) < torch.tensor([[7], [3]])
    ctx = Context(padding=Padding.of(keep))
    want = module.out.think(plain(x, ctx, None)[0], ctx, None)[0]
    torch.testing.assert_close(module(x, ctx, None)[0], want, rtol=1e-10, atol=1e-10)


def test_shares_are_drawn_uniformly_and_add_up_to_one():
    module = built(Branched(look=Attention(n_heads=4), think=Dense(d_ff=F)))
    torch.manual_seed(0)
    drawn = []
    for _ in range(300):
        module.out.draw()
        shares = module.out.shares_2H.softmax(1)
        assert (shares > 0).all()
        torch.testing.assert_close(shares.sum(1), torch.ones(2, dtype=torch.float64))
        drawn.append(module.out.shares_2H.detach().exp())
    assert 0.45 < torch.stack(drawn).mean() < 0.55
    assert torch.stack(drawn).std() == pytest.approx(12**-0.5, rel=0.1)


def test_what_has_no_branches_is_refused():
    with pytest.raises(SpecError, match="no heads to branch"):
        Branched(look=LightConv(n_heads=2, kernel=3), think=Dense(d_ff=F))
    with pytest.raises(SpecError, match="compete"):
        Branched(look=Attention(n_heads=2), think=Experts(n_experts=2, d_ff=F))
