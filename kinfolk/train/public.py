"""The public function `kf.train`: fit a recipe to data and train it into a run."""

from collections.abc import Sequence
from pathlib import Path

from kinfolk.data import Data, open_data
from kinfolk.family.recipe import Recipe
from kinfolk.runs.fit import fit
from kinfolk.runs.options import RunOptions
from kinfolk.runs.run import Run
from kinfolk.train.run import Judging
from kinfolk.train.run import train as learn

QUIET = RunOptions(quiet=True, tensorboard=False)


def train(
    recipe: Recipe | str | Path,
    data: Data | str | Path,
    *,
    out: str | Path,
    seed: int = 0,
    assignments: Sequence[str] = (),
    options: RunOptions = QUIET,
    judging: Judging | None = None,
) -> Run:
    """Fit a recipe to data, train it into a new run folder, and return the run.

    recipe: a recipe, the name of a relative, a spec file or a run. data: open, or the name of it. assignments:
    `path=value`, as of `kin train --set`. judging: further scores of each validation.
    """
    opened = data if isinstance(data, Data) else open_data(data)
    learn(fit(recipe, opened, assignments=assignments), opened, out, seed=seed, options=options, judging=judging)
    return Run.open(out)
