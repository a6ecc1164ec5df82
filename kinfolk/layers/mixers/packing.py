"""Packed documents as separate rows, for mixers that cannot use an attention mask."""

import dataclasses
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from kinfolk.core.context import Context, Padding
from kinfolk.core.device import host, send
from kinfolk.core.errors import ShapeError


@dataclasses.dataclass(frozen=True, eq=False)
class Packing:
    """Unpacking of a batch: positions of its tokens if each of N documents has a row of M positions."""

    at_b: Tensor  # N M, past the end, for padding
    n_rows: int
    length: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, ctx: Context, shape: tuple[int, int], device: torch.device) -> Self | None:
        """Read it from a context; None if the batch is one document per row, at positions from 0 on."""
        if ctx.group_BL is None and ctx.pos_BL is None:
            return None
        # the host works it out: how many documents there are decides about shapes
        pos_BL = host(ctx.positions(shape[1], device)).expand(shape)
        group_BL = torch.zeros(shape, dtype=torch.long) if ctx.group_BL is None else host(ctx.group_BL)
        real_b = torch.ones_like(pos_BL, dtype=torch.bool) if ctx.padding is None else host(ctx.padding.keep_BL)
        real_b = real_b.flatten()
        row_B1 = torch.arange(shape[0])[:, None]
        both_b2 = torch.stack([row_B1.expand(shape), group_BL], dim=-1).flatten(0, 1)
        documents, document_b = both_b2.unique(dim=0, return_inverse=True)
        length = int(pos_BL.max()) + 1
        at_b = torch.where(real_b, document_b * length + pos_BL.flatten(), len(documents) * length)
        return cls(send(at_b, device), len(documents), length, shape)

    def unpack(self, x_BLD: Tensor) -> Tensor:
        """Give each document its row; zeros where it has no token."""
        # one slot behind the last takes all padding
        rows = x_BLD.new_zeros(self.n_rows * self.length + 1, x_BLD.shape[-1])
        return rows.index_copy(0, self.at_b, x_BLD.flatten(0, 1))[:-1].unflatten(0, (self.n_rows, self.length))

    def pack(self, x_NMD: Tensor) -> Tensor:
        """Bring tokens back to where they came from; padding gets anything finite."""
        return x_NMD.flatten(0, 1)[self.at_b.clamp(max=self.n_rows * self.length - 1)].unflatten(0, self.shape)

    def context(self, ctx: Context) -> Context:
        """Return the context of the rows."""
        keep = torch.zeros(self.n_rows * self.length + 1, dtype=torch.bool)
        keep = keep.index_fill(0, host(self.at_b), True)[:-1].unflatten(0, (self.n_rows, self.length))
        return ctx.replace(start=0, pos_BL=None, group_BL=None, padding=Padding.of(send(keep, self.at_b.device)))


def by_document(mix: Callable[[Tensor, Context], Tensor], x_BLD: Tensor, ctx: Context) -> Tensor:
    """Mix each packed document for itself."""
    packing = Packing.of(ctx, (x_BLD.shape[0], x_BLD.shape[1]), x_BLD.device)
    if packing is None:
        return mix(x_BLD, ctx)
    return packing.pack(mix(packing.unpack(x_BLD), packing.context(ctx)))


def refuse_pairs(ctx: Context, kind: str) -> None:
    """Refuse rules about pairs of positions where a mixer has no pairs to hide."""
    if ctx.visible_pairs is not None or ctx.visible_until is not None:
        raise ShapeError(f"{kind}: what it mixes are no pairs of positions, so it cannot follow an attention mask")
