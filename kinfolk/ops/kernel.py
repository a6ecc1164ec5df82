"""Kernel attention: averages of values whose weights are inner products of features, in time and memory linear in length.

Because a weight is an inner product, the sum over keys is made once, or once per chunk, whatever the number of queries:

    o_i = phi(q_i) S_i / phi(q_i) z_i,    S_i = sum over seen keys of phi(k_j) v_j,    z_i = sum of phi(k_j)

The values carry a column of ones, so that S and z are one matrix, `sums`. Features are made chunk by chunk, in the
forward pass and again in the backward pass, and never exist for the whole sequence.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.shapes import shaped
from kinfolk.ops.features import FeatureMap

DIRECTIONS = ("past", "both")
"""What a position sees: itself and what came before, or everything."""
CHUNK = 128
"""Positions that look at one another directly, and between whose sums are kept, where only the past is seen."""
BATCH = 256
"""Positions whose features are made at once where everything is seen."""
NEVER = -1e30
"""The logarithm of the largest key before there was one: finite, so that differences stay numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """All that is remembered of keys and values: their sum in units of the largest key so far."""

    sums_BHRK: Tensor  # of features times values, and last of features
    peak_BH: Tensor  # the logarithm of the unit

    @classmethod
    def empty(cls, n_examples: int, n_heads: int, n_features: int, width: int, like: Tensor) -> "Sums":
        """Return the sums of nothing, in the precision they are kept in."""
        sums = like.new_zeros(n_examples, n_heads, n_features, width + 1, dtype=_precision(like))
        return cls(sums, sums.new_full((n_examples, n_heads), NEVER))


@shaped(out="BHLK")
def kernel_attend(
    q_BHLK: Tensor,
    k_BHMK: Tensor,
    v_BHMK: Tensor,
    phi: FeatureMap,
    direction: str = "both",
    keep_BM: Tensor | None = None,
    group_BM: Tensor | None = None,
) -> Tensor:
    r"""Average values by the weights $w_{ij} = \phi(q_i) \cdot \phi(k_j)$ over the keys that are seen.

    $o_i = \sum_{j \in S_i} w_{ij} v_j / \sum_{j \in S_i} w_{ij}$ (Katharopoulos et al. 2020, equations 4 to 6, and 8 to 12
    for the past; Choromanski et al. 2021, section 2.2). $S_i$ are the keys that `keep` calls real, of i's own group; for
    the direction "past", none later than i, which then has no influence on $o_i$, not even on its rounding. Groups
    are runs of neighbours. A query with an empty $S_i$ gets 0.

    Cost: L R K, and L CHUNK (R + K) more for the past; memory L K, and R K for each CHUNK. Both directions within groups cost
    twice the past. Reference: `kinfolk.ops.naive.kernel`.
    """
    if direction not in DIRECTIONS:
        raise SpecError(f"direction: unknown {direction!r}{suggest(direction, DIRECTIONS)}")
    if direction == "past":
        return _scan(q_BHLK, k_BHMK, v_BHMK, phi, _Sight(keep_BM, group_BM))[0]
    if group_BM is None:
        return _whole(q_BHLK, k_BHMK, v_BHMK, phi, keep_BM)
    # sums of a whole document would have to be held for all documents: what came before, and what comes, need no more
    # than those at the borders of chunks
    past, future = (
        _scan(q_BHLK, k_BHMK, v_BHMK, phi, _Sight(keep_BM, group_BM, future=future)) for future in (False, True)
    )
    return _merge(past, future)


@shaped(out="BHLK")
def kernel_continue(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, phi: FeatureMap, sums: Sums, keep_BL: Tensor | None = None
) -> tuple[Tensor, Sums]:
    """Go on after keys that are remembered as sums: return the averages, and the sums with the new keys in them.

    Gradients reach the new keys and values, and stop at the sums.
    """
    out, _, _, after = _scan(q_BHLK, k_BHLK, v_BHLK, phi, _Sight(keep_BL), sums)
    return out, after


@dataclasses.dataclass(frozen=True, eq=False)
class _Sight:
    """Who sees whom: keys before the query and its own, or with `future` those after it, real and of its group."""

    keep_BM: Tensor | None = None
    group_BM: Tensor | None = None
    future: bool = False

    def chunks(self, length: int) -> Iterator[slice]:
        """Yield runs of positions in the order in which they are summed."""
        starts = range(0, length, CHUNK)
        for start in reversed(starts) if self.future else starts:
            yield slice(start, min(start + CHUNK, length))

    def masks(self, at: slice, before: slice | None, device: torch.device) -> "_Masks":
        """Say what is seen within a chunk, and what of the sums before it."""
        n = at.stop - at.start
        ok = torch.ones(n, n, dtype=torch.bool, device=device)
        ok = ok.triu_(1) if self.future else ok.tril_()
        read = write = carry = None
        if self.group_BM is not None:
            group = self.group_BM[:, at]
            ok = ok & (group[:, None, :, None] == group[:, None, None, :])
            last = group[:, :1] if self.future else group[:, -1:]
            write = (group == last)[:, None]
            if before is not None:
                old = self.group_BM[:, before]
                old = old[:, :1] if self.future else old[:, -1:]
                read, carry = (group == old)[:, None], last == old
        if self.keep_BM is not None:
            keep = self.keep_BM[:, None, at]
            ok = ok & keep[:, :, None]
            write = keep if write is None else write & keep
        return _Masks(ok, read, write, carry)


@dataclasses.dataclass(frozen=True, eq=False)
class _Masks:
    """Of one chunk: pairs that are seen [.., L, M]; None means all of them for what follows.

    Queries that see the sums so far [B, 1, L], keys that enter them [B, 1, M], examples whose sums go on [B, 1].
    """

    ok: Tensor
    read: Tensor | None
    write: Tensor | None
    carry: Tensor | None


@dataclasses.dataclass(frozen=True, eq=False)
class _Tile:
    """A chunk in feature space, with the factors that bring its keys and the sums to common units."""

    q_BHLR: Tensor
    k_BHMR: Tensor
    v_BHMK: Tensor  # and a column of ones
    pair_BHLM: Tensor  # of a key for a query of the chunk; 0 where it is not seen
    read_BHL1: Tensor | None  # of the sums for a query; None: 1
    write_BHM1: Tensor | None  # of a key for the sums
    carry_BH11: Tensor | None  # of the sums for what they become
    unit_BHL: Tensor | None  # the logarithm of each query's unit; None: 0
    peak_BH: Tensor  # of the keys so far

    def weights(self) -> Tensor:
        """Return the weight of every key for every query of the chunk."""
        return (self.q_BHLR @ self.k_BHMR.mT).mul_(self.pair_BHLM)


def _tile(phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, masks: _Masks, peak_BH: Tensor) -> _Tile:
    """Make the features of a chunk. Keys are weighed in units of the largest that each query sees, and of none beyond."""
    fq, _ = phi(q)
    fk, log_BHM = phi(k)
    v = F.pad(v, (0, 1), value=1.0)
    if log_BHM is None:
        read, write, carry = (None if m is None else m.to(v.dtype) for m in (masks.read, masks.write, masks.carry))
        return _Tile(fq, fk, v, masks.ok.to(v.dtype), _last(read), _last(write), _last(_last(carry)), None, peak_BH)
    log_BHLM = log_BHM.unsqueeze(-2).masked_fill(~masks.ok, -torch.inf)
    before_BHL = peak_BH.unsqueeze(-1)
    if masks.read is not None:
        before_BHL = before_BHL.masked_fill(~masks.read, NEVER)
    unit_BHL = torch.maximum(log_BHLM.amax(-1), before_BHL)
    entering = log_BHM if masks.write is None else log_BHM.masked_fill(~masks.write, -torch.inf)
    old = peak_BH if masks.carry is None else peak_BH.masked_fill(~masks.carry, NEVER)
    new = torch.maximum(entering.amax(-1), old)
    read, write, carry = before_BHL - unit_BHL, entering - new.unsqueeze(-1), old - new
    if masks.read is not None:
        read = read.masked_fill(~masks.read, -torch.inf)
    if masks.carry is not None:
        carry = carry.masked_fill(~masks.carry, -torch.inf)
    pair = log_BHLM.sub_(unit_BHL.unsqueeze(-1)).exp_()
    return _Tile(fq, fk, v, pair, _last(read.exp()), _last(write.exp()), _last(_last(carry.exp())), unit_BHL, new)


def _last(x: Any) -> Any:
    return None if x is None else x.unsqueeze(-1)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor
