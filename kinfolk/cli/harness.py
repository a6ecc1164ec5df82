"""`kin eval --tasks`: tasks of lm-evaluation-harness, described in files of one's own."""

import argparse
import json
import logging
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of local tasks."""
    tasks = parser.add_argument_group("tasks of lm-evaluation-harness")
    tasks.add_argument("--tasks", type=Path, nargs="+", metavar="FILE.yaml", help="score these instead of data")
    tasks.add_argument("--limit", type=int, metavar="N", help="only the first N examples of each")
    tasks.add_argument("--shots", type=int, metavar="N", help="solved examples before each (default: as the task says)")
    tasks.add_argument("--trust-tasks", action="store_true", help="run the Python code that the files of --tasks name")


def evaluate(args: argparse.Namespace) -> int:
    """Score a run on tasks, and print what was measured."""
    from kinfolk.core.errors import MissingExtraError

    try:
        from kinfolk.use.serve.harness import run_tasks
    except ImportError as error:
        if (error.name or "").split(".")[0] != "lm_eval":
            raise
        raise MissingExtraError("harness", "kin eval --tasks") from None
    if args.json:
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
    results = run_tasks(args.what, args.tasks, args.limit, args.shots, args.rows, trusted=args.trust_tasks)
    if args.json:
        print(json.dumps({"run": str(args.what), "tasks": results}, indent=1))
        return 0
    for task, scores in results.items():
        for name, value in scores.items():
            print(f"{task:14} {name:18} {value:.4f}")
    return 0
