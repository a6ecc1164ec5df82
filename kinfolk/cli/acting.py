"""Reinforcement learning in `kin train`, `resume`, `eval` and `compare`: --env, and runs trained with it."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.contests.acting import World
    from kinfolk.family.recipe import Recipe

UNIT = "steps in the environment"


def train(args: argparse.Namespace) -> int:
    """Let a relative learn to act, and say how it ended."""
    from kinfolk.cli.training import announce, begin, options_of, show

    begin(args, args.what, args.env, args.out)
    from kinfolk.contests.acting import open_world
    from kinfolk.contests.acting import train as learn
    from kinfolk.core.errors import SpecError

    if args.processes > 1:
        raise SpecError("--env: an actor learns in one process; leave --processes at 1")
    world = open_world(args.env)
    recipe = recipe_of(args, args.what, world)
    out = args.out or Path("runs") / f"{recipe.folder}-{args.env.partition(':')[0].replace('/', '-')}-{args.seed}"
    announce(args, recipe, options_of(args), out)
    return show(learn(recipe, world, out, seed=args.seed, options=options_of(args)), args.json, UNIT)


def recipe_of(args: argparse.Namespace, what: str, world: "World") -> "Recipe":
    """Return the recipe that the options name, fitted to the environment."""
    from kinfolk.cli.training import precision_of
    from kinfolk.contests.acting.recipe import actor

    steps = [] if getattr(args, "steps", None) is None else [f"training.steps={args.steps}"]
    return actor(what, world, args.size, [*args.set, *steps, *precision_of(args)])


def acts(out: Path) -> bool:
    """Tell whether a run folder is that of an actor."""
    from kinfolk.runs import folder

    return (out / folder.RUN).is_file() and folder.read(out).data.env is not None


def resume(args: argparse.Namespace) -> int:
    """Go on with a run."""
    from kinfolk.cli.training import options_of, show
    from kinfolk.contests.acting import resume as go_on
    from kinfolk.runs import folder

    begun = folder.read(args.what).options
    return show(go_on(args.what, options=options_of(args, begun)), args.json, UNIT)


def evaluate(args: argparse.Namespace) -> int:
    """Play episodes and print what they brought."""
    from kinfolk.contests.acting.rollouts import Episodes
    from kinfolk.contests.acting.run import open_actor
    from kinfolk.train.evaluate import evaluate as score
    from kinfolk.train.evaluate import require_finite

    recipe, learner, world = open_actor(args.what)
    training = recipe.training.replace(eval_batches=args.batches or recipe.training.eval_batches)
    scores = score(learner, Episodes(world, learner, training))
    measures = {name: {"mean": s.mean, "count": int(s.count)} for name, s in scores.items() if name != "cost"}
    require_finite({name: measure["mean"] for name, measure in measures.items()}, str(args.what))
    if args.json:
        print(json.dumps({"run": str(args.what), "env": world.name, "measures": measures}, indent=1))
        return 0
    for name, measure in measures.items():
        print(f"{name:14} {measure['mean']:.4f}  ({measure['count']:,} episodes of {world.name})")
    return 0


def compare(args: argparse.Namespace) -> int:
    """Compare several relatives in one environment, and print who solved it."""
    import dataclasses
    import shlex

    from kinfolk.cli.training import settings_of
    from kinfolk.contests.acting.study import CURVES, DMLAB, compare_actors, summary, table
    from kinfolk.contests.table import show
    from kinfolk.core.console import Console, progress_console

    settings = settings_of(
        args,
        contestants=(*args.contestants, *args.relatives) or tuple(DMLAB),
        **OF_TEXT,
        out=args.out or Path("runs") / f"study-{args.env.partition(':')[0].replace('/', '-')}",
    )
    command = shlex.join(["kin", *sys.argv[1:]])
    result, threshold = compare_actors(args.env, settings, args.solved, command, progress_console(args.json))
    if args.json:
        trials = [dataclasses.asdict(trial) for found in result.outcomes.values() for trial in found]
        plain = result.to_plain() | {"solved": summary(result.outcomes, threshold), "trials": trials}
        print(json.dumps(plain, indent=1))
    else:
        show(result.rows, Console(), result.title)
        print(f"\n{table(result.outcomes, threshold)}\n\ncurves: {result.folder / CURVES}")
        print(f"report: {result.folder / 'report.html'}")
    return 0 if result.best else 1


OF_TEXT: dict[str, Any] = {"tune": "off", "match": "none", "sizes": (), "finetune": (), "tactics": (), "table": ""}
OF_TEXT |= {"max_seeds": 0, "against": "", "branches": 0, "battery": "none", "rows": "", "valid": ""}
"""Options of comparisons on data, which have no meaning in an environment."""
