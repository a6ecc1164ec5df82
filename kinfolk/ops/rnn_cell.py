"""LSTM and GRU cells that store their gates only."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import full_precision


def step(kind: str, said: Tensor, s: Tensor, rec: Tensor) -> Tensor:
    r"""Return the next state of an LSTM or GRU from input and recurrent projections, gates in PyTorch's order.

    An LSTM's state is output and cell side by side: $h' = \sigma(o) \tanh c'$, $c' = \sigma(f) c + \sigma(i) \tanh g$.
    A GRU's is its output: $h' = (1 - z) \tanh(n + r\, n_s) + z h$, the reset gate after the map as in cuDNN.
    Cost: a few operations per number. Reference: `kinfolk.ops.naive.rnn_cell`.
    """
    new: Tensor = _Step.apply(kind, said, s, rec)
    return new


class _Lstm:
    """LSTM step and its gradient; the gates are kept, after their nonlinearities."""

    @staticmethod
    def forward(said: Tensor, s: Tensor, rec: Tensor) -> tuple[Tensor, Tensor]:
        d, a = s.shape[1] // 2, said + rec
        # of all four; the candidate's quarter is then written over, which spares a concatenation
        acts = a.sigmoid()
        if torch.compiler.is_exporting():  # a graph writes to nothing
            acts = torch.cat([acts[:, : 2 * d], a[:, 2 * d : 3 * d].tanh(), acts[:, 3 * d :]], -1)
        else:
            torch.tanh(a[:, 2 * d : 3 * d], out=acts[:, 2 * d : 3 * d])
        i, f, g, o = acts.chunk(4, -1)
        c = torch.addcmul(f * s[:, d:], i, g)
        return torch.cat([o * c.tanh(), c], -1), acts

    @staticmethod
    def backward(ds: Tensor, old: Tensor, new: Tensor, acts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d = ds.shape[1] // 2
        (i, f, g, o), dh, tanh_c = acts.chunk(4, -1), ds[:, :d], new[:, d:].tanh()
        dc = ds[:, d:] + dh * o * (1 - tanh_c.square())
        da = torch.cat([dc * g, dc * old[:, d:], dc * i, dh * tanh_c], -1)
        slope = acts * (1 - acts)
        slope[:, 2 * d : 3 * d] = 1 - g.square()
        da *= slope
        # the old output acts through the recurrent map alone, which the caller has
        return da, da, torch.cat([torch.zeros_like(dc), dc * f], -1)


class _Gru:
    """GRU step and its gradient; both gates, the candidate and its recurrent projection are kept."""

    @staticmethod
    def forward(said: Tensor, s: Tensor, rec: Tensor) -> tuple[Tensor, Tensor]:
        d = s.shape[1]
        r, z = (said[:, : 2 * d] + rec[:, : 2 * d]).sigmoid().chunk(2, -1)
        n = torch.addcmul(said[:, 2 * d :], r, rec[:, 2 * d :]).tanh()
        # under autocast gates have 16 bits and the state 32
        return torch.lerp(n.to(s.dtype), s, z.to(s.dtype)), torch.cat([r, z, n, rec[:, 2 * d :]], -1)

    @staticmethod
    def backward(ds: Tensor, old: Tensor, new: Tensor, acts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r, z, n, said_to_n = acts.chunk(4, -1)
        dn = ds * (1 - z) * (1 - n.square())
        dr, dz = dn * said_to_n * r * (1 - r), ds * (old - n) * z * (1 - z)
        return torch.cat([dr, dz, dn], -1), torch.cat([dr, dz, dn * r], -1), ds * z


CELLS: dict[str, Any] = {"lstm": _Lstm, "gru": _Gru}


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: str, said: Tensor, s: Tensor, rec: Tensor) -> Tensor:
        with full_precision(said):
            new, acts = CELLS[kind].forward(said, s, rec)
        ctx.kind = kind
        ctx.save_for_backward(s, new, acts)
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor) -> tuple[Any, ...]:
        return None, *_in_order(CELLS[ctx.kind].backward(ds, *ctx.saved_tensors))


def _in_order(found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    d_said, d_rec, d_state = found
    return d_said, d_state, d_rec
