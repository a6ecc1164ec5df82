"""Optimisers without the compiler's wrappers: PyTorch's own to the bit, and torch._dynamo is never imported."""

import subprocess
import sys

import pytest
import torch

from kinfolk.optim.eager import eager

OPTIMISERS = {
    torch.optim.AdamW: {"lr": 0.1, "fused": True},
    torch.optim.Adam: {"lr": 0.1, "weight_decay": 0.1, "fused": True},
    torch.optim.SGD: {"lr": 0.1, "momentum": 0.9, "fused": True},
    torch.optim.Adafactor: {"lr": 0.1},
}


@pytest.mark.parametrize("cls", OPTIMISERS)
def test_it_is_the_original_to_the_bit(cls):
    ours, theirs = ((torch.nn.Linear(4, 3), make) for make in (eager(cls), cls))
    theirs[0].load_state_dict(ours[0].state_dict())
    memories = []
    for model, make in (ours, theirs):
        optimiser = make(model.parameters(), **OPTIMISERS[cls])
        for step in range(3):
            optimiser.zero_grad()
            model(torch.arange(8.0).view(2, 4) * (step + 1)).square().sum().backward()
            optimiser.step()
        memories.append(optimiser.state_dict())
    for own, other in zip(ours[0].parameters(), theirs[0].parameters(), strict=True):
        assert torch.equal(own, other)
        assert own.is_leaf
        assert own.requires_grad
    assert str(memories[0]) == str(memories[1])
    again = eager(cls)(ours[0].parameters(), **OPTIMISERS[cls])
    again.load_state_dict(memories[1])
    assert str(again.state_dict()) == str(memories[1])


def test_a_training_step_does_not_import_the_compiler():
    code = """
import sys, torch, kinfolk as kf
from kinfolk.core.spec import choices
from kinfolk.optim.optimiser import Optimiser
for kind, spec in choices(Optimiser).items():
    model = torch.nn.Linear(4, 3)
    optimiser = spec().build(model)
    model(torch.ones(2, 4)).sum().backward()
    optimiser.step()
    optimiser.load_state_dict(optimiser.state_dict())
    optimiser.zero_grad()
    assert "torch._dynamo" not in sys.modules, kind
print(len(choices(Optimiser)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5
