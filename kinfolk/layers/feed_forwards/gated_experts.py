"""Mixtures of gated experts after 2022, and their routers: Mixtral, gpt-oss, DeepSeek-V3."""

import functools

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.device import tally
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.experts import Experts, ExpertsModule, Router, router_scores
from kinfolk.layers.module import Dims, Linear, Linears, Module
from kinfolk.layers.part import PartModule
from kinfolk.ops.activated_linear import Activation
from kinfolk.ops.routing import imbalance


class TopK(Router, kind="top-k"):
    """Top-k routing: a softmax over the scores of the k best (Jiang et al. 2024, section 2.1; with a `bias`: gpt-oss).

    `balance` weighs the balancing loss over all choices (Fedus et al. 2021, equation 4).
    """

    k: PositiveInt = 2
    bias: bool = False
    balance: NonNegativeFloat = 1e-2

    @property
    def n_choices(self) -> int:
        return self.k

    def build(self, width: int, n_experts: int) -> Module:
        return _TopK(self, width, n_experts)

    def cost(self, width: int, n_experts: int) -> Cost:
        own = Cost(flops=5.0 * n_experts, kept=n_experts + 3 * self.k)
        return linear(width, n_experts, self.bias, kept=False) + own


class _TopK(Module):
    def __init__(self, spec: TopK, width: int, n_experts: int) -> None:
        super().__init__()
        _check(spec.k, n_experts)
        self.spec, self.scores = spec, Linear(width, n_experts, bias=spec.bias)

    def forward(self, x_LD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        scores_LE = router_scores(x_LD, self.scores.weight)
        scores_LE = scores_LE if self.scores.bias is None else scores_LE + self.scores.bias
        score_Lk, expert_Lk = scores_LE.topk(self.spec.k, dim=-1)
        if self.training and self.spec.balance:
            # each of the k choices counts as a token
            probs_LE = scores_LE.softmax(-1).repeat_interleave(self.spec.k, 0)
            ctx.add_loss("balance", self.spec.balance * imbalance(probs_LE, expert_Lk.flatten()))
        return expert_Lk, score_Lk.softmax(-1)


class SigmoidTopK(Router, kind="sigmoid-top-k"):
    r"""Bias-balanced routing: the k best by $\sigma(s_e) + b_e$, gates $c\,\sigma(s_e) / \sum \sigma(s)$ of those k.

    DeepSeek-AI 2024 (DeepSeek-V3), section 2.1.2: no loss balances the experts. Instead $b_e$, which chooses and does
    not weigh, moves by `speed` after every backward pass: down where an expert had more tokens than the mean, else
    up. Experts form `n_groups`, of which a token uses the `top_groups` best (by the sum of their two best experts).
    `scale` is c.
    """

    k: PositiveInt = 8
    n_groups: PositiveInt = 1
    top_groups: PositiveInt = 1
    scale: PositiveFloat = 1.0
    speed: NonNegativeFloat = 1e-3

    @property
    def n_choices(self) -> int:
        return self.k

    def build(self, width: int, n_experts: int) -> Module:
        return _SigmoidTopK(self, width, n_experts)

    def cost(self, width: int, n_experts: int) -> Cost:
        own = Cost(flops=6.0 * n_experts, kept=n_experts + 4 * self.k)
        return linear(width, n_experts, False, kept=False) + own


class _SigmoidTopK(Module):
    bias_E: Tensor

    def __init__(self, spec: SigmoidTopK, width: int, n_experts: int) -> None:
        super().__init__()
        _check(spec.k, n_experts // spec.n_groups * spec.top_groups)
        if n_experts % spec.n_groups or (spec.n_groups > 1 and n_experts // spec.n_groups < 2):
            raise SpecError(f"router.n_groups: {n_experts} experts are not {spec.n_groups} groups of two or more")
        self.spec, self.scores = spec, Linear(width, n_experts, bias=False)
        self.register_buffer("bias_E", torch.zeros(n_experts))

    def forward(self, x_LD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        spec, probs_LE = self.spec, router_scores(x_LD, self.scores.weight).sigmoid()
        expert_Lk = self._choice(probs_LE.detach())
        gate_Lk = probs_LE.gather(1, expert_Lk)
        # sigmoids of all chosen experts may underflow to 0 together
        gate_Lk = gate_Lk / (gate_Lk.sum(-1, keepdim=True) + 1e-20) * spec.scale
        if self.training and spec.speed and gate_Lk.requires_grad:
            # in the backward pass: a block that is recomputed must choose as it did before
            gate_Lk.register_hook(functools.partial(self._balance, expert_Lk))
        return expert_Lk, gate_Lk

    def _choice(self, probs_LE: Tensor) -> Tensor:
        spec, score_LE = self.spec, probs_LE + self.bias_E
        if spec.n_groups > spec.top_groups:
            score_LGe = score_LE.unflatten(1, (spec.n_groups, -1))
            best_LG = score_LGe.topk(2, dim=-1).values.sum(-1)
            group_Lg = best_LG.topk(spec.top_groups, dim=-1).indices
            out_LG = torch.ones_like(best_LG, dtype=torch.bool).scatter(1, group_Lg, False)
            # -inf and not 0, which would win against sums below it: biases may be negative
            score_LE = score_LGe.masked_fill(out_LG[..., None], -torch.inf).flatten(1)
        return score_LE.topk(spec.k, dim=-1).indices

    @torch.no_grad()
    def _balance(self, expert_Lk: Tensor, slope: Tensor) -> None:
        load_E = tally(expert_Lk.flatten(), len(self.bias_E)).to(self.bias_E.dtype)
        self.bias_E += self.spec.speed * torch.sign(load_E.mean() - load_E)


class GatedExperts(Experts, kind="gated-experts"):
    r"""Mixture of gated experts, $W_2^{(e)}(\phi(W^{(e)} x) \odot V^{(e)} x)$ (Mixtral, Jiang et al. 2024)."""

    activation: Activation = "swish"
    bias: bool = False
    router: Router = TopK()

    def build(self, dims: Dims) -> PartModule:
        return _GatedExperts(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        k = min(self.router.n_choices, self.n_experts)
        each = linear(dims.d_model, 2 * self.d_ff, self.bias, kept=False) + linear(self.d_ff, dims.d_model, self.bias)
        once = Cost(self.n_experts * each.params, k * (each.flops + 2 * self.d_ff), 2 * k * self.d_ff + dims.d_model)
        return once + self.router.cost(dims.d_model, self.n_experts)


class _GatedExperts(ExpertsModule):
    def first(self, spec: Experts, dims: Dims) -> Linears:
        return Linears(spec.n_experts, dims.d_model, 2 * spec.d_ff, bias=spec.bias)


def _check(k: int, n_experts: int) -> None:
    if k > n_experts:
        raise SpecError(f"router.k: {k} is not allowed; a token takes 1 to {n_experts} experts")
