"""Every pattern against a picture of it, its box test against brute force. Rows are queries, columns are keys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.ops.patterns.both_ways import BothWays, later_pair
from kinfolk.ops.patterns.leaves import (
    Axial,
    BlockWindow,
    Box,
    Causal,
    Full,
    Global,
    Local1D,
    Local2D,
    Prefix,
    SameBlock,
    Strided,
    Summary,
    Window,
)
from kinfolk.ops.patterns.plan import Extent, lay_out, pairs, plan
from kinfolk.ops.patterns.random_blocks import RandomBlocks

PICTURES = {
    Full(): "###### ###### ###### ###### ###### ######",
    Causal(): "#..... ##.... ###... ####.. #####. ######",
    Window(left=1, right=1): "##.... ###... .###.. ..###. ...### ....##",
    Window(left=4, step=2): "#..... .#.... #.#... .#.#.. #.#.#. .#.#.#",
    Causal() & Strided(stride=3): "#..... .#.... ..#... #..#.. .#..#. ..#..#",
    Causal() & SameBlock(size=3): "#..... ##.... ###... ...#.. ...##. ...###",
    Causal() & Summary(block=3, width=1): "...... ...... ..#... ..#... ..#... ..#..#",
    Summary(block=3, width=1, before=1): ".#..#. .#..#. .#..#. .#..#. .#..#. .#..#.",
    Global(n=1) | Window(left=0): "###### ##.... #.#... #..#.. #...#. #....#",
    Global(n=1, start=2): "..#... ..#... ###### ..#... ..#... ..#...",
    BlockWindow(block=2, right=0): "##.... ##.... ####.. ####.. ..#### ..####",
    Causal() | Prefix(n=3): "###... ###... ###... ####.. #####. ######",
    BothWays(of=Causal() & Strided(stride=3)): "#..#.. .#..#. ..#..# #..#.. .#..#. ..#..#",
    BothWays(of=Window(left=1)): "##.... ###... .###.. ..###. ...### ....##",
    Axial(width=3): "####.. ###.#. ###..# #..### .#.### ..####",
    Causal() & Local1D(block=2, memory=1): "#..... ##.... .##... .###.. ...##. ...###",
    # a picture 4 wide in blocks of 1 x 2: blocks 0 1 / 2 3, one row above and one column beside
    Local2D(width=4, block_height=1, block_width=2, above=1, beside=1): (
        "#....... ##...... .##..... .###.... ###.#... ###.##.. .###.##. .###.###"
    ),
}

LEAVES = st.one_of(
    st.sampled_from([Full(), Causal()]),
    st.builds(Window, left=st.integers(0, 9), right=st.integers(0, 3), step=st.integers(1, 3)),
    st.builds(Strided, stride=st.integers(1, 6)),
    st.builds(SameBlock, size=st.integers(1, 6)),
    st.builds(Summary, block=st.integers(4, 6), width=st.integers(1, 2), before=st.integers(0, 2)),
    st.builds(Global, n=st.integers(0, 3), start=st.integers(0, 5)),
    st.builds(BlockWindow, block=st.integers(1, 5), left=st.integers(0, 2), right=st.integers(0, 2)),
    st.builds(Prefix, n=st.integers(0, 7)),
    st.builds(Axial, width=st.integers(1, 5)),
    st.builds(
        RandomBlocks,
        block=st.integers(1, 4),
        n=st.integers(1, 3),
        among=st.sampled_from([0, 4, 7]),
        seed=st.integers(0, 9),
    ),
    st.builds(Local1D, block=st.integers(1, 5), memory=st.integers(0, 6)),
    st.builds(
        Local2D,
        width=st.sampled_from([4, 6]),
        block_height=st.integers(1, 3),
        block_width=st.sampled_from([1, 2]),
        above=st.integers(0, 3),
        beside=st.integers(0, 3),
    ),
)
PATTERNS = st.recursive(
    LEAVES,
    lambda p: st.tuples(p, p).flatmap(lambda ab: st.sampled_from([ab[0] & ab[1], ab[0] | ab[1], BothWays(of=ab[0])])),
    max_leaves=4,
)


def mask(pattern, n_q, n_k=None, start=0):
    return pattern.allows(torch.arange(start, start + n_q)[:, None], torch.arange(n_k or n_q)[None, :])


@given(pattern=PATTERNS, far=st.sampled_from([0, 1_000, 100_000]))
def test_any_width_of_integers_gives_the_same_pattern(pattern, far):
    """FlexAttention counts in int32."""
    q, k = torch.arange(far, far + 40)[:, None], torch.arange(far, far + 40)[None, :]
    assert torch.equal(pattern.allows(q.int(), k.int()), pattern.allows(q, k))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("block", "n", "among"), [(1, 1, 0), (2, 3, 0), (4, 2, 7), (3, 1, 4)])
def test_random_blocks_are_the_same_in_any_width_of_integers(block, n, among, seed):
    """The hash multiplies by 60-bit constants; whether drawn patterns contain it is a matter of chance."""
    pattern, place = RandomBlocks(block=block, n=n, among=among, seed=seed), torch.arange(60)
    wide = pattern.allows(place[:, None], place)
    assert torch.equal(pattern.allows(place.int()[:, None], place.int()), wide)
    assert wide.any()


@pytest.mark.parametrize("pattern", PICTURES, ids=repr)
def test_picture(pattern):
    rows = PICTURES[pattern].split()
    assert [("".join(".#"[cell] for cell in row)) for row in mask(pattern, len(rows)).int()] == rows


@given(
    pattern=PATTERNS, n_q=st.integers(1, 23), n_k=st.integers(1, 23), start=st.integers(0, 17), block=st.integers(1, 7)
)
def test_boxes_never_miss_a_pair_and_never_promise_one(pattern, n_q, n_k, start, block):
    check_boxes(pattern, n_q, n_k, start, block)


@pytest.mark.parametrize("pattern", [*PICTURES, Local2D(width=4, block_height=2, block_width=2, above=1, beside=1)])
@pytest.mark.parametrize("start", [0, 5])
def test_boxes_of_every_kind_of_pattern(pattern, start):
    """Drawn patterns are many, and each kind is among them by chance only."""
    for block in (1, 2, 3, 4):
        check_boxes(pattern, 19, 23, start, block)
    assert mask(pattern, 19, 23, start).any()


def check_boxes(pattern, n_q, n_k, start, block):
    allowed = mask(pattern, n_q, n_k, start)
    for q in range(0, n_q, block):
        for k in range(0, n_k, block):
            some = allowed[q : q + block, k : k + block]
            box = Box(*map(torch.tensor, (q + start, min(q + block, n_q) - 1 + start, k, min(k + block, n_k) - 1)))
            assert pattern.touches(box) or not some.any()
            assert not pattern.fills(box) or some.all()


@pytest.mark.parametrize("pattern", PICTURES, ids=repr)
def test_single_pairs_are_filled_where_they_are_allowed(pattern):
    """A box of one pair leaves no room for caution, except where only distances count."""
    q, k = torch.arange(8)[:, None], torch.arange(8)[None, :]
    filled = pattern.fills(Box(q, q, k, k))
    strided = isinstance(pattern, Local2D) or any(word in repr(pattern) for word in ("Strided", "step=2", "Axial"))
    assert not (filled & ~pattern.allows(q, k)).any()
    assert strided or torch.equal(filled, pattern.allows(q, k))


def test_blocks_in_line_with_their_pattern_need_no_mask():
    bird = BlockWindow(block=64) | Global(n=64) | RandomBlocks(block=64, n=3, among=64)
    (sheet,) = plan(bird, 4096, 4096, 0, 128).sheets
    assert all(group.filled for group in sheet.groups)
    assert sheet.extent.q_block == 64
    fixed = Causal() & SameBlock(size=128)
    assert not any(group.filled for group in plan(fixed, 4096, 4096, 0, 128).sheets[0].groups)


@given(pattern=PATTERNS)
def test_what_a_pattern_says_of_itself_is_true(pattern):
    allowed = mask(pattern, 29)
    distance = torch.arange(29)[:, None] - torch.arange(29)
    if pattern.causal:
        assert not allowed[distance < 0].any()
    if pattern.span is not None:
        assert not allowed[distance >= pattern.span].any()
    if pattern.stationary:
        assert torch.equal(allowed[1:, 1:], allowed[:-1, :-1])


@given(
    pattern=PATTERNS, n=st.integers(1, 40), small=st.integers(1, 9), times=st.integers(1, 3), start=st.integers(0, 9)
)
def test_a_plan_covers_every_pair_and_each_query_block_once(pattern, n, small, times, start):
    block = small * times
    covered = torch.zeros(n + block, n + block, dtype=torch.bool)
    rows = []
    for group in lay_out(pattern, Extent(n, n, start, block, small)).groups:
        rows += group.rows_r.tolist()
        for r, cols in zip(group.rows_r.tolist(), group.cols_rc.tolist(), strict=True):
            for c in cols:
                if c >= 0:
                    covered[r * block : (r + 1) * block, c * small : (c + 1) * small] = True
    assert len(rows) == len(set(rows))
    assert not (mask(pattern, n, n, start) & ~covered[:n, :n]).any()


@given(pattern=PATTERNS, n_q=st.integers(1, 300), n_k=st.integers(1, 300))
@settings(max_examples=60)
def test_pairs_are_counted_by_blocks(pattern, n_q, n_k):
    assert pairs(pattern, n_q, n_k) == int(pattern.allows(torch.arange(n_q)[:, None], torch.arange(n_k)).sum())


def test_pairs_of_sparse_patterns_are_counted_without_looking_at_all(monkeypatch):
    asked, allows = [], RandomBlocks.allows

    def counted(self, q, k):
        asked.append(torch.broadcast_shapes(q.shape, k.shape).numel())
        return allows(self, q, k)

    monkeypatch.setattr(RandomBlocks, "allows", counted)
    n = 8192
    found = pairs(Window(left=64) & Causal() | RandomBlocks(block=64, n=3), n, n)
    assert n * 64 < found < 300 * n
    assert sum(asked) < n * n // 20


def test_closed_forms_of_the_number_of_pairs():
    n, b, w, s = 24, 4, 5, 6
    assert mask(Causal() & SameBlock(size=b), n).sum() == n * (b + 1) // 2
    assert mask(Window(left=w - 1), n).sum() == n * w - w * (w - 1) // 2
    assert mask(Causal() & Strided(stride=s), n).sum() == sum(i // s + 1 for i in range(n))


@pytest.mark.parametrize(
    "sets",
    [
        (Window(left=3), Causal() & Strided(stride=4)),
        (Causal() & SameBlock(size=4), Causal() & Summary(block=4, width=1)),
    ],
    ids=["strided", "fixed"],
)
def test_two_sparse_sets_reach_every_earlier_position_in_two_hops(sets):
    first, second = (mask(p, 16).float() for p in sets)
    reach = ((first @ second) + (second @ first) + first + second) > 0
    # fixed: the last columns of a block are reached from the next block on
    earlier = torch.tril(torch.ones(16, 16, dtype=torch.bool))
    assert reach[earlier].all()


def test_random_blocks_are_drawn_without_replacement_and_do_not_depend_on_the_length():
    pattern = RandomBlocks(block=2, n=3, among=10, seed=1)
    per_query = mask(pattern, 20)[::2, ::2].sum(1)
    assert (per_query == 3).all()
    causal = RandomBlocks(block=2, n=2, seed=1)
    assert torch.equal(mask(causal, 40)[:20, :20], mask(causal, 20))
    assert (mask(causal, 40)[8::2, ::2].sum(1) == 2).all()
    assert not torch.equal(mask(pattern, 20), mask(pattern.replace(seed=2), 20))


def test_planning_65536_positions_makes_no_large_tensor():
    biggest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                biggest = max(biggest, out.numel() * out.element_size())
            return out

    for pattern in (
        Causal() & Window(left=511),
        Causal() & (SameBlock(size=128) | Summary(block=128, width=8)),
        Window(left=192, right=192) | Global(n=64) | RandomBlocks(block=64, n=3, among=1024),
        Causal() & (Window(left=255) | Strided(stride=256)),
    ):
        with Watch():
            tiling = plan(pattern, 65_536, 65_536, 0, 128)
        assert tiling.scores < 0.1 * 65_536**2
    assert biggest <= 8 * 512 * 8192


@given(pattern=PATTERNS, n=st.integers(1, 40))
def test_a_later_pair_is_found_exactly_where_there_is_one(pattern, n):
    later = mask(pattern, n).triu(1)
    pair = later_pair(pattern, n)
    assert (pair is not None) == bool(later.any())
    assert pair is None or bool(later[pair])


def test_a_later_pair_is_found_far_from_the_beginning():
    assert later_pair(Causal() | Global(n=1, start=5000), 1 << 20) == (0, 5000)
    assert later_pair(Full() & Window(left=7), 1 << 20) is None
