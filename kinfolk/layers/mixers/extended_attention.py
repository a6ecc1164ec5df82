"""Multi-head attention with extras: convolutions of q, k, v, forget gates, output gates (see `attention_extras`)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import Attention, SelfAttentionModule, visible_keys, widths
from kinfolk.layers.mixers.attention_extras import Extra, ExtraModule, HeadWidths
from kinfolk.layers.module import Dims
from kinfolk.layers.part import KeyValues, PartModule
from kinfolk.layers.states.kv_cache import Slots
from kinfolk.layers.states.rows import SeveralStates
from kinfolk.ops.patterns.plan import pairs


class ExtendedAttention(Attention, kind="extended-attention"):
    """Multi-head self-attention, and what `extras` add, in their order."""

    extras: tuple[Extra, ...] = ()

    def __post_init__(self) -> None:
        kinds = [extra.kind for extra in self.extras]
        if len(set(kinds)) < len(kinds):
            raise SpecError(f"extras: {', '.join(kinds)} names a kind twice")

    @classmethod
    def of(cls, look: Attention, *extras: Extra) -> "ExtendedAttention":
        """Return an attention with further extras."""
        fields = {name: getattr(look, name) for name in look.__dataclass_fields__}
        before = fields.pop("extras", ())
        return cls(**fields, extras=(*before, *extras))

    def build(self, dims: Dims) -> PartModule:
        return _Extended(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_head, n_kv = widths(self, dims)
        heads = HeadWidths(self.n_heads, n_kv, d_head)
        total = super().cost(dims, shape)
        seen = pairs(self.pattern, shape.length, shape.length) / shape.length
        for extra in self.extras:
            wide = extra.widens(heads)
            # products and values of the wider heads
            more = Cost(flops=4.0 * self.n_heads * wide * seen, kept=(2 * n_kv + 2 * self.n_heads) * wide)
            total += extra.cost(dims, heads) + more
        return total


class ExtendedCache(SeveralStates):
    """A KV cache, and the decoding state of each extra."""

    def __init__(self, cache: Slots, extras: list[Any]) -> None:
        self.cache, self.extras = cache, extras

    @property
    def inner(self) -> list[Any]:
        return [self.cache, *self.extras]


class _Extended(SelfAttentionModule):
    def __init__(self, spec: ExtendedAttention, dims: Dims) -> None:
        super().__init__(spec, dims)
        heads = HeadWidths(spec.n_heads, self.n_kv, self.d_head)
        # products of wider heads have the scale of their own width
        self.scale = spec.scale or self.d_head**-0.5
        self.d_cached += 3 * sum(extra.widens(heads) for extra in spec.extras)
        self.extras = nn.ModuleList(extra.build(dims, heads, self.scale) for extra in spec.extras)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        extras: list[Any] = list(self.extras)
        cache, states = (None, [None] * len(extras)) if state is None else (state.cache, state.extras)
        qkv_BLD = self.qkv(x_BLD)
        for extra, own in zip(extras, states, strict=True):
            qkv_BLD = extra.packed(qkv_BLD, ctx, own)
        q, k, v = self.heads_of(qkv_BLD, ctx)
        for extra, own in zip(extras, states, strict=True):
            q, k = extra.scored(q, k, x_BLD, ctx, own)
            v = extra.valued(v, ctx)
        # fused kernels and caches want one width: zeros change neither scores nor values
        width = k.shape[-1] if cache is None else self.d_cached
        q, k, v = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
        looking = self.looking(x_BLD, ctx)
        k, v, view = visible_keys(k, v, ctx, cache, looking[1])
        y_BHLK = self.attended((q, k, v), looking, view, ctx)[..., : self.d_head]
        y_BLD = y_BHLK.transpose(1, 2).flatten(2)
        for extra in extras:
            y_BLD = extra.output(y_BLD, x_BLD)
        return self.out(y_BLD), state

    def keys_values(self, x_BLD: Tensor, ctx: Context, state: Any) -> KeyValues:
        return PartModule.keys_values(self, x_BLD, ctx, state)

    def new_state(self, batch_size: int, max_len: int) -> Any:
        extras: list[ExtraModule] = list(self.extras)  # type: ignore[arg-type]
        states = [extra.new_state(batch_size, self.qkv.weight) for extra in extras]
        return ExtendedCache(super().new_state(batch_size, max_len), states)
