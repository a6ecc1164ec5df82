"""`kin predict`: labels, tags, answers or image classes for the rows of a file, by a trained model."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli.training import record_of
from kinfolk.core.printing import raw

if TYPE_CHECKING:
    from kinfolk.use.predict.opening import AnsweringRun

EPILOG = """\
examples:
  kin predict runs/reviews --input new.csv --out said.jsonl         a label and probabilities of every row
  kin predict runs/reviews --input new.csv --text-column body --out said.csv
  cat lines.txt | kin predict runs/reviews --input -                one text a line, answers as JSON lines
  kin predict runs/entities --input news.txt --out tags.jsonl       tags of words, and entities with their places
  kin predict runs/questions --input dev.json --out answers.jsonl   answers with their places, from SQuAD's files or
                                                                    rows with a question and a context
  kin predict runs/vit --input images/ --out said.csv             PNG or JPEG files of a folder, one file, or a table
                                                                    with a column `file`

Rows come out in the order they went in, with their line and their id. Only some rows are in memory at a time. A row
that cannot be read is refused with its line; --on-bad skip leaves it out and tells so."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", type=Path, metavar="RUN", help="the run folder")
    input_arguments(parser)
    add("--out", type=Path, metavar="FILE", help=".jsonl or .csv (default: JSON lines on standard output)")
    add("--second-column", metavar="C", help="of runs that judge two texts (default: as in training)")
    add("--question-column", default="question", metavar="C", help="of runs that answer (default: question)")
    add("--context-column", default="context", metavar="C", help="of runs that answer (default: context)")
    add(
        "--threshold", type=float, default=0.5, metavar="P", help="above which a class holds, of several (default: 0.5)"
    )
    add("--no-answer", type=float, metavar="M", help="margin that an answer needs over none (default: the run's own)")
    add("--top", type=int, default=0, metavar="K", help="tell the probabilities of the K likeliest classes only")
    add("--echo", action="store_true", help="write the columns of the input too")
    add("--on-bad", default="stop", metavar="stop|skip", help="what a bad row does (default: stop)")
    add("--average", type=int, default=0, metavar="N", help="use the mean of the weights of the newest N checkpoints")
    engine_arguments(parser)


def input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is read."""
    add = parser.add_argument
    add(
        "--input",
        required=True,
        metavar="FILE",
        help=".txt .csv .tsv .jsonl .parquet .conll .json; - is standard input",
    )
    add("--form", default="", metavar="F", help="txt, csv, tsv, jsonl, conll … (default: by the name)")
    add("--text-column", metavar="C", help="name, or number from 1 of a table without names (default: text)")
    add("--rows", type=int, default=32, metavar="N", help="rows run at once (default: 32)")


def engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what runs the model."""
    parser.add_argument("--engine", metavar="E", help="torch, onnx or a plugin's (default: torch; of exports, onnx)")
    parser.add_argument("--graphs", type=Path, metavar="DIR", help="of onnx: what kin export --to onnx wrote")
    parser.add_argument("--device", help="cpu, cuda, mps or xpu (default: the accelerator, if there is one)")
    parser.add_argument("--threads", type=int, metavar="N", help="of this process (default: PyTorch's)")


def run(args: argparse.Namespace) -> int:
    """Answer every row, and say what happened on the way."""
    from kinfolk.objectives.tasks.answering import How, PredictionCounts
    from kinfolk.use.predict.opening import open_run
    from kinfolk.use.predict.predicting import predict
    from kinfolk.use.predict.writing import writer

    prepare_machine(args)
    opened = open_run(args.what, answer=answer_of(args), device=device_of(args), average=args.average)
    opened = _columns(args, opened)
    how = record_of(How, args, batch_size=args.rows, margin=args.no_answer)
    tally = PredictionCounts()
    with writer(args.out) as write, _Counter() as counter:
        for answer in predict(opened, _rows(args, opened), how, tally):
            write(answer)
            counter.tell()
    _tell(args, opened, tally)
    return 0


def _rows(args: argparse.Namespace, opened: "AnsweringRun") -> Any:
    """Return the rows of the input, or its images."""
    if opened.picture is None:
        return rows_of(args, opened.columns.text)
    from kinfolk.data.files.image_rows import read_pictures

    return read_pictures(args.input, args.form, opened.columns.file)


def rows_of(args: argparse.Namespace, column: str) -> Any:
    """Return the rows of the input; a column with a number means that a table has no names."""
    from kinfolk.data.files.readers import read_rows

    return read_rows(args.input, args.form, header=not column.isdecimal())


def prepare_machine(args: argparse.Namespace) -> None:
    """Use as many threads as were asked for."""
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)


def device_of(args: argparse.Namespace) -> str:
    """Return where the model runs."""
    from kinfolk.core.device import choose_device

    return str(choose_device(args.device or "auto"))


def answer_of(args: argparse.Namespace) -> Any:
    """Return the engine that was asked for; None is the run's own."""
    if args.engine in (None, "torch") and args.graphs is None:
        return None
    from kinfolk.runs.run import Run

    return Run.open(args.graphs or args.what).engine(args.engine or "", args.threads or 0).answer


def _columns(args: argparse.Namespace, opened: "AnsweringRun") -> "AnsweringRun":
    import dataclasses

    from kinfolk.core.errors import SpecError

    if args.second_column and opened.n_texts == 1:
        raise SpecError(
            f"--second-column: {args.what} judges one text at a time; a model that others taught to judge two is "
            "imported with kin import --pairs"
        )
    named = {"text": args.text_column, "second": args.second_column}
    named |= {"question": args.question_column, "context": args.context_column}
    named |= {} if opened.picture is None else {"file": args.text_column}
    columns = dataclasses.replace(opened.columns, **{key: value for key, value in named.items() if value})
    return dataclasses.replace(opened, columns=columns)


def _tell(args: argparse.Namespace, opened: "AnsweringRun", tally: Any) -> None:
    """Say how many rows there were, and what was lost, where it is not in the way of the answers."""
    out = str(args.out) if args.out else None
    summary = {"run": str(args.what), "task": opened.task.labels, "rows": tally.rows, "out": out}
    summary |= {"cut": tally.cut, "in_parts": tally.parted, "skipped": len(tally.bad)}
    if args.json and args.out:
        print(json.dumps(summary | {"bad": tally.bad[:20]}, indent=1))
        return
    lines = [f"{tally.rows:,} rows" + (f" -> {args.out}" if args.out else "")]
    unit = "questions" if opened.task.windows else f"rows of more than {opened.length:,} tokens"
    lines += [f"{tally.cut:,} {unit} lost their end"] * bool(tally.cut)
    parts = f"sentences of more than {opened.length:,} tokens were read in parts, {tally.parted:,} more than sentences"
    lines += [parts] * bool(tally.parted)
    lines += [f"{len(tally.bad):,} bad rows were skipped, first: {tally.bad[0]}"] if tally.bad else []
    print("\n".join(lines), file=sys.stderr)


class _Counter:
    """Shows how many rows are done, where somebody is looking."""

    EVERY = 256

    def __init__(self) -> None:
        self.n, self.shown = 0, sys.stderr.isatty()

    def __enter__(self) -> "_Counter":
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown and self.n >= self.EVERY:
            raw(sys.stderr).write("\r\x1b[K")

    def tell(self) -> None:
        """Count one more."""
        self.n += 1
        if self.shown and self.n % self.EVERY == 0:
            raw(sys.stderr).write(f"\r{self.n:,} rows")
            sys.stderr.flush()
