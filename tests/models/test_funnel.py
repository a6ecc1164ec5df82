"""Depth over fewer positions, against attention and means written out, and against a plain stack."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import Visible
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.family.assembly import stack
from kinfolk.layers.positions.position import sinusoids
from kinfolk.layers.positions.relative import XL, Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.cost import cost
from kinfolk.models.depth.funnel import Funnel, Narrowest
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Window
from tests.exact import assert_same_with_gradients

D, H = 16, 2
NUMBERS = {"d_model": D, "n_layers": 6, "n_heads": H, "d_ff": 24, "vocab_size": 31, "max_len": 64}


def spec(**changes):
    return kf.relative("funnel", size="tiny", **NUMBERS, **changes).model


def built(model_spec):
    model, g = kf.build(model_spec).double().train(), torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = 0.4 * torch.randn(p.shape, generator=g, dtype=torch.float64)
    return model


def inputs(length):
    g = torch.Generator().manual_seed(length)
    return torch.randn(2, length, D, generator=g, dtype=torch.float64).requires_grad_()


def plain(depth):
    """All layers of a funnel as one stack, with the same weights."""
    blocks = [block for level in (*depth.levels, depth.top) for block in level.blocks]
    first = depth.spec.levels[0].blocks[0]
    whole = stack(first, len(blocks)).build(spec().dims).double()
    whole.blocks = torch.nn.ModuleList(blocks)
    return whole


@pytest.mark.parametrize("residual", [None, PreNorm()], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("n_real", [1, 6, 11])
def test_without_pooling_it_is_a_stack_of_all_layers(residual, n_real):
    funnel = spec(pool=1).encoder
    if residual is not None:
        levels = tuple(stack(level.blocks[0].replace(residual=residual), 2) for level in funnel.levels)
        funnel = funnel.replace(levels=levels, top=levels[0])
    depth, x = built(spec().replace(encoder=funnel)).encoder, inputs(11)
    keep = torch.arange(11).expand(2, 11) < n_real
    ctx = Context(padding=Padding.of(keep))
    got, want = depth(x, ctx, None), plain(depth)(x, ctx, None)
    assert_same_with_gradients(got[:, :n_real], want[:, :n_real], x, *depth.parameters())


def test_one_level_is_a_stack():
    one = Funnel(levels=(spec().encoder.levels[0],))
    depth, x = built(spec().replace(encoder=one)).encoder, inputs(7)
    assert torch.equal(depth(x, Context(), None), depth.levels[0](x, Context(), None))
    assert one.n_layers == 2


def attention(part, x_q, x_k, q_pos, k_pos):
    """Attention of some vectors to others, by the maps of a self-attention, one pair at a time.

    What stands at position 0 is not far from anything.
    """
    (wq, wk, wv), (bq, bk, bv) = part.qkv.weight.chunk(3), part.qkv.bias.chunk(3)
    q, k, v = x_q @ wq.T + bq, x_k @ wk.T + bk, x_k @ wv.T + bv
    width, (u, bias) = D // H, part.position.biases.weight
    heads = []
    for h in range(H):
        mine = slice(h * width, (h + 1) * width)
        rows = []
        for i, at in enumerate(q_pos):
            row = []
            for j, to in enumerate(k_pos):
                score = ((q[:, i, mine] + u[mine]) * k[:, j, mine]).sum(-1)
                if at and to:
                    table = sinusoids(torch.tensor([at - to]), D, "halves").double()
                    far = (part.position.distance.weight @ table[0])[mine]
                    score = score + ((q[:, i, mine] + bias[mine]) * far).sum(-1)
                row.append(score / width**0.5)
            rows.append(torch.stack(row, -1))
        heads.append(torch.stack(rows, 1).softmax(-1) @ v[..., mine])
    return part.out(torch.cat(heads, -1))


def layer_by_hand(block, x_q, x_k, q_pos, k_pos):
    look, think = block.parts
    y = block.residuals[0].norm(x_q + attention(look, x_q, x_k, q_pos, k_pos))
    return block.residuals[1].norm(y + think(y, Context(), None)[0])


def by_hand(depth, x):
    """Post-norm levels of two layers; the first token stands apart, and a slot stands where its first token does."""
    pos = list(range(x.shape[1]))
    for block in depth.levels[0].blocks:
        x = layer_by_hand(block, x, x, pos, pos)
    first, path, whole = x, [], pos
    for level in depth.levels[1:]:
        runs = [[0], *([i, i + 1] if i + 1 < x.shape[1] else [i] for i in range(1, x.shape[1], 2))]
        pooled, slots = torch.stack([x[:, run].mean(1) for run in runs], 1), [pos[run[0]] for run in runs]
        x = layer_by_hand(level.blocks[0], pooled, x, slots, pos)
        x, pos = layer_by_hand(level.blocks[1], x, x, slots, slots), slots
        path.append(runs)
    for runs in reversed(path):
        x = torch.cat([x[:, m : m + 1].expand(-1, len(run), -1) for m, run in enumerate(runs)], 1)
    x = first + x
    for block in depth.top.blocks:
        x = layer_by_hand(block, x, x, whole, whole)
    return x


@pytest.mark.parametrize("length", [1, 2, 3, 6, 9, 13])
def test_it_is_what_the_paper_says(length):
    depth, x = built(spec()).encoder, inputs(length)
    assert len(depth.levels) == 3
    weights = [p for p in depth.parameters() if p.requires_grad]
    assert_same_with_gradients(depth(x, Context(), None), by_hand(depth, x), x, *weights)


@pytest.mark.parametrize("n_real", [1, 2, 5, 8])
def test_padding_has_no_part_in_a_mean(n_real):
    depth, x = built(spec()).encoder, inputs(11)
    keep = torch.arange(11).expand(2, 11) < n_real
    got = depth(x, Context(padding=Padding.of(keep)), None)[:, :n_real]
    torch.testing.assert_close(got, depth(x[:, :n_real], Context(), None), rtol=1e-10, atol=1e-10)


def test_documents_are_pooled_apart():
    """Three in one row and two in another, so rows have unequal numbers of slots; padding at the end."""
    depth, x = built(spec()).encoder, inputs(12)
    lengths = [[3, 4, 4], [1, 8]]
    group, pos, keep = (torch.zeros(2, 12, dtype=torch.long) for _ in range(3))
    for row, some in enumerate(lengths):
        at = 0
        for number, n in enumerate(some):
            group[row, at : at + n], pos[row, at : at + n], keep[row, at : at + n] = number, torch.arange(n), 1
            at += n
        group[row, at:] = 9
    ctx = Context(group_BL=group, pos_BL=pos, padding=Padding.of(keep.bool()))
    got = depth(x, ctx, None)
    for row, some in enumerate(lengths):
        at = 0
        for n in some:
            mine = slice(at, at + n)
            alone = depth(x[row : row + 1, mine], Context(), None)
            torch.testing.assert_close(got[row : row + 1, mine], alone, rtol=1e-10, atol=1e-10)
            at += n


@pytest.mark.parametrize(("pool", "apart"), [(2, 0), (3, 1), (2, 4)])
def test_lengths(pool, apart):
    funnel = spec().encoder.replace(pool=pool, apart=apart)
    depth = built(spec().replace(encoder=funnel)).encoder
    for length in (1, 4, 5, 11):
        first = apart + -(-(length - apart) // pool) if length > apart else length
        assert funnel.shorter(length) == first
        assert depth(inputs(length), Context(), None).shape == (2, length, D)


def test_a_decoder_may_look_at_the_narrowest_level():
    base = kf.relative("vanilla", size="tiny", **NUMBERS).model
    encoder = Funnel(levels=(stack(base.encoder.blocks[0], 2),) * 3)
    model_spec = base.replace(encoder=encoder, bridge=Narrowest())
    model, source, target = built(model_spec).eval(), torch.randint(31, (2, 9)), torch.randint(31, (2, 5))
    assert model_spec.bridge.seen(encoder, 9) == 3
    taps = model(source, target, taps=["weights"]).taps
    assert taps["decoder.0.1.weights"].shape == (2, H, 5, 3)
    plain = built(base.replace(encoder=encoder)).eval()(source, target, taps=["weights"])
    assert plain.taps["decoder.0.1.weights"].shape == (2, H, 5, 9)
    longer = torch.cat([source, torch.full((2, 4), 3)], 1)
    batch = Batch(index=torch.arange(2), tokens=target, source=longer, source_keep=torch.arange(13).expand(2, 13) < 9)
    torch.testing.assert_close(model.run(batch).logits, model(source, target).logits, rtol=1e-10, atol=1e-10)
    assert cost(model_spec, 16).params == model.n_params
    assert cost(model_spec, 64).flops_per_token < cost(base.replace(encoder=encoder), 64).flops_per_token
    unpooled = model_spec.replace(encoder=encoder.replace(pool=1))
    as_it_was = base.replace(encoder=encoder.replace(pool=1))
    assert torch.equal(built(unpooled)(source, target).logits, built(as_it_was)(source, target).logits)
    with pytest.raises(SpecError, match="without a top"):
        kf.build(base.replace(bridge=Narrowest()))


def test_listeners_hear_the_levels():
    model = built(spec())
    taps = model(torch.randint(31, (2, 9)), taps=["hidden"]).taps
    lengths = {name: x.shape[1] for name, x in taps.items()}
    assert lengths == {f"encoder.{level}.{n}.hidden": size for level, size in enumerate((9, 5, 3, 9)) for n in (0, 1)}


def test_layers_are_split_over_levels():
    funnel = kf.relative("funnel", size="base").model.encoder
    assert [level.n_layers for level in funnel.levels] == [4, 4, 4]
    assert (funnel.top.n_layers, funnel.n_layers, funnel.n_sublayers) == (2, 14, 28)
    assert [level.n_layers for level in spec(n_levels=4).encoder.levels] == [1, 2, 1, 2]


def test_what_cannot_be_is_refused():
    funnel, gpt = spec().encoder, kf.relative("gpt2", size="tiny", **NUMBERS).model
    with pytest.raises(SpecError, match="at least one"):
        Funnel(levels=())
    with pytest.raises(SpecError, match="at least 1"):
        funnel.replace(pool=0)
    for change in ({"pattern": Window(left=2, right=2)}, {"position": Rotary()}):
        block = funnel.levels[0].blocks[0]
        look = block.parts[0].replace(**change)
        level = Stack(blocks=(block.replace(parts=(look, block.parts[1])),), order=(0,))
        assert Funnel(levels=(level,)).levels == (level,)
        with pytest.raises(SpecError, match="asks a longer sequence"):
            Funnel(levels=(level, level))
    with pytest.raises(SpecError, match="pooled"):
        funnel.replace(keys="poled")
    block = gpt.decoder.blocks[0]
    look = block.parts[0].replace(position=XL(apart=1))
    with pytest.raises(SpecError, match="cannot summarise a decoder"):
        kf.build(gpt.replace(decoder=stack(block.replace(parts=(look, block.parts[1])), 2)))
    with pytest.raises(SpecError, match="cannot be a decoder"):
        kf.build(gpt.replace(decoder=funnel))
    with pytest.raises(ShapeError):
        built(spec()).encoder(inputs(3), Context(annotations=(Visible(torch.ones(2, 3, 3, dtype=torch.bool)),)), None)
