"""Policy and value heads of an actor-critic: logits of actions and the value of a state."""

import math

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveFloat, PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.head import Head, HeadModule
from kinfolk.layers.module import Dims, Module
from kinfolk.ops.ppo import entropy, gaussian


class PolicyHead(Head, kind="policy"):
    """Actor-critic head: policy and value on one body (Mnih et al. 2016, section 4): `n_actions` logits, one value.

    `small` scales the weights of the actor at the beginning, so that all actions are about equally likely.
    """

    n_actions: PositiveInt
    small: PositiveFloat = 0.01

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return PolicyHeadModule(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return linear(dims.d_model, self.n_actions, True) + linear(dims.d_model, 1, True, kept=False)


class GaussianHead(PolicyHead, kind="gaussian-policy"):
    """Gaussian policy: actions are vectors of `n_actions` numbers, drawn around means with a spread each.

    The spreads are learnt, begin at 1 and are the same in every state (Schulman et al. 2017, section 6.1).
    """

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _GaussianHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return super().cost(dims) + Cost(params=self.n_actions)


class _Readout(Module):
    """Linear layer with orthogonal initialisation; `nn.Linear` is drawn as the model's spec says."""

    def __init__(self, d_in: int, d_out: int, gain: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(d_out, d_in)), nn.Parameter(torch.zeros(d_out))
        self.gain = gain

    def draw(self) -> None:
        """Draw the rows."""
        nn.init.orthogonal_(self.weight, self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class PolicyHeadModule(HeadModule):
    """Policy at every position (logits of actions, [B, L, V]) and the values of the states there.

    Sampling, log-likelihood and entropy all start from what the policy says of a position.
    """

    def __init__(self, spec: PolicyHead, dims: Dims) -> None:
        super().__init__()
        self.actor = _Readout(dims.d_model, spec.n_actions, spec.small)
        self.critic = _Readout(dims.d_model, 1, 1.0)

    @property
    def weight(self) -> Tensor:
        return self.actor.weight

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """The actor's."""
        return self.actor.bias

    def value(self, x_BLD: Tensor) -> Tensor:
        """Return what the states are worth: [B, L]."""
        value_BL: Tensor = self.critic(x_BLD)[..., 0]
        return value_BL

    def draw_actions(self, said_BV: Tensor, draw: torch.Generator) -> Tensor:
        """Draw an action for each row: [B]."""
        # on the CPU, so that a seed draws the same actions on every device
        return torch.multinomial(said_BV.log_softmax(-1).exp().cpu(), 1, generator=draw)[:, 0].to(said_BV.device)

    def likeliest(self, said_BV: Tensor) -> Tensor:
        """Return the likeliest action of each row."""
        return said_BV.argmax(-1)

    def log_probs(self, said_BLV: Tensor, actions_BL: Tensor) -> Tensor:
        """Return the logarithms of how likely actions are: [B, L]."""
        return said_BLV.log_softmax(-1).gather(-1, actions_BL[..., None])[..., 0]

    def entropy(self, said_BLV: Tensor) -> Tensor:
        """Return how undecided the actor is, in nats: [B, L]."""
        return entropy(said_BLV)


class _GaussianHead(PolicyHeadModule):
    """Gaussian policy: it says the means of an action; actions are [B, L, V]."""

    def __init__(self, spec: GaussianHead, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.log_stds = nn.Parameter(torch.zeros(spec.n_actions))

    def draw_actions(self, said_BV: Tensor, draw: torch.Generator) -> Tensor:
        noise_BV = torch.randn(said_BV.shape, generator=draw).to(said_BV)
        return said_BV + self.log_stds.exp() * noise_BV

    def likeliest(self, said_BV: Tensor) -> Tensor:
        return said_BV

    def log_probs(self, said_BLV: Tensor, actions_BL: Tensor) -> Tensor:
        return gaussian(actions_BL.to(said_BLV.dtype), said_BLV, self.log_stds)

    def entropy(self, said_BLV: Tensor) -> Tensor:
        each = self.log_stds + 0.5 * math.log(2 * math.pi * math.e)
        return each.sum().expand(said_BLV.shape[:-1])
