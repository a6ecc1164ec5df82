"""Encoder and decoder stacks that most papers share, and changes to all of their blocks."""

from collections.abc import Callable

from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.layers.part import FeedForward, Part
from kinfolk.layers.residuals.residual import PreNorm, Residual
from kinfolk.layers.residuals.stochastic_depth import StochasticDepth
from kinfolk.models.block import Block
from kinfolk.models.depth.depth import Depth
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack


def stack(block: Block, n_layers: int) -> Stack:
    """Return layers alike but for their weights."""
    return Stack(blocks=(block,) * n_layers, order=tuple(range(n_layers)))


def shared(stack: Stack, n_groups: int = 1) -> Stack:
    """Let neighbouring layers share their weights: `n_groups` blocks, each run several times (Lan et al. 2020)."""
    n = len(stack.order)
    if not 1 <= n_groups <= n:
        raise SpecError(f"n_groups: {n_groups} groups cannot share {n} layers; use 1 to {n}")
    order = tuple(i * n_groups // n for i in range(n))
    blocks = tuple(stack.blocks[stack.order[order.index(group)]] for group in range(n_groups))
    return stack.replace(blocks=blocks, order=order)


def without_every(stack: Stack, n: int) -> Stack:
    """Leave out every n-th layer, counted from the first: what a model trained with `LayerDrop` bears."""
    order = tuple(i for at, i in enumerate(stack.order) if at % n)
    return stack.replace(order=order)


def self_block(look: Attention, think: FeedForward, residual: Residual) -> Block:
    """Return a block that looks at its own sequence and thinks."""
    return Block(parts=(look, think), residual=residual)


def cross_block(look: Attention, think: FeedForward, residual: Residual) -> Block:
    """Return a block that also looks at an encoder, with as many heads."""
    across = CrossAttention(n_heads=look.n_heads, bias=look.bias, dropout=look.dropout, scale=look.scale)
    return Block(parts=(look, across, think), residual=residual)


def pre_norm(model: Model) -> Model:
    """Move every norm before its part, and close each stack with one."""
    return with_residual(model, PreNorm(), LayerNorm())


def with_residual(model: Model, residual: Residual, norm: Norm) -> Model:
    """Join every part to the stream by `residual`, and close each stack with `norm`."""

    def change(depth: Stack) -> Depth:
        return depth.replace(blocks=tuple(block.replace(residual=residual) for block in depth.blocks), norm=norm)

    return with_depth(model, change)


def with_depth(model: Model, change: Callable[[Stack], Depth]) -> Model:
    """Put `change(stack)` in the place of every stack."""

    def inside(depth: Depth | None) -> Depth | None:
        return change(depth) if isinstance(depth, Stack) else depth

    return model.replace(encoder=inside(model.encoder), decoder=inside(model.decoder))


def with_stochastic_depth(model: Model, rate: float) -> Model:
    """Drop branches in training, the deeper the likelier: `rate` is the last layer's (Huang et al. 2016, eq. 4)."""

    def change(depth: Stack) -> Depth:
        n = len(depth.blocks)
        residuals = (StochasticDepth(of=b.residual, rate=rate * (at + 1) / n) for at, b in enumerate(depth.blocks))
        blocks = (b.replace(residual=r) for b, r in zip(depth.blocks, residuals, strict=True))
        return depth.replace(blocks=tuple(blocks))

    return with_depth(model, change)


def with_mixer(model: Model, change: Callable[[Attention], Part]) -> Model:
    """Put `change(attention)` in the place of every self-attention."""
    return with_mixers(model, lambda look, layer: change(look))


def with_mixers(model: Model, change: Callable[[Attention, int], Part]) -> Model:
    """Put `change(attention, layer)` in the place of every self-attention; layers count from 0 in each stack."""
    return _with_parts(model, lambda part, layer: change(part, layer) if isinstance(part, Attention) else part)


def with_feed_forward(model: Model, change: Callable[[FeedForward], FeedForward]) -> Model:
    """Put `change(feed_forward)` in the place of every feed-forward."""
    return with_feed_forwards(model, lambda think, layer: change(think))


def with_feed_forwards(model: Model, change: Callable[[FeedForward, int], FeedForward]) -> Model:
    """Put `change(feed_forward, layer)` in the place of every feed-forward; layers count from 0 in each stack."""
    return _with_parts(model, lambda part, layer: change(part, layer) if isinstance(part, FeedForward) else part)


def _with_parts(model: Model, change: Callable[[Part, int], Part]) -> Model:
    def inside(depth: Stack) -> Depth:
        blocks = (b.replace(parts=tuple(change(p, n) for p in b.parts)) for n, b in enumerate(depth.blocks))
        return depth.replace(blocks=tuple(blocks))

    return with_depth(model, inside)
