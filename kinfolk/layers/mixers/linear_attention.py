"""Linear attention by feature maps: Performer (FAVOR+) and linear Transformers.

Time and memory grow linearly with the length, and decoding remembers one matrix per head however much came before.
Weights never exist, so there is no dropout on them and no position that scores pairs.
"""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import Mixer, PartModule, head_width
from kinfolk.layers.positions.position import Heads, NoPosition, Position
from kinfolk.layers.states.rows import StateRows
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import View
from kinfolk.ops.feature_maps import Elu, Exponential, FeatureMap, Rectified, draw
from kinfolk.ops.linear_attention import Direction, Sums, kernel_attend, kernel_continue, work
from kinfolk.ops.patterns.leaves import Causal, Full


class Kernelised(Mixer):
    """Axis: linear attention, with a kernel in the place of the softmax.

    `direction` is "past" (strictly causal) or "both"; `d_head` 0 means d_model / n_heads.
    """

    projects: ClassVar[bool] = True  # features are products with directions

    n_heads: PositiveInt
    d_head: NonNegativeInt = 0
    direction: Direction = "past"
    position: Position = NoPosition()
    bias: bool = True

    def __post_init__(self) -> None:
        if self.position.explicit:
            raise SpecError(f"position: {self.position.kind!r} scores pairs, which {self.kind!r} never makes")

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d_head = head_width(self, dims)
        d_all, n_rows = self.n_heads * d_head, self.n_rows(d_head)
        flops, n_sums = work(shape.length, n_rows, d_head, self.direction)
        flops += 4.0 * n_rows * d_head if self.projects else 0.0
        # queries, keys, values and the norm of each average; sums where the backward pass starts from them
        kept = 3 * d_all + self.n_heads + self.n_heads * n_sums * n_rows * (d_head + 1) / shape.length
        maps = linear(dims.d_model, 3 * d_all, self.bias) + linear(d_all, dims.d_model, self.bias)
        return (
            maps + Cost(flops=self.n_heads * flops, kept=kept) + self.position.cost(dims, Heads(self.n_heads, d_head))
        )

    def n_rows(self, d_head: int) -> int:
        """Return how many features a vector has."""
        raise NotImplementedError


class LinearAttention(Kernelised, kind="linear"):
    r"""Linear attention $\phi(q) \cdot \phi(k)$, $\phi = \mathrm{elu} + 1$ (Katharopoulos et al. 2020, equation 7)."""

    projects = False

    def build(self, dims: Dims) -> PartModule:
        return _Linear(self, dims)

    def n_rows(self, d_head: int) -> int:
        return d_head


class Performer(Kernelised, kind="performer"):
    r"""Performer (FAVOR+): softmax attention estimated from positive random features (Choromanski et al. 2021).

    `kernel`: "softmax" (positive features, lemma 1), "hyperbolic" (both signs of every direction: twice the features,
    less variance) or "relu" (a kernel of its own). `n_features` directions (0: d_head ln d_head) are drawn for each
    layer, with `rows` "orthogonal" or "independent", serve all its heads, and are drawn anew every `redraw` steps of
    training (0: never). Reports how far the output is from that of the softmax as "approximation_error".
    """

    kernel: Literal["softmax", "hyperbolic", "relu"] = "softmax"
    n_features: NonNegativeInt = 0
    rows: Literal["orthogonal", "independent"] = "orthogonal"
    redraw: NonNegativeInt = 1000

    def build(self, dims: Dims) -> PartModule:
        return _Performer(self, dims)

    def n_directions(self, d_head: int) -> int:
        """Return how many directions are drawn."""
        return self.n_features or max(1, int(d_head * math.log(d_head)))

    def n_rows(self, d_head: int) -> int:
        return self.n_directions(d_head) * (2 if self.kernel == "hyperbolic" else 1)


class Remembered(StateRows):
    """Decoding state of linear attention: sums over everything so far, of constant size."""

    def __init__(self, sums: Sums) -> None:
        self.sums = sums

    def select(self, rows_B: Tensor) -> None:
        self.sums = Sums(self.sums.sums_BHRK[rows_B], self.sums.peak_BH[rows_B])

    def join(self, other: "Remembered") -> None:
        a, b = self.sums, other.sums
        self.sums = Sums(torch.cat([a.sums_BHRK, b.sums_BHRK]), torch.cat([a.peak_BH, b.peak_BH]))


class _Kernelised(PartModule):
    """Base of linear attention: everything but the feature map."""

    def __init__(self, spec: Kernelised, dims: Dims) -> None:
        super().__init__()
        if dims.direction == "past" and spec.direction != "past":
            raise SpecError(f"direction: {spec.direction!r} would let a decoder see the future; use 'past'")
        self.spec, self.d_head = spec, head_width(spec, dims)
        d_all = spec.n_heads * self.d_head
        self.qkv = Linear(dims.d_model, 3 * d_all, bias=spec.bias, packs=3)
        self.out = Linear(d_all, dims.d_model, bias=spec.bias, ends_branch=True)
        self.position = spec.position.build(dims, Heads(spec.n_heads, self.d_head))

    def forward(self, x_BLD: Tensor, ctx: Context, state: Remembered | None) -> tuple[Tensor, Remembered | None]:
        if ctx.visible_pairs is not None:
            raise ShapeError(f"{self.spec.kind}: keys are summed before they are seen; single pairs cannot be hidden")
        heads = self.spec.n_heads, self.d_head
        q_BHLK, k_BHLK, v_BHLK = (x.unflatten(-1, heads).transpose(1, 2) for x in self.qkv(x_BLD).chunk(3, dim=-1))
        q_BHLK, k_BHLK = self.position.turn(q_BHLK, k_BHLK, ctx)
        phi = self.phi()
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        if state is None:
            past = self.spec.direction == "past"
            # padding on the right is in the future of everything real
            hidden = ctx.padding is not None and ctx.padding.right and past
            shown_BL = None if hidden else keep_BL
            y_BHLK = kernel_attend(q_BHLK, k_BHLK, v_BHLK, phi, self.spec.direction, shown_BL, ctx.group_BL)
            self.report(q_BHLK, k_BHLK, v_BHLK, y_BHLK, ctx)
        else:
            y_BHLK, state.sums = kernel_continue(q_BHLK, k_BHLK, v_BHLK, phi, state.sums, keep_BL)
        return self.out(y_BHLK.transpose(1, 2).flatten(2)), state

    def new_state(self, batch_size: int, max_len: int) -> Remembered:
        """Return the sums of nothing."""
        if self.spec.direction != "past":
            raise SpecError(
                f"{self.spec.kind} of direction {self.spec.direction!r} cannot decode step by step; use 'past'"
            )
        n_rows = self.spec.n_rows(self.d_head)
        return Remembered(Sums.empty(batch_size, self.spec.n_heads, n_rows, self.d_head, self.out.weight))

    def phi(self) -> FeatureMap:
        """Return the feature map as it is now."""
        raise NotImplementedError

    def report(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, y_BHLK: Tensor, ctx: Context) -> None:
        """Report to listeners what is special about this kind."""


class _Linear(_Kernelised):
    def phi(self) -> FeatureMap:
        return Elu()


class _Performer(_Kernelised):
    spec: Performer
    w_RK: Tensor
    seed: Tensor
    drawn: Tensor

    def __init__(self, spec: Performer, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.register_buffer("w_RK", torch.zeros(spec.n_directions(self.d_head), self.d_head))
        # saved with the weights, so that a loaded model has its features and a resumed run draws the same ones
        self.register_buffer("seed", torch.tensor(0))
        self.register_buffer("drawn", torch.tensor(0))
        self._read, self._number = (0, 0), 0
        self._draw(0)

    def draw(self) -> None:
        """Take a seed from the model's."""
        self.seed.copy_(torch.randint(1 << 62, ()))
        self._draw(0)

    def at_step(self, step: int) -> None:
        """Draw new directions if this step of training begins with others than there are."""
        if not self.training or not self.spec.redraw:
            return
        # read again only after somebody has written it: at every step, reading would make an accelerator wait
        if self._read != (id(self.drawn), self.drawn._version):
            self._number = int(self.drawn)
        if step // self.spec.redraw != self._number:
            self._draw(step // self.spec.redraw)
            self._number = step // self.spec.redraw
        self._read = id(self.drawn), self.drawn._version

    def phi(self) -> FeatureMap:
        if self.spec.kernel == "relu":
            return Rectified(self.w_RK)
        return Exponential(self.w_RK if self.spec.kernel == "softmax" else torch.cat([self.w_RK, -self.w_RK]))

    def report(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, y_BHLK: Tensor, ctx: Context) -> None:
        """Report the distance from exact attention to the same keys, relative to its size. It costs that attention."""
        if not ctx.hears("approximation_error") or self.spec.kernel == "relu":
            return
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        view = View(keep_BM=keep_BL, q_group_BL=ctx.group_BL, k_group_BM=ctx.group_BL)
        pattern = Causal() if self.spec.direction == "past" else Full()
        with torch.no_grad():
            exact_BHLK = attend(q_BHLK, k_BHLK, v_BHLK, pattern, view)
            off_BHLK = y_BHLK - exact_BHLK
            if keep_BL is not None:
                exact_BHLK, off_BHLK = (x * keep_BL[:, None, :, None] for x in (exact_BHLK, off_BHLK))
            ctx.tap("approximation_error", off_BHLK.norm() / exact_BHLK.norm())

    def _draw(self, count: int) -> None:
        spec, n_directions = self.spec, self.spec.n_directions(self.d_head)
        self.w_RK.copy_(draw(n_directions, self.d_head, spec.rows, int(self.seed), count))
        self.drawn.fill_(count)
