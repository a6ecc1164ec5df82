import pytest
import torch

from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError
from kinfolk.layers.module import Dims
from kinfolk.layers.position import Learned, Sinusoid, sinusoids

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
