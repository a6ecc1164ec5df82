"""Schedule-free AdamW against the package of its authors, and what is in the weights between steps."""

import copy

import pytest
import torch

from kinfolk.optim import ScheduleFree
from tests.optim.test_lamb import net

theirs = pytest.importorskip("schedulefree", reason="the package of the paper's authors is the reference")
RATES = [0.002, 0.004, 0.006, *[0.006] * 20, *[0.003] * 4]


def gradients(model, seed):
    """Gradients of a loss, which depend on where the weights are."""
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    model.zero_grad()
    model(x).tanh().square().sum().backward()


def test_steps_are_those_of_the_package():
    ours, other = net(), net()
    mine = ScheduleFree(lr=0.006, betas=(0.9, 0.95), weight_decay=0.1, decay="all").build(ours)
    reference = theirs.AdamWScheduleFree(
        other.parameters(), lr=0.006, betas=(0.9, 0.95), weight_decay=0.1, foreach=False
    )
    for step, rate in enumerate(RATES):
        mine.zero_grad()
        reference.train()
        for a, b in zip(ours.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        for model, optimiser in ((ours, mine), (other, reference)):
            gradients(model, step)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
        reference.eval()
        for a, b in zip(ours.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_a_saved_optimiser_goes_on_to_the_same_weights():
    ends = []
    for stop in (None, 4):
        model = net()
        optimiser = ScheduleFree(lr=0.01).build(model)
        for step in range(9):
            if step == stop:
                saved, before = copy.deepcopy(optimiser.state_dict()), copy.deepcopy(model.state_dict())
                model = net()
                model.load_state_dict(before)
                optimiser = ScheduleFree(lr=0.01).build(model)
                optimiser.load_state_dict(saved)
            optimiser.zero_grad()
            gradients(model, step)
            optimiser.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_step_that_is_left_out_moves_nothing():
    """Gradients that are not finite: the step is begun and not made."""
    model = net()
    optimiser = ScheduleFree(lr=0.01).build(model)
    for made in (True, False, True):
        optimiser.zero_grad()
        gradients(model, 0)
        if made:
            optimiser.step()
    other = net()
    optimiser = ScheduleFree(lr=0.01).build(other)
    for _ in range(2):
        optimiser.zero_grad()
        gradients(other, 0)
        optimiser.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)
