"""Hashed attention as a layer: decoding from buckets, what it reports, what it costs and what it refuses."""

import pytest
import torch
import torch.nn.functional as F

import kinfolk as kf
from kinfolk.core.annotations import Visible
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.lsh_attention import Hashed, Hashing
from kinfolk.layers.module import Dims
from kinfolk.ops import lsh_plan
from kinfolk.ops.lsh_attention import Chunks, RecentKeys

DIMS = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
LENGTH = 23


@pytest.fixture(params=["short", "sorted"])
def route(request, monkeypatch):
    """Both ways that a whole sequence may be worked on."""
    monkeypatch.setattr(lsh_plan, "DENSE", 1024 if request.param == "short" else 0)
    return request.param


def layer(size=3, buckets=(4,), n_rounds=3, **options):
    torch.manual_seed(0)
    spec = Hashed(
        n_heads=4, sight=RecentKeys(size=size), hashing=Hashing(n_rounds=n_rounds, buckets=buckets), **options
    )
    return spec.build(DIMS).double()


def x(n=LENGTH, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("repeats", ["once", "each"])
@pytest.mark.parametrize("chunks", [(1,) * LENGTH, (7, 1, 1, 9, 5), (LENGTH,), (1, 20, 2)], ids=str)
@pytest.mark.parametrize("size", [1, 3, 40])
def test_decoding_in_any_chunks_equals_one_pass(repeats, chunks, size, route):
    attention, full = layer(size, repeats=repeats), x()
    want, _ = attention(full, Context(), None)
    state, at, got = attention.new_state(2, LENGTH), 0, []
    for n in chunks:
        y, state = attention(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-12)


def test_rows_at_their_own_positions_after_padded_prompts(route):
    attention, full, lengths = layer(), x(batch=3), torch.tensor([2, 9, 5])
    state = attention.new_state(3, 26)
    keep = torch.arange(9) < lengths[:, None]
    prompt, _ = attention(full[:, :9], Context(padding=Padding(keep, right=True)), state)
    at = lengths.clone()
    for n in (1, 1, 4, 1, 5):
        pos = at[:, None] + torch.arange(n)
        got, _ = attention(
            full[torch.arange(3)[:, None], pos], Context(start=int(pos.max()) + 1 - n, pos_BL=pos), state
        )
        for row in range(3):
            want, _ = attention(full[row : row + 1, : int(pos[row, -1]) + 1], Context(), None)
            torch.testing.assert_close(got[row], want[0, -n:], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(prompt[row, : lengths[row]], want[0, : lengths[row]], rtol=1e-10, atol=1e-12)
        at += n


def test_selecting_rows_moves_the_state_with_them():
    attention, full = layer(), x(9)
    state = attention.new_state(2, 9)
    attention(full[:, :7], Context(), state)
    state.select(torch.tensor([1, 1]))
    want, _ = attention(full[[1, 1]], Context(), None)
    for i in (7, 8):
        got, _ = attention(full[[1, 1], i : i + 1], Context(start=i), state)
        torch.testing.assert_close(got[:, 0], want[:, i], rtol=1e-10, atol=1e-12)


def test_a_step_looks_at_as_many_keys_at_any_position(monkeypatch):
    attention, full, seen = layer(), x(60), []
    product = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, *a, **b: seen.append(k.shape[2]) or product(q, k, *a, **b)
    )
    state = attention.new_state(2, 60)
    for i in range(60):
        attention(full[:, i : i + 1], Context(start=i), state)
    # three rounds, three of each bucket, and itself
    assert set(seen) == {10}


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_one_bucket_is_dense_attention_of_shared_queries_and_keys(scale, route):
    attention = layer(size=64, buckets=(1,), n_rounds=1, score_scale=scale)
    q, v = (t.transpose(1, 2) for t in attention.qv(x()).unflatten(-1, (2, 4, 3)).unbind(2))
    ok = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)
    ok[0, 0] = True
    k = q / (q.square().sum(-1, keepdim=True) + 3e-6).sqrt()
    y = F.scaled_dot_product_attention(q, k, v, ok, scale=scale)
    want = attention.out(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x(), Context(), None)[0], want, rtol=1e-10, atol=1e-12)


def test_buckets_are_reported_and_drawn_from_the_seed():
    taps, before = Taps(frozenset({"buckets"})), torch.random.get_rng_state()
    attention = layer(buckets=(2, 4))
    torch.random.set_rng_state(before)
    attention(x(), Context(taps=taps), None)
    buckets = taps.found["buckets"]
    assert buckets.shape == (2, 4, 3, LENGTH)
    assert set(buckets.flatten().tolist()) <= set(range(8))
    assert torch.equal(torch.random.get_rng_state(), before)
    other = Hashed(n_heads=4, hashing=Hashing(n_rounds=3, buckets=(2, 4), seed=1)).build(DIMS)
    assert not torch.equal(other.rotations_HKrj, attention.rotations_HKrj.float())
    assert "rotations_HKrj" not in attention.state_dict()


def test_nothing_means_about_twice_as_many_buckets_as_sights():
    assert layer(size=8, buckets=()).factors == (16,)


@pytest.mark.parametrize("length", [40, 41])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_relative_stays_causal_and_decodes_where_tokens_are_sorted(length, chunked, monkeypatch):
    monkeypatch.setattr(lsh_plan, "DENSE", 0)
    numbers = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 64}
    recipe = kf.relative("reformer-lsh", size="tiny", **numbers, n_rounds=2, sight=4)
    model = kf.build(recipe, seed=1).double().eval()
    tokens = torch.randint(0, 40, (2, length), generator=torch.Generator().manual_seed(0))
    full = model(tokens).logits
    changed = tokens.clone()
    changed[:, 30:] = (changed[:, 30:] + 7) % 40
    torch.testing.assert_close(model(changed).logits[:, :30], full[:, :30], rtol=1e-9, atol=1e-11)
    state = model.new_state(2, length)
    steps = (25, *(1,) * (length - 25)) if chunked else (1,) * length
    got = [model(part, state=state).logits for part in tokens.split(steps, 1)]
    torch.testing.assert_close(torch.cat(got, 1), full, rtol=1e-9, atol=1e-11)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="d_model 12 is not a multiple of n_heads 5"):
        Hashed(n_heads=5).build(DIMS)
    with pytest.raises(SpecError, match=r"direction: unknown 'future'"):
        Hashed(n_heads=4, direction="future")
    with pytest.raises(SpecError, match=r"buckets: \(4, 3\) should be even numbers, or 1 for a single bucket"):
        Hashing(buckets=(4, 3))
    with pytest.raises(SpecError, match="n_rounds: 0 is not allowed; at least 1"):
        Hashing(n_rounds=0)
    with pytest.raises(SpecError, match="both directions cannot decode"):
        Hashed(n_heads=4, direction="both").build(DIMS).new_state(1, 4)
    with pytest.raises(SpecError, match='use sight "recent"'):
        Hashed(n_heads=4, sight=Chunks()).build(DIMS).new_state(1, 4)
    with pytest.raises(ShapeError, match="position 4 does not fit a state made for 4"):
        layer()(x(5), Context(), layer().new_state(2, 4))
    with pytest.raises(ShapeError, match="takes no attention mask"):
        layer()(x(3), Context(annotations=(Visible(torch.ones(2, 3, 3, dtype=torch.bool)),)), None)
