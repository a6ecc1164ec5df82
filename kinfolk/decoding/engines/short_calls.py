"""Short calls: the forward passes of common modules written out for one token without listeners.

A step of decoding runs the same plain case of every layer: evaluation, no taps, a KV cache, nothing hidden but the
future. Each function here is the `forward` of one class in that case, and calls it in all others. A module has a short
call if its class is that very class and if `applies` says so of the module. Outputs are the same to the last bit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.layers.mixers.adaptive_span import SpanModule
from kinfolk.layers.mixers.attention import SelfAttentionModule
from kinfolk.layers.mixers.softmax import SoftmaxModule
from kinfolk.layers.mixers.talking_heads import TalkModule
from kinfolk.layers.module import Linear
from kinfolk.layers.positions.position import PositionModule
from kinfolk.layers.residuals.residual import PreNormModule
from kinfolk.layers.states.kv_cache import Slots
from kinfolk.models.block import BlockModule
from kinfolk.models.reader import LayerReader
from kinfolk.models.stack import StackModule, Walk
from kinfolk.ops.activated_linear import Activation, activate
from kinfolk.ops.attention.attend import fused
from kinfolk.ops.linear_map import LEAST
from kinfolk.ops.patterns.leaves import Causal

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_compiled_call_impl")


def layer_norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """Do as `nn.LayerNorm.forward`."""
    return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def linear(self: Linear, x: Tensor) -> Tensor:
    """Do as `Linear.forward`: few rows are not worth the longer call."""
    if x.numel() * self.out_features < LEAST:
        return F.linear(x, self.weight, self.bias)
    return Linear.forward(self, x)


def linear_after(self: Linear, u: Tensor, activation: Activation) -> Tensor:
    """Do as `Linear.after`: without gradients there is nothing to recompute."""
    if torch.is_grad_enabled() or u.dtype != self.weight.dtype or u.numel() * self.out_features >= LEAST:
        return Linear.after(self, u, activation)
    return F.linear(activate(u, activation), self.weight, self.bias)


def pre_norm(self: PreNormModule, x: Tensor, part: Any, ctx: Context, state: Any) -> tuple[Tensor, Any]:
    """Do as `PreNormModule.forward`: in evaluation there is no dropout."""
    if self.training:
        return PreNormModule.forward(self, x, part, ctx, state)
    y, state = part(self.norm(x), ctx, state)
    return x + y, state


def block(self: BlockModule, x: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
    """Do as `BlockModule.forward`."""
    if states is None or ctx.taps is not None:
        return BlockModule.forward(self, x, ctx, states)
    pairs = zip(self.parts._modules.values(), self.residuals._modules.values(), strict=True)
    for i, (part, residual) in enumerate(pairs):
        x, states[i] = residual(x, part, ctx, states[i])
    return x


def pre_norm_block(self: BlockModule, x: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
    """Do as `BlockModule.forward` with its residuals' `pre_norm`."""
    if states is None or ctx.taps is not None or self.training:
        return BlockModule.forward(self, x, ctx, states)
    residuals: Any = self.residuals._modules.values()
    for i, (part, residual) in enumerate(zip(self.parts._modules.values(), residuals, strict=True)):
        y, states[i] = part(residual.norm(x), ctx, states[i])
        x = x + y
    return x


def stack(self: StackModule, x: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
    """Do as `StackModule.forward`: one run of a block after the other."""
    if states is None or ctx.taps is not None or self.training:
        return StackModule.forward(self, x, ctx, states)
    blocks: list[Any] = list(self.blocks._modules.values())
    for n, i in enumerate(self.order):
        x = blocks[i](x, ctx if ctx.encoder_output is None else ctx.layer(n), states[n])
    out: Tensor = self.norm(x)
    return out


def attention(self: SelfAttentionModule, x: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
    """Do as `SelfAttentionModule.forward`: one query of each example sees the whole KV cache."""
    own, at, n = type(state) is Slots, ctx.start, x.shape[0]
    alone = x.shape[1] == 1 and ctx.pos_BL is None and ctx.taps is None and not ctx.annotations
    if not own or not alone or self.training or at >= state.k_BGMK.shape[2]:
        return SelfAttentionModule.forward(self, x, ctx, state)
    n_heads, n_kv, _ = self.heads
    # an axis of one query
    packed_BHLK = self.qkv(x).view(n, -1, 1, self.d_head)
    q_BHLK, k_BGLK, v_BGLK = packed_BHLK.split_with_sizes((n_heads, n_kv, n_kv), 1)
    state.k_BGMK.narrow(2, at, 1).copy_(k_BGLK)
    state.v_BGMK.narrow(2, at, 1).copy_(v_BGLK)
    k_BGMK, v_BGMK = state.k_BGMK.narrow(2, 0, at + 1), state.v_BGMK.narrow(2, 0, at + 1)
    y_BHLK = fused(q_BHLK, k_BGMK, v_BGMK, None, False, self.scale)
    return self.out(y_BHLK.reshape(n, 1, -1)), state


class ShortCall(NamedTuple):
    """Functions that take the place of a class's own, by name, where `applies` to a module."""

    functions: dict[str, Callable[..., Any]]
    applies: Callable[[Any], bool] = lambda module: True


def kind_of(module: Any) -> type:
    """Return the class of a module as it was defined."""
    kind = type(module)
    return kind.__mro__[1] if "_kinfolk_direct" in vars(kind) else kind


def has_hooks(module: nn.Module) -> bool:
    """Tell whether a module has hooks, or is compiled: it must be called as usual."""
    return any(map(vars(module).get, HOOKS))


def _is_plain_stack(module: StackModule) -> bool:
    here = type(module.walk) is Walk and type(module.reader) is LayerReader and "skips" not in vars(module)
    return here and kind_of(module.position) is PositionModule


def _is_plain_attention(module: SelfAttentionModule) -> bool:
    parts = {"position": PositionModule, "span": SpanModule, "talk": TalkModule, "softmax": SoftmaxModule}
    plain = all(kind_of(getattr(module, name)) is kind for name, kind in parts.items())
    return plain and module.norms is None and type(module.spec.pattern) is Causal


def _is_pre_norm(module: BlockModule) -> bool:
    return all(kind_of(residual) is PreNormModule and not has_hooks(residual) for residual in module.residuals)


SHORT: dict[type, tuple[ShortCall, ...]] = {
    nn.LayerNorm: (ShortCall({"__call__": layer_norm}),),
    Linear: (ShortCall({"__call__": linear, "after": linear_after}),),
    PreNormModule: (ShortCall({"__call__": pre_norm}),),
    BlockModule: (ShortCall({"__call__": pre_norm_block}, _is_pre_norm), ShortCall({"__call__": block})),
    StackModule: (ShortCall({"__call__": stack}, _is_plain_stack),),
    SelfAttentionModule: (ShortCall({"__call__": attention}, _is_plain_attention),),
}


def short_call(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """Return the functions that take the place of those of its class; none if it has no short call."""
    return next((short.functions for short in SHORT.get(kind_of(module), ()) if short.applies(module)), {})
