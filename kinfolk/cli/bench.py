"""`kin bench`: speed and memory beside other libraries."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.bench.contest import Contest
    from kinfolk.bench.runner import BenchSettings

EPILOG = """\
subjects:
  attention   the operator alone, a window of 512 beside causal SDPA; then `recurrences` and `mixers`
  recurrences chunked linear recurrences alone (delta rules, GLA, Mamba-2) beside transformers' torch path and fla's
  mixers      one layer of every mixer beside its peers and SDPA: how it grows, and from which length on it pays
  train       the same GPT by ours, a lean one by hand, Hugging Face and x-transformers; an encoder-decoder
  generate    cached greedy generation beside Hugging Face
  engines     Hugging Face, CTranslate2, onnxruntime and torch, fp32 and int8, on one thread; `generate --engines`
  decoding    every causal relative: time per token and size of its state at several positions
  serve       16 clients of a server, one after another and at once
  memory      peak memory of a step by depth: plain, recomputed and reversible, and what parameters take of it
  experts     mixtures of 1 to 64 experts beside a dense feed-forward of as many active weights
  halting     a model that halts, on inputs that are easy and hard for it: how many steps, and how long they take
  startup     how long the command line takes to answer

examples:
  kin bench train                           about ten minutes; stop other work first
  kin bench train --peers none --rounds 3   ours alone
  kin bench attention --rounds 1 --threads 1 --long --out runs/bench    two hours; without --long one
  kin bench mixers --only bigbird --lengths 4096,16384 --rounds 3
  kin bench memory --allocator memory       what a step needs, without what the allocator keeps for later
  kin bench train --history runs/bench.jsonl   then `kin bench --history runs/bench.jsonl` prints version by version
  kin bench train --check runs/bench.jsonl     ratios, not times, beside those of the last run on such a machine

Every contestant runs in fresh processes, in turn, round after round. Ratios are taken within a round. `memory` is the
peak while stepping over what was held just before the first step."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("subjects", nargs="*", metavar="SUBJECT", help="one or more of those below; none with --history: print it")
    add("--peers", default="all", help="all, none, or beside: only the one whose speed is 1 (default: all)")
    add("--rounds", type=int, default=5, metavar="N", help="fresh processes of every contestant (default: 5)")
    add("--threads", type=int, metavar="N", help="of every process (default: one for each core; of engines, one)")
    add("--allocator", default="default", help="default, speed or memory, for ours and peers (default: default)")
    add("--long", action="store_true", help="attention: 65,536 positions too, which takes minutes")
    add("--family", action="store_true", help="generate: then `decoding`, every causal relative")
    add("--engines", action="store_true", help="generate: `engines` instead, fp32 and int8 on one thread")
    add("--lengths", metavar="N,N", help="attention, mixers, decoding: only these lengths, such as 1024,16384")
    add("--only", metavar="NAME,NAME", help="only contestants whose names contain one of these, and their peers")
    add("--out", type=Path, metavar="DIR", help="also write SUBJECT.json and SUBJECT.txt here")
    add("--history", type=Path, metavar="FILE", help="also add the ratios to this file, by machine and version")
    add("--check", type=Path, metavar="FILE", help="compare with the last ratios in this history: exit code 1 if worse")


def run(args: argparse.Namespace) -> int:
    """Run the contests and print the tables."""
    from kinfolk.bench import history, table
    from kinfolk.bench.runner import run as run_contest

    if args.history and not args.subjects:
        kept = history.read(args.history)
        print(json.dumps(kept, indent=1) if args.json else history.text(kept))
        return 0
    settings, kept = _settings(args), history.read(args.check) if args.check else []
    where = table.machine()
    everything, new = [], list[history.Entry]()
    for subject in _subjects(args):
        contests = _contests(subject, args)
        standings = []
        for n, contest in enumerate(contests, 1):
            print(f"{subject} {n}/{len(contests)}: {contest.title}", file=sys.stderr)
            standings.append(run_contest(contest, settings, lambda line: print(f"  {line}", file=sys.stderr)))
            entries = history.entries(standings[-1:], where)
            new += entries
            # after every contest: what took an hour is not lost when the next is stopped
            if args.history:
                history.append(args.history, entries)
            if args.out:
                _write(args.out, subject, table.plain(standings, where), table.text(standings, where))
        everything += standings
    print(json.dumps(table.plain(everything, where), indent=1) if args.json else table.text(everything, where))
    lines, good = history.check(kept, new) if args.check else ([], True)
    print(*lines, sep="\n", file=sys.stderr, end="\n" if lines else "")
    return 0 if good and all(row.seconds is not None for s in everything for row in s.rows if not row.peer) else 1


def _subjects(args: argparse.Namespace) -> list[str]:
    """Return the subjects, `generate` being what its options make of it."""
    subjects = ["engines"] if args.engines else ["generate", *(["decoding"] if args.family else [])]
    return [subject for name in args.subjects for subject in (subjects if name == "generate" else [name])]


def _settings(args: argparse.Namespace) -> "BenchSettings":
    """Return the settings that the options name, or say what is wrong with them."""
    from kinfolk.bench.child import ALLOCATORS
    from kinfolk.bench.contest import SUBJECTS
    from kinfolk.bench.runner import BenchSettings
    from kinfolk.core.errors import SpecError, suggest
    from kinfolk.core.machine import cores

    allowed = {"--peers": (args.peers, ("all", "beside", "none")), "--allocator": (args.allocator, tuple(ALLOCATORS))}
    for option, (value, choices) in allowed.items():
        if value not in choices:
            raise SpecError(f"{option}: unknown choice {value!r}{suggest(value, choices)}")
    if not args.subjects:
        raise SpecError(f"name a subject: {', '.join(SUBJECTS)}")
    for subject in args.subjects:
        if subject not in SUBJECTS:
            raise SpecError(f"unknown subject {subject!r}{suggest(subject, SUBJECTS)}")
    alone = _subjects(args) == ["engines"]
    threads = (1 if alone else cores()) if args.threads is None else args.threads
    for option, number in {"--rounds": args.rounds, "--threads": threads}.items():
        if number < 1:
            raise SpecError(f"{option} must be at least 1, got {number}")
    return BenchSettings(args.rounds, threads, args.allocator, args.peers)


def _contests(subject: str, args: argparse.Namespace) -> "list[Contest]":
    """Return the contests of a subject that the options leave."""
    import importlib

    from kinfolk.core.errors import SpecError

    contests: list[Contest] = importlib.import_module(f"kinfolk.bench.{subject}").contests(args.long)
    lengths = {str(contest.sizes.get("length")) for contest in contests}
    # what has one length only has none to choose, as the first part of `generate --family`
    if args.lengths and len(lengths) > 1:
        wanted = args.lengths.split(",")
        if strange := [text for text in wanted if text not in lengths]:
            raise SpecError(
                f"--lengths: {subject} has no {strange[0]!r} (it has {', '.join(sorted(lengths, key=int))})"
            )
        contests = [contest for contest in contests if str(contest.sizes["length"]) in wanted]
    if args.only:
        contests = [contest.only(args.only.split(",")) for contest in contests]
        if not any(len(contest.contestants) > 1 for contest in contests):
            raise SpecError(f"--only: no contestant of {subject} is called like {args.only!r}")
        contests = [contest for contest in contests if len(contest.contestants) > 1]
    return contests


def _write(folder: Path, subject: str, found: dict[str, Any], text: str) -> None:
    """Write a result whole or not at all."""
    from kinfolk.runs import durable

    folder.mkdir(parents=True, exist_ok=True)
    durable.write(folder / f"{subject}.json", json.dumps(found, indent=1) + "\n")
    durable.write(folder / f"{subject}.txt", text + "\n")
