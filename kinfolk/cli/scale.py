"""`kin scale`: the scaling law of a relative, its loss by size and data, and what it predicts."""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli.compare import shared_arguments
from kinfolk.cli.training import precision_of

if TYPE_CHECKING:
    from kinfolk.contests.scaling.study import ScalingStudy
    from kinfolk.core.console import Console

EPILOG = """\
examples:
  kin scale gpt2                                                    a small ladder on Python's own source, minutes
  kin scale gpt2 --data my.txt --rungs 2x64,4x128,6x192,8x256 --tokens 2M
  kin scale gpt2 --tokens 500k,1M,2M --seeds 3 --predict 10M,100M   what would ten million parameters reach?
  kin scale performer --data my.txt --flops 1e16                    the best size for that many operations

A rung is layers x width. The law is L = E + A / N^alpha + B / D^beta, N counting parameters outside tables and
D tokens (Hoffmann et al. 2022), or one of the terms where the other does not change. Intervals hold 95 % of refits
with residuals drawn anew; they know nothing of what lies beyond the ladder.
Stop at any time; the same command goes on."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("relative", metavar="RELATIVE", help="which relative to scale")
    add("--rungs", default="", metavar="R,R", help="layers x width of each model (default: 1x32 to 4x128)")
    add("--tokens", default="", metavar="N,N", help="amounts of tokens for each (default: 250k,500k,1M)")
    add("--seeds", type=int, default=1, metavar="N", help="trials of each pair (default: 1)")
    add("--predict", default="", metavar="N,N", help="also say the loss at N parameters")
    add("--flops", type=float, metavar="C", help="also say the best size and data for N operations")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="change every recipe: training.clip=0")
    add("--out", type=Path, metavar="DIR", help="folder of the study (default: runs/scale-…)")
    shared_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train the ladder, print the law, and say where the chart is."""
    from kinfolk.contests.scaling.ladder import RUNGS, TOKENS, amounts
    from kinfolk.contests.scaling.study import PICTURE, scale
    from kinfolk.core.console import Console, progress_console

    sizes = amounts(args.predict, "predict") if args.predict else []
    names = ["data", "seeds", "tokenizer", "vocab", "cache", "out"]
    names += ["on", "per_trial", "jobs", "threads", "nice", "timeout"]
    study = scale(
        args.relative,
        rungs=args.rungs or RUNGS,
        tokens=args.tokens or TOKENS,
        assignments=(*args.set, *precision_of(args)),
        events=args.json,
        command=shlex.join(["kin", *sys.argv[1:]]),
        console=progress_console(args.json),
        **{name: getattr(args, name) for name in names},
    )
    predictions = study.predicted(sizes, args.flops)
    if args.json:
        print(json.dumps(study.plain() | predictions, indent=2))
        return 0
    console = Console()
    _show(study, console)
    _show_predictions(predictions, console)
    console.print(f"\npicture: {study.folder / PICTURE}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _show(found: "ScalingStudy", console: "Console") -> None:
    from rich.table import Table

    from kinfolk.contests.budget import amount
    from kinfolk.contests.scaling.study import means

    grid = Table(title=f"{found.relative} on {found.data}: {found.trials[0].measure} loss")
    for name in ("model", "parameters", "tokens", "loss", "law", "off by"):
        grid.add_column(name, justify="left" if name == "model" else "right")
    sizes = {trial.rung: trial.params for trial in found.trials}
    for (rung, tokens), loss in means(found.trials).items():
        fitted = found.law.at(params=sizes[rung], tokens=tokens).value
        grid.add_row(
            rung,
            amount(sizes[rung], 3),
            amount(tokens, 3),
            f"{loss:.4f}",
            f"{fitted:.4f}",
            f"{100 * (loss / fitted - 1):+.1f} %",
        )
    console.print(grid)
    law = found.law
    words = {"params": "N", "tokens": "D"}
    terms = [f"{law.coefficient(v):.4g} / {words[v]}^{law.exponent(v).value:.3f}" for v in law.variables]
    floor = [f"{law.floor.value:.3f}"] if law.has_floor else []
    lines = [f"L = {' + '.join([*floor, *terms])}"]
    lines += [f"  exponent of {words[v]}: {_interval(dataclasses.asdict(law.exponent(v)))}" for v in law.variables]
    lines += (
        [f"  floor: {_interval(dataclasses.asdict(law.floor))}"]
        if law.has_floor
        else ["  no floor: too few sizes to see one"]
    )
    lines.append(f"  residuals: {100 * law.residual:.2f} % of the loss, {law.n_points} trials")
    lines += [f"note: {note}" for note in found.notes]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_predictions(predictions: dict[str, Any], console: "Console") -> None:
    from kinfolk.contests.budget import amount

    for at in predictions["predicted"]:
        line = f"{amount(at['params'], 3)} parameters, {amount(at['tokens'], 3)} tokens: {_interval(at)}"
        console.print(line, highlight=False)
    if best := predictions["best"]:
        size = f"{amount(best['params'], 3)} parameters on {amount(best['tokens'], 3)} tokens"
        console.print(f"{best['flops']:.3g} operations: {size}, {_interval(best)}", highlight=False)


def _interval(at: dict[str, float]) -> str:
    return f"{at['value']:.3f} [{at['low']:.3f}, {at['high']:.3f}]"
