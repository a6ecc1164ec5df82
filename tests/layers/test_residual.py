import math

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.family.assembly import with_residual
from kinfolk.layers.feed_forwards.feed_forward import Dense, ShiftedDense
from kinfolk.layers.init import FixupInit as FixupInit
from kinfolk.layers.init import seeded
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims, Module
from kinfolk.layers.norms.norm import LayerNorm, NoNorm, RMSNorm
from kinfolk.layers.residuals.gate import AddGate, GRUGate, HighwayGate, InputGate, OutputGate, SigmoidTanhGate
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.layers.residuals.rezero import Fixup, GatedResidual, ReZero
from kinfolk.models.block import Block
from kinfolk.models.cost import cost
from tests.exact import assert_exact

D = 12
DIMS = Dims(d_model=D, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=4)
GATES = {
    "add": AddGate(),
    "input": InputGate(),
    "output": OutputGate(),
    "highway": HighwayGate(),
    "sigmoid-tanh": SigmoidTanhGate(),
    "gru": GRUGate(),
}
NUMBERS = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 32}


def x(seed=0, width=D):
    return torch.randn(2, 5, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Cubes(Module):
    """A part of no size: what it returns is known."""

    def forward(self, x_BLD, ctx, state):
        return x_BLD**3, state


def built(spec, shake=0.3):
    torch.manual_seed(0)
    module = spec.build(D if hasattr(spec, "bias") or spec in GATES.values() else DIMS).double()
    for p in module.parameters():
        p.data += shake * torch.randn_like(p)
    return module


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_its_formula(name):
    gate, s, y = built(GATES[name]), torch.sigmoid, x(1)
    with torch.no_grad():
        got = gate(x(), y)
        for i in ((0, 0), (1, 4)):
            a, b = x()[i], y[i]
            if name == "add":
                want = a + b
            elif name == "input":
                want = s(gate.map.weight @ a) * a + b
            elif name == "output":
                want = a + s(gate.map.weight @ a - gate.bias) * b
            elif name == "highway":
                z = s(gate.map.weight @ a + gate.bias)
                want = z * a + (1 - z) * b
            elif name == "sigmoid-tanh":
                w, u = gate.maps.weight.chunk(2)
                want = a + s(w @ b - gate.bias) * torch.tanh(u @ b)
            else:
                (w_r, w_z, w_g), (u_r, u_z) = gate.from_y.weight.chunk(3), gate.from_x.weight.chunk(2)
                r, z = s(w_r @ b + u_r @ a), s(w_z @ b + u_z @ a - gate.bias)
                want = (1 - z) * a + z * torch.tanh(w_g @ b + gate.from_reset.weight @ (r * a))
            assert_exact(got[i], want)


@pytest.mark.parametrize("name", ["output", "highway", "sigmoid-tanh", "gru"])
def test_a_large_bias_closes_the_door(name):
    # small maps, as at the beginning of training
    gate = GATES[name].replace(bias=20.0).build(D).double()
    for p in gate.parameters():
        p.data *= 0.1 if p.ndim > 1 else 1
    torch.testing.assert_close(gate(x(), x(1)), x(), rtol=0, atol=1e-7)
    ajar = GATES[name].build(D).double()
    assert not torch.allclose(ajar(x(), x(1)), x(), rtol=0, atol=1e-2)


def test_no_gru_cell_is_the_gru_gate():
    """The trap of the paper's appendix: a cell of torch with the same matrices resets after its map."""
    gate, cell = built(GRUGate()), nn.GRUCell(D, D, bias=False, dtype=torch.float64)
    cell.weight_ih.data = gate.from_y.weight.data.clone()
    cell.weight_hh.data = torch.cat([gate.from_x.weight, gate.from_reset.weight]).data.clone()
    assert not torch.allclose(gate(x(), x(1))[0], cell(x(1)[0], x()[0]), atol=1e-2)


@pytest.mark.parametrize("name", GATES)
def test_gated_residuals_normalise_the_input_and_rectify_the_output(name):
    spec = GatedResidual(gate=GATES[name])
    residual = built(spec)
    got, state = residual(x(), Cubes(), Context(), "kept")
    assert_exact(got, residual.gate(x(), torch.relu(residual.norm(x()) ** 3)))
    assert state == "kept"


@pytest.mark.parametrize("norm", [NoNorm(), LayerNorm(), RMSNorm()])
def test_rezero_adds_a_share_that_starts_at_nothing(norm):
    residual = ReZero(norm=norm).build(DIMS).double()
    assert torch.equal(residual(x(), Cubes(), Context(), None)[0], x())
    residual.alpha.data.fill_(0.7)
    assert_exact(residual(x(), Cubes(), Context(), None)[0], x() + 0.7 * residual.norm(x()) ** 3)


def test_rezero_starts_as_the_identity_and_moves_its_numbers_first():
    m = kf.build(kf.relative("rezero", size="tiny", **NUMBERS), seed=1).double()
    tokens = torch.arange(12)[None] + 7
    out = m(tokens)
    assert torch.equal(out.hidden, m.embedding(tokens, Context()))
    out.logits.logsumexp(-1).sum().backward()
    grads = {name: p.grad.abs().sum() for name, p in m.decoder.named_parameters()}
    assert grads
    assert all((grad > 0) == name.endswith("alpha") for name, grad in grads.items())
    # not one channel each, and nothing that weight decay could reach
    assert all(p.numel() == 1 for name, p in m.named_parameters() if name.endswith("alpha"))
    decayed = kf.relative("rezero", size="base").training.optimiser.build(m).param_groups[0]["names"]
    assert not [name for name in decayed if name.endswith("alpha")]


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm(part=0.5)])
def test_rezero_with_a_norm_keeps_the_closing_one(norm):
    recipe = kf.relative("gpt2", size="tiny", **NUMBERS)
    model = with_residual(recipe.model, ReZero(norm=norm), norm)
    m = kf.build(model).double()
    tokens = torch.arange(12)[None] + 7
    assert_exact(m(tokens).hidden, m.decoder.norm(m.embedding(tokens, Context())))
    assert cost(model, 8).params == m.n_params


def test_fixup_shifts_before_the_part_and_scales_after():
    residual = Fixup().build(DIMS).double()
    assert_exact(residual(x(), Cubes(), Context(), None)[0], x() + x() ** 3)
    residual.shift.data.fill_(0.2)
    residual.scale.data.fill_(0.7)
    assert_exact(residual(x(), Cubes(), Context(), None)[0], x() + 0.7 * (x() + 0.2) ** 3)


def test_a_shifted_dense_shifts_before_its_second_map():
    for bias in (True, False):
        plain, shifted = (
            kind(d_ff=20, activation="swish", bias=bias).build(DIMS).double() for kind in (Dense, ShiftedDense)
        )
        shifted.load_state_dict(plain.state_dict() | {"shift": torch.zeros(1)})
        assert_exact(shifted(x(), Context(), None)[0], plain(x(), Context(), None)[0])
        shifted.shift.data.fill_(0.3)
        inner = nn.functional.silu(shifted.widen(x())) + 0.3
        assert_exact(shifted(x(), Context(), None)[0], shifted.narrow(inner))


def test_fixup_draws_what_its_paper_says():
    m = kf.build(kf.relative("fixup", size="tiny", d_model=256, n_heads=4, d_ff=512, n_layers=12), seed=1)
    n = 2 * 12 + 3 * 12
    look, across, think = m.decoder.blocks[7].parts
    for linear, d_in, maps in ((look.qkv, 256, 4), (across.q, 256, 4), (across.kv, 256, 4), (think.widen, 256, 2)):
        want = math.sqrt(2 / d_in) * n ** (-1 / (2 * maps - 2))
        assert float(linear.weight.detach().std()) == pytest.approx(want, rel=0.02)
    assert n ** (-1 / 2) == pytest.approx(0.1291, abs=1e-4)
    assert n ** (-1 / 6) == pytest.approx(0.5054, abs=1e-4)
    assert all(float(linear.weight.detach().abs().sum()) == 0 for linear in (look.out, across.out, think.narrow))


def test_fixup_starts_as_the_identity():
    m = kf.build(kf.relative("fixup", size="tiny", **NUMBERS), seed=1).double()
    source, target = torch.arange(9)[None] + 9, torch.arange(6)[None] + 7
    assert torch.equal(m(source, target).hidden, m.embedding(target, Context()))
    assert_exact(m.encoder(m.embedding(source, Context()), Context(), None), m.embedding(source, Context()))


def test_fixup_stays_calm_in_a_deep_stack_where_others_explode():
    """One step of gradient descent through 24 blocks without a norm; only the init differs."""
    block = Block(parts=(Attention(n_heads=4), Dense(d_ff=64)), residual=Fixup())
    sizes = {}
    for name, init in (("fixup", FixupInit()), ("xavier", kf.relative("vanilla", size="tiny").model.init)):
        stack = kf.relative("vanilla", size="tiny", **NUMBERS).model.encoder.replace(
            blocks=(block,) * 24, order=tuple(range(24))
        )
        dims = Dims(d_model=32, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=48, n_branches=48)
        m = stack.build(dims).double()
        seeded(init, m, dims, seed=0)
        start = x(width=32)
        loss = (m(start, Context(), None) - x(3, width=32)).square().mean()
        grads = torch.autograd.grad(loss, [p for p in m.parameters() if p.ndim > 1])
        with torch.no_grad():
            for p, g in zip((p for p in m.parameters() if p.ndim > 1), grads, strict=True):
                p -= g
            sizes[name] = float(m(start, Context(), None).norm() / start.norm())
    assert 0.3 < sizes["fixup"] < 3, sizes
    assert not sizes["xavier"] < 100 * sizes["fixup"]


@pytest.mark.parametrize("name", GATES)
def test_a_gate_in_a_whole_model(name):
    recipe = kf.relative("gpt2", size="tiny", **NUMBERS)
    gated = with_residual(recipe.model, GatedResidual(gate=GATES[name]), NoNorm())
    m = kf.build(gated, seed=1).double().eval()
    assert cost(gated, 16).params == m.n_params
    tokens = torch.arange(11)[None] + 7
    state = m.new_state(1, 11)
    steps = [m(tokens[:, i : i + 1], state=state).logits for i in range(11)]
    assert_exact(torch.cat(steps, 1), m(tokens).logits)


@pytest.mark.parametrize("spec", [PreNorm(), ReZero(), Fixup(), *(GatedResidual(gate=gate) for gate in GATES.values())])
def test_the_closed_form_counts_what_a_residual_keeps(spec):
    dims = Dims(d_model=256, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=4)
    residual, kept = spec.build(dims), {}
    weights = {p.data_ptr() for p in residual.parameters()}
    stream = torch.randn(4, 16, 256, requires_grad=True) * 1.0

    class Nothing(Module):
        """A part that keeps nothing itself."""

        def forward(self, x_BLD, ctx, state):
            return -x_BLD, state

    def note(t):
        if t.data_ptr() not in weights:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // 4
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        residual(stream, Nothing(), Context(), None)
    own = spec.cost(dims).kept * 64
    assert sum(kept.values()) == pytest.approx(own, rel=0.02)
