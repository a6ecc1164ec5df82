"""All scores of a validation: those of the objective, what its answers say beyond sums, and what a job judges."""

from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.objectives.measures.tallies import Tally
from kinfolk.train.evaluate import MeanScore, evaluate
from kinfolk.train.job import TrainingJob
from kinfolk.train.judgement import WatchedLearner, tally_of
from kinfolk.train.parallel import Team
from kinfolk.train.step import Autocast

WRITTEN = ("bleu", "rouge-l")
"""What is measured of texts that a model writes, where it is asked to."""


def score(job: TrainingJob, team: Team, autocast: Autocast) -> dict[str, MeanScore]:
    """Return the score of every measure, the headline first."""
    assert job.valid is not None
    # what several processes saw cannot be added up beyond sums
    tally = tally_for(job) if team.world == 1 else None
    learner = job.learner if tally is None else WatchedLearner(job.learner, tally)
    scores = evaluate(learner, job.valid, job.training.eval_batches, team=team, autocast=autocast)
    if tally is not None:
        scores |= {name: MeanScore(value, 1.0) for name, value in tally.values().items() if name not in scores}
    if job.training.metric in scores:
        # what decides comes first
        scores = {job.training.metric: scores[job.training.metric]} | scores
    return scores | (job.judge(job.learner.model) if job.judge else {})


def tally_for(job: TrainingJob) -> Tally | None:
    """Return an empty tally, where checkpoints are compared by a metric and labels have more than sums."""
    if not job.training.metric:
        return None
    return None if job.split is None else tally_of(job.learner.objective, job.split)


def check_metric(job: TrainingJob, measures: dict[str, Any], world: int) -> None:
    """Refuse a metric that no validation will have, before there is a run."""
    metric, tally = job.training.metric, tally_for(job)
    if not metric or metric in measures:
        return
    names = {*measures, *(tally.values() if tally is not None and world == 1 else ())}
    names |= set(WRITTEN if job.judge is not None else ())
    if metric not in names:
        several = " of several processes" if world > 1 else ""
        raise SpecError(f"training.metric: no validation{several} measures {metric!r}{suggest(metric, names)}")
