"""The bodies that most papers share: an encoder's block and a decoder's block, repeated, and changes to all of them."""

from kinfolk.layers.attention import Attention, CrossAttention
from kinfolk.layers.norm import LayerNorm
from kinfolk.layers.part import FeedForward
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
