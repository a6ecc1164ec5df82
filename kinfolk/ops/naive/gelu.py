"""GELU in its tanh form and its derivative, one number at a time."""

import math

import torch
from torch import Tensor


def gelu_tanh(u: Tensor) -> Tensor:
    """Half of u times one plus the tanh of a cubic."""
    return torch.tensor([_value(x) for x in u.flatten().tolist()], dtype=u.dtype).view(u.shape)


def gelu_tanh_backward(u: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor]:
    """The value, and the derivative by the product rule times what came back."""
    slopes = torch.tensor([_slope(x) for x in u.flatten().tolist()], dtype=u.dtype).view(u.shape)
    return gelu_tanh(u), d_out * slopes


def _value(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _slope(x: float) -> float:
    t = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
