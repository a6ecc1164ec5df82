"""Which precision, and whether to compile: what was asked for, or what this device is built for.

Nothing is measured: the same command on the same machine computes the same bits, however busy the machine is. The
choice is written to run.toml, so that a resumed run repeats it on whatever machine it goes on.
"""

import contextlib
import dataclasses
import functools
import logging
import os
from typing import Any

import torch
from torch import nn

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import from_plain
from kinfolk.optim import Training
from kinfolk.runs.metadata import Metadata, Precision
from kinfolk.train.step import Autocast, LossScale

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

ANSWER = "KINFOLK_BF16"
"""An environment variable that answers in the place of the machine whether bf16 is "fast" or "slow" here."""


@dataclasses.dataclass(frozen=True)
class PrecisionChoice:
    """A precision ("fp32", "tf32", "bf16", "fp16") and whether the learner is compiled ("on", "off")."""

    precision: str = "fp32"
    compile: str = "off"

    @classmethod
    def recorded(cls, run: Metadata) -> "PrecisionChoice | None":
        """Return the choice that a run.toml records."""
        return None if run.choice is None else cls(run.choice.precision, run.choice.compile)

    def record(self, begun_with: str | None = None) -> Precision:
        """Return it as run.toml records it."""
        fields = {"precision": self.precision, "compile": self.compile, "begun_with": begun_with}
        return from_plain(Precision, {key: value for key, value in fields.items() if value is not None})

    def autocast(self, device: torch.device) -> Autocast:
        """Return what a forward pass runs inside: weights stay fp32, as do norms, softmax and loss."""
        if self.precision not in _DTYPES:
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
        return torch.compile(module)  # type: ignore[return-value]


def settle(training: Training, device: torch.device) -> PrecisionChoice:
    """Return what the spec asks for, and where it leaves something open ("auto"), what suits the device.

    "auto" never compiles: whether that pays depends on the length of the run and on how busy the machine is.
    """
    precision: str = fast_format(device) if training.precision == "auto" else training.precision
    if precision == "fp16" and device.type == "cpu":
        raise SpecError(
            "training.precision: 'fp16' is for accelerators: a CPU has no fp16 arithmetic, and a step takes minutes; "
            "use bf16 or fp32"
        )
    if precision == "tf32" and device.type != "cuda":
        raise SpecError(
            f"training.precision: 'tf32' is a format of CUDA devices, and this one is {device.type}; use fp32"
        )
    return PrecisionChoice(precision, "off" if training.compile == "auto" else training.compile)


def fast_format(device: torch.device) -> str:
    """Return the precision that a device has matrix units for; fp32 where it has none.

    A CPU needs AMX: AVX-512 instructions for bf16 gain nothing on small models (gpt2 tiny 1.0 times, small 1.5 times),
    where fp32 gives the results of every other CPU up to rounding. fp16 is for GPUs older than bf16.
    """
    answer = os.environ.get(ANSWER)
    if answer:
        if answer not in ("fast", "slow"):
            raise SpecError(f"{ANSWER}: expected fast or slow, got {answer!r}")
        return "bf16" if answer == "fast" else "fp32"
    if device.type == "cpu":
        # the second question is what an environment that emulates an older CPU answers differently
        amx = torch.cpu._is_amx_tile_supported() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        return "bf16" if amx else "fp32"
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if device.type == "xpu" else "fp32"
