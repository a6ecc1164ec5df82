"""`kin eval`: score a trained model on data."""

import argparse
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli import acting, harness
from kinfolk.cli.training import data_arguments
from kinfolk.core.errors import SpecError, suggest

if TYPE_CHECKING:
    from kinfolk.data import Data
    from kinfolk.models.model import Transformer
    from kinfolk.runs.run import Run
    from kinfolk.train.sliding import Timing

REPORTS = (".html", ".txt")
SPLITS = ("valid", "train", "all", "test", "longer")

EPILOG = """\
examples:
  kin eval runs/a                                the run's own validation data, all of it
  kin eval runs/a --data other.txt --split all   another text, with the run's tokenizer
  kin eval runs/xl --memory 800                  a longer segment memory than in training (Transformer-XL, GTrXL)
  kin eval runs/a --sliding 800,3800             what a memory saves over sliding windows of these lengths
  kin eval runs/c --data test.csv                all rows of another file with labels
  kin eval runs/c                                of labels also macro-F1, MCC, and which class is taken for which
  kin eval runs/c --report report.html           the same as a page, with the examples it is most wrong about
  kin eval runs/b --bleu --beams 4 --average 5   pairs: BLEU of beam search, with the mean of five checkpoints
  kin eval runs/a --tasks mine.yaml              tasks of lm-evaluation-harness, in files of one's own
  kin eval runs/a --json                         for machines"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("what", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument(
        "--split",
        help="valid, train or all; test or longer where the data has such a part (default: valid; of a file that is "
        "named by --data, all)",
    )
    parser.add_argument("--batches", type=int, default=0, metavar="N", help="only the first N batches of each part")
    parser.add_argument(
        "--sliding",
        metavar="N,N",
        help="instead of scoring, time cached evaluation beside sliding windows of these attention lengths",
    )
    parser.add_argument(
        "--samples", type=int, default=3, metavar="N", help="positions at which windows are run (default: 3)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        metavar="N",
        help="positions remembered before each segment, of relatives with a segment memory (default: as in training)",
    )
    labels = parser.add_argument_group("of labels")
    labels.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help=".html or .txt: each class, confusion matrix, worst examples",
    )
    labels.add_argument("--worst", type=int, default=20, metavar="N", help="examples in the report (default: 20)")
    written = parser.add_argument_group("of pairs: what the model writes")
    written.add_argument("--bleu", action="store_true", help="BLEU of what it writes, with sacrebleu's signature")
    written.add_argument("--rouge", action="store_true", help="ROUGE-L of what it writes, the F-measure")
    written.add_argument("--exact", action="store_true", help="the share of targets that it writes exactly")
    written.add_argument("--written", type=int, default=0, metavar="N", help="of the first N pairs only")
    written.add_argument("--beams", type=int, default=1, help="beam search with this many hypotheses (default: greedy)")
    written.add_argument("--length-penalty", type=float, default=0.6, help="of beam search (default: 0.6)")
    written.add_argument("--rows", type=int, default=32, metavar="N", help="pairs decoded at once (default: 32)")
    parser.add_argument(
        "--average", type=int, default=0, metavar="N", help="use the mean of the weights of the newest N checkpoints"
    )
    harness.arguments(parser)
    data_arguments(parser, None)


def run(args: argparse.Namespace) -> int:
    """Print nats per target of every measure, and bits per byte of a text."""
    from kinfolk.runs.run import Run
    from kinfolk.train.evaluate import require_finite
    from kinfolk.use.evaluation import score

    args.data = _named(args)
    if args.split is None:
        args.split = "all" if _raw(args) else "valid"
    if args.split not in SPLITS:
        raise SpecError(f"--split: unknown part {args.split!r}{suggest(args.split, SPLITS)}")
    if args.tasks:
        return harness.evaluate(args)
    if acting.acts(args.what):
        return acting.evaluate(args)
    opened = Run.open(args.what)
    recipe, learner = opened.recipe, opened.scorer(args.average)
    _remember(args, learner)
    data = _open(args, opened)
    if args.sliding is not None:
        return _slide(args, learner.model, data)
    keep = None if args.report is None else functools.partial(_keeping, args, recipe)
    result = score(opened, learner, data, args.split, args.batches, keep)
    if result.keeping is not None:
        _report(args, data, dict(result.scores), result.keeping, result.lost)
    found = result.plain() | _written(args, recipe, learner, data)
    require_finite({name: one["mean"] for name, one in found["measures"].items()}, str(args.what))
    said = ([] if result.tally is None else result.tally.sentences()) + result.lost
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        _print(args, found, said)
    return 0


def _print(args: argparse.Namespace, found: dict[str, Any], said: list[str]) -> None:
    """Print an evaluation for people."""
    from kinfolk.train.special import sentences

    part = "all of it" if found["split"] == "all" else f"the {found['split']} part of it"
    print(f"{'data':14} {found['data']}, {part}" + (f", {args.batches} batches" if args.batches else ""))
    for name, one in found["measures"].items():
        nats = "" if one["perplexity"] is None else f" nats  perplexity {one['perplexity']:.2f}"
        print(f"{name:14} {one['mean']:.4f}{nats}  ({one['count']:,} targets)")
    print("\n".join(said), end="\n" if said else "")
    if found["bits_per_byte"] is not None:
        print(f"bits per byte  {found['bits_per_byte']:.4f}")
    print("\n".join(sentences(found["special"])), end="\n" if found["special"] else "")
    for name, value in found.get("written", {}).items():
        print(f"{name:14} {value:.4f}" if isinstance(value, float) else f"{name:14} {value}")


def _remember(args: argparse.Namespace, learner: Any) -> None:
    """Give the model as long a memory as was asked for."""
    from kinfolk.train.longer import with_memory

    if args.memory is not None:
        learner.model = with_memory(learner.model, args.memory)


def _written(args: argparse.Namespace, recipe: Any, learner: Any, data: "Data") -> dict[str, Any]:
    """Let the model write the targets of pairs and score them, if that was asked for."""
    from kinfolk.data import Batches
    from kinfolk.decoding.written import MEASURES, write
    from kinfolk.runs import folder

    asked = tuple(name for name in MEASURES if getattr(args, name))
    if not asked:
        return {}
    split = data.split("valid" if args.split == "all" else args.split)
    batches = Batches(split=split, shuffle=False, batch_size=args.rows, length=recipe.training.length)
    how = {"beams": args.beams, "length_penalty": args.length_penalty}
    made = write(learner.model, batches, args.written, **how)
    scores = {key: value for found in made.scores(asked).values() for key, value in found.items()}
    done = folder.result(args.what)
    flops = {} if done is None else {"training FLOPs": f"{done['flops']:.2e}"}
    return {"written": {"pairs": len(made.texts), **scores, **flops}}


def _slide(args: argparse.Namespace, model: "Transformer", data: "Data") -> int:
    """Print seconds per token of cached evaluation and of sliding windows, and their ratios."""
    import dataclasses

    import torch

    from kinfolk.core.allocator import favour_speed
    from kinfolk.train.sliding import compare

    lengths = [word.strip() for word in args.sliding.split(",")]
    if not all(word.isdigit() for word in lengths):
        raise SpecError(
            f"--sliding: attention lengths are whole numbers with commas between them, not {args.sliding!r}"
        )
    # both ways make and drop large tensors, and neither is to be timed by how the system hands out pages
    favour_speed()
    split = data.split("valid" if args.split == "all" else args.split)
    threads, rows = torch.get_num_threads(), []
    for length in map(int, lengths):
        row = compare(model, split, length, args.samples)
        rows.append(dataclasses.asdict(row) | {"ratio": row.ratio, "fused_ratio": row.fused_ratio, "threads": threads})
        if not args.json:
            print(_sentence(row, threads), flush=True)
    if args.json:
        print(json.dumps({"run": str(args.what), "data": data.name, "sliding": rows}, indent=1))
    return 0


def _sentence(row: "Timing", threads: int) -> str:
    return (
        f"attention length {row.length:,}, {threads} thread{'s' * (threads > 1)}, seconds per token"
        f" (medians of {row.segments} segments, and of windows at {row.samples} sampled positions)\n"
        f"  cached         {row.cached:12.6f}            {row.cached_nats:.4f} nats at those positions\n"
        f"  sliding        {row.sliding:12.6f} {row.ratio:8,.0f} x {row.sliding_nats:.4f} nats,"
        f" differs by {row.difference:.1e} where both see the same\n"
        f"  sliding, SDPA  {row.fused:12.6f} {row.fused_ratio:8,.0f} x without distances, on the fused kernel alone"
    )


def _open(args: argparse.Namespace, run: "Run") -> "Data":
    """Open the run's data, or other data under the run's tokenizer: other ids would mean other tokens."""
    from kinfolk.data import Preparation
    from kinfolk.data.splits.asking import inherited
    from kinfolk.runs.metadata import ReadingNotes

    if args.data is None:
        return run.data()
    notes = run.metadata.reading or ReadingNotes()
    shape = {key: value for key, value in {"window": notes.window, "stride": notes.stride}.items() if value}
    source = {"name": inherited(args.data, run.metadata.data.name, **shape), "cache": args.cache, "valid": args.valid}
    words = {"tokenizer": args.tokenizer or run.tokenizer_file, "vocab": args.vocab}
    words = {key: value for key, value in words.items() if value is not None}
    if args.split == "all" and _raw(args):
        return run.data(source | {"choices": Preparation(**words, valid=0.0)})
    return run.data(source | words)


def _raw(args: argparse.Namespace) -> bool:
    """Tell whether --data names a file that nothing was held out of, so that all of it can be scored."""
    from kinfolk.data.files.treebank import is_treebank
    from kinfolk.data.splits.asking import has_labels
    from kinfolk.data.splits.images import is_images

    if args.data is None or args.valid is not None or acting.acts(args.what):
        return False
    path = Path(args.data)
    file = path.is_file() and not is_images(path) and not is_treebank(path)
    return file or has_labels(args.data)


def _named(args: argparse.Namespace) -> str | None:
    """Return the name of the data; a file that is given to a run that judges is one with labels."""
    from kinfolk.data.splits.images import is_images
    from kinfolk.runs.run import Run

    if args.data is None or not Path(args.data).is_file() or is_images(Path(args.data)) or acting.acts(args.what):
        return str(args.data) if args.data is not None else None
    task = Run.open(args.what).task
    return f"labelled:{args.data}" if task is not None and task.labels else args.data


def _keeping(args: argparse.Namespace, recipe: Any, tally: Any) -> Any:
    """Return what keeps the worst examples beside a tally."""
    from kinfolk.use.predict.worst import Keeping

    if tally is None:
        raise SpecError(
            f"--report: objective {recipe.objective.kind!r} judges no labels, so there is nothing to report"
        )
    if args.report.suffix not in REPORTS:
        raise SpecError(f"--report: {args.report} should end with {' or '.join(REPORTS)}")
    return Keeping(tally, recipe.objective, args.worst)


def _report(args: argparse.Namespace, data: "Data", totals: dict[str, Any], keeping: Any, remarks: list[str]) -> None:
    """Write the report."""
    from kinfolk.core import durable
    from kinfolk.use.predict.page import as_page
    from kinfolk.use.predict.report import as_text, make_report

    count = max(int(score.count) for score in totals.values())
    facts = {"run": str(args.what), "data": data.name, "part": args.split, "targets": f"{count:,}"}
    figures = {name: score.mean for name, score in totals.items()}
    # names say how a file is read before they say which
    title = f"{args.what.resolve().name} on {Path(data.name.rpartition(':')[2]).name}"
    report = make_report(title, facts, figures, keeping.inner, keeping.worst(), remarks)
    text = as_page(report) if args.report.suffix == ".html" else as_text(report)
    args.report.parent.mkdir(parents=True, exist_ok=True)
    durable.write(args.report, text)
