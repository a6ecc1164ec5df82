"""Hyena: the operator against its definition in loops, with gradients, and step by step."""

import math

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Padding
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.hyena import Hyena
from kinfolk.layers.module import Dims
from kinfolk.ops.naive import long_conv as by_loops
from tests.layers.test_latent_attention import assert_same, normal

DIMS = Dims(d_model=4, vocab_size=5, max_len=16, dropout=0.0, n_sublayers=2, direction="past")


def built(spec):
    module = spec.build(DIMS).double()
    for n, p in enumerate(module.parameters()):
        p.data = normal(*p.shape, seed=n + 1) * 0.5
    return module


def kernel(module, t, spec):
    """Return the taps at time t: an MLP with sines, times a window, plus the skip at 0 (equation 7)."""
    net, unit, bands = module.filter, DIMS.max_len, (spec.n_features - 1) // 2
    steps = [1e-4 + (bands - 1 - 1e-4) * i / (bands - 1) for i in range(bands)]
    angles = [2 * math.pi * t * f / unit for f in steps]
    z = torch.tensor([t / (unit - 1), *map(math.cos, angles), *(-math.sin(a) for a in angles)], dtype=torch.float64)
    for layer in net.layers:
        z = torch.sin(net.rate_W * (layer.weight @ z + layer.bias))
    taps, n = net.out.weight @ z, len(net.skip_D)
    rates = [math.log(0.01) / 1.5 * (1 - i / (n - 1)) + math.log(0.01) / 0.3 * i / (n - 1) for i in range(n)]
    window = torch.tensor([math.exp(t / (unit - 1) * rate) for rate in rates], dtype=torch.float64)
    return taps * window + (net.skip_D if t == 0 else 0)


@pytest.mark.parametrize("order", [2, 3])
def test_the_operator_equals_the_definition(order):
    spec = Hyena(order=order, width=5, n_features=7, sine=2.0)
    module, x, length = built(spec), normal(1, 6, 4).requires_grad_(), 6
    u = x[0] @ module.inner.weight.T + module.inner.bias
    taps = module.conv.taps_Dt
    rows = [module.conv.bias_D + sum(taps[:, 2 - t] * u[i - t] for t in range(3) if i >= t) for i in range(length)]
    *gates, v = torch.stack(rows).chunk(order + 1, dim=1)
    h = torch.stack([kernel(module, t, spec) for t in range(length)]).chunk(order - 1, dim=1)
    for n, gate in enumerate(reversed(gates[1:])):
        v = by_loops.long_conv((v * gate)[None], h[n])[0]
    want = (v * gates[0]) @ module.out.weight.T + module.out.bias
    assert_same(module(x, Context(), None)[0][0], want, [x, *module.parameters()])


def test_left_padding_is_not_seen():
    module, x = built(Hyena(width=5, n_features=7)), normal(1, 5, 4)
    padded = torch.cat([normal(1, 3, 4, seed=5), x], 1)
    keep = torch.arange(8)[None] >= 3
    got = module(padded, Context(padding=Padding.of(keep)), None)[0][:, 3:]
    torch.testing.assert_close(got, module(x, Context(), None)[0])


def test_one_layer_alone_decodes_as_it_reads():
    layer = kf.layer("hyena", d_model=8, max_len=16).double()
    x = normal(2, 9, 8)
    state = layer.start(batch_size=2, max_len=9)
    steps = []
    for i in range(9):
        y, state = layer.step(x[:, i : i + 1], state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), layer(x))
    # every input is kept: nine positions of one long convolution
    assert state.part.u_BMD.shape == (2, 9, 8)


@pytest.mark.parametrize(
    ("fields", "message"), [({"order": 1}, "no long convolution"), ({"n_features": 4}, "n_features: 4")]
)
def test_what_is_refused(fields, message):
    with pytest.raises(SpecError, match=message):
        Hyena(**fields)
    with pytest.raises(SpecError, match="belongs into a decoder"):
        Hyena().build(Dims(d_model=4, vocab_size=5, max_len=16, dropout=0.0, n_sublayers=2))
