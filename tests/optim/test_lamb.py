import pytest
import torch
from torch import nn

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, loads
from kinfolk.optim import LAMB, Adafactor, AdamW, Constant, Cooldown, Optimiser, Schedule, SlantedTriangular


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double()


def drive(model, optimiser, steps, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=draw, dtype=p.dtype)
        optimiser.step()


@pytest.mark.parametrize("correction", [True, False])
def test_a_hundred_steps_are_the_formula(correction):
    spec = LAMB(lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, bias_correction=correction)
    model, hand = net(), net()
    drive(model, spec.build(model), 100)
    draw = torch.Generator().manual_seed(1)
    m = {n: torch.zeros_like(p) for n, p in hand.named_parameters()}
    v = {n: torch.zeros_like(p) for n, p in hand.named_parameters()}
    with torch.no_grad():
        for t in range(1, 101):
            for n, w in hand.named_parameters():
                g = torch.randn(w.shape, generator=draw, dtype=w.dtype)
                m[n] = 0.8 * m[n] + 0.2 * g
                v[n] = 0.95 * v[n] + 0.05 * g**2
                m_hat = m[n] / (1 - 0.8**t) if correction else m[n]
                v_hat = v[n] / (1 - 0.95**t) if correction else v[n]
                u = m_hat / (v_hat.sqrt() + 1e-6)
                ratio = 1.0
                if w.ndim == 2:
                    u = u + 0.1 * w
                    ratio = float(w.norm() / u.norm())
                w -= 0.01 * ratio * u
    for (n, a), b in zip(model.named_parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12, msg=n)


def test_a_step_is_as_long_as_its_share_of_the_weights():
    model = net()
    before = model[0].weight.detach().clone()
    drive(model, LAMB(lr=0.03, weight_decay=0.0).build(model), 1)
    torch.testing.assert_close((model[0].weight - before).norm(), 0.03 * before.norm())


def test_norms_of_one_make_it_adamw():
    """With the norms clipped to those of the updates, the ratio is 1 and what is left is AdamW."""
    ours, theirs = nn.Linear(4, 1, bias=False).double(), nn.Linear(4, 1, bias=False).double()
    theirs.load_state_dict(ours.state_dict())
    for model, spec in ((ours, LAMB(weight_decay=0.0, lr=0.01)), (theirs, AdamW(weight_decay=0.0, lr=0.01, eps=1e-6))):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, -1.0, 1.0, 1.0]]))
        optimiser = spec.build(model)
        model.weight.grad = torch.tensor([[0.3, 0.3, 0.3, 0.3]], dtype=torch.float64)
        optimiser.step()
    # the first update of Adam is a vector of ones, as long as these weights
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=1e-8)


def test_weights_of_zero_and_clipped_norms():
    model = nn.Linear(3, 3, bias=False).double()
    nn.init.zeros_(model.weight)
    drive(model, LAMB(lr=0.1, weight_decay=0.0).build(model), 1)
    assert model.weight.abs().sum() > 0
    clipped = nn.Linear(3, 3, bias=False).double()
    before = clipped.weight.detach().clone()
    drive(clipped, LAMB(lr=0.1, weight_decay=0.0, clip=(0.0, 0.01)).build(clipped), 1)
    torch.testing.assert_close((clipped.weight - before).norm(), torch.tensor(0.1 * 0.01, dtype=torch.float64))


def test_adafactor_learns_with_less_memory():
    torch.manual_seed(0)
    model, x = nn.Linear(32, 32), torch.randn(64, 32)
    optimiser = Adafactor(lr=0.05).build(model)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    held = sum(t.numel() for s in optimiser.state.values() for t in s.values())
    assert held < 0.2 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("spec", [LAMB(clip=(0.0, 10.0)), Adafactor(rho=-0.5)])
def test_optimisers_travel_as_text(spec):
    assert loads(Optimiser, dumps(spec)) == spec


def test_slanted_triangle_by_hand():
    schedule = SlantedTriangular(warmup=0.1, ratio=32)
    # cut = 10 of 100: rises from 1/32 to 1 at the eleventh update, then falls
    assert schedule.scale(1, 100) == pytest.approx(1 / 32)
    assert schedule.scale(6, 100) == pytest.approx((1 + 0.5 * 31) / 32)
    assert schedule.scale(11, 100) == pytest.approx(1.0)
    assert schedule.scale(56, 100) == pytest.approx((1 + 0.5 * 31) / 32)
    assert schedule.scale(100, 100) == pytest.approx((1 + (1 - 89 / 90) * 31) / 32)
    with pytest.raises(SpecError, match="ratio"):
        SlantedTriangular(ratio=0.5)


def test_cooldown_is_constant_and_then_falls():
    schedule = Cooldown(warmup=10, share=0.5)
    assert schedule.scale(5, 110) == 0.5
    assert [schedule.scale(step, 110) for step in (11, 30, 60, 61)] == [1.0] * 4
    assert schedule.scale(86, 110) == pytest.approx(0.5)
    assert schedule.scale(110, 110) == pytest.approx(0.02)
    assert Cooldown(share=1.0, floor=1.0).scale(7, 9) == Constant().scale(7, 9)
    with pytest.raises(SpecError, match="share"):
        Cooldown(share=0.0)
    assert loads(Schedule, dumps(schedule)) == schedule
