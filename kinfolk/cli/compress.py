"""`kin compress`: make a trained model smaller, and say what that costs."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.compress.pipeline import Measured

EPILOG = """\
examples:
  kin compress runs/a --steps heads=0.5 --out runs/a-heads            half of the heads, those the loss leans on least
  kin compress runs/a --steps heads=0.5,ff=0.5 --recover 300 --out …  then learn on for 300 steps
  kin compress runs/a --steps layers=0.5 --recover 500 --distil --out runs/a-half
                                                                      half of the layers, taught by the whole model

steps, each with the share that is cut:
  heads    really removed from the weights, by the gradient of a gate on each head; every layer keeps one
  ff       neurons of the feed-forwards, by the gradient of a gate on each
  layers   one by one, each time the one that is missed least
  sparse   the smallest weights become zero; nothing gets smaller by that alone

The result is an ordinary run: generate, eval, inspect and compress take it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("what", type=Path, metavar="RUN", help="the run folder")
    add("--steps", required=True, metavar="S=X,S=X", help="what to cut, and which share of it: heads=0.5,ff=0.25")
    add("--out", type=Path, required=True, metavar="RUN", help="the folder of the smaller model")
    add("--batches", type=int, default=8, metavar="N", help="of training data, to decide what is cut (default: 8)")
    add("--recover", type=int, default=0, metavar="N", help="then train on for so many steps")
    add("--distil", action="store_true", help="while recovering, learn from the whole model too")
    add("--seed", type=int, default=0, metavar="S", help="of recovering (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Compress, recover, print what each step did."""
    from kinfolk.compress.pipeline import compress, recover
    from kinfolk.compress.steps import parse
    from kinfolk.core.errors import SpecError

    steps = parse(args.steps)
    if args.distil and not args.recover:
        raise SpecError("--distil: a teacher teaches while recovering; give --recover N as well")
    cut = args.out.with_name(args.out.name + "-cut") if args.recover else args.out
    found = compress(args.what, cut, steps, lambda line: print(line, file=sys.stderr), args.batches)
    if args.recover:
        found.append(recover(args.what, cut, args.out, args.recover, args.distil, args.seed))
    if args.json:
        print(json.dumps([dataclasses.asdict(m) for m in found], indent=2))
        return 0
    _show(found)
    print(f"run: {args.out}")
    return 0


def _show(found: "list[Measured]") -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table()
    for name in ("step", "parameters", "MB", "zeros", "loss", "against before", "speed"):
        grid.add_column(name, justify="left" if name == "step" else "right")
    first = found[0]
    for row in found:
        grid.add_row(
            row.step,
            f"{row.params:,} ({100 * row.params / first.params:.0f} %)",
            f"{row.bytes / 1e6:.2f}",
            f"{100 * row.zeros:.0f} %",
            f"{row.loss:.4f}",
            f"{100 * (row.loss / first.loss - 1):+.1f} %",
            f"{row.speed:.2f} x",
        )
    Console().print(grid)
