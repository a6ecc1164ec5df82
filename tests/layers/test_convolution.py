"""Convolution layers: directions, padding, packed documents, memories of a few inputs, and what they reduce to."""

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.errors import SpecError
from kinfolk.family.assembly import with_mixer
from kinfolk.layers.mixers.convolution import DynamicConv, LightConv, SeparableConv
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
KINDS = {
    "light": (LightConv, {"n_heads": 3}),
    "dynamic": (DynamicConv, {"n_heads": 3}),
    "separable": (SeparableConv, {}),
}


def spec(kind, **options):
    cls, own = KINDS[kind]
    return cls(**own, **options)


def layer(kind, **options):
    torch.manual_seed(0)
    module = spec(kind, **options).build(DIMS).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return module


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [1, 2, 5, 40])
@pytest.mark.parametrize("chunks", [(1,) * 17, (7, 1, 1, 5, 3), (17,)], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(kind, kernel, chunks):
    conv, full = layer(kind, kernel=kernel), x(17)
    want, _ = conv(full, Context(), None)
    state, at, got = conv.new_state(2, 17), 0, []
    for n in chunks:
        y, state = conv(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    assert_exact(torch.cat(got, 1), want)
    assert state.x_BmD.shape == (2, kernel - 1, 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [1, 4, 11])
def test_rows_at_their_own_positions_after_padded_prompts(kind, kernel):
    conv, full, lengths = layer(kind, kernel=kernel), x(20, batch=3), torch.tensor([2, 9, 5])
    state = conv.new_state(3, 20)
    keep = torch.arange(9) < lengths[:, None]
    conv(full[:, :9], Context(padding=Padding(keep, right=True)), state)
    for step in range(6):
        pos = (lengths + step)[:, None]
        got, _ = conv(full[torch.arange(3)[:, None], pos], Context(start=9 + step, pos_BL=pos), state)
        for row in range(3):
            assert_exact(got[row, 0], conv(full[row : row + 1, : int(pos[row]) + 1], Context(), None)[0][0, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_selecting_rows_moves_the_memory_with_them(kind):
    conv, full = layer(kind, kernel=4), x(9)
    state = conv.new_state(2, 9)
    conv(full[:, :8], Context(), state)
    state.select(torch.tensor([1, 1]))
    got, _ = conv(full[[1, 1], 8:], Context(start=8), state)
    assert_exact(got[:, 0], conv(full[[1, 1]], Context(), None)[0][:, -1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["past", "both"])
def test_packed_documents_equal_separate_runs(kind, direction):
    conv, lengths = layer(kind, kernel=7, direction=direction), [5, 1, 9, 2]
    documents = [x(n, batch=1) for n in lengths]
    group = torch.tensor([[i for i, n in enumerate(lengths) for _ in range(n)]])
    got, _ = conv(torch.cat(documents, 1), Context(group_BL=group), None)
    assert_exact(got, torch.cat([conv(one, Context(), None)[0] for one in documents], 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["past", "both"])
def test_padding_on_either_side_counts_as_nothing(kind, direction):
    conv, real = layer(kind, kernel=7, direction=direction), x(6)
    want, _ = conv(real, Context(), None)
    keep = torch.arange(10).expand(2, 10) < 6
    padded = torch.cat([real, x(4) * 100], 1)
    assert_exact(conv(padded, Context(padding=Padding(keep, right=True)), None)[0][:, :6], want)
    assert_exact(conv(padded.roll(4, 1), Context(padding=Padding(keep.roll(4, 1), right=False)), None)[0][:, 4:], want)


@pytest.mark.parametrize("kind", KINDS)
def test_each_position_sees_its_kernel_and_nothing_else(kind):
    for direction, first, last in (("past", -4, 0), ("both", -2, 2)):
        conv, full = layer(kind, kernel=5, direction=direction), x(15, batch=1)
        jacobian = torch.autograd.functional.jacobian(lambda v, c=conv: c(v, Context(), None)[0][0, 7].sum(), full)
        seen = jacobian.abs().sum((0, 2)).nonzero().flatten() - 7
        assert seen.tolist() == list(range(first, last + 1))


@pytest.mark.parametrize("kind", ["light", "dynamic"])
def test_a_kernel_of_one_is_a_map_of_each_position(kind):
    conv = layer(kind, kernel=1)
    assert_exact(conv(x(7), Context(), None)[0], conv.out(F.glu(conv.gated(x(7)))))


def test_a_light_convolution_is_pytorchs_grouped_one():
    conv = layer("light", kernel=5)
    gated = F.glu(conv.gated(x(11))).mT
    # channels of a head lie together
    weight = conv.taps.weight.softmax(-1).repeat_interleave(4, 0)[:, None]
    want = conv.out(F.conv1d(F.pad(gated, (4, 0)), weight, groups=12).mT)
    assert_exact(conv(x(11), Context(), None)[0], want)


def test_a_separable_convolution_is_pytorchs_depthwise_and_pointwise_one():
    conv = layer("separable", kernel=5, direction="both")
    inner = F.conv1d(x(11).mT, conv.taps_Dt[:, None], groups=12, padding=2)
    want = F.conv1d(inner, conv.out.weight[..., None], conv.out.bias).mT
    assert_exact(conv(x(11), Context(), None)[0], want)


def test_a_dynamic_convolution_with_one_kernel_for_all_is_light():
    dynamic, light = layer("dynamic", kernel=5), layer("light", kernel=5)
    kernels = light.taps.weight.data
    dynamic.kernels = lambda x_BLD: kernels.expand(*x_BLD.shape[:2], -1, -1)
    for name in ("gated", "out"):
        getattr(dynamic, name).load_state_dict(getattr(light, name).state_dict())
    assert_exact(dynamic(x(9), Context(), None)[0], light(x(9), Context(), None)[0])


def test_a_kernel_depends_on_its_own_position_only():
    conv, full, taps = layer("dynamic", kernel=3), x(8), Taps()
    conv(full, Context(taps=taps), None)
    before = taps.found["kernels"]
    assert before.shape == (2, 8, 3, 3)
    assert_exact(before.sum(-1), torch.ones(2, 8, 3, dtype=torch.float64))
    full[:, 5] += 1
    conv(full, Context(taps=taps), None)
    moved = (taps.found["kernels"] != before).any(-1).any(-1)
    assert moved.tolist() == [[i == 5 for i in range(8)]] * 2


def test_dropout_falls_on_taps_while_training_only():
    conv = layer("light", kernel=7, dropout=0.5).eval()
    still = conv(x(20), Context(), None)[0]
    assert torch.equal(still, conv(x(20), Context(), None)[0])
    conv.train()
    torch.manual_seed(0)
    mean = torch.stack([conv(x(20), Context(), None)[0] for _ in range(800)]).mean(0)
    assert (mean - still).abs().mean() < 0.1 * still.abs().mean()


def test_any_convolution_stands_in_any_body():
    recipe = kf.relative("gpt2", size="tiny", d_model=32, n_heads=4, d_ff=64, vocab_size=40, max_len=32)
    swapped = with_mixer(recipe.model, lambda look: SeparableConv(kernel=3))
    model = kf.build(swapped, seed=1).double().eval()
    assert cost(swapped, 16).params == model.n_params
    tokens = torch.randint(7, 40, (2, 11))
    state = model.new_state(2, 11)
    steps = [model(tokens[:, i : i + 1], state=state).logits for i in range(11)]
    assert_exact(torch.cat(steps, 1), model(tokens).logits)
    # drawn from the seed, whatever was drawn before
    torch.manual_seed(99)
    taps, twin, other = (m.decoder.blocks[0].parts[0].taps_Dt for m in (model, *(kf.build(swapped, s) for s in (1, 2))))
    assert torch.equal(twin.double(), taps)
    assert not torch.equal(other.double(), taps)
    assert taps.std().item() == pytest.approx(3**-0.5, rel=0.2)


def test_layers_reach_further_with_depth_and_keep_looking_across():
    model = kf.relative("lightweight-conv", size="base", n_layers=8).model
    for stack, direction in ((model.encoder, "both"), (model.decoder, "past")):
        assert [block.parts[0].kernel for block in stack.blocks] == [3, 7, 15, 31, 31, 31, 31, 31]
        assert {block.parts[0].direction for block in stack.blocks} == {direction}
    assert [part.kind for part in model.decoder.blocks[0].parts] == ["light-conv", "cross-attention", "dense"]


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match=r"direction: unknown 'pst'; did you mean 'past'"):
        spec("light", kernel=3, direction="pst")
    with pytest.raises(SpecError, match=r"kernel: 4 is not allowed.*odd"):
        spec("dynamic", kernel=4, direction="both")
    with pytest.raises(SpecError, match="kernel: 0 is not allowed"):
        spec("separable", kernel=0)
    with pytest.raises(SpecError, match="d_model 12 is not a multiple of n_heads 5"):
        LightConv(n_heads=5, kernel=3).build(DIMS)
    with pytest.raises(SpecError, match="cannot decode step by step"):
        layer("light", kernel=3, direction="both").new_state(1, 4)
