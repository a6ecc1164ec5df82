"""Attention with a subset of queries: all tokens have keys and values, some of them queries (Dehghani et al. 2019)."""

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from kinfolk.core.context import Context, Padding, Taps
from kinfolk.layers.part import KeyValues


@dataclasses.dataclass(frozen=True, eq=False)
class QuerySubset:
    """Subset of the tokens of every row, in their order: their positions, and which of them count.

    Rows differ in how many they have; those with fewer have others at the end, which do no harm.
    """

    at_BA: Tensor
    meant_BA: Tensor

    @classmethod
    def of(cls, chosen_BL: Tensor, n: int) -> "QuerySubset":
        """Pick up to `n` chosen tokens of every row."""
        # a stable sort brings the chosen tokens to the front, in their order
        at_BA = (~chosen_BL).to(torch.uint8).sort(dim=1, stable=True).indices[:, :n]
        return cls(at_BA, chosen_BL.gather(1, at_BA))

    def take(self, x_BLD: Tensor) -> Tensor:
        """Return the selected rows."""
        return x_BLD.gather(1, self.at_BA[..., None].expand(-1, -1, x_BLD.shape[-1]))

    def put(self, y_BAD: Tensor, x_BLD: Tensor) -> Tensor:
        """Return x with y in the place of those that are meant."""
        at_BAD = self.at_BA[..., None].expand_as(y_BAD)
        return x_BLD.scatter(1, at_BAD, torch.where(self.meant_BA[..., None], y_BAD, x_BLD.gather(1, at_BAD)))

    def keys_values(self, all_of: KeyValues) -> KeyValues:
        """Return keys and values of all tokens, seen from where the queries of these are."""
        view, at_BA = all_of.view, self.at_BA
        pos_BA = view.start + at_BA if view.q_pos_BL is None else _rows(view.q_pos_BL, at_BA)
        group_BA = None if view.q_group_BL is None else _rows(view.q_group_BL, at_BA)
        return dataclasses.replace(all_of, view=dataclasses.replace(view, q_pos_BL=pos_BA, q_group_BL=group_BA))

    def context(self, ctx: Context, length: int) -> Context:
        """Return the context of these tokens, of a row of `length`."""
        pos_BL = ctx.positions(length, self.at_BA.device).expand(len(self.at_BA), length)
        # start + n stays the number of positions, for which tables of distances are made
        n_others = length - self.at_BA.shape[1]
        return ctx.replace(
            start=ctx.start + n_others,
            pos_BL=pos_BL.gather(1, self.at_BA),
            padding=Padding(self.meant_BA, right=True),
            group_BL=None if ctx.group_BL is None else ctx.group_BL.gather(1, self.at_BA),
            taps=None if ctx.taps is None else _WholeRows(ctx.taps, self, length),
        )


class _WholeRows(Taps):
    """Taps that pass reports about some tokens on as reports about all, with zeros for the others."""

    def __init__(self, taps: Taps, some: QuerySubset, length: int) -> None:
        super().__init__(taps.names)
        self.taps, self.some, self.length = taps, some, length

    def hears(self, name: str) -> bool:
        return self.taps.hears(name)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        with self.taps.scope(name):
            yield

    def record(self, name: str, value: Tensor) -> None:
        axis, n = 2 if name in _BY_HEAD else 1, self.some.at_BA.shape[1]
        if not self.hears(name) or value.ndim <= axis or value.shape[axis] != n:
            return self.taps.record(name, value)
        at, meant = (
            x.view(len(x), *(1,) * (axis - 1), n, *(1,) * (value.ndim - axis - 1)).expand_as(value)
            for x in (self.some.at_BA, self.some.meant_BA)
        )
        whole = value.new_zeros(*value.shape[:axis], self.length, *value.shape[axis + 1 :])
        return self.taps.record(name, whole.scatter(axis, at, value.masked_fill(~meant, 0)))


_BY_HEAD = frozenset({"weights", "scores", "span"})
"""Reports whose tokens are their third axis, behind heads; of all others, their second."""


def _rows(x_BL: Tensor, at_BA: Tensor) -> Tensor:
    return x_BL.expand(len(at_BA), -1).gather(1, at_BA)
