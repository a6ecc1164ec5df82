"""Memory of large gradients: the same block every step, and never one that somebody still holds."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from kinfolk.core import gradient_memory
from kinfolk.core.gradient_memory import LARGE, empty_gradient


class Scaled(torch.autograd.Function):
    """`weight * x`, with its gradient in the weight's block."""

    @staticmethod
    def forward(ctx, weight, x):
        ctx.save_for_backward(weight)
        ctx.x = x
        return weight * x

    @staticmethod
    def backward(ctx, dy):
        (weight,) = ctx.saved_tensors
        return torch.mul(dy, ctx.x, out=empty_gradient(weight)), None


def large() -> nn.Parameter:
    return nn.Parameter(torch.zeros(3, LARGE // 8))


def stepped(weight: nn.Parameter, x: float) -> Tensor:
    Scaled.apply(weight.unflatten(0, (3, 1)), x).sum().backward()
    assert weight.grad is not None
    return weight.grad


def test_a_gradient_that_was_freed_gives_its_memory_to_the_next():
    weight = large()
    first = stepped(weight, 2.0).data_ptr()
    assert torch.equal(weight.grad, torch.full_like(weight, 2.0))
    weight.grad = None
    assert stepped(weight, 3.0).data_ptr() == first
    assert torch.equal(weight.grad, torch.full_like(weight, 3.0))


@pytest.mark.parametrize("held", ["gradient", "view", "parameter's"])
def test_a_gradient_that_is_held_is_not_written_to(held):
    weight = large()
    kept = stepped(weight, 2.0)
    kept = kept[1, :5] if held == "view" else kept
    if held != "parameter's":
        weight.grad = None
    assert stepped(weight, 3.0).flatten()[0] == (5.0 if held == "parameter's" else 3.0)
    assert kept.flatten()[0] == (5.0 if held == "parameter's" else 2.0)


def test_a_weight_used_twice_adds_both_gradients():
    weight = large()
    (Scaled.apply(weight, 2.0) + Scaled.apply(weight, 5.0)).sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 7.0))


def test_weights_do_not_share_a_block_and_take_it_with_them():
    one, other = large(), large()
    assert stepped(one, 1.0).data_ptr() != stepped(other, 1.0).data_ptr()
    block = weakref.ref(gradient_memory._blocks[one].held)
    assert block() is not None
    del one
    gc.collect()
    assert block() is None


def test_small_weights_and_those_of_tracing_get_ordinary_tensors():
    small = nn.Parameter(torch.zeros(3, 4))
    empty_gradient(small)
    assert small not in gradient_memory._blocks
    assert empty_gradient(large().to("meta")).is_meta
    with torch._subclasses.FakeTensorMode():
        assert empty_gradient(torch.empty(LARGE)).shape == (LARGE,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_type_shape_and_order_are_those_of_the_weight(dtype):
    weight = torch.empty(LARGE // 4, 8, dtype=dtype).mT
    found = empty_gradient(weight)
    assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, weight.shape, True)
