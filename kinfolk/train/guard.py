"""A loss or gradient that is not finite ends the run; the step and the examples are named, the batch is kept."""

import math
from pathlib import Path
from typing import NoReturn

from safetensors.torch import save_file

from kinfolk.core.batch import Batch
from kinfolk.core.errors import TrainingError
from kinfolk.runs import durable
from kinfolk.train.step import StepOutcome

_SHOWN = 16


def stop(outcome: StepOutcome, batch: Batch, step: int, out: Path, rank: int = 0) -> NoReturn:
    """Save the batch and raise a `TrainingError` that says where to look.

    The examples are those of the first micro-batch whose own loss is not finite; when every loss is finite and
    the gradient is not, or the fault lies in another process's rows, they are all of this process's rows.
    """
    rows = len(batch) // len(outcome.totals)
    culprit = next((i for i, total in enumerate(outcome.totals) if not math.isfinite(total)), None)
    part = batch if culprit is None else batch.rows(slice(culprit * rows, (culprit + 1) * rows))
    file = out / f"bad-batch-step-{step:06d}-process-{rank}.safetensors"
    with durable.refusal(file):
        save_file({name: x.contiguous().cpu() for name, x in part.tensors.items()}, file)
    fault = f"the loss is {outcome.loss}" if not math.isfinite(outcome.loss) else f"the gradient is {outcome.grad_norm}"
    raise TrainingError(
        f"step {step}: {fault}; examples {_numbers(part)} (saved in {file}). "
        f"The weights are those of step {step - 1}; try a lower lr, a longer warmup or a smaller clip"
    )


def _numbers(batch: Batch) -> str:
    numbers = batch.index.flatten().tolist()
    rest = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + rest
