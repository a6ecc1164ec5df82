import pytest
import torch

from kinfolk.ops import relative as fast
from kinfolk.ops.naive import relative as slow


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n_buckets", "farthest"), [(32, 128), (8, 20)])
def test_buckets_equal_naive_and_hugging_face(causal, n_buckets, farthest):
    distance = torch.arange(-300, 301)
    got = fast.bucket(distance, n_buckets, farthest, causal)
    assert got.tolist() == [slow.bucket(d, n_buckets, farthest, causal) for d in distance.tolist()]
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="the identity with T5 needs kinfolk[bench]")
    theirs = t5.T5Attention._relative_position_bucket(-distance, not causal, n_buckets, farthest)
    assert torch.equal(got, theirs)


def test_slopes_of_powers_of_two_and_between():
    assert fast.slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    twelve = fast.slopes(12)
    assert twelve[:8].tolist() == fast.slopes(8).tolist()
    assert twelve[8:].tolist() == fast.slopes(16)[0:8:2].tolist()


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_rotation_equals_naive_and_depends_on_distance_only(layout):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, 8, generator=g, dtype=torch.float64)
    pos = torch.tensor([[0, 1, 5, 9, 100], [3, 4, 5, 6, 7]])
    got = fast.rotate(x, pos, 1e4, layout)
    for b in range(2):
        for i in range(5):
            torch.testing.assert_close(got[b, 1, i], slow.rotate(x[b, 1, i], int(pos[b, i]), 1e4, layout))
    q, k = torch.randn(2, 1, 1, 1, 8, generator=g, dtype=torch.float64)

    def product(i, j):
        turned = (fast.rotate(v, torch.tensor([p]), 1e4, layout) for v, p in ((q, i), (k, j)))
        return float(torch.mul(*turned).sum())

    assert product(7, 3) == pytest.approx(product(104, 100))
    assert product(7, 3) != pytest.approx(product(7, 4))


def leaves(*shapes):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(*s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize(("n_q", "n_k", "rows"), [(1, 1, 1), (5, 7, 3), (4, 1, 11)])
def test_picked_scores_and_values_equal_naive(n_q, n_k, rows):
    q, table, weights, values = leaves((2, n_q, 3), (2, rows, 3), (2, n_q, n_k), (rows, 3))
    index = torch.randint(rows, (n_q, n_k), generator=torch.Generator().manual_seed(2))
    for got, want, inputs in (
        (fast.picked_scores(q[None], table, index)[0], slow.picked_scores(q, table, index), (q, table)),
        (
            fast.picked_values(weights[None], values, index)[0],
            slow.picked_values(weights, values, index),
            (weights, values),
        ),
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        a, b = (torch.autograd.grad((x * x).sum(), inputs, retain_graph=True) for x in (got, want))
        for mine, theirs in zip(a, b, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spread", [1, 50])
def test_distance_scores_pick_the_row_of_the_distance(spread):
    q, table = leaves((1, 2, 3, 4), (2, 400, 4))
    distance = (torch.arange(3)[:, None] - torch.arange(4) * spread).view(1, 1, 3, 4) + 170
    got = fast.distance_scores(q, table, 0, distance)
    want = slow.picked_scores(q[0], table, distance[0, 0])
    torch.testing.assert_close(got[0], want)
