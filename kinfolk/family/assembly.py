"""The bodies that most papers share: an encoder's block and a decoder's block, repeated, and changes to all of them."""

from collections.abc import Callable

from kinfolk.layers.attention import Attention, CrossAttention
from kinfolk.layers.norm import LayerNorm
from kinfolk.layers.part import FeedForward, Part
from kinfolk.layers.residual import PreNorm, Residual
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Depth, Stack


def stack(block: Block, n_layers: int) -> Stack:
    """Return layers alike but for their weights."""
    return Stack(blocks=(block,) * n_layers, order=tuple(range(n_layers)))


def self_block(look: Attention, think: FeedForward, residual: Residual) -> Block:
    """Return a block that looks at its own sequence and thinks."""
    return Block(parts=(look, think), residual=residual)


def cross_block(look: Attention, think: FeedForward, residual: Residual) -> Block:
    """Return a block that also looks at an encoder, with as many heads."""
    across = CrossAttention(n_heads=look.n_heads, bias=look.bias, dropout=look.dropout)
    return Block(parts=(look, across, think), residual=residual)


def pre_norm(model: Model) -> Model:
    """Move every norm before its part, and close each stack with one."""

    def change(depth: Depth | None) -> Depth | None:
        if not isinstance(depth, Stack):
            return depth
        blocks = tuple(block.replace(residual=PreNorm()) for block in depth.blocks)
        return depth.replace(blocks=blocks, norm=LayerNorm())

    return model.replace(encoder=change(model.encoder), decoder=change(model.decoder))


def with_mixer(model: Model, change: Callable[[Attention], Part]) -> Model:
    """Put `change(attention)` in the place of every self-attention."""
    return with_mixers(model, lambda look, layer: change(look))


def with_mixers(model: Model, change: Callable[[Attention, int], Part]) -> Model:
    """Put `change(attention, layer)` in the place of every self-attention; layers count from 0 in each stack."""

    def replaced(block: Block, layer: int) -> Block:
        return block.replace(parts=tuple(change(p, layer) if isinstance(p, Attention) else p for p in block.parts))

    def inside(depth: Depth | None) -> Depth | None:
        if not isinstance(depth, Stack):
            return depth
        return depth.replace(blocks=tuple(replaced(block, layer) for layer, block in enumerate(depth.blocks)))

    return model.replace(encoder=inside(model.encoder), decoder=inside(model.decoder))
