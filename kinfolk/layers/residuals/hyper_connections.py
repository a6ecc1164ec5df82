"""Hyper-connections: several residual streams, mixed and read by learned weights (Zhu et al. 2024)."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, linear
from kinfolk.layers.module import Dims, Dropout, Linear, Module
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.layers.residuals.residual import Residual, ResidualModule, dropout_cost


class HyperConnections(Residual, kind="hyper-connections"):
    r"""Hyper-connections of n streams H, [n, D], with learned weights for reading, mixing and writing.

    $H \leftarrow A_r^\top H + \beta\,\mathrm{part}(\mathrm{norm}(\alpha^\top H))^\top$.

    Zhu et al. 2024 (arXiv:2409.19606), section 2. `n` streams lie side by side in a state of width n D
    (`hyper-streams` makes them and sums them up). At first a part reads stream `first` mod n, every stream keeps itself
    ($A_r = I$) and gets the part's output ($\beta = 1$): a pre-norm stack. "dynamic" adds to all three
    $s \tanh(W\,\mathrm{norm}(H))$ (equations 10 to 13), with W 0 at first, and s, one number for $\alpha$ and $A_r$ and
    one for $\beta$, 0.01.
    """

    additive: ClassVar[bool] = False
    n: PositiveInt = 4
    first: NonNegativeInt = 0
    form: Literal["static", "dynamic"] = "dynamic"
    norm: Norm = LayerNorm()

    def build(self, dims: Dims) -> ResidualModule:
        return _HyperConnections(self, dims)

    def cost(self, dims: Dims) -> Cost:
        n, d = self.n, dims.d_model
        # the streams and the output of the part are kept
        mixing = Cost(n * (n + 2), 2.0 * d * n * (n + 2), (n + 1) * d)
        total = self.norm.cost(d) + mixing + dropout_cost(dims)
        if self.form == "static":
            return total
        norm = self.norm.cost(d)
        maps = linear(d, n + 2, False)
        # the input of the norm is the streams
        each = Cost(norm.params + maps.params, n * (norm.flops + maps.flops), n * (norm.kept - d + maps.kept))
        return total + each + Cost(2, 4.0 * n * (n + 2), 2 * n * (n + 2))


class _HyperConnections(ResidualModule):
    def __init__(self, spec: HyperConnections, dims: Dims) -> None:
        super().__init__()
        self.n, self.first = spec.n, spec.first % spec.n
        self.norm, self.dropout = spec.norm.build(dims.d_model), Dropout(dims.dropout)
        # columns: what the part reads, what each stream keeps of the others, what it gets of the output
        self.weights_nm = nn.Parameter(torch.zeros(spec.n, spec.n + 2))
        dynamic = spec.form == "dynamic"
        self.own_norm = spec.norm.build(dims.d_model) if dynamic else None
        self.maps = Linear(dims.d_model, spec.n + 2, bias=False) if dynamic else None
        self.scales_2 = nn.Parameter(torch.zeros(2)) if dynamic else None
        self.draw()

    def draw(self) -> None:
        """Begin as a pre-norm residual in every stream."""
        with torch.no_grad():
            read = torch.zeros(self.n, 1)
            read[self.first] = 1.0
            self.weights_nm.copy_(torch.cat([read, torch.eye(self.n), torch.ones(self.n, 1)], 1))
            if self.maps is not None and self.scales_2 is not None:
                self.maps.weight.zero_()
                self.scales_2.fill_(0.01)

    def forward(self, x: Tensor, part: Module, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        streams = x.unflatten(-1, (self.n, -1))
        read, kept, given = self._weights(streams)
        y, state = part(self.norm((read.mT @ streams).squeeze(-2)), ctx, state)
        after = kept.mT @ streams + given * self.dropout(y).unsqueeze(-2)
        return after.flatten(-2), state

    def given(self, x: Tensor) -> Tensor:
        streams = x.unflatten(-1, (self.n, -1))
        normed: Tensor = self.norm((self._weights(streams)[0].mT @ streams).squeeze(-2))
        return normed

    def _weights(self, streams_nD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return how streams are read, [n, 1], mixed, [n, n], and written to, [n, 1]; of every position, if dynamic."""
        weights = self.weights_nm.to(streams_nD.dtype)
        if self.maps is not None and self.scales_2 is not None and self.own_norm is not None:
            mixed, written = self.scales_2.to(streams_nD.dtype).unsqueeze(-1)
            scales = torch.cat([mixed.expand(1 + self.n), written])
            normed = self.own_norm(streams_nD.flatten(0, 1)).view_as(streams_nD)
            weights = weights + scales * torch.tanh(self.maps(normed))
        read, kept, given = weights.split_with_sizes([1, self.n, 1], -1)
        return read, kept, given
