"""Kernelised linear attention: softmax replaced by feature maps, linear in length (Katharopoulos et al. 2020).

Because a weight is an inner product, the sum over keys is made once for all queries that see the same keys:

    o_i = phi(q_i) S_i / phi(q_i) z_i,    S_i = sum over seen keys of phi(k_j) v_j,    z_i = sum of phi(k_j)

Values carry a column of ones, so that S and z are one matrix. Features are made chunk by chunk, in the forward pass and
again in the backward pass, and never exist for a whole sequence.
"""

import dataclasses
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import full_precision
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.shapes import shaped
from kinfolk.ops.feature_maps import FeatureMap

Direction = Literal["past", "both"]
DIRECTIONS = get_args(Direction)
"""What a position sees: itself and all before it, or everything."""
CHUNK = 128
"""Positions whose features exist at once; those that look at one another directly where only the past is seen."""
WHOLE = 2
"""Chunks that are mapped at once where nothing is hidden from anybody: fewer calls, and still inside a cache."""
NEVER = -1e30
"""The logarithm of the largest key before there was one: finite, so that differences of two are numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """All that is remembered of keys and values: their sums, in units of the largest key so far."""

    sums_BHRK: Tensor  # of features times values; in the last column, of features
    peak_BH: Tensor  # the logarithm of the unit

    @classmethod
    def empty(cls, n_examples: int, n_heads: int, n_features: int, width: int, like: Tensor) -> "Sums":
        """Return the sums of nothing."""
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
    r"""Average values with the weights $w_{ij} = \phi(q_i) \cdot \phi(k_j)$ over the keys that are seen.

    $o_i = \sum_{j \in S_i} w_{ij} v_j / \sum_{j \in S_i} w_{ij}$ (Katharopoulos et al. 2020, equations 4 to 6, and for
    the past 8 to 12; Choromanski et al. 2021, section 2.2). $S_i$ are the keys that `keep` calls real, of i's own
    group, which is a run of neighbours; for the direction "past" none later than i, and those do not even touch the
    rounding of $o_i$. A query with an empty $S_i$ gets 0.

    Cost: L R K, for the past also L CHUNK (R + K); memory: L K, for the past also R K for every CHUNK. Both directions
    within groups cost two pasts. Reference: `kinfolk.ops.naive.linear_attention`.
    """
    if direction not in DIRECTIONS:
        raise SpecError(f"direction: unknown {direction!r}{suggest(direction, DIRECTIONS)}")
    inputs = q_BHLK, k_BHMK, v_BHMK, phi
    again = torch.is_grad_enabled()
    if direction == "both" and group_BM is None:
        out: Tensor = _Whole.apply(*inputs, keep_BM)
        return out
    out, norm_BHL, unit_BHL = _Scan.apply(*inputs, Visibility(keep_BM, group_BM), None, again)
    if direction == "past":
        return out
    # summing each group whole would hold the sums of all groups; what comes before and what comes after do not
    later, later_norm_BHL, later_unit_BHL = _Scan.apply(
        *inputs, Visibility(keep_BM, group_BM, future=True), None, again
    )
    top_BHL = torch.maximum(unit_BHL, later_unit_BHL)
    share_BHL = (unit_BHL - top_BHL).exp() * norm_BHL
    later_share_BHL = (later_unit_BHL - top_BHL).exp() * later_norm_BHL
    inverse_BHL = _inverse(share_BHL + later_share_BHL)
    mean = out * (share_BHL * inverse_BHL).unsqueeze(-1) + later * (later_share_BHL * inverse_BHL).unsqueeze(-1)
    return mean.to(out.dtype)


@shaped(out="BHLK")
def kernel_continue(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, phi: FeatureMap, sums: Sums, keep_BL: Tensor | None = None
) -> tuple[Tensor, Sums]:
    """Go on where only the past is seen: return the averages, and the sums with the new keys in them.

    Gradients reach the new keys and values and stop at the sums.
    """
    sight, again = Visibility(keep_BL), torch.is_grad_enabled()
    out, _, _, *after = _Scan.apply(q_BHLK, k_BHLK, v_BHLK, phi, sight, sums, again)
    return out, Sums(*after)


def work(length: int, n_features: int, width: int, direction: str) -> tuple[float, int]:
    """Return the FLOPs of one head per token after its features are made, and how many sums the backward pass needs."""
    through_sums = 2.0 * n_features * (width + 1)
    if direction == "both":
        return 2 * through_sums, 1
    chunks = [at.stop - at.start for at in _slices(length)]
    within = 2.0 * (n_features + width + 1) * sum(n * n for n in chunks) / length
    # the first chunk reads no sums, and those of the last are not read
    between = through_sums * (2 * length - chunks[0] - chunks[-1]) / length
    return within + between, len(chunks) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Masks:
    """What counts, None where all does: pairs of a chunk [.., L, M], queries that read the sums before it [B, 1, L],
    keys that are written into them [B, 1, M], examples whose sums are carried on [B, 1]."""

    pair: Tensor
    read: Tensor | None = None
    write: Tensor | None = None
    carry: Tensor | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Visibility:
    """The attention mask: a query sees itself and what came before it, or with `future` what comes after it."""

    keep_BM: Tensor | None = None
    group_BM: Tensor | None = None
    future: bool = False

    def chunks(self, length: int) -> list[slice]:
        """Return runs of positions in the order in which their keys are summed."""
        chunks = _slices(length)
        return chunks[::-1] if self.future else chunks

    def masks(self, at: slice, before: slice | None, device: torch.device) -> Masks:
        """Say what a chunk sees, of itself and of the sums up to the chunk before it."""
        n = at.stop - at.start
        pair = torch.ones(n, n, dtype=torch.bool, device=device)
        pair = pair.triu_(1) if self.future else pair.tril_()
        read = write = carry = None
        if self.group_BM is not None:
            group_BL, last_B1 = self.group_BM[:, at], self._last(at)
            pair = pair & (group_BL[:, None, :, None] == group_BL[:, None, None, :])
            write = (group_BL == last_B1)[:, None]
            if before is not None:
                read, carry = (group_BL == self._last(before))[:, None], last_B1 == self._last(before)
        if self.keep_BM is not None:
            keep = self.keep_BM[:, None, at]
            pair = pair & keep.unsqueeze(-2)
            write = keep if write is None else write & keep
        return Masks(pair, read, write, carry)

    def _last(self, at: slice) -> Tensor:
        """Return the groups at the far end of a chunk, the only ones that reach into the next."""
        assert self.group_BM is not None
        return self.group_BM[:, at.start : at.start + 1] if self.future else self.group_BM[:, at.stop - 1 : at.stop]


@dataclasses.dataclass(frozen=True, eq=False)
class _Tile:
    """A chunk in feature space, and the factors that bring its keys and the sums before it to common units."""

    q_BHLR: Tensor
    k_BHMR: Tensor
    v_BHMK: Tensor  # with the column of ones
    unit_BHL: Tensor | float  # the logarithm of each query's unit
    pair: Tensor  # [.., L, M]
    read: Tensor | None  # [.., L, 1], None: 1
    write: Tensor | None  # [.., M, 1]
    carry: Tensor | None  # [.., 1, 1]
    peak_BH: Tensor  # the logarithm of the unit of the sums after the chunk

    @classmethod
    def make(cls, phi: FeatureMap, here: list[Tensor], masks: Masks, peak_BH: Tensor) -> "_Tile":
        """Map a chunk. A query's unit is the largest key that it sees, so that no later one touches its rounding."""
        q, k, v = here
        fq, _ = phi(q)
        fk, log_BHM = phi(k)
        entry = _entry(log_BHM, masks.write, masks.carry, peak_BH, v)
        if log_BHM is None:
            read = None if masks.read is None else masks.read.to(v.dtype).unsqueeze(-1)
            return cls(fq, fk, _with_ones(v), 0.0, masks.pair.to(v.dtype), read, *entry)
        pair, read = _hide(log_BHM.unsqueeze(-2), masks.pair), _hide(peak_BH.unsqueeze(-1), masks.read)
        # finite even where nothing is seen: what is hidden has the factor 0 all the same
        unit_BHL = torch.maximum(pair.amax(-1), read).clamp_(min=NEVER)
        pair, read = (pair - unit_BHL.unsqueeze(-1)).exp_(), (read - unit_BHL).exp_().unsqueeze(-1)
        return cls(fq, fk, _with_ones(v), unit_BHL, pair, read, *entry)

    def totals(self, sums_BHRK: Tensor | None) -> Tensor:
        """Return the weighted sum of values of each query, and in the last column that of the weights alone."""
        total = self._weights() @ self.v_BHMK
        return total if sums_BHRK is None else total.add_(_times(self.q_BHLR @ sums_BHRK, self.read))

    def onward(self, sums_BHRK: Tensor | None) -> Tensor:
        """Return the sums after the chunk."""
        return _add_keys(sums_BHRK, self.k_BHMR, _times(self.v_BHMK, self.write), self.carry)

    def back(
        self, sums_BHRK: Tensor | None, d_total: Tensor, d_after: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the gradients of the features, the values and the sums before the chunk."""
        d_pair = (d_total @ self.v_BHMK.mT).mul_(self.pair)
        d_q, d_k, d_v = d_pair @ self.k_BHMR, d_pair.mT @ self.q_BHLR, self._weights().mT @ d_total
        if d_after is not None:
            _add_product(d_k, _times(self.v_BHMK, self.write), d_after.mT)
            d_v += _times(self.k_BHMR @ d_after, self.write)
        d_before = None
        if sums_BHRK is not None:
            d_read = _times(d_total, self.read)
            _add_product(d_q, d_read, sums_BHRK.mT)
            d_before = _add_keys(d_after, self.q_BHLR, d_read, self.carry)
        return d_q, d_k, d_v[..., :-1], d_before

    def _weights(self) -> Tensor:
        return (self.q_BHLR @ self.k_BHMR.mT).mul_(self.pair)


class _Scan(torch.autograd.Function):
    """Sums that grow chunk by chunk; backwards, from border to border with the gradient of the sums."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, sight: Visibility, start: Sums | None, again: bool
    ) -> Any:
        phi, chunks = phi.to(_precision(q)), sight.chunks(q.shape[2])
        out, norm_BHL = _new(q, v.shape[3]), _new_norm(q)
        unit_BHL, borders = torch.zeros_like(norm_BHL), []
        sums, peak = None if start is None else start.sums_BHRK, _peak(q) if start is None else start.peak_BH
        with full_precision(q):
            for n, at in enumerate(chunks):
                borders += [sums, peak] if again else []
                masks = sight.masks(at, chunks[n - 1] if n else None, q.device)
                tile = _Tile.make(phi, _parts(at, q, k, v), masks, peak)
                total = tile.totals(sums)
                out[:, :, at] = total[..., :-1] * _inverse(total[..., -1:])
                norm_BHL[:, :, at], unit_BHL[:, :, at] = total[..., -1], tile.unit_BHL
                if n + 1 < len(chunks) or start is not None:
                    sums, peak = tile.onward(sums), tile.peak_BH
        ctx.phi, ctx.sight, ctx.chunks = phi, sight, chunks
        ctx.save_for_backward(q, k, v, out, norm_BHL, *borders)
        after = () if start is None else (sums, peak)
        ctx.mark_non_differentiable(unit_BHL, *after)
        return out, norm_BHL, unit_BHL, *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_norm_BHL: Tensor, *_: Any) -> tuple[Any, ...]:
        q, k, v, out, norm_BHL, *borders = ctx.saved_tensors
        d_q, d_k, d_v = (_new(x, x.shape[3]) for x in (q, k, v))
        d_sums = None
        with full_precision(q):
            for n, at in reversed([*enumerate(ctx.chunks)]):
                sums, peak = borders[2 * n : 2 * n + 2]
                here = _parts(at, q, k, v)
                masks = ctx.sight.masks(at, ctx.chunks[n - 1] if n else None, q.device)
                tile = _Tile.make(ctx.phi, here, masks, peak)
                d_total = _quotient_back(_parts(at, d_out, out), norm_BHL[:, :, at], d_norm_BHL[:, :, at])
                d_fq, d_fk, d_v[:, :, at], d_sums = tile.back(sums, d_total, d_sums)
                d_q[:, :, at] = ctx.phi.pull(here[0], tile.q_BHLR, d_fq)
                d_k[:, :, at] = ctx.phi.pull(here[1], tile.k_BHMR, d_fk)
        return d_q, d_k, d_v, None, None, None, None


class _Whole(torch.autograd.Function):
    """One sum for all queries: a sweep over the keys, one over the queries; backwards the other way round."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, phi: FeatureMap, keep_BM: Tensor | None) -> Tensor:
        phi = phi.to(_precision(q))
        out, norm_BHL, peak = _new(q, v.shape[3]), _new_norm(q), _peak(q)
        sums: Tensor | None = None
        with full_precision(q):
            for at in _slices(k.shape[2], WHOLE):
                k_here, v_here = _views(at, k, v)
                fk, log_BHM = phi(k_here)
                write, carry, peak = _entry(log_BHM, _keep(keep_BM, at), None, peak, v_here)
                sums = _add_keys(sums, fk, _with_ones(v_here, write), carry)
            assert sums is not None
            for at in _slices(q.shape[2], WHOLE):
                total = phi(*_views(at, q))[0] @ sums
                _multiply(total[..., :-1], _inverse(total[..., -1:]), out[:, :, at])
                norm_BHL[:, :, at] = total[..., -1]
        ctx.phi = phi
        ctx.save_for_backward(q, k, v, out, norm_BHL, sums, peak, keep_BM)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        q, k, v, out, norm_BHL, sums, peak, keep_BM = ctx.saved_tensors
        d_q, d_k, d_v = (_new(x, x.shape[3]) for x in (q, k, v))
        d_sums = torch.zeros_like(sums)
        with full_precision(q):
            for at in _slices(q.shape[2], WHOLE):
                (here,) = _views(at, q)
                fq, _ = ctx.phi(here)
                d_total = _quotient_back(_views(at, d_out, out), norm_BHL[:, :, at], None)
                _add_product(d_sums, fq.mT, d_total)
                d_q[:, :, at] = ctx.phi.pull(here, fq, d_total @ sums.mT)
            for at in _slices(k.shape[2], WHOLE):
                here, v_here = _views(at, k, v)
                fk, log_BHM = ctx.phi(here)
                write, _, _ = _entry(log_BHM, _keep(keep_BM, at), None, peak, v_here)
                d_v[:, :, at] = _times(fk @ d_sums[..., :-1], write)
                d_k[:, :, at] = ctx.phi.pull(here, fk, _with_ones(v_here, write) @ d_sums.mT)
        return d_q, d_k, d_v, None, None


def _entry(
    log_BHM: Tensor | None, write: Tensor | None, carry: Tensor | None, peak_BH: Tensor, like: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return the factors of keys [.., M, 1] and of sums [.., 1, 1] when keys enter, and the new unit's logarithm."""
    if log_BHM is None:
        column = None if write is None else write.to(like.dtype).unsqueeze(-1)
        return column, None if carry is None else carry.to(like.dtype)[..., None, None], peak_BH
    entering, before_BH = _hide(log_BHM, write), _hide(peak_BH, carry)
    peak_BH = torch.maximum(entering.amax(-1), before_BH).clamp_(min=NEVER)
    column = (entering - peak_BH.unsqueeze(-1)).exp_().unsqueeze(-1)
    return column, (before_BH - peak_BH).exp_()[..., None, None], peak_BH


def _add_keys(sums: Tensor | None, k_BHMR: Tensor, entering: Tensor, carry: Tensor | None) -> Tensor:
    """Return new sums; the old ones stay, because the backward pass starts again from every border."""
    if sums is None:
        return k_BHMR.mT @ entering
    flat = (x.flatten(0, 1) for x in (_times(sums, carry), k_BHMR.mT, entering))
    return torch.baddbmm(*flat).view_as(sums)


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product of two stacks of matrices to a third, in place."""
    into.flatten(0, 1).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))


def _quotient_back(here: list[Tensor], norm_BHL: Tensor, d_norm_BHL: Tensor | None) -> Tensor:
    """Return the gradient of the totals, of which the output is the first columns divided by the last."""
    d_out, out = here
    inverse = _inverse(norm_BHL.unsqueeze(-1))
    d_last = -(d_out * out).sum(-1, keepdim=True) * inverse
    d_total = d_last.new_empty(*d_out.shape[:-1], d_out.shape[-1] + 1)
    _multiply(d_out, inverse, d_total[..., :-1])
    d_total[..., -1:] = d_last if d_norm_BHL is None else d_last + d_norm_BHL.unsqueeze(-1)
    return d_total


def _inverse(norm: Tensor) -> Tensor:
    """Return 1 / norm, or 0 where nothing was seen."""
    tiny = 1e4 * torch.finfo(norm.dtype).tiny
    return norm.clamp(min=tiny).reciprocal().masked_fill(norm < tiny, 0.0)


def _hide(log: Tensor, shown: Tensor | None) -> Tensor:
    return log if shown is None else log.masked_fill(~shown, -torch.inf)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def _with_ones(v: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return values with a column of ones, times a factor of each row."""
    rows = v.new_empty(*v.shape[:-1], v.shape[-1] + 1)
    if factor is None:
        rows[..., :-1], rows[..., -1] = v, 1.0
    else:
        _multiply(v, factor, rows[..., :-1])
        rows[..., -1:] = factor
    return rows


def _multiply(x: Tensor, factor: Tensor, into: Tensor) -> None:
    """Write a product where it belongs, in one pass where types are the same."""
    if x.dtype != into.dtype or torch.compiler.is_exporting():
        into.copy_(x * factor)
    else:
        torch.mul(x, factor, out=into)


def _keep(keep_BM: Tensor | None, at: slice) -> Tensor | None:
    return None if keep_BM is None else keep_BM[:, None, at]


def _slices(length: int, chunks: int = 1) -> list[slice]:
    if torch.compiler.is_exporting():
        return [slice(0, length)]  # a graph is made once for all lengths
    step = chunks * CHUNK
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _parts(at: slice, *tensors: Tensor) -> list[Tensor]:
    """Return some positions of each tensor in one piece, in the precision of the sums."""
    return [x.contiguous() for x in _views(at, *tensors)]


def _views(at: slice, *tensors: Tensor) -> list[Tensor]:
    """Return some positions of each tensor where they lie, in the precision of the sums."""
    return [x[:, :, at].to(_precision(x)) for x in tensors]


def _precision(x: Tensor) -> torch.dtype:
    """Half precisions have too few digits for sums, or too small a range for exponentials."""
    return torch.promote_types(x.dtype, torch.float32)


def _new(like: Tensor, width: int) -> Tensor:
    """Return a tensor whose heads are adjacent in memory, as the maps before and after want them."""
    n_examples, n_heads, length, _ = like.shape
    return like.new_empty(n_examples, length, n_heads, width).transpose(1, 2)


def _new_norm(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:3], dtype=_precision(q))


def _peak(q: Tensor) -> Tensor:
    return q.new_full(q.shape[:2], NEVER, dtype=_precision(q))
