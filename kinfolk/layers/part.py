"""The contract that mixers and feed-forwards share, so that a block is simply a tuple of parts."""

from typing import Any, ClassVar

from kinfolk.core.cost import Cost, Shape
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module


class Part(Spec):
    """Axis: what happens between two residual additions. The module is `(x_BLD, ctx, state) -> (x_BLD, state)`.

    `state` is what the part must remember to go on decoding where it stopped: None while training, what
    `new_state` of the module returned while decoding.
    """

    def build(self, dims: Dims) -> Module:
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return parameters, FLOPs per token, and numbers kept per token."""
        raise NotImplementedError


class PartModule(Module):
    """A part without memory: it decodes as it trains."""

    limit: int | None = None  # positions it can take, where they are bounded

    def new_state(self, batch_size: int, max_len: int) -> Any:
        """Return an empty state for decoding up to `max_len` positions."""
        return None

    def new_memory(self) -> Any:
        """Return an empty memory to carry from segment to segment in training; None if nothing is carried.

        A memory must read the same when a block is run twice, which is how blocks are recomputed.
        """
        return None


class Mixer(Part):
    """Axis: how positions exchange information."""

    @property
    def reads_prefix(self) -> bool:
        """True if a decoder can read a prefix in both directions with it."""
        return False


class FeedForward(Part):
    """Axis: what happens at each position alone."""

    alone: ClassVar[bool] = True  # false where positions compete for something
