"""Diagonal linear recurrences: RG-LRU and the selective scan of Mamba, with a decay for every number of a state.

    h_t = a_t h_{t-1} + b_t

On a CPU positions of a chunk are read one after the other while their states are in the cache. On an accelerator a
chunk is cut into short runs, which are read side by side; then each gets what the state before it adds.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, precision, runs_of

CHUNK = 64
"""Positions from one kept state to the next; their states exist at once in the backward pass."""
BLOCK_BYTES = 512 << 10
"""Decays of a selective scan that exist at once on a CPU: of 8 positions with 1,024 channels of 16 numbers."""


@shaped(out="BLD")
def diagonal_scan(
    log_decay_BLD: Tensor, x_BLD: Tensor, state_B1D: Tensor | None = None, group_BL: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return $h_t = e^{g_t} h_{t-1} + x_t$ for all positions, and the last one [B, 1, D].

    A document begins with an empty state (De et al. 2024, equation 4, with the input already scaled). A position that
    has $g = 0$ and $x = 0$ changes nothing. Cost: about 4 L D; memory: the inputs.
    Reference: `kinfolk.ops.naive.diagonal_scan`.
    """
    fresh_BL1 = _fresh(group_BL, x_BLD)

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        (h_B1D,), (g, x) = state, inputs
        h_LBD = x.transpose(0, 1).clone()
        _scan(_positions(_reset(g.exp(), fresh_BL1, at).transpose(0, 1)), _positions(h_LBD), h_B1D[:, 0])
        # a copy, since a view would keep the states of the whole chunk
        return h_LBD.transpose(0, 1), (h_LBD[-1, :, None].clone(),)

    def pull(state: Tensors, inputs: Tensors, at: slice, d_out: Tensor, d_after: Tensors) -> Tensors:
        (h_B1D,), (g, x) = state, inputs
        decay_LBD = _reset(g.exp(), fresh_BL1, at).transpose(0, 1)
        h_LBD, d_h_LBD, decay = x.transpose(0, 1).clone(), d_out.transpose(0, 1).clone(), _positions(decay_LBD)
        _scan(decay, _positions(h_LBD), h_B1D[:, 0])
        d_h_LBD[-1] += d_after[0][:, 0]
        _scan_back(decay, _positions(d_h_LBD))
        d_decay_LBD = d_h_LBD * _before(h_LBD, h_B1D[:, 0])
        d_state = (decay_LBD[0] * d_h_LBD[0])[:, None]
        return d_decay_LBD.mul_(decay_LBD).transpose(0, 1), d_h_LBD.transpose(0, 1), d_state

    if state_B1D is None:
        state_B1D = x_BLD.new_zeros(len(x_BLD), 1, x_BLD.shape[2], dtype=precision(x_BLD))
    out, (after,) = chunk_scan(step, (log_decay_BLD, x_BLD), (state_B1D,), (), runs_of(x_BLD.shape[1], CHUNK), pull)
    return out, after


@shaped(out="BLD")
def selective_scan(
    x_BLD: Tensor,
    step_BLD: Tensor,
    write_BLR: Tensor,
    read_BLR: Tensor,
    gate_BLD: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    state_BDR: Tensor | None = None,
    group_BL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return $y_{td} = (\sum_r C_{tr} h_{tdr} + D_d x_{td})\,\mathrm{silu}(z_{td})$, and the last state.

    $h_{tdr} = e^{\Delta_{td} A_{dr}} h_{t-1,dr} + \Delta_{td} B_{tr} x_{td}$ with $\Delta = \mathrm{softplus}(s + b)$
    (Gu and Dao 2023, algorithm 2 and section 3.4). `step` is $s$, `write` $B$, `read` $C$, `gate` $z$, and `weights`
    are $A < 0$ [D, R], $b$ and $D$ [D]. A position with $s = -\infty$ changes nothing, and a document begins with an
    empty state. States and what is made from the input exist for one chunk at a time. Cost: about 9 L D R; memory: the
    inputs and D R for every CHUNK.
    Reference: `kinfolk.ops.naive.diagonal_scan`.
    """
    rate_DR, bias_D, skip_D = (w.to(precision(w)) for w in weights)
    # channels are the last axis: sums over the few numbers of one are then products with contiguous rows
    scan = _Selective(rate_DR.mT.contiguous(), bias_D, skip_D, _fresh(group_BL, x_BLD), x_BLD.shape[1])
    if state_BDR is None:
        state_BDR = rate_DR.new_zeros(len(x_BLD), *scan.rate_RD.shape, dtype=precision(x_BLD)).mT
    inputs, runs = (x_BLD, step_BLD, write_BLR, read_BLR, gate_BLD), runs_of(x_BLD.shape[1], CHUNK)
    out, (after,) = chunk_scan(scan.step, inputs, (state_BDR,), weights, runs, scan.pull)
    return out, after


class _Part(NamedTuple):
    """The inputs of some positions, each [L B, 1, D or R], steps before and after softplus, what enters (dt x), and
    where documents begin."""

    x: Tensor
    step: Tensor
    write: Tensor
    read: Tensor
    gate: Tensor
    dt: Tensor
    u: Tensor
    size: int
    fresh: Tensor | None

    @classmethod
    def of(cls, inputs: Tensors, bias_D: Tensor, fresh_BL1: Tensor | None, at: slice) -> "_Part":
        """Return a run."""
        x, step, write, read, gate = (_by_position(t) for t in inputs)
        step = step + bias_D
        dt = F.softplus(step)
        fresh = None if fresh_BL1 is None else _by_position(fresh_BL1[:, at])
        return cls(x, step, write, read, gate, dt, dt * x, len(inputs[0]), fresh)

    def split(self, n: int) -> list["_Part"]:
        """Cut it into blocks of n positions."""
        rows, fresh = n * self.size, self.fresh
        dts = self.dt.split(rows)
        marks = [None] * len(dts) if fresh is None else fresh.split(rows)
        tensors = (x.split(rows) for x in (self.x, self.step, self.write, self.read, self.gate))
        return [
            _Part(x, step, write, read, gate, dt, u, self.size, mark)
            for x, step, write, read, gate, dt, u, mark in zip(*tensors, dts, self.u.split(rows), marks, strict=True)
        ]

    def decays(self, rate_RD: Tensor, out: Tensor) -> None:
        """Write the decays, [L B, R, D], zero where a document begins."""
        # at most 1, since rates are negative and steps are not
        torch.mul(self.dt, rate_RD, out=out).exp_()
        if self.fresh is not None:
            out.masked_fill_(self.fresh, 0.0)


class _Block(NamedTuple):
    """Memory of some positions, and the view of each: made once, since views cost as much as products of this size."""

    all: Tensor
    each: Tensors

    @classmethod
    def of(cls, x: Tensor, size: int) -> "_Block":
        return cls(x, x.split(size))

    @classmethod
    def like(cls, state: Tensor, length: int) -> "_Block":
        return cls.of(state.new_empty(length * len(state), *state.shape[1:]), len(state))

    def first(self, rows: int) -> "_Block":
        """Return its first rows."""
        return self if rows == len(self.all) else _Block.of(self.all[:rows], len(self.each[0]))

    def blocks(self, n: int) -> list[tuple[Tensor, "_Block"]]:
        """Return blocks of n positions behind the first, each beside that which begins a position earlier."""
        size, rows = len(self.each[0]), n * len(self.each[0])
        return [
            (before, _Block(block, self.each[i * n + 1 : (i + 1) * n + 1]))
            for i, (before, block) in enumerate(
                zip(self.all[:-size].split(rows), self.all[size:].split(rows), strict=True)
            )
        ]


def _positions(x_LBD: Tensor) -> _Block:
    return _Block(x_LBD, x_LBD.unbind())


class _Selective:
    """Passes of a selective scan over one run, forward and back."""

    def __init__(self, rate_RD: Tensor, bias_D: Tensor, skip_D: Tensor, fresh_BL1: Tensor | None, length: int) -> None:
        self.rate_RD, self.bias_D, self.skip_D, self.fresh_BL1 = rate_RD, bias_D, skip_D, fresh_BL1
        self.longest, self.rooms = min(CHUNK, length), list[_Block]()

    def scanned(self, part: _Part, a: _Block, h: _Block, before: Tensor) -> None:
        """Write the decays and the states of a block."""
        part.decays(self.rate_RD, a.all)
        # the input is discretised by Euler's rule, as in the released code: equation 4 of the paper has
        # (e^(dt A) - 1) / A for dt
        torch.mul(part.write.mT, part.u, out=h.all)
        _scan(a, h, before)

    def step(self, state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        # a copy, since it is written over
        run, h_BRD = (
            _Part.of(inputs, self.bias_D, self.fresh_BL1, at),
            state[0].mT.clone(memory_format=torch.contiguous_format),
        )
        n, y = _fitting(at, h_BRD), torch.empty_like(run.u)
        # one block's memory serves all of them: the system clears what is allocated anew
        a, h = (_Block.like(h_BRD, n) for _ in range(2))
        for part, y_part in zip(run.split(n), _split(y, n, h_BRD), strict=True):
            a, h = (x.first(len(part.u)) for x in (a, h))
            self.scanned(part, a, h, h_BRD)
            torch.bmm(part.read, h.all, out=y_part)
            h_BRD.copy_(h.each[-1])
        y.addcmul_(run.x, self.skip_D).mul_(F.silu(run.gate))
        return _by_example(y, h_BRD), (h_BRD.mT,)

    def pull(self, state: Tensors, inputs: Tensors, at: slice, d_out: Tensor, d_after: Tensors) -> Tensors:
        run, before, d_h = _Part.of(inputs, self.bias_D, self.fresh_BL1, at), state[0].mT, d_after[0].mT
        n, size = _fitting(at, before), len(before)
        if not self.rooms:
            # the last run comes first, and may be shorter than the others
            most = _fitting(slice(0, self.longest), before)
            self.rooms.extend(_Block.like(before, m) for m in (self.longest + 1, most, most, most))
        all_h, all_a, all_d, all_rates = self.rooms
        all_h, d_rate = all_h.first(len(run.u) + size), all_rates.all.zero_()
        all_h.each[0].copy_(before)
        parts, blocks, y = run.split(n), all_h.blocks(n), torch.empty_like(run.u)
        for part, (before, h), y_part in zip(parts, blocks, _split(y, n, d_h), strict=True):
            self.scanned(part, all_a.first(len(part.u)), h, before[:size])
            torch.bmm(part.read, h.all, out=y_part)
        d_x, d_gate, d_y, d_skip = _pull_gate(run, y, self.skip_D, _by_position(d_out))
        d_u, d_dt, d_write, d_read = (torch.empty_like(x) for x in (run.u, run.u, run.write, run.read))
        d_parts = zip(*(_split(x, n, d_h) for x in (d_y, d_u, d_dt, d_write, d_read)), strict=True)
        for part, (before, h), (d_y_part, *d_part) in reversed([*zip(parts, blocks, d_parts, strict=True)]):
            a, d = (x.first(len(part.u)) for x in (all_a, all_d))
            torch.bmm(d_y_part, h.all.mT, out=d_part[3])
            part.decays(self.rate_RD, a.all)
            torch.mul(part.read.mT, d_y_part, out=d.all)
            d.each[-1].add_(d_h)
            # the adjoint is the same recurrence from the other end: dh_t = C_t dy_t + a_(t+1) dh_(t+1)
            _scan_back(a, d)
            torch.bmm(part.write, d.all, out=d_part[0])
            torch.bmm(part.u, d.all.mT, out=d_part[2])
            d_h = a.all.mul_(d.all)[:size].clone()
            # the gradient of the logarithm dt A of a decay: dh_t a_t h_(t-1)
            d_log = a.all.mul_(before)
            d_rate[: len(d_log)].addcmul_(d_log, part.dt)
            torch.sum(d_log.mul_(self.rate_RD), 1, keepdim=True, out=d_part[1])
        if not at.start:
            self.rooms.clear()
        d_x.addcmul_(d_u, run.dt)
        d_step = torch.ops.aten.softplus_backward(d_dt.addcmul_(d_u, run.x), run.step, 1.0, 20.0)
        d_inputs = (_by_example(d, d_h) for d in (d_x, d_step, d_write, d_read, d_gate))
        return *d_inputs, d_h.mT, d_rate.sum(0).mT, d_step.sum((0, 1)), d_skip


def _pull_gate(run: _Part, y: Tensor, skip_D: Tensor, d_out: Tensor) -> Tensors:
    """Return the gradients of x by the skip, of the gate, of what is read (`y`, written over), and of the skip."""
    d_y = F.silu(run.gate).mul_(d_out)
    d_gate = torch.ops.aten.silu_backward(y.addcmul_(run.x, skip_D).mul_(d_out), run.gate)
    return d_y * skip_D, d_gate, d_y, torch.mul(d_y, run.x, out=y).sum((0, 1))


def _fitting(at: slice, state: Tensor) -> int:
    """Return of how many positions a core's cache holds the states; an accelerator takes a run whole."""
    length = at.stop - at.start
    return length if _waits(state) else min(length, max(1, BLOCK_BYTES // (state.numel() * state.element_size())))


def _by_position(x_BLD: Tensor) -> Tensor:
    """Return positions one after the other, those of all examples side by side, [L B, 1, D]."""
    return x_BLD.transpose(0, 1).flatten(0, 1).unsqueeze(1)


def _by_example(x: Tensor, state: Tensor) -> Tensor:
    """Undo that: [B, L, D]."""
    return x.view(-1, len(state), x.shape[-1]).transpose(0, 1)


def _split(x: Tensor, n: int, state: Tensor) -> Tensors:
    """Return blocks of n positions."""
    return x.split(n * len(state))


def _waits(x: Tensor) -> bool:
    """Tell whether many small steps cost more than fewer large ones: on accelerators."""
    return x.device.type != "cpu"


def _before(h_LBD: Tensor, state_BD: Tensor) -> Tensor:
    """Return the state before each position."""
    return torch.cat([state_BD[None], h_LBD[:-1]])


def _scan(a: _Block, b: _Block, state: Tensor) -> None:
    r"""Write $h_t = a_t h_{t-1} + b_t$ over `b`, positions in the first axis.

    A CPU takes one position after the other: a state lies in the cache, and nothing is multiplied twice. An accelerator
    would wait for every one of these small steps, so it reads short runs side by side.
    """
    if _waits(b.all):
        a_all, b_all = (x.all.reshape(-1, *state.shape) for x in (a, b))
        b_all.copy_(_side_by_side(a_all, b_all, state))
        return
    for a_t, b_t in zip(a.each, b.each, strict=True):
        state = b_t.addcmul_(a_t, state)


def _scan_back(a: _Block, d: _Block) -> None:
    r"""Write $g_t = d_t + a_{t+1} g_{t+1}$, the adjoint of `_scan`, over `d`."""
    if _waits(d.all):
        last = d.each[-1]
        a_all, d_all = (x.all.reshape(-1, *last.shape) for x in (a, d))
        d_all[:-1] = _side_by_side(a_all[1:].flip(0), d_all[:-1].flip(0), last).flip(0)
        return
    below = d.each[-1]
    for a_t, d_t in zip(reversed(a.each[1:]), reversed(d.each[:-1]), strict=True):
        below = d_t.addcmul_(a_t, below)


def _side_by_side(a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """Return what `_scan` does: all runs are read position by position, and each then gets what comes before it."""
    length = len(a)
    if not length:
        return b
    # the root, rounded up: about as many dependent steps inside a run as from run to run
    size = math.isqrt(length - 1) + 1
    n = -(-length // size)
    if n * size != length:
        a, b = (torch.cat([x, x.new_zeros(n * size - length, *x.shape[1:])]) for x in (a, b))
    a_runs, b_runs = (x.unflatten(0, (n, size)).unbind(1) for x in (a, b))
    own, since = [b_runs[0]], [a_runs[0]]
    for i in range(1, size):
        own.append(torch.addcmul(b_runs[i], a_runs[i], own[-1]))
        since.append(a_runs[i] * since[-1])
    before = [state]
    for i in range(n - 1):
        before.append(torch.addcmul(own[-1][i], since[-1][i], before[-1]))
    start = torch.stack(before)
    runs = [torch.addcmul(o, s, start) for o, s in zip(own, since, strict=True)]
    return torch.stack(runs, 1).flatten(0, 1)[:length]


def _fresh(group_BL: Tensor | None, x_BLD: Tensor) -> Tensor | None:
    """Mark positions where a document begins behind another: [B, L, 1]."""
    if group_BL is None:
        return None
    begins = group_BL[:, 1:] != group_BL[:, :-1]
    # the first position goes on from the state that was carried in
    return F.pad(begins, (1, 0)).unsqueeze(-1)


def _reset(a_BLD: Tensor, fresh_BL1: Tensor | None, at: slice) -> Tensor:
    return a_BLD if fresh_BL1 is None else a_BLD.masked_fill(fresh_BL1[:, at], 0.0)
