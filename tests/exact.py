"""Equality in float64: what the tests of exact operators and layers mean by "the same"."""

import torch


def assert_exact(a, b):
    """Fail unless two tensors agree to rounding."""
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
