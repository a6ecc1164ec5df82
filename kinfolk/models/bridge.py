"""Axis Bridge: what of an encoder its decoder looks at."""

from torch import Tensor

from kinfolk.core.spec import Spec
from kinfolk.layers.module import Module


class Bridge(Spec):
    """Axis: encoder states -> memory."""

    def build(self) -> Module:
        """Return the module."""
        raise NotImplementedError


class LastLayer(Bridge, kind="last-layer"):
    """The states after the encoder's last layer (Vaswani et al. 2017)."""

    def build(self) -> Module:
        return _LastLayer()


class _LastLayer(Module):
    def forward(self, x_BMD: Tensor) -> Tensor:
        return x_BMD
