"""`ops.short_conv` against its naive reference in float64, outputs and gradients, and against PyTorch's convolution."""

import pytest
import torch
import torch.nn.functional as F

from kinfolk.ops import short_conv as fast
from kinfolk.ops.naive import short_conv as slow


def draw(*shape, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)


def run(op, leaves, *args):
    out = op(*leaves, *args)
    given = [x for x in leaves if x is not None]
    return [out, *torch.autograd.grad((out * draw(*out.shape, seed=7).detach()).sum(), given)]


@pytest.mark.parametrize("activation", ["identity", "swish"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("n_in", "n_out", "taps"), [(1, 1, 1), (1, 1, 4), (13, 13, 4), (16, 13, 4), (7, 5, 3), (5, 5, 7)]
)
@pytest.mark.parametrize("tile", [1, 320, 1 << 20])
def test_equals_naive(activation, biased, n_in, n_out, taps, tile, monkeypatch):
    """A tile is one position, four, or everything."""
    monkeypatch.setattr(fast, "TILE_BYTES", tile)
    leaves = [draw(2, n_in, 5), draw(5, taps, seed=1), draw(5, seed=2) if biased else None]
    group = (torch.rand(2, n_out, generator=torch.Generator().manual_seed(3)) * 3).long().sort(1).values
    near = F.pad(group, (taps - 1, 0), value=-1).unfold(1, taps, 1)
    for same in (None, near == group[..., None]):
        ours = run(fast.short_conv, leaves, n_out, activation, same)
        theirs = run(slow.short_conv, leaves, n_out, activation, same)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_equals_conv1d():
    x, w, bias = draw(2, 11, 6), draw(6, 4, seed=1), draw(6, seed=2)
    theirs = F.silu(F.conv1d(F.pad(x.mT, (3, 0)), w[:, None], bias, groups=6)).mT
    torch.testing.assert_close(fast.short_conv(x, w, bias, 11, "swish"), theirs)


def test_only_the_input_is_kept():
    x, w, bias, sizes = draw(2, 11, 6), draw(6, 4, seed=1), draw(6, seed=2), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        fast.short_conv(x, w, bias, 11, "swish")
    assert sum(sizes) == x.numel() + w.numel() + bias.numel()


def test_an_accelerator_takes_all_positions_at_once():
    for device, n_tiles in (("cpu", 64), ("meta", 1)):
        assert len([*fast._tiles(torch.empty(2, 1024, 2048, device=device))]) == n_tiles
    assert not [*fast._tiles(torch.empty(0, 0, 4))]
