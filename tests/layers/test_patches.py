"""Embeddings of pictures: patches, and values one by one."""

import pytest
import torch

from kinfolk.core.context import Context, Padding
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.grid import Grid
from kinfolk.core.plain import dumps, loads
from kinfolk.layers.embeddings.embedding import Embedding, Sides, Tokens
from kinfolk.layers.embeddings.patches import Patches
from kinfolk.layers.embeddings.pixels import GridPosition, Pixels
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import Xavier, seeded
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import NoPosition, Sinusoid, sinusoids
from tests.exact import assert_exact

D, V = 12, 263
DIMS = Dims(d_model=D, vocab_size=V, max_len=48, dropout=0.0, n_sublayers=4)


def built(spec, dims=DIMS):
    module = spec.build(dims)
    seeded(Xavier(), module, dims, 0)
    module.double()
    assert sum(p.numel() for p in module.parameters()) == spec.cost(dims).params
    assert loads(Embedding, dumps(spec)) == spec
    return module


def values(n, batch=2):
    return torch.randint(7, V, (batch, n), generator=torch.Generator().manual_seed(n))


def test_patches_are_a_linear_map_of_normalised_values():
    module = built(Patches(columns=4, channels=3, patch=2, mean=0.4, std=0.2))
    tokens = values(48)
    picture = ((tokens - 7).double() / 255 - 0.4) / 0.2
    x = module(tokens, Context())
    assert x.shape == (2, 1 + 4, D)
    third = torch.stack([picture.view(2, 4, 4, 3)[b, 2:4, 0:2].flatten() for b in range(2)])
    assert_exact(x[:, 3], module.project(third) + module.position.table.weight[3])
    assert_exact(x[:, 0], (module.token.weight[0] + module.position.table.weight[0]).expand(2, D))


@pytest.mark.parametrize("patch", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 13, 24, 48])
def test_any_part_of_a_picture_has_patches(n, patch):
    spec = Patches(columns=4, channels=3, patch=patch)
    module, tokens = built(spec), values(n)
    x, inner = module(tokens, Context()), module.inside(tokens, Context())
    assert x.shape == (2, spec.places(n), D)
    assert x.isfinite().all()
    real = [r for r in range(spec.places(n) - 1) if touches(r, n, patch)]
    if inner.padding is None:
        assert len(real) == x.shape[1] - 1
    else:
        assert inner.padding.keep_BL[0].nonzero().flatten().tolist() == [0, *(1 + r for r in real)]
    # the same with something behind it that is not real
    padded = torch.cat([tokens, values(48 - n)], 1)
    ctx = Context(padding=Padding.of(torch.arange(48).expand(2, 48) < n))
    y, keep = module(padded, ctx), module.inside(padded, ctx).padding
    keep = torch.ones(y.shape[:2], dtype=torch.bool) if keep is None else keep.keep_BL
    assert keep.sum(1).tolist() == [1 + len(real)] * 2
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if inner.padding is None else inner.padding.keep_BL
    assert_exact(y[keep], x[mask])


def touches(patch_number, n, patch):
    """Whether one of the first n values of a picture 4 wide, 3 deep lies in a patch."""
    across = -(-4 // patch)
    top, left = patch_number // across * patch, patch_number % across * patch
    pixels = [(r, c) for r in range(top, top + patch) for c in range(left, min(left + patch, 4))]
    return any((r * 4 + c) * 3 < n for r, c in pixels)


def test_patches_refuse_what_they_cannot_read():
    module = built(Patches(columns=4, channels=3, patch=2))
    with pytest.raises(ShapeError, match="images are not packed"):
        module.inside(values(48), Context(group_BL=torch.zeros(2, 48)))
    with pytest.raises(ShapeError, match=r"\[batch, values\]"):
        module(values(48)[0], Context())
    with pytest.raises(ShapeError, match="larger max_len"):
        module(values(96), Context())
    for change, said in (({"patch": 0}, "patch: 0"), ({"std": 0.0}, "std: 0.0"), ({"levels": 0}, "levels: 0")):
        with pytest.raises(SpecError, match=said):
            Patches(columns=4, **change)


def test_patches_take_any_position():
    plain, placed = (built(Patches(columns=4, patch=2, position=p)) for p in (NoPosition(), Sinusoid()))
    want = plain(values(48), Context()) + sinusoids(torch.arange(5), D)
    torch.testing.assert_close(placed(values(48), Context()), want, rtol=1e-6, atol=1e-6)


def test_one_channel_is_a_table_of_tokens():
    position = GridPosition(grid=Grid(columns=48))
    pixels, tokens = built(Pixels(channels=1, position=position)), built(Tokens(position=position))
    tokens.load_state_dict(pixels.state_dict())
    assert torch.equal(pixels(values(48), Context()), tokens(values(48), Context()))
    assert pixels.weight is pixels.table.weight


def test_channels_have_tables_of_their_own():
    grid = Grid(columns=4, channels=3)
    module, tokens = built(Pixels(channels=3, position=GridPosition(grid=grid))), values(13)
    x, where = module(tokens, Context()), module.position
    for i in range(13):
        row, column, channel = i // 12, i % 12 // 3, i % 3
        want = module.table.weight[channel * V + tokens[:, i]]
        want = want + where.rows.weight[row] + where.columns.weight[column] + where.channels.weight[channel]
        assert_exact(x[:, i], want)
    with pytest.raises(SpecError, match="use 'untied'"):
        LMHead().build(DIMS, module).logits(x)


def test_a_shifted_value_is_read_as_of_the_channel_before():
    grid = Grid(columns=4, channels=3)
    module = built(Pixels(channels=3, shift=1, position=NoPosition()))
    plain = built(Pixels(channels=3, position=NoPosition()))
    plain.load_state_dict(module.state_dict())
    tokens = values(13)
    opened = torch.cat([torch.ones(2, 1, dtype=torch.long), tokens], 1)
    assert_exact(module(opened, Context())[:, 1:], plain(tokens, Context()))
    # wherever decoding stands
    pos = torch.tensor([[5, 6], [1, 2]])
    want = torch.stack([module(opened, Context())[0, 5:7], module(opened, Context())[1, 1:3]])
    some = torch.stack([opened[0, 5:7], opened[1, 1:3]])
    assert_exact(module(some, Context(start=5, pos_BL=pos)), want)
    assert_exact(module(opened[:, 5:7], Context(start=5)), module(opened, Context())[:, 5:7])
    assert grid.place(torch.tensor(4))[2] == 1


@pytest.mark.parametrize("table", ["learned", "sinusoid"])
@pytest.mark.parametrize("blocks", [{}, {"block_height": 2, "block_width": 2}])
def test_positions_are_those_of_the_picture_in_any_order(table, blocks):
    """What is added to a value depends on where it stands in the picture, not on when it comes."""
    grid, line = Grid(columns=4, channels=3, **blocks), Grid(columns=4, channels=3)
    ours, plain = (GridPosition(grid=g, table=table).build(DIMS) for g in (grid, line))
    if table == "learned":
        torch.manual_seed(0)
        for p in plain.parameters():
            torch.nn.init.normal_(p)
        ours.load_state_dict(plain.state_dict())
    nothing = torch.zeros(1, 48, D)
    assert torch.equal(ours.add(nothing, Context()), plain.add(nothing, Context())[:, grid.order(48)])
    pos = torch.tensor([[7, 40]])
    assert torch.equal(ours.add(nothing[:, :2], Context(pos_BL=pos)), ours.add(nothing, Context())[:, pos[0]])
    with pytest.raises(ShapeError, match="value 48 is beyond the 48 of the image"):
        ours.add(nothing, Context(start=1))


def test_sinusoids_have_one_half_for_rows():
    module = GridPosition(grid=Grid(columns=4, channels=3), table="sinusoid").build(DIMS)
    added = module.add(torch.zeros(1, 48, D, dtype=torch.float64), Context())[0]
    for i in (0, 11, 12, 47):
        want = torch.cat([sinusoids(torch.tensor(i // 12), D // 2), sinusoids(torch.tensor(i % 12), D // 2)])
        torch.testing.assert_close(added[i], want, rtol=1e-6, atol=1e-6)
    with pytest.raises(SpecError, match=r"table: unknown 'learnt'; did you mean 'learned'"):
        GridPosition(grid=Grid(columns=4), table="learnt")


def test_a_side_may_be_patches():
    """An encoder of patches for a decoder of text: each side says what its layers know."""
    spec = Sides(source=Patches(columns=4, channels=3, patch=2), target=Tokens())
    module, tokens = built(spec), values(5)
    assert spec.source_places(48) == 5
    assert spec.places(48) == 48
    assert module(tokens, Context()).shape[1] == spec.source_places(5) == 3
    # the first patch has all five values, the second none
    assert module.inside(tokens, Context()).padding.keep_BL.tolist() == [[True, True, False]] * 2
    memory = Context(encoder_output=EncoderOutput(torch.zeros(2, 3, D)))
    assert module(tokens, memory).shape[1] == 5
    assert module.inside(tokens, memory) is memory
