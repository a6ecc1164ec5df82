"""Mixers that promise to grow more slowly than the square of the length do: operations and bytes are counted."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import kinfolk as kf
from kinfolk.bench import mixers
from kinfolk.ops.attention.attend import scored_pairs

# an exponent is that between the first and the last
LENGTHS = (512, 4096)
# where gathering pays: shorter ones are dense, and cheaper so
LONGER = (2048, 16384)


class Allocations(TorchDispatchMode):
    """Adds up the bytes of every tensor that an operation makes, and remembers the largest."""

    def __init__(self):
        super().__init__()
        self.total, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        held = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in held:
                self.total += x.untyped_storage().nbytes()
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return out


def counted(settings, length):
    """Return the scores or operations, the bytes and the largest tensor of a pass forward and backward."""
    torch.manual_seed(0)
    sizes = {"length": length, "d_model": 32, "n_heads": 2}
    spec, _ = mixers.mixer_of(settings, sizes)
    layer = mixers.MixerLayer(settings, sizes)
    x = torch.randn(1, length, 32, requires_grad=True)
    # plans are made once for a length, from the corners of blocks
    layer(x)
    with Allocations() as bytes_, FlopCounterMode(display=False) as flops:
        layer(x).square().sum().backward()
    # the counter does not know the fused kernel, the executor says what it gives to it
    fused = hasattr(spec, "pattern")
    work = scored_pairs(layer.mixer.span.bounded(spec.pattern), length, 2) if fused else flops.get_total_flops()
    return work, bytes_.total, bytes_.largest


def exponents(settings_at, lengths):
    found = [counted(settings_at(length), length) for length in lengths]
    span = math.log(lengths[-1] / lengths[0])
    return [math.log(last / first) / span for first, last in zip(found[0], found[-1], strict=True)]


def settings(relative, layer=0, changes=(), **numbers):
    return {"relative": relative, "layer": layer, "set": dict(changes), "numbers": numbers}


def root(length):
    return 2 ** round(math.log2(length) / 2)


WINDOWED = {
    "local": lambda n: settings("local", window=64),
    "longformer": lambda n: settings("longformer", window=64),
    "bigbird": lambda n: settings("bigbird", block=64),
    "image-1d": lambda n: settings("image-1d", block=64, memory=64),
    "image-2d": lambda n: settings("image-2d", width=32, block_height=4, block_width=8, above=2, beside=4),
    "adaptive-span": lambda n: settings("adaptive-span"),
    "dmca, local": lambda n: settings("dmca", block=64),
}
LINEAR = {
    "reformer-lsh": lambda n: settings("reformer-lsh", sight=32),
    "reformer-lsh, chunks": lambda n: settings("reformer-lsh", changes={"sight": {"kind": "chunks", "size": 32}}),
    "performer": lambda n: settings("performer"),
    "performer, both": lambda n: settings("performer", changes={"direction": "both"}),
    "linear": lambda n: settings("linear"),
    "linear, both": lambda n: settings("linear", changes={"direction": "both"}),
    "linformer": lambda n: settings("linformer", rank=32),
    "lightweight-conv": lambda n: settings("lightweight-conv"),
    "dynamic-conv": lambda n: settings("dynamic-conv"),
}
ROOTED = {
    "sparse-strided": lambda n: settings("sparse-strided", combination="merged", stride=root(n)),
    "sparse-fixed": lambda n: settings("sparse-fixed", combination="merged", stride=root(n), width=1),
    "axial": lambda n: settings("axial", width=root(n)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WINDOWED, *LINEAR])
def test_linear_mixers_grow_linearly(name):
    found = exponents(WINDOWED[name], LONGER) if name in WINDOWED else exponents(LINEAR[name], LENGTHS)
    assert max(found) < 1.15


@pytest.mark.parametrize("name", ROOTED)
def test_mixers_of_root_length_keys_grow_with_the_power_of_three_halves(name):
    assert max(exponents(ROOTED[name], LONGER)) < 1.6


@pytest.mark.parametrize(("name", "least"), [("sparse-strided", 128), ("sparse-fixed", 128), ("axial", 32)])
def test_without_a_number_sets_grow_with_the_root_of_the_length(name, least):
    """A constant stride takes a constant share of all positions, which is quadratic."""
    for length, expected in {64: least, least**2: least, 1 << 16: 256, 1 << 18: 512}.items():
        own = "width" if name == "axial" else "stride"
        assert kf.relative(name, max_len=length) == kf.relative(name, max_len=length, **{own: expected})


def test_attention_to_everything_does_not():
    """The counters would notice: where scores are explicit, they are a tensor of L x L."""
    assert min(exponents(lambda n: settings("alibi"), LENGTHS)) > 1.9
