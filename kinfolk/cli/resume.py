"""`kin resume`: continue a run from its newest checkpoint."""

import argparse
import sys
from pathlib import Path

from kinfolk.cli import acting
from kinfolk.cli.training import command_of, machine_arguments, options_of, show, speaks

EPILOG = """\
examples:
  kin resume runs/a                    as it was begun, bit for bit, on the same machine
  kin resume runs/a --processes 2      with another number of processes: the same up to rounding
  kin resume runs/a --plugin my.py     a run with a plugin: nothing of a run is executed unless you name it
  kin resume runs/a --accept-changes   spec.toml or another file was edited on purpose: go on with it, and record that

A finished run prints its result again. A damaged checkpoint is set aside and the one before it is used."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("what", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="files or plugins of the run were changed on purpose: record their new hashes and go on",
    )
    machine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Go on and say how it ended."""
    from kinfolk.decoding.written import judge
    from kinfolk.runs import folder
    from kinfolk.runs.metadata import Versions
    from kinfolk.train import parallel
    from kinfolk.train.run import resume

    if args.accept_changes:
        names = folder.accept(args.what)
        print(f"{args.what}: accepted {', '.join(names) or 'no change'}", file=sys.stderr)
        args.accept_changes = False
    if acting.acts(args.what):
        return acting.resume(args)
    noted = folder.read(args.what)
    begun = noted.options
    if speaks(args):
        options = options_of(args, begun)
        n = options.threads or (noted.versions or Versions()).threads
        precision = args.precision or (noted.choice.precision if noted.choice else "auto")
        computed = f"{precision}, {n} thread{'s' * (n > 1)}, device {options.device}"
        print(f"{args.what}: goes on with {noted.data.name}, {computed}", file=sys.stderr, flush=True)
    if args.processes > 1 and not parallel.inside():
        return parallel.launch(command_of("resume", args), args.processes, args.restarts)
    result = resume(args.what, options=options_of(args, begun), judging=judge, precision=args.precision or "")
    return show(result, args.json)
