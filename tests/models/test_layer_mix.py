"""A stack that is read at all layers."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.plain import dumps, loads
from kinfolk.models.cost import cost
from kinfolk.models.depth.layer_mix import LayerMix
from kinfolk.models.model import Model, build_model

NUMBERS = {"vocab_size": 20, "n_layers": 3, "d_model": 8, "d_ff": 16, "n_heads": 2, "max_len": 16}


@pytest.fixture(params=["bert", "gpt2"])
def both(request):
    """A model, post-norm or pre-norm, and the same with its layers mixed."""
    spec = kf.relative(request.param, size="tiny", **NUMBERS).model
    side = "encoder" if spec.encoder is not None else "decoder"
    mixed = spec.replace(**{side: LayerMix.of(getattr(spec, side))})
    plain, other = build_model(spec).double().eval(), build_model(mixed).double().eval()
    other.load_state_dict(plain.state_dict(), strict=False)
    return plain, other, side


def test_all_of_the_share_at_a_layer_is_that_layer(both):
    plain, mixed, side = both
    tokens = torch.randint(7, 20, (2, 11), generator=torch.Generator().manual_seed(0))
    taps = plain(tokens, taps=("hidden",)).taps
    stack = getattr(mixed, side)
    for layer in range(3):
        with torch.no_grad():
            stack.layer_mix.copy_(torch.full((4,), -1e9).index_fill(0, torch.tensor([layer + 1]), 0.0))
        want = getattr(plain, side).norm(taps[f"{side}.{layer}.hidden"])
        torch.testing.assert_close(mixed(tokens).hidden, want, rtol=0, atol=1e-12)
    # the last one is the stack itself
    torch.testing.assert_close(mixed(tokens).hidden, plain(tokens).hidden, rtol=0, atol=1e-12)


def test_equal_shares_are_the_mean_and_everything_learns(both):
    plain, mixed, side = both
    tokens = torch.randint(7, 20, (2, 11), generator=torch.Generator().manual_seed(0))
    taps = mixed(tokens, taps=("hidden", "layers")).taps
    torch.testing.assert_close(taps[f"{side}.layers"], torch.full((4,), 0.25, dtype=torch.float64))
    mixed(tokens).hidden.square().sum().backward()
    stack = getattr(mixed, side)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (stack.layer_mix, stack.layer_scale))
    assert mixed.n_params == plain.n_params + 5 == cost(mixed.spec, 11).params
    assert loads(Model, dumps(mixed.spec)) == mixed.spec
