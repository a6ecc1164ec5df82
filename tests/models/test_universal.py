"""One block again and again: identities of the Universal Transformer, and halting against a loop over positions."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.feed_forwards.transition import ConvTransition
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.module import Dims
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.position import DepthTime
from kinfolk.layers.positions.relative import XL, Rotary, Shaw, T5Buckets
from kinfolk.layers.residuals.residual import PostNorm, PreNorm
from kinfolk.models.block import Block
from kinfolk.models.depth.halting import Halting, Universal
from kinfolk.models.stack import Stack
from kinfolk.ops.naive import act as naive
from kinfolk.ops.patterns.leaves import Causal, Full, Window

D, M = 12, 5
NUMBERS = {"d_model": 16, "n_layers": 3, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 32}
LOOK, ACROSS, THINK = Attention(n_heads=3), CrossAttention(n_heads=2), Dense(d_ff=20)
DIMS = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=4)
PATTERNS = {"full": Full(), "causal": Causal(), "window": Causal() & Window(left=3)}


def block(pattern="full", position=None, residual=None, parts=(ACROSS, THINK)):
    look = LOOK.replace(pattern=PATTERNS[pattern])
    look = look if position is None else look.replace(position=position)
    return Block(parts=(look, *parts), residual=residual or PostNorm())


def module(one, halting=None, steps=M, direction="both", spread=2.0, **fields):
    """A depth whose positions halt after different numbers of steps."""
    spec = Universal(
        blocks=(one,), order=(0,) * steps, position=DepthTime(), halting=halting or Halting(bias=-1.0), **fields
    )
    torch.manual_seed(0)
    m = spec.build(Dims(**{**vars(DIMS), "direction": direction})).double()
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.4)
    m.unit.weight_1D.data *= spread
    m.unit.bias_1.data.fill_(-1.0)
    return m


def inputs(n=11, batch=3):
    g = torch.Generator().manual_seed(n)
    x, memory = (torch.randn(batch, k, D, generator=g, dtype=torch.float64, requires_grad=True) for k in (n, 4))
    return x, memory


def by_hand(m, x, ctx, halting):
    """Every position on its own: its chances, its weights, its sum; then the loss of pondering."""
    n_batch, length, _ = x.shape
    states, chances = [x], []
    halted = [[None] * length for _ in range(n_batch)]
    for n in range(len(m.order)):
        s = states[-1]
        p = torch.sigmoid(s @ m.unit.weight_1D[0] + m.unit.bias_1)
        p = p.mean(1, keepdim=True).expand_as(p) if halting.scope == "sequence" else p
        chances.append(p)
        new = m.blocks[0](m.position.add(s, ctx, n + 1), ctx, None)
        rows = [
            [new[b, i] if halted[b][i] is None or halting.halted == "moving" else s[b, i] for i in range(length)]
            for b in range(n_batch)
        ]
        states.append(torch.stack([torch.stack(row) for row in rows]))
        for b in range(n_batch):
            for i in range(length):
                column = [c[b, i] for c in chances] + [torch.ones(())] * (len(m.order) > n + 1)
                if halted[b][i] is None and len(naive.weights(column, halting.eps)) == n + 1:
                    halted[b][i] = naive.weights(column, halting.eps)
    out, ponder = torch.zeros_like(x), 0.0
    for b in range(n_batch):
        for i in range(length):
            total = torch.zeros(D, dtype=x.dtype)
            for w, s in zip(halted[b][i], states[1:], strict=False):
                total = total * (1 - w) if halting.accumulate == "blend" else total
                total = total + w * s[b, i]
            out = out + torch.zeros_like(out).index_put((torch.tensor(b), torch.tensor(i)), total)
            ponder = ponder + len(halted[b][i]) + halted[b][i][-1]
    steps = torch.tensor([[len(w) for w in row] for row in halted])
    return m.norm(out), halting.ponder * ponder / (n_batch * length), steps


def gradients(m, run):
    x, memory = inputs()
    ctx = Context(encoder_output=EncoderOutput(memory), side_losses={})
    y, ponder = run(x, ctx)
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() + 100 * ponder
    return y, torch.autograd.grad(loss, [x, memory, *m.parameters()])


def ours(m):
    def run(x, ctx):
        return m(x, ctx, None), ctx.side_losses["ponder"]

    return run


VARIANTS = {
    "mean": {},
    "blend": {"accumulate": "blend"},
    "moving": {"halted": "moving"},
    "sequence": {"scope": "sequence"},
    "early": {"eps": 0.4},
}


@pytest.mark.parametrize("crowded", [-1.0, 1.0], ids=["all are run", "halted are skipped"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("pattern", ["full", "causal"])
def test_halting_is_a_loop_over_positions(variant, pattern, crowded):
    halting = Halting(bias=-1.0, **VARIANTS[variant])
    m = module(block(pattern), halting)
    m.reader.crowded = crowded
    found = {}

    def hand(x, ctx):
        y, ponder, found["steps"] = by_hand(m, x, ctx, halting)
        return y, ponder

    want, want_grads = gradients(m, hand)
    got, got_grads = gradients(m, ours(m))
    assert found["steps"].unique().numel() > (1 if variant == "sequence" else 2)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-9)
    taps, (x, memory) = Taps(frozenset(["steps", "remainders"])), inputs()
    m(x, Context(encoder_output=EncoderOutput(memory), taps=taps), None)
    assert torch.equal(taps.found["steps"].long(), found["steps"])
    assert ((taps.found["remainders"] > 0) & (taps.found["remainders"] <= 1)).all()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("position", [None, Rotary(), T5Buckets(), Shaw(clip=4), XL()], ids=str)
@pytest.mark.parametrize("residual", [PostNorm(), PreNorm()], ids=lambda r: r.kind)
@pytest.mark.parametrize("where", ["plain", "padded", "packed"])
def test_skipping_changes_nothing(pattern, position, residual, where):
    m = module(block(pattern, position, residual), norm=LayerNorm())
    x, memory = inputs()
    ctx = Context(encoder_output=EncoderOutput(memory))
    keep = torch.ones(3, 11, dtype=torch.bool)
    if where == "padded":
        keep = torch.arange(11) < torch.tensor([[11], [6], [1]])
        ctx = ctx.replace(padding=Padding(keep, right=True))
    if where == "packed":
        group = (torch.arange(11) >= 4).long().expand(3, 11)
        ctx = ctx.replace(group_BL=group, pos_BL=torch.arange(11) - 4 * group)
    m.reader.crowded = -1.0
    want = m(x, ctx, None)
    m.reader.crowded = 1.0
    torch.testing.assert_close(m(x, ctx, None)[keep], want[keep], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("crowded", [-1.0, 1.0])
@pytest.mark.parametrize("pattern", ["causal", "window"])
@pytest.mark.parametrize("chunks", [(1,) * 11, (4, 1, 6)], ids=str)
def test_tokens_that_halted_are_seen_by_later_ones(pattern, chunks, crowded):
    m = module(block(pattern), direction="past")
    x, memory = inputs()
    want = m(x, Context(encoder_output=EncoderOutput(memory)), None)
    m.reader.crowded, states, at, got = crowded, m.new_state(3, 11), 0, []
    for n in chunks:
        got.append(m(x[:, at : at + n], Context(start=at, encoder_output=EncoderOutput(memory)), states))
        at += n
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-11)


def test_positions_that_halt_together_do_not_ask_padding():
    m, (x, memory) = module(block(), Halting(scope="sequence")), inputs()
    want = m(x[:, :7], Context(encoder_output=EncoderOutput(memory)), None)
    keep = torch.arange(11).expand(3, 11) < 7
    got = m(x, Context(encoder_output=EncoderOutput(memory), padding=Padding(keep, right=True)), None)
    torch.testing.assert_close(got[:, :7], want, rtol=1e-10, atol=1e-11)


def test_halting_forced_late_is_a_fixed_number_of_steps():
    m = module(block())
    fixed = Stack(blocks=(block(),), order=(0,) * M, position=DepthTime()).build(DIMS).double()
    fixed.load_state_dict({k: v for k, v in m.state_dict().items() if not k.startswith("unit")})
    x, memory = inputs()
    ctx = Context(encoder_output=EncoderOutput(memory))
    m.unit.weight_1D.data.zero_()
    m.unit.bias_1.data.fill_(-40.0)
    torch.testing.assert_close(m(x, ctx, None), fixed(x, ctx, None), rtol=1e-12, atol=1e-12)
    m.unit.bias_1.data.fill_(40.0)
    fixed.order = (0,)
    torch.testing.assert_close(m(x, ctx, None), fixed(x, ctx, None), rtol=1e-12, atol=1e-12)


def test_one_step_is_a_plain_block():
    spec = kf.relative("universal", size="tiny", **{**NUMBERS, "n_layers": 1})
    plain = kf.relative("vanilla", size="tiny", **{**NUMBERS, "n_layers": 1})
    a, b = kf.build(spec).double().eval(), kf.build(plain).double().eval()
    b.load_state_dict(a.state_dict())
    source, target = torch.randint(7, 31, (2, 6)), torch.randint(7, 31, (2, 5))
    # what is left is the sinusoid of the first step, which goes to every embedding
    step = a.encoder.position.table_LD[1].double()
    b.embedding.table.weight.data += step / b.embedding.scale
    b.head.embedding = a.embedding
    torch.testing.assert_close(a(source, target).logits, b(source, target).logits, rtol=1e-9, atol=1e-9)


def test_the_number_of_weights_does_not_depend_on_the_number_of_steps():
    sizes = {kf.build(kf.relative("universal", size="tiny", **{**NUMBERS, "n_layers": n})).n_params for n in (1, 2, 7)}
    assert len(sizes) == 1
    act = kf.build(kf.relative("universal-act", size="tiny", **NUMBERS)).n_params
    assert act == sizes.pop() + 2 * (NUMBERS["d_model"] + 1)


def test_fewer_steps_are_less_work():
    """In the number of operations: halted positions cost their keys and values only."""
    m, x = module(block(parts=(THINK.replace(d_ff=4 * D),)), steps=6).eval(), inputs(n=64, batch=2)[0].detach()
    m.unit.weight_1D.data.zero_()

    def work(bias_of_half):
        x[..., 0] = 0.0
        x[:, ::2, 0] = 1.0
        m.unit.weight_1D.data[0, 0], m.unit.bias_1.data[0] = bias_of_half + 40.0, -40.0
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            m(x, Context(), None)
        return counter.get_total_flops()

    full, half = work(-40.0), work(40.0)
    assert half < 0.7 * full
    m.unit.weight_1D.data.zero_()
    m.unit.bias_1.data.fill_(40.0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        m(x, Context(), None)
    assert counter.get_total_flops() < full / 5


def test_the_convolutional_transition_reads_neighbours_and_decodes():
    numbers = {**NUMBERS, "transition": "convolution"}
    for name in ("universal", "universal-act"):
        model = kf.build(kf.relative(name, size="tiny", **numbers)).double().eval()
        assert any(isinstance(p, ConvTransition) for p in model.spec.decoder.blocks[0].parts)
        source, target = torch.randint(7, 31, (2, 6)), torch.randint(7, 31, (2, 9))
        full = model(source, target).logits
        state = model.new_state(2, 9)
        got = [model(source, target[:, :4], state=state).logits]
        got += [model(target[:, i : i + 1], state=state).logits for i in range(4, 9)]
        torch.testing.assert_close(torch.cat(got, 1), full, rtol=1e-9, atol=1e-11)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="accumulate"):
        Halting(accumulate="maen")
    with pytest.raises(SpecError, match="eps"):
        Halting(eps=0.0)
    with pytest.raises(SpecError, match="future"):
        module(block("causal"), Halting(scope="sequence"), direction="past")
    m, (x, memory) = module(block(), Halting(scope="sequence")), inputs()
    with pytest.raises(ShapeError, match="together"):
        m(x, Context(encoder_output=EncoderOutput(memory), group_BL=torch.zeros(3, 11).long()), None)
    with pytest.raises(SpecError, match="transition"):
        kf.relative("universal", size="base", transition="convolutoin")
    with pytest.raises(SpecError, match="odd"):
        ConvTransition(d_ff=3, kernels=(3, 4))


def test_recomputed_steps_have_the_same_gradients():
    m = module(block("causal")).train()
    m.reader.crowded = 1.0
    _, want = gradients(m, ours(m))
    m.recompute = "blocks"
    _, got = gradients(m, ours(m))
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", ["stack", "universal", "skipping"])
def test_the_position_of_a_step_counts_from_one(kind, monkeypatch):
    """Dehghani et al. 2019, equation 6: the first step is t = 1."""
    fields = {"blocks": (block(parts=(THINK,)),), "order": (0, 0, 0), "position": DepthTime()}
    spec = Stack(**fields) if kind == "stack" else Universal(**fields)
    built, steps = spec.build(DIMS), []
    if kind == "skipping":
        # halted positions are left out from the first step on, whatever their share
        built.reader.crowded = 1.0
    x_BLD = torch.randn(2, 4, D)
    add = built.position.add
    monkeypatch.setattr(built.position, "add", lambda x, ctx, step: steps.append(step) or add(x, ctx, step))
    built.run(x_BLD, Context(), None, None)
    assert steps[0] == 1
    assert steps == list(range(1, len(steps) + 1))


def test_blocks_whose_positions_halt_are_not_sharded_whole():
    """A process may end a pass before another, and halted positions pass through parts alone."""
    fields = {"blocks": (block(parts=(THINK,)), block(parts=(THINK,))), "order": (0, 1)}
    assert Universal(**fields).build(DIMS).divided == {0, 1}
    assert Stack(**fields).build(DIMS).divided == frozenset()
