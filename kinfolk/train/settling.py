"""What a run is computed with, settled before it begins: threads, precision and device, and a line that names them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from kinfolk.core.device import choose_device
from kinfolk.core.machine import threads_for
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.optim import Training
from kinfolk.runs import folder
from kinfolk.runs.options import RunOptions
from kinfolk.train import precision
from kinfolk.train.job import TrainingJob
from kinfolk.train.parallel import Team
from kinfolk.train.precision import PrecisionChoice, settle


def step_flops(recipe: Recipe) -> float:
    """Estimate the operations of a micro-batch from the recipe alone, so that it is known before there is a model."""
    training = recipe.training
    positions = training.length * training.batch_size / training.accumulate
    return cost(recipe.model, training.length).train_flops_per_token * positions


def with_threads(recipe: Recipe, options: RunOptions) -> RunOptions:
    """Return options that say the number of threads: the one asked for, or what a step can use."""
    return options if options.threads else options.replace(threads=threads_for(step_flops(recipe)))


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Compute with `n` threads."""
    old = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(old)


def keep_choice(out: Path, training: Training, asked: str, device: torch.device) -> PrecisionChoice:
    """Return the precision a run goes on with: its own, unless another is asked for, which is then recorded."""
    noted = PrecisionChoice.recorded(folder.read(out))
    if noted is not None and asked in ("", noted.precision):
        return noted
    choice = settle(training.replace(precision=asked or training.precision), device)
    folder.update(out, choice=choice.record(None if noted is None else noted.precision))
    return choice


def headline(recipe: Recipe, options: RunOptions, choice: PrecisionChoice | None = None) -> str:
    """Say how large the model is, and what it is computed with."""
    training, device = recipe.training, choose_device(options.device)
    choice, n = choice or settle(training, device), with_threads(recipe, options).threads
    compiled = ", compiled" if choice.compile == "on" else ""
    params = cost(recipe.model, training.length).params
    amount = f"{training.steps:,} steps of {training.batch_size} x {training.length} tokens"
    return f"{params:,} parameters, {amount}, {choice.precision}{compiled}, {n} thread{'s' * (n > 1)}, {device.type}"


def choice_of(job: TrainingJob, out: Path, team: Team) -> PrecisionChoice:
    """Return the precision chosen when the run began, or settle it now and write it down."""
    names = [(p, c) for p in ("fp32", "tf32", "bf16", "fp16") for c in ("off", "on")]
    choice = PrecisionChoice()
    if team.main:
        noted = PrecisionChoice.recorded(folder.read(out))
        choice = noted or precision.settle(job.training, team.device)
        if noted is None:
            folder.update(out, choice=choice.record())
    return PrecisionChoice(*names[int(team.agree(names.index((choice.precision, choice.compile))))])
