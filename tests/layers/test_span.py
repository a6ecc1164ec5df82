"""Learned spans: equal to their dense definition, cheaper as they shrink, remembered no further than they see."""

import itertools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.cost import Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.adaptive_span import AdaptiveSpan, DynamicSpan, learned_spans, within
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import ALiBi, Shaw
from kinfolk.layers.states.kv_cache import Ring, Slots
from kinfolk.ops.attention import attend as executor
from kinfolk.ops.attention import scores
from kinfolk.ops.naive import adaptive_span as slow
from kinfolk.ops.patterns.leaves import Causal, Full, PerHead, SameBlock, Window
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
SPANS = [AdaptiveSpan(max_span=11, ramp=3), DynamicSpan(max_span=11, ramp=3, start=-1.0)]


def layer(span, pattern=None, **options):
    torch.manual_seed(0)
    module = Attention(n_heads=3, pattern=pattern or Causal(), span=span, **options).build(DIMS).double()
    if isinstance(span, AdaptiveSpan):
        module.span.share_H.data.copy_(torch.tensor([0.03, 0.37, 0.51]))
    else:
        for p in module.span.parameters():
            torch.nn.init.normal_(p, std=0.3)
    return module


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def dense(module, inputs):
    """Write it out: all keys up to max_span, multiplied and made to sum to 1 again."""
    span = module.span
    q, k, v = (y.unflatten(-1, (3, 4)).transpose(1, 2) for y in module.qkv(inputs).chunk(3, -1))
    if isinstance(span.spec, AdaptiveSpan):
        reach = (11 * span.share_H)[None, :, None].expand(len(inputs), 3, inputs.shape[1])
    else:
        z = 11 / (1 + torch.exp(-(inputs @ span.share.weight.T + span.share.bias - 1.0)))
        reach = z.transpose(1, 2)
    y = slow.attend(q, k, v, module.spec.pattern & Window(left=10, right=10), reach, 3)
    return module.out(y.transpose(1, 2).flatten(2))


@pytest.fixture
def small_blocks(monkeypatch):
    for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
        monkeypatch.setattr(executor, name, value)
    monkeypatch.setattr("kinfolk.layers.mixers.adaptive_span.STEP", 4)


@pytest.mark.parametrize("span", SPANS, ids=lambda s: s.kind)
@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & SameBlock(size=5)], ids=repr)
@pytest.mark.parametrize("n", [1, 2, 17])
@pytest.mark.parametrize("gathered", [False, True])
def test_equals_its_dense_definition_with_all_gradients(span, pattern, n, gathered, request):
    if gathered:
        request.getfixturevalue("small_blocks")
    module, inputs = layer(span, pattern), x(n).requires_grad_()
    ours, theirs = module(inputs, Context(), None)[0], dense(module, inputs)
    assert_exact(ours, theirs)
    leaves, g = [inputs, *module.parameters()], torch.randn(ours.shape, dtype=torch.float64)
    pairs = [torch.autograd.grad((out * g).sum(), leaves) for out in (ours, theirs)]
    for name, a, b in zip(["x", *dict(module.named_parameters())], *pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
    if n == 17:
        assert all(grad.abs().sum() > 0 for grad in pairs[0])


@pytest.mark.parametrize("span", SPANS, ids=lambda s: s.kind)
@pytest.mark.parametrize("position", [NoPosition(), ALiBi(), Shaw(clip=3)], ids=lambda p: p.kind)
def test_the_whole_span_is_a_window(span, position):
    module = layer(span, position=position)
    parameter = module.span.share_H if isinstance(span, AdaptiveSpan) else module.span.share.bias
    parameter.data.fill_(1.0 if isinstance(span, AdaptiveSpan) else 60.0)
    plain = Attention(n_heads=3, pattern=Window(left=10), position=position).build(DIMS).double()
    plain.load_state_dict(module.state_dict(), strict=False)
    assert_exact(module(x(30), Context(), None)[0], plain(x(30), Context(), None)[0])


def test_no_span_and_the_shortest_ramp_see_the_token_itself():
    module = layer(AdaptiveSpan(max_span=11, ramp=1))
    module.span.share_H.data.zero_()
    alone = module.out(module.qkv(x(9))[..., 24:])
    assert_exact(module(x(9), Context(), None)[0], alone)


@pytest.mark.parametrize("span", SPANS, ids=lambda s: s.kind)
@pytest.mark.parametrize("chunks", [(1,) * 30, (7, 1, 1, 13, 8), (30,)], ids=lambda c: str(len(c)))
@pytest.mark.parametrize("options", [{}, {"position": ALiBi()}, {"n_kv_heads": 1}], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(span, chunks, options):
    module, full = layer(span, **options), x(30)
    want, _ = module(full, Context(), None)
    state, at, got = module.new_state(2, 30), 0, []
    assert isinstance(state, Ring)
    for n in chunks:
        y, state = module(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    assert_exact(torch.cat(got, 1), want)


@pytest.mark.parametrize("span", SPANS, ids=lambda s: s.kind)
def test_rows_at_their_own_positions_after_padded_prompts(span):
    module, full, lengths = layer(span), x(24, batch=3), torch.tensor([2, 15, 5])
    state = module.new_state(3, 24)
    keep = torch.arange(15) < lengths[:, None]
    module(full[:, :15], Context(padding=Padding(keep, right=True)), state)
    for step in range(8):
        pos = (lengths + step)[:, None]
        token = full[torch.arange(3)[:, None], pos]
        got, _ = module(token, Context(start=15 + step, pos_BL=pos), state)
        for row in range(3):
            want, _ = module(full[row : row + 1, : int(pos[row]) + 1], Context(), None)
            assert_exact(got[row, 0], want[0, -1])


def test_decoding_remembers_what_the_furthest_head_sees():
    module = layer(SPANS[0])
    # 0.51 of 11, the ramp of 3, rounded up
    assert module.new_state(2, 30).k_BGMK.shape[2] == 9
    module.span.share_H.data.fill_(0.1)
    assert module.new_state(2, 30).k_BGMK.shape[2] == 5
    assert type(module.new_state(2, 4)) is Slots
    assert layer(SPANS[1]).new_state(2, 30).k_BGMK.shape[2] == 11


def scores_made(module, n, monkeypatch):
    """Count the scores of a forward pass as they are made."""
    made, real = 0, scores.softmax_product

    def counting(q, k, *args, **kwargs):
        nonlocal made
        made += q.shape[:-1].numel() * k.shape[-2]
        return real(q, k, *args, **kwargs)

    monkeypatch.setattr(scores, "softmax_product", counting)
    module(x(n, batch=1).to(module.out.weight), Context(), None)
    monkeypatch.setattr(scores, "softmax_product", real)
    return made


@pytest.mark.parametrize("kind", [AdaptiveSpan, DynamicSpan])
def test_shorter_spans_make_fewer_scores(kind, monkeypatch):
    n, made = 4096, []
    for share in (0.01, 0.06, 0.25, 0.6):
        module = layer(kind(max_span=2048, ramp=32))
        if kind is AdaptiveSpan:
            module.span.share_H.data.copy_(torch.tensor([0.0, share, 0.0]))
        else:
            module.span.share.weight.data.zero_()
            module.span.share.bias.data.fill_(torch.tensor(share).logit() + 4)
        made.append(scores_made(module.float(), n, monkeypatch) / (3 * n))
        seen = share * 2048 + 32
        # no less than is seen, and no more than up to a block on either side and a quarter of padding
        assert 0.5 * min(seen, 1000) < made[-1] < 1.25 * (seen + 2 * executor.BLOCK + 64)
    assert made == sorted(made)
    assert made[0] < 0.2 * made[-1]


def test_the_number_of_scores_grows_with_the_length_and_not_its_square(monkeypatch):
    module = layer(AdaptiveSpan(max_span=8192, ramp=32)).float()
    module.span.share_H.data.fill_(0.01)
    counts = [scores_made(module, n, monkeypatch) for n in (2048, 4096, 8192)]
    assert all(1.9 < b / a < 2.1 for a, b in itertools.pairwise(counts))


def test_spans_are_reported_and_paid_for():
    for span in SPANS:
        module, taps, losses = layer(span.replace(penalty=0.5)).train(), Taps(), {}
        keep = torch.arange(8) < torch.tensor([[8], [5]])
        module(x(8), Context(taps=taps, side_losses=losses, padding=Padding(keep, right=True)), None)
        z = taps.found["span"]
        if isinstance(span, AdaptiveSpan):
            assert_exact(z, 11 * module.span.share_H.detach()[None, :, None])
            assert_exact(losses["span"], 0.5 * z.mean())
            # only the penalty, equal for all heads, per position of each
            (grad,) = torch.autograd.grad(losses["span"], module.span.share_H)
            assert_exact(grad, torch.full((3,), 0.5 * 11 / 3, dtype=torch.float64))
        else:
            assert z.shape == (2, 3, 8)
            assert_exact(losses["span"], 0.5 * torch.cat([z[0].mT, z[1, :, :5].mT]).mean())
        losses.clear()
        module.eval()(x(8), Context(side_losses=losses), None)
        assert losses == {}


def test_learned_spans_of_a_model_can_be_read():
    model = kf.build(kf.relative("adaptive-span", size="tiny"))
    first = model.decoder.blocks[0].parts[0].span
    first.share_H.data.copy_(torch.tensor([0.0, 0.5, 1.0, 1.5]))
    found = learned_spans(model)
    assert list(found) == ["decoder.blocks.0.parts.0.span", "decoder.blocks.1.parts.0.span"]
    assert found["decoder.blocks.0.parts.0.span"].tolist() == [0.0, 256.0, 512.0, 512.0]
    assert learned_spans(kf.build(kf.relative("dynamic-span", size="tiny"))) == {}


def test_a_share_stays_between_nothing_and_everything():
    module = layer(SPANS[0]).train()
    module.span.share_H.data.copy_(torch.tensor([-0.2, 0.4, 1.3]))
    before = module(x(9), Context(), None)[0]
    assert module.span.share_H.tolist() == pytest.approx([-0.2, 0.4, 1.3])
    module.span.at_step(1)
    after = module(x(9), Context(), None)[0]
    assert_exact(before, after)
    assert module.span.share_H.tolist() == pytest.approx([0.0, 0.4, 1.0])
    # at 0 the gradient can bring it back
    after.sum().backward()
    assert module.span.share_H.grad[0] != 0


def test_a_large_penalty_shrinks_all_spans():
    module = layer(AdaptiveSpan(max_span=11, ramp=3, penalty=10.0)).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(1, 21):
        module.span.at_step(step)
        losses = {}
        out = module(x(9), Context(side_losses=losses), None)[0]
        (out.pow(2).mean() + losses["span"]).backward()
        optimiser.step()
        optimiser.zero_grad()
    module.span.at_step(21)
    assert module.span.share_H.tolist() == [0.0, 0.0, 0.0]


def test_patterns_within_a_distance():
    at = torch.arange(20)
    for pattern in (Causal(), Full(), Causal() & SameBlock(size=7)):
        want = pattern.allows(at[:, None], at) & ((at[:, None] - at).abs() < 5)
        assert torch.equal(within(pattern, 5).allows(at[:, None], at), want)
        assert within(pattern, 5).causal == pattern.causal
    per_head = within(PerHead(patterns=(Causal(), Window(left=2))), 5)
    assert per_head == PerHead(patterns=(Window(left=4), Window(left=2) & Window(left=4)))
    module = layer(SPANS[0], PerHead(patterns=(Causal(), Window(left=2), Window(left=30))))
    assert module(x(9), Context(), None)[0].isfinite().all()


def test_counts_its_parameters_and_refuses_what_cannot_be():
    for span, extra in ((SPANS[0], 3), (SPANS[1], 3 * 13)):
        spec = Attention(n_heads=3, pattern=Causal(), span=span)
        n = sum(p.numel() for p in spec.build(DIMS).parameters())
        assert spec.cost(DIMS, Shape(7)).params == n
        assert n - Attention(n_heads=3).cost(DIMS, Shape(7)).params == extra
    with pytest.raises(SpecError, match="ramp: 0 is not allowed; at least 1"):
        AdaptiveSpan(ramp=0)
    with pytest.raises(SpecError, match="cannot decode step by step"):
        layer(SPANS[0], Full()).new_state(1, 4)
