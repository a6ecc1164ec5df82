"""The long convolution by FFT against loops and against PyTorch's convolution, with gradients."""

import pytest
import torch
import torch.nn.functional as F

from kinfolk.ops.long_conv import long_conv
from kinfolk.ops.naive import long_conv as by_loops
from tests.layers.test_latent_attention import assert_same, normal


@pytest.mark.parametrize("length", [1, 2, 7, 13])
def test_the_convolution_equals_naive_and_pytorch(length):
    x, h = normal(2, length, 3).requires_grad_(), normal(length, 3, seed=1).requires_grad_()
    assert_same(long_conv(x, h), by_loops.long_conv(x, h), [x, h])
    padded, taps = F.pad(x.mT, (length - 1, 0)), h.T.flip(1)[:, None]
    assert_same(long_conv(x, h), F.conv1d(padded, taps, groups=3).mT, [x, h])


def test_half_precisions_are_transformed_in_single():
    x, h = normal(1, 9, 3).bfloat16(), normal(9, 3, seed=1).bfloat16()
    want = by_loops.long_conv(x.float(), h.float())
    got = long_conv(x, h)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-2)
