"""Differential attention: the difference of two softmaxes (Ye et al. 2024)."""

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import FiniteFloat
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, SelfAttentionModule
from kinfolk.layers.module import Dims
from kinfolk.layers.part import PartModule
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.patterns.leaves import Pattern
from kinfolk.ops.patterns.plan import pairs


class DifferentialAttention(Attention, kind="differential-attention"):
    r"""Differential attention (Ye et al. 2024): $(1 - \lambda_0)\,\mathrm{norm}\big((A_1 - \lambda A_2) V\big)$.

    With $A_i = \mathrm{softmax}(s\, Q_i K_i^\top)$: arXiv:2410.05258, equations 1 to 3, in the layout of the released
    DiffLlama: of `n_heads` softmaxes the second half is subtracted from the first, values are two heads wide, and the
    norm of each difference has no gain. $\lambda = e^{a_1 \cdot b_1} - e^{a_2 \cdot b_2} + \lambda_0$ with learned
    vectors; `start` is $\lambda_0$, $0.8 - 0.6 e^{-0.3 l}$ in layer l, from 0.
    """

    start: FiniteFloat = 0.2

    def build(self, dims: Dims) -> PartModule:
        if self.n_heads % 2 or (self.n_kv_heads or self.n_heads) % 2 or self.dropout:
            raise SpecError("differential-attention: n_heads and n_kv_heads must be even, and dropout 0")
        return _Differential(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_head = self.d_head or dims.d_model // self.n_heads
        d_q, n_kv = self.n_heads * d_head, self.n_kv_heads or self.n_heads
        seen = pairs(self.pattern, shape.length, shape.length) / shape.length
        # products and weighted values once more, with values of their own; the difference and its norm
        more = Cost(4 * d_head, 4.0 * d_q * seen + 9.0 * d_q, 3 * d_q + 2 * n_kv * d_head + 2 * self.n_heads)
        return super().cost(dims, shape) + more


class _Differential(SelfAttentionModule):
    def __init__(self, spec: DifferentialAttention, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.start = spec.start
        # rows: a_1, b_1, a_2, b_2
        self.factor_4K = nn.Parameter(torch.empty(4, self.d_head))
        self.draw()

    def draw(self) -> None:
        """Draw the vectors of the factor with the deviation of the paper's code."""
        nn.init.normal_(self.factor_4K, std=0.1)

    def weighted(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, view: View, scoring: Scoring) -> Tensor:
        first, second = (half.repeat(1, 2, 1, 1) for half in v.chunk(2, 1))
        # weights do not depend on values, so a listener hears those of the first product only
        y = torch.cat(
            [attend(q, k, first, pattern, view, scoring), attend(q, k, second, pattern, view, scoring.quiet)], -1
        )
        ahead, behind = y.chunk(2, 1)
        a_1, b_1, a_2, b_2 = self.factor_4K
        factor = torch.exp((a_1 * b_1).sum()) - torch.exp((a_2 * b_2).sum()) + self.start
        z = ahead - factor.to(y.dtype) * behind
        return (1 - self.start) * nn.functional.rms_norm(z, z.shape[-1:], eps=1e-5)
