"""Mixture of depths: a router chooses which positions a block changes; the others pass it by (Raposo et al. 2024)."""

import dataclasses
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import Fraction, NonNegativeFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.query_subset import QuerySubset
from kinfolk.layers.module import Dims, Linear, Module, Shared
from kinfolk.layers.part import FeedForward
from kinfolk.layers.states.kv_cache import Slots
from kinfolk.layers.states.rows import Axes
from kinfolk.models.block import Block
from kinfolk.models.depth.depth import DepthWrapper
from kinfolk.models.stack import Stack, StackModule
from kinfolk.ops.attention.scores import View
from kinfolk.ops.patterns.leaves import Causal


class MixtureOfDepths(DepthWrapper, kind="mixture-of-depths"):
    r"""Mixture of depths: each `every`-th block changes few positions by $r_i\,(\mathrm{block}(X)_i - x_i)$.

    Raposo et al. 2024 (arXiv:2404.02258), section 3, with $r_i = w^\top x_i$. In training the share `capacity` of
    positions with the largest r of each sequence is chosen; X are the chosen ones alone, so that the block costs as
    much as they do. Which positions are chosen then depends on later ones, and so do losses in training. Anywhere else
    a position is chosen if r > 0, which is causal and which a cross-entropy of r, weighed by `balance`, teaches
    (section 3.5); how many are chosen is then not bounded. Chosen positions attend to chosen ones only. Reference:
    `kinfolk.ops.naive.mixture_of_depths`.
    """

    looks_ahead: ClassVar[bool] = True
    capacity: Fraction = 0.125
    every: PositiveInt = 2
    balance: NonNegativeFloat = 0.01

    def check(self, stack: Stack) -> None:
        for block in (stack.blocks[i] for i in self.routed(stack)):
            first, *others = block.parts
            alone = all(isinstance(part, FeedForward) and part.alone for part in others)
            if type(first) is not Attention or first.pattern != Causal() or not alone or stack.reversible:
                raise SpecError(
                    f"{self.kind}: needs blocks of causal 'attention' and feed-forwards, in an ordinary stack"
                )

    def routed(self, stack: Stack) -> list[int]:
        """Return the blocks that are routed."""
        return [i for i in range(len(stack.blocks)) if i % self.every == self.every - 1]

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        if dims.direction != "past":
            raise SpecError(f"{self.kind}: what is chosen for the future belongs into a decoder")
        for i in self.routed(stack):
            module.blocks[i] = _RoutedBlock(self, module.blocks[i], dims)

    def cost(self, cost: Cost, stack: Stack, dims: Dims, shape: Shape) -> Cost:
        """Count what training costs."""
        n, d = self.n_chosen(shape.length), dims.d_model
        inside, seen = dataclasses.replace(dims, shared=Shared()), set[int]()
        for i in (i for i in stack.order if i in self.routed(stack)):
            block: Block = stack.blocks[i]
            whole, some = block.cost(inside, shape), block.cost(inside, dataclasses.replace(shape, length=n))
            share = n / shape.length
            router = linear(d, 1, True, kept=True) + Cost(flops=4.0 * d * share + 6, kept=3 * d * share + 4)
            params = 0 if i in seen else router.params
            seen.add(i)
            flops, kept = some.flops * share - whole.flops, some.kept * share - whole.kept
            cost += Cost(params, flops + router.flops, kept + router.kept)
        return cost

    def n_chosen(self, length: int) -> int:
        """Return how many positions of a sequence are chosen in training."""
        return max(1, math.ceil(self.capacity * length))


class ChosenSlots(Slots):
    """KV cache of a routed block: positions that were not chosen are masked."""

    rewinds: ClassVar[bool] = False
    held: ClassVar = {**Slots.held, "chosen_BM": Axes(room=1)}

    def __init__(self, k_BGMK: Tensor, v_BGMK: Tensor) -> None:
        super().__init__(k_BGMK, v_BGMK)
        self.chosen_BM = torch.zeros(len(k_BGMK), k_BGMK.shape[2], dtype=torch.bool, device=k_BGMK.device)

    def extend(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, View]:
        k, v, view = super().extend(k_BGLK, v_BGLK, ctx)
        assert ctx.padding is not None
        self.chosen_BM = self.chosen_BM.scatter(1, ctx.positions(k_BGLK.shape[2], k.device), ctx.padding.keep_BL)
        return k, v, dataclasses.replace(view, keep_BM=self.chosen_BM[:, : k.shape[2]])


class _RoutedBlock(Module):
    def __init__(self, spec: MixtureOfDepths, block: nn.Module, dims: Dims) -> None:
        super().__init__()
        self.spec, self.block, self.router = spec, block, Linear(dims.d_model, 1)

    @property
    def parts(self) -> Any:
        """The parts of the block inside."""
        return self.block.parts

    def forward(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None) -> Tensor:
        if ctx.annotations:
            raise ShapeError(f"{self.spec.kind}: its blocks see some positions only, and annotations are about all")
        score_BL = self.router(x_BLD).squeeze(-1)
        chosen_BL = self._chosen(score_BL, ctx)
        ctx.tap("chosen", chosen_BL)
        most = self._most(chosen_BL)
        if not most:
            return x_BLD
        some = QuerySubset.of(chosen_BL, most)
        x_BAD = some.take(x_BLD)
        y_BAD = self.block(x_BAD, some.context(ctx, x_BLD.shape[1]), states)
        return some.put(torch.addcmul(x_BAD, some.take(score_BL[..., None]), y_BAD - x_BAD), x_BLD)

    def _most(self, chosen_BL: Tensor) -> int:
        """Return a bound of how many positions of a row are chosen; a device is asked only where nothing else says."""
        length = chosen_BL.shape[1]
        if self.training:
            return self.spec.n_chosen(length)
        # a step of decoding has one position, so that nothing has to be read from the device
        return 1 if length == 1 else int(chosen_BL.sum(1).max())

    def _chosen(self, score_BL: Tensor, ctx: Context) -> Tensor:
        keep_BL = torch.ones_like(score_BL, dtype=torch.bool) if ctx.padding is None else ctx.padding.keep_BL
        if not self.training:
            return (score_BL > 0) & keep_BL
        # the choice has no gradient: the router learns from r as a factor, and from the cross-entropy below
        score = score_BL.detach().masked_fill(~keep_BL, -torch.inf)
        best_Bk = score.topk(self.spec.n_chosen(score_BL.shape[1]), dim=1).indices
        # a row may have fewer real positions than are chosen
        chosen_BL = torch.zeros_like(keep_BL).scatter(1, best_Bk, True) & keep_BL
        if self.spec.balance:
            losses_BL = F.binary_cross_entropy_with_logits(score_BL, chosen_BL.to(score_BL.dtype), reduction="none")
            mean = losses_BL.masked_fill(~keep_BL, 0.0).sum() / keep_BL.sum()
            ctx.add_loss("routing", self.spec.balance * mean)
        return chosen_BL

    def new_state(self, batch_size: int, max_len: int) -> list[Any]:
        """Return empty states, in which positions can be hidden."""
        cache, *others = self.block.new_state(batch_size, max_len)  # type: ignore[operator]
        return [ChosenSlots(cache.k_BGMK, cache.v_BGMK), *others]

    def new_memory(self) -> list[Any]:
        """Return nothing: attention carries nothing from segment to segment."""
        return [None for _ in self.parts]
