"""Attention to compressed keys and values: Linformer, memory-compressed attention."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt, Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.packing import by_document, refuse_pairs
from kinfolk.layers.module import Dims, Linear, Module, borrow
from kinfolk.layers.part import Mixer, PartModule, split_heads, whole_heads
from kinfolk.layers.states.rows import Axes, StateRows
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.compressed_keys import compress_positions, compress_windows
from kinfolk.ops.patterns.leaves import Causal, Full

Sharing = Literal["none", "headwise", "key-value", "layerwise"]


class Linformer(Mixer, kind="linformer"):
    r"""Linformer: $\mathrm{softmax}(Q_i (E_i K_i)^\top / \sqrt{d})\, F_i V_i$ (Wang et al. 2020, section 4).

    $E$ and $F$ mix the positions of a sequence, at most the model's `max_len`, into `rank` slots. `sharing`: "none" (an
    E and an F for each head and layer), "headwise" (one E and one F per layer), "key-value" (E = F per layer),
    "layerwise" (one map for all layers of a stack). A slot is made of all positions, so there is no causal form.
    """

    n_heads: PositiveInt
    rank: PositiveInt
    sharing: Sharing = "headwise"
    bias: bool = True
    dropout: Rate = 0.0

    def build(self, dims: Dims) -> PartModule:
        if dims.direction == "past":
            raise SpecError("linformer: a slot is made of all positions, so a decoder would see the future")
        return _Linformer(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, n_maps = dims.d_model, self.n_maps
        owned = self.sharing != "layerwise" or dims.shared.first(self.shared_key)
        mixed = Cost(params=n_maps * self.rank * dims.max_len * owned)
        if self.sharing == "none":
            # keys and values of all positions are kept, to be mixed
            mixed += linear(d, 2 * d, self.bias, kept=False) + Cost(flops=4.0 * d * self.rank, kept=2 * d)
        else:
            mixed += Cost(flops=2.0 * d * self.rank * n_maps, kept=n_maps * self.rank * d / shape.length)
            mixed += linear(d, 2 * d, self.bias, kept=False).scaled(self.rank / shape.length)
        explicit = 3 * self.n_heads * self.rank if self.dropout else 0
        kept = d + self.n_heads + explicit + 2 * d * self.rank / shape.length
        return linear(d, d, self.bias) + mixed + Cost(flops=4.0 * d * self.rank, kept=kept) + linear(d, d, self.bias)

    @property
    def n_maps(self) -> int:
        """How many maps over positions a layer uses."""
        return {"none": 2 * self.n_heads, "headwise": 2, "key-value": 1, "layerwise": 1}[self.sharing]

    @property
    def shared_key(self) -> tuple[str, int]:
        """The name under which layers find the map that they share."""
        return self.kind, self.rank


class _Mix(Module):
    """Projections over positions: one per head of what is mixed, or several of one head."""

    def __init__(self, n_maps: int, rank: int, max_len: int) -> None:
        super().__init__()
        self.e_nRM = nn.Parameter(torch.zeros(n_maps, rank, max_len))

    def draw(self) -> None:
        """Draw from N(0, 1 / R), which keeps inner products in the mean: the random maps of the paper's proofs."""
        nn.init.normal_(self.e_nRM, std=self.e_nRM.shape[1] ** -0.5)

    def forward(self, x_BHLK: Tensor, keep_BL: Tensor | None) -> Tensor:
        """Return [B, n, R, K]; one head is mixed by every map."""
        if x_BHLK.shape[1] != 1:
            return compress_positions(x_BHLK, self.e_nRM, keep_BL)
        mixed_B1RK = compress_positions(x_BHLK, self.e_nRM.flatten(0, 1)[None], keep_BL)
        return mixed_B1RK[:, 0].unflatten(1, self.e_nRM.shape[:2])


class _Linformer(PartModule):
    mix: _Mix

    def __init__(self, spec: Linformer, dims: Dims) -> None:
        super().__init__()
        self.spec, self.limit = spec, dims.max_len
        self.d_head = whole_heads(spec, dims)
        self.q = Linear(dims.d_model, dims.d_model, bias=spec.bias)
        self.kv = Linear(dims.d_model, 2 * dims.d_model, bias=spec.bias, packs=2)
        self.out = Linear(dims.d_model, dims.d_model, bias=spec.bias, ends_branch=True)

        def make() -> _Mix:
            return _Mix(spec.n_maps, spec.rank, dims.max_len)

        if spec.sharing == "layerwise":
            borrow(self, "mix", dims.shared.once(spec.shared_key, make))
        else:
            self.mix = make()

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        refuse_pairs(ctx, self.spec.kind)
        return by_document(self._attend, x_BLD, ctx), state

    def new_state(self, batch_size: int, max_len: int) -> Any:
        raise SpecError("linformer: a slot is made of all positions, so it cannot decode step by step")

    def _attend(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        if x_BLD.shape[1] > self.mix.e_nRM.shape[2]:
            raise ShapeError(f"linformer: {x_BLD.shape[1]} positions, its maps have {self.limit}: use a larger max_len")
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        slots = self._slots_of_heads if self.spec.sharing == "none" else self._slots
        k_BHRK, v_BHRK = slots(x_BLD, keep_BL)
        dropout = self.spec.dropout if self.training else 0.0
        scoring = Scoring(dropout=dropout, tap=ctx.listener("weights"))
        y_BHLK = attend(split_heads(self.q(x_BLD), self.d_head), k_BHRK, v_BHRK, Full(), View(), scoring)
        return self.out(y_BHLK.transpose(1, 2).flatten(2))

    def _slots(self, x_BLD: Tensor, keep_BL: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mix first, then project R slots instead of L positions: heads share the maps, so it is the same."""
        x_BnRD, (w_k, w_v) = self.mix(x_BLD[:, None], keep_BL), self.kv.weight.chunk(2)
        k_BRD, v_BRD = F.linear(x_BnRD[:, 0], w_k), F.linear(x_BnRD[:, -1], w_v)
        if self.spec.bias:
            # a bias belongs to each real position, so a slot has as much of it as its map weighs them
            share_BnR1 = self.mix(x_BLD.new_ones(x_BLD.shape[0], 1, x_BLD.shape[1], 1), keep_BL)
            b_k, b_v = self.kv.bias.chunk(2)
            k_BRD, v_BRD = k_BRD + share_BnR1[:, 0] * b_k, v_BRD + share_BnR1[:, -1] * b_v
        return split_heads(k_BRD, self.d_head), split_heads(v_BRD, self.d_head)

    def _slots_of_heads(self, x_BLD: Tensor, keep_BL: Tensor | None) -> tuple[Tensor, Tensor]:
        """Project all positions, then mix each head by maps of its own."""
        k_BHRK, v_BHRK = self.mix(split_heads(self.kv(x_BLD), self.d_head), keep_BL).chunk(2, dim=1)
        return k_BHRK, v_BHRK


class MemoryCompressed(Mixer, kind="memory-compressed"):
    r"""Memory-compressed attention: keys and values by a strided convolution (Liu et al. 2018).

    Keys and values pass, after their projection, through a convolution as wide as its `stride`, each head with filters
    of its own for keys and for values. A query sees the windows that end with or before it, and one slot more: its key
    and value are 0, for the first queries, which see no window yet.
    """

    n_heads: PositiveInt
    stride: PositiveInt = 3
    bias: bool = True
    dropout: Rate = 0.0

    def build(self, dims: Dims) -> PartModule:
        return MemoryCompressedModule(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, s = dims.d_model, self.stride
        filters = linear(s * d // self.n_heads, 2 * d, self.bias, kept=False)
        # run once per window; its input is a copy of keys and values
        squeeze = Cost(filters.params, filters.flops / s, 2 * d + 2 * d / s)
        seen = sum((i + 1) // s + 1 for i in range(shape.length)) / shape.length
        explicit = 3 * self.n_heads * (shape.length // s + 1) if self.dropout else 0
        # queries, and what comes out of attention before it is in order again
        scores = Cost(flops=4.0 * d * seen, kept=2 * d + self.n_heads + explicit)
        return linear(d, 3 * d, self.bias) + squeeze + scores + linear(d, d, self.bias)


class Windows(StateRows):
    """Keys and values of full windows, and those that wait for their window to fill. Slot 0 is empty and always seen.

    As long as a window is not full its slot lies in the future of every query. The last slot is never looked at: what
    is not yet to be written goes there.
    """

    held: ClassVar = {"slots_BGMK": Axes(room=2), "tail_BGtK": Axes()}

    def __init__(self, slots_BGMK: Tensor, tail_BGtK: Tensor) -> None:
        self.slots_BGMK, self.tail_BGtK = slots_BGMK, tail_BGtK

    def extend(self, kv_BGLK: Tensor, squeeze: Callable[[Tensor], Tensor], ctx: Context) -> Tensor:
        """Take in new keys and values; return the slots that the furthest example may look at."""
        (n_examples, _, n_new, _), stride = kv_BGLK.shape, self.tail_BGtK.shape[2] + 1
        n_slots, device = (ctx.start + n_new) // stride + 1, kv_BGLK.device
        if n_slots >= self.slots_BGMK.shape[2]:
            raise ShapeError(f"position {ctx.start + n_new - 1} does not fit a state made for fewer positions")
        first_B1 = ctx.positions(n_new, device).expand(n_examples, n_new)[:, :1]
        n_real = n_new if ctx.padding is None else ctx.padding.keep_BL.sum(1, keepdim=True)
        all_BGMK = torch.cat([self.tail_BGtK, kv_BGLK], dim=2)
        window_Bn = first_B1 // stride + torch.arange((n_new + stride - 1) // stride, device=device)
        full_Bn = (window_Bn + 1) * stride <= first_B1 + n_real
        # position p is at p - first + stride - 1
        begin_Bn = window_Bn * stride - first_B1 + stride - 1
        at_Bm = (begin_Bn[..., None] + torch.arange(stride, device=device)).flatten(1).clamp(max=all_BGMK.shape[2] - 1)
        slot_Bn = torch.where(full_Bn, window_Bn + 1, self.slots_BGMK.shape[2] - 1)
        rows_B1 = torch.arange(n_examples, device=device)[:, None]
        self.slots_BGMK[rows_B1, :, slot_Bn] = squeeze(_pick(all_BGMK, at_Bm)).transpose(1, 2)
        self.tail_BGtK = _pick(all_BGMK, (n_real + torch.arange(stride - 1, device=device)).expand(n_examples, -1))
        return self.slots_BGMK[:, :, :n_slots]


class MemoryCompressedModule(PartModule):
    """Memory-compressed attention: strided convolutions shorten keys and values."""

    def __init__(self, spec: MemoryCompressed, dims: Dims) -> None:
        super().__init__()
        self.spec, self.d_head = spec, whole_heads(spec, dims)
        self.qkv = Linear(dims.d_model, 3 * dims.d_model, bias=spec.bias, packs=3)
        # a map for every head of keys and of values, from the window's positions side by side
        self.filters = Linear(spec.stride * self.d_head, 2 * dims.d_model, bias=spec.bias, packs=2 * spec.n_heads)
        self.out = Linear(dims.d_model, dims.d_model, bias=spec.bias, ends_branch=True)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Windows | None) -> tuple[Tensor, Windows | None]:
        refuse_pairs(ctx, self.spec.kind)
        if state is None:
            return by_document(self._attend, x_BLD, ctx), None
        q_BHLK, kv_BGLK = self._project(x_BLD)
        slots_BGMK = state.extend(kv_BGLK, self._squeeze, ctx)
        if ctx.start == 0 and ctx.pos_BL is None:
            y_BHLK = self._look(q_BHLK, slots_BGMK, ctx)
        else:
            y_BHLK = self._look_on(q_BHLK, slots_BGMK, ctx)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def new_state(self, batch_size: int, max_len: int) -> Windows:
        """Return slots for every window, and one more than is looked at."""
        shape, new = (batch_size, 2 * self.spec.n_heads), self.out.weight.new_zeros
        slots = new(*shape, max_len // self.spec.stride + 2, self.d_head)
        return Windows(slots, new(*shape, self.spec.stride - 1, self.d_head))

    def _attend(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        q_BHLK, kv_BGLK = self._project(x_BLD)
        if ctx.padding is not None and not ctx.padding.right:
            # padding behind a text lies in windows that end after all its queries
            kv_BGLK = kv_BGLK.masked_fill(~ctx.padding.keep_BL[:, None, :, None], 0.0)
        slots_BGMK = F.pad(self._squeeze(kv_BGLK), (0, 0, 1, 0))
        return self.out(self._look(q_BHLK, slots_BGMK, ctx).transpose(1, 2).flatten(2))

    def _project(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        qkv_BGLK = split_heads(self.qkv(x_BLD), self.d_head)
        return qkv_BGLK[:, : self.spec.n_heads], qkv_BGLK[:, self.spec.n_heads :]

    def _squeeze(self, kv_BGLK: Tensor) -> Tensor:
        w_GKtK = self.filters.weight.view(-1, self.d_head, self.spec.stride, self.d_head)
        b_GK = None if self.filters.bias is None else self.filters.bias.view(-1, self.d_head)
        return compress_windows(kv_BGLK, w_GKtK, b_GK)

    def _look(self, q_BHLK: Tensor, slots_BGMK: Tensor, ctx: Context) -> Tensor:
        """Look from positions 0, 1, …: query i sees slots up to (i + 1) // stride.

        So every stride-th query and the slots make a square causal attention, which needs no mask.
        """
        k_BHMK, v_BHMK = slots_BGMK.chunk(2, dim=1)
        length, n_slots, stride = q_BHLK.shape[2], slots_BGMK.shape[2], self.spec.stride
        # one query in front: then number i of the others is at i + 1, and (i + 1) // stride is its row among the slots
        q_BHntK = F.pad(q_BHLK, (0, 0, 1, n_slots * stride - length - 1)).unflatten(2, (n_slots, stride))
        seen: list[Tensor] = []
        scoring = Scoring(
            dropout=self.spec.dropout if self.training else 0.0, tap=seen.append if ctx.hears("weights") else None
        )
        each = [attend(q_BHntK[..., t, :], k_BHMK, v_BHMK, Causal(), View(), scoring) for t in range(stride)]
        if seen:
            ctx.tap("weights", torch.stack(seen, dim=3).flatten(2, 3)[:, :, 1 : length + 1])
        return torch.stack(each, dim=3).flatten(2, 3)[:, :, 1 : length + 1]

    def _look_on(self, q_BHLK: Tensor, slots_BGMK: Tensor, ctx: Context) -> Tensor:
        """Look from anywhere at slots at the ends of their windows."""
        k_BHMK, v_BHMK = slots_BGMK.chunk(2, dim=1)
        dropout = self.spec.dropout if self.training else 0.0
        scoring = Scoring(dropout=dropout, tap=ctx.listener("weights"))
        if ctx.pos_BL is None and q_BHLK.shape[2] == 1:
            return attend(q_BHLK, k_BHMK, v_BHMK, Full(), View(), scoring)
        # slot 0 has no window and is seen from position 0 on; a position below 0 would hide it
        ends_1M = (torch.arange(slots_BGMK.shape[2], device=q_BHLK.device) * self.spec.stride - 1).clamp(min=0)[None]
        view = View(start=ctx.start, q_pos_BL=ctx.pos_BL, k_pos_BM=ends_1M)
        return attend(q_BHLK, k_BHMK, v_BHMK, Causal(), view, scoring)


def _pick(x_BGMK: Tensor, at_Bm: Tensor) -> Tensor:
    """Return some positions, others for each example."""
    return x_BGMK.gather(2, at_Bm[:, None, :, None].expand(-1, x_BGMK.shape[1], -1, x_BGMK.shape[3]))
