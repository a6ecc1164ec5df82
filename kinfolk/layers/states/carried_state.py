"""Recurrent state carried between segments in training: truncated backpropagation through time.

Backpropagation ends where a segment begins (truncated backpropagation through time), the state does not.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kinfolk.core.context import Context
from kinfolk.core.device import host, send


class Recurrence:
    """Recurrent state after the last segment, one tensor [B, D] or two; a new one waits until the step is over.

    Packed documents count from the one that a segment goes on with, as in `kinfolk.layers.mixers.segment_attention`.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.values: tuple[Tensor, ...] | None = None
        self._newest: tuple[Tensor, ...] | None = None

    def start(self, x_BLD: Tensor, width: int) -> tuple[Tensor, ...]:
        """Return where to begin: zeros at the beginning."""
        if self.values is None:
            return (x_BLD.new_zeros(len(x_BLD), width),) * self.n
        return tuple(value.to(x_BLD.dtype) for value in self.values)

    def note(self, values: tuple[Tensor, ...]) -> None:
        """Take note of the state after a segment."""
        self._newest = tuple(value.detach() for value in values)

    def settle(self) -> None:
        """Remember what was noted."""
        if self._newest is not None:
            self.values, self._newest = self._newest, None

    def forget(self, rows_B: Tensor) -> None:
        """Reset these examples."""
        if self.values is not None and bool(rows_B.any()):
            away_B1 = send(rows_B, self.values[0].device)[:, None]
            self.values = tuple(value.masked_fill(away_B1, 0.0) for value in self.values)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold."""
        return {} if self.values is None else {str(i): value for i, value in enumerate(self.values)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Be what `tensors` said."""
        self.values = tuple(tensors[str(i)] for i in range(self.n)) if tensors else None


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentDocuments:
    """The documents of a segment as rows of their own: where each token goes, and which row it came from."""

    at_b: Tensor  # B L
    lengths_N: Tensor  # real tokens, at least one
    row_N: Tensor
    goes_on_N: Tensor  # true for what began before the segment
    last_B: Tensor  # the last piece of each row that has a real token

    @classmethod
    def of(cls, group_BL: Tensor, keep_BL: Tensor) -> "SegmentDocuments":
        """Cut rows where the document changes; on the host, since the number of pieces decides about shapes."""
        device, group_BL, keep_BL = group_BL.device, host(group_BL), host(keep_BL)
        n_rows, n = group_BL.shape
        new_BL = torch.ones_like(keep_BL)
        new_BL[:, 1:] = group_BL[:, 1:] != group_BL[:, :-1]
        piece_BL = new_BL.flatten().cumsum(0).unflatten(0, (n_rows, n)) - 1
        place_L = torch.arange(n)
        begin_BL = torch.where(new_BL, place_L, 0).cummax(1).values
        lengths_N = torch.zeros(int(piece_BL[-1, -1]) + 1, dtype=torch.long)
        lengths_N = lengths_N.index_add(0, piece_BL.flatten(), keep_BL.flatten().long())
        row_N = new_BL.nonzero()[:, 0]
        goes_on_N = (new_BL & (group_BL == 0) & (place_L == 0))[new_BL]
        last_B = torch.where(keep_BL, piece_BL, -1).max(1).values
        at_b = (piece_BL * n + place_L - begin_BL).flatten()
        # PyTorch packs no sequence without tokens, so a piece of padding alone is read for one
        return cls(*(send(x, device) for x in (at_b, lengths_N.clamp(min=1), row_N, goes_on_N, last_B)))


def go_on(cell: nn.Module, x_BLD: Tensor, ctx: Context, memory: Recurrence, width: int) -> Tensor:
    """Read a segment from where the last one ended, each new document from nothing, and note how it ends."""
    start = memory.start(x_BLD, width)
    if ctx.padding is None and (ctx.group_BL is None or x_BLD.shape[1] == 1):
        if ctx.group_BL is not None:
            # group 0 is the document that the last segment ended in
            start = tuple(value.masked_fill(ctx.group_BL != 0, 0.0) for value in start)
        y_BLD: Tensor
        y_BLD, end = cell(x_BLD, _state(start))
        memory.note(_values(end))
        return y_BLD
    shape, device = x_BLD.shape[:2], x_BLD.device
    none, every = torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool)
    group_BL = send(none, device) if ctx.group_BL is None else ctx.group_BL
    keep_BL = send(every, device) if ctx.padding is None else ctx.padding.keep_BL
    pieces = SegmentDocuments.of(group_BL, keep_BL)
    n, longest = len(pieces.row_N), shape[1]
    x_ND = x_BLD.new_zeros(n * longest, x_BLD.shape[2]).index_copy(0, pieces.at_b, x_BLD.flatten(0, 1))
    begin = tuple(value[pieces.row_N].masked_fill(~pieces.goes_on_N[:, None], 0.0) for value in start)
    packed = pack_padded_sequence(
        x_ND.unflatten(0, (n, longest)), host(pieces.lengths_N), batch_first=True, enforce_sorted=False
    )
    y, end = cell(packed, _state(begin))
    y_NLD = pad_packed_sequence(y, batch_first=True, total_length=longest)[0]
    empty_B1 = pieces.last_B[:, None] < 0
    ends = (value[pieces.last_B.clamp(min=0)] for value in _values(end))
    memory.note(tuple(torch.where(empty_B1, old, new) for old, new in zip(start, ends, strict=True)))
    return y_NLD.flatten(0, 1)[pieces.at_b].unflatten(0, shape)


def _state(values: tuple[Tensor, ...]) -> Any:
    """As PyTorch's cells want it: [1, B, D], a tuple if there are two."""
    values = tuple(value[None] for value in values)
    return values if len(values) > 1 else values[0]


def _values(end: Any) -> tuple[Tensor, ...]:
    return tuple(value[0] for value in end) if isinstance(end, tuple) else (end[0],)
