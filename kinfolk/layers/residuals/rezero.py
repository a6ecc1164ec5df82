"""Weighted residual connections: ReZero, Fixup, and gated ones."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.layers.module import Dims, Dropout, Module
from kinfolk.layers.norms.norm import LayerNorm, NoNorm, Norm
from kinfolk.layers.residuals.gate import Gate, GRUGate
from kinfolk.layers.residuals.residual import Residual, ResidualModule, dropout_cost


class ReZero(Residual, kind="re-zero"):
    r"""ReZero: $x + \alpha\,\mathrm{dropout}(\mathrm{part}(\mathrm{norm}(x)))$ with one $\alpha$ per part, 0 at first.

    Bachlechner et al. 2020: without a norm, here or at the end of the stack. With one it is "ReZero +
    LayerNorm" or "+ RMSNorm" of Narang et al. 2021.
    """

    additive: ClassVar[bool] = True
    norm: Norm = NoNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return _ReZero(self, dims)

    def cost(self, dims: Dims) -> Cost:
        added = Cost(params=1, flops=dims.d_model, kept=dims.d_model)
        return self.norm.cost(dims.d_model) + added + dropout_cost(dims)


class _ReZero(ResidualModule):
    def __init__(self, spec: ReZero, dims: Dims) -> None:
        super().__init__()
        self.norm, self.dropout = spec.norm.build(dims.d_model), Dropout(dims.dropout)
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return torch.addcmul(x, self.alpha, self.dropout(y)), state

    def branch(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return self.alpha * self.dropout(y), state

    def given(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed


class Fixup(Residual, kind="fixup"):
    r"""Fixup: $x + s\,\mathrm{dropout}(\mathrm{part}(x + b))$, per part s = 1 and b = 0 at first (Zhang et al. 2019).

    Half of the method: the other half is the init of the same name, which makes every part end in zeros.
    """

    additive: ClassVar[bool] = True

    def build(self, dims: Dims) -> ResidualModule:
        return _Fixup(dims)

    def cost(self, dims: Dims) -> Cost:
        return Cost(params=2, flops=2.0 * dims.d_model, kept=dims.d_model) + dropout_cost(dims)


class _Fixup(ResidualModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
        self.dropout = Dropout(dims.dropout)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return torch.addcmul(x, self.scale, self.dropout(y)), state

    def branch(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return self.scale * self.dropout(y), state

    def given(self, x: Tensor) -> Tensor:
        return x + self.shift


class GatedResidual(Residual, kind="gated"):
    """Gated residual of GTrXL: gate(x, relu(dropout(part(norm(x))))) (Parisotto et al. 2019, section 3)."""

    gate: Gate = GRUGate()
    norm: Norm = LayerNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return _Gated(self, dims)

    def cost(self, dims: Dims) -> Cost:
        joined = self.gate.cost(dims.d_model) + Cost(flops=dims.d_model)
        return self.norm.cost(dims.d_model) + joined + dropout_cost(dims)


class _Gated(ResidualModule):
    def __init__(self, spec: GatedResidual, dims: Dims) -> None:
        super().__init__()
        self.norm, self.dropout = spec.norm.build(dims.d_model), Dropout(dims.dropout)
        self.gate = spec.gate.build(dims.d_model)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        y, state = part(self.given(x), ctx, state)
        return self.gate(x, torch.relu(self.dropout(y))), state

    def given(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed
