"""From a recipe and a world to a run of the one loop, and from its folder to its continuation."""

import os
from pathlib import Path
from typing import Any

import torch

from kinfolk.core import plugins
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, from_plain, load, to_plain
from kinfolk.core.rng import Rng, derive
from kinfolk.family import registry
from kinfolk.family.building import build
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.models.folder import load_weights
from kinfolk.objectives.policy import Policy
from kinfolk.rl.environment import World, open_world
from kinfolk.rl.learner import PolicyLearner
from kinfolk.rl.rollouts import Episodes, Rollouts
from kinfolk.train import folder, loop, parallel
from kinfolk.train.checkpoint import weights_file
from kinfolk.train.job import Job, Result, RunOptions
from kinfolk.train.parallel import Team

ENV = "env"
"""Under this key, run.toml names the environment where it names the data of other runs."""


class ActingJob(Job):
    """A job whose batches come from acting; a token is a step in the environment, counted when it is made."""

    def read(self, step: int, team: Team) -> tuple[Batch, int]:
        """Return the rollout of a step, and how many steps were made in the environment for it."""
        assert isinstance(self.batches, Rollouts)
        batch = self.batches.at(step - 1)
        prepared = self.learner.prepare(batch, Rng(derive(self.seed, "objective")))
        made = batch.log_probs.numel() if self.batches.fresh(step - 1) else 0
        return prepared.map(lambda x: x.to(team.device)), made


def train(recipe: Recipe, world: World, out: str | Path, *, seed: int = 0, options: RunOptions | None = None) -> Result:
    """Let a recipe (see `as_policy`) learn to act, into a new run folder."""
    out, options = Path(out), options or RunOptions()
    job = make_job(recipe, world, seed)
    run: dict[str, Any] = {
        "seed": seed,
        "fingerprint": world.name,
        "plugins": [path for path in os.environ.get(plugins.VARIABLE, "").split(os.pathsep) if path],
        "data": {ENV: world.name},
        "options": to_plain(options),
        # chosen beforehand: measuring reads batches, and these are not there to be read twice
        "choice": {"precision": "fp32", "compile": "off"},
    }
    folder.create(out, dumps(recipe), run | folder.origin())
    return _carry_out(job, out, options)


def resume(out: str | Path, *, options: RunOptions | None = None) -> Result:
    """Go on with a run that was stopped; a finished one returns its result."""
    out = Path(out)
    run, done = folder.read(out), folder.result(out)
    if done is not None:
        return Result(**done)
    recipe = _recipe(out)
    options = options or from_plain(RunOptions, run["options"], str(out / folder.RUN))
    if not options.threads:
        # sums depend on how many threads share them
        options = options.replace(threads=run["versions"]["threads"])
    return _carry_out(make_job(recipe, open_world(run["data"][ENV]), run["seed"]), out, options)


def load_learner(out: str | Path) -> tuple[Recipe, PolicyLearner, World]:
    """Return the recipe, the learner with the best weights of a run so far, and where it acts."""
    out = Path(out)
    run, recipe = folder.read(out), _recipe(out)
    assert isinstance(recipe.objective, Policy)
    learner = PolicyLearner(build(recipe, run["seed"]), recipe.objective)
    load_weights(learner.model, weights_file(out))
    return recipe, learner, open_world(run["data"][ENV])


def _recipe(out: Path) -> Recipe:
    """Read the recipe of a run, with the plugins it was begun with."""
    for plugin in folder.read(out).get("plugins", ()):
        plugins.load_plugin(plugin)
    registry.load()
    return load(Recipe, out / folder.SPEC)


def make_job(recipe: Recipe, world: World, seed: int) -> ActingJob:
    """Build what the loop works on."""
    training, objective = recipe.training, recipe.objective
    if not isinstance(objective, Policy):
        raise SpecError(f"objective: {objective.kind!r} does not learn from rewards; see kinfolk.rl.as_policy")
    if training.accumulate != 1:
        raise SpecError(f"training.accumulate: rollouts are learnt from whole, use 1 instead of {training.accumulate}")
    if training.precision not in ("auto", "fp32"):
        raise SpecError(f"training.precision: policies are trained in fp32, not {training.precision}")
    learner = PolicyLearner(build(recipe, seed), objective)
    forward = cost(recipe.model, training.length).flops_per_token
    return ActingJob(
        name=recipe.name,
        learner=learner,
        training=training,
        batches=Rollouts(world, learner, training, seed),
        valid=Episodes(world, learner, training),
        seed=seed,
        # acting once, and learning as often as there are epochs
        flops_per_token=forward * (1 + 3 * objective.epochs),
    )


def _carry_out(job: Job, out: Path, options: RunOptions) -> Result:
    if options.threads:
        torch.set_num_threads(options.threads)
    with parallel.join(options.strategy, options.device) as team, folder.locked(out):
        if team.world > 1:
            raise SpecError("--env: an actor learns in one process; leave --processes at 1")
        return loop.run(job, out, team, options)
