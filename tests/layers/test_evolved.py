"""The cells of the Evolved Transformer against PyTorch's convolutions, written out from the paper."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.convolution import Conv, LightConv, SeparableConv
from kinfolk.layers.mixers.evolved import Branches, ConvBranches, GatedUnit
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from kinfolk.ops.patterns.leaves import Causal
from tests.exact import assert_same_with_gradients

D = 12
BASE = {"d_model": 768, "n_layers": 6, "n_decoder_layers": 6, "n_heads": 12, "d_ff": 3072, "vocab_size": 32128}
DIMS = Dims(d_model=D, vocab_size=7, max_len=32, dropout=0.0, n_sublayers=4)
NUMBERS = {"d_model": D, "n_layers": 1, "n_decoder_layers": 1, "n_heads": 2, "d_ff": 4 * D, "vocab_size": 31}


def randomised(module):
    g = torch.Generator().manual_seed(0)
    for p in module.double().parameters():
        p.data = 0.4 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return module


def inputs(length, batch=2):
    g = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, D, generator=g, dtype=torch.float64).requires_grad_()


def conv(x, weight, bias, left, groups=1):
    """PyTorch's convolution of [B, L, D] with zeros around: `left` before, the rest of the kernel after."""
    padded = F.pad(x.transpose(1, 2), (left, weight.shape[2] - 1 - left))
    return F.conv1d(padded, weight, bias, groups=groups).transpose(1, 2)


def full(module, x, left):
    """A full convolution with the maps of our module, one under the other by tap."""
    weight = module.out.weight.unflatten(0, (module.spec.kernel, -1)).permute(1, 2, 0)
    return conv(x, weight, module.bias_D, left)


def separable(module, x, left):
    return F.linear(conv(x, module.taps_Dt[:, None], None, left, groups=x.shape[2]), module.out.weight, module.out.bias)


@pytest.mark.parametrize(("kernel", "direction"), [(1, "both"), (3, "both"), (5, "both"), (1, "past"), (4, "past")])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_full_convolution_is_pytorchs(kernel, direction, length):
    module, x = randomised(Conv(kernel=kernel, direction=direction, d_out=5).build(DIMS)), inputs(length)
    left = kernel - 1 if direction == "past" else kernel // 2
    got = module(x, Context(), None)[0]
    assert_same_with_gradients(got, full(module, x, left), x, *module.parameters())


def test_a_full_convolution_stays_in_its_document_and_ignores_padding():
    module, x = randomised(Conv(kernel=3, direction="both", bias=False).build(DIMS)), inputs(9, 1)
    group = torch.tensor([[0] * 4 + [1] * 5])
    got = module(x, Context(group_BL=group), None)[0]
    apart = torch.cat([module(part, Context(), None)[0] for part in (x[:, :4], x[:, 4:])], 1)
    torch.testing.assert_close(got, apart, rtol=1e-10, atol=1e-10)
    padding = Padding.of(torch.arange(9)[None] < 6)
    padded = module(x, Context(padding=padding), None)[0][:, :6]
    torch.testing.assert_close(padded, module(x[:, :6], Context(), None)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [1, 7])
def test_the_gated_unit_gates_one_map_by_another(length):
    module, x = randomised(GatedUnit().build(DIMS)), inputs(length)
    (a, b), (c, d) = module.both.weight.chunk(2), module.both.bias.chunk(2)
    want = (x @ a.T + c) * torch.sigmoid(x @ b.T + d)
    assert_same_with_gradients(module(x, Context(), None)[0], want, x, *module.parameters())


def evolved():
    return randomised(kf.build(kf.relative("evolved", size="tiny", **NUMBERS)))


def layer_norm(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def wider(x, width):
    return torch.cat([x, x.new_zeros(*x.shape[:-1], width - x.shape[-1])], -1)


@pytest.mark.parametrize("length", [1, 5, 13])
@pytest.mark.parametrize("n_real", [1, 4, 13])
def test_the_encoders_cell(length, n_real):
    block, x = evolved().encoder.blocks[0], inputs(length)
    keep = (torch.arange(length) < n_real).expand(2, length)
    ctx = Context(padding=Padding.of(keep))
    got = block(x, ctx, None)[:, :n_real]
    unit, branches, look, think = block.parts
    norms = [residual.norm for residual in block.residuals]
    y = x + unit(layer_norm(norms[0], x), ctx, None)[0]
    u = layer_norm(norms[1], y) * keep[..., None]
    left, right, last = branches.parts
    wide = torch.relu(u @ left.out.weight.T + left.bias_D)
    near = torch.relu(full(right, u, 1))
    assert wide.shape[-1] == 4 * D
    assert near.shape[-1] == D // 2
    m = layer_norm(branches.norm, wide + wider(near, 4 * D)) * keep[..., None]
    added = separable(last, m, 4)
    assert last.taps_Dt.shape == (4 * D, 9)
    assert added.shape[-1] == D // 2
    y = y + wider(added, D)
    y = y + look(layer_norm(norms[2], y), ctx, None)[0]
    h = torch.relu(layer_norm(norms[3], y) @ think.widen.weight.T + think.widen.bias)
    want = (y + h @ think.narrow.weight.T + think.narrow.bias)[:, :n_real]
    assert_same_with_gradients(got, want, x, *block.parameters())


@pytest.mark.parametrize("length", [1, 5, 13])
def test_the_decoders_cell(length):
    block, x = evolved().decoder.blocks[0], inputs(length)
    ctx = Context(encoder_output=EncoderOutput(inputs(6)))
    got = block(x, ctx, None)
    pair, branches, back, across, think = block.parts
    norms = [residual.norm for residual in block.residuals]
    u = layer_norm(norms[0], x)
    assert pair.parts[0].spec.n_heads == 4
    assert back.spec.n_heads == across.spec.n_heads == pair.parts[1].spec.n_heads == 2
    y = x + pair.parts[0](u, ctx, None)[0] + pair.parts[1](u, ctx, None)[0]
    u = layer_norm(norms[1], y)
    left, right, last = branches.parts
    assert [p.taps_Dt.shape for p in (left, right, last)] == [(D, 11), (D, 7), (2 * D, 7)]
    m = torch.relu(separable(left, u, 10)) + wider(separable(right, u, 6), 2 * D)
    y = y + separable(last, layer_norm(branches.norm, m), 6)
    y = y + back(layer_norm(norms[2], y), ctx, None)[0]
    y = y + across(layer_norm(norms[3], y), ctx, None)[0]
    h = layer_norm(norms[4], y) @ think.widen.weight.T + think.widen.bias
    want = y + (h * torch.sigmoid(h)) @ think.narrow.weight.T + think.narrow.bias
    assert_same_with_gradients(got, want, x, *block.parameters())


def test_a_silent_branch_leaves_the_other():
    look, across = Attention(n_heads=2, pattern=Causal()), CrossAttention(n_heads=2)
    module, x = randomised(Branches(parts=(look, across)).build(DIMS)), inputs(7)
    ctx, taps = Context(encoder_output=EncoderOutput(inputs(5))), Taps()
    for p in module.parts[1].out.parameters():
        p.data.zero_()
    torch.testing.assert_close(module(x, ctx, None)[0], module.parts[0](x, ctx, None)[0], rtol=1e-12, atol=1e-12)
    module(x, ctx.replace(taps=taps), None)
    assert set(taps.found) == {"0.weights", "1.weights"}
    three = randomised(Branches(parts=(Dense(d_ff=5),) * 3).build(DIMS))
    want = sum(part(x, ctx, None)[0] for part in three.parts)
    torch.testing.assert_close(three(x, ctx, None)[0], want, rtol=1e-12, atol=1e-12)


def test_dropout_falls_inside_the_branches():
    spec = ConvBranches(left=Conv(kernel=1, d_out=30), right=Conv(kernel=1), last=SeparableConv(kernel=1, d_out=6))
    module, x = randomised(spec.build(Dims(D, 7, 32, 0.5, 4))), inputs(7)
    torch.manual_seed(0)
    assert not torch.equal(module(x, Context(), None)[0], module(x, Context(), None)[0])
    module.eval()
    assert torch.equal(module(x, Context(), None)[0], module(x, Context(), None)[0])


@pytest.mark.parametrize(("n_heads", "doubled"), [(2, 4), (8, 16), (12, 16), (16, 16), (24, 24)])
def test_the_first_attention_has_up_to_sixteen_heads(n_heads, doubled):
    spec = kf.relative("evolved", size="base", d_model=48 * 8, n_heads=n_heads).model
    assert spec.decoder.blocks[0].parts[0].parts[0].n_heads == doubled


def test_it_has_the_parameters_of_its_formula():
    """Counted from the published code, per layer, by hand."""
    d = BASE["d_model"]
    norm, attention, dense = 2 * d, 4 * d * d, 8 * d * d + 5 * d
    encoder = 2 * d * d + 2 * d + (4 * d * d + 4 * d) + (3 * d * d // 2 + d // 2) + 8 * d
    encoder += 9 * 4 * d + 2 * d * d + d // 2 + attention + dense + 4 * norm
    decoder = 4 * attention + 4 * d + 18 * d + (2 * d * d + 2 * d) + (d * d // 2 + d // 2)
    decoder += 7 * 2 * d + 2 * d * d + d + dense + 5 * norm
    table = 32128 * d
    biases = 6 * 4 * d + 6 * 4 * 4 * d
    found = cost(kf.relative("evolved", size="base", **BASE).model, 512).params
    assert found == 6 * (encoder + decoder) + biases + table + 2 * norm
    # the modification table has 217 million, with a first attention twice as wide
    kept = cost(kf.relative("evolved", size="base", **BASE, n_first_heads=24, d_first_head=64).model, 512).params
    assert kept == found + 6 * (4 * d * d + 3 * d)
    assert kept / 1e6 == pytest.approx(217, abs=1.0)


def test_the_paper_has_three_layers_and_four():
    spec = kf.relative("evolved", size="base").model
    assert (spec.encoder.n_layers, spec.decoder.n_layers) == (3, 4)


def test_memory_while_decoding_does_not_grow():
    model = evolved().eval()
    state, source = model.new_state(2, 40), torch.randint(31, (2, 5))
    sizes = []
    for step in range(14):
        tokens = torch.full((2, 1), step)
        if step == 0:
            model(source, tokens, state=state)
        else:
            model(tokens, state=state)
        sizes.append([s.x_BmD.shape[1] for s in state.layers[0][1].each])
    assert sizes == [[10, 6, 6]] * 14


def test_what_is_no_convolution_is_refused():
    near = Conv(kernel=3)
    with pytest.raises(SpecError, match="left: 'light-conv'"):
        ConvBranches(left=LightConv(n_heads=2, kernel=3), right=near, last=near)
    with pytest.raises(SpecError, match="unknown 'rleu'"):
        ConvBranches(left=near, right=near, last=near, activations=("relu", "rleu"))
    with pytest.raises(SpecError, match="do not fit"):
        ConvBranches(left=near.replace(d_out=20), right=near, last=near).build(DIMS)
    with pytest.raises(SpecError, match="odd"):
        Conv(kernel=2, direction="both")


def test_a_full_convolution_decodes_in_chunks():
    module, x = randomised(Conv(kernel=4, d_out=5).build(DIMS)), inputs(9)
    state, got, at = module.new_state(2, 9), [], 0
    for n in (1, 3, 1, 4):
        got.append(module(x[:, at : at + n], Context(start=at), state)[0])
        at += n
    torch.testing.assert_close(torch.cat(got, 1), module(x, Context(), None)[0], rtol=1e-10, atol=1e-10)
    with pytest.raises(SpecError, match="see the future"):
        Conv(kernel=3, direction="both").build(dataclasses.replace(DIMS, direction="past"))
