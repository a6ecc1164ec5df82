"""Muon and Lion: a run of steps against PyTorch's Muon, AdamW, and formulas written out."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import kinfolk as kf
from kinfolk.core.plain import dumps, loads
from kinfolk.layers.module import Linear
from kinfolk.optim import AdamW, Lion, Muon, Optimiser
from kinfolk.optim.muon import orthogonalised
from tests.optim.test_lamb import drive, net


class Wide(TorchFunctionMode):
    """Their iteration runs in bfloat16 whatever the weights are: here in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0].clone() if func is Tensor.bfloat16 else func(*args, **(kwargs or {}))


def test_matrices_move_as_by_torchs_muon_and_the_rest_by_adamw() -> None:
    ours, muon, adam = net(), net(), net()
    drive(ours, Muon(lr=0.01, weight_decay=0.1).build(ours), 30)
    matrices = [p for p in muon.parameters() if p.ndim == 2]
    with Wide():
        theirs = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        drive(muon, theirs, 30)
    drive(adam, AdamW(lr=0.01, betas=(0.9, 0.95), weight_decay=0.1).build(adam), 30)
    for a, b, c in zip(ours.parameters(), muon.parameters(), adam.parameters(), strict=True):
        torch.testing.assert_close(a, b if a.ndim == 2 else c, rtol=1e-9, atol=1e-11)


def test_singular_values_come_near_one() -> None:
    for shape in ((40, 16), (16, 40), (7, 7)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values = torch.linalg.svdvals(orthogonalised(x, 5))
        assert 0.4 < values.min() <= values.max() < 1.4


def test_packed_maps_are_orthogonalised_apart() -> None:
    packed, apart = Linear(6, 12, bias=False, packs=2).double(), [Linear(6, 6, bias=False).double() for _ in "qk"]
    gradient = torch.randn(12, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for one, part in zip(apart, (0, 1), strict=True):
        one.weight.data.copy_(packed.weight.chunk(2)[part])
        one.weight.grad = gradient.chunk(2)[part].clone()
    packed.weight.grad = gradient
    Muon().build(packed).step()
    Muon().build(nn.ModuleList(apart)).step()
    torch.testing.assert_close(packed.weight, torch.cat([one.weight for one in apart]))


def test_embeddings_and_output_layers_are_not_hidden() -> None:
    model = kf.build(kf.relative("llama", size="tiny"))
    optimiser = Muon().build(model)
    names = {
        hidden: {n for g in optimiser.param_groups if g["hidden"] is hidden for n in g["names"]}
        for hidden in (True, False)
    }
    assert names[True] | names[False] == {name for name, _ in model.named_parameters()}
    assert {"embedding.table.weight", "head.untied.weight", "decoder.norm.weight"} <= names[False]
    assert {"decoder.blocks.0.parts.0.qkv.weight", "decoder.blocks.1.parts.1.narrow.weight"} <= names[True]


def test_fifty_steps_of_lion_are_the_formula() -> None:
    spec, model, hand = Lion(lr=0.01, betas=(0.8, 0.95), weight_decay=0.1), net(), net()
    drive(model, spec.build(model), 50)
    draw = torch.Generator().manual_seed(1)
    means = {n: torch.zeros_like(p) for n, p in hand.named_parameters()}
    with torch.no_grad():
        for _ in range(50):
            for n, w in hand.named_parameters():
                g = torch.randn(w.shape, generator=draw, dtype=w.dtype)
                pull = 0.1 * w if w.ndim == 2 else 0.0 * w
                w -= 0.01 * ((0.8 * means[n] + 0.2 * g).sign() + pull)
                means[n] = 0.95 * means[n] + 0.05 * g
    for a, b in zip(model.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", [Muon(lr=3e-3), Lion(lr=1e-3)], ids=["muon", "lion"])
def test_learns_and_goes_on_from_its_state(spec: Optimiser) -> None:
    assert loads(Optimiser, dumps(spec)) == spec
    torch.manual_seed(0)
    x = torch.randn(64, 5, dtype=torch.float64)
    y = x @ torch.randn(5, 3, dtype=torch.float64)

    def steps(model: nn.Module, optimiser: torch.optim.Optimizer, n: int) -> float:
        for _ in range(n):
            optimiser.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimiser.step()
        return float(loss.detach())

    model = net()
    optimiser = spec.build(model)
    first = steps(model, optimiser, 1)
    weights, state = {k: v.clone() for k, v in model.state_dict().items()}, copy.deepcopy(optimiser.state_dict())
    again = net()
    again.load_state_dict(weights)
    other = spec.build(again)
    other.load_state_dict(state)
    assert steps(model, optimiser, 60) == pytest.approx(steps(again, other, 60), rel=1e-12)
    assert steps(model, optimiser, 1) < 0.9 * first
