"""Recurrence with adaptive computation time against loops, in outputs and all gradients."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops import act_rnn as module
from kinfolk.ops.act_rnn import CellWeights, Rules, ponder
from kinfolk.ops.naive import act_rnn as naive

GATES = {"lstm": (4, 2), "gru": (3, 1)}


def made(cell, batch, length, d=3, seed=0, bias=-0.5):
    g = torch.Generator().manual_seed(seed)
    gates, states = GATES[cell]

    def draw(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=g, dtype=torch.float64)).requires_grad_()

    weights = CellWeights(draw(gates * d), draw(gates * d, d), draw(gates * d), draw(1, d, scale=4.0), draw(1))
    weights.unit_bias_1.data.fill_(bias)
    keep = torch.rand(batch, length, generator=g) < 0.8
    return draw(batch, length, gates * d), draw(batch, states * d), keep, weights


def gradients(run, said, s, keep, weights, rules):
    y, steps, rest, last = run(said, s, keep, weights, rules)
    g = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=g, dtype=torch.float64)).sum() for x in (y, rest, last))
    leaves = [said, s, *weights]
    found = torch.autograd.grad(loss + 0 * sum(x.sum() for x in leaves), leaves)
    return (y, rest, last, *found), steps


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["lstm", "gru"]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([0.01, 0.3]),
    st.integers(0, 10**6),
)
@example("lstm", 1, 1, 1, 0.01, 0)
@example("gru", 3, 5, 4, 0.01, 7)
def test_pondering_is_a_loop_over_examples_tokens_and_steps(cell, batch, length, most, eps, seed):
    inputs, rules = made(cell, batch, length, seed=seed), Rules(cell, eps, most)
    got, steps = gradients(ponder, *inputs, rules)
    want, counts = gradients(naive.ponder, *inputs, rules)
    assert torch.equal(steps.long(), counts)
    assert (steps[~inputs[2]] == 0).all()
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", GATES)
def test_examples_halt_after_different_numbers_of_steps(cell):
    _, steps = gradients(ponder, *made(cell, 8, 6), Rules(cell, 0.01, 7))
    assert steps.unique().numel() > 3
    assert steps.max() <= 7


@pytest.mark.parametrize("cell", GATES)
def test_nothing_to_read_changes_nothing(cell):
    said, s, keep, weights = made(cell, 2, 3)
    y, steps, rest, last = ponder(said, s, torch.zeros_like(keep), weights, Rules(cell, 0.01, 5))
    assert torch.equal(last, s)
    assert torch.equal(y, s[:, None, :3].expand_as(y))
    assert not steps.any()
    assert not rest.any()
    (gradient,) = torch.autograd.grad(last.sum(), s)
    assert (gradient == 1).all()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_steps_made_together_equal_the_loops(cell, monkeypatch):
    """What accelerators run: rows that have halted go on without any weight."""
    inputs, rules = made(cell, 4, 5, seed=3), Rules(cell, 0.01, 6)
    want, counts = gradients(naive.ponder, *inputs, rules)

    def together(said, s, keep, weights, rules):
        return module._think_together(said, s, keep, weights, rules, rules.max_steps)

    monkeypatch.setattr(module, "_think", together)
    got, steps = gradients(ponder, *inputs, rules)
    assert torch.equal(steps, counts)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("first", [1, 2, 8])
def test_too_few_steps_are_made_again(first, monkeypatch):
    said, s, keep, weights = made("gru", 3, 4, seed=5, bias=-2.0)
    monkeypatch.setattr(module, "STEPS_TOGETHER", first)
    rules = Rules("gru", 0.01, 20)
    with torch.no_grad():
        found = module.read_together(said, s, keep, weights, rules)
        _, steps, rest, last = naive.ponder(said, s, keep, weights, rules)
    torch.testing.assert_close((found.carried[-1], found.rest), (last, rest), rtol=1e-10, atol=1e-12)
    assert torch.equal(found.steps, steps)
    assert int(steps.max()) > 2
