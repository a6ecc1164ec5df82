"""`kin finetune`: from a trained or downloaded model to one's own task."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.cli.training import announce, begin, command_of, machine_arguments, options_of, record_of, show
from kinfolk.core.errors import SpecError
from kinfolk.train.finetune.names import table

if TYPE_CHECKING:
    from kinfolk.objectives.tasks.task import Task
    from kinfolk.train.finetune.run import Prepared
    from kinfolk.train.finetune.transplant import Moved

WRITTEN = 64
"""Targets that are written at each validation, where they decide what is best."""

UNKNOWN = "a class or tag of --valid that --train lacks: stop, or add it to those to learn (default: stop)"

EPILOG = f"""\
examples:
  kin finetune all-MiniLM-L6-v2 --train a.csv --valid b.csv --out runs/mine    a downloaded folder, columns text, label
  kin finetune runs/bert --task classify --train a.tsv --text-column 1 --label-column 2 --out runs/mine
  kin finetune runs/bert --task pairs --train a.jsonl --second-column hypothesis --out runs/mine
  kin finetune runs/bert --task regress --train sts.csv --second-column 2 --text-column 1 --label-column 3 --out …
  kin finetune runs/bert --task tag --train a.conll --valid b.conll --out runs/tags
  kin finetune runs/gpt2 --task lm --train my.txt --out runs/mine              go on learning, on my own text
  kin finetune runs/bert --train a.csv --tactic ulmfit --out runs/mine         a tactic of the literature
  kin finetune runs/bert --train a.csv --tactic lora=8 --out runs/mine         then: kin compress … --steps plain
  kin finetune runs/bert --train a.csv --tactic layer-wise=0.9+reinit=2 --metric mcc --patience 3 --out runs/mine
  kin finetune runs/bert --train a.csv --also c.csv --also d.csv --out …       several tasks, one body; a.csv is judged
  kin finetune runs/bert --train a.csv --knowledge facts.tsv --out runs/mine   K-BERT: facts about the names in a text
  kin finetune runs/bert --train a.csv --further 500 --out runs/mine           first 500 steps on its text, no labels

The result is a run: eval, predict, resume, compress and export take it. --metric selects the best checkpoint.

tactics, alone or several with + between them:
{table()}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", type=Path, metavar="RUN|FOLDER", help="a run, or a folder with config.json and weights")
    add(
        "--task",
        default="auto",
        metavar="T",
        help="classify, multi-label, pairs, regress, tag, answer, lm, seq2seq, "
        "image; or auto, which looks at the file (default: auto)",
    )
    add(
        "--train",
        type=Path,
        required=True,
        metavar="FILE",
        help=".csv, .tsv, .jsonl, .parquet, .conll, .json …",
    )
    add("--valid", type=Path, metavar="FILE", help="to validate on (default: a twentieth of --train is held out)")
    add("--out", type=Path, required=True, metavar="RUN", help="the run folder to make")
    add("--text-column", default="", metavar="C", help="name or number of a column (default: the usual names)")
    add("--second-column", default="", metavar="C", help="of a second text, or of the target")
    add("--label-column", default="", metavar="C", help="of the label")
    add("--between", default="", metavar="S", help="between several classes of a row: bar, comma, semicolon, space")
    add("--unknown-classes", default="stop", choices=("stop", "add"), help=UNKNOWN)
    how = parser.add_argument_group("how it learns")
    how.add_argument("--tactic", default="plain", metavar="T+T", help="see below (default: plain)")
    how.add_argument("--epochs", type=float, default=3.0, metavar="N", help="times all rows are read (default: 3)")
    how.add_argument("--steps", type=int, default=0, metavar="N", help="updates, in the place of epochs")
    how.add_argument("--batch-size", type=int, default=32, metavar="N", help="rows of an update (default: 32)")
    how.add_argument("--length", type=int, default=0, metavar="N", help="cut texts after N tokens")
    how.add_argument("--cut", default="head", metavar="C", help="what is left of longer ones: head, tail or both")
    how.add_argument("--lr", type=float, default=0.0, help="learning rate (default: 5e-5 at width 768)")
    how.add_argument("--metric", default="", metavar="M", help="what is best: accuracy, mcc, pearson, loss …")
    how.add_argument(
        "--patience", type=int, default=0, metavar="N", help="validations without improvement to stop after"
    )
    how.add_argument("--validations", type=int, default=1, metavar="N", help="of each epoch (default: 1)")
    how.add_argument("--further", type=int, default=0, metavar="N", help="first, N steps on the text without labels")
    how.add_argument(
        "--also", type=Path, action="append", default=[], metavar="FILE", help="learn from these labels too"
    )
    how.add_argument(
        "--knowledge", type=Path, metavar="FILE", help="facts to read beside a text: subject TAB relation TAB object"
    )
    how.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change the recipe")
    how.add_argument("--seed", type=int, default=0, metavar="S", help="of new weights, order, dropout (default: 0)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where prepared data is kept")
    machine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fine-tune and say how it ended."""
    begin(args, args.what, args.train, args.out)
    from kinfolk.decoding.written import judge
    from kinfolk.train import parallel
    from kinfolk.train.finetune.further import ready
    from kinfolk.train.finetune.recipe import Effort
    from kinfolk.train.finetune.run import finetune
    from kinfolk.train.finetune.task import choose

    if args.also and args.processes > 1:
        raise SpecError("--also: only one head learns in a step, and several processes wait for all; use one process")
    task = choose(args.task, args.train, args.text_column, args.second_column, args.label_column, args.between)
    if args.unknown_classes == "add":
        task = task.replace(unknown="add")
    prepared = ready(
        args.what,
        task,
        (args.train, args.valid),
        args.out,
        seed=args.seed,
        options=options_of(args),
        effort=record_of(Effort, args),
        assignments=args.set,
        **{name: getattr(args, name) for name in ("precision", "tactic", "cache", "also", "knowledge")},
    )
    announce(args, prepared.recipe, options_of(args), args.out, prepared.data)
    if not args.quiet and not args.json:
        print("\n".join(_guesses(args, task, prepared)), file=sys.stderr)
    if args.processes > 1 and not parallel.inside():
        return parallel.launch(command_of("finetune", args), args.processes, args.restarts)
    if args.metric in ("bleu", "rouge-l") and not args.written:
        args.written = WRITTEN
    result, moved = finetune(prepared, args.out, seed=args.seed, options=options_of(args), judging=judge)
    if args.json:
        weights = {"kept": len(moved.kept), "fresh": list(moved.fresh), "left": list(moved.left)}
        print(json.dumps(dataclasses.asdict(result) | {"task": task.kind, "tactic": args.tactic} | weights, indent=1))
        return 130 if result.status == "interrupted" else 0
    if not args.quiet:
        _say(prepared, moved, task.kind)
    return show(result, False)


def _guesses(args: argparse.Namespace, task: "Task", made: "Prepared") -> list[str]:
    """Say before training how the file is read: task, columns, separator, classes, lengths, and what is held out."""
    from kinfolk.train.finetune.task import separator_of_file

    data = made.data
    columns = {"text": task.text, "second": task.second, "label": task.label}
    read = ", ".join(f"{name} column {column!r}" for name, column in columns.items() if column)
    how = "as asked" if args.task != "auto" else "guessed from the file; --task names another"
    lines = [f"task: {task.kind} ({how})" + (f", {read}" if read else "")]
    classes = data.splits["train"].classes
    if classes:
        shown = ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        apart = f", separated by {task.between}" if task.between else ""
        lines.append(f"classes: {len(classes):,}{apart}: {shown}")
    if task.labels == "class" and (mark := separator_of_file(args.train, task.label)):
        lines.append(f"classes: some labels look like several with a {mark} between; --task multi-label reads them so")
    rows = {name: len(split) for name, split in data.splits.items()}
    held = str(args.valid) if args.valid else "held out of the same file; --valid names another"
    lines.append(f"rows: {rows['train']:,} to learn from, {rows['valid']:,} to validate on ({held})")
    lines.append(f"length: up to {made.recipe.training.length:,} tokens of a row are read")
    return lines


def _say(made: "Prepared", moved: "Moved", task: str) -> None:
    """Say what was learnt from what, and which weights are new."""
    data, training = made.data, made.recipe.training
    rows = {name: len(split) for name, split in data.splits.items()}
    print(
        f"{task}: {rows['train']:,} rows to learn from, {rows['valid']:,} to validate on; "
        f"{len(moved.kept)} tensors of {made.source.path}, {len(moved.fresh)} new; best by {training.metric or 'loss'}",
        file=sys.stderr,
    )
