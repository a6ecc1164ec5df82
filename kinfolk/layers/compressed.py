"""Mixers that look at fewer keys and values than there are positions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError, suggest
from kinfolk.layers.module import Dims, Linear, Module, borrow
from kinfolk.layers.packing import Packing
from kinfolk.layers.part import Mixer, PartModule
from kinfolk.ops.attend import Scoring, View, attend
from kinfolk.ops.compress import compress_positions
from kinfolk.ops.pattern import Full

SHARING = ("none", "headwise", "key-value", "layerwise")


class Linformer(Mixer, kind="linformer"):
    r"""$\mathrm{softmax}(Q_i (E_i K_i)^\top / \sqrt{d})\, F_i V_i$ (Wang et al. 2020, section 4).

    $E$ and $F$ mix the positions of a sequence, at most the model's `max_len`, into `rank` slots. `sharing`: "none" (an
    E and an F for each head and layer), "headwise" (one E and one F per layer), "key-value" (E = F per layer),
    "layerwise" (one map for all layers of a stack). A slot is made of all positions, so there is no causal form.
    """

    n_heads: int
    rank: int
    sharing: str = "headwise"
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.sharing not in SHARING:
            raise SpecError(f"sharing: unknown {self.sharing!r}{suggest(self.sharing, SHARING)}")
        if self.rank < 1:
            raise SpecError(f"rank: {self.rank} is not allowed; at least 1")

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
    """Maps over positions, as many as there are heads of what is mixed, or several of one head."""

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
        if spec.n_heads < 1 or dims.d_model % spec.n_heads:
            raise SpecError(f"linformer: d_model {dims.d_model} is not a multiple of n_heads {spec.n_heads}")
        self.spec, self.limit = spec, dims.max_len
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
        packing = Packing.of(ctx, (x_BLD.shape[0], x_BLD.shape[1]), x_BLD.device)
        if packing is None:
            return self._attend(x_BLD, ctx), state
        return packing.pack(self._attend(packing.unpack(x_BLD), packing.context(ctx))), state

    def new_state(self, batch_size: int, max_len: int) -> Any:
        raise SpecError("linformer: a slot is made of all positions, so it cannot decode step by step")

    def _attend(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        if x_BLD.shape[1] > self.mix.e_nRM.shape[2]:
            raise ShapeError(f"linformer: {x_BLD.shape[1]} positions, its maps have {self.limit}: use a larger max_len")
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        slots = self._slots_of_heads if self.spec.sharing == "none" else self._slots
        k_BHRK, v_BHRK = slots(x_BLD, keep_BL)
        tap = (lambda weights: ctx.tap("weights", weights)) if ctx.hears("weights") else None
        scoring = Scoring(dropout=self.spec.dropout if self.training else 0.0, tap=tap)
        y_BHLK = attend(self._heads(self.q(x_BLD)), k_BHRK, v_BHRK, Full(), View(), scoring)
        return self.out(y_BHLK.transpose(1, 2).flatten(2))

    def _slots(self, x_BLD: Tensor, keep_BL: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mix first, then project R slots instead of L positions: heads share the maps, so it is the same."""
        x_BnRD, (w_k, w_v) = self.mix(x_BLD[:, None], keep_BL), self.kv.weight.chunk(2)
        k_BRD, v_BRD = F.linear(x_BnRD[:, 0], w_k), F.linear(x_BnRD[:, -1], w_v)
        if self.spec.bias:
            # a bias belongs to each real position, so a slot has as much of it as its map weighs them
            share_BnR1 = self.mix(x_BLD.new_ones(len(x_BLD), 1, x_BLD.shape[1], 1), keep_BL)
            b_k, b_v = self.kv.bias.chunk(2)
            k_BRD, v_BRD = k_BRD + share_BnR1[:, 0] * b_k, v_BRD + share_BnR1[:, -1] * b_v
        return self._heads(k_BRD), self._heads(v_BRD)

    def _slots_of_heads(self, x_BLD: Tensor, keep_BL: Tensor | None) -> tuple[Tensor, Tensor]:
        """Project all positions, then mix each head by maps of its own."""
        k_BHRK, v_BHRK = self.mix(self._heads(self.kv(x_BLD)), keep_BL).chunk(2, dim=1)
        return k_BHRK, v_BHRK

    def _heads(self, x_BLD: Tensor) -> Tensor:
        """Cut the last axis into heads: [B, H, L, K]."""
        width = self.q.out_features // self.spec.n_heads
        return x_BLD.unflatten(-1, (-1, width)).transpose(1, 2)
