"""Attention with a memory: segment by segment it is one pass, but no gradient reaches the segments before."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.segment_attention import Recollection, SegmentAttention
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import XL, ALiBi, Rotary, Shaw
from kinfolk.layers.states.kv_cache import Ring
from kinfolk.ops.patterns.leaves import Causal, Full, Local1D, PerHead, Window

D = 12
PATTERNS = [
    Causal(),
    Window(left=4),
    Causal() & Local1D(block=4, memory=3),
    Causal() & Local1D(block=1, memory=6),
    PerHead(patterns=(Window(left=2), Window(left=6))),
]
POSITIONS = [XL(), XL(biases="per-layer"), Rotary(), ALiBi(), Shaw(clip=3), NoPosition()]


def layer(position=None, pattern=None):
    dims = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
    torch.manual_seed(0)
    built = SegmentAttention(n_heads=2, pattern=pattern or Causal(), position=position or XL()).build(dims).double()
    for module in (built, *dims.shared.modules.values()):
        module.double()
        for p in module.parameters():
            torch.nn.init.normal_(p, std=0.5)
    return built


def x(n, batch=2, seed=0):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_segments(attention, full, lengths, memory=None, start=0, **more):
    memory, at, out = memory or attention.new_memory(), 0, []
    for n in lengths:
        out.append(attention(full[:, at : at + n], Context(start=start + at, **more), memory)[0])
        memory.settle()
        at += n
    return torch.cat(out, 1)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("position", POSITIONS, ids=repr)
@pytest.mark.parametrize("lengths", [(13,), (4, 4, 4, 1), (1, 5, 1, 1, 5), (1,) * 13], ids=str)
def test_segments_are_one_pass(position, pattern, lengths):
    attention, full = layer(position, pattern), x(13)
    want = attention(full, Context(), None)[0]
    torch.testing.assert_close(in_segments(attention, full, lengths), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pattern", PATTERNS[:3], ids=repr)
@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_no_gradient_reaches_the_memory_and_all_others_are_right(position, pattern):
    """The memory is a constant; the maps of keys and values learn from it all the same."""
    attention = layer(position, pattern)
    old, new, weight = x(6, seed=1).requires_grad_(), x(5, seed=2).requires_grad_(), x(5, seed=3)
    memory = attention.new_memory()
    attention(old, Context(), memory)
    memory.settle()
    (attention(new, Context(start=6), memory)[0] * weight).sum().backward()
    assert old.grad is None
    found = [new.grad, *(p.grad.clone() for p in attention.parameters())]
    attention.zero_grad()
    new.grad = None
    (attention(torch.cat([old.detach(), new], 1), Context(), None)[0][:, 6:] * weight).sum().backward()
    # in one pass the old positions are queries too, but their outputs are not scored
    for mine, theirs in zip(found, [new.grad, *(p.grad for p in attention.parameters())], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p.span], ids=repr)
def test_no_more_is_kept_than_may_be_seen(pattern):
    attention, memory = layer(pattern=pattern), Recollection()
    for at in range(0, 40, 4):
        attention(x(4), Context(start=at), memory)
        memory.settle()
        assert memory.x_BMD.shape[1] == at + 4 - pattern.first_seen(at + 4)
    assert memory.x_BMD.shape[1] < pattern.span
    assert memory.x_BMD.untyped_storage().nbytes() == memory.x_BMD.numel() * 8
    assert not memory.x_BMD.requires_grad


def test_the_memory_of_a_paper_is_what_stands_before_the_segment():
    pattern = Causal() & Local1D(block=8, memory=5)
    assert [q - pattern.first_seen(q) for q in (8, 16, 160)] == [5, 5, 5]
    assert pattern.first_seen(3) == 0
    assert (Window(left=3) | Local1D(block=8, memory=5)).first_seen(20) == 11
    for q in range(30):
        seen = pattern.allows(torch.arange(q, 40)[:, None], torch.arange(40)[None])
        assert int(seen.any(0).nonzero()[0]) == pattern.first_seen(q)


def test_nothing_is_remembered_before_it_is_settled():
    """A block that is recomputed in the backward pass must read the same memory again."""
    attention, memory = layer(), Recollection()
    attention(x(4, seed=1), Context(), memory)
    memory.settle()
    first = attention(x(3, seed=2), Context(start=4), memory)[0]
    assert torch.equal(attention(x(3, seed=2), Context(start=4), memory)[0], first)


def test_some_examples_begin_anew():
    attention, memory, old, new = layer(), Recollection(), x(5, seed=1), x(4, seed=2)
    attention(old, Context(), memory)
    memory.settle()
    memory.forget(torch.tensor([False, False]))
    assert memory.keep_BM is None
    memory.forget(torch.tensor([False, True]))
    got = attention(new, Context(start=5), memory)[0]
    whole = attention(torch.cat([old, new], 1), Context(), None)[0][:, 5:]
    torch.testing.assert_close(got[0], whole[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got[1], attention(new, Context(), None)[0][1], rtol=1e-10, atol=1e-10)
    memory.settle()
    after = attention(x(2, seed=3), Context(start=9), memory)[0]
    alone = attention(torch.cat([new, x(2, seed=3)], 1), Context(), None)[0][:, 4:]
    torch.testing.assert_close(after[1], alone[1], rtol=1e-10, atol=1e-10)
    memory.forget(torch.tensor([True, True]))
    torch.testing.assert_close(attention(new, Context(start=5), memory)[0], attention(new, Context(), None)[0])


def test_padding_is_remembered_as_padding():
    attention, memory, old, new = layer(), Recollection(), x(5, seed=1), x(4, seed=2)
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    attention(old, Context(padding=Padding(keep, right=True)), memory)
    memory.settle()
    got = attention(new, Context(start=5), memory)[0]
    other = old.clone()
    other[1, 3:] = 7.0
    memory = Recollection()
    attention(other, Context(padding=Padding(keep, right=True)), memory)
    memory.settle()
    assert torch.equal(attention(new, Context(start=5), memory)[0], got)
    whole = attention(torch.cat([old, new], 1), Context(), None)[0][:, 5:]
    torch.testing.assert_close(got[0], whole[0], rtol=1e-10, atol=1e-10)


def test_documents_that_go_on_are_seen_and_older_ones_are_not():
    attention, memory, full = layer(), Recollection(), x(11)
    where = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]])
    want = attention(full, Context(group_BL=where), None)[0]
    got, at = [], 0
    for n in (5, 4, 2):
        part = where[:, at : at + n]
        # a window numbers its documents from 0
        got.append(attention(full[:, at : at + n], Context(start=at, group_BL=part - part[:, :1]), memory)[0])
        memory.settle()
        at += n
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)


def test_a_memory_survives_being_written_down():
    attention, memory = layer(pattern=Window(left=4)), Recollection()
    assert memory.tensors() == {}
    where = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
    attention(x(5), Context(group_BL=where), memory)
    memory.settle()
    memory.forget(torch.tensor([True, False]))
    again = Recollection()
    again.restore(memory.tensors())
    a, b = (attention(x(3, seed=2), Context(start=5), m)[0] for m in (memory, again))
    assert torch.equal(a, b)
    again.restore({})
    assert torch.equal(attention(x(3), Context(), again)[0], attention(x(3), Context(), None)[0])


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("position", [XL(), Rotary(), Shaw(clip=3)], ids=repr)
def test_decoding_is_one_pass_in_bounded_room(position, pattern):
    attention, full = layer(position, pattern), x(40)
    want = attention(full, Context(), None)[0]
    for chunks in ((1,) * 40, (7, 1, 1, 9, 2, 20), (40,)):
        state, at, got = attention.new_state(2, 40), 0, []
        for n in chunks:
            got.append(attention(full[:, at : at + n], Context(start=at), state)[0])
            at += n
        torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)
        if pattern.span and max(chunks) == 1:
            assert state._both.shape[3] <= 2 * pattern.span


@pytest.mark.parametrize("pattern", PATTERNS[:3], ids=repr)
def test_rows_may_fall_out_of_step_while_decoding(pattern):
    attention, full = layer(pattern=pattern), x(16)
    want = attention(full, Context(), None)[0]
    state = attention.new_state(2, 20)
    attention(full[:, :6], Context(), state)
    attention(full[:, 6:9], Context(start=6), state)
    keep = torch.tensor([[True, True, True], [True, False, False]])
    attention(full[:, 9:12], Context(start=9, padding=Padding(keep, right=True)), state)
    for step in range(3):
        pos = torch.tensor([[12 + step], [10 + step]])
        got = attention(full[torch.arange(2)[:, None], pos], Context(start=12 + step, pos_BL=pos), state)[0]
        torch.testing.assert_close(got, want[torch.arange(2)[:, None], pos], rtol=1e-10, atol=1e-10)


def test_beams_are_copied():
    attention, full = layer(pattern=Window(left=4)), x(8)
    state = attention.new_state(2, 20)
    attention(full[:, :7], Context(), state)
    state.select(torch.tensor([1, 1]))
    got = attention(full[:, 7:][[1, 1]], Context(start=7), state)[0]
    want = attention(full, Context(), None)[0][[1, 1], 7:]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert isinstance(state.ring, Ring)


def test_keys_of_distances_are_made_once(monkeypatch):
    attention, full, made = layer(pattern=Window(left=4)), x(30), []
    make = type(attention.position).kept_hooks
    monkeypatch.setattr(type(attention.position), "kept_hooks", lambda self, *a: (made.append(a), make(self, *a))[1])
    state = attention.new_state(2, 30)
    for at in range(0, 30, 2):
        attention(full[:, at : at + 2], Context(start=at), state)
    assert len(made) <= 3


def test_a_memory_of_the_future_is_refused():
    dims = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
    with pytest.raises(SpecError, match="lets a query see later keys"):
        SegmentAttention(n_heads=2, pattern=Full()).build(dims)


def model(**numbers):
    toy = {"d_model": 32, "n_layers": 3, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 64, "dropout": 0.0}
    return kf.build(kf.relative("transformer-xl", size="base", **toy | numbers), seed=1).double()


@pytest.mark.parametrize(
    "numbers", [{"segment": 5, "memory": 64}, {"segment": 5}, {"segment": 5, "memory": 2}], ids=str
)
def test_a_model_reads_segments_as_one_text(numbers):
    m = model(**numbers).eval()
    tokens = torch.randint(7, 40, (2, 23), generator=torch.Generator().manual_seed(0))
    want, memory, got = m(tokens).logits, m.new_memory(), []
    for at in range(0, 23, 5):
        got.append(m(tokens[:, at : at + 5], state=memory).logits)
        memory.settle()
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-10, atol=1e-10)


def test_memory_reaches_further_with_depth():
    """A layer sees one memory back, so a stack of three sees three (Dai et al. 2019, figure 2)."""
    m = model(segment=4, memory=4).eval()
    tokens = torch.randint(7, 40, (1, 24), generator=torch.Generator().manual_seed(0))
    reach = []
    for at in range(20):
        other = tokens.clone()
        other[0, at] = 7 + (other[0, at] - 6) % 30
        if not torch.equal(m(other).logits[0, -1], m(tokens).logits[0, -1]):
            reach.append(at)
    assert reach == list(range(8, 20))


def test_recomputing_blocks_reads_the_same_memory():
    tokens = torch.randint(7, 40, (2, 15), generator=torch.Generator().manual_seed(0))
    gradients = []
    for mode in ("none", "blocks"):
        m = model(segment=5, dropout=0.2).train()
        m.set_recompute(mode)
        memory, index = m.new_memory(), torch.arange(2)
        for at in (0, 5, 10):
            torch.manual_seed(at)
            out = m.run(Batch(index=index, tokens=tokens[:, at : at + 5]), memory)
            out.logits.logsumexp(-1).sum().backward()
            memory.settle()
        gradients.append([p.grad for p in m.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_who_remembers_nothing_says_so():
    toy = {"d_model": 32, "n_layers": 1, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 64}
    assert kf.build(kf.relative("gpt2", size="base", **toy)).new_memory() is None
    assert kf.build(kf.relative("bert", size="base", **toy)).new_memory() is None
