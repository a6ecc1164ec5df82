import math

import pytest
import torch

from kinfolk.core.errors import SpecError
from kinfolk.layers.norms.norm import LayerNorm, NoNorm, RMSNorm, ScaleNorm, Shift, ShiftScale
from tests.exact import assert_exact


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def built(spec, width=12):
    torch.manual_seed(0)
    module = spec.build(width).double()
    for p in module.parameters():
        torch.nn.init.normal_(p)
    assert sum(p.numel() for p in module.parameters()) == spec.cost(width).params
    return module


def test_rms_norm_is_torchs():
    ours, theirs = built(RMSNorm(eps=1e-3)), torch.nn.RMSNorm(12, eps=1e-3, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    assert_exact(ours(x(2, 3, 12)), theirs(x(2, 3, 12)))


def test_rms_norm_is_the_norm_of_t5():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="needs transformers")
    ours, theirs = built(RMSNorm()), t5.T5LayerNorm(12).double()
    theirs.load_state_dict(ours.state_dict())
    # theirs squares in float32 whatever comes in
    torch.testing.assert_close(ours(x(2, 3, 12)), theirs(x(2, 3, 12)), rtol=1e-6, atol=1e-6)


def test_layer_norm_is_rms_norm_where_the_mean_is_zero():
    rms, layer = RMSNorm(eps=1e-5).build(12).double(), LayerNorm(eps=1e-5).build(12).double()
    centred = x(2, 3, 12) - x(2, 3, 12).mean(-1, keepdim=True)
    assert_exact(rms(centred), layer(centred))
    assert not torch.allclose(rms(centred + 1), layer(centred + 1))


def test_partial_rms_norm_asks_the_first_channels_only():
    norm = built(RMSNorm(part=0.0675, eps=1e-12), width=768)
    assert norm.n_seen == 52
    y, more = x(1, 1, 768), x(1, 1, 768)
    more[..., 52:] *= 7
    assert_exact(norm(more)[..., 52:], 7 * norm(y)[..., 52:])
    assert_exact(norm(more)[..., :52], norm(y)[..., :52])
    assert_exact(norm(3 * y), norm(y))


def test_scale_norm_gives_every_vector_one_length():
    norm = ScaleNorm().build(12).double()
    norm.length.data.fill_(math.sqrt(12))
    assert_exact(norm(x(2, 3, 12)).norm(dim=-1), torch.full((2, 3), math.sqrt(12), dtype=torch.float64))
    assert_exact(norm(100 * x(2, 3, 12)), norm(x(2, 3, 12)))
    # with equal gains it is the norm by the root mean square
    assert_exact(norm(x(2, 3, 12)), RMSNorm(eps=0.0).build(12).double()(x(2, 3, 12)))
    assert norm(torch.zeros(1, 1, 12, dtype=torch.float64)).abs().max() == 0


@pytest.mark.parametrize("spec", [NoNorm(), Shift(), ShiftScale()])
def test_what_is_no_norm_starts_as_the_identity(spec):
    assert torch.equal(spec.build(12).double()(x(2, 3, 12)), x(2, 3, 12))


def test_shift_and_scale_are_one_number_each():
    assert_exact(built(Shift())(x(2, 12)), x(2, 12) + built(Shift()).shift)
    norm = built(ShiftScale())
    assert_exact(norm(x(2, 12)), norm.scale * (x(2, 12) + norm.shift))


@pytest.mark.parametrize("part", [0.0, -0.1, 1.1])
def test_a_share_of_the_channels_lies_between_none_and_all(part):
    with pytest.raises(SpecError, match=r"^part: .* is not allowed; above 0 and at most 1$"):
        RMSNorm(part=part)
