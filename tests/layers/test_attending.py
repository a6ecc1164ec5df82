"""Recurrent decoders that look at an encoder: loops over tokens and pairs, PyTorch's cells, states, padding."""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.context import Context, Padding, Taps
from kinfolk.core.encoder_output import EncoderOutput, RecurrentOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.mixers.alignment_score import Additive, DotScore, General
from kinfolk.layers.mixers.attentional_rnn import Attentional, Feeding, Searching
from kinfolk.layers.mixers.rnn import GRU, LSTM
from kinfolk.layers.module import Dims
from kinfolk.models.ends import Ends
from kinfolk.ops.naive.rnn_cell import CELLS
from tests.exact import assert_exact

D, B, M = 6, 3, 5
DIMS = Dims(d_model=D, vocab_size=5, max_len=64, dropout=0.0, n_sublayers=2)
SCORES = {"dot": DotScore(), "general": General(), "additive": Additive()}
KINDS = {
    "searching": Searching(),
    "searching-lstm-dot": Searching(cell=LSTM(), score=DotScore()),
    "feeding": Feeding(n_layers=2),
    "feeding-gru-additive": Feeding(cell=GRU(), score=Additive()),
    "attentional": Attentional(),
}
NUMBERS = {"d_model": D, "n_layers": 2, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 32}


def randomise(module, std=0.6):
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, std=std)
    return module


def layer(spec):
    return randomise(spec.build(DIMS).double())


def x(n, batch=B, seed=0):
    return torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n + seed), dtype=torch.float64)


def context(n_layers=0, batch=B, wide=2, **more):
    """An encoder's states, of which the second example has three, and what its layers ended with."""
    keep = torch.arange(M).expand(batch, M) < torch.tensor([M, 3, M, M])[:batch, None]
    ends = torch.stack([x(wide, batch, 50 + n).flatten(1) for n in range(n_layers)]) if n_layers else None
    states = x(M, batch, 9).requires_grad_()
    output = EncoderOutput(states, keep) if ends is None else RecurrentOutput(states, keep, ends_NBS=ends)
    return Context(encoder_output=output, **more)


def score(module, s, h):
    if isinstance(module.spec.score, Additive):
        own = module.score
        return (own.v_D * torch.tanh(own.of_state.weight @ s + own.of_memory.weight @ h)).sum()
    return s @ (module.score.map.weight @ h if isinstance(module.spec.score, General) else h)


def looked(module, s, memory, b):
    """The mean of the states of one example that are real, by a softmax of their scores."""
    real = [h for h, ok in zip(memory.states_BMD[b], memory.keep_BM[b], strict=True) if ok]
    weights = torch.stack([score(module, s, h) for h in real]).softmax(0)
    return sum(w * h for w, h in zip(weights, real, strict=True))


def moved(module, cell, said, s):
    return CELLS[module.spec.cell.kind](
        cell.weight_ih_l0 @ said + cell.bias_ih_l0, cell.weight_hh_l0 @ s[:D] + cell.bias_hh_l0, s
    )


def search(module, inputs, memory, b):
    """Bahdanau et al. 2015, one token at a time."""
    s = torch.tanh(module.start.weight @ memory.states_BMD[b, 0, D // 2 :])
    s = torch.cat([s, torch.zeros_like(s)]) if module.spec.cell.kind == "lstm" else s
    out = []
    for token in inputs:
        c = looked(module, s[:D], memory, b)
        s = moved(module, module.cell, torch.cat([token, c]), s)
        said = module.out.weight @ torch.cat([s[:D], c, token]) + module.out.bias
        out.append(torch.stack([max(said[2 * i], said[2 * i + 1]) for i in range(D)]))
    return torch.stack(out)


def feed(module, inputs, memory, b):
    """Luong et al. 2015 with input feeding, one token and one layer at a time."""
    n, wide = module.spec.n_layers, 2 if module.spec.cell.kind == "lstm" else 1
    ends = memory.ends_NBS[:, b] if isinstance(memory, RecurrentOutput) else inputs.new_zeros(n, wide * D)
    states = list(ends[:n])
    a, out = inputs.new_zeros(D), []
    for token in inputs:
        below = torch.cat([token, a])
        for i, cell in enumerate(module.cells):
            states[i] = moved(module, cell, below, states[i])
            below = states[i][:D]
        a = torch.tanh(module.out.weight @ torch.cat([looked(module, below, memory, b), below]))
        out.append(a)
    return torch.stack(out)


def attentional(module, inputs, memory, b):
    return torch.stack([torch.tanh(module.out.weight @ torch.cat([looked(module, s, memory, b), s])) for s in inputs])


BY_HAND = {Searching: search, Feeding: feed, Attentional: attentional}


@pytest.mark.parametrize("how", SCORES)
@pytest.mark.parametrize(
    "spec", [Searching(), Searching(cell=LSTM()), Feeding(n_layers=2), Feeding(cell=GRU()), Attentional()], ids=repr
)
@pytest.mark.parametrize("length", [1, 4])
def test_it_is_what_the_papers_say(spec, how, length):
    module, inputs = layer(spec.replace(score=SCORES[how])), x(length).requires_grad_()
    wide = 2 if isinstance(spec, Feeding) and spec.cell.kind == "lstm" else 1
    ctx = context(2 if isinstance(spec, Feeding) else 0, wide=wide)
    got = module(inputs, ctx, None)[0]
    want = torch.stack([BY_HAND[type(spec)](module, inputs[b], ctx.encoder_output, b) for b in range(B)])
    assert_exact(got, want)
    scale = torch.randn_like(got)
    leaves = [inputs, ctx.encoder_output.states_BMD, *module.parameters()]
    ours, theirs = (torch.autograd.grad((y * scale).sum(), leaves) for y in (got, want))
    for a, b in zip(ours, theirs, strict=True):
        assert_exact(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [(1,) * 11, (4, 1, 6)], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(kind, chunks):
    module, full, ctx = layer(KINDS[kind]), x(11), context(2 if kind == "feeding" else 0)
    want, _ = module(full, ctx, None)
    state, at, got = module.new_state(B, 11), 0, []
    for n in chunks:
        y, state = module(full[:, at : at + n], ctx.replace(start=at), state)
        got.append(y)
        at += n
    assert_exact(torch.cat(got, 1), want)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_their_own_positions_and_selected(kind):
    module, full, lengths, ctx = layer(KINDS[kind]), x(14), torch.tensor([2, 7, 0]), context()
    state = module.new_state(B, 14)
    keep = torch.arange(7) < lengths[:, None]
    module(full[:, :7], ctx.replace(padding=Padding(keep, right=True)), state)
    rows = torch.tensor([1, 1, 0])
    state.select(rows)
    now = ctx.replace(encoder_output=ctx.encoder_output.select(rows))
    for step in range(3):
        pos = (lengths[rows] + step)[:, None]
        got, _ = module(full[rows][torch.arange(3)[:, None], pos], now.replace(start=7 + step, pos_BL=pos), state)
        for at, row in enumerate(rows):
            alone = ctx.replace(encoder_output=ctx.encoder_output.select(row[None]))
            assert_exact(got[at, 0], module(full[row : row + 1, : int(pos[at]) + 1], alone, None)[0][0, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_before_and_after_is_passed_over(kind):
    module, real, ctx = layer(KINDS[kind]), x(6), context()
    want = module(real, ctx, None)[0]
    keep = torch.arange(10).expand(B, 10) < 6
    padded = torch.cat([real, 100 * x(4)], 1)
    right = ctx.replace(padding=Padding(keep, right=True))
    assert_exact(module(padded, right, None)[0][:, :6], want)
    left = ctx.replace(padding=Padding(keep.roll(4, 1), right=False))
    assert_exact(module(padded.roll(4, 1), left, None)[0][:, 4:], want)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_real_states_and_add_up_to_one(kind):
    module, ctx = layer(KINDS[kind]), context(taps=Taps())
    quiet = module(x(7), context(), None)[0]
    assert_exact(module(x(7), ctx, None)[0], quiet)
    weights = ctx.taps.found["weights"]
    assert weights.shape == (B, 1, 7, M)
    assert_exact(weights.sum(-1), torch.ones(B, 1, 7, dtype=torch.float64))
    assert (weights[1, :, :, 3:] == 0).all()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_without_attention_it_is_pytorchs_encoder_and_decoder(cell):
    """The source is read from its end, and every layer goes on where the same layer of the encoder stopped."""
    model = randomise(kf.build(kf.relative("seq2seq", size="tiny", cell=cell, **NUMBERS)).double(), 0.5)
    encoder, decoder = (
        (nn.LSTM if cell == "lstm" else nn.GRU)(D, D, num_layers=2, batch_first=True, dtype=torch.float64)
        for _ in range(2)
    )
    for ours, theirs in ((model.encoder, encoder), (model.decoder, decoder)):
        for n, block in enumerate(ours.blocks):
            for name, weight in block.parts[0].cell.named_parameters():
                getattr(theirs, name.replace("_l0", f"_l{n}")).data = weight.data.clone()
    source, target = torch.randint(31, (2, 9)), torch.randint(31, (2, 4))
    table = model.embedding.table.weight
    _, end = encoder(table[source].flip(1))
    want = decoder(table[target], end)[0] @ table.T
    got = model(source, target).logits
    assert_exact(got, want)
    assert_exact(*(torch.autograd.grad(y.square().sum(), table)[0] for y in (got, want)))
    keep = torch.arange(12).expand(2, 12) < 9
    padded = torch.cat([source, torch.full((2, 3), 8)], 1)
    batch = kf.core.batch.Batch(index=torch.arange(2), tokens=target, source=padded, source_keep=keep)
    assert_exact(model.run(batch).logits, want)


@pytest.mark.parametrize("score", SCORES)
def test_feeding_nothing_is_reading_all_tokens_at_once(score):
    fed, all_at_once = (
        randomise(kf.build(kf.relative("luong", size="tiny", score=score, feeding=feeding, **NUMBERS)).double())
        for feeding in (True, False)
    )
    part, blocks = fed.decoder.blocks[0].parts[0], all_at_once.decoder.blocks
    fed.embedding.load_state_dict(all_at_once.embedding.state_dict())
    fed.encoder.load_state_dict(all_at_once.encoder.state_dict())
    part.score.load_state_dict(blocks[-1].parts[1].score.state_dict())
    part.out.load_state_dict(blocks[-1].parts[1].out.state_dict())
    part.cells[0].weight_ih_l0.data.zero_()
    for cell, block in zip(part.cells, blocks, strict=True):
        for name, weight in block.parts[0].cell.named_parameters():
            getattr(cell, name).data[..., : weight.shape[-1]] = weight.data
    source, target = torch.randint(31, (2, 9)), torch.randint(31, (2, 5))
    assert_exact(fed(source, target).logits, all_at_once(source, target).logits)


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="one direction"):
        Searching(cell=GRU(direction="both"))
    with pytest.raises(SpecError, match="at least 1"):
        Feeding(n_layers=0)
    with pytest.raises(SpecError, match="halved"):
        Searching().build(Dims(**{**vars(DIMS), "d_model": 7}))
    with pytest.raises(ShapeError, match="states of an encoder"):
        layer(Attentional())(x(3), Context(), None)
    with pytest.raises(ShapeError, match="cannot begin"):
        layer(Feeding(n_layers=3))(x(3), context(2), None)
    with pytest.raises(ShapeError, match="cannot begin"):
        layer(GRU())(x(3), context(1), None)
    with pytest.raises(SpecError, match="recurrent layers"):
        kf.relative("vanilla", size="tiny", **NUMBERS).model.replace(bridge=Ends())
    with pytest.raises(SpecError, match="general"):
        kf.relative("luong", size="base", score="genral")
    with pytest.raises(SpecError, match="lstm"):
        kf.relative("seq2seq", size="base", cell="lsmt")
