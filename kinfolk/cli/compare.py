"""`kin compare`: train several relatives at an equal budget and rank them."""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.cli.training import names, settings_of

if TYPE_CHECKING:
    from kinfolk.contests.settings import Settings
    from kinfolk.core.console import Console

EPILOG = """\
examples:
  kin compare                                                   the first relatives on Python's own source
  kin compare gpt gpt2 --data my.txt --budget 10m               ten minutes of training for every trial
  kin compare gpt gpt2 alibi --against gpt2 --max-seeds 9        is anybody better than gpt2? More seeds where open
  kin compare gpt gpt2 --tune off --match none --seeds 3        as they are: no tuning, no matching
  kin compare vanilla gpt2 --data pairs/ --budget 2M-tokens     the same number of tokens for all
  kin compare gpt2 bert --budget 1e14-flops --match params      the same operations, widths matched to gpt2
  kin compare table.toml --seeds 5 --out runs/mine              contestants of your own
  kin compare --table narang --rows list                        the rows of a published table
  kin compare --table modern --rows muon,canon --budget 10m     changes after 2021 on one Llama-like body
  kin compare --table narang --rows 8 --budget 10m              eight of them, beside the published figures
  kin compare --table narang --rows geglu,switch --seeds 5      those two, beside the baseline
  kin compare gtrxl lstm --env cue-recall --budget 100k-tokens  who learns to act; a token is a step there
  kin compare bert linformer --suite lra --budget 30m           the five tasks of the Long Range Arena, in one report
  kin compare --finetune minilm runs/bert --tactics plain,ulmfit,lora=8,scratch --data a.csv --valid b.csv
                                                                which checkpoint and which tactic suits my labels?
  kin compare llama gla --suite mad-small --budget 200k-tokens  MAD's six tasks; mqar: multi-query recall
  kin compare --suite lra-small --relatives bert,linear         the same five, small enough for two cores and minutes
  kin compare gpt2 llama --budget 200M-tokens --on slurm --per-trial gpus=1,cores=4,hours=2 --out /shared/a
  kin compare --status /shared/a                                how far it is, from any host

Stop it at any time; the same command goes on. More seeds or contestants with the same --out add only what is missing.
A table.toml has [contestants.NAME] with relative = "gpt2" and numbers, for example n_layers = 8."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("contestants", nargs="*", metavar="RELATIVE|SPEC.toml", help="relatives, spec files, runs or tables of them")
    add("--table", default="", metavar="T", help="run the rows of a table: narang, modern")
    add("--rows", default="", metavar="R", help="of the table: a number, names between commas, or list to see them")
    add(
        "--suite",
        default="",
        metavar="S",
        help="run all tasks of a suite: lra, mad, mqar, or for a laptop lra-small, …",
    )
    add(
        "--relatives", type=names, default=(), metavar="A,B", help="contestants between commas, the same as naming them"
    )
    add("--finetune", nargs="+", default=[], metavar="RUN|FOLDER", help="begin with these, on the labels of --data")
    tactics = "with --finetune: plain,ulmfit,lora=8 … (see kin finetune --help)"
    add("--tactics", type=names, default=(), metavar="T,T", help=tactics)
    add("--valid", default="", metavar="FILE", help="with --finetune: a file of its own to validate on")
    add("--env", metavar="E", help="act instead of reading: cue-recall, or an id of Gymnasium's such as CartPole-v1")
    add("--solved", type=float, metavar="R", help="with --env: the mean return that counts as solved")
    add("--budget", default="1m", metavar="B", help="of every trial: 10m, 2M-tokens, 1e15-flops (default: 1m)")
    add("--seeds", type=int, default=5, metavar="N", help="trials of every contestant (default: 5)")
    add("--max-seeds", type=int, default=0, metavar="M", help="two more seeds at a time for open pairs, up to M")
    add(
        "--tune",
        default="lr",
        metavar="T",
        help="lr: find each contestant's learning rate first; off: its recipe's own (default: lr)",
    )
    add(
        "--match",
        default="",
        metavar="BY",
        help="scale widths to the first: params (without embedding and output layer), flops, time of a step, none "
        "(default: params; none with --finetune and --table)",
    )
    add(
        "--branches",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="finished losses at 1/8, 1/4, 1/2 and all of the budget, with N seeds; costs 1.2 budgets for each (off)",
    )
    add(
        "--battery",
        default="none",
        metavar="B",
        help="quick: loss by position and beyond the trained length, decoding speed and state, latency; full: also "
        "copying, multi-query recall, needle, up to 16k positions (default: none)",
    )
    add(
        "--against",
        default="",
        metavar="NAME",
        help="hold all others against this contestant, or against the best (default: best; with --table the row that "
        "the others change)",
    )
    add("--size", default="tiny", help="tiny, small or base (default: tiny)")
    sizes = "the same at several sizes: ranks, Kendall's tau, laws, crossings"
    add("--sizes", type=names, default=(), metavar="S,S", help=sizes)
    add(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change every recipe: n_layers=4, training.clip=0",
    )
    add("--out", type=Path, metavar="DIR", help="folder of the comparison (default: runs/compare-…)")
    add(
        "--status", type=Path, metavar="DIR", help="say how far the comparison in a folder is, from any host, and leave"
    )
    shared_arguments(parser)


def shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of whatever runs trials."""
    data = parser.add_argument_group("data").add_argument
    data("--data", default="stdlib", metavar="D", help="stdlib, a task, a file or a prepared folder (default: stdlib)")
    data("--tokenizer", default="byte", help="of raw files: byte, char, word, bpe, unigram or a file (default: byte)")
    data("--vocab", type=int, metavar="N", help="of raw files: size of a vocabulary that is learnt")
    data("--cache", type=Path, metavar="DIR", help="where prepared data is kept")
    machine = parser.add_argument_group("the machine")
    machine.add_argument(
        "--on",
        default="local",
        metavar="PLACE",
        help="local; workers (then start `kin work DIR` anywhere); slurm; ray or ray://HOST:PORT; or a command such as "
        "'ssh HOST kin work {dir}'",
    )
    machine.add_argument(
        "--per-trial",
        default="",
        metavar="NEEDS",
        help="with --on: what a trial is given: gpus=1,cores=4,hours=2,memory=16 (in GB),partition=P",
    )
    machine.add_argument("--jobs", type=int, metavar="N", help="trials side by side (default: as many as cores)")
    machine.add_argument("--threads", type=int, metavar="N", help="threads of a trial (default: cores left over)")
    machine.add_argument(
        "--precision", metavar="P", help="fp32, tf32, bf16 or fp16 (default: what the device is built for)"
    )
    machine.add_argument("--nice", type=int, default=5, metavar="N", help="politeness of trials, 0 to 19 (default: 5)")
    machine.add_argument("--timeout", default="", metavar="T", help="longest life of a trial, like 2h")


def run(args: argparse.Namespace) -> int:
    """Compare, print the table, and say where the report is."""
    if args.status is not None:
        from kinfolk.contests.fleet.status import status

        totals = status(args.status)
        print(json.dumps(totals.plain()) if args.json else totals)
        return 0
    if args.env is not None:
        from kinfolk.cli import acting

        return acting.compare(args)
    if args.table and args.rows == "list":
        return _list_rows(args)
    settings = settings_of(args, contestants=(*args.contestants, *args.relatives), finetune=tuple(args.finetune))
    _begin(args, settings)
    # what follows takes seconds to import
    from kinfolk.contests.published_table import show_beside
    from kinfolk.contests.report.answer import answer
    from kinfolk.contests.run import run as compare
    from kinfolk.contests.table import show
    from kinfolk.core.console import Console, progress_console

    command = shlex.join(["kin", *sys.argv[1:]])
    notes = progress_console(args.json)
    try:
        if args.suite:
            return _suite(args, settings, command, notes)
        result = compare(settings, command, notes)
    except KeyboardInterrupt:
        message = f"\nstopped; what is finished is kept in {settings.folder}\ngo on with: {command}"
        notes.print(message, markup=False, highlight=False, soft_wrap=True)
        raise
    advice = answer(result.rows, settings.baseline)
    if args.json:
        print(json.dumps(result.to_plain() | {"answer": dataclasses.asdict(advice)}, indent=2, ensure_ascii=False))
    else:
        console = Console()
        show(result.rows, console, result.title)
        if result.beside:
            console.print()
            show_beside(result.beside, console)
        for line in (advice.sentence, f"report: {result.folder / 'report.html'}"):
            console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    return 0 if result.best else 1


def _begin(args: argparse.Namespace, settings: "Settings") -> None:
    """Say what runs before anything large is imported."""
    who = ", ".join(settings.contestants or settings.finetune) or settings.table or "the first relatives"
    where = f"suite {args.suite}" if args.suite else settings.data
    seeds = f"{settings.seeds} seed{'s' * (settings.seeds > 1)}"
    folder = settings.out or ("" if args.suite else settings.folder)
    line = f"{who} on {where}: {settings.budget} for each of {seeds}{f' -> {folder}' if folder else ''}"
    # as `kinfolk.core.console.note`, which is not imported yet
    text = json.dumps({"event": "note", "text": line}, ensure_ascii=False) if args.json else line
    print(text, file=sys.stderr, flush=True)


def _suite(args: argparse.Namespace, settings: "Settings", command: str, notes: "Console") -> int:
    from kinfolk.contests.suite import run_suite
    from kinfolk.contests.suite_table import show
    from kinfolk.core.console import Console

    result = run_suite(args.suite, settings, command, notes)
    if args.json:
        print(json.dumps(result.to_plain(), indent=2, ensure_ascii=False))
    else:
        show(result, Console())
        print(f"report: {result.folder / 'report.html'}")
    return 0 if any(standing.scores for standing in result.standings) else 1


def _list_rows(args: argparse.Namespace) -> int:
    from kinfolk.contests.published_table import show_rows
    from kinfolk.core.console import Console
    from kinfolk.family.tables import table

    published = table(args.table)
    if args.json:
        fields = ("key", "name", "changes", "missing", "differs")
        rows = [{f: getattr(row, f) for f in fields} | dataclasses.asdict(row.published) for row in published.rows]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        show_rows(published, Console())
    return 0
