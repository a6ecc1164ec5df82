"""Block-sparse attention plans: key blocks that each query block needs, grouped into batched products.

Planning looks at block corners only (`Pattern.touches`), so 65,536 positions cost a few megabytes. A plan is cached:
a pattern is frozen data and therefore a dictionary key.

A plan has one sheet, or several where parts of a pattern want their keys in different orders: keys a stride apart lie
together once positions are folded, sorted by (position mod fold, position). No pair is on two sheets.
"""

import dataclasses
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from kinfolk.ops.patterns.leaves import Box, Pattern, PerHead

COUNTED = 128
"""Side of the blocks in which pairs are counted."""


class Extent(NamedTuple):
    """Extent of a plan: queries at `start`, `start + 1`, … and keys at 0, 1, …, in blocks of these sizes, folded."""

    n_q: int
    n_k: int
    start: int
    q_block: int
    k_block: int
    fold: int = 1

    @property
    def q_order(self) -> Tensor:
        """The queries' indices in folded order."""
        return _folded(self.start, self.n_q, self.fold)

    @property
    def k_order(self) -> Tensor:
        """The keys' indices in folded order."""
        return _folded(0, self.n_k, self.fold)


@dataclasses.dataclass(frozen=True)
class TileGroup:
    """Query blocks that need the same number of key blocks."""

    rows_r: Tensor  # query blocks
    cols_rc: Tensor  # their key blocks; -1 fills up a row that needs fewer
    sliding: bool  # rows are consecutive, and so are their key blocks, moving along with the row
    alike: bool  # which pairs are allowed does not depend on the row
    filled: bool  # every pair of every block is allowed


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The part of a pattern that one order of positions serves."""

    pattern: Pattern
    extent: Extent
    groups: tuple[TileGroup, ...]

    @property
    def scores(self) -> int:
        """How many scores one head computes here."""
        return sum(g.cols_rc.numel() for g in self.groups) * self.extent.q_block * self.extent.k_block


@dataclasses.dataclass(frozen=True)
class TilePlan:
    """All sheets of a pattern."""

    sheets: tuple[Sheet, ...]

    @property
    def scores(self) -> int:
        """How many scores one head computes."""
        return sum(sheet.scores for sheet in self.sheets)


def plan(pattern: Pattern, n_q: int, n_k: int, start: int, block: int) -> TilePlan:
    """Plan a pattern over queries and keys, in blocks of up to `block`."""
    return _plan(pattern, n_q, n_k, start, block)


@functools.lru_cache(maxsize=256)
def _plan(pattern: Pattern, n_q: int, n_k: int, start: int, block: int) -> TilePlan:
    return TilePlan(tuple(lay_out(sheet, extent(sheet, n_q, n_k, start, block)) for sheet in pattern.sheets()))


@functools.lru_cache(maxsize=1024)
def density(pattern: Pattern, n_q: int, n_k: int, start: int, block: int) -> float:
    """Return the share of all pairs that a plan would score."""
    total = 0
    for sheet in pattern.sheets():
        what = extent(sheet, n_q, n_k, start, block)
        total += int(_asked(sheet, what)[0].sum()) * what.q_block * what.k_block
    return total / (n_q * n_k)


def extent(pattern: Pattern, n_q: int, n_k: int, start: int, block: int) -> Extent:
    """Choose blocks: of queries, no more than share a fold; of both, no more than the pattern's grain; at least 8."""
    q_block = block
    while q_block > max(8, min(pattern.q_grain, -(-n_q // pattern.fold))) and q_block % 2 == 0:
        q_block //= 2
    k_block = q_block
    while k_block > max(8, pattern.grain) and k_block % 2 == 0:
        k_block //= 2
    return Extent(n_q, n_k, start, q_block, k_block, pattern.fold)


def lay_out(pattern: Pattern, what: Extent) -> Sheet:
    """Group the query blocks of one sheet by how many key blocks they touch, and by whether they need a mask."""
    touched, filled = _asked(pattern, what)
    # a row needs no mask if every block it touches is filled
    filled_n = (filled | ~touched).all(1)
    rounded = torch.tensor([_round_up(d) for d in touched.sum(1).tolist()])
    groups: list[TileGroup] = []
    for n_columns, whole in sorted(set(zip(rounded.tolist(), filled_n.tolist(), strict=True))):
        if n_columns == 0:
            continue
        rows = ((rounded == n_columns) & (filled_n == whole)).nonzero().flatten()
        cols = _columns(touched[rows], min(n_columns, touched.shape[1]))
        groups += [_group(pattern, rows[run], cols[run], what, whole) for run in _runs(rows, cols, what)]
    return Sheet(pattern, what, tuple(groups))


@functools.lru_cache(maxsize=1024)
def pairs(pattern: Pattern, n_q: int, n_k: int) -> int:
    """Count the allowed pairs (of a pattern per head, the mean over heads); only blocks filled in part are read."""
    runs = pattern.by_head(len(pattern.patterns)) if isinstance(pattern, PerHead) else ((pattern, slice(None)),)
    sheets = [sheet for one, _ in runs for sheet in one.sheets()]
    return sum(_pairs(sheet, extent(sheet, n_q, n_k, 0, COUNTED)) for sheet in sheets) // len(runs)


def _pairs(pattern: Pattern, what: Extent) -> int:
    """Count the allowed pairs of one sheet: whole blocks by their area, the others pair by pair, some at a time."""
    touched, filled = _asked(pattern, what)
    # -1 fills up the last block
    (q_nb, k_nb), counts = _positions(what), []
    area = (q_nb >= 0).sum(1)[:, None] * (k_nb >= 0).sum(1)[None]
    for some in (touched & ~filled).nonzero().split(max(1, (1 << 20) // (what.q_block * what.k_block))):
        q, k = q_nb[some[:, 0], :, None], k_nb[some[:, 1], None, :]
        counts.append(int((pattern.allows(q, k) & (q >= 0) & (k >= 0)).sum()))
    return int(area[touched & filled].sum()) + sum(counts)


def _positions(what: Extent) -> tuple[Tensor, Tensor]:
    """Return the positions of all query blocks and of all key blocks, filled up with -1: [blocks, in a block]."""
    sides = ((what.q_order + what.start, what.q_block), (what.k_order, what.k_block))
    q_nb, k_nb = (torch.cat([at, at.new_full((-len(at) % n,), -1)]).unflatten(0, (-1, n)) for at, n in sides)
    return q_nb, k_nb


@functools.lru_cache(maxsize=64)
def _folded(start: int, n: int, fold: int) -> Tensor:
    index = torch.arange(n)
    return index if fold == 1 else ((start + index) % fold).sort(stable=True).indices


def _asked(pattern: Pattern, what: Extent) -> tuple[Tensor, Tensor]:
    """Ask for every pair of blocks whether the pattern touches it, and whether it fills it: [query, key blocks]."""
    q_n1 = _blocks(what.q_order + what.start, what.q_block, what.fold)
    k_1n = (x.mT for x in _blocks(what.k_order, what.k_block, what.fold))
    (q_low, q_high, q_first, q_last), (k_low, k_high, k_first, k_last) = q_n1, k_1n
    box = Box(q_low, q_high, k_low, k_high)
    touched, filled = (x.expand(len(q_low), k_low.shape[1]) for x in (pattern.touches(box), pattern.fills(box)))
    if what.fold > 1:
        # allowed distances are multiples of the fold, so the remainders of a pair are equal
        touched = touched & (q_first <= k_last) & (k_first <= q_last)
    return touched, filled


def _blocks(pos: Tensor, block: int, fold: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the lowest and highest position of each block, and the lowest and highest remainder: [n, 1] each."""
    # the last block is filled up with its last position, which moves no bound
    pos_nb = torch.cat([pos, pos[-1:].expand(-len(pos) % block)]).unflatten(0, (-1, block))
    rest_nb = pos_nb % fold
    return tuple(x.unsqueeze(1) for x in (pos_nb.amin(1), pos_nb.amax(1), rest_nb.amin(1), rest_nb.amax(1)))


def _round_up(degree: int) -> int:
    """Round up to three leading binary digits: few groups, at most a quarter of padding."""
    step = 1 << max(0, degree.bit_length() - 3)
    return -(-degree // step) * step


def _columns(touched_rn: Tensor, n_columns: int) -> Tensor:
    """List each row's touched columns in order, filled up with -1."""
    # a stable descending sort of booleans brings the touched columns to the front in order
    order = touched_rn.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :n_columns]
    return order.masked_fill(~touched_rn.gather(1, order), -1)


def _runs(rows: Tensor, cols: Tensor, what: Extent) -> list[Tensor]:
    """Split a group where it stops sliding, if it slides at all; a block cut short by the end is a group of its own."""
    step, n_whole = what.q_block // what.k_block, what.n_k // what.k_block
    moved = (rows[1:] == rows[:-1] + 1) & (cols[1:] == cols[:-1] + step).all(1)
    moved &= (cols[1:] < n_whole).all(1) & (cols[:-1] >= 0).all(1)
    run = torch.cat([torch.zeros(1, dtype=torch.long), (~moved).long()]).cumsum(0)
    n_runs = int(run[-1]) + 1
    # in many pieces a group is gathered as one, not read in place strip by strip
    if n_runs > 8:
        return [torch.arange(len(rows))]
    return [(run == i).nonzero().flatten() for i in range(n_runs)]


def _group(pattern: Pattern, rows: Tensor, cols: Tensor, what: Extent, filled: bool) -> TileGroup:
    step = what.q_block // what.k_block
    moves = bool((rows[1:] == rows[:-1] + 1).all()) and bool((cols[1:] == cols[:-1] + step).all())
    adjacent = bool((cols >= 0).all()) and bool((cols[:, 1:] == cols[:, :-1] + 1).all())
    # folded blocks look alike only if each holds one remainder, all remainders have equally many positions, and those
    # of a remainder begin as far on among the queries as among the keys
    whole = what.n_q == what.n_k and all(x % (what.fold * what.q_block) == 0 for x in (what.n_q, what.start))
    even = what.fold == 1 or whole
    return TileGroup(rows, cols, sliding=moves and adjacent, alike=moves and pattern.stationary and even, filled=filled)
