"""Run options: how a run is carried out (device, threads, time limit), apart from its recipe."""

from typing import Literal

from kinfolk.core.bounds import NonNegativeFloat, NonNegativeInt
from kinfolk.core.spec import Spec


class RunOptions(Spec):
    """How a run is carried out; none of it belongs to the recipe.

    strategy: "ddp" or "fsdp" when there are several processes.
    device: "auto" (the accelerator, if there is one), "cpu", "cuda", "mps" or "xpu".
    threads: of this process; 0: as many as the work of a step can use, see `kinfolk.train.settling`.
    max_seconds: of training steps, after which the run ends with a validation and a checkpoint; 0: no limit.
    quiet, tensorboard: show no progress; write TensorBoard's files when it is installed.
    report: write report.html into the run folder at the end.
    written: of pairs, generate this many targets at each validation, and score them; 0: none.
    """

    strategy: Literal["ddp", "fsdp"] = "ddp"
    device: str = "auto"
    threads: NonNegativeInt = 0
    max_seconds: NonNegativeFloat = 0.0
    quiet: bool = False
    tensorboard: bool = True
    report: bool = True
    written: NonNegativeInt = 0
