"""Recurrent mixers: PyTorch's modules with copied weights, padding, packed documents, states, and pondering."""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.errors import SpecError
from kinfolk.layers.halting import Pondering
from kinfolk.layers.mixers.act_rnn import PonderingRNN
from kinfolk.layers.mixers.rnn import GRU, LSTM
from kinfolk.layers.module import Dims
from tests.exact import assert_exact

D = 8
DIMS = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
KINDS = {
    "lstm": LSTM(),
    "gru": GRU(),
    "act-lstm": PonderingRNN(max_steps=4),
    "act-gru": PonderingRNN(cell=GRU(), max_steps=4),
}
THEIRS = {"lstm": nn.LSTM, "gru": nn.GRU}
NUMBERS = {"d_model": D, "n_layers": 3, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 32}


def layer(spec):
    torch.manual_seed(0)
    module = spec.build(DIMS).double()
    for p in module.parameters():
        nn.init.normal_(p, std=0.6)
    if isinstance(spec, PonderingRNN):
        # tokens differ in how long they take
        module.unit.weight_1D.data *= 8
    return module


def x(n, batch=2):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("kind", THEIRS)
def test_a_language_model_is_pytorchs_module_between_two_tables(kind):
    model = kf.build(kf.relative(kind, size="tiny", **NUMBERS)).double()
    theirs = THEIRS[kind](D, D, num_layers=3, batch_first=True, dtype=torch.float64)
    for n, block in enumerate(model.decoder.blocks):
        for name, weight in block.parts[0].cell.named_parameters():
            nn.init.normal_(weight, std=0.5)
            getattr(theirs, name.replace("_l0", f"_l{n}")).data = weight.data.clone()
    tokens = torch.randint(31, (2, 9))
    table = model.embedding.table.weight
    want = theirs(table[tokens])[0] @ table.T
    got = model(tokens).logits
    assert_exact(got, want)
    (gradient,) = torch.autograd.grad(got.square().sum(), table)
    assert_exact(gradient, torch.autograd.grad(want.square().sum(), table)[0])


@pytest.mark.parametrize("kind", THEIRS)
def test_both_directions_are_pytorchs(kind):
    module = layer(KINDS[kind].replace(direction="both"))
    theirs = THEIRS[kind](D, D // 2, batch_first=True, bidirectional=True, dtype=torch.float64)
    theirs.load_state_dict(module.cell.state_dict())
    assert_exact(module(x(7), Context(), None)[0], theirs(x(7))[0])


@pytest.mark.parametrize("kind", THEIRS)
def test_towards_the_future_is_the_past_turned_round(kind):
    past, future = layer(KINDS[kind]), layer(KINDS[kind].replace(direction="future"))
    assert_exact(future(x(7), Context(), None)[0], past(x(7).flip(1), Context(), None)[0].flip(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [(1,) * 11, (4, 1, 6)], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(kind, chunks):
    module, full = layer(KINDS[kind]), x(11)
    want, _ = module(full, Context(), None)
    state, at, got = module.new_state(2, 11), 0, []
    for n in chunks:
        y, state = module(full[:, at : at + n], Context(start=at), state)
        got.append(y)
        at += n
    assert_exact(torch.cat(got, 1), want)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_their_own_positions_after_padded_prompts(kind):
    module, full, lengths = layer(KINDS[kind]), x(14, batch=3), torch.tensor([2, 7, 0])
    state = module.new_state(3, 14)
    keep = torch.arange(7) < lengths[:, None]
    module(full[:, :7], Context(padding=Padding(keep, right=True)), state)
    for step in range(4):
        pos = (lengths + step)[:, None]
        got, _ = module(full[torch.arange(3)[:, None], pos], Context(start=7 + step, pos_BL=pos), state)
        for row in range(3):
            assert_exact(got[row, 0], module(full[row : row + 1, : int(pos[row]) + 1], Context(), None)[0][0, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_selecting_rows_moves_the_state_with_them(kind):
    module, full = layer(KINDS[kind]), x(9)
    state = module.new_state(2, 9)
    module(full[:, :8], Context(), state)
    state.select(torch.tensor([1, 1]))
    got, _ = module(full[[1, 1], 8:], Context(start=8), state)
    assert_exact(got[:, 0], module(full[[1, 1]], Context(), None)[0][:, -1])


# who ponders reads in one direction
@pytest.mark.parametrize(
    ("kind", "direction"),
    [(kind, "past") for kind in KINDS] + [(kind, d) for kind in THEIRS for d in ("both", "future")],
)
def test_padding_on_either_side_and_packed_documents(kind, direction):
    spec = KINDS[kind] if direction == "past" else KINDS[kind].replace(direction=direction)
    module, real = layer(spec), x(6)
    want, _ = module(real, Context(), None)
    keep = torch.arange(10).expand(2, 10) < 6
    padded = torch.cat([real, x(4) * 100], 1)
    assert_exact(module(padded, Context(padding=Padding(keep, right=True)), None)[0][:, :6], want)
    assert_exact(
        module(padded.roll(4, 1), Context(padding=Padding(keep.roll(4, 1), right=False)), None)[0][:, 4:], want
    )
    lengths = [5, 1, 3]
    documents = [x(n, batch=1) for n in lengths]
    group = torch.tensor([[i for i, n in enumerate(lengths) for _ in range(n)]])
    pos = torch.tensor([[i for n in lengths for i in range(n)]])
    got, _ = module(torch.cat(documents, 1), Context(group_BL=group, pos_BL=pos), None)
    assert_exact(got, torch.cat([module(one, Context(), None)[0] for one in documents], 1))


@pytest.mark.parametrize("kind", THEIRS)
def test_who_halts_at_once_is_a_plain_recurrent_network(kind):
    """And who halts as late as may be is one that reads every token so many times, the first time with a flag."""
    module = layer(PonderingRNN(cell=KINDS[kind], max_steps=3))
    theirs = THEIRS[kind](D + 1, D, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(module.cell.state_dict())
    flagged = torch.cat([x(6), torch.ones(2, 6, 1)], -1)
    module.unit.weight_1D.data.zero_()
    module.unit.bias_1.data.fill_(40.0)
    assert_exact(module(x(6), Context(), None)[0], theirs(flagged)[0])
    module.unit.bias_1.data.fill_(-40.0)
    again = torch.cat([x(6), torch.zeros(2, 6, 1)], -1)
    want = theirs(torch.stack([flagged, again, again], 2).flatten(1, 2))[0][:, 2::3]
    assert_exact(module(x(6), Context(), None)[0], want)


def test_pondering_costs_its_steps_and_remainders_of_real_tokens():
    module = layer(PonderingRNN(pondering=Pondering(ponder=0.5), max_steps=6))
    keep = torch.arange(9) < torch.tensor([[9], [4]])
    ctx = Context(padding=Padding(keep, right=True), side_losses={}, taps=Taps())
    module(x(9), ctx, None)
    steps, rest = ctx.taps.found["steps"], ctx.taps.found["remainders"]
    assert steps[~keep].sum() == rest[~keep].sum() == 0
    assert steps[keep].unique().numel() > 1
    assert_exact(ctx.side_losses["ponder"], 0.5 * (steps + rest)[keep].mean())


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="past"):
        LSTM(direction="psat")
    for direction in ("both", "future"):
        with pytest.raises(SpecError, match="see the future"):
            LSTM(direction=direction).build(Dims(**{**vars(DIMS), "direction": "past"}))
    with pytest.raises(SpecError, match="step by step"):
        layer(GRU(direction="both")).new_state(1, 4)
    with pytest.raises(SpecError, match="halved"):
        GRU(direction="both").build(Dims(**{**vars(DIMS), "d_model": 7}))
    with pytest.raises(SpecError, match="one direction"):
        PonderingRNN(cell=LSTM(direction="both"))
    with pytest.raises(SpecError, match="lstm"):
        kf.relative("act-rnn", size="base", cell="lsmt")


def test_cells_are_drawn_from_the_models_seed():
    cell = kf.build(kf.relative("lstm", size="tiny", **NUMBERS)).decoder.blocks[0].parts[0].cell
    assert torch.equal(cell.bias_ih_l0[D : 2 * D], torch.ones(D))
    for gate in cell.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(D))
