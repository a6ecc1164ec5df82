"""Activation and linear layer, one number at a time."""

import math

import torch
from torch import Tensor

_SELU = (1.0507009873554805, 1.6732632423543772)
FORMULAS = {
    "relu": lambda u: u.clamp(min=0),
    "squared-relu": lambda u: torch.where(u > 0, u * u, torch.zeros_like(u)),
    "gelu": lambda u: u * 0.5 * (1 + torch.erf(u / math.sqrt(2))),
    "gelu-tanh": lambda u: 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))),
    "swish": lambda u: u / (1 + torch.exp(-u)),
    "clamped-swish": lambda u: (
        torch.where(u > 7, 7 + 0 * u, u) / (1 + torch.exp(-1.702 * torch.where(u > 7, 7 + 0 * u, u)))
    ),
    "elu": lambda u: torch.where(u > 0, u, torch.exp(u) - 1),
    "selu": lambda u: _SELU[0] * torch.where(u > 0, u, _SELU[1] * (torch.exp(u) - 1)),
    "sigmoid": lambda u: 1 / (1 + torch.exp(-u)),
    "softplus": lambda u: torch.log(1 + torch.exp(u)),
    "tanh": lambda u: (torch.exp(u) - torch.exp(-u)) / (torch.exp(u) + torch.exp(-u)),
    "identity": lambda u: u,
}
"""Each activation from its formula."""


def activated_linear(u: Tensor, w: Tensor, b: Tensor | None, activation: str) -> Tensor:
    """y_d = sum over f of w_df phi(u_f), plus b_d."""
    rows = []
    for row in u.flatten(0, -2):
        phi = [FORMULAS[activation](x) for x in row]
        out = [sum((w[d, f] * phi[f] for f in range(len(phi))), torch.zeros_like(w[0, 0])) for d in range(len(w))]
        rows.append(torch.stack(out) if b is None else torch.stack(out) + b)
    return torch.stack(rows).unflatten(0, u.shape[:-1])
