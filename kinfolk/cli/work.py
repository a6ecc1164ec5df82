"""`kin work`: run waiting trials of a comparison's folder, one after another."""

import argparse
import functools
import json
import sys
from pathlib import Path

from kinfolk.core.errors import DataError, SpecError

EPILOG = """\
examples:
  kin compare gpt2 llama --data my.txt --budget 2M-tokens --on workers --out /shared/a     plans and waits
  kin work /shared/a                        on every machine that sees the folder, as often as it has room
  kin work /shared/a --wait 10m             stay ten minutes after the last waiting trial
  kin work /shared/a --status               what waits and runs
  kin work /shared/suite --wait 1h          the tasks of a suite (or sizes, or a ladder) one after another

A worker that is stopped gives its trial back; one that dies is noticed by its missing heartbeat. Either way the trial
goes on from its newest checkpoint elsewhere."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="the folder of a comparison, shared by all workers")
    add("--wait", default="1s", metavar="TIME", help="leave after this time without a waiting trial (default: 1s)")
    add("--most", type=int, metavar="N", help="leave after N trials")
    add(
        "--patience",
        default="60s",
        metavar="TIME",
        help="without a heartbeat for this time, a worker is dead (default: 60s)",
    )
    add("--status", action="store_true", help="say how many trials wait and run, and leave")


def run(args: argparse.Namespace) -> int:
    """Work until nothing waits."""
    from kinfolk.contests import budget
    from kinfolk.contests.fleet.queue import Queue
    from kinfolk.contests.fleet.worker import HEARTBEAT, Worker, queues, work_inside

    home = args.folder.resolve()
    if not queues(home):
        raise DataError(f"{args.folder}: has no queue of trials; plan one with `kin compare … --on workers --out DIR`")
    if args.status:
        counts = {state: sum(queue.count()[state] for queue in queues(home)) for state in ("waiting", "running")}
        print(json.dumps(counts) if args.json else ", ".join(f"{n} {state}" for state, n in counts.items()))
        return 0
    if args.most is not None and args.most < 1:
        raise SpecError(f"--most: at least 1, got {args.most}")
    wait, patience = (budget.parse(text) for text in (args.wait, args.patience))
    for option, value in (("--wait", wait), ("--patience", patience)):
        if value.unit != "seconds":
            raise SpecError(f"{option}: expected a duration such as 10m")

    def worker_of(queue: Queue) -> Worker:
        beat = min(HEARTBEAT, patience.amount / 4)
        say = functools.partial(print, file=sys.stderr, flush=True)
        return Worker(queue, say, heartbeat=beat, patience=patience.amount)

    if Queue(home).exists:
        count = worker_of(Queue(home)).work(wait.amount, args.most)
    else:
        count = work_inside(home, worker_of, wait.amount, args.most)
    print(json.dumps({"trials": count}) if args.json else f"{count} trials run")
    return 0
