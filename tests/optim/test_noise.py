"""Weights that fall back to what they were."""

import pytest
import torch
from torch import nn

from kinfolk.core.errors import SpecError
from kinfolk.optim import Training
from kinfolk.optim.noise import Mixout, swapped


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(40, 50, bias=False), nn.Linear(50, 2)


@pytest.fixture
def begun():
    torch.manual_seed(0)
    net, noise = Net(), Mixout(p=0.75).build()
    noise.begin(net)
    with torch.no_grad():
        old = net.body.weight.clone()
        net.body.weight += 1
    return net, noise, old


def test_a_weight_is_the_old_one_or_as_much_further_as_keeps_the_mean(begun):
    net, noise, old = begun
    with noise.over(net):
        mixed = net.body.weight.detach().clone()
        assert net.head.weight is net._modules["head"]._parameters["weight"]
    # w' - u is 0 with probability p, and else (w - u) / (1 - p)
    moved = mixed - old
    assert ((moved.abs() < 1e-5) | ((moved - 4).abs() < 1e-5)).all()
    assert float((moved > 2).double().mean()) == pytest.approx(0.25, abs=0.04)
    assert isinstance(net.body.weight, nn.Parameter)


def test_gradients_reach_the_weights_that_were_not_put_aside(begun):
    net, noise, old = begun
    with noise.over(net):
        kept = (net.body.weight.detach() - old) > 2
        net.body.weight.sum().backward()
    assert torch.equal(net.body.weight.grad, kept * 4.0)


def test_what_is_shared_is_swapped_everywhere():
    net = Net()
    net.twin = nn.Linear(40, 50, bias=False)
    net.twin.weight = net.body.weight
    other = torch.zeros(50, 40)
    with swapped(net, {"body.weight": other}):
        assert net.body.weight is other
        assert net.twin.weight is other
    assert net.twin.weight is net.body.weight


def test_what_cannot_be_is_refused(begun):
    net, *_ = begun
    with pytest.raises(SpecError, match="begin with some"):
        Mixout().build().over(net)
    with pytest.raises(SpecError, match=r"p: 1.0 is not allowed; at least 0 and below 1"):
        Mixout(p=1.0)
    with pytest.raises(SpecError, match="other weights than the pass had"):
        Training(noise=Mixout(), recompute="blocks")
