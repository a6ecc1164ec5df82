"""KV cache of incremental decoding: keys and values by position, or a ring buffer of the last ones.

A slot is a position, so nothing has to be shifted, examples may be at different positions, and the junk that right
padding leaves behind lies in the future of every real query until a real token overwrites it. Where a pattern looks
back no further than `span`, the slots are a ring and a token costs the same at any position.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError
from kinfolk.layers.states.rows import Axes, StateRows, chosen
from kinfolk.ops.attention.scores import View, view_from
from kinfolk.ops.patterns.leaves import Pattern


class Slots(StateRows):
    """KV cache: keys and values of every position up to `size`."""

    rewinds: ClassVar[bool] = True
    held: ClassVar = {"k_BGMK": Axes(room=2), "v_BGMK": Axes(room=2)}

    def __init__(self, k_BGMK: Tensor, v_BGMK: Tensor) -> None:
        self.k_BGMK, self.v_BGMK = k_BGMK, v_BGMK

    def extend(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, View]:
        """Write new keys and values and return all that may be attended to, with the queries' positions."""
        stop = ctx.start + k_BGLK.shape[2]
        if stop > self.k_BGMK.shape[2]:
            raise ShapeError(f"position {stop - 1} does not fit a state made for {self.k_BGMK.shape[2]} positions")
        if ctx.pos_BL is None:
            self.k_BGMK.narrow(2, ctx.start, stop - ctx.start).copy_(k_BGLK)
            self.v_BGMK.narrow(2, ctx.start, stop - ctx.start).copy_(v_BGLK)
            # a graph is traced with a position that is a symbol
            view = view_from(ctx.start) if isinstance(ctx.start, int) else View(start=ctx.start)
        else:
            rows_B1 = torch.arange(len(k_BGLK), device=k_BGLK.device)[:, None]
            self.k_BGMK[rows_B1, :, ctx.pos_BL] = k_BGLK.transpose(1, 2).to(self.k_BGMK.dtype)
            self.v_BGMK[rows_B1, :, ctx.pos_BL] = v_BGLK.transpose(1, 2).to(self.v_BGMK.dtype)
            view = View(q_pos_BL=ctx.pos_BL)
        return self.k_BGMK.narrow(2, 0, stop), self.v_BGMK.narrow(2, 0, stop), view


class Ring(Slots):
    """Ring buffer of keys and values of the last `span` positions: position p is in slot p mod span."""

    rewinds: ClassVar[bool] = False
    # rings of different sizes have their positions in different slots
    held: ClassVar = {"k_BGMK": Axes(), "v_BGMK": Axes(), "pos_BM": Axes()}

    def __init__(self, k_BGMK: Tensor, v_BGMK: Tensor) -> None:
        super().__init__(k_BGMK, v_BGMK)
        # the position each slot holds; negative: nothing yet
        self.pos_BM = torch.full((len(k_BGMK), k_BGMK.shape[2]), -1, device=k_BGMK.device)

    def extend(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, View]:
        """Return old and new keys and values; then keep the newest of each slot."""
        n_new = k_BGLK.shape[2]
        pos_BL = ctx.positions(n_new, k_BGLK.device).expand(len(k_BGLK), n_new)
        # nothing is earlier, and queries of a prompt need keys for which the ring has no room
        if ctx.start == 0 and ctx.pos_BL is None:
            self._store(k_BGLK, v_BGLK, pos_BL, ctx)
            return k_BGLK, v_BGLK, View()
        if n_new == 1:
            self._store(k_BGLK, v_BGLK, pos_BL, ctx)
            return self.k_BGMK, self.v_BGMK, View(q_pos_BL=pos_BL, k_pos_BM=self.pos_BM)
        # copies: storing below changes the ring in place
        k, v = torch.cat([self.k_BGMK, k_BGLK], dim=2), torch.cat([self.v_BGMK, v_BGLK], dim=2)
        view = View(q_pos_BL=pos_BL, k_pos_BM=torch.cat([self.pos_BM, pos_BL], dim=1))
        self._store(k_BGLK, v_BGLK, pos_BL, ctx)
        return k, v, view

    def _store(self, k_BGLK: Tensor, v_BGLK: Tensor, pos_BL: Tensor, ctx: Context) -> None:
        size, first_B1 = self.k_BGMK.shape[2], pos_BL[:, :1]
        if pos_BL.shape[1] == 1 and ctx.padding is None:
            rows_B, slot_B = torch.arange(len(pos_BL), device=pos_BL.device), pos_BL[:, 0] % size
            self.k_BGMK[rows_B, :, slot_B] = k_BGLK[:, :, 0].to(self.k_BGMK.dtype)
            self.v_BGMK[rows_B, :, slot_B] = v_BGLK[:, :, 0].to(self.v_BGMK.dtype)
            self.pos_BM[rows_B, slot_B] = pos_BL[:, 0]
            return
        n_real = pos_BL.shape[1] if ctx.padding is None else ctx.padding.keep_BL.sum(1, keepdim=True)
        last_B1 = first_B1 + n_real - 1
        slot_M = torch.arange(size, device=pos_BL.device)
        # the newest real position that belongs in each slot, if it is a new one
        newest_BM = last_B1 - (last_B1 - slot_M) % size
        fresh_BM = newest_BM >= first_B1
        at_BGMK = (newest_BM - first_B1).clamp(min=0)[:, None, :, None].expand_as(self.k_BGMK)
        fresh_B1M1 = fresh_BM[:, None, :, None]
        self.k_BGMK = torch.where(fresh_B1M1, k_BGLK.gather(2, at_BGMK), self.k_BGMK)
        self.v_BGMK = torch.where(fresh_B1M1, v_BGLK.gather(2, at_BGMK), self.v_BGMK)
        self.pos_BM = torch.where(fresh_BM, newest_BM, self.pos_BM)


class Rolling:
    """Rolling KV cache: positions that may still be seen, in order, as long as rows are in step.

    New ones are written behind the old ones, and when the room is used up what may still be seen moves to the front.
    As soon as rows have positions of their own, `ring` takes over.
    """

    def __init__(self, ring: Slots, room: int, pattern: Pattern) -> None:
        self.ring, self.room, self.pattern = ring, room, pattern
        self.hooks: Any = None  # what a position makes once for all steps, for `n_hooks` distances
        self.n_hooks = 0
        self._in_step = True
        # [keys or values, B, G, room, K]; positions `_low` to `_high` start at `_at`
        self._both: Tensor | None = None
        self._at = self._low = self._high = 0

    def fits(self, ctx: Context) -> bool:
        """Tell whether rows are in step; the first time that they are not, hand over to the ring."""
        if ctx.pos_BL is not None or ctx.padding is not None:
            self._hand_over()
        return self._in_step

    def append(self, k_BGLK: Tensor, v_BGLK: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write new keys and values, and return all that their queries may see."""
        n = k_BGLK.shape[2]
        if self._both is None:
            self._low = self._high = start
            self._both = k_BGLK.new_zeros(2, *k_BGLK.shape[:2], max(self.room, n), k_BGLK.shape[3])
        # what no query from here on sees is given up
        first = max(self._low, self.pattern.first_seen(start))
        self._at, self._low = self._at + first - self._low, first
        used = self._high - self._low
        if self._at + used + n > self._both.shape[3]:
            # moved to the front only where the room is used up
            kept = self._both.narrow(3, self._at, used)
            fresh = kept.new_zeros(*kept.shape[:3], max(self.room, used + n), kept.shape[4])
            fresh.narrow(3, 0, used).copy_(kept)
            self._both, self._at = fresh, 0
        self._both[0].narrow(2, self._at + used, n).copy_(k_BGLK)
        self._both[1].narrow(2, self._at + used, n).copy_(v_BGLK)
        self._high += n
        seen = self._both.narrow(3, self._at, used + n)
        return seen[0], seen[1]

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`."""
        self.ring.select(rows_B)
        self._both = chosen(self._both, rows_B, 1)

    def join(self, other: "Rolling") -> None:
        """Append the examples of another one; from then on the ring of both holds them."""
        self._hand_over()
        other._hand_over()
        self.ring.join(other.ring)

    def _hand_over(self) -> None:
        self._in_step, both = False, self._both
        if both is not None:
            old, self._both = both.narrow(3, self._at, self._high - self._low), None
            self.ring.extend(old[0], old[1], Context(start=self._low))


class MemorySlots(StateRows):
    """Keys and values of the encoder output for cross-attention: projected once, read by every step."""

    rewinds: ClassVar[bool] = True
    held: ClassVar = {"k_BGMK": Axes(room=2), "v_BGMK": Axes(room=2)}

    def __init__(self) -> None:
        self.k_BGMK: Tensor | None = None
        self.v_BGMK: Tensor | None = None
