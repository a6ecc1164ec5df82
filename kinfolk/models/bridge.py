"""Axis Bridge: the encoder output that cross-attention of the decoder reads."""

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module
from kinfolk.models.depth.depth import Depth


class Bridge(Spec):
    """Axis: encoder output that a decoder attends to. It runs the encoder: `(encoder, x_BMD, ctx) -> EncoderOutput`."""

    def check(self, encoder: Depth | None, decoder: Depth | None) -> None:
        """Refuse stacks that it cannot be between, when a model's spec is made."""

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        """Return the module between two stacks."""
        raise NotImplementedError

    def cost(self, dims: Dims, encoder: Depth, decoder: Depth) -> Cost:
        """Return its cost per token of the encoder."""
        return Cost()

    def seen(self, encoder: Depth, n: int) -> int:
        """Return how many states an encoder of n tokens gives a decoder."""
        return n


class LastLayer(Bridge, kind="last-layer"):
    """The states after the encoder's last layer (Vaswani et al. 2017)."""

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        return _LastLayer()


class _LastLayer(Module):
    def forward(self, encoder: Module, x_BMD: Tensor, ctx: Context) -> EncoderOutput:
        return EncoderOutput(encoder(x_BMD, ctx, None), None if ctx.padding is None else ctx.padding.keep_BL)
