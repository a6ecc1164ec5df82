"""Which number format, and whether to compile: chosen by measuring this model's step on this device.

Nothing is assumed. A CPU without bf16 instructions multiplies bf16 matrices hundreds of times slower than
fp32 ones, and compiling takes half a minute that a short run never earns back. So a candidate is first tried on
something small, then on a few steps of the model itself, and takes the place of fp32 only by being faster.
The choice is written to run.toml, so that a resumed run repeats it instead of measuring again.
"""

import contextlib
import dataclasses
import functools
import logging
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.optim import Training
from kinfolk.train.peak import best_time, gemm_flops
from kinfolk.train.step import Autocast, LossScale

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GAIN = 1.1
"""How much faster a candidate must be: less is within the noise of a short measurement."""
COMPILE_AFTER = 1800.0
"""Seconds a run must be expected to take before a minute of compiling is worth trying."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A number format ("fp32", "bf16", "fp16") and whether the learner is compiled ("on", "off")."""

    precision: str = "fp32"
    compile: str = "off"
    measured: dict[str, float] = dataclasses.field(default_factory=dict)

    def autocast(self, device: torch.device) -> Autocast:
        """Return what a forward pass runs inside: weights stay fp32, as do norms, softmax and loss."""
        if self.precision == "fp32":
            return contextlib.nullcontext
        return functools.partial(torch.autocast, device.type, dtype=_DTYPES[self.precision])

    def scale(self) -> LossScale | None:
        """Return a fresh loss scale for fp16; the other formats have the range of fp32."""
        return LossScale() if self.precision == "fp16" else None

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module compiled, if that was chosen."""
        if self.compile == "off":
            return module
        # what the compiler leaves to eager mode is not the user's concern
        logs: Any = torch._logging
        logs.set_logs(all=logging.ERROR)
        compiled: Any = torch.compile(module)
        return compiled


def choose(
    learner: nn.Module, batch: Batch, training: Training, device: torch.device, *, steady: bool = True
) -> Choice:
    """Measure what the spec leaves open ("auto") on one micro-batch; the learner's weights do not change.

    steady: whether all batches have the shape of this one. If not, "auto" does not compile: it would do so for each.
    """
    micro = batch.rows(slice(0, max(1, len(batch) // training.accumulate)))
    measured: dict[str, float] = {}
    with _undisturbed(learner):
        time_of = functools.partial(_step_time, learner, micro, device)
        precision = training.precision
        if precision == "auto":
            precision = _choose_precision(time_of, device, measured)
        compiling = training.compile
        if compiling == "auto" and not steady:
            compiling = "off"
        elif compiling == "auto":
            compiling = _choose_compile(time_of, precision, training, measured)
    return Choice(precision, compiling, {name: round(value, 6) for name, value in measured.items()})


def _choose_precision(time_of: Any, device: torch.device, measured: dict[str, float]) -> str:
    candidate = half_precision(device)
    if candidate is None:
        return "fp32"
    measured["fp32"] = time_of(Choice("fp32"))
    measured[candidate] = time_of(Choice(candidate))
    return candidate if measured["fp32"] > GAIN * measured[candidate] else "fp32"


def half_precision(device: torch.device) -> str | None:
    """Return the half-width format worth trying on a model: the one whose small matrix products are faster.

    bf16 comes first because it needs no loss scale; fp16 is for GPUs older than bf16.
    """
    formats = ("bf16", "fp16") if device.type == "cuda" else ("bf16",)
    plain = gemm_flops(device, "fp32", size=256, seconds=0.02)
    for candidate in formats:
        try:
            speed = gemm_flops(device, candidate, size=256, seconds=0.02)
        except RuntimeError:
            # a device that does not know the format at all
            continue
        if speed > GAIN * plain:
            return candidate
    return None


def _choose_compile(time_of: Any, precision: str, training: Training, measured: dict[str, float]) -> str:
    # one step tells whether the run is long enough; it is the first, so it rather overstates
    plain = measured.get(precision) or time_of(Choice(precision), most=1)
    if plain * training.accumulate * training.steps < COMPILE_AFTER:
        return "off"
    measured[precision] = plain = measured.get(precision) or time_of(Choice(precision))
    try:
        measured["compiled"] = time_of(Choice(precision, "on"))
    except Exception:
        # no compiler on this machine, or an operator it cannot translate: eager mode always works
        return "off"
    return "on" if plain > GAIN * measured["compiled"] else "off"


def _step_time(learner: nn.Module, batch: Batch, device: torch.device, choice: Choice, most: int = 5) -> float:
    module, autocast = choice.wrap(learner), choice.autocast(device)

    def work() -> None:
        with autocast():
            loss = module(batch)
        torch.autograd.backward(loss.total / loss.count.clamp(min=1) + loss.side)
        learner.zero_grad(set_to_none=True)

    return best_time(work, device, seconds=0.3, most=most)


@contextlib.contextmanager
def _undisturbed(learner: nn.Module) -> Any:
    """Leave buffers, gradients and the random state as they were."""
    buffers: list[tuple[Tensor, Tensor]] = [(b, b.clone()) for b in learner.buffers()]
    state = torch.get_rng_state()
    try:
        yield
    finally:
        learner.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        for buffer, old in buffers:
            buffer.copy_(old)
