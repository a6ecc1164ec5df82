"""`ops.lsh` against its naive reference in float64, against dense attention, and against code that is not ours."""

import contextlib
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.ops import lsh_attention as lsh
from kinfolk.ops import lsh_hash as hashing
from kinfolk.ops import lsh_plan
from kinfolk.ops.lsh_attention import Chunks, Looking, RecentKeys
from kinfolk.ops.naive import lsh_attention as slow

SIGHTS = [RecentKeys(size=4), Chunks(size=4), Chunks(size=4, within="chunk")]


@pytest.fixture
def always_sorted(monkeypatch):
    """Sort however short a sequence is, and work on a few tiles at a time."""
    monkeypatch.setattr(lsh_plan, "DENSE", 0)
    monkeypatch.setattr(lsh, "TILE_PAIRS", 200)
    monkeypatch.setattr(lsh, "ROW_TOKENS", 30)


def inputs(length, n_rounds=2, n_buckets=4, batch=1, heads=2, width=3, seed=0):
    g = torch.Generator().manual_seed(1000 * length + seed)
    q, v = (torch.randn(batch, heads, length, width, generator=g, dtype=torch.float64) for _ in range(2))
    buckets = torch.randint(0, n_buckets, (batch, heads, n_rounds, length), generator=g)
    return q.requires_grad_(), v.requires_grad_(), buckets


def run(op, q, v, *args):
    out = op(q, v, *args)
    g = torch.Generator().manual_seed(7)
    loss = (out * torch.randn(out.shape, generator=g, dtype=out.dtype)).sum()
    # where everybody is alone queries do not matter: tie them in, with weight 0
    return dict(zip(("out", "dq", "dv"), (out, *torch.autograd.grad(loss + 0.0 * q.sum(), (q, v))), strict=True))


def assert_same(ours, theirs):
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def masks(length, hide, packed, seed):
    g = torch.Generator().manual_seed(seed)
    keep = None if hide == "nothing" else torch.arange(length) < torch.tensor([[max(0, length - 3)]])
    if hide == "holes":
        keep = torch.rand(1, length, generator=g) > 0.4
    group = torch.randint(-1, 2, (1, length), generator=g).sort(1).values if packed else None
    return keep, group


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 13),
    sight=st.sampled_from([RecentKeys, Chunks, lambda size: Chunks(size=size, within="chunk")]),
    size=st.integers(1, 6),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    how=st.tuples(st.sampled_from(["past", "both"]), st.sampled_from(["once", "each"])),
    hide=st.tuples(st.sampled_from(["nothing", "end", "holes"]), st.booleans()),
    route=st.sampled_from(["short", "sorted", "plain products"]),
    seed=st.integers(0, 99),
)
# a bucket that reaches from the first chunk into the last, but not to its end
@example(7, Chunks, 3, (1, 4), ("both", "once"), ("holes", False), "sorted", 3)
@example(13, RecentKeys, 2, (3, 1), ("past", "once"), ("nothing", False), "sorted", 0)
@example(1, Chunks, 1, (2, 2), ("past", "each"), ("end", True), "sorted", 0)
# a document that begins behind another, with a copy of its last chunk before it
@example(10, Chunks, 2, (3, 1), ("past", "each"), ("nothing", True), "sorted", 64)
@example(
    9, lambda size: Chunks(size=size, within="chunk"), 2, (1, 3), ("past", "once"), ("nothing", True), "sorted", 54
)
def test_equals_naive(length, sight, size, counts, how, hide, route, seed):
    q, v, buckets = inputs(length, *counts, seed=seed)
    looking = Looking(sight(size=size), *how, scale=0.7)
    keep, group = masks(length, *hide, seed)
    theirs = run(slow.attend_hashed, q, v, buckets, looking, keep, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lsh_plan, "DENSE", 1024 if route == "short" else 0)
        patch.setattr(lsh, "TILE_PAIRS", 60)
        with sdpa_kernel(SDPBackend.MATH) if route == "plain products" else contextlib.nullcontext():
            ours = run(lsh.attend_hashed, q, v, buckets, looking, keep, group)
    assert_same(ours, theirs)


def who(bucket, sight):
    """Return who sees whom in one round, by comparing all pairs: [L, L], future and self included."""
    here = torch.arange(len(bucket))
    same = bucket[:, None] == bucket
    if isinstance(sight, RecentKeys):
        rank = torch.tensor([int((bucket[:i] == bucket[i]).sum()) for i in here])
        return same & ((rank[:, None] - rank).abs() <= sight.size)
    place = torch.empty_like(here)
    place[(bucket * len(bucket) + here).argsort()] = here
    chunk = place // sight.size
    back = (chunk[:, None] - chunk) % (int(chunk.max()) + 1)
    near = (back == 0) | (back == 1)
    return near if sight.within == "chunk" else near & same


def dense(q, v, buckets, looking):
    """One softmax over the union, or over as many copies of a key as rounds found; who finds nobody keeps its own."""
    times = torch.stack([torch.stack([sum(who(b, looking.sight).long() for b in head) for head in x]) for x in buckets])
    length = q.shape[2]
    allowed = torch.ones(length, length, dtype=torch.bool).tril(-1)
    times = times * (allowed if looking.direction == "past" else ~torch.eye(length, dtype=torch.bool))
    times = times + torch.eye(length, dtype=torch.long) * (times.sum(-1, keepdim=True) == 0)
    times = times.clamp(max=1) if looking.repeats == "once" else times
    scores = looking.scale * q @ (q / q.norm(dim=-1, keepdim=True)).mT
    return (scores + times.double().log()).softmax(-1) @ v


@pytest.mark.parametrize("sight", SIGHTS, ids=repr)
@pytest.mark.parametrize("direction", ["past", "both"])
@pytest.mark.parametrize("repeats", ["once", "each"])
def test_given_buckets_it_is_a_dense_mask(sight, direction, repeats, always_sorted, monkeypatch):
    monkeypatch.setattr(lsh, "EPS", 1e-30)
    looking = Looking(sight, direction, repeats, 1.3)
    q, v, buckets = inputs(37, n_rounds=3, batch=2)
    theirs = run(dense, q, v, buckets, looking)
    assert_same(run(lsh.attend_hashed, q, v, buckets, looking), theirs)
    monkeypatch.setattr(lsh_plan, "DENSE", 1024)
    assert_same(run(lsh.attend_hashed, q, v, buckets, looking), theirs)


def full(q, v, direction="past"):
    """Dense attention of shared queries and keys without self, except for a first token."""
    ok = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
    ok = ok.tril(-1) if direction == "past" else ~torch.eye(len(ok), dtype=torch.bool)
    ok[0, 0] |= direction == "past"
    return F.scaled_dot_product_attention(q, q / q.norm(dim=-1, keepdim=True), v, ok, scale=1.0)


@pytest.mark.parametrize(
    "sight", [RecentKeys(size=23), Chunks(size=23), Chunks(size=12), Chunks(size=30, within="chunk")]
)
@pytest.mark.parametrize("direction", ["past", "both"])
@pytest.mark.parametrize("n_rounds", [1, 3])
def test_one_bucket_and_a_wide_sight_is_dense_attention(sight, direction, n_rounds, always_sorted, monkeypatch):
    monkeypatch.setattr(lsh, "EPS", 1e-30)
    q, v, buckets = inputs(23, n_rounds, n_buckets=1)
    ours = run(lsh.attend_hashed, q, v, buckets, Looking(sight, direction))
    assert_same(ours, run(full, q, v, direction))


def weights(q, buckets, looking, **masks):
    """Return the attention weights [B, H, L, L]: the output, if values are the columns of the identity."""
    length = q.shape[2]
    values = torch.eye(length, dtype=q.dtype).expand(*q.shape[:2], -1, -1)
    return lsh.attend_hashed(F.pad(q, (0, length - q.shape[-1])), values, buckets, looking, **masks)


@pytest.mark.parametrize("direction", ["past", "both"])
def test_more_rounds_come_closer_to_full_attention(direction):
    q, v, _ = inputs(96, heads=1, width=8)
    best = (
        weights(4 * q, torch.zeros(1, 1, 1, 96, dtype=torch.long), Looking(RecentKeys(size=96), direction))
        .topk(8)
        .indices
    )
    errors, recalls = [], []
    for n_rounds in (1, 2, 4, 8, 16, 32):
        buckets = hashing.hash_buckets(q, hashing.rotations(0, 1, 8, n_rounds, (8,)).double(), (8,))
        looking = Looking(RecentKeys(size=96), direction)
        errors.append((lsh.attend_hashed(4 * q, v, buckets, looking) - full(4 * q, v, direction)).abs().mean().item())
        recalls.append((weights(4 * q, buckets, looking).gather(-1, best)[:, :, 8:] > 0).double().mean().item())
    assert all(b < 0.9 * a for a, b in itertools.pairwise(errors)), errors
    assert errors[-1] < 0.05 * errors[0]
    assert all(b > a or a == 1 for a, b in itertools.pairwise(recalls)), recalls
    assert recalls[0] < 0.5 < 0.95 < recalls[-1]


@pytest.mark.parametrize("sight", [RecentKeys, Chunks])
def test_a_wider_sight_comes_closer_to_full_attention(sight, always_sorted):
    q, v, buckets = inputs(61, n_rounds=1, n_buckets=1)
    errors = [
        (lsh.attend_hashed(q, v, buckets, Looking(sight(size=size))) - full(q, v)).abs().mean().item()
        for size in (1, 4, 16, 61)
    ]
    assert all(b < 0.7 * a for a, b in itertools.pairwise(errors)), errors
    assert errors[-1] < 1e-5


@pytest.mark.parametrize("sight", SIGHTS, ids=repr)
@pytest.mark.parametrize("route", ["short", "sorted"])
def test_nobody_weighs_the_future_or_itself_unless_alone(sight, route, request):
    if route == "sorted":
        request.getfixturevalue("always_sorted")
    q, _, buckets = inputs(40, n_buckets=9, batch=2)
    w = weights(q, buckets, Looking(sight))
    itself = w.diagonal(dim1=-2, dim2=-1)
    assert w.triu(1).eq(0).all()
    assert (itself.eq(0) | itself.eq(1)).all()
    assert 0 < itself.sum() < itself.numel() / 2
    assert itself[..., 0].eq(1).all()
    torch.testing.assert_close(w.sum(-1), torch.ones_like(itself))


def test_a_small_case_by_hand(always_sorted):
    q, buckets = torch.ones(1, 1, 6, 1, dtype=torch.float64), torch.tensor([[[[0, 1, 0, 0, 1, 0]]]])
    third, half = 1 / 3, 1 / 2
    assert weights(q, buckets, Looking(RecentKeys(size=2)))[0, 0].tolist() == [
        pytest.approx(row, abs=1e-12)
        for row in (
            [1, 0, 0, 0, 0, 0],
            [0, 1, 0, 0, 0, 0],
            [1, 0, 0, 0, 0, 0],
            [half, 0, half, 0, 0, 0],
            [0, 1, 0, 0, 0, 0],
            [0, 0, half, half, 0, 0],
        )
    ]
    # sorted: 0 2 | 3 5 | 1 4, and before the first chunk the last
    both = weights(q, buckets, Looking(Chunks(size=2, within="chunk"), "both"))[0, 0]
    for i, row in {0: {1, 2, 4}, 3: {0, 2, 5}, 4: {1, 3, 5}}.items():
        assert both[i].tolist() == pytest.approx([third if j in row else 0 for j in range(6)], abs=1e-12)


def changed_after(cut, q, buckets):
    other, others = q.detach().clone(), buckets.clone()
    fresh, _, new = inputs(q.shape[2], buckets.shape[2], seed=5)
    other[:, :, cut:], others[..., cut:] = fresh[:, :, cut:], new[..., cut:]
    return other, others


def test_recent_is_strictly_causal_and_chunks_are_not(always_sorted):
    q, _, buckets = inputs(64, n_rounds=3)
    moved = 0
    for cut in (1, 20, 63):
        other, others = changed_after(cut, q, buckets)
        for sight in SIGHTS:
            before, after = (weights(*x, Looking(sight))[:, :, :cut] for x in ((q, buckets), (other, others)))
            if isinstance(sight, RecentKeys):
                assert torch.equal(before > 0, after > 0)
                torch.testing.assert_close(after, before, rtol=1e-12, atol=0)
            else:
                moved += int((before != after).sum())
    # the borders of chunks depend on the future, which is why they are not what models use
    assert moved > 0


@pytest.mark.parametrize("sight", SIGHTS, ids=repr)
@pytest.mark.parametrize("direction", ["past", "both"])
def test_packed_documents_holes_and_batches_equal_separate_runs(sight, direction, always_sorted):
    looking, lengths = Looking(sight, direction), (17, 1, 30, 12)
    q, v, buckets = inputs(sum(lengths), heads=3)
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    packed = lsh.attend_hashed(q, v, buckets, looking, None, group)
    parts = zip(q.split(lengths, 2), v.split(lengths, 2), buckets.split(lengths, 3), strict=True)
    separate = torch.cat([lsh.attend_hashed(*part, looking) for part in parts], dim=2)
    torch.testing.assert_close(packed, separate, rtol=1e-10, atol=1e-12)
    keep = torch.rand(1, 60, generator=torch.Generator().manual_seed(0)) > 0.3
    holes = lsh.attend_hashed(q, v, buckets, looking, keep)[:, :, keep[0]]
    alone = lsh.attend_hashed(q[:, :, keep[0]], v[:, :, keep[0]], buckets[..., keep[0]], looking)
    torch.testing.assert_close(holes, alone, rtol=1e-10, atol=1e-12)
    more = [torch.cat([x.detach(), x.detach().flip(1), x.detach()]) for x in (q, v, buckets)]
    together = lsh.attend_hashed(*more, looking)
    torch.testing.assert_close(together[1].flip(0), together[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(together[2:], lsh.attend_hashed(q, v, buckets, looking), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sight", SIGHTS, ids=repr)
def test_extremes_stay_finite(sight, always_sorted):
    q, v, buckets = inputs(19)
    nobody = torch.zeros(1, 19, dtype=torch.bool)
    alone = run(lsh.attend_hashed, q, v, buckets, Looking(sight), nobody)
    assert torch.equal(alone["out"], v)
    assert alone["dq"].eq(0).all()
    for scale in (0.0, 1e-6, 1e6):
        x, values = ((scale * t).detach().float().requires_grad_() for t in (q, v))
        found = run(lsh.attend_hashed, x, values, buckets, Looking(sight))
        assert all(part.isfinite().all() for part in found.values())


def test_half_precision_is_worked_on_in_single(always_sorted):
    q, v, buckets = inputs(29, heads=1)
    want = lsh.attend_hashed(q, v, buckets, Looking(RecentKeys(size=4)))
    got = lsh.attend_hashed(q.bfloat16(), v.bfloat16(), buckets, Looking(RecentKeys(size=4)))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0.05, atol=0.05)


def test_places_that_small_integers_cannot_count(always_sorted, monkeypatch):
    q, v, buckets = inputs(29)
    for sight in SIGHTS:
        want = lsh.attend_hashed(q.float(), v.float(), buckets, Looking(sight))
        with monkeypatch.context() as patch:
            patch.setattr(lsh_plan, "INTEGERS", (torch.int64,))
            assert torch.equal(lsh.attend_hashed(q.float(), v.float(), buckets, Looking(sight)), want)


class Watch(TorchDispatchMode):
    """Notes the largest tensor that is made, and the bytes of all that are."""

    largest = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.largest, self.total = max(self.largest, x.numel()), self.total + x.untyped_storage().nbytes()
        return out


@pytest.mark.parametrize(
    "looking", [Looking(RecentKeys(size=8)), Looking(RecentKeys(size=8), "both"), Looking(Chunks(size=8))]
)
def test_work_and_memory_grow_linearly(looking, monkeypatch):
    monkeypatch.setattr(lsh, "TILE_PAIRS", 1 << 11)
    scores, watched = [], []
    kernel = lsh._attend_tiles
    monkeypatch.setattr(lsh, "_attend_tiles", lambda *a: scores.append(a[3].numel()) or kernel(*a))
    counts = []
    for length in (256, 512, 1024, 2048):
        q, v, buckets = inputs(length, n_rounds=2, n_buckets=length // 8, heads=1)
        scores.clear()
        with Watch() as watch:
            run(lsh.attend_hashed, q, v, buckets, looking)
        watched.append(watch)
        counts.append(sum(scores))
        assert counts[-1] == length * lsh.scores_per_query(length, looking, 2)
    assert [b / a for a, b in itertools.pairwise(counts)] == [2.0, 2.0, 2.0]
    assert all(watch.largest <= 100 * length for watch, length in zip(watched, (256, 512, 1024, 2048), strict=True))
    assert math.log2(watched[-1].total / watched[0].total) / 3 < 1.05


@pytest.mark.parametrize("n_rounds", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_hugging_face_where_it_keeps_to_one_round(n_rounds, causal, always_sorted):
    """In float64, where a token that must see itself does not suffer from their -1e5.

    Their first chunk of a round looks at the last chunk of the round before, ours at the last one of its own: with
    several rounds, queries in a first chunk differ.
    """
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    config = pytest.importorskip("transformers").ReformerConfig(
        attention_head_size=4,
        num_attention_heads=2,
        hidden_size=8,
        lsh_attn_chunk_length=8,
        num_hashes=n_rounds,
        num_buckets=[2, 4],
        is_decoder=causal,
        hash_seed=5,
        lsh_attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = reformer.LSHSelfAttention(config).double().eval()
        x = torch.randn(2, 48, 8, dtype=torch.float64)
        found = theirs(x)
        torch.manual_seed(5)
        rotations = torch.randn(2, 4, n_rounds, 3, dtype=torch.float64)
    q, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (theirs.query_key, theirs.value))
    buckets = hashing.hash_buckets(q, rotations, (2, 4))
    assert torch.equal(buckets, found.buckets - 8 * torch.arange(n_rounds)[:, None])
    looking = Looking(Chunks(size=8, within="chunk"), "past" if causal else "both", "each")
    ours = lsh.attend_hashed(q, v, buckets, looking)
    wanted = found.hidden_states.unflatten(-1, (2, 4)).transpose(1, 2)
    first = (buckets * 48 + torch.arange(48)).argsort(-1).argsort(-1) < 8
    agree = ~first.any(2) if n_rounds > 1 else torch.ones_like(first[:, :, 0])
    assert agree.double().mean() > 0.6
    torch.testing.assert_close(ours[agree], wanted[agree], rtol=1e-7, atol=1e-9)


def test_ranks_count_equal_ones_before():
    assert lsh.ranks(torch.tensor([[3, 1, 3, 3, 1, 0], [0, 0, 0, 2, 0, 2]])).tolist() == [
        [0, 0, 1, 2, 1, 0],
        [0, 1, 2, 0, 3, 1],
    ]


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match=r"direction: unknown 'pest'; did you mean 'past'\?"):
        Looking(RecentKeys(), "pest")
    with pytest.raises(SpecError, match="repeats: unknown 'never'"):
        Looking(RecentKeys(), repeats="never")
    with pytest.raises(SpecError, match="within: unknown 'buckets'"):
        Chunks(within="buckets")
    with pytest.raises(SpecError, match="size: 0 is not allowed; at least 1"):
        RecentKeys(size=0)
    q, v, buckets = inputs(5)
    with pytest.raises(ShapeError, match="v_BHLK has L=4"):
        lsh.attend_hashed(q, v[:, :, :4], buckets, Looking(RecentKeys()))
