"""LSH attention of the Reformer: queries attend to keys in the same hash bucket (Kitaev et al. 2020).

One map makes queries and keys, so that who resembles a token and who it asks for is the same; `ops.lsh` sorts tokens by
their hashes and attends within buckets. While decoding, the last members of every bucket are remembered, and a new
token looks only at those of its own.
"""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.rng import derive
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import Mixer, PartModule, head_width
from kinfolk.layers.states.rows import Axes, StateRows
from kinfolk.ops import lsh_attention as lsh
from kinfolk.ops import lsh_hash as hashing
from kinfolk.ops.linear_attention import Direction
from kinfolk.ops.lsh_attention import BucketSight, Looking, RecentKeys


class Hashing(Spec):
    """Locality-sensitive hashing (LSH): how tokens fall into buckets.

    `buckets` is their number, or several numbers: then there are as many hashes, and who shares a bucket agrees in all.
    Nothing means about 2 max_len / size of the sight, (1,) puts all tokens into one. `seed` draws the directions, which
    stay the same in training, evaluation and decoding; as `draws` "plain", with PyTorch's generator of that very seed,
    as Hugging Face does with its `hash_seed`.
    """

    n_rounds: PositiveInt = 4
    buckets: tuple[PositiveInt, ...] = ()
    seed: NonNegativeInt = 0
    draws: Literal["own", "plain"] = "own"

    def __post_init__(self) -> None:
        if any(n > 1 and n % 2 for n in self.buckets):
            raise SpecError(f"buckets: {self.buckets} should be even numbers, or 1 for a single bucket")


class Hashed(Mixer, kind="hashed"):
    """LSH attention: to keys of the same hash bucket (Kitaev et al. 2020, section 2).

    A token attends to itself only if it finds no other. `sight` "recent" is strictly causal and decodes; "chunks" is
    the paper's, where later tokens move the borders of chunks. `repeats` "once" counts a pair once, "each" once per
    round that found it. `score_scale` multiplies q . k: 1 in Trax and Hugging Face, 1 / sqrt(d_head) in other code.
    """

    n_heads: PositiveInt
    d_head: NonNegativeInt = 0
    direction: Direction = "past"
    sight: BucketSight = RecentKeys()
    hashing: Hashing = Hashing()
    repeats: Literal["once", "each"] = "once"
    score_scale: PositiveFloat = 1.0
    bias: bool = True

    @property
    def looking(self) -> Looking:
        """The arguments of the operator."""
        return Looking(self.sight, self.direction, self.repeats, self.score_scale)

    def build(self, dims: Dims) -> PartModule:
        return _HashedAttention(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_q = self.n_heads * head_width(self, dims)
        n_rounds, factors = self.hashing.n_rounds, _factors(self, dims)
        maps = linear(dims.d_model, 2 * d_q, self.bias) + linear(d_q, dims.d_model, self.bias)
        seen = lsh.scores_per_query(shape.length, self.looking, n_rounds)
        hashes = 2.0 * d_q * n_rounds * sum(factor // 2 for factor in factors)
        # queries and values, and of every head a norm and a place per round; the output is kept by the last map
        return maps + Cost(flops=4.0 * d_q * seen + hashes, kept=2 * d_q + self.n_heads * (1 + n_rounds))


class _HashedAttention(PartModule):
    def __init__(self, spec: Hashed, dims: Dims) -> None:
        super().__init__()
        self.spec, self.looking = spec, spec.looking
        self.d_head, self.factors = head_width(spec, dims), _factors(spec, dims)
        d_q = spec.n_heads * self.d_head
        self.qv = Linear(dims.d_model, 2 * d_q, bias=spec.bias, packs=2)
        self.out = Linear(d_q, dims.d_model, bias=spec.bias, ends_branch=True)
        self.rotations_HKrj: Tensor
        how, shape = spec.hashing, (spec.n_heads, self.d_head, spec.hashing.n_rounds)
        seed = how.seed if how.draws == "plain" else derive(how.seed, "lsh")
        rotations = hashing.rotations(seed, *shape, self.factors)
        self.register_buffer("rotations_HKrj", rotations, persistent=False)

    def forward(self, x_BLD: Tensor, ctx: Context, state: "BucketState | None") -> tuple[Tensor, "BucketState | None"]:
        if ctx.visible_pairs is not None:
            raise ShapeError("hashed attention finds its keys by hashing: it takes no attention mask of pairs")
        qv = self.qv(x_BLD).unflatten(-1, (2, self.spec.n_heads, self.d_head))
        q_BHLK, v_BHLK = (x.transpose(1, 2) for x in qv.unbind(2))
        buckets_BHrL = hashing.hash_buckets(q_BHLK, self.rotations_HKrj, self.factors)
        ctx.tap("buckets", buckets_BHrL)
        if state is None:
            strict = self.spec.direction == "past" and isinstance(self.spec.sight, RecentKeys)
            hidden = ctx.padding is None or (strict and ctx.padding.right)
            keep_BL = None if hidden or ctx.padding is None else ctx.padding.keep_BL
            y_BHLK = lsh.attend_hashed(q_BHLK, v_BHLK, buckets_BHrL, self.looking, keep_BL, ctx.group_BL)
        else:
            y_BHLK = state.attend(q_BHLK, v_BHLK, buckets_BHrL, ctx)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def new_state(self, batch_size: int, max_len: int) -> "BucketState":
        """Return empty buckets."""
        if self.spec.direction != "past":
            raise SpecError("hashed attention in both directions cannot decode step by step")
        if not isinstance(self.spec.sight, RecentKeys):
            raise SpecError('later tokens move the borders of chunks: to decode step by step, use sight "recent"')
        n_buckets = math.prod(self.factors)
        shape = (batch_size, self.spec.n_heads, max_len, self.d_head)
        k_BHMK, v_BHMK = (self.qv.weight.new_zeros(shape) for _ in range(2))
        return BucketState(k_BHMK, v_BHMK, (self.spec.hashing.n_rounds, n_buckets), self.looking)


class BucketState(StateRows):
    """Decoding state of LSH attention: keys and values of all positions, and the last positions of every bucket.

    A step looks at rounds x size keys, however far decoding has come. A position's place is its bucket and how many of
    the bucket came before: a query sees places 1 to size below its own.
    """

    # more than any bucket will ever hold, whatever the room: rows made for different lengths can be batched together
    stride: ClassVar = 1 << 40
    held: ClassVar = {
        "k_BHMK": Axes(room=2),
        "v_BHMK": Axes(room=2),
        "place_BHrM": Axes(room=3, empty=-2 * stride),
        "count_BHrb": Axes(),
        "last_BHrs": Axes(),
    }

    def __init__(self, k_BHMK: Tensor, v_BHMK: Tensor, buckets: tuple[int, int], looking: Looking) -> None:
        self.k_BHMK, self.v_BHMK, self.looking = k_BHMK, v_BHMK, looking
        (n_rounds, n_buckets), size = buckets, looking.sight.size

        def new(n: int, value: int) -> Tensor:
            return torch.full((*k_BHMK.shape[:2], n_rounds, n), value, device=k_BHMK.device)

        self.place_BHrM = new(k_BHMK.shape[2], -2 * self.stride)
        self.count_BHrb = new(n_buckets, 0)
        # the last slot takes what is not needed
        self.last_BHrs = new(n_buckets * size + 1, -1)

    def attend(self, q_BHLK: Tensor, v_BHLK: Tensor, buckets_BHrL: Tensor, ctx: Context) -> Tensor:
        """Enter new tokens and return what they attend to."""
        n_new = q_BHLK.shape[2]
        if ctx.start + n_new > self.k_BHMK.shape[2]:
            room = self.k_BHMK.shape[2]
            raise ShapeError(f"position {ctx.start + n_new - 1} does not fit a state made for {room} positions")
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        pos_BL = ctx.positions(n_new, q_BHLK.device).expand(len(q_BHLK), n_new)
        if n_new == 1:
            # before it enters, since it attends to those that came earlier
            y_BHLK = self._step(q_BHLK, v_BHLK, buckets_BHrL)
            self._enter(q_BHLK, v_BHLK, buckets_BHrL, pos_BL, keep_BL)
            return y_BHLK
        self._enter(q_BHLK, v_BHLK, buckets_BHrL, pos_BL, keep_BL)
        if ctx.start == 0 and ctx.pos_BL is None:
            return lsh.attend_hashed(q_BHLK, v_BHLK, buckets_BHrL, self.looking, keep_BL)
        # some queries at a time, so that no more than a few million pairs exist at once
        some = max(1, (1 << 22) // (self.k_BHMK[:, :, :, 0].numel()))
        parts = zip(q_BHLK.split(some, 2), pos_BL.split(some, 1), strict=True)
        return torch.cat([self._look_back(q, pos, ctx.start + n_new) for q, pos in parts], dim=2)

    def _enter(
        self, q_BHLK: Tensor, v_BHLK: Tensor, buckets_BHrL: Tensor, pos_BL: Tensor, keep_BL: Tensor | None
    ) -> None:
        """Write tokens at their positions and into their buckets; padding leaves no trace in the buckets."""
        size, n_buckets = self.looking.sight.size, self.count_BHrb.shape[-1]
        real_BHrL = torch.ones_like(buckets_BHrL, dtype=torch.bool)
        if keep_BL is not None:
            real_BHrL = keep_BL[:, None, None].expand_as(buckets_BHrL)
        new_BHrL = lsh.ranks(torch.where(real_BHrL, buckets_BHrL, n_buckets))
        rank_BHrL = self.count_BHrb.gather(-1, buckets_BHrL) + new_BHrL
        self.count_BHrb.scatter_add_(-1, buckets_BHrL, real_BHrL.long())
        # of more new members than slots the last are written: a scatter that meets a slot twice has no order
        late_BHrL = real_BHrL & (rank_BHrL >= self.count_BHrb.gather(-1, buckets_BHrL) - size)
        slot_BHrL = torch.where(late_BHrL, buckets_BHrL * size + rank_BHrL % size, n_buckets * size)
        at_BHrL = pos_BL[:, None, None].expand_as(slot_BHrL)
        self.last_BHrs.scatter_(-1, slot_BHrL, at_BHrL)
        place_BHrL = torch.where(real_BHrL, buckets_BHrL * self.stride + rank_BHrL, -2 * self.stride)
        self.place_BHrM.scatter_(-1, at_BHrL, place_BHrL)
        at_BHLK = pos_BL[:, None, :, None].expand_as(q_BHLK)
        self.k_BHMK.scatter_(2, at_BHLK, lsh.keys(q_BHLK).to(self.k_BHMK.dtype))
        self.v_BHMK.scatter_(2, at_BHLK, v_BHLK.to(self.v_BHMK.dtype))

    def _step(self, q_BH1K: Tensor, v_BH1K: Tensor, buckets_BHr1: Tensor) -> Tensor:
        """Attend to the last members of the token's buckets."""
        size = self.looking.sight.size
        at_BHrs = self.last_BHrs[..., :-1].unflatten(-1, (-1, size))
        at_BHrs = at_BHrs.gather(3, buckets_BHr1[..., None].expand(-1, -1, -1, -1, size))[..., 0, :]
        at_BHM = at_BHrs.flatten(2)
        seen_BHM = at_BHM >= 0
        if self.looking.repeats == "once":
            at_BHM = at_BHM.sort(dim=-1).values
            # sorted, a position that several rounds found follows itself; empty slots are -1
            seen_BHM = at_BHM > F.pad(at_BHM[..., :-1], (1, 0), value=-1)
        at_BHMK = at_BHM.clamp(min=0)[..., None].expand(-1, -1, -1, q_BH1K.shape[-1])
        # itself comes last, seen only if no other is
        seen_BHM = torch.cat([seen_BHM, ~seen_BHM.any(-1, keepdim=True)], dim=-1)
        k_BHMK = torch.cat([self.k_BHMK.gather(2, at_BHMK), lsh.keys(q_BH1K)], dim=2)
        v_BHMK = torch.cat([self.v_BHMK.gather(2, at_BHMK), v_BH1K], dim=2)
        return F.scaled_dot_product_attention(q_BH1K, k_BHMK, v_BHMK, seen_BHM[:, :, None], scale=self.looking.scale)

    def _look_back(self, q_BHLK: Tensor, pos_BL: Tensor, stop: int) -> Tensor:
        """Attend from several positions to all that are entered, by their places."""
        at_BHrL = pos_BL[:, None, None].expand(*self.place_BHrM.shape[:3], -1)
        asks_BHrL = self.place_BHrM.gather(-1, at_BHrL)
        times_BHLM = torch.zeros(*q_BHLK.shape[:3], stop, device=q_BHLK.device, dtype=q_BHLK.dtype)
        for r in range(asks_BHrL.shape[2]):
            back_BHLM = asks_BHrL[:, :, r, :, None] - self.place_BHrM[:, :, r, None, :stop]
            times_BHLM += (back_BHLM > 0) & (back_BHLM <= self.looking.sight.size)
        alone_BHL1 = ~times_BHLM.any(-1, keepdim=True)
        itself_BLM = pos_BL[:, :, None] == torch.arange(stop, device=pos_BL.device)
        times_BHLM += alone_BHL1 & itself_BLM[:, None]
        if self.looking.repeats == "once":
            times_BHLM = times_BHLM.clamp_(max=1)
        k_BHMK, v_BHMK = self.k_BHMK[:, :, :stop], self.v_BHMK[:, :, :stop]
        # a pair that counts n times has log n more as its score, and log 0 = -inf hides it
        return F.scaled_dot_product_attention(q_BHLK, k_BHMK, v_BHMK, times_BHLM.log_(), scale=self.looking.scale)


def _factors(spec: Hashed, dims: Dims) -> tuple[int, ...]:
    return spec.hashing.buckets or hashing.bucket_factors(dims.max_len, spec.sight.size)
