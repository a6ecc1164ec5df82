"""Comparisons in an environment: the trials, runner, statistics and report of every other comparison.

A token is a step in the environment, and the metric is the mean return of episodes that are the same for all.
"""

import dataclasses
import importlib.metadata
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.contests import facts, layout
from kinfolk.contests.acting.environment import World, open_world, permit
from kinfolk.contests.acting.recipe import actor
from kinfolk.contests.acting.run import flops_per_step
from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.evidence import Protocol
from kinfolk.contests.layout import Layout
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.report.evidence import learning_charts
from kinfolk.contests.report.files import write
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.contests.trials import opened
from kinfolk.core.console import Console, progress_console
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, to_plain
from kinfolk.family import registry
from kinfolk.family.making import numbers_of
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.objectives.policy import Policy
from kinfolk.report.charts import Rule, file
from kinfolk.runs import durable

DMLAB = {"gtrxl": 117.6, "trxl-i": 107.0, "lstm": 99.3, "transformer-xl": 5.0}
"""Mean human-normalised score on DMLab-30 of the same four (Parisotto et al. 2019, table 1; GTrXL with GRU gates)."""

RETURN = "return"
TABLE, CURVES = "table.md", "curves.svg"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActingStudy:
    """What is compared where. threshold: the mean return that counts as solved."""

    world: World
    recipes: Mapping[str, Recipe]
    settings: Settings
    threshold: float

    @property
    def layout(self) -> Layout:
        """How many trials run side by side; policies are small, so a trial has one thread unless more are named."""
        recipes = list(self.recipes.values())
        return layout.choose(
            trials=len(recipes) * self.settings.seeds,
            step_flops=min(flops_per_step(recipe) for recipe in recipes) * recipes[0].training.batch_size,
            trial_bytes=4e8,
            jobs=self.settings.jobs,
            threads=self.settings.threads or 1,
        )

    def trial(self, name: str, seed: int) -> Trial:
        """Return one trial."""
        recipe = self.recipes[name]
        return Trial(
            name=name,
            seed=seed,
            recipe=to_plain(recipe),
            data={"env": self.world.name},
            fingerprint=self.world.name,
            flops_per_token=flops_per_step(recipe),
            threads=self.layout.threads,
            nice=self.settings.nice,
            extra={"version": importlib.metadata.version("kinfolk")},
        )

    def card(self, name: str) -> Card:
        """Return what the report says of a contestant."""
        recipe = self.recipes[name]
        about = registry.about(name) if name in registry.relatives() else None
        found = cost(recipe.model, recipe.training.length)
        return Card(
            name=name,
            parent=(about.parent or "") if about else "",
            year=about.year if about else 0,
            paper=about.paper if about else "",
            changes=about.changes if about else "a recipe of its own, from a file",
            spec=dumps(recipe),
            steps=recipe.training.steps,
            params=found.params,
            flops_per_token=found.flops_per_token,
            train_flops_per_token=flops_per_step(recipe),
        )


def compare_actors(
    env: str, settings: Settings, solved: float | None = None, command: str = "", console: Console | None = None
) -> tuple[Comparison, float]:
    """Compare relatives in an environment; return the result and the mean return from which on it is solved."""
    if settings.allowance.unit != "tokens":
        raise SpecError(f"--budget {settings.budget}: with --env, say how many steps in the environment: 100k-tokens")
    world, budget = open_world(env), round(settings.allowance.amount)
    threshold = world.threshold if solved is None else solved
    if threshold is None:
        raise SpecError(f"{world.name}: does not say from which return on it is solved; give --solved")
    names = settings.contestants
    known = {name: set(numbers_of(registry.entry(name).function)) for name in names if name in registry.relatives()}
    recipes = {}
    for name in names:
        # numbers that only other contestants have are left out: an LSTM has no segment
        others = set().union(*known.values()) - known.get(name, set())
        own = [text for text in settings.assignments if text.partition("=")[0].strip() not in others]
        recipes[name] = fitted(actor(name, world, settings.size, own), budget)
    study = ActingStudy(world=world, recipes=recipes, settings=settings, threshold=threshold)
    return run(study, command, console), threshold


def fitted(recipe: Recipe, budget: int) -> Recipe:
    """Return the recipe with as many updates as a number of steps in the environment gives."""
    assert isinstance(recipe.objective, Policy)
    training = recipe.training
    rollouts = budget // (training.batch_size * training.length)
    if not rollouts:
        least = training.batch_size * training.length
        raise SpecError(f"{recipe.name}: a rollout takes {least:,} steps, more than the budget of {budget:,}")
    return recipe.replace(training=training.replace(steps=rollouts * recipe.objective.epochs))


def run(study: ActingStudy, command: str = "", console: Console | None = None) -> Comparison:
    """Run the trials that are missing, side by side, seed by seed, and write results and report."""
    settings = study.settings
    first = settings.seed
    permit(study.world.name)
    orders = [study.trial(name, seed) for seed in range(first, first + settings.seeds) for name in study.recipes]
    with opened(settings, study.layout, console or progress_console(settings.events)) as trials:
        try:
            trials.run(orders)
        except KeyboardInterrupt:
            _report(study, command, [trials.known(order) for order in orders])
            raise
        return _report(study, command, [trials.known(order) for order in orders])


def _gathered(study: ActingStudy, command: str, known: Sequence[Outcome | None]) -> Comparison:
    outcomes = {
        name: tuple(outcome for outcome in known if outcome is not None and outcome.name == name)
        for name in study.recipes
    }
    settings, training = study.settings, next(iter(study.recipes.values())).training
    every = [outcome for found in outcomes.values() for outcome in found]
    setting = {
        "command": command,
        "budget": f"{settings.budget.removesuffix('-tokens')} steps in the environment for every trial",
        "match": "sizes as they are",
        "seeds": f"{settings.seeds} seed{'s' * (settings.seeds > 1)}",
        "trials": facts.ended(every, len(known)),
        "data": f"environment {study.world.name}",
        "batches": f"rollouts of {training.batch_size} rows and {training.length} steps",
        f"solved (return at least {study.threshold:g} to the end)": "; ".join(
            f"{row['name']} {row['solved']} of {row['seeds']}" for row in summary(outcomes, study.threshold)
        ),
        **facts.machine_of(),
    }
    return Comparison(
        folder=settings.folder,
        title=f"{', '.join(study.recipes)} in {study.world.name}",
        facts=setting,
        cards=tuple(study.card(name) for name in study.recipes),
        outcomes=outcomes,
        protocol=Protocol(
            judged_on="episodes of their own seeds",
            against=settings.baseline,
            seeds=tuple(range(settings.seed, settings.seed + settings.seeds)),
        ),
    )


def _report(study: ActingStudy, command: str, known: Sequence[Outcome | None]) -> Comparison:
    """Write results, report and curves, and return the result."""
    result = _gathered(study, command, known)
    write(result)
    durable.write(result.folder / TABLE, table(result.outcomes, study.threshold) + "\n")
    charts = learning_charts(result).get(RETURN, {})
    if "tokens" in charts:
        chart = charts["tokens"]
        solved = Rule(y=study.threshold, label="solved")
        drawn = dataclasses.replace(chart, marks=[*chart.marks, solved])
        durable.write(result.folder / CURVES, file(f"{study.world.name}: mean return of an episode", [drawn]))
    return result


def curve_of(outcome: Outcome) -> list[tuple[int, float]]:
    """Return pairs of steps in the environment and mean return."""
    return [(point.tokens, point.valid[RETURN]) for point in outcome.curve if RETURN in point.valid]


def solved_at(curve: Sequence[tuple[int, float]], threshold: float) -> int | None:
    """Return the steps after which the return stays at or above the threshold to the end; None if it ended below."""
    found = None
    for steps, value in reversed(curve):
        if value < threshold:
            break
        found = steps
    return found


def summary(outcomes: Mapping[str, Sequence[Outcome]], threshold: float) -> list[dict[str, Any]]:
    """Return a row for each contestant that has a result: how many seeds solved it, how soon, and the last returns."""
    rows = []
    for name, trials in outcomes.items():
        own = [trial for trial in trials if trial.done and curve_of(trial)]
        if not own:
            continue
        solved = [at for trial in own if (at := solved_at(curve_of(trial), threshold)) is not None]
        last = [curve_of(trial)[-1][1] for trial in own]
        rows.append(
            {
                "name": name,
                "parameters": own[0].params,
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


def table(outcomes: Mapping[str, Sequence[Outcome]], threshold: float) -> str:
    """Return the summary as a table in Markdown."""
    lines = ["| relative | parameters | solved | steps until then | return, mean (worst) | seconds | DMLab-30 |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in summary(outcomes, threshold):
        when = "" if row["solved_at"] is None else f"{row['solved_at']:,.0f}"
        paper = "" if row["dmlab"] is None else f"{row['dmlab']:.1f}"
        lines.append(
            f"| {row['name']} | {row['parameters']:,} | {row['solved']} of {row['seeds']} | {when} "
            f"| {row['return']:.3f} ({row['worst']:.3f}) | {row['seconds']:.0f} | {paper} |"
        )
    return "\n".join(lines)
