"""Multi-head latent attention (MLA): keys and values of all heads from one narrow vector, which is cached."""

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.attention import scoring_of, visible_keys
from kinfolk.layers.mixers.attention_cost import score_cost
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.norms.norm import Norm, RMSNorm
from kinfolk.layers.part import Mixer, PartModule
from kinfolk.layers.positions.position import Heads, Position
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.states.kv_cache import Slots
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.patterns.leaves import Causal, Pattern
from kinfolk.ops.patterns.plan import pairs


class LatentAttention(Mixer, kind="latent-attention"):
    r"""Multi-head latent attention (MLA): keys and values from a latent $c = \mathrm{norm}(W^{DKV} x)$, `kv_rank` wide.

    DeepSeek-AI 2024 (DeepSeek-V2, arXiv:2405.04434), section 2.1, equations 9 to 19. Queries come from a latent of
    width `q_rank` (0: from x). Of each head `d_nope` channels are compared without positions and `d_rope` with them,
    the latter with keys that all heads share. Decoding caches c and the shared key, `kv_rank + d_rope` numbers per
    position, and attends to c itself: the maps to keys and values are moved to the other side of the products.
    `scale` 0 means 1 / sqrt(d_nope + d_rope).
    """

    n_heads: PositiveInt
    kv_rank: PositiveInt
    d_nope: PositiveInt
    d_rope: PositiveInt
    d_value: PositiveInt
    q_rank: NonNegativeInt = 0
    pattern: Pattern = Causal()
    position: Position = Rotary()
    norm: Norm = RMSNorm()
    bias: bool = False
    dropout: Rate = 0.0
    scale: NonNegativeFloat = 0.0

    def build(self, dims: Dims) -> PartModule:
        if not self.pattern.causal or self.position.explicit:
            raise SpecError("latent-attention: the pattern must be causal and the position rotary or none")
        return _Latent(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_key, n = self.d_nope + self.d_rope, self.n_heads
        queries = linear(self.q_rank or dims.d_model, n * d_key, False)
        if self.q_rank:
            queries += linear(dims.d_model, self.q_rank, self.bias) + self.norm.cost(self.q_rank)
        # what the narrow maps read is kept once
        keys = linear(dims.d_model, self.kv_rank + self.d_rope, self.bias, kept=not self.q_rank)
        keys += self.norm.cost(self.kv_rank) + linear(self.kv_rank, n * (self.d_nope + self.d_value), False)
        seen = pairs(self.pattern, shape.length, shape.length) / shape.length
        scored = float(shape.length) if self.dropout else 0.0
        d_wide = n * max(d_key, self.d_value)
        out = linear(n * self.d_value, dims.d_model, self.bias)
        where = self.position.cost(dims, Heads(n, self.d_rope), scored or seen)
        return queries + keys + score_cost(d_wide, d_wide, self, seen, scored) + out + where


class _Latent(PartModule):
    def __init__(self, spec: LatentAttention, dims: Dims) -> None:
        super().__init__()
        self.spec, n, d_key = spec, spec.n_heads, spec.d_nope + spec.d_rope
        self.scale = spec.scale or d_key**-0.5
        self.q_down = Linear(dims.d_model, spec.q_rank, bias=spec.bias) if spec.q_rank else None
        self.q_norm = spec.norm.build(spec.q_rank) if spec.q_rank else None
        self.q_up = Linear(spec.q_rank or dims.d_model, n * d_key, bias=False, projects=True)
        self.kv_down = Linear(dims.d_model, spec.kv_rank + spec.d_rope, bias=spec.bias)
        self.kv_norm = spec.norm.build(spec.kv_rank)
        self.kv_up = Linear(spec.kv_rank, n * (spec.d_nope + spec.d_value), bias=False, projects=True)
        self.out = Linear(n * spec.d_value, dims.d_model, bias=spec.bias, ends_branch=True)
        self.position = spec.position.build(dims, Heads(n, spec.d_rope))

    def forward(self, x_BLD: Tensor, ctx: Context, state: Slots | None) -> tuple[Tensor, Slots | None]:
        spec, q_BLR = self.spec, x_BLD
        if self.q_down is not None and self.q_norm is not None:
            q_BLR = self.q_norm(self.q_down(x_BLD))
        q_BHLK = self.q_up(q_BLR).unflatten(-1, (spec.n_heads, -1)).transpose(1, 2)
        q_nope, q_rope = q_BHLK.split_with_sizes([spec.d_nope, spec.d_rope], -1)
        latent_BLR, k_rope_BLK = self.kv_down(x_BLD).split_with_sizes([spec.kv_rank, spec.d_rope], -1)
        latent_BLR = self.kv_norm(latent_BLR)
        q_rope, k_rope = self.position.turn(q_rope, k_rope_BLK.unsqueeze(1), ctx)
        if state is None:
            y_BHLK = self._expanded((q_nope, q_rope), latent_BLR, k_rope, ctx)
        else:
            y_BHLK = self._absorbed((q_nope, q_rope), latent_BLR, k_rope, ctx, state)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def _expanded(self, q: tuple[Tensor, Tensor], latent_BLR: Tensor, k_rope: Tensor, ctx: Context) -> Tensor:
        """Attend with keys and values of every head."""
        spec = self.spec
        kv_BHLK = self.kv_up(latent_BLR).unflatten(-1, (spec.n_heads, -1)).transpose(1, 2)
        k_nope, v_BHLK = kv_BHLK.split_with_sizes([spec.d_nope, spec.d_value], -1)
        both = torch.cat(q, -1), torch.cat([k_nope, k_rope.expand(-1, spec.n_heads, -1, -1)], -1), v_BHLK
        # queries, keys and values of one width: zeros change neither scores nor values
        width = max(x.shape[-1] for x in both)
        q_BHLK, k_BHLK, v_BHLK = (F.pad(x, (0, width - x.shape[-1])) for x in both)
        k_BHLK, v_BHLK, view = visible_keys(k_BHLK, v_BHLK, ctx, None, spec.pattern)
        y_BHLK = attend(q_BHLK, k_BHLK, v_BHLK, spec.pattern, view, scoring_of(self, ctx, scale=self.scale))
        return y_BHLK[..., : spec.d_value]

    def _absorbed(
        self, q: tuple[Tensor, Tensor], latent_BLR: Tensor, k_rope: Tensor, ctx: Context, state: Slots
    ) -> Tensor:
        """Attend to the latents themselves: one head of keys, which are values too."""
        spec = self.spec
        up_HKR = self.kv_up.weight.unflatten(0, (spec.n_heads, -1)).to(q[0].dtype)
        key_up_HKR, value_up_HKR = up_HKR.split_with_sizes([spec.d_nope, spec.d_value], 1)
        # q (W c) = (q W) c: the map of keys moves to the queries, and that of values behind the sum
        q_BHLR = torch.cat([q[0] @ key_up_HKR, q[1]], -1)
        new_B1LR = torch.cat([latent_BLR.unsqueeze(1), k_rope], -1)
        k_B1MR, _, view = visible_keys(new_B1LR, new_B1LR[..., :0], ctx, state, spec.pattern)
        y_BHLR = attend(q_BHLR, k_B1MR, k_B1MR, spec.pattern, view, scoring_of(self, ctx, scale=self.scale))
        return y_BHLR[..., : spec.kv_rank] @ value_up_HKR.mT

    def new_state(self, batch_size: int, max_len: int) -> Slots:
        """Return slots of latents: keys alone."""
        new = self.kv_down.weight.new_zeros(batch_size, 1, max_len, self.spec.kv_rank + self.spec.d_rope)
        return Slots(new, new[..., :0].clone())
