"""nGPT: its parts and the whole against loops from the equations, in float64; matrices stay on the sphere."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.unit_rows import normalise_matrices
from kinfolk.layers.feed_forwards.scaled_gated import ScaledGated
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.layers.mixers.unit_scores import UnitScores
from kinfolk.layers.residuals.spherical import SphericalStep
from kinfolk.ops.naive import normalised_transformer as naive
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.optim.sphere import SphereAdamW
from tests.layers.test_latent_attention import DIMS, assert_same, built, normal

TOY = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 12, "vocab_size": 20, "max_len": 16}


@pytest.mark.parametrize("n_kv_heads", [0, 2])
def test_attention_of_unit_queries_and_keys(n_kv_heads):
    spec = ExtendedAttention(
        n_heads=4, n_kv_heads=n_kv_heads, bias=False, pattern=Causal(), scale=2**0.5, extras=(UnitScores(),)
    )
    module, x = built(spec), normal(1, 5, 8).requires_grad_()
    n = n_kv_heads or 4
    q, k, v = module.qkv(x).unflatten(-1, (-1, 2))[0].transpose(0, 1).split([4, n, n])
    share = 4 // n
    gain = module.extras[0].gain_G1K[:, 0] * DIMS.d_model**0.5
    want = naive.unit_attention(q, *(y.repeat_interleave(share, 0) for y in (k, v)), gain.repeat_interleave(share, 0))
    want = module.out(want.transpose(0, 1).flatten(1))
    assert_same(module(x, Context(), None)[0][0], want, [x, *module.parameters()])


def test_the_gated_feed_forward():
    module, x = built(ScaledGated(d_ff=6, activation="swish")), normal(1, 4, 8).requires_grad_()
    gate, value = module.widen.weight.chunk(2)
    want = naive.scaled_gated(x[0], gate, value, module.narrow.weight, module.gains_2F)
    assert_same(module(x, Context(), None)[0][0], want, [x, *module.parameters()])


def test_steps_on_the_sphere():
    module, x, y = built(SphericalStep(rate=0.3)), normal(1, 4, 8), normal(1, 4, 8, seed=3)
    x = torch.nn.functional.normalize(x, dim=-1).requires_grad_()
    y.requires_grad_()
    got, _ = module(x, lambda x, ctx, state: (y, state), Context(), None)
    want = naive.spherical_step(x[0], y[0], module.alpha_D * 0.3 * DIMS.d_model**0.5)
    assert_same(got[0], want, [x, y, *module.parameters()])
    torch.testing.assert_close(got.norm(dim=-1), torch.ones(1, 4).double())


def test_the_whole_model_from_the_equations():
    model = kf.build(kf.relative("ngpt", **TOY)).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[7, 9, 12, 7, 15]])
    x = torch.stack([naive.unit(row) for row in model.embedding.table.weight[tokens[0]]])
    for block in model.decoder.blocks:
        look, think = block.parts
        q, k, v = look.qkv(x).unflatten(-1, (6, 4)).transpose(0, 1).split([2, 2, 2])
        q, k = look.position.turn(q[None], k[None], Context())
        y = naive.unit_attention(q[0], k[0], v, look.extras[0].gain_G1K[:, 0] * 8**0.5)
        sizes = [residual.alpha_D * 0.05 * 8**0.5 for residual in block.residuals]
        x = naive.spherical_step(x, y.transpose(0, 1).flatten(1) @ look.out.weight.T, sizes[0])
        gate, value = think.widen.weight.chunk(2)
        x = naive.spherical_step(x, naive.scaled_gated(x, gate, value, think.narrow.weight, think.gains_2F), sizes[1])
    head = model.head
    want = torch.stack([head.gain_V * 8**0.5 * (head.untied.weight @ row) for row in x])
    assert_same(model(tokens).logits[0], want, list(model.parameters()))


def lengths(model):
    axes = {name: 0 if name.endswith(("out.weight", "narrow.weight")) else 1 for name, _ in model.named_parameters()}
    return {name: p.norm(dim=axes[name]) for name, p in model.named_parameters() if p.ndim == 2 and "gains" not in name}


def test_matrices_are_on_the_sphere_at_first_and_after_every_step():
    model = kf.build(kf.relative("ngpt", **TOY))
    for found in lengths(model).values():
        torch.testing.assert_close(found, torch.ones_like(found))
    optimiser = SphereAdamW(lr=0.1).build(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    model(torch.tensor([[7, 8, 9]])).logits.square().sum().backward()
    optimiser.step()
    assert len(lengths(model)) == 2 + 2 * 4
    for name, found in lengths(model).items():
        torch.testing.assert_close(found, torch.ones_like(found))
        assert not torch.equal(before[name], model.get_parameter(name))
    # without the projection they leave it
    plain = torch.optim.AdamW(model.parameters(), lr=0.1)
    plain.step()
    assert any((found - 1).abs().max() > 1e-3 for found in lengths(model).values())
    normalise_matrices(model)
    for found in lengths(model).values():
        torch.testing.assert_close(found, torch.ones_like(found))
