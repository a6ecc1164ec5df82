"""`ops.attend` against its naive reference in float64, outputs and gradients, and against code that is not ours."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from kinfolk.core.errors import ShapeError
from kinfolk.ops.attention import attend as fast
from kinfolk.ops.attention import blocks, flex
from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.naive import attend as slow
from kinfolk.ops.patterns.both_ways import BothWays
from kinfolk.ops.patterns.leaves import (
    Axial,
    Causal,
    Full,
    Global,
    PerHead,
    RandomBlocks,
    SameBlock,
    Strided,
    Summary,
    Window,
)
from kinfolk.ops.patterns.plan import plan
from tests.ops.test_pattern import PATTERNS

SPARSE = [
    Causal() & Window(left=5),
    Window(left=3, right=4),
    Causal() & (SameBlock(size=8) | Summary(block=8, width=2)),
    Causal() & Strided(stride=7),
    Causal() & (Window(left=3) | Strided(stride=4)),  # two sheets
    Axial(width=5) | Window(left=6, step=3),  # three
    Window(left=2, right=2) | Global(n=2) | RandomBlocks(block=4, n=1, among=8),
    BothWays(of=Causal() & Window(left=5)),
]


@pytest.fixture
def small_blocks(monkeypatch):
    """Send everything to the gathered path, in tiles that small tests fill."""
    monkeypatch.setattr(fast, "BLOCK", 4)
    monkeypatch.setattr(fast, "DENSE_PAIRS", 0)
    monkeypatch.setattr(fast, "DENSE_SHARE", 2.0)


TILING = blocks.Tiling(fast.BLOCK, fast.KEPT_PAIRS)


def inputs(n_q, n_k, heads=2, groups=None, batch=2, width=3):
    g = torch.Generator().manual_seed(n_q * 31 + n_k)
    shapes = [(heads, n_q), (groups or heads, n_k), (groups or heads, n_k)]
    return [torch.randn(batch, h, n, width, generator=g, dtype=torch.float64, requires_grad=True) for h, n in shapes]


def run(op, leaves, *args):
    out = op(*leaves, *args)
    g = torch.Generator().manual_seed(7)
    loss = (out * torch.randn(out.shape, generator=g, dtype=out.dtype)).sum()
    # where nobody sees anything the output is a constant: tie the leaves in, with weight 0
    grads = torch.autograd.grad(loss + 0.0 * sum(x.sum() for x in leaves), leaves)
    return {"out": out, "dq": grads[0], "dk": grads[1], "dv": grads[2]}


def assert_same(ours, theirs):
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@settings(max_examples=60, deadline=None)
@given(
    pattern=PATTERNS,
    n_q=st.integers(1, 13),
    n_k=st.integers(1, 13),
    start=st.integers(0, 9),
    block=st.sampled_from([0, 3, 16]),
)
@example(pattern=Causal() & Summary(block=4, width=1), n_q=6, n_k=6, start=0, block=3)  # queries that see nothing
@example(pattern=Global(n=0), n_q=5, n_k=7, start=0, block=3)  # nobody sees anything
@example(pattern=Window(left=4, right=2), n_q=13, n_k=13, start=0, block=3)  # sliding, last block cut short
def test_equals_naive_for_any_pattern(pattern, n_q, n_k, start, block):
    leaves = inputs(n_q, n_k, batch=1)
    theirs = run(slow.attend, leaves, pattern, View(start=start))
    with pytest.MonkeyPatch.context() as patch:
        if block:
            for name, value in (("BLOCK", block), ("DENSE_PAIRS", 0), ("DENSE_SHARE", 2.0)):
                patch.setattr(fast, name, value)
        assert_same(run(fast.attend, leaves, pattern, View(start=start)), theirs)


def views(n):
    g = torch.Generator().manual_seed(0)
    group = (torch.rand(2, n, generator=g) * 3).long().sort(1).values
    return {
        "padding": View(keep_BM=torch.arange(n) < torch.tensor([[n], [n // 2]])),
        "nothing kept": View(keep_BM=torch.zeros(2, n, dtype=torch.bool)),
        "packed": View(q_group_BL=group, k_group_BM=group),
        "visible": View(visible_BLM=torch.rand(2, n, n, generator=g) > 0.5),
        "prefix": View(until_BL=torch.maximum(torch.arange(n), torch.tensor([[n // 2], [1]]) - 1)),
    }


@pytest.mark.parametrize("what", views(4))
@pytest.mark.parametrize("pattern", [Full(), Causal(), *SPARSE[:3], SPARSE[-1]], ids=repr)
@pytest.mark.parametrize("gathered", [False, True])
def test_views_equal_naive(what, pattern, gathered, request):
    if gathered:
        request.getfixturevalue("small_blocks")
    leaves, view = inputs(11, 11), views(11)[what]
    assert_same(run(fast.attend, leaves, pattern, view), run(slow.attend, leaves, pattern, view))


def distance_bias(q, k, q_pos, k_pos, heads):
    """A hook that uses everything it is given."""
    slope = torch.tensor([0.3, -0.7], dtype=q.dtype)[heads]
    distance = (q_pos.unsqueeze(-1) - k_pos.unsqueeze(-2)).unsqueeze(1)
    slope = slope.view(-1, *[1] * (distance.ndim - 2))
    return distance * slope + q.sum(-1, keepdim=True) * k.sum(-1).unsqueeze(-2)


@pytest.mark.parametrize("pattern", [Full(), *SPARSE], ids=repr)
@pytest.mark.parametrize("gathered", [False, True])
def test_score_hooks_equal_naive(pattern, gathered, request):
    if gathered:
        request.getfixturevalue("small_blocks")
    leaves, scoring = inputs(9, 9), Scoring(bias=distance_bias, scale=0.5)
    assert_same(run(fast.attend, leaves, pattern, View(), scoring), run(slow.attend, leaves, pattern, View(), scoring))


@pytest.mark.parametrize("what", ["plain", *views(4)])
@pytest.mark.parametrize("pattern", [Full(), Causal(), *SPARSE], ids=repr)
def test_scores_that_are_not_kept_equal_naive(what, pattern, monkeypatch):
    for name, value in (("BLOCK", 3), ("DENSE_PAIRS", 0), ("KEPT_PAIRS", 0)):
        monkeypatch.setattr(fast, name, value)
    leaves, scoring = inputs(11, 11), Scoring(bias=distance_bias, scale=0.5)
    view = views(11).get(what, View())
    theirs = run(slow.attend, leaves, pattern, view, scoring)
    calls = []
    monkeypatch.setattr(blocks, "checkpoint", lambda f, *given, **how: calls.append(f) or checkpoint(f, *given, **how))
    assert_same(run(fast.attend, leaves, pattern, view, scoring), theirs)
    assert calls


def test_scores_that_are_not_kept_drop_the_same_weights_again(monkeypatch):
    for name, value in (("BLOCK", 4), ("DENSE_PAIRS", 0), ("KEPT_PAIRS", 0)):
        monkeypatch.setattr(fast, name, value)
    leaves = inputs(9, 9)
    found = []
    for kept in (0, 1 << 27):
        monkeypatch.setattr(fast, "KEPT_PAIRS", kept)
        monkeypatch.setattr(fast, "DENSE_SHARE", 2.0)
        torch.manual_seed(0)
        found.append(run(fast.attend, leaves, Causal(), View(), Scoring(dropout=0.5)))
    assert_same(*found)


def test_scores_that_are_not_kept_take_no_memory():
    """At this length the scores of 8 heads are 512 MB, and several things of that size would be kept."""
    q, k, v = (torch.randn(1, 8, 4100, 4, requires_grad=True) for _ in range(3))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        out = fast.attend(q, k, v, Causal(), View(), Scoring(bias=lambda *tile: tile[0].new_zeros(())))
    assert out.shape == q.shape
    assert max(sizes) < 1 << 20


@pytest.mark.parametrize("what", sorted(views(11)))
@pytest.mark.parametrize("pattern", [Full(), Causal(), SPARSE[1]], ids=repr)
@pytest.mark.parametrize("at_once", [1 << 18, 40, 1])
def test_without_gradients_a_bias_goes_to_the_fused_kernel(what, pattern, at_once, monkeypatch):
    monkeypatch.setattr(fast, "BIAS_PAIRS", at_once)
    (q, k, v), scoring, view = inputs(11, 11), Scoring(bias=distance_bias, scale=0.5), views(11)[what]
    want = slow.attend(q, k, v, pattern, view, scoring)
    monkeypatch.setattr(fast.scores, "softmax_product", None)
    with torch.no_grad():
        torch.testing.assert_close(fast.attend(q, k, v, pattern, view, scoring), want, rtol=1e-10, atol=1e-12)
        none = Scoring(bias=lambda q, k, *_: q.new_zeros(()))
        torch.testing.assert_close(fast.attend(q, k, v, pattern, view, none), fast.attend(q, k, v, pattern, view))


@pytest.mark.parametrize("gathered", [False, True])
def test_shared_key_heads_and_patterns_per_head(gathered, request):
    if gathered:
        request.getfixturevalue("small_blocks")
    pattern = PerHead(patterns=(Causal() & Window(left=2), Causal() & Strided(stride=3)))
    for p in (pattern, Causal(), SPARSE[0]):
        leaves = inputs(10, 10, heads=4, groups=2)
        assert_same(run(fast.attend, leaves, p), run(slow.attend, leaves, p))


def test_rows_at_their_own_positions_and_empty_slots_of_a_ring():
    leaves = inputs(1, 6)
    view = View(q_pos_BL=torch.tensor([[7], [3]]), k_pos_BM=torch.tensor([[6, 7, 2, 3, 4, 5], [0, 1, 2, 3, -2, -1]]))
    for pattern in (Causal(), Window(left=3), SameBlock(size=4)):
        assert_same(run(fast.attend, leaves, pattern, view), run(slow.attend, leaves, pattern, view))


def test_tapped_weights_are_those_of_the_output(small_blocks):
    seen = []
    q, k, v = inputs(9, 9)
    out = fast.attend(q, k, v, SPARSE[0], View(), Scoring(tap=seen.append))
    torch.testing.assert_close(seen[0] @ v, out)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 2, 9, dtype=torch.float64))


def test_value_hook_and_dropout_scale():
    q, k, v = inputs(5, 5)
    extra = Scoring(value=lambda w, v, q_pos, k_pos, heads: w.sum(-1, keepdim=True) * 2)
    torch.testing.assert_close(fast.attend(q, k, v, Full(), View(), extra), fast.attend(q, k, v, Full()) + 2)
    torch.manual_seed(0)
    ones = torch.ones(1, 1, 400, 4, dtype=torch.float64)
    dropped = fast.attend(ones, ones, ones, Full(), View(), Scoring(dropout=0.25))
    assert abs(dropped.mean() - 1) < 0.01
    assert dropped.std() > 0


def test_full_and_causal_reduce_to_torch(small_blocks):
    q, k, v = inputs(13, 13)
    torch.testing.assert_close(fast.attend(q, k, v, Full()), F.scaled_dot_product_attention(q, k, v))
    # the same set of pairs by the gathered path
    window = Window(left=13)
    torch.testing.assert_close(fast.attend(q, k, v, window), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_the_fused_and_the_explicit_tiles_agree(small_blocks):
    leaves = inputs(23, 23)
    for pattern in SPARSE:
        explicit = Scoring(bias=lambda q, k, *_: q.new_zeros(()))
        assert_same(run(fast.attend, leaves, pattern), run(fast.attend, leaves, pattern, View(), explicit))


@pytest.mark.parametrize("pattern", [Causal(), *[p for p in SPARSE if p.causal]], ids=repr)
def test_the_future_does_not_leak(pattern, small_blocks):
    q, k, v = (x.detach() for x in inputs(19, 19))
    before = fast.attend(q, k, v, pattern)
    k[:, :, 9:], v[:, :, 9:] = 1e3, -1e3
    assert torch.equal(fast.attend(q, k, v, pattern)[:, :, :9], before[:, :, :9])


def test_flex_masks_are_the_predicate_and_cover_it(monkeypatch):
    monkeypatch.setattr(flex, "FLEX_BLOCK", 16)
    q, k = torch.arange(40)[:, None], torch.arange(40)[None, :]
    for pattern in SPARSE:
        mod, want = flex.mask_mod(pattern, 3), pattern.allows(q + 3, k)
        assert torch.equal(mod(None, None, q, k), want)
        dense = flex.block_mask(pattern, 40, 40, 3, "cpu").to_dense()[0, 0].bool()
        touched = dense.repeat_interleave(16, 0).repeat_interleave(16, 1)[:40, :40]
        assert not (want & ~touched).any()


def test_flex_runs_the_same_attention(monkeypatch):
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)
    q, k, v = (x.detach() for x in inputs(140, 140, batch=1, width=16))
    pattern = Causal() & Window(left=30)
    with pytest.warns(UserWarning, match="flex_attention"):
        out = flex.attend_flex(q.float(), k.float(), v.float(), pattern, 0, None)
    torch.testing.assert_close(out.double(), fast.attend(q, k, v, pattern), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", [Causal() & Strided(stride=2), Window(left=4, step=2)], ids=repr)
@pytest.mark.parametrize("n_q", [8, 16])
@pytest.mark.parametrize("start", range(5))
def test_folded_patterns_at_any_start(pattern, start, n_q, small_blocks):
    """Lengths that fold evenly into blocks, so that only the start tells blocks of different remainders apart."""
    leaves, view = inputs(n_q, 8, batch=1), View(start=start)
    assert_same(run(fast.attend, leaves, pattern, view), run(slow.attend, leaves, pattern, view))


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("n_q", [1, 2])
@pytest.mark.parametrize("pattern", [Causal(), Full()], ids=repr)
def test_few_queries_among_earlier_and_later_keys(pattern, n_q, start):
    leaves = inputs(n_q, 5)
    assert_same(
        run(fast.attend, leaves, pattern, View(start=start)), run(slow.attend, leaves, pattern, View(start=start))
    )


@pytest.mark.parametrize("start", [0, 3, 7])
@pytest.mark.parametrize("n_q", [1, 4, 9])
@pytest.mark.parametrize("pattern", [Full(), Causal(), SPARSE[0]], ids=repr)
def test_a_bias_without_gradients_knows_the_start(pattern, n_q, start, monkeypatch):
    """The path of decoding: queries in runs of two, keys up to the last that is seen."""
    monkeypatch.setattr(fast, "BIAS_PAIRS", 32)
    q, k, v = (x.detach() for x in inputs(n_q, 16))
    scoring, view = Scoring(bias=distance_bias, scale=0.5), View(start=start)
    with torch.no_grad():
        out = fast.attend(q, k, v, pattern, view, scoring)
    torch.testing.assert_close(out, slow.attend(q, k, v, pattern, view, scoring), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("width", [4, 16, 24])
def test_flex_takes_heads_of_any_width(monkeypatch, width):
    """The kernel raises below 16 channels; the eager mode used here does not."""
    from torch.nn.attention.flex_attention import flex_attention

    def kernel(q, k, v, **options):
        assert min(x.shape[-1] for x in (q, k, v)) >= 16
        return flex_attention(q, k, v, **options)

    monkeypatch.setattr(flex, "_compiled", lambda: kernel)
    q, k, v = (x.detach() for x in inputs(40, 40, batch=1, width=width))
    for scale in (None, 0.3):
        with warnings.catch_warnings(action="ignore"):
            out = flex.attend_flex(q.float(), k.float(), v.float(), Window(left=9), 0, scale)
        want = fast.attend(q, k, v, Window(left=9), View(), Scoring(scale=scale))
        torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-5)


@pytest.fixture
def compilations(monkeypatch):
    """Pretend that FlexAttention has kernels here; count how often it is compiled, by a compiler that keeps graphs."""
    from torch._dynamo.testing import CompileCounter
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(flex_attention, backend=counter, fullgraph=True)
    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    monkeypatch.setattr(blocks, "_has_flex", lambda device: True)
    yield counter
    torch._dynamo.reset()


def test_flex_is_compiled_once_for_all_starts(compilations):
    q, k, v = (x.detach() for x in inputs(20, 40, batch=1, width=16))
    for start in range(6):
        out = blocks.attend_blocks(q, k, v, Window(left=9), View(start=start), Scoring(), TILING)
        torch.testing.assert_close(out, slow.attend(q, k, v, Window(left=9), View(start=start)))
    assert compilations.frame_count == 1


def test_flex_gives_way_to_gathered_blocks_instead_of_eager_mode(compilations, monkeypatch):
    monkeypatch.setattr(flex, "COMPILATIONS", 2)
    q, k, v = (x.detach() for x in inputs(40, 40, batch=1, width=16))
    gathered = []
    monkeypatch.setattr(blocks, "plan", lambda *key: gathered.append(key) or plan(*key))
    patterns = [Window(left=5), Causal() & Strided(stride=4), Causal() & SameBlock(size=8)]
    for pattern in patterns:
        out = blocks.attend_blocks(q, k, v, pattern, View(), Scoring(), TILING)
        torch.testing.assert_close(out, slow.attend(q, k, v, pattern, View()))
    assert compilations.frame_count == 2
    assert [key[0] for key in gathered] == patterns[2:]


def test_no_square_tensor_on_the_sparse_path():
    n, biggest = 2048, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            out = function(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    biggest = max(biggest, x.untyped_storage().nbytes() // x.element_size())
            return out

    q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
    with Watch():
        fast.attend(q, k, v, Causal() & Window(left=63)).sum().backward()
    assert biggest < n * n / 8


def test_a_wrong_shape_is_named():
    with pytest.raises(ShapeError, match=r"v_BGMK has M=8, but M=9"):
        fast.attend(torch.ones(1, 1, 9, 4), torch.ones(1, 1, 9, 4), torch.ones(1, 1, 8, 4), Full())


@pytest.mark.parametrize("pattern", [Full(), Causal(), Causal() & Window(left=3)])
@pytest.mark.parametrize("n", [1, 7])
def test_sinks_and_softcaps_equal_naive(pattern, n):
    q, k, v = (torch.randn(2, heads, n, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    sink_H = torch.randn(4, dtype=torch.float64, requires_grad=True)
    scoring = Scoring(sink_H=sink_H, before=lambda scores: 1.5 * torch.tanh(scores / 1.5))
    ours, theirs = (run(q, k, v, pattern, View(), scoring) for run in (fast.attend, slow.attend))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(ours)
    grads = [torch.autograd.grad((out * weight).sum(), (q, k, v, sink_H)) for out in (ours, theirs)]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_sink_that_takes_nothing_is_plain_attention():
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    sink_H = torch.full((2,), -1e4, dtype=torch.float64)
    torch.testing.assert_close(
        fast.attend(q, k, v, Causal(), View(), Scoring(sink_H=sink_H)), fast.attend(q, k, v, Causal())
    )


def test_sinks_are_the_same_on_gathered_blocks():
    q, k, v = (torch.randn(1, 2, 1100, 4, dtype=torch.float64) for _ in range(3))
    scoring = Scoring(sink_H=torch.randn(2, dtype=torch.float64))
    pattern = Causal() & Window(left=40)
    assert fast._worth_gathering(pattern, View(), 1100, 1100)
    dense = fast._masked(q, k, v, pattern, View(), scoring)
    torch.testing.assert_close(fast.attend(q, k, v, pattern, View(), scoring), dense, rtol=1e-10, atol=1e-12)
