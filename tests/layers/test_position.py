import math

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import DepthTime, Learned, LearnedSteps, NoPosition, Sinusoid, sinusoids
from kinfolk.models.cost import cost
from kinfolk.models.model import build_model

DIMS = Dims(d_model=6, vocab_size=5, max_len=8, dropout=0.0, n_sublayers=2)


def test_sinusoids_are_the_papers():
    table = sinusoids(torch.arange(50), 8)
    for p in (0, 1, 49):
        for i in range(4):
            angle = torch.tensor(p / 10000 ** (2 * i / 8), dtype=torch.float64)
            torch.testing.assert_close(table[p, 2 * i], angle.sin())
            torch.testing.assert_close(table[p, 2 * i + 1], angle.cos())
    assert table[0].tolist() == [0, 1] * 4
    torch.testing.assert_close((table**2).sum(-1), torch.full((50,), 4.0, dtype=torch.float64))


def test_a_shift_is_a_rotation_that_does_not_depend_on_the_place():
    table = sinusoids(torch.arange(40), 8)
    solved = torch.linalg.lstsq(table[:20], table[3:23]).solution
    torch.testing.assert_close(table[20:37] @ solved, table[23:40], rtol=1e-8, atol=1e-8)


def test_halves_are_the_same_numbers_in_another_order():
    a, b = sinusoids(torch.arange(9), 8), sinusoids(torch.arange(9), 8, "halves")
    assert torch.equal(torch.cat([a[:, ::2], a[:, 1::2]], 1), b)


@pytest.mark.parametrize("spec", [Sinusoid(), Learned()], ids=repr)
def test_positions_follow_the_context(spec):
    position = spec.build(DIMS)
    x = torch.zeros(2, 3, 6)
    late = position.add(x, Context(start=4))
    explicit = position.add(x, Context(start=4, pos_BL=torch.tensor([[4, 5, 6], [4, 5, 6]])))
    assert torch.equal(late, explicit)
    restart = position.add(x, Context(pos_BL=torch.tensor([[0, 1, 0], [0, 1, 2]])))
    assert torch.equal(restart[0, 2], position.add(x, Context())[0, 0])


def test_sinusoids_go_on_for_ever_and_tables_end():
    assert Sinusoid().build(DIMS).add(torch.zeros(1, 100, 6), Context()).shape == (1, 100, 6)
    with pytest.raises(ShapeError, match="position 8 is beyond the 8 learned ones"):
        Learned().build(DIMS).add(torch.zeros(1, 9, 6), Context())


def depth_time_model(order):
    blocks = 1 + max(order)
    recipe = kf.relative(
        "gpt2", size="base", d_model=12, n_layers=blocks, n_heads=2, d_ff=20, vocab_size=9, max_len=16, dropout=0.0
    )
    stack = recipe.model.decoder.replace(order=order, position=DepthTime())
    model = recipe.model.replace(decoder=stack, embedding=recipe.model.embedding.replace(position=NoPosition()))
    return build_model(model, 1).double().eval()


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 0), (0, 1, 0, 1, 1)])
def test_depth_and_time_are_added_before_every_block(order):
    """Dehghani et al. 2019: the same block is told another number each time it runs."""
    m, tokens = depth_time_model(order), torch.tensor([[1, 5, 3, 8, 2]])
    x = m.embedding.weight[tokens]
    for t, i in enumerate(order, 1):
        added = torch.zeros(5, 12, dtype=torch.float64)
        for p in range(5):
            for k in range(6):
                rate = 10000 ** (-2 * k / 12)
                added[p, 2 * k] = math.sin(p * rate) + math.sin(t * rate)
                added[p, 2 * k + 1] = math.cos(p * rate) + math.cos(t * rate)
        x = m.decoder.blocks[i](x + added, Context(), None)
    torch.testing.assert_close(m(tokens).hidden, m.decoder.norm(x), rtol=0, atol=1e-6)


def test_depth_and_time_while_decoding_and_beyond_what_was_prepared():
    m, tokens = depth_time_model((0,) * 20), torch.randint(9, (2, 40), generator=torch.Generator().manual_seed(0))
    want, state = m(tokens).logits, m.new_state(2, 40)
    got = [m(tokens[:, at : at + n], state=state).logits for at, n in ((0, 7), (7, 1), (8, 32))]
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-9, atol=1e-11)
    where = torch.tensor([[3, 4, 9]])
    position = DepthTime().build(Dims(d_model=8, vocab_size=5, max_len=4, dropout=0.0, n_sublayers=2))
    zero = torch.zeros(1, 3, 8)
    rows = [position.add(zero[:, :1], Context(start=p), 6)[0, 0] for p in (3, 4, 9)]
    assert torch.equal(position.add(zero, Context(start=9, pos_BL=where), 6)[0], torch.stack(rows))


def test_a_stack_without_a_position_is_as_before():
    m = depth_time_model((0, 1))
    plain = build_model(m.spec.replace(decoder=m.spec.decoder.replace(position=NoPosition())), 1).double().eval()
    tokens = torch.tensor([[1, 5, 3]])
    assert not torch.allclose(m(tokens).logits, plain(tokens).logits)
    assert {name for name, _ in m.named_parameters()} == {name for name, _ in plain.named_parameters()}
    ours, theirs = (cost(x.spec, 8) for x in (m, plain))
    assert (ours.params, ours.flops_per_token - theirs.flops_per_token) == (theirs.params, 2 * 2 * 12)


def test_learned_steps_are_told_to_their_runs_only():
    dims = Dims(d_model=8, vocab_size=5, max_len=4, dropout=0.0, n_sublayers=2)
    position, x = LearnedSteps(n=3, skip=2).build(dims), torch.randn(2, 4, 8)
    torch.nn.init.normal_(position.table.weight)
    for run in range(1, 8):
        want = x + position.table.weight[run - 3] if run in (3, 4, 5) else x
        assert torch.equal(position.add(x, Context(), run), want)
    recipe = kf.relative("gpt2", size="tiny", d_model=8, n_heads=2, n_layers=2)
    spec = recipe.model.replace(decoder=recipe.model.decoder.replace(position=LearnedSteps(n=2)))
    assert build_model(spec).n_params == cost(spec, 16).params == cost(recipe.model, 16).params + 16
    with pytest.raises(SpecError, match="at least 1"):
        LearnedSteps(n=0)
