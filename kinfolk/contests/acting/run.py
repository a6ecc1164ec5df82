"""Training in an environment: a run of the one loop, new or resumed."""

from pathlib import Path

from kinfolk.contests.acting.environment import World, open_world, require_permitted
from kinfolk.contests.acting.learner import PolicyLearner
from kinfolk.contests.acting.rollouts import Episodes, Rollouts
from kinfolk.core import plugins
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps
from kinfolk.core.rng import Rng, derive
from kinfolk.family.building import build
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.objectives.policy import Policy
from kinfolk.runs import folder
from kinfolk.runs.metadata import DataSource, Metadata, Plugin, Precision, Versions
from kinfolk.runs.options import RunOptions
from kinfolk.runs.run import Run
from kinfolk.train import loop, parallel, settling
from kinfolk.train.job import Result, TrainingJob, pinned
from kinfolk.train.parallel import Team
from kinfolk.train.run import finished


class ActingJob(TrainingJob):
    """A job whose batches come from acting; a token is a step in the environment, counted when it is made."""

    def read(self, step: int, team: Team) -> tuple[Batch, int]:
        """Return the rollout of a step, and how many steps were made in the environment for it."""
        assert isinstance(self.batches, Rollouts)
        batch = self.batches.at(step - 1)
        prepared = self.learner.prepare(batch, Rng(derive(self.seed, "objective")))
        made = batch.tokens.shape[:2].numel() if self.batches.fresh(step - 1) else 0
        return pinned(prepared, team.device), made


def train(recipe: Recipe, world: World, out: str | Path, *, seed: int = 0, options: RunOptions | None = None) -> Result:
    """Let a recipe (see `as_policy`) learn to act, into a new run folder."""
    out, options = Path(out), settling.with_threads(recipe, options or RunOptions())
    job = make_job(recipe, world, seed)
    run = Metadata(
        seed=seed,
        fingerprint=world.name,
        plugins=tuple(Plugin(**plugin) for plugin in plugins.loaded()),
        data=DataSource(env=world.name),
        options=options,
        # policies are small, and what they do next depends on small differences
        choice=Precision(precision="fp32", compile="off"),
    )
    folder.create(out, dumps(recipe), run.with_origin())
    return _carry_out(job, out, options)


def resume(out: str | Path, *, options: RunOptions | None = None) -> Result:
    """Go on with a run that was stopped; a finished one returns its result."""
    out = Path(out)
    done = finished(out)
    if done is not None:
        return done
    run, recipe = _opened(out)
    options = options or run.options or RunOptions()
    if not options.threads:
        # sums depend on how many threads share them
        options = options.replace(threads=(run.versions or Versions()).threads)
    return _carry_out(make_job(recipe, open_world(run.data.env or ""), run.seed), out, options)


def open_actor(out: str | Path) -> tuple[Recipe, PolicyLearner, World]:
    """Return the recipe, the learner with the best weights of a run so far, and where it acts."""
    out = Path(out)
    run, recipe = _opened(out)
    assert isinstance(recipe.objective, Policy)
    learner = PolicyLearner(Run.open(out).model(), recipe.objective)
    return recipe, learner, open_world(run.data.env or "")


def _opened(out: Path) -> tuple[Metadata, Recipe]:
    """Return run.toml and the recipe of a run."""
    opened = Run.open(out)
    run = opened.metadata
    require_permitted(run.data.env or "", out)
    return run, opened.recipe


def make_job(recipe: Recipe, world: World, seed: int) -> ActingJob:
    """Build what the loop works on."""
    training, objective = recipe.training, recipe.objective
    if not isinstance(objective, Policy):
        raise SpecError(
            f"objective: {objective.kind!r} does not learn from rewards; see kinfolk.contests.acting.as_policy"
        )
    if training.accumulate != 1:
        raise SpecError(f"training.accumulate: rollouts are learnt from whole, use 1 instead of {training.accumulate}")
    if training.precision not in ("auto", "fp32"):
        raise SpecError(f"training.precision: policies are trained in fp32, not {training.precision}")
    learner = PolicyLearner(build(recipe, seed), objective)
    return ActingJob(
        name=recipe.name,
        learner=learner,
        training=training,
        batches=Rollouts(world, learner, training, seed),
        valid=Episodes(world, learner, training),
        seed=seed,
        flops_per_token=flops_per_step(recipe),
    )


def flops_per_step(recipe: Recipe) -> float:
    """Return the operations for a step in the environment: acting once, and learning once per epoch of its rollout."""
    assert isinstance(recipe.objective, Policy)
    return cost(recipe.model, recipe.training.length).flops_per_token * (1 + 3 * recipe.objective.epochs)


def _carry_out(job: TrainingJob, out: Path, options: RunOptions) -> Result:
    with (
        settling.threads(options.threads),
        parallel.join(options.strategy, options.device) as team,
        folder.locked(out),
    ):
        if team.world > 1:
            raise SpecError("--env: an actor learns in one process; leave --processes at 1")
        return loop.run(job, out, team, options)
