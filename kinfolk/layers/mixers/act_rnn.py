"""RNN with adaptive computation time: it ponders over each token (Graves 2016).

How many steps a token takes is known only when the one before has ended, so tokens are read one after the other. Those
of a batch that have halted wait without being computed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.errors import SpecError
from kinfolk.layers.halting import HaltingUnit, Pondering
from kinfolk.layers.mixers.packing import by_document, refuse_pairs
from kinfolk.layers.mixers.rnn import GRU, LSTM, Carried, Recurrent, draw_cell
from kinfolk.layers.module import Dims
from kinfolk.layers.part import Mixer, PartModule
from kinfolk.ops.act_rnn import CellWeights, Rules, ponder


class PonderingRNN(Mixer, kind="pondering-rnn"):
    r"""ACT-RNN: $s^n = S(s^{n-1}, [x; n = 1])$ until halting, then $s = \sum_n w_n s^n$ (Graves 2016, section 2).

    The output is the state: a linear map of it commutes with the sum, since weights add up to one, and can come after.
    `cell` is an LSTM or GRU that reads the past; one input more tells it that a token is new. `max_steps` is the most
    that a token may take. Its cost is that of the steps that are made at first.
    """

    cell: Recurrent = LSTM()
    pondering: Pondering = Pondering()
    max_steps: PositiveInt = 100

    def __post_init__(self) -> None:
        if self.cell.direction != "past":
            raise SpecError("cell.direction: an RNN that ponders reads in one direction; use 'past'")

    def build(self, dims: Dims) -> PartModule:
        return _PonderingRNN(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, n, gates = dims.d_model, self.pondering.steps_at_first(self.max_steps), self.cell.n_gates
        params = gates * (2 * d * d + 3 * d) + d + 1
        # a step keeps its state and gates; a token its output and the state it begins with
        n_states = 2 if gates == 4 else 1
        kept = d * (1 + n_states) + n * d * (4 + n_states)
        return Cost(params, 2.0 * gates * d * d * (1 + n) + 14.0 * n * d, kept)


class _PonderingRNN(PartModule):
    def __init__(self, spec: PonderingRNN, dims: Dims) -> None:
        super().__init__()
        self.spec, self.d_model = spec, dims.d_model
        # holds the weights as PyTorch orders them
        self.cell: Any = spec.cell.cell(dims.d_model + 1, dims.d_model, False)
        self.unit = HaltingUnit(dims.d_model, spec.pondering.bias)

    def draw(self) -> None:
        """Draw as recurrent layers do."""
        draw_cell(self.cell)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Carried | None) -> tuple[Tensor, Carried | None]:
        refuse_pairs(ctx, self.spec.kind)
        if state is None:
            return by_document(self._read, x_BLD, ctx), None
        return self._ponder(x_BLD, ctx, state), state

    def new_state(self, batch_size: int, max_len: int) -> Carried:
        """Return zeros."""
        zeros = self.cell.weight_hh_l0.new_zeros(1, batch_size, self.d_model)
        return Carried((zeros,) if isinstance(self.spec.cell, GRU) else (zeros, zeros))

    def _read(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        fresh = x_BLD.new_zeros(1, len(x_BLD), self.d_model)
        return self._ponder(x_BLD, ctx, Carried((fresh,) if isinstance(self.spec.cell, GRU) else (fresh, fresh)))

    def _ponder(self, x_BLD: Tensor, ctx: Context, state: Carried) -> Tensor:
        """Read the tokens of a chunk, and bring the state up to date."""
        keep_BL = torch.ones_like(x_BLD[..., 0], dtype=torch.bool) if ctx.padding is None else ctx.padding.keep_BL
        cell, spec = self.cell, self.spec
        # what a token says is the same in all its steps
        said_BLG = F.linear(x_BLD, cell.weight_ih_l0[:, :-1], cell.bias_ih_l0).to(cell.weight_hh_l0.dtype)
        weights = CellWeights(
            cell.weight_ih_l0[:, -1], cell.weight_hh_l0, cell.bias_hh_l0, self.unit.weight_1D, self.unit.bias_1
        )
        rules = Rules(spec.cell.kind, spec.pondering.eps, spec.max_steps)
        y_BLD, steps_BL, rest_BL, s_BS = ponder(said_BLG, torch.cat(state.values, -1)[0], keep_BL, weights, rules)
        state.values = tuple(s_BS[None].split(self.d_model, dim=-1))
        ctx.tap("steps", steps_BL)
        ctx.tap("remainders", rest_BL)
        # the ponder cost N + R, of which only R has a gradient; the paper adds it up over tokens, here it is their mean
        ctx.add_loss("ponder", spec.pondering.ponder * (steps_BL + rest_BL).sum() / keep_BL.sum().clamp(min=1))
        return y_BLD
