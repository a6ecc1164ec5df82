"""`kin compress`: prune, factorise, distil or quantize a trained model, and measure what that costs."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.cli.training import data_arguments, source_of

if TYPE_CHECKING:
    from kinfolk.use.compress.measure import Measurement
    from kinfolk.use.compress.pipeline import CompressionWorkshop

ABOUT = {
    "heads": "heads, really removed, by the gradient of a gate on each; a layer keeps one",
    "ff": "neurons of feed-forwards, really removed, by the gradient of a gate on each",
    "layers": "layers, one by one, each time the one that is missed least",
    "share": "share=2: every two layers in a row become one that runs twice",
    "rank": "two thin maps for each, with so much less weights, nearest on data",
    "svd": "the same, nearest to the weights themselves",
    "table": "a narrow table of tokens and a map, with so much less weights, nearest on data",
    "sparse": "the smallest weights become zero at once; nothing gets smaller by that alone",
    "magnitude": "the smallest become zero while recovering, by a cubic schedule",
    "movement": "those that move towards zero become zero while recovering",
    "recover": "recover=200: N steps of training, at its place among the steps",
    "int8": "int8 quantization; int8=weights leaves what goes into maps as it is",
    "plain": "undoes rank and int8, keeping what is computed: for an export",
}
"""What steps do; here too, because help should not wait for a tensor library."""

STEPS = "\n".join(f"  {name:10} {about}" for name, about in ABOUT.items())

EPILOG = f"""\
examples:
  kin compress runs/a --steps heads=0.5 --out runs/a-heads            half of the heads, those the loss leans on least
  kin compress runs/a --steps heads=0.5,ff=0.5,int8 --recover 300 --out …   train for 300 steps, then int8
  kin compress runs/a --steps layers=0.5 --recover 500 --distil --out runs/a-half
                                                                      half of the layers, taught by the whole model
  kin compress runs/a --steps movement=0.8 --recover 500 --out …      weights are pruned while training continues
  kin compress runs/a --student gpt2 --student-set n_layers=3 --recover 500 --distil --out runs/student
  kin compress runs/a --to "2x faster" --allow "1% worse" --recover 300 --distil --out runs/fast
                                                                      tries steps, draws what can be had, takes the best
  kin compress downloaded/ --data labelled:reviews.csv --steps rank=0.5,int8 --out runs/small

Shares are of what is cut: 0 cuts nothing. Steps are taken in their order and measured one by one.
steps:
{STEPS}

The result is an ordinary run: generate, eval, inspect, train and compress take it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", type=Path, metavar="RUN", help="the run folder, or a folder that Hugging Face's libraries wrote")
    add("--steps", default="", metavar="S=X,S=X", help="what to do, and how much of it: heads=0.5,ff=0.25,int8")
    add(
        "--to",
        default="",
        metavar="GOAL",
        help="instead of --steps, try them: '2x faster' (smaller, lighter)",
    )
    add("--allow", default="1% worse", metavar="COST", help="of --to: how much worse it may be (default: 1%% worse)")
    add("--tries", type=int, default=32, metavar="N", help="of --to: models made and measured, at most (default: 32)")
    add("--out", type=Path, required=True, metavar="RUN", help="the folder of the smaller model")
    add("--batches", type=int, default=8, metavar="N", help="of training data, to decide what is cut (default: 8)")
    add(
        "--valid-batches",
        type=int,
        default=16,
        metavar="N",
        help="of validation data, to measure (default: 16)",
    )
    add("--recover", type=int, default=0, metavar="N", help="then train for N more steps")
    add(
        "--distil",
        nargs="?",
        const="distilbert",
        choices=("distilbert", "tinybert"),
        help="while recovering, learn from the whole model too: what it says and its last states (distilbert, the "
        "default), or its embedding, layers and attention first and then what it says (tinybert)",
    )
    add(
        "--student",
        metavar="RELATIVE",
        help="begin with a new model, and layers of RUN where they fit",
    )
    add("--student-set", action="append", default=[], metavar="N=X", help="numbers of the student, such as n_layers=3")
    add("--seed", type=int, default=0, metavar="S", help="of recovering (default: 0)")
    add("--precision", metavar="P", help="of recovering: fp32, tf32, bf16 or fp16 (default: that of the run)")
    data_arguments(parser, None)


def run(args: argparse.Namespace) -> int:
    """Compress, recover, print what each step did; or look for the steps that reach a goal."""
    from kinfolk.core.errors import SpecError
    from kinfolk.objectives.distil import Distil
    from kinfolk.objectives.imitate import Imitate
    from kinfolk.use.compress.opening import open_model
    from kinfolk.use.compress.pipeline import CompressionWorkshop, compress, ordered, refuse, working
    from kinfolk.use.compress.steps import parse
    from kinfolk.use.compress.student import student_of

    if bool(args.to) + bool(args.steps or args.student) != 1:
        raise SpecError("say either what to do (--steps, --student) or what to reach (--to)")
    steps = ordered(parse(args.steps) if args.steps else [], 0 if args.to else args.recover)
    if args.distil and not args.recover and not any(step.name == "recover" for step in steps):
        raise SpecError("--distil: a teacher teaches while recovering; give --recover N as well")
    teaching = {None: None, "distilbert": Distil, "tinybert": Imitate}[args.distil]
    with working(args.out) as work:
        opened = open_model(args.what, source_of(args), work)
        refuse(opened, args.out)
        how = None if teaching is None else teaching(task=opened.recipe.objective, teacher="")
        shop = CompressionWorkshop(
            opened, work, _tell, args.batches, args.valid_batches, how, args.seed, args.precision or ""
        )
        if args.to:
            return _search(args, shop)
        student = None
        if args.student:
            made = student_of(opened, args.student, _tell, assignments=args.student_set, seed=args.seed)
            student = shop.holding(made)
        result = compress(shop, args.out, steps, student)
    if args.json:
        print(json.dumps([dataclasses.asdict(m) for m in result], indent=2))
        return 0
    _show(result)
    print(f"run: {args.out}")
    return 0


def _search(args: argparse.Namespace, shop: "CompressionWorkshop") -> int:
    """Try steps, draw what can be had for what, and leave the best that is enough; 1 if none is."""
    from rich.table import Table

    from kinfolk.core.console import Console
    from kinfolk.use.compress.front import summary, table, write_front
    from kinfolk.use.compress.goal import parse_allowed, parse_goal
    from kinfolk.use.compress.pipeline import write
    from kinfolk.use.compress.search import search

    result = search(shop, parse_goal(args.to), parse_allowed(args.allow), args.recover, args.tries)
    drawn, chosen = args.out.with_name(f"{args.out.name}-front"), result.chosen
    write_front(result, drawn, args.what.name)
    if chosen is not None:
        write(shop.opened, args.out, chosen.model(), [result.first, chosen.measured])
    if args.json:
        print(json.dumps(summary(result), indent=1))
        return 0 if chosen else 1
    columns, *lines = table(result)
    grid = Table(*columns)
    for line in lines:
        grid.add_row(*line)
    Console().print(grid)
    print(result.sentence())
    print(f"front: {drawn / 'front.html'}" + (f"\nrun: {args.out}" if chosen else ""))
    return 0 if chosen else 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _show(found: "list[Measurement]") -> None:
    from rich.table import Table

    from kinfolk.core.console import Console

    grid, first = Table(), found[0]
    name = first.quality[0]
    for column in ("step", "params", "MB", "zeros", name, "worse", "speed", "memory"):
        grid.add_column(column, justify="left" if column == "step" else "right", no_wrap=True)
    for row in found:
        grid.add_row(
            row.step,
            f"{100 * row.params / first.params:.0f} %",
            f"{row.bytes / 1e6:.2f}",
            f"{100 * row.zeros:.0f} %",
            f"{row.quality[1]:.4f}",
            f"{100 * row.worse(first):+.1f} %",
            f"{row.speed:.2f} x",
            f"{row.memory / 1e6:.1f} MB",
        )
    Console().print(grid)
    print(f"{first.params:,} parameters as trained; worse: of {name}, over validation data")
    last = found[-1]
    print(f"speed: of forward passes, by counted work; by the clock, which decides nothing: {last.timed:.2f} x")
