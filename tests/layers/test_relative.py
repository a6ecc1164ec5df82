"""Relative positions inside attention: against their dense definition, with every pattern, and while decoding."""

import pytest
import torch

from kinfolk.core.annotations import DependencyTree
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import NoPosition, sinusoids
from kinfolk.layers.positions.relative import XL, ALiBi, Rotary, Shaw, T5Buckets
from kinfolk.ops.attention import attend as executor
from kinfolk.ops.naive.relative_position import bucket
from kinfolk.ops.patterns.leaves import Causal, Full, PerHead, SameBlock, Strided, Summary, Window

D, H, K = 12, 2, 6
POSITIONS = [Rotary(), Rotary(layout="halves"), ALiBi(), T5Buckets(n_buckets=8, farthest=12), Shaw(clip=3), XL()]
PATTERNS = [
    Causal(),
    Full(),
    Window(left=4),
    Window(left=3, right=3),
    Causal() & (SameBlock(size=4) | Summary(block=4, width=1)),
    Causal() & (Window(left=2) | Strided(stride=5)),
    PerHead(patterns=(Window(left=2), Causal())),
]


def layer(position, pattern=None, **options):
    dims = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
    torch.manual_seed(0)
    built = Attention(n_heads=H, pattern=pattern or Causal(), position=position, **options).build(dims).double()
    for module in (built, *dims.shared.modules.values()):
        module.double()
        for p in module.parameters():
            torch.nn.init.normal_(p, std=0.5)
    return built


def x(n, batch=2):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def turned(position, vector, at):
    alone = vector.view(1, 1, 1, K)
    return position.turn(alone, alone, Context(start=at))[0].flatten()


def score(attention, q_i, k_j, i, j, h):
    """Score one pair from the definition of its paper; also return what is added to the value."""
    spec, position = attention.spec.position, attention.position
    product, scale = q_i @ k_j, K**-0.5
    if spec.kind == "rotary":
        return turned(position, q_i, i) @ turned(position, k_j, j) * scale, 0.0
    if spec.kind == "shaw":
        at = max(-spec.clip, min(spec.clip, j - i)) + spec.clip
        return (product + q_i @ position.keys.weight[at]) * scale, position.values.weight[at]
    if spec.kind == "xl":
        u, w = position.biases.weight.unflatten(1, (H, K))[:, h]
        r = position.distance(sinusoids(torch.tensor([i - j]), D, "halves"))[0].unflatten(0, (H, K))[h]
        return (product + u @ k_j + (q_i + w) @ r) * scale, 0.0
    if spec.kind == "alibi":
        return product * scale - 2.0 ** (-8 * (h + 1) / H) * abs(i - j), 0.0
    return product * scale + position.table.weight[bucket(i - j, 8, 12, attention.spec.pattern.causal), h], 0.0


def dense(attention, x_LD):
    """Attention of one example, one pair at a time."""
    q, k, v = (t.unflatten(-1, (H, K)).transpose(0, 1) for t in attention.qkv(x_LD).chunk(3, -1))
    out = torch.zeros_like(v)
    for pattern, run in attention.spec.pattern.by_head(H):
        for h in range(run.start, run.stop):
            for i in range(len(x_LD)):
                seen = [j for j in range(len(x_LD)) if pattern.allows(torch.tensor(i), torch.tensor(j))]
                scores, extra = zip(*(score(attention, q[h, i], k[h, j], i, j, h) for j in seen), strict=True)
                for w, j, e in zip(torch.stack(scores).softmax(0), seen, extra, strict=True):
                    out[h, i] = out[h, i] + w * (v[h, j] + e)
    return attention.out(out.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_equals_its_definition_dense_and_in_blocks(position, pattern, monkeypatch):
    attention = layer(position, pattern)
    want = dense(attention, x(9, batch=1)[0])[None]
    torch.testing.assert_close(attention(x(9, batch=1), Context(), None)[0], want, rtol=1e-9, atol=1e-10)
    for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
        monkeypatch.setattr(executor, name, value)
    torch.testing.assert_close(attention(x(9, batch=1), Context(), None)[0], want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("position", POSITIONS, ids=repr)
@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p.causal], ids=repr)
def test_decoding_equals_one_pass_also_for_rows_at_their_own_positions(position, pattern):
    attention, full, lengths = layer(position, pattern), x(14, batch=3), torch.tensor([2, 6, 4])
    whole, _ = attention(full, Context(), None)
    state, at, got = attention.new_state(3, 14), 0, []
    for n in (5, 1, 1, 4, 3):
        got.append(attention(full[:, at : at + n], Context(start=at), state)[0])
        at += n
    torch.testing.assert_close(torch.cat(got, 1), whole, rtol=1e-9, atol=1e-10)
    state = attention.new_state(3, 14)
    attention(full[:, :6], Context(padding=Padding(torch.arange(6) < lengths[:, None], right=True)), state)
    for step in range(5):
        pos = (lengths + step)[:, None]
        token = full[torch.arange(3)[:, None], pos]
        y, _ = attention(token, Context(start=6 + step, pos_BL=pos), state)
        torch.testing.assert_close(y, whole[torch.arange(3)[:, None], pos], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_distances_alone_matter(position):
    """Shifting everything inside a window changes nothing but where it stands."""
    attention = layer(position, Window(left=3))
    a, b = x(12), torch.cat([x(4), x(12)], 1)
    torch.testing.assert_close(attention(a, Context(), None)[0][:, 3:], attention(b, Context(), None)[0][:, 7:])


def test_zero_tables_are_no_position():
    plain = layer(NoPosition())
    for position in (Shaw(clip=3), T5Buckets()):
        other = layer(position)
        other.load_state_dict(plain.state_dict(), strict=False)
        for p in other.position.parameters():
            p.data.zero_()
        if isinstance(position, T5Buckets):
            other.position.table.weight.data.zero_()
        torch.testing.assert_close(other(x(7), Context(), None)[0], plain(x(7), Context(), None)[0])


def test_a_given_relation_that_is_the_distance_is_shaw():
    attention = layer(Shaw(clip=3), Full())
    relation = (torch.arange(7)[None, :] - torch.arange(7)[:, None]).expand(2, 7, 7)
    want = attention(x(7), Context(), None)[0]
    depth = torch.zeros(2, 7)
    torch.testing.assert_close(attention(x(7), Context(annotations=(DependencyTree(depth, relation),)), None)[0], want)
    other = attention(x(7), Context(annotations=(DependencyTree(depth, -relation),)), None)[0]
    assert not torch.allclose(other, want)


def test_what_belongs_to_attention_is_refused_elsewhere():
    dims = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
    for position in POSITIONS:
        with pytest.raises(SpecError, match="belongs to attention, not to an embedding"):
            Tokens(position=position).build(dims)
    with pytest.raises(SpecError, match="must be even, got 3"):
        Attention(n_heads=4, position=Rotary()).build(dims)
