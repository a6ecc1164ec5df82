import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinfolk.ops import patches
from kinfolk.ops.naive import patches as naive
from tests.exact import assert_exact


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 7), st.sampled_from([1, 2, 3]), st.integers(1, 5))
@example(n=1, width=1, channels=1, patch=5)
@example(n=36, width=6, channels=1, patch=3)
def test_cutting_is_the_definition(n, width, channels, patch):
    values = torch.randn(2, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).requires_grad_()
    got, want = (module.cut(values, width, channels, patch) for module in (patches, naive))
    assert torch.equal(got, want)
    assert got.shape[1] == patches.n_patches(n, width, channels, patch)
    weight = torch.randn_like(got)
    assert_exact(*(torch.autograd.grad((x * weight).sum(), values)[0] for x in (got, want)))


def test_patches_of_one_pixel_are_the_picture():
    values = torch.randn(3, 5 * 4 * 3)
    assert torch.equal(patches.cut(values, 4, 3, 1), values.unflatten(1, (20, 3)))


@pytest.mark.parametrize("patch", [2, 4])
def test_a_linear_map_of_patches_is_a_convolution(patch):
    """The order inside a patch is row, column, channel, so the weights of a convolution are turned once."""
    picture = torch.randn(2, 8, 12, 3, dtype=torch.float64)
    conv = torch.nn.Conv2d(3, 7, patch, stride=patch).double()
    want = conv(picture.permute(0, 3, 1, 2)).flatten(2).mT
    weight = conv.weight.permute(0, 2, 3, 1).flatten(1)
    got = torch.nn.functional.linear(patches.cut(picture.flatten(1), 12, 3, patch), weight, conv.bias)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_picture_is_put_together_again():
    picture = torch.arange(2 * 6 * 8 * 3).reshape(2, 6, 8, 3)
    cut = patches.cut(picture.flatten(1), 8, 3, 2)
    back = cut.unflatten(2, (2, 2, 3)).unflatten(1, (3, 4)).transpose(2, 3).reshape(2, 6, 8, 3)
    assert torch.equal(back, picture)
