"""Which parameters decay, how the learning rate moves, and what a training spec refuses."""

import math

import pytest
import torch
from torch import nn

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, loads
from kinfolk.optim import Adam, AdamW, Constant, Cosine, InverseSqrt, LinearDecay, Optimiser, Training, named_groups


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def names(model: nn.Module, decay: str) -> dict[float, set[str]]:
    return {group["weight_decay"]: set(group["names"]) for group in named_groups(model, decay, 0.5)}


def test_only_matrices_decay() -> None:
    vectors = {"norm.weight", "norm.bias", "inner.bias"}
    assert names(Net(), "matrices") == {0.5: {"embed.weight", "inner.weight"}, 0.0: vectors}
    assert names(Net(), "hidden") == {0.5: {"inner.weight"}, 0.0: vectors | {"embed.weight"}}
    assert names(Net(), "all") == {0.5: vectors | {"embed.weight", "inner.weight"}}


def test_frozen_and_shared_parameters_are_counted_once() -> None:
    model = Net()
    model.inner.requires_grad_(False)
    optimiser = AdamW().build(model)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == 3
    model.requires_grad_(False)
    with pytest.raises(SpecError, match="no trainable parameter"):
        AdamW().build(model)


def test_adamw_is_the_equation() -> None:
    """Two updates by hand, in float64: decay acts on matrices only and is not part of the moments."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    spec = AdamW(lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    optimiser = spec.build(model)
    wanted = {name: p.detach().clone() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in wanted.items()}
    v = {name: torch.zeros_like(p) for name, p in wanted.items()}
    for step in (1, 2):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            m[name] = 0.8 * m[name] + 0.2 * parameter.grad
            v[name] = 0.9 * v[name] + 0.1 * parameter.grad**2
            decayed = wanted[name] * (1 - 0.1 * 0.3 * (name == "weight"))
            wanted[name] = decayed - 0.1 * (m[name] / (1 - 0.8**step)) / ((v[name] / (1 - 0.9**step)).sqrt() + 1e-6)
        optimiser.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), wanted[name], rtol=1e-10, atol=0)


def test_adam_is_fused_and_has_the_papers_numbers() -> None:
    optimiser = Adam().build(Net())
    assert optimiser.defaults["betas"] == (0.9, 0.98)
    assert optimiser.defaults["eps"] == 1e-9
    assert optimiser.defaults["fused"] is True


def test_inverse_sqrt_is_the_equation() -> None:
    schedule = InverseSqrt(warmup=4000, d_model=512)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        assert schedule.scale(step, 100_000) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    peak = max(range(1, 20_000), key=lambda step: schedule.scale(step, 20_000))
    assert peak == 4000
    assert InverseSqrt(warmup=0.04, d_model=512).scale(7, 100_000) == schedule.scale(7, 100_000)


@pytest.mark.parametrize("kind", [Constant, Cosine, LinearDecay])
def test_warmup_rises_in_a_line_and_then_only_falls(kind: type) -> None:
    for warmup, rise in ((10, 10), (0.1, 10), (0, 0), (100, 100), (250, 100)):
        scales = [kind(warmup=warmup).scale(step, 100) for step in range(1, 101)]
        assert scales[:rise] == [step / max(warmup, rise) for step in range(1, rise + 1)]
        assert scales[rise:] == sorted(scales[rise:], reverse=True)
        assert all(0 < scale <= 1 for scale in scales)
    assert kind().scale(1, 100) == 1


def test_decay_by_hand() -> None:
    assert LinearDecay(warmup=2).scale(3, 6) == 1
    assert LinearDecay(warmup=2).scale(6, 6) == pytest.approx(1 / 4)
    assert LinearDecay(warmup=2, floor=0.5).scale(5, 6) == pytest.approx(0.5 + 0.5 * 0.5)
    assert Cosine(floor=0.2).scale(51, 100) == pytest.approx(0.6)
    assert Cosine(floor=0.0).scale(26, 100) == pytest.approx(0.5 + 0.5 * math.sqrt(0.5))


def test_toml_round_trip() -> None:
    spec = Training(steps=7, optimiser=Adam(betas=(0.5, 0.6)), schedule=InverseSqrt(warmup=3, d_model=8), clip=0.0)
    assert loads(Training, dumps(spec)) == spec


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Training(steps=0), "steps: 0 is not allowed; at least 1"),
        (lambda: Training(clip=-1.0), "clip: -1.0 is not allowed; at least 0"),
        (lambda: Training(precision="bf61"), "did you mean 'bf16'"),
        (lambda: Training(batch_size=10, accumulate=3), "cannot be cut into accumulate = 3"),
        (lambda: AdamW(lr=0.0), "lr: 0.0 is not allowed; above 0"),
        (lambda: AdamW(betas=(0.9, 1.0)), r"betas\[1\]: 1.0 is not allowed; at least 0 and below 1"),
        (lambda: AdamW(decay="matrix"), "did you mean 'matrices'"),
        (lambda: Cosine(warmup=-1), "warmup: -1 is not allowed; at least 0"),
        (lambda: InverseSqrt(d_model=0), "d_model: 0 is not allowed; at least 1"),
    ],
)
def test_nonsense_is_refused(make: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()  # type: ignore[operator]


def test_an_error_names_its_path() -> None:
    with pytest.raises(SpecError, match=r"spec\.optimiser: .*unknown kind 'adamv'; did you mean 'adam"):
        loads(Training, '[optimiser]\nkind = "adamv"')


def test_a_new_optimiser_is_one_class() -> None:
    class Plain(Optimiser, kind="test-sgd"):
        def make(self, groups: list[dict]) -> torch.optim.Optimizer:
            return torch.optim.SGD(groups, lr=self.lr)

    spec = loads(Training, '[optimiser]\nkind = "test-sgd"\nlr = 0.5')
    assert isinstance(spec.optimiser.build(Net()), torch.optim.SGD)
