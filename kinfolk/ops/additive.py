"""Additive attention scores without storing hidden units of every pair (Bahdanau et al. 2015)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PAIRS = 1 << 15
"""Pairs that are computed at once: what they need stays in the cache."""


def additive(q_bLD: Tensor, k_bMD: Tensor, v_D: Tensor) -> Tensor:
    r"""Return $e_{ij} = v \cdot \tanh(q_i + k_j)$, [..., L, M] (Bahdanau et al. 2015, appendix A.1.2).

    Cost: L M D, twice more in the backward pass, which makes the pairs again. Reference: `kinfolk.ops.naive.additive`.
    """
    lead = q_bLD.shape[:-2]
    e: Tensor = _Additive.apply(q_bLD.flatten(0, -3), k_bMD.flatten(0, -3), v_D)
    return e.unflatten(0, lead)


def _pieces(q: Tensor, k: Tensor) -> list[slice]:
    if torch.compiler.is_exporting():
        return [slice(None)]  # a graph is made once for all lengths
    rows = max(1, PAIRS // (len(k) * k.shape[1]))
    return [slice(i, i + rows) for i in range(0, q.shape[1], rows)]


def _pairs(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(2) + k.unsqueeze(1)).tanh_()


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        # as a product of matrices, not of a matrix and a vector, so that it is counted among the operations
        shape = (q.shape[0], -1, k.shape[1])
        found = [(_pairs(q[:, some], k).flatten(0, 2) @ v[:, None]).view(shape) for some in _pieces(q, k)]
        return torch.cat(found, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, de: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
        for some in _pieces(q, k):
            t, here = _pairs(q[:, some], k), de[:, some]
            # before the next line, which writes over t
            dv += here.flatten() @ t.flatten(0, 2)
            dt = t.square_().neg_().add_(1).mul_(v).mul_(here.unsqueeze(-1))
            dq.append(dt.sum(2))
            dk += dt.sum(1)
        return torch.cat(dq, 1), dk, dv
