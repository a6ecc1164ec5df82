"""What the loop is given and what it gives back."""

import dataclasses

from torch import nn

from kinfolk.core.spec import Spec
from kinfolk.optim import Training
from kinfolk.train.evaluate import Batches

FINISHED, EARLY, CLOCK, INTERRUPTED = "finished", "early", "clock", "interrupted"


class RunOptions(Spec):
    """How a run is carried out; none of it belongs to the recipe.

    strategy, device: "ddp" or "fsdp" when there are several processes; "auto", "cpu" or "cuda".
    threads: of this process; 0 leaves them alone.
    max_seconds: of training steps, after which the run ends with a validation and a checkpoint; 0: no limit.
    quiet, tensorboard: show no progress; write TensorBoard's files when it is installed.
    """

    strategy: str = "ddp"
    device: str = "auto"
    threads: int = 0
    max_seconds: float = 0.0
    quiet: bool = False
    tensorboard: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained on what. `flops_per_token` is of training: forward and backward."""

    name: str
    learner: nn.Module
    training: Training
    batches: Batches
    valid: Batches | None = None
    split: object = None
    seed: int = 0
    flops_per_token: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended: the content of result.json.

    status: "finished", "early" (no improvement for `patience` validations), "clock" (`max_seconds`) or "interrupted".
    """

    name: str
    out: str
    status: str
    step: int
    total_steps: int
    parameters: int
    tokens: int
    seconds: float
    flops: float
    loss: float | None
    valid: dict[str, float]
    bits_per_byte: float | None
    best: float | None
    best_step: int | None
    tokens_per_second: float
    mfu: float | None
    precision: str
    compile: str
