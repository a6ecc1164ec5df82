import pytest
import torch

from kinfolk.ops import relative_position as fast
from kinfolk.ops.naive import relative_position as slow


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


@pytest.mark.parametrize(("n_buckets", "farthest"), [(256, 512), (8, 20), (6, 9)])
def test_log_buckets_equal_naive_and_hugging_face(n_buckets, farthest):
    distance = torch.arange(-farthest, farthest + 1)
    got = fast.log_bucket(distance, n_buckets, farthest)
    assert got.tolist() == [slow.log_bucket(d, n_buckets, farthest) for d in distance.tolist()]
    assert got.abs().max() <= n_buckets
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2", reason="needs kinfolk[bench]")
    assert torch.equal(got, theirs.make_log_bucket_position(distance, n_buckets, farthest).long())


@pytest.mark.parametrize(("n_q", "n_k", "rows"), [(1, 1, 1), (5, 7, 3), (4, 1, 11)])
def test_rows_picked_by_keys_equal_naive(n_q, n_k, rows):
    k, table = leaves((2, n_k, 3), (2, rows, 3))
    index = torch.randint(rows, (n_q, n_k), generator=torch.Generator().manual_seed(2))
    got, want = fast.picked_by_keys(k[None], table, index)[0], slow.picked_by_keys(k, table, index)
    torch.testing.assert_close(got, want)
    weight = torch.randn(got.shape, dtype=got.dtype, generator=torch.Generator().manual_seed(3))
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (k, table)) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b)
    # tiles: any axes between heads and keys
    tiled = fast.picked_by_keys(k[None, :, None], table, index)
    torch.testing.assert_close(tiled[0, :, 0], want)


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


@pytest.mark.parametrize(
    ("q_pos", "k_pos"),
    [
        ([0], [0]),
        ([7], [*range(8)]),
        ([5, 6, 7], [*range(8)]),
        ([9, 10, 11, 12, 13], [*range(7, 12)]),
        ([0, 1, 2], [*range(5)]),
        ([3, 4, 5], [0, 3, 4]),
        ([4, 9], [0, 1, 2]),
        ([170, 171], [0, 50, 150]),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_distance_scores_equal_naive(q_pos, k_pos, both):
    """Consecutive positions are shifted, others picked; a causal table ends at distance 0."""
    high = 180
    q, table = leaves((2, len(q_pos), 3), (2, high + 1 + (high if both else 0), 3))
    at = [torch.tensor([p]) for p in (q_pos, k_pos)]
    real = torch.tensor([[both or i >= j for j in k_pos] for i in q_pos])
    got = fast.distance_scores(q[None], table, high, *at)[0].masked_fill(~real, 0)
    seen = [[min(j, i if not both else j) for j in k_pos] for i in q_pos]
    want = torch.stack(
        [slow.distance_scores(q[:, n : n + 1], table, high, [i], seen[n])[:, 0] for n, i in enumerate(q_pos)], 1
    )
    want = want.masked_fill(~real, 0)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(
            fast.distance_scores(q[None], table, high, *at)[0].masked_fill(~real, 0), want, rtol=1e-10, atol=1e-12
        )
    a, b = (torch.autograd.grad((x * x).sum(), (q, table)) for x in (got, want))
    for mine, theirs in zip(a, b, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n_q", "n_rows", "n_keys"), [(1, 1, 1), (1, 5, 3), (5, 5, 5), (3, 7, 5), (4, 11, 11)])
def test_shifting_equals_naive_with_and_without_gradients(n_q, n_rows, n_keys):
    (every,) = leaves((2, 3, n_q, n_rows))
    want = torch.stack([torch.stack([slow.shifted(x, n_keys) for x in row]) for row in every])
    inside = ~want.isnan()
    for got in (fast.shifted(every, n_keys), fast.shifted(every.detach(), n_keys)):
        assert got.shape == want.shape
        assert torch.equal(got[inside], want[inside])
        assert got.isfinite().all()
    assert fast.shifted(every.detach()[1:], n_keys)[0, 0, -1, 0] == every[1, 0, -1, 0]
