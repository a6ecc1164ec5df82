"""Plan a pattern: which blocks of keys each block of queries needs, in groups that run as one batched product.

Planning looks at block corners only (`Pattern.touches`), so 65,536 positions cost a few megabytes. A plan is cached:
a pattern is frozen data and therefore a dictionary key.
"""

import dataclasses
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from kinfolk.ops.pattern import Box, Pattern, PerHead


class Extent(NamedTuple):
    """What is planned: queries at `start`, `start + 1`, … and keys at 0, 1, …, in blocks of these sizes."""

    n_q: int
    n_k: int
    start: int
    q_block: int
    k_block: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Query blocks that need the same number of key blocks."""

    rows_r: Tensor  # query blocks
    cols_rc: Tensor  # their key blocks; -1 fills up a row that needs fewer
    sliding: bool  # rows are consecutive, and so are their key blocks, moving along with the row
    alike: bool  # which pairs are allowed does not depend on the row


@dataclasses.dataclass(frozen=True)
class Plan:
    """All groups of a pattern."""

    extent: Extent
    groups: tuple[Group, ...]

    @property
    def scores(self) -> int:
        """How many scores one head computes."""
        return sum(g.cols_rc.numel() for g in self.groups) * self.extent.q_block * self.extent.k_block


def extent(pattern: Pattern, n_q: int, n_k: int, start: int, block: int) -> Extent:
    """Choose the blocks: `block` queries, and as many keys as the pattern's own grain allows, at least 8."""
    k_block = block
    while k_block > max(8, pattern.grain) and k_block % 2 == 0:
        k_block //= 2
    return Extent(n_q, n_k, start, block, k_block)


@functools.lru_cache(maxsize=256)
def plan(pattern: Pattern, what: Extent) -> Plan:
    """Group query blocks by how many key blocks they touch."""
    touched = _touched(pattern, what)
    degree = touched.sum(1)
    rounded = torch.tensor([_round_up(d) for d in degree.tolist()])
    groups: list[Group] = []
    for n_columns in sorted(set(rounded.tolist()) - {0}):
        rows = (rounded == n_columns).nonzero().flatten()
        cols = _columns(touched[rows], min(n_columns, touched.shape[1]))
        groups += [_group(pattern, rows[run], cols[run], what) for run in _runs(rows, cols, what)]
    return Plan(extent=what, groups=tuple(groups))


@functools.lru_cache(maxsize=1024)
def density(pattern: Pattern, what: Extent) -> float:
    """Return the share of all blocks that the pattern touches."""
    return float(_touched(pattern, what).float().mean())


def _touched(pattern: Pattern, what: Extent) -> Tensor:
    q_low = torch.arange(0, what.n_q, what.q_block)[:, None]
    k_low = torch.arange(0, what.n_k, what.k_block)[None, :]
    q_high = (q_low + what.q_block).clamp(max=what.n_q) - 1
    k_high = (k_low + what.k_block).clamp(max=what.n_k) - 1
    box = Box(q_low + what.start, q_high + what.start, k_low, k_high)
    return pattern.touches(box).expand(len(q_low), k_low.shape[1])


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
    """Split a group where it stops sliding, if it slides at all; a block cut short by the end stands alone."""
    step, n_whole = what.q_block // what.k_block, what.n_k // what.k_block
    moved = (rows[1:] == rows[:-1] + 1) & (cols[1:] == cols[:-1] + step).all(1)
    moved &= (cols[1:] < n_whole).all(1) & (cols[:-1] >= 0).all(1)
    run = torch.cat([torch.zeros(1, dtype=torch.long), (~moved).long()]).cumsum(0)
    n_runs = int(run[-1]) + 1
    if n_runs > 8:
        return [torch.arange(len(rows))]
    return [(run == i).nonzero().flatten() for i in range(n_runs)]


def _group(pattern: Pattern, rows: Tensor, cols: Tensor, what: Extent) -> Group:
    moves = bool((rows[1:] == rows[:-1] + 1).all()) and bool(
        (cols[1:] == cols[:-1] + what.q_block // what.k_block).all()
    )
    adjacent = bool((cols >= 0).all()) and bool((cols[:, 1:] == cols[:, :-1] + 1).all())
    return Group(rows, cols, sliding=moves and adjacent, alike=moves and pattern.stationary)


@functools.lru_cache(maxsize=1024)
def pairs(pattern: Pattern, n_q: int, n_k: int) -> int:
    """Count the allowed pairs, a strip of queries at a time; of a pattern per head, the mean over heads."""
    k_pos, strip = torch.arange(n_k)[None, :], max(1, (1 << 22) // max(1, n_k))
    runs = pattern.by_head(len(pattern.patterns)) if isinstance(pattern, PerHead) else ((pattern, slice(None)),)
    total = 0
    for one, _ in runs:
        for first in range(0, n_q, strip):
            q_pos = torch.arange(first, min(first + strip, n_q))[:, None]
            total += int(one.allows(q_pos, k_pos).sum())
    return total // len(runs)
