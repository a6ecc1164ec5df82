"""Diagonal linear recurrences: RG-LRU and the selective scan of Mamba, with a decay for every number of a state.

    h_t = a_t h_{t-1} + b_t

On a CPU positions of a chunk are read one after the other while their states are in the cache. On an accelerator a
chunk is cut into short runs, which are read side by side; then each gets what the state before it adds.
"""

import math

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, precision, runs_of

CHUNK = 64
"""Positions from one kept state to the next; their states exist at once in the backward pass."""
BLOCK = 16
"""Positions of a selective scan whose decays exist at once on a CPU: 1 MB for 1,024 channels of 16 numbers."""


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
        decay_LBD = _reset(g.exp(), fresh_BL1, at).transpose(0, 1)
        h_LBD = _scan(decay_LBD, x.transpose(0, 1).clone(), h_B1D[:, 0])
        # a copy, since a view would keep the states of the whole chunk
        return h_LBD.transpose(0, 1), (h_LBD[-1, :, None].clone(),)

    def pull(state: Tensors, inputs: Tensors, at: slice, d_out: Tensor, d_after: Tensors) -> Tensors:
        (h_B1D,), (g, x) = state, inputs
        decay_LBD = _reset(g.exp(), fresh_BL1, at).transpose(0, 1)
        h_LBD = _scan(decay_LBD, x.transpose(0, 1).clone(), h_B1D[:, 0])
        d_h_LBD = d_out.transpose(0, 1).clone()
        d_h_LBD[-1] += d_after[0][:, 0]
        d_h_LBD = _scan_back(decay_LBD, d_h_LBD)
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
    rate_DR: Tensor,
    state_BDR: Tensor | None = None,
    group_BL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return $y_{td} = \sum_r C_{tr} h_{tdr}$, and the last state.

    $h_{tdr} = e^{\Delta_{td} A_{dr}} h_{t-1,dr} + \Delta_{td} B_{tr} x_{td}$ (Gu and Dao 2023, algorithm 2).
    `step` is $\Delta > 0$, `write` $B$, `read` $C$, `rate` $A < 0$. A position with $\Delta = 0$ changes
    nothing, and a document begins with an empty state. States exist for one chunk at a time. Cost: about 9 L D R;
    memory: the inputs and D R for every CHUNK.
    Reference: `kinfolk.ops.naive.diagonal_scan`.
    """
    fresh_BL1, rate_dr = _fresh(group_BL, x_BLD), rate_DR.to(precision(rate_DR))

    def scanned(inputs: Tensors, where: tuple[slice, slice], before: Tensor, decay: Tensor, states: Tensor) -> Tensor:
        """Write the decays and states of a block, and return its states."""
        x, dt, b, _ = inputs
        _decays(dt, rate_dr, fresh_BL1, where, decay)
        # the input is discretised by Euler's rule, as in the released code: equation 4 of the paper has
        # (e^(dt A) - 1) / A for dt
        return _scan(decay, _outer(dt * x, b, states), before)

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        (h_BDR,), y_LBD = state, torch.empty_like(inputs[0].transpose(0, 1))
        blocks = _blocks(at, x_BLD)
        # one block's memory serves all of them: the system clears what is allocated anew
        rooms = h_BDR.new_empty(2, blocks[0].stop, *h_BDR.shape)
        for some in blocks:
            here = _first(inputs, some)
            states = scanned(here, (at, some), h_BDR, *rooms[:, : len(here[0])])
            y_LBD[some] = (states @ here[3].unsqueeze(-1)).squeeze(-1)
            h_BDR = states[-1].clone()
        return y_LBD.transpose(0, 1), (h_BDR,)

    def pull(state: Tensors, inputs: Tensors, at: slice, d_out: Tensor, d_after: Tensors) -> Tensors:
        (before,), (d_h_BDR,) = state, d_after
        blocks, kept = _blocks(at, x_BLD), []
        all_states = before.new_empty(at.stop - at.start, *before.shape)
        rooms = before.new_empty(2, blocks[0].stop, *before.shape)
        for some in blocks:
            here = _first(inputs, some)
            states = scanned(here, (at, some), before, rooms[0, : len(here[0])], all_states[some])
            kept.append((some, here, states, before))
            before = states[-1]
        d_inputs, d_rate = [torch.empty_like(t.transpose(0, 1)) for t in inputs], torch.zeros_like(rate_dr)
        for some, here, states, before in reversed(kept):
            decay, d_states = rooms[:, : len(states)]
            _decays(here[1], rate_dr, fresh_BL1, (at, some), decay)
            (d_y_LBD,) = _first((d_out,), some)
            _outer(d_y_LBD, here[3], d_states)
            d_states[-1] += d_h_BDR
            d_h_BDR, d_rate_here, *d_here = _pull_block(here, rate_dr, (decay, states, before), d_states)
            d_here.append((d_y_LBD.unsqueeze(-2) @ states).squeeze(-2))
            d_rate += d_rate_here
            for whole, d in zip(d_inputs, d_here, strict=True):
                whole[some] = d
        return *(d.transpose(0, 1) for d in d_inputs), d_h_BDR, d_rate

    if state_BDR is None:
        state_BDR = x_BLD.new_zeros(len(x_BLD), *rate_DR.shape, dtype=precision(x_BLD))
    inputs = (x_BLD, step_BLD, write_BLR, read_BLR)
    out, (after,) = chunk_scan(step, inputs, (state_BDR,), (rate_DR,), runs_of(x_BLD.shape[1], CHUNK), pull)
    return out, after


def _pull_block(inputs: Tensors, rate_DR: Tensor, scanned: Tensors, d_LBDR: Tensor) -> tuple[Tensor, ...]:
    r"""Return the gradients of the state before a block, of the rates, of x, of the steps and of what writes.

    scanned: decays (written over), states, and the state before the block. `d` has the gradients of states from outside
    (written over). With $a_t = e^{\Delta_t A}$ the adjoint is the same recurrence from the other end:
    $dh_t = C_t\,dy_t + a_{t+1} dh_{t+1}$. The logarithm $\Delta_t A$ of a decay has the gradient
    $dh_t\,h_{t-1} a_t$, and what enters, $u_t B_t$ with $u = \Delta x$, has $dh_t$.
    """
    (x, dt, b, _), (decay, states, before) = inputs, scanned
    d_h = _scan_back(decay, d_LBDR)
    d_before = decay[0] * d_h[0]
    d_u = (d_h @ b.unsqueeze(-1)).squeeze(-1)
    d_b = ((dt * x).unsqueeze(-2) @ d_h).squeeze(-2)
    d_log = decay.mul_(d_h)
    d_log[0] *= before
    d_log[1:] *= states[:-1]
    # a product of a matrix and a vector for each channel: a sum over 16 neighbours takes longer
    d_dt = torch.bmm(d_log.flatten(0, 1).transpose(0, 1), rate_DR.unsqueeze(-1)).squeeze(-1).mT.view_as(dt)
    d_rate = d_log.mul_(dt.unsqueeze(-1)).sum((0, 1))
    return d_before, d_rate, d_u * dt, d_dt + d_u * x, d_b


def _blocks(at: slice, x: Tensor) -> list[slice]:
    """Cut a run into blocks whose states a core's cache holds; an accelerator takes it whole."""
    length = at.stop - at.start
    return runs_of(length, length if _waits(x) else BLOCK)


def _waits(x: Tensor) -> bool:
    """Tell whether many small steps cost more than fewer large ones: on accelerators."""
    return x.device.type != "cpu"


def _first(tensors: Tensors, some: slice) -> Tensors:
    """Return a block of each with its positions in the first axis, so that the state of one is contiguous."""
    return tuple(x.transpose(0, 1)[some] for x in tensors)


def _outer(u_LBD: Tensor, b_LBR: Tensor, out: Tensor) -> Tensor:
    return torch.mul(u_LBD.unsqueeze(-1), b_LBR.unsqueeze(-2), out=out)


def _decays(
    step_LBD: Tensor, rate_DR: Tensor, fresh_BL1: Tensor | None, where: tuple[slice, slice], out: Tensor
) -> None:
    """Write the decays of a block of a run, [L, B, D, R], zero where a document begins."""
    # at most 1, since rates are negative and steps are not
    torch.mul(step_LBD.unsqueeze(-1), rate_DR, out=out).exp_()
    if fresh_BL1 is not None:
        at, some = where
        out.masked_fill_(_first((fresh_BL1[:, at],), some)[0].unsqueeze(-1), 0.0)


def _before(h_LBD: Tensor, state_BD: Tensor) -> Tensor:
    """Return the state before each position."""
    return torch.cat([state_BD[None], h_LBD[:-1]])


def _scan(a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    r"""Return $h_t = a_t h_{t-1} + b_t$, positions in the first axis; `b` may be written over.

    A CPU takes one position after the other: a state lies in the cache, and nothing is multiplied twice. An accelerator
    would wait for every one of these small steps, so it reads short runs side by side.
    """
    if _waits(a):
        return _side_by_side(a, b, state)
    for a_t, b_t in zip(a.unbind(), b.unbind(), strict=True):
        state = b_t.addcmul_(a_t, state)
    return b


def _scan_back(a: Tensor, d: Tensor) -> Tensor:
    r"""Return $g_t = d_t + a_{t+1} g_{t+1}$, the adjoint of `_scan`; `d` may be written over."""
    if _waits(a):
        return torch.cat([_side_by_side(a[1:].flip(0), d[:-1].flip(0), d[-1]).flip(0), d[-1:]])
    below = d[-1]
    for a_t, d_t in zip(reversed(a[1:].unbind()), reversed(d[:-1].unbind()), strict=True):
        below = d_t.addcmul_(a_t, below)
    return d


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
    return torch.nn.functional.pad(begins, (1, 0)).unsqueeze(-1)


def _reset(a_BLD: Tensor, fresh_BL1: Tensor | None, at: slice) -> Tensor:
    return a_BLD if fresh_BL1 is None else a_BLD.masked_fill(fresh_BL1[:, at], 0.0)
