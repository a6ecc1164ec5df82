"""Attention layers: rings, shared heads, and what is refused."""

import pytest
import torch

from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.module import Dims
from kinfolk.layers.states.kv_cache import Ring, Slots
from kinfolk.ops.patterns.leaves import Causal, Full, PerHead, SameBlock, Strided, Window

DIMS = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
PATTERNS = [
    Causal(),
    Window(left=4),
    Causal() & Window(left=4) & SameBlock(size=3),
    Causal() & (SameBlock(size=5) | Strided(stride=4)),
    PerHead(patterns=(Window(left=2), Window(left=5, step=2))),
]


def layer(pattern, **options):
    torch.manual_seed(0)
    return Attention(n_heads=4, pattern=pattern, **options).build(DIMS).double()


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("chunks", [(1,) * 17, (7, 1, 1, 5, 3), (17,)], ids=str)
@pytest.mark.parametrize("n_kv", [4, 2, 1])
def test_decoding_in_any_chunks_equals_one_pass(pattern, chunks, n_kv):
    attention, full = layer(pattern, n_kv_heads=n_kv), x(17)
    want, _ = attention(full, Context(), None)
    state, at, got = attention.new_state(2, 17), 0, []
    for n in chunks:
        y, state = attention(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_rows_at_their_own_positions_after_padded_prompts(pattern):
    attention, full, lengths = layer(pattern), x(20, batch=3), torch.tensor([2, 9, 5])
    state = attention.new_state(3, 20)
    keep = torch.arange(9) < lengths[:, None]
    attention(full[:, :9], Context(padding=Padding(keep, right=True)), state)
    for step in range(8):
        pos = (lengths + step)[:, None]
        token = full[torch.arange(3)[:, None], pos]
        got, _ = attention(token, Context(start=9 + step, pos_BL=pos), state)
        for row in range(3):
            want, _ = attention(full[row : row + 1, : int(pos[row]) + 1], Context(), None)
            torch.testing.assert_close(got[row, 0], want[0, -1], rtol=1e-10, atol=1e-12)


def test_a_window_remembers_no_more_than_it_sees():
    state = layer(Window(left=4)).new_state(2, 1000)
    assert isinstance(state, Ring)
    assert state.k_BGMK.shape == (2, 4, 5, 3)
    everything = layer(Causal()).new_state(2, 1000)
    assert type(everything) is Slots
    assert everything.k_BGMK.shape[2] == 1000


def test_selecting_rows_moves_the_state_with_them():
    for pattern in (Causal(), Window(left=3)):
        attention, full = layer(pattern), x(9, batch=2)
        state = attention.new_state(2, 9)
        attention(full[:, :8], Context(), state)
        state.select(torch.tensor([1, 1]))
        got, _ = attention(full[[1, 1], 8:], Context(start=8), state)
        want, _ = attention(full[[1, 1]], Context(), None)
        torch.testing.assert_close(got[:, 0], want[:, -1], rtol=1e-10, atol=1e-12)


def test_shared_key_heads_equal_copied_ones():
    shared, plain = layer(Causal(), n_kv_heads=2), layer(Causal())
    sizes = [n * shared.d_head for n in shared.heads]
    q, k, v = shared.qkv.weight.split(sizes)
    qb, kb, vb = shared.qkv.bias.split(sizes)

    def repeat(w):
        return w.unflatten(0, (2, 3)).repeat_interleave(2, 0).flatten(0, 1)

    plain.qkv.weight.data = torch.cat([q, repeat(k), repeat(v)]).detach()
    plain.qkv.bias.data = torch.cat([qb, repeat(kb), repeat(vb)]).detach()
    plain.out.load_state_dict(shared.out.state_dict())
    torch.testing.assert_close(shared(x(7), Context(), None)[0], plain(x(7), Context(), None)[0])


def test_cross_attention_projects_its_memory_once():
    torch.manual_seed(1)
    cross = CrossAttention(n_heads=4).build(DIMS).double()
    memory = EncoderOutput(x(6), torch.arange(6) < torch.tensor([[6], [4]]))
    want, _ = cross(x(5), Context(encoder_output=memory), None)
    state = cross.new_state(2, 5)
    got = [cross(x(5)[:, i : i + 1], Context(encoder_output=memory), state)[0] for i in range(5)]
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-12)
    cross.kv.weight.data.zero_()
    again, _ = cross(x(5)[:, :1], Context(encoder_output=memory), state)
    assert torch.equal(again, got[0])


def test_attention_dropout_is_off_in_evaluation_and_unbiased_in_training():
    attention = layer(Causal(), dropout=0.5)
    still = attention.eval()(x(30), Context(), None)[0]
    assert torch.equal(still, attention(x(30), Context(), None)[0])
    attention.train()
    torch.manual_seed(0)
    mean = torch.stack([attention(x(30), Context(), None)[0] for _ in range(600)]).mean(0)
    assert (mean - still).abs().mean() < 0.1 * still.abs().mean()


@pytest.mark.parametrize("kind", [Attention, CrossAttention])
def test_dropout_drops_weights_of_attention_in_training_only(kind):
    torch.manual_seed(0)
    pattern = {"pattern": Causal()} if kind is Attention else {}
    part, ctx = (
        kind(n_heads=4, dropout=0.5, **pattern).build(DIMS).double(),
        Context(encoder_output=EncoderOutput(x(7))),
    )
    assert not torch.equal(part(x(9), ctx, None)[0], part(x(9), ctx, None)[0])
    still = part.eval()(x(9), ctx, None)[0]
    assert torch.equal(still, part(x(9), ctx, None)[0])
    # a pass that is listened to does not take the short way of one that is not
    heard = part(x(9), Context(encoder_output=EncoderOutput(x(7)), taps=Taps()), None)[0]
    torch.testing.assert_close(heard, still, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pattern", [Full(), *PATTERNS[:2]], ids=repr)
def test_padding_is_not_attended_to(pattern, side):
    attention, full = layer(pattern), x(8)
    alone, _ = attention(full, Context(), None)
    order = (full, x(3)) if side == "right" else (x(3), full)
    keep = torch.cat([torch.full((2, part.shape[1]), part is full) for part in order], 1)
    padded = torch.cat(order, 1)
    got, _ = attention(padded, Context(padding=Padding(keep, right=side == "right")), None)
    torch.testing.assert_close(got[keep].view_as(alone), alone, rtol=1e-10, atol=1e-12)


def test_padding_of_the_encoder_is_not_attended_to():
    torch.manual_seed(0)
    cross, memory = CrossAttention(n_heads=4).build(DIMS).double(), x(6)
    alone, _ = cross(x(5), Context(encoder_output=EncoderOutput(memory)), None)
    longer, keep = torch.cat([memory, x(3)], 1), torch.arange(9).expand(2, 9) < 6
    got, _ = cross(x(5), Context(encoder_output=EncoderOutput(longer, keep)), None)
    torch.testing.assert_close(got, alone, rtol=1e-10, atol=1e-12)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="d_model 12 is not a multiple of n_heads 5"):
        Attention(n_heads=5).build(DIMS)
    with pytest.raises(SpecError, match="3 key heads cannot be shared by 4"):
        Attention(n_heads=4, n_kv_heads=3).build(DIMS)
    with pytest.raises(SpecError, match="cannot decode step by step"):
        layer(Full()).new_state(1, 4)
    with pytest.raises(ShapeError, match="needs the states of an encoder"):
        CrossAttention(n_heads=4).build(DIMS)(x(3).float(), Context(), None)
    state = layer(Causal()).new_state(2, 4)
    with pytest.raises(ShapeError, match="position 4 does not fit a state made for 4"):
        layer(Causal())(x(5), Context(), state)


def test_a_ring_keeps_what_is_not_replaced():
    """Two positions behind five in a ring of four: positions 3 to 6 remain, each with its own key."""
    ring = Ring(torch.zeros(1, 1, 4, 1), torch.zeros(1, 1, 4, 1))
    keys = torch.arange(7.0).view(1, 1, 7, 1) + 10
    ring.extend(keys[:, :, :5], keys[:, :, :5], Context())
    ring.extend(keys[:, :, 5:], keys[:, :, 5:], Context(start=5))
    assert ring.pos_BM.tolist() == [[4, 5, 6, 3]]
    assert ring.k_BGMK.flatten().tolist() == ring.v_BGMK.flatten().tolist() == [14, 15, 16, 13]
