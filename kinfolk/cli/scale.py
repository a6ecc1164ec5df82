"""`kin scale`: how the loss of a relative falls with its size and with data, and where that leads."""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.cli.compare import shared_arguments
from kinfolk.cli.training import precision_of

if TYPE_CHECKING:
    from kinfolk.contests.scaling.law import Range
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
    parser.epilog = EPILOG
    add = parser.add_argument
    add("relative", metavar="RELATIVE", help="which relative to scale")
    add("--data", default="stdlib", metavar="D", help="stdlib, a task, a file or a prepared folder (default: stdlib)")
    add("--rungs", default="", metavar="R,R", help="layers x width of each model (default: 1x32 to 4x128)")
    add("--tokens", default="", metavar="N,N", help="amounts of tokens for each (default: 250k,500k,1M)")
    add("--seeds", type=int, default=1, metavar="N", help="trials of each pair (default: 1)")
    add("--predict", default="", metavar="N,N", help="also say the loss at N parameters")
    add("--flops", type=float, metavar="C", help="also say the best size and data for N operations")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="change every recipe: training.clip=0")
    add("--out", type=Path, metavar="DIR", help="folder of the study (default: runs/scale-…)")
    shared_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train the ladder, print the law, and say where the picture is."""
    from kinfolk.contests.scaling.ladder import RUNGS, TOKENS, amounts, rungs
    from kinfolk.contests.scaling.study import PICTURE, Asked, study
    from kinfolk.contests.settings import Settings
    from kinfolk.core.console import Console

    names = "data", "seeds", "tokenizer", "vocab", "cache", "jobs", "threads"
    settings = Settings(
        contestants=(f"{args.relative} {args.rungs or RUNGS} {args.tokens or TOKENS}",),
        assignments=(*args.set, *precision_of(args)),
        # a law is about sizes as they are
        tune="off",
        match="none",
        out=args.out,
        events=args.json,
        **{name: getattr(args, name) for name in names},
    )
    asked = Asked(
        relative=args.relative,
        rungs=tuple(rungs(args.rungs or RUNGS)),
        tokens=tuple(amounts(args.tokens or TOKENS)),
        settings=dataclasses.replace(
            settings,
            out=args.out or _folder(settings.folder),
            on=args.on,
            per_trial=args.per_trial,
            # each amount of the ladder is a budget of its own, in tokens
            budget=f"{amounts(args.tokens or TOKENS)[0]:.0f}-tokens",
        ),
    )
    beyond = amounts(args.predict, "predict") if args.predict else []
    asked.rungs[0].numbers(asked.relative)
    found = study(asked, shlex.join(["kin", *sys.argv[1:]]), Console(stderr=True))
    if args.json:
        print(json.dumps(found.plain() | _wished(found, beyond, args.flops), indent=2))
        return 0
    console = Console()
    _show(found, console)
    _show_wished(found, beyond, args.flops, console)
    console.print(f"\npicture: {found.folder / PICTURE}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _folder(named: Path) -> Path:
    """Return a name of its own for a study; the digest is that of what was asked."""
    return named.with_name(named.name.replace("compare", "scale"))


def _show(found: "ScalingStudy", console: "Console") -> None:
    from rich.table import Table

    from kinfolk.contests.budget import amount
    from kinfolk.contests.scaling.study import means

    grid = Table(title=f"{found.relative} on {found.data}: {found.trials[0].measure} loss")
    for name in ("model", "parameters", "tokens", "loss", "law", "off by"):
        grid.add_column(name, justify="left" if name == "model" else "right")
    sizes = {trial.rung: trial.params for trial in found.trials}
    for (rung, tokens), loss in means(found.trials).items():
        told = found.law.at(params=sizes[rung], tokens=tokens).value
        grid.add_row(
            rung,
            amount(sizes[rung], 3),
            amount(tokens, 3),
            f"{loss:.4f}",
            f"{told:.4f}",
            f"{100 * (loss / told - 1):+.1f} %",
        )
    console.print(grid)
    law = found.law
    words = {"params": "N", "tokens": "D"}
    terms = [f"{law.coefficient(v):.4g} / {words[v]}^{law.exponent(v).value:.3f}" for v in law.variables]
    floor = [f"{law.floor.value:.3f}"] if law.has_floor else []
    lines = [f"L = {' + '.join([*floor, *terms])}"]
    lines += [f"  exponent of {words[v]}: {_said(law.exponent(v), 3)}" for v in law.variables]
    lines += [f"  floor: {_said(law.floor, 3)}"] if law.has_floor else ["  no floor: too few sizes to see one"]
    lines.append(f"  residuals: {100 * law.residual:.2f} % of the loss, {law.n_points} trials")
    lines += [f"note: {note}" for note in found.notes]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_wished(found: "ScalingStudy", beyond: list[float], flops: float | None, console: "Console") -> None:
    from kinfolk.contests.budget import amount

    largest = max(trial.tokens for trial in found.trials)
    for params in beyond:
        said = _said(found.law.at(params=params, tokens=largest), 3)
        console.print(f"{amount(params, 3)} parameters, {amount(largest, 3)} tokens: {said}", highlight=False)
    if flops:
        n, d = found.law.best_size(flops)
        said = _said(found.law.at(params=n, tokens=d), 3)
        console.print(
            f"{flops:.3g} operations: {amount(n, 3)} parameters on {amount(d, 3)} tokens, {said}", highlight=False
        )


def _wished(found: "ScalingStudy", beyond: list[float], flops: float | None) -> dict[str, object]:
    largest = max(trial.tokens for trial in found.trials)
    told = [
        {"params": p, "tokens": largest, **dataclasses.asdict(found.law.at(params=p, tokens=largest))} for p in beyond
    ]
    best: dict[str, object] = {}
    if flops:
        n, d = found.law.best_size(flops)
        best = {"flops": flops, "params": n, "tokens": d, **dataclasses.asdict(found.law.at(params=n, tokens=d))}
    return {"predicted": told, "best": best}


def _said(found: "Range", digits: int) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
