"""Memory-compressed attention: who sees which window, what it reduces to, and decoding with a window half full."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import kinfolk as kf
from kinfolk.core.annotations import Visible
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.compressed_attention import MemoryCompressed
from kinfolk.layers.module import Dims
from kinfolk.ops.patterns.leaves import Causal
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)


def layer(stride=3, **options):
    torch.manual_seed(0)
    module = MemoryCompressed(n_heads=3, stride=stride, **options).build(DIMS).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return module


def x(n, batch=2):
    return torch.randn(batch, n, 12, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def dense(module, inputs, k, v, visible):
    """Attend explicitly to given keys and values [B, H, M, K] and to an empty slot before them."""
    q = module.qkv(inputs)[..., :12].unflatten(-1, (3, 4)).transpose(1, 2)
    k, v = (torch.cat([torch.zeros_like(t[:, :, :1]), t], 2) for t in (k, v))
    visible = torch.cat([torch.ones_like(visible[:, :1]), visible], 1)
    scores = ((q @ k.mT) / 2).masked_fill(~visible, -torch.inf)
    return module.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def keys_and_values(module, inputs):
    kv = module.qkv(inputs)[..., 12:].unflatten(-1, (6, 4)).transpose(1, 2)
    return kv.chunk(2, dim=1)


def ends(length, stride):
    """Tell which windows have ended at each position."""
    return torch.arange(length)[:, None] >= torch.arange(length // stride) * stride + stride - 1


def test_a_query_sees_the_windows_that_have_ended_and_the_empty_slot():
    taps = Taps()
    layer()(x(7), Context(taps=taps), None)
    seen = (taps.found["weights"][0, 0] > 0).int().tolist()
    assert seen == [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("length", [1, 2, 3, 13, 17])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_filters_that_average_are_attention_to_averages(length, stride):
    ours = layer(stride, bias=False)
    each = torch.eye(4, dtype=torch.float64).repeat(1, stride) / stride
    ours.filters.weight.data = each.repeat(6, 1)
    whole = length // stride * stride
    k, v = (
        t[:, :, :whole].unflatten(2, (-1, stride)).mean(3) if whole else t[:, :, :0]
        for t in keys_and_values(ours, x(length))
    )
    assert_exact(ours(x(length), Context(), None)[0], dense(ours, x(length), k, v, ends(length, stride)))


def test_windows_of_one_are_causal_attention_with_one_more_in_the_denominator():
    ours = layer(1, bias=False)
    ours.filters.weight.data = torch.eye(4, dtype=torch.float64).repeat(6, 1)
    ours.out.weight.data = torch.eye(12, dtype=torch.float64)
    theirs = Attention(n_heads=3, pattern=Causal(), bias=False).build(DIMS).double()
    theirs.load_state_dict({"qkv.weight": ours.qkv.weight, "out.weight": ours.out.weight})
    want = theirs(x(11), Context(), None)[0].unflatten(-1, (3, 4)).transpose(1, 2)
    q = ours.qkv(x(11))[..., :12].unflatten(-1, (3, 4)).transpose(1, 2)
    scores = ((q @ keys_and_values(ours, x(11))[0].mT) / 2).masked_fill(~ends(11, 1), -torch.inf)
    total = scores.exp().sum(-1, keepdim=True)
    assert_exact(ours(x(11), Context(), None)[0], (want * total / (total + 1)).transpose(1, 2).flatten(2))


def test_the_first_queries_see_nothing():
    ours = layer()
    assert_exact(ours(x(2), Context(), None)[0], ours.out.bias.expand(2, 2, 12))


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_nothing_leaks_at_any_place_of_a_window(stride):
    ours, full = layer(stride), x(13, batch=1)
    before, _ = ours(full, Context(), None)
    for at in range(13):
        changed = full.clone()
        changed[:, at:] = 9.0
        assert torch.equal(ours(changed, Context(), None)[0][:, :at], before[:, :at])


@pytest.mark.parametrize("stride", [1, 3, 4])
@pytest.mark.parametrize("chunks", [(1,) * 17, (7, 1, 1, 5, 3), (2, 2, 13), (17,)], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(stride, chunks):
    ours, full = layer(stride), x(17)
    want, _ = ours(full, Context(), None)
    state, at, got = ours.new_state(2, 17), 0, []
    for n in chunks:
        y, state = ours(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    assert_exact(torch.cat(got, 1), want)


@pytest.mark.parametrize("stride", [1, 3, 4])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_rows_at_their_own_positions_after_padded_prompts(stride, step):
    ours, full, lengths = layer(stride), x(24, batch=3), torch.tensor([2, 9, 5])
    state = ours.new_state(3, 24)
    keep = torch.arange(9) < lengths[:, None]
    got, _ = ours(full[:, :9], Context(padding=Padding(keep, right=True)), state)
    want, _ = ours(full, Context(), None)
    assert_exact(got[keep], want[:, :9][keep])
    for n in range(0, 16 - step, step):
        pos = (lengths + n)[:, None] + torch.arange(step)
        got, _ = ours(full[torch.arange(3)[:, None], pos], Context(start=9 + n, pos_BL=pos), state)
        assert_exact(got, want[torch.arange(3)[:, None], pos])


def test_padding_does_not_enter_the_state():
    ours, keep, states = layer(), torch.arange(9) < torch.tensor([[2], [7]]), []
    for filler in (1.0, 100.0):
        states.append(ours.new_state(2, 9))
        ours(x(9).masked_fill(~keep[..., None], filler), Context(padding=Padding(keep, right=True)), states[-1])
    one, other = states
    # nobody looks at the last slot
    assert torch.equal(one.slots_BGMK[:, :, :-1], other.slots_BGMK[:, :, :-1])
    assert torch.equal(one.tail_BGtK, other.tail_BGtK)


def test_selecting_rows_moves_the_state_with_them():
    ours, full = layer(), x(9)
    state = ours.new_state(2, 9)
    ours(full[:, :8], Context(), state)
    state.select(torch.tensor([1, 1]))
    got, _ = ours(full[[1, 1], 8:], Context(start=8), state)
    assert_exact(got[:, 0], ours(full[[1, 1]], Context(), None)[0][:, -1])


def test_packed_documents_equal_separate_runs_wherever_they_begin():
    ours, lengths = layer(), [5, 1, 9, 2]
    documents = [x(n, batch=1) for n in lengths]
    group = torch.tensor([[i for i, n in enumerate(lengths) for _ in range(n)]])
    position = torch.tensor([[p for n in lengths for p in range(n)]])
    got, _ = ours(torch.cat(documents, 1), Context(group_BL=group, pos_BL=position), None)
    assert_exact(got, torch.cat([ours(one, Context(), None)[0] for one in documents], 1))


def test_padding_changes_nothing():
    ours, real = layer(), x(7)
    keep = torch.arange(11).expand(2, 11) < 7
    padded = torch.cat([real, x(4) * 100], 1)
    got, _ = ours(padded, Context(padding=Padding(keep, right=True)), None)
    assert_exact(got[:, :7], ours(real, Context(), None)[0])
    # in front of the tokens it shifts the windows, but what stands there does not matter
    left = Padding(keep.flip(1), right=False)
    one, other = (ours(torch.cat([x(4) * scale, real], 1), Context(padding=left), None)[0] for scale in (1, 100))
    assert_exact(one[:, 4:], other[:, 4:])


def test_a_state_holds_a_slot_per_window():
    state = layer().new_state(2, 300)
    assert state.slots_BGMK.shape == (2, 6, 102, 4)
    assert state.tail_BGtK.shape == (2, 6, 2, 4)


def test_scores_are_a_third_and_no_mask_is_made():
    def flops(module, n):
        with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            module(x(n, 1), Context(), None)
        # what is left when the linear maps are taken out; filters run once per window
        runs = {"qkv.weight": n, "out.weight": n, "filters.weight": n // 3}
        maps = sum(2 * runs[name] * p.numel() for name, p in module.named_parameters() if name in runs)
        return counter.get_total_flops() - maps

    full = Attention(n_heads=3, pattern=Causal()).build(DIMS).double()
    assert flops(layer(), 600) == pytest.approx(flops(full, 600) / 3, rel=0.02)
    biggest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            out = function(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else [out]:
                biggest = max(biggest, t.numel()) if isinstance(t, torch.Tensor) else biggest
            return out

    with Watch():
        layer()(x(600, 1), Context(), None)[0].sum().backward()
    assert biggest <= 600 * 36


def test_layers_alternate_and_begin_with_a_local_one():
    model = kf.relative("dmca", size="base").model
    kinds = ["L" if block.parts[0].kind == "attention" else "M" for block in model.decoder.blocks]
    assert "".join(kinds) == "LMLML"


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="stride: 0 is not allowed"):
        layer(0)
    with pytest.raises(SpecError, match="d_model 12 is not a multiple of n_heads 5"):
        MemoryCompressed(n_heads=5).build(DIMS)
    with pytest.raises(ShapeError, match=r"memory-compressed: .* cannot follow an attention mask"):
        layer()(x(3), Context(annotations=(Visible(torch.ones(2, 3, 3, dtype=torch.bool)),)), None)
    state = layer().new_state(2, 4)
    with pytest.raises(ShapeError, match="position 5 does not fit"):
        layer()(x(6), Context(), state)
