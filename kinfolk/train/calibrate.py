"""Time of a training step, measured on steps that are thrown away: a budget in seconds becomes steps."""

import copy
import statistics
import time

from kinfolk.core.device import synchronize
from kinfolk.train.job import TrainingJob
from kinfolk.train.memory import Memories
from kinfolk.train.parallel import Team
from kinfolk.train.precision import settle
from kinfolk.train.repeatable import products, repeatable
from kinfolk.train.step import Stepper


def calibrate(job: TrainingJob, *, steps: int = 5, warm_up: int = 2, team: Team | None = None) -> float:
    """Return the median seconds of a step of this job; the job itself is left as it was.

    The steps are those of a copy, on the job's own batches, in the precision of the run.
    """
    team, training = team or Team(), job.training
    learner = copy.deepcopy(job.learner).to(team.device)
    choice = settle(training, team.device)
    optimiser = training.build_optimiser(learner)
    forward, autocast = choice.wrap(learner), choice.autocast(team.device)
    memories = Memories(learner, training.accumulate)
    stepper = Stepper(forward, optimiser, training, job.seed, team, autocast, choice.scale(), memories)
    took = []
    with repeatable(), products(choice.precision):
        for step in range(1, warm_up + steps + 1):
            start = time.perf_counter()
            batch, tokens = job.read(step, team)
            stepper.update(batch, step, training.steps, tokens=tokens)
            synchronize(team.device)
            took.append(time.perf_counter() - start)
    return statistics.median(took[warm_up:])
