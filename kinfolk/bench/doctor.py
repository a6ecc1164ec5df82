"""Self-check of a device: every operator against its naive reference, and one training step of every relative.

References run on the CPU in float64. A device computes in float32, and under autocast in half precision; its outputs
and gradients have to be as near as these formats allow.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import Batch
from kinfolk.core.device import send
from kinfolk.core.rng import Rng
from kinfolk.family.making import make, numbers_of
from kinfolk.family.registry import about, entry, relatives
from kinfolk.models.model import build_model
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.ops.experts import ExpertWeights
from kinfolk.ops.patterns.leaves import Causal, Window
from kinfolk.optim import Training
from kinfolk.train.parallel import Team
from kinfolk.train.precision import PrecisionChoice
from kinfolk.train.step import Stepper

TOY = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 64}
IMAGES = {"image_width": 4, "channels": 1, "patch": 2, "n_classes": 5, "factor": 2}
NEAR = {"fp32": 2e-3, "bf16": 0.1, "fp16": 0.05}
"""How far a number may be from its reference, as a share of the largest: differences of larger numbers add up."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was checked, in which precision, how far off it is, and what went wrong."""

    name: str
    precision: str
    off: float
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether it is as it should be."""
        return not self.error and self.off <= NEAR[self.precision]


def operators() -> dict[str, tuple[Any, ...]]:
    """Return arguments for every operator whose reference takes the same ones, by module and function."""
    drawn = torch.Generator().manual_seed(0)

    def n(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn, dtype=torch.float64)

    def ids(below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=drawn)

    keep_BL = torch.arange(5) < torch.tensor([[5], [3]])
    experts = ExpertWeights(n(4, 6, 3), n(4, 6), n(4, 3, 6), n(4, 3))
    return {
        "activated_linear.activated_linear": (n(2, 3, 5), n(4, 5), n(4), "gelu"),
        "attention.attend.attend": (n(2, 2, 7, 4), n(2, 2, 7, 4), n(2, 2, 7, 4), Causal() & Window(left=3)),
        "compressed_keys.compress_positions": (n(2, 2, 7, 3), n(2, 4, 9)),
        "compressed_keys.compress_windows": (n(2, 2, 7, 3), n(2, 3, 2, 3), n(2, 3)),
        "cross_entropy.cross_entropy": (n(6, 3), n(7, 3), n(7), ids(7, 6), 0.9, 0.1 / 7),
        "cross_entropy.mixture_cross_entropy": (n(5, 2, 3), n(5, 2).log_softmax(-1), n(7, 3), ids(7, 5)),
        "experts.mix_experts": (n(5, 3), ids(4, 5, 1), n(5, 1), experts, "relu"),
        "gated_linear.gated_linear": (n(2, 3, 10), n(4, 5), n(4), "gelu"),
        "gelu.gelu_tanh": (n(3, 5),),
        "lightconv.depthwise_conv": (n(2, 5, 6), n(6, 3), 2, 5),
        "lightconv.dynamic_conv": (n(2, 5, 6), n(2, 5, 2, 3), 2),
        "discretized_logistic.mixture": (n(5, 6), ids(9, 5), 8),
        "patches.cut": (n(2, 32), 4, 1, 2),
        "pooling.pool": (n(2, 5, 3), torch.tensor([[0, 0, 1, 1, 2]]).expand(2, 5), keep_BL, 3),
        "pooling.unpool": (n(2, 3, 4), torch.tensor([[0, 0, 1, 1, 2]]).expand(2, 5)),
        "pooled_vector.readout": (n(2, 5, 3), keep_BL, "mean"),
        "rms_norm.rms_norm": (n(2, 3, 5), n(5), 4, 1e-3),
        "routing.chance_of_choice": (n(4, 5), n(4, 5), n(4, 5).exp(), 2),
        "ppo.entropy": (n(2, 3, 4),),
        "ppo.gaussian": (n(2, 3, 4), n(2, 3, 4), n(4)),
        "talking_heads.mix_heads": (n(2, 2), n(2, 2, 3, 4)),
    }


def check_operators(device: torch.device, precision: str) -> Iterator[Finding]:
    """Compare every operator on a device with its reference."""
    for name, arguments in operators().items():
        module, _, function = name.rpartition(".")
        fast = getattr(importlib.import_module(f"kinfolk.ops.{module}"), function)
        slow = getattr(importlib.import_module(f"kinfolk.ops.naive.{module.rpartition('.')[2]}"), function)
        yield _found(f"ops.{name}", precision, lambda: _compare(fast, slow, arguments, device, precision))  # noqa: B023


def check_relatives(device: torch.device, precision: str, only: str = "") -> Iterator[Finding]:
    """Compare a training step of every relative on a device with that of the CPU in float32."""
    for name in relatives():
        if only in name:
            yield _found(name, precision, lambda: _steps(name, device, precision))  # noqa: B023


def _found(name: str, precision: str, check: Callable[[], float]) -> Finding:
    try:
        return Finding(name, precision, check())
    except Exception as error:
        # whatever a device cannot do is what is looked for
        return Finding(name, precision, float("nan"), f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _compare(fast: Any, slow: Any, arguments: tuple[Any, ...], device: torch.device, precision: str) -> float:
    wanted = _run(slow, arguments, torch.device("cpu"), torch.float64)
    with PrecisionChoice(precision).autocast(device)():
        found = _run(fast, arguments, device, torch.float32)
    # some references are written without gradients
    return max(_off(a, b) for a, b in zip(found, wanted, strict=len(found) == len(wanted)))


def _run(function: Any, arguments: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return the output of a function and the gradients of all numbers that went in."""
    leaves: list[Tensor] = []

    def there(x: Any) -> Any:
        if isinstance(x, ExpertWeights):
            return ExpertWeights(*map(there, x))
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return send(x, device) if isinstance(x, Tensor) else x
        leaves.append(x.to(device=device, dtype=dtype).requires_grad_())
        return leaves[-1]

    out = function(*map(there, arguments))
    out = out[0] if isinstance(out, tuple) else out
    if not out.requires_grad:
        return [out]
    weights = torch.linspace(0.5, 1.5, out.numel()).to(out).view_as(out)
    grads = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]


def _off(found: Tensor, wanted: Tensor) -> float:
    found = found.detach().cpu().double()
    if found.shape != wanted.shape or not bool(found.isfinite().all()):
        return float("inf")
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)) if found.numel() else 0.0


def _steps(name: str, device: torch.device, precision: str) -> float:
    wanted, found = _loss(name, torch.device("cpu"), "fp32"), _loss(name, device, precision)
    return abs(found - wanted) / max(1.0, abs(wanted))


def _loss(name: str, device: torch.device, precision: str) -> float:
    """Return the loss of a toy without dropout, and see to it that a step of training is finite.

    What a training pass draws at random differs from device to device, so only the former can be compared.
    """
    known = numbers_of(entry(name).function)
    images = {key: value for key, value in IMAGES.items() if key in known} if about(name).input == "image" else {}
    recipe = make(name, size="tiny", **TOY, **images)
    learner = Learner(build_model(recipe.model, seed=1), recipe.objective, Vocabulary(TOY["vocab_size"])).to(device)
    drawn, index = torch.Generator().manual_seed(0), torch.arange(4)
    tokens, other = (torch.randint(7, TOY["vocab_size"], (4, 32), generator=drawn) for _ in range(2))
    batch = learner.prepare(Batch(index=index, tokens=tokens, labels=index % 2).annotate(OtherDocument(other)), Rng(0))
    choice, training = PrecisionChoice(precision), Training(steps=9, batch_size=4, length=32)
    with choice.autocast(device)():
        loss = learner.eval()(batch.map(lambda x: send(x, device)))
    optimiser = torch.optim.SGD(learner.train().parameters(), lr=1e-3)
    stepper = Stepper(learner, optimiser, training, 0, Team(device=device), choice.autocast(device), choice.scale())
    outcome = stepper.update(batch, 1, 9)
    if not outcome.finite:
        raise ArithmeticError(f"loss {outcome.loss}, norm of the gradient {outcome.grad_norm} in training")
    return float(loss.total.detach() / loss.count)
