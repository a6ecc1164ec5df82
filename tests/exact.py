"""Equality in float64: what the tests of exact operators and layers mean by "the same"."""

import torch


def assert_exact(a, b):
    """Fail unless two tensors agree to rounding."""
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def assert_same_with_gradients(got, want, *weights):
    """Fail unless two tensors agree, and the gradients they give to some weights; none at all counts as zero."""
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    scale = torch.randn_like(got)
    pairs = [torch.autograd.grad((y * scale).sum(), weights, allow_unused=True) for y in (got, want)]
    for ours, theirs, weight in zip(*pairs, weights, strict=True):
        ours, theirs = (torch.zeros_like(weight) if grad is None else grad for grad in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
