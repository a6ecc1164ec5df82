"""Causal attention as one operator of onnxruntime's own, which writes new keys where there is room for them.

`GroupQueryAttention` appends to its past, in place if past and present are one buffer, knows how far each row has come,
and masks the future itself: a layer becomes a handful of nodes. It takes several new tokens of several rows only at
their beginning, which is how prompts are read.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.adaptive_span import SpanModule
from kinfolk.layers.mixers.attention import SelfAttentionModule
from kinfolk.layers.mixers.softmax import SoftmaxModule
from kinfolk.layers.mixers.talking_heads import TalkModule
from kinfolk.layers.module import Module
from kinfolk.layers.positions.position import PositionModule
from kinfolk.layers.positions.relative import ALiBiModule, RotaryModule, T5BucketsModule
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.use.onnx.states import PAST, Growing, Places, ready, slots_of

DOMAIN = "com.microsoft"
PLACES = (PositionModule, RotaryModule, ALiBiModule, T5BucketsModule)
"""What the operator can be told about positions: nothing, turned queries and keys, or a bias of scores."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reach:
    """How far each row has come with its new tokens, as the operator wants it."""

    last_B: Tensor  # position of the newest token, int32
    total: Tensor  # positions of the furthest row, int32

    @classmethod
    def of(cls, start_B: Tensor, n_new: int) -> "Reach":
        """Set the positions of rows that began at `start` with `n_new` tokens."""
        last_B = (start_B + (n_new - 1)).to(torch.int32)
        return cls(last_B, last_B.max() + 1)

    @property
    def n_total(self) -> int:
        """The number of positions, for what has to be as long; unknown until a graph is run."""
        n = self.total.item()
        torch._check(n >= 1)
        return n  # type: ignore[return-value]


def fusible(part: nn.Module) -> bool:
    """Tell whether the operator does what this attention does."""
    if type(part) is not SelfAttentionModule:
        return False
    plain = type(part.span) is SpanModule and type(part.talk) is TalkModule
    place = part.position
    # the operator rotates whole heads at plain rates, and normalises neither queries nor keys
    whole = not isinstance(place, RotaryModule) or (place.width == part.d_head and place.scale is None)
    plain = plain and part.norms is None and whole and type(part.softmax) is SoftmaxModule
    return plain and isinstance(part.spec.pattern, Causal) and type(place) in PLACES


class FusedAttention(Module):
    """An attention of a model, by its own weights."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def new_state(self, batch_size: int, max_len: int) -> Any:
        """Return what the attention itself does."""
        return self.part.new_state(batch_size, max_len)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Growing) -> tuple[Tensor, Growing]:
        part, reach = self.part, state.places.reach
        packed_BLD = part.qkv(x_BLD)
        inputs: list[Tensor | None] = [packed_BLD, None, None]
        if isinstance(part.position, RotaryModule):
            inputs = list(self._turned(packed_BLD, ctx))
        inputs += [state.k_BGMK, state.v_BGMK, reach.last_B, reach.total]
        bias = self._bias(packed_BLD, ctx, reach)
        if bias is not None:
            inputs += [None, None, None, bias]
        assert state.k_BGMK is not None
        assert state.v_BGMK is not None
        batch, length = x_BLD.shape[:2]
        y_BLD, state.k_BGMK, state.v_BGMK = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::GroupQueryAttention",
            inputs,
            {"num_heads": part.spec.n_heads, "kv_num_heads": part.n_kv, "scale": part.spec.scale or part.d_head**-0.5},
            dtypes=(torch.float32,) * 3,
            shapes=((batch, length, part.spec.n_heads * part.d_head), state.k_BGMK.shape, state.v_BGMK.shape),
            version=1,
        )
        return part.out(y_BLD), state

    def _turned(self, packed_BLD: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        part = self.part
        q, k, v = packed_BLD.unflatten(-1, (-1, part.d_head)).split_with_sizes(part.heads, dim=2)
        q, k = part.position.turn(q.transpose(1, 2), k.transpose(1, 2), ctx)
        return q.transpose(1, 2).flatten(2), k.transpose(1, 2).flatten(2), v.flatten(2)

    def _bias(self, like: Tensor, ctx: Context, reach: Reach) -> Tensor | None:
        """Return what positions add to the scores: of every new token and every position up to the furthest."""
        assert ctx.pos_BL is not None
        bias = self.part.position.hooks(ctx, 0, True).bias
        if bias is None:
            return None
        k_pos_1M = torch.arange(reach.n_total, device=like.device)[None]
        made: Tensor = bias(like, like, ctx.pos_BL, k_pos_1M, slice(None))
        return made


def fuse(model: nn.Module) -> bool:
    """Put the operator in the place of every self-attention of a decoder, if it can do what all of them do."""
    decoder: Any = model.decoder
    looking = [(block, i) for block in decoder.blocks for i, part in enumerate(block.parts) if _keeps(part)]
    if not looking or not all(fusible(block.parts[i]) for block, i in looking):
        return False
    for block, i in looking:
        block.parts[i] = FusedAttention(block.parts[i])
    return True


def has_fused(model: nn.Module) -> bool:
    """Tell whether a model looks through the operator."""
    return any(isinstance(part, FusedAttention) for part in model.modules())


def _keeps(part: Any) -> bool:
    """Tell whether a part keeps keys and values of what it has decoded, by itself or inside."""
    state = ready(part.new_state(1, 2), Places())
    try:
        return any(PAST in slot.axes for slot in slots_of("", state))
    except SpecError:
        return True  # whatever it keeps, the operator does not
