"""Mixture of experts: a feed-forward of which each token uses a few, and axis Router (Shazeer et al. 2017; Switch).

While training, experts have a bounded number of seats and who comes too late passes by, as in the papers. At evaluation
and in decoding no token is turned away: whether one finds a seat would depend on how a text was cut into calls, and on
tokens that are not there yet. For the same reason seats are shared out inside an example (inside a document, where
several are packed), never across a batch; and inside a decoder in the order of positions, where the papers seat all
first choices before all second ones and so let a token lose its second expert to a later one. Padding takes no seat,
costs no time and has no say in the balance.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeFloat, PositiveInt, Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.device import full_precision, host, send
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Linear, Linears, Module
from kinfolk.layers.part import FeedForward, PartModule
from kinfolk.ops.activated_linear import Activation
from kinfolk.ops.experts import ExpertWeights, mix_experts
from kinfolk.ops.routing import chance_of_choice, imbalance, most_seats, take_seats, top_two, unevenness


class Router(Spec):
    """Axis: how a mixture of experts routes tokens.

    `(x_LD, ctx) -> (experts [L, k], gates [L, k])` of real tokens; balancing losses go to the context.
    """

    @property
    def n_choices(self) -> int:
        """How many experts a token takes."""
        raise NotImplementedError

    def build(self, width: int, n_experts: int) -> Module:
        """Return the module."""
        raise NotImplementedError

    def cost(self, width: int, n_experts: int) -> Cost:
        """Return its cost per token."""
        raise NotImplementedError


class Top2(Router, kind="top-2"):
    """Top-2 routing of GShard: the two likeliest experts, gates that sum to 1 (Lepikhin et al. 2020, algorithm 1).

    `second` says when the second one is asked: "all" (always), "none", "threshold" (its share is above `threshold`) or
    "random" (with probability share / threshold while training, always at evaluation). `balance` weighs the loss.
    """

    second: Literal["all", "none", "threshold", "random"] = "random"
    threshold: NonNegativeFloat = 0.2
    balance: NonNegativeFloat = 1e-2

    @property
    def n_choices(self) -> int:
        return 1 if self.second == "none" else 2

    def build(self, width: int, n_experts: int) -> Module:
        return _Top2(self, width, n_experts)

    def cost(self, width: int, n_experts: int) -> Cost:
        return linear(width, n_experts, False, kept=False) + Cost(flops=5.0 * n_experts, kept=n_experts + 4)


def router_scores(x_LD: Tensor, weight_ED: Tensor) -> Tensor:
    """Return scores of the experts, in at least 32 bits (Fedus et al. 2021, section 2.4)."""
    with full_precision(x_LD):
        x_LD = x_LD.float() if x_LD.element_size() < 4 else x_LD
        return nn.functional.linear(x_LD, weight_ED.to(x_LD.dtype))


class _Top2(Module):
    def __init__(self, spec: Top2, width: int, n_experts: int) -> None:
        super().__init__()
        self.spec, self.scores = spec, Linear(width, n_experts, bias=False)

    def forward(self, x_LD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        spec, probs_LE = self.spec, router_scores(x_LD, self.scores.weight).softmax(-1)
        expert_Lk, gate_Lk = top_two(probs_LE)
        if self.training:
            # the share of tokens is that of first choices, as in GShard
            ctx.add_loss("balance", spec.balance * imbalance(probs_LE, expert_Lk[:, 0]))
        if spec.second == "none":
            return expert_Lk[:, :1], gate_Lk[:, :1]
        # whether a second expert is asked has no gradient; its gate has
        return expert_Lk.masked_fill(self._unasked(gate_Lk.detach()), probs_LE.shape[1]), gate_Lk

    def _unasked(self, gate_Lk: Tensor) -> Tensor:
        """Tell which choices are not followed; first choices always are."""
        if self.spec.second == "threshold":
            unasked_Lk = gate_Lk <= self.spec.threshold
        elif self.spec.second == "random" and self.training:
            unasked_Lk = torch.rand_like(gate_Lk) * self.spec.threshold >= gate_Lk
        else:
            return torch.zeros_like(gate_Lk, dtype=torch.bool)
        unasked_Lk[:, 0] = False
        return unasked_Lk


class Switch(Router, kind="switch"):
    """Switch routing: the likeliest expert alone, weighed by its probability (Fedus et al. 2021, section 2.1).

    `jitter` multiplies the router's input by numbers in 1 +- jitter while training. `balance` weighs the balancing loss
    and `z` the mean squared log-sum of scores, which keeps them small (Zoph et al. 2022, equation 5).
    """

    jitter: Rate = 1e-2
    balance: NonNegativeFloat = 1e-2
    z: NonNegativeFloat = 0.0

    @property
    def n_choices(self) -> int:
        return 1

    def build(self, width: int, n_experts: int) -> Module:
        return _Switch(self, width, n_experts)

    def cost(self, width: int, n_experts: int) -> Cost:
        jittered = Cost(flops=width, kept=2 * width) if self.jitter else Cost()
        own = Cost(flops=5.0 * n_experts, kept=n_experts * (2 if self.z else 1) + 2)
        return linear(width, n_experts, False, kept=False) + own + jittered


class _Switch(Module):
    def __init__(self, spec: Switch, width: int, n_experts: int) -> None:
        super().__init__()
        self.spec, self.scores = spec, Linear(width, n_experts, bias=False)

    def forward(self, x_LD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        spec = self.spec
        if self.training and spec.jitter:
            x_LD = x_LD * torch.empty_like(x_LD).uniform_(1 - spec.jitter, 1 + spec.jitter)
        scores_LE = router_scores(x_LD, self.scores.weight)
        probs_LE = scores_LE.softmax(-1)
        # the gate is a probability and not 1, since through it alone the router gets a gradient from the output
        gate_L, expert_L = probs_LE.max(-1)
        if self.training:
            ctx.add_loss("balance", spec.balance * imbalance(probs_LE, expert_L))
            if spec.z:
                # keeps scores small, so that rounding in low precision changes fewer choices (Zoph et al. 2022)
                ctx.add_loss("router-z", spec.z * scores_LE.logsumexp(-1).square().mean())
        return expert_L[:, None], gate_L[:, None]


class NoisyTopK(Router, kind="noisy-top-k"):
    """Noisy top-k gating: the k best of scores with learned noise, then a softmax (Shazeer et al. 2017, section 2.1).

    Noise is drawn while training. `balance` weighs the unevenness of importance (summed gates) and of load (expected
    numbers of tokens). All scores start at zero.
    """

    k: PositiveInt = 2
    balance: NonNegativeFloat = 1e-2

    @property
    def n_choices(self) -> int:
        return self.k

    def build(self, width: int, n_experts: int) -> Module:
        return _NoisyTopK(self, width, n_experts)

    def cost(self, width: int, n_experts: int) -> Cost:
        scores = linear(width, n_experts, False, kept=False)
        # the map of the noise has as many parameters, and runs in training alone
        return scores + Cost(params=scores.params, flops=20.0 * n_experts, kept=8 * n_experts + 3 * self.k)


class _NoisyTopK(Module):
    def __init__(self, spec: NoisyTopK, width: int, n_experts: int) -> None:
        super().__init__()
        if not 1 <= spec.k <= n_experts:
            raise SpecError(f"router.k: {spec.k} is not allowed; a token takes 1 to {n_experts} experts")
        self.spec = spec
        # no linear maps, whose weights would be drawn
        self.scores_ED, self.noise_ED = (nn.Parameter(torch.zeros(n_experts, width)) for _ in range(2))

    def forward(self, x_LD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        k, clean_LE = self.spec.k, router_scores(x_LD, self.scores_ED)
        if not self.training:
            score_Lk, expert_Lk = clean_LE.topk(k, dim=-1)
            return expert_Lk, score_Lk.softmax(-1)
        # the estimated load divides by it: a least value bounds the gradient
        std_LE = nn.functional.softplus(router_scores(x_LD, self.noise_ED)) + 1e-2
        noisy_LE = torch.addcmul(clean_LE, torch.randn_like(std_LE), std_LE)
        score_Lk, expert_Lk = noisy_LE.topk(k, dim=-1)
        gate_Lk = score_Lk.softmax(-1)
        importance_E = gate_Lk.new_zeros(clean_LE.shape[1]).index_add(0, expert_Lk.flatten(), gate_Lk.flatten())
        load_E = chance_of_choice(clean_LE, noisy_LE, std_LE, k).sum(0)
        ctx.add_loss("balance", self.spec.balance * (unevenness(importance_E) + unevenness(load_E)))
        return expert_Lk, gate_Lk


class Experts(FeedForward, kind="experts"):
    """Mixture of experts: `n_experts` dense networks, of which a router gives each token a few (Shazeer et al. 2017).

    `capacity` is how many seats an expert has while training, as a multiple of its even share of the tokens of an
    example, four at least; 0: as many as there are tokens.
    """

    alone: ClassVar[bool] = False
    n_experts: PositiveInt
    d_ff: PositiveInt
    activation: Activation = "relu"
    bias: bool = True
    router: Router = Top2()
    capacity: NonNegativeFloat = 0.0

    def build(self, dims: Dims) -> PartModule:
        return ExpertsModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        k = min(self.router.n_choices, self.n_experts)
        each = linear(dims.d_model, self.d_ff, self.bias, kept=False) + linear(self.d_ff, dims.d_model, self.bias)
        # what goes into the router is what goes into the experts
        once = Cost(self.n_experts * each.params, k * (each.flops + self.d_ff), k * self.d_ff + dims.d_model)
        return once + self.router.cost(dims.d_model, self.n_experts)


class ExpertsModule(PartModule):
    """Mixture of experts: routes tokens and adds up the weighted outputs of their experts."""

    def __init__(self, spec: Experts, dims: Dims) -> None:
        super().__init__()
        self.spec, self.turn = spec, "position" if dims.direction == "past" else "choice"
        self.router = spec.router.build(dims.d_model, spec.n_experts)
        self.widen = self.first(spec, dims)
        self.narrow = Linears(spec.n_experts, spec.d_ff, dims.d_model, bias=spec.bias, ends_branch=True)

    def first(self, spec: Experts, dims: Dims) -> Linears:
        """Return the first map of all experts."""
        return Linears(spec.n_experts, dims.d_model, spec.d_ff, bias=spec.bias)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        expert_BLk, gate_BLk = self._route(x_BLD, ctx)
        ctx.tap("experts", expert_BLk)
        ctx.tap("gates", gate_BLk)
        weights = ExpertWeights(self.widen.weights, self.widen.biases, self.narrow.weights, self.narrow.biases)
        y_LD = mix_experts(
            x_BLD.flatten(0, 1),
            expert_BLk.flatten(0, 1),
            gate_BLk.flatten(0, 1),
            weights,
            self.spec.activation,
            self._seats(x_BLD, ctx),
        )
        return y_LD.view_as(x_BLD), state

    def _seats(self, x_BLD: Tensor, ctx: Context) -> int | None:
        """Return the most tokens that an expert can have; None where only the router decides that."""
        if not (self.training and self.spec.capacity):
            return None
        n_batch, length = x_BLD.shape[:2]
        each = length if ctx.group_BL is not None else most_seats(length, self.spec.n_experts, self.spec.capacity)
        return n_batch * each

    def _route(self, x_BLD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return experts and gates; `n_experts` means no expert, which padding and those without a seat take."""
        x_LD, at_L = x_BLD.flatten(0, 1), None
        if ctx.padding is not None:
            at_L = send(host(ctx.padding.keep_BL).flatten().nonzero()[:, 0], x_BLD.device)
        expert_Lk, gate_Lk = self.router(x_LD if at_L is None else x_LD[at_L], ctx)
        if at_L is not None:
            size = (len(x_LD), expert_Lk.shape[1])
            expert_Lk = expert_Lk.new_full(size, self.spec.n_experts).index_copy(0, at_L, expert_Lk)
            gate_Lk = gate_Lk.new_zeros(size).index_copy(0, at_L, gate_Lk)
        expert_BLk, gate_BLk = (t.unflatten(0, x_BLD.shape[:2]) for t in (expert_Lk, gate_Lk))
        if self.training and self.spec.capacity:
            expert_BLk = take_seats(expert_BLk, ctx.group_BL, self.spec.n_experts, self.spec.capacity, self.turn)
        return expert_BLk, gate_BLk
