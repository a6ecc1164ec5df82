"""Contract of the sublayers of a Transformer block (mixers and feed-forwards): a block is a tuple of parts."""

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module
from kinfolk.ops.attention.scores import View


class Part(Spec):
    """Axis: any layer between two residual additions: all mixers and feed-forwards.

    The module is `(x_BLD, ctx, state) -> (x_BLD, state)`.

    `state` is what the part must remember to go on decoding where it stopped: None while training, what
    `new_state` of the module returned while decoding. Attention also takes `KeyValues` as its state: keys and values
    that `keys_values` gave for another sequence than that of its queries.
    """

    def build(self, dims: Dims) -> Module:
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return parameters, FLOPs per token, and numbers kept per token."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class KeyValues:
    """Keys and values of a sequence, and what queries see of them."""

    k_BGMK: Tensor
    v_BGMK: Tensor
    view: View


class PartModule(Module):
    """Base of sublayers; by default without a decoding state, so that they decode as they train."""

    limit: int | None = None  # positions it can take, where they are bounded
    called_maps: ClassVar[tuple[str, ...]] = ()
    """Linear maps that this very class only calls, so that decoding may store them in another form."""

    def keys_values(self, x_BLD: Tensor, ctx: Context, state: Any) -> KeyValues:
        """Return keys and values of x, those of earlier tokens included where a state has them."""
        raise SpecError(f"{type(self).__name__} has no keys and values for queries of another sequence")

    def new_state(self, batch_size: int, max_len: int) -> Any:
        """Return an empty state for decoding up to `max_len` positions."""
        return None

    def new_memory(self) -> Any:
        """Return an empty memory to carry from segment to segment in training; None if nothing is carried.

        A memory must read the same when a block is run twice, which is how blocks are recomputed.
        """
        return None


class Mixer(Part):
    """Axis: how positions exchange information: attention, convolution, recurrence."""

    @property
    def reads_prefix(self) -> bool:
        """True if a decoder can read a prefix in both directions with it."""
        return False


class FeedForward(Part):
    """Axis: feed-forward layers, which compute at each position alone."""

    alone: ClassVar[bool] = True  # false where positions compete for something


def only_past(spec: Spec, dims: Dims, what: str = "its state knows") -> None:
    """Refuse a part that reads from left to right wherever a stack sees both directions."""
    if dims.direction != "past":
        raise SpecError(f"{spec.kind}: {what} the past only, so it belongs into a decoder")


def whole_heads(spec: Any, dims: Dims) -> int:
    """Return the width of a head; refuse a number of heads that does not divide the width of the model."""
    if dims.d_model % spec.n_heads:
        raise SpecError(f"{spec.kind}: d_model {dims.d_model} is not a multiple of n_heads {spec.n_heads}")
    width: int = dims.d_model // spec.n_heads
    return width


def head_width(spec: Any, dims: Dims) -> int:
    """Return `d_head` of a spec, or where it is 0 the model's width divided by the heads."""
    if not spec.d_head and dims.d_model % spec.n_heads:
        raise SpecError(f"{spec.kind}: d_model {dims.d_model} is not a multiple of n_heads {spec.n_heads}; give d_head")
    width: int = spec.d_head or dims.d_model // spec.n_heads
    return width


def split_heads(x_BLD: Tensor, d_head: int) -> Tensor:
    """Cut the last axis into heads: [B, H, L, K]."""
    return x_BLD.unflatten(-1, (-1, d_head)).transpose(1, 2)
