"""One step of a recurrent network against its equations and PyTorch's cells, in outputs and all gradients."""

import pytest
import torch
from torch import nn

from kinfolk.ops.naive import rnn_cell as naive
from kinfolk.ops.rnn_cell import step
from tests.exact import assert_exact

GATES = {"lstm": (4, 2, nn.LSTMCell), "gru": (3, 1, nn.GRUCell)}


def made(kind, batch, d):
    g = torch.Generator().manual_seed(d)
    gates, states, _ = GATES[kind]
    return [
        torch.randn(batch, n * d, generator=g, dtype=torch.float64).requires_grad_() for n in (gates, states, gates)
    ]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("d", [1, 2, 7])
def test_a_step_is_its_equations(kind, d):
    said, s, rec = made(kind, 3, d)
    got = step(kind, said, s, rec)
    want = torch.stack([naive.CELLS[kind](said[b], rec[b], s[b]) for b in range(3)])
    assert_exact(got, want)
    scale = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad((y * scale).sum(), (said, s, rec)) for y in (got, want))
    for a, b in zip(ours, theirs, strict=True):
        assert_exact(a, b)


@pytest.mark.parametrize("kind", GATES)
def test_a_step_is_pytorchs(kind):
    _, states, cell = GATES[kind]
    theirs = cell(5, 4, dtype=torch.float64)
    x, s = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 4 * states, dtype=torch.float64)
    want = theirs(x, s if states == 1 else s.chunk(2, -1))
    want = want if states == 1 else torch.cat(want, -1)
    said = x @ theirs.weight_ih.T + theirs.bias_ih
    assert_exact(step(kind, said, s, s[:, :4] @ theirs.weight_hh.T + theirs.bias_hh), want)
