"""Diagonal linear recurrences: RG-LRU and the selective scan of Mamba, with a decay for every number of a state.

    h_t = a_t h_{t-1} + b_t

A chunk is cut into short runs: all runs are read side by side, position by position, and then each gets what the state
before it adds.
"""

import math

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, precision, runs_of

CHUNK = 64
"""Positions whose states exist at once."""


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
        h_BLD = _scan(_reset(g.exp(), fresh_BL1, at), x, h_B1D.squeeze(1))
        # a copy, since a view would keep the states of the whole chunk
        return h_BLD, (h_BLD[:, -1:].clone(),)

    if state_B1D is None:
        state_B1D = x_BLD.new_zeros(len(x_BLD), 1, x_BLD.shape[2], dtype=precision(x_BLD))
    out, (after,) = chunk_scan(step, (log_decay_BLD, x_BLD), (state_B1D,), (), runs_of(x_BLD.shape[1], CHUNK))
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
    fresh_BL1 = _fresh(group_BL, x_BLD)

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        (h_BDR,), (x, dt, b, c), (rate,) = state, inputs, weights
        decay = (dt.unsqueeze(-1) * rate).exp()
        decay = _reset(decay.flatten(2), fresh_BL1, at)
        # the input is discretised by Euler's rule, as in the released code: equation 4 of the paper has (e^(dt A) - 1)
        # / A for dt
        entering = ((dt * x).unsqueeze(-1) * b.unsqueeze(-2)).flatten(2)
        h_BLDR = _scan(decay, entering, h_BDR.flatten(1)).unflatten(2, rate.shape)
        return (h_BLDR @ c.unsqueeze(-1)).squeeze(-1), (h_BLDR[:, -1].clone(),)

    if state_BDR is None:
        state_BDR = x_BLD.new_zeros(len(x_BLD), *rate_DR.shape, dtype=precision(x_BLD))
    out, (after,) = chunk_scan(
        step, (x_BLD, step_BLD, write_BLR, read_BLR), (state_BDR,), (rate_DR,), runs_of(x_BLD.shape[1], CHUNK)
    )
    return out, after


def _scan(a_BLD: Tensor, b_BLD: Tensor, h_BD: Tensor) -> Tensor:
    """Return h at all positions, from a state on."""
    length = a_BLD.shape[1]
    # the root, rounded up: about as many dependent steps inside a run as from run to run
    size = math.isqrt(length - 1) + 1
    n = -(-length // size)
    if n * size != length:
        a_BLD, b_BLD = (torch.nn.functional.pad(x, (0, 0, 0, n * size - length)) for x in (a_BLD, b_BLD))
    a, b = (x.unflatten(1, (n, size)).unbind(2) for x in (a_BLD, b_BLD))
    own, since = [b[0]], [a[0]]
    for i in range(1, size):
        own.append(torch.addcmul(b[i], a[i], own[-1]))
        since.append(a[i] * since[-1])
    before = [h_BD]
    for i in range(n - 1):
        before.append(torch.addcmul(own[-1][:, i], since[-1][:, i], before[-1]))
    start_BnD = torch.stack(before, 1)
    runs = [torch.addcmul(o, s, start_BnD) for o, s in zip(own, since, strict=True)]
    return torch.stack(runs, 2).flatten(1, 2)[:, :length]


def _fresh(group_BL: Tensor | None, x_BLD: Tensor) -> Tensor | None:
    """Mark positions where a document begins behind another: [B, L, 1]."""
    if group_BL is None:
        return None
    begins = group_BL[:, 1:] != group_BL[:, :-1]
    # the first position goes on from the state that was carried in
    return torch.nn.functional.pad(begins, (1, 0)).unsqueeze(-1)


def _reset(a_BLD: Tensor, fresh_BL1: Tensor | None, at: slice) -> Tensor:
    return a_BLD if fresh_BL1 is None else a_BLD.masked_fill(fresh_BL1[:, at], 0.0)
