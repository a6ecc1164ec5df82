"""Axis Norm: how activations are normalised."""

from torch import nn

from kinfolk.core.cost import Cost
from kinfolk.core.spec import Spec


class Norm(Spec):
    """Axis: `x_BLD -> x_BLD`, each position on its own."""

    def build(self, width: int) -> nn.Module:
        """Return the module for vectors of this width."""
        raise NotImplementedError

    def cost(self, width: int) -> Cost:
        """Return its cost per token."""
        raise NotImplementedError


class NoNorm(Norm, kind="none"):
    """The identity."""

    def build(self, width: int) -> nn.Module:
        return nn.Identity()

    def cost(self, width: int) -> Cost:
        return Cost()


class LayerNorm(Norm, kind="layer-norm"):
    r"""$g\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + b$ over the last axis (Ba et al. 2016)."""

    eps: float = 1e-5

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.eps)

    def cost(self, width: int) -> Cost:
        return Cost(params=2 * width, flops=8.0 * width, kept=width + 2)
