"""A head that acts: how likely each action is, and what the state is worth."""

import torch
from torch import Tensor, nn

from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.embedding import EmbeddingModule
from kinfolk.layers.head import Head, HeadModule
from kinfolk.layers.module import Dims, Module


class PolicyHead(Head, kind="policy"):
    """Actor and critic on one body (Mnih et al. 2016, section 4): logits of `n_actions`, and a value.

    `small` scales the weights of the actor at the beginning, so that all actions are about equally likely.
    """

    n_actions: int
    small: float = 0.01

    def __post_init__(self) -> None:
        if self.n_actions < 1:
            raise SpecError(f"n_actions must be at least 1, got {self.n_actions}")

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return PolicyHeadModule(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return linear(dims.d_model, self.n_actions, True) + linear(dims.d_model, 1, True, kept=False)


class _Readout(Module):
    """A linear map whose rows are drawn orthogonal and of one length; `nn.Linear` is drawn as the model's spec says."""

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
    """Logits of actions at every position, and the values of the states there."""

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
