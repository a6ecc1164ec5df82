"""Several relatives, several seeds, one environment and one number of steps in it: who solves it, and how soon.

Every trial is an ordinary run in a folder of its own, so a study that was stopped goes on, and more seeds or more
relatives add only what is missing.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.acting.curves import draw
from kinfolk.contests.acting.environment import World
from kinfolk.contests.acting.run import resume, train
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.core.plain import dumps
from kinfolk.family.recipe import Recipe
from kinfolk.objectives.policy import Policy
from kinfolk.runs import durable, folder
from kinfolk.train import RunOptions
from kinfolk.train.job import INTERRUPTED
from kinfolk.train.metrics import read

DMLAB = {"gtrxl": 117.6, "trxl-i": 107.0, "lstm": 99.3, "transformer-xl": 5.0}
"""Mean human-normalised score on DMLab-30 of the same four (Parisotto et al. 2019, table 1; GTrXL with GRU gates)."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One seed of one relative. `curve` is pairs of steps in the environment and mean return, `solved_at` the steps
    after which it never fell below the threshold again, None if it ended below."""

    name: str
    seed: int
    parameters: int
    seconds: float
    curve: list[tuple[int, float]]
    solved_at: int | None


def fitted(recipe: Recipe, budget: int) -> Recipe:
    """Return the recipe with as many updates as a number of steps in the environment gives."""
    assert isinstance(recipe.objective, Policy)
    training = recipe.training
    rollouts = budget // (training.batch_size * training.length)
    if not rollouts:
        least = training.batch_size * training.length
        raise SpecError(f"{recipe.name}: a rollout takes {least:,} steps, more than the budget of {budget:,}")
    return recipe.replace(training=training.replace(steps=rollouts * recipe.objective.epochs))


def study(
    recipes: Mapping[str, Recipe],
    world: World,
    out: Path,
    *,
    seeds: int,
    options: RunOptions,
    threshold: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Trial]:
    """Run all trials that are missing, one after the other, seed by seed, and write what came out."""
    threshold = world.threshold if threshold is None else threshold
    if threshold is None:
        raise SpecError(f"{world.name}: does not say from which return on it is solved; give --solved")
    trials = []
    for seed in range(seeds):
        for name, recipe in recipes.items():
            trials.append(_trial(name, recipe, world, out / f"{name}-{seed}", seed, options, threshold))
            last = trials[-1].curve[-1]
            say(f"{name} seed {seed}: return {last[1]:.3f} after {last[0]:,} steps, {trials[-1].seconds:.0f} s")
            write(trials, world, threshold, out)
    return trials


def _trial(
    name: str, recipe: Recipe, world: World, run: Path, seed: int, options: RunOptions, threshold: float
) -> Trial:
    if (run / folder.RUN).exists():
        same = (run / folder.SPEC).read_text(encoding="utf-8") == dumps(recipe)
        if not same or folder.read(run).data.env != world.name:
            raise TrainingError(f"{run}: holds another run; choose another --out")
        result = resume(run, options=options)
    else:
        result = train(recipe, world, run, seed=seed, options=options)
    if result.status == INTERRUPTED:
        raise KeyboardInterrupt
    rows = [row for row in read(run / "metrics.jsonl") if "valid" in row]
    curve = [(row["tokens"], row["valid"]["return"]) for row in rows]
    return Trial(name, seed, result.parameters, result.seconds, curve, solved_at(curve, threshold))


def solved_at(curve: list[tuple[int, float]], threshold: float) -> int | None:
    """Return the steps after which the return stays at or above the threshold to the end."""
    found = None
    for steps, value in reversed(curve):
        if value < threshold:
            break
        found = steps
    return found


def summary(trials: list[Trial]) -> list[dict[str, Any]]:
    """Return a row for each relative, in the order of the trials."""
    rows = []
    for name in dict.fromkeys(trial.name for trial in trials):
        own = [trial for trial in trials if trial.name == name]
        solved = [trial.solved_at for trial in own if trial.solved_at is not None]
        last = [trial.curve[-1][1] for trial in own]
        rows.append(
            {
                "name": name,
                "parameters": own[0].parameters,
                "seeds": len(own),
                "solved": len(solved),
                "solved_at": statistics.median(solved) if solved else None,
                "return": statistics.mean(last),
                "worst": min(last),
                "seconds": statistics.mean(trial.seconds for trial in own),
                "dmlab": DMLAB.get(name),
            }
        )
    return rows


def table(trials: list[Trial]) -> str:
    """Return the summary as a table in Markdown."""
    lines = ["| relative | parameters | solved | steps until then | return, mean (worst) | seconds | DMLab-30 |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in summary(trials):
        when = "" if row["solved_at"] is None else f"{row['solved_at']:,.0f}"
        paper = "" if row["dmlab"] is None else f"{row['dmlab']:.1f}"
        lines.append(
            f"| {row['name']} | {row['parameters']:,} | {row['solved']} of {row['seeds']} | {when} "
            f"| {row['return']:.3f} ({row['worst']:.3f}) | {row['seconds']:.0f} | {paper} |"
        )
    return "\n".join(lines)


def write(trials: list[Trial], world: World, threshold: float, out: Path) -> None:
    """Write study.json, table.md and curves.svg."""
    body = {"env": world.name, "threshold": threshold, "trials": [dataclasses.asdict(trial) for trial in trials]}
    durable.write(out / "study.json", json.dumps(body, indent=1) + "\n")
    durable.write(out / "table.md", table(trials) + "\n")
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for trial in trials:
        curves.setdefault(trial.name, []).append(trial.curve)
    durable.write(out / "curves.svg", draw(curves, threshold, world.name))
