"""Score the last weights of a run on the held-out data that judges: touched once, after training."""

from pathlib import Path

import torch

from kinfolk.core.errors import CheckpointError
from kinfolk.data import Data
from kinfolk.data.batches.halves import judging
from kinfolk.runs.checkpoint import Checkpoints
from kinfolk.runs.run import Run
from kinfolk.train.job import TrainingJob
from kinfolk.train.parallel import Team
from kinfolk.train.precision import PrecisionChoice
from kinfolk.train.run import reading_of
from kinfolk.train.scoring import score

TIMES = 2
"""Batches that judge, as a multiple of those of a validation."""


def final_scores(out: Path, data: Data) -> dict[str, float]:
    """Return every measure of the last weights, not the best ones: a schedule is judged where it ends.

    In the precision of the run, over at most twice as many batches as a validation has, the same for all contestants.
    """
    run = Run.open(out)
    recipe, learner = run.recipe, run.learner()
    saved = Checkpoints(out / "checkpoints").newest()
    if saved is None:
        raise CheckpointError(f"{out}: no checkpoint of the last step is left to be judged")
    last = {f"model.{name}": x for name, x in saved.tensors("model").items()} | saved.tensors("objective")
    with torch.no_grad():
        for name, x in learner.state_dict().items():
            if name in last:
                x.copy_(last[name])
    n = TIMES * recipe.training.eval_batches
    held = judging(data, by_length=n, **reading_of(recipe.training))
    team, choice = Team(), PrecisionChoice.recorded(run.metadata) or PrecisionChoice()
    job = TrainingJob(
        name=recipe.name,
        learner=learner,
        training=recipe.training.replace(eval_batches=n),
        batches=held,
        valid=held,
        split=data.split("test" if "test" in data.splits else "valid"),
    )
    return {name: score_of.mean for name, score_of in score(job, team, choice.autocast(team.device)).items()}
