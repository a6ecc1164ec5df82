"""What recurrent layers carry from segment to segment: any cut of a row reads the same, and documents stay apart."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context, Padding
from kinfolk.layers.mixers.rnn import GRU, LSTM
from kinfolk.layers.module import Dims

D = 6


def layer(spec):
    torch.manual_seed(0)
    module = spec.build(Dims(D, 11, 64, 0.0, 1, direction="past")).double()
    module.draw()
    return module


def carry(module, x, group, cuts):
    """Read a row in segments; documents count from the one that a segment goes on with."""
    memory, out = module.new_memory(), []
    for start, stop in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        before = group[:, max(start - 1, 0)][:, None] if start else torch.zeros_like(group[:, :1])
        ctx = Context(start=start, group_BL=group[:, start:stop] - before)
        out.append(module(x[:, start:stop], ctx, memory)[0])
        memory.settle()
    return torch.cat(out, 1), memory


@pytest.mark.parametrize("spec", [LSTM(), GRU()], ids=["lstm", "gru"])
@pytest.mark.parametrize("cuts", [[], [1], [5], [3, 4, 9], list(range(1, 12))], ids=str)
def test_segments_with_a_memory_are_one_pass(spec, cuts):
    module, x = layer(spec), torch.randn(3, 12, D, dtype=torch.float64)
    group = torch.tensor([[0] * 12, [0] * 5 + [1] * 7, [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4]])
    place = torch.arange(12)
    new = torch.ones_like(group, dtype=torch.bool)
    new[:, 1:] = group[:, 1:] != group[:, :-1]
    positions = place - torch.where(new, place, 0).cummax(1).values
    want = module(x, Context(group_BL=group, pos_BL=positions), None)[0]
    got, _ = carry(module, x, group, cuts)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_document_that_begins_with_a_segment_sees_nothing_of_the_last():
    module, x = layer(LSTM()), torch.randn(2, 8, D, dtype=torch.float64)
    group = torch.tensor([[0] * 4 + [1] * 4, [0] * 8])
    got, _ = carry(module, x, group, [4])
    alone = module(x[:1, 4:], Context(), None)[0]
    torch.testing.assert_close(got[:1, 4:], alone, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(got[1:, 4:], module(x[1:, 4:], Context(), None)[0])


def test_padding_leaves_no_trace_in_the_memory():
    module, x = layer(LSTM()), torch.randn(2, 5, D, dtype=torch.float64)
    keep = torch.tensor([[True] * 5, [True, True, False, False, False]])
    padded, plain = module.new_memory(), module.new_memory()
    module(x, Context(padding=Padding.of(keep)), padded)
    module(x[1:, :2], Context(), plain)
    padded.settle()
    plain.settle()
    torch.testing.assert_close(padded.values[1][1:], plain.values[1], rtol=1e-12, atol=1e-12)


def test_a_memory_has_no_gradient_is_forgotten_by_rows_and_comes_back_from_tensors():
    module, x = layer(LSTM()), torch.randn(2, 3, D, dtype=torch.float64)
    memory = module.new_memory()
    assert memory.tensors() == {}
    module(x, Context(), memory)
    assert memory.values is None, "what is noted waits until the step is over"
    memory.settle()
    assert not any(value.requires_grad for value in memory.values)
    other = module.new_memory()
    other.restore(memory.tensors())
    assert all(torch.equal(a, b) for a, b in zip(other.values, memory.values, strict=True))
    memory.forget(torch.tensor([True, False]))
    assert float(memory.values[0][0].abs().sum()) == 0.0
    assert torch.equal(memory.values[0][1], other.values[0][1])


def test_an_lstm_model_reads_a_row_in_segments():
    toy = {"d_model": 8, "n_layers": 2, "vocab_size": 11, "max_len": 32, "dropout": 0.0}
    model = kf.build(kf.relative("lstm", size="base", **toy), seed=1).double()
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    want, memory, got = model(tokens).logits, model.new_memory(), []
    for part in tokens.split([4, 3, 2], dim=1):
        got.append(model.run(Batch(index=torch.arange(2), tokens=part), memory).logits)
        memory.settle()
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-12, atol=1e-12)
