"""Axis Gate: gated residual connections, GRU and highway among them (Parisotto et al. 2019, section 3).

In all but the input gate a large `bias` closes the door: the stream passes as it came, and a deep stack starts close
to the identity.
"""

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import FiniteFloat
from kinfolk.core.cost import Cost, linear
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Linear, Module


class Gate(Spec):
    """Axis: how a gated residual joins a stream and a branch: `(x_BLD, y_BLD) -> x_BLD`."""

    def build(self, width: int) -> Module:
        """Return the module for streams of this width."""
        raise NotImplementedError

    def cost(self, width: int) -> Cost:
        """Return its cost per token; x is not among what it keeps, because the norm before the part keeps it."""
        raise NotImplementedError


class AddGate(Gate, kind="add"):
    """No gate, x + y; with the reordered norms of `GatedResidual` it is TrXL-I (Parisotto et al. 2019)."""

    def build(self, width: int) -> Module:
        return _Add()

    def cost(self, width: int) -> Cost:
        return Cost(flops=width, kept=width)


class _Add(Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class InputGate(Gate, kind="input"):
    r"""Input gate: $\sigma(W x) \odot x + y$, the stream is gated."""

    def build(self, width: int) -> Module:
        return _Input(width)

    def cost(self, width: int) -> Cost:
        return linear(width, width, False, kept=False) + Cost(flops=3.0 * width, kept=2 * width)


class _Input(Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = Linear(width, width, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.addcmul(y, torch.sigmoid(self.map(x)), x)


class OutputGate(Gate, kind="output"):
    r"""Output gate: $x + \sigma(W x - b) \odot y$, what is added is gated."""

    bias: FiniteFloat = 2.0

    def build(self, width: int) -> Module:
        return _Output(self.bias, width)

    def cost(self, width: int) -> Cost:
        return linear(width, width, True, kept=False) + Cost(flops=4.0 * width, kept=2 * width)


class _Output(Module):
    def __init__(self, bias: float, width: int) -> None:
        super().__init__()
        self.map = Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.addcmul(x, torch.sigmoid(self.map(x) - self.bias), y)


class HighwayGate(Gate, kind="highway"):
    r"""Highway gate: $z \odot x + (1 - z) \odot y$ with $z = \sigma(W x + b)$ (Srivastava et al. 2015)."""

    bias: FiniteFloat = 2.0

    def build(self, width: int) -> Module:
        return _Highway(self.bias, width)

    def cost(self, width: int) -> Cost:
        return linear(width, width, True, kept=False) + Cost(flops=5.0 * width, kept=2 * width)


class _Highway(_Output):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        # y + z (x - y) = z x + (1 - z) y
        return _lerp(y, x, torch.sigmoid(self.map(x) + self.bias))


class SigmoidTanhGate(Gate, kind="sigmoid-tanh"):
    r"""Sigmoid-tanh gate: $x + \sigma(W y - b) \odot \tanh(U y)$."""

    bias: FiniteFloat = 2.0

    def build(self, width: int) -> Module:
        return _SigmoidTanh(self.bias, width)

    def cost(self, width: int) -> Cost:
        return linear(width, 2 * width, False) + Cost(params=width, flops=5.0 * width, kept=2 * width)


class _SigmoidTanh(Module):
    def __init__(self, bias: float, width: int) -> None:
        super().__init__()
        self.maps = Linear(width, 2 * width, bias=False, packs=2)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        opening, new = self.maps(y).chunk(2, -1)
        return torch.addcmul(x, torch.sigmoid(opening - self.bias), torch.tanh(new))


class GRUGate(Gate, kind="gru"):
    r"""GRU gate: $(1 - z) \odot x + z \odot \tanh(W_g y + U_g (r \odot x))$, the step of a gated recurrent unit.

    $r = \sigma(W_r y + U_r x)$, $z = \sigma(W_z y + U_z x - b)$. Unlike in `torch.nn.GRUCell` the reset falls on the
    stream before its map, nothing but z has a bias, and z opens for the new instead of the old.
    """

    bias: FiniteFloat = 2.0

    def build(self, width: int) -> Module:
        return _GRU(self.bias, width)

    def cost(self, width: int) -> Cost:
        maps = linear(width, 6 * width, False) + Cost(params=width, flops=13.0 * width)
        # both doors, what the reset let through, and the new
        return maps + Cost(kept=4 * width)


class _GRU(Module):
    def __init__(self, bias: float, width: int) -> None:
        super().__init__()
        self.from_y = Linear(width, 3 * width, bias=False, packs=3)
        self.from_x = Linear(width, 2 * width, bias=False, packs=2)
        self.from_reset = Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y_reset, y_update, y_new = self.from_y(y).chunk(3, -1)
        x_reset, x_update = self.from_x(x).chunk(2, -1)
        reset = torch.sigmoid(y_reset + x_reset)
        update = torch.sigmoid(y_update + x_update - self.bias)
        return _lerp(x, torch.tanh(y_new + self.from_reset(reset * x)), update)


def _lerp(x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """Return x + share (y - x) in the widest of their types: autocast, which makes maps narrow, has no rule for it."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), share.dtype)
    return torch.lerp(x.to(dtype), y.to(dtype), share.to(dtype))
