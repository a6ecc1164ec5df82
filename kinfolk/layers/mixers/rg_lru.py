"""Real-gated linear recurrent unit: the recurrent block of Griffin and Hawk (De et al. 2024)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.linear_recurrence import shown
from kinfolk.layers.mixers.mamba import RecurrentVector
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.mixers.short_conv import ShortConv, short_conv_cost
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.part import Mixer, PartModule, only_past
from kinfolk.ops.chunk_scan import chunks_of, precision
from kinfolk.ops.diagonal_scan import CHUNK, diagonal_scan


class RGLRU(Mixer, kind="rg-lru"):
    r"""RG-LRU block $W_o(\mathrm{GELU}(W_y x) \odot \mathrm{RGLRU}(\mathrm{conv}(W_x x)))$ (De et al. 2024, 2.3, 2.4).

    $h_t = a_t h_{t-1} + \sqrt{1 - a_t^2}\,(i_t x_t)$ with $a_t = \exp(-c\,\mathrm{softplus}(\Lambda)\,r_t)$ (equations
    1 to 4). The gates r and i are `n_heads` block-diagonal maps. `width` 0 means d_model; `kernel` is the length of the
    convolution, `power` c. The first position of a document is not scaled, as in the released code.
    """

    n_heads: PositiveInt
    width: NonNegativeInt = 0
    kernel: PositiveInt = 4
    power: PositiveFloat = 8.0

    def build(self, dims: Dims) -> PartModule:
        return _RGLRU(self, dims)

    def widths(self, dims: Dims) -> tuple[int, int]:
        """Return the inner width and that of a block, or say why they cannot be."""
        width = self.width or dims.d_model
        if width % self.n_heads:
            raise SpecError(f"{self.kind}: n_heads {self.n_heads} does not divide the width {width}")
        return width, width // self.n_heads

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        width, block = self.widths(dims)
        maps = linear(dims.d_model, 2 * width, True) + linear(width, dims.d_model, True)
        gates = Cost(2 * width * (block + 1) + width, 4.0 * width * block, width)
        n_states = len(chunks_of(shape.length, CHUNK))
        # GELU's input and output, both gates, the log decay in three stages, the scaled input, the scan and its output
        kept = 11 * width + n_states * width / shape.length
        return maps + gates + short_conv_cost(width, self.kernel, True) + Cost(flops=20.0 * width, kept=kept)


class _RGLRU(PartModule):
    def __init__(self, spec: RGLRU, dims: Dims) -> None:
        super().__init__()
        only_past(spec, dims)
        self.spec = spec
        self.width, block = spec.widths(dims)
        self.inner = Linear(dims.d_model, 2 * self.width, packs=2)
        self.conv = ShortConv(self.width, spec.kernel, bias=True)
        self.gates_HbK = nn.Parameter(torch.zeros(spec.n_heads, block, 2 * block))
        self.gate_bias_HK = nn.Parameter(torch.zeros(spec.n_heads, 2 * block))
        self.log_rate_D = nn.Parameter(torch.zeros(self.width))
        self.out = Linear(self.width, dims.d_model, ends_branch=True)

    def draw(self) -> None:
        """Draw gates that keep sizes, and rates for which a^c is uniform in [0.9, 0.999] with an open gate."""
        nn.init.normal_(self.gates_HbK, std=self.gates_HbK.shape[1] ** -0.5)
        with torch.no_grad():
            self.gate_bias_HK.zero_()
            # uniform over the area of a ring between two radii, as in the released code: a root
            decay = self.log_rate_D.uniform_(0.9**2, 0.999**2).sqrt_()
            # the inverse of softplus of -log(a) / c, which is close to 0: expm1 keeps its digits
            self.log_rate_D.copy_(torch.expm1(-decay.log() / self.spec.power).log())

    def forward(
        self, x_BLD: Tensor, ctx: Context, state: RecurrentVector | None
    ) -> tuple[Tensor, RecurrentVector | None]:
        refuse_pairs(ctx, self.spec.kind)
        y_BLD, x_BLD = self.inner(x_BLD).chunk(2, dim=-1)
        x_BLD = self.conv(x_BLD, ctx, state)
        log_decay_BLD, x_BLD = self._gated(x_BLD, ctx)
        keep_BL = shown(ctx, state)
        if keep_BL is not None:
            log_decay_BLD, x_BLD = (z.masked_fill(~keep_BL.unsqueeze(-1), 0.0) for z in (log_decay_BLD, x_BLD))
        where = (None, ctx.group_BL) if state is None else (state.memory_BDR.mT, None)
        h_BLD, after_B1D = diagonal_scan(log_decay_BLD, x_BLD, *where)
        if state is not None:
            state.memory_BDR = after_B1D.mT
        return self.out(F.gelu(y_BLD, approximate="tanh") * h_BLD), state

    def _gated(self, x_BLD: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the log decay and what enters the state."""
        x_BLHb = x_BLD.unflatten(-1, (self.spec.n_heads, -1))
        x_HNb = x_BLHb.flatten(0, 1).transpose(0, 1)
        gates_HNK = torch.baddbmm(self.gate_bias_HK.unsqueeze(1), x_HNb, self.gates_HbK).sigmoid()
        enter, forget = (g.transpose(0, 1).reshape(x_BLD.shape) for g in gates_HNK.chunk(2, dim=-1))
        log_decay_BLD = -self.spec.power * F.softplus(self.log_rate_D) * forget
        # 1 - a^2 would lose its digits near a = 1; the derivative of the root is bounded, as in the released code
        scale_BLD = (-torch.expm1(2 * log_decay_BLD)).clamp(min=1e-12).sqrt()
        first = (ctx.positions(x_BLD.shape[1], x_BLD.device) == 0).unsqueeze(-1)
        return log_decay_BLD, enter * x_BLD * scale_BLD.masked_fill(first, 1.0)

    def new_state(self, batch_size: int, max_len: int) -> RecurrentVector:
        """Return an empty state."""
        like = self.out.weight
        recent = like.new_zeros(batch_size, self.spec.kernel - 1, self.width)
        return RecurrentVector(recent, like.new_zeros(batch_size, self.width, 1, dtype=precision(like)))
