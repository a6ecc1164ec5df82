"""`kin resume`: go on with a run that was stopped, whatever stopped it."""

import argparse
from pathlib import Path

from kinfolk.cli import acting
from kinfolk.cli.train import command_of, machine_arguments, options_of, plain_warnings, show

EPILOG = """\
examples:
  kin resume runs/a                    as it was begun, bit for bit, on the same machine
  kin resume runs/a --processes 2      with another number of processes: the same up to rounding

A finished run prints its result again. A damaged checkpoint is set aside and the one before it is used."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("what", type=Path, metavar="RUN", help="the run folder")
    machine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Go on and say how it ended."""
    from kinfolk.core.plain import from_plain
    from kinfolk.decoding.written import judge
    from kinfolk.train import RunOptions, folder, parallel
    from kinfolk.train.run import resume

    if acting.acts(args.what):
        return acting.resume(args)
    begun = from_plain(RunOptions, folder.read(args.what)["options"], str(args.what / folder.RUN))
    if args.processes > 1 and not parallel.inside():
        return parallel.launch(command_of("resume", args), args.processes, args.restarts)
    with plain_warnings():
        return show(resume(args.what, options=options_of(args, begun), judging=judge), args.json)
