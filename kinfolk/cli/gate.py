"""`kin gate`: is a candidate better than a baseline? Exit code 0 better, 1 worse, 3 not decided."""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path

from kinfolk.cli.compare import shared_arguments
from kinfolk.cli.training import settings_of

EPILOG = """\
examples:
  kin gate gpt gpt2 --data my.txt --budget 5m                        is GPT-2 better than GPT on this text?
  kin gate gpt2 gpt2+rotary --data my.txt --budget 500k-tokens       does one change help?
  kin gate gpt2 gpt2+model.dropout=0.1 --data my.txt --budget 5m     the same for a value
  kin gate base.toml mine.toml --plugin mine.py --json --out runs/g  spec files, a plugin's relatives
  kin gate A B … && git commit -am "keep it"                         0 better, 1 worse, 3 not decided, 2 refused"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("baseline", metavar="BASELINE", help="a relative, a relative with changes (gpt2+rotary), a spec file or a run")
    add("candidate", metavar="CANDIDATE", help="the same; may be the baseline with a change")
    add("--budget", default="1m", metavar="B", help="of every trial: 10m, 2M-tokens, 1e15-flops (default: 1m)")
    add("--seed", type=int, default=0, metavar="N", help="first seed of the verdict (default: 0)")
    add("--seeds", type=int, default=5, metavar="N", help="trials of each to begin with (default: 5)")
    add("--max-seeds", type=int, default=9, metavar="M", help="two more at a time while it is open (default: 9)")
    add("--tune", default="lr", metavar="T", help="lr: find each one's learning rate first; off (default: lr)")
    add("--match", default="", metavar="BY", help="scale the candidate's width: params, flops, none (default: params)")
    add("--size", default="tiny", help="tiny, small or base (default: tiny)")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="change both recipes")
    add("--out", type=Path, metavar="DIR", help="folder of the comparison (default: runs/compare-…)")
    shared_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer; the exit code says it too."""
    settings = settings_of(args, contestants=(args.baseline, args.candidate))
    from kinfolk.contests.gate import gate
    from kinfolk.core.console import progress_console

    answer = gate(settings, shlex.join(["kin", *sys.argv[1:]]), progress_console(args.json))
    if args.json:
        print(json.dumps(dataclasses.asdict(answer), indent=1, ensure_ascii=False))
    else:
        print(f"{answer.answer}: {args.candidate} against {args.baseline}, {answer.measure}, {answer.seeds} seeds")
        print(answer.reason)
        print(f"report: {Path(answer.folder) / 'report.html'}")
    return answer.code
