"""Linformer: what it reduces to, how its maps are shared, and what it refuses."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import kinfolk as kf
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.compressed_attention import Linformer
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=5, max_len=16, dropout=0.0, n_sublayers=2)
SHARING = ["none", "headwise", "key-value", "layerwise"]
NUMBERS = {"d_model": 24, "n_layers": 3, "n_heads": 3, "d_ff": 40, "vocab_size": 31, "max_len": 16}


def layer(sharing="headwise", rank=5, dims=DIMS, **options):
    torch.manual_seed(0)
    module = Linformer(n_heads=3, rank=rank, sharing=sharing, **options).build(dims)
    for p in [*module.parameters(), module.mix.e_nRM]:
        torch.nn.init.normal_(p, std=0.5)
    module.mix.double()
    return module.double()


def full_attention(ours):
    """Return attention with the projections of a Linformer."""
    theirs = Attention(n_heads=3, bias=ours.spec.bias).build(DIMS).double()
    for name in ("weight", "bias") if ours.spec.bias else ("weight",):
        getattr(theirs.qkv, name).data = torch.cat([getattr(ours.q, name), getattr(ours.kv, name)]).detach()
        getattr(theirs.out, name).data = getattr(ours.out, name).detach()
    return theirs


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("bias", [True, False])
def test_as_many_slots_as_positions_under_the_identity_are_full_attention(sharing, bias):
    ours = layer(sharing, rank=16, bias=bias)
    ours.mix.e_nRM.data = torch.eye(16).double().expand_as(ours.mix.e_nRM).clone()
    assert_exact(ours(x(16), Context(), None)[0], full_attention(ours)(x(16), Context(), None)[0])


@pytest.mark.parametrize("sharing", SHARING)
def test_slots_that_average_are_attention_to_averages(sharing):
    ours = layer(sharing, rank=4)
    pool = torch.zeros(4, 16, dtype=torch.float64)
    for r in range(4):
        pool[r, 4 * r : 4 * r + 4] = 0.25
    ours.mix.e_nRM.data = pool.expand_as(ours.mix.e_nRM).clone()
    q, (k, v) = ours.q(x(16)), ours.kv(x(16)).chunk(2, -1)
    q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in (q, *(t.unflatten(1, (4, 4)).mean(2) for t in (k, v))))
    want = ((q @ k.mT) / 2).softmax(-1) @ v
    assert_exact(ours(x(16), Context(), None)[0], ours.out(want.transpose(1, 2).flatten(2)))


def test_shared_maps_are_the_maps_of_each_head_made_equal():
    one, many = layer("headwise"), layer("none")
    many.load_state_dict(one.state_dict() | {"mix.e_nRM": one.mix.e_nRM.repeat_interleave(3, 0)})
    assert_exact(one(x(11), Context(), None)[0], many(x(11), Context(), None)[0])
    pair = layer("key-value")
    one.load_state_dict(pair.state_dict() | {"mix.e_nRM": pair.mix.e_nRM.repeat(2, 1, 1)})
    assert_exact(one(x(11), Context(), None)[0], pair(x(11), Context(), None)[0])


@pytest.mark.parametrize("sharing", SHARING)
def test_padding_is_cleared_before_it_is_mixed(sharing):
    ours, real = layer(sharing), x(6)
    keep = torch.arange(10).expand(2, 10) < 6
    padded = torch.cat([real, torch.full((2, 4, 12), torch.nan).double()], 1)
    got, _ = ours(padded, Context(padding=Padding(keep, right=True)), None)
    assert_exact(got[:, :6], ours(real, Context(), None)[0])


@pytest.mark.parametrize("sharing", SHARING)
def test_packed_documents_equal_separate_runs(sharing):
    ours, parts = layer(sharing), [x(5, 1), x(1, 1), x(7, 1), x(13, 1)]
    # two rows, documents named in no order, the first row filled up with padding
    packed = torch.stack([torch.cat([*parts[:3], x(1, 1)], 1)[0], torch.cat([parts[3], x(1, 1)], 1)[0]])
    group = torch.tensor([[7] * 5 + [3] + [5] * 7 + [5], [7] * 13 + [7]])
    position = torch.tensor([[*range(5), 0, *range(7), 7], [*range(13), 13]])
    keep = torch.arange(14).expand(2, 14) < 13
    context = Context(group_BL=group, pos_BL=position, padding=Padding(keep, right=True))
    got, _ = ours(packed, context, None)
    want = [ours(part, Context(), None)[0] for part in parts]
    assert_exact(got[0, :13], torch.cat(want[:3], 1)[0])
    assert_exact(got[1, :13], want[3][0])


@pytest.mark.parametrize(("sharing", "n_maps"), list(zip(SHARING, [288, 24, 12, 1], strict=True)))
def test_twelve_layers_of_twelve_heads_have_as_many_maps_as_the_paper_counts(sharing, n_maps):
    numbers = {"d_model": 24, "n_layers": 12, "n_heads": 12, "d_ff": 8, "vocab_size": 31, "max_len": 16}
    spec = kf.relative("linformer", size="tiny", sharing=sharing, rank=2, **numbers).model
    model = kf.build(spec)
    maps = sum(p.numel() for name, p in model.named_parameters() if "e_nRM" in name)
    assert maps == n_maps * 2 * 16
    assert cost(spec, 16).params == model.n_params


@pytest.mark.parametrize("sharing", SHARING)
def test_every_way_of_sharing_is_saved_counted_and_learnt(sharing, tmp_path):
    recipe = kf.relative("linformer", size="tiny", sharing=sharing, **NUMBERS)
    model = kf.build(recipe, seed=3).eval()
    tokens = torch.randint(7, 31, (2, 13))
    kf.save(model, tmp_path / "m")
    assert torch.equal(kf.load(tmp_path / "m").eval()(tokens).logits, model(tokens).logits)
    grads = []
    for mode in ("none", "blocks"):
        model.train().zero_grad()
        model.set_recompute(mode)
        model(tokens).logits.square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
        assert all(g.abs().sum() > 0 for g in grads[-1])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("sharing", SHARING)
def test_the_closed_form_counts_the_operations(sharing):
    numbers = {"d_model": 64, "n_heads": 4, "d_ff": 256, "vocab_size": 40, "max_len": 128}
    recipe = kf.relative("linformer", size="tiny", sharing=sharing, **numbers)
    model = kf.build(recipe).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        assert model(torch.zeros(1, 32).long()).logits.isfinite().all()
    assert 0.95 < cost(recipe.model, 32).flops_per_token * 32 / counter.get_total_flops() < 1.06


def test_one_map_serves_all_layers():
    model = kf.build(kf.relative("linformer", size="tiny", sharing="layerwise", **NUMBERS))
    maps = {id(block.parts[0].mix) for block in model.encoder.blocks}
    assert len(maps) == 1


def test_maps_are_drawn_so_that_more_slots_keep_inner_products_better():
    dims = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
    u, w, errors = x(64, 1)[0], x(64, 2)[1], []
    for rank in (8, 64, 512):
        mix, error = layer("key-value", rank=rank, dims=dims).mix, 0.0
        for seed in range(8):
            torch.manual_seed(seed)
            mix.draw()
            e = mix.e_nRM[0].detach()
            error += float((u.mT @ w - (e @ u).mT @ (e @ w)).square().mean()) / 8
        errors.append(error)
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.5)
    assert errors[1] / errors[2] == pytest.approx(8, rel=0.5)


def test_work_and_memory_grow_with_the_length_only():
    dims = Dims(d_model=12, vocab_size=5, max_len=4096, dropout=0.0, n_sublayers=2)
    ours, flops, largest = layer("headwise", rank=8, dims=dims), [], []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else [out]:
                if isinstance(t, torch.Tensor) and t.shape != ours.mix.e_nRM.shape:
                    largest[-1] = max(largest[-1], t.numel())
            return out

    for n in (1024, 2048, 4096):
        largest.append(0)
        with Watch():
            ours(x(n, 1), Context(), None)[0].sum().backward()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            ours(x(n, 1), Context(), None)
        flops.append(counter.get_total_flops())
    assert largest[2] < 4.1 * largest[0]
    assert flops[2] < 4.1 * flops[0]


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match=r"sharing: unknown 'headwse'; did you mean 'headwise'"):
        Linformer(n_heads=3, rank=2, sharing="headwse")
    with pytest.raises(SpecError, match="rank: 0 is not allowed"):
        Linformer(n_heads=3, rank=0)
    with pytest.raises(SpecError, match="d_model 12 is not a multiple of n_heads 5"):
        Linformer(n_heads=5, rank=2).build(DIMS)
    with pytest.raises(ShapeError, match="17 positions, its maps have 16"):
        layer()(x(17), Context(), None)
    with pytest.raises(SpecError, match="cannot decode step by step"):
        layer().new_state(1, 4)


def test_a_decoder_refuses_what_sees_the_future():
    from kinfolk.family.assembly import with_mixer
    from kinfolk.layers.mixers.convolution import LightConv

    decoder = kf.relative("gpt2", size="tiny").model
    with pytest.raises(SpecError, match="a decoder would see the future"):
        kf.build(with_mixer(decoder, lambda look: Linformer(n_heads=4, rank=8)))
    with pytest.raises(SpecError, match="'both' would let a decoder see the future"):
        kf.build(with_mixer(decoder, lambda look: LightConv(n_heads=4, kernel=3, direction="both")))


def test_the_longest_sequence_is_what_every_layer_can_take():
    sinusoids = kf.relative("vanilla", size="tiny", max_len=16).model
    model = kf.build(sinusoids)
    assert model.limit is None
    model.encoder.blocks[0].parts[0] = layer()
    assert model.limit == 16


def test_the_default_rank_does_not_grow_with_the_positions():
    """Else the default cost would be quadratic: operations of a token are the same at any length."""
    from kinfolk.core.cost import Shape

    def looks(max_len):
        recipe = kf.relative("linformer", size="tiny", max_len=max_len)
        (look,) = {part for block in recipe.model.encoder.blocks for part in block.parts if part.kind == "linformer"}
        return look, look.cost(recipe.model.dims, Shape(max_len, 0)).flops

    assert looks(512)[0].rank == 128
    # the slots are projected once for all positions, so a longer text costs each of them a little less
    assert looks(16384)[1] <= looks(4096)[1] <= looks(1024)[1]
