"""RNN decoders with attention to an encoder (Bahdanau et al. 2015; Luong et al. 2015; GNMT).

Where a state depends on the context vector of the token before, tokens are read one after the other.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.encoder_output import EncoderOutput, RecurrentOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.alignment_score import Additive, AlignmentScore, General
from kinfolk.layers.mixers.packing import refuse_pairs
from kinfolk.layers.mixers.rnn import GRU, LSTM, Recurrent, draw_cell
from kinfolk.layers.module import Dims, Dropout, Linear
from kinfolk.layers.part import Mixer, PartModule
from kinfolk.layers.states.rows import Axes, StateRows
from kinfolk.ops.rnn_cell import step


class Searching(Mixer, kind="searching-rnn"):
    r"""RNNsearch: the state attends, then steps: $c_t = \mathrm{look}(s_{t-1})$, $s_t = S(s_{t-1}, [x_t; c_t])$.

    Bahdanau et al. 2015, section 3.1 and appendix A.2.2: $s_0 = \tanh(W h_1)$ of the half that an encoder of both
    directions read from the end, and the output is a maxout of $[s_t; c_t; x_t]$.
    """

    cell: Recurrent = GRU()
    score: AlignmentScore = Additive()

    def __post_init__(self) -> None:
        _refuse_directions(self.cell)

    def build(self, dims: Dims) -> PartModule:
        return _Searching(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, m, gates = dims.d_model, shape.memory, self.cell.n_gates
        begin = linear(d // 2, d, False, kept=False).scaled(1 / shape.length)
        moves = linear(2 * d, gates * d, True, kept=False) + linear(d, gates * d, True, kept=False)
        says = linear(3 * d, 2 * d, True)
        look = self.score.cost(dims, shape)
        kept = d * (self.score.maps[1] + 7 + (gates == 4)) + m + self.score.maps[0] * d * m / shape.length
        return begin + moves + says + look + Cost(flops=14.0 * d, kept=kept)


class Feeding(Mixer, kind="feeding-rnn"):
    r"""Input feeding: $s_t = S(s_{t-1}, [x_t; a_{t-1}])$, where $a_t$ is the output of `Attentional`.

    Luong et al. 2015, section 3.3: `n_layers` cells one on the other, of which the last one looks and
    the first one is fed. The states begin where those of an encoder of as many layers ended.
    """

    cell: Recurrent = LSTM()
    score: AlignmentScore = General()
    n_layers: PositiveInt = 1

    def __post_init__(self) -> None:
        _refuse_directions(self.cell)

    def build(self, dims: Dims) -> PartModule:
        return _Feeding(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, m, gates, n = dims.d_model, shape.memory, self.cell.n_gates, self.n_layers
        moves = linear((n + 1) * d, gates * d, False, kept=False) + linear(n * d, gates * d, False, kept=False)
        says, look = linear(2 * d, d, False), self.score.cost(dims, shape)
        states = 2 if gates == 4 else 1
        between = (n - 1) * d * (2 if dims.dropout else 1)
        kept = d * n * (4 + states) + 3 * d + between + self.score.maps[0] * d * m / shape.length
        return moves + says + look + Cost(n * gates * 2 * d, 14.0 * n * d, kept)


class Attentional(Mixer, kind="attentional"):
    r"""Attentional state $a_t = \tanh(W [c_t; s_t])$, $c_t = \mathrm{look}(s_t)$ (Luong et al. 2015, equation 5)."""

    score: AlignmentScore = General()

    def build(self, dims: Dims) -> PartModule:
        return _Attentional(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, of_memory = dims.d_model, self.score.maps[0]
        kept = 3 * d + of_memory * d * shape.memory / shape.length
        return linear(2 * d, d, False) + self.score.cost(dims, shape) + Cost(flops=d, kept=kept)


class Begun(StateRows):
    """Decoding state of an attentional RNN: states [B, ...] and keys; nothing before the first token."""

    held: ClassVar = {"values": Axes(), "keys_BMD": Axes(room=1)}

    def __init__(self) -> None:
        self.values: tuple[Tensor, ...] = ()
        self.keys_BMD: Tensor | None = None


class _Looking(PartModule):
    """Base of RNNs that attend to an encoder; the keys are made once."""

    def __init__(self, spec: Any, dims: Dims) -> None:
        super().__init__()
        self.spec, self.d_model = spec, dims.d_model
        self.score = spec.score.build(dims)

    def forward(self, x_BLD: Tensor, ctx: Context, state: Begun | None) -> tuple[Tensor, Begun | None]:
        refuse_pairs(ctx, self.spec.kind)
        if ctx.encoder_output is None:
            raise ShapeError(f"{self.spec.kind} needs the states of an encoder: call model(source, target)")
        now = Begun() if state is None else state
        if now.keys_BMD is None:
            now.keys_BMD = self.score.keys(ctx.encoder_output.states_BMD)
        heard: list[Tensor] | None = [] if ctx.hears("weights") else None
        y_BLD = self.read(x_BLD, ctx, now, lambda s: self.score.look(s, now.keys_BMD, ctx.encoder_output, heard))
        if heard is not None:
            ctx.tap("weights", torch.cat(heard, 2))
        return y_BLD, state

    def read(self, x_BLD: Tensor, ctx: Context, state: Begun, look: Any) -> Tensor:
        """Return the output of every token, and bring the state up to date."""
        raise NotImplementedError

    def new_state(self, batch_size: int, max_len: int) -> Begun:
        """Return a state that begins with the first token."""
        return Begun()


class _Attentional(_Looking):
    def __init__(self, spec: Attentional, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.out = Linear(2 * dims.d_model, dims.d_model, bias=False, ends_branch=True)

    def read(self, x_BLD: Tensor, ctx: Context, state: Begun, look: Any) -> Tensor:
        said: Tensor = self.out(torch.cat([look(x_BLD), x_BLD], -1))
        return said.tanh()


class _Stepping(_Looking):
    """Base of RNNs that read one token after the other."""

    def __init__(self, spec: Any, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.wide = 2 if spec.cell.n_gates == 4 else 1

    def read(self, x_BLD: Tensor, ctx: Context, state: Begun, look: Any) -> Tensor:
        assert ctx.encoder_output is not None
        state.values = state.values or self.begin(x_BLD, ctx.encoder_output)
        keep_BL = None if ctx.padding is None else ctx.padding.keep_BL
        weight = self.first.weight_ih_l0
        said_BLG = F.linear(x_BLD, weight[:, : self.d_model], self.first.bias_ih_l0).to(weight.dtype)
        fed_GD, found = weight[:, self.d_model :], []
        for t in range(x_BLD.shape[1]):
            new = self.move(said_BLG[:, t], state.values, fed_GD, look)
            if keep_BL is not None:
                # padding leaves states and what they attended to as they were
                new = tuple(torch.where(keep_BL[:, t, None], n, o) for n, o in zip(new, state.values, strict=True))
            state.values = new
            found.append(new)
        return self.say(x_BLD, [torch.stack(values, 1) for values in zip(*found, strict=True)])

    @property
    def first(self) -> Any:
        """The cell that reads tokens."""
        raise NotImplementedError

    def begin(self, x_BLD: Tensor, source: EncoderOutput) -> tuple[Tensor, ...]:
        """Return the states before the first token."""
        raise NotImplementedError

    def move(self, said_BG: Tensor, values: tuple[Tensor, ...], fed_GD: Tensor, look: Any) -> tuple[Tensor, ...]:
        """Return the states after one token."""
        raise NotImplementedError

    def say(self, x_BLD: Tensor, values: list[Tensor]) -> Tensor:
        """Return the output, from the states after every token."""
        raise NotImplementedError

    def stepped(self, cell: Any, said_BG: Tensor, s_BS: Tensor) -> Tensor:
        """Return the state of a cell after what its input says."""
        rec_BG = F.linear(s_BS[:, : self.d_model], cell.weight_hh_l0, cell.bias_hh_l0)
        return step(self.spec.cell.kind, said_BG, s_BS, rec_BG)


class _Searching(_Stepping):
    def __init__(self, spec: Searching, dims: Dims) -> None:
        super().__init__(spec, dims)
        d = dims.d_model
        if d % 2:
            raise SpecError(f"searching-rnn: d_model {d} cannot be halved, as an encoder of both directions needs it")
        # holds the weights as PyTorch orders them
        self.cell: Any = spec.cell.cell(2 * d, d, False)
        self.start = Linear(d // 2, d, bias=False)
        self.out = Linear(3 * d, 2 * d, packs=2, ends_branch=True)

    def draw(self) -> None:
        """Draw as recurrent layers do."""
        draw_cell(self.cell)

    @property
    def first(self) -> Any:
        return self.cell

    def begin(self, x_BLD: Tensor, source: EncoderOutput) -> tuple[Tensor, ...]:
        s_BD = self.start(source.states_BMD[:, 0, self.d_model // 2 :]).tanh()
        # the cell of an LSTM begins with zeros; the paper has a GRU
        s_BS = F.pad(s_BD, (0, (self.wide - 1) * self.d_model))
        return s_BS, torch.zeros_like(s_BD)

    def move(self, said_BG: Tensor, values: tuple[Tensor, ...], fed_GD: Tensor, look: Any) -> tuple[Tensor, ...]:
        s_BS, _ = values
        seen_BD = look(s_BS[:, None, : self.d_model])[:, 0]
        return self.stepped(self.cell, said_BG + F.linear(seen_BD, fed_GD), s_BS), seen_BD

    def say(self, x_BLD: Tensor, values: list[Tensor]) -> Tensor:
        s_BLS, seen_BLD = values
        said: Tensor = self.out(torch.cat([s_BLS[..., : self.d_model], seen_BLD, x_BLD], -1))
        # maxout over pairs of neighbours
        return said.unflatten(-1, (-1, 2)).max(-1).values


class _Feeding(_Stepping):
    def __init__(self, spec: Feeding, dims: Dims) -> None:
        super().__init__(spec, dims)
        d = dims.d_model
        cells = (spec.cell.cell(d if n else 2 * d, d, False) for n in range(spec.n_layers))
        self.cells = torch.nn.ModuleList(cells)
        self.dropout = Dropout(dims.dropout)
        self.out = Linear(2 * d, d, bias=False, ends_branch=True)

    def draw(self) -> None:
        """Draw as recurrent layers do."""
        for cell in self.cells:
            assert isinstance(cell, torch.nn.RNNBase)
            draw_cell(cell)

    @property
    def first(self) -> Any:
        return self.cells[0]

    def begin(self, x_BLD: Tensor, source: EncoderOutput) -> tuple[Tensor, ...]:
        n, width = self.spec.n_layers, self.wide * self.d_model
        zeros_BD = x_BLD.new_zeros(x_BLD.shape[0], self.d_model)
        if not isinstance(source, RecurrentOutput):
            return (*(zeros_BD.repeat(1, self.wide) for _ in range(n)), zeros_BD)
        ends_NBS = source.ends_NBS
        if len(ends_NBS) < n or ends_NBS.shape[-1] != width:
            found = f"{len(ends_NBS)} layers of {ends_NBS.shape[-1]}"
            raise ShapeError(f"feeding-rnn: states of {n} layers of {width} cannot begin with {found} of an encoder")
        return (*ends_NBS[:n].unbind(0), zeros_BD)

    def move(self, said_BG: Tensor, values: tuple[Tensor, ...], fed_GD: Tensor, look: Any) -> tuple[Tensor, ...]:
        said_BG = said_BG + F.linear(values[-1], fed_GD)
        new: list[Tensor] = []
        for n, cell in enumerate(self.cells):
            if n:
                below_BD = self.dropout(new[-1][:, : self.d_model])
                said_BG = F.linear(below_BD, cell.weight_ih_l0, cell.bias_ih_l0)  # type: ignore[arg-type]
            new.append(self.stepped(cell, said_BG, values[n]))
        s_BD = new[-1][:, : self.d_model]
        seen_BD = look(s_BD[:, None])[:, 0]
        return (*new, self.out(torch.cat([seen_BD, s_BD], -1)).tanh())

    def say(self, x_BLD: Tensor, values: list[Tensor]) -> Tensor:
        return values[-1]


def _refuse_directions(cell: Recurrent) -> None:
    if cell.direction != "past":
        raise SpecError("cell.direction: a decoder reads what it has written, in one direction; use 'past'")
